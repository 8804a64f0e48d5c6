"""Models that are not ours, set up by one call: the same training as with factors written into the model."""

import ast
import functools
import pickle
import re
import warnings
from pathlib import Path

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import depthmup as dm
from depthmup.measure.probe import feature_changes
from depthmup.models import MLP, ResidualMLP, ViT, states
from depthmup.rules.specs import Absorbed, is_spec, leaves_of
from tests.test_forward import NormedConv, Residual, Transformer

WIDTH, DEPTH, BASE = 16, 4, (8, 2)
X = jax.random.normal(jax.random.key(1), (6, 8))
Y = jnp.arange(6) % 5
KEY = jax.random.key(0)
TOKENS = jnp.arange(12).reshape(2, 6) % 5
IMAGES = jax.random.normal(jax.random.key(2), (3, 8, 8, 3))


def loss(logits, targets):
    return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()


def setup(factory, *inputs, name="depth_mup", fan_in_init=False, **options):
    """At the usual shape, without a word about the init."""
    shape = {"width": WIDTH, "depth": DEPTH} | ({"base": BASE} if isinstance(name, str) else {})
    return dm.setup(name, factory, *(inputs or (X,)), fan_in_init=fan_in_init, **(shape | options))


def residual(width, depth):
    return Residual(width, depth)


# The same training as with explicit factors


def double(tree):
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.result_type(float)), tree)


def explicit(model, inputs, p):
    """(specs, initial variables) of a model of tests/test_forward.py, which takes its factors as an attribute."""
    variables = double(jax.jit(model(WIDTH, DEPTH, (1.0, 1.0, 1.0)).init)(KEY, *inputs))
    specs = dm.infer_specs(
        lambda w, d: model(w, d, (1.0, 1.0, 1.0)).init(KEY, *inputs)["params"], width=WIDTH, depth=DEPTH,
        layout="in_out",
        overrides={"stage*_[ab]_*": "branch"} if "stage1_a_0" in variables["params"] else None,
    )  # fmt: skip
    return specs, {**variables, "params": dm.rescale(p, specs, variables["params"])}


MODELS = {
    "residual": (lambda w, d, f: Residual(w, d, factors=f), X, None),
    "batch norm": (lambda w, d, f: NormedConv(w, d, factors=f), IMAGES, None),
    "transformer": (lambda w, d, f: Transformer(w, d, factors=f), TOKENS, WIDTH // 2),
}


@pytest.mark.parametrize("name", MODELS)
def test_training_is_that_with_explicit_factors(name, x64):
    """Linen models of three kinds, AdamW with decay, in float64."""
    model, x, head_dim = MODELS[name]
    x = x if x.dtype == jnp.int32 or x.dtype == jnp.int64 else jnp.asarray(x, jnp.float64)
    m = setup(lambda w, d: model(w, d, (1.0, 1.0, 1.0)), x, gamma0=2.0, beta0=0.7)
    params, state = double(jax.jit(m.model.init)(KEY))
    rescaled = m.model.join(dm.rescale(m.parameterization, m.specs, params), state)
    p = dm.parameterization(
        "depth_mup", base_width=BASE[0], base_depth=BASE[1], base_head_dim=BASE[0] // 2 if head_dim else 1,
        gamma0=2.0, beta0=0.7,
    )  # fmt: skip
    assert m.parameterization == p.in_form("absorbed")
    specs, reference = explicit(model, (x,), p)
    factors = p.forward_factors(width=WIDTH, depth=DEPTH, head_dim=head_dim)
    # Without a factor these models divide by sqrt(head_dim) themselves.
    attention = factors.attention * head_dim**0.5 if head_dim else 1.0
    changed = model(WIDTH, DEPTH, (factors.branch, factors.output, attention))

    def train(variables, apply, tx):
        params, state, losses = variables["params"], {k: v for k, v in variables.items() if k != "params"}, []

        def value(params):
            logits = apply({"params": params, **state}, x, mutable=list(state))[0]
            return jnp.mean((logits - 1) ** 2)

        @jax.jit
        def step(params, kept):
            number, grads = jax.value_and_grad(value)(params)
            updates, kept = tx.update(grads, kept, params)
            return optax.apply_updates(params, updates), kept, number

        kept = tx.init(params)
        for _ in range(4):
            params, kept, number = step(params, kept)
            losses.append(number)
        return np.array(losses)

    options = {"weight_decay": 0.1, "eps": 1e-3}
    absorbed_losses = train(rescaled, m.apply, m.optimizer("adamw", 1e-2, **options))
    explicit_losses = train(reference, changed.apply, dm.optimizer(p, specs, "adamw", 1e-2, **options))
    np.testing.assert_allclose(absorbed_losses, explicit_losses, rtol=1e-10)
    assert absorbed_losses[-1] != absorbed_losses[0]


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_optimizer_takes_variables(optimizer):
    """What Linen's init returns may be trained whole, as many examples do."""
    m = setup(residual)
    variables, tx = m.init(KEY), m.optimizer(optimizer, 0.1, weight_decay=0.1)
    updates, _ = tx.update(variables, tx.init(variables), variables)
    alone, _ = tx.update(variables["params"], tx.init(variables["params"]), variables["params"])
    jax.tree.map(np.testing.assert_array_equal, updates, {"params": alone})


def test_wrap():
    """A transformation of Optax is as the optimizer of the same name, for variables too."""
    m = setup(residual)
    variables = m.init(KEY)
    wrapped = m.wrap(optax.adamw(0.1, weight_decay=0.1))
    named = m.optimizer("adamw", 0.1, weight_decay=0.1)
    one, two = (tx.update(variables, tx.init(variables), variables)[0] for tx in (wrapped, named))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4), one, two)
    with pytest.warns(UserWarning, match="family"):
        m.wrap(optax.sgd(0.1), family="adam")


def test_a_model_that_takes_factors():
    """They are handed over; nothing is absorbed."""
    vit = lambda w, d: ViT(width=w, depth=d, heads=2, patch=4, outputs=5)  # noqa: E731
    m = setup(vit, IMAGES)
    variables = m.init(KEY)
    p = dm.parameterization("depth_mup", base_width=8, base_depth=2, base_head_dim=4)
    assert m.parameterization == p
    factors = p.forward_factors(width=WIDTH, depth=DEPTH, head_dim=8)
    expected = vit(WIDTH, DEPTH).apply(variables, IMAGES, factors)
    np.testing.assert_array_equal(m.apply(variables, IMAGES), expected)
    assert "the model takes its factors" in str(m.explain(variables))
    m = setup(lambda w, d: ResidualMLP(width=w, depth=d, outputs=5))
    assert m.model.factors.branch == 0.5**0.5


def test_apply_fills_factors_of_a_pytree_and_of_nnx():
    def forward(params, x, factors):
        h = x @ params["read_in"]
        for block in params["blocks"]:
            h = h + factors.branch * jax.nn.relu(h) @ block
        return factors.output * h @ params["head"]

    def factory(width, depth, key):
        draw = lambda a, b: jax.random.normal(key, (a, b)) / a**0.5  # noqa: E731
        blocks = [draw(width, width) for _ in range(depth)]
        return {"read_in": draw(X.shape[1], width), "blocks": blocks, "head": draw(width, 5)}

    class Module(nnx.Module):
        def __init__(self, width, depth, rngs):
            linear = functools.partial(nnx.Linear, use_bias=False, rngs=rngs)
            self.read_in, self.head = linear(X.shape[1], width), linear(width, 5)
            self.blocks = nnx.List([linear(width, width) for _ in range(depth)])

        def __call__(self, x, factors):
            blocks = [block.kernel[...] for block in self.blocks]
            return forward({"read_in": self.read_in.kernel, "blocks": blocks, "head": self.head.kernel}, x, factors)

    tree, module = setup(factory, call=forward), setup(Module)
    params, model = tree.init(KEY), module.init(KEY)
    assert tree.model.factors.branch == module.model.factors.branch == 0.5**0.5
    np.testing.assert_array_equal(tree.apply(params, X), forward(params, X, tree.model.factors))
    np.testing.assert_array_equal(module.apply(model, X), model(X, module.model.factors))


# Frameworks


class NNXBlock(nnx.Module):
    def __init__(self, width, rngs):
        self.up, self.down = (nnx.Linear(width, width, rngs=rngs) for _ in range(2))
        self.norm = nnx.BatchNorm(width, rngs=rngs)

    def __call__(self, h):
        return h + self.down(nnx.relu(self.norm(self.up(h))))


class NNX(nnx.Module):
    def __init__(self, width, depth, *, rngs):
        self.read_in, self.head = nnx.Linear(8, width, rngs=rngs), nnx.Linear(width, 5, rngs=rngs)
        self.blocks = nnx.List([NNXBlock(width, rngs) for _ in range(depth)])

    def __call__(self, x):
        h = self.read_in(x)
        for block in self.blocks:
            h = block(h)
        return self.head(h)


def equinox():
    eqx = pytest.importorskip("equinox")

    class Block(eqx.Module):
        up: eqx.nn.Linear
        down: eqx.nn.Linear
        phi: object
        steps: jax.Array

        def __init__(self, width, key):
            self.up, self.down = (eqx.nn.Linear(width, width, key=k) for k in jax.random.split(key))
            self.phi, self.steps = jax.nn.relu, jnp.zeros((), int)

        def __call__(self, h):
            return h + self.down(self.phi(self.up(h)))

    class Net(eqx.Module):
        read_in: eqx.nn.Linear
        blocks: list
        head: eqx.nn.Linear

        def __init__(self, width, depth, *, key):
            first, last, *keys = jax.random.split(key, depth + 2)
            self.read_in, self.head = eqx.nn.Linear(8, width, key=first), eqx.nn.Linear(width, 5, key=last)
            self.blocks = [Block(width, key) for key in keys]

        def __call__(self, x):
            h = self.read_in(x)
            for block in self.blocks:
                h = block(h)
            return self.head(h)

    return Net


def haiku(norm, rng=True):
    hk = pytest.importorskip("haiku")

    def factory(width, depth):
        def forward(x, training=True):
            h = hk.Linear(width, name="read_in")(x)
            for i in range(depth):
                up = hk.Linear(width, name=f"block_{i}_up")(h)
                up = hk.BatchNorm(True, True, 0.9, name=f"block_{i}_norm")(up, training) if norm else up
                h = h + hk.Linear(width, name=f"block_{i}_down")(jax.nn.relu(up))
            return hk.Linear(5, name="head")(h)

        transformed = (hk.transform_with_state if norm else hk.transform)(forward)
        return transformed if rng else hk.without_apply_rng(transformed)

    return factory


def pytree(width, depth, key):
    first, last, *keys = jax.random.split(key, depth + 2)
    normal = lambda key, *shape: jax.random.normal(key, shape) * shape[0] ** -0.5  # noqa: E731
    return {
        "read_in": normal(first, 8, width),
        "blocks": [{"up": normal(k, width, width), "down": normal(k, width, width)} for k in keys],
        "head": normal(last, width, 5),
        "steps": jnp.zeros((), int),
    }


def forward(params, x):
    h = x @ params["read_in"]
    for block in params["blocks"]:
        h = h + jax.nn.relu(h @ block["up"]) @ block["down"]
    return h @ params["head"]


CASES = {
    "nnx": lambda: (NNX, {}),
    "equinox": lambda: (equinox(), {"call": lambda model, x: jax.vmap(model)(x)}),
    "haiku": lambda: (haiku(False), {}),
    "haiku with state": lambda: (haiku(True), {}),
    "haiku without rng": lambda: (haiku(False, rng=False), {}),
    "haiku with state, without rng": lambda: (haiku(True, rng=False), {}),
    "pytree": lambda: (pytree, {"call": forward}),
}


@pytest.mark.parametrize("name", CASES)
def test_frameworks(name):
    """Branch and output factor are in the last layer of each branch and in the head; everything else is as it was."""
    factory, options = CASES[name]()
    m, plain = setup(factory, **options), setup(factory, name="sp", **options)
    params, state = m.model.split(m.init(KEY))
    before, unchanged = plain.model.split(plain.init(KEY))
    jax.tree.map(np.testing.assert_array_equal, state, unchanged)
    if name in ("equinox", "pytree"):  # an integer that is no parameter is still there
        assert len(jax.tree.leaves(state)) == (DEPTH if name == "equinox" else 1)
    paths = [s.path for s in jax.tree.leaves(m.specs, is_leaf=lambda s: isinstance(s, dm.ParamSpec))]
    for path, new, old in zip(paths, jax.tree.leaves(params), jax.tree.leaves(before), strict=True):
        # Standard deviations grow by sqrt(m) for the readout, which the output factor 1/m multiplies.
        head = "head" in path and not path.endswith(("bias", "/b"))
        factor = 0.5**0.5 if "down" in path or head else 1.0
        np.testing.assert_allclose(new, factor * old, rtol=1e-6, err_msg=path)
    tx = m.optimizer("adamw", 1e-3, weight_decay=0.1)
    updates, _ = tx.update(params, tx.init(params), params)
    logits = m.model.run(optax.apply_updates(params, updates), state, X)[0]
    assert logits.shape == (6, 5)
    assert jnp.isfinite(logits).all()


def test_as_their_users_write_it():
    """The framework's own way of calling and training what `init` returns."""
    m = setup(NNX)
    model = m.init(KEY)
    assert isinstance(model, NNX)
    optimizer = nnx.Optimizer(model, m.optimizer("adamw", 1e-2), wrt=nnx.Param)
    first = loss(model(X), Y)
    for _ in range(3):
        optimizer.update(model, nnx.grad(lambda model: loss(model(X), Y))(model))
    assert loss(model(X), Y) < first
    net = equinox()

    m = setup(net, call=lambda model, x: jax.vmap(model)(x))
    model, tx = m.init(KEY), m.optimizer("adamw", 1e-2)
    assert isinstance(model, net)
    assert model.blocks[0].phi is jax.nn.relu
    kept = tx.init(eqx.filter(model, eqx.is_inexact_array))
    grads = eqx.filter_grad(lambda model: loss(m.apply(model, X), Y))(model)
    updates, _ = tx.update(grads, kept, eqx.filter(model, eqx.is_inexact_array))
    assert loss(m.apply(eqx.apply_updates(model, updates), X), Y) < loss(m.apply(model, X), Y)


def test_linen_passes_state_through():
    m = setup(lambda w, d: NormedConv(w, d), IMAGES)
    variables = m.init(KEY)
    logits, after = m.apply(variables, IMAGES, mutable=["batch_stats"])
    before = variables["batch_stats"]
    assert jax.tree.structure(after["batch_stats"]) == jax.tree.structure(before)
    assert logits.shape == (3, 5)
    m = setup(lambda w, d: Dropped(w, d), options={"train": True})
    variables = m.init({"params": KEY, "dropout": KEY})
    one, two = (m.apply(variables, X, train=True, rngs={"dropout": jax.random.key(k)}) for k in (1, 2))
    assert (one != two).any()


class Dropped(nn.Module):
    width: int
    depth: int

    @nn.compact
    def __call__(self, x, train):
        h = nn.Dense(self.width, name="read_in")(x)
        for i in range(self.depth):
            f = nn.Dense(self.width, name=f"block_{i}")(nn.Dropout(0.5, deterministic=not train)(nn.relu(h)))
            h = h + f
        return nn.Dense(5, name="head")(h)


# The base's head size, and the factor of attention


@pytest.mark.parametrize("name", ["mup", "sp"])
def test_head_size_of_the_base(name):
    m = setup(lambda w, d: Transformer(w, d), TOKENS, name=name)
    assert m.parameterization.base_head_dim == (4 if name == "mup" else 1)
    places = str(m.explain())
    assert ("attention factor 0.7071 inside q_*/bias, " in places) == (name == "mup")
    with_base = setup(lambda w, d: Transformer(w, d), TOKENS, name=name, base_head_dim=2)
    assert with_base.parameterization.base_head_dim == 2


def test_parts_of_a_kernel_grow_with_it():
    """Places are found at the base width: the queries' part of a kernel is that of the full width."""
    m = setup(lambda w, d: Transformer(w, d, fused=True), TOKENS)
    specs = {s.path: s for s in jax.tree.leaves(m.specs, is_leaf=lambda s: isinstance(s, dm.ParamSpec))}
    assert specs["qkv_0/kernel"].shape == (16, 48)
    assert [tuple(a) for a in specs["qkv_0/kernel"].absorbs] == [("attention", 8, 1, ((0, 16),))]


# Words about the init


class Small(nn.Module):
    """As most language models: normal(0.02) everywhere."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, x):
        init = nn.initializers.normal(0.02)
        h = nn.Dense(self.width, kernel_init=init, name="read_in")(x)
        for i in range(self.depth):
            h = h + nn.Dense(self.width, kernel_init=init, name=f"block_{i}")(nn.relu(h))
        return nn.Dense(5, kernel_init=init, name="head")(h)


def test_init_that_does_not_scale():
    factory = lambda w, d: Small(w, d)  # noqa: E731
    shape = {"width": 256, "depth": 2, "base": (64, 2)}
    with pytest.warns(
        dm.SetupWarning, match=r"block_\*/kernel \(hidden\): std ~ width\^-?0.0\d .*, needed width\^-0.5"
    ) as caught:
        m = dm.setup("depth_mup", factory, X, **shape)
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dm.setup("depth_mup", factory, X, fan_in_init=False, **shape)
        corrected = dm.setup("depth_mup", factory, X, fan_in_init=True, **shape)
    plain, scaled = (jax.jit(variant.init)(KEY)["params"] for variant in (m, corrected))
    np.testing.assert_allclose(scaled["block_0"]["kernel"], plain["block_0"]["kernel"] / 2, rtol=0.02)
    np.testing.assert_allclose(scaled["head"]["kernel"], plain["head"]["kernel"] / 2, rtol=0.1)
    np.testing.assert_array_equal(scaled["read_in"]["kernel"], plain["read_in"]["kernel"])


# Words about rules that do not belong together


@pytest.mark.parametrize(
    ("settings", "options", "message"),
    [
        ({"lr_depth": 0.0}, {}, r"depth\^-0.5 the family 'adam' needs depth\^-0.5, the default: leave lr_depth out"),
        ({"lr_depth": -1.5}, {}, r"lr_depth=-1.5 makes the learning rate of block_0/down/bias and all in branches"),
        (
            {},
            {"weight_decay": 0.1, "decay": "coupled"},
            "makes the weight decay of block_0/down/kernel and others follow",
        ),
    ],
)
def test_rules_that_do_not_belong_together(settings, options, message):
    with pytest.warns(dm.SetupWarning, match=message):
        setup(residual, **settings).optimizer("adamw", 1e-3, **options)


def test_no_words_about_what_is_right():
    with warnings.catch_warnings(record=True) as words:
        warnings.simplefilter("always")
        for name in ("depth_mup", "depth_ode", "mup", "sp"):
            setup(residual, name=name).optimizer("adamw", 1e-3, weight_decay=0.1)
        setup(residual, lr_depth=0.0).optimizer("sgd", 1e-3)  # SGD's own rule at alpha 1/2
    assert words == []


# The coordinate check


def test_features_are_what_the_readout_is_applied_to():
    """The changes are those of `dm.probe` on the same model with explicit factors and a sown feature."""
    m = setup(residual)
    p = m.parameterization.in_form("mup")
    setup_probe = m.probe(loss, (X, Y), "adam", 1e-3)
    specs, _ = explicit(lambda w, d, f: Residual(w, d, factors=f), (X,), p)

    def model(factors):
        return Residual(WIDTH, DEPTH, factors=(factors.branch, factors.output, 1.0))

    def features(params, batch, factors):
        hidden = []

        def see(call, args, kwargs, context):
            hidden.extend(args if context.module.name == "readout" else ())
            return call(*args, **kwargs)

        with nn.intercept_methods(see):
            logits = model(factors).apply({"params": params}, batch[0])
        return {"hidden": hidden[0], "logits": logits}

    explicit_probe = dm.probe(
        p, specs, init=lambda key: Residual(WIDTH, DEPTH).init(key, X)["params"],
        loss=lambda params, batch, f: loss(model(f).apply({"params": params}, batch[0]), batch[1]),
        features=features, optimizer="adam", learning_rate=1e-3, batch=(X, Y),
    )  # fmt: skip
    assert setup_probe.groups == explicit_probe.groups
    groups = ("all", "branch/hidden", "input", "readout")
    changes, expected = (feature_changes(probe, groups, 2, range(3)) for probe in (setup_probe, explicit_probe))
    for group in groups[:3]:
        for quantity in ("hidden", "logits"):
            np.testing.assert_allclose(changes[group][quantity], expected[group][quantity], rtol=1e-3)
    still = changes["readout"]
    assert not still["hidden"].any()
    assert still["logits"].all()


@pytest.mark.parametrize("tied", [False, True])
def test_features_have_no_output_factor(tied):
    """A tied embedding cannot take it: it is in the last norm, whose output is looked at without it."""
    m = setup(lambda w, d: Transformer(w, d, tied=tied), TOKENS, name="mup", width=32)
    probe = m.probe(loss, (TOKENS, jnp.arange(2)), "adam", 1e-3)
    hyper = probe.hyper("all", 0)
    _, seen = probe.step(probe.init(hyper), probe.batch, hyper)
    np.testing.assert_allclose(jnp.sqrt((seen["hidden"] ** 2).mean()), 1, rtol=0.1)  # a mean over positions


@pytest.mark.slow
def test_check():
    """It passes under depth_mup and fails under sp, with no word about features or groups."""
    x = jax.random.normal(KEY, (16, 8))
    options = {"call": lambda model, x: jax.vmap(model)(x), "width": 128, "depth": 4, "base": (32, 2)}
    net, batch = equinox(), (x, jnp.arange(16) % 5)
    good = setup(net, x, **options).check(loss, batch, widths=(64, 256), depths=(4, 16), tolerance=0.2, seeds=8)
    assert good.ok, str(good)
    bad = setup(net, x, name="sp", **options).check(loss, batch, widths=(64, 256), depths=(4, 16), tolerance=0.2)
    assert bad.verdict == "not ok"
    assert {(s.axis, s.group) for s in bad.slopes if s.answer == "not ok"} >= {("width", "branch/hidden")}


# Bad input


def test_bad_input():
    for factory, message in (
        (lambda w, d: {"w": jnp.zeros((w, w))}, "gives a dict, which is neither a Linen module nor a Haiku transform"),
        (lambda w, d, key: {"w": jnp.zeros((w, w))}, "cannot be called: pass call="),
    ):
        with pytest.raises(TypeError, match=message):
            setup(factory)
    with pytest.raises(TypeError, match="for models that are called themselves"):
        setup(residual, call=forward)
    with pytest.raises(TypeError, match="part of the parameterization"):
        setup(residual, name=dm.parameterization("mup"), base=(8, 2))
    with pytest.raises(TypeError, match="part of the parameterization"):
        setup(residual, name=dm.parameterization("mup"), gamma0=2.0)
    with pytest.raises(TypeError, match=r"base must be \(width, depth\), such as base=\(64, 4\), got 16"):
        setup(residual, base=16)
    with pytest.raises(ValueError, match="base_width must be at least 1"):
        setup(residual, base=(0, 2))
    with pytest.raises(ValueError, match="width must be at least 1, got 0"):
        setup(residual, width=0)


class Pair(Residual):
    def __call__(self, x):
        return super().__call__(x), {"norm": jnp.sum(x**2)}


def test_more_than_logits():
    with pytest.raises(dm.ForwardError, match=r"outputs\[0\] \(6, 5\), outputs\[1\]\['norm'\] \(\)\. Pass"):
        setup(lambda w, d: Pair(w, d))
    assert setup(lambda w, d: Pair(w, d), output=lambda outputs: outputs[0]).specs == setup(residual).specs


def test_shapes_for_inputs():
    m, like = setup(residual, jax.ShapeDtypeStruct(X.shape, X.dtype)), setup(residual)
    assert m.specs == like.specs
    jax.tree.map(np.testing.assert_array_equal, m.init(KEY), like.init(KEY))


class PostNorm(nn.Module):
    """Layer norm after the sum of each block; once: a single block that is repeated; skipped: h itself is the skip."""

    width: int
    depth: int
    norm: bool = True
    skipped: bool = True

    @nn.compact
    def __call__(self, x):
        h = nn.Dense(self.width, name="read_in")(x)
        for i in range(self.depth):
            f = nn.relu(nn.Dense(2 * self.width, name=f"up_{i}")(h))
            f = nn.Dense(self.width, name=f"down_{i}")(f)
            h = (h if self.skipped else nn.relu(h)) + f
            h = nn.LayerNorm(name=f"norm_{i}")(h) if self.norm else h
        return nn.Dense(5, name="head")(h)


def overrides_of(error):
    """What its message says to paste."""
    return ast.literal_eval(re.search(r"overrides=(\{.*?\})", str(error))[1])


def test_norms_after_the_sum():
    """They repeat with depth and are on the stream, unless an override says otherwise, at every depth."""
    factory = lambda w, d: PostNorm(w, d)  # noqa: E731
    stream, trunk = setup(factory), setup(factory, overrides={"norm_*": "trunk"})
    for m, place in ((stream, "stream/"), (stream.at(WIDTH, 3 * DEPTH), "stream/"), (trunk, "")):
        specs = {s.path: s for s in jax.tree.leaves(m.specs, is_leaf=is_spec)}
        assert {spec.placed_role for path, spec in specs.items() if "norm" in path} == {f"{place}vector"}
        assert {path for path in specs if specs[path].absorbs and "head" not in path} == {
            path for path in specs if "down" in path
        }


def test_no_residual_addition_is_found():
    """No override makes all blocks a trunk: that would leave their branches without a factor."""
    with pytest.raises(dm.ForwardError, match=r"such as down_\*/bias repeat with depth, but none .* residual=False"):
        setup(lambda w, d: PostNorm(w, d, norm=False, skipped=False))


@pytest.mark.parametrize("name", ["sp", "mup"])
def test_a_plain_network_of_a_list(name):
    """eqx.nn.MLP has its blocks, its read-in and its readout in one list."""
    mlp = functools.partial(eqx.nn.MLP, X.shape[-1], 3)
    m = setup(lambda width, depth, key: mlp(width, depth, key=key), name=name, call=lambda model, x: jax.vmap(model)(x))
    roles = {spec.path: spec.placed_role for spec in jax.tree.leaves(m.specs, is_leaf=is_spec)}
    assert roles["layers/1/weight"] == "hidden"  # no branch, without residual=False
    assert roles[f"layers/{DEPTH}/weight"] == "readout"


class Shared(nn.Module):
    """One block, repeated, as in ALBERT."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, x):
        h = nn.Dense(self.width, name="read_in")(x)
        up, down = nn.Dense(2 * self.width, name="up"), nn.Dense(self.width, name="down")
        for _ in range(self.depth):
            h = h + down(nn.relu(up(h)))
        return nn.Dense(5, name="head")(h)


def test_weights_shared_over_depth():
    """The error says how to divide what they contribute, with the forward pass and without; foreign/streams.py does."""
    factory = lambda w, d: Shared(w, d)  # noqa: E731
    with pytest.raises(
        dm.SpecError, match=r"blocks share their weights.* h \+ branch\(h\) / depth, and pass residual="
    ):
        setup(factory)
    with pytest.raises(dm.SpecError, match="blocks share their weights"):
        dm.infer_specs(lambda w, d: Shared(w, d).init(KEY, X)["params"], layout="in_out", width=WIDTH, depth=DEPTH)


class Closed(nn.Module):
    """Blocks inside a cond (dropped layers), which are attentions or MLPs; or inside a loop of unknown length."""

    width: int
    depth: int
    kind: str = "mlp"

    @nn.compact
    def __call__(self, x):
        h, shape = nn.Dense(self.width, name="read_in")(x), (self.width, self.width)
        if self.kind == "while":
            w = self.param("w", nn.initializers.lecun_normal(), (self.depth, *shape))
            h = jax.lax.fori_loop(0, jnp.asarray(self.depth), lambda i, h: h + nn.relu(h) @ w[i], h)
        for i in range(0 if self.kind == "while" else self.depth):
            w = self.param(f"w_{i}", nn.initializers.lecun_normal(), shape)

            def mlp(h, w=w):
                return h + nn.relu(h) @ w

            def attention(h, w=w):
                return h + nn.softmax(h @ w @ h.T) @ h

            h = jax.lax.cond(x.sum() > 0, attention if self.kind == "attention" else mlp, lambda h: h, h)
        return nn.Dense(5, name="head")(h)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("mlp", r"a block with w_0 lies in a jax.lax.cond, into which .* or a scan .* take `factors`"),
        ("while", r"a block with w lies in a jax.lax.while_loop, into which .* or a scan .* take `factors`"),
    ],
)
def test_blocks_that_the_forward_pass_is_not_followed_into(kind, message):
    with pytest.raises(dm.ForwardError, match=message):
        setup(lambda w, d: Closed(w, d, kind))
    setup(lambda w, d: Closed(w, d, kind), name="mup")  # it has no branch factor


def test_attention_that_the_forward_pass_is_not_followed_into():
    with pytest.raises(dm.ForwardError, match=r"an attention lies in a jax.lax.cond"):
        setup(lambda w, d: Closed(w, d, "attention"), name="mup")


class Compared(nn.Module):
    """A sum of activations chooses between layers."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, x):
        def layer(name, h):
            w = self.param(name, nn.initializers.lecun_normal(), (self.width, self.width))
            return jax.lax.cond(h.sum() > 0, lambda h, w: h @ w, lambda h, w: 2 * h @ w, h, w)

        h = nn.Dense(self.width, name="read_in")(x)
        for i in range(self.depth):
            y = nn.gelu(layer(f"up_{i}", nn.LayerNorm(name=f"norm_{i}")(h)))
            h = h + layer(f"down_{i}", y)
        return nn.Dense(5, name="head")(h)


def test_a_sum_that_is_compared_is_no_attention():
    """It was asked for a factor of its queries and keys."""
    roles = {spec.path: (spec.placed_role, spec.absorbs) for spec in leaves_of(setup(Compared).specs)}
    assert roles["up_0"] == ("branch/hidden", ())
    assert roles["down_0"] == ("branch/hidden", (Absorbed("branch"),))


def test_a_factory_that_looks_at_numbers():
    """As quantax 0.4 does."""

    def factory(width, depth, key):
        weights = jax.random.normal(key, (5, width))
        return {"w": weights if weights[0, 0] > 0 else -weights}

    with pytest.raises(TypeError, match="looks at the numbers of an array"):
        setup(factory, call=lambda params, x: x @ params["w"])


def test_evaluation_instead_of_training():
    """Batch norm in evaluation is linear: a factor would go before it, which training does not allow."""

    class Normed(nn.Module):
        width: int
        depth: int

        @nn.compact
        def __call__(self, x, train=False):
            h = nn.Dense(self.width, name="read_in")(x)
            for i in range(self.depth):
                h = h + nn.BatchNorm(not train, name=f"norm_{i}")(nn.Dense(self.width, name=f"dense_{i}")(h))
            return nn.Dense(5, name="head")(h)

    factory = lambda w, d: Normed(w, d)  # noqa: E731
    with pytest.raises(dm.ForwardError, match=re.escape("options={'train': True}")):
        setup(factory)
    places = str(setup(factory, options={"train": True}).explain())
    assert "branch factor 0.7071 inside norm_*/bias, norm_*/scale" in places

    class Renormalized(Normed):  # as BatchRenorm, whose limits stand among the statistics and do not change
        @nn.compact
        def __call__(self, x, train=False):
            limit = self.variable("batch_stats", "limit", lambda: 3)
            return super().__call__(x + limit.value, train)

    assert "branch factor 0.7071" in str(setup(Renormalized, options={"train": True}).explain())

    class Evaluated(NNX):
        def __call__(self, x):
            self.eval()
            return super().__call__(x)

    with pytest.raises(dm.ForwardError, match="does not update the model's batch statistics"):
        setup(Evaluated)


def test_without_residual_blocks():
    factory = lambda w, d: nn.Sequential([nn.Dense(w), jnp.tanh, nn.Dense(w), jnp.tanh, nn.Dense(5)])  # noqa: E731
    with pytest.raises(dm.SpecError, match="residual=False"):
        setup(factory, name="mup")
    m = setup(factory, name="mup", residual=False)
    roles = {spec.path: (spec.role, spec.in_branch) for spec in jax.tree.leaves(m.specs, is_leaf=is_spec)}
    assert roles["layers_2/kernel"] == ("hidden", False)
    assert roles["layers_4/kernel"] == ("readout", False)


def test_heads_of_two_sizes():
    class Two(nn.Module):
        width: int
        depth: int

        @nn.compact
        def __call__(self, t):
            h = nn.Embed(7, self.width, name="embed")(t)
            for i in range(self.depth):
                h = h + nn.MultiHeadDotProductAttention(2, name=f"block_{i}_a")(h)
                h = h + nn.MultiHeadDotProductAttention(4, name=f"block_{i}_b")(h)
            return nn.Dense(7, name="head")(h)

    def queries(m):
        init = jax.tree.leaves_with_path(dm.factors(m.parameterization, m.specs).init)
        init = {jax.tree_util.keystr(path, simple=True, separator="/"): factor for path, factor in init}
        return [init[f"block_0_{name}/query/kernel"] for name in "ab"]

    at_base, wide = (setup(lambda w, d: Two(w, d), TOKENS, width=w) for w in (8, 32))
    assert at_base.parameterization.base_head_dim == 4
    assert queries(at_base) == [1, 1]
    assert queries(wide) == pytest.approx([0.5, 0.5])  # both head sizes grew by 4
    for m in (wide.under("sp").under("depth_mup"), setup(Two, TOKENS, width=32, name="sp").under("depth_mup")):
        assert queries(m) == pytest.approx([0.5, 0.5])
    one_base = setup(lambda w, d: Two(w, d), TOKENS, width=32, base_head_dim=4)  # for all attentions
    assert queries(one_base) == pytest.approx([0.5, 0.5**0.5])


# Layouts


def rows(width, depth, key):
    """As `pytree`, with matrices (out, in) and names that tell nothing."""
    first, last, *keys = jax.random.split(key, depth + 2)
    normal = lambda key, *shape: jax.random.normal(key, shape) * shape[1] ** -0.5  # noqa: E731
    return {
        "a": normal(first, width, 8),
        "blocks": [normal(k, width, width) for k in keys],
        "c": normal(last, 5, width),
    }


def forward_rows(params, x, factors=None):
    branch, output = (1.0, 1.0) if factors is None else factors[:2]
    h = x @ params["a"].T
    for w in params["blocks"]:
        h = h + branch * jax.nn.relu(h) @ w.T
    return output * h @ params["c"].T


@pytest.mark.parametrize("takes_factors", [False, True])
def test_layout(takes_factors):
    """The forward pass shows that matrices are stored (out, in)."""
    plain = lambda params, x: forward_rows(params, x)  # noqa: E731
    factory = {"call": forward_rows if takes_factors else plain}
    assert setup(rows, **factory).specs == setup(rows, layout="out_in", **factory).specs
    for m in (setup(rows, **factory), setup(rows, **factory).under("sp")):
        roles = {spec.path: (spec.role, spec.fan_in) for spec in jax.tree.leaves(m.specs, is_leaf=is_spec)}
        assert (roles["a"], roles["c"]) == (("input", 8), ("readout", 16))


def test_some_matrices_the_other_way_round():
    """Beside a layout that most matrices have, the forward pass shows those in another one, in a branch too."""

    def factory(width, depth, key):
        params = pytree(width, depth, key)
        for block in params["blocks"]:
            block["narrow"], block["wide"] = jnp.ones((3, width)), jnp.ones((3 * width, width))
            block["out"] = jnp.ones((width, 3 * width + 3))
            del block["down"]  # nothing uses it
        return params

    def call(params, x):
        h = x @ params["read_in"]
        for block in params["blocks"]:
            y = jax.nn.relu(h) @ block["up"]
            h = h + jnp.concatenate([y @ block["narrow"].T, y @ block["wide"].T], axis=-1) @ block["out"].T
        return h @ params["head"]

    m = setup(factory, call=call, overrides={"blocks/*/out": "branch/hidden oi"})
    block = m.specs["blocks"][0]
    assert (block["narrow"].role, block["narrow"].fan_in) == ("output", 16)
    assert (block["wide"].role, block["wide"].fan_in, block["wide"].fan_out) == ("hidden", 16, 48)
    assert (m.specs["read_in"].role, m.specs["head"].role) == ("input", "readout")
    placed = setup(factory, call=call, overrides={"read_in": "trunk", "blocks/*/out": "branch/hidden oi"})
    assert placed.specs == m.specs  # a place leaves the axes as they are


def test_kernels_of_convolutions_in_another_layout():
    """(out, in, *window) in a Linen module, as after PyTorch: the operation itself tells."""

    class Net(nn.Module):
        width: int
        depth: int

        @nn.compact
        def __call__(self, x):
            def conv(name, h, channels, init):
                weight = self.param(f"{name}_weight", init, (channels, h.shape[1], 3, 3))
                return jax.lax.conv_general_dilated(
                    h, weight, (1, 1), "SAME", dimension_numbers=("NCHW", "OIHW", "NCHW")
                )

            h = conv("stem", x, self.width, nn.initializers.normal(0.2))
            for i in range(self.depth):
                h = h + conv(f"block_{i}", nn.relu(h), self.width, nn.initializers.normal(self.width**-0.5))
            return nn.Dense(3, name="head")(h.mean((2, 3)))

    specs = setup(Net, jnp.ones((2, 5, 4, 4))).specs
    assert (specs["stem_weight"].role, specs["stem_weight"].fan_in) == ("input", 45)
    assert (specs["block_0_weight"].placed_role, specs["block_0_weight"].fan_in) == ("branch/hidden", 9 * WIDTH)


def test_layout_of_equinox_is_only_what_is_usual():
    """A module of one's own may hold matrices (in, out)."""
    eqx = pytest.importorskip("equinox")

    class Net(eqx.Module):
        a: jax.Array
        blocks: list
        c: jax.Array

        def __init__(self, width, depth, *, key):
            of = pytree(width, depth, key)
            self.a, self.blocks, self.c = of["read_in"], [block["up"] for block in of["blocks"]], of["head"]

        def __call__(self, x):
            h = x @ self.a
            for w in self.blocks:
                h = h + jax.nn.relu(h) @ w
            return h @ self.c

    for m in (setup(Net), setup(Net, layout="in_out")):
        assert (m.specs.a.role, m.specs.c.role) == ("input", "readout")


def test_a_head_named_as_an_embedding():
    """As EGNN has one; by its name it would be a table (outputs, width)."""
    eqx = pytest.importorskip("equinox")

    class Net(eqx.Module):
        embedding_in: eqx.nn.Linear
        blocks: list
        embedding_out: eqx.nn.Linear

        def __init__(self, width, depth, *, key):
            self.embedding_in = eqx.nn.Linear(X.shape[-1], width, key=key)
            self.blocks = [eqx.nn.Linear(width, width, key=one) for one in jax.random.split(key, depth)]
            self.embedding_out = eqx.nn.Linear(width, 3, key=key)

        def __call__(self, x):
            h = self.embedding_in(x)
            for block in self.blocks:
                h = h + jax.nn.relu(block(h))
            return self.embedding_out(h)

    specs = setup(Net, call=lambda model, x: jax.vmap(model)(x)).specs
    assert (specs.embedding_in.weight.role, specs.embedding_out.weight.role) == ("input", "readout")


def test_equinox_with_state():
    """What make_with_state makes: the call gives (outputs, state), and the optimizer trains the module."""
    eqx = pytest.importorskip("equinox")

    class Block(eqx.Module):
        up: eqx.nn.Linear
        norm: eqx.nn.BatchNorm
        down: eqx.nn.Linear

        def __init__(self, width, key):
            self.up, self.down = (eqx.nn.Linear(width, width, key=k) for k in jax.random.split(key))
            self.norm = eqx.nn.BatchNorm(width, axis_name="batch", mode="batch")

        def __call__(self, h, state):
            z, state = self.norm(self.up(h), state)
            return h + self.down(jax.nn.relu(z)), state

    class Net(eqx.Module):
        read_in: eqx.nn.Linear
        blocks: list
        head: eqx.nn.Linear

        def __init__(self, width, depth, *, key):
            first, last, *keys = jax.random.split(key, depth + 2)
            self.read_in, self.head = eqx.nn.Linear(8, width, key=first), eqx.nn.Linear(width, 5, key=last)
            self.blocks = [Block(width, key) for key in keys]

        def __call__(self, x, state):
            h = self.read_in(x)
            for block in self.blocks:
                h, state = block(h, state)
            return self.head(h), state

    def call(held, x, train=True):
        model, state = held
        model = model if train else eqx.nn.inference_mode(model)
        return jax.vmap(model, axis_name="batch", in_axes=(0, None), out_axes=(0, None))(x, state)

    factory = lambda w, d, key: eqx.nn.make_with_state(Net)(w, d, key=key)  # noqa: E731
    m = setup(factory, call=call)
    roles = {spec.path: spec.role for spec in jax.tree.leaves(m.specs, is_leaf=is_spec)}
    assert (roles["read_in/weight"], roles["blocks/1/norm/weight"]) == ("input", "vector")
    assert len(roles) == 4 + 6 * DEPTH
    model, state = m.init(KEY)
    assert isinstance(model, Net)
    logits, after = m.apply((model, state), X)
    assert logits.shape == (6, 5)
    assert not eqx.tree_equal(jax.tree.leaves(after), jax.tree.leaves(m.init(KEY)[1]))
    tx, params = m.optimizer("adamw", 1e-2), eqx.filter(model, eqx.is_inexact_array)
    tx.update(params, tx.init(params), params)
    with pytest.raises(dm.ForwardError, match="does not update the model's batch statistics"):
        setup(factory, call=call, options={"train": False})
    with pytest.raises(TypeError, match=r"expected \(module, state\)"):
        m.explain(model)
    with pytest.raises(TypeError, match="cannot be called: pass call="):
        setup(factory)


# An axis of both width and depth


class Joined(nn.Module):
    """The readout sees the features of all blocks."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, x):
        h, seen = nn.Dense(self.width, name="read_in")(x), []
        for i in range(self.depth):
            h = h + nn.Dense(self.width, name=f"block_{i}")(nn.relu(h))
            seen.append(h)
        return nn.Dense(5, name="head")(jnp.concatenate(seen, axis=-1))


def test_axis_of_width_and_depth():
    factory = lambda w, d: Joined(w, d)  # noqa: E731
    with pytest.raises(dm.SpecError, match=r"head/kernel: .* axis 0 changes with width and with depth"):
        setup(factory)
    m = setup(factory, overrides={"head/kernel": "trunk/readout"})
    assert {spec.path: spec.role for spec in jax.tree.leaves(m.specs, is_leaf=is_spec)}["head/kernel"] == "readout"


# Streams of random numbers


class Noisy(nn.Module):
    width: int
    depth: int

    @nn.compact
    def __call__(self, x, train):
        h = nn.Dense(self.width, name="read_in")(x)
        for i in range(self.depth):
            noise = jax.random.normal(self.make_rng("noise"), h.shape) if train else 0
            branch = nn.Dropout(0.1, rng_collection="droppath", deterministic=not train)(nn.relu(h + noise))
            h = h + nn.Dense(self.width, name=f"block_{i}")(branch)
        return nn.Dense(5, name="head")(h)


def test_streams_of_any_name():
    m = setup(lambda w, d: Noisy(w, d), options={"train": True})
    rngs = {"noise": jax.random.key(1), "droppath": jax.random.key(2)}
    assert m.apply(m.init(KEY), X, train=True, rngs=rngs).shape == (6, 5)
    assert "branch factor 0.7071 inside block_*/bias, block_*/kernel" in str(m.explain())


# Words about models that the parameterization does not reach


def warned(make):
    """The texts of the SetupWarnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        make()
    return [str(one.message) for one in caught if one.category is dm.SetupWarning]


class Predictor(nn.Module):
    """A second head, which the first output does not depend on."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, x):
        h = nn.Dense(self.width, name="read_in")(x)
        return nn.Dense(3, name="head")(h), nn.Dense(2, name="prior")(h)


def test_weights_that_the_output_does_not_depend_on():
    plain = functools.partial(setup, Predictor, name="mup", residual=False)
    setups = []
    (text,) = warned(lambda: setups.append(plain(output=lambda out: out[0])))
    assert text.startswith("what output= returns does not depend on prior/kernel, so that their roles come from shapes")
    (role,) = (s.role for s in jax.tree.leaves(setups[0].specs, is_leaf=is_spec) if s.path == "prior/kernel")
    assert role == "output"
    assert not warned(lambda: plain(output=lambda out: jnp.concatenate(out, -1)))


@pytest.mark.parametrize("collection", ["losses", "intermediates", None])
def test_weights_that_only_a_sown_loss_sees(collection):
    """They are named without output=; what nothing sees at all is not, as the last update of a stream."""

    class Sowing(nn.Module):
        width: int
        depth: int

        @nn.compact
        def __call__(self, x):
            h = nn.Dense(self.width, name="read_in")(x)
            prior = nn.Dense(2, name="prior")(h)
            if collection:
                self.sow(collection, "kl", (prior**2).mean())
            return nn.Dense(3, name="head")(h)

    texts = warned(lambda: setup(Sowing, name="mup", residual=False))
    assert [text.split(", so")[0] for text in texts] == (
        ["what the model returns does not depend on prior/kernel"] if collection else []
    )


def test_weights_that_only_a_sown_loss_of_nnx_sees():
    class Sowing(nnx.Module):
        def __init__(self, width, depth, rngs):
            self.read_in, self.head = nnx.Linear(8, width, rngs=rngs), nnx.Linear(width, 3, rngs=rngs)
            self.prior = nnx.Linear(width, 2, rngs=rngs)

        def __call__(self, x):
            h = self.read_in(x)
            self.sow(nnx.Intermediate, "loss", (self.prior(h) ** 2).mean())
            return self.head(h)

    (text,) = warned(lambda: setup(Sowing, name="mup", residual=False))
    assert text.startswith("what the model returns does not depend on prior/kernel, so that their roles come from")


class Projecting(nn.Module):
    """Blocks whose skips have weights."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, x):
        h = nn.Dense(self.width, name="read_in")(x)
        for i in range(self.depth):
            y = nn.Dense(self.width, name=f"block_{i}_down")(nn.relu(nn.Dense(self.width, name=f"block_{i}_up")(h)))
            h = nn.Dense(self.width, name=f"block_{i}_skip")(h) + y
        return nn.Dense(3, name="head")(h)


def test_weights_in_every_skip():
    (text,) = warned(lambda: setup(Projecting))
    assert text.startswith("the skip of every block goes through weights (block_*_skip/bias, block_*_skip/kernel)")


class Unnormed(nn.Module):
    """Blocks without norms; number: what the stream is divided by behind each; skip: what its skip is multiplied by."""

    width: int
    depth: int
    number: float = 1.0
    skip: float = 1.0

    @nn.compact
    def __call__(self, x):
        h = nn.Dense(self.width, name="read_in")(x)
        for i in range(self.depth):
            y = nn.Dense(self.width, name=f"block_{i}_down")(nn.relu(nn.Dense(self.width, name=f"block_{i}_up")(h)))
            h = (h if self.skip == 1.0 else self.skip * h) + y
            h = h if self.number == 1.0 else h / self.number
        return nn.Dense(3, name="head")(h)


def test_numbers_that_multiply_the_stream():
    """(h + f(h)) / sqrt(2), as in score networks."""
    (text,) = warned(lambda: setup(lambda width, depth: Unnormed(width, depth, 2**0.5)))
    assert text.startswith("every block multiplies the residual stream by 0.7071, so that earlier blocks fade")
    assert not warned(lambda: setup(Unnormed))
    (text,) = warned(lambda: setup(lambda width, depth: Unnormed(width, depth, skip=0.5)))
    assert text.startswith("every block multiplies the residual stream by 0.5,")
    two = warned(lambda: setup(lambda width, depth: Unnormed(width, depth, skip=(2 * depth) ** 0.25)))  # DeepNorm
    assert any(text.startswith("every block multiplies the residual stream by 1.4142") for text in two)
    assert any("by 1.414 at depth 2 and by 1.682 at depth 4" in text for text in two)


class Coordinates(nn.Module):
    """The inputs join the features once more (NeRF)."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, x):
        h = nn.relu(nn.Dense(self.width, name="first")(x))
        h = nn.relu(nn.Dense(self.width, name="joined")(jnp.concatenate([h, x], axis=-1)))
        for i in range(self.depth):
            h = h + nn.Dense(self.width, name=f"block_{i}")(nn.relu(h))
        return nn.Dense(3, name="head")(h)


def test_parts_of_fixed_size():
    (text,) = warned(lambda: setup(Coordinates, fan_in_init=None))
    assert text.startswith("joined/kernel joins a part of fixed size to one that grows with width (axis 0 is 8 + 8 at")
    assert "overrides={'joined/kernel': 'trunk/hidden'} silences this" in text
    assert not warned(lambda: setup(Coordinates, overrides={"joined/kernel": "trunk/hidden"}, fan_in_init=None))
    constant = nn.initializers.normal(0.1)

    class Constant(Coordinates):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(3, name="head")(nn.Dense(self.width, kernel_init=constant, name="joined")(
                jnp.concatenate([nn.Dense(self.width, name="first")(x), x], axis=-1)))  # fmt: skip

    with pytest.warns(dm.SetupWarning, match="joins a part of fixed size"):
        m = setup(Constant, name="mup", fan_in_init=True, residual=False)
    (row,) = (row for row in m.correction.rows if row.path == "joined/kernel")
    assert row.factor == pytest.approx(((WIDTH + 8) / (BASE[0] + 8)) ** -0.5)


class LastWithoutSkip(nn.Module):
    """The last block has no skip, at every depth, and the shapes of all others."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, x):
        h = nn.Dense(self.width, name="read_in")(x)
        for i in range(self.depth):
            y = nn.Dense(self.width, name=f"block_{i}")(nn.relu(h))
            h = y if i == self.depth - 1 else h + y
        return nn.Dense(3, name="head")(h)


def test_no_block_is_taken_for_an_entry():
    with pytest.warns(dm.SetupWarning, match="the forward pass has 1 and 3 residual additions"):
        m = setup(LastWithoutSkip)
    of = {spec.path: spec for spec in jax.tree.leaves(m.specs, is_leaf=is_spec)}
    assert [of[f"block_{i}/kernel"].in_branch for i in range(DEPTH)] == [True] * (DEPTH - 1) + [False]


class LongSkips(nn.Module):
    """The second half of the blocks adds the states of the first half again, times numbers or not; or one does."""

    width: int
    depth: int
    skips: str = "all"
    start: float | None = None

    @nn.compact
    def __call__(self, x):
        h, states = nn.Dense(self.width, name="read_in")(x), []
        for i in range(self.depth):
            if self.skips != "all" or i < self.depth // 2:
                states.append(h)
            elif self.start is None:
                h = h + states.pop()
            else:
                h = h + self.param(f"times_{i}", nn.initializers.constant(self.start), ()) * states.pop()
            h = h + nn.Dense(self.width, name=f"block_{i}")(nn.relu(nn.LayerNorm(name=f"norm_{i}")(h)))
        h = h + states[0] if self.skips == "one" else h
        return nn.Dense(3, name="head")(nn.LayerNorm(name="norm")(h))


def test_states_that_are_added_again():
    """Copies of one state add up over the blocks, unless the numbers that multiply them start at 0."""
    (text,) = warned(lambda: setup(LongSkips, base=(8, 4)))
    assert text.startswith("blocks add earlier states of the residual stream to it again. Such copies add up")
    (text,) = warned(lambda: setup(lambda width, depth: LongSkips(width, depth, start=0.1)))
    assert text.startswith("blocks add earlier states of the residual stream to it again, times times_*. Such copies")
    for silent in ({"start": 0.0}, {"skips": "one"}, {"skips": "none"}):
        assert not warned(lambda silent=silent: setup(lambda width, depth: LongSkips(width, depth, **silent)))
    assert not warned(lambda: setup(LongSkips, name="mup"))


class LinearAttention(nn.Module):
    """Products to which no weights are proportional. power: of the 1/head_dim that multiplies them. small: a number
    that does, too."""

    width: int
    depth: int
    power: float = 0.0
    small: float = 1.0

    @nn.compact
    def __call__(self, x):
        h = nn.Dense(self.width, name="embed")(x)
        for i in range(self.depth):
            q, k, v = (nn.Dense(self.width, name=f"block_{i}_{name}")(nn.LayerNorm()(h)) for name in "qkv")
            products = jnp.einsum("qd,kd->qk", nn.elu(q) + 1, nn.elu(k) + 1) * self.width**-self.power
            h = h + nn.Dense(self.width, name=f"block_{i}_out")(self.small * products @ v + v)
        return nn.Dense(3, name="head")(nn.LayerNorm(name="norm")(h))


def test_products_without_a_softmax_or_a_place_for_their_factor():
    for form in ({}, {"power": 0.5}, {"small": 1e-4}):
        (text,) = warned(lambda form=form: setup(lambda width, depth: LinearAttention(width, depth, **form)))
        assert text.startswith("products of activations made by block_*_k/kernel, block_*_q/kernel sum over")
    assert not warned(lambda: setup(lambda width, depth: LinearAttention(width, depth, 1.0)))


class FactoredPostNorm(nn.Module):
    """The norms after the sums of a model that takes factors."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, x, factors):
        h = nn.Dense(self.width, name="read_in")(x)
        for i in range(self.depth):
            branch = factors.branch * nn.Dense(self.width, name=f"block_{i}")(nn.relu(h))
            h = nn.LayerNorm(name=f"norm_{i}")(h + branch)
        return factors.output * nn.Dense(3, name="head")(h)


def test_norms_after_the_sum_of_a_model_with_factors():
    for m in (setup(FactoredPostNorm), setup(FactoredPostNorm).at(WIDTH, 3 * DEPTH)):
        roles = {spec.path.split("_")[0]: spec.placed_role for spec in jax.tree.leaves(m.specs, is_leaf=is_spec)}
        assert (roles["norm"], roles["block"]) == ("stream/vector", "branch/hidden")


class NormedQueries(nn.Module):
    """Norms without a scale behind queries and keys: heads of one size, or as many heads at every width. condition: all
    blocks but the first add the inputs, times numbers of an array, whose first multiplies the first state."""

    width: int
    depth: int
    head_dim: int | None = 4
    condition: bool = False

    @nn.compact
    def __call__(self, x):
        norm, h = nn.RMSNorm(use_scale=False), nn.Dense(self.width, name="read_in")(x)
        if self.condition:
            again = nn.Dense(self.width, name="again")(x)
            numbers = self.param("numbers", nn.initializers.zeros, (self.depth,))
            h = h * (1 + numbers[0])
        for i in range(self.depth):
            h = h + numbers[i] * again if self.condition and i else h
            heads = self.width // self.head_dim if self.head_dim else 2
            q, k, v = (nn.DenseGeneral((heads, self.width // heads), name=f"block_{i}_{name}")(h) for name in "qkv")
            mixed = nn.dot_product_attention(norm(q), norm(k), v).reshape(h.shape)
            h = h + nn.Dense(self.width, name=f"block_{i}_out")(mixed)
        return nn.Dense(3, name="head")(norm(h))


def test_heads_of_one_size_need_no_place_for_the_attention_factor():
    tokens = np.ones((2, 6, 5), np.float32)
    text = str(setup(NormedQueries, tokens).explain())
    assert "branch factor" in text
    assert "attention" not in text
    deep = setup(
        lambda w, d: NormedQueries(w, d, condition=True), tokens, depth=2 * DEPTH
    )  # no shallow model tells all
    assert deep.specs["numbers"].absorbs == (Absorbed("branch", 0, 0, ((1, 2 * DEPTH),)),)
    for refused in ({"factory": lambda w, d: NormedQueries(w, d, None), "width": BASE[0]}, {"base": None}):
        with pytest.raises(dm.ForwardError, match=r"queries and keys that .* make are homogeneous in no"):
            setup(*(refused.pop("factory", NormedQueries), tokens), **refused)


class Pooled(nn.Module):
    """The mean over as many positions as the base has neurons, right behind a scale."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, x):
        h = nn.Dense(self.width, name="read_in")(x)
        for i in range(self.depth):
            h = h + nn.Dense(self.width, name=f"block_{i}")(nn.relu(nn.RMSNorm(name=f"norm_{i}")(h)))
        scale = self.param("scale", nn.initializers.ones, (self.width,))
        return nn.Dense(3, name="head")((h * scale).mean(1))


def test_a_scale_before_a_mean_over_positions():
    """Shapes do not tell it from a vector that the sum runs over."""
    m = setup(Pooled, np.ones((2, BASE[0], 5), np.float32))
    assert {spec.path: spec.role for spec in jax.tree.leaves(m.specs, is_leaf=is_spec)}["scale"] == "vector"


def test_deep_networks_without_norms():
    """Their activations grow with every block; the random numbers of the forward pass must stay finite."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        m = dm.setup("depth_mup", Unnormed, np.ones((2, 5), np.float32), width=128, depth=48, base=(64, 32))
    assert "inside block_*_down/bias, block_*_down/kernel" in str(m.explain())


class InTurn(nn.Module):
    """Two streams of width numbers; nothing depends on the last update of the second."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, x):
        h, z = nn.Dense(self.width, name="first")(x), nn.Dense(self.width, name="second")(x)
        for i in range(self.depth):
            h = h + nn.Dense(self.width, name=f"block_{i}_to_first")(nn.relu(z))
            z = z + nn.Dense(self.width, name=f"block_{i}_to_second")(nn.relu(h))
        return nn.Dense(3, name="head")(h)


def test_an_update_on_which_nothing_depends():
    assert not warned(lambda: setup(InTurn))


def test_no_branches():
    factory = lambda w, d: Joined(w, d)  # noqa: E731
    alone = {"residual": False, "overrides": {"head/kernel": "readout"}}
    (message,) = warned(lambda: setup(factory, **alone))
    assert "no parameter is in one: depth changes nothing" in message
    assert not warned(lambda: setup(factory, name="mup", **alone))


class Injected(nn.Module):
    """Takes factors, and uses those that `uses` names."""

    width: int
    depth: int
    uses: tuple[str, ...]
    head_dim: int

    @nn.compact
    def __call__(self, tokens, factors):
        f = factors._replace(**{kind: 1.0 for kind in ("branch", "output") if kind not in self.uses})
        h = nn.Embed(7, self.width, embedding_init=nn.initializers.normal(1.0), name="embed")(tokens)
        for i in range(self.depth):
            q, k, v = (nn.DenseGeneral((2, self.width // 2), name=f"{name}_{i}")(h) for name in "qkv")
            scale = f.attention if "attention" in self.uses else (self.width // 2) ** -0.5
            weights = nn.softmax(scale * jnp.einsum("bqhd,bkhd->bhqk", q, k))
            mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, v)
            h = h + f.branch * nn.DenseGeneral(self.width, axis=(-2, -1), name=f"out_{i}")(mixed)
        return f.output * nn.Dense(7, use_bias=False, name="head")(h)


def test_factors_that_a_model_ignores():
    every = ("branch", "output", "attention")
    of = lambda uses: lambda w, d: Injected(w, d, uses, w // 2)  # noqa: E731
    assert not warned(lambda: setup(of(every), TOKENS))
    (message,) = warned(lambda: setup(of(("branch", "output")), TOKENS))
    assert "does not use factors.attention (as in softmax(factors.attention * q k), without 1/sqrt(head_dim)" in message
    assert "factors.branch" not in message
    (message,) = warned(lambda: setup(of(("attention",)), TOKENS))
    assert "factors.branch (as in " in message
    assert "factors.output (as in " in message
    assert not warned(lambda: setup(of(every), TOKENS, name="sp"))
    assert not warned(lambda: setup(lambda w, d: ResidualMLP(width=w, depth=d, outputs=5)))  # without attention


class Headless(nn.Module):
    width: int
    depth: int
    several: bool = False

    @nn.compact
    def __call__(self, tokens, factors):
        every = ("branch", "output", "attention")
        logits = Injected(self.width, self.depth, every, 0)(tokens, factors)
        return logits + Injected(self.width // 2, self.depth, every, 0)(tokens, factors) if self.several else logits


def test_head_size_comes_from_the_forward_pass():
    with_attribute = setup(lambda w, d: Injected(w, d, ("branch", "output", "attention"), w // 2), TOKENS)
    without = setup(lambda w, d: Headless(w, d), TOKENS)
    assert without.parameterization == with_attribute.parameterization
    assert without.model.factors == with_attribute.model.factors
    assert without.at(64, 16).model.factors == with_attribute.at(64, 16).model.factors


def test_one_attention_factor_is_for_heads_of_one_size():
    with pytest.raises(dm.ForwardError, match=r"its heads have several sizes: leave the factor out"):
        setup(lambda w, d: Headless(w, d, several=True), TOKENS)


def test_wrap_has_the_words_of_optimizer():
    (message,) = warned(lambda: setup(residual, lr_depth=0.0).wrap(optax.adamw(1e-3)))
    assert "the family 'adam' needs depth^-0.5" in message
    assert not warned(lambda: setup(residual, lr_depth=0.0).wrap(optax.sgd(1e-3)))


class Divided(nn.Module):
    """Branches are divided by sqrt(2 depth) in the init."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, x):
        h = nn.Dense(self.width, name="read_in")(x)
        init = nn.initializers.variance_scaling(0.5 / self.depth, "fan_in", "normal")
        for i in range(self.depth):
            h = h + nn.Dense(self.width, kernel_init=init, name=f"block_{i}")(nn.relu(h))
        return nn.Dense(5, name="head")(h)


def test_a_warning_is_given_once():
    """For all blocks, and for all shapes of a setup."""
    (message,) = warned(lambda: setup(lambda w, d: Divided(w, d), base=(64, 4), fan_in_init=None))
    assert re.findall(r"\n  (\S+) ", message) == ["block_*/kernel"]
    m = setup(residual, lr_depth=0.0)
    assert len(warned(lambda: [m.at(w, 4).optimizer("adam", 1e-3) for w in (8, 16)])) == 1


# AM-muP


HE = nn.initializers.he_normal()


class Plain(nn.Module):
    """z <- W relu(z); named: layers have names, and their number is the depth without the read-in."""

    width: int
    depth: int
    named: bool = True

    @nn.compact
    def __call__(self, x):
        for i in range(self.depth):
            x = nn.relu(nn.Dense(self.width, kernel_init=HE, name=f"layer_{i}" if self.named and i else None)(x))
        if self.named:
            x = nn.relu(nn.Dense(self.width, kernel_init=HE, name=f"layer_{self.depth}")(x))
        return nn.Dense(5, name="head" if self.named else None)(x)


class PlainScanned(nn.Module):
    width: int
    depth: int

    @nn.compact
    def __call__(self, x):
        layer = nn.scan(PlainLayer, variable_axes={"params": 0}, split_rngs={"params": True}, length=self.depth)
        z, _ = layer(name="layers")(nn.Dense(self.width, kernel_init=HE, name="read_in")(x), None)
        return nn.Dense(5, name="head")(nn.relu(z))


class PlainLayer(nn.Module):
    @nn.compact
    def __call__(self, z, _):
        return nn.Dense(z.shape[-1], kernel_init=HE, name="dense")(nn.relu(z)), None


class PlainNNX(nnx.Module):
    def __init__(self, width, depth, rngs):
        self.read_in, self.head = nnx.Linear(8, width, kernel_init=HE, rngs=rngs), nnx.Linear(width, 5, rngs=rngs)
        self.layers = nnx.List([nnx.Linear(width, width, kernel_init=HE, rngs=rngs) for _ in range(depth)])

    def __call__(self, x):
        z = self.read_in(x)
        for layer in self.layers:
            z = layer(nnx.relu(z))
        return self.head(nnx.relu(z))


def plain_equinox():
    eqx = pytest.importorskip("equinox")
    return lambda width, depth, key: eqx.nn.MLP(8, 5, width, depth, key=key)


PLAIN = {
    "linen": lambda: (lambda w, d: Plain(w, d), {}),
    "linen, names by number": lambda: (lambda w, d: Plain(w, d, named=False), {}),
    "scanned": lambda: (lambda w, d: PlainScanned(w, d), {}),
    "takes factors": lambda: (lambda w, d: MLP(width=w, depth=d, outputs=5), {}),
    "nnx": lambda: (PlainNNX, {}),
    "equinox": lambda: (plain_equinox(), {"call": lambda model, x: jax.vmap(model)(x)}),
}


@pytest.mark.parametrize("name", PLAIN)
def test_am_mup_of_a_plain_network(name):
    """Its layers are hidden ones outside any branch, without an override: the model's own init, and LRs of L^-3/2."""
    factory, options = PLAIN[name]()
    m = setup(factory, name="am_mup", width=64, base=(64, 2), **options)
    leaves = jax.tree.leaves(m.specs, is_leaf=is_spec)
    assert sum(spec.role == "hidden" for spec in leaves) >= (1 if name in ("scanned", "takes factors") else 3)
    assert not any(spec.in_branch for spec in leaves)
    assert {spec.factors(m.parameterization, "sgd").init for spec in leaves} == {1.0}
    assert {spec.factors(m.parameterization, "sgd").lr for spec in leaves} == {2**-1.5}


def test_am_mup_keeps_the_signal_of_a_plain_network():
    """With 1/sqrt(K) in each of K layers the logits of 16 layers were 5e-8 of these, and no learning rate trained."""
    keys = jax.random.split(KEY, 16)
    for name in ("am_mup", "sp"):
        setups = [dm.setup(name, lambda w, d: PlainScanned(w, d), X, width=128, depth=depth) for depth in (4, 16, 32)]
        logits = [jax.jit(jax.vmap(lambda key, m=m: m.apply(m.init(key), X)))(keys) for m in setups]
        stds = [float(jnp.sqrt(jnp.square(of).mean())) for of in logits]
        assert max(stds) < 2 * min(stds), (name, stds)
    m = dm.setup("am_mup", lambda w, d: PlainScanned(w, d), X, width=64, depth=16, base=(64, 4), fan_in_init=False)
    variables, tx = m.init(KEY), m.optimizer("sgd", 0.1)

    @jax.jit
    def step(variables, kept):
        value, grads = jax.value_and_grad(lambda v: loss(m.apply(v, X), Y))(variables)
        updates, kept = tx.update(grads, kept)
        return optax.apply_updates(variables, updates), kept, value

    kept, losses = tx.init(variables), []
    for _ in range(100):
        variables, kept, value = step(variables, kept)
        losses.append(value)
    assert losses[-1] < losses[0] / 2


def test_am_mup_of_residual_networks_is_as_it_was():
    """Every weight of a branch starts with 1/sqrt(K), m_L = 2, in all ways of writing h + branch(h)."""
    cases = {name: make() for name, make in CASES.items() if "haiku" not in name}
    cases |= {"linen": (residual, {}), "scanned": (lambda w, d: Residual(w, d, scan=True), {})}
    cases |= {"transformer": (lambda w, d: Transformer(w, d, parallel=True), {})}
    for name, (factory, options) in cases.items():
        inputs = (TOKENS,) if name == "transformer" else ()
        m = setup(factory, *inputs, name="am_mup", lr_depth=0.0, **options)
        leaves = jax.tree.leaves(m.specs, is_leaf=is_spec)
        inside = {spec.path for spec in leaves if spec.in_branch}
        assert inside == {s.path for s in jax.tree.leaves(setup(factory, *inputs, **options).specs, is_leaf=is_spec)
                          if s.in_branch}  # fmt: skip
        of = {spec.path: spec.factors(m.parameterization, "sgd").init for spec in leaves}
        weights = {spec.path for spec in leaves if spec.in_branch and spec.role != "vector"}
        assert {path for path, init in of.items() if init != 1} == weights, name
        assert all(of[path] == 2**-0.5 for path in weights), name


class Mixed(nn.Module):
    """Blocks with a plain layer between them, and a norm after their sum."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, x):
        h = nn.Dense(self.width, name="read_in")(x)
        for i in range(self.depth):
            h = nn.LayerNorm(name=f"norm_{i}")(h + nn.Dense(self.width, name=f"branch_{i}")(nn.relu(h)))
            h = nn.Dense(self.width, name=f"plain_{i}")(nn.relu(h))
        return nn.Dense(5, name="head")(h)


class Injection(nn.Module):
    """z <- W relu(z) + V relu(U x): a sum of two activations, none of which the other is computed from."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, x):
        z = nn.Dense(self.width, name="read_in")(x)
        for i in range(self.depth):
            u = nn.relu(nn.Dense(self.width, name=f"first_{i}")(x))
            z = nn.Dense(self.width, name=f"layer_{i}")(nn.relu(z)) + nn.Dense(self.width, name=f"second_{i}")(u)
        return nn.Dense(5, name="head")(z)


def test_am_mup_leaves_plain_layers_beside_blocks():
    m = setup(lambda w, d: Mixed(w, d), name="am_mup")
    of = {spec.path: spec for spec in jax.tree.leaves(m.specs, is_leaf=is_spec)}
    inits = {path: spec.factors(m.parameterization, "sgd").init for path, spec in of.items()}
    assert inits["branch_0/kernel"] == 2**-0.5
    assert {inits["plain_0/kernel"], inits["norm_0/scale"], inits["read_in/kernel"]} == {1.0}
    assert of["plain_0/kernel"].role == "hidden"
    m = setup(lambda w, d: Mixed(w, d), name="am_mup", overrides={"plain_*": "branch"})
    of = {spec.path: spec for spec in jax.tree.leaves(m.specs, is_leaf=is_spec)}
    assert of["plain_0/kernel"].factors(m.parameterization, "sgd").init == 2**-0.5


def test_am_mup_asks_what_a_sum_is():
    """Both answers of the error hold at another depth."""
    with pytest.raises(dm.ForwardError, match=r"first_\*/kernel repeat .* no h \+ branch\(h\)") as error:
        setup(lambda w, d: Injection(w, d), name="am_mup")
    residual = overrides_of(error.value)
    assert set(residual.values()) == {"branch"}
    for place, init in (("branch", 2**-0.5), ("trunk", 1.0)):
        m = setup(lambda w, d: Injection(w, d), name="am_mup", overrides=dict.fromkeys(residual, place))
        for specs in (m.specs, m.at(WIDTH, 4).specs):
            of = {spec.path: spec for spec in jax.tree.leaves(specs, is_leaf=is_spec)}
            assert of["layer_3/kernel"].factors(m.parameterization, "sgd").init == init


def test_am_mup_of_branches_of_several_layers():
    """The words name the layers and the measured exponents; either way out, pasted, ends them."""
    two = {
        "linen": (residual, (), {}, "block_*/down/kernel"),
        "scanned": (lambda w, d: Residual(w, d, scan=True), (), {}, "blocks/down/kernel"),
        "pytree": (pytree, (), {"call": forward}, "blocks/*/down"),
        "transformer": (lambda w, d: Transformer(w, d), (TOKENS,), {}, None),
    }
    results = (Path(__file__).parent.parent / "docs" / "results.md").read_text()
    for name, (factory, inputs, options, last) in two.items():
        (message,) = warned(lambda: setup(factory, *inputs, name="am_mup", **options))  # noqa: B023
        ways = dict(re.findall(r"(lr_depth|branch_init)=('.*?'|\S+?)(?=[ ;,]|$)", message))
        assert ways.keys() == {"lr_depth", "branch_init"} - (set() if last else {"branch_init"}), name
        assert ast.literal_eval(ways.get("branch_init", "None")) == last
        for measured in re.findall(r"depth\^(\S+ \[.*?\])", message):
            assert measured in results
        for way, value in ways.items():
            again = {**options, way: ast.literal_eval(value)}
            assert not warned(lambda: setup(factory, *inputs, name="am_mup", **again)), name  # noqa: B023
    m = setup(residual, name="am_mup", branch_init="block_*/down/kernel")
    of = {s.path: s.factors(m.parameterization, "sgd").init for s in jax.tree.leaves(m.specs, is_leaf=is_spec)}
    assert {path for path, init in of.items() if init != 1} == {f"block_{i}/down/kernel" for i in range(DEPTH)}


def test_am_mup_of_layers_behind_a_norm():
    """One layer of a branch, or two with a norm between them, which takes the size of the first away: no words."""
    assert not warned(lambda: setup(NNX, name="am_mup"))
    assert not warned(lambda: setup(lambda w, d: ResidualMLP(width=w, depth=d, outputs=5), name="am_mup"))
    assert not warned(lambda: setup(residual, name="am_mup", lr_depth=-1.0))


def test_am_mup_has_no_branch_for_beta0():
    (message,) = warned(lambda: setup(lambda w, d: Plain(w, d), name="am_mup", beta0=2.0))
    assert "beta0=2 multiplies residual branches, but no parameter is in one" in message


# What depth counts


class Stages(nn.Module):
    """Stages of 2, 3, 4, ... blocks, or with `extra` one block more than the depth."""

    width: int
    depth: int
    extra: bool = False

    @nn.compact
    def __call__(self, x):
        h = nn.Dense(self.width, name="read_in")(x)
        blocks = self.depth + 1 if self.extra else sum(range(2, 2 + self.depth))
        for i in range(blocks):
            h = h + nn.Dense(self.width, name=f"block_{i}")(nn.relu(h))
        return nn.Dense(5, name="head")(h)


@pytest.mark.parametrize("name", ["depth_mup", "am_mup"])
def test_depth_that_is_no_number_of_blocks(name):
    """The words have both numbers, and their way out ends them; two branches in a block are as many blocks."""
    extra = lambda w, d: Stages(w, d, True)  # noqa: E731
    inside = {"overrides": {"block_*": "branch"}}
    (message,) = warned(lambda: setup(extra, name=name, **inside))
    assert "depth 2 and 4 are said to be 2 and 4 residual blocks, but the forward pass has 3 and 5" in message
    blocks = eval(re.search(r"blocks=(lambda depth: .*?) counts", message)[1])
    assert [blocks(depth) for depth in (2, 4, 9)] == [3, 5, 10]
    assert not warned(lambda: setup(extra, name=name, blocks=blocks, **inside))
    stages = lambda w, d: Stages(w, d)  # noqa: E731
    (message,) = warned(lambda: setup(stages, name=name, **inside))
    assert "has 5 and 14 residual additions: the rule of depth takes m_L = 2 for what is 2.8" in message
    assert not warned(lambda: setup(stages, name=name, blocks=lambda depth: sum(range(2, 2 + depth)), **inside))
    assert not warned(lambda: setup(stages, name="mup", **inside))
    alone = {"width": 8, "depth": 2, "base": None}
    m = []
    assert len(warned(lambda: m.append(setup(extra, name=name, **alone, **inside)))) == 1
    assert not warned(lambda: (m[0].at(8, 4), m[0].at(16, 4)))


# The check in other frameworks


@pytest.mark.parametrize("name", ["linen", *CASES])
def test_check_of_each_framework(name):
    """It trains what it should, and nothing else: one seed at two widths decides nothing."""
    factory, options = (residual, {}) if name == "linen" else CASES[name]()
    m = setup(factory, **options)
    shapes = {"widths": (8, 16), "seeds": 2, "max_seeds": 2, "steps": (1,), "depths": ()}
    by_role = m.check(loss, (X, Y), **shapes)
    assert {"branch/hidden", "input", "readout", "all"} <= {slope.group for slope in by_role.slopes}
    assert by_role.verdict in ("ok", "not ok", "undecided")
    assert all((slope.changes > 0).all() for slope in by_role.slopes)


def test_check_by_path():
    """Each parameter of a block alone; together they are those of its role."""
    m = setup(pytree, call=forward)
    shapes = {"widths": (8, 16), "depths": (), "seeds": 2, "max_seeds": 2, "steps": (1,)}
    lion = lambda m: m.wrap(optax.lion(1e-3))  # noqa: E731
    names = {slope.group for slope in m.check(loss, (X, Y), optimizer=lion, groups="path", **shapes).slopes}
    assert names == {"branch/hidden blocks/*/down", "branch/hidden blocks/*/up", "input read_in", "readout head", "all"}
    with pytest.raises(ValueError, match="unknown groups 'paths'; did you mean 'path'"):
        m.check(loss, (X, Y), groups="paths", **shapes)


# What explain and setup are given


def test_what_explain_is_given():
    m = setup(residual)
    with pytest.raises(TypeError, match="expected Linen's variables"):
        m.explain(m.init(KEY)["params"])
    with pytest.raises(TypeError, match="expected the module that init returns; got a dict"):
        setup(NNX).explain({})


def test_unknown_settings():
    with pytest.raises(ValueError, match="unknown argument of setup 'gamma'; did you mean 'gamma0'"):
        setup(residual, gamma=2.0)
    with pytest.raises(ValueError, match="did you mean 'overrides'"):
        setup(residual, overides={})


# The maximal-update learning rate, without a function of the layers' outputs


class Recorded(nn.Module):
    """A network of a user's: read-in, blocks, readout; it sows what a user would write down as its layers."""

    width: int
    depth: int
    kind: str = "residual"

    @nn.compact
    def __call__(self, x):
        h = nn.Dense(self.width, name="read_in")(x)
        self.sow("intermediates", "layers", h)
        for i in range(self.depth):
            if self.kind == "plain":
                h = nn.Dense(self.width, kernel_init=HE, name=f"layer_{i}")(nn.gelu(h))
            elif self.kind == "two branches":
                h = h + nn.Dense(self.width, name=f"first_{i}")(nn.tanh(nn.LayerNorm(name=f"norm_{i}")(h)))
                h = h + nn.Dense(self.width, name=f"down_{i}")(nn.relu(nn.Dense(self.width, name=f"up_{i}")(h)))
            elif self.kind == "side by side":
                h = h + nn.Dense(self.width, name=f"one_{i}")(nn.relu(h)) + nn.Dense(self.width, name=f"two_{i}")(h**2)
            else:
                inner = nn.Dense(self.width, name=f"up_{i}")(h)
                inner = inner + nn.Dense(self.width, name=f"side_{i}")(nn.relu(inner))
                h = h + nn.Dense(self.width, name=f"down_{i}")(nn.tanh(inner))
            self.sow("intermediates", "layers", h)
        return nn.Dense(5, use_bias=False, name="head")(nn.relu(h))


@pytest.mark.parametrize("kind", ["plain", "residual", "two branches", "side by side"])
def test_maximal_update_of_a_linen_network(kind):
    """It equals `dm.maximal_update` with the layers written down."""
    m = setup(lambda w, d: Recorded(w, d, kind), name="sp", width=128, depth=3, residual=kind != "plain")

    def outputs(params, batch):
        return m.apply({"params": params}, batch[0], mutable=["intermediates"])[1]["intermediates"]["layers"]

    def value(params, batch):
        return loss(m.apply({"params": params}, batch[0]), batch[1])

    for optimizer in ("sgd", "adam"):
        tx = m.optimizer(optimizer, 1.0)
        by_hand = dm.maximal_update(outputs, value, lambda key: m.init(key)["params"], (X, Y), optimizer=tx, seeds=2)
        update = m.maximal_update(loss, (X, Y), optimizer=optimizer, seeds=2)
        np.testing.assert_allclose(update.per_seed, by_hand.per_seed, rtol=1e-5)
        np.testing.assert_allclose(update.mean_squares, by_hand.mean_squares, rtol=1e-5)
        assert update.learning_rate == pytest.approx(by_hand.learning_rate, rel=1e-5)
    assert update.per_seed.shape == (2, 4)


@pytest.mark.parametrize("scan", [False, True])
@pytest.mark.parametrize("name", ["plain", "residual"])
def test_maximal_update_of_our_models(name, scan):
    """Against the states that they sow; factors, remat and a scan, whose states are all there."""
    kind, p = {"plain": (MLP, "mup"), "residual": (ResidualMLP, "depth_mup")}[name]
    make = lambda w, d: kind(width=w, depth=d, outputs=5, scan=scan, remat=True)  # noqa: E731
    m = setup(make, name=p, width=128, depth=4, residual=name == "residual")

    def outputs(params, batch):
        return states(m.apply({"params": params}, batch[0], mutable=["stream"])[1]["stream"])

    def value(params, batch):
        return loss(m.apply({"params": params}, batch[0]), batch[1])

    by_hand = dm.maximal_update(
        outputs, value, lambda key: m.init(key)["params"], (X, Y), optimizer=m.optimizer("sgd", 1.0), seeds=2
    )
    update = m.maximal_update(loss, (X, Y), seeds=2)
    np.testing.assert_allclose(update.per_seed, by_hand.per_seed, rtol=1e-5)
    assert update.per_seed.shape == (2, {"plain": 4, "residual": 5}[name])


@pytest.mark.parametrize("name", ["nnx", "equinox", "pytree"])
def test_maximal_update_of_other_frameworks(name):
    """Layers are a read-in and DEPTH blocks; batch norm with its statistics, and single examples under vmap."""
    factory, options = CASES[name]()
    m = setup(factory, width=128, **options)
    update = m.maximal_update(loss, (X, Y), seeds=2)
    assert update.per_seed.shape == (2, 1 + DEPTH)
    if name != "pytree":
        return
    params, _ = m.fresh(KEY)

    def stream(params):
        states = [X @ params["read_in"]]
        for block in params["blocks"]:
            states.append(states[-1] + jax.nn.relu(states[-1] @ block["up"]) @ block["down"])
        return states

    small = 1e-3  # a learning rate
    tx = m.optimizer("sgd", small)
    grads = jax.grad(lambda params: loss(forward(params, X), Y))(params)
    after = stream(optax.apply_updates(params, tx.update(grads, tx.init(params), params)[0]))
    changes = [float(jnp.square((b - a) / small).mean()) for a, b in zip(stream(params), after, strict=True)]
    np.testing.assert_allclose(update.per_seed[0], changes, rtol=0.02)


def test_maximal_update_of_a_transformer():
    """The stream after each block, which has two branches."""
    m = setup(lambda w, d: Transformer(w, d), TOKENS, width=128)
    update = m.maximal_update(loss, (TOKENS, jnp.arange(2)), seeds=1, optimizer=lambda m: m.optimizer("adam", 1.0))
    assert update.per_seed.shape == (1, 1 + DEPTH)


def test_maximal_update_asks_for_what_it_cannot_see():
    m = setup(lambda w, d: Closed(w, d, "while"), name="sp")
    with pytest.raises(dm.ForwardError, match=r"give dm\.maximal_update a function of the layers' outputs"):
        m.maximal_update(loss, (X, Y))
    with pytest.raises(ValueError, match="unknown average 'mean'"):
        setup(residual).maximal_update(loss, (X, Y), average="mean")


def test_a_setup_can_be_pickled():
    m = dm.setup("depth_mup", Residual, X, width=16, depth=4, base=(8, 2))
    same = pickle.loads(pickle.dumps(m))
    assert (same.specs, same.parameterization) == (m.specs, m.parameterization)
    jax.tree.map(np.testing.assert_array_equal, same.init(KEY), m.init(KEY))
    assert same.at(32, 4).specs == m.at(32, 4).specs


def test_a_large_model_is_set_up_from_shapes_alone():
    """A model of 27 trillion parameters: its factors are those of a small one, and no array of its size is made."""
    m = dm.setup("depth_mup", Residual, X, width=16, depth=4, base=(8, 2), fan_in_init=True)
    large = m.at(2**19, 48)
    by_path = {spec.path: spec for spec in jax.tree.leaves(large.specs, is_leaf=lambda s: isinstance(s, dm.ParamSpec))}
    small = {spec.path: spec for spec in jax.tree.leaves(m.specs, is_leaf=lambda s: isinstance(s, dm.ParamSpec))}
    for path, spec in small.items():
        assert (by_path[path].role, by_path[path].in_branch) == (spec.role, spec.in_branch)
        assert [kind for kind, *_ in by_path[path].absorbs] == [kind for kind, *_ in spec.absorbs]
    assert "LR 0.5 -> 1.526e-05 (x 1/3.28e+04)" in m.explain().difference(large.explain())
    assert len(by_path) > len(small)
