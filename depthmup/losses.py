"""Losses of examples, of our own networks. A loss is added by its name and a row of the table."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

LossName = Literal["cross_entropy", "mse", "centered_mse"]


class Loss(NamedTuple):
    """A loss of single examples.

    of_targets: (logits, targets), both (..., classes) -> losses, (...). Targets are one-hot labels or real ones.
    chance: number of classes -> the loss of a network that has learned nothing.
    of_labels: (logits, labels), labels integers (...) -> losses, (...), of a loss of probabilities. None: targets may
      be any real numbers.
    """

    of_targets: Callable[[jax.Array, jax.Array], jax.Array]
    chance: Callable[[int], float]
    of_labels: Callable[[jax.Array, jax.Array], jax.Array] | None = None


def _half_square(outputs: jax.Array, targets: jax.Array) -> jax.Array:
    return 0.5 * jnp.square(outputs - targets).sum(-1)


# A network that has learned nothing gives all classes equal probabilities, or has the output 0.
LOSSES: dict[LossName, Loss] = {
    "cross_entropy": Loss(optax.softmax_cross_entropy, math.log, optax.softmax_cross_entropy_with_integer_labels),
    "mse": Loss(_half_square, lambda classes: 0.5),
    "centered_mse": Loss(_half_square, lambda classes: 0.5),
}


def of_examples(values: jax.Array) -> jax.Array:
    """The mean of each example: (batch, ...) -> (batch,)."""
    return values.mean(tuple(range(1, values.ndim)))
