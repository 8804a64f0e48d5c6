"""`wrap`: what each kind of update is, equality with `dm.optimizer`, and what it refuses."""

import dataclasses
import functools
import inspect
import types
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import depthmup as dm
from depthmup.rules.specs import Absorbed, is_spec
from depthmup.rules.wrap_optimizer import probe_updates, rules_of
from experiments import matrix_updates
from tests.test_optim import init

MUON = optax.contrib.MuonDimensionNumbers
MATRICES = {"in": None, "blocks": {"w": MUON(1, 2), "b": None}, "out": None, "out_bias": None}
PARTS = {"in": "a", "blocks": "b", "out": "a", "out_bias": "b"}
BASE = {"base_width": 4, "base_depth": 2}


def specs_at(width=16, depth=8):
    return dm.infer_specs(init, layout="in_out", width=width, depth=depth)


def muon(learning_rate=0.01, **options):
    return optax.contrib.muon(learning_rate, muon_weight_dimension_numbers=lambda _: MATRICES, **options)


def planted(direction):
    """A transformation whose update is -0.1 direction(gradient, weight) of each leaf."""

    def update(updates, state, params=None):
        return jax.tree.map(lambda g, w: -0.1 * direction(g, w), updates, params), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def orthogonal(g, w):
    if g.ndim < 2:
        return jnp.sign(g)
    u, _, v = jnp.linalg.svd(g, full_matrices=False)
    return u @ v


def rms(w):
    return jnp.sqrt(jnp.mean(w**2))


def late(tx, steps):
    return optax.chain(tx, optax.scale_by_schedule(lambda count: count >= steps))


SGD, ADAM, ADAFACTOR, MUON_ALL = (
    dict.fromkeys(("in", "w", "b", "out", "out_bias"), family) for family in ("sgd", "adam", "adafactor", "muon")
)
MIXED = {**ADAM, "w": "muon"}
KINDS = {
    "planted linear": (planted(lambda g, w: 3 * g), SGD),
    "planted sign": (planted(lambda g, w: jnp.sign(g) + 0.1 * w), ADAM),
    "planted orthogonal": (planted(orthogonal), {**MUON_ALL, "out_bias": "adam"}),
    "planted weight": (planted(lambda g, w: rms(w) * jnp.sign(g)), ADAFACTOR),
    "planted late": (late(planted(orthogonal), 30), {**MUON_ALL, "out_bias": "adam"}),
    "momentum": (optax.sgd(0.1, 0.9, nesterov=True), SGD),
    "coupled decay": (optax.chain(optax.add_decayed_weights(1e-4), optax.sgd(0.1)), SGD),
    "clipped sgd": (optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1)), SGD),
    "adamw": (optax.adamw(optax.warmup_constant_schedule(0.0, 1e-3, 10), eps=1e-3, weight_decay=1e-4), ADAM),
    "clipped adam": (optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3)), ADAM),
    "linear at first": (optax.radam(1e-3), ADAM),
    "lion": (optax.lion(1e-3), ADAM),
    "adafactor": (optax.adafactor(1e-3), ADAFACTOR),
    "adafactor, no scale": (optax.adafactor(1e-3, multiply_by_parameter_scale=False), ADAM),
    "muon": (muon(weight_decay=0.1), MIXED),
    "parts": (
        optax.multi_transform({"a": optax.adam(1e-3), "b": optax.sgd(0.1)}, PARTS),
        {**SGD, "in": "adam", "out": "adam"},
    ),
    "injected": (optax.inject_hyperparams(optax.adamw)(learning_rate=1e-3), ADAM),
    "accumulated": (optax.MultiSteps(optax.sgd(0.1), 20).gradient_transformation(), SGD),
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_an_update_is(kind):
    tx, expected = KINDS[kind]
    specs = specs_at(depth=2)
    rules = probe_updates(specs, tx)
    paths = [spec.path.split("/")[-1] for spec in jax.tree.leaves(specs, is_leaf=is_spec)]
    assert dict(zip(paths, [rule.family for rule in rules], strict=True)) == expected
    assert all(rule.decays for rule in rules)
    if "adam" in expected.values():
        assert all(rule.scale_free for rule in rules if rule.family == "adam") == (kind != "clipped adam")


def test_two_stacked_blocks_are_not_taken_for_orthogonal():
    """Turned along an axis of two by nearly a right angle, or hardly at all, Adam's update turns as Muon's does."""
    specs = [dm.ParamSpec(f"w{i}", "hidden", True, (2, 4, 4), 4, 4, 4, 2, stack_axis=0) for i in range(48)]
    assert {rule.family for rule in probe_updates(specs, optax.adam(1e-3))} == {"adam"}
    assert {rule.family for rule in probe_updates(specs, planted(orthogonal))} == {"muon"}


def matrices(width, depth):
    normal = np.random.default_rng(0).normal
    return {"in": normal(size=(5, width)), "w": normal(size=(depth, width, width)), "out": normal(size=(width, 3))}


def scion(labels):
    return matrix_updates.scion(lambda tree: dict(zip(("in", "w", "out"), labels, strict=True)))


def by_rms(u):
    return 0.2 * max(u.shape[-2:]) ** 0.5 * u


# The factor that width m = 4 gives to each update of read-in, hidden weights and readout. From Adam to SOAP those of
# the code of arXiv 2512.05620, for a matrix 1 / m_in; (m_out / m_in)^1/2 for Muon, Shampoo and SOAP; m_in^-1/2 and
# m_out^1/2 / m_in for SOAP with a basis for the inputs or the outputs alone; 1 for Shampoo with exponents 1/2. Scion's
# norms have powers of width themselves (arXiv 2502.07529). The model's output factor is 1/m: the readout has another m.
WIDTH = {
    "adam": (optax.scale_by_adam(), (1, 1 / 4, 1)),
    "muon": (matrix_updates.muon(), (2, 1, 2)),
    "muon by RMS": (optax.chain(matrix_updates.muon(), matrix_updates.of_each_leaf(by_rms)), None),
    "shampoo 1/4": (matrix_updates.shampoo(0.25), (2, 1, 2)),
    "shampoo 1/2": (matrix_updates.shampoo(0.5), (1, 1, 1)),
    "soap": (matrix_updates.soap(), (2, 1, 2)),
    "soap, inputs": (matrix_updates.soap(sides=(True, False)), (1, 1 / 2, 2)),
    "soap, outputs": (matrix_updates.soap(sides=(False, True)), (2, 1 / 2, 1)),
    "scion": (scion(("columns", "spectral", "sign")), (1, 1, 4)),
    "AdamH": (optax.chain(optax.scale_by_adam(), matrix_updates.times_weight_norm()), (1, 1 / 2, 1)),
}


@pytest.mark.parametrize("name", WIDTH)
def test_the_factor_of_width(name):
    tx, expected = WIDTH[name]
    if name == "muon by RMS":  # its own factor at the base, over the one here: of (5, 4) and (5, 16), and so on
        expected = (2 * (5 / 16) ** 0.5, 0.5, 2 * (4 / 16) ** 0.5)
    specs = dm.infer_specs(matrices, layout="in_out", width=16, depth=8)
    rng = np.random.default_rng(1)
    params = jax.tree.map(jnp.asarray, matrices(16, 8))
    grads = jax.tree.map(lambda w: jnp.asarray(rng.normal(size=w.shape)), params)
    wrapped = dm.wrap(dm.parameterization("mup", base_width=4), specs, tx)
    scaled, plain = (t.update(grads, t.init(params), params)[0] for t in (wrapped, tx))
    for key, factor in zip(("in", "w", "out"), expected, strict=True):
        np.testing.assert_allclose(scaled[key], factor * plain[key], rtol=0, atol=5e-2 * abs(plain[key]).max())


@pytest.mark.parametrize(("name", "power"), [("depth_mup", -1.0), ("depth_ode", -1.0), ("mup", 0.0)])
def test_eps_of_an_update_inverse_to_the_gradient(name, power):
    """Shampoo adds its eps to G G^T, so that it gets the square of the factor; the update's size does not."""
    specs = dm.infer_specs(matrices, layout="in_out", width=16, depth=8)
    p = dm.parameterization(name, base_width=4, base_depth=2)
    eps, lr = dm.factors(p, specs, "shampoo2").eps["w"], dm.factors(p, specs, "shampoo2").lr["w"]
    assert lr == pytest.approx(4.0**power, rel=1e-12)
    assert eps == pytest.approx(4.0**-p.alpha if p.alpha else 1.0, rel=1e-12)
    rng = np.random.default_rng(1)
    params = jax.tree.map(jnp.asarray, matrices(16, 8))
    grads = [jax.tree.map(lambda w: jnp.asarray(1e-3 * rng.normal(size=w.shape)), params) for _ in range(2)]
    scaled = train(dm.wrap(p, specs, matrix_updates.shampoo(0.5, eps=1e-6)), params, grads)["w"] - params["w"]
    plain = train(matrix_updates.shampoo(0.5, eps=1e-6 * eps**2), params, grads)["w"] - params["w"]
    assert_close(scaled, lr * plain, 1e-4)


# Transformations that need arguments, or others than their defaults.
ARGUMENTS = {
    "add_noise": {"eta": 0.0, "gamma": 0.5, "key": 0},
    "apply_if_finite": {"inner": optax.adam(0.01), "max_consecutive_errors": 3},
    "conditionally_mask": {"inner": optax.sgd(0.01), "should_transform_fn": lambda step: step >= 0},
    "conditionally_transform": {"inner": optax.sgd(0.01), "should_transform_fn": lambda step: step >= 0},
    "dog": {"learning_rate": 1.0},
    "dowg": {"learning_rate": 1.0},
    "ema": {"decay": 0.9},
    "flatten": {"inner": optax.adam(0.01)},
    "freeze": {"mask": False},
    "lookahead": None,  # of pairs of parameters
    "masked": {"inner": optax.adam(0.01), "mask": True},
    "measure_with_ema": None,  # measures
    "snapshot": None,
    "monitor": None,
    "microbatch": None,  # of functions
    "multi_transform": {"transforms": {"a": optax.adam(0.01)}, "param_labels": "a"},
    "partition": {"transforms": {"a": optax.adam(0.01)}, "param_labels": "a"},
    "noisy_sgd": {"learning_rate": 0.01, "key": 0},
    "scale_by_schedule": {"step_size_fn": lambda step: 0.1},
    "scale_by_backtracking_linesearch": {"max_backtracking_steps": 5},
    "scale_by_zoom_linesearch": {"max_linesearch_steps": 5},
    "selective_transform": {"optimizer": optax.adam(0.01), "freeze_mask": False},
    "sam": {"optimizer": optax.sgd(0.01), "adv_optimizer": optax.sgd(0.01)},
    "scale": {"step_size": -0.1},
    "trace": {"decay": 0.9},
    "clip": {"max_delta": 1.0},
    "adaptive_grad_clip": {"clipping": 0.1},
    "clip_by_block_rms": {"threshold": 1.0},
    "clip_by_global_norm": {"max_norm": 1.0},
    "chain": None,  # not a transformation, or takes functions
    "named_chain": None,
    "stateless": None,
    "stateless_with_tree_map": None,
    "inject_hyperparams": None,
    "inject_stateful_hyperparams": None,
    "with_extra_args_support": None,
    "mechanize": {"base_optimizer": optax.adam(0.01)},
    "schedule_free": {"base_optimizer": optax.sgd(0.01), "learning_rate": 0.01},
    "split_real_and_imaginary": {"inner": optax.adam(0.01)},
    "differentially_private_aggregate": {"l2_norm_clip": 1.0, "noise_multiplier": 0.0, "key": 0},
    "dpsgd": {"learning_rate": 0.01, "l2_norm_clip": 1.0, "noise_multiplier": 0.0, "seed": 0},
}


def transformations():
    """{name: function that makes it} of all transformations of optax and optax.contrib."""
    made = {}
    for module in (optax, optax.contrib):
        for name, function in vars(module).items():
            if name.startswith("_") or not isinstance(function, types.FunctionType | functools.partial):
                continue
            signature = inspect.signature(function)
            if name in ARGUMENTS or "GradientTransformation" in str(signature.return_annotation):
                default = {"learning_rate": 0.01} if "learning_rate" in signature.parameters else {}
                options = ARGUMENTS.get(name, default)
                if options is not None:
                    made[name] = functools.partial(function, **options)
    return made


# Of optax 0.2.8; all others are of Adam's family.
FAMILY = {
    "sgd": """add_decayed_weights add_noise apply_every centralize clip_by_block_rms clip_by_global_norm
        conditionally_mask conditionally_transform ema freeze identity optimistic_gradient_descent
        sam scale scale_by_lbfgs trace sgd scale_by_learning_rate scale_by_optimistic_gradient
        scale_by_schedule zero_nans""",
    "adafactor": "adafactor lamb lars scale_by_trust_ratio",
    "refused": """adadelta adagrad adaptive_grad_clip clip cocob differentially_private_aggregate dog dowg dpsgd
        fromage galore keep_params_nonnegative lbfgs madgrad mechanize momo momo_adam noisy_sgd
        normalize normalize_by_update_norm novograd polyak_sgd prodigy reduce_on_plateau
        scale_by_adadelta scale_by_backtracking_linesearch scale_by_cocob
        scale_by_distance_over_gradients scale_by_galore scale_by_madgrad scale_by_muon
        scale_by_novograd scale_by_param_block_norm scale_by_param_block_rms scale_by_polyak
        scale_by_rss scale_by_yogi yogi scale_by_zoom_linesearch schedule_free schedule_free_adamw
        schedule_free_sgd set_to_zero sophia""",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(transformations()))
def test_every_transformation_of_optax(name):
    """Each has a family, or a refusal that says why and what to do; none a bare error."""
    specs = dm.infer_specs(matrices, layout="in_out", width=8, depth=2)
    expected = {"adam", "muon"} if name == "muon" else {next((f for f in FAMILY if name in FAMILY[f].split()), "adam")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            families, words = set(rules_of(specs, transformations()[name]()).families.values()), "pass family="
        except ValueError as error:
            families, words = {"refused"}, str(error)
    assert families == expected
    assert "pass family=" in words


@pytest.mark.parametrize(("tx", "family"), [(optax.rprop(1e-3), "adam"), (optax.contrib.adopt(1e-3), "adam")])
def test_a_first_update_of_zero(tx, family):
    specs = dm.infer_specs(matrices, layout="in_out", width=8, depth=2)
    assert [update.family for update in probe_updates(specs, tx)] == [family] * 3


def train(tx, params, grads):
    state, update = tx.init(params), jax.jit(tx.update)
    for g in grads:
        updates, state = update(g, state, params)
        params = optax.apply_updates(params, updates)
    return params


def problem(p, specs, steps=4):
    """(stored weights, gradients of stored weights, what they are stored over)"""
    in_mup_form, stored = (dm.factors(q, specs, p.table.families[0]).init for q in (p.in_form("mup"), p))
    divisor = jax.tree.map(lambda a, b: a / b, in_mup_form, stored)
    weights = jax.tree.map(lambda w, s: jnp.asarray(w / s), init(16, 8), divisor)
    rng = np.random.default_rng(3)
    grads = [jax.tree.map(lambda w, s: rng.normal(size=w.shape) * s, weights, divisor) for _ in range(steps)]
    return weights, grads, divisor


def assert_close(a, b, tolerance=1e-12):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=0, atol=tolerance * abs(y).max()), a, b)


def absorbing(specs, parts):
    return jax.tree.map(
        lambda spec: dataclasses.replace(spec, absorbs=parts.get(spec.path.split("/")[-1], ())), specs, is_leaf=is_spec
    )


EQUAL = {
    "sgd": (optax.chain(optax.add_decayed_weights(0.1), optax.sgd(0.01)), {"weight_decay": 0.1}),
    "momentum": (optax.sgd(0.01, 0.8), {"momentum": 0.8}),
    "adamw": (optax.adamw(0.01, eps=1e-3, weight_decay=0.1), {"eps": 1e-3, "weight_decay": 0.1}),
    "lion": (optax.lion(0.01, weight_decay=0.1), {"weight_decay": 0.1}),
    "adafactor": (optax.adafactor(0.01), {}),
    "muon": (
        muon(nesterov=False, weight_decay=0.1, adam_weight_decay=0.1, eps=1e-3),
        {"nesterov": False, "weight_decay": 0.1, "eps": 1e-3},
    ),
}


@pytest.mark.parametrize("name", EQUAL)
def test_equal_to_our_optimizer(name, x64):
    """With decay and eps, in storage forms that train alike; "absorbed" stores some columns times another factor."""
    tx, options = EQUAL[name]
    specs, trained = specs_at(), []
    parts = {"w": (Absorbed("branch"), Absorbed("attention", 4, 2, ((0, 8),))), "out": (Absorbed("output"),)}
    for form in ("mup", "canonical", "absorbed"):
        p = dm.parameterization("depth_mup", **BASE, gamma0=2.0, base_head_dim=2).in_form(form)
        params, grads, divisor = problem(p, absorbing(specs, parts))
        weights = train(dm.optimizer(p, absorbing(specs, parts), name, 0.01, **options), params, grads)
        assert_close(train(dm.wrap(p, absorbing(specs, parts), tx), params, grads), weights)
        trained.append(jax.tree.map(lambda w, s: w * s, weights, divisor))
    assert np.ptp(divisor["blocks"]["w"]) > 0.1
    for other in trained[1:]:
        assert_close(other, trained[0])


@pytest.mark.parametrize("name", EQUAL)
def test_the_transformation_itself_at_the_base(name, x64):
    tx, _ = EQUAL[name]
    p, specs = dm.parameterization("depth_mup", base_width=16, base_depth=8), specs_at()
    params, grads, _ = problem(p, specs)
    assert_close(train(dm.wrap(p, specs, tx), params, grads), train(tx, params, grads))


def test_muon_grows_by_consistent_rms(x64):
    """Its own factor sqrt(width) is taken out again, but not under sp, which has no rule."""
    specs = specs_at()
    for name, grown in (("depth_mup", 0.5), ("sp", 1.0)):
        p = dm.parameterization(name, **BASE)
        params, grads, _ = problem(p, specs, 1)
        tx = muon(consistent_rms=0.2)
        scaled, plain = (
            train(t, params, grads)["blocks"]["w"] - params["blocks"]["w"] for t in (dm.wrap(p, specs, tx), tx)
        )
        lr = dm.factors(p, specs, "muon").lr["blocks"]["w"]
        np.testing.assert_allclose(scaled, grown * lr * plain, rtol=1e-3)


@pytest.mark.parametrize("layout", ["in_out", "out_in"])
def test_muon_as_it_comes(layout, x64):
    """It trains every matrix, by a factor of the shape: sqrt(max(1, columns / rows)), which may be part of the rule."""

    def of(width, depth):
        matrix = lambda a, b: jnp.ones((a, b) if layout == "in_out" else (b, a))  # noqa: E731
        blocks = [{"w": matrix(width, width), "bias": jnp.ones(width)} for _ in range(depth)]
        return {"in": matrix(5, width), "blocks": blocks, "out": matrix(width, 1)}

    specs = dm.infer_specs(of, width=16, depth=8, layout=layout)
    p, tx = dm.parameterization("depth_mup", **BASE), optax.contrib.muon(0.01)
    params = of(16, 8)
    rng = np.random.default_rng(0)
    grads = jax.tree.map(lambda w: rng.normal(size=w.shape), params)
    scaled, plain = (t.update(grads, t.init(params), params)[0] for t in (dm.wrap(p, specs, tx), tx))
    ratio = jax.tree.map(lambda a, b: float(np.mean(a / b)), scaled, plain)
    # The rule of singular values 1 is (m_out / m_in)^1/2, and m_in^1/2 for the readout; m = 4.
    at_base, at_size = (1, (16 / 5) ** 0.5) if layout == "in_out" else ((5 / 4) ** 0.5, 1)
    np.testing.assert_allclose(ratio["in"], 2 * at_base / at_size, rtol=1e-3)
    at_base, at_size = (1, 1) if layout == "in_out" else (2, 4)
    np.testing.assert_allclose(ratio["out"], 2 * at_base / at_size, rtol=1e-3)
    np.testing.assert_allclose(ratio["blocks"][0]["w"], 4**-0.5, rtol=1e-3)
    np.testing.assert_allclose(ratio["blocks"][0]["bias"], 4**-0.5, rtol=1e-3)


def test_muon_of_an_unknown_shape_factor():
    def shaped(g, w):
        return g.shape[-1] ** 3 * orthogonal(g, w)

    with pytest.raises(ValueError, match="a factor of its shape that is none of those known"):
        dm.wrap(dm.parameterization("mup", **BASE), specs_at(depth=2), planted(shaped), family={"blocks/b": "adam"})


def test_clipping_inside_leaves_eps_alone(x64):
    specs = specs_at()
    p = dm.parameterization("depth_mup", **BASE)
    clip, adam = optax.clip_by_global_norm(1.0), optax.adam(0.01, eps=1e-3)
    params, grads, _ = problem(p, specs)
    with pytest.warns(UserWarning, match="put clipping in front"):
        inside = dm.wrap(p, specs, optax.chain(clip, adam))
    lr = optax.chain(clip, adam, dm.scale_by_parameterization(p, specs, "adam"))
    assert_close(train(inside, params, grads), train(lr, params, grads))
    front = train(optax.chain(clip, dm.wrap(p, specs, adam)), params, grads)
    assert_close(front, train(optax.chain(clip, dm.optimizer(p, specs, "adam", 0.01, eps=1e-3)), params, grads))
    at_base = dm.parameterization("depth_mup", base_width=16, base_depth=8)
    dm.wrap(at_base, specs, optax.chain(clip, adam))  # no eps factors, no warning


def test_wrappers_inside_are_wrappers_outside(x64):
    p, specs = dm.parameterization("depth_mup", **BASE), specs_at()
    params, grads, _ = problem(p, specs)
    expected = train(dm.optimizer(p, specs, "adamw", 0.01, weight_decay=0.1), params, grads)
    injected = optax.inject_hyperparams(optax.adamw)(learning_rate=0.01, weight_decay=0.1)
    assert_close(train(dm.wrap(p, specs, injected), params, grads), expected, 1e-7)  # in both some numbers are float32
    twice = [g for g in grads for _ in range(2)]
    accumulated = dm.wrap(p, specs, optax.MultiSteps(optax.adamw(0.01, weight_decay=0.1), 2))
    assert_close(train(accumulated, params, twice), expected, 1e-7)


def test_inside_a_jitted_step(x64):
    """Plain numbers are enough to probe there; traced ones are not, and the message says so."""
    p, specs = dm.parameterization("depth_mup", **BASE), specs_at()
    params, grads, _ = problem(p, specs, 1)

    def step(params, learning_rate):
        tx = dm.wrap(p, specs, optax.adam(learning_rate))
        return optax.apply_updates(params, tx.update(grads[0], tx.init(params), params)[0])

    inside = jax.jit(lambda params: step(params, 0.01))(params)
    assert_close(inside, train(dm.optimizer(p, specs, "adam", 0.01), params, grads))
    with pytest.raises(ValueError, match="outside of the jitted function"):
        jax.jit(step)(params, 0.01)


def test_extra_arguments_and_dtypes():
    def update(updates, state, params=None, *, value=None):
        return jax.tree.map(lambda g: g if value is None else g * value, updates), state

    tx = optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)
    p, specs = dm.parameterization("mup", base_width=4), specs_at()
    params = jax.tree.map(lambda w: jnp.asarray(w, jnp.bfloat16), init(16, 8))
    wrapped = dm.wrap(p, specs, tx)
    out = wrapped.update(jax.tree.map(jnp.ones_like, params), wrapped.init(params), params, value=2)[0]
    assert out["in"].dtype == jnp.bfloat16
    np.testing.assert_array_equal(np.asarray(out["in"], float), 2 * dm.factors(p, specs, "sgd").lr["in"])


@pytest.mark.parametrize(
    "family",
    ["adam", {"in": "adam", "blocks": "adam", "out": "adam", "out_bias": "adam"}, {"blocks/*": "adam", "*": "adam"}],
)
def test_the_user_knows_better(family, x64):
    """An elementwise clip before SGD could be a large eps of Adam."""
    p, specs = dm.parameterization("depth_mup", **BASE), specs_at()
    params, grads, _ = problem(p, specs, 1)
    tx = optax.chain(optax.clip(1.0), optax.sgd(0.1))
    by_hand = optax.chain(tx, dm.scale_by_parameterization(p, specs, "adam"))
    assert_close(train(dm.wrap(p, specs, tx, family=family), params, grads), train(by_hand, params, grads))


def test_a_contradiction_is_warned_of(x64):
    p, specs = dm.parameterization("depth_mup", **BASE), specs_at()
    params, grads, _ = problem(p, specs, 1)
    tx = optax.sgd(0.1)
    with pytest.warns(UserWarning, match="blocks/w has family='adam', but its update is that of 'sgd'"):
        wrapped = dm.wrap(p, specs, tx, family={"blocks/w": "adam"})
    with pytest.warns(UserWarning, match=r"blocks/b \(and 4 more\) has family='adam'") as warned:
        dm.wrap(p, specs, tx, family="adam")
    assert len(warned) == 1
    factors = dm.factors(p, specs, {**jax.tree.map(lambda _: "sgd", init(1, 1)), "blocks": {"b": "sgd", "w": "adam"}})
    by_hand = optax.chain(tx, optax.stateless(lambda u, _: jax.tree.map(lambda a, f: a * f, u, factors.lr)))
    assert_close(train(wrapped, params, grads), train(by_hand, params, grads))


def free(tx):
    """Adam at half of the leaves, `tx` at the others."""
    return optax.multi_transform({"a": optax.adam(1e-3), "b": tx}, PARTS)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: {"tx": free(optax.set_to_zero())}, "blocks/b: it did not move in 256 steps; pass family="),
        (lambda: {"tx": planted(lambda g, w: g / jnp.linalg.norm(g))}, "it is the gradient over its norm"),
        (lambda: {"tx": optax.chain(optax.clip(1.0), optax.sgd(0.1))}, "is neither linear in nor free of the gradient"),
        (lambda: {"tx": optax.contrib.schedule_free_sgd(0.1)}, "its state holds the weights"),
        (lambda: {"tx": optax.chain(optax.add_decayed_weights(1e-2), optax.adam(1e-3))}, "by more than decay"),
        (lambda: {"tx": optax.adafactor(1e-3, weight_decay_rate=1e-3)}, "has no correction; use dm.optimizer"),
        (lambda: {"tx": optax.contrib.muon(1e-3)}, "holds a vector of each block, one matrix for this update"),
        (lambda: {"tx": optax.polyak_sgd()}, "fails on small trees .* pass family="),
        (lambda: {"tx": optax.sgd(0.1), "family": "adm"}, "did you mean 'adam'"),
        (lambda: {"tx": optax.sgd(0.1), "family": {"block/*": "sgd"}}, "no parameter matches 'block/\\*'"),
        (lambda: {"tx": optax.sgd(0.1), "family": ["sgd", "adam"]}, "family must be a name"),
        (lambda: {"tx": optax.lion(0.1), "name": "am_mup"}, "defined for the sgd family only"),
    ],
)
def test_errors(make, message):
    given = make()
    p = dm.parameterization(given.pop("name", "depth_mup"), **BASE)
    with pytest.raises(ValueError, match=message):
        dm.wrap(p, specs_at(depth=2), **given)


@pytest.mark.parametrize(
    ("tx", "message"),
    [
        (
            optax.chain(matrix_updates.muon(), matrix_updates.times_weight_norm()),
            r"\(MuonH\), so that its singular values depend on the rank of the gradient: .* pass family=",
        ),
        (
            optax.chain(matrix_updates.muon(), matrix_updates.times_weight_norm(-0.01, project=True)),
            "its step ends on the sphere of the weight's norm .* wrap the step without that projection",
        ),
        (
            optax.chain(optax.scale_by_adam(), matrix_updates.times_weight_norm(-0.01, project=True)),
            "its step ends on the sphere of the weight's norm",
        ),
        (matrix_updates.psgd(), "times a factor of its shape that is none of those known"),
        (
            optax.chain(optax.scale_by_adam(), matrix_updates.of_each_leaf(lambda u: u * u.shape[-1] ** 3)),
            "of 'adam', ",
        ),
    ],
)
def test_updates_of_matrices_without_a_rule(tx, message):
    p, specs = dm.parameterization("depth_mup", **BASE), dm.infer_specs(matrices, layout="in_out", width=16, depth=2)
    with pytest.raises(ValueError, match=message):
        dm.wrap(p, specs, tx)


def test_a_step_that_is_projected_afterwards(x64):
    """What the refusal of a projected step advises: the step wrapped, then the projection."""
    p, specs = dm.parameterization("depth_mup", **BASE), dm.infer_specs(matrices, layout="in_out", width=16, depth=2)
    params = jax.tree.map(jnp.asarray, matrices(16, 2))
    step = optax.chain(optax.scale_by_adam(), matrix_updates.times_weight_norm(-0.01))
    wrapped = dm.wrap(p, specs, step)
    scaled, plain = (t.update(params, t.init(params), params)[0] for t in (wrapped, step))
    assert_close(scaled, jax.tree.map(lambda u, f: u * f, plain, dm.factors(p, specs, "adafactor").lr), 1e-5)


def test_a_coordinate_check_trains_by_the_same_optimizer():
    """dm.probe knows the leaves that Muon trains."""
    p, specs = dm.parameterization("depth_mup", **BASE), specs_at()
    weigh = jax.tree.map(jnp.cos, init(16, 8))

    def loss(params, batch, factors):
        return sum(jnp.sum(w * c) for w, c in zip(jax.tree.leaves(params), jax.tree.leaves(weigh), strict=True))

    probe = dm.probe(
        p,
        specs,
        init=lambda key: jax.tree.map(jnp.asarray, init(16, 8)),
        loss=loss,
        features=lambda params, batch, factors: {"hidden": params["in"], "logits": params["out"]},
        optimizer="muon",
        learning_rate=0.01,
        batch=None,
    )
    hyper = probe.hyper("all", 0)
    start = probe.init(hyper)
    trained = probe.step(start, None, hyper)[0][0]
    assert_close(trained, train(dm.optimizer(p, specs, "muon", 0.01), start[0], [weigh]), 1e-5)


def test_other_parameters_are_refused():
    p, specs = dm.parameterization("mup"), specs_at()
    with pytest.raises(dm.SpecError, match="different shapes"):
        dm.wrap(p, specs, optax.sgd(0.1)).init(init(8, 8))
