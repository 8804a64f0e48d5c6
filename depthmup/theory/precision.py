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
        with jax.enable_x64(True):
            result = function(*args, **options)

            def out(leaf: Any) -> Any:
                if isinstance(leaf, jax.core.Tracer):
                    return leaf.astype(callers)
                return np.asarray(leaf) if isinstance(leaf, jax.Array) else leaf

            return jax.tree.map(out, result)

    return cast(F, wrapped)


def concrete(*arrays: Any) -> bool:
    """Whether values can be looked at: none of them is traced."""
    return not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(arrays))
