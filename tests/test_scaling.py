"""The study of batch size and steps: its tables from planted rows."""

import numpy as np
import pandas
import pytest

from experiments import scaling


def plant(path, batch, steps):
    """Parabolas in log2 of the rate, .05 nats for an octave, around -6 at the base, with these exponents."""
    rng, rows = np.random.default_rng(0), []
    runs = [(b, 32 * 512 // b) for b in (8, 32, 128)] + [(32, s) for s in (128, 2048)]
    for b, s in runs:
        best = -6 + batch * np.log2(b / 32) + steps * np.log2(b * s / (32 * 512))
        for octave in np.arange(-9.5, -2.4, 0.5):
            for seed in range(3):
                value = 2 + 0.05 * (octave - best) ** 2 + 1e-4 * rng.standard_normal()
                rows.append(("adamw", b, s, 2.0**octave, seed, value, False))
    pandas.DataFrame(rows, columns=scaling.COLUMNS).to_parquet(path)


@pytest.fixture
def rows(tmp_path, monkeypatch):
    monkeypatch.setattr(scaling, "ROWS", tmp_path / "scaling.parquet")
    monkeypatch.setattr(scaling, "IMAGES", tmp_path)
    return tmp_path / "scaling.parquet"


def test_the_table(rows, tmp_path):
    """With exponents 1/2 and -1/3 the square root and -.32 hold and cost nothing; no rule is an octave off, 2.5%."""
    plant(rows, 0.5, -1 / 3)
    lines = [line.strip("| ").split(" | ") for line in scaling.table().splitlines()[2:]]
    rules = {(line[1], line[3]): line[4:] for line in lines}
    assert {key: cells[1] for key, cells in rules.items()} == {
        ("batch size", "+0.00"): "does not",
        ("batch size", "+0.50"): "holds",
        ("steps", "-0.50"): "does not",
        ("steps", "-0.32"): "holds",
        ("steps", "+0.00"): "does not",
    }
    cost = {key: [float(cell.split("%")[0]) for cell in cells[2:]] for key, cells in rules.items()}
    np.testing.assert_allclose(cost["batch size", "+0.50"], 0, atol=0.11)
    np.testing.assert_allclose(cost["batch size", "+0.00"], [2.5, 0, 2.5], atol=0.25)
    np.testing.assert_allclose(cost["steps", "-0.32"], 0, atol=0.11)
    scaling.draw()
    assert {path.name for path in tmp_path.glob("*.png")} == {"scaling_batch_size.png", "scaling_steps.png"}
    assert "8: -7.0" in scaling.optima()


def test_a_rate_that_was_not_trained_has_no_cost(rows):
    plant(rows, 2.0, 0.0)
    c = next(c for c in scaling.curves() if c.axis == "batch_size")
    assert scaling.cost(c.result, 3.0, 32, -1) == "beyond the rates trained"


def test_rules_of_an_optimizer():
    assert scaling.rules_of("momentum", "batch_size") == {"none": 0, "sde": 1, "timescale": 0}
    assert scaling.rules_of("muon", "steps") == {
        "none": 0,
        "timescale": 0,
        "nanochat": 0,
        "marin": -0.395,
        "hyperp": -0.32,
    }
