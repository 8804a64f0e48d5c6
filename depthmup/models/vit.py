"""The Vision Transformer of the depthwise-transfer paper (A)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from depthmup.declare import SIZE, key
from depthmup.models.attention import TransformerBlock
from depthmup.models.convolution import conv_general_dilated
from depthmup.models.layers import DTYPES, ActivationName, Model, Readout, check_image, constant_init, fan_in_init, norm
from depthmup.models.stack import sow_hidden, stack, state
from depthmup.rules.parameterization import ForwardFactors


class ViT(Model):
    """Patch embedding, class token, learned positions, depth x (attention, MLP), norm, readout; paper A, Appendix A.3.

    Each block has two residual branches; each branch starts with a norm (pre-LN) or has none, and is multiplied by the
    branch factor. Attention is softmax(a q . k) v with the parameterization's attention factor a, so compute the
    factors by `forward_factors(..., head_dim=model.head_dim)`; base_head_dim 1 gives the paper's a = 1/head_dim.

    Without norm there is none before the readout either. The readout's bias is added after the output factor.
    `zero_init_branch` is of Appendix M.
    """

    even_scan: ClassVar[bool] = True

    width: int = key(64, "the size of a token, a multiple of heads", **SIZE)
    depth: int = key(4, "blocks of attention and MLP, each with two residual branches", **SIZE)
    activation: ActivationName = key("gelu", "")
    heads: int = key(4, "their number is fixed: the head size width / heads grows with width", low=1)
    patch: int = key(2, "side of a patch in pixels, which must divide the image's", low=1)
    mlp_ratio: int = key(4, "hidden units of the MLP over width", low=1)
    norm: Literal["layer", "none"] = key("layer", "before each branch and the readout")
    pool: Literal["cls", "mean"] = key("cls", "what the readout reads: the class token, or the mean of the tokens")
    use_bias: bool = key(True, "biases everywhere")
    zero_init_branch: bool = key(False, "branches start at 0")

    @property
    def head_dim(self) -> int:
        return self.width // self.heads

    @property
    def places(self) -> dict[str, str]:
        return {"*/attention/*/bias": "vector"} if self.use_bias else {}

    @property
    def ways(self) -> list[tuple[int, ...]]:
        return [(0, 2)] * (2 * self.depth)  # attention: values and output; MLP: in and out

    def check(self, shape: Sequence[int]) -> None:
        super().check(shape)
        space = check_image(shape)
        if self.width % self.heads:
            raise ValueError(f"heads must divide the width: {self.heads} heads, width {self.width}")
        if any(side % self.patch for side in space):
            raise ValueError(f"patch must divide the image: patches of {self.patch}x{self.patch}, image of {space}")

    @nn.compact
    def __call__(self, x: jax.Array, factors: ForwardFactors, train: bool = False) -> jax.Array:
        self.check(x.shape)
        dtype, side = DTYPES[self.dtype], (self.patch, self.patch)
        embed = nn.Conv(self.width, side, side, padding="VALID", use_bias=self.use_bias, kernel_init=fan_in_init(),
                        dtype=dtype, conv_general_dilated=conv_general_dilated, name="embed")  # fmt: skip
        h = embed(x).reshape(len(x), -1, self.width)
        constant = constant_init(1.0)
        if self.pool == "cls":
            token = self.param("class_token", constant, (1, 1, self.width)).astype(h.dtype)
            h = jnp.concatenate([jnp.broadcast_to(token, (len(x), 1, self.width)), h], axis=1)
        h = h + self.param("positions", constant, h.shape[1:]).astype(h.dtype)
        h = state(self, h)
        options = (self.heads, self.mlp_ratio, self.activation, self.norm, self.use_bias, self.zero_init_branch, dtype)
        # The MLP's last weights have variance 1/width, not 1/fan_in: the paper gives "all the other weights" the
        # standard deviation width^-1/2.
        h = stack(
            self,
            lambda name: TransformerBlock(*options, mlp_gain=self.mlp_ratio, name=name),
            lambda block, h: block(h, factors),
            h,
            self.depth,
        )
        sow_hidden(self, h)
        h = norm(h, self.norm, "final_norm", train=train, dtype=dtype)
        h = h[:, 0] if self.pool == "cls" else h.mean(axis=1)
        return Readout(self.outputs, self.use_bias, dtype, name="readout")(h, factors)
