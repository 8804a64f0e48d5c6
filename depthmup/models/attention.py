"""Blocks of transformers: attention with the parameterization's attention factor, and an MLP."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from depthmup.models.attend import attend
from depthmup.models.layers import ACTIVATIONS, ActivationName, NormName, fan_in_init, matrix_product, norm
from depthmup.models.stack import MIXED
from depthmup.rules.parameterization import ForwardFactors

ROTARY_BASE = 10_000.0


class Attention(nn.Module):
    """softmax(a q . k) v, per head, then the output projection; (batch, tokens, width) -> the same shape.

    kv_heads: heads of keys and of values, each shared by neighbouring queries; None: as many as queries. causal: a
    token sees itself and the tokens before it. rotary: queries and keys are `rotated`. kernels: as in `attend`.
    """

    heads: int
    use_bias: bool
    zero_init: bool
    dtype: Any
    causal: bool = False
    rotary: bool = False
    kv_heads: int | None = None
    kernels: bool = True

    @nn.compact
    def __call__(self, x: jax.Array, attention_factor: Any) -> jax.Array:
        width = x.shape[-1]

        def project(name: str, gain: float, heads: int) -> jax.Array:
            shape = (heads, width // self.heads)
            init = fan_in_init(gain)
            options = {"use_bias": self.use_bias, "kernel_init": init, "dtype": self.dtype}
            return nn.DenseGeneral(shape, **options, dot_general=matrix_product, name=name)(x)

        shared = self.kv_heads or self.heads
        q, k, v = project("query", 0, self.heads), project("key", 1, shared), project("value", 1, shared)
        if self.rotary:
            q, k = rotated(q), rotated(k)
        mixed = attend(q, k, v, attention_factor, causal=self.causal, kernels=self.kernels)
        mixed = checkpoint_name(mixed, MIXED)
        return nn.DenseGeneral(
            width,
            axis=(-2, -1),
            use_bias=self.use_bias,
            kernel_init=fan_in_init(0 if self.zero_init else 1),
            dtype=self.dtype,
            dot_general=matrix_product,
            name="out",
        )(mixed)


class TransformerBlock(nn.Module):
    """h <- h + b attention(norm(h));  h <- h + b mlp(norm(h)); (batch, tokens, width) -> the same shape.

    The MLP is W_2 phi(W_1 x), or W_2 (phi(W_g x) * W_1 x) if it is gated. mlp_gain: of W_2, which starts with variance
    mlp_gain / fan_in. zero_init: the last weights of both branches start at 0.
    """

    heads: int
    mlp_ratio: int
    activation: ActivationName
    norm: NormName
    use_bias: bool
    zero_init: bool
    dtype: Any
    mlp_gain: float = 1.0
    gated: bool = False
    causal: bool = False
    rotary: bool = False
    kv_heads: int | None = None
    kernels: bool = True

    @nn.compact
    def __call__(self, h: jax.Array, factors: ForwardFactors) -> jax.Array:
        width, b = h.shape[-1], jnp.asarray(factors.branch, h.dtype)
        x = norm(h, self.norm, "attention_norm", train=False, dtype=self.dtype)
        options = (self.heads, self.use_bias, self.zero_init, self.dtype, self.causal, self.rotary, self.kv_heads)
        h = h + b * Attention(*options, kernels=self.kernels, name="attention")(x, factors.attention)
        x = norm(h, self.norm, "mlp_norm", train=False, dtype=self.dtype)

        def dense(x: jax.Array, features: int, name: str, gain: float = 1) -> jax.Array:
            options = {"use_bias": self.use_bias, "kernel_init": fan_in_init(gain), "dtype": self.dtype}
            return nn.Dense(features, **options, dot_general=matrix_product, name=name)(x)

        phi, hidden = ACTIVATIONS[self.activation], self.mlp_ratio * width
        z = dense(x, hidden, "mlp_in")
        z = phi(dense(x, hidden, "mlp_gate")) * z if self.gated else phi(z)
        return h + b * dense(z, width, "mlp_out", 0 if self.zero_init else self.mlp_gain)


def rotated(x: jax.Array) -> jax.Array:
    """Rotary position embedding (Su et al. 2021, eq. 34) of x, (batch, tokens, heads, head_dim); the same shape.

    At position t the pair (x_i, x_{i + d/2}) is turned by the angle t ROTARY_BASE^(-2i/d), d = head_dim: a product of
    two turned vectors depends on the difference of their positions.
    """
    half = x.shape[-1] // 2
    angles = jnp.arange(x.shape[1])[:, None] * ROTARY_BASE ** (-jnp.arange(half) / half)
    cos, sin = jnp.cos(angles)[:, None], jnp.sin(angles)[:, None]
    first, second = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, first * sin + second * cos], axis=-1).astype(x.dtype)
