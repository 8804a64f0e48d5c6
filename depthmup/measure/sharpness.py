"""Sharpness: the largest eigenvalue of the Hessian of the loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from depthmup.names import NOT_NEGATIVE, at_least_one
from depthmup.rules.specs import PyTree

ITERATIONS = 20


def sharpness(
    loss: Callable[[PyTree], jax.Array],
    params: PyTree,
    *,
    scale: PyTree = None,
    iterations: int = ITERATIONS,
) -> jax.Array:
    """The largest eigenvalue of S^(1/2) H S^(1/2), where H is the Hessian of `loss` at `params`.

    Gradient descent with learning rate eta and per-leaf factors S is stable where this eigenvalue is below 2 / eta
    (Cohen et al. 2021). It is computed by Lanczos iterations from a fixed random vector; each new vector is made
    orthogonal to all earlier ones. The result is a lower bound, which after 20 iterations is close to the eigenvalue
    unless other eigenvalues lie within some percent of it.

    Args:
      loss: parameters -> scalar.
      scale: tree of scalars S, such as `LeafFactors.lr`; None: all 1.
      iterations: number of Hessian-vector products, each of which takes about as long as two gradients. Memory holds
        as many copies of the parameters.

    Returns:
      The eigenvalue, a scalar.

    Raises ValueError for no iterations, no parameters or a negative scale.
    """
    at_least_one("iterations", iterations)
    flat, unravel = ravel_pytree(params)
    if not flat.size:
        raise ValueError("sharpness is of parameters, and there are none")
    if scale is None:
        scale = jax.tree.map(lambda leaf: 1.0, params)
    for factor in jax.tree.leaves(scale):
        if not isinstance(factor, jax.Array):  # which may be traced
            NOT_NEGATIVE.array("scale", factor)
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
        # If only rounding errors are left, the earlier vectors already span the whole Krylov space: zeros follow.
        beside = jnp.linalg.norm(image)
        beside = jnp.where(beside > jnp.finfo(image.dtype).eps ** 0.5 * size, beside, 0.0)
        return (basis, jnp.where(beside > 0, image / jnp.where(beside > 0, beside, 1.0), 0.0)), (diagonal, beside)

    start = jax.random.normal(jax.random.key(0), flat.shape, flat.dtype)
    carry = jnp.zeros((steps, flat.size), flat.dtype), start / jnp.linalg.norm(start)
    _, (diagonal, beside) = jax.lax.scan(next_vector, carry, jnp.arange(steps))
    return jnp.linalg.eigvalsh(jnp.diag(diagonal) + jnp.diag(beside[:-1], 1) + jnp.diag(beside[:-1], -1))[-1]
