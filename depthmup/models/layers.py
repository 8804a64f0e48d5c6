"""The parts that all families of models share: activations, initializers, convolutions, norms, the readout, `Model`."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal, get_args

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec
from jax.typing import DTypeLike

from depthmup.activations import ACTIVATIONS, ActivationName
from depthmup.declare import declared, key
from depthmup.models.convolution import circular_conv, conv_general_dilated
from depthmup.names import at_least_one, unknown
from depthmup.rules.parameterization import ForwardFactors

Initializer = Callable[..., jax.Array]
DTypeName = Literal["float32", "bfloat16"]
NormName = Literal["none", "batch", "plane", "layer", "rms"]
Padding = Literal["zero", "circular"]
# Of the computation; None: that of inputs and parameters.
DTYPES: dict[DTypeName, DTypeLike | None] = {"float32": None, "bfloat16": jnp.bfloat16}
PADDINGS: tuple[Padding, ...] = get_args(Padding)
BATCH_AXIS = "batch"  # name of the axis over the devices that share a batch
FSDP_AXIS = "fsdp"
MESH_AXES = ("data", FSDP_AXIS)  # of a mesh over whose second axis the state is split, and over both a batch


def batch_axis() -> str | None:
    """`BATCH_AXIS` inside a `pmap`, `shard_map` or `vmap` over an axis of this name and of size above 1, else None.

    If it is not None, each device has a part of the batch: average gradients and batch norm's statistics over this
    axis.
    """
    try:
        return BATCH_AXIS if jax.lax.axis_size(BATCH_AXIS) > 1 else None  # a sum over one device would only copy
    except NameError:
        return None


def split_batch(h: jax.Array) -> jax.Array:
    """h with its first axis, the batch, split over the mesh of MESH_AXES in whose context it is traced; else h itself.

    A model says so of its states. Without it XLA could split states as the weights are, and exchange states.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.axis_names != MESH_AXES or h.shape[0] % mesh.size:  # the one example of an init splits over nothing
        return h
    return jax.lax.with_sharding_constraint(h, PartitionSpec(MESH_AXES))


def fan_in_init(gain: float = 1.0) -> Initializer:
    """N(0, gain / fan_in), where fan_in is the product of all axes but the last."""
    return _normal_init(lambda shape: (gain / math.prod(shape[:-1])) ** 0.5) if gain else nn.initializers.zeros


def constant_init(deviation: float) -> Initializer:
    """N(0, deviation^2) for every shape."""
    return _normal_init(lambda shape: deviation)


def _normal_init(deviation: Callable[[Sequence[int]], float]) -> Initializer:
    """N(0, deviation(shape)^2). The numbers equal those of `jax.random.normal(key, shape)`, but are drawn along one
    axis: XLA takes several times longer to compile random bits along several axes."""

    def init(key: jax.Array, shape: Sequence[int], dtype: Any = jnp.float32) -> jax.Array:
        flat = jax.random.normal(key, (math.prod(shape),), dtype)
        return (flat * jnp.asarray(deviation(shape), dtype)).reshape(shape)

    return init


@functools.cache
def stationary_gain(activation: ActivationName) -> float:
    """g = 1 / <phi(z)^2>, z ~ N(0, 1): weights of variance g / fan_in keep a pre-activation variance of 1.

    For ReLU g is He's 2, for GELU 2.352 (AM-muP paper, section 3.2). Computed by Gauss-Hermite quadrature.
    """
    z, weights = np.polynomial.hermite_e.hermegauss(256)
    with jax.ensure_compile_time_eval():
        phi = np.asarray(ACTIVATIONS[activation](jnp.asarray(z)), np.float64)
    return round(float(weights.sum() / (weights @ phi**2)), 6)


def check_image(shape: Sequence[int], dimensions: Sequence[int] = (2,)) -> tuple[int, ...]:
    """The spatial sizes of a shape (batch, *space, channels). Raises ValueError if their number is not one of
    `dimensions`, the numbers of spatial axes that the family takes."""
    if len(shape) - 2 not in dimensions:
        forms = {1: "(batch, length, channels)", 2: "(batch, height, width, channels)"}
        raise ValueError(f"inputs must be {' or '.join(forms[d] for d in dimensions)}, got {tuple(shape)}")
    return tuple(shape[1:-1])


def check_kernel_size(space: Sequence[int], kernel: int, padding: Padding) -> None:
    """Raises ValueError for an unknown padding or a kernel that does not fit the image."""
    if padding not in PADDINGS:
        raise unknown("padding", padding, PADDINGS)
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
    padding: Padding = "zero",
    init: Initializer | None = None,
    dtype: Any = None,
) -> jax.Array:
    """A convolution without bias over all spatial axes; (batch, *space, C) -> (batch, *space / stride, features).

    Along each axis, output position o sees `kernel` inputs from stride * o - (kernel - 1) // 2 on. Inputs outside the
    image are 0 (padding "zero") or wrap around (padding "circular", a torus).
    Source: docs/theory.md section 6; strided convolutions are padded as in PyTorch.
    """
    low, high = (kernel - 1) // 2, kernel // 2
    space = x.ndim - 2
    return nn.Conv(
        features,
        (kernel,) * space,
        strides=stride,
        padding=[(low, high)] * space,
        use_bias=False,
        kernel_init=init or fan_in_init(),
        dtype=dtype,
        conv_general_dilated=circular_conv if padding == "circular" and kernel > 1 else conv_general_dilated,
        name=name,
    )(x)


def matrix_product(lhs: jax.Array, rhs: jax.Array, dimension_numbers: Any, precision: Any = None) -> jax.Array:
    """`lax.dot_general` for Flax's dense layers, computed as a product of two matrices; it contracts the last axes of
    lhs with the first axes of rhs. With `lax.dot_general` itself, XLA on a CPU transposes the activations for the
    kernel's gradient, which takes 12% of a ViT's step."""
    count = len(dimension_numbers[0][0])
    inner = math.prod(rhs.shape[:count])
    product = jax.lax.dot(lhs.reshape(-1, inner), rhs.reshape(inner, -1), precision=precision)
    return product.reshape(*lhs.shape[: lhs.ndim - count], *rhs.shape[count:])


def norm(x: jax.Array, kind: NormName, name: str, *, train: bool, dtype: Any = None) -> jax.Array:
    """Normalize x, (batch, ..., width); the same shape. kind: "none"; "batch": over batch and space, on all devices
    that share the batch (`batch_axis`); "layer": over the last axis; "rms": likewise, by its root mean square;
    "plane": over the space of each channel."""
    # Flax's fast variance <x^2> - <x>^2 is good to 1e-4 in float32 where the mean is within 10 standard deviations
    # of 0. The two-pass variance takes 9 times longer to compile on a CPU for an unrolled ViT of depth 32.
    if kind == "batch":
        return nn.BatchNorm(
            use_running_average=not train, momentum=0.9, epsilon=1e-5, dtype=dtype, axis_name=batch_axis(), name=name
        )(x)
    if kind == "plane":
        return nn.GroupNorm(num_groups=None, group_size=1, epsilon=1e-5, dtype=dtype, name=name)(x)
    if kind == "layer":
        return nn.LayerNorm(epsilon=1e-6, dtype=dtype, name=name)(x)
    if kind == "rms":
        return nn.RMSNorm(epsilon=1e-6, dtype=dtype, name=name)(x)
    return x


class ConvLayer(nn.Module):
    """norm(W * phi(z)); (batch, *space, C) -> (batch, *space, features). features: None: C, those of the input."""

    activation: ActivationName
    norm: NormName
    padding: Padding
    kernel_init: Initializer
    dtype: Any
    features: int | None = None
    kernel: int = 3

    @nn.compact
    def __call__(self, z: jax.Array, train: bool) -> jax.Array:
        options = {"kernel": self.kernel, "padding": self.padding, "init": self.kernel_init, "dtype": self.dtype}
        x = conv(ACTIVATIONS[self.activation](z), self.features or z.shape[-1], "conv", **options)
        return norm(x, self.norm, "norm", train=train, dtype=self.dtype)


def scaled_logits(h: jax.Array, kernel: jax.Array, factors: ForwardFactors, dtype: Any = None) -> jax.Array:
    """output factor * h kernel; (..., features), (features, outputs) -> (..., outputs), in float32 or wider."""
    h, kernel = nn.dtypes.promote_dtype(h, kernel, dtype=dtype)
    logits = h @ kernel
    logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    return jnp.asarray(factors.output, logits.dtype) * logits


class Readout(nn.Module):
    """logits = output factor * W h + bias; (..., features) -> (..., outputs), in float32 or wider."""

    outputs: int
    use_bias: bool = False
    dtype: Any = None

    @nn.compact
    def __call__(self, h: jax.Array, factors: ForwardFactors) -> jax.Array:
        kernel = self.param("kernel", fan_in_init(), (h.shape[-1], self.outputs))
        logits = scaled_logits(h, kernel, factors, self.dtype)
        if self.use_bias:
            logits = logits + self.param("bias", nn.initializers.zeros, (self.outputs,))
        return logits


class Model(nn.Module):
    """The base class of the families. Models map (inputs (batch, ...), ForwardFactors, train=False) -> logits (batch,
    outputs), a language model (tokens (batch, context), ...) -> logits (batch, context, outputs).

    The factors may be traced. `train` switches dropout on (it needs the PRNG "dropout") and makes batch norm use, and
    update, the batch's statistics in the collection "batch_stats". Where the collection "features" is mutable, a model
    sows its last state there as "hidden", (batch, ..., width); where "stream" is mutable, it sows the tuple of all
    states h^0..h^L there as "h".

    Weights start as N(0, gain / fan_in) with gain 1 unless the family's docstring says otherwise, biases at 0, norms at
    the identity: `rescale` turns that into a parameterization's init.

    A family declares each of its attributes with `key`, which says what the attribute means: width and depth, as the
    family counts them, and its own. These declarations are also the settings of `config.model`. outputs is the number
    of logits. With dtype "bfloat16" parameters, logits and the statistics of norms stay float32. A scanned model has
    stacked parameters `blocks/...`, an unrolled one `block_0`, `block_1`, ...; both are the same function, and
    `stack_blocks` converts the parameters.
    """

    residual: ClassVar[bool] = True  # Are the blocks residual branches?
    even_scan: ClassVar[bool] = False  # Is the number of scanned blocks proportional to depth?
    tokens: ClassVar[bool] = False  # Are inputs tokens, with logits and a label for each?

    width: int
    depth: int
    outputs: int = 10
    activation: ActivationName = key("relu", "")
    dtype: DTypeName = key("float32", "the type of the computation; parameters are float32")
    scan: bool = key(True, "equal blocks run in one scanned loop, so compile time is flat in depth; False: unrolled")
    remat: bool = key(
        False,
        "gradients keep only the states between blocks and compute the blocks again: less memory, more work",
        decides=False,
    )

    def check(self, shape: Sequence[int]) -> None:
        """Raises ValueError if an attribute is out of range or does not fit inputs of this shape, (batch, ...)."""
        for name, declaration in declared(type(self)).items():
            if name in ("width", "depth"):  # specs are inferred at larger ones than a config may have
                at_least_one(name, getattr(self, name))
            else:
                declaration.check(name, getattr(self, name))

    @nn.nowrap
    def batch_shapes(self, examples: int, shape: tuple[int, ...]) -> tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct]:
        """Shapes and types of (inputs, labels) of a batch of examples of this shape."""
        inputs = jax.ShapeDtypeStruct((examples, *shape), np.int32 if self.tokens else np.float32)
        return inputs, jax.ShapeDtypeStruct((examples, *(shape if self.tokens else ())), np.int32)

    @nn.nowrap
    def block_count(self, depth: int) -> int:
        """The number of residual blocks (of layers, in a plain network) that this model has at a depth. The branch
        factor counts them."""
        return depth

    @property
    def head_dim(self) -> int:
        """Size of an attention head; 1 without attention."""
        return 1

    @property
    def places(self) -> dict[str, str]:
        """{glob of paths: place or role} of parameters whose place or role shapes do not show."""
        return {}

    @property
    def ways(self) -> list[tuple[int, ...]]:
        """The graph that PathSum sums over (`fit.chain_path_sum`), as a chain of stages: each stage lists the number of
        weight layers on each of its parallel ways, 0 for an identity skip. The readout is left out, and so is the
        read-in unless depth counts it."""
        raise NotImplementedError

    @nn.nowrap
    def forward(self, factors: ForwardFactors, **state: Any) -> Callable[[Any, jax.Array, Any], tuple[jax.Array, Any]]:
        """The forward function (params, inputs, shifts) -> (logits, states) that `measure.network_kernels` takes.

        states: the sown h^0 .. h^L, {"h": tuple}. shifts: None, or a tree like states; each of its arrays is added to
        its state before anything is computed from the state. state: other collections, such as batch_stats.
        """

        def run(params: Any, inputs: jax.Array, shifts: Any) -> tuple[jax.Array, Any]:
            variables = {**state, "params": params, "shift": shifts or {}}
            logits, sown = self.apply(variables, inputs, factors, mutable=["stream"])
            return logits, sown["stream"]

        return run

    @property
    def phi(self) -> Callable[[jax.Array], jax.Array]:
        return ACTIVATIONS[self.activation]
