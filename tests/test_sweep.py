"""Rows survive kills, are the same after any interruption, and become the documented files."""

import html
import itertools
import json
import math
import re
import shutil
import signal

import numpy as np
import pandas
import pytest

from depthmup import fit, sweep
from depthmup.report import page, tables, words
from depthmup.report.curves import judge
from depthmup.settings import SettingsError, column, flat
from depthmup.train.stop import Stopped
from depthmup.train.workdir import WorkdirError
from depthmup.trials.engine import train
from depthmup.trials.group import GroupCheckpoints, Runner
from depthmup.trials.history import History
from depthmup.trials.plan import Group, combinations, grid_trials, grouped, learning_rates, sizes, trial_count
from depthmup.trials.store import Finished, Store
from depthmup.trials.study import SCHEMA
from tests import tiny


def run(study, workdir, **options):
    return train(study, workdir, progress=False, **options)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """(workdir, rows) of the tiny sweep, uninterrupted."""
    workdir = tmp_path_factory.mktemp("sweep")
    return workdir, run(tiny.study(), workdir)


def lines(workdir):
    return (workdir / "results.jsonl").read_text().splitlines()


def copy(workdir, to):
    """What a sweep goes on from."""
    shutil.copy(workdir / "settings.json", to)
    shutil.copytree(workdir / "groups", to / "groups")


@pytest.fixture
def trained(monkeypatch):
    """The groups that are trained, as they come."""
    groups, train_group = [], Runner.train

    def recorded(self, group, *rest):
        groups.append(group)
        return train_group(self, group, *rest)

    monkeypatch.setattr(Runner, "train", recorded)
    return groups


def assert_same_curves(workdir, other, keys):
    """The learning curves of the trials with these keys, to the last bit."""
    tables = [sweep.curves(folder).sort_values(["key", "step"]) for folder in (workdir, other)]
    one, two = (table[table.key.isin(keys)].reset_index(drop=True) for table in tables)
    pandas.testing.assert_frame_equal(one, two)


def test_plan():
    study = tiny.study()
    in_order = dict.fromkeys((point.width, point.depth) for point, _ in combinations(study))
    assert list(in_order) == [(8, 2), (16, 2), (16, 4)]
    assert learning_rates(study, "sgd") == (2**-4, 2**-3, 2**-2, 2**-1, 1, 2)
    plan = grid_trials(study)
    assert (
        len({t.key for t in plan}) == len(plan) == 3 * 2 * 3 * 6 * 2
    )  # shapes, optimizers, parameterizations, LRs, seeds
    groups = grouped(study, plan, lambda program: 20)
    assert [len(group.trials) for group in groups] == [20, 16] * 6  # one program per shape and optimizer
    assert [trial for group in groups for trial in group.trials] == plan
    assert {trial.seed for trial in grid_trials(tiny.study(seed=3))} == {3, 4}
    assert [axis for axis, _ in sizes(study)] == ["depth", "width"]
    assert [axis for axis, _ in sizes(tiny.study(sweep__depths=(2,)))] == ["width"]


def test_the_wrapper_is_the_configs():
    for wrapper in ("pmap", "jit"):
        group = tiny.groups(2, parallel__wrapper=wrapper)[0]
        assert Runner().loop(group).placement.wrapper == wrapper


def test_every_row_has_every_setting(finished):
    _, rows = finished
    study = tiny.study()
    assert [row["key"] for row in rows] == [trial.key for trial in grid_trials(study)]
    expected = {"key", "schema", "steps", *(column(key) for key in flat(study.settings))}
    assert len(expected) == 3 + len(flat(study.settings))  # no two settings have one name
    expected |= {"last_loss", "mean_loss", "environment"}
    expected |= {f"{split}{name}" for split in ("", "validation_", "test_") for name in ("loss", "accuracy")}
    assert set(rows[0]) == {*expected, "diverged"}
    row = rows[-1]
    assert (row["optimizer"], row["parameterization"], row["width"], row["depth"]) == ("adam", "depth_mup", 16, 4)
    assert (row["learning_rate"], row["seed"], row["steps"], row["schema"]) == (2**-3, 1, 11, SCHEMA)


def test_a_key_is_all_of_the_settings():
    """Another value of anything that decides a training is another key, of anything else the same."""
    first = grid_trials(tiny.study())[0].key
    others = {"label_noise": 0.1, "data__seed": 1, "model__norm": "layer", "optimizer__momentum": 0.5, "epochs": 1.0}
    assert len({first, *(grid_trials(tiny.study(**{k: v}))[0].key for k, v in others.items())}) == 1 + len(others)
    same = {"log_every": 3, "data__workers": 4, "data__data_dir": "/x", "sweep__seeds": 3, "checkpoint__every": "never"}
    assert {first} == {grid_trials(tiny.study(**{k: v}))[0].key for k, v in same.items()}


def test_load(finished):
    """The rows as a table, and their learning curves."""
    workdir, rows = finished
    table, curves = sweep.load(workdir), sweep.curves(workdir)
    assert len(table) == len(rows)
    assert table.set_index("key").loc[rows[3]["key"], "loss"] == rows[3]["loss"]
    best = table[~table.diverged].groupby(["optimizer", "parameterization", "depth"]).loss.min()
    assert best["sgd", "depth_mup", 4] == min(
        r["loss"] for r in rows if (r["optimizer"], r["parameterization"], r["depth"]) == ("sgd", "depth_mup", 4)
    )
    assert set(curves.key) == set(table.key)
    healthy = rows[0]["key"]
    one = curves[curves.key == healthy]
    assert one.step.tolist() == list(range(1, 12))
    assert one.loss.iloc[-1] < one.loss.iloc[0]
    assert (one.grad_norm > 0).all()
    assert isinstance(table, pandas.DataFrame)
    with pytest.raises(WorkdirError, match="holds no rows of a sweep"):
        sweep.load(workdir / "nowhere")


def test_from_python_is_main(finished, tmp_path):
    """The config, as main.py has it; in a workdir that has the rows."""
    workdir, rows = finished
    copy(workdir, tmp_path)
    result = sweep.run(tiny.config(), tmp_path, "here", progress=False)
    assert result.rows == rows
    assert result.verdicts.splitlines()[1].startswith("sgd sp ")
    assert "best learning rate at depth" in result.tables
    assert "here" in result.page.read_text()


def test_parameterizations_are_one_network_at_the_base(finished):
    _, rows = finished
    base = [r for r in rows if (r["width"], r["depth"]) == (8, 2)]
    by_name = {n: [r["loss"] for r in base if r["parameterization"] == n] for n in ("sp", "mup", "depth_mup")}
    assert by_name["sp"] == by_name["mup"] == by_name["depth_mup"]


def test_a_finished_sweep_does_nothing_again(finished, trained):
    workdir, rows = finished
    before = {path: path.read_bytes() for path in (workdir / "groups").iterdir()}
    assert run(tiny.study(), workdir) == rows
    assert trained == []
    assert {path: path.read_bytes() for path in (workdir / "groups").iterdir()} == before


def test_missing_rows_come_back_bit_for_bit(finished, tmp_path, trained):
    """A group is gone, the file of another is cut off, and some trials are missing from the middle of a third."""
    workdir, rows = finished
    copy(workdir, tmp_path)
    gone, cut, partial = sorted((tmp_path / "groups").iterdir())[:3]
    gone.unlink()
    cut.write_bytes(cut.read_bytes()[:-100])
    keys = pandas.read_parquet(partial).key.tolist()
    partial.unlink()
    store = Store(tmp_path, tiny.study().identity)
    store.add([Finished(row) for row in rows if row["key"] in keys[:3] + keys[5:]])
    store.close()
    assert run(tiny.study(), tmp_path) == rows
    assert sorted(len(group.trials) for group in trained) == [2, 36, 36]
    assert sorted(lines(tmp_path)) == sorted(lines(workdir))


def test_a_stopped_sweep_goes_on_within_a_group(finished, tmp_path, monkeypatch, capsys):
    """From the checkpoint of the trials that it was at; nothing of it is left at the end."""
    workdir, rows = finished
    study = tiny.study(checkpoint__every="4 steps", sweep__optimizers=("adam",), sweep__widths=())
    expected = [row for row in rows if (row["optimizer"], row["width"]) == ("adam", 16)]
    save, number = GroupCheckpoints.save, itertools.count(1)

    def save_and_stop(self, *arguments, **options):
        save(self, *arguments, **options)
        if next(number) == 3:  # each group saves after its steps 4 and 8: this is the second group's step 4
            signal.raise_signal(signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(GroupCheckpoints, "save", save_and_stop)
        with pytest.raises(Stopped, match="by SIGTERM at step 8: saved, the same command goes on from there"):
            run(study, tmp_path)
    assert len(lines(tmp_path)) == len(expected) / 2
    assert list((tmp_path / "unfinished").glob("*/checkpoints/8"))
    assert train(study, tmp_path) == expected
    assert "going on from step 8" in capsys.readouterr().out
    assert not (tmp_path / "unfinished").exists()
    assert_same_curves(tmp_path, workdir, [row["key"] for row in expected])


def test_a_stopped_sweep_finishes_its_group(finished, tmp_path, monkeypatch):
    """Where a group is done before the first report."""
    train_group = Runner.train

    def stop_and_train(*arguments):
        signal.raise_signal(signal.SIGINT)
        return train_group(*arguments)

    monkeypatch.setattr(Runner, "train", stop_and_train)
    with pytest.raises(Stopped, match="by SIGINT after sgd sp mup depth_mup width 8 depth 2: the same command goes on"):
        run(tiny.study(), tmp_path)
    assert [json.loads(line) for line in lines(tmp_path)] == finished[1][:36]


def test_another_config_is_refused(finished):
    workdir, _ = finished
    before = (workdir / "settings.json").read_text()
    with pytest.raises(
        WorkdirError, match=r"another config: optimizer.weight_decay was 0.0, now it is 0.1. Give another"
    ):
        run(tiny.study(optimizer__weight_decay=0.1), workdir)
    assert (workdir / "settings.json").read_text() == before
    swept, where = {"optimizer__learning_rate": 9.0, "parameterization__name": "sp"}, {"data__data_dir": "/elsewhere"}
    for decides_no_row in ({"log_every": 3}, swept, where, {"data__workers": 4}, {"parallel__wrapper": "jit"}):
        assert tiny.study(**decides_no_row).identity == tiny.study().identity
    assert tiny.study(data__seed=1).identity != tiny.study().identity


def test_a_sweep_can_be_extended(finished, tmp_path, trained, capsys):
    """More seeds and another depth: what is there stays, and only the rest is trained and said to be left."""
    workdir, rows = finished
    copy(workdir, tmp_path)
    grid = dict(sweep__depths=(2,), sweep__widths=(), sweep__optimizers=("sgd",))
    more = train(tiny.study(sweep__seeds=3, **grid), tmp_path)
    assert len(more) == 3 * 6 * 3
    assert f"{len(rows)} trials are there; to do: 18 trials, 1 programs" in capsys.readouterr().out
    assert [(len(group.trials), group.size) for group in trained] == [(18, 54)]
    assert {t.seed for t in trained[0].trials} == {2}
    assert set(lines(workdir)) < set(lines(tmp_path))
    old = {row["key"]: row for row in rows}
    assert sum(row["key"] in old and old[row["key"]] == row for row in more) == 36


def test_another_hyperparameter_at_one_learning_rate(tmp_path):
    """Its optimum is judged, the learning rate's is not; the report has its pictures."""
    axes = "optimizer.learning_rate = 0.25; parameterization.gamma0 = log(0.125, 8, 7)"
    study = tiny.study(
        sweep__axes=axes,
        sweep__parameterizations=("depth_mup",),
        sweep__optimizers=("sgd",),
        sweep__widths=(),
        epochs=1.0,
    )
    assert len(grid_trials(study)) == 7 * 2 * 2
    sweep.run(study, tmp_path, progress=False)
    (curve,) = judge(sweep.load(tmp_path), study)
    assert (curve.hyperparameter, len(curve.result.learning_rates[0])) == ("gamma0", 7)
    assert (tmp_path / "loss_over_depth_gamma0.png").exists()
    assert not (tmp_path / "loss_over_depth.png").exists()
    few = tiny.study(sweep__axes="optimizer.learning_rate = 0.25; parameterization.gamma0 = 1, 2")
    with pytest.raises(SettingsError, match=r"needs 5 values or more for an optimum, unless another traced number"):
        grid_trials(few)


def test_axes_of_the_config(tmp_path):
    """Traced axes share a program, shape axes do not; each value is a curve of its own with its own verdict."""
    axes = "parameterization.gamma0 = 0.5, 1; epochs = 0.25, 0.5; label_noise = 0, 0.5"
    grid = dict(sweep__parameterizations=("mup",), sweep__optimizers=("sgd",), sweep__widths=(), sweep__seeds=1)
    study, more = tiny.study(sweep__axes=axes, **grid), tiny.study(sweep__axes=f"{axes}; model.norm=none,layer", **grid)
    plan = grid_trials(study)
    assert len(plan) == 2 * 6 * 2**3
    assert len(grouped(study, plan, lambda program: 100)) == 2 * 2  # depths, and noise or none
    assert len(grouped(more, grid_trials(more), lambda program: 100)) == 2 * 2 * 2
    rows = run(study, tmp_path)
    table = sweep.load(tmp_path)
    assert table.groupby(["gamma0", "epochs", "label_noise", "depth"]).size().tolist() == [6] * 2**4
    assert sorted(set(zip(table.epochs, table.steps, strict=True))) == [(0.25, 6), (0.5, 11)]
    curves = sweep.curves(tmp_path).merge(table[["key", "steps"]])
    assert (curves.groupby("key").step.max() == curves.groupby("key").steps.first()).mean() > 0.9  # but for divergence
    noisy, clean = (table[table.label_noise == noise].loss.median() for noise in (0.5, 0.0))
    assert noisy > clean + 0.1
    curves = judge(pandas.DataFrame(rows), study)
    assert len(curves) == 2**3
    assert curves[0].name == "mup gamma0 0.5, epochs 0.25, label_noise 0"
    assert curves[0].name in tables.verdict_table(curves)
    alone = next(t for t in plan if t.point.leaves["epochs"] == 0.25 and t.point.leaves["label_noise"] == 0)
    first = tiny.study(epochs=0.25, parameterization__gamma0=0.5, sweep__parameterizations=("mup",))
    assert alone.key in {trial.key for trial in grid_trials(first)}


def test_the_best_of_one_shape(finished, tmp_path):
    """Without an axis of sizes there is no transfer to judge: the best rates are what is said."""
    _, rows = finished
    study = tiny.study(sweep__depths=(2,), sweep__widths=(), model__width=8)
    table = pandas.DataFrame(rows)
    single = table[(table.width == 8) & (table.depth == 2)]
    assert judge(single, study) == []
    text = tables.best_table(single, study)
    assert text in html.unescape(page.write_report([], single, study, tmp_path, "").read_text())
    of_sgd = single[(single.optimizer == "sgd") & (single.parameterization == "mup")]
    mean = of_sgd.groupby("learning_rate").loss.mean()
    line = next(line for line in text.splitlines() if line.startswith("sgd mup"))
    assert f"{mean[[0.25, 0.5, 1.0]].min():.4f}" in line


def test_report(finished, tmp_path):
    table, study = pandas.DataFrame(finished[1]), tiny.study()
    curves = judge(table, study)
    path = page.write_report(curves, table, study, tmp_path, "main.py sweep --workdir='<script>alert(1)</script>'")
    names = {"loss_over_depth", "loss_over_width", "optimum_over_depth", "optimum_over_width", "large_run"}
    for name in names:
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    text, _, _ = path.read_text().rpartition("<script>")  # what follows is Plotly
    assert text.count("data:image/png;base64,") == len(names)
    assert "<script>" not in text
    assert "http" not in re.sub(r"base64,[^\"]*", "", text)  # opens offline
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["settings"]["sweep"]["depths"] == [2, 4]
    assert len(summary["sweeps"]) == len(curves) == 12
    for entry, curve in zip(summary["sweeps"], curves, strict=True):
        assert entry["verdict"] in ("transfers", "does not transfer", "undecided")
        assert entry["values"] == ([2, 4] if entry["axis"] == "depth" else [8, 16])
        assert entry["optimal_lr"] == curve.result.optimal_lr
        assert len(entry["regret"]) == 2
        drift = entry["drift"]
        assert drift is None or drift["low"] <= drift["octaves_per_doubling"] <= drift["high"]
    for c in curves:
        assert f"{c.optimizer} {c.parameterization}" in tables.verdict_table(curves)


def test_report_judges_by_the_rows(finished):
    """The verdict of a curve is that of `fit.transfer` on its rows."""
    _, rows = finished
    curves = judge(pandas.DataFrame(rows), tiny.study())
    curve = next(c for c in curves if (c.axis, c.optimizer) == ("depth", "adam"))
    chosen = [r for r in rows if (r["optimizer"], r["parameterization"], r["width"]) == ("adam", "sp", 16)]
    result = fit.transfer(chosen, "depth", cap=2.302585092994046)
    assert (result.optima, result.drift, result.verdict) == (
        curve.result.optima,
        curve.result.drift,
        curve.result.verdict,
    )
    assert [losses.shape for losses in result.losses] == [(6, 2), (6, 2)]


def test_report_without_any_optimum(tmp_path):
    """Learning rates that are all too small: verdicts, pictures and files come out all the same."""
    study = tiny.study(sweep__optimizers=("sgd",))
    rows = [
        {
            **{column(k): v for k, v in t.leaves.items()},
            "key": t.key,
            "loss": 2.0 - t.learning_rate / 10,
            "diverged": False,
        }
        for t in grid_trials(study)
    ]
    table = pandas.DataFrame(rows)
    curves = judge(table, study)
    assert {c.result.verdict for c in curves} == {"undecided"}
    reason = "undecided: depth 2 has no best learning rate: at the upper edge of the grid"
    assert f"sgd sp: {reason}" in words.answers(curves).splitlines()
    assert page.write_report(curves, table, study, tmp_path, "").exists()


def test_settings_of_one_parameterization_are_not_given_to_others():
    plan = grid_trials(tiny.study(parameterization__name="am_mup", parameterization__lr_depth=-1.0,
                                sweep__parameterizations=("am_mup", "sp"), sweep__optimizers=("sgd",)))  # fmt: skip
    assert {t.point.parameterization: t.point.leaves["parameterization.lr_depth"] for t in plan} == {
        "am_mup": -1.0,
        "sp": None,
    }


def test_a_checkpoint_of_a_group(tmp_path):
    """It brings back the learning curves so far. Groups of another size do not see it, those of another program start
    anew."""
    group, notes = tiny.groups(6)[0], []
    history = History(6, 11)
    history.add(4, {name: np.random.default_rng(0).random((6, 4)) for name in ("loss", "grad_norm")})
    history.measure(2, {"kernels": np.ones((6, 3))})

    def resume(group, like):
        """(step and state, history) that the group goes on from."""
        kept, resumed = GroupCheckpoints(tmp_path, group, notes.append), History(6, 11)
        checkpoint = kept.resume(like, resumed)
        kept.close()
        return checkpoint, resumed

    kept = GroupCheckpoints(tmp_path, group, notes.append)
    assert kept.resume({"w": np.zeros(6)}, History(6, 11)) is None
    kept.save(4, {"w": np.ones(6)}, more=history.arrays(4))
    kept.close()
    assert resume(Group(group.trials, 4, group.study), {"w": np.zeros(4)})[0] is None
    assert notes == []
    (step, state), resumed = resume(group, {"w": np.zeros(6)})
    assert (step, state["w"].tolist()) == (4, [1.0] * 6)
    np.testing.assert_array_equal(resumed.values, history.values)
    np.testing.assert_array_equal(resumed.measured[2]["kernels"], history.measured[2]["kernels"])
    assert resume(group, {"v": np.zeros(6)})[0] is None
    assert "a group of trials starts anew: " in notes[-1]
    assert not list(tmp_path.iterdir())


def test_a_learning_curve_is_its_trials_own():
    """Long ones are means over stretches, whatever other trials there were; what is after a divergence is left out."""
    alone, among = History(1, 2500), History(2, 5000)
    values = np.arange(2500, dtype=np.float32)
    metrics = {"loss": values[None], "grad_norm": values[None] + 1}
    alone.add(2500, metrics)
    among.add(2500, {name: np.concatenate([v, v]) for name, v in metrics.items()})
    one, first, second = alone.curve(0, 2500), among.curve(0, 2500), among.curve(1, 5000)
    for name in ("step", "loss", "grad_norm"):
        np.testing.assert_array_equal(first[name], one[name])
    assert one["step"][:2].tolist() == [3, 6]
    assert one["step"][-1] == 2500
    assert one["loss"][:2].tolist() == [1.0, 4.0]
    assert second["step"][-1] == 2500


def test_losses_that_are_swept_have_their_own_chance():
    study = tiny.study(sweep__axes="loss = cross_entropy, mse", sweep__optimizers=("sgd",), sweep__widths=())
    rows = [
        {
            **{column(k): v for k, v in t.leaves.items()},
            "key": t.key,
            "loss": 0.3 + abs(math.log2(t.learning_rate) + 2),
            "diverged": False,
        }
        for t in grid_trials(study)
    ]
    chances = {c.variant: c.chance for c in judge(pandas.DataFrame(rows), study)}
    assert chances == {"loss_function cross_entropy": math.log(10), "loss_function mse": 0.5}


def test_alpha_is_not_given_to_those_without_one():
    """Else sp and mup would be depth-scaled under their own names."""
    plan = grid_trials(tiny.study(parameterization__alpha=1.0))
    assert {t.point.parameterization: t.point.leaves["parameterization.alpha"] for t in plan} == {
        "sp": None,
        "mup": None,
        "depth_mup": 1.0,
    }


def shared(devices, **overrides):
    return {"parallel__devices_per_trial": devices, "parallel__wrapper": "jit", **overrides}


@pytest.mark.parametrize(
    ("overrides", "options", "message"),
    [
        ({"sweep__margin": "2"}, {}, 'sweep.margin must be a number of octaves, such as 1.0 or "1 octave"'),
        ({"sweep__max_trials": 100}, {}, "216 trials, more than sweep.max_trials = 100: leave out values of an axis"),
        ({}, {"shard": (2, 2)}, "shard 2/2 is out of range: give i/n with i from 0"),
        ({}, {"shard": (0, 0)}, "shard 0/0 is out of range"),
        ({"sweep__adaptive": True}, {"shard": (0, 2)}, "sweep.adaptive goes by results, so that it has no parts"),
        (
            {"sweep__adaptive": True, "sweep__axes": "optimizer.learning_rate = 1,2,3,4,5"},
            {},
            "sweep.adaptive needs the grids of sweep.log2_learning_rates",
        ),
        ({"sweep__axes": "model.depht = 2"}, {}, "unknown axis 'model.depht'; did you mean 'model.depth'"),
        ({"sweep__axes": "model.norm = none, batch"}, {}, "unknown model.norm 'batch'"),
        (
            {"sweep__axes": "optimizer.momentum = 0.5, 0.9"},
            {},
            "optimizer.momentum is a setting of none of the optimizers",
        ),
        ({"sweep__axes": "optimizer.learning_rate = 1, 2"}, {}, "optimizer.learning_rate needs 5 values or more"),
        ({"sweep__at_once": 0}, {}, "sweep.at_once must be at least 1"),
        ({"parallel__devices_per_trial": 2}, {}, "devices_per_trial = 2 needs a mesh of devices: set parallel.wrapper"),
        (shared(3, data__batch_size=96), {}, "8 devices cannot be split into sets of 3 .* a divisor of 8"),
        (
            shared(4, accumulate=2, sweep__axes="data.batch_size = 64, 68"),
            {},
            "data.batch_size 68 cannot be split evenly over 4 devices in 2 parts each: choose a multiple of 8, or "
            "fewer devices by parallel.devices_per_trial",
        ),
    ],
)
def test_what_cannot_be_run(overrides, options, message, tmp_path):
    """Before anything is compiled or written."""
    with pytest.raises(SettingsError, match=message):
        run(tiny.study(**overrides), tmp_path / "x", **options)
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    "overrides",
    [
        {},
        {"sweep__adaptive": True},
        {"sweep__widths": ()},
        {"sweep__depths": (), "sweep__widths": (8,)},
        {"sweep__widths": (8, 16, 32), "model__depth": 4},  # (16, 4) is on both axes
        {"sweep__widths": (8, 32), "model__depth": 8},  # no shape is on both
        {"sweep__seeds": 1, "sweep__per_octave": 3},
        {"sweep__log2_learning_rates": {"sgd": (-4.0, 0.0), "adam": (-9.0, -3.0)}},
        {"sweep__axes": "optimizer.learning_rate = log(0.0001, 10, 40)"},
        {"sweep__axes": "model.norm = none, layer; model.use_bias = True, False; data.batch_size = 32, 64"},
        {"sweep__axes": "optimizer.b1 = 0.5, 0.9; optimizer.weight_decay = 0.0, 0.1"},  # SGD has no b1
        {"sweep__axes": "parameterization.alpha = None, 0.5, 1.0; parameterization.gamma0 = log(0.5, 2, 3)"},
        {"sweep__axes": "parameterization.lr_depth = None, 0.0; loss = cross_entropy, mse; label_noise = 0.0, 0.2"},
        {
            "sweep__axes": "parameterization.branch_init = '*', 'last'; parameterization.lr_depth = -1.0, 0.0",
            "sweep__parameterizations": ("am_mup", "depth_mup", "sp"),
            "sweep__optimizers": ("sgd",),
        },
    ],
)
def test_count(overrides):
    """Of the plan's trials, each once, without making them."""
    study = tiny.study(**overrides)
    assert trial_count(study) == len(grid_trials(study))


def test_a_large_plan_is_refused_before_its_trials_are_made(monkeypatch, tmp_path):
    monkeypatch.setattr("depthmup.trials.engine.grid_trials", lambda study: pytest.fail("trials are made"))
    study = tiny.study(sweep__seeds=1_000_000)
    for refused in (lambda: run(study, tmp_path), lambda: sweep.cost(study)):
        with pytest.raises(SettingsError, match=r"would have 108,000,000 trials, more than sweep.max_trials = 20,000"):
            refused()


def test_yes_runs_a_large_plan(finished):
    workdir, rows = finished
    assert run(tiny.study(sweep__max_trials=100), workdir, yes=True) == rows


def test_parameterization_without_a_rule_for_the_optimizer(tmp_path):
    with pytest.raises(SettingsError, match="sweep: am_mup is defined for the sgd family only"):
        run(tiny.study(sweep__parameterizations=("am_mup",)), tmp_path / "x")
    assert not (tmp_path / "x").exists()
