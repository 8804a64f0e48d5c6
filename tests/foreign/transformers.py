"""Transformers of today."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import nnx

from tests.foreign.table import TOKENS, Foreign, blocks, ones, trunk
from tests.test_forward import OffsetNorm

HEADS = 4
QUERIES = ("*/query/*", "*/key/*", "*/[qk]/*", "*/[qk]_norm/*")
embed = functools.partial(nn.Embed, 20, embedding_init=nn.initializers.normal(1.0))


def rotated(x):
    """RoPE: (batch, length, heads, head_dim), of an even head_dim."""
    a, b = jnp.split(x, 2, -1)
    angles = jnp.arange(x.shape[1])[:, None, None] * 10.0 ** -jnp.arange(a.shape[-1])
    return jnp.concatenate([a * jnp.cos(angles) - b * jnp.sin(angles), b * jnp.cos(angles) + a * jnp.sin(angles)], -1)


def attend(q, k, v, scale, cap=None):
    """Causal; queries in as many groups as there are keys and values. (batch, length, heads, head_dim) each"""
    q = q.reshape(*q.shape[:2], k.shape[2], -1, q.shape[-1])
    logits = jnp.einsum("bqghd,bkgd->bghqk", q, k) * scale
    if cap:
        logits = cap * jnp.tanh(logits / cap)
    logits = jnp.where(jnp.tril(jnp.ones(logits.shape[-2:], bool)), logits, -1e9)
    y = jnp.einsum("bghqk,bkgd->bqghd", jax.nn.softmax(logits), v)
    return y.reshape(*y.shape[:2], -1)


class LlamaBlock(nnx.Module):
    def __init__(self, width, hidden, qk_norm, rngs):
        linear, norm = (
            functools.partial(nnx.Linear, use_bias=False, rngs=rngs),
            functools.partial(nnx.RMSNorm, rngs=rngs),
        )
        self.size = width // HEADS
        self.norm1, self.norm2 = norm(width), norm(width)
        self.q, self.k, self.v = linear(width, width), linear(width, 2 * self.size), linear(width, 2 * self.size)
        self.o = linear(width, width)
        self.gate, self.up, self.down = linear(width, hidden), linear(width, hidden), linear(hidden, width)
        if qk_norm:
            self.q_norm, self.k_norm = norm(self.size), norm(self.size)

    def __call__(self, h):
        x = self.norm1(h)
        q, k, v = (layer(x).reshape(*x.shape[:2], -1, self.size) for layer in (self.q, self.k, self.v))
        if hasattr(self, "q_norm"):
            q, k = self.q_norm(q), self.k_norm(k)
        h = h + self.o(attend(rotated(q), rotated(k), v, self.size**-0.5))
        x = self.norm2(h)
        return h + self.down(nnx.silu(self.gate(x)) * self.up(x))


class Llama(nnx.Module):
    """RoPE, grouped queries (four heads of queries, two of keys and values), SwiGLU."""

    def __init__(self, width, depth, rngs, qk_norm=False, multiple=1):
        hidden = -(-8 * width // (3 * multiple)) * multiple if multiple > 1 else 2 * width
        self.embed = nnx.Embed(20, width, embedding_init=nnx.initializers.normal(1.0), rngs=rngs)
        self.layers = nnx.List([LlamaBlock(width, hidden, qk_norm, rngs) for _ in range(depth)])
        self.norm = nnx.RMSNorm(width, rngs=rngs)
        self.lm_head = nnx.Linear(width, 20, use_bias=False, rngs=rngs)

    def __call__(self, tokens):
        h = self.embed(tokens)
        for layer in self.layers:
            h = layer(h)
        return self.lm_head(self.norm(h))


class PaLM(nn.Module):
    """Attention and MLP in parallel, from one fused matrix; one head of keys and values."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, tokens):
        w, size = self.width, self.width // HEADS
        h, dense = embed(w, name="embed")(tokens), functools.partial(nn.Dense, use_bias=False)
        for i in range(self.depth):
            fused = dense(w + 2 * size + 4 * w, name=f"block_{i}_fused")(nn.LayerNorm(name=f"block_{i}_norm")(h))
            q, k, v, gate, up = jnp.split(fused, (w, w + size, w + 2 * size, 3 * w + 2 * size), -1)
            q, k, v = (part.reshape(*part.shape[:2], -1, size) for part in (q, k, v))
            attention = dense(w, name=f"block_{i}_attn_out")(attend(rotated(q), rotated(k), v, size**-0.5))
            h = h + attention + dense(w, name=f"block_{i}_ff_out")(nn.silu(gate) * up)
        return nn.Dense(20, use_bias=False, name="head")(nn.LayerNorm(name="norm")(h))


class Gemma(nn.Module):
    """Gemma 2 and 3: norms with 1 + scale around each layer, QK-norm, one head of keys and values, tied, soft caps."""

    width: int
    depth: int
    cap: float | None = 30.0

    @nn.compact
    def __call__(self, tokens):
        w, size = self.width, self.width // HEADS
        dense, embedding = functools.partial(nn.Dense, use_bias=False), embed(w, name="embed")
        h = embedding(tokens)
        for i in range(self.depth):
            layer = functools.partial("block_{}_{}".format, i)
            x = OffsetNorm(name=layer("pre_attn"))(h)
            q, k, v = (dense(n, name=layer(name))(x) for name, n in (("q", w), ("k", size), ("v", size)))
            q, k, v = (part.reshape(*part.shape[:2], -1, size) for part in (q, k, v))
            y = attend(
                rotated(OffsetNorm(name=layer("q_norm"))(q)),
                rotated(OffsetNorm(name=layer("k_norm"))(k)),
                v,
                size**-0.5,
                cap=50.0,
            )
            h = h + OffsetNorm(name=layer("post_attn"))(dense(w, name=layer("o"))(y))
            x = OffsetNorm(name=layer("pre_ff"))(h)
            y = nn.gelu(dense(2 * w, name=layer("gate"))(x)) * dense(2 * w, name=layer("up"))(x)
            h = h + OffsetNorm(name=layer("post_ff"))(dense(w, name=layer("down"))(y))
        logits = embedding.attend(OffsetNorm(name="norm")(h))
        return logits if self.cap is None else self.cap * jnp.tanh(logits / self.cap)


class CappedHead(nn.Module):
    """A soft cap on logits whose call takes the factors: the edit that the error of the cap names."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, tokens, factors):
        h = embed(self.width, name="embed")(tokens)
        for i in range(self.depth):
            y = nn.Dense(2 * self.width, name=f"block_{i}_up")(nn.RMSNorm(name=f"block_{i}_norm")(h))
            h = h + factors.branch * nn.Dense(self.width, name=f"block_{i}_down")(nn.gelu(y))
        logits = nn.Dense(20, use_bias=False, name="head")(nn.RMSNorm(name="norm")(h))
        return 30.0 * jnp.tanh(factors.output * logits / 30.0)


class GPTBlock(nn.Module):
    """With or without an ending for nn.scan; norms before the layers, or after the sums (post-LN)."""

    heads: int = HEADS
    post: bool = False
    scanned: bool = False

    @nn.compact
    def __call__(self, h, _=None):
        w, norms = h.shape[-1], (nn.LayerNorm(name="norm1"), nn.LayerNorm(name="norm2"))
        attention = nn.MultiHeadDotProductAttention(self.heads, name="attn")
        mlp = nn.Sequential([nn.Dense(2 * w, name="up"), nn.gelu, nn.Dense(w, name="down")])
        for norm, layer in zip(norms, (attention, mlp), strict=True):
            h = norm(h + layer(h)) if self.post else h + layer(norm(h))
        return (h, None) if self.scanned else h


class GPT(nn.Module):
    width: int
    depth: int
    tied: bool = False
    post: bool = False
    scan: bool = False
    heads_of: int | None = None  # a fixed head size, with more heads at larger width

    @nn.compact
    def __call__(self, tokens):
        embedding, heads = embed(self.width, name="embed"), self.width // self.heads_of if self.heads_of else HEADS
        positions = self.param("positions", nn.initializers.normal(1.0), (tokens.shape[1], self.width))
        h = embedding(tokens) + positions
        if self.scan:
            stack = nn.scan(
                nn.remat(GPTBlock), variable_axes={"params": 0}, split_rngs={"params": True}, length=self.depth
            )
            h, _ = stack(post=self.post, scanned=True, name="block")(h, None)
        else:
            for i in range(self.depth):
                h = GPTBlock(heads, self.post, name=f"block_{i}")(h)
        h = h if self.post else nn.LayerNorm(name="norm")(h)
        return embedding.attend(h) if self.tied else nn.Dense(20, use_bias=False, name="head")(h)


class NanoChat(nn.Module):
    """karpathy/nanochat as of January 2026, its lambdas as they started then: heads of one size under norms without a
    scale, embeddings of values in every second block, gates that read a few features, an earlier state taken away."""

    width: int
    depth: int
    head_dim: int = 8
    x0_start: float = 0.0

    @nn.compact
    def __call__(self, tokens):
        w, norm, dense = self.width, nn.RMSNorm(use_scale=False), functools.partial(nn.Dense, use_bias=False)
        x = norm(embed(w, name="wte")(tokens))
        gate = nn.sigmoid(dense(1, name="smear_gate")(x[:, 1:, :24])) * self.param("smear", nn.initializers.ones, (1,))
        x = x0 = middle = x.at[:, 1:].add(gate * x[:, :-1])
        resid = self.param("resid_lambdas", nn.initializers.ones, (self.depth,))
        first = self.param("x0_lambdas", nn.initializers.constant(self.x0_start), (self.depth,))
        for i in range(self.depth):
            x = resid[i] * x + first[i] * x0
            y = norm(x)
            q, k, v = (dense(w, name=f"h_{i}_{name}")(y) for name in "qkv")
            if i % 2 == (self.depth - 1) % 2:
                values = embed(w, name=f"value_embeds_{i}")(tokens).reshape(*tokens.shape, -1, self.head_dim)
                gates = 3 * nn.sigmoid(dense(w // self.head_dim, name=f"h_{i}_ve_gate")(y[..., :12]))
                v += (gates[..., None] * values).reshape(v.shape)
            q, k, v = (z.reshape(*tokens.shape, -1, self.head_dim) for z in (q, k, v))
            mixed = nn.dot_product_attention(1.2 * norm(q), 1.2 * norm(k), v)
            x = x + dense(w, name=f"h_{i}_proj")(mixed.reshape(x.shape))
            x = x + dense(w, name=f"h_{i}_down")(nn.relu(dense(4 * w, name=f"h_{i}_up")(norm(x))) ** 2)
            middle = x if i == self.depth // 2 else middle
        x = x - self.param("backout", nn.initializers.constant(0.2), (1,)) * middle
        logits = dense(20, name="lm_head")(norm(x))
        return 15 * jnp.tanh(logits / 15)


class NNXBlock(nnx.Module):
    def __init__(self, width, rngs):
        self.norm1, self.norm2 = nnx.LayerNorm(width, rngs=rngs), nnx.LayerNorm(width, rngs=rngs)
        self.attn = nnx.MultiHeadAttention(HEADS, width, decode=False, rngs=rngs)
        self.up, self.down = nnx.Linear(width, 2 * width, rngs=rngs), nnx.Linear(2 * width, width, rngs=rngs)

    def __call__(self, h):
        h = h + self.attn(self.norm1(h))
        return h + self.down(nnx.gelu(self.up(self.norm2(h))))


class NNXScanned(nnx.Module):
    """Blocks made by nnx.vmap and called by nnx.scan."""

    def __init__(self, width, depth, rngs):
        self.embed = nnx.Linear(5, width, rngs=rngs)
        make = nnx.split_rngs(splits=depth)(nnx.vmap(lambda rngs: NNXBlock(width, rngs), in_axes=0, out_axes=0))
        self.blocks = make(rngs)
        self.head = nnx.Linear(width, 10, rngs=rngs)

    def __call__(self, x):
        @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
        @nnx.remat
        def run(h, block):
            return block(h)

        return self.head(run(self.embed(x), self.blocks))


class Perceiver(nn.Module):
    """Latents that look at the bytes in each block."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, x):
        latents = self.param("latents", nn.initializers.normal(1.0), (3, self.width))
        h = jnp.broadcast_to(latents, (len(x), *latents.shape))
        for i in range(self.depth):
            cross = nn.MultiHeadDotProductAttention(HEADS, qkv_features=self.width, name=f"block_{i}_cross")
            h = h + cross(nn.LayerNorm(name=f"block_{i}_norm")(h), x)
            h = GPTBlock(name=f"block_{i}_latent")(h)
        return nn.Dense(10, name="head")(nn.LayerNorm(name="norm")(h).mean(1))


class MoEBlock(nn.Module):
    """Two of four experts, and one that all tokens go to."""

    width: int
    experts: int = 4

    @nn.compact
    def __call__(self, h):
        w, x = self.width, nn.LayerNorm(name="norm")(h)
        scores = nn.softmax(nn.Dense(self.experts, use_bias=False, name="router")(x))
        best, chosen = jax.lax.top_k(scores, 2)
        weights = (jax.nn.one_hot(chosen, self.experts) * best[..., None]).sum(-2)
        init = nn.initializers.lecun_normal(batch_axis=0)
        up = self.param("experts_up", init, (self.experts, w, 2 * w))
        down = self.param("experts_down", init, (self.experts, 2 * w, w))
        each = jnp.einsum("...eh,ehw->...ew", nn.gelu(jnp.einsum("...w,ewh->...eh", x, up)), down)
        shared = nn.Dense(w, name="shared_down")(nn.gelu(nn.Dense(2 * w, name="shared_up")(x)))
        return h + jnp.einsum("...ew,...e->...w", each, weights) + shared


class MoE(nn.Module):
    width: int
    depth: int

    @nn.compact
    def __call__(self, tokens):
        h = embed(self.width, name="embed")(tokens)
        for i in range(self.depth):
            h = h + nn.MultiHeadDotProductAttention(HEADS, name=f"block_{i}_attn")(
                nn.LayerNorm(name=f"block_{i}_norm")(h)
            )
            h = MoEBlock(self.width, name=f"block_{i}_moe")(h)
        return nn.Dense(20, use_bias=False, name="head")(nn.LayerNorm(name="norm")(h))


class ALBERT(nn.Module):
    """All blocks are one."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, tokens):
        h, shared = embed(self.width, name="embed")(tokens), GPTBlock(name="shared")
        for _ in range(self.depth):
            h = shared(h)
        return nn.Dense(20, use_bias=False, name="head")(nn.LayerNorm(name="norm")(h))


LLAMA = blocks("layers/*") | trunk(embed="input", norm="vector", lm_head="readout")
HEAD = trunk(embed="input", norm="vector", head="readout")
TIED = trunk(embed="input", norm="vector")
GPTS = blocks("block*") | HEAD | {"positions": "input"}
MOE = {"*/router/kernel": "branch/output", "*/experts_*": "branch/hidden"}
gpt = functools.partial(functools.partial, GPT)


def llama(**kinds):
    return lambda width, depth, rngs: Llama(width, depth, rngs, **kinds)


MODELS = {
    "llama": Foreign(Llama, (TOKENS,), LLAMA, queries=QUERIES),
    "llama_qk_norm": Foreign(llama(qk_norm=True), (TOKENS,), LLAMA, queries=QUERIES),
    "llama_rounded": Foreign(llama(multiple=16), (TOKENS,), LLAMA),
    "llama_rounded_as_much_as_it_grows": Foreign(llama(multiple=64), (TOKENS,), LLAMA, asks=True),
    "palm": Foreign(PaLM, (TOKENS,), blocks("block_*") | HEAD, queries=QUERIES),
    "gemma2": Foreign(Gemma, (TOKENS,), blocks("block_*") | TIED),  # the output factor is inside the soft cap
    "gemma2_uncapped": Foreign(functools.partial(Gemma, cap=None), (TOKENS,), blocks("block_*") | TIED),
    "capped_head": Foreign(CappedHead, (TOKENS,), blocks("block_*") | HEAD),
    "gpt_tied": Foreign(gpt(tied=True), (TOKENS,), blocks("block_*") | TIED | {"positions": "input"}, queries=QUERIES),
    "gpt_scanned": Foreign(gpt(scan=True), (TOKENS,), GPTS, queries=(*QUERIES, "*/norm1/*")),
    "gpt_heads_grow": Foreign(gpt(heads_of=8), (TOKENS,), GPTS),
    "post_ln": Foreign(
        gpt(post=True), (TOKENS,),
        blocks("block_*") | trunk(embed="input", head="readout")
        | {"positions": "input", "block_*/norm?/*": "stream/vector"},
        queries=QUERIES,
    ),
    "post_ln_scanned": Foreign(
        gpt(post=True, scan=True), (TOKENS,),
        blocks("block/*") | trunk(embed="input", head="readout") | {"positions": "input", "*/norm?/*": "stream/vector"},
    ),
    "nanochat": Foreign(
        NanoChat, (TOKENS,),
        blocks("h_*") | trunk(wte="input", smear_gate="fixed", lm_head="readout")
        | {"value_embeds_*": "branch/input", "*_ve_gate/kernel": "branch/input", "*_lambdas": "stream/scalar"}
        | {"smear": "fixed", "backout": "fixed"},
        queries=("*_lambdas", "smear*", "backout"),
    ),
    "nnx_scanned": Foreign(
        NNXScanned, (ones(2, 6, 5),), blocks("blocks/*") | trunk(embed="input", head="readout"), queries=QUERIES
    ),
    "perceiver": Foreign(
        Perceiver, (ones(2, 7, 5),),
        blocks("block_*") | {"*_cross/[kv]*/kernel": "branch/input", "latents": "input"}
        | trunk(norm="vector", head="readout"),
    ),
    "moe": Foreign(MoE, (TOKENS,), blocks("block_*") | HEAD | MOE),
    "albert": Foreign(ALBERT, (TOKENS,), error="(?s)residual=False.*share their weights"),
}  # fmt: skip
