"""Sharpness: the largest eigenvalue of the Hessian of the loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

PyTree = Any
ITERATIONS = 20


def sharpness(
    loss: Callable[[PyTree], jax.Array],
    params: PyTree,
    *,
    scale: PyTree = None,
    iterations: int = ITERATIONS,
) -> jax.Array:
    """The largest eigenvalue of S^(1/2) H S^(1/2), H the Hessian of `loss` at `params`: Lanczos on Hessian-vector
    products, orthogonalized against all earlier vectors, from a random vector that is always the same.

    Gradient descent with learning rate eta and per-leaf factors S is stable where this is below 2 / eta (Cohen et al.
    2021). It is a lower bound, close to the eigenvalue after 20 products unless others lie within some percent.

    Args:
      loss: parameters -> scalar.
      scale: tree of scalars S, such as `LeafFactors.lr`; None: all 1.
      iterations: products, each about two gradients; memory for as many copies of the parameters.
    """
    flat, unravel = ravel_pytree(params)
    if scale is None:
        scale = jax.tree.map(lambda leaf: 1.0, params)
    root, _ = ravel_pytree(jax.tree.map(lambda leaf, s: jnp.full_like(leaf, jnp.sqrt(s)), params, scale))
    gradient = jax.grad(lambda vector: loss(unravel(vector)))
    steps = min(iterations, flat.size)

    def product(vector: jax.Array) -> jax.Array:
        return root * jax.jvp(gradient, (flat,), (root * vector,))[1]

    def next_vector(carry: Any, number: jax.Array) -> tuple[Any, tuple[jax.Array, jax.Array]]:
        basis, vector = carry  # rows of `basis` not yet filled are 0
        basis = basis.at[number].set(vector)
        image = product(vector)
        diagonal, size = vector @ image, jnp.linalg.norm(image)
        for _ in range(2):  # twice is enough (Parlett 1980)
            image = image - basis.T @ (basis @ image)
        # What is left may be rounding: then the vectors so far span all there is, and only zeros follow.
        beside = jnp.linalg.norm(image)
        beside = jnp.where(beside > jnp.finfo(image.dtype).eps ** 0.5 * size, beside, 0.0)
        return (basis, jnp.where(beside > 0, image / jnp.where(beside > 0, beside, 1.0), 0.0)), (diagonal, beside)

    start = jax.random.normal(jax.random.key(0), flat.shape, flat.dtype)
    carry = jnp.zeros((steps, flat.size), flat.dtype), start / jnp.linalg.norm(start)
    _, (diagonal, beside) = jax.lax.scan(next_vector, carry, jnp.arange(steps))
    return jnp.linalg.eigvalsh(jnp.diag(diagonal) + jnp.diag(beside[:-1], 1) + jnp.diag(beside[:-1], -1))[-1]
