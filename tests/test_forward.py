"""Models that take no factors: where the factors go, and that training with them inside the weights is the same."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from jax.sharding import Mesh, PartitionSpec

import depthmup as dm
from depthmup.measure.hidden import with_hidden
from depthmup.reading.forward import absorb
from depthmup.reading.graph import ForwardError, Graph, contractions, sites, values_at
from depthmup.reading.graph.products import normalized
from depthmup.rules.specs import Absorbed

STEPS, OUTPUTS = 8, 5


class Residual(nn.Module):
    """h + b * Dense(tanh(Dense(norm(h)))); factors are (branch, output, attention), all 1 as a user writes it.
    sandwich: another norm behind the branch, with 1 + scale."""

    width: int
    depth: int
    scan: bool = False
    sandwich: bool = False
    factors: tuple = (1.0, 1.0, 1.0)

    @nn.compact
    def __call__(self, x):
        h = nn.Dense(self.width, name="read_in")(x)
        if self.scan:
            block = nn.scan(Branch, variable_axes={"params": 0}, split_rngs={"params": True}, length=self.depth)
            h, _ = block(self.factors[0], self.sandwich, name="blocks")(h, None)
        else:
            for i in range(self.depth):
                h, _ = Branch(self.factors[0], self.sandwich, name=f"block_{i}")(h, None)
        return self.factors[1] * nn.Dense(OUTPUTS, use_bias=False, name="readout")(nn.relu(h))


class Branch(nn.Module):
    factor: float
    sandwich: bool = False

    @nn.compact
    def __call__(self, h, _):
        f = nn.Dense(2 * h.shape[-1], name="up")(nn.LayerNorm(name="norm")(h))
        f = nn.Dense(h.shape[-1], name="down")(jnp.tanh(f))
        return h + self.factor * (OffsetNorm(name="post_norm")(f) if self.sandwich else f), None


class OffsetNorm(nn.Module):
    """As in Gemma: the scale is 1 + its parameter."""

    @nn.compact
    def __call__(self, x):
        scale = self.param("scale", nn.initializers.normal(0.1), x.shape[-1:])
        return x * jax.lax.rsqrt(jnp.mean(x**2, axis=-1, keepdims=True) + 1e-6) * (1 + scale)


class NormedConv(nn.Module):
    """A ResNet whose branches end in a batch norm, with a projection in its second stage."""

    width: int
    depth: int
    factors: tuple = (1.0, 1.0, 1.0)

    @nn.compact
    def __call__(self, x):
        def norm(name):
            return nn.BatchNorm(use_running_average=False, name=name)

        h = nn.Conv(self.width, (3, 3), name="read_in")(x)
        for stage in range(2):
            for i in range(self.depth):
                features, strides = self.width * 2**stage, 1 + (stage > 0 and i == 0)
                f = nn.Conv(features, (3, 3), strides, use_bias=False, name=f"stage{stage}_a_{i}")(nn.relu(h))
                f = nn.relu(norm(f"stage{stage}_norm_a_{i}")(f))
                f = norm(f"stage{stage}_norm_b_{i}")(
                    nn.Conv(features, (3, 3), use_bias=False, name=f"stage{stage}_b_{i}")(f)
                )
                if f.shape != h.shape:
                    h = nn.Conv(features, (1, 1), strides, use_bias=False, name=f"stage{stage}_skip_{i}")(h)
                h = h + self.factors[0] * f
        return self.factors[1] * nn.Dense(OUTPUTS, use_bias=False, name="readout")(h.mean((1, 2)))


class Transformer(nn.Module):
    """Pre-LN, causal, two heads; fused: one kernel makes queries, keys and values; tied: logits by the embedding;
    scores: how attention logits become weights; parallel: attention and MLP of a block side by side, as in GPT-J;
    sandwich: norms with 1 + scale behind branches, queries, keys and the blocks, as in Gemma."""

    width: int
    depth: int
    fused: bool = False
    tied: bool = False
    qk_norm: bool = False
    scores: str = "softmax"
    parallel: bool = False
    sandwich: bool = False
    factors: tuple = (1.0, 1.0, 1.0)

    @nn.compact
    def __call__(self, tokens):
        branch, output, attention = self.factors
        norm = OffsetNorm if self.sandwich else nn.RMSNorm
        embed = nn.Embed(OUTPUTS, self.width, name="embed")
        h = embed(tokens) + self.param("positions", nn.initializers.normal(0.1), (tokens.shape[1], self.width))
        for i in range(self.depth):
            x = nn.LayerNorm(name=f"norm1_{i}")(h)
            if self.fused:
                q, k, v = jnp.split(nn.Dense(3 * self.width, name=f"qkv_{i}")(x), 3, axis=-1)
            else:
                q, k, v = (nn.Dense(self.width, name=f"{name}_{i}")(x) for name in "qkv")
            q, k, v = (y.reshape(*y.shape[:2], 2, self.width // 2) for y in (q, k, v))
            if self.qk_norm:
                q, k = (norm(name=f"norm_{name}_{i}")(y) for name, y in (("q", q), ("k", k)))
            logits = jnp.einsum("bqhd,bkhd->bhqk", q, k) * attention / jnp.sqrt(jnp.asarray(self.width / 2, h.dtype))
            logits = 2 * jnp.tanh(logits / 2) if self.scores == "capped" else logits
            logits = jnp.where(jnp.tril(jnp.ones(logits.shape[-2:], bool)), logits, -1e9)
            weights = nn.sigmoid(logits) if self.scores == "sigmoid" else nn.softmax(logits)
            y = jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(h.shape)
            y = nn.Dense(self.width, name=f"out_{i}")(y)
            attended = h + branch * (norm(name=f"post1_{i}")(y) if self.sandwich else y)
            x = x if self.parallel else nn.LayerNorm(name=f"norm2_{i}")(attended)
            x = nn.gelu(nn.Dense(4 * self.width, name=f"up_{i}")(x))
            y = nn.Dense(self.width, name=f"down_{i}")(x)
            h = attended + branch * (norm(name=f"post2_{i}")(y) if self.sandwich else y)
        h = (norm if self.sandwich else nn.LayerNorm)(name="final_norm")(h).mean(axis=1)
        return output * (embed.attend(h) if self.tied else nn.Dense(OUTPUTS, use_bias=False, name="head")(h))


MODELS = {
    "unrolled": (Residual, {}, ()),
    "scanned": (Residual, {"scan": True}, ()),
    "batch norm": (NormedConv, {}, {"stage1_a_0/kernel": "branch"}),
    "transformer": (Transformer, {}, ()),
    "fused": (Transformer, {"fused": True}, ()),
    "tied": (Transformer, {"tied": True}, {"embed/embedding": "input"}),
    "qk norm": (Transformer, {"qk_norm": True}, ()),
    "soft-capped": (Transformer, {"scores": "capped"}, ()),
    "sigmoid": (Transformer, {"scores": "sigmoid"}, ()),
    "parallel": (Transformer, {"parallel": True}, ()),
    "scanned sandwich": (Residual, {"scan": True, "sandwich": True}, ()),
    "gemma": (Transformer, {"sandwich": True, "qk_norm": True, "tied": True}, {"embed/embedding": "input"}),
}


def inputs_of(kind):
    rng = np.random.default_rng(0)
    if kind is Transformer:
        return jnp.asarray(rng.integers(0, OUTPUTS, (4, 6)))
    return jnp.asarray(rng.standard_normal((4, 8, 8, 3) if kind is NormedConv else (4, 7)))


def network(name, width=8, depth=2):
    """(specs, apply with given factors, initial parameters, inputs)."""
    return _network(name, width, depth, jax.config.jax_enable_x64)


@functools.cache
def _network(name, width, depth, x64):  # in float64 the initial parameters are others
    kind, options, overrides = MODELS[name]
    x = inputs_of(kind)

    def init(width, depth):
        return kind(width, depth, **options).init(jax.random.key(0), x)["params"]

    @functools.cache
    def apply_with(factors):
        def apply(params, x):
            return kind(width, depth, **options, factors=factors).apply({"params": params}, x, mutable=["batch_stats"])[
                0
            ]

        return apply

    def call(width, depth, params, x):
        return kind(width, depth, **options).apply({"params": params}, x, mutable=["batch_stats"])[0]

    specs = dm.infer_specs(init, call, x, width=width, depth=depth, overrides=overrides or None)
    return specs, apply_with, init(width, depth), x


def trained(apply, params, x, tx):
    """Logits before each of STEPS steps."""
    labels = jnp.arange(len(x)) % OUTPUTS

    def loss(params):
        logits = apply(params, x)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean(), logits

    def step(carry, _):
        params, state = carry
        gradient, logits = jax.grad(loss, has_aux=True)(params)
        updates, state = tx.update(gradient, state, params)
        return (optax.apply_updates(params, updates), state), logits

    return np.asarray(jax.jit(lambda carry: jax.lax.scan(step, carry, length=STEPS)[1])((params, tx.init(params))))


OPTIMIZERS = {
    "sgd": (0.1, {}),
    "momentum": (0.03, {"weight_decay": 0.1}),
    "adamw": (0.01, {"weight_decay": 0.1, "eps": 1e-3}),
}


@pytest.mark.parametrize(
    ("name", "optimizer"),
    [(name, "adamw") for name in MODELS]
    + [(n, o) for n in ("scanned", "batch norm", "transformer", "gemma") for o in ("sgd", "momentum")],
)
def test_training_is_that_with_explicit_factors(name, optimizer, x64):
    specs, apply_with, params, x = network(name)
    params = jax.tree.map(lambda w: w.astype(jnp.float64), params)
    p = dm.parameterization("depth_mup", base_width=4, base_head_dim=2, gamma0=0.7, beta0=0.6)
    rate, options = OPTIMIZERS[optimizer]
    factors = p.forward_factors(width=8, depth=2, head_dim=4)
    explicit = (factors.branch, factors.output, factors.attention * 4**0.5)
    assert all(abs(factor - 1) > 0.1 for factor in explicit)
    tx = dm.optimizer(p, specs, optimizer, rate, **options)
    expected = trained(apply_with(explicit), dm.rescale(p, specs, params), x, tx)
    assert np.ptp(expected, axis=0).max() > 0.05  # it learns something
    unedited = apply_with((1.0, 1.0, 1.0))
    absorbed_specs, inside = absorb(specs, unedited, params, x), p.in_form("absorbed")
    tx = dm.optimizer(inside, absorbed_specs, optimizer, rate, **options)
    logits = trained(unedited, dm.rescale(inside, absorbed_specs, params), x, tx)
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-10)
    if name == "scanned":
        wrong = trained(unedited, dm.rescale(p, specs, params), x, dm.optimizer(p, specs, optimizer, rate, **options))
        assert np.abs(wrong - expected).max() > 1e-3


def absorbed(name, **shape):
    specs, apply_with, params, x = network(name, **shape)
    absorbed_specs = absorb(specs, apply_with((1.0, 1.0, 1.0)), params, x)
    leaves = jax.tree.leaves(absorbed_specs, is_leaf=lambda leaf: isinstance(leaf, dm.ParamSpec))
    return {spec.path: spec.absorbs for spec in leaves if spec.absorbs}


def test_where_the_factors_go():
    branch, output = (Absorbed("branch"),), (Absorbed("output"),)
    assert absorbed("scanned") == {
        "blocks/down/kernel": branch,
        "blocks/down/bias": branch,
        "readout/kernel": output,
    }
    ends = [f"stage{s}_norm_b_{i}/{leaf}" for s in range(2) for i in range(2) for leaf in ("scale", "bias")]
    assert absorbed("batch norm") == {**dict.fromkeys(ends, branch), "readout/kernel": output}
    absorbs = absorbed("transformer", depth=1)
    assert absorbs == {
        **{f"q_0/{leaf}": (Absorbed("attention", 4),) for leaf in ("kernel", "bias")},
        **{f"{layer}_0/{leaf}": branch for layer in ("out", "down") for leaf in ("kernel", "bias")},
        "head/kernel": output,
    }
    absorbs = absorbed("fused", depth=1)
    assert absorbs["qkv_0/kernel"] == (Absorbed("attention", 4, 1, ((0, 8),)),)
    assert absorbs["qkv_0/bias"] == (Absorbed("attention", 4, 0, ((0, 8),)),)
    assert absorbed("tied")["final_norm/scale"] == absorbed("tied")["final_norm/bias"] == output
    absorbs = absorbed("qk norm", depth=1)
    assert absorbs["norm_q_0/scale"] == (Absorbed("attention", 4),)
    assert "q_0/kernel" not in absorbs


def test_values_that_overflow_with_larger_parameters():
    """As the coordinates of EGNN, whose updates are proportional to their squares."""
    params = [jax.ShapeDtypeStruct((N, N), jnp.float32)] * 16

    def apply(params, x):
        for w in params:
            x = x + jnp.sum(x**2, -1, keepdims=True) * x @ w
        return x

    branches = [site for site in sites(apply, params, jnp.ones((4, N))) if site.kind == "branch"]
    assert [site.parts for site in branches] == [{str(i): None} for i in range(16)]


OTHERS = ("unused", "applied", "acts")


def places(apply, params, *inputs):
    """{kind: [the parameters of each site]}."""
    by_kind = {}
    for site in (site for site in sites(apply, params, *inputs) if site.kind not in OTHERS):
        by_kind.setdefault(site.kind, []).append(site.parts and sorted(site.parts))
    return by_kind


N = 8


def dense(name, *shape):
    return {
        f"{name}_w": jax.ShapeDtypeStruct(shape, jnp.float32),
        f"{name}_b": jax.ShapeDtypeStruct(shape[-1:], jnp.float32),
    }


def normed(x, scale=None):
    y = x / jnp.sqrt(jnp.mean(x**2, axis=-1, keepdims=True) + 1e-6)
    return y if scale is None else scale * y


PARAMS = {**dense("in", 3, N), **dense("a", N, N), **dense("b", N, N), **dense("v", N, N), **dense("out", N, 2)}
PARAMS |= {name: jax.ShapeDtypeStruct((N,), jnp.float32) for name in ("scale", "other")}
X = jnp.ones((4, 3))


def with_branch(branch, last=lambda p, h: h):
    """x W_in, one residual branch, what comes after it, and a readout."""

    def apply(p, x):
        h = x @ p["in_w"] + p["in_b"]
        return last(p, h + branch(p, h)) @ p["out_w"]

    return apply


def layer(p, name, x):
    return x @ p[f"{name}_w"] + p[f"{name}_b"]


BRANCHES = {
    "two layers": (lambda p, h: layer(p, "b", jnp.tanh(layer(p, "a", h))), ["b_b", "b_w"]),
    "relu at the end keeps the factor": (lambda p, h: jax.nn.relu(layer(p, "a", h)), ["a_b", "a_w"]),
    "a gate beside it": (lambda p, h: layer(p, "a", h) * jax.nn.sigmoid(layer(p, "b", h)), ["a_b", "a_w"]),
    "two parallel branches": (lambda p, h: layer(p, "a", jnp.tanh(h)) + jnp.tanh(h) @ p["b_w"], ["a_b", "a_w", "b_w"]),
    "a stack of experts": (
        lambda p, h: jnp.einsum(
            "be,bne->bn", jax.nn.softmax((h @ p["v_w"])[:, :2]), jnp.stack([layer(p, "a", h), h @ p["b_w"]], 2)
        ),
        ["a_b", "a_w", "b_w"],
    ),
    "a norm with a scale at the end": (lambda p, h: normed(layer(p, "a", h), p["scale"]), ["scale"]),
    "a scale of its own (ReZero)": (lambda p, h: p["scale"] * jnp.tanh(layer(p, "a", h)), ["scale"]),
    "swish at the end": (lambda p, h: jax.nn.silu(layer(p, "a", h)), None),
    "tanh at the end": (lambda p, h: jnp.tanh(layer(p, "a", h)), None),
    "a norm without a scale at the end": (lambda p, h: normed(layer(p, "a", h)), None),
    "a constant added at the end": (lambda p, h: layer(p, "a", h) + 1.0, None),
}


@pytest.mark.parametrize("name", BRANCHES)
def test_ends_of_branches(name):
    branch, expected = BRANCHES[name]
    assert places(with_branch(branch), PARAMS, X) == {"branch": [expected], "output": [["out_w"]]}


def test_what_is_no_residual_branch():
    """Low-rank additions, gelu's own sum, positions, a skip that nothing is computed from."""
    low_rank = with_branch(lambda p, h: 0 * h, lambda p, h: h @ p["a_w"] + h @ p["b_w"] @ p["b_w"])
    assert "branch" not in places(low_rank, PARAMS, X)
    gelu = with_branch(lambda p, h: 0 * h, lambda p, h: jax.nn.gelu(layer(p, "a", h)))
    assert "branch" not in places(gelu, PARAMS, X)
    positions = with_branch(lambda p, h: jnp.broadcast_to(p["scale"], h.shape))
    assert "branch" not in places(positions, PARAMS, X)


def test_parameters_that_act_twice():
    """A weight that the branch shares with the readout cannot be scaled in the branch alone."""
    shared = with_branch(lambda p, h: h @ p["a_w"], lambda p, h: jnp.tanh(h) @ p["a_w"])
    assert places(shared, PARAMS, X)["branch"] == [None]


def heads(p, h, weigh):
    """Attention of the batch's examples among each other: queries a, keys b, values v."""
    return weigh(layer(p, "a", h) @ layer(p, "b", h).T) @ (h @ p["v_w"])


@pytest.mark.parametrize(
    ("weigh", "expected"),
    [
        (jax.nn.softmax, ["a_b", "a_w"]),
        (jax.nn.sigmoid, ["a_b", "a_w"]),
        (lambda logits: jax.nn.relu(logits) / 4, ["a_b", "a_w"]),
        (lambda logits: jax.nn.softmax(3 * jnp.tanh(logits / 3)), ["a_b", "a_w"]),
        (lambda logits: jax.nn.softmax(jnp.clip(logits, -9, 9))[:, :4], ["a_b", "a_w"]),
        (lambda logits: jax.nn.softmax(jnp.concatenate([logits, jnp.ones((4, 1))], axis=1))[:, :4], ["a_b", "a_w"]),
    ],
    ids=["softmax", "sigmoid", "relu", "soft-capped", "clipped", "with a sink"],
)
def test_attentions(weigh, expected):
    assert places(with_branch(lambda p, h: heads(p, h, weigh)), PARAMS, X)["attention"] == [expected]


def test_attention_over_the_edges_of_a_graph():
    """Its product is no product of matrices."""
    senders, receivers = jnp.array([0, 1, 2, 3]), jnp.array([1, 2, 3, 0])

    def attend(p, h):
        q, k = layer(p, "a", h)[receivers], layer(p, "b", h)[senders]
        logits = (q * k).sum(-1) / N**0.5
        return jax.nn.softmax(logits)[:, None] * (h @ p["v_w"])[senders]

    (site,) = [site for site in sites(with_branch(attend), PARAMS, X) if site.kind == "attention"]
    assert (sorted(site.parts), site.head_dim) == (["a_b", "a_w"], N)
    assert contractions(jax.make_jaxpr(with_branch(attend))(PARAMS, X).jaxpr)[site.product] == N


def test_what_is_no_attention():
    """Gates, routers, recurrent cells, and a product of activations that is the output."""

    def cell(p, h):
        gate, new = jax.nn.sigmoid(layer(p, "a", h)), jnp.tanh(layer(p, "b", h))
        return (gate * h + (1 - gate) * new) @ p["v_w"]

    def routed(p, h):
        gates = jax.nn.softmax(heads(p, h, lambda logits: logits) @ p["v_w"])
        return jnp.einsum("be,ben->bn", gates, jnp.tile(h[:, None], (1, N, 1))) @ p["v_w"]

    swiglu = lambda p, h: (jax.nn.silu(layer(p, "a", h)) * layer(p, "b", h)) @ p["v_w"]  # noqa: E731
    linear = lambda p, h: jax.nn.silu(heads(p, h, lambda logits: logits)) @ p["v_w"]  # noqa: E731
    for branch in (cell, routed, swiglu, linear):
        assert "attention" not in places(with_branch(branch), PARAMS, X)
    assert "attention" not in places(lambda p, x: jax.nn.sigmoid(heads(p, x @ p["in_w"], lambda z: z)), PARAMS, X)


def test_queries_that_are_keys():
    """A factor of theirs would act twice on their product."""
    shared = with_branch(lambda p, h: jax.nn.softmax((z := layer(p, "a", h)) @ z.T) @ (h @ p["v_w"]))
    assert places(shared, PARAMS, X)["attention"] == [None]


def test_parallel_branches():
    """Each summand beside the skip is a branch, in whatever order they are added."""
    one = lambda p, h: jnp.tanh(h) @ p["a_w"]  # noqa: E731
    two = lambda p, h: jnp.sin(h) @ p["b_w"]  # noqa: E731
    three = lambda p, h: jnp.cos(h) @ p["v_w"]  # noqa: E731
    orders = (
        lambda p, h: h + one(p, h) + two(p, h) + three(p, h),
        lambda p, h: three(p, h) + (one(p, h) + h) + two(p, h),
    )
    for block in orders:
        apply = lambda p, x, block=block: block(p, x @ p["in_w"]) @ p["out_w"]  # noqa: E731
        assert sorted(places(apply, PARAMS, X)["branch"]) == [["a_w"], ["b_w"], ["v_w"]]


class Twice(nn.Module):
    """Every block is applied twice in a row to one stream (MobileLLM): no two calls of a tower, each with its own."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, x):
        h = nn.Dense(self.width, name="embed")(x)
        for i in range(self.depth):
            norm, layer = nn.LayerNorm(name=f"norm_{i}"), nn.Dense(self.width, name=f"block_{i}")
            for _ in range(2):
                h = h + layer(nn.relu(norm(h)))
        return nn.Dense(3, name="head")(h)


def test_a_block_that_is_applied_twice_to_one_stream_has_no_place_for_its_factor():
    with pytest.raises(ForwardError, match="homogeneous in none of its parameters alone"):
        dm.setup("depth_mup", Twice, np.ones((4, 5), np.float32), width=16, depth=2, base=(8, 2))


def test_parallel_branches_share_a_norm():
    """Both begin at the stream, before the norm."""

    def apply(p, x):
        h = x @ p["in_w"]
        normed = jnp.tanh(h * p["a_b"])
        return (h + normed @ p["a_w"] + jnp.sin(normed) @ p["b_w"]) @ p["out_w"]

    inside = [site.inside for site in sites(apply, PARAMS, X) if site.kind == "branch"]
    assert inside == [{"a_b", "a_w"}, {"a_b", "b_w"}]


def test_a_gate_in_front_of_a_norm_keeps_its_size():
    """At large weights it is 0 or 1, which no norm makes of it; a GELU in front of a norm grows with its weights."""

    def logits(gated):
        def apply(p, x):
            h = jnp.sin(x @ p["in_w"])
            y = h * jax.nn.sigmoid(h @ p["a_w"]) if gated else jax.nn.gelu(h @ p["a_w"])
            return normed(y, p["scale"]) @ p["out_w"]

        return Graph(apply, PARAMS, (X,))

    assert normalized(logits(gated=True), {"a_w"}) == frozenset()
    assert normalized(logits(gated=False), {"a_w"}) == {"a_w"}


def test_features_of_1_plus_scale_can_be_jitted():
    """Where the 1 of the program is traced."""
    _, apply_with, params, x = network("gemma")
    hidden = jax.jit(lambda params: with_hidden(apply_with((1, 1, 1)), params, x)(params)["hidden"])(params)
    np.testing.assert_allclose(hidden, with_hidden(apply_with((1, 1, 1)), params, x)(params)["hidden"], atol=1e-5)


@pytest.mark.parametrize("chosen", [lambda logits: logits, lambda logits: logits[:1], lambda logits: logits[None, 0]])
def test_bias_of_the_readout_is_not_scaled(chosen):
    def apply(p, x):
        return chosen(with_branch(lambda p, h: layer(p, "a", h))(p, x) + p["out_b"])

    assert places(apply, PARAMS, X)["output"] == [["out_w"]]


def specs_of(in_branch):
    return {
        name: dm.ParamSpec(name, "hidden", name in in_branch, shape.shape, 1, 1, N, 1) for name, shape in PARAMS.items()
    }


def test_a_readout_stored_the_other_way_round():
    specs = specs_of(["a_w", "a_b"])
    specs["out_w"] = dataclasses.replace(specs["out_w"], role="input")
    with pytest.raises(
        ForwardError, match=r"proportional to out_w .*, which shapes take for a read-in .*layout='out_in'"
    ):
        absorb(specs, with_branch(lambda p, h: layer(p, "a", h)), PARAMS, X)


def test_shapes_and_forward_pass_must_agree():
    """The norm behind a residual addition repeats with depth, but is not in the branch."""
    apply = with_branch(lambda p, h: layer(p, "a", h), lambda p, h: normed(h, p["scale"]))
    with pytest.raises(ForwardError, match=r"pass overrides=\{'scale': 'stream'\} to setup or infer"):
        absorb(specs_of(["a_w", "scale"]), apply, PARAMS, X)
    vector = {**specs_of(["a_w", "scale"]), "scale": dataclasses.replace(specs_of(["scale"])["scale"], role="vector")}
    assert absorb(vector, apply, PARAMS, X)["scale"].placed_role == "stream/vector"
    absorbed_specs = absorb(specs_of(["a_w", "a_b"]), apply, PARAMS, X)
    assert {name for name, spec in absorbed_specs.items() if spec.absorbs} == {"a_w", "a_b", "out_w"}


def test_caps_are_behind_the_output_factor():
    """The logits are the argument of a soft cap."""
    plain = with_branch(BRANCHES["two layers"][0])
    assert places(lambda p, x: 30 * jnp.tanh(plain(p, x) / 30), PARAMS, X)["output"] == [["out_w"]]
    assert places(lambda p, x: jax.nn.log_softmax(plain(p, x)), PARAMS, X)["output"] == [["out_w"]]


def test_each_head_has_the_output_factor():
    def apply(p, x):
        h = jnp.tanh(x @ p["in_w"])
        return jnp.concatenate([h @ p["out_w"] + p["out_b"], h @ p["scale"][:, None]], axis=-1)

    assert places(apply, PARAMS, X)["output"] == [["out_w"], ["scale"]]


def recurrence(before):
    """A branch that is a sum over time, read before or after each update of its state."""

    def apply(p, x):
        def step(state, y):
            after = jax.nn.sigmoid(p["scale"]) * state + y
            return after, state if before else after

        h = x @ p["in_w"]
        _, sums = jax.lax.scan(step, jnp.zeros(N), jnp.tanh(h) @ p["a_w"])
        return (h + sums) @ p["out_w"]

    return apply


@pytest.mark.parametrize("before", [True, False])
def test_recurrences_are_followed(before):
    """What acts through the state of a scan over time is inside the branch, and the factor has its place before it."""
    (branch,) = (site for site in sites(recurrence(before), PARAMS, X) if site.kind == "branch")
    assert branch.inside == {"a_w", "scale"}
    assert list(branch.parts) == ["a_w"]


def test_a_branch_that_does_not_repeat_is_left_alone():
    apply = with_branch(lambda p, h: layer(p, "a", h))
    absorbed_specs = absorb(specs_of([]), apply, PARAMS, X)
    assert {name for name, spec in absorbed_specs.items() if spec.absorbs} == {"out_w"}


def test_a_branch_that_is_zero_needs_no_factor():
    """As in the first block of queries that start at 0, whose values are 0."""
    apply = with_branch(lambda p, h: layer(p, "a", 0 * h) - p["a_b"])
    assert not places(apply, PARAMS, X)["branch"][0]
    absorb(specs_of(["a_w", "a_b"]), apply, PARAMS, X)


def test_no_place():
    with pytest.raises(
        ForwardError, match=r"branch with a_b, a_w ends with 'tanh' .*h \+ factors.branch \* branch\(h\)"
    ):
        absorb(specs_of(["a_w", "a_b"]), with_branch(BRANCHES["tanh at the end"][0]), PARAMS, X)
    with pytest.raises(
        ForwardError, match=r"logits are homogeneous in no parameters .*where a tanh caps them, its arg"
    ):
        absorb(
            specs_of(["a_w", "a_b", "b_w", "b_b"]),
            lambda p, x: jnp.square(with_branch(BRANCHES["two layers"][0])(p, x)),
            PARAMS,
            X,
        )
    with pytest.raises(ForwardError, match=r"logits are homogeneous in no parameters"):
        absorb(specs_of([]), lambda p, x: jnp.tanh(x @ p["in_w"]) @ p["a_w"] @ p["a_w"], PARAMS, X)
    with pytest.raises(
        ForwardError, match=r"one array of logits, it returns 2: outputs\[0\] \(.* Pass setup an output="
    ):
        absorb(specs_of([]), lambda p, x: (x @ p["in_w"], x @ p["in_w"]), PARAMS, X)


def test_specs_with_places_as_json():
    specs, apply_with, params, x = network("fused", depth=1)
    absorbed_specs = absorb(specs, apply_with((1.0, 1.0, 1.0)), params, x)
    assert dm.specs_from_json(dm.specs_to_json(absorbed_specs), params) == absorbed_specs


def test_nnx():
    """A model of NNX, as its users write it."""
    from flax import nnx

    class Block(nnx.Module):
        def __init__(self, width, rngs):
            self.norm, self.up = nnx.LayerNorm(width, rngs=rngs), nnx.Linear(width, 2 * width, rngs=rngs)
            self.down = nnx.Linear(2 * width, width, rngs=rngs)

        def __call__(self, h):
            return h + self.down(nnx.gelu(self.up(self.norm(h))))

    class Net(nnx.Module):
        def __init__(self, width, depth, rngs):
            self.read_in = nnx.Linear(3, width, rngs=rngs)
            self.blocks = nnx.List([Block(width, rngs) for _ in range(depth)])
            self.readout = nnx.Linear(width, 2, use_bias=False, rngs=rngs)

        def __call__(self, x):
            h = self.read_in(x)
            for block in self.blocks:
                h = block(h)
            return self.readout(h)

    def init(width, depth):
        return nnx.state(Net(width, depth, nnx.Rngs(0)), nnx.Param)

    graph, params, rest = nnx.split(Net(N, 2, nnx.Rngs(0)), nnx.Param, ...)
    specs = dm.infer_specs(init, layout="in_out", width=N, depth=2)
    absorbed_specs = absorb(specs, lambda params, x: nnx.merge(graph, params, rest)(x), params, X)
    leaves = jax.tree.leaves(absorbed_specs, is_leaf=lambda leaf: isinstance(leaf, dm.ParamSpec))
    ends = {f"blocks/{i}/down/{leaf}" for i in range(2) for leaf in ("kernel", "bias")}
    assert {spec.path for spec in leaves if spec.absorbs} == ends | {"readout/kernel"}


def test_an_embedding_before_a_scan():
    """A tied embedding acts before the scanned blocks and after them: it cannot take the output factor alone."""
    params = {
        "embed": jax.ShapeDtypeStruct((5, N), jnp.float32),
        "blocks": jax.ShapeDtypeStruct((3, N, N), jnp.float32),
    }

    def apply(p, tokens):
        h, _ = jax.lax.scan(lambda h, w: (h + jnp.tanh(h) @ w, None), p["embed"][tokens], p["blocks"])
        return h @ p["embed"].T

    by_kind = places(apply, params, jnp.arange(4))
    assert by_kind["branch"] == [["blocks"]]
    assert by_kind["output"] == [None]


def test_features_before_a_cast():
    """Logits that are cast at the end: the features are before the readout all the same."""
    apply = with_branch(BRANCHES["two layers"][0])
    params = jax.tree.map(lambda shape: jnp.full(shape.shape, 0.1), PARAMS)
    cast = with_hidden(lambda p, x: apply(p, x).astype(jnp.bfloat16), params, X)(params)
    np.testing.assert_array_equal(cast["hidden"], with_hidden(apply, params, X)(params)["hidden"])


def test_no_branch_has_the_number_of_one_that_is_not_seen():
    """The sum inside the first branch has its number around it, which the cond behind both does not have."""

    def apply(p, x):
        h = x @ p["in_w"]
        inner = jnp.tanh(h @ p["a_w"])
        h = h + (inner + jnp.tanh(inner) @ p["b_w"])
        h = h + jax.lax.cond(h.sum() > 0, lambda h: h @ p["c_w"], lambda h: h, h)
        return h @ p["out_w"]

    square = jax.ShapeDtypeStruct((N, N), jnp.float32)
    branches = [s for s in sites(apply, {**PARAMS, "b_w": square, "c_w": square}, X) if s.kind == "branch"]
    numbers = [site.number for site in branches]
    assert len(set(numbers)) == len(numbers)
    assert any(site.around for site in branches)


def test_what_a_reduction_does_with_two_numbers_is_no_call():
    def apply(p, x):
        h = jax.lax.reduce_window(x @ p["w"], -jnp.inf, lambda a, b: 2 * jnp.maximum(a, b), (1, 2), (1, 2), "VALID")
        return jax.lax.reduce(h, 0.0, lambda a, b: a + 2 * b, (1,))[:, None] @ p["v"]

    graph = Graph(apply, {"w": jnp.ones((4, 8)), "v": jnp.ones((1, 3))}, (jnp.ones((2, 4)),))
    assert [node.op for node in graph.nodes if node.place] == [
        "dot_general", "reduce_window", "reduce", "broadcast_in_dim", "dot_general"
    ]  # fmt: skip


def test_values_behind_operations_between_devices():
    """These do nothing on one device, and have no number."""
    mesh = Mesh(np.array(jax.devices()[:1]), ("model",))

    def apply(w, x):
        product = lambda w, x: jax.lax.psum(w * x, "model")  # noqa: E731
        h = jax.shard_map(product, mesh=mesh, in_specs=PartitionSpec("model"), out_specs=PartitionSpec())(w["w"], x)
        return jnp.sin(jnp.cos(h))

    w, x = {"w": jnp.full(2, 0.7)}, jnp.array([0.3, 0.4])
    places = [node.place for node in Graph(apply, w, (x,)).nodes if node.op in ("sin", "cos")]
    cosine = jnp.cos(w["w"] * x)
    np.testing.assert_allclose(values_at(places, apply, w, x), [cosine, jnp.sin(cosine)], rtol=1e-6)


@pytest.mark.parametrize("reverse", [False, True])
def test_values_at_the_steps_of_a_scan(reverse):
    """In the order in which they are computed: of a scan in a scan, behind a jit and a checkpoint; with derivatives."""
    xs = jnp.arange(1.0, 4.0)

    def apply(w, x):
        def inner(h, _):
            return jnp.sin(w["w"] * h), None

        def step(h, x):
            h = jax.checkpoint(jnp.cos)(h * x)
            return jax.lax.scan(inner, h, None, length=2)[0], None

        return jax.jit(lambda h: jax.lax.scan(step, h, xs, reverse=reverse)[0])(x)

    w, x = {"w": jnp.full(2, 0.7)}, jnp.array([0.3, 0.4])
    graph = Graph(apply, w, (x,))
    chosen = [node.place for node in graph.nodes if node.op in ("sin", "cos")]
    assert {node.op: node.times for node in graph.nodes if node.op in ("sin", "cos")} == {"cos": 3, "sin": 6}

    def expected(w):
        h, values = x, []
        for factor in xs[::-1] if reverse else xs:
            h = jnp.cos(h * factor)
            values.append(h)
            for _ in range(2):
                h = jnp.sin(w["w"] * h)
                values.append(h)
        return values

    for of in (values_at, jax.jit(values_at, static_argnums=(0, 1))):
        values = of(tuple(chosen), apply, w, x)
        np.testing.assert_allclose(values, expected(w), rtol=1e-6)
    derivative, expected_derivative = (
        jax.jacobian(of)(w) for of in (lambda w: values_at(chosen, apply, w, x)[-1], lambda w: expected(w)[-1])
    )
    np.testing.assert_allclose(derivative["w"], expected_derivative["w"], rtol=1e-5)
