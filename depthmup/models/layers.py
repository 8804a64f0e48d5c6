"""What the families have in common: activations, padded convolutions, norms, readout, stacks of blocks."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from depthmup.activations import ACTIVATIONS
from depthmup.models.convolution import conv_general_dilated
from depthmup.parameterization import ForwardFactors, at_least_one, unknown

Initializer = Callable[..., jax.Array]
DTYPES = {"float32": None, "bfloat16": jnp.bfloat16}  # of the computation; None: that of inputs and parameters
PADDINGS = ("zero", "circular")
BATCH_AXIS = "batch"  # of devices that share a batch


def batch_axis() -> str | None:
    """`BATCH_AXIS` inside a `pmap`, `shard_map` or `vmap` over an axis of that name, else None. The batch is then a
    part of a whole, over which gradients and the statistics of batch norm are to be averaged."""
    try:
        return BATCH_AXIS if jax.lax.axis_size(BATCH_AXIS) > 1 else None  # a sum over one device would copy
    except NameError:
        return None


def fan_in_init(gain: float = 1.0) -> Initializer:
    """N(0, gain / fan_in), where fan_in is the product of all axes but the last."""
    return _normal_init(lambda shape: (gain / math.prod(shape[:-1])) ** 0.5) if gain else nn.initializers.zeros


def constant_init(deviation: float) -> Initializer:
    """N(0, deviation^2), whatever the shape."""
    return _normal_init(lambda shape: deviation)


def _normal_init(deviation: Callable[[Sequence[int]], float]) -> Initializer:
    """A normal of this standard deviation. It is drawn along one axis: the numbers are those of
    `jax.random.normal(key, shape)`, but XLA takes several times longer to compile random bits along several axes."""

    def init(key: jax.Array, shape: Sequence[int], dtype: Any = jnp.float32) -> jax.Array:
        flat = jax.random.normal(key, (math.prod(shape),), dtype)
        return (flat * jnp.asarray(deviation(shape), dtype)).reshape(shape)

    return init


@functools.cache
def stationary_gain(activation: str) -> float:
    """g = 1 / <phi(z)^2>, z ~ N(0, 1): weights of variance g / fan_in keep a pre-activation variance of 1.

    He's 2 for ReLU, 2.352 for GELU (AM-muP paper, section 3.2; by Gauss-Hermite quadrature).
    """
    z, weights = np.polynomial.hermite_e.hermegauss(256)
    with jax.ensure_compile_time_eval():
        phi = np.asarray(ACTIVATIONS[activation](jnp.asarray(z)), np.float64)
    return round(float(weights.sum() / (weights @ phi**2)), 6)


def check_name(what: str, name: str, known: Iterable[str]) -> None:
    """Raises ValueError if `name` is not known."""
    if name not in known:
        raise unknown(what, name, known)


def check_image(shape: Sequence[int], dimensions: Sequence[int] = (2,)) -> tuple[int, ...]:
    """Spatial sizes of (batch, *space, channels). Raises ValueError if there are not as many as the family takes."""
    if len(shape) - 2 not in dimensions:
        forms = {1: "(batch, length, channels)", 2: "(batch, height, width, channels)"}
        raise ValueError(f"inputs must be {' or '.join(forms[d] for d in dimensions)}, got {tuple(shape)}")
    return tuple(shape[1:-1])


def check_kernel(space: Sequence[int], kernel: int, padding: str) -> None:
    """Raises ValueError for an unknown padding or a kernel that does not fit the image."""
    check_name("padding", padding, PADDINGS)
    if kernel < 1:
        raise ValueError(f"kernel size must be at least 1, got {kernel}")
    if padding == "circular" and kernel // 2 > min(space):
        raise ValueError(f"circular padding of a kernel of {kernel} needs images of {kernel // 2} or more, got {space}")


def conv(
    x: jax.Array,
    features: int,
    name: str,
    *,
    kernel: int = 3,
    stride: int = 1,
    padding: str = "zero",
    init: Initializer | None = None,
    dtype: Any = None,
) -> jax.Array:
    """A convolution without bias over all spatial axes; (batch, *space, C) -> (batch, *space / stride, features).

    Output position o sees inputs stride * o - (kernel - 1) // 2 and on; "zero" outside, or "circular" (on a torus).
    Source: docs/theory.md section 6; the padding of a strided one is PyTorch's.
    """
    axes = range(1, x.ndim - 1)
    low, high = (kernel - 1) // 2, kernel // 2
    space = x.shape[1:-1]
    if padding == "circular" and kernel > 1:
        for axis in axes:
            size = x.shape[axis]
            before = jax.lax.slice_in_dim(x, size - low, size, axis=axis)
            after = jax.lax.slice_in_dim(x, 0, high, axis=axis)
            x = jnp.concatenate([before, x, after], axis=axis)
    # A circular one convolves the wrapped image with zeros around it and cuts them off: on CPU four times faster than
    # a convolution without padding (docs/design.md section 3).
    x = nn.Conv(
        features,
        (kernel,) * len(axes),
        strides=stride,
        padding=[(low, high)] * len(axes),
        use_bias=False,
        kernel_init=init or fan_in_init(),
        dtype=dtype,
        conv_general_dilated=conv_general_dilated,
        name=name,
    )(x)
    if padding == "circular" and kernel > 1:
        for axis, size in zip(axes, space, strict=True):
            x = jax.lax.slice_in_dim(x, low, low + size, axis=axis)
    return x


def matrix_product(lhs: jax.Array, rhs: jax.Array, dimension_numbers: Any, precision: Any = None) -> jax.Array:
    """`lax.dot_general` for Flax's dense layers, as a product of two matrices: the last axes of lhs with the first axes
    of rhs. For the gradient of the kernel XLA on a CPU else transposes the activations, 12% of a ViT's step."""
    count = len(dimension_numbers[0][0])
    inner = math.prod(rhs.shape[:count])
    product = jax.lax.dot(lhs.reshape(-1, inner), rhs.reshape(inner, -1), precision=precision)
    return product.reshape(*lhs.shape[: lhs.ndim - count], *rhs.shape[count:])


def norm(x: jax.Array, kind: str, name: str, *, train: bool, dtype: Any = None) -> jax.Array:
    """ "none"; "batch": over all devices that share the batch (`batch_axis`); "layer": over the last axis of (batch,
    ..., width); "plane": over the space of each channel."""
    # With Flax's fast variance, <x^2> - <x>^2: good to 1e-4 in float32 where the mean is within 10 standard deviations.
    # The two-pass one takes 9 times longer to compile on a CPU for an unrolled ViT of depth 32.
    if kind == "batch":
        return nn.BatchNorm(
            use_running_average=not train, momentum=0.9, epsilon=1e-5, dtype=dtype, axis_name=batch_axis(), name=name
        )(x)
    if kind == "plane":
        return nn.GroupNorm(num_groups=None, group_size=1, epsilon=1e-5, dtype=dtype, name=name)(x)
    if kind == "layer":
        return nn.LayerNorm(epsilon=1e-6, dtype=dtype, name=name)(x)
    return x


class Readout(nn.Module):
    """logits = output factor * W h + bias; (batch, features) -> (batch, outputs), in float32 or wider."""

    outputs: int
    use_bias: bool = False
    dtype: Any = None

    @nn.compact
    def __call__(self, h: jax.Array, factors: ForwardFactors) -> jax.Array:
        kernel = self.param("kernel", fan_in_init(), (h.shape[-1], self.outputs))
        h, kernel = nn.dtypes.promote_dtype(h, kernel, dtype=self.dtype)
        logits = h @ kernel
        logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
        logits = jnp.asarray(factors.output, logits.dtype) * logits
        if self.use_bias:
            logits = logits + self.param("bias", nn.initializers.zeros, (self.outputs,))
        return logits


class Model(nn.Module):
    """A family. What it is called with: (inputs (batch, ...), ForwardFactors, train=False) -> logits (batch, outputs).

    The factors may be traced. `train` switches dropout on (it needs the PRNG "dropout") and lets batch norm use, and
    update, the batch's statistics in the collection "batch_stats". Sown when these collections are mutable: "hidden",
    the last state, (batch, ..., width), in "features"; "h", the tuple of all states h^0..h^L, in "stream".

    Weights start as N(0, gain / fan_in) with gain 1 unless the family says otherwise, biases at 0, norms at the
    identity: `rescale` turns that into a parameterization's init.

    Attributes of all:
      width, depth: as the family counts them.
      outputs: number of logits.
      activation: a name in `ACTIVATIONS`.
      dtype: of the computation, "float32" or "bfloat16"; parameters, logits and the statistics of norms stay float32.
      scan: equal blocks as one scanned block with stacked parameters `blocks/...` (compile time flat in depth), or
        unrolled as `block_0`, `block_1`, ...; the same function, and `stack_blocks` converts the parameters.
    """

    residual: ClassVar[bool] = True  # are the blocks residual branches?
    even_scan: ClassVar[bool] = False  # is the number of scanned blocks proportional to depth?

    width: int
    depth: int
    outputs: int = 10
    activation: str = "relu"
    dtype: str = "float32"
    scan: bool = True

    def check(self, shape: Sequence[int]) -> None:
        """Raises ValueError if an attribute is out of range or does not fit inputs of this shape, (batch, ...)."""
        at_least_one("width", self.width)
        at_least_one("depth", self.depth)
        check_name("activation", self.activation, ACTIVATIONS)
        check_name("dtype", self.dtype, DTYPES)

    @classmethod
    def option_types(cls) -> dict[str, Any]:
        """Types of what a config may set besides width and depth, from the defaults."""
        fixed = {"parent", "name", "width", "depth", "outputs"}
        defaults = {field.name: field.default for field in dataclasses.fields(cls) if field.name not in fixed}
        return {
            name: tuple[type(value[0]), ...] if isinstance(value, tuple) else type(value)  # type: ignore[misc]
            for name, value in defaults.items()
        }

    @property
    def head_dim(self) -> int:
        """Size of an attention head; 1 without attention."""
        return 1

    @property
    def ways(self) -> list[tuple[int, ...]]:
        """Of every stage in turn, the numbers of weight layers on its parallel ways, 0 for an identity skip: the graph
        that PathSum sums over (`fit.chain_path_sum`). Readout, and read-in unless depth counts it, are left out."""
        raise NotImplementedError

    @nn.nowrap
    def forward(self, factors: ForwardFactors, **held: Any) -> Callable[[Any, jax.Array, Any], tuple[jax.Array, Any]]:
        """(params, inputs, shifts) -> (logits, states), as `measure.network_kernels` takes it.

        states: the sown h^0 .. h^L, {"h": tuple}; shifts: the same tree of arrays, of which each is added to its state
        before what follows is computed, or None. held: other collections, such as batch_stats.
        """

        def run(params: Any, inputs: jax.Array, shifts: Any) -> tuple[jax.Array, Any]:
            variables = {**held, "params": params, "shift": shifts or {}}
            logits, sown = self.apply(variables, inputs, factors, mutable=["stream"])
            return logits, sown["stream"]

        return run

    @property
    def phi(self) -> Callable[[jax.Array], jax.Array]:
        return ACTIVATIONS[self.activation]
