"""Residual streams of Linen that branch, meet, carry more than activations, or have blocks of two kinds."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from tests.foreign.queries import mlp
from tests.foreign.table import Foreign, blocks, ones, trunk


class OuterSkip(nn.Module):
    """Norms after the sums of the blocks, and a skip around all blocks (Temporal Fusion Transformer)."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, x):
        h = first = nn.Dense(self.width, name="embed")(x)
        for i in range(self.depth):
            h = nn.LayerNorm(name=f"block_{i}_norm")(h + mlp(h, self.width, f"block_{i}"))
        h = nn.LayerNorm(name="norm")(first + nn.Dense(self.width, name="around")(h))
        return nn.Dense(3, name="head")(h)


class BatchRenorm(nn.Module):
    """After a warm-up the mean is corrected by running averages (CrossQ, as sbx-rl 0.28 has it)."""

    @nn.compact
    def __call__(self, x):
        mean, var = x.mean(0), x.var(0)
        old_mean = self.variable("batch_stats", "mean", jnp.zeros, x.shape[-1:])
        old_var = self.variable("batch_stats", "var", jnp.ones, x.shape[-1:])
        steps, r_max, d_max = (
            self.variable("batch_stats", name, lambda value=value: value)
            for name, value in (("steps", 0), ("r_max", 3), ("d_max", 5))
        )
        old_std = jnp.sqrt(old_var.value + 1e-3)
        r = jnp.clip(jax.lax.stop_gradient(jnp.sqrt(var + 1e-3) / old_std), 1 / r_max.value, r_max.value)
        d = jnp.clip(jax.lax.stop_gradient((mean - old_mean.value) / old_std), -d_max.value, d_max.value)
        warm = jnp.float32(steps.value >= 1000)
        centre = warm * (mean - d * jnp.sqrt(var) / r) + (1 - warm) * mean
        spread = warm * var / r**2 + (1 - warm) * var
        if not self.is_initializing():
            old_mean.value = 0.99 * old_mean.value + 0.01 * mean
            old_var.value = 0.99 * old_var.value + 0.01 * var
            steps.value += 1
        scale = self.param("scale", nn.initializers.ones, x.shape[-1:])
        return (x - centre) * jax.lax.rsqrt(spread + 1e-3) * scale + self.param("bias", nn.zeros_init(), x.shape[-1:])


class Renormalized(nn.Module):
    """SimBa's critic with BatchRenorm (CrossQ)."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, x):
        h = nn.Dense(self.width, name="embed")(BatchRenorm(name="first")(x))
        for i in range(self.depth):
            h = h + mlp(BatchRenorm(name=f"block_{i}_norm")(h), self.width, f"block_{i}")
        return nn.Dense(1, name="head")(BatchRenorm(name="norm")(h))


class ParallelBlocks(nn.Module):
    """The mean of two stacks of blocks that begin with one state (HiFi-GAN)."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, x):
        h, ends = nn.Dense(self.width, name="embed")(x), []
        for stack in "ab":
            y = h
            for i in range(self.depth):
                y = y + mlp(nn.LayerNorm(name=f"stack_{stack}_{i}_norm")(y), self.width, f"stack_{stack}_{i}")
            ends.append(y)
        return nn.Dense(3, name="head")(nn.LayerNorm(name="norm")(sum(ends) / 2))


class CarriedScores(nn.Module):
    """Attention logits that each layer adds to those of the layer before, norms after the sum, and outputs in the units
    of the inputs (RealFormer, RevIN, PatchTST)."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, x):
        mean, std = x.mean(1, keepdims=True), jnp.sqrt(x.var(1, keepdims=True) + 1e-5)
        gain = self.param("gain", nn.initializers.ones, (3,))
        shift = self.param("shift", nn.initializers.zeros, (3,))
        h, scores = nn.Dense(self.width, name="embed")((x - mean) / std * gain + shift), 0.0
        for i in range(self.depth):
            q, k, v = (nn.DenseGeneral((4, self.width // 4), name=f"block_{i}_{name}")(h) for name in "qkv")
            scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * (self.width // 4) ** -0.5 + scores
            y = jnp.einsum("bhqk,bkhd->bqhd", nn.softmax(scores), v)
            y = nn.DenseGeneral(self.width, axis=(-2, -1), name=f"block_{i}_out")(y)
            h = nn.LayerNorm(name=f"block_{i}_norm1")(h + y)
            h = nn.LayerNorm(name=f"block_{i}_norm2")(h + mlp(h, self.width, f"block_{i}"))
        return (nn.Dense(3, name="head")(h) - shift) / gain * std + mean


class DenseBeforeExperts(nn.Module):
    """The first block is dense, all others are mixtures of experts beside a shared one (DeepSeek-V3)."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, x):
        h = nn.Dense(self.width, name="embed")(x)
        for i in range(self.depth):
            y = nn.RMSNorm(name=f"block_{i}_norm")(h)
            if not i:
                h = h + mlp(y, self.width, "block_0_dense")
                continue
            gates = nn.sigmoid(nn.Dense(4, use_bias=False, name=f"block_{i}_router")(y))
            init = nn.initializers.lecun_normal(batch_axis=0)
            up = self.param(f"block_{i}_experts_up", init, (4, self.width, self.width))
            down = self.param(f"block_{i}_experts_down", init, (4, self.width, self.width))
            routed = jnp.einsum("...ef,efd,...e->...d", nn.silu(jnp.einsum("...d,edf->...ef", y, up)), down, gates)
            h = h + (routed + mlp(y, self.width, f"block_{i}_shared"))
        return nn.Dense(3, name="head")(nn.RMSNorm(name="norm")(h))


class FixedStream(nn.Module):
    """The stream has the size of the data; the width is that inside the branches (TSMixer)."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, x):
        for i in range(self.depth):
            y = nn.Dense(self.width, name=f"block_{i}_up")(nn.LayerNorm(name=f"block_{i}_norm")(x))
            x = x + nn.Dense(5, name=f"block_{i}_down")(nn.relu(y))
        return nn.Dense(3, name="head")(x)


class HyperConnections(nn.Module):
    """Two streams, which every block reads, mixes and writes by numbers, or by what it makes of both."""

    width: int
    depth: int
    dynamic: bool = False

    @nn.compact
    def __call__(self, x):
        h = nn.DenseGeneral((2, self.width), name="embed")(x)
        for i in range(self.depth):
            mix = self.param(f"block_{i}_mix", lambda _: jnp.eye(2))
            read = self.param(f"block_{i}_read", lambda _, i=i: jnp.eye(2)[i % 2])
            write = self.param(f"block_{i}_write", nn.initializers.ones, (2,))
            if self.dynamic:
                seen = nn.LayerNorm(name=f"block_{i}_seen")(h)
                mixed, read_at, written = (
                    0.1 * nn.tanh(nn.Dense(size, use_bias=False, name=f"block_{i}_{name}")(seen))
                    for name, size in {"mixed": 2, "read_at": 1, "written": 1}.items()
                )
                mix, read, write = mix + mixed, read + read_at[..., 0], write + written[..., 0]
            y = nn.LayerNorm(name=f"block_{i}_norm")(jnp.einsum("...n,...nd->...d", read, h))
            y = mlp(y, self.width, f"block_{i}")
            h = jnp.einsum("...nm,...md->...nd", mix, h) + write[..., None] * y[..., None, :]
        return nn.Dense(3, name="head")(nn.LayerNorm(name="norm")(h.sum(-2)))


class NormalizedHead(nn.Module):
    """The head's weights have the norms that a parameter gives (HiFi-GAN)."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, x):
        h = nn.Dense(self.width, name="embed")(x)
        for i in range(self.depth):
            h = h + nn.Dense(self.width, name=f"block_{i}")(nn.relu(h))
        return nn.WeightNorm(nn.Dense(3, name="head"), name="norms")(h)


class SharedBlock(nn.Module):
    """One block at all depths, whose contributions are divided by the depth (ALBERT, Universal Transformer), or by a
    power of it."""

    width: int
    depth: int
    power: float = 1.0

    @nn.compact
    def __call__(self, x):
        h, norm = nn.Dense(self.width, name="embed")(x), nn.LayerNorm(name="norm")
        up, down = nn.Dense(2 * self.width, name="up"), nn.Dense(self.width, name="down")
        for _ in range(self.depth):
            h = h + down(nn.relu(up(norm(h)))) / self.depth**self.power
        return nn.Dense(3, name="head")(h)


class SharedPostNorm(nn.Module):
    """ALBERT, divided by the depth: one block of attention and MLP, with norms after its sums."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, x):
        h, parts = nn.Dense(self.width, name="embed")(x), (4, self.width // 4)
        q, k, v = (nn.DenseGeneral(parts, use_bias=False, name=name) for name in "qkv")
        out = nn.DenseGeneral(self.width, axis=(-2, -1), name="out")
        up, down = nn.Dense(2 * self.width, name="up"), nn.Dense(self.width, name="down")
        norms = nn.LayerNorm(name="norm1"), nn.LayerNorm(name="norm2")
        for _ in range(self.depth):
            scores = jnp.einsum("bqhd,bkhd->bhqk", q(h), k(h)) / np.sqrt(parts[1])
            h = norms[0](h + out(jnp.einsum("bhqk,bkhd->bqhd", nn.softmax(scores), v(h))) / self.depth)
            h = norms[1](h + down(nn.gelu(up(h))) / self.depth)
        return nn.Dense(3, name="head")(h)


class GraphDistances(nn.Module):
    """A bias of the attention logits that all layers share and that is looked up from the input (Graphormer)."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, x, distances):
        h = nn.Dense(self.width, name="embed")(x)
        bias = jnp.moveaxis(nn.Embed(6, 4, name="distances")(distances), -1, 1)
        for i in range(self.depth):
            y = nn.LayerNorm(name=f"block_{i}_norm1")(h)
            q, k, v = (nn.DenseGeneral((4, self.width // 4), name=f"block_{i}_{name}")(y) for name in "qkv")
            scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * (self.width // 4) ** -0.5 + bias
            y = jnp.einsum("bhqk,bkhd->bqhd", nn.softmax(scores), v)
            h = h + nn.DenseGeneral(self.width, axis=(-2, -1), name=f"block_{i}_out")(y)
            h = h + mlp(nn.LayerNorm(name=f"block_{i}_norm2")(h), self.width, f"block_{i}")
        return nn.Dense(3, name="head")(nn.LayerNorm(name="norm")(h))


class ALiBi(nn.Module):
    """BLOOM: each block adds the causal mask, and to that one table of positions, which the padding makes."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, x, padding):
        h, causal = nn.Dense(self.width, name="embed")(x), jnp.tril(jnp.ones((8, 8), bool))
        positions = (padding.cumsum(-1) - 1)[:, None, None, :]
        table = -(2.0 ** -jnp.arange(1, 5))[None, :, None, None] * positions
        for i in range(self.depth):
            y = nn.LayerNorm(name=f"block_{i}_norm1")(h)
            q, k, v = (nn.DenseGeneral((4, self.width // 4), name=f"block_{i}_{name}")(y) for name in "qkv")
            bias = jnp.where((padding[:, None, None, :] > 0) & causal, 0.0, -1e30) + table
            scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * (self.width // 4) ** -0.5 + bias
            y = jnp.einsum("bhqk,bkhd->bqhd", nn.softmax(scores), v)
            h = h + nn.DenseGeneral(self.width, axis=(-2, -1), name=f"block_{i}_out")(y)
            h = h + mlp(nn.LayerNorm(name=f"block_{i}_norm2")(h), self.width, f"block_{i}")
        return nn.Dense(3, name="head")(nn.LayerNorm(name="norm")(h))


class PickedTokens(nn.Module):
    """Blocks that act on half of the tokens alone (mixture of depths)."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, x):
        h = nn.Dense(self.width, name="embed")(x)
        for i in range(self.depth):
            router = nn.Dense(1, use_bias=False, name=f"block_{i}_router")(h)[..., 0]
            weights, picked = jax.lax.top_k(router, 3)
            y = jnp.take_along_axis(h, picked[..., None], axis=1)
            y = nn.sigmoid(weights)[..., None] * mlp(nn.RMSNorm(name=f"block_{i}_norm")(y), self.width, f"block_{i}")
            h = jax.vmap(lambda h, i, y: h.at[i].add(y))(h, picked, y)
        return nn.Dense(3, name="head")(nn.RMSNorm(name="norm")(h))


class LayerNormScaling(nn.Module):
    """Norms divided by the root of the block's number (Sun et al. 2025), as that of a network of `base` blocks."""

    width: int
    depth: int
    base: int | None = 2

    @nn.compact
    def __call__(self, x):
        h = nn.Dense(self.width, name="embed")(x)
        for i in range(self.depth):
            y = nn.LayerNorm(name=f"block_{i}_norm")(h) * np.sqrt(self.depth / (self.base or self.depth) / (i + 1))
            h = h + nn.Dense(self.width, name=f"block_{i}_down")(
                nn.gelu(nn.Dense(2 * self.width, name=f"block_{i}_up")(y))
            )
        return nn.Dense(3, use_bias=False, name="head")(nn.LayerNorm(name="norm")(h))


class ValueResidual(nn.Module):
    """The values of the first block are added to those of all others (ResFormer); learned: times numbers of each block,
    as in modded-nanogpt."""

    width: int
    depth: int
    learned: bool = False

    @nn.compact
    def __call__(self, x):
        h, first = nn.Dense(self.width, name="embed")(x), None
        for i in range(self.depth):
            y, heads = nn.RMSNorm(name=f"block_{i}_norm")(h), (4, self.width // 4)
            q, k, v = (nn.DenseGeneral(heads, use_bias=False, name=f"block_{i}_{name}")(y) for name in "qkv")
            first = v if first is None else first
            if self.learned:
                numbers = self.param(f"block_{i}_lambdas", nn.initializers.constant(0.5), (2,))
                v = numbers[0] * v + numbers[1] * first
            elif i:
                v = 0.5 * v + 0.5 * first
            y = nn.dot_product_attention(q, k, v).reshape(h.shape)
            h = h + nn.Dense(self.width, use_bias=False, name=f"block_{i}_out")(y)
            h = h + mlp(h, self.width, f"block_{i}")
        return nn.Dense(3, use_bias=False, name="head")(nn.RMSNorm(name="norm")(h))


ENDS = trunk(embed="input", head="readout")
# What makes the values that all blocks share.
VALUES = {"block_0_v/kernel": "hidden", "block_0_norm/scale": "vector"}
MODELS = {
    "layer_norm_scaling": Foreign(LayerNormScaling, (ones(4, 5),), blocks("block_*") | ENDS | trunk(norm="vector")),
    "value_residual": Foreign(
        ValueResidual, (ones(2, 6, 5),), blocks("block_*") | VALUES | ENDS | trunk(norm="vector"),
        queries=("*_q/*", "*_k/*", "*_norm/scale"),
    ),
    "value_residual_learned": Foreign(
        functools.partial(ValueResidual, learned=True), (ones(2, 6, 5),),
        blocks("block_*") | {"block_*_lambdas": "branch/scalar"} | VALUES | ENDS | trunk(norm="vector"),
        # The gradient of a number that multiplies values sums products of random signs over the width, as that of
        # hyper-connections' numbers does: the first step falls as width^-1/2.
        queries=("*_q/*", "*_k/*", "*_norm/scale", "*_lambdas"),
    ),
    "hyper_connections": Foreign(
        HyperConnections, (ones(4, 5),),
        blocks("block_*") | {"block_*_mix": "stream/fixed", "block_*_read": "branch/fixed"}
        | {"block_*_write": "branch/scalar"} | ENDS | trunk(norm="vector"),
        queries=("*_mix", "*_read", "*_write"),
    ),
    "hyper_connections_dynamic": Foreign(
        functools.partial(HyperConnections, dynamic=True), (ones(4, 5),),
        blocks("block_*") | {"block_*_mix": "stream/fixed", "block_*_mixed/kernel": "stream/output"}
        | {"block_*_seen/*": "stream/vector", "block_*_read": "branch/scalar", "block_*_write": "branch/scalar"}
        | {"block_*_read_at/kernel": "branch/output", "block_*_written/kernel": "branch/output"}
        | ENDS | trunk(norm="vector"),
        queries=("*_mix", "*_read", "*_write", "*_mixed/*", "*_read_at/*", "*_written/*"),
    ),
    "outer_skip": Foreign(
        OuterSkip, (ones(4, 5),),
        blocks("block_*") | {"block_*_norm/*": "stream/vector"} | ENDS | trunk(around="hidden", norm="vector"),
    ),
    "batch_renorm": Foreign(
        Renormalized, (ones(4, 5),), blocks("block_*") | ENDS | trunk(norm="vector") | {"first/*": "fixed"}
    ),
    "parallel_blocks": Foreign(ParallelBlocks, (ones(4, 5),), blocks("stack_*") | ENDS | trunk(norm="vector")),
    "carried_scores": Foreign(
        CarriedScores, (ones(2, 8, 3),),
        blocks("block_*") | {"block_*_norm?/*": "stream/vector"} | ENDS | {"gain": "fixed", "shift": "fixed"},
    ),
    "dense_before_experts": Foreign(
        DenseBeforeExperts, (ones(4, 5),),
        blocks("block_*") | {"block_*_experts_*": "branch/hidden", "block_*_router/kernel": "branch/output"}
        | ENDS | trunk(norm="vector"),
    ),
    "normalized_head": Foreign(
        NormalizedHead, (ones(4, 5),),
        blocks("block_*") | ENDS | {"head/kernel": "input", "norms/*": "fixed"},
    ),
    "fixed_stream": Foreign(
        FixedStream, (ones(4, 5),),
        {"block_*_up/*": "branch/vector", "block_*_up/kernel": "branch/input", "block_*_down/kernel": "branch/output"}
        | {"block_*_down/bias": "branch/scalar", "block_*_norm/*": "branch/scalar", "head/kernel": "fixed"}
        | {"head/bias": "scalar"},
    ),
    "shared_block": Foreign(
        SharedBlock, (ones(4, 5),), ENDS | trunk(up="hidden", down="hidden", norm="vector"),
        {"residual": False},
    ),
    "shared_post_norm": Foreign(
        SharedPostNorm, (ones(2, 6, 5),),
        ENDS | trunk(q="hidden", k="hidden", v="hidden", out="hidden", up="hidden", down="hidden")
        | {"norm?/*": "stream/vector"},
        {"residual": False, "overrides": {"norm?/*": "stream"}}, queries=("q/*", "k/*"),
    ),
    "graph_distances": Foreign(
        GraphDistances, (ones(2, 8, 5), np.arange(128).reshape(2, 8, 8) % 6),
        blocks("block_*") | ENDS | {"distances/*": "fixed"} | trunk(norm="vector"),
        queries=("*_q/*", "*_k/*", "distances/*"),
    ),
    "alibi": Foreign(
        ALiBi, (ones(2, 8, 5), np.ones((2, 8), int)), blocks("block_*") | ENDS | trunk(norm="vector"),
        queries=("*_q/*", "*_k/*"),
    ),
    "picked_tokens": Foreign(
        PickedTokens, (ones(2, 6, 5),),
        blocks("block_*") | {"block_*_router/kernel": "branch/output"} | ENDS | trunk(norm="vector"),
        queries=("*_router/kernel",),
    ),
}  # fmt: skip
