"""How often a forward pass is traced, products of parameters, and overrides by functions that select parameters."""

import collections
import functools
import itertools
import re
import warnings

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import depthmup as dm
from experiments import reading_picture
from tests.foreign.roles import by_path, roles
from tests.foreign.stacked import call_product_of_two, product_of_two, rms
from tests.foreign.table import TOKENS, ones

eqx = pytest.importorskip("equinox")
OPTIONS = {"width": 128, "depth": 4, "base": (32, 2), "fan_in_init": False}

# Traces


TRACES = collections.Counter()  # by width and depth


class Attentive(nn.Module):
    width: int
    depth: int

    @nn.compact
    def __call__(self, x):
        TRACES[self.width, self.depth] += 1
        h = nn.Dense(self.width, name="embed")(x)
        for i in range(self.depth):
            h = h + nn.MultiHeadDotProductAttention(4, name=f"block_{i}")(nn.LayerNorm()(h))
        return nn.Dense(3, use_bias=False, name="head")(h)


def test_traces():
    """Apply at the base, at twice its depth and at the width asked for; the init, which calls it, once a shape."""
    TRACES.clear()
    dm.setup("depth_mup", Attentive, ones(2, 6, 5), **OPTIONS)
    inits = {(32, 2), (64, 2), (128, 2), (32, 4), (128, 4)}
    assert TRACES == collections.Counter([*inits, (32, 2), (32, 4), (128, 2)])


class HeadsFromAWidthOn(nn.Module):
    """Heads grow up to 32: at the base and twice its width they do, at 4 times they have the size of twice."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, x):
        h = nn.Dense(self.width, name="embed")(x)
        for i in range(self.depth):
            y, heads = nn.LayerNorm()(h), max(2, self.width // 32)
            q, k, v = (nn.Dense(self.width, name=f"block_{i}_{name}")(y) for name in "qkv")
            y = nn.dot_product_attention(*(of.reshape(*h.shape[:2], heads, -1) for of in (q, k, v))).reshape(h.shape)
            h = h + nn.Dense(self.width, name=f"block_{i}_out")(y)
        return nn.Dense(3, use_bias=False, name="head")(h)


@pytest.mark.parametrize(("width", "factor"), [(64, 0.7071), (128, 0.7071)])
def test_heads_have_the_size_that_they_have_at_the_width_asked_for(width, factor):
    m = dm.setup("depth_mup", HeadsFromAWidthOn, ones(2, 6, 5), **(OPTIONS | {"width": width}))
    assert f"attention factor {factor} inside" in str(m.explain())


# Layers that nothing calls


def test_layers_that_nothing_calls_are_no_question():
    """Logits by the embedding: no readout is there to tell projections to a fixed size from (dantinox)."""

    def factory(width, depth, key):
        first, *keys = jax.random.split(key, depth + 1)
        matrices = (jax.random.normal(key, (width, width)) * width**-0.5 for key in keys)
        blocks = [{"w": matrix, "idle": matrix[:, :8]} for matrix in matrices]
        return {"embed": jax.random.normal(first, (20, width)), "blocks": blocks, "scale": jnp.ones(width)}

    def call(params, tokens):
        h = params["embed"][tokens]
        for block in params["blocks"]:
            h = h + jax.nn.gelu(rms(h)) @ block["w"]
        return rms(h) * params["scale"] @ params["embed"].T

    m = dm.setup("depth_mup", factory, TOKENS, call=call, **OPTIONS)
    assert roles(m.specs)["blocks/1/idle"] == "output"


# Products of parameters


def call_factors(params, tokens):
    """(h @ a) @ b in the place of h @ (a @ b)."""

    def applied(h, stored):
        return h @ stored["w"] + h @ stored["a"] @ stored["b"]

    def step(h, layer):
        return h + applied(jax.nn.gelu(applied(rms(h), layer["up"])), layer["down"]), None

    return rms(jax.lax.scan(step, params["embed"][tokens], params["layers"])[0]) @ params["head"]


def said(factory, call, *inputs, **options):
    m = dm.setup("depth_mup", factory, *inputs, call=call, **OPTIONS, **options)
    return {path: (spec.placed_role, spec.fan_in, spec.fan_out) for path, spec in by_path(m.specs).items()}


def test_a_product_of_two_is_applied_as_one_factor_after_the_other():
    assert said(product_of_two, call_product_of_two, TOKENS) == said(product_of_two, call_factors, TOKENS)


def chain(width, depth, key):
    """A read-in, blocks of one weight that is a product of several, and a readout that is one of two."""
    keys = iter(jax.random.split(key, 100))

    def factors(*sizes):
        return [jax.random.normal(next(keys), pair) / pair[0] ** 0.5 for pair in itertools.pairwise(sizes)]

    layers = [factors(width, 4, 6, 3, width) for _ in range(depth)]
    return {"embed": factors(5, width), "layers": layers, "head": factors(width, 4, 3)}


def call_chain(product, params, x):
    h = product(x, params["embed"])
    for layer in params["layers"]:
        h = h + product(jnp.tanh(rms(h)), layer)
    return product(rms(h), params["head"])


@pytest.mark.parametrize(
    "product",
    [
        lambda h, factors: h @ functools.reduce(jnp.matmul, factors),
        lambda h, factors: h @ functools.reduce(lambda right, left: left @ right, factors[::-1]),
        lambda h, factors: (functools.reduce(jnp.matmul, factors).T @ h.T).T,
    ],
)
def test_products_of_several(product):
    one_by_one = functools.partial(call_chain, lambda h, factors: functools.reduce(jnp.matmul, factors, h))
    expected = said(chain, one_by_one, ones(4, 5))
    read = said(chain, functools.partial(call_chain, product), ones(4, 5))
    assert read == expected
    assert read["layers/0/0"] == ("branch/output", 128, 4)
    assert read["layers/0/3"] == ("branch/input", 3, 128)
    assert read["head/0"] == ("readout", 128, 4)


def gate(act):
    """Blocks with the entries of a product of two parameters in the place of a vector."""

    def factory(width, depth, key):
        keys = jax.random.split(key, 5)
        layers = {"a": jax.random.normal(keys[1], (depth, 6, 4)), "b": jax.random.normal(keys[2], (depth, 4, width))}
        layers["w"] = jax.random.normal(keys[3], (depth, width, width)) / width**0.5
        embed, head = jax.random.normal(keys[0], (5, width)), jax.random.normal(keys[4], (width, 3)) / width
        return {"embed": embed, "layers": layers, "head": head}

    def call(params, x):
        def step(h, layer):
            return h + (rms(h) + act(layer["a"] @ layer["b"])) @ layer["w"], None

        return rms(jax.lax.scan(step, x @ params["embed"], params["layers"])[0]) @ params["head"]

    return said(factory, call, ones(2, 6, 5))


@pytest.mark.parametrize("act", [lambda product: product, jnp.tanh])
def test_a_product_that_acts_entry_by_entry_is_a_layer_on_a_table(act):
    """As positions that a layer embeds, also behind an activation function."""
    read = gate(act)
    assert read["layers/b"] == ("branch/input", 4, 128)


def test_the_picture_of_the_page(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["", str(tmp_path / "reading.png")])
    reading_picture.main()
    assert (tmp_path / "reading.png").stat().st_size > 10_000


# Names of axes


class Declared(nn.Module):
    """A network that names the axes of its arrays; logical: for itself, else for a mesh."""

    width: int
    depth: int
    up: tuple = ("embed", "mlp")
    head: tuple = ("embed", "classes")
    logical: bool = True

    @nn.compact
    def __call__(self, x):
        declare = nn.with_logical_partitioning if self.logical else nn.with_partitioning

        def dense(size, name, names):
            return nn.Dense(size, use_bias=False, kernel_init=declare(nn.initializers.lecun_normal(), names), name=name)

        h = dense(self.width, "embed", ("features", "embed"))(x)
        for i in range(self.depth):
            y = nn.gelu(dense(2 * self.width, f"block_{i}_up", self.up)(nn.RMSNorm(name=f"block_{i}_norm")(h)))
            h = h + dense(self.width, f"block_{i}_down", ("mlp", "embed"))(y)
        return dense(3, "head", self.head)(nn.RMSNorm(name="norm")(h))


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({}, None),
        ({"head": ("embed", None)}, None),
        ({"up": ("data", "model"), "head": ("data", "model"), "logical": False}, None),
        (
            {"up": ("mlp", "embed")},
            r"sums over the axis 'embed' of block_\*_up/kernel and the axis 'mlp' of block_\*_down",
        ),
        (
            {"head": ("embed", "mlp")},
            "axes 'mlp' of block_0_down/kernel and of head/kernel have one name, only the first grows",
        ),
    ],
)
def test_names_of_axes(names, message):
    texts = warned(names)
    assert bool(texts) == bool(message)
    assert not message or any(re.search(message, text) for text in texts)


def test_an_override_silences_names():
    assert warned({"head": ("embed", "mlp")}, overrides={"head/kernel": "readout"}) == []


def warned(names, **options):
    """The texts of the SetupWarnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", dm.SetupWarning)
        dm.setup("depth_mup", functools.partial(Declared, **names), ones(4, 5), **OPTIONS, **options)
    return [str(one.message) for one in caught]


# What the program does not show


def test_what_a_callback_applies_lies_as_other_matrices_do():
    """All are stored (outputs, inputs), which the program shows of those that it applies itself."""

    def make(width, depth, key):
        shapes = {"up": (2 * width, width), "down": (width, 2 * width)}
        blocks = [{name: jax.random.normal(key, shape) for name, shape in shapes.items()} for _ in range(depth)]
        return {"embed": jnp.ones((width, 5)), "blocks": blocks, "head": jnp.ones((3, width))}

    def call(params, x):
        h = x @ params["embed"].T
        for block in params["blocks"]:
            result = jax.ShapeDtypeStruct(h.shape, h.dtype)
            y = jax.nn.relu(h @ block["up"].T)
            h = h + jax.pure_callback(lambda y, w: y @ w.T, result, y, block["down"], vmap_method="sequential")
        return h @ params["head"].T

    with pytest.warns(dm.SetupWarning, match="pure_callback"):
        m = dm.setup("depth_mup", make, ones(4, 5), **OPTIONS, call=call)
    width = m.width
    fans = {path: (spec.fan_in, spec.fan_out) for path, spec in by_path(m.specs).items()}
    assert fans["blocks/0/up"] == (width, 2 * width)
    assert fans["blocks/0/down"] == (2 * width, width)


# Overrides by functions


class Block(eqx.Module):
    up: eqx.nn.Linear
    down: eqx.nn.Linear

    def __init__(self, width, key):
        one, other = jax.random.split(key)
        self.up, self.down = eqx.nn.Linear(width, 2 * width, key=one), eqx.nn.Linear(2 * width, width, key=other)


class Equinox(eqx.Module):
    embed: eqx.nn.Linear
    blocks: list
    head: eqx.nn.Linear

    def __init__(self, width, depth, key):
        self.embed, self.head = eqx.nn.Linear(5, width, key=key), eqx.nn.Linear(width, 3, key=key)
        self.blocks = [Block(width, key) for _ in range(depth)]

    def __call__(self, x):
        h = self.embed(x)
        for block in self.blocks:
            h = h + block.down(jax.nn.gelu(block.up(h)))
        return self.head(h)


class NNXBlock(nnx.Module):
    def __init__(self, width, rngs):
        self.up, self.down = nnx.Linear(width, 2 * width, rngs=rngs), nnx.Linear(2 * width, width, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)


class NNXNet(nnx.Module):
    def __init__(self, width, depth, rngs):
        self.embed, self.head = nnx.Linear(5, width, rngs=rngs), nnx.Linear(width, 3, rngs=rngs)
        self.blocks = nnx.List([NNXBlock(width, rngs) for _ in range(depth)])

    def __call__(self, x):
        h = self.embed(x)
        for block in self.blocks:
            h = h + block.down(nnx.gelu(block.dropout(block.up(h))))
        return self.head(h)


FACTORIES = {
    "equinox": (lambda width, depth, key: Equinox(width, depth, key), {"call": lambda model, x: jax.vmap(model)(x)}),
    "nnx": (lambda width, depth, rngs: NNXNet(width, depth, rngs), {}),
}


def with_overrides(framework, overrides, **options):
    factory, more = FACTORIES[framework]
    return dm.setup("depth_mup", factory, ones(4, 5), **{**OPTIONS, **more, **options}, overrides=overrides)


@pytest.mark.parametrize("framework", FACTORIES)
def test_overrides_by_functions_that_select_parameters(framework):
    m = with_overrides(
        framework, {lambda m: m.blocks[0].up: "trunk", lambda m: [b.down.bias for b in m.blocks]: "trunk"}
    )
    named = with_overrides(framework, {"blocks/0/up/*": "trunk", "blocks/*/down/bias": "trunk"})
    assert m.specs == named.specs
    assert roles(m.specs)["blocks/0/up/bias"] == "vector"


def test_a_function_selects_at_each_depth():
    m = with_overrides("equinox", {lambda m: m.blocks[-1].up.weight: "trunk/hidden"}, width=32, depth=3)
    assert [roles(m.specs)[f"blocks/{i}/up/weight"] for i in (1, 2)] == ["branch/hidden", "hidden"]
    deep = roles(m.at(32, 5).specs)
    assert [deep[f"blocks/{i}/up/weight"] for i in (2, 4)] == ["branch/hidden", "hidden"]


def test_the_last_override_counts_whichever_kind_it_is_of():
    def net(width, depth):
        layers = [{"up": np.zeros((width, 2 * width)), "down": np.zeros((2 * width, width))} for _ in range(depth)]
        return {"embed": np.zeros((5, width)), "layers": layers, "head": np.zeros((width, 3))}

    def inferred(overrides):
        return roles(dm.infer_specs(net, layout="in_out", width=16, depth=2, overrides=overrides))["layers/0/up"]

    first, again = (lambda params: params["layers"][0]["up"] for _ in range(2))
    assert inferred({"layers/*": "branch", first: "trunk"}) == "hidden"
    assert inferred({first: "trunk", "layers/*": "branch"}) == "branch/hidden"
    assert inferred({first: "branch", "layers/*": "branch", again: "trunk"}) == "hidden"


@pytest.mark.parametrize(
    ("select", "message"),
    [
        (lambda m: m.layers, "selects no parameter of the model: AttributeError: .*layers"),
        (lambda m: m.blocks[99], "selects no parameter of the model: IndexError"),
        (lambda m: None, "selects no parameter of the model$"),
    ],
)
def test_a_function_that_selects_nothing(select, message):
    with pytest.raises(dm.SpecError, match=message):
        with_overrides("nnx", {select: "trunk"})
