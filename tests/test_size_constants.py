"""Numbers of the forward pass that change with the size of a model, as other packages' models have them."""

import functools
import re
import warnings

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import depthmup as dm
from depthmup.reading.graph import traced_program
from depthmup.reading.size_constants import Constant, constants_of_products, head_power
from depthmup.rules.specs import leaves_of
from tests.foreign.conditioned import T5Attention
from tests.foreign.models import MODELS
from tests.foreign.recurrent import WorldModel
from tests.foreign.streams import LayerNormScaling
from tests.foreign.table import TOKENS


class Transformer(nn.Module):
    """Pre-norm blocks; each field is a number that some package multiplies by, as a function of (width, depth)."""

    width: int
    depth: int
    embedding: object = lambda width, depth: 1.0
    logits: object = lambda width, depth: 1.0
    branch: object = lambda width, depth: 1.0
    attention: object = lambda head_dim: head_dim**-0.5
    queries: object = lambda head_dim: 1.0  # behind a norm of the queries
    qk_norm: bool = False
    heads: int = 4

    @nn.compact
    def __call__(self, tokens):
        def number(f, *sizes):
            return jnp.asarray(f(*sizes))

        def embed_init(key, shape, dtype=jnp.float32):
            return 0.02 * jax.random.normal(key, shape, dtype)

        table = nn.Embed(20, self.width, embedding_init=embed_init, name="embed")
        h = table(tokens) * number(self.embedding, self.width, self.depth).astype(jnp.float32)
        for i in range(self.depth):
            y, size = nn.RMSNorm(name=f"norm_{i}")(h), self.width // self.heads
            q, k, v = (nn.DenseGeneral((self.heads, size), name=f"{name}_{i}")(y) for name in "qkv")
            if self.qk_norm:  # lucidrains/x-transformers, RMSNorm
                gains = (self.param(f"gain_{name}_{i}", nn.initializers.ones, q.shape[-1:]) for name in "qk")
                sizes = (jnp.linalg.norm(part, axis=-1, keepdims=True) for part in (q, k))
                q, k = (
                    part / size * np.sqrt(q.shape[-1]) * gain
                    for part, size, gain in zip((q, k), sizes, gains, strict=True)
                )
            q = q * number(self.queries, size)
            weights = nn.softmax(number(self.attention, size) * jnp.einsum("...qhd,...khd->...hqk", q, k))
            y = jnp.einsum("...hqk,...khd->...qhd", weights, v).reshape(h.shape)
            h = h + nn.Dense(self.width, name=f"out_{i}")(y) * number(self.branch, self.width, self.depth)
        return number(self.logits, self.width, self.depth) * nn.Dense(20, use_bias=False, name="head")(nn.RMSNorm()(h))


def set_up(factory, name="depth_mup", inputs=(TOKENS,), **options):
    """(the setup, the texts of its warnings without those of the init)"""
    settings = {"width": 64, "depth": 4, "base": (32, 2), "fan_in_init": False, **options}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        m = dm.setup(name, factory, *inputs, **settings)
    return m, [str(one.message) for one in caught if one.category is dm.SetupWarning]


def warned(factory, *args, **options):
    return set_up(factory, *args, **options)[1]


def transformer(**numbers):
    return lambda width, depth: Transformer(width, depth, **numbers)


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        # google-deepmind/gemma, 03258cd, gemma/gm/nn/_modules.py
        ({"embedding": lambda w, d: jnp.sqrt(w).astype(jnp.bfloat16)},
         r"behind embed/embedding by 5.6\d* at width 32 and by 8 at width 64.* number for every width, such as 5.6"),
        # google-research/t5x, f7978d6, t5x/examples/t5/network.py
        ({"logits": lambda w, d: 1 / jnp.sqrt(w)}, r"behind head/kernel by 0.1768 at width 32 and by 0.125 at"),
        # microsoft/mup, mup/layer.py, MuReadout: its output multiplier is in the model
        ({"logits": lambda w, d: 32 / w}, r"behind head/kernel by 1 at width 32 and by 0.5 at width 64"),
        ({"branch": lambda w, d: 1 / np.sqrt(2 * d)},
         r"behind out_\*/bias by 0.5 at depth 2 and by 0.3536 at depth 4.* number for every depth"),
    ],
)  # fmt: skip
def test_numbers_that_change(numbers, message):
    (text,) = warned(transformer(**numbers))
    assert re.search(message, text)


def test_a_power_of_the_number_of_a_block():
    """LayerNorm scaling. tests/foreign/test_slopes.py measures what setup says to multiply it by."""
    (text,) = warned(functools.partial(LayerNormScaling, base=None), inputs=(np.ones((4, 5), np.float32),))
    assert re.search(r"behind block_\*_norm/bias by the power -0.5 of .* multiply it by \(depth / 2\) \*\* 0.5", text)


def test_a_number_of_the_depth_is_right_without_a_rule_of_depth():
    assert not warned(transformer(branch=lambda w, d: 1 / np.sqrt(2 * d)), "mup")


def test_no_rule_no_warning():
    assert not warned(transformer(embedding=lambda w, d: np.sqrt(w)), "sp", base=None)


@pytest.mark.parametrize(
    "numbers",
    [{}, {"embedding": lambda w, d: np.sqrt(32), "branch": lambda w, d: 0.5}, {"attention": lambda size: size**-0.25}],
)
def test_numbers_that_stay(numbers):
    assert not warned(transformer(**numbers))


ONE = {"attention": lambda size: 1.0}


@pytest.mark.parametrize(
    ("numbers", "place"),
    [
        ({}, "factor 0.5 inside q_"),
        (ONE, "factor 0.25 inside q_"),  # T5
        ({"queries": np.sqrt}, "factor 0.25 inside q_"),  # huggingface/transformers, FlaxT5Attention, FlaxGPTNeo
        # google-deepmind/gemma multiplies embeddings by the root of the width: with one head no root of a head size
        ({"embedding": lambda width, depth: np.sqrt(width), "heads": 1}, "factor 0.5 inside q_"),
        ({"attention": lambda size: 1 / size}, "factor 1 inside q_"),
        ({"attention": lambda size: size**-0.25, "queries": lambda size: size**-0.25}, "factor 0.5"),
        (ONE | {"qk_norm": True}, "factor 0.25 inside gain_q_"),
        (ONE | {"qk_norm": True, "queries": lambda size: size**-0.5}, "factor 0.5 inside gain_q_"),
    ],
)
def test_attention_goes_as_one_over_the_head_size(numbers, place):
    """Whatever power of it the model has: at 4 times the base's head size the whole factor is 1/4."""
    m, texts = set_up(transformer(**numbers))
    assert not texts
    assert f"attention {place}" in str(m.at(128, 4).explain())


class TwoAttentions(nn.Module):
    """Flax's attention, divided by sqrt(head_dim), and T5's, which is not, with heads of one size."""

    width: int
    depth: int
    names: tuple[str, str]

    @nn.compact
    def __call__(self, tokens):
        h = nn.Embed(20, self.width, name="embed")(tokens)
        for i in range(self.depth):
            flax_name, t5_name = (name.format(i, 2 * i, 2 * i + 1) for name in self.names)
            h = h + nn.MultiHeadDotProductAttention(4, name=flax_name)(nn.RMSNorm()(h))
            h = h + T5Attention(4, name=t5_name)(nn.RMSNorm()(h), None)[0]
        return nn.Dense(20, use_bias=False, name="head")(h)


@pytest.mark.parametrize("names", [("flax_{0}", "t5_{0}"), ("attn_{1}", "attn_{2}")])
def test_each_attention_has_the_power_of_its_own_numbers(names):
    factory = functools.partial(TwoAttentions, names=names)
    m = dm.setup("depth_mup", factory, TOKENS, width=128, depth=4, base=(32, 2), fan_in_init=False)
    factors = {
        spec.path: (32 / 4 / absorbed.head_dim) ** 0.5
        for spec in leaves_of(m.specs)
        for absorbed in spec.absorbs
        if absorbed.kind == "attention"
    }
    expected = {path: 0.5 if "query" in path else 0.25 for path in factors}
    assert factors == expected
    assert {*expected.values()} == {0.5, 0.25}


def test_attention_without_a_base():
    """The whole factor is 1/head_dim at every width, also of the same setup at another one."""
    m = dm.setup("depth_mup", transformer(**ONE), TOKENS, width=64, depth=4, fan_in_init=False)
    assert "attention factor 0.0625 inside q_" in str(m.explain())
    assert "attention factor 0.03125 inside q_" in str(m.at(128, 4).explain())


def test_a_readout_without_a_place_for_its_factor():
    overrides = {"posterior/kernel": "readout"}
    (message,) = warned(WorldModel, "mup", (np.ones((2, 3, 5), np.float32),), residual=False, overrides=overrides)
    assert message.startswith("overrides call posterior/kernel a readout, but the output factor has no place in it")


class UnitNorm(nn.Module):
    """lucidrains/x-transformers, RMSNorm: the number keeps the size of the entries. product: a product sums the
    squares."""

    width: int
    depth: int
    product: bool = False

    @nn.compact
    def __call__(self, x):
        h = nn.Dense(self.width, name="embed")(x)
        for i in range(self.depth):
            if self.product:
                y = h * jax.lax.rsqrt(jnp.einsum("bd,bd->b", h, h) / self.width + 1e-6)[:, None]
            else:
                y = h / jnp.maximum(jnp.linalg.norm(h, axis=-1, keepdims=True), 1e-6) * self.width**0.5
            y = y * self.param(f"gain_{i}", nn.initializers.ones, (self.width,))
            h = h + nn.Dense(self.width, name=f"block_{i}")(nn.relu(y))
        return nn.Dense(3, name="head")(h)


@pytest.mark.parametrize("product", [False, True])
def test_number_behind_a_norm(product):
    factory = functools.partial(UnitNorm, product=product)
    assert not warned(factory, inputs=(np.ones((2, 5), np.float32),))


class Auxiliary(nn.Module):
    """Beside the logits, the mean of something over the blocks."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, x):
        h, total = nn.Dense(self.width, name="embed")(x), 0.0
        for i in range(self.depth):
            y = nn.Dense(self.width, name=f"block_{i}")(nn.relu(h))
            h, total = h + y, total + jnp.max(y)
        return nn.Dense(3, name="head")(h), total / self.depth


def test_what_the_logits_do_not_depend_on():
    inputs = (np.ones((2, 5), np.float32),)
    assert not warned(Auxiliary, inputs=inputs, output=lambda out: out[0])


@pytest.mark.parametrize("name", ["convnext", "gemma2", "llama", "mamba", "t5_heads_grow", "unet", "weight_norm"])
def test_no_warning_where_only_sizes_change(name):
    """The setup that all tests of a model share: a warning of a number would have been an error."""
    _, overrides = MODELS[name].setup
    assert not overrides


def by_variance(kernel):
    """NFNet: the variance of each neuron's weights times the fan-in becomes 1."""
    return (kernel - kernel.mean(0)) * jax.lax.rsqrt(jnp.maximum(kernel.var(0) * len(kernel), 1e-4))


def by_deviation(kernel):
    """BiT, and the root of the fan-in behind it."""
    return (kernel - kernel.mean(0)) / (kernel.std(0) + 1e-5) / len(kernel) ** 0.5


class Standardized(nn.Module):
    """Weight standardization."""

    width: int
    depth: int
    standardized: object

    @nn.compact
    def __call__(self, x):
        def layer(name, h):
            return h @ self.standardized(self.param(name, nn.initializers.lecun_normal(), (h.shape[-1], self.width)))

        h = nn.Dense(self.width, name="embed")(x)
        for i in range(self.depth):
            gain = self.param(f"block_{i}_gain", nn.initializers.ones, ())
            h = h + gain * layer(f"block_{i}", nn.relu(h))
        return nn.Dense(3, name="head")(h)


@pytest.mark.parametrize("standardized", [by_variance, by_deviation])
def test_the_fan_in_under_a_root_is_no_number(standardized):
    assert not warned(functools.partial(Standardized, standardized=standardized), inputs=(jnp.ones((2, 5)),))


def test_a_number_behind_a_sum_belongs_to_both_products():
    """As the logits of Transformer-XL, of contents and of positions, are divided together."""

    def apply(params, h):
        q, k, r = (h @ params[name] for name in "qkr")
        return jnp.exp((0.5 * q @ k.T + q @ r.T) * 0.25) * 3.0

    params = {name: jax.ShapeDtypeStruct((8, 4), jnp.float32) for name in "qkr"}
    products = constants_of_products(traced_program(apply, params, (np.ones((6, 8), np.float32),)).closed, params)
    values = [[constant.value for constant in products[number]] for number in sorted(products)]
    assert values == [[0.5], [], [], [0.5, 0.25], [0.25]]


@pytest.mark.parametrize(
    ("powers", "power"),
    [
        ([], 0.0),
        ([-0.5], 0.5),
        ([-1.0], 1.0),
        ([-0.25], 0.5),  # of queries and of keys
        ([0.5, -0.5], 0.0),  # T5: a root that the initializer takes back
    ],
)
def test_power_of_the_head_size(powers, power):
    small, large = ([Constant(size**power, "kernel") for power in powers] for size in (64, 128))
    assert head_power(small, large, head_dim=64, growth=2) == power


def test_the_root_of_a_norm_is_no_power_of_the_head_size():
    """q / ||q|| * sqrt(head_dim), and logits divided by sqrt(head_dim)."""
    small, large = ([Constant(size**0.5, "scale", True), Constant(size**-0.5, "kernel")] for size in (64, 128))
    assert head_power(small, large, head_dim=64, growth=2) == 0.5
