"""The adaptive search finds the optima of the full grid with fewer trials, planted and real, and can be interrupted."""

import math

import numpy as np
import pandas
import pytest

from depthmup.report.curves import judge
from depthmup.trials.adaptive import WIDER, Search
from depthmup.trials.engine import train
from depthmup.trials.plan import grid_trials
from tests import tiny

CHANCE = math.log(10)


def study(**overrides):
    grid = {"sweep__log2_learning_rates": {"sgd": (-8.0, 1.0)}, "sweep__per_octave": 2, "sweep__optimizers": ("sgd",)}
    shape = {"sweep__depths": (2, 4, 8, 16, 32), "sweep__widths": (8, 16, 32), "sweep__seeds": 3}
    return tiny.study(**{**grid, **shape, "sweep__adaptive": True, **overrides})


def planted(trial, optimum, rng, noise=0.03):
    """A row: a bowl in log learning rate, diverging three octaves above its optimum, never above chance."""
    x = math.log2(trial.learning_rate) - optimum(trial.point)
    loss = min(CHANCE, 0.1 * math.exp(0.08 * x * x + noise * rng.normal())) if x < 3 else None
    return {"key": trial.key, "loss": loss, "diverged": loss is None, "optimizer": "sgd", "seed": trial.seed,
            "parameterization": trial.point.parameterization, "width": trial.point.width, "depth": trial.point.depth,
            "learning_rate": trial.learning_rate}  # fmt: skip


def search(chosen, row_of):
    """(rows of all trials that the search asks for, rounds)."""
    rows, rounds, searching = {}, 0, Search(chosen)
    while more := searching.next_trials(rows):
        assert not {trial.key for trial in more} & rows.keys()
        rows |= {trial.key: row_of(trial) for trial in more}
        rounds += 1
        assert rounds < 100
    return rows, searching


def optima(rows, chosen):
    """(axis, parameterization) -> best learning rates."""
    return {(c.axis, c.name): c.result.optimal_lr for c in judge(pandas.DataFrame(rows), chosen)}


@pytest.mark.parametrize("seed", range(10))
def test_planted_optima(seed):
    """That stay, drift down and drift up: where the full grid finds them, with less than 60% of its trials.

    Nearly there, since points farther off, which only the full grid has, take part in the fit.
    """
    rng = np.random.default_rng(seed)
    start = rng.uniform(-4, -2)
    slopes = {"sp": rng.uniform(-0.8, -0.3), "mup": rng.uniform(0.1, 0.3), "depth_mup": 0.0}

    def optimum(point):
        return start + slopes[point.parameterization] * math.log2(point.depth * point.width / 32)

    chosen = study()
    full = {trial.key: planted(trial, optimum, rng) for trial in grid_trials(chosen)}
    rows, searching = search(chosen, lambda trial: full.get(trial.key) or planted(trial, optimum, rng))
    adaptive_rates = optima([rows[trial.key] for trial in searching.evaluated(rows)], chosen)
    for curve, rates in optima(full.values(), chosen).items():
        assert np.log2(adaptive_rates[curve]) == pytest.approx(np.log2(rates), abs=0.35), curve
    assert len(rows) < 0.6 * len(full)


def test_an_optimum_beyond_the_grid_is_followed():
    """Up to WIDER octaves; the full grid says that it is at its edge."""
    rng, chosen = np.random.default_rng(0), study(sweep__parameterizations=("sp",), sweep__widths=())

    def optimum(point):
        return -6.5 - 0.75 * math.log2(point.depth / 2)

    rows, searching = search(chosen, lambda trial: planted(trial, optimum, rng, noise=0.0))
    best, = optima([rows[trial.key] for trial in searching.evaluated(rows)], chosen).values()  # fmt: skip
    assert [math.log2(lr) for lr in best] == pytest.approx([-6.5, -7.25, -8.0, -8.75, -9.5], abs=0.05)
    full = [planted(trial, optimum, rng, noise=0.0) for trial in grid_trials(chosen)]
    assert optima(full, chosen)["depth", "sp"][3:] == [None, None]
    lowest = min(math.log2(row["learning_rate"]) for row in rows.values())
    assert -8 - WIDER <= lowest <= -10


def test_an_optimum_far_beyond_the_grid_is_none():
    """The search ends where the lattice does, with as many points as a verdict needs."""
    rng = np.random.default_rng(0)
    chosen = study(sweep__parameterizations=("sp",), sweep__widths=(), sweep__per_octave=1)
    rows, searching = search(
        chosen, lambda trial: planted(trial, lambda point: -6.5 - 2 * math.log2(point.depth), rng, 0.0)
    )
    best, = optima([rows[trial.key] for trial in searching.evaluated(rows)], chosen).values()  # fmt: skip
    assert best[-1] is None


@pytest.mark.parametrize("seed", range(5))
def test_interrupted_anywhere_it_asks_for_the_same(seed):
    """Also where rows come in another order, and where others are there already."""
    chosen, made = study(sweep__widths=()), {}
    order = np.random.default_rng(seed)

    def row_of(trial):
        noise = np.random.default_rng(int(trial.key, 16))
        return made.setdefault(trial.key, planted(trial, lambda point: -2.0 - 0.7 * math.log2(point.depth), noise, 0.3))

    whole, searching = search(chosen, row_of)
    rows = {trial.key: row_of(trial) for trial in grid_trials(chosen)[:: 7 + seed]}
    while more := searching.next_trials(rows):
        for i in order.permutation(len(more))[: order.integers(1, len(more) + 1)]:
            rows[more[i].key] = row_of(more[i])
    assert [t.key for t in searching.evaluated(rows)] == [t.key for t in searching.evaluated(whole)]


def test_where_nothing_trains_the_whole_grid_is_tried():
    """Else 'no optimum' would be said of five learning rates. Noise about chance is no direction."""
    rng, chosen = np.random.default_rng(0), study(sweep__parameterizations=("sp",), sweep__widths=())

    def row_of(trial):
        row = planted(trial, lambda point: -3.0, rng)
        if trial.point.depth == 8:
            row["loss"] = CHANCE - abs(0.01 * rng.normal())
        return row

    rows, _ = search(chosen, row_of)
    rates = {d: {r["learning_rate"] for r in rows.values() if r["depth"] == d} for d in (4, 8, 16)}
    assert (len(rates[8]), len(rates[16])) == (19, 19)  # nor is it a place to start the next size from
    assert len(rates[4]) < 9


def test_every_size_trains_the_smallest_ones_best():
    """The verdict is about it."""
    rng, chosen = np.random.default_rng(0), study(sweep__parameterizations=("sp",), sweep__widths=())
    rows, _ = search(
        chosen, lambda trial: planted(trial, lambda point: -0.5 - 1.5 * math.log2(point.depth / 2), rng, 0.0)
    )
    of = {d: {r["learning_rate"] for r in rows.values() if r["depth"] == d} for d in (2, 4, 8, 16, 32)}
    best = min((r for r in rows.values() if r["depth"] == 2 and r["loss"]), key=lambda r: r["loss"])["learning_rate"]
    assert all(best in rates for rates in of.values())


def test_real_curves(tmp_path):
    """Trained: the optima of the full grid, the rows of the full grid, fewer of them; the same after a stop."""
    grid = {"sweep__log2_learning_rates": {"sgd": (-6.0, 2.0)}, "sweep__per_octave": 1, "sweep__seeds": 2}
    grid |= {"sweep__depths": (2, 4, 8), "sweep__widths": (), "sweep__parameterizations": ("sp", "depth_mup")}
    chosen, whole = study(**grid), study(**grid, sweep__adaptive=False)
    full = {row["key"]: row for row in train(whole, tmp_path / "full", progress=False)}
    rows = train(chosen, tmp_path / "adaptive", progress=False)
    assert all(full[row["key"]] == row for row in rows if row["key"] in full)
    assert len(rows) < 0.75 * len(full)
    assert optima(rows, chosen) == optima(full.values(), whole)
    for path in sorted((tmp_path / "adaptive" / "groups").iterdir())[::2]:
        path.unlink()
    assert train(chosen, tmp_path / "adaptive", progress=False) == rows
