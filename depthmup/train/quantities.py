"""Quantities that a sweep can measure on a network while it trains (setting sweep.measure)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax

from depthmup.measure import feature_kernels, kernel_movement, sharpness, update_sizes
from depthmup.optim import family_of
from depthmup.parameterization import FAMILIES
from depthmup.train.task import Task
from depthmup.train.trainable import Batch, Hyper, TrainState

Quantity = Callable[[TrainState, Batch, Hyper], jax.Array]


def update_profile(task: Task) -> Quantity:
    """The function that returns `measure.update_sizes`, (2, layers), of the next step with learning rate 1."""

    def profile(state: TrainState, batch: Batch, hyper: Hyper) -> jax.Array:
        direction = task.direction(state, batch, hyper)
        return update_sizes(lambda params: task.stream(params, state, batch, hyper), state.params, direction)

    return profile


def measurement(task: Task, names: Sequence[str]) -> Callable[[TrainState, Hyper, Batch], dict[str, jax.Array]]:
    """The function (state, hyper, batch) -> {name: array} that measures the named quantities.

    names: the value of sweep.measure; a name is one of
      updates: the update size s_l of the next step (measure.maximal_update), (layers,).
      sharpness: the largest eigenvalue of the loss's Hessian, (1,). For SGD and momentum the Hessian is taken in
        coordinates in which all leaves have the same learning rate, so that gradient descent is stable below
        2 / learning rate.
      kernels: the relative change of every layer's feature kernel since the start of training, (layers,).
    """
    profile = update_profile(task)

    def updates(state: TrainState, batch: Batch, hyper: Hyper) -> jax.Array:
        return profile(state, batch, hyper)[0]

    def largest_eigenvalue(state: TrainState, batch: Batch, hyper: Hyper) -> jax.Array:
        scale = hyper.factors.lr if FAMILIES[family_of(task.optimizer)].linear else None
        return sharpness(lambda params: task.objective(params, state, batch, hyper), state.params, scale=scale)[None]

    def kernels(state: TrainState, batch: Batch, hyper: Hyper) -> jax.Array:
        start = task.init(hyper)  # computed again, so that no initial state is kept in memory
        before, after = (feature_kernels(task.stream(s.params, s, batch, hyper)) for s in (start, state))
        return kernel_movement(before, after)

    functions: dict[str, Quantity] = {"updates": updates, "sharpness": largest_eigenvalue, "kernels": kernels}
    return lambda state, hyper, batch: {name: functions[name](state, batch, hyper) for name in names}
