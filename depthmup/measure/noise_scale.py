"""The gradient noise scale: up to which batch size a larger batch saves steps (McCandlish et al. 2018, 1812.06162)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from depthmup.fit.curve import half_width
from depthmup.rules.specs import PyTree


class NoiseScale(NamedTuple):
    """B = tr(Sigma) / |G|^2 in examples, with its 95% interval: the batch where noise and gradient are equally large.

    Far below it k times the batch saves k times the steps and learning rates follow the noise; far above it a larger
    batch changes little. high is infinite where the gradient is not told from 0, and value where no estimate is.
    gradient, noise: |G|^2, and tr(Sigma) of one example.
    """

    value: float
    low: float
    high: float
    gradient: float
    noise: float

    def __str__(self) -> str:
        return f"{self.value:.3g} [{self.low:.3g}, {self.high:.3g}] examples"


def noise_scale(gradient: Callable[[Any], PyTree], batch: Any, part: int = 1) -> NoiseScale:
    """The noise scale at one point, from the gradients of the parts of a batch.

    |G|^2 is the mean product of the gradients of two different parts, and tr(Sigma) is `part` times what the mean
    square of a part's gradient is above it: appendix A.1's estimates with the batch sizes `part` and the whole. Both
    are unbiased, their ratio is not; the interval is the jackknife's over parts.

    Args:
      gradient: examples -> the gradient of their mean loss, a tree of arrays; it is traced.
      batch: a tree of arrays, examples along their first axis.
      part: examples of a part. Memory holds a gradient for each part.

    Raises ValueError if there are fewer than 4 whole parts.
    """
    examples = len(jax.tree.leaves(batch)[0])
    parts = examples // part if part > 0 else 0
    if parts < 4:
        raise ValueError(f"a noise scale needs 4 parts or more: {examples} examples in parts of {part} are {parts}")
    split = _split(batch, parts, part)

    @jax.jit
    def products(split: Any) -> jax.Array:
        gradients = jax.lax.map(gradient, split)
        rows = [leaf.reshape(parts, -1) for leaf in jax.tree.leaves(gradients)]
        return sum((row @ row.T for row in rows), start=jnp.zeros((parts, parts)))

    return from_products(np.asarray(products(split), np.float64), part)


def in_training(gradient: Callable[[Any], PyTree], batch: Any, parts: int) -> jax.Array:
    """The value of `noise_scale`, traced, of a batch in `parts` equal parts (fewer if it has fewer examples).

    It is infinite where the gradient is not told from 0. Memory holds two gradients.
    """
    examples = len(jax.tree.leaves(batch)[0])
    parts = min(parts, examples)
    part = examples // parts

    def add(sums: Any, of_part: Any) -> tuple[Any, None]:
        squares, total = sums
        g = gradient(of_part)
        return (squares + _square(g), jax.tree.map(jnp.add, total, g)), None

    split = _split(batch, parts, part)
    shapes = jax.eval_shape(gradient, jax.tree.map(lambda leaf: leaf[0], split))
    nothing = jax.tree.map(lambda shape: jnp.zeros(shape.shape, shape.dtype), shapes)
    (squares, total), _ = jax.lax.scan(add, (jnp.zeros_like(_square(nothing)), nothing), split)
    square, noise = _moments(squares, _square(total), parts, part)
    return jnp.where(square > 0, noise / square, jnp.inf)


def _split(batch: Any, parts: int, part: int) -> Any:
    return jax.tree.map(lambda leaf: jnp.asarray(leaf)[: parts * part].reshape(parts, part, *leaf.shape[1:]), batch)


def _square(gradient: PyTree) -> jax.Array:
    return optax.tree.norm(gradient, squared=True)


def from_products(products: np.ndarray, part: int) -> NoiseScale:
    """The noise scale from the inner products of the gradients of n parts, (n, n)."""
    squares, n = np.diag(products), len(products)
    rows = products.sum(axis=1)
    gradient, noise = _moments(squares.sum(), rows.sum(), n, part)
    # Without each part in turn.
    pairs = zip(squares.sum() - squares, rows.sum() - 2 * rows + squares, strict=True)
    without = [_moments(of_squares, total, n - 1, part) for of_squares, total in pairs]
    value = noise / gradient if gradient > 0 else np.inf
    if gradient <= 0 or any(square <= 0 for square, _ in without):
        return NoiseScale(float(value), 0.0, np.inf, float(gradient), float(noise))
    # In logarithms: the ratio is positive, and its error is a factor.
    logs = np.log([of_noise / square for square, of_noise in without])
    half = half_width(n - 1) * np.sqrt((n - 1) / n * np.sum((logs - logs.mean()) ** 2))
    return NoiseScale(value, float(value * np.exp(-half)), float(value * np.exp(half)), float(gradient), float(noise))


def _moments(squares: Any, total: Any, n: int, part: int) -> tuple[Any, Any]:
    """(|G|^2, tr(Sigma) of one example) of n parts. squares: the sum of |g|^2; total: |sum of g|^2."""
    gradient = (total - squares) / (n * (n - 1))
    return gradient, part * (squares / n - gradient)
