"""A causal language model, the GPT of Radford et al. 2019 with options of later ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import flax.linen as nn
import jax

from depthmup.declare import SIZE, key
from depthmup.models.attention import TransformerBlock
from depthmup.models.layers import DTYPES, ActivationName, Model, Readout, constant_init, norm, scaled_logits
from depthmup.models.stack import REMAT_KEEPS, RematKeeps, sow_hidden, stack, state
from depthmup.rules.parameterization import ForwardFactors
from depthmup.rules.specs import PyTree

TIED_DEVIATION = 0.02  # initial, of a tied embedding and of positions beside it: GPT-2's, with which logits start small


class GPT(Model):
    """Embedding, positions, depth x (attention, MLP), norm, readout; pre-norm.

    Inputs are tokens, integers below `outputs`, (batch, context). The logits at a position, (batch, context, outputs),
    are those of the next token: attention is causal. With learned positions the context is that of the init.

    Each block has two residual branches, each multiplied by the branch factor. Attention is as in the ViT, queries that
    start at 0 included: compute the factors by `forward_factors(..., head_dim=model.head_dim)`.

    A call with readout=False returns the normalized states that the readout reads, (batch, context, width), of which
    `logits` makes the logits: of a part of the tokens, where those of all would not fit.

    Embedding and learned positions start as N(0, 1), tied ones as N(0, .02^2). A tied embedding is of the role "input",
    and its logits have the output factor too (docs/rules.md section 0). Readouts have no bias.
    """

    even_scan: ClassVar[bool] = True
    tokens: ClassVar[bool] = True

    width: int = key(64, "the size of a token's state, a multiple of heads", **SIZE)
    depth: int = key(4, "blocks of attention and MLP, each with two residual branches", **SIZE)
    activation: ActivationName = key("gelu", "")
    heads: int = key(4, "their number is fixed: the head size width / heads grows with width", low=1)
    kv_heads: int | None = key(
        None,
        "heads of keys and of values, which neighbouring queries share; unset: as many as queries",
        low=1,
        newer=True,
    )
    positions: Literal["learned", "rotary"] = key(
        "learned",
        "learned: a table added to the embedding; rotary: queries and keys are turned",
    )
    mlp: Literal["plain", "gated"] = key(
        "plain",
        "gated: phi(W_g x) * W_1 x in place of phi(W_1 x), GEGLU with gelu, SwiGLU with silu",
    )
    mlp_ratio: int = key(4, "hidden units of the MLP over width", low=1)
    norm: Literal["layer", "rms"] = key("layer", "before each branch and the readout")
    tied: bool = key(False, "the readout is the embedding")
    use_bias: bool = key(True, "biases in the blocks")
    zero_init_branch: bool = key(False, "branches start at 0")
    kernels: bool = key(
        True,
        "above 512 tokens attention runs in the accelerator's own kernel, which has gradients alone; False: in blocks",
        decides=False,
    )
    remat_keeps: RematKeeps = key(
        "nothing",
        "of the blocks that remat computes again; dots: all products with parameters, so that it repeats little",
        decides=False,
    )

    @property
    def head_dim(self) -> int:
        return self.width // self.heads

    @property
    def places(self) -> dict[str, str]:
        tied = {"embed/embedding": "input"} if self.tied else {}
        return tied | ({"*/attention/*/bias": "vector"} if self.use_bias else {})

    @property
    def ways(self) -> list[tuple[int, ...]]:
        return [(0, 2)] * (2 * self.depth)  # attention: values and output; MLP: in and out

    def check(self, shape: Sequence[int]) -> None:
        super().check(shape)
        if len(shape) != 2:
            raise ValueError(f"inputs must be tokens (batch, context), got {tuple(shape)}")
        if self.width % self.heads:
            raise ValueError(f"heads must divide the width: {self.heads} heads, width {self.width}")
        if self.kv_heads and self.heads % self.kv_heads:
            raise ValueError(f"kv_heads must divide the heads: {self.kv_heads} of {self.heads}")
        if self.positions == "rotary" and self.head_dim % 2:
            raise ValueError(f"rotary positions turn pairs: the head size width / heads = {self.head_dim} must be even")

    @nn.compact
    def __call__(self, x: jax.Array, factors: ForwardFactors, train: bool = False, readout: bool = True) -> jax.Array:
        self.check(x.shape)
        dtype, init = DTYPES[self.dtype], constant_init(TIED_DEVIATION if self.tied else 1.0)
        embed = nn.Embed(self.outputs, self.width, embedding_init=init, dtype=dtype, name="embed")
        h = embed(x)
        if self.positions == "learned":
            h = h + self.param("positions", init, h.shape[1:]).astype(h.dtype)
        h = state(self, h)
        options = (self.heads, self.mlp_ratio, self.activation, self.norm, self.use_bias, self.zero_init_branch, dtype)
        kinds: dict[str, Any] = {"gated": self.mlp == "gated", "causal": True, "rotary": self.positions == "rotary"}
        kinds |= {"kv_heads": self.kv_heads, "kernels": self.kernels}
        h = stack(
            self,
            lambda name: TransformerBlock(*options, **kinds, name=name),
            lambda block, h: block(h, factors),
            h,
            self.depth,
            keep=REMAT_KEEPS[self.remat_keeps],
        )
        sow_hidden(self, h)
        h = norm(h, self.norm, "final_norm", train=train, dtype=dtype)
        if not readout:
            return h
        if self.tied:
            return scaled_logits(h, embed.embedding.T, factors, dtype)
        return Readout(self.outputs, dtype=dtype, name="readout")(h, factors)

    @nn.nowrap
    def logits(self, params: PyTree, h: jax.Array, factors: ForwardFactors) -> jax.Array:
        """The readout of states h of a call with readout=False, (..., width) -> (..., outputs)."""
        kernel = params["embed"]["embedding"].T if self.tied else params["readout"]["kernel"]
        return scaled_logits(h, kernel, factors, DTYPES[self.dtype])
