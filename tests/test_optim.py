"""The transformations: decay and eps alone, schedules, dtypes, tracing."""

import inspect
import itertools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import depthmup as dm
from depthmup.rules import optim
from depthmup.rules.optim import OPTIONS
from depthmup.tune.model_sweep import study_of
from experiments.gradient_norm import Net, stored_norms

OPTIMIZERS = ("sgd", "momentum", "adam", "adamw", "lion", "adafactor", "muon")
EPS = ("adam", "adamw", "muon")


def factors_of(p, specs, name):
    """Those of each leaf's family; muon trains all but the hidden weights by Adam."""
    mixed = {"in": "adam", "blocks": {"w": "muon", "b": "adam"}, "out": "adam", "out_bias": "adam"}
    families = {"sgd": "sgd", "momentum": "sgd", "adafactor": "adafactor", "muon": mixed, "muonh": mixed}
    families["adamh"] = {**mixed, "blocks": {"w": "adafactor", "b": "adam"}}
    return dm.factors(p, specs, families.get(name, "adam"))


def init(width, depth):
    normal = np.random.default_rng(0).normal
    return {
        "in": normal(size=(5, width)),
        "blocks": {"w": normal(size=(depth, width, width)), "b": normal(size=(depth, width))},
        "out": normal(size=(width, 3)),
        "out_bias": normal(size=3),
    }


def setup(name="depth_mup", width=16, depth=8, **options):
    p = dm.parameterization(name, base_width=4, base_depth=2, **options)
    return (
        p,
        dm.infer_specs(init, layout="in_out", width=width, depth=depth),
        jax.tree.map(jnp.asarray, init(width, depth)),
    )


@pytest.mark.parametrize(
    ("name", "optax_s", "renamed"),
    [
        ("momentum", optax.trace, {"momentum": None}),  # Optax has no default
        ("adam", optax.adam, {}),
        ("adamw", optax.adamw, {}),
        ("lion", optax.lion, {}),
        ("muon", optax.contrib.muon, {"momentum": "beta", "b1": "adam_b1", "b2": "adam_b2"}),
    ],
)
def test_defaults_are_those_of_optax(name, optax_s, renamed):
    defaults = inspect.signature(optax_s).parameters
    for option, value in OPTIONS[name].items():
        if renamed.get(option, option):
            assert value == defaults[renamed.get(option, option)].default, option


def updates(tx, grads, params, steps=1):
    state = tx.init(params)
    for _ in range(steps):
        out, state = tx.update(grads, state, params)
    return out


def ones(params):
    return jax.tree.map(jnp.ones_like, params)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("shape", [(4, 2), (64, 16)])
@pytest.mark.parametrize("gamma0", [1.0, 3.0])
def test_uncoupled_decay_is_the_same_everywhere(name, shape, gamma0, x64):
    """A zero gradient leaves w <- w (1 - lr decay) at any width, depth and gamma0."""
    p, specs, params = setup("depth_mup", *shape, gamma0=gamma0)
    tx = dm.optimizer(p, specs, name, 0.1, weight_decay=0.3)
    out = updates(tx, jax.tree.map(jnp.zeros_like, params), params)
    jax.tree.map(lambda u, w: np.testing.assert_allclose(u, -0.03 * w, rtol=1e-12), out, params)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_coupled_decay_follows_the_learning_rate(name, x64):
    p, specs, params = setup()
    factors = factors_of(p, specs, name)
    tx = dm.optimizer(p, specs, name, 0.1, weight_decay=0.3, decay="coupled")
    out = updates(tx, jax.tree.map(jnp.zeros_like, params), params)
    jax.tree.map(lambda u, w, f: np.testing.assert_allclose(u, -0.03 * f * w, rtol=1e-12), out, params, factors.lr)


def test_completep_decay(x64):
    """LR x decay keeps the LR's power of depth, m_L^(alpha - 1), in a block (docs/rules.md section 3)."""
    p, specs, params = setup("completep", alpha=0.5)
    out = updates(dm.optimizer(p, specs, "adamw", 0.1, weight_decay=0.3), jax.tree.map(jnp.zeros_like, params), params)
    np.testing.assert_allclose(out["blocks"]["w"], -0.03 * 4**-0.5 * params["blocks"]["w"], rtol=1e-12)
    np.testing.assert_allclose(out["in"], -0.03 * params["in"], rtol=1e-12)


def test_decay_mask(x64):
    p, specs, params = setup()
    tx = dm.optimizer(
        p, specs, "adamw", 0.1, weight_decay=0.3, mask=lambda tree: jax.tree.map(lambda w: w.ndim > 1, tree)
    )
    out = updates(tx, jax.tree.map(jnp.zeros_like, params), params)
    assert (np.asarray(out["out_bias"]) == 0).all()
    np.testing.assert_allclose(out["in"], -0.03 * params["in"], rtol=1e-12)


def test_decay_mask_as_a_prefix(x64):
    """As optax.adamw takes it; also where a partition hides leaves."""
    p, specs, params = setup()
    mask = {"in": True, "blocks": False, "out": True, "out_bias": True}
    tx = dm.optimizer(p, specs, "adamw", 0.1, weight_decay=0.3, mask=mask)
    labels = {"in": "ours", "blocks": "ours", "out": "theirs", "out_bias": "theirs"}
    for each in (tx, optax.partition({"ours": tx, "theirs": optax.set_to_zero()}, labels)):
        out = updates(each, jax.tree.map(jnp.zeros_like, params), params)
        assert all((np.asarray(u) == 0).all() for u in out["blocks"].values())
        np.testing.assert_allclose(out["in"], -0.03 * params["in"], rtol=1e-12)
    wrong = dm.optimizer(p, specs, "adamw", 0.1, weight_decay=0.3, mask={"in": True})
    with pytest.raises(ValueError, match="mask must be a tree of bools"):
        updates(wrong, ones(params), params)


@pytest.mark.parametrize("name", ["sgd", "adamw", "muon"])
def test_decay_schedule(name, x64):
    p, specs, params = setup()
    tx = dm.optimizer(p, specs, name, 0.1, weight_decay=optax.linear_schedule(0.4, 0.0, 4))
    third = updates(tx, jax.tree.map(jnp.zeros_like, params), params, steps=3)
    jax.tree.map(lambda u, w: np.testing.assert_allclose(u, -0.02 * w, rtol=1e-6), third, params)


def test_a_large_eps_shows_the_eps_factors(x64):
    """With eps >> |g|, Adam's first update is g / eps: LR factor / eps factor of each leaf."""
    p, specs, params = setup(gamma0=2.0)
    factors = dm.factors(p, specs, "adam")
    assert len({*jax.tree.leaves(factors.eps)}) == 3  # blocks, input and readout, readout bias
    out = updates(dm.optimizer(p, specs, "adam", 1.0, eps=1e9), ones(params), params)
    expected = jax.tree.map(lambda lr, eps: -lr / (1e9 * eps), factors.lr, factors.eps)
    jax.tree.map(lambda u, e: np.testing.assert_allclose(u, e, rtol=1e-6), out, expected)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_learning_rates_are_those_of_the_table(name, x64):
    """With a gradient of ones and no eps the first update is -lr x factor, also for stacked leaves. (Adafactor's is
    times the weight's root mean square, Muon's is over the norm of the ones, but for what Newton-Schulz leaves.)"""
    p, specs, params = setup()
    factors = factors_of(p, specs, name)
    out = updates(dm.optimizer(p, specs, name, 0.1, **({"eps": 0.0} if name in EPS else {})), ones(params), params)
    expected = jax.tree.map(lambda f: -0.1 * f, factors.lr)
    if name == "adafactor":
        expected = jax.tree.map(lambda u, w: u * jnp.sqrt(jnp.mean(w**2)), expected, params)
    if name == "muon":
        one = out["blocks"]["w"] * 16 / expected["blocks"]["w"]
        np.testing.assert_allclose(one, one[0, 0, 0], rtol=1e-9)
        assert 0.6 < one[0, 0, 0] < 1.3
        out["blocks"]["w"] = expected["blocks"]["w"]
    jax.tree.map(lambda u, e: np.testing.assert_allclose(u, e, rtol=1e-9), out, expected)


def test_nesterov(x64):
    """It looks ahead: the first update counts the gradient once, and once more times the momentum."""
    p, specs, params = setup()
    out = updates(dm.optimizer(p, specs, "momentum", 0.1, momentum=0.8, nesterov=True), ones(params), params)
    expected = jax.tree.map(lambda f: -0.1 * 1.8 * f, dm.factors(p, specs, "sgd").lr)
    jax.tree.map(lambda u, e: np.testing.assert_allclose(u, e, rtol=1e-9), out, expected)


def test_schedules_keep_the_factors(x64):
    p, specs, params = setup()
    schedule = optax.linear_schedule(1.0, 0.0, 4)
    tx = dm.optimizer(p, specs, "sgd", schedule)
    third = updates(tx, ones(params), params, steps=3)
    expected = jax.tree.map(lambda f: -0.5 * f, dm.factors(p, specs, "sgd").lr)
    jax.tree.map(lambda u, e: np.testing.assert_allclose(u, e, rtol=1e-9), third, expected)


def test_any_optax_transformation():
    p, specs, params = setup()
    tx = optax.chain(
        optax.scale_by_lion(), dm.scale_by_parameterization(p, specs, family="adam"), optax.scale_by_learning_rate(0.1)
    )
    out = updates(tx, ones(params), params)
    jax.tree.map(lambda u, f: np.testing.assert_allclose(u, -0.1 * f, rtol=1e-6), out, dm.factors(p, specs, "adam").lr)
    by_hand = optax.chain(
        dm.scale_by_eps_factors(p, specs),
        optax.scale_by_adam(eps=0.1),
        dm.scale_by_parameterization(p, specs),
        optax.scale_by_learning_rate(0.1),
    )
    by_name = dm.optimizer(p, specs, "adam", 0.1, eps=0.1)
    jax.tree.map(
        np.testing.assert_array_equal, updates(by_hand, ones(params), params), updates(by_name, ones(params), params)
    )


def test_masked_leaves_stay_hidden(x64):
    """Partitioned optimizers hand each part a tree with holes."""
    p, specs, params = setup()
    tx = dm.optimizer(p, specs, "adamw", 0.1, weight_decay=0.3)
    labels = {"in": "ours", "blocks": {"w": "ours", "b": "ours"}, "out": "theirs", "out_bias": "theirs"}
    out = updates(optax.partition({"ours": tx, "theirs": optax.set_to_zero()}, labels), ones(params), params)
    whole = updates(tx, ones(params), params)
    np.testing.assert_array_equal(out["blocks"]["w"], whole["blocks"]["w"])
    assert (np.asarray(out["out"]) == 0).all()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optax_wrappers(name, x64):
    """MultiSteps, inject_hyperparams and apply_if_finite around ours."""
    p, specs, params = setup()
    plain = updates(dm.optimizer(p, specs, name, 0.1, weight_decay=0.3), ones(params), params)
    make = optax.inject_hyperparams(dm.optimizer, static_args=("p", "specs", "name"))
    injected = make(p, specs, name, learning_rate=0.1, weight_decay=0.3)
    inner = dm.optimizer(p, specs, name, 0.1, weight_decay=0.3)
    for tx, steps in (
        (injected, 1),
        (optax.MultiSteps(inner, 2).gradient_transformation(), 2),
        (optax.apply_if_finite(inner, 3), 1),
    ):
        out = updates(tx, ones(params), params, steps)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9), out, plain)


@pytest.mark.parametrize(
    "make",
    [
        lambda p, specs, **decay: dm.optimizer(p, specs, "adamw", 0.1, **decay),
        lambda p, specs, **decay: dm.optimizer(
            p, specs, "adamw", 0.1, **decay, mask=lambda tree: jax.tree.map(lambda w: w.ndim > 1, tree)
        ),
        lambda p, specs, **decay: dm.optimizer(p, specs, "muon", 0.1, **decay),
        lambda p, specs, **decay: dm.wrap(p, specs, optax.adamw(0.1, **decay)),
    ],
)
def test_nnx_optimizer(make):
    from flax import nnx

    def init(width, depth):
        return nnx.state(network(width), nnx.Param)

    def network(width):
        sizes = (3, width, width, 2)
        return nnx.Sequential(*(nnx.Linear(a, b, rngs=nnx.Rngs(0)) for a, b in itertools.pairwise(sizes)))

    p = dm.parameterization("mup", base_width=4)
    specs = dm.infer_specs(init, layout="in_out", width=16, depth=1, residual=False)
    model = network(16)
    before = np.asarray(model.layers[1].kernel[...])
    tx = nnx.Optimizer(model, make(p, specs, weight_decay=0.3), wrt=nnx.Param)
    tx.update(model, jax.tree.map(jnp.zeros_like, nnx.state(model, nnx.Param)))
    np.testing.assert_allclose(model.layers[1].kernel[...], 0.97 * before, rtol=1e-6)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_dtype_is_kept(name):
    p, specs, params = setup()
    params = jax.tree.map(lambda w: w.astype(jnp.bfloat16), params)
    out = updates(dm.optimizer(p, specs, name, 0.1, weight_decay=0.1), ones(params), params)
    assert {u.dtype for u in jax.tree.leaves(out)} == {jnp.dtype(jnp.bfloat16)}


def test_traced_hyperparameters_compile_once():
    p, specs, params = setup()
    traces = []

    @jax.jit
    def step(params, learning_rate, momentum, decay):
        traces.append(1)
        tx = dm.optimizer(p, specs, "momentum", learning_rate, momentum=momentum, weight_decay=decay)
        return optax.apply_updates(params, tx.update(ones(params), tx.init(params), params)[0])

    first, second = (step(params, *map(np.float32, v)) for v in ((0.1, 0.9, 0.0), (0.2, 0.5, 0.1)))
    assert len(traces) == 1
    assert not np.allclose(first["in"], second["in"])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p, s: dm.optimizer(p, s, "adamx", 0.1), "did you mean 'adam"),
        (lambda p, s: dm.optimizer(p, s, "adamW", 0.1), "did you mean 'adamw'"),
        (lambda p, s: dm.optimizer(p, s, "sgd", 0.0), "learning_rate must be positive"),
        (lambda p, s: dm.optimizer(p, s, "sgd", np.float32(-1)), "learning_rate must be positive"),
        (lambda p, s: dm.optimizer(p, s, "adam", 0.1, nesterov=True), "not an option of 'adam', which has b1, b2, eps"),
        (
            lambda p, s: dm.optimizer(p, s, "sgd", 0.1, momentum=0.9),
            "momentum is not an option of 'sgd', which has none",
        ),
        (lambda p, s: dm.optimizer(p, s, "sgd", 0.1, decay="couple"), "did you mean 'coupled'"),
        (lambda p, s: dm.optimizer(p, s, "lion", 0.1, eps=1e-8), "not an option of 'lion', which has b1, b2"),
        (lambda p, s: dm.scale_by_parameterization(p, s, family="lion"), "unknown optimizer family"),
    ],
)
def test_errors(call, message):
    p, specs, _ = setup()
    with pytest.raises(ValueError, match=message):
        call(p, specs)


def test_decay_needs_params():
    p, specs, params = setup()
    tx = dm.optimizer(p, specs, "sgd", 0.1, weight_decay=0.1)
    with pytest.raises(ValueError, match="needs the parameters"):
        tx.update(ones(params), tx.init(params))


class TestClipping:
    """The norm is that of the gradient in the weights of the form "mup": it does not grow with depth."""

    def test_norms_over_depth(self):
        (raw, one), (deep_raw, deep) = stored_norms([(16, 2), (16, 32)], base=(16, 2))
        assert raw == pytest.approx(one)
        assert deep_raw > 1.8 * raw
        assert deep == pytest.approx(one, rel=0.35)

    def test_it_clips_as_optax_does_in_the_weights(self):
        p = dm.parameterization("depth_mup", base_width=4, base_depth=1)
        specs = dm.infer_specs(
            lambda w, d: {"in": np.zeros((3, w)), "hidden": np.zeros((d, w, w)), "out": np.zeros((w, 2))},
            layout="in_out",
            width=8,
            depth=4,
        )
        rng = np.random.default_rng(0)
        params = jax.tree.map(lambda s: rng.normal(size=s.shape).astype(np.float32), specs)
        absorbed = p.in_form("absorbed")
        stored = optim.divisor(absorbed, specs)
        for norm in (0.5, 1e3):
            tx, plain = dm.clip_by_global_norm(absorbed, specs, norm), optax.clip_by_global_norm(norm)
            clipped, _ = tx.update(params, tx.init(params))
            weights, _ = plain.update(jax.tree.map(lambda g, s: g / s, params, stored), optax.EmptyState())
            jax.tree.map(lambda a, b, s: np.testing.assert_allclose(a, b * s, rtol=1e-5), clipped, weights, stored)
            same = dm.clip_by_global_norm(p, specs, norm).update(params, optax.EmptyState())[0]
            jax.tree.map(np.testing.assert_array_equal, same, plain.update(params, optax.EmptyState())[0])
        with pytest.raises(ValueError, match="norm must be positive"):
            dm.clip_by_global_norm(p, specs, 0)

    @pytest.mark.parametrize("optimizer", ["sgd", "muon", lambda m: m.optimizer("sgd", 1.0)])
    def test_a_sweep_clips_as_the_setup_does(self, optimizer):
        x, labels = np.ones((8, 3), np.float32), np.zeros(8, int)
        m = dm.setup("depth_mup", Net, x, width=8, depth=1, base=(8, 1), fan_in_init=False)
        sizes = {"steps": 2, "widths": (), "depths": (1, 8), "batch_size": 8, "clip": 1e-2}
        loss = lambda a, b: optax.softmax_cross_entropy_with_integer_labels(a, b).mean()  # noqa: E731
        study = study_of(m, loss, (x, labels), optimizer=optimizer, learning_rates=[2.0**-i for i in range(5)], **sizes)
        (name,) = study.sweep.optimizers
        point = study.point_at(study.base._replace(depth=8)[:2], name, "depth_mup")
        hyper = point.hyper(1.0, 0).arrays()
        state = point.task.init(hyper)
        grads = jax.grad(point.task.objective)(state.params, state, (x, labels), hyper)
        updates, _ = point.task.transformation(hyper, 1.0).update(grads, state.opt_state, state.params)
        deep = m.at(8, 8)
        tx = deep.optimizer(optimizer, 1.0) if isinstance(optimizer, str) else optimizer(deep)
        tx = optax.chain(deep.clip_by_global_norm(1e-2), tx)
        expected, _ = tx.update(grads, tx.init(state.params), state.params)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-7), updates, expected)


@pytest.mark.parametrize(("name", "direction"), [("adamh", optax.scale_by_adam()), ("muonh", None)])
def test_hyperball(name, direction):
    """Levanter's adamH and muonH (marin-community/marin 0084342, lib/levanter/src/levanter/optim): of each matrix
    w' = w - lr |w| u / |u|, and w'' = w' |w| / |w'|. The parameterization multiplies lr."""
    p, specs, params = setup(width=16, depth=8)
    direction = direction or optax.contrib.scale_by_muon(
        weight_dimension_numbers=lambda tree: jax.tree.map(lambda w: optax.contrib.MuonDimensionNumbers(1, 2), tree)
    )
    tx, w, lr = dm.optimizer(p, specs, name, 0.5, weight_decay=0.1), params["blocks"]["w"], 0.5 * 4.0**-0.5
    lr *= {"adamh": 4.0**-0.5, "muonh": 1.0}[name]
    state, by_hand = tx.init(params), direction.init(w)
    eps = factors_of(p, specs, name).eps["blocks"]["w"]
    for grads in (jax.tree.map(jnp.sin, jax.tree.map(lambda leaf, k=k: k * leaf, params)) for k in (1, 3, 7)):
        u, by_hand = direction.update(grads["blocks"]["w"] / eps, by_hand)
        for block in range(8):
            norm = np.linalg.norm(w[block])
            moved = w[block] - lr * norm * u[block] / np.linalg.norm(u[block])
            w = w.at[block].set(moved * norm / np.linalg.norm(moved))
        updates, state = tx.update(grads, state, params)
        params = optax.apply_updates(params, updates)
        np.testing.assert_allclose(params["blocks"]["w"], w, rtol=2e-4, atol=1e-6)


def test_hyperball_needs_the_parameters():
    p, specs, params = setup()
    tx = dm.optimizer(p, specs, "adamh", 0.1)
    with pytest.raises(ValueError, match="a step on the sphere needs the parameters"):
        tx.update(params, tx.init(params))


@pytest.mark.parametrize(("name", "lr"), [("adamh", 0.5 * 4.0**-0.5 * 4.0**-0.5), ("muonh", 0.5 * 4.0**-0.5)])
def test_hyperball_is_explained(name, lr):
    """The rate of a hidden weight is relative to it, whatever it is stored times, and it has no decay."""
    p, specs, _ = setup(width=16, depth=8)
    of_blocks = next(row for row in dm.explain(p, specs, name, 0.5, weight_decay=0.1).rows if "w" in row.parameter)
    assert (of_blocks.lr, of_blocks.decay, of_blocks.lr_decay) == (pytest.approx(lr), 0, 0)


class Branches(nn.Module):
    width: int
    depth: int

    @nn.compact
    def __call__(self, x):
        h = nn.Dense(self.width, name="embed")(x)
        for i in range(self.depth):
            y = nn.gelu(nn.Dense(self.width, name=f"up_{i}")(nn.LayerNorm(name=f"norm_{i}")(h)))
            h = h + nn.Dense(self.width, name=f"down_{i}")(y)
        return nn.Dense(10, use_bias=False, name="head")(nn.LayerNorm(name="norm")(h))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "examples", "wrong"), [("adamh", 16, []), ("muonh", 1024, []), ("muonh", 8, ["width"])]
)
def test_hyperball_moves_features_alike(name, examples, wrong):
    """What hidden weights of branches of two layers change, over width and over depth. Adam trains all others. Muon's
    update of 8 examples has 8 directions, and the length that MuonH gives it grows as the root of width / 8."""
    m = dm.setup("completep", Branches, jnp.ones((2, 64)), width=64, depth=4, base=(32, 2), fan_in_init=True)
    x = jax.random.normal(jax.random.key(1), (examples, 64))
    loss = lambda logits, labels: optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()  # noqa: E731
    sizes = {"widths": (32, 64, 128), "depths": (2, 4, 8, 16), "max_seeds": 16}
    labels = jax.random.randint(jax.random.key(2), (examples,), 0, 10)
    report = m.check(loss, (x, labels), optimizer=name, learning_rate=2.0**-9, **sizes)
    print(report)
    hidden = [slope for slope in report.slopes if slope.group == "branch/hidden" and slope.judged]
    assert {slope.axis for slope in hidden} == {"width", "depth"}
    assert sorted({slope.axis for slope in hidden if slope.answer == "not ok"}) == wrong, report.table()
