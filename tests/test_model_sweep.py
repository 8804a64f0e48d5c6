"""`m.sweep`: a user's model of any framework, trained by the engine as a hand-written loop trains it."""

import functools
import signal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas
import pytest
from flax import linen as nn
from flax import nnx

import depthmup as dm
from depthmup import sweep
from depthmup.settings import SettingsError
from depthmup.train.build import batches_of, task_of
from depthmup.train.loop import drive
from depthmup.train.stop import Stopped
from depthmup.train.workdir import WorkdirError, read_settings
from depthmup.trials.engine import checked_trials
from depthmup.trials.group import GroupHooks
from depthmup.trials.plan import grid_trials
from depthmup.tune.model_sweep import study_of
from tests import tiny
from tests.test_forward import OffsetNorm

WIDTH, DEPTH, INPUTS, CLASSES, BATCH, STEPS = 8, 1, 6, 4, 16, 70  # more steps than one call of a program takes
RATES = tuple(2.0**x for x in range(-9, -2))
X = np.random.default_rng(0).normal(size=(64, INPUTS)).astype(np.float32)
Y = np.random.default_rng(1).integers(0, CLASSES, 64).astype(np.int32)


class LinenNet(nn.Module):
    """sandwich: branches end with a norm of scale 1 + parameter."""

    width: int
    depth: int
    sandwich: bool = False

    @nn.compact
    def __call__(self, x):
        h = nn.Dense(self.width, name="first")(x)
        for i in range(self.depth):
            y = nn.Dense(self.width, name=f"block_{i}")(nn.relu(h))
            h = h + (OffsetNorm(name=f"norm_{i}")(y) if self.sandwich else y)
        return nn.Dense(CLASSES, name="head")(h)


class NNXNet(nnx.Module):
    def __init__(self, width, depth, rngs):
        self.first = nnx.Linear(INPUTS, width, rngs=rngs)
        self.blocks = nnx.List([nnx.Linear(width, width, rngs=rngs) for _ in range(depth)])
        self.head = nnx.Linear(width, CLASSES, rngs=rngs)

    def __call__(self, x):
        h = self.first(x)
        for block in self.blocks:
            h = h + block(nnx.relu(h))
        return self.head(h)


class EquinoxNet(eqx.Module):
    first: eqx.nn.Linear
    blocks: list
    head: eqx.nn.Linear

    def __init__(self, width, depth, key):
        keys = jax.random.split(key, depth + 2)
        self.first = eqx.nn.Linear(INPUTS, width, key=keys[0])
        self.blocks = [eqx.nn.Linear(width, width, key=k) for k in keys[2:]]
        self.head = eqx.nn.Linear(width, CLASSES, key=keys[1])

    def __call__(self, x):
        h = self.first(x)
        for block in self.blocks:
            h = h + block(jax.nn.relu(h))
        return self.head(h)


def haiku_net(width, depth):
    hk = pytest.importorskip("haiku")

    def forward(x):
        h = hk.Linear(width, name="first")(x)
        for i in range(depth):
            h = h + hk.Linear(width, name=f"block_{i}")(jax.nn.relu(h))
        return hk.Linear(CLASSES, name="head")(h)

    return hk.without_apply_rng(hk.transform(forward))


def bare(width, depth, key):
    keys = jax.random.split(key, depth + 2)

    def normal(key, rows, columns):
        return jax.random.normal(key, (rows, columns)) / rows**0.5

    return {
        "first": normal(keys[0], INPUTS, width),
        "blocks": [normal(k, width, width) for k in keys[2:]],
        "head": normal(keys[1], width, CLASSES),
    }


def call_bare(params, x):
    h = x @ params["first"]
    for block in params["blocks"]:
        h = h + jax.nn.relu(h) @ block
    return h @ params["head"]


def batch_call(model, x):
    return jax.vmap(model)(x)


OFFSET = "linen, 1 + scale"
FRAMEWORKS = {
    "linen": (LinenNet, {}),
    OFFSET: (functools.partial(LinenNet, sandwich=True), {}),
    "nnx": (NNXNet, {}),
    "equinox": (EquinoxNet, {"call": batch_call}),
    "haiku": (haiku_net, {}),
    "pytree": (bare, {"call": call_bare}),
}


@functools.cache
def setup(framework="linen", name="depth_mup", **options):
    factory, call = FRAMEWORKS[framework]
    settings = {"width": WIDTH, "depth": DEPTH, "base": (WIDTH, DEPTH), "fan_in_init": False, **call, **options}
    return dm.setup(name, factory, jnp.zeros((1, INPUTS)), **settings)


def loss(logits, targets):
    return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()


def batches(step):
    places = jax.random.randint(jax.random.fold_in(jax.random.key(7), step), (BATCH,), 0, len(X))
    return jnp.asarray(X)[places], jnp.asarray(Y)[places]


def small(m, given=batches, **options):
    """A sweep of one shape."""
    settings = {"steps": STEPS, "learning_rates": RATES, "widths": (WIDTH,), "depths": (), "seeds": 1}
    return m.sweep(loss, given, **{**settings, "progress": False, **options})


def split(framework, held):
    """(what is trained, trained -> what the user holds), in the framework's own way."""
    if framework.startswith("linen"):
        return held["params"], lambda params: {"params": params}
    if framework == "nnx":
        definition, params, rest = nnx.split(held, nnx.Param, ...)
        return params, lambda params: nnx.merge(definition, params, jax.tree.map(lambda leaf: leaf, rest))
    if framework == "equinox":
        params, static = eqx.partition(held, eqx.is_inexact_array)
        return params, lambda params: eqx.combine(params, static)
    return held, lambda params: params


def by_hand(framework, m, rate, seed, make=lambda m, rate: m.optimizer("adamw", rate, weight_decay=0.1)):
    """The losses of a training as a user writes it with Optax, (STEPS,)."""
    # In one program, as the engine does it: XLA may round a division elsewhere than operation by operation.
    init = jax.jit(m.init) if framework == "pytree" else m.init
    params, joined = split(framework, init(jax.random.key(seed)))

    @jax.jit
    def step(params, state, rate, number):
        x, y = batches(number)
        value, grads = jax.value_and_grad(lambda params: loss(m.apply(joined(params), x), y))(params)
        updates, state = make(m, rate).update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    state, losses = make(m, rate).init(params), []
    for number in range(STEPS):
        params, state, value = step(params, state, jnp.float32(rate), jnp.int32(number))
        losses.append(np.float32(value))
    return np.array(losses)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_sweep_is_what_a_hand_written_loop_gives(framework, tmp_path):
    """To the last bit, at another depth than the base's, whose factors are powers of 2 and exact in float32. With
    1 + scale, where 1 is a constant for one compiler alone, up to rounding in the first steps."""
    m = setup(framework)
    result = small(m, widths=(), depths=(4 * DEPTH,), weight_decay=0.1, seeds=2, workdir=tmp_path)
    curves = sweep.curves(tmp_path).groupby("key")
    assert len(result.rows) == 2 * len(RATES)
    for row in result.rows.iloc[[0, 5, len(RATES)]].itertuples():
        losses = by_hand(framework, m.at(WIDTH, 4 * DEPTH), row.learning_rate, row.seed)
        compared, tolerance = (10, 1e-5) if framework == OFFSET else (STEPS, 0)
        swept = curves.get_group(row.key)["loss"]
        np.testing.assert_allclose(swept[:compared], losses[:compared], rtol=tolerance, atol=0)
        assert row.last_loss == pytest.approx(losses[-7:].astype(float).mean(), rel=1e3 * tolerance or 1e-12)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A sweep of two depths and two parameterizations."""
    workdir = tmp_path_factory.mktemp("sweep")
    m = setup()
    options = {"steps": STEPS, "learning_rates": RATES, "widths": (), "depths": (1, 4), "against": ("sp",), "seeds": 2}
    return m, m.sweep(loss, batches, **options, workdir=workdir, progress=False), options, workdir


def test_what_a_sweep_says(whole, tmp_path):
    m, result, _, workdir = whole
    assert [(c.parameterization, c.axis, len(c.trials)) for c in result.curves] == [
        ("depth_mup", "depth", 4 * len(RATES)),
        ("sp", "depth", 4 * len(RATES)),
    ]
    text = str(result)
    assert text.startswith("depth 1 to 4 ")
    assert text.count("\nadamw depth_mup  ") == 1
    assert "\nNext: " in text
    assert "learning rate to use" in text
    first = result.curves[0].result
    assert result.learning_rate == first.tuned
    m.optimizer("adamw", result.learning_rate)
    p = result.predict(width=2 * WIDTH, depth=16, batch_size=BATCH, steps=2 * STEPS)
    assert 0 < p.low < p.learning_rate < p.high
    assert set(p.outside) == {"width", "depth", "steps"}
    assert result.report() == workdir / "report.html"
    assert (workdir / "loss_over_depth.png").exists()
    result.plot(tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
    assert "data:image/png" in result._repr_html_()
    assert result.report(tmp_path / "elsewhere").read_text().count("depth_mup") > 2
    with pytest.raises(ValueError, match="unknown axis of this sweep 'width'"):
        result.plot(axis="width")
    assert {"optimizer", "parameterization", "width", "depth", "learning_rate", "seed", "last_loss"} <= set(result.rows)


def test_a_program_serves_all_parameterizations(whole):
    """Their factors are traced: where the shapes of all factors are equal, there is one program for each shape."""
    _, result, _, _ = whole
    programs = {}
    for trial in grid_trials(result.study):
        programs.setdefault(trial.point.program, set()).add((trial.point.depth, trial.point.parameterization))
    assert sorted(map(sorted, programs.values())) == [
        [(1, "depth_mup"), (1, "sp")],
        [(4, "depth_mup"), (4, "sp")],
    ]


def test_a_sweep_goes_on_and_refuses_another_one(whole):
    m, result, options, workdir = whole
    again = m.sweep(loss, batches, **options, workdir=workdir, progress=False)
    assert again.rows.equals(result.rows)
    wider = m.sweep(loss, batches, **options, margin="50%", workdir=workdir, progress=False)  # trains nothing
    assert {curve.result.margin for curve in wider.curves} == {"50%"}
    assert wider.rows.equals(result.rows)

    def doubled(logits, targets):
        return 2 * loss(logits, targets)

    doubled.__qualname__ = "loss"
    with pytest.raises(WorkdirError, match="results of another config: the loss changed"):
        m.sweep(doubled, batches, **options, workdir=workdir, progress=False)
    with pytest.raises(WorkdirError, match="the batches of step 0 changed"):
        m.sweep(loss, lambda step: batches(step + 1), **options, workdir=workdir, progress=False)
    with pytest.raises(WorkdirError, match="steps was 70, now it is 71"):
        m.sweep(loss, batches, **{**options, "steps": 71}, workdir=workdir, progress=False)


def test_rows_are_judged_without_the_model(whole, tmp_path):
    """`sweep.compare` of workdirs: settings.json alone says what they are."""
    _, result, _, workdir = whole
    other = tmp_path / "other"
    other.mkdir()
    for name in ("settings.json", "results.jsonl"):
        (other / name).write_bytes((workdir / name).read_bytes())
    page = sweep.compare([workdir, other], to=tmp_path / "both").read_text()
    assert page.count(result.curves[0].result.verdict) >= 2


ARRAYS = {
    "arrays": ((X, Y), {"batch_size": BATCH}),
    "list": ([(X[i : i + BATCH], Y[i : i + BATCH]) for i in (0, 16, 32, 48)] * 18, {}),
    "host function": (lambda step: (X[(step % 4) * BATCH :][:BATCH], Y[(step % 4) * BATCH :][:BATCH]), {}),
    "factory": (lambda: ((X[i % 4 * BATCH :][:BATCH], Y[i % 4 * BATCH :][:BATCH]) for i in range(1000)), {}),
    "traced": (
        lambda step: (jnp.asarray(X).reshape(4, BATCH, -1)[step % 4], jnp.asarray(Y).reshape(4, BATCH)[step % 4]),
        {},
    ),
}


def test_batches_of_all_kinds_are_the_same_batches():
    """A list, functions on the host and on the device, and an iterator: equal rows. Arrays are shuffled."""
    losses = {
        name: small(setup(), given, **options).rows["last_loss"].to_numpy() for name, (given, options) in ARRAYS.items()
    }
    for name in ("host function", "factory", "traced"):
        np.testing.assert_array_equal(losses[name], losses["list"], err_msg=name)
    assert (losses["arrays"] != losses["list"]).all()


def test_a_transformation_of_ones_own():
    m = setup(width=2 * WIDTH)

    def lion(m, b1=0.9):
        return m.wrap(optax.lion(1.0, b1=b1))

    result = small(m, optimizer=lion, b1=(0.9, 0.95), learning_rates=[rate / 8 for rate in RATES], widths=(2 * WIDTH,))
    assert set(result.rows["optimizer"]) == {"test_a_transformation_of_ones_own.lion"[-4:]}
    row = result.rows[(result.rows["b1"] == 0.95)].iloc[3]
    tx = m.wrap(optax.lion(1.0, b1=0.95))
    losses = by_hand("linen", m, row["learning_rate"], 0, lambda m, rate: optax.chain(tx, optax.scale(rate)))
    assert row["last_loss"] == pytest.approx(losses[-7:].astype(float).mean(), rel=1e-6)  # other products are rounded


def test_swept_hyperparameters_of_named_optimizers():
    """One that is no number is compiled in; one that an optimizer lacks is no argument of it."""
    options = {"steps": 5, "learning_rates": RATES, "widths": (), "depths": (1,)}
    nesterov = study_of(setup(), loss, batches, **options, optimizer="momentum", nesterov=(False, True))
    assert [trial.point.task.options["nesterov"] for trial in grid_trials(nesterov)][:: 3 * len(RATES)] == [False, True]
    both = study_of(setup(), loss, batches, **options, optimizer=("momentum", "adamw"), momentum=(0.8, 0.9))
    assert len(checked_trials(both)) == 3 * 3 * len(RATES)


def test_held_out_batches_judge():
    result = small(setup(), (X, Y), batch_size=BATCH, evaluate=(X[:40], Y[:40]), schedule="cosine", warmup=5, clip=1.0)
    assert result.study.sweep.judge_by == "validation_loss"
    row = result.rows.iloc[0]
    assert 0 < row["validation_loss"] < row["first_loss"]


class Noisy(nn.Module):
    """Batch norm and dropout."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, x, train):
        h = nn.Dense(self.width, name="first")(x)
        for i in range(self.depth):
            y = nn.BatchNorm(use_running_average=not train, name=f"norm_{i}")(h)
            h = h + nn.Dense(self.width, name=f"block_{i}")(nn.Dropout(0.5, deterministic=not train)(nn.relu(y)))
        return nn.Dense(CLASSES, name="head")(h)


def test_statistics_and_random_streams():
    """Dropout differs from step to step, running averages are trained, and evaluation uses both as it should."""
    m = dm.setup(
        "mup",
        Noisy,
        jnp.zeros((2, INPUTS)),
        width=WIDTH,
        depth=1,
        base=(WIDTH, 1),
        options={"train": True},
        fan_in_init=False,
    )
    held = [(X[:32], Y[:32]), (X[32:], Y[32:])]
    result = small(m, batches, optimizer="sgd", evaluate=held, steps=6)
    row = result.rows.iloc[-1]

    variables = m.init(jax.random.key(0))
    params, statistics = variables["params"], variables["batch_stats"]
    tx = m.optimizer("sgd", row["learning_rate"])
    state = tx.init(params)
    for number in range(6):
        x, y = batches(number)
        key = jax.random.fold_in(jax.random.key(0), number)

        def objective(params, statistics=statistics, x=x, y=y, key=key):
            held = {"params": params, "batch_stats": statistics}
            logits, after = m.apply(held, x, train=True, mutable=["batch_stats"], rngs={"dropout": key})
            return loss(logits, y), after["batch_stats"]

        (_, statistics), grads = jax.value_and_grad(objective, has_aux=True)(params)
        updates, state = tx.update(grads, state, params)
        params = optax.apply_updates(params, updates)
    final = {"params": params, "batch_stats": statistics}
    expected = np.mean([loss(m.apply(final, x, train=False), y) for x, y in held])
    assert row["validation_loss"] == pytest.approx(expected, rel=1e-5)


def test_a_search_from_a_first_guess():
    """It leaves the grid where the best rate is at its end, and trains less than the grid of all octaves."""
    result = small(setup(), learning_rates=2.0**-9, steps=30)
    rates = np.log2(sorted(set(result.rows["learning_rate"])))
    assert rates[0] == -11.5
    assert rates[-1] > -6.5
    assert 2.0**-7 < result.learning_rate


def test_tune_says_what_it_would_cost_to_be_sure(capsys):
    m = setup(width=4 * WIDTH, depth=8)
    result = m.tune(loss, batches, steps=20, learning_rate=2.0**-5, seeds=1, progress=False)
    assert set(zip(result.rows["width"], result.rows["depth"], strict=True)) == {(WIDTH, DEPTH)}
    assert f"learning rate for width {4 * WIDTH}, depth 8 under depth_mup: {result.learning_rate:.3g}" in str(result)
    assert "m.sweep over widths (8, 16, 32) and depths (1, 2, 4): " in str(result)
    assert "trials" in str(result)
    assert "nothing is stored" in str(result)


def never_twice():
    calls = iter(range(10**6))
    return lambda step: (X[next(calls) % 32 :][:BATCH], Y[:BATCH])


WRONG = {
    "batches run out": ({"given": [(X[:16], Y[:16])] * 3}, r"run out after 3 of 70 steps: 70 are needed"),
    "a factory that runs out": (
        {"given": lambda: iter([(X[:16], Y[:16])] * 3), "learning_rates": RATES[:5]},
        "run out after 3 steps",
    ),
    "a loss that is no number": ({"loss": lambda logits, targets: logits.sum(-1)}, r"loss must be one number.*\(16,\)"),
    "targets of another length": ({"given": (X, Y[:-1]), "batch_size": 8}, r"as many examples.*\(64, 6\), \(63,\)"),
    "no batch size": ({"given": (X, Y)}, "give batch_size="),
    "a batch size that is too large": ({"given": (X, Y), "batch_size": 65}, "from 1 to the number of examples, 64"),
    "batches of two sizes": ({"given": [(X[:16], Y[:16])] * 69 + [(X[:8], Y[:8])]}, "8 to 16 examples"),
    "a function that is not pure": ({"given": never_twice()}, "not pure: it gave other numbers for step 0"),
    "a learning rate that is not positive": ({"learning_rates": (*RATES, 0.0)}, "positive and finite"),
    "four learning rates": ({"learning_rates": RATES[:4]}, "an optimum needs 5 learning rates, got 4"),
    "an unknown optimizer": ({"optimizer": "adan"}, "unknown optimizer 'adan'.*m.wrap"),
    "an unknown hyperparameter": ({"beta3": 0.1}, "unknown argument of sweep, or hyperparameter 'beta3'"),
    "no rates for a function": (
        {"optimizer": lambda m: optax.sgd(1.0), "learning_rates": None},
        "give learning_rates=",
    ),
    "an optimizer that needs the loss": (
        {"optimizer": lambda m: optax.chain(optax.sgd(1.0), optax.contrib.reduce_on_plateau())},
        "needs more than gradients and parameters.*value.*reduce_on_plateau",
    ),
    "a warm-up without an end": ({"warmup": STEPS}, "warmup must be from 0 to steps - 1 = 69"),
    "an unknown schedule": ({"schedule": "cosin"}, "unknown schedule 'cosin'; did you mean 'cosine'"),
    "a size twice": ({"depths": (1, 1)}, "has a value twice"),
    "no size": ({"widths": (), "weight_decay": (0.0, 0.1)}, "widths and depths are both empty; give the base's depth"),
    "judged by what is not there": ({"judge_by": "validation_loss"}, "unknown judge_by 'validation_loss'"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_cannot_be_trained_is_refused(wrong):
    options, message = WRONG[wrong]
    settings = {
        "steps": STEPS,
        "learning_rates": RATES,
        "widths": (WIDTH,),
        "depths": (),
        "seeds": 1,
        "progress": False,
    }
    settings |= {key: value for key, value in options.items() if key not in ("given", "loss")}
    with pytest.raises((SettingsError, ValueError), match=message):
        setup().sweep(options.get("loss", loss), options.get("given", batches), **settings)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"widths": (2, 4)},
            r"depths \(1, 2, 4\) are trained at the base's width 8, above all widths \(2, 4\): depths=\(\)",
        ),
        (
            {"depths": (2,), "widths": (16,)},
            r"widths \(16,\) are trained at the base's depth 4, above all depths \(2,\)",
        ),
    ],
)
def test_sizes_below_the_base_leave_the_other_axis_at_the_base(options, message):
    m = setup(depth=4, base=(WIDTH, 4)) if "depths" in options else setup()
    with pytest.raises(UserWarning, match=message):  # before anything is trained
        small(m, **{"depths": None, **options})


def test_the_workdir_says_what_decides_its_rows(whole):
    saved = read_settings(whole[3])
    assert saved["model"] == "LinenNet"
    assert saved["base"] == [WIDTH, DEPTH]
    assert saved["steps"] == STEPS
    assert saved["program"] == {"jax": jax.__version__}
    assert "the loss" in saved["hashes"][""]


class NoisyNNX(nnx.Module):
    """Batch norm and dropout, whose random state is in the model."""

    def __init__(self, width, depth, rngs):
        self.first, self.head = nnx.Linear(INPUTS, width, rngs=rngs), nnx.Linear(width, CLASSES, rngs=rngs)
        self.norms = nnx.List([nnx.BatchNorm(width, rngs=rngs) for _ in range(depth)])
        self.drops = nnx.List([nnx.Dropout(0.3, rngs=rngs) for _ in range(depth)])
        self.blocks = nnx.List([nnx.Linear(width, width, rngs=rngs) for _ in range(depth)])

    def __call__(self, x):
        h = self.first(x)
        for norm, drop, block in zip(self.norms, self.drops, self.blocks, strict=True):
            h = h + block(drop(nnx.relu(norm(h))))
        return self.head(h)


def test_a_stopped_sweep_goes_on_bit_for_bit(tmp_path, monkeypatch):
    """Optimizer state, running averages and random state of the model are in the checkpoint."""
    m = dm.setup("mup", NoisyNNX, jnp.zeros((2, INPUTS)), width=WIDTH, depth=1, base=(WIDTH, 1), fan_in_init=False)
    options = {"steps": 150, "learning_rates": RATES[:5], "evaluate": [(X, Y)]}
    whole = small(m, batches, **options, workdir=tmp_path / "whole")
    asks = iter([None, signal.SIGTERM, signal.SIGTERM])
    monkeypatch.setattr(GroupHooks, "requested", property(lambda hooks: next(asks)))
    with pytest.raises(Stopped, match="at step 128: saved"):
        small(m, batches, **options, workdir=tmp_path / "stopped")
    monkeypatch.undo()
    again = small(m, batches, **options, workdir=tmp_path / "stopped")
    assert again.rows.equals(whole.rows)
    assert sweep.curves(tmp_path / "stopped").equals(sweep.curves(tmp_path / "whole"))


def test_more_seeds_until_it_is_decided(whole):
    m, _, options, workdir = whole
    decided = m.sweep(
        loss, batches, **{**options, "against": ()}, until="decided", max_seeds=4, workdir=workdir, progress=False
    )
    counts = decided.rows.groupby(["depth", "learning_rate"])["seed"].nunique()
    assert set(counts) <= {2, 4}
    verdicts = {c.result.verdict for c in decided.curves}
    assert verdicts - {"undecided"} or counts.max() == 4


def test_smaller_groups_where_memory_runs_out(tmp_path, monkeypatch, capsys):
    """Once, with a word: a group that does not fit is trained in halves."""
    most, sizes = 4, []

    def too_much(loop, hypers, *more):
        sizes.append(len(hypers))
        if len(hypers) > most:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating")
        return drive(loop, hypers, *more)

    monkeypatch.setattr("depthmup.trials.group.drive", too_much)
    result = small(setup(), steps=10, workdir=tmp_path, progress=True)
    assert sizes == [7, 4, 4]
    assert len(result.rows) == 7
    assert "7 trials do not fit in memory at once; 4 at a time" in capsys.readouterr().out
    most = 0
    with pytest.raises(SettingsError, match=r"out of memory; set sweep\.at_once below"):
        small(setup(), steps=11, seeds=1)


def test_our_own_networks_are_trained_as_by_the_command(tmp_path):
    """The residual MLP through `m.sweep` on the command's batches: the rows of main.py's sweep."""
    rates = tuple(2.0**x for x in range(-5, 0))
    settings = tiny.settings(
        sweep__optimizers=("sgd",), sweep__parameterizations=("depth_mup",), sweep__depths=(2,), sweep__widths=(),
        sweep__axes=f"optimizer.learning_rate = {', '.join(map(str, rates))}", model__depth=2, epochs=3.0,
    )  # fmt: skip
    by_command = pandas.DataFrame(sweep.train(settings, tmp_path, progress=False))
    feed, p = batches_of(settings), settings.parameterization

    def batch(step):
        inputs, labels = next(feed.train(step, step + 1))
        return np.asarray(jax.jit(feed.prepare)(inputs)), labels

    model = task_of(settings).model
    m = dm.setup(
        "depth_mup", lambda width, depth: model.clone(width=width, depth=depth), jnp.zeros((1, 64)),
        width=model.width, depth=2, base=(p.base_width, p.base_depth), fan_in_init=False, options={"train": True},
    )  # fmt: skip
    steps = int(by_command["steps"][0])
    result = m.sweep(
        loss, batch, steps=steps, optimizer="sgd", learning_rates=rates, widths=(model.width,), depths=(),
        seeds=settings.sweep.seeds, schedule=settings.schedule, progress=False,
    )  # fmt: skip
    named = {row.learning_rate: row for row in by_command[by_command["seed"] == 0].itertuples()}
    for row in result.rows[result.rows["seed"] == 0].itertuples():
        assert row.last_loss == pytest.approx(named[row.learning_rate].last_loss, rel=1e-6)


def test_chance_is_the_loss_of_the_first_batch(whole):
    """Unless it is given: the median over trials, which a diverging one does not move."""
    _, result, _, _ = whole
    first = result.rows[result.rows["parameterization"] == "sp"]["first_loss"]
    assert result.curves[1].chance == np.median(first) < first.max()
    assert result.curves[1].chance != result.curves[0].chance


def test_rates_of_an_even_grid_can_be_extended():
    """They are a grid, which a search and `until` extend and refine; others are a list of values."""
    from depthmup.trials.plan import has_grid

    options = {"steps": 5, "widths": (WIDTH,), "depths": ()}
    even = study_of(setup(), loss, batches, learning_rates=[2.0 ** (x / 2) for x in range(-9, 0)], **options)
    assert has_grid(even)
    assert even.sweep.log2_learning_rates == {"adamw": (-4.5, -0.5)}
    uneven = study_of(setup(), loss, batches, learning_rates=[0.1, 0.01, 0.3, 0.03, 0.5], **options)
    assert not has_grid(uneven)
    assert uneven.axes[0].values == (0.01, 0.03, 0.1, 0.3, 0.5)
