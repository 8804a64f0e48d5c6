"""The GPT of 101 million parameters: the order of its trainings and its measures, from made-up rows; a training."""

import math

import jax
import numpy as np
import pandas
import pytest

from depthmup.data.text import docstrings
from experiments import hundred_million as big
from experiments.hundred_million import LARGE, SMALL, Trial, missing

KEPT = -7
# Octaves from the small one's best rate, and the height of the valley.
OPTIMA = {"completep": (0.0, 1.0), "sp": (-4.0, 1.1), "mup": (0.0, 1.05)}


def rows_of(trials, optima=OPTIMA):
    """Made-up rows of parabolas, each seed a little higher than the one before."""
    lines = []
    for trial in trials:
        moved, height = optima[trial.parameterization] if (trial.width, trial.depth) == LARGE else (0.0, 1.0)
        loss = height * math.exp(0.02 * (trial.octave - KEPT - moved) ** 2 + 0.001 * trial.seed)
        lines.append({**trial._asdict(), "loss": loss})
    return pandas.DataFrame(lines)


SWEPT = [Trial("sp", *SMALL, octave, seed) for octave in big.OCTAVES for seed in range(big.SEEDS)]


def trained(optima=OPTIMA):
    """All rows that are asked for, in order."""
    rows, order = rows_of(SWEPT, optima), []
    while left := missing(rows):
        order.append(left[0])
        rows = pandas.concat([rows, rows_of(left[:1], optima)])
    return rows, order


def test_the_order():
    assert missing(pandas.DataFrame(columns=[*Trial._fields, "loss"])) == SWEPT
    _, order = trained()
    seed_0 = [("completep", 0), ("completep", -1), ("completep", 1), ("sp", 0), ("sp", -4), ("sp", -2), ("mup", 0)]
    assert order == [Trial(name, *LARGE, KEPT + shift, seed) for seed in range(3) for name, shift in seed_0]


def test_a_best_rate_at_an_end_gets_a_neighbour():
    """As often as it takes, in all seeds that are there."""
    _, order = trained(OPTIMA | {"completep": (-2.0, 1.0)})
    beyond = [(trial.octave - KEPT, trial.seed) for trial in order if trial.parameterization == "completep"]
    assert beyond[:5] == [(0, 0), (-1, 0), (1, 0), (-2, 0), (-3, 0)]
    assert sorted(beyond) == [(octave, seed) for octave in (-3, -2, -1, 0, 1) for seed in range(3)]


def test_measures(tmp_path, monkeypatch):
    rows, _ = trained(OPTIMA | {"completep": (-0.4, 1.0)})
    assert big.moved_of(rows, "completep") == pytest.approx(-0.4)
    assert big.cost_of(rows, "completep") == 0.0
    assert big.cost_of(rows, "sp") == pytest.approx(100 * math.expm1(0.02 * 16))
    assert math.isnan(big.moved_of(rows, "sp"))
    assert big.falls_of(rows, "sp") == pytest.approx(100 * math.expm1(-0.02 * 4))
    assert big.ahead_of(rows, "sp") == pytest.approx(100 * (1 - math.exp(0.02 * 0.16) / 1.1))
    assert big.behind_of(rows, "mup") == pytest.approx(100 * (1.05 / math.exp(0.02 * 0.16) - 1))
    assert big.above_vertex(rows, "completep") == pytest.approx(100 * math.expm1(0.02 * 0.16))
    text = big.table(rows)
    assert "2^-7" in text
    assert "| `completep` | 3 |" in text
    assert "at least 37.7% | - | does not |" in text
    rows.to_parquet(tmp_path / "rows.parquet")
    monkeypatch.setattr(big, "ROWS", tmp_path / "rows.parquet")
    assert big.quantity("cost sp").value == pytest.approx(big.cost_of(rows, "sp"))
    assert big.quantity("ahead sp").value == pytest.approx(big.ahead_of(rows, "sp"))


def test_a_training_that_diverges_costs_all():
    rows, _ = trained()
    in_short = big.table_in_short(rows)
    assert "| by width (`mup`) | 1.05 | - | not measured |" in in_short
    at_kept = (rows[["parameterization", "width", "octave"]] == ["sp", LARGE[0], KEPT]).all(axis=1)
    rows.loc[at_kept & (rows["seed"] == 1), "loss"] = math.nan
    assert big.cost_of(rows, "sp") == math.inf
    rows.loc[(rows["parameterization"] == "sp") & (rows["width"] == LARGE[0]), "loss"] = math.nan
    assert big.cost_of(rows, "sp") == math.inf
    assert "| diverges | " in big.table_in_short(rows)
    assert "| diverges | - | does not |" in big.table(rows)


def test_octaves_that_a_seed_lacks_are_left_out(tmp_path, monkeypatch):
    """Means of other seeds are not compared; what is not trained yet has no row and no line."""
    rows, order = trained(OPTIMA | {"completep": (-0.4, 1.0)})
    second = rows[rows["seed"] < 2]
    lacks = (second["seed"] == 1) & (second["width"] == LARGE[0]) & (second["octave"] == KEPT - 2)
    assert [*big.means(second[~lacks], "sp", LARGE)] == [KEPT - 4, KEPT]
    assert big.falls_of(second[~lacks], "sp") == pytest.approx(100 * math.expm1(-0.02 * 4))
    assert big.cost_of(second[~lacks], "sp") == pytest.approx(100 * math.expm1(0.02 * 16))
    once = pandas.concat([rows, rows_of([Trial("completep", *LARGE, KEPT - 2, 0)])])
    assert big.means(once, "completep", LARGE) == big.means(rows, "completep", LARGE)
    of_mup = (second["parameterization"] == "mup") & (second["seed"] == 1)
    assert big.behind_of(second[~of_mup], "mup") == pytest.approx(100 * (1.05 / math.exp(0.02 * 0.16) - 1))
    begun = pandas.concat([rows_of(SWEPT), rows_of(order[:4])])
    assert [line.split(" | ")[0] for line in big.table(begun).splitlines()[4:]] == ["| `completep`", "| `sp`"]
    begun.to_parquet(tmp_path / "rows.parquet")
    monkeypatch.setattr(big, "ROWS", tmp_path / "rows.parquet")
    monkeypatch.setattr(big, "IMAGES", tmp_path)
    big.draw()
    assert (tmp_path / "hundred_million.png").stat().st_size > 10_000


def test_trains(monkeypatch):
    """It learns, on text that it is not judged by, and ends where the loss is no number."""
    monkeypatch.setattr(big, "STEPS", 20)
    monkeypatch.setattr(big, "HELD_OUT", 32)
    small = Trial("completep", 16, 2, -6, 0)
    assert big.train(small) < 0.8 * big.CHANCE
    assert math.isnan(big.train(small._replace(octave=40)))
    text, (cut, targets) = docstrings(), big.windows(0.9, 1.0, jax.random.key(0), 1000)
    np.testing.assert_array_equal(cut[:, 1:], targets[:, :-1])
    training, held_out = (" ".join(map(chr, part)) for part in (text[: len(text) * 9 // 10], np.asarray(cut[0])))
    assert held_out not in training
