"""The study of batch size and steps: its tables from planted rows."""

import re

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
    answers = {}
    for _, axis, _, *cells in lines:
        for answer, cell in zip(scaling.ANSWERS, cells, strict=True):
            for exponent, cost in re.findall(r"([+-][\d.]+) \(.*?\): ([\d.]+)%", cell):
                answers[axis, exponent] = answer, float(cost)
    assert answers == {
        ("batch size", "+0.00"): ("does not hold", pytest.approx(2.5, abs=0.25)),
        ("batch size", "+0.50"): ("holds", pytest.approx(0, abs=0.11)),
        ("steps", "-0.50"): ("does not hold", pytest.approx(0.3, abs=0.3)),
        ("steps", "-0.32"): ("holds", pytest.approx(0, abs=0.11)),
        ("steps", "+0.00"): ("does not hold", pytest.approx(1.1, abs=0.3)),
    }
    scaling.draw()
    assert {path.name for path in tmp_path.glob("*.png")} == {"scaling_batch_size.png", "scaling_steps.png"}


def test_a_rate_that_was_not_trained_has_no_cost(rows):
    plant(rows, 2.0, 0.0)
    c = next(c for c in scaling.curves() if c.axis == "batch_size")
    assert scaling.largest_cost(c, 3.0) == "beyond the rates trained"


def test_rules_of_an_optimizer():
    assert scaling.rules_of("momentum", "batch_size") == {"none": 0, "sde": 1, "timescale": 0}
    assert scaling.rules_of("muon", "steps") == {
        "none": 0,
        "timescale": 0,
        "nanochat": 0,
        "marin": -0.395,
        "hyperp": -0.32,
    }


def test_the_decays(rows):
    """Planted: decay 1/8 is best at the rate 2^-6 and lowers the loss by a tenth; the longer training wants none."""

    def loss(log2, best):
        return (1.8 if best else 2.0) + 0.05 * (log2 + 6) ** 2

    planted = [
        (f"adamw, decay {decay:g}", 32, steps, 2.0**log2, seed, loss(log2, decay == best) * (1 + 0.001 * seed), False)
        for steps, best in ((512, 1 / 8), (2048, 0.0))
        for decay in scaling.DECAYS
        for log2 in range(-9, -2)
        for seed in range(3)
    ]
    pandas.DataFrame(planted, columns=scaling.COLUMNS).to_parquet(rows)
    assert {scaling.case_of(row[0]) for row in planted} == {"adamw, decay"}
    lines = [line.strip("| ").split(" | ") for line in scaling.decays().split("\n\n")[0].splitlines()[2:]]
    assert lines == [
        ["32", "512", "0.125", "-6", "1.00", "-10.0% [-10.0, -10.0]", "-"],
        ["32", "2048", "0", "-6", "0.00", "-", "+11.1% [+11.1, +11.1]"],
    ]
    assert not scaling.curves()
    assert len(scaling.curves(decay=True)) == len(scaling.DECAYS)
    assert "| 0.5 | - | +0.00 [" in scaling.decays()


def test_the_photographs():
    """A step's batch is a pure function of its number, normalized, and a larger batch has the size asked for."""
    images, labels = scaling.patches(3, 512)
    assert images.shape == (512, 16, 16, 3)
    assert abs(images.mean()) < 0.05
    assert abs(images.std() - 1) < 0.05
    assert set(np.asarray(labels)) == set(range(10))
    np.testing.assert_array_equal(images, scaling.patches(3, 512)[0])
