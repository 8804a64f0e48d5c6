"""Quantities that a sweep can measure on a network while it trains (setting sweep.measure)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from depthmup.measure import feature_kernels, kernel_movement, sharpness, update_sizes
from depthmup.measure.noise_scale import in_training
from depthmup.rules.optim import family_of
from depthmup.rules.parameterization import FAMILIES
from depthmup.rules.specs import PyTree
from depthmup.settings import Quantity
from depthmup.train.loop import Measurement
from depthmup.train.task import Task
from depthmup.train.trainable import Batch, Hyper, Trainable, TrainState

NOISE_PARTS, NOISE_PART = 32, 16  # the noise scale is measured on so many parts of so many examples
COSTS = {"updates": 1.5, "sharpness": 40.0, "kernels": 2.0}  # of a measurement, in training steps


def update_profile(task: Task) -> Callable[[TrainState, Batch, Hyper], jax.Array]:
    """The function that returns `measure.update_sizes`, (2, layers), of the next step with learning rate 1."""
    task = task.all_derivatives()

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
    task = task.all_derivatives()
    scale = hyper.factors.lr if FAMILIES[family_of(task.optimizer)].linear else None
    return sharpness(lambda params: task.objective(params, state, batch, hyper), state.params, scale=scale)[None]


def _kernels(task: Task, state: TrainState, batch: Batch, hyper: Hyper) -> jax.Array:
    """The relative change of every layer's feature kernel since the start of training, (layers,)."""
    start = task.init(hyper)  # computed again, so that no initial state is kept in memory
    before, after = (feature_kernels(task.stream(s.params, s, batch, hyper)) for s in (start, state))
    return kernel_movement(before, after)


def _noise_scale(task: Trainable, state: TrainState, batch: Batch, hyper: Hyper) -> jax.Array:
    """The gradient noise scale (measure.noise_scale) in examples, (1,)."""

    def gradient(part: Batch) -> PyTree:
        return jax.grad(task.objective)(state.params, state, part, hyper)

    return in_training(gradient, batch, NOISE_PARTS)[None]


QUANTITIES: dict[Quantity, Callable[[Task, TrainState, Batch, Hyper], jax.Array]] = {
    "updates": _updates,
    "sharpness": _sharpness,
    "kernels": _kernels,
    "noise_scale": _noise_scale,
}


def measurement(task: Any, names: Sequence[Quantity], batch: Callable[[int], Batch], batch_size: int) -> Measurement:
    """What measures the named quantities (sweep.measure) on a fixed batch. batch: number of examples -> a batch."""
    batches = {name: batch(NOISE_PARTS * NOISE_PART if name == "noise_scale" else batch_size) for name in names}
    return Measurement(functools.partial(measured, task), batches)


def cost_of_measuring(name: Quantity, batch_size: int) -> float:
    """The cost of measuring a quantity once, in training steps of this batch size."""
    return NOISE_PARTS * NOISE_PART / batch_size if name == "noise_scale" else COSTS[name]


def measured(task: Any, state: TrainState, hyper: Hyper, batches: Mapping[Quantity, Batch]) -> dict[str, jax.Array]:
    """{name: array} of the quantities for which there is a batch."""
    return {name: QUANTITIES[name](task, state, batch, hyper) for name, batch in batches.items()}
