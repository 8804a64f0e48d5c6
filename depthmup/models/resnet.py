"""The residual networks of the depthwise-transfer paper (A): SimpleResNet, and the ResNet of He et al."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

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
)
from depthmup.models.stack import sow_hidden, stack, state
from depthmup.rules.parameterization import ForwardFactors

STAGES = 4  # number of SimpleResNet's stages; a pooling separates each from the next
# {number of layers: (depth, stages, bottleneck)} of ResNet's ImageNet sizes
IMAGENET = {18: (2, (1, 1, 1, 1), False), 34: (1, (3, 4, 6, 3), False), 50: (1, (3, 4, 6, 3), True)}


class SimpleResNet(Model):
    """h^0 = W_in * x;  h^{l+1} = h^l + b W^l * phi(h^l);  logits = c W_out flatten(phi(h^depth)).

    Paper A, Appendix A.1: one 3x3 convolution of stride 1 per residual block, no normalization. `*` is a convolution, b
    the branch factor, c the output factor. After round(i depth / 4) blocks, for i = 1, 2, 3, the image is pooled by 2,
    and a 3x3 convolution outside the branches doubles the channels. (Halves round to even, so a network of depth 3 has
    no block in its third stage.) Ours: the doubling convolution is linear, and an activation comes before the readout;
    the paper leaves both open.

    With scan, the blocks between two poolings are one scanned `blocks_0` .. `blocks_3`. The paper's text says both
    average and max pooling. With `count="weight_layers"`, the paper's "total number of layers instead of the number of
    residual blocks", the depth rules count depth + 5 (with the read-in, three doublings and readout; ours), at the base
    depth too. The paper has no norm. `zero_init_branch` is of Appendix M.
    """

    width: int = key(128, "channels of the last stage, 8 times those of the first", **SIZE)
    depth: int = key(4, "the number of residual blocks, each of one convolution; 3 or more", **SIZE)
    pool: Literal["average", "max"] = key("average", "the kind of the three poolings")
    count: Literal["blocks", "weight_layers"] = key(
        "blocks", "what the depth rules count; weight_layers is the paper's"
    )
    padding: Padding = key("zero", "")
    norm: Literal["none", "batch"] = key("none", "batch: a batch norm after each convolution of a branch")
    zero_init_branch: bool = key(False, "branches start at 0")

    def check(self, shape: Sequence[int]) -> None:
        super().check(shape)
        space = check_image(shape)
        check_kernel_size(space, 3, self.padding)
        if self.depth < STAGES - 1:
            raise ValueError(f"SimpleResNet needs a depth of {STAGES - 1} or more blocks, got {self.depth}")
        if self.width % 2 ** (STAGES - 1):
            raise ValueError(f"SimpleResNet doubles its channels three times: width {self.width} must divide by 8")
        if min(space) < 2 ** (STAGES - 1):
            raise ValueError(f"SimpleResNet pools three times: images must be 8x8 or larger, got {space}")

    @nn.nowrap
    def block_count(self, depth: int) -> int:
        return depth + (STAGES + 1 if self.count == "weight_layers" else 0)

    @property
    def places(self) -> dict[str, str]:
        layers = ("conv", "norm") if self.norm != "none" else ("conv",)
        return {f"block*/{layer}/*": "branch" for layer in layers}

    @property
    def ways(self) -> list[tuple[int, ...]]:
        return [(0, 1)] * self.depth + [(1,)] * (STAGES - 1)  # PathSum does not depend on the order of stages

    @nn.compact
    def __call__(self, x: jax.Array, factors: ForwardFactors, train: bool = False) -> jax.Array:
        self.check(x.shape)
        dtype = DTYPES[self.dtype]
        pool = nn.avg_pool if self.pool == "average" else nn.max_pool
        channels, init = self.width // 2 ** (STAGES - 1), fan_in_init(0 if self.zero_init_branch else 1)
        h = conv(x, channels, "read_in", padding=self.padding, dtype=dtype)
        h = state(self, h)
        bounds = [0, *(round(i * self.depth / STAGES) for i in range(1, STAGES)), self.depth]
        for stage in range(STAGES):
            if stage:
                h = pool(h, (2, 2), strides=(2, 2))
                h = conv(h, 2 * h.shape[-1], f"double_{stage}", padding=self.padding, dtype=dtype)
            h = stack(
                self,
                lambda name: ConvLayer(self.activation, self.norm, self.padding, init, dtype, name=name),
                lambda branch, h: h + jnp.asarray(factors.branch, h.dtype) * branch(h, train),
                h,
                bounds[stage + 1] - bounds[stage],
                first=bounds[stage],
                scanned=f"blocks_{stage}",
            )
        sow_hidden(self, h)
        return Readout(self.outputs, False, dtype, name="readout")(self.phi(h).reshape(len(h), -1), factors)


class ResNetBlock(nn.Module):
    """phi(shortcut(h) + b f(h)) with the branch f = conv, norm, phi, conv, norm (a bottleneck has three convolutions).
    The shortcut is the identity, or a 1x1 convolution and a norm where the shape changes."""

    features: int
    stride: int
    bottleneck: bool
    activation: ActivationName
    norm: NormName
    zero_init: bool
    dtype: Any

    @nn.compact
    def __call__(self, h: jax.Array, branch_factor: jax.Array | float, train: bool) -> jax.Array:
        phi = ACTIVATIONS[self.activation]

        def conv_norm(x: jax.Array, features: int, kernel: int, stride: int, suffix: str, gain: float = 1) -> jax.Array:
            init = fan_in_init(gain)
            x = conv(x, features, f"conv_{suffix}", kernel=kernel, stride=stride, init=init, dtype=self.dtype)
            return norm(x, plane(self.norm), f"norm_{suffix}", train=train, dtype=self.dtype)

        # (output channels, kernel, stride) of each convolution of the branch
        if self.bottleneck:
            layers = [(self.features // 4, 1, 1), (self.features // 4, 3, self.stride), (self.features, 1, 1)]
        else:
            layers = [(self.features, 3, self.stride), (self.features, 3, 1)]
        x = h
        for i, (features, kernel, stride) in enumerate(layers):
            last = i == len(layers) - 1
            x = conv_norm(x, features, kernel, stride, str(i), 0 if last and self.zero_init else 1)
            x = x if last else phi(x)
        if self.stride > 1 or h.shape[-1] != self.features:
            h = conv_norm(h, self.features, 1, self.stride, "shortcut")
        return phi(h + jnp.asarray(branch_factor, h.dtype) * x)


def plane(kind: NormName) -> NormName:
    """ResNet's name of a norm -> the `kind` of `layers.norm`: ResNet's "layer" is over each channel's plane."""
    return "plane" if kind == "layer" else kind


class Stage(nn.Module):
    """`blocks` blocks with the same number of features: `block_0`, which may change the shape, and equal ones after."""

    blocks: int
    features: int
    stride: int
    options: tuple[Any, ...]
    scan: bool
    remat: bool

    @nn.compact
    def __call__(self, h: jax.Array, branch_factor: jax.Array | float, train: bool) -> jax.Array:
        h = ResNetBlock(self.features, self.stride, *self.options, name="block_0")(h, branch_factor, train)
        h = state(self, h)
        return stack(
            self,
            lambda name: ResNetBlock(self.features, 1, *self.options, name=name),
            lambda block, h: block(h, branch_factor, train),
            h,
            self.blocks - 1,
            first=1,
        )


class ResNet(Model):
    """The residual network of He et al. with a factor b on each branch: h <- phi(shortcut(h) + b f(h)); paper A, A.2.

    Stage i has depth * stages[i] blocks. The first block of every stage but the first halves the image by stride 2 and
    doubles the channels. Where a block changes the shape, its shortcut is a 1x1 projection. Global average pooling and
    a readout with a bias follow. With the branch factor 1 (`mup`, `sp`) it is the usual ResNet. `resnet` makes the
    standard sizes.

    Width 128 is ResNet-18's with width multiplier 2. `resnet` makes the standard sizes: CIFAR's 6n + 2 layers are
    stages (1, 1, 1), depth n. Bottleneck blocks have 4 x the channels, and the 3x3 convolution has the stride, as in
    torchvision. The layer norm over each channel's plane, as in instance norm, has a scale and offset per channel:
    ours. `zero_init_branch` is of Appendix M.
    """

    width: int = key(16, "channels of the first stage, before a bottleneck's expansion", **SIZE)
    depth: int = key(1, "multiplies the numbers of blocks in stages", **SIZE)
    stages: tuple[int, ...] = key(
        (1, 1, 1),
        "blocks per unit of depth; (1, 1, 1): CIFAR's 6n + 2 layers; (1, 1, 1, 1): ResNet-18 at depth 2; "
        "(3, 4, 6, 3): ResNet-34 and 50",
        nonempty=True,
        **SIZE,
    )
    bottleneck: bool = key(False, "blocks have 1x1, 3x3, 1x1 convolutions, as in ResNet-50")
    stem: Literal["cifar", "imagenet"] = key("cifar", "a 3x3 convolution, or 7x7 of stride 2 and 3x3 max pooling")
    norm: Literal["batch", "layer", "none"] = key("batch", "after each convolution; layer: over each channel's plane")
    zero_init_branch: bool = key(False, "the last convolution of a branch starts at 0")

    def check(self, shape: Sequence[int]) -> None:
        super().check(shape)
        space = check_image(shape)
        halvings = len(self.stages) - 1 + (2 if self.stem == "imagenet" else 0)
        smallest = 2**halvings * (2 if self.norm == "layer" else 1)
        if min(space) < smallest:
            why = "; a layer norm over one pixel is 0" if self.norm == "layer" else ""
            raise ValueError(
                f"ResNet halves the image {halvings} times: images must be {smallest}x{smallest} or larger, got {space}"
                + why
            )

    @nn.nowrap
    def block_count(self, depth: int) -> int:
        return depth * sum(self.stages)

    @property
    def places(self) -> dict[str, str]:
        layers = ("conv", "norm") if self.norm != "none" else ("conv",)
        branches = {f"stage_*/block*/{layer}_[0-9]/*": "branch" for layer in layers}
        return branches | ({"*_shortcut/*": "trunk"} if self.bottleneck or len(self.stages) > 1 else {})

    @property
    def ways(self) -> list[tuple[int, ...]]:
        layers = 3 if self.bottleneck else 2
        result: list[tuple[int, ...]] = []
        for i, blocks in enumerate(self.stages):
            projected = i > 0 or self.bottleneck  # Where the shape changes, the shortcut is a weight layer.
            result += [(int(projected), layers)] + [(0, layers)] * (blocks * self.depth - 1)
        return result

    @nn.compact
    def __call__(self, x: jax.Array, factors: ForwardFactors, train: bool = False) -> jax.Array:
        self.check(x.shape)
        dtype = DTYPES[self.dtype]
        kernel, stride = (7, 2) if self.stem == "imagenet" else (3, 1)
        h = conv(x, self.width, "read_in", kernel=kernel, stride=stride, dtype=dtype)
        h = self.phi(norm(h, plane(self.norm), "read_in_norm", train=train, dtype=dtype))
        if self.stem == "imagenet":
            h = nn.max_pool(h, (3, 3), strides=(2, 2), padding=((1, 1), (1, 1)))
        h = state(self, h)
        for i, blocks in enumerate(self.stages):
            features = self.width * 2**i * (4 if self.bottleneck else 1)
            options = (self.bottleneck, self.activation, self.norm, self.zero_init_branch, dtype)
            h = Stage(blocks * self.depth, features, 2 if i else 1, options, self.scan, self.remat, name=f"stage_{i}")(
                h, factors.branch, train
            )
        sow_hidden(self, h)
        return Readout(self.outputs, True, dtype, name="readout")(h.mean(axis=(1, 2)), factors)


def resnet(layers: int, width_multiplier: float = 1, **attributes: Any) -> ResNet:
    """A ResNet of a standard number of layers.

    Args:
      layers: 18, 34, 50 (ImageNet), or 6n + 2 (CIFAR: 20, 32, 44, 56, 110, ...).
      width_multiplier: the width over the standard one, 64 channels for ImageNet and 16 for CIFAR.
      attributes: other attributes of `ResNet`.

    Returns:
      The Linen module.

    Raises ValueError for another number of layers.
    """
    if layers in IMAGENET:
        depth, stages, bottleneck = IMAGENET[layers]
        channels, shape = 64, {"depth": depth, "stages": stages, "bottleneck": bottleneck, "stem": "imagenet"}
    elif layers >= 8 and layers % 6 == 2:
        channels, shape = 16, {"depth": (layers - 2) // 6, "stages": (1, 1, 1), "stem": "cifar"}
    else:
        raise ValueError(f"no ResNet of {layers} layers: give {', '.join(map(str, IMAGENET))}, or 6n + 2")
    return ResNet(**{"width": round(channels * width_multiplier), **shape, **attributes})
