"""Float64 inside the theory, whatever the caller's setting."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np

Array = Any  # an array of a result: NumPy's, or JAX's if the caller traces
F = TypeVar("F", bound=Callable[..., Any])


def float64(function: F) -> F:
    """Runs `function` with 64-bit JAX, on the caller's values or tracers.

    From an ordinary call the results are NumPy float64 arrays. (JAX arrays would not do: outside of 64-bit JAX the next
    operation rounds them to 32 bits without a word.) Under the caller's `jit`, `grad` or `vmap` the results are JAX
    arrays in the caller's precision.
    """

    @functools.wraps(function)
    def wrapped(*args: Any, **options: Any) -> Any:
        callers = jnp.result_type(float)
        leaves, tree = jax.tree.flatten((args, options))
        traced = [i for i, leaf in enumerate(leaves) if isinstance(leaf, jax.core.Tracer)]

        def run(values: list[Any]) -> Any:
            """`function` with these values in place of the traced leaves."""
            arrays = dict(zip(traced, values, strict=True))
            args, options = jax.tree.unflatten(tree, [arrays.get(i, leaf) for i, leaf in enumerate(leaves)])
            return function(*args, **options)

        if traced and callers != np.float64:
            return _in_callers_precision(run, [leaves[i] for i in traced], callers)
        with jax.enable_x64(True):
            result = run([leaves[i] for i in traced])
        return result if traced else jax.tree.map(np.asarray, result)

    return cast(F, wrapped)


def _in_callers_precision(run: Callable[[list[Any]], Any], values: list[Any], callers: Any) -> Any:
    """run(values), computed in 64 bits and rounded to the caller's precision; differentiable in reverse mode.

    It takes a `custom_vjp`: JAX differentiates and transposes after this function has returned, in the caller's 32
    bits, which fails on 64-bit intermediate values. The rule below does both in 64 bits.
    """

    @jax.custom_vjp
    def rounded(values: list[Any]) -> Any:
        with jax.enable_x64(True):
            return jax.tree.map(lambda leaf: jnp.asarray(leaf).astype(callers), run(values))

    def forward(values: list[Any]) -> Any:
        with jax.enable_x64(True):
            result, pull_back = jax.vjp(run, values)
            return jax.tree.map(lambda leaf: jnp.asarray(leaf).astype(callers), result), pull_back

    def backward(pull_back: Any, slopes: Any) -> Any:
        with jax.enable_x64(True):
            return pull_back(jax.tree.map(lambda leaf: leaf.astype(np.float64), slopes))

    rounded.defvjp(forward, backward)
    return rounded(values)


def concrete(*arrays: Any) -> bool:
    """Whether the values of these arrays, or trees of them, are known: none of them is traced."""
    return not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(arrays))
