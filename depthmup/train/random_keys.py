"""The random keys of a training. The key of the seed draws the initial parameters; all else is folded into it."""

from __future__ import annotations

from typing import Any

import jax

LABEL_NOISE = 1  # folded into the key of a step or of a part, which is that of its dropout


def step_key(seed: Any, step: Any, axis: str | None = None) -> jax.Array:
    """The key of a step. axis: of the devices that share its batch, each of which has a key of its own."""
    key = jax.random.fold_in(jax.random.key(seed), step)
    return jax.random.fold_in(key, jax.lax.axis_index(axis)) if axis else key


def part_key(key: jax.Array, number: Any) -> jax.Array:
    """The key of a part of a batch that is accumulated. key: of the step."""
    return jax.random.fold_in(key, number)


def label_noise_key(key: jax.Array) -> jax.Array:
    """The key of the label noise of a step or of a part."""
    return jax.random.fold_in(key, LABEL_NOISE)
