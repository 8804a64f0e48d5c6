"""Models whose blocks share arrays: stacked weights in a loop or a scan, and numbers of each block in one vector."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp

from tests.foreign.table import TOKENS, Foreign, trunk

HEADS = 4


def rms(h):
    return h * jax.lax.rsqrt((h * h).mean(-1, keepdims=True) + 1e-6)


def normal(key, *shape):
    return jax.random.normal(key, shape) * shape[-2] ** -0.5


# Stacked MLP blocks, read in three ways


def stacked(width, depth, key):
    keys = jax.random.split(key, 4)
    layers = {"up": normal(keys[1], depth, width, 2 * width), "down": normal(keys[2], depth, 2 * width, width)}
    embedding = jax.random.normal(keys[0], (20, width))
    return {
        "embed": embedding,
        "layers": layers | {"scale": jnp.ones((depth, width))},
        "head": normal(keys[3], width, 20),
    }


def block(h, layer):
    return h + jax.nn.gelu(rms(h) * layer["scale"] @ layer["up"]) @ layer["down"]


def at(layers, i):
    return jax.tree.map(lambda leaf: leaf[i], layers)


def in_a_loop(h, layers):
    for i in range(len(layers["up"])):
        h = block(h, at(layers, i))
    return h


def split(h, layers):
    parts = {name: jnp.split(leaf, len(leaf)) for name, leaf in layers.items()}
    for i in range(len(layers["up"])):
        h = block(h, {name: leaves[i][0] for name, leaves in parts.items()})
    return h


def in_pairs(h, layers):
    pairs = jax.tree.map(lambda leaf: leaf.reshape(len(leaf) // 2, 2, *leaf.shape[1:]), layers)
    return jax.lax.scan(lambda h, pair: (block(block(h, at(pair, 0)), at(pair, 1)), None), h, pairs)[0]


def call_stacked(run, params, tokens):
    return rms(run(params["embed"][tokens], params["layers"])) @ params["head"]


# Fused queries, keys and values in a scan: cast before it, or with the blocks along the second axis


def fused(width, depth, key):
    keys = jax.random.split(key, 4)
    layers = {"qkv": normal(keys[1], depth, width, 3 * width), "out": normal(keys[2], depth, width, width)}
    return {"embed": jax.random.normal(keys[0], (20, width)), "layers": layers, "head": normal(keys[3], width, 20)}


def attend(q, k, v):
    q, k, v = (x.reshape(*x.shape[:-1], HEADS, -1) for x in (q, k, v))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / q.shape[-1] ** 0.5
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v).reshape(*q.shape[:2], -1)


def call_fused(params, tokens):
    layers = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16).astype(jnp.float32), params["layers"])

    def step(h, layer):
        return h + attend(*jnp.split(rms(h) @ layer["qkv"], 3, -1)) @ layer["out"], None

    return rms(jax.lax.scan(step, params["embed"][tokens], layers)[0]) @ params["head"]


# Two stacks whose blocks are taken by their number, with a key that is handed on (AlphaFold)


def two_stacks(width, depth, key):
    first, second = jax.random.split(key)
    return stacked(width, depth, first) | {"attentions": fused(width, depth, second)["layers"]}


def call_two_stacks(params, tokens):
    def step(layers, run_block, carry, i):
        h, key = carry
        return (run_block(h, at(layers, i)), jax.random.split(key)[0]), None

    def attention_block(h, layer):
        return h + attend(*jnp.split(rms(h) * layer["scale"] @ layer["qkv"], 3, -1)) @ layer["out"]

    layers, numbers = params["layers"], jnp.arange(len(params["layers"]["up"]))
    attentions = params["attentions"] | {"scale": layers["scale"]}
    carry = params["embed"][tokens], jax.random.key(0)
    carry, _ = jax.lax.scan(jax.checkpoint(functools.partial(step, attentions, attention_block)), carry, numbers)
    h = jax.lax.fori_loop(0, len(numbers), lambda i, h: block(h, at(layers, i)), carry[0])
    return rms(h) @ params["head"]


class FusedBlock(nn.Module):
    width: int

    @nn.compact
    def __call__(self, h, _):
        qkv = nn.Dense(3 * self.width, use_bias=False, name="qkv")(nn.RMSNorm(name="norm")(h))
        return h + nn.Dense(self.width, use_bias=False, name="out")(attend(*jnp.split(qkv, 3, -1))), None


class SecondAxis(nn.Module):
    """Blocks along the second axis of each parameter, as in MaxText."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, tokens):
        h = nn.Embed(20, self.width, embedding_init=nn.initializers.normal(1.0), name="embed")(tokens)
        scanned = nn.scan(FusedBlock, variable_axes={"params": 1}, split_rngs={"params": True}, length=self.depth)
        h, _ = scanned(self.width, name="layers")(h, None)
        return nn.Dense(20, use_bias=False, name="head")(nn.RMSNorm(name="norm")(h))


# A gate of two factors, of which one has no name (flash-linear-attention)


def low_rank(width, depth, key):
    keys = jax.random.split(key, 6)
    up, down = normal(keys[1], depth, width, 2 * width), normal(keys[2], depth, 2 * width, width)
    gate = [normal(keys[3], depth, width, 8), {"w": normal(keys[4], depth, 8, 2 * width)}]
    layers = {"up": {"w": up}, "gate": gate, "down": {"w": down}}
    return {"embed": jax.random.normal(keys[0], (20, width)), "layers": layers, "head": normal(keys[5], width, 20)}


def call_low_rank(params, tokens):
    def step(h, layer):
        x = rms(h)
        gate = jax.nn.sigmoid(x @ layer["gate"][0] @ layer["gate"][1]["w"])
        return h + (gate * (x @ layer["up"]["w"])) @ layer["down"]["w"], None

    return rms(jax.lax.scan(step, params["embed"][tokens], params["layers"])[0]) @ params["head"]


# A matrix that is stored as a product of two, or as a matrix plus such a product (LoRA), one weight for what it meets


def product_of_two(width, depth, key, rank=8):
    def stored(key, rows, columns):
        keys = jax.random.split(key, 3)
        factors = {"a": normal(keys[1], depth, rows, rank), "b": normal(keys[2], depth, rank, columns)}
        return {"w": normal(keys[0], depth, rows, columns), **factors}

    keys = jax.random.split(key, 4)
    layers = {"up": stored(keys[1], width, 2 * width), "down": stored(keys[2], 2 * width, width)}
    return {"embed": jax.random.normal(keys[0], (20, width)), "layers": layers, "head": normal(keys[3], width, 20)}


def call_product_of_two(params, tokens):
    def step(h, layer):
        up, down = (layer[name]["w"] + layer[name]["a"] @ layer[name]["b"] for name in ("up", "down"))
        return h + jax.nn.gelu(rms(h) @ up) @ down, None

    return rms(jax.lax.scan(step, params["embed"][tokens], params["layers"])[0]) @ params["head"]


# A stack of matrices (out, in) beside others (in, out)


def the_other_way_round(width, depth, key):
    params = stacked(width, depth, key)
    return params | {"layers": turned(params["layers"])}


def turned(layers):
    return layers | {"down": jnp.swapaxes(layers["down"], 1, 2)}


def call_the_other_way_round(params, tokens):
    step = lambda h, layer: (block(h, layer), None)  # noqa: E731
    run = lambda h, layers: jax.lax.scan(step, h, turned(layers))[0]  # noqa: E731
    return call_stacked(run, params, tokens)


# A number of each block in one vector, as in modded-nanogpt


class Lambdas(nn.Module):
    """h + lambdas[i] x0 + branch(h)."""

    width: int
    depth: int
    start: float = 0.0

    @nn.compact
    def __call__(self, tokens):
        h = x0 = nn.Embed(20, self.width, embedding_init=nn.initializers.normal(1.0), name="embed")(tokens)
        lambdas = self.param("x0_lambdas", nn.initializers.constant(self.start), (self.depth,))
        for i in range(self.depth):
            h = h + lambdas[i] * x0
            y = nn.gelu(nn.Dense(2 * self.width, use_bias=False, name=f"block_{i}_up")(nn.RMSNorm(use_scale=False)(h)))
            h = h + nn.Dense(self.width, use_bias=False, name=f"block_{i}_down")(y)
        return nn.Dense(20, use_bias=False, name="head")(nn.RMSNorm(name="norm")(h))


ENDS = {"embed": "input", "head": "readout"}
LOW_RANK = {"layers/*/w": "branch/hidden", "layers/gate/0": "branch/output", "layers/gate/1/w": "branch/input"}
STACKED = ENDS | {"layers/*": "branch/hidden", "layers/scale": "branch/vector"}
FACTORS = {"layers/*/w": "branch/hidden", "layers/*/a": "branch/output", "layers/*/b": "branch/input"}
MODELS = {
    "product_of_two": Foreign(
        product_of_two, (TOKENS,), ENDS | FACTORS, {"call": call_product_of_two}, queries=("layers/*/a",)
    ),
    "stacked_the_other_way_round": Foreign(
        the_other_way_round, (TOKENS,), STACKED, {"call": call_the_other_way_round}
    ),
    "low_rank": Foreign(low_rank, (TOKENS,), ENDS | LOW_RANK, {"call": call_low_rank}, queries=("layers/gate/?",)),
    **{
        f"stacked_{run.__name__}": Foreign(
            stacked, (TOKENS,), STACKED, {"call": functools.partial(call_stacked, run)}
        )
        for run in (in_a_loop, split, in_pairs)
    },
    "fused_qkv_cast_before_the_scan": Foreign(
        fused, (TOKENS,), ENDS | {"layers/*": "branch/hidden"}, {"call": call_fused}, queries=("*/qkv",)
    ),
    "two_stacks_by_number": Foreign(
        two_stacks, (TOKENS,), STACKED | {"attentions/*": "branch/hidden"}, {"call": call_two_stacks},
        queries=("*/qkv",),
    ),
    "fused_qkv_along_the_second_axis": Foreign(
        SecondAxis, (TOKENS,),
        {"layers/*/kernel": "branch/hidden", "layers/norm/scale": "branch/vector"}
        | trunk(embed="input", norm="vector", head="readout"),
        queries=("*/qkv/kernel", "*/norm/scale"),
    ),
    "lambdas_of_the_embedding": Foreign(
        Lambdas, (TOKENS,),
        {"block_*": "branch/hidden", "x0_lambdas": "branch/scalar"}
        | trunk(embed="input", norm="vector", head="readout"),
    ),
}  # fmt: skip
