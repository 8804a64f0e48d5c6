"""Batch size and steps: rules against their sources' numbers, the SDE limit, models, sweeps and configs."""

import dataclasses
import pickle
import re
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from depthmup import sweep
from depthmup.data.batches import batch_indices
from depthmup.report import page
from depthmup.report.curves import judge as judge_rows
from depthmup.rules.batch_rules import RULES, RuleName, Run
from depthmup.rules.optim import OPTIONS, family_of
from depthmup.settings import SettingsError
from depthmup.sweep import judge, load
from depthmup.train.build import hyper_of, optimizer_of, steps_of
from depthmup.train.workdir import WorkdirError, read_settings
from depthmup.trials.adaptive import Search
from depthmup.trials.model_study import model_study_from
from depthmup.trials.plan import combinations, grid_trials
from depthmup.tune.model_sweep import study_of
from tests import tiny
from tests.test_model_sweep import DEPTH, WIDTH, X, Y, loss, setup

LR, WD = "learning_rate", "weight_decay"
# (rule, optimizer, (m_B, m_D), values at the base, values there), computed from the sources' own formulas.
GOLDEN = [
    # Malladi et al. 2022, as bert2d's documentation applies it to batches of 448 and 3,200
    ("sde", "adamw", (3200 / 448, 1), {LR: 1e-4, "b1": 0.9, "b2": 0.96, "eps": 1e-8, WD: 0.03},
     {LR: 2.6726124e-4, "b1": 0.28571429, "b2": 0.71428571, "eps": 3.7416574e-9, WD: 0.080178373}),
    # facebookresearch/detectron2 084acd0f, detectron2/engine/defaults.py: auto_scale_workers, batch 16 -> 32
    ("sde", "momentum", (2, 1), {LR: 0.1, "momentum": 0.9, WD: 1e-4},
     {LR: 0.2, "momentum": 0.9, WD: 1e-4}),
    # sims1253/flower 478aaa4f, its tests: 2,500 steps of 65,536 tokens -> 15,000; -> 625 of 4 times the batch; the
    # same with 2,500 steps
    ("completed_p", "adamw", (1, 6), {LR: 0.01}, {LR: 0.00408248}),
    ("completed_p", "adamw", (4, 1), {LR: 0.01, "b1": 0.98}, {LR: 0.02, "b1": 0.92}),
    ("completed_p", "adamw", (4, 4), {LR: 0.01}, {LR: 0.01}),
    # xiaol827/ELO 205b5ac2, src/parameterization.py
    ("completed_p", "adamw", (2, 4), {LR: 1.0, WD: 1.0, "eps": 1.0, "b1": 0.9, "b2": 0.95},
     {LR: 0.707107, WD: 0.707107, "eps": 1.414214, "b1": 0.95, "b2": 0.975}),
    # karpathy/nanochat 92d63d4, scripts/base_train.py: weight decay .28
    ("nanochat", "muon", (8, 8), {LR: 1.0, WD: 0.28},
     {LR: 2.828427, WD: 0.0989949}),
    ("nanochat", "muon", (4, 1), {LR: 1.0, WD: 0.28}, {LR: 2.0, WD: 0.56}),
    # marin-community/marin 054a715f, completed_adamh.py: (512, 2e10), (1024, 1e11) and (64, 2e10) from (64, 2.5e9)
    ("marin", "adamw", (8, 8), {LR: 6.56e-4, "eps": 1.85e-8, "b2": 0.9999},
     {LR: 6.56e-4, "eps": 1.85e-8, "b2": 0.9992003}),
    ("marin", "adamw", (16, 40), {LR: 6.56e-4, "eps": 1.85e-8, "b2": 0.9999},
     {LR: 4.14891e-4, "eps": 2.92511e-8, "b2": 0.998401}),
    ("marin", "adamw", (0.5, 1), {LR: 6.56e-4, "b2": 0.9999}, {LR: 4.63862e-4, "b2": 0.9999}),
    # 2e8ced2c, the MuonH recipe: 8 times batch and tokens of (131072, 1.4e9); its ratio, .06602 T^-.395 tpb^.5
    ("marin", "muon", (8, 8), {LR: 1.0, "b2": 0.999}, {LR: 8**0.105, "b2": 0.992028}),
    # microsoft/ArchScale c2ec1d69, pretrain.py: tokens x 4, and 8 times batch and tokens
    ("hyperp", "muon", (1, 4), {LR: 6e-4}, {LR: 3.850279e-4}),
    ("hyperp", "muon", (8, 8), {LR: 1.0}, {LR: 1.453970}),
    # Bergsma et al. 2025: tau ~ (tokens per parameter)^-.527
    ("power_lines", "adamw", (1, 8), {LR: 1.0, WD: 1.0}, {LR: 1.0, WD: 0.373971}),
    ("power_lines", "adamw", (4, 2), {LR: 1.0, WD: 1.0}, {LR: 1.0, WD: 2.881859}),
    # Bjorck et al. 2024, by HyperP's abstract: the learning rate goes as tokens^-.32
    ("token_horizon", "adamw", (1, 8), {LR: 1.0}, {LR: 0.514057}),
    ("timescale", "adamw", (1, 8), {LR: 1.0, WD: 1.0}, {LR: 1.0, WD: 0.125}),
]  # fmt: skip


def run_of(rule, m_B, m_D, base=(10**6, 10**6)):
    return Run(round(m_B * base[0]), round(m_D / m_B * base[1]), *base, rule)


@pytest.mark.parametrize(("rule", "optimizer", "ratios", "values", "expected"), GOLDEN)
def test_rules_have_the_numbers_of_their_sources(rule, optimizer, ratios, values, expected):
    scaled = run_of(rule, *ratios).scaled(optimizer, values)
    for name, value in expected.items():
        np.testing.assert_allclose(scaled[name], value, rtol=2e-5, err_msg=name)


@pytest.mark.parametrize("rule", ["sde", "completed_p", "nanochat", "timescale"])
def test_learning_rate_decay_and_steps_have_one_product(rule):
    for optimizer in OPTIONS:
        for m_B, m_D in ((8, 1), (0.5, 1), *([] if rule == "sde" else [(1, 8), (4, 2)])):
            run = run_of(rule, m_B, m_D)
            if not any(family_of(optimizer) in row.families for row in RULES[rule]):
                continue
            scaled = run.scaled(optimizer, {"learning_rate": 1.0, "weight_decay": 1.0, **_slow(optimizer)})
            shrinkage = scaled["learning_rate"] * scaled["weight_decay"] * m_D / m_B
            np.testing.assert_allclose(shrinkage, 1, rtol=1e-5)


def _slow(optimizer):
    """Averages so long that no rule of the test ends."""
    return {name: 0.99 for name in ("b1", "b2") if name in OPTIONS[optimizer]}


@pytest.mark.parametrize("rule", get_args(RuleName))
def test_at_the_base_nothing_changes(rule):
    values = {"learning_rate": 0.3, "weight_decay": 0.1}
    for optimizer in OPTIONS:
        if any(family_of(optimizer) in row.families for row in RULES[rule]):
            assert Run(64, 1000, 64, 1000, rule).scaled(optimizer, values) == values


def test_errors():
    cases = [
        (("sde", 16, 1), "adamw", "multiplies 1 - b1 by 16, and b1 = 0.9 would be -0.6: it ends at 10; tune"),
        (("sde", 4, 1), "muon", "batch_rule 'sde' is for the adam and sgd family, not for 'muon': take 'none' or"),
        (("sde", 4, 4), "adamw", "these are 4 times as many: train steps = 250000, or take 'none' or 'completed_p'"),
        (("token_horizon", 2, 2), "adamw", "is for the base's batch size, 1000000, and this is 2000000"),
    ]
    for (rule, m_B, m_D), optimizer, message in cases:
        with pytest.raises(ValueError, match=message):
            run_of(rule, m_B, m_D).scaled(optimizer, {"learning_rate": 1.0})
    with pytest.raises(ValueError, match="unknown batch_rule 'sqrt'"):
        Run(1, 1, 1, 1, "sqrt")
    with pytest.raises(ValueError, match="steps must be at least 1"):
        Run(1, 0, 1, 1, "sde")


# Noise of the gradient of one example is 50 times the gradient, as the SDE limit assumes.
SIGMA, EXAMPLES, SEEDS = 50.0, 2048, 1024
BASE = {"sgd": {"learning_rate": 5e-4}, "adam": {"learning_rate": 0.004, "b1": 0.98, "b2": 0.999}}


def quadratic(weights, batch, key):
    noise = SIGMA / np.sqrt(batch) * jax.random.normal(key, weights.shape)
    return jnp.array([1.0, 0.3]) * weights + noise


def network(weights, batch, key):
    """Gradient of |f - y|^2 / 2 of a tanh network on two inputs with labels that are mostly noise."""
    keys = jax.random.split(key)
    x = jax.random.normal(keys[0], (batch, 2))
    y = x[:, 0] + 20 * jax.random.normal(keys[1], (batch,))

    def loss(w):
        return jnp.mean((jnp.tanh(x @ w[:6].reshape(2, 3)) @ w[6:] - y) ** 2) / 2

    return jax.grad(loss)(weights)


def trained(gradient, start, optimizer, batch, change=1.0, rule="sde"):
    """(seeds, weights) after EXAMPLES examples."""
    values = Run(batch, EXAMPLES // batch, 1, EXAMPLES, rule).scaled(optimizer, BASE[optimizer])
    rate = change * values.pop("learning_rate")
    tx = optax.scale_by_adam(**values) if optimizer == "adam" else optax.identity()

    def step(carry, key):
        weights, state = carry
        updates, state = tx.update(gradient(weights, batch, key), state)
        return (weights - rate * updates, state), None

    def one(key):
        (weights, _), _ = jax.lax.scan(step, (start, tx.init(start)), jax.random.split(key, EXAMPLES // batch))
        return weights

    return np.asarray(jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(batch), SEEDS)))


def apart(a, b):
    """The largest difference of means and of variances, in standard errors."""
    error = np.sqrt(a.var(0) / len(a) + b.var(0) / len(b))
    of_variance = np.sqrt(2 / len(a)) * (a.var(0) + b.var(0)) / 2
    return max(np.abs((a.mean(0) - b.mean(0)) / error).max(), np.abs((a.var(0) - b.var(0)) / of_variance).max())


@pytest.mark.slow
@pytest.mark.parametrize("problem", ["quadratic", "network"])
@pytest.mark.parametrize(("optimizer", "wrong"), [("sgd", 0.5), ("adam", 2.0)])
def test_the_sde_limit(problem, optimizer, wrong):
    """Weak equality: at 4 times the batch, means and variances of the weights after the same examples are equal within
    noise; under the other optimizer's rule they are far apart."""
    gradient, start = {
        "quadratic": (quadratic, jnp.array([2.0, 2.0])),
        "network": (network, jnp.linspace(-1.0, 1.0, 9)),
    }[problem]
    base = trained(gradient, start, optimizer, 1, rule="none")
    assert apart(base, trained(gradient, start, optimizer, 4)) < 6
    assert apart(base, trained(gradient, start, optimizer, 4, change=wrong)) > 20


RUN = {"base_batch": 8, "base_steps": 100, "batch_rule": "completed_p"}


def test_setup_applies_the_rule():
    """The optimizer of a setup is dm.optimizer with the values of the rule; at the base it is the same as ever."""
    m, plain = setup(batch=16, steps=400, **RUN), setup()
    params = m.init(jax.random.key(0))["params"]
    grads = jax.tree.map(lambda leaf: 0.1 * jnp.ones_like(leaf), params)

    def update(tx):
        state = tx.init(params)
        for _ in range(2):
            updates, state = tx.update(grads, state, params)
        return jax.tree.leaves(updates)

    schedule = optax.linear_schedule(1e-2, 0.0, 100)
    r = 1 / 4  # of steps
    by_hand = plain.optimizer(
        "adamw", lambda step: r**0.5 * schedule(step), weight_decay=0.1 * r**0.5, b1=1 - r * 0.1, b2=1 - r * 0.05,
        eps=1e-3 * r**-0.5,
    )  # fmt: skip
    by_rule = m.optimizer("adamw", schedule, weight_decay=0.1, b1=0.9, b2=0.95, eps=1e-3)
    for a, b in zip(update(by_rule), update(by_hand), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)
    for a, b in zip(update(m.at(WIDTH, DEPTH, 8, 100).optimizer("adamw", 1e-2)), update(plain.optimizer("adamw", 1e-2)),
                    strict=True):  # fmt: skip
        np.testing.assert_array_equal(a, b)
    lion = [update(of.wrap(optax.lion(1e-2))) for of in (m, plain)]
    for a, b in zip(*lion, strict=True):
        np.testing.assert_allclose(a, r**0.5 * b, rtol=1e-6)


def test_setup_carries_its_run():
    m = setup(batch=16, steps=400, **RUN)
    for same in (m.at(8, 2), m.under("mup"), pickle.loads(pickle.dumps(m.run))):
        assert getattr(same, "run", same) == m.run
    assert m.at(8, 2, steps=800).run == dataclasses.replace(m.run, steps=800)
    text = str(m.explain(optimizer="adamw", learning_rate=0.5))
    assert "batch 8 -> 16, steps 100 -> 400 (examples x 8), batch_rule 'completed_p': learning rate x 0.5" in text
    assert "1 - b2 x 0.25" in text
    lr = {row.parameter: row.lr for row in m.explain(optimizer="adamw", learning_rate=0.5).rows}
    plain = {row.parameter: row.lr for row in setup().explain(optimizer="adamw", learning_rate=0.5).rows}
    assert lr == pytest.approx({name: value / 2 for name, value in plain.items()}, rel=1e-12)
    with pytest.raises(ValueError, match="give base_batch=, base_steps= and batch_rule="):
        setup(batch=16)
    with pytest.raises(ValueError, match=r"batch_rule= says how .* one of none, sde"):
        setup(base_batch=8, base_steps=10)
    with pytest.raises(ValueError, match="give base_batch="):
        setup().at(WIDTH, DEPTH, 16)


SWEEP = {"learning_rates": [2.0**x for x in range(-9, -4)], "per_octave": 1, "widths": (), "depths": (), "seeds": 1}


def test_a_sweep_over_batch_sizes_and_steps(tmp_path):
    """Its trials are those of sweeps at one size, to the last bit, under the rule; and it goes on in its workdir."""
    m = setup(**RUN)
    both = {**SWEEP, "batch_size": (8, 16), "steps": (100, 200), "progress": False, "workdir": tmp_path}
    result = m.sweep(loss, (X, Y), **both)
    shapes = result.rows[["batch_size", "steps"]].drop_duplicates().to_numpy().tolist()
    assert sorted(shapes) == [[8, 100], [8, 200], [16, 50]]  # 16: as many examples
    assert {c.axis for c in result.curves} == {"batch_size", "steps"}
    assert "batch size 8 to 16" in str(result)
    for batch, steps in ((8, 200), (16, 50)):
        lone = m.at(WIDTH, DEPTH, batch, steps).sweep(
            loss, (X, Y), **{**SWEEP, "widths": (WIDTH,), "batch_size": batch, "steps": steps, "progress": False}
        )
        rows = result.rows[(result.rows["batch_size"] == batch) & (result.rows["steps"] == steps)]
        np.testing.assert_array_equal(rows["last_loss"].to_numpy(), lone.rows["last_loss"].to_numpy())
    again = load(tmp_path)
    assert len(again) == len(result.rows) == 15
    with pytest.raises(WorkdirError, match="batch_rule"):
        setup(**RUN | {"base_steps": 50}).sweep(loss, (X, Y), **both)


def test_a_sweep_of_all_sizes_at_once(tmp_path):
    """Its trials are those of a sweep at that size, to the last bit; rows and workdir judge alike."""
    large = (2 * WIDTH, DEPTH, 16, 200)
    options = {**SWEEP, "seeds": 2, "steps": 100, "batch_size": 8, "sizes": [large], "progress": False}
    result = setup(**RUN).sweep(loss, (X, Y), **options, workdir=tmp_path)
    (curve,) = result.curves
    assert (curve.axis, curve.result.values) == ("compute", [1, 16])
    assert "compute 1 to 16" in str(result)
    alone = {**options, "sizes": (), "widths": large[:1], "batch_size": large[2], "steps": large[3]}
    lone = setup(**RUN).at(WIDTH, DEPTH, *large[2:]).sweep(loss, (X, Y), **alone)
    rows = result.rows[result.rows["width"] == large[0]]
    np.testing.assert_array_equal(rows["last_loss"].to_numpy(), lone.rows["last_loss"].to_numpy())
    assert set(map(tuple, rows[["width", "depth", "batch_size", "steps"]].to_numpy().tolist())) == {large}
    columns = ["width", "depth", "batch_size", "steps", "learning_rate", "seed", "last_loss", "diverged"]
    (again,) = judge(result.rows[columns].rename(columns={"last_loss": "loss"})).curves
    assert (again.axis, again.result.values) == ("compute", curve.result.values)
    assert again.result.optimal_lr == curve.result.optimal_lr
    saved = model_study_from(read_settings(tmp_path))
    assert [c.result.optimal_lr for c in judge_rows(load(tmp_path), saved)] == [curve.result.optimal_lr]
    # While the large size trains, the page has the best rate of the base.
    at_base = result.study.sized({"depth": [], "width": [], "compute": [1.0]})
    first = page.write_report([], result.rows[result.rows["width"] == WIDTH], at_base, tmp_path, "").read_text()
    assert "best learning rate" in first


def test_the_noise_scale_is_beside_the_verdict(tmp_path):
    """Before the first step it is that of the initial model, which `m.noise_scale` measures, on the same examples."""
    m = setup()
    rates = [2.0**x for x in range(-9, 0)]
    options = {**SWEEP, "learning_rates": rates, "steps": 20, "batch_size": (8, 16), "progress": False}
    options["workdir"] = tmp_path
    result = m.sweep(loss, (X, Y), **options, measure=("noise_scale",), measure_points=3)
    assert re.search(r"the gradient noise scale of batch 8 at its best rate is \S+ at step 0", str(result))
    table = sweep.measured(tmp_path)
    at_start = table[(table["step"] == 0) & (table["quantity"] == "noise_scale")]["value"].to_numpy()
    assert len(at_start) == len(result.rows)
    examples = tuple(leaf[batch_indices(64, 8, 0, 8, 0).ravel()] for leaf in (X, Y))  # an epoch: all that there are
    expected = m.noise_scale(loss, examples, m.init(jax.random.key(0)), part=2)
    np.testing.assert_allclose(at_start[0], expected.value, rtol=1e-4)
    with pytest.raises(SettingsError, match="only 'noise_scale' is measured"):
        m.sweep(loss, (X, Y), **options, measure=("sharpness",))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sizes": [(16, 2, 16)]}, r"each of sizes is \(width, depth, batch_size, steps\), got \(16, 2, 16\)"),
        ({"sizes": [(16, 2, 0, 5)]}, "batch_size of sizes must be at least 1"),
        ({"sizes": [(16, 2, 16, 5)], "batch_size": None}, "give batch_size=, that of the base"),
        ({"sizes": [(8, 1, 8, 10)]}, "take equal compute"),
    ],
)
def test_sizes_that_cannot_be_compared(options, message):
    with pytest.raises(ValueError, match=message):
        study_of(setup(), loss, (X, Y), **SWEEP | {"batch_size": 8, "steps": 10} | options)


def test_the_base_of_all_sizes_is_that_of_the_sweep():
    """Not that of the batch rule, where a batch size is given."""
    options = {**SWEEP, "steps": 100, "sizes": [(16, 2, 32, 400)]}
    study = study_of(setup(**RUN), loss, (X, Y), **options, batch_size=16)
    assert study.along["compute"][1] == {"model.width": WIDTH, "model.depth": DEPTH, "batch_size": 16, "steps": 100}
    assert study_of(setup(**RUN), loss, (X, Y), **options).along["compute"][1]["batch_size"] == RUN["base_batch"]


def test_batches_of_every_size_are_asked_of_a_function():
    study = study_of(setup(), loss, lambda step, size: (X[:size], Y[:size]), **SWEEP, batch_size=(4, 8), fixed="steps",
                     steps=10)  # fmt: skip
    assert {(p.batch_size, p.steps, p.feed.batch_size) for p, _ in combinations(study)} == {(4, 10, 4), (8, 10, 8)}
    with pytest.raises(ValueError, match=r"a sweep of batch sizes needs batches of each: give arrays .*\(step, batch_"):
        study_of(setup(), loss, lambda step: (X[:4], Y[:4]), **SWEEP, batch_size=(4, 8), steps=10)
    with pytest.raises(ValueError, match="unknown fixed 'epochs'"):
        study_of(setup(), loss, (X, Y), **SWEEP, batch_size=(4, 8), steps=10, fixed="epochs")
    with pytest.raises(SettingsError, match=r"batch_size = \(4, 4\) has a value twice"):
        study_of(setup(), loss, (X, Y), **SWEEP, batch_size=(4, 4), steps=10)


def test_an_adaptive_search_walks_the_batch_sizes():
    """Of equal cost, and given in any order: it asks for every size, if the loss is a parabola in the learning rate."""
    options = {**SWEEP, "per_octave": 2, "learning_rates": [2.0 ** (x / 2) for x in range(-18, -7)], "adaptive": True}
    study = study_of(setup(), loss, (X, Y), **options, batch_size=(16, 4, 8, 32), steps=(32, 16, 64))
    search, rows = Search(study), {}
    while more := search.next_trials(rows):
        for trial in more:
            value = 1 + (np.log2(trial.learning_rate) + 6 - np.log2(trial.point.batch_size / 16)) ** 2 / 50
            rows[trial.key] = {"last_loss": value, "loss": value, "first_loss": 3.0, "diverged": False}
    shapes = {(t.point.batch_size, t.point.steps) for t in search.evaluated(rows)}
    assert shapes == {(4, 128), (8, 64), (16, 32), (32, 16), (16, 16), (16, 64)}


RULE = {"base_batch_size": 32, "base_steps": 20, "batch_rule": "sde"}


def config(rule, **others):
    return tiny.settings(**{f"parameterization__{key}": value for key, value in rule.items()}, **others)


def test_a_config_applies_the_rule():
    longer = {"data__batch_size": 64, "epochs": 1.0}
    steps = steps_of(config({}, **longer))
    settings = config(RULE | {"base_steps": 2 * steps}, **longer)
    assert hyper_of(settings).learning_rate == 2 * settings.optimizer.learning_rate
    assert optimizer_of(settings)["weight_decay"] == settings.optimizer.weight_decay
    plain = tiny.settings()
    assert optimizer_of(plain)["learning_rate"] == plain.optimizer.learning_rate


@pytest.mark.parametrize(
    ("parameterization", "message"),
    [
        ({"batch_rule": "sde"}, r"set parameterization.base_batch_size and parameterization.base_steps too, or none"),
        (RULE | {"batch_rule": "sqrt"}, "unknown parameterization.batch_rule 'sqrt'"),
        (RULE | {"batch_rule": "hyperp"}, "batch_rule 'hyperp' is for the muon family, not for 'sgd'"),
        (RULE | {"base_batch_size": 0}, "parameterization.base_batch_size must be at least 1"),
    ],
)
def test_configs_that_say_nothing(parameterization, message):
    with pytest.raises(SettingsError, match=message):
        config(parameterization)


def test_a_config_sweeps_batch_sizes_and_epochs():
    study = tiny.study(sweep__batch_sizes=(16, 32), sweep__epochs=(1.0, 2.0), sweep__depths=(), sweep__widths=())
    shapes = {(t.point.leaves["data.batch_size"], t.point.leaves["epochs"]) for t in grid_trials(study)}
    base = study.settings.data.batch_size, study.settings.epochs
    assert shapes == {(16, base[1]), (32, base[1]), (base[0], 1.0), (base[0], 2.0)}
