"""A GPT in Flax Linen, as its users write it: pre-LN, blocks scanned, no word of width scaling."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

VOCABULARY, HEADS = 256, 4


class Block(nn.Module):
    width: int

    @nn.compact
    def __call__(self, h: jax.Array, _: None) -> tuple[jax.Array, None]:
        mask = nn.make_causal_mask(jnp.ones(h.shape[:2]))
        h = h + nn.MultiHeadDotProductAttention(HEADS, name="attention")(nn.LayerNorm(name="norm_1")(h), mask=mask)
        y = nn.gelu(nn.Dense(4 * self.width, name="up")(nn.LayerNorm(name="norm_2")(h)))
        return h + nn.Dense(self.width, name="down")(y), None


class GPT(nn.Module):
    width: int
    depth: int

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        h = nn.Embed(VOCABULARY, self.width, name="tokens")(tokens)
        h = h + nn.Embed(tokens.shape[1], self.width, name="positions")(jnp.arange(tokens.shape[1]))
        stack = nn.scan(Block, variable_axes={"params": 0}, split_rngs={"params": True}, length=self.depth)
        h, _ = stack(self.width, name="blocks")(h, None)
        return nn.Dense(VOCABULARY, use_bias=False, name="head")(nn.LayerNorm(name="norm")(h))
