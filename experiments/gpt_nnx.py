"""The same GPT in Flax NNX, as its users write it: a list of blocks."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

VOCABULARY, HEADS, CONTEXT = 256, 4, 64


class Block(nnx.Module):
    def __init__(self, width: int, rngs: nnx.Rngs):
        self.norm_1, self.norm_2 = nnx.LayerNorm(width, rngs=rngs), nnx.LayerNorm(width, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(HEADS, width, decode=False, rngs=rngs)
        self.up, self.down = nnx.Linear(width, 4 * width, rngs=rngs), nnx.Linear(4 * width, width, rngs=rngs)

    def __call__(self, h: jax.Array) -> jax.Array:
        h = h + self.attention(self.norm_1(h), mask=nnx.make_causal_mask(jnp.ones(h.shape[:2])))
        return h + self.down(nnx.gelu(self.up(self.norm_2(h))))


class GPT(nnx.Module):
    def __init__(self, width: int, depth: int, rngs: nnx.Rngs):
        self.tokens, self.positions = (nnx.Embed(size, width, rngs=rngs) for size in (VOCABULARY, CONTEXT))
        self.blocks = nnx.List([Block(width, rngs) for _ in range(depth)])
        self.norm = nnx.LayerNorm(width, rngs=rngs)
        self.head = nnx.Linear(width, VOCABULARY, use_bias=False, rngs=rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        h = self.tokens(tokens) + self.positions(jnp.arange(tokens.shape[1]))
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h))
