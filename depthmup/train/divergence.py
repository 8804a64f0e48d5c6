"""When training has failed: a step is not finite, the last loss is too high, or the network has learned nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Array, Bool

NEVER = -1  # `TrainState.halted` while loss and gradient are finite
DIVERGED_ABOVE = 2.0  # a final loss above this multiple of the first batch's loss counts as diverged


def going(state: Any, hyper: Any) -> Bool[Array, ""]:
    """Whether a trial still trains: loss and gradient were finite so far, and its steps are not done.

    state, hyper: its `TrainState` and `Hyper`, whose module imports this one.
    """
    return (state.halted == NEVER) & (state.step < hyper.steps)


def finite(loss: Any, grad_norm: Any, running: Any = True) -> Any:
    """Whether a step of a trial that is `running` is finite, for arrays of JAX and of NumPy. A trial is frozen from its
    first step that is not. The order of the operations is part of a sweep's identity (`ModelPoint.programs`)."""
    isfinite = loss.__array_namespace__().isfinite
    return running & isfinite(loss) & isfinite(grad_norm)


def diverged(frozen: Any, loss: np.ndarray, first_loss: np.ndarray) -> np.ndarray:
    """Whether a trial is frozen by a step that was not finite, or whether its loss at the end of training is not finite
    or above DIVERGED_ABOVE times that of the first batch."""
    return frozen | ~np.isfinite(loss) | (loss > DIVERGED_ABOVE * first_loss)
