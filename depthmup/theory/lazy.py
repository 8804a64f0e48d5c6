"""The lazy limit: kernels at initialization and the neural tangent kernel of infinitely wide residual networks."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from depthmup.activations import Activation, ActivationName
from depthmup.names import at_least_one, floats, listed, short
from depthmup.theory.checks import (
    ALPHA,
    ReadoutName,
    check_array,
    check_kernel,
    check_memory,
    check_number,
    check_readout_name,
    rounding,
)
from depthmup.theory.flow import Flow, integrate, relu_flow
from depthmup.theory.moments import CLOSED, TERMS, known, moments, overlap, remainder
from depthmup.theory.precision import Array, concrete, float64

State = tuple[Flow, jax.Array, jax.Array]  # the flow, and the norms of the samples of rows and of columns
BLOCK = 2**20  # how many pairs of samples are computed at once


class LazyKernels(NamedTuple):
    """Kernels between P samples (rows) and Q samples (columns; the same samples unless `norms` were given).

    times: the layer times tau of the kernels over layer time, (times,).
    H, Phi, G: feature kernels <h h> and <phi(h) phi(h)>, and the gradient kernel, (times, P, Q).
    ntk_branch_until: the part of the NTK from the branches up to each layer time, (times, P, Q).
    ntk_branch, ntk_readin, ntk_readout: the parts of the NTK from all branches, the read-in and the readout, (P, Q).
    """

    times: Array
    H: Array
    Phi: Array
    G: Array
    ntk_branch_until: Array
    ntk_branch: Array
    ntk_readin: Array
    ntk_readout: Array

    @property
    def ntk(self) -> Array:
        """The NTK if all weights are trained, (P, Q). If only some are, add up their parts instead."""
        return self.ntk_branch + self.ntk_readin + self.ntk_readout


@float64
def lazy_kernels(
    Kx: ArrayLike,
    depth: int | None = None,
    activation: ActivationName | Activation = "relu",
    beta: float | jax.Array = 1.0,
    readout: ReadoutName = "phi",
    *,
    alpha: float = 0.5,
    norms: tuple[ArrayLike, ArrayLike] | None = None,
    times: Sequence[float] | None = None,
    memory_limit: float = 4.0,
) -> LazyKernels:
    """Kernels and NTK at initialization at infinite width; docs/theory.md section 2 (paper A, Proposition 2).

    At infinite depth H' = beta^2 Phi(H) and G' = -beta^2 G * Phidot(H) in layer time; at finite depth the recursions of
    which these are the limits. The NTK is beta^2 int Phi * G (branches) + Kx * G(0) (read-in) + Phi(1) (readout).

    Args:
      Kx: the kernel of the inputs x.x'/D, (P, P); with `norms`, its block (P, Q) between two sets of samples.
      depth: L, the number of residual branches; None for infinite depth.
      activation: "linear", "relu", "erf", "tanh", "gelu", or any function of arrays with a kink at 0 at most. Give the
        same function object again: each new one, such as a lambda in a loop, is compiled anew.
      beta: branch multiplier, which enters as beta L^-alpha.
      readout: "phi", the activation before the readout, or "linear", none.
      alpha: in [1/2, 1]; above 1/2 the kernels stay Kx at infinite depth (docs/theory.md section 1.1).
      norms: |x|^2/D of the samples of the rows, (P,), and of the columns, (Q,).
      times: the layer times in [0, 1] at which H, Phi, G and ntk_branch_until are given; at finite depth multiples of
        1/L. By default all layers, or 17 times at infinite depth.
      memory_limit: GiB that the result may take.

    Returns:
      `LazyKernels`: H and Phi, (times, P, Q), and the NTK with its parts, (P, Q), in float64.

    Pairs of samples are computed in blocks and no array over all layers is made, so that with `times=()` thousands of
    samples fit. The result can be differentiated with respect to Kx and beta; at infinite depth in reverse mode only,
    and under a caller's `jit` only inside `with jax.enable_x64(True)`. Warns if the series of an activation without
    closed form is not exact to a millionth. Raises ValueError for a kernel that is not square, symmetric or positive
    semi-definite, a depth below 1, a time that is no layer, an unknown name, or a result above the memory limit.
    """
    depth = depth if depth is None else at_least_one("depth", depth)
    activation = known(activation)
    ALPHA.check("alpha", alpha)
    check_readout_name(readout)
    check_number("beta", beta)
    Kx, rows, columns = _checked(Kx, norms)
    if activation not in CLOSED and concrete(rows, columns, Kx):
        rho = np.abs(overlap(rows[:, None], columns[None], Kx))
        if norms is None:
            np.fill_diagonal(rho, 0)  # the kernel of a sample with itself does not use the series
        warn_of_remainder(activation, float(max(rows.max(), columns.max())), float(rho.max()))
    layers = layers_of(depth, times)
    check_memory(
        8.0 * Kx.size * (4 * len(layers) + 3), memory_limit, "lazy_kernels", "give fewer times, such as times=()"
    )
    kernels = _kernels(
        rows,
        columns,
        Kx,
        jnp.asarray(beta, jnp.float64),
        symmetric=norms is None,
        activation=activation,
        depth=depth,
        readout=readout,
        alpha=float(alpha),
        layers=tuple(layers),
    )
    return LazyKernels(np.array(layers) / (depth or 1), *kernels)


def _checked(Kx: ArrayLike, norms: tuple[ArrayLike, ArrayLike] | None) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(Kx, norms of the rows, norms of the columns). Raises ValueError unless Kx is a kernel or, where norms are given,
    a block of one with finite numbers."""
    if norms is None:
        check_kernel(Kx)
        K = jnp.asarray(Kx, jnp.float64)
        diagonal = jnp.maximum(jnp.diag(K), 0)
        return K, diagonal, diagonal
    if len(listed("norms", norms)) != 2:
        raise ValueError(f"norms must be those of the rows and those of the columns, got {short(norms)}")
    for name, values in (("Kx", Kx), ("norms of the rows", norms[0]), ("norms of the columns", norms[1])):
        check_array(name, values)
    K, rows, columns = (jnp.asarray(v, jnp.float64) for v in (Kx, *norms))
    if rows.ndim != 1 or columns.ndim != 1 or K.shape != (len(rows), len(columns)):
        raise ValueError(f"norms of shapes {rows.shape} and {columns.shape} do not fit a block of shape {K.shape}")
    if concrete(K, rows, columns):
        excess = np.max(K**2 - jnp.outer(rows, columns))
        if excess > 2 * rounding(Kx) * np.max(jnp.outer(rows, columns)) or min(rows.min(), columns.min()) < 0:
            raise ValueError(
                "Kx is no block of a positive semi-definite kernel with these norms: |k_ij| > sqrt(k_i k_j)"
            )
    return K, jnp.maximum(rows, 0), jnp.maximum(columns, 0)


def layers_of(depth: int | None, times: Sequence[float] | None) -> Sequence[float]:
    """The numbers of the layers at these layer times; at infinite depth the times themselves. None: the default times.

    Raises ValueError for times that are not ascending, not from 0 to 1, or between two layers.
    """
    if times is None:
        return list(np.linspace(0, 1, 17)) if depth is None else range(depth + 1)
    array = floats("times", times)
    if array.ndim != 1 or not ((array >= 0) & (array <= 1)).all() or (np.diff(array) < 0).any():
        raise ValueError(f"times must be layer times from 0 to 1 in ascending order, got {short(times)}")
    if depth is None:
        return array.tolist()
    layers = [round(time * depth) for time in array.tolist()]
    for layer, time in zip(layers, array.tolist(), strict=True):
        if abs(layer / depth - time) > 1e-9:
            raise ValueError(
                f"time {time} is no layer of a network of depth {depth}: its layers are multiples of 1/{depth}"
            )
    return list(map(float, layers))


def warn_of_remainder(activation: ActivationName | Activation, norm: float, rho: float) -> None:
    """Warns if Mehler's series is not exact to a millionth for two samples of this norm and overlap.

    Call it from a function that `float64` wraps, so that the warning names the line of that function's caller.
    """
    error = remainder(activation, norm, rho)
    if error > 1e-6:
        warnings.warn(
            f"kernels of this activation may be off by {error:.1g} of their size, for samples with an overlap of "
            f"{rho:.4g}: the series of {TERMS} terms that stands for it is not enough at norms of {norm:.3g}",
            stacklevel=5,
        )


@functools.partial(jax.jit, static_argnames=("symmetric", "activation", "depth", "readout", "alpha", "layers"))
def _kernels(
    rows: jax.Array,
    columns: jax.Array,
    Kx: jax.Array,
    beta: jax.Array,
    *,
    symmetric: bool,
    activation: ActivationName | Activation,
    depth: int | None,
    readout: ReadoutName,
    alpha: float,
    layers: tuple[float, ...],
) -> tuple[jax.Array, ...]:
    """All fields of `LazyKernels` but the times. rows, columns: norms. symmetric: whether rows are the columns."""
    average, stops = moments(activation), (*layers, float(depth or 1))
    square, drift = branch_rates(beta, depth, alpha)

    def slope(state: State) -> State:
        flow, a, b = state
        Phi, Phidot = average(a, b, flow.H)
        rate = square * Phidot
        grown_a, grown_b = (square * average.same(v.ravel())[0].reshape(v.shape) for v in (a, b))
        return Flow(square * Phi, rate * flow.growth, rate * flow.until + drift * Phi), grown_a, grown_b

    def kernels(a: jax.Array, b: jax.Array, c: jax.Array) -> tuple[jax.Array, ...]:
        """One block, for norms a (P, 1) and b (1, Q) and kernel c (P, Q); or, if all three are (P,), its diagonal."""
        start = Flow(c, jnp.ones_like(c), jnp.zeros_like(c)), a, b
        if depth is None and activation == "relu" and alpha == 0.5 and c.ndim == 2:
            flow, a, b = relu_flow(a, b, c, beta, stops)
        else:
            flow, a, b = integrate(slope, start, stops, depth)
        Phi, Phidot = jax.vmap(average.__call__)(a, b, flow.H)
        top = Phidot[-1] if readout == "phi" else jnp.ones_like(c)
        G = top * flow.growth[-1] / flow.growth
        branch = G * flow.until
        ntk_readout = Phi[-1] if readout == "phi" else flow.H[-1]
        return flow.H[:-1], Phi[:-1], G[:-1], branch[:-1], branch[-1], c * top * flow.growth[-1], ntk_readout

    size = max(1, BLOCK // len(columns))
    count = -(-len(rows) // size)
    size = -(-len(rows) // count)
    padding = count * size - len(rows)
    # Copies of the first sample fill up the last block.
    order = np.r_[np.arange(len(rows)), np.zeros(padding, int)]
    blocks = jax.lax.map(
        lambda block: kernels(block[0][:, None], columns[None], block[1]),
        (rows[order].reshape(count, size), Kx[order].reshape(count, size, -1)),
    )
    # (blocks, times, rows of a block, columns) -> (times, rows, columns)
    joined = [jnp.moveaxis(f, 0, -3).reshape(*f.shape[1:-2], count * size, f.shape[-1]) for f in blocks]
    results = [f[..., : len(rows), :] for f in joined]
    if symmetric:
        i = np.arange(len(rows))
        results = [
            f.at[..., i, i].set(diagonal) for f, diagonal in zip(results, kernels(rows, rows, rows), strict=True)
        ]
    return tuple(results)


def branch_rates(beta: jax.Array, depth: int | None, alpha: float) -> tuple[jax.Array, jax.Array]:
    """(b^2, c): by how much Phi grows H through the branches' random weights, and their NTK through training.

    In one layer (beta L^-alpha)^2 and beta^2 / L; at infinite depth per unit of layer time, where for alpha above 1/2
    the first is 0.
    """
    square = drift = beta**2
    if depth is not None:
        return square * depth ** (-2 * alpha), drift / depth
    return (0.0 * square if alpha > 0.5 else square), drift
