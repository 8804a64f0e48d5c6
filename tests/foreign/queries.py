"""Attentions beside those of tokens: learned queries, positions of their own, heads of several sizes."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from tests.foreign.table import TOKENS, Foreign, blocks, ones, trunk

HEADS = 4
SEQUENCE = ones(2, 6, 5)
QUERIES = ("*/query/*", "*/key/*", "*_[qkr]/*", "*_bias", "queries")


def attention(width, name):
    return nn.MultiHeadDotProductAttention(HEADS, qkv_features=width, name=name)


def mlp(h, width, name):
    return nn.Dense(width, name=f"{name}_down")(nn.gelu(nn.Dense(2 * width, name=f"{name}_up")(h)))


class AttentionPooling(nn.Module):
    """As SigLIP's: one learned query looks at all tokens."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, x):
        h = nn.Dense(self.width, name="embed")(x)
        for i in range(self.depth):
            h = h + mlp(nn.LayerNorm(name=f"block_{i}_norm")(h), self.width, f"block_{i}")
        probe = self.param("probe", nn.initializers.normal(1.0), (1, 1, self.width))
        y = attention(self.width, "pool")(jnp.tile(probe, (len(h), 1, 1)), nn.LayerNorm(name="norm")(h))
        y = y + mlp(nn.LayerNorm(name="pool_norm")(y), self.width, "pool")
        return nn.Dense(10, name="head")(y[:, 0])


class CrossCovariance(nn.Module):
    """As XCiT's: channels attend to channels, so that the weights of the values add up to 1 over channels."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, x):
        h = nn.Dense(self.width, name="embed")(x)
        for i in range(self.depth):
            y = nn.LayerNorm(name=f"block_{i}_norm")(h)
            q, k, v = (nn.DenseGeneral((HEADS, self.width // HEADS), name=f"block_{i}_{name}")(y) for name in "qkv")
            q, k = (z / jnp.linalg.norm(z, axis=1, keepdims=True) for z in (q, k))
            temperature = self.param(f"block_{i}_temperature", nn.initializers.ones, (HEADS, 1, 1))
            weights = nn.softmax(temperature * jnp.einsum("bnhd,bnhe->bhde", q, k))
            y = jnp.einsum("bhde,bnhe->bnhd", weights, v)
            h = h + nn.DenseGeneral(self.width, axis=(-2, -1), name=f"block_{i}_out")(y)
        return nn.Dense(10, name="head")(nn.LayerNorm(name="norm")(h).mean(1))


class DETR(nn.Module):
    """Norms after the sum. The decoder's stream starts at 0, and learned queries are added to queries and keys."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, x):
        memory = nn.Dense(self.width, name="embed")(x)
        places = self.param("places", nn.initializers.normal(1.0), (x.shape[1], self.width))
        for i in range(self.depth):
            y = memory + places
            memory = nn.LayerNorm(name=f"enc_{i}_norm1")(memory + attention(self.width, f"enc_{i}_self")(y, y, memory))
            memory = nn.LayerNorm(name=f"enc_{i}_norm2")(memory + mlp(memory, self.width, f"enc_{i}"))
        queries = self.param("queries", nn.initializers.normal(1.0), (3, self.width))
        queries = jnp.broadcast_to(queries, (len(x), *queries.shape))
        h = jnp.zeros_like(queries)
        for i in range(self.depth):
            y = h + queries
            h = nn.LayerNorm(name=f"dec_{i}_norm1")(h + attention(self.width, f"dec_{i}_self")(y, y, h))
            cross = attention(self.width, f"dec_{i}_cross")(h + queries, memory + places, memory)
            h = nn.LayerNorm(name=f"dec_{i}_norm2")(h + cross)
            h = nn.LayerNorm(name=f"dec_{i}_norm3")(h + mlp(h, self.width, f"dec_{i}"))
        return nn.Dense(7, name="classes")(h)


class Resampler(nn.Module):
    """As in Flamingo and the Q-Former: latents that attend to each other first, then to the tokens."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, x):
        tokens = nn.LayerNorm(name="tokens_norm")(nn.Dense(self.width, name="embed")(x))
        latents = self.param("latents", nn.initializers.normal(1.0), (3, self.width))
        h = jnp.broadcast_to(latents, (len(x), *latents.shape))
        for i in range(self.depth):
            h = h + attention(self.width, f"block_{i}_self")(nn.LayerNorm(name=f"block_{i}_norm1")(h))
            h = h + attention(self.width, f"block_{i}_cross")(nn.LayerNorm(name=f"block_{i}_norm2")(h), tokens)
            h = h + mlp(nn.LayerNorm(name=f"block_{i}_norm3")(h), self.width, f"block_{i}")
        return nn.Dense(10, name="head")(nn.LayerNorm(name="norm")(h).mean(1))


class SetTransformer(nn.Module):
    """Induced sets: in each block learned points read the set, with a skip of their own, and the set reads them."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, x):
        h = nn.Dense(self.width, name="embed")(x)
        for i in range(self.depth):
            y = nn.LayerNorm(name=f"block_{i}_norm")(h)
            points = self.param(f"block_{i}_points", nn.initializers.normal(1.0), (1, 3, self.width))
            points = jnp.tile(points, (len(h), 1, 1))
            induced = points + attention(self.width, f"block_{i}_read")(points, y)
            induced = induced + mlp(nn.LayerNorm(name=f"block_{i}_inner1")(induced), self.width, f"block_{i}_inner")
            h = h + attention(self.width, f"block_{i}_write")(y, nn.LayerNorm(name=f"block_{i}_inner2")(induced))
        return nn.Dense(10, name="head")(nn.LayerNorm(name="norm")(h).mean(1))


class MaskedAutoencoder(nn.Module):
    """The decoder has half of the encoder's width and as many heads, so that its heads are smaller."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, x):
        def stack(h, width, name):
            for i in range(self.depth):
                h = h + attention(width, f"{name}_{i}_self")(nn.LayerNorm(name=f"{name}_{i}_norm1")(h))
                h = h + mlp(nn.LayerNorm(name=f"{name}_{i}_norm2")(h), width, f"{name}_{i}")
            return nn.LayerNorm(name=f"{name}_norm")(h)

        (batch, length, channels), narrow, normal = x.shape, self.width // 2, nn.initializers.normal(1.0)
        h = nn.Dense(self.width, name="embed")(x) + self.param("places", normal, (length, self.width))
        seen = nn.Dense(narrow, name="narrowed")(stack(h[:, ::2], self.width, "enc"))
        masked = jnp.tile(self.param("mask", normal, (narrow,)), (batch, length // 2, 1))
        h = jnp.stack([seen, masked], 2).reshape(batch, length, narrow)
        h = h + self.param("decoder_places", normal, (length, narrow))
        return nn.Dense(channels, name="pixels")(stack(h, narrow, "dec"))


class MultiQuery(nn.Module):
    """As in Falcon and StarCoder: one kernel makes queries of many heads, and keys and values of one. The size of the
    heads is fixed, so that the parts of the kernel for keys and values do not grow."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, tokens):
        width, size = self.width, 8
        h = nn.Embed(20, width, embedding_init=nn.initializers.normal(1.0), name="embed")(tokens)
        for i in range(self.depth):
            qkv = nn.Dense(width + 2 * size, name=f"block_{i}_qkv")(nn.LayerNorm(name=f"block_{i}_norm1")(h))
            q, k, v = jnp.split(qkv, [width, width + size], axis=-1)
            q = q.reshape(*q.shape[:-1], width // size, size)
            y = jnp.einsum("bhqk,bkd->bqhd", jax.nn.softmax(jnp.einsum("bqhd,bkd->bhqk", q, k) / size**0.5), v)
            h = h + nn.Dense(width, name=f"block_{i}_o")(y.reshape(h.shape))
            h = h + mlp(nn.LayerNorm(name=f"block_{i}_norm2")(h), width, f"block_{i}")
        return nn.Dense(20, name="head")(nn.LayerNorm(name="norm")(h))


class PositionNetwork(nn.Module):
    """All blocks add to their logits what a network makes of relative positions (lucidrains/x-transformers)."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, x):
        h, length, size = nn.Dense(self.width, name="embed")(x), x.shape[1], self.width // HEADS
        distances = (jnp.arange(length)[:, None] - jnp.arange(length)).astype(jnp.float32)[..., None]
        bias = nn.Dense(HEADS, name="bias_out")(nn.silu(nn.Dense(self.width // 4, name="bias_in")(distances)))
        for i in range(self.depth):
            y = nn.LayerNorm(name=f"block_{i}_norm")(h)
            q, k, v = (nn.DenseGeneral((HEADS, size), name=f"block_{i}_{name}")(y) for name in "qkv")
            logits = jnp.einsum("bqhd,bkhd->bhqk", q, k) / size**0.5 + bias.transpose(2, 0, 1)
            y = jnp.einsum("bhqk,bkhd->bqhd", nn.softmax(logits), v)
            h = h + nn.DenseGeneral(self.width, axis=(-2, -1), name=f"block_{i}_out")(y)
        return nn.Dense(10, name="head")(nn.LayerNorm(name="norm")(h).mean(1))


class TransformerXL(nn.Module):
    """Two products in each attention: of queries and keys, and of queries and relative positions."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, tokens):
        width, length, size = self.width, tokens.shape[1], self.width // HEADS
        h = nn.Embed(20, width, embedding_init=nn.initializers.normal(1.0), name="embed")(tokens)
        angles = jnp.arange(length)[:, None] / 10_000 ** (jnp.arange(width // 2) * 2 / width)
        positions = jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], -1)
        bias = nn.initializers.normal(1.0)
        content, place = (self.param(f"{name}_bias", bias, (HEADS, size)) for name in ("content", "place"))
        for i in range(self.depth):
            y = nn.LayerNorm(name=f"block_{i}_norm1")(h)
            q, k, v = (nn.Dense(width, use_bias=False, name=f"block_{i}_{name}")(y) for name in "qkv")
            r = nn.Dense(width, use_bias=False, name=f"block_{i}_r")(positions)
            q, k, v, r = (z.reshape(*z.shape[:-1], HEADS, size) for z in (q, k, v, r))
            logits = shifted(jnp.einsum("bqhd,rhd->bhqr", q + place, r))
            logits = logits + jnp.einsum("bqhd,bkhd->bhqk", q + content, k)
            causal = jnp.tril(jnp.ones((length, length), bool))
            weights = jax.nn.softmax(jnp.where(causal, logits / size**0.5, -1e9))
            y = jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(h.shape)
            h = h + nn.Dense(width, use_bias=False, name=f"block_{i}_o")(y)
            h = h + mlp(nn.LayerNorm(name=f"block_{i}_norm2")(h), width, f"block_{i}")
        return nn.Dense(20, use_bias=False, name="head")(nn.LayerNorm(name="norm")(h))


def shifted(logits):
    """From the distance to the query to the position of the key."""
    length = logits.shape[-1]
    padded = jnp.pad(logits, ((0, 0), (0, 0), (0, 0), (1, 0)))
    return padded.reshape(*logits.shape[:2], length + 1, length)[:, :, 1:]


class GatedTransformer(nn.Module):
    """GTrXL: a gated recurrent unit in the place of each residual sum."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, x):
        h = nn.Dense(self.width, name="embed")(x)
        for i in range(self.depth):
            y = nn.relu(mlp(nn.LayerNorm(name=f"block_{i}_norm")(h), self.width, f"block_{i}"))

            def both(gate, y, h, i=i):
                left = nn.Dense(self.width, name=f"block_{i}_w{gate}")(y)
                return left + nn.Dense(self.width, use_bias=False, name=f"block_{i}_u{gate}")(h)

            r, z = nn.sigmoid(both("r", y, h)), nn.sigmoid(both("z", y, h) - 2)
            h = (1 - z) * h + z * jnp.tanh(both("g", y, r * h))
        return nn.Dense(10, name="head")(h.mean(1))


HEAD = trunk(embed="input", norm="vector", head="readout")
MODELS = {
    "attention_pooling": Foreign(
        AttentionPooling, (SEQUENCE,),
        HEAD | blocks("block_*") | trunk(pool_norm="vector", pool_up="hidden", pool_down="hidden")
        | {"pool/*/kernel": "hidden", "pool/*/bias": "vector", "probe": "vector"},
        queries=(*QUERIES, "probe"),
    ),
    "cross_covariance": Foreign(
        CrossCovariance, (SEQUENCE,), blocks("block_*") | trunk(embed="input", norm="vector", head="readout")
        | {"block_*_temperature": "branch/scalar"},
    ),
    "detr": Foreign(
        DETR, (SEQUENCE,),
        blocks("enc_*", "dec_*") | trunk(embed="input", classes="readout")
        | {"places": "input", "queries": "input", "*_norm?/*": "stream/vector"},
    ),
    "masked_autoencoder": Foreign(
        MaskedAutoencoder, (SEQUENCE,),
        blocks("enc_*", "dec_*") | trunk(embed="input", narrowed="hidden", pixels="readout")
        | {"enc_norm/*": "vector", "dec_norm/*": "vector", "*places": "input", "mask": "vector"},
        queries=(*QUERIES, "*_norm1/*"),
    ),
    "multi_query": Foreign(
        MultiQuery, (TOKENS,), HEAD | blocks("block_*"), queries=("*_qkv/*", "*_norm1/*")
    ),
    "resampler": Foreign(
        Resampler, (SEQUENCE,), HEAD | blocks("block_*") | {"latents": "input", "tokens_norm/*": "vector"},
        queries=(*QUERIES, "*_norm2/*"),
    ),
    "set_transformer": Foreign(
        SetTransformer, (SEQUENCE,), HEAD | blocks("block_*") | {"block_*_points": "branch/input"},
        queries=(*QUERIES, "*_points"),
    ),
    "position_network": Foreign(
        PositionNetwork, (SEQUENCE,), blocks("block_*")
        | trunk(embed="input", norm="vector", head="readout", bias_in="input", bias_out="output")
        | {"bias_out/bias": "fixed"},
    ),
    "transformer_xl": Foreign(
        TransformerXL, (TOKENS,), HEAD | blocks("block_*") | {"*_bias": "input"}, queries=QUERIES
    ),
    "gated_transformer": Foreign(GatedTransformer, (SEQUENCE,), error=r"multiply the branch in the model, skip \+"),
}  # fmt: skip
