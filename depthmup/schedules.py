"""Schedules of the learning rate. A schedule is added by its name and a row of the table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
import optax

Schedule = Literal["linear", "cosine", "cosine_to_tenth", "wsd", "constant"]
# Each schedule takes the share, in [0, 1], of the steps after the warm-up that are done. It is a share and not a step
# because the number of steps is traced, and Optax's schedules need a Python number.
SCHEDULES: dict[Schedule, Callable[[jax.Array], jax.Array]] = {
    "linear": optax.linear_schedule(1.0, 0.0, 1),
    "cosine": optax.cosine_decay_schedule(1.0, 1),
    "cosine_to_tenth": optax.cosine_decay_schedule(1.0, 1, alpha=0.1),
    "wsd": optax.linear_schedule(1.0, 0.0, 0.2, transition_begin=0.8),  # warm-up, stable, decay
    "constant": optax.constant_schedule(1.0),
}


def schedule_multiplier(schedule: Schedule, step: jax.Array, steps: jax.Array, warmup: jax.Array) -> jax.Array:
    """The factor in [0, 1] that multiplies the learning rates of all leaves at a step.

    It is min(1, (step + 1) / warmup) times the schedule's value, which is 1 during the warm-up.

    steps: number of steps of the whole training.
    """
    done = jnp.maximum(step - warmup, 0) / jnp.maximum(steps - warmup, 1)
    rising = jnp.where(step < warmup, (step + 1) / jnp.maximum(warmup, 1), 1.0)
    return rising * SCHEDULES[schedule](done)
