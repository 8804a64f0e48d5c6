"""The feature kernel of a deep linear residual network after one step on one sample (paper A, Figure 7)."""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from depthmup.names import Range, at_least_one
from depthmup.theory.checks import check_array, check_memory, check_number
from depthmup.theory.precision import Array, float64


class OneStep(NamedTuple):
    """The feature kernel over layer time, before and after one step; all arrays are (times,).

    times: layer times.
    H0, H1: the feature kernel before and after the step.
    drift: a, where <h_1 g_0> = a G_0: how far the step moves the features along the gradient.
    """

    times: Array
    H0: Array
    H1: Array
    drift: Array


@float64
def one_step_linear(
    c: float | jax.Array,
    depth: int | None = None,
    *,
    beta: float | jax.Array = 1.0,
    train_readin: bool = True,
    times: jax.Array | np.ndarray | None = None,
    memory_limit: float = 4.0,
) -> OneStep:
    """H after one step of gradient descent, from the closed form or the recursion; docs/theory.md section 3.

    One sample with |x|^2 / D = 1 and loss (F - y)^2 / 2. Training the readout or not makes no difference.

    Args:
      c: eta0 gamma0 y.
      depth: L, the number of residual branches: the result is of the exact recursion, at layer times l / L. None for
        infinite depth.
      beta: branch multiplier.
      train_readin: whether the step also moves the read-in.
      times: layer times at infinite depth, by default 101 from 0 to 1.
      memory_limit: GiB that the layers of a finite depth may take.

    Returns:
      `OneStep`: H before and after the step, and its drift, at the layer times.

    Raises ValueError for numbers that are not finite, a depth that is no whole number of at least 1, times outside of
    [0, 1] or at finite depth, or too much memory.
    """
    depth = depth if depth is None else at_least_one("depth", depth)
    check_number("c", c)
    check_number("beta", beta)
    square, readin = jnp.asarray(beta, jnp.float64) ** 2, float(train_readin)
    if depth is None:
        if times is not None:
            check_array("times", times, Range(low=0, most=1))
        tau = jnp.linspace(0, 1, 101) if times is None else jnp.asarray(times, jnp.float64)
        s, H0 = square * tau, jnp.exp(square * tau)
        moved = s**2 + 2 / 3 * s**3 + readin * (1 + 4 * s + 2 * s**2)
        return OneStep(tau, H0, H0 * (1 + c**2 * jnp.exp(square) * moved), c * (readin + s) * H0)
    if times is not None:
        raise ValueError("times are those of the layers at finite depth: leave them out")
    check_memory(64.0 * depth, memory_limit, "one_step_linear", "take a smaller depth")
    return _recursion(jnp.asarray(c, jnp.float64), square, readin, depth)


@functools.partial(jax.jit, static_argnames="depth")
def _recursion(c: jax.Array, square: jax.Array, readin: float, depth: int) -> OneStep:
    step = square / depth
    layers = jnp.arange(depth + 1)
    H0, G0 = (1 + step) ** layers, (1 + step) ** (depth - layers)

    def layer(carry: tuple[jax.Array, jax.Array], kernels: tuple[jax.Array, jax.Array]) -> tuple[tuple, tuple]:
        a, H1 = carry
        H, above = kernels
        d = step * (c * H + a)
        new = a + d, (1 + step) * H1 + (2 * d * a + d**2) * above
        return new, new

    start = readin * c, 1 + readin * c**2 * G0[0]
    _, (a, H1) = jax.lax.scan(layer, start, (H0[:-1], G0[1:]))
    return OneStep(layers / depth, H0, jnp.append(start[1], H1), jnp.append(start[0], a))
