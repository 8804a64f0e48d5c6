"""Quantities that a sweep can measure on a network while it trains (setting sweep.measure)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax

from depthmup.measure import feature_kernels, kernel_movement, sharpness, update_sizes
from depthmup.optim import family_of
from depthmup.parameterization import FAMILIES
from depthmup.settings import Quantity
from depthmup.train.task import Task
from depthmup.train.trainable import Batch, Hyper, TrainState


def update_profile(task: Task) -> Callable[[TrainState, Batch, Hyper], jax.Array]:
    """The function that returns `measure.update_sizes`, (2, layers), of the next step with learning rate 1."""

    def profile(state: TrainState, batch: Batch, hyper: Hyper) -> jax.Array:
        direction = task.direction(state, batch, hyper)
        return update_sizes(lambda params: task.stream(params, state, batch, hyper), state.params, direction)

    return profile


def _updates(task: Task, state: TrainState, batch: Batch, hyper: Hyper) -> jax.Array:
    """The update size s_l of the next step (measure.maximal_update), (layers,)."""
    return update_profile(task)(state, batch, hyper)[0]


def _sharpness(task: Task, state: TrainState, batch: Batch, hyper: Hyper) -> jax.Array:
    """The largest eigenvalue of the loss's Hessian, (1,).

    For SGD and momentum the Hessian is taken in coordinates in which all leaves have the same learning rate, so that
    gradient descent is stable below 2 / learning rate.
    """
    scale = hyper.factors.lr if FAMILIES[family_of(task.optimizer)].linear else None
    return sharpness(lambda params: task.objective(params, state, batch, hyper), state.params, scale=scale)[None]


def _kernels(task: Task, state: TrainState, batch: Batch, hyper: Hyper) -> jax.Array:
    """The relative change of every layer's feature kernel since the start of training, (layers,)."""
    start = task.init(hyper)  # computed again, so that no initial state is kept in memory
    before, after = (feature_kernels(task.stream(s.params, s, batch, hyper)) for s in (start, state))
    return kernel_movement(before, after)


QUANTITIES: dict[Quantity, Callable[[Task, TrainState, Batch, Hyper], jax.Array]] = {
    "updates": _updates,
    "sharpness": _sharpness,
    "kernels": _kernels,
}


def measurement(task: Task, names: Sequence[Quantity]) -> Callable[[TrainState, Hyper, Batch], dict[str, jax.Array]]:
    """The function (state, hyper, batch) -> {name: array} that measures the named quantities (sweep.measure)."""
    return lambda state, hyper, batch: {name: QUANTITIES[name](task, state, batch, hyper) for name in names}
