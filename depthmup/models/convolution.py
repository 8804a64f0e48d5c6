"""Convolutions whose gradients are fast on a CPU even inside loops; for other backends they are those of `lax`.

XLA on a CPU has a fast convolution for one layout only: inputs (batch, *space, in) and a kernel (*space, in, out). XLA
transposes other layouts into this one, but only in the outermost computation of a program. The two gradients of a
convolution have other layouts, so they run 20 to 60 times slower inside a `scan`, a `fori_loop` or a `lax.map`
(docs/performance.md). Therefore this module defines a primitive whose lowering for a CPU writes out the transpositions.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir


def conv_general_dilated(
    lhs: jax.Array,
    rhs: jax.Array,
    window_strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    feature_group_count: int = 1,
    precision: Any = None,
) -> jax.Array:
    """The function of `jax.lax.conv_general_dilated`; give it to Flax's `nn.Conv` as `conv_general_dilated=`.

    It has derivatives of any order, forward and reverse, and works under `vmap`, `jit` and `shard_map`, as `lax`'s
    convolution does. On backends other than CPU the compiled program is `lax`'s. Grouped convolutions always go to
    `lax`; a `vmap` over both inputs and kernels makes a grouped convolution. Raises TypeError and ValueError as `lax`
    does.
    """
    numbers = lax.conv_dimension_numbers(lhs.shape, rhs.shape, dimension_numbers)
    ones = (1,) * (lhs.ndim - 2)
    strides, lhs_dilation, rhs_dilation = (tuple(s or ones) for s in (window_strides, lhs_dilation, rhs_dilation))
    if feature_group_count > 1:
        return lax.conv_general_dilated(
            lhs, rhs, strides, padding, lhs_dilation, rhs_dilation, numbers, feature_group_count, precision=precision
        )
    if isinstance(padding, str):
        if lhs_dilation != ones:
            raise ValueError(f"padding {padding!r} of dilated inputs: give (low, high) of each axis")
        window = [_dilated(rhs.shape[axis], by) for axis, by in zip(numbers.rhs_spec[2:], rhs_dilation, strict=True)]
        padding = lax.padtype_to_pads([lhs.shape[axis] for axis in numbers.lhs_spec[2:]], window, strides, padding)
    pads = tuple((int(low), int(high)) for low, high in padding)
    return _bind(lhs, rhs, Window(strides, pads, lhs_dilation, rhs_dilation, numbers, precision))


# Up to this many inputs and outputs, half a megabyte, `_by_rows` is the faster way; its columns, three times as large,
# must stay in the processor's cache (`python -m benchmarks.circular_convolution`).
SMALL = 2**17


def circular_conv(
    lhs: jax.Array,
    rhs: jax.Array,
    window_strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    dimension_numbers: Any = None,
    precision: Any = None,
    **options: Any,
) -> jax.Array:
    """`conv_general_dilated` of images on a torus, whose padding wraps around; for Flax's `nn.Conv`, as above.

    lhs (batch, *space, in), rhs (*kernel, in, out) -> (batch, *space, out). Raises ValueError for strides above 1.
    """
    if set(window_strides) != {1}:
        raise ValueError(f"a circular convolution has stride 1, got {tuple(window_strides)}")
    space = lhs.shape[1:-1]
    small = max(lhs.size, math.prod(lhs.shape[:-1]) * rhs.shape[-1]) <= SMALL
    if small and len(space) == 2 and jax.default_backend() == "cpu":
        return _by_rows(lhs, rhs, padding, precision)
    for axis, (low, high) in enumerate(padding, 1):
        lhs = _wrapped(lhs, axis, low, high)
    # The wrapped image is padded with zeros all the same, and the outer pixels of the result are cut off below: on a
    # CPU this is four times faster than a convolution without padding (docs/notes.md).
    out = conv_general_dilated(
        lhs, rhs, window_strides, padding, dimension_numbers=dimension_numbers, precision=precision, **options
    )
    for axis, ((low, _), size) in enumerate(zip(padding, space, strict=True), 1):
        out = lax.slice_in_dim(out, low, low + size, axis=axis)
    return out


def _wrapped(x: jax.Array, axis: int, low: int, high: int) -> jax.Array:
    size = x.shape[axis]
    before = lax.slice_in_dim(x, size - low, size, axis=axis)
    return jnp.concatenate([before, x, lax.slice_in_dim(x, 0, high, axis=axis)], axis=axis)


def _by_rows(lhs: jax.Array, rhs: jax.Array, padding: Sequence[tuple[int, int]], precision: Any) -> jax.Array:
    """`circular_conv` as one matrix product: each pixel with its neighbours in its row, times the rows of the kernel
    side by side. The contribution of each row of the kernel then moves to the row of the image that it belongs to."""
    (low, _), beside = padding
    high, wide, fan_in, out = rhs.shape
    wrapped = _wrapped(lhs, 2, *beside)
    columns = jnp.concatenate([wrapped[:, :, at : at + lhs.shape[2]] for at in range(wide)], axis=-1)
    kernel = rhs.transpose(1, 2, 0, 3).reshape(wide * fan_in, high * out)
    products = jnp.dot(columns.reshape(-1, wide * fan_in), kernel, precision=precision)
    rows = jnp.split(products.reshape(*lhs.shape[:-1], high * out), high, axis=-1)
    return functools.reduce(jnp.add, [jnp.roll(row_sum, low - row, axis=1) for row, row_sum in enumerate(rows)])


class Window(NamedTuple):
    """The arguments of `lax.conv_general_dilated` after its two operands, in one normalized form."""

    window_strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    lhs_dilation: tuple[int, ...]
    rhs_dilation: tuple[int, ...]
    dimension_numbers: lax.ConvDimensionNumbers
    precision: Any


def _bind(lhs: Any, rhs: Any, window: Window) -> Any:
    # Inside `shard_map`, an operand that all devices share must be marked as varying over the axes over which the other
    # one varies; `lax` does the same.
    axes = [_varying(operand) for operand in (lhs, rhs)]
    lhs, rhs = (
        lax.pcast(operand, tuple(missing), to="varying") if missing else operand
        for operand, missing in ((lhs, axes[1] - axes[0]), (rhs, axes[0] - axes[1]))
    )
    return conv_p.bind(lhs, rhs, window=window)


def _varying(operand: Any) -> frozenset[str]:
    """The axes of `shard_map` over which an operand varies."""
    return jax.typeof(operand).manual_axis_type.varying


def _by_lax(lhs: Any, rhs: Any, *, window: Window) -> jax.Array:
    return lax.conv_general_dilated(lhs, rhs, **window._asdict())


def _on_cpu(lhs: jax.Array, rhs: jax.Array, *, window: Window) -> jax.Array:
    """The convolution with its operands transposed to (batch, *space, in) and (*space, in, out), and the result
    transposed back."""
    (batch, features, *space), (rhs_out, rhs_in, *rhs_space), (out_batch, out_features, *out_space) = (
        window.dimension_numbers
    )
    lhs, rhs = lhs.transpose(batch, *space, features), rhs.transpose(*rhs_space, rhs_in, rhs_out)
    last = lhs.ndim - 1
    image = (0, last, *range(1, last))
    window = window._replace(
        dimension_numbers=lax.ConvDimensionNumbers(image, (last, last - 1, *range(last - 1)), image)
    )
    # XLA is slow for negative padding, which the gradient of a strided 1x1 kernel has; and where the kernel is larger
    # than the image, XLA exchanges the two, which is 20 times slower. In both cases the image is padded beforehand.
    cropped = any(size < 0 for edges in window.padding for size in edges)
    if cropped or math.prod(lhs.shape[1:-1]) < math.prod(rhs.shape[:-2]):
        edges = [(*pair, by - 1) for pair, by in zip(window.padding, window.lhs_dilation, strict=True)]
        lhs = lax.optimization_barrier(lax.pad(lhs, jnp.zeros((), lhs.dtype), [(0, 0, 0), *edges, (0, 0, 0)]))
        window = window._replace(padding=((0, 0),) * len(edges), lhs_dilation=(1,) * len(edges))
    out = _by_lax(lhs, rhs, window=window)
    order = [out_batch, *out_space, out_features]
    return out.transpose([order.index(axis) for axis in range(out.ndim)])


def _lhs_gradient(g: jax.Array, lhs: Any, rhs: jax.Array, *, window: Window) -> jax.Array:
    """The gradient with respect to lhs: a convolution of g, the output's gradient, with the kernel, which is reversed
    in space and has its input and output channels exchanged."""
    lhs_spec, rhs_spec, out_spec = window.dimension_numbers
    padding = []
    for i, (low, _) in enumerate(window.padding):
        kernel = _dilated(rhs.shape[rhs_spec[2 + i]], window.rhs_dilation[i])
        before = kernel - 1 - low
        size = _dilated(lhs.aval.shape[lhs_spec[2 + i]], window.lhs_dilation[i])
        padding.append(
            (before, size + kernel - 1 - _dilated(g.shape[out_spec[2 + i]], window.window_strides[i]) - before)
        )
    transposed = Window(
        window_strides=window.lhs_dilation,
        padding=tuple(padding),
        lhs_dilation=window.window_strides,
        rhs_dilation=window.rhs_dilation,
        dimension_numbers=lax.ConvDimensionNumbers(out_spec, _exchanged(rhs_spec), lhs_spec),
        precision=window.precision,
    )
    return _bind(g, lax.rev(rhs, rhs_spec[2:]), transposed)


def _rhs_gradient(g: jax.Array, lhs: jax.Array, rhs: Any, *, window: Window) -> jax.Array:
    """The gradient with respect to rhs: a convolution of the inputs with g, the output's gradient, in which batch and
    channels are exchanged."""
    lhs_spec, rhs_spec, out_spec = window.dimension_numbers
    padding = []
    for i, (low, _) in enumerate(window.padding):
        kernel = _dilated(rhs.aval.shape[rhs_spec[2 + i]], window.rhs_dilation[i])
        size = _dilated(lhs.shape[lhs_spec[2 + i]], window.lhs_dilation[i])
        padding.append((low, kernel - 1 + _dilated(g.shape[out_spec[2 + i]], window.window_strides[i]) - size - low))
    transposed = Window(
        window_strides=window.rhs_dilation,
        padding=tuple(padding),
        lhs_dilation=window.lhs_dilation,
        rhs_dilation=window.window_strides,
        dimension_numbers=lax.ConvDimensionNumbers(*(_exchanged(spec) for spec in (lhs_spec, out_spec, rhs_spec))),
        precision=window.precision,
    )
    return _bind(lhs, g, transposed)


def _batched(operands: tuple[Any, Any], axes: tuple[int | None, int | None], *, window: Window) -> tuple[Any, int]:
    """The rule for `vmap`: a mapped axis of the inputs becomes part of the batch, a mapped axis of the kernels becomes
    part of the output channels. If both are mapped, `lax` makes a grouped convolution."""
    (lhs, rhs), (lhs_axis, rhs_axis) = operands, axes
    lhs_spec, rhs_spec, out_spec = window.dimension_numbers
    if lhs_axis is not None and rhs_axis is not None:
        return jax.vmap(functools.partial(_by_lax, window=window), in_axes=(lhs_axis, rhs_axis))(lhs, rhs), 0
    if lhs_axis is not None:
        count, axis = lhs.shape[lhs_axis], out_spec[0]
        lhs = _merge(lhs, lhs_axis, lhs_spec[0])
    else:
        assert rhs_axis is not None
        count, axis = rhs.shape[rhs_axis], out_spec[1]
        rhs = _merge(rhs, rhs_axis, rhs_spec[0])
    out = _bind(lhs, rhs, window)
    return out.reshape(*out.shape[:axis], count, -1, *out.shape[axis + 1 :]), axis


def _merge(array: jax.Array, axis: int, target: int) -> jax.Array:
    """The array with `axis` merged into the axis `target`, as its slower part; `target` is counted without `axis`."""
    array = jnp.moveaxis(array, axis, target)
    return array.reshape(*array.shape[:target], -1, *array.shape[target + 2 :])


def _dilated(size: int, by: int) -> int:
    return 1 + by * (size - 1) if size else 0


def _exchanged(spec: Sequence[int]) -> tuple[int, ...]:
    return (spec[1], spec[0], *spec[2:])


conv_p = Primitive("depthmup_conv")
conv_p.def_impl(jax.jit(_by_lax, static_argnames="window"))
conv_p.def_abstract_eval(
    lambda lhs, rhs, window: jax.make_jaxpr(functools.partial(_by_lax, window=window))(lhs, rhs).out_avals[0]
)
ad.defbilinear(conv_p, _lhs_gradient, _rhs_gradient)
batching.primitive_batchers[conv_p] = _batched
mlir.register_lowering(conv_p, mlir.lower_fun(_by_lax, multiple_results=False))
mlir.register_lowering(conv_p, mlir.lower_fun(_on_cpu, multiple_results=False), platform="cpu")
