"""Quantities that a sweep can measure on a network while it trains (setting sweep.measure)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from depthmup.measure import feature_kernels, kernel_movement, sharpness, update_sizes
from depthmup.measure.noise_scale import in_training
from depthmup.rules.optim import family_of
from depthmup.rules.parameterization import FAMILIES
from depthmup.rules.specs import PyTree
from depthmup.settings import Quantity
from depthmup.train.loop import Measurement
from depthmup.train.step import Batch, Hyper, Trainable, TrainState
from depthmup.train.task import Task

NOISE_PARTS, NOISE_PART = 32, 16  # the noise scale is measured on so many parts of so many examples


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


class Quantified(NamedTuple):
    """How a quantity is measured and drawn.

    measure: (task, state, batch, hyper) -> array. cost: of one measurement, in training steps; None: of a batch of
    NOISE_PARTS parts. label: of its axis. drawn: values (trials, points, numbers) -> (points,), the line of a size.
    """

    measure: Callable[[Any, TrainState, Batch, Hyper], jax.Array]
    cost: float | None
    label: str
    drawn: Callable[[np.ndarray], np.ndarray]


QUANTITIES: dict[Quantity, Quantified] = {
    "updates": Quantified(
        _updates,
        1.5,
        "maximal-update learning rate",
        lambda values: np.median(values.mean(axis=-1), axis=0) ** -0.5,
    ),
    "sharpness": Quantified(_sharpness, 40.0, "sharpness", lambda values: values[:, :, 0].mean(axis=0)),
    "kernels": Quantified(
        _kernels, 2.0, "movement of the last feature kernel", lambda values: values[:, :, -1].mean(axis=0)
    ),
    "noise_scale": Quantified(
        _noise_scale, None, "gradient noise scale in examples", lambda values: np.median(values[:, :, 0], axis=0)
    ),
}


def measurement(task: Any, names: Sequence[Quantity], batch: Callable[[int], Batch], batch_size: int) -> Measurement:
    """What measures the named quantities (sweep.measure) on a fixed batch. batch: number of examples -> a batch."""
    batches = {name: batch(batch_size if QUANTITIES[name].cost else NOISE_PARTS * NOISE_PART) for name in names}
    return Measurement(functools.partial(measured_quantities, task), batches)


def cost_of_measuring(name: Quantity, batch_size: int) -> float:
    """The cost of measuring a quantity once, in training steps of this batch size."""
    return QUANTITIES[name].cost or NOISE_PARTS * NOISE_PART / batch_size


def measured_quantities(
    task: Any, state: TrainState, hyper: Hyper, batches: Mapping[Quantity, Batch]
) -> dict[str, jax.Array]:
    """{name: array} of the quantities for which there is a batch."""
    return {name: QUANTITIES[name].measure(task, state, batch, hyper) for name, batch in batches.items()}
