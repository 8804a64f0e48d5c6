"""Published sweeps of language models: exponents and costs of planted rows, and what docs/published-runs.md says."""

import json
import math

import numpy as np
import pandas
import pytest

from depthmup.rules.batch_rules import Exponents
from experiments import step_law
from experiments.output import Interval

BATCH, TOKENS = 0.5, -0.3  # exponents of the planted best rate
CURVATURE = 0.01  # of the logarithm of the loss, an octave squared
SLOPE = 0.04  # of the loss along the tokens


@pytest.fixture
def planted(tmp_path, monkeypatch):
    """One shape at three batch sizes and three lengths, one seed, half-octave rates."""
    rows = []
    for number, (batch, tokens) in enumerate((b, t) for b in (32, 64, 128) for t in (1e9, 2e9, 4e9)):
        best = -8 + BATCH * math.log2(batch / 32) + TOKENS * math.log2(tokens / 1e9)
        for log2 in np.arange(-13, -2.9, 0.5):
            loss = 3 * (tokens / 1e9) ** -SLOPE * math.exp(CURVATURE * (log2 - best) ** 2)
            rows.append(("dense", number, 960, 7, int(tokens), batch, int(tokens / batch / 2048), 2.0**log2, loss))
    columns = ["model", "curve", *step_law.SHAPE, "tokens", "batch_size", "steps", "learning_rate", "loss"]
    pandas.DataFrame(rows, columns=columns).to_parquet(tmp_path / "rows.parquet")
    monkeypatch.setattr(step_law, "ROWS", tmp_path / "rows.parquet")
    step_law.curves.cache_clear()
    yield
    step_law.curves.cache_clear()


def test_planted_exponents(planted):
    table = step_law.curves()
    assert len(table) == 9
    over_batch = step_law.slopes(table["best"], "batch_size", [*step_law.SHAPE, "tokens"])
    over_steps = step_law.slopes(table["best"], "steps", [*step_law.SHAPE, "batch_size"])
    np.testing.assert_allclose(over_batch["slope"], BATCH, atol=0.02)
    np.testing.assert_allclose(over_steps["slope"], TOKENS, atol=0.02)
    assert list(over_steps["batch_size"]) == [32, 64, 128]
    np.testing.assert_allclose(step_law.steps_slopes()["slope"], SLOPE, atol=0.002)
    assert step_law.slopes(table["best"][table["batch_size"] < 128], "batch_size", ["width", "tokens"]).empty


def test_planted_costs(planted):
    """The right rule costs nothing, and n octaves off cost n^2 percent; off the grid a cost is infinite, and a rule
    for one batch size says nothing about two."""
    of = step_law.pairs()
    larger, longer = of["more tokens, a larger batch"], of["more steps, batches of 32 to 64"]
    assert (len(larger), len(longer)) == (9, 6)
    np.testing.assert_allclose(step_law.costs(larger, Exponents(BATCH, TOKENS)), 0, atol=2e-4)
    off = [BATCH * math.log2(pair.batch) + TOKENS * math.log2(pair.tokens) for pair in larger]
    expected = np.expm1(CURVATURE * np.square(off))
    np.testing.assert_allclose(step_law.costs(larger, Exponents()), expected, atol=5e-4)
    assert np.isinf(step_law.costs(larger, Exponents(9.0, 0.0))).all()
    one_batch = Exponents(math.nan, TOKENS)
    assert np.isnan(step_law.costs(larger, one_batch)).all()
    np.testing.assert_allclose(step_law.costs(longer, one_batch), 0, atol=2e-4)
    assert step_law.costs_of_first([(0, 1.0), (0, 0.5)]) == [pytest.approx(math.expm1(CURVATURE), abs=2e-4)]


def test_what_a_loss_is_worth():
    share = step_law.worth(0.005, 0.04)
    assert (1 + share) ** -0.04 == pytest.approx(1 / 1.005)
    assert share == pytest.approx(0.1328, abs=1e-4)


def test_the_rule_of_decision():
    def answer(value, low, high):
        return step_law.Row("", Interval(value, value, value), "", Interval((low + high) / 2, low, high), "").answer

    assert answer(0.5, 0.1, 0.39) == "does not hold"
    assert answer(0.5, 0.1, 0.41) == "holds"
    assert answer(0.5, 0.41, 0.92) == "undecided"


def test_what_the_published_runs_say():
    """The directions that documents state in words."""
    rows = {row.what: row for row in step_law.predictions()}
    shape, small_batches, depth, batch, long, *steps = rows.values()
    for row in (shape, depth, batch, long):
        assert row.measured.low < row.predicted.value < row.measured.high
    assert shape.predicted.value == pytest.approx(-1.41, abs=0.1)
    assert small_batches.measured.value > shape.measured.value
    assert 0.4 < long.measured.value < 0.6
    assert steps[0].answer == "holds"
    assert [row.answer for row in steps[1:]] == ["does not hold"] * 2
    assert steps[0].measured.high < steps[1].measured.low < steps[1].measured.high < steps[2].measured.low
    assert steps[2].measured.low > 0
    costs = {what: of["costs"] for what, of in json.loads(step_law.COSTS.read_text())["rules"].items()}
    small, large = (costs[f"more steps, batches of {name}"] for name in ("32 to 64", "352 or more"))
    assert small["`token_horizon`"] < small["`none`"]
    assert large["`token_horizon`"] > large["`none`"]
    for what in ("more tokens, a larger batch", "more steps, a larger batch"):
        assert costs[what][step_law.SMALL] < costs[what]["`completed_p`"]


def test_the_costs_are_those_of_the_rows():
    """Of two rules at the smallest set of pairs."""
    written = json.loads(step_law.COSTS.read_text())["rules"]
    of = step_law.pairs()
    assert {what: len(pairs) for what, pairs in of.items()} == {what: row["pairs"] for what, row in written.items()}
    what = "more steps, batches of 32 to 64"
    for name in (step_law.SMALL, "`token_horizon`"):
        costs = step_law.quantiles(step_law.costs(of[what], step_law.rules()[name]))
        assert costs == pytest.approx(written[what]["costs"][name], abs=1e-5), f"{name}: run experiments.step_law"


def test_the_rows():
    rows = pandas.read_parquet(step_law.ROWS)
    dense = rows[rows["model"] == "dense"]
    text = (step_law.RESULTS.parent / "published-runs.md").read_text()
    assert f"{len(dense):,} trainings" in text
    assert f"{dense['tokens'].min() / 1e9:g} to {dense['tokens'].max() / 1e9:g} billion tokens" in text
    low, high = dense["parameters"].min(), dense["parameters"].max()
    assert f"{low / 1e6:.0f} million to {high / 1e9:.2f} billion parameters" in text
    assert not dense.duplicated([*step_law.SHAPE, "tokens", "batch_size", "learning_rate"]).any()
