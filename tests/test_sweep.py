"""Rows survive kills, are the same after any interruption, and become the documented files."""

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from depthmup import fit
from depthmup.data import Augment
from depthmup.settings import SettingsError
from depthmup.sweep import report
from depthmup.sweep.plan import Trial, axes, learning_rates, plan, shapes
from depthmup.sweep.run import identity, loop_of, run
from depthmup.sweep.store import Store
from depthmup.train.assemble import problem_of
from depthmup.train.stop import Stop, Stopped
from depthmup.train.workdir import WorkdirError
from tests import tiny

RUNNER = """
import jax
jax.config.update("jax_num_cpu_devices", 4)
from depthmup.sweep.run import run
from tests import tiny
run(tiny.settings(), {workdir!r}, progress=False)
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """(workdir, rows) of the tiny sweep, uninterrupted."""
    workdir = tmp_path_factory.mktemp("sweep")
    return workdir, run(tiny.settings(), workdir, progress=False)


def lines(workdir):
    return (workdir / "results.jsonl").read_text().splitlines()


def test_plan():
    settings = tiny.settings()
    assert shapes(settings) == [(8, 2), (16, 2), (16, 4)]
    assert learning_rates(settings, "sgd") == (2**-4, 2**-3, 2**-2, 2**-1, 1, 2)
    groups = plan(settings)
    trials = [t for g in groups for t in g.trials]
    assert len(set(trials)) == len(trials) == 3 * 2 * 3 * 6 * 2  # shapes, optimizers, parameterizations, LRs, seeds
    assert [axis for axis, _ in axes(settings)] == ["depth", "width"]
    assert [axis for axis, _ in axes(tiny.settings(sweep__depths=(2,)))] == ["width"]


def test_the_wrapper_is_the_configs():
    for wrapper in ("pmap", "jit"):
        settings = tiny.settings(parallel__wrapper=wrapper)
        assert loop_of(problem_of(settings), plan(settings)[0], settings).map.wrapper == wrapper


def test_every_row_has_every_setting(finished):
    _, rows = finished
    settings = tiny.settings()
    assert [Trial.of(row) for row in rows] == [t for g in plan(settings) for t in g.trials]
    expected = {*Trial._fields, "steps", "epochs", "schedule", "data", "model", "batch_size", "data_seed"}
    expected |= {"image_size", *(f"augment_{field.name}" for field in dataclasses.fields(Augment))}
    expected |= {"warmup_epochs", "loss_function", "label_smoothing", "clip", "ema"}
    expected |= {"dtype", "scan", "zero_init_branch"}
    expected |= {"activation", "use_bias", "norm", "readout", "base_width", "base_depth", "base_head_dim", "alpha"}
    expected |= {"gamma0", "beta0", "lr_depth", "branch_init", "momentum", "b1", "b2", "eps", "weight_decay"}
    expected |= {"loss", "accuracy", "validation_loss", "validation_accuracy", "diverged"}
    expected |= {"test_loss", "test_accuracy"}
    assert set(rows[0]) == expected


def test_parameterizations_are_one_network_at_the_base(finished):
    _, rows = finished
    base = [r for r in rows if (r["width"], r["depth"]) == (8, 2)]
    by_name = {n: [r["loss"] for r in base if r["parameterization"] == n] for n in ("sp", "mup", "depth_mup")}
    assert by_name["sp"] == by_name["mup"] == by_name["depth_mup"]


def test_a_finished_sweep_does_nothing_again(finished, monkeypatch):
    workdir, rows = finished
    before = lines(workdir)
    monkeypatch.setattr("depthmup.sweep.run.loop_of", lambda *_: pytest.fail("trained again"))
    assert run(tiny.settings(), workdir, progress=False) == rows
    assert lines(workdir) == before


def test_missing_rows_come_back_bit_for_bit(finished, tmp_path):
    """Rows missing from the middle of groups, and a last one that a kill cut off."""
    workdir, rows = finished
    (tmp_path / "settings.json").write_bytes((workdir / "settings.json").read_bytes())
    kept = [line for i, line in enumerate(lines(workdir)) if i % 50 > 5]
    (tmp_path / "results.jsonl").write_text("\n".join(kept) + '\n{"optimizer": "sg')
    assert run(tiny.settings(), tmp_path, progress=False) == rows
    assert sorted(lines(tmp_path)) == sorted(lines(workdir))


@pytest.mark.parametrize("rows_before_kill", [1, 60])
def test_kill_and_finish(finished, tmp_path, rows_before_kill):
    """kill -9 once that many rows are there, then finish: the same rows."""
    workdir, rows = finished
    root = Path(__file__).parent.parent
    process = subprocess.Popen([sys.executable, "-c", RUNNER.format(workdir=str(tmp_path))], cwd=root)
    store, deadline = tmp_path / "results.jsonl", time.monotonic() + 120
    while not store.exists() or store.read_bytes().count(b"\n") < rows_before_kill:
        assert process.poll() is None, "the sweep ended before it was killed"
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert 0 < len(lines(tmp_path)) < len(rows)
    assert run(tiny.settings(), tmp_path, progress=False) == rows
    assert sorted(lines(tmp_path)) == sorted(lines(workdir))


def test_a_stopped_sweep_goes_on_within_a_group(finished, tmp_path, monkeypatch, capsys):
    """From the checkpoint of the trials that it was at; nothing of it is left at the end."""
    workdir, rows = finished
    settings = tiny.settings(checkpoint__every="4 steps")

    class Later(Stop):
        asked = 0

        @property
        def requested(self):
            self.asked += 1
            return signal.SIGTERM if self.asked > 13 else None  # three times a group

        @requested.setter
        def requested(self, value):
            pass

    with monkeypatch.context() as patch:
        patch.setattr("depthmup.sweep.run.Stop", Later)
        with pytest.raises(Stopped):
            run(settings, tmp_path, progress=False)
    assert 0 < len(lines(tmp_path)) < len(rows)
    assert list((tmp_path / "unfinished").glob("*/checkpoints/8"))
    assert run(settings, tmp_path, progress=False) == rows
    assert "going on from step 8" in capsys.readouterr().out
    assert sorted(lines(tmp_path)) == sorted(lines(workdir))
    assert not (tmp_path / "unfinished").exists()


def test_a_stopped_sweep_finishes_its_group(finished, tmp_path, monkeypatch):
    """Where a group is done before the first report."""
    workdir, _ = finished
    with monkeypatch.context() as patch:
        patch.setattr("depthmup.sweep.run.Stop", lambda: contextlib.nullcontext(Asked()))
        with pytest.raises(Stopped, match="stopped by SIGINT after sgd sp width 8 depth 2: the same command goes on"):
            run(tiny.settings(), tmp_path, progress=False)
    assert lines(tmp_path) == lines(workdir)[:12]


class Asked:
    requested = signal.SIGINT


def test_another_config_is_refused(finished):
    workdir, _ = finished
    before = (workdir / "settings.json").read_text()
    with pytest.raises(
        WorkdirError, match=r"another config: optimizer.weight_decay was 0.0, now it is 0.1. Give another"
    ):
        run(tiny.settings(optimizer__weight_decay=0.1), workdir, progress=False)
    assert (workdir / "settings.json").read_text() == before
    swept, where = {"optimizer__learning_rate": 9.0, "parameterization__name": "sp"}, {"data__data_dir": "/elsewhere"}
    for decides_no_row in ({"log_every": 3}, swept, where, {"data__workers": 4}):
        assert identity(tiny.settings(**decides_no_row)) == identity(tiny.settings())
    assert identity(tiny.settings(data__seed=1)) != identity(tiny.settings())


def test_store_errors(tmp_path):
    settings = identity(tiny.settings())
    store = Store(tmp_path, settings)
    with pytest.raises(WorkdirError, match="in use by another process"):
        Store(tmp_path, settings)
    store.close()
    (tmp_path / "results.jsonl").write_text('{"a": 1}\nnonsense\n{"a": 2}\n')
    with pytest.raises(WorkdirError, match="line 2 is not JSON"):
        Store(tmp_path, settings)


def test_cut_tail_is_said(tmp_path):
    settings = identity(tiny.settings())
    Store(tmp_path, settings).close()
    (tmp_path / "results.jsonl").write_text('{"a": 1}\n{"a": ')
    store = Store(tmp_path, settings)
    assert "the last row was cut off" in store.message
    assert store.rows == [{"a": 1}]
    store.append([{"a": float("nan")}])
    store.close()
    assert (tmp_path / "results.jsonl").read_text() == '{"a": 1}\n{"a": null}\n'


def test_report(finished, tmp_path):
    _, rows = finished
    settings = tiny.settings()
    curves = report.judge(rows, settings, classes=10)
    page = report.write(curves, settings, tmp_path, 10, "main.py sweep --workdir='<script>alert(1)</script>'")
    names = {"loss_over_depth", "loss_over_width", "optimum_over_depth", "optimum_over_width"}
    for name in names:
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    html = page.read_text()
    assert html.count("data:image/png;base64,") == len(names)
    assert "<script>" not in html
    assert "http" not in html  # opens offline
    found = json.loads((tmp_path / "summary.json").read_text())
    assert found["settings"]["sweep"]["depths"] == [2, 4]
    assert len(found["sweeps"]) == len(curves) == 12
    for entry, curve in zip(found["sweeps"], curves, strict=True):
        assert entry["verdict"] in ("transfers", "does not transfer", "inconclusive")
        assert entry["values"] == ([2, 4] if entry["axis"] == "depth" else [8, 16])
        assert entry["optimal_lr"] == curve.result.optimal_lr
        assert len(entry["regret"]) == 2
        drift = entry["drift"]
        assert drift is None or drift["low"] <= drift["octaves_per_doubling"] <= drift["high"]
    for c in curves:
        assert f"{c.optimizer:10}{c.parameterization:12}" in report.verdict_table(curves)


def test_report_judges_by_the_rows(finished):
    """The verdict of a curve is that of `fit.transfer` on its rows."""
    _, rows = finished
    curve = next(c for c in report.judge(rows, tiny.settings(), 10) if (c.axis, c.optimizer) == ("depth", "adam"))
    own = [r for r in rows if (r["optimizer"], r["parameterization"], r["width"]) == ("adam", "sp", 16)]
    result = fit.transfer(own, "depth", cap=2.302585092994046)
    assert (result.optima, result.drift, result.verdict) == (
        curve.result.optima,
        curve.result.drift,
        curve.result.verdict,
    )
    assert result.losses.shape == (2, 6, 2)


def test_report_without_any_optimum(tmp_path):
    """Learning rates that are all too small: verdicts, pictures and files come out all the same."""
    settings = tiny.settings(sweep__optimizers=("sgd",))
    rows = [
        {**t._asdict(), "loss": 2.0 - t.learning_rate / 10, "diverged": False} for g in plan(settings) for t in g.trials
    ]
    curves = report.judge(rows, settings, 10)
    assert {c.result.verdict for c in curves} == {"does not transfer"}
    assert report.write(curves, settings, tmp_path, 10, "").exists()


def test_alpha_is_not_given_to_those_without_one():
    """Else sp and mup would be depth-scaled under their own names."""
    groups = plan(tiny.settings(parameterization__alpha=1.0))
    assert {g.parameterization.name: g.parameterization.alpha for g in groups} == {
        "sp": None,
        "mup": None,
        "depth_mup": 1.0,
    }


def test_results_without_settings_are_refused(tmp_path):
    (tmp_path / "results.jsonl").write_text('{"a": 1}\n')
    with pytest.raises(WorkdirError, match=r"results.jsonl but no settings.json"):
        Store(tmp_path, {})
    (tmp_path / "settings.json").write_text('{"a": ')
    with pytest.raises(WorkdirError, match=r"settings.json is not JSON"):
        Store(tmp_path, {})


def test_parameterization_without_a_rule_for_the_optimizer(tmp_path):
    with pytest.raises(SettingsError, match="sweep: am_mup is defined for the sgd family only"):
        run(tiny.settings(sweep__parameterizations=("am_mup",)), tmp_path / "x", progress=False)
    assert not (tmp_path / "x").exists()
