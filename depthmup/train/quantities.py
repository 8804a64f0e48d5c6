"""What can be measured on a network while it trains (sweep.measure), by the functions of its trainer."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax

from depthmup.measure import feature_kernels, kernel_movement, sharpness, update_sizes
from depthmup.optim import family_of
from depthmup.train.step import Batch, Hyper, Trainer, TrainState

Quantity = Callable[[TrainState, Batch, Hyper], jax.Array]


def update_profile(trainer: Trainer) -> Quantity:
    """`measure.update_sizes` of the next step with learning rate 1: (2, layers)."""

    def quantity(state: TrainState, batch: Batch, hyper: Hyper) -> jax.Array:
        direction = trainer.direction(state, batch, hyper)
        assert trainer.states is not None
        stream = trainer.states
        return update_sizes(lambda params: stream(params, state, batch, hyper), state.params, direction)

    return quantity


def measurement(
    trainer: Trainer, optimizer: str, names: Sequence[str]
) -> Callable[[TrainState, Hyper, Batch], dict[str, jax.Array]]:
    """(state, hyper, batch) -> {name: array}; the batch is a fixed one. names: of settings.QUANTITIES.

    updates: s_l of the next step (measure.maximal_update), (layers,).
    sharpness: (1,), the largest eigenvalue of the loss's Hessian; for SGD and momentum in the coordinates in which all
      leaves have the same learning rate, so that gradient descent is stable below 2 / learning rate.
    kernels: relative change of every layer's feature kernel since the start of training, (layers,).
    """

    def sharp(state: TrainState, batch: Batch, hyper: Hyper) -> jax.Array:
        scale = hyper.factors.lr if family_of(optimizer) == "sgd" else None
        return sharpness(lambda params: trainer.objective(params, state, batch, hyper), state.params, scale=scale)[None]

    def kernels(state: TrainState, batch: Batch, hyper: Hyper) -> jax.Array:
        assert trainer.states is not None
        start = trainer.init(hyper)  # again: nothing of it has to be kept
        before, after = (feature_kernels(trainer.states(s.params, s, batch, hyper)) for s in (start, state))
        return kernel_movement(before, after)

    profile = update_profile(trainer)
    functions = {"updates": lambda *of: profile(*of)[0], "sharpness": sharp, "kernels": kernels}
    return lambda state, hyper, batch: {name: functions[name](state, batch, hyper) for name in names}
