"""The convolutional networks of the AM-muP paper (B): plain, and residual with an identity skip."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from depthmup.declare import SIZE, key
from depthmup.models.layers import (
    ACTIVATIONS,
    DTYPES,
    ActivationName,
    ConvLayer,
    Model,
    NormName,
    Padding,
    Readout,
    check_image,
    check_kernel_size,
    conv,
    fan_in_init,
    norm,
    stationary_gain,
)
from depthmup.models.stack import sow_hidden, stack, state
from depthmup.rules.parameterization import ForwardFactors


class CNN(Model):
    """z^1 = W_1 * x;  z^{l+1} = W_{l+1} * phi(z^l), l = 1..depth-1;  logits = c W_out <phi(z^depth)>_space.

    Paper B, section 4.2: equal convolution + nonlinearity blocks, stride 1, global pooling, linear head; trained there
    by SGD without momentum. `*` is a convolution, c the output factor. He init: variance g / fan_in with fan_in =
    kernel^d C for d spatial axes and g = `stationary_gain`, 2 for ReLU.

    The first convolution (`read_in`) reads the image, (batch, length, C) or (batch, height, width, C). Circular padding
    is the paper's, unless stated. g for GELU is 2.352, the fixed point of the variance map (a repelling one: ours), or
    with `gelu_variance="paper"` 2 sqrt(2) (Appendix D.1), under which the variance grows: 16 at layer 10
    (docs/theory.md section 6).
    """

    residual: ClassVar[bool] = False

    width: int = key(32, "C, the channels of a layer whose multiplier is 1", **SIZE)
    depth: int = key(4, "L, the number of convolutions", **SIZE)
    channels: tuple[float, ...] = key((1.0,), "multipliers of width, layer by layer, repeated", nonempty=True)
    kernels: tuple[int, ...] = key((3,), "kernel sizes, layer by layer, repeated", low=1, nonempty=True)
    padding: Padding = key("circular", "")
    gelu_variance: Literal["stationary", "paper"] = key(
        "stationary",
        "initial variance of weights before a GELU times fan_in: 2.352 or 2.828",
    )

    def check(self, shape: Sequence[int]) -> None:
        super().check(shape)
        space = check_image(shape, (1, 2))
        for kernel in self.kernels:
            check_kernel_size(space, kernel, self.padding)
        for multiplier in self.channels:
            channels = multiplier * self.width
            if not 0 < channels < SIZE["high"] or channels != round(channels):
                raise ValueError(
                    f"channels: {multiplier} x width {self.width} must be a whole number of channels above 0 and below "
                    f"{SIZE['high']:,}"
                )

    @property
    def ways(self) -> list[tuple[int, ...]]:
        return [(1,)] * self.depth

    @nn.compact
    def __call__(self, x: jax.Array, factors: ForwardFactors, train: bool = False) -> jax.Array:
        self.check(x.shape)
        dtype = DTYPES[self.dtype]
        paper = self.activation == "gelu" and self.gelu_variance == "paper"
        gain = 2 * 2**0.5 if paper else stationary_gain(self.activation)

        def layer(i: int, name: str) -> ConvLayer:
            features = round(self.width * self.channels[i % len(self.channels)])
            kernel = self.kernels[i % len(self.kernels)]
            activation = self.activation if i else "linear"
            return ConvLayer(activation, "none", self.padding, fan_in_init(gain), dtype, features, kernel, name=name)

        z = layer(0, "read_in")(x, train)
        z = state(self, z)
        if len(self.channels) == len(self.kernels) == 1:
            z = stack(
                self,
                lambda name: layer(1, name),
                lambda layer, z: layer(z, train),
                z,
                self.depth - 1,
            )
        else:  # Blocks that differ cannot be scanned.
            for i in range(1, self.depth):
                z = layer(i, f"block_{i - 1}")(z, train)
                z = state(self, z)
        sow_hidden(self, z)
        pooled = self.phi(z).mean(axis=tuple(range(1, z.ndim - 1)))
        return Readout(self.outputs, False, dtype, name="readout")(pooled, factors)


class ConvBranch(nn.Module):
    """W_m * s(... s(W_1 * s(z))) with s(z) = dropout(phi(norm(z))); (batch, *space, C) -> the same shape."""

    activation: ActivationName
    kernels: tuple[int, ...]
    bottleneck: int
    padding: Padding
    norm: NormName
    dropout: float
    gain: float
    zero_init: bool
    dtype: DTypeLike | None

    @nn.compact
    def __call__(self, z: jax.Array, train: bool) -> jax.Array:
        width, last = z.shape[-1], len(self.kernels) - 1
        for i, kernel in enumerate(self.kernels):
            z = norm(z, self.norm, f"norm_{i}", train=train, dtype=self.dtype)
            z = ACTIVATIONS[self.activation](z)
            if i and self.dropout:
                z = nn.Dropout(self.dropout, deterministic=not train)(z)
            features = width if i == last else width // self.bottleneck
            name = "last" if i == last else f"conv_{i}"
            init = fan_in_init(0 if self.zero_init and i == last else self.gain)
            z = conv(z, features, name, kernel=kernel, padding=self.padding, init=init, dtype=self.dtype)
        return z


class ResidualCNN(Model):
    """z^l = z^{l-1} + b W_m * s(... s(W_1 * s(z^{l-1}))), l = 1..depth;  logits = c W_out <phi(z^depth)>.

    Paper B, sections 3.2, 4.3 and Appendix C.1: identity skips, one width, no subsampling. z^0 = W_in * x with weights
    of variance 1/fan_in (ours). b is the branch factor, and c in the logits the output factor.

    Branch weights start with variance gain / fan_in. The paper's variance gain / (K fan_in), for K blocks, comes from
    the parameterization `am_mup`, which multiplies them by K^-alpha: alpha = 1/2 as in the paper, or 1 (B's released
    code has both). It multiplies all branch weights, or with `branch_init="*/last/*"` only the last layer of each
    branch. Under `depth_mup` the factor 1/sqrt(K) is in b instead.

    The paper's bottleneck block has kernels (1, 3, 1) and bottleneck 4. Circular padding is the paper's, unless stated.
    Dropout is of Appendix D.2, which does not give the rate: ours. `zero_init_branch` is of paper A, Appendix M.
    """

    even_scan: ClassVar[bool] = True

    width: int = key(64, "C, the number of channels", **SIZE)
    depth: int = key(4, "K, the number of residual blocks", **SIZE)
    kernels: tuple[int, ...] = key(
        (3, 3), "sizes of a branch's convolutions W_1..W_m; 1 is a dense layer over channels", low=1, nonempty=True
    )
    bottleneck: int = key(1, "W_1..W_{m-1} have width / bottleneck channels", low=1)
    padding: Padding = key("circular", "")
    norm: Literal["none", "batch"] = key("none", "batch: a batch norm before each nonlinearity of a branch")
    dropout: float = key(0.0, "rate of dropout between the convolutions of a branch", low=0, high=1)
    gain: float = key(2.0, "c: branch weights start with variance c / fan_in (am_mup: c / (K fan_in))", low=0)
    zero_init_branch: bool = key(False, "the last convolution of a branch starts at 0")

    def check(self, shape: Sequence[int]) -> None:
        super().check(shape)
        space = check_image(shape, (1, 2))
        for kernel in self.kernels:
            check_kernel_size(space, kernel, self.padding)
        if self.width % self.bottleneck:
            raise ValueError(f"bottleneck {self.bottleneck} must divide the width {self.width}")
        if self.dropout and len(self.kernels) == 1:
            raise ValueError("dropout acts between the convolutions of a branch: give kernels two sizes or more")

    @property
    def ways(self) -> list[tuple[int, ...]]:
        return [(0, len(self.kernels))] * self.depth

    @nn.compact
    def __call__(self, x: jax.Array, factors: ForwardFactors, train: bool = False) -> jax.Array:
        self.check(x.shape)
        dtype = DTYPES[self.dtype]
        z = conv(x, self.width, "read_in", padding=self.padding, dtype=dtype)
        z = state(self, z)
        options = (self.activation, self.kernels, self.bottleneck, self.padding, self.norm, self.dropout)
        z = stack(
            self,
            lambda name: ConvBranch(*options, self.gain, self.zero_init_branch, dtype, name=name),
            lambda branch, z: z + jnp.asarray(factors.branch, z.dtype) * branch(z, train),
            z,
            self.depth,
        )
        sow_hidden(self, z)
        pooled = self.phi(z).mean(axis=tuple(range(1, z.ndim - 1)))
        return Readout(self.outputs, False, dtype, name="readout")(pooled, factors)
