"""The lazy limit of convolutional residual networks: `lazy_kernels` for pairs of positions."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from depthmup.activations import Activation, ActivationName
from depthmup.names import at_least_one, unknown
from depthmup.theory.checks import ALPHA, check_array, check_memory, check_number
from depthmup.theory.flow import integrate
from depthmup.theory.lazy import branch_rates, layers_of, warn_of_remainder
from depthmup.theory.moments import Moments, known, moments, overlap
from depthmup.theory.precision import Array, concrete, float64

PaddingName = Literal["circular", "zero"]
PADDINGS: dict[PaddingName, str] = {"circular": "wrap", "zero": "constant"}  # names of `numpy.pad` for them
TOGETHER = 2**20  # how many pairs of positions are computed at once


class ConvKernels(NamedTuple):
    """Kernels between P images (rows) and Q images (columns).

    times: the layer times tau of H and Phi, (times,).
    H, Phi: feature kernels <z z> and <phi(z) phi(z)> of both images at the same position, averaged over positions,
      (times, P, Q).
    ntk_branch, ntk_readin, ntk_readout: the parts of the NTK from all branches, the read-in and the readout, (P, Q).
    """

    times: Array
    H: Array
    Phi: Array
    ntk_branch: Array
    ntk_readin: Array
    ntk_readout: Array

    @property
    def ntk(self) -> Array:
        """The NTK if all weights are trained, (P, Q). If only some are, add up their parts instead."""
        return self.ntk_branch + self.ntk_readin + self.ntk_readout


class State(NamedTuple):
    """The quantities that are integrated over the layers, for one pair of images with S positions; docs/theory.md
    section 2.2.

    H: the feature kernel for each pair of positions, (S, S).
    readin, branch: V and U, from which the parts of the NTK of the read-in and of the layers so far follow, (S, S).
    a, b: the feature kernel of each image with itself at each position, (S,).
    """

    H: jax.Array
    readin: jax.Array
    branch: jax.Array
    a: jax.Array
    b: jax.Array


@float64
def lazy_conv_kernels(
    x: ArrayLike,
    depth: int | None = None,
    activation: ActivationName | Activation = "relu",
    beta: float | jax.Array = 1.0,
    *,
    x2: ArrayLike | None = None,
    kernel: int = 3,
    padding: PaddingName = "circular",
    alpha: float = 0.5,
    times: Sequence[float] | None = None,
    memory_limit: float = 4.0,
) -> ConvKernels:
    """Kernels and NTK at initialization with infinitely many channels; docs/theory.md section 2.2 (paper A, K.1).

    The network is z^0 = W_in * x, z^{l+1} = z^l + beta L^-alpha W^l * phi(z^l), F = w . (mean over positions of
    phi(z^L)) / (gamma_0 N), where * is a convolution; that is `ResidualCNN` with one convolution in each branch and
    gain beta^2. The learning rates are those of docs/theory.md section 0. With k taps of a filter and C channels of an
    image, the package's own learning rates are k / beta^2 times as large for branches and k C times for the read-in.

    Args:
      x: the images of the rows, (P, length, C) or (P, height, width, C).
      x2: the images of the columns, (Q, ...); None for the images x again.
      depth, activation, beta, alpha, times: as in `lazy_kernels`.
      kernel: the size of the filters of read-in and branches along each axis.
      padding: "circular" or "zero".
      memory_limit: GiB that one block of pairs of images may take, which grows as the square of the number of
        positions.

    Returns:
      `ConvKernels`: kernels averaged over positions, (times, P, Q), and the NTK, (P, Q), in float64.

    Raises ValueError for images that do not fit, and as `lazy_kernels`. Warns as `lazy_kernels`.
    """
    depth = depth if depth is None else at_least_one("depth", depth)
    activation = known(activation)
    ALPHA.check("alpha", alpha)
    check_number("beta", beta)
    kernel = at_least_one("kernel", kernel)
    if padding not in PADDINGS:
        raise unknown("padding", padding, PADDINGS)
    for array in (x,) if x2 is None else (x, x2):
        check_array("images", array)
    images = [jnp.asarray(array, jnp.float64) for array in ((x,) if x2 is None else (x, x2))]
    shape = images[0].shape
    if len(shape) not in (3, 4) or not images[0].size:
        raise ValueError(f"images must be (P, length, channels) or (P, height, width, channels), got {shape}")
    if images[-1].shape[1:] != shape[1:] or not images[-1].size:
        raise ValueError(f"images of x and x2 must have one shape, got {shape[1:]} and {images[-1].shape[1:]}")
    if padding == "circular" and kernel // 2 > min(shape[1:-1]):
        raise ValueError(f"circular padding of a kernel of {kernel} needs images of {kernel // 2} or more, got {shape}")
    layers = layers_of(depth, times)
    positions = int(np.prod(shape[1:-1]))
    pairs = max(1, TOGETHER // positions**2)
    # At infinite depth the integrator keeps some fourteen stages.
    arrays = 3 * (16 if depth is None else 4)
    check_memory(8.0 * arrays * pairs * positions**2, memory_limit, "lazy_conv_kernels", "give smaller images")
    compute = _compute(activation, depth, float(alpha), tuple(layers), kernel, padding)
    rows, columns = images[0], images[-1]
    i, j = np.triu_indices(len(rows)) if x2 is None else np.indices((len(rows), len(columns))).reshape(2, -1)
    fields, norm, rho = compute(rows, columns, i, j, x2 is None, jnp.asarray(beta, jnp.float64), pairs)
    if concrete(norm, rho):
        warn_of_remainder(activation, float(norm), float(rho))
    return ConvKernels(np.array(layers) / (depth or 1), *fields)


@functools.lru_cache(maxsize=64)
def _compute(
    activation: ActivationName | Activation,
    depth: int | None,
    alpha: float,
    layers: tuple[float, ...],
    kernel: int,
    padding: PaddingName,
) -> Callable[..., Any]:
    """The function `compute` below. It is kept for each of these settings, so that each is compiled once."""
    average = moments(activation)
    stops = (*layers, float(depth or 1))

    def block(x: jax.Array, y: jax.Array, is_one_image: jax.Array, beta: jax.Array) -> tuple[Any, ...]:
        """(H, Phi, and the NTK's parts at each stop, (stops, pairs) each), the largest norm, the largest overlap.

        x, y: the two images of each pair, (pairs, *space, C). is_one_image: whether both are the same one, (pairs,).
        """
        space = x.shape[1:-1]
        x, y = (images.reshape(len(images), -1, images.shape[-1]) for images in (x, y))
        square, drift = branch_rates(beta, depth, alpha)

        def spread(values: jax.Array) -> jax.Array:
            return _filtered(values, space, kernel, PADDINGS[padding]).reshape(values.shape)

        def averages(state: State) -> tuple[jax.Array, jax.Array]:
            return jax.vmap(functools.partial(_averages, average))(state, is_one_image)

        def slope(state: State) -> State:
            Phi, Phidot = averages(state)
            grown_a, grown_b = (jax.vmap(lambda v: average.same(v)[0])(v) for v in (state.a, state.b))
            new = spread(Phi)
            return State(
                square * new,
                square * spread(Phidot * state.readin),
                square * spread(Phidot * state.branch) + drift * new,
                square * spread(grown_a),
                square * spread(grown_b),
            )

        def measured(state: State) -> tuple[jax.Array, ...]:
            """H, Phi, and the parts of the NTK if this layer were the last, (pairs,) each."""
            Phi, Phidot = averages(state)
            H, features = (jnp.diagonal(matrix, axis1=1, axis2=2).mean(1) for matrix in (state.H, Phi))
            return H, features, *((top).mean((1, 2)) for top in (Phidot * state.branch, Phidot * state.readin, Phi))

        channels = x.shape[-1]
        H0 = spread(jnp.einsum("psc,ptc->pst", x, y) / channels)
        a, b = (spread((images**2).mean(-1)) for images in (x, y))
        diagonal = is_one_image[:, None, None] & jnp.eye(a.shape[1], dtype=bool)
        rho = jnp.where(diagonal, 0, jnp.abs(overlap(a[:, :, None], b[:, None], H0)))
        fields = integrate(slope, State(H0, H0, jnp.zeros_like(H0), a, b), stops, depth, measured)
        return fields, jnp.maximum(a.max(), b.max()), rho.max()

    @functools.partial(jax.jit, static_argnums=(4, 6))
    def compute(
        rows: jax.Array, columns: jax.Array, i: jax.Array, j: jax.Array, symmetric: bool, beta: jax.Array, pairs: int
    ) -> tuple[Any, ...]:
        """(all fields of `ConvKernels` but the times), the largest norm, the largest overlap of two positions.

        i, j: the indices of the row and the column of each pair of images. symmetric: whether the rows are the columns.
        pairs: how many pairs are computed at once.
        """
        size = min(pairs, len(i))
        fill = -len(i) % size
        order = [jnp.concatenate([v, jnp.repeat(v[:1], fill)]).reshape(-1, size) for v in (i, j)]
        fields, norm, rho = jax.lax.map(
            lambda v: block(rows[v[0]], columns[v[1]], symmetric & (v[0] == v[1]), beta), tuple(order)
        )

        shape = len(rows), len(columns)
        H, Phi, branch, readin, readout = (_matrices(v, i, j, shape, symmetric) for v in fields)
        return (H[:-1], Phi[:-1], branch[-1], readin[-1], readout[-1]), norm.max(), rho.max()

    return compute


def _averages(average: Moments, state: State, is_one_image: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Phi and Phidot for all pairs of positions, (S, S).

    is_one_image: whether both images are the same one. Then the entries of a position with itself are computed without
    an angle, which would lose half their digits.
    """
    Phi, Phidot = average.pair(state.a[:, None], state.b[None], state.H)
    with_itself = average.same(state.a)
    diagonal = is_one_image & jnp.eye(len(state.a), dtype=bool)
    return jnp.where(diagonal, with_itself[0], Phi), jnp.where(diagonal, with_itself[1], Phidot)


def _matrices(values: jax.Array, i: jax.Array, j: jax.Array, shape: tuple[int, int], symmetric: bool) -> jax.Array:
    """(blocks, stops, pairs of a block) -> (stops, P, Q): each pair at its row i and column j; if `symmetric`, also at
    row j and column i."""
    values = jnp.moveaxis(values, 1, 0).reshape(values.shape[1], -1)[:, : len(i)]
    full = jnp.zeros((len(values), *shape)).at[:, i, j].set(values)
    return full.at[:, j, i].set(values) if symmetric else full


def _filtered(values: jax.Array, space: tuple[int, ...], kernel: int, mode: str) -> jax.Array:
    """The mean over the taps of a filter, by which all positions of an entry move together; outside of an image is 0.

    values: (pairs of images, positions), or (pairs of images, positions, positions). mode: of `numpy.pad`.
    Returns (pairs of images, *space) or (pairs of images, *space, *space).
    """
    values = values.reshape(values.shape[0], *space * (values.ndim - 1))
    for axis in range(1, len(space) + 1):
        joint = range(axis, values.ndim, len(space))
        pads = [((kernel - 1) // 2, kernel // 2) if dim in joint else (0, 0) for dim in range(values.ndim)]
        padded = jnp.pad(values, pads, mode=mode)
        terms = []
        for offset in range(kernel):
            shifted = padded
            for dim in joint:
                shifted = jax.lax.slice_in_dim(shifted, offset, offset + values.shape[dim], axis=dim)
            terms.append(shifted)
        values = sum(terms[1:], terms[0]) / kernel
    return values
