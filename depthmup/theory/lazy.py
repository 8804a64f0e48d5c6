"""The lazy limit: kernels at initialization and the neural tangent kernel of infinitely wide residual networks."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from depthmup.theory.activations import CLOSED, TERMS, Function, Moments, known, moments, overlap, remainder
from depthmup.theory.checks import check_alpha, check_kernel, check_memory, check_readout, rounding, whole
from depthmup.theory.flow import Flow, integrate, relu_flow
from depthmup.theory.precision import Array, concrete, float64

State = tuple[Flow, jax.Array, jax.Array]  # the flow, and the norms of its samples
BLOCK = 2**20  # pairs of samples that are computed at once


class LazyKernels(NamedTuple):
    """Over layer time tau, for P samples (rows) and Q samples (columns, the same unless `norms` were given).

    times: (times,).  H, Phi, G: feature kernels and gradient kernel at these, (times, P, Q).
    ntk_branch_until: the branches' part of the NTK that the layers up to each time contribute, (times, P, Q).
    ntk_branch, ntk_readin, ntk_readout: the parts of the NTK, (P, Q), whatever `times` is.
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
        """(P, Q), with all weights trained; add up the parts of those that are."""
        return self.ntk_branch + self.ntk_readin + self.ntk_readout


@float64
def lazy_kernels(
    Kx: ArrayLike,
    depth: int | None = None,
    activation: str | Function = "relu",
    beta: float | jax.Array = 1.0,
    readout: str = "phi",
    *,
    alpha: float = 0.5,
    norms: tuple[ArrayLike, ArrayLike] | None = None,
    times: Sequence[float] | None = None,
    memory_limit: float = 4.0,
) -> LazyKernels:
    """Kernels and NTK at initialization at infinite width; docs/theory.md section 2 (paper A, Proposition 2).

    H' = beta^2 Phi(H), G' = -beta^2 G * Phidot(H) in layer time at infinite depth, else L Euler steps of them; the NTK
    is beta^2 int Phi * G (branches) + Kx * G(0) (read-in) + Phi(1) (readout).

    Args:
      Kx: (P, P) input kernel x.x'/D; with `norms`, the (P, Q) block of it between two sets of samples.
      depth: L, the number of residual branches; None for infinite depth.
      activation: "linear", "relu", "erf", "tanh", "gelu", or any function of arrays with a kink at 0 at most. Give the
        same function object again: each new one, such as a lambda in a loop, is compiled anew.
      beta: branch multiplier, which enters as beta L^-alpha.
      readout: "phi", the activation before the readout, or "linear", none.
      alpha: in [1/2, 1]; above 1/2 the kernels stay Kx at infinite depth (docs/theory.md section 1.1).
      norms: the diagonals of the input kernel of the rows' samples, (P,), and of the columns', (Q,).
      times: layer times in [0, 1] of what is returned over layer time, at finite depth multiples of 1/L. By default
        all layers, or 17 times at infinite depth.
      memory_limit: GiB that the result may take.

    Computed in blocks: no (P, Q, L) array, so that `times=()` does thousands of samples. Derivatives with respect to
    Kx and beta are those of the result; at infinite depth reverse-mode only, and under a caller's `jit` only inside
    `with jax.enable_x64(True)`. Warns if the series of an activation without closed form is not exact to a millionth.
    Raises ValueError for a kernel that is not square, symmetric or positive semi-definite, a depth below 1, a time that
    is no layer, an unknown name, or a result above the memory limit.
    """
    depth = depth if depth is None else whole("depth", depth)
    activation = known(activation)
    check_alpha(alpha)
    check_readout(readout)
    if norms is None:
        check_kernel(Kx)
    tolerance = rounding(Kx)
    Kx = jnp.asarray(Kx, jnp.float64)
    rows, columns = (jnp.diag(Kx),) * 2 if norms is None else (jnp.asarray(v, jnp.float64) for v in norms)
    if rows.ndim != 1 or columns.ndim != 1 or Kx.shape != (len(rows), len(columns)):
        raise ValueError(f"norms of shapes {rows.shape} and {columns.shape} do not fit a block of shape {Kx.shape}")
    if norms is not None and concrete(Kx, rows, columns):
        excess = np.max(Kx**2 - jnp.outer(rows, columns))
        if excess > 2 * tolerance * np.max(jnp.outer(rows, columns)) or min(rows.min(), columns.min()) < 0:
            raise ValueError(
                "Kx is no block of a positive semi-definite kernel with these norms: |k_ij| > sqrt(k_i k_j)"
            )
    rows, columns = (jnp.maximum(of, 0) for of in (rows, columns))
    if activation not in CLOSED and concrete(rows, columns, Kx):
        norm = float(max(rows.max(), columns.max()))
        warn_of_remainder(activation, norm, _closest(rows, columns, Kx, norms is None))
    layers = layers_of(depth, times)
    check_memory(
        8.0 * Kx.size * (4 * len(layers) + 3), memory_limit, "lazy_kernels", "give fewer times, such as times=()"
    )
    compute = _compute(activation, None if depth is None else int(depth), readout, float(alpha), tuple(layers))
    same = norms is None
    return LazyKernels(
        np.array(layers) / (depth or 1), *compute(rows, columns, Kx, jnp.asarray(beta, jnp.float64), same)
    )


def layers_of(depth: int | None, times: Sequence[float] | None) -> list[float]:
    """Layers 0..L, or layer times at infinite depth, as which `times` are returned."""
    if times is None:
        return list(np.linspace(0, 1, 17)) if depth is None else list(range(depth + 1))
    if any(not 0 <= time <= 1 for time in times) or sorted(times) != list(times):
        raise ValueError(f"times must be layer times from 0 to 1 in ascending order, got {list(times)}")
    if depth is None:
        return [float(time) for time in times]
    layers = [round(time * depth) for time in times]
    for layer, time in zip(layers, times, strict=True):
        if abs(layer / depth - time) > 1e-9:
            raise ValueError(
                f"time {time} is no layer of a network of depth {depth}: its layers are multiples of 1/{depth}"
            )
    return list(map(float, layers))


def _closest(rows: jax.Array, columns: jax.Array, Kx: jax.Array, same: bool) -> float:
    """The largest overlap of two samples."""
    rho = np.abs(overlap(rows[:, None], columns[None], Kx))
    if same:
        np.fill_diagonal(rho, 0)  # a sample with itself goes without the series
    return float(rho.max())


def warn_of_remainder(activation: str | Function, norm: float, rho: float) -> None:
    """Where the series of an activation without closed form does not reach a millionth, at this norm and overlap.

    To be called by what `float64` wraps.
    """
    error = remainder(activation, norm, rho)
    if error > 1e-6:
        warnings.warn(
            f"kernels of this activation may be off by {error:.1g} of their size, for samples with an overlap of "
            f"{rho:.4g}: the series of {TERMS} terms that stands for it is not enough at norms of {norm:.3g}",
            stacklevel=5,
        )


@functools.lru_cache(maxsize=64)
def _compute(
    activation: str | Function, depth: int | None, readout: str, alpha: float, layers: tuple[float, ...]
) -> Callable[..., Any]:
    """The compiled computation: (row norms, column norms, Kx, beta, whether rows are columns) -> all but the times."""
    average = moments(activation)
    stops = (*layers, float(depth or 1))

    def kernels(a: jax.Array, b: jax.Array, c: jax.Array, beta: jax.Array) -> tuple[jax.Array, ...]:
        """Of one block: norms (P, 1) and (1, Q), kernel (P, Q); or, all three (P,), of each sample with itself."""
        flow, a, b = _flow(average, activation, a, b, c, beta, depth, alpha, stops)
        Phi, Phidot = jax.vmap(average.__call__)(a, b, flow.H)
        top = Phidot[-1] if readout == "phi" else jnp.ones_like(c)
        G = top * flow.growth[-1] / flow.growth
        branch = G * flow.until
        ntk_readout = Phi[-1] if readout == "phi" else flow.H[-1]
        return flow.H[:-1], Phi[:-1], G[:-1], branch[:-1], branch[-1], c * top * flow.growth[-1], ntk_readout

    @functools.partial(jax.jit, static_argnums=4)
    def compute(
        rows: jax.Array, columns: jax.Array, Kx: jax.Array, beta: jax.Array, same: bool
    ) -> tuple[jax.Array, ...]:
        size = max(1, BLOCK // len(columns))
        count = -(-len(rows) // size)
        size = -(-len(rows) // count)
        padding = count * size - len(rows)
        # What fills up the last block is a copy of the first sample.
        order = np.r_[np.arange(len(rows)), np.zeros(padding, int)]
        blocks = jax.lax.map(
            lambda block: kernels(block[0][:, None], columns[None], block[1], beta),
            (rows[order].reshape(count, size), Kx[order].reshape(count, size, -1)),
        )
        # (blocks, times, rows of a block, columns) -> (times, rows, columns)
        joined = [jnp.moveaxis(of, 0, -3).reshape(*of.shape[1:-2], count * size, of.shape[-1]) for of in blocks]
        results = [of[..., : len(rows), :] for of in joined]
        if same:
            i = np.arange(len(rows))
            own = kernels(rows, rows, rows, beta)
            results = [of.at[..., i, i].set(diagonal) for of, diagonal in zip(results, own, strict=True)]
        return tuple(results)

    return compute


def _flow(
    average: Moments,
    activation: str | Function,
    a: jax.Array,
    b: jax.Array,
    c: jax.Array,
    beta: jax.Array,
    depth: int | None,
    alpha: float,
    stops: tuple[float, ...],
) -> State:
    """The flow from layer 0 and the samples' norms, at each of `stops`."""
    square, drift = branch_rates(beta, depth, alpha)

    def slope(state: State) -> State:
        flow, a, b = state
        Phi, Phidot = average(a, b, flow.H)
        rate = square * Phidot
        grown_a, grown_b = (square * average.same(v.ravel())[0].reshape(v.shape) for v in (a, b))
        return Flow(square * Phi, rate * flow.growth, rate * flow.until + drift * Phi), grown_a, grown_b

    start = Flow(c, jnp.ones_like(c), jnp.zeros_like(c)), a, b
    if depth is None and activation == "relu" and alpha == 0.5 and c.ndim == 2:
        return relu_flow(a, b, c, beta, stops)
    return integrate(slope, start, stops, depth)


def branch_rates(beta: jax.Array, depth: int | None, alpha: float) -> tuple[jax.Array, jax.Array]:
    """Of random weights, and of what training adds to them: in a layer, or at infinite depth over all layer time."""
    square = drift = beta**2
    if depth is not None:
        return square * depth ** (-2 * alpha), drift / depth
    return (0.0 * square if alpha > 0.5 else square), drift
