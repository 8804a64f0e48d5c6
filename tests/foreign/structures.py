"""What models are made of: names, lists, plain arrays, adapters, shared or scaled weights, factories of any kind."""

import functools
import itertools
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from tests.foreign.table import Foreign, blocks, ones, trunk

eqx = pytest.importorskip("equinox")

VECTORS, SEQUENCES = ones(4, 5), ones(2, 6, 5)
VMAP = {"call": lambda model, x: jax.vmap(model)(x)}


class NNXBlock(nnx.Module):
    def __init__(self, width, rngs, make=nnx.Linear):
        self.norm = nnx.LayerNorm(width, rngs=rngs)
        self.up, self.down = make(width, 2 * width, rngs=rngs), make(2 * width, width, rngs=rngs)

    def __call__(self, h):
        return h + self.down(nnx.gelu(self.up(self.norm(h))))


class NNXNet(nnx.Module):
    def __init__(self, width, depth, *, classes=10, make=nnx.Linear, rngs):
        self.embed = nnx.Linear(5, width, rngs=rngs)
        self.blocks = nnx.List([NNXBlock(width, rngs, make) for _ in range(depth)])
        self.head = nnx.Linear(width, classes, rngs=rngs)

    def __call__(self, x):
        h = self.embed(x)
        for block in self.blocks:
            h = block(h)
        return self.head(h)


def waves(length, width):
    return jnp.sin(jnp.arange(length)[:, None] * jnp.arange(1.0, width + 1))


class Table(nnx.Module):
    """Sinusoidal positions in an attribute: a plain array, or a variable that is no parameter."""

    def __init__(self, width, depth, rngs, hold=lambda table: table):
        self.table = hold(waves(6, width))
        self.net = NNXNet(width, depth, rngs=rngs)

    def __call__(self, x):
        h = self.net.embed(x) + self.table[...]
        for block in self.net.blocks:
            h = block(h)
        return self.net.head(h)


class GatedByTable(nnx.Module):
    """A plain array in each block, as RoPE's tables are."""

    def __init__(self, width, rngs):
        self.linear, self.table = nnx.Linear(width, width, rngs=rngs), waves(6, width)

    def __call__(self, h):
        return h + self.linear(nnx.relu(h)) * self.table


class TablesInBlocks(nnx.Module):
    def __init__(self, width, depth, rngs):
        self.embed, self.head = nnx.Linear(5, width, rngs=rngs), nnx.Linear(width, 10, rngs=rngs)
        self.blocks = nnx.List([GatedByTable(width, rngs) for _ in range(depth)])

    def __call__(self, x):
        h = self.embed(x)
        for block in self.blocks:
            h = block(h)
        return self.head(h)


class NoPytree(nnx.Module, pytree=False):
    """A module that is no pytree, with a plain array."""

    def __init__(self, width, depth, rngs):
        self.net, self.table = NNXNet(width, depth, rngs=rngs), waves(6, width)

    def __call__(self, x):
        h = self.net.embed(x) + self.table
        for block in self.net.blocks:
            h = block(h)
        return self.net.head(h)


class EqxBlock(eqx.Module):
    norm: eqx.nn.LayerNorm
    up: eqx.nn.Linear
    down: eqx.nn.Linear

    def __init__(self, width, key):
        one, two = jax.random.split(key)
        self.norm = eqx.nn.LayerNorm(width)
        self.up, self.down = eqx.nn.Linear(width, 2 * width, key=one), eqx.nn.Linear(2 * width, width, key=two)

    def __call__(self, h):
        return h + self.down(jax.nn.gelu(self.up(self.norm(h))))


class OneList(eqx.Module):
    """Read-in, blocks and readout in one list."""

    layers: list

    def __init__(self, width, depth, *, classes=10, key):
        keys = jax.random.split(key, depth + 2)
        first, last = eqx.nn.Linear(5, width, key=keys[0]), eqx.nn.Linear(width, classes, key=keys[1])
        self.layers = [first, *(EqxBlock(width, block_key) for block_key in keys[2:]), last]

    def __call__(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


class Linears(eqx.Module):
    """One list of layers, of which those in the middle are residual."""

    layers: list

    def __init__(self, width, depth, key):
        sizes = [5, *[width] * (depth + 1), 10]
        keys = jax.random.split(key, depth + 2)
        pairs = zip(itertools.pairwise(sizes), keys, strict=True)
        self.layers = [eqx.nn.Linear(*pair, key=layer_key) for pair, layer_key in pairs]

    def __call__(self, x):
        first, *middle, last = self.layers
        h = first(x)
        for layer in middle:
            h = h + layer(jax.nn.relu(h))
        return last(h)


def linears_roles(depth):
    ends = {"layers/0/weight": "input", "layers/0/bias": "vector"}
    ends |= {f"layers/{depth + 1}/weight": "readout", f"layers/{depth + 1}/bias": "scalar"}
    return {"*/weight": "branch/hidden", "*/bias": "branch/vector"} | ends


class EqxAttention(eqx.Module):
    norm: eqx.nn.LayerNorm
    attn: eqx.nn.MultiheadAttention

    def __call__(self, h):
        x = jax.vmap(self.norm)(h)
        return h + self.attn(x, x, x)


class EqxTied(eqx.Module):
    """The logits are by the embedding."""

    embed: jax.Array
    attention: list
    mlps: list
    norm: eqx.nn.LayerNorm

    def __init__(self, width, depth, key):
        first, *keys = jax.random.split(key, 2 * depth + 1)
        self.embed = jax.random.normal(first, (20, width))
        attention = functools.partial(eqx.nn.MultiheadAttention, 4, width)
        self.attention = [EqxAttention(eqx.nn.LayerNorm(width), attention(key=block_key)) for block_key in keys[:depth]]
        self.mlps = [EqxBlock(width, block_key) for block_key in keys[depth:]]
        self.norm = eqx.nn.LayerNorm(width)

    def __call__(self, tokens):
        h = self.embed[tokens]
        for attention, mlp in zip(self.attention, self.mlps, strict=True):
            h = jax.vmap(mlp)(attention(h))
        return jax.vmap(self.norm)(h) @ self.embed.T


def dense_list(width, depth, key):
    """Parameters beside a function: one list of read-in, blocks and readout."""
    sizes = [5, *[width] * (depth + 1), 10]
    pairs = list(itertools.pairwise(sizes))
    keys = jax.random.split(key, len(pairs))
    return [{"w": jax.random.normal(layer_key, pair) * pair[0] ** -0.5, "b": jnp.zeros(pair[1])}
            for layer_key, pair in zip(keys, pairs, strict=True)]  # fmt: skip


def call_dense_list(params, x):
    first, *middle, last = params
    h = x @ first["w"] + first["b"]
    for layer in middle:
        h = h + jax.nn.relu(h) @ layer["w"] + layer["b"]
    return h @ last["w"] + last["b"]


def dense_list_roles(depth):
    ends = {"0/w": "input", "0/b": "vector", f"{depth + 1}/w": "readout", f"{depth + 1}/b": "scalar"}
    return {"*/w": "branch/hidden", "*/b": "branch/vector"} | ends


def transposed(width, depth, key):
    """Kernels (outputs, inputs) in a tree of plain names."""
    keys = jax.random.split(key, 3)
    return {"first": {"weight": jax.random.normal(keys[0], (width, 5))},
            "middle": [{"weight": jax.random.normal(layer_key, (width, width))}
                       for layer_key in jax.random.split(keys[1], depth)],
            "last": {"weight": jax.random.normal(keys[2], (10, width))}}  # fmt: skip


def call_transposed(params, x):
    h = x @ params["first"]["weight"].T
    for layer in params["middle"]:
        h = h + jax.nn.relu(h) @ layer["weight"].T
    return h @ params["last"]["weight"].T


class Residual(nn.Module):
    """Residual layers: the names of the blocks, and what makes a block's branch of (module, i, h)."""

    width: int
    depth: int
    branch: object

    @nn.compact
    def __call__(self, x):
        h = nn.Dense(self.width, name="embed")(x)
        for i in range(self.depth):
            h = h + self.branch(self, i, h)
        return nn.Dense(10, name="head")(nn.LayerNorm(name="norm")(h))


class LayersBetween(nn.Module):
    """As in ConvMixer: between two residual sums the stream goes through a layer without a skip. kept: whether a norm
    in front of this layer keeps the size of the stream."""

    width: int
    depth: int
    kept: bool = False

    @nn.compact
    def __call__(self, x):
        h = nn.Dense(self.width, name="embed")(x)
        for i in range(self.depth):
            if self.kept:
                h = 2**0.5 * nn.RMSNorm(name=f"block_{i}_norm1")(h)
            h = nn.relu(nn.Dense(self.width, name=f"block_{i}_fc1")(h))
            h = h + nn.Dense(self.width, name=f"block_{i}_fc2")(nn.LayerNorm(name=f"block_{i}_norm")(h))
        return nn.Dense(10, name="head")(nn.LayerNorm(name="norm")(h))


class GraphConvolutions(nnx.Module):
    """As jraphx 0.1.0 has it: one list has read-in, blocks and readout, another the norms behind the sums."""

    def __init__(self, width, depth, rngs):
        sizes = [5, *[width] * (depth + 1), 3]
        self.convs = nnx.List([nnx.Linear(a, b, rngs=rngs) for a, b in itertools.pairwise(sizes)])
        self.norms = nnx.List([nnx.LayerNorm(size, rngs=rngs) for size in sizes[1:]])

    def __call__(self, x):
        for conv, norm in list(zip(self.convs, self.norms, strict=True))[:-1]:
            y = conv(x)
            x = nnx.relu(norm(y + x if y.shape == x.shape else y))
        return self.convs[-1](x)


class StateOfEachWidth(eqx.Module):
    """As jaxonmodels 0.2.3 has Mamba: the state has as many entries as there are channels, and an einsum that sums over
    nothing applies the matrix of their decays. The activation is a static field that equals no other."""

    embed: eqx.nn.Linear
    blocks: list
    decays: list
    head: eqx.nn.Linear
    act: Callable = eqx.field(static=True)

    def __init__(self, width, depth, key):
        first, last, *keys = jax.random.split(key, depth + 2)
        self.embed, self.head = eqx.nn.Linear(5, width, key=first), eqx.nn.Linear(width, 10, key=last)
        self.blocks = [eqx.nn.Linear(width, width, key=key) for key in keys]
        self.decays = [jnp.log(jnp.broadcast_to(jnp.arange(1.0, width + 1), (width, width))) for _ in range(depth)]
        self.act = functools.partial(jax.nn.gelu, approximate=True)

    def __call__(self, x):
        h = self.embed(x)
        for block, decay in zip(self.blocks, self.decays, strict=True):
            h = h + block(jnp.exp(-jnp.einsum("d,dn->dn", self.act(h), jnp.exp(decay))).mean(-1))
        return self.head(h)


def residual(branch):
    return functools.partial(Residual, branch=branch)


def lettered(module, i, h):
    return nn.Dense(module.width, name="block" + "abcdefghijklmnop"[i])(nn.relu(h))


def weight_normed(module, i, h):
    up, down = nn.Dense(2 * module.width, name=f"up_{i}"), nn.Dense(module.width, name=f"down_{i}")
    return nn.WeightNorm(down, name=f"wn_down_{i}")(nn.relu(nn.WeightNorm(up, name=f"wn_{i}")(h)))


def rezero(module, i, h):
    alpha = module.param(f"alpha_{i}", nn.initializers.zeros, ())
    return alpha * nn.Dense(module.width, name=f"block_{i}")(nn.relu(h))


def layer_scaled(module, i, h):
    y = nn.gelu(nn.Dense(2 * module.width, name=f"block_{i}_up")(nn.LayerNorm(name=f"block_{i}_norm")(h)))
    scale = module.param(f"block_{i}_gamma", nn.initializers.constant(0.1), (module.width,))
    return scale * nn.Dense(module.width, name=f"block_{i}_down")(y)


def from_zero(module, i, h):
    """Branches that start at 0."""
    y = nn.relu(nn.Dense(2 * module.width, name=f"block_{i}_up")(h))
    return nn.Dense(module.width, kernel_init=nn.initializers.zeros, name=f"block_{i}_down")(y)


def boxed(module, i, h):
    init = nn.with_partitioning(nn.initializers.lecun_normal(), ("in", "out"))
    return nn.Dense(module.width, kernel_init=init, name=f"block_{i}")(nn.relu(h))


def half(module, i, h):
    dense = functools.partial(nn.Dense, dtype=jnp.bfloat16, param_dtype=jnp.bfloat16)
    return dense(module.width, name=f"block_{i}")(nn.relu(h)).astype(h.dtype)


NET = trunk(embed="input", head="readout")
NNX = blocks("blocks/*") | NET
IN_NET = {f"net/{glob}": role for glob, role in NNX.items()}
NAMED = blocks("block*") | NET | trunk(norm="vector")
LORA = {"*/lora_a": "branch/output", "*/lora_b": "branch/input"}
ONE_LIST = {
    "layers/*/weight": "readout",
    "layers/*/bias": "scalar",
    "layers/0/weight": "input",
    "layers/0/bias": "vector",
}
ONE_LIST |= {"layers/*/*/*": "branch/vector"} | {f"layers/*/{name}/weight": "branch/hidden" for name in ("up", "down")}
TIED = {"attention/*": "branch/vector", "attention/*/attn/*_proj/weight": "branch/hidden", "mlps/*": "branch/vector",
        "mlps/*/up/weight": "branch/hidden", "mlps/*/down/weight": "branch/hidden", "norm/*": "vector",
        "embed": "input"}  # fmt: skip


class EdgesAndNodes(nn.Module):
    """Two streams that feed each other in turn, as in MeshGraphNet and Evoformer. The last update of the edges acts
    through that of the nodes alone. updates: the nodes read the updates of the edges, not their sum. several: the edges
    are updated once more, from themselves."""

    width: int
    depth: int
    updates: bool = False
    several: bool = False

    @nn.compact
    def __call__(self, nodes, edges):
        def mlp(name, x):
            x = nn.gelu(nn.Dense(2 * self.width, name=f"{name}_up")(nn.LayerNorm(name=f"{name}_norm")(x)))
            return nn.Dense(self.width, name=f"{name}_down")(x)

        h, e = nn.Dense(self.width, name="nodes")(nodes), nn.Dense(self.width, name="edges")(edges)
        for i in range(self.depth):
            ends = [jnp.broadcast_to(h[:, :, None], e.shape), jnp.broadcast_to(h[:, None], e.shape)]
            update = mlp(f"block_{i}_edge", jnp.concatenate([e, *ends], -1))
            e = e + update
            e = e + mlp(f"block_{i}_again", e) if self.several else e
            h = h + mlp(f"block_{i}_node", jnp.concatenate([h, (update if self.updates else e).mean(2)], -1))
        return nn.Dense(3, name="head")(nn.LayerNorm(name="norm")(h))


class CosineAttention(nn.Module):
    """As in Swin V2: queries and keys have norm 1, and each head has a scale."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, x):
        h = nn.Dense(self.width, name="embed")(x)
        for i in range(self.depth):
            y = nn.LayerNorm(name=f"block_{i}_norm")(h)
            q, k, v = (nn.DenseGeneral((4, self.width // 4), name=f"block_{i}_{name}")(y) for name in "qkv")
            q, k = (z / jnp.sqrt((z * z).sum(-1, keepdims=True) + 1e-6) for z in (q, k))
            scale = jnp.exp(self.param(f"block_{i}_scale", nn.initializers.constant(2.0), (4,)))
            weights = nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q * scale[:, None], k))
            y = jnp.einsum("bhqk,bkhd->bqhd", weights, v)
            h = h + nn.DenseGeneral(self.width, axis=(-2, -1), name=f"block_{i}_out")(y)
        return nn.Dense(10, name="head")(nn.LayerNorm(name="norm")(h))


class GatesAndPool(nn.Module):
    """A gate of each block and the weights of an attention pool, each h @ v; the logit is one such product, too. A sum
    over positions has no width."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, x):
        def product(name, x):
            return x @ self.param(name, nn.initializers.normal(self.width**-0.5), (self.width,))

        h = nn.Dense(self.width, name="embed")(x)
        for i in range(self.depth):
            y = nn.LayerNorm(name=f"block_{i}_norm")(h)
            gate = nn.sigmoid(product(f"block_{i}_gate", y))[..., None]
            heads = self.param(f"block_{i}_heads", nn.initializers.normal(self.width**-0.5), (4, self.width // 4))
            gate = gate * nn.sigmoid((y.reshape(*y.shape[:2], 4, -1) * heads).sum(-1).mean(-1))[..., None]
            h = h + gate * nn.Dense(self.width, name=f"block_{i}_down")(nn.gelu(nn.Dense(32, name=f"block_{i}_up")(y)))
        h = nn.LayerNorm(name="norm")(h)
        pool = nn.softmax(product("pool", h)) + self.param("positions", nn.initializers.ones, (6,))
        h = jnp.einsum("btw,t->bw", h * pool[..., None], self.param("kernel_of_positions", nn.initializers.ones, (6,)))
        return product("head", h)


MODELS = {
    "gates_and_pool": Foreign(
        GatesAndPool,
        (ones(2, 6, 5),),
        blocks("block_*")
        | {"block_*_gate": "branch/output", "block_*_heads": "branch/output"}
        | {"block_*_up/*": "branch/fixed", "block_*_up/kernel": "branch/output"}
        | {"block_*_down/kernel": "branch/input", "block_*_up/bias": "branch/scalar"}
        | trunk(embed="input", norm="vector")
        | {"pool": "output", "head": "readout", "*positions": "fixed"},
    ),
    "edges_and_nodes": Foreign(
        EdgesAndNodes,
        (ones(2, 3, 5), ones(2, 3, 3, 4)),
        blocks("block_*") | trunk(nodes="input", edges="input", norm="vector", head="readout"),
    ),
    "several_updates_of_edges": Foreign(
        functools.partial(EdgesAndNodes, several=True),
        (ones(2, 3, 5), ones(2, 3, 3, 4)),
        blocks("block_*") | trunk(nodes="input", edges="input", norm="vector", head="readout"),
    ),
    "layers_between": Foreign(
        LayersBetween, (VECTORS,),
        blocks("block_*") | trunk(embed="input", norm="vector", head="readout")
        | {"block_*_fc1/kernel": "stream/hidden", "block_*_fc1/bias": "stream/vector"},
        asks=True,
    ),
    "layers_between_that_keep_size": Foreign(
        functools.partial(LayersBetween, kept=True), (VECTORS,),
        blocks("block_*") | trunk(embed="input", norm="vector", head="readout")
        | {"block_*_fc1/kernel": "stream/hidden", "block_*_fc1/bias": "stream/vector", "*_norm1/*": "stream/vector"},
        asks=True,
    ),
    "graph_convolutions": Foreign(
        GraphConvolutions, (VECTORS,),
        {"convs/*": "branch/hidden", "convs/*/bias": "branch/vector", "norms/*": "stream/vector"}
        | trunk(**{"convs/0": "input", "norms/0": "vector"}) | {"norms/[05]/*": "vector", "norms/5/*": "scalar"}
        | {"convs/5/kernel": "readout", "convs/5/bias": "scalar"},
    ),
    "state_of_each_width": Foreign(
        StateOfEachWidth, (VECTORS,),
        {"decays/*": "branch/vector", "blocks/*/weight": "branch/hidden", "blocks/*/bias": "branch/vector"}
        | {"embed/weight": "input", "embed/bias": "vector", "head/weight": "readout", "head/bias": "scalar"}, VMAP,
    ),
    "mesh_graph_net": Foreign(
        functools.partial(EdgesAndNodes, updates=True), (ones(2, 3, 5), ones(2, 3, 3, 4)),
        error="block_0_edge_.* acts on something else than the residual sum too.* h \\+ factors.branch",
    ),
    "cosine_attention": Foreign(
        CosineAttention,
        (ones(2, 6, 5),),
        blocks("block_*") | {"block_*_scale": "branch/scalar"} | trunk(embed="input", norm="vector", head="readout"),
    ),
    "partial_of_nnx": Foreign(functools.partial(NNXNet, classes=7), (VECTORS,), NNX),
    "partial_of_equinox": Foreign(functools.partial(OneList, classes=7), (VECTORS,), ONE_LIST, VMAP),
    "lora": Foreign(
        lambda width, depth, rngs: NNXNet(width, depth, make=functools.partial(nnx.LoRALinear, lora_rank=3), rngs=rngs),
        (VECTORS,), NNX | LORA,
    ),
    "table_in_nnx": Foreign(Table, (SEQUENCES,), IN_NET),
    "table_in_variable": Foreign(
        lambda width, depth, rngs: Table(width, depth, rngs, hold=nnx.Variable), (SEQUENCES,),
        IN_NET,
    ),
    "tables_in_nnx_blocks": Foreign(TablesInBlocks, (SEQUENCES,), NNX),
    "nnx_without_pytree": Foreign(NoPytree, (SEQUENCES,), IN_NET),
    "one_equinox_list": Foreign(OneList, (VECTORS,), ONE_LIST, VMAP),
    "one_equinox_list_of_linears": Foreign(Linears, (VECTORS,), linears_roles, VMAP),
    "equinox_tied": Foreign(EqxTied, (jnp.arange(12).reshape(2, 6),), TIED, VMAP),
    "one_list_of_dicts": Foreign(
        dense_list, (VECTORS,), dense_list_roles, {"call": call_dense_list}
    ),
    "kernels_out_in": Foreign(
        transposed, (VECTORS,), {"first/*": "input", "middle/*": "branch/hidden", "last/*": "readout"},
        {"call": call_transposed},
    ),
    "blocks_by_letter": Foreign(residual(lettered), (VECTORS,), NAMED),
    "weight_norm": Foreign(
        residual(weight_normed), (VECTORS,),
        blocks("up_*", "down_*") | {"wn_*": "branch/vector"} | NET | trunk(norm="vector"),
    ),
    "rezero": Foreign(residual(rezero), (VECTORS,), NAMED | {"alpha_*": "branch/scalar"}),
    "layer_scale": Foreign(residual(layer_scaled), (VECTORS,), NAMED),
    "branches_from_zero": Foreign(residual(from_zero), (VECTORS,), NAMED),
    "partitioned": Foreign(residual(boxed), (VECTORS,), NAMED),
    "bfloat16": Foreign(residual(half), (VECTORS,), NAMED),
    "width_ignored": Foreign(lambda width, depth: Residual(16, depth, layer_scaled), (VECTORS,), error="width"),
    "depth_ignored": Foreign(lambda width, depth: Residual(width, 3, layer_scaled), (VECTORS,), error="depth"),
}  # fmt: skip
