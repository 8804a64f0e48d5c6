"""Float64 inside the theory, whatever the caller's setting."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np

Array = Any  # of a result: NumPy's, or JAX's under a transformation of the caller's
F = TypeVar("F", bound=Callable[..., Any])


def float64(function: F) -> F:
    """Runs `function` with 64-bit JAX.

    What it returns are NumPy float64 arrays: a 64-bit JAX array outside of 64-bit JAX is silently rounded by the next
    operation. Under a transformation of the caller's (`jit`, `grad`, `vmap`) they are JAX's, in the caller's precision.
    """

    @functools.wraps(function)
    def wrapped(*args: Any, **options: Any) -> Any:
        callers = jnp.result_type(float)
        leaves, tree = jax.tree.flatten((args, options))
        traced = [i for i, leaf in enumerate(leaves) if isinstance(leaf, jax.core.Tracer)]

        def run(values: list[Any]) -> Any:
            given = dict(zip(traced, values, strict=True))
            args, options = jax.tree.unflatten(tree, [given.get(i, leaf) for i, leaf in enumerate(leaves)])
            return function(*args, **options)

        if traced and callers != np.float64:
            return _in_callers_precision(run, [leaves[i] for i in traced], callers)
        with jax.enable_x64(True):
            result = run([leaves[i] for i in traced])
        return result if traced else jax.tree.map(np.asarray, result)

    return cast(F, wrapped)


def _in_callers_precision(run: Callable[[list[Any]], Any], values: list[Any], callers: Any) -> Any:
    """run(values) in 64 bits, and its derivatives too, which would by themselves be traced in the caller's."""

    @jax.custom_vjp
    def narrow(values: list[Any]) -> Any:
        with jax.enable_x64(True):
            return jax.tree.map(lambda leaf: jnp.asarray(leaf).astype(callers), run(values))

    def forward(values: list[Any]) -> Any:
        with jax.enable_x64(True):
            result, back = jax.vjp(run, values)
            return jax.tree.map(lambda leaf: jnp.asarray(leaf).astype(callers), result), back

    def backward(back: Any, slopes: Any) -> Any:
        with jax.enable_x64(True):
            return back(jax.tree.map(lambda leaf: leaf.astype(np.float64), slopes))

    narrow.defvjp(forward, backward)
    return narrow(values)


def concrete(*arrays: Any) -> bool:
    """Whether values can be looked at: none of them is traced."""
    return not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(arrays))
