"""What a sweep measures while it trains, and the calibration of its models."""

import functools
import json
import shutil
import warnings
from typing import get_args

import jax
import numpy as np
import pandas
import pytest

from depthmup import sweep
from depthmup.files import digest
from depthmup.fit import chain_path_sum
from depthmup.measure import sharpness
from depthmup.models import MODELS
from depthmup.report import page
from depthmup.report.calibration import FILE, calibration_key, calibrations
from depthmup.report.curves import judge
from depthmup.report.learning_curves import LearningCurves
from depthmup.settings import Quantity, SettingsError, from_config, put
from depthmup.train import TrialLoop, TrialsOverDevices
from depthmup.train.build import batches_of, examples, hyper_of, task_of
from depthmup.train.quantities import QUANTITIES
from depthmup.train.stop import Stopped
from depthmup.trials.group import Runner, hypers_of
from depthmup.trials.history import History
from depthmup.trials.plan import grid_trials, grouped
from tests import tiny

GRID = {
    "sweep__optimizers": ("sgd",),
    "sweep__widths": (),
    "sweep__parameterizations": ("mup", "depth_mup"),
    "sweep__log2_learning_rates": {"sgd": (-4.0, 4.0)},
}
MEASURED = {"sweep__measure": get_args(Quantity), "sweep__measure_points": 3}


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """(study, rows by key, measurements) of a sweep that measures everything; its largest rates diverge."""
    workdir = tmp_path_factory.mktemp("sweep")
    study = tiny.study(**GRID, **MEASURED)
    rows = {row["key"]: row for row in sweep.train(study, workdir, progress=False)}
    table = sweep.measured(workdir)
    table.attrs["workdir"] = workdir
    return study, rows, table


def test_every_quantity_has_a_function_and_a_picture():
    assert set(QUANTITIES) == set(get_args(Quantity))


def test_what_is_measured(measured):
    _, rows, table = measured
    assert set(table["key"]) == set(rows)
    assert any(row["diverged"] for row in rows.values())
    good = {key for key, row in rows.items() if row["learning_rate"] <= 1}  # others get as large as no float holds
    assert not any(rows[key]["diverged"] for key in good)
    for key_, part in table.groupby("key"):
        if key_ in good:
            layers = rows[key_]["depth"] + 1
            assert sorted(set(part["step"])) == [0, 6, 11]
            counts = part.groupby("quantity").size().to_dict()
            assert counts == {"updates": 3 * layers, "kernels": 3 * layers, "sharpness": 3, "noise_scale": 3}
    assert np.isfinite(table["value"]).all()
    kernels = table[(table["quantity"] == "kernels") & table["key"].isin(good)]
    assert kernels[kernels["step"] == 0]["value"].max() < 1e-6
    assert kernels[(kernels["step"] == 11) & (kernels["layer"] > 0)]["value"].min() > 0


def test_the_start_is_what_calibrate_says(measured):
    """In every trial, whatever its learning rate: s_l is per squared learning rate."""
    study, rows, table = measured
    settings = put(study.settings, {"model.depth": 4, "parameterization.name": "mup", "optimizer.name": "sgd"})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        update = sweep.calibrate(settings)
    start = table[(table["quantity"] == "updates") & (table["step"] == 0)]
    chosen = {name for name, row in rows.items() if (row["parameterization"], row["depth"]) == ("mup", 4)}
    for key_, part in start[start["key"].isin(chosen)].groupby("key"):
        profile = part.sort_values("layer")["value"].to_numpy()
        np.testing.assert_allclose(profile, update.per_seed[rows[key_]["seed"]], rtol=1e-5)
        chosen.remove(key_)
    assert not chosen


def test_updates_are_those_of_the_next_step():
    """Against a true step of the task with a tiny learning rate; velocity and moments are in it."""
    for name in ("momentum", "adamw"):
        s = tiny.settings(optimizer__name=name, optimizer__weight_decay=0.1, schedule="constant")
        task, batch = task_of(s), examples(batches_of(s), 32)
        hyper = hyper_of(s)._replace(learning_rate=2.0**-8).arrays()
        state, step = jax.jit(task.init)(hyper), jax.jit(task.step)
        for _ in range(3):
            state, _ = step(state, batch, hyper)
        profile = jax.jit(functools.partial(QUANTITIES["updates"].measure, task))(state, batch, hyper)
        small = hyper._replace(learning_rate=np.float32(2.0**-14))
        after, _ = step(state, batch, small)
        pairs = [task.stream(of.params, state, batch, hyper) for of in (after, state)]
        true = [float(np.mean(np.square((a - b) * 2.0**14))) for a, b in zip(*pairs, strict=True)]
        np.testing.assert_allclose(profile, true, rtol=0.05)


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_sharpness_is_that_of_the_coordinates_of_gradient_descent(name):
    """Where all leaves have one learning rate; of Adam, which is none, that of the parameters as they are."""
    s = tiny.settings(optimizer__name=name)
    task, batch, hyper = task_of(s), examples(batches_of(s), 32), hyper_of(s).arrays()
    state = task.init(hyper)
    eigenvalues = jax.jit(functools.partial(QUANTITIES["sharpness"].measure, task))(state, batch, hyper)
    scale = hyper.factors.lr if name == "sgd" else None
    expected = sharpness(lambda params: task.objective(params, state, batch, hyper), state.params, scale=scale)
    assert float(eigenvalues[0]) == pytest.approx(float(expected), rel=1e-4)


def test_interrupted_it_measures_the_same(measured, tmp_path, monkeypatch):
    """What was measured before a stop in the middle of a group is kept with its checkpoint."""
    _, rows, table = measured
    study, stopped = tiny.study(**GRID, **MEASURED, checkpoint__every="4 steps"), []
    original = History.measure

    def stop_after_the_second(self, step, quantities):
        original(self, step, quantities)
        if step == 11 and not stopped:
            stopped.append(True)
            raise Stopped(None, "here")

    monkeypatch.setattr(History, "measure", stop_after_the_second)
    with pytest.raises(Stopped):
        sweep.train(study, tmp_path, progress=False)
    assert list((tmp_path / "unfinished").glob("*/checkpoints/8"))
    sweep.train(study, tmp_path, progress=False)
    order = ["key", "quantity", "step", "layer"]
    again, whole = (t.sort_values(order, ignore_index=True) for t in (sweep.measured(tmp_path), table))
    assert again.equals(whole)
    for name in ("mean_loss", "last_loss"):
        resumed = {row["key"]: row[name] for row in sweep.train(study, tmp_path, progress=False)}
        assert resumed == {key_: row[name] for key_, row in rows.items()}


def test_a_history_leaves_out_what_is_after_the_end_of_a_trial():
    history = History(2, 10)
    history.measure(0, {"updates": np.ones((2, 3))})
    history.measure(5, {"updates": np.array([[5.0] * 3, [np.inf] * 3])})
    history.measure(10, {"updates": np.array([[1.0, 2.0, 3.0], [np.nan] * 3, [9.0] * 3])})
    first, second = history.measurements(0, 10, 2), history.measurements(1, 5, 2)
    assert first["value"].tolist() == [1, 1, 1, 1, 2, 3]
    assert first["step"].tolist() == [0] * 3 + [10] * 3
    assert second["value"].tolist() == [1, 1, 1]
    assert second["layer"].tolist() == [0, 1, 2]


def test_every_trial_is_measured_from_its_start_to_its_end(tmp_path):
    """Whatever others train beside it."""
    grid = {**GRID, "sweep__parameterizations": ("mup",), "sweep__depths": (2,), "model__width": 8, "sweep__seeds": 1}
    study = tiny.study(**grid, sweep__measure=("kernels",), sweep__measure_points=3,
                             sweep__axes="epochs = 0.25, 0.5")  # fmt: skip
    rows = {row["key"]: row for row in sweep.train(study, tmp_path, progress=False)}
    steps = sweep.measured(tmp_path).groupby("key")["step"].agg(lambda at: sorted(set(at)))
    for key_, at in steps.items():
        if not rows[key_]["diverged"]:
            assert at == {6: [0, 3, 6], 11: [0, 6, 11]}[rows[key_]["steps"]]
    assert {rows[key_]["steps"] for key_ in steps.index} == {6, 11}


def test_in_every_layout():
    """Four trials on two devices: mapped, as one after another."""
    group = tiny.groups(4, **GRID, sweep__measure=("updates", "sharpness", "noise_scale"))[0]
    hypers = hypers_of(group)
    hypers[2] = hypers[2]._replace(learning_rate=1e9)  # diverges
    task, batches, by_layout = group.point.task, group.point.feed, {}
    quantities = group.point.measurement(group.study.sweep.measure)
    for name in ("map", "vmap"):
        placement = TrialsOverDevices(4, jax.devices()[:2], layout=name)
        loop = TrialLoop(task, batches, placement, quantities)
        state, hyper = loop.start(hypers)
        by_layout[name, 0] = loop.measure(state, hyper)
        for stretch in loop.stretches(state, hyper, 0, [4]):
            by_layout[name, 4] = loop.measure(stretch.state, hyper)
    for step in (0, 4):
        for quantity, values in by_layout["map", step].items():
            np.testing.assert_allclose(by_layout["vmap", step][quantity], values, rtol=2e-3)
            assert np.isnan(values).any(axis=1).tolist() == [False, False, step > 0, False]


def test_a_kept_program_knows_what_it_measures():
    study = tiny.study(**GRID)
    runner = Runner()
    first = runner.loop(grouped(study, grid_trials(study), lambda program: 2)[0])
    again = runner.loop(grouped(study, grid_trials(study), lambda program: 2)[0])
    other = runner.loop(tiny.groups(2, **GRID, sweep__measure=("updates",))[0])
    assert first is again is not other


def test_pictures_over_training(measured, tmp_path):
    study, rows, table = measured
    workdir = tmp_path / "copy"
    shutil.copytree(table.attrs["workdir"], workdir)
    trials = pandas.DataFrame(rows.values())
    curves = judge(trials, study)
    page.write_report(curves, trials, study, workdir, "")
    names = {f"{quantity}_over_depth" for quantity in ("updates", "sharpness", "kernels")}
    assert names <= {path.stem for path in workdir.glob("*.png")}
    carried = curves[0].carried(2)
    steps, values = LearningCurves(workdir).measured("updates", carried)
    assert values.shape == (len(carried), len(steps), 3)
    second = carried["key"].iloc[1]
    one = table[(table["key"] == second) & (table["quantity"] == "updates") & (table["step"] == steps[-1])]
    np.testing.assert_array_equal(values[1, -1], one.sort_values("layer")["value"])
    with open(next((workdir / "groups").glob("*.parquet")), "r+b") as file:  # cut off by a power cut
        file.truncate(100)
    assert page.write_report(curves, trials, study, workdir, "").exists()


def test_losses_of_a_history():
    history = History(1, 20)
    history.add(20, {name: np.arange(20, dtype=np.float32)[None] for name in ("loss", "grad_norm")})
    assert history.columns(0, 20) == {"last_loss": 18.5, "mean_loss": 9.5}
    assert history.columns(0, 5) == {"last_loss": 4.0, "mean_loss": 2.0}


def test_calibrations_are_kept(tmp_path, capsys):
    """What calibration.json says is not computed again: a planted change stays."""
    study = tiny.study()
    points = [study.point({"model.depth": depth}) for depth in (2, 4)]
    first = calibrations(study, points, tmp_path)
    assert [len(first[calibration_key(study, point)].per_layer) for point in points] == [3, 5]
    assert (tmp_path / FILE).exists()
    again = calibrations(study, points, tmp_path)
    assert all(np.array_equal(first[name].per_seed, again[name].per_seed) for name in first)
    kept = json.loads((tmp_path / FILE).read_text())["profiles"]
    doubled = {name: (2 * np.array(profile)).tolist() for name, profile in kept.items()}
    (tmp_path / FILE).write_text(json.dumps({"checksum": digest(doubled), "profiles": doubled}))
    again = calibrations(study, points, tmp_path)
    assert all(np.array_equal(2 * first[name].per_seed, again[name].per_seed) for name in first)
    capsys.readouterr()
    changed = (tmp_path / FILE).read_text().replace("1", "2")
    for damaged in (changed, "[]", "nonsense", json.dumps(kept), json.dumps({"checksum": 1, "profiles": {"a": 5}})):
        (tmp_path / FILE).write_text(damaged)
        again = calibrations(study, points, tmp_path)
        assert f"{tmp_path / FILE} is damaged: it is made anew" in capsys.readouterr().out
        assert all(np.array_equal(first[name].per_seed, again[name].per_seed) for name in first)
    names = [
        calibration_key(study, study.point({"model.depth": 2, **more}))
        for more in ({}, {"optimizer.learning_rate": 1.0})
    ]
    assert (
        names[0] == names[1] != calibration_key(study, study.point({"model.depth": 2, "parameterization.gamma0": 2.0}))
    )


@pytest.mark.parametrize(
    ("family", "options", "paths"),
    [
        ("mlp", {}, 3**3),
        ("residual_mlp", {}, 3 * 1 + 3 * 8 + 27),
        ("residual_cnn", {"kernels": (3, 3)}, 3 * 8 + 3 * 64 + 216),
        ("simple_resnet", {}, 27 + 3 * 64 + 3 * 125 + 216),
        ("resnet", {"stages": (1, 1), "depth": 1}, 1 + 8 + 27 + 64),
        ("vit", {"depth": 1}, 2 * 8 + 64),
        ("gpt", {"depth": 1}, 2 * 8 + 64),
    ],
)
def test_path_sum_of_the_families(family, options, paths):
    """By hand. ResNet: one block with an identity skip (0 or 2 layers), then one with a projection (1 or 2)."""
    model = MODELS[family](**{"width": 16, "depth": 3, **options})
    assert chain_path_sum(model.ways) == paths


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"sweep__measure": ("update",)}, "unknown sweep.measure 'update'; did you mean 'updates'"),
        (
            {"sweep__judge_by": "validation_los"},
            "unknown sweep.judge_by 'validation_los'; did you mean 'validation_loss'",
        ),
        ({"sweep__measure_points": 0}, "sweep.measure_points must be at least 1"),
    ],
)
def test_errors(overrides, message):
    with pytest.raises(SettingsError, match=message):
        from_config(tiny.config(**overrides))
