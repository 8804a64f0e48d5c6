"""fit.design: which trainings come next."""

from __future__ import annotations

import csv
import importlib
import math

import numpy as np
import pandas
import pytest

from depthmup import fit
from depthmup.cli import law
from depthmup.fit.design import FORM, _State
from experiments import design as experiment
from experiments import law as of_law

TARGET = {"width": 1024.0, "batch_size": 512.0, "steps": 8192.0}
Rows = pandas.DataFrame


@pytest.fixture(scope="module")
def rows() -> Rows:
    table, _ = of_law.planted(of_law.CASES["straight"], np.random.default_rng(0))
    return pandas.DataFrame(table)


def small(rows: Rows) -> pandas.Series:
    """Which are at most 128 wide with a batch of 32 at 1,024 steps."""
    return (rows["width"] <= 128) & (rows["batch_size"] <= 32) & (rows["steps"] <= 1024)


def priced(rows: Rows) -> Rows:
    return rows.drop(columns="loss").assign(cost=rows["width"] ** 2 * rows["batch_size"] * rows["steps"] / 1e9)


@pytest.fixture(scope="module")
def fitted(rows: Rows) -> fit.ScalingLaw:
    return fit.scaling_law(rows[small(rows)])


def test_it_begins_with_what_the_law_says(fitted: fit.ScalingLaw, rows: Rows) -> None:
    plan, p = fit.design(fitted, priced(rows), TARGET, budget=1.0), fitted.at(**TARGET)
    assert plan.cost[0] == pytest.approx(p.cost, rel=1e-9)
    assert plan.worst_cost[0] == pytest.approx(p.worst_cost, rel=1e-9)


def test_a_plan(fitted: fit.ScalingLaw, rows: Rows) -> None:
    """It keeps to the budget, names no training twice nor one that was made, and each is expected to help."""
    candidates = priced(rows)
    plan = fit.design(fitted, candidates, TARGET, budget=5.0)
    assert len(set(plan.rows)) == len(plan.rows) > 5
    assert not small(rows)[list(plan.rows)].any()
    np.testing.assert_allclose(plan.spent, np.append(0, candidates["cost"].to_numpy()[list(plan.rows)].cumsum()))
    assert plan.spent[-1] <= 5.0
    assert (np.diff(plan.cost) < 1e-12).all()
    assert plan.cost[-1] < plan.cost[0]
    enough = float(plan.worst_cost[3])
    assert fit.design(fitted, candidates, TARGET, budget=5.0, tolerance=enough).rows == plan.rows[:3]
    assert fit.design(fitted, candidates, TARGET, tolerance=float(plan.worst_cost[0])).rows == ()


def test_far_rates_are_worth_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """Far from the optimum the valley may have another form than the law's."""
    nearer = []
    for sweep in range(3):
        table, _ = of_law.planted(of_law.CASES["straight"], np.random.default_rng(sweep))
        rows = pandas.DataFrame(table)
        fitted = fit.scaling_law(rows[small(rows)])

        def octaves(form: float, rows: Rows = rows, fitted: fit.ScalingLaw = fitted) -> float:
            monkeypatch.setattr(importlib.import_module("depthmup.fit.design"), "FORM", form)
            chosen = rows.iloc[list(fit.design(fitted, priced(rows), TARGET, budget=5.0).rows)]
            return float(np.median(np.abs(np.log2(chosen["learning_rate"] / fitted.rates(chosen).value))))

        nearer.append(octaves(0.0) - octaves(FORM))
    assert np.mean(nearer) > 0.1


def test_seeds_tell_trainings_apart(fitted: fit.ScalingLaw, rows: Rows) -> None:
    made, new = priced(rows[small(rows)]), priced(rows[small(rows)]).assign(seed=1)
    assert fit.design(fitted, made, TARGET).rows == ()
    assert fit.design(fitted, new, TARGET, budget=float(new["cost"].sum())).rows


def test_variances_are_those_of_all_trainings_at_once(fitted: fit.ScalingLaw, rows: Rows) -> None:
    """Training by training, the variance that is left is that of linear regression on all of them together."""
    candidates, targets = priced(rows), {axis: np.array([size]) for axis, size in TARGET.items()}
    sizes = {axis: candidates[axis].to_numpy(float) for axis in fitted.axes}
    state = _State(fitted, sizes, np.log2(candidates["learning_rate"].to_numpy()), targets)
    trained = [40, 41, 80, 200, 60]
    for row in trained:
        state.train(row)
    for view in state._views:
        loadings = np.array([view.slopes[row] @ state._basis[state._point[row]] for row in trained])
        precision = np.eye(loadings.shape[1]) + loadings.T @ (loadings / view.noise[trained][:, None])
        left = np.einsum("tm,tm->t", view.loadings, np.linalg.solve(precision, view.loadings.T).T)
        np.testing.assert_allclose(view.left, left, rtol=1e-8)
        others = np.array([view.slopes[row] @ state._basis[state._point[row]] for row in (0, 100)])
        variances = np.einsum("nm,nm->n", others, np.linalg.solve(precision, others.T).T)
        np.testing.assert_allclose(view.variance[[0, 100]], variances, rtol=1e-8)


def test_variances_of_new_sizes_are_those_of_draws(fitted: fit.ScalingLaw) -> None:
    """What is known of the links, and what the rows leave open: two sizes far from the rows, and near each other."""
    coordinates = fitted._of.coordinates
    columns = coordinates.design({axis: np.array([size, 1.5 * size]) for axis, size in TARGET.items()})
    places = coordinates.places(columns)
    names, basis = fitted._fit.basis(places, columns)
    draws = fitted._fit.links_at(places, columns)
    for link in ("optimum", "level", "right"):
        covariance = basis[:, names.index(link)] @ basis[:, names.index(link)].T
        np.testing.assert_allclose(np.sqrt(np.diag(covariance)), draws[link].drawn.std(axis=0), rtol=0.15)
        assert 0 < covariance[0, 1] / math.sqrt(covariance[0, 0] * covariance[1, 1]) <= 1


def test_what_is_expected_comes_about() -> None:
    """The laws of the trainings that were chosen are about as sure as the plans expected, and surer than those of as
    many at random for the same cost: in the mean over sweeps, since last digits decide which trainings are chosen."""
    kept, ahead = [], []
    for sweep in range(5):
        table, _ = of_law.planted(of_law.CASES["straight"], np.random.default_rng(sweep))
        rows = pandas.DataFrame(table)
        candidates = priced(rows)
        plan = fit.design(fit.scaling_law(rows[small(rows)]), candidates, TARGET, budget=20.0)

        def cost(new: Rows, rows: Rows = rows) -> float:
            return fit.scaling_law(pandas.concat([rows[small(rows)], new])).at(**TARGET).cost

        at_random = []
        for seed in range(3):
            order = np.random.default_rng(seed).permutation(np.flatnonzero(~small(rows)))
            order = order[candidates["cost"].to_numpy()[order].cumsum() <= 20.0]
            at_random.append(cost(rows.iloc[order]))
        after = cost(rows.iloc[list(plan.rows)])
        kept.append(math.log(after / plan.cost[-1]))
        ahead.append(math.log(after / np.median(at_random)))
    assert 0.3 < math.exp(np.mean(kept)) < 3
    assert math.exp(np.mean(ahead)) < 0.8


def test_several_targets(fitted: fit.ScalingLaw, rows: Rows) -> None:
    targets = [TARGET, {**TARGET, "width": 2048.0}]
    plan = fit.design(fitted, priced(rows), targets, budget=5.0)
    assert plan.cost[0] == pytest.approx(np.mean([fitted.at(**target).cost for target in targets]), rel=0.15)


def test_cheaper_trainings_come_first(fitted: fit.ScalingLaw, rows: Rows) -> None:
    """Of two that are alike but for their cost, the cheaper one."""
    candidates = priced(rows)
    twice = pandas.concat([candidates.assign(cost=2 * candidates["cost"], seed=2), candidates.assign(seed=1)])
    plan = fit.design(fitted, twice.reset_index(drop=True), TARGET, budget=50.0)
    assert plan.rows
    assert plan.rows[0] >= len(candidates)


@pytest.mark.parametrize(
    ("words", "changes"),
    [
        ("no column 'cost'", {"candidates": lambda c: c.drop(columns="cost")}),
        ("no column 'steps'", {"candidates": lambda c: c.drop(columns="steps")}),
        ("cost must be positive", {"candidates": lambda c: c.assign(cost=0.0)}),
        ("the budget must be positive", {"budget": 0.0}),
        ("tolerance must", {"tolerance": -1.0}),
        ("the target has no steps", {"target": {"width": 1024, "batch_size": 512}}),
        ("there is no target", {"target": []}),
    ],
)
def test_bad_input(words: str, changes: dict, fitted: fit.ScalingLaw, rows: Rows) -> None:
    arguments = {"candidates": lambda c: c, "target": TARGET, "budget": 1.0} | changes
    candidates, target = arguments.pop("candidates")(priced(rows)), arguments.pop("target")
    with pytest.raises(ValueError, match=words):
        fit.design(fitted, candidates, target, **arguments)


def write(path, rows: Rows) -> str:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows))
        writer.writeheader()
        writer.writerows(rows.to_dict("records"))
    return str(path)


def test_the_command(rows: Rows, fitted: fit.ScalingLaw, tmp_path, capsys) -> None:
    """depthmup law with candidates: the prediction, then the trainings that come next, by the columns' usual names."""
    runs = write(tmp_path / "runs.csv", rows[small(rows)].rename(columns={"learning_rate": "lr"}))
    candidates = write(tmp_path / "next.csv", priced(rows).rename(columns={"steps": "max_steps"}))
    target = "--target=" + ",".join(f"{axis}={size}" for axis, size in TARGET.items())
    words = ["law", runs, target, f"--candidates={candidates}", "--budget=5", "--tolerance=0.001%"]
    assert law.run_law("depthmup", words) == 0
    lines = capsys.readouterr().out.splitlines()
    plan = fit.design(fitted, priced(rows), TARGET, budget=5.0, tolerance=1e-5)
    (start,) = (i for i, line in enumerate(lines) if line == f"train next: {plan}")
    assert lines[start + 1].split() == [*fitted.axes, "learning_rate", "cost", "97.5%", "cost", "then"]
    printed = np.array(
        [[float(cell) for cell in line.split()[:3]] for line in lines[start + 2 : start + 2 + len(plan.rows)]]
    )
    np.testing.assert_allclose(printed, rows[list(fitted.axes)].to_numpy()[list(plan.rows)])
    for wrong, message in (
        (["law", runs, f"--candidates={candidates}"], "--candidates needs --target"),
        (["law", runs, target, "--budget=5"], "--budget and --tolerance are of --candidates"),
        ([*words[:4], "--budget=much"], "--budget is N, got 'much'"),
        ([*words[:4], "--tolerance=much"], "--tolerance is PERCENT, got 'much'"),
        ([*words[:3], "--candidates=none.csv"], "there is no table 'none.csv'"),
        ([*words[:3], f"--candidates={runs}"], "has no column 'cost'"),
    ):
        assert law.run_law("depthmup", wrong) == 2
        done = capsys.readouterr()
        assert message in done.err
        assert done.out == ""
        assert done.err.count("\n") == 1


def test_choosing_in_stages() -> None:
    """On ScaleBench's smallest models and lengths: the design's trainings cost at most the budget."""
    pool = of_law.scalebench("train")
    rows = pool[(pool["parameters"] < 3e8) & (pool["tokens"] < 1.5e10)]
    targets = [{"parameters": 1073741824.0, "tokens": 1e11, "batch_size": 512.0}]
    (budget, trained), *_ = experiment.chosen(rows, targets, 0, (0.01,))
    assert budget == 0.01
    assert experiment.costs(rows)[trained].sum() <= 0.01
    assert len(set(trained)) == len(trained) > experiment.FIRST


def test_the_words_of_a_plan() -> None:
    plan = fit.Design((3,), np.array([0.0, 2.0]), np.array([0.01, 0.005]), np.array([0.04, 0.02]))
    assert str(plan) == "1 training for 2: the rate costs 1%, at most 4% now, 0.5%, at most 2% after them (expected)"
