"""Models whose blocks are all fed by something beside the stream: a time, a label, a source, edges."""

import functools
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from tests.foreign.table import TOKENS, Foreign, blocks, ones, trunk

VECTORS, TIMES, LABELS, IMAGES = ones(2, 5), ones(2), np.arange(2), ones(2, 4, 4, 3)
NODES, EDGES, SENDERS, RECEIVERS = ones(6, 5), ones(10, 4), np.arange(10) % 6, np.arange(10) * 3 % 6
QUERIES = ("*/query/*", "*/key/*")
BLOCKS = "block_*"


def waves(times):
    """Sinusoidal features of times: (batch,) -> (batch, 16)"""
    angles = times[:, None] * 2.0 ** jnp.arange(8)
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], -1)


class FiLM(nn.Module):
    width: int
    depth: int

    @nn.compact
    def __call__(self, x, times):
        w = self.width
        t = nn.silu(nn.Dense(w, name="t2")(nn.silu(nn.Dense(w, name="t1")(waves(times)))))
        h = nn.Dense(w, name="embed")(x)
        for i in range(self.depth):
            scale, shift = jnp.split(nn.Dense(2 * w, name=f"block_{i}_film")(t), 2, -1)
            y = nn.LayerNorm(name=f"block_{i}_norm")(h) * (1 + scale) + shift
            y = nn.gelu(nn.Dense(2 * w, name=f"block_{i}_up")(y))
            h = h + nn.Dense(w, name=f"block_{i}_down")(y)
        return nn.Dense(10, name="head")(nn.LayerNorm(name="norm")(h))


class DiTBlock(nn.Module):
    width: int
    zero: bool

    @nn.compact
    def __call__(self, h, c):
        init = nn.initializers.zeros if self.zero else nn.initializers.lecun_normal()
        modulation = nn.Dense(6 * self.width, kernel_init=init, name="modulation")(nn.silu(c))
        shift1, scale1, gate1, shift2, scale2, gate2 = jnp.split(modulation[:, None], 6, -1)
        norm = functools.partial(nn.LayerNorm, use_bias=False, use_scale=False)
        h = h + gate1 * nn.MultiHeadDotProductAttention(4, name="attn")(norm()(h) * (1 + scale1) + shift1)
        y = nn.gelu(nn.Dense(2 * self.width, name="up")(norm()(h) * (1 + scale2) + shift2))
        return h + gate2 * nn.Dense(self.width, name="down")(y)


class DiT(nn.Module):
    """adaLN-zero: the modulation of blocks starts at 0, and so does the readout."""

    width: int
    depth: int
    zero: bool = True

    @nn.compact
    def __call__(self, images, times, labels):
        w, init = self.width, nn.initializers.zeros if self.zero else nn.initializers.lecun_normal()
        h = nn.Conv(w, (2, 2), (2, 2), name="patch")(images).reshape(len(images), -1, w)
        h = h + self.param("positions", nn.initializers.normal(1.0), h.shape[1:])
        t = nn.Dense(w, name="t2")(nn.silu(nn.Dense(w, name="t1")(waves(times))))
        c = t + nn.Embed(10, w, embedding_init=nn.initializers.normal(1.0), name="label")(labels)
        for i in range(self.depth):
            h = DiTBlock(w, self.zero, name=f"block_{i}")(h, c)
        shift, scale = jnp.split(nn.Dense(2 * w, kernel_init=init, name="modulation")(nn.silu(c))[:, None], 2, -1)
        y = nn.LayerNorm(use_bias=False, use_scale=False)(h) * (1 + scale) + shift
        return nn.Dense(2 * 2 * 3, kernel_init=init, name="head")(y)


class ResBlock(nn.Module):
    channels: int

    @nn.compact
    def __call__(self, x, t):
        y = nn.Conv(self.channels, (3, 3), name="conv1")(nn.silu(nn.GroupNorm(4, name="norm1")(x)))
        y = y + nn.Dense(self.channels, name="time")(nn.silu(t))[:, None, None]
        y = nn.Conv(self.channels, (3, 3), name="conv2")(nn.silu(nn.GroupNorm(4, name="norm2")(y)))
        if x.shape[-1] != self.channels:
            x = nn.Conv(self.channels, (1, 1), name="c")(x)
        return x + y


class UNet(nn.Module):
    """Of DDPM: the decoder has depth + 1 blocks a level, each on the activations of one of the encoder."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, images, times):
        w = self.width
        t = nn.Dense(4 * w, name="t2")(nn.silu(nn.Dense(4 * w, name="t1")(waves(times))))
        h = nn.Conv(w, (3, 3), name="conv_in")(images)
        kept = [h]
        for level in range(2):
            if level:
                h = nn.Conv(w, (3, 3), (2, 2), name="down")(h)
                kept.append(h)
            for i in range(self.depth):
                h = ResBlock(w << level, name=f"down_{level}_{i}")(h, t)
                kept.append(h)
        h = ResBlock(2 * w, name="mid")(h, t)
        for level in (1, 0):
            for i in range(self.depth + 1):
                h = ResBlock(w << level, name=f"up_{level}_{i}")(jnp.concatenate([h, kept.pop()], -1), t)
            if level:
                h = nn.Conv(w, (3, 3), name="up")(h.repeat(2, 1).repeat(2, 2))
        return nn.Conv(3, (3, 3), name="conv_out")(nn.silu(nn.GroupNorm(4, name="norm_out")(h)))


class GNN(nn.Module):
    width: int
    depth: int

    @nn.compact
    def __call__(self, nodes, edges, senders, receivers):
        h, e = nn.Dense(self.width, name="node_in")(nodes), nn.relu(nn.Dense(self.width, name="edge_in")(edges))
        for i in range(self.depth):
            y = nn.LayerNorm(name=f"block_{i}_norm")(h)
            messages = nn.Dense(self.width, name=f"block_{i}_message")(jnp.concatenate([y[senders], e], -1))
            total = jax.ops.segment_sum(nn.relu(messages), receivers, len(nodes))
            h = h + nn.Dense(self.width, name=f"block_{i}_update")(total)
        return nn.Dense(3, name="head")(nn.LayerNorm(name="norm")(h).mean(0))


class AttentionBlock(nn.Module):
    """Of an encoder, or of a decoder with a source; norms before the layers, or after the sums (post-LN)."""

    post: bool = False

    @nn.compact
    def __call__(self, h, source=None):
        w = h.shape[-1]
        attention = functools.partial(nn.MultiHeadDotProductAttention, 4)
        mask = None if source is None else nn.make_causal_mask(h[..., 0])
        layers = {"attn": lambda x: attention(name="attn")(x, mask=mask)}
        if source is not None:
            layers["cross"] = lambda x: attention(name="cross")(x, source)
        layers["mlp"] = nn.Sequential([nn.Dense(2 * w, name="up"), nn.gelu, nn.Dense(w, name="down")])
        for name, layer in layers.items():
            norm = nn.LayerNorm(name=f"{name}_norm")
            h = norm(h + layer(h)) if self.post else h + layer(norm(h))
        return h


class EncoderDecoder(nn.Module):
    width: int
    depth: int
    post: bool = False

    @nn.compact
    def __call__(self, source, target):
        embed = functools.partial(nn.Embed, 20, self.width, embedding_init=nn.initializers.normal(1.0))
        e, h = embed(name="src_emb")(source), embed(name="tgt_emb")(target)
        for i in range(self.depth):
            e = AttentionBlock(self.post, name=f"enc_{i}")(e)
        e = e if self.post else nn.LayerNorm(name="enc_norm")(e)
        for i in range(self.depth):
            h = AttentionBlock(self.post, name=f"dec_{i}")(h, e)
        h = h if self.post else nn.LayerNorm(name="dec_norm")(h)
        return nn.Dense(20, use_bias=False, name="head")(h)


class T5Attention(nn.Module):
    """Without 1/sqrt(head_dim), which is in the initializer of the queries."""

    heads: int

    @nn.compact
    def __call__(self, x, bias):
        w = x.shape[-1]
        small, usual = (nn.initializers.variance_scaling(scale, "fan_in", "normal") for scale in (1 / 8, 1))
        q, k, v = (
            nn.DenseGeneral((self.heads, w // self.heads), use_bias=False, kernel_init=init, name=name)(x)
            for name, init in (("q", small), ("k", usual), ("v", usual))
        )
        if bias is None:
            positions = jnp.arange(x.shape[1])
            buckets = jnp.clip(positions - positions[:, None] + 4, 0, 7)
            bias = nn.Embed(8, self.heads, name="relative_attention_bias")(buckets).transpose(2, 0, 1)
        weights = nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k) + bias)
        y = jnp.einsum("bhqk,bkhd->bqhd", weights, v)
        return nn.DenseGeneral(w, (-2, -1), use_bias=False, name="o")(y), bias


class T5Block(nn.Module):
    heads: int

    @nn.compact
    def __call__(self, h, bias):
        y, bias = T5Attention(self.heads, name="attn")(nn.RMSNorm(name="norm1")(h), bias)
        h, w = h + y, h.shape[-1]
        y = nn.relu(nn.Dense(2 * w, use_bias=False, name="wi")(nn.RMSNorm(name="norm2")(h)))
        return h + nn.Dense(w, use_bias=False, name="wo")(y), bias


class T5Encoder(nn.Module):
    """All blocks share the relative position bias of the first, with the mask of padding."""

    width: int
    depth: int
    heads_grow: bool = False

    @nn.compact
    def __call__(self, tokens):
        h, bias = nn.Embed(20, self.width, embedding_init=nn.initializers.normal(1.0), name="shared")(tokens), None
        for i in range(self.depth):
            h, bias = T5Block(self.width // 8 if self.heads_grow else 4, name=f"block_{i}")(h, bias)
            bias = bias if i else bias + jnp.where(tokens < 0, -1e9, 0.0)[:, None, None]
        return nn.Dense(20, use_bias=False, name="lm_head")(nn.RMSNorm(name="final_layer_norm")(h))


FILM = blocks(BLOCKS) | trunk(t1="input", t2="hidden", embed="input", norm="vector", head="readout")
DIT = blocks(BLOCKS) | trunk(patch="input", t1="input", t2="hidden", modulation="hidden", head="readout")
DIT |= {"label/embedding": "input", "positions": "input"}
UNET = blocks("down_*_*", "up_*_*", "mid/*") | trunk(t1="input", t2="hidden", conv_in="input", norm_out="vector")
UNET |= trunk(**{"*_*_*/c": "hidden", "down": "hidden", "up": "hidden", "conv_out": "readout"})
ENCODER_DECODER = blocks("enc_[0-9]*", "dec_[0-9]*") | trunk(src_emb="input", tgt_emb="input", head="readout")
T5 = blocks(BLOCKS) | trunk(shared="input", final_layer_norm="vector", lm_head="readout")


def inside(h, y, fed):
    return h + (y + fed)


def beside(h, y, fed):
    return h + fed + y


def behind(h, y, fed):
    return (h + y) + fed


class Fed(nn.Module):
    """Each block adds something of its own that is not computed from the stream: what `feed` makes of (inputs, their
    embedding, the number of the block, the width)."""

    width: int
    depth: int
    add: Callable[..., jax.Array]
    feed: Callable[..., jax.Array]

    @nn.compact
    def __call__(self, x, times, labels):
        w = self.width
        t = nn.silu(nn.Dense(w, name="t1")(waves(times)))
        h = nn.Dense(w, name="embed")(x)
        for i in range(self.depth):
            y = nn.gelu(nn.Dense(2 * w, name=f"block_{i}_up")(nn.LayerNorm(name=f"block_{i}_norm")(h)))
            fed = self.feed((x, t, labels), w, f"block_{i}_fed")
            h = self.add(h, nn.Dense(w, name=f"block_{i}_down")(y), fed)
        return nn.Dense(10, name="head")(nn.LayerNorm(name="norm")(h))


def of_time(inputs, width, name):
    return nn.Dense(width, name=name)(inputs[1])


def of_input(inputs, width, name):
    return nn.Dense(width, name=name)(inputs[0])


def as_it_is(inputs, width, name):
    return jnp.pad(inputs[0], ((0, 0), (0, width - inputs[0].shape[-1])))


def of_label(inputs, width, name):
    return nn.Embed(10, width, embedding_init=nn.initializers.normal(1.0), name=name)(inputs[2])


FED = blocks(BLOCKS) | trunk(embed="input", norm="vector", head="readout")
FED_TIME = FED | trunk(t1="input")


MODELS = {
    **{
        f"time_{add.__name__}_the_branch": Foreign(
            functools.partial(Fed, add=add, feed=of_time), (VECTORS, TIMES, LABELS), FED_TIME
        )
        for add in (inside, beside, behind)
    },
    "input_in_every_block": Foreign(
        functools.partial(Fed, add=beside, feed=of_input), (VECTORS, TIMES, LABELS),
        FED_TIME | {"block_*_fed/kernel": "branch/input"},
    ),
    "input_itself_in_every_block": Foreign(
        functools.partial(Fed, add=beside, feed=as_it_is), (VECTORS, TIMES, LABELS), FED_TIME
    ),
    "embedding_in_every_block": Foreign(
        functools.partial(Fed, add=behind, feed=of_label), (VECTORS, TIMES, LABELS),
        FED_TIME | {"block_*_fed/embedding": "branch/input"},
    ),
    "film": Foreign(FiLM, (VECTORS, TIMES), FILM),
    "dit_adaln_zero": Foreign(DiT, (IMAGES, TIMES, LABELS), DIT, queries=QUERIES),
    "dit_modulated": Foreign(functools.partial(DiT, zero=False), (IMAGES, TIMES, LABELS), DIT, queries=QUERIES),
    "unet": Foreign(UNet, (IMAGES, TIMES), UNET, {"blocks": lambda depth: 4 * depth + 3}),
    "gnn_with_edges": Foreign(
        GNN, (NODES, EDGES, SENDERS, RECEIVERS),
        blocks(BLOCKS) | trunk(node_in="input", edge_in="input", norm="vector", head="readout"),
    ),
    "encoder_decoder": Foreign(
        EncoderDecoder, (TOKENS, TOKENS), ENCODER_DECODER | trunk(enc_norm="vector", dec_norm="vector"),
        queries=(*QUERIES, "*/cross_norm/*"),
    ),
    "encoder_decoder_post_ln": Foreign(
        functools.partial(EncoderDecoder, post=True), (TOKENS, TOKENS), ENCODER_DECODER | {"*_norm/*": "stream/vector"},
        queries=QUERIES,
    ),
    "t5": Foreign(
        T5Encoder, (TOKENS,), T5 | {"*/relative_attention_bias/*": "fixed"},
        queries=("*/[qk]/*", "*/relative_attention_bias/*"),
    ),
    "t5_heads_grow": Foreign(
        functools.partial(T5Encoder, heads_grow=True), (TOKENS,), T5 | {"*/relative_attention_bias/*": "input"}
    ),
}  # fmt: skip
