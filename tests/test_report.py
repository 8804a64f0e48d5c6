"""Verdicts, laws, rules and report of planted rows: nothing is trained."""

import dataclasses
import html
import json
import math
import re

import numpy as np
import pandas
import pytest

from depthmup.colors import size_colors
from depthmup.fit.picture import draw
from depthmup.measure import MaximalUpdate
from depthmup.report import calibration, page, panels, tables, words
from depthmup.report.curves import curves_along_depth, judge
from depthmup.report.learning_curves import LearningCurves
from depthmup.settings import column
from depthmup.trials.adaptive import Search
from depthmup.trials.plan import grid_trials
from depthmup.trials.store import Finished, Store
from depthmup.trials.study import SCHEMA
from tests import tiny

GRID = {
    "sweep__optimizers": ("sgd",),
    "sweep__parameterizations": ("mup", "depth_mup"),
    "sweep__depths": (3, 4, 6, 8, 24),
    "sweep__widths": (),
    "sweep__log2_learning_rates": {"sgd": (-12.0, 2.0)},
    "sweep__seeds": 3,
}
SLOPES = {"mup": -1.5, "depth_mup": 0.0}


def planted(study, optimum=None, noise=0.01):
    """A table with a row of every trial: a bowl in log learning rate about an optimum that goes as depth^SLOPES."""

    def at(point):
        return -1.0 + SLOPES[point.parameterization] * math.log2(point.depth / 3)

    rng, rows = np.random.default_rng(0), []
    for trial in grid_trials(study):
        x = math.log2(trial.learning_rate) - (optimum or at)(trial.point)
        loss = 0.1 * math.exp(0.1 * x * x + noise * rng.normal())
        columns = {column(key): value for key, value in trial.leaves.items()}
        rows.append(
            {
                **columns,
                "key": trial.key,
                "schema": SCHEMA,
                "steps": 40,
                "loss": None if x > 2.5 else loss,
                "diverged": x > 2.5,
                "validation_accuracy": 1 / (1 + loss),
            }
        )
    return pandas.DataFrame(rows)


def add(store, rows, trial, step, loss):
    """Rows with learning curves: `loss` after each `step` of the row whose number is `trial`."""
    columns = {"step": step, "loss": loss, "grad_norm": loss}
    finished = [
        Finished(row, {name: values[trial == i] for name, values in columns.items()})
        for i, row in enumerate(rows.to_dict("records"))
    ]
    store.add(finished)
    store.close()


def updates(study, slope):
    """Calibrations whose learning rate goes as depth^slope; relative to the layers as depth^(slope / 2)."""
    calibrated = {}
    for point in curves_along_depth(study).values():
        s = np.full((3, point.depth + 1), float(point.depth) ** (-2 * slope))
        calibrated[calibration.calibration_key(study, point)] = MaximalUpdate(s, np.sqrt(s))
    return calibrated


@pytest.fixture(scope="module")
def judged():
    study = tiny.study(**GRID)
    rows = planted(study)
    return study, rows, judge(rows, study, updates(study, -1.0))


def test_laws_and_rules(judged):
    _, _, curves = judged
    mup, depth_mup = curves
    assert (mup.result.verdict, depth_mup.result.verdict) == ("does not transfer", "transfers")
    for curve in curves:
        slope = SLOPES[curve.parameterization]
        assert curve.laws.power_law.exponent == pytest.approx(slope, abs=0.05)
        worst = {rule.name: rule.worst for rule in curve.laws.rules}
        assert worst["constant"] == pytest.approx(-3 * slope, abs=0.2)
        assert worst["L^-3/2"] == pytest.approx(3 * (1.5 + slope), abs=0.2)
        assert worst["calibrated"] == pytest.approx(3 * abs(-1 - slope), abs=0.2)
        assert worst["relative"] == pytest.approx(3 * abs(-0.5 - slope), abs=0.2)
        assert worst["fitted"] < 0.4
        n = 24  # 24 branches of one layer: P = n^2 (n + 3) 2^(n - 3)
        ratio = (9 * 6) / (n * n * (n + 3) * 2 ** (n - 3))
        assert worst["PathSum"] == pytest.approx(abs(0.5 * math.log2(ratio) - 3 * slope), abs=0.2)


def test_sentences(judged):
    """Each verdict once, the best one first, with the numbers of the result."""
    study, _, curves = judged
    mup, depth_mup = (c.result for c in curves)
    (parts,) = words.sentences(curves, study, "").values()
    assert [kind for _, kind in parts if kind] == ["transfers", "does not transfer"]
    factor = 2 ** -np.log2(mup.optimal_lr[-1] / mup.tuned)
    assert "".join(text for text, _ in parts) == (
        f"Under depth_mup the learning rate {depth_mup.tuned:.3g} tuned at depth 3 costs at most {depth_mup.cost} "
        f"up to depth 24: it transfers. Under mup the best learning rate falls {factor:.2g}x, and the tuned "
        f"{mup.tuned:.3g} {mup.price}: it does not transfer. "
    )
    assert re.fullmatch(r"diverges at depth 24; costs \S+% \[.*\] at depth 8", mup.price)
    head, *rows = words.answers(curves).splitlines()
    assert head.split("  ")[0] == "depth 3 to 24"
    assert rows[1].split()[:4] == ["sgd", "depth_mup", f"{depth_mup.tuned:.3g}", f"{depth_mup.optimal_lr[-1]:.3g}"]
    assert rows[1].endswith("transfers")
    assert f"larger sizes: {depth_mup.tuned:.3g} for sgd under depth_mup (the best of depth 3)" in rows[-1]


def test_an_edge_outside_the_grid():
    """Above it, or below it where nothing trains."""
    study = tiny.study(**GRID)
    best = {3: -1, 4: -2, 6: -3, 8: 4, 24: -20}
    curves = judge(planted(study, lambda point: best[point.depth]), study)
    _, edges = tables.verdict_table(curves).split(
        "edge, the learning rate above which training is not possible, at depth "
    )
    title, head, *rows = edges.splitlines()
    assert title == "(above: beyond the grid; none: no value trains every seed)"
    assert head.split()[:5] == ["3", "4", "6", "8", "24"]
    assert [[row.split()[i] for i in (2, 5, 6)] for row in rows] == [["2.83", "above", "none"]] * 2


def test_rule_table(judged):
    _, _, curves = judged
    first, head, *lines = tables.rule_table(curves).splitlines()
    assert "octaves" in first
    assert head.split() == ["constant", "L^-1", "L^-3/2", "PathSum", "fitted", "calibrated", "relative"]
    rule = next(rule for rule in curves[0].laws.rules if rule.name == "L^-1")
    assert lines[0].startswith("sgd mup  ")
    assert f"{rule.mean:.2f}, {rule.worst:.2f}" in lines[0]


def test_without_calibration_there_is_no_such_rule(judged):
    study, rows, _ = judged
    names = [rule.name for rule in judge(rows, study)[0].laws.rules]
    assert names == ["constant", "L^-1", "L^-3/2", "PathSum", "fitted"]


def test_by_accuracy(judged):
    """The same optimum by another measure; the cap is that of guessing."""
    _, rows, curves = judged
    study = tiny.study(**GRID, sweep__judge_by="validation_accuracy")
    by_accuracy = judge(rows, study)
    for one, other in zip(by_accuracy, curves, strict=True):
        assert one.chance == 0.9
        assert np.log2(one.result.optimal_lr) == pytest.approx(np.log2(other.result.optimal_lr), abs=0.2)
        assert one.result.optimal_lr != other.result.optimal_lr
    study = tiny.study(**{**GRID, "sweep__depths": (3,)}, sweep__judge_by="validation_accuracy", model__depth=3)
    single = rows[rows["depth"] == 3]
    best = single[(single["parameterization"] == "mup") & ~single["diverged"]]["validation_accuracy"].max()
    shown = float(re.search(r"sgd mup.*  (\S+)$", tables.best_table(single, study), re.M)[1])
    assert shown == pytest.approx(best, abs=0.01)
    lucky = single.assign(
        validation_accuracy=single["validation_accuracy"].where(~single["diverged"].astype(bool), 1.0)
    )
    assert tables.best_table(lucky, study) == tables.best_table(single, study)


def test_another_hyperparameter_has_a_verdict_of_its_own():
    """At the learning rate that is best at the smallest size; momentum as the inverse of its number of steps."""
    axes = "parameterization.gamma0 = log(0.125, 8, 7); optimizer.momentum = 0.5, 0.75, 0.875, 0.9375, 0.96875, 0.98438"
    study = tiny.study(**{**GRID, "sweep__optimizers": ("momentum",), "sweep__depths": (2, 4, 8),
                          "sweep__log2_learning_rates": {"momentum": (-4.0, 1.0)}, "sweep__per_octave": 1},
                       sweep__axes=axes)  # fmt: skip
    rng, rows = np.random.default_rng(0), []
    for trial in grid_trials(study):
        leaves, depth = trial.leaves, math.log2(trial.point.depth / 2)
        x = math.log2(trial.learning_rate) + 1 + depth  # best at 1/2 at the smallest size
        # Its optimum doubles with depth, and is 1 at that learning rate and size.
        gamma = math.log2(leaves["parameterization.gamma0"]) - depth - (math.log2(trial.learning_rate) + 1)
        time = math.log2(1 - leaves["optimizer.momentum"]) + 3  # stays at 7/8
        loss = 0.1 * math.exp(0.1 * (x * x + gamma * gamma + time * time) + 0.01 * rng.normal())
        columns = {column(key): value for key, value in trial.leaves.items()}
        rows.append({**columns, "key": trial.key, "loss": loss, "diverged": False})
    curves = judge(pandas.DataFrame(rows), study)
    of_gamma = [c for c in curves if c.hyperparameter == "gamma0"]
    of_momentum = [c for c in curves if c.hyperparameter == "1 - momentum"]
    assert {len(c.result.losses[0]) for c in of_gamma} == {7}
    assert {c.result.verdict for c in of_gamma} == {"does not transfer"}
    assert all(c.result.drift.octaves_per_doubling == pytest.approx(1, abs=0.1) for c in of_gamma)
    assert all(np.log2(c.result.optimal_lr[0]) == pytest.approx(0, abs=0.2) for c in of_gamma)
    assert {c.result.verdict for c in of_momentum} == {"transfers"}
    assert all(np.log2(c.result.optimal_lr) == pytest.approx(-3, abs=0.2) for c in of_momentum)
    assert not any(c.laws.rules for c in of_gamma)
    assert "best gamma0 at depth" in tables.verdict_table(curves)


def test_the_line_of_chance():
    """It is drawn where a curve comes near it; far above all curves it would leave them a strip."""
    study = tiny.study(**GRID)
    rows = planted(study)
    rows = rows.assign(loss=1 + 0.1 * np.abs(np.log2(rows["learning_rate"])), diverged=False)  # at most 2.2
    curves = judge(rows, study)

    def lines(chance):
        panel = draw(panels.losses([dataclasses.replace(c, chance=chance) for c in curves])).axes[0]
        return [line for line in panel.lines if set(line.get_ydata()) == {chance}]

    assert len(lines(2.5)) == 1
    assert not lines(4.0)


def test_the_page(judged, tmp_path):
    """Every picture once, every verdict and rule; strange names are text; learning curves, where there are some."""
    study, rows, curves = judged
    store = Store(tmp_path, {"schema": SCHEMA, "axes": [], "sweep": {}})
    trial = np.repeat(np.arange(len(rows), dtype=np.int32), 40)
    step = np.tile(np.arange(1, 41, dtype=np.int32), len(rows))
    ends = rows["loss"].fillna(2.0).to_numpy()
    loss = (ends[trial] + np.exp(-step / 8)).astype(np.float32)
    add(store, rows, trial, step, loss)
    curves = [dataclasses.replace(c, variant="<script>alert(1)</script>") for c in curves]
    text = page.write_report(curves, rows, study, tmp_path, "main.py sweep --config='<b>'").read_text()
    text, _, _ = text.rpartition("<script>")  # what follows is Plotly
    names = {"loss_over_depth", "optimum_over_depth", "curves_over_depth"}
    assert {path.stem for path in tmp_path.glob("*.png")} == names
    assert text.count("data:image/png;base64,") == len(names)
    assert "<script>" not in text
    assert "<b>'" not in text
    assert text.count("</script>") == 1  # the end of the data
    assert "http" not in re.sub(r"base64,[^\"]*", "", text)  # opens offline
    words = html.unescape(re.sub(r"<[^>]*>", " ", text))
    for curve in curves:
        assert curve.result.verdict in words
        for rule in curve.laws.rules:
            assert rule.name in words
            assert f"{rule.mean:.2f}, {rule.worst:.2f}" in words
    summary = json.loads((tmp_path / "summary.json").read_text(), parse_constant=pytest.fail)  # no NaN, no Infinity
    assert summary["sweeps"][0]["power_law"]["exponent"] == curves[0].laws.power_law.exponent
    assert summary["sweeps"][0]["rules"]["L^-1"]["octaves_off"] == curves[0].laws.rules[1].octaves_off
    odd = dataclasses.replace(curves[0], result=curves[0].result._replace(regret=[math.inf, math.nan]))
    assert json.dumps(page.summary([odd], study), allow_nan=False)  # null, since JSON has no infinity


def test_the_page_begins_with_the_answer(judged, tmp_path):
    """Which rate, for which sizes, what it costs at most and what it may; then what that rests on."""
    study, rows, curves = judged
    (line,) = words.bottom_line([c for c in curves if c.name == "depth_mup"])
    assert re.fullmatch(
        r"Use 0\.\d+ for sgd under depth_mup: up to depth 24 it costs at most [\d.]+% \[.*\], margin .*", line
    )
    (none,) = words.bottom_line([c for c in curves if c.name == "mup"])
    assert none == "For sgd no learning rate is known to be right at all larger sizes."
    text = page.write_report(curves, rows, study, tmp_path, "python main.py sweep").read_text()
    assert html.escape(line) in text
    assert text.index(html.escape(line)) < text.index("<h2>")
    assert f"{len(rows)} trainings of 3 seeds; written 20" in text
    assert page.facts(pandas.DataFrame({"depth": [1, 2]})).startswith("2 trainings; written")


def test_the_loss_over_training(judged, tmp_path):
    """The mean over the seeds at the smallest size's best learning rate, at each step."""
    _, rows, curves = judged
    store = Store(tmp_path, {"schema": SCHEMA, "axes": [], "sweep": {}})
    trial = np.repeat(np.arange(len(rows), dtype=np.int32), 40)
    step = np.tile(np.arange(1, 41, dtype=np.int32), len(rows))
    add(store, rows, trial, step, rows["loss"].fillna(5.0).to_numpy(np.float32)[trial])
    carried = curves[1].carried(3)
    mean = LearningCurves(tmp_path).loss(carried)
    assert mean.index.tolist() == list(range(1, 41))
    assert mean.iloc[-1] == pytest.approx(carried["loss"].mean(), rel=1e-5)
    assert len(carried) == 3


def test_rows_alone_make_a_report(judged, tmp_path):
    study, rows, curves = judged
    assert page.write_report(curves, rows, study, tmp_path, "").exists()
    assert not (tmp_path / "curves_over_depth.png").exists()


def test_an_axis_that_some_parameterizations_do_not_have():
    axes = "parameterization.alpha = 0.5, 0.6, 0.7, 0.8, 0.9"
    study = tiny.study(**{**GRID, "sweep__depths": (2, 4)}, sweep__axes=axes)
    curves = judge(planted(study), study)
    assert {c.parameterization for c in curves if c.hyperparameter == "alpha"} == {"depth_mup"}
    assert len([c for c in curves if c.parameterization == "mup"]) == 1


def test_an_adaptive_sweep_with_another_axis():
    """The best rate of the smallest size need not be there at all values of it: then it has no verdict of its own."""
    axes = "parameterization.gamma0 = 0.25, 0.5, 1.0, 2.0, 4.0"
    grid = {**GRID, "sweep__depths": (2, 4, 8), "sweep__parameterizations": ("mup",), "sweep__adaptive": True}
    study = tiny.study(**grid, sweep__axes=axes)

    def optimum(point):
        return -2 - 1.5 * math.log2(point.depth / 2) + 2 * math.log2(point.leaves["parameterization.gamma0"])

    table = planted(study, optimum)
    full = {row["key"]: row for row in table.to_dict("records")}
    rows, search = {}, Search(study)
    while more := search.next_trials(rows):
        rows |= {
            t.key: full.get(t.key)
            or {**{column(k): v for k, v in t.leaves.items()}, "key": t.key, "loss": None, "diverged": True}
            for t in more
        }
    curves = judge(pandas.DataFrame([rows[t.key] for t in search.evaluated(rows)]), study)
    assert len([c for c in curves if c.hyperparameter == "learning_rate"]) == 5
    assert not [c for c in curves if c.hyperparameter == "gamma0"]


@pytest.mark.parametrize(("background", "brightness"), [("white", 1.0), ("black", 0.0)])
def test_colors_of_sizes_stand_out(background, brightness):
    colors = size_colors(5, background)[:, :3]
    assert np.all(np.abs(colors.mean(axis=1) - brightness) > 0.3)
    assert len(np.unique(colors, axis=0)) == 5
