"""The jumps of all sizes at once: their tables and the picture from planted rows."""

import numpy as np
import pandas
import pytest

from depthmup.fit import Cost
from experiments import jump

OPTIMA = {
    "sp": -3.0,
    "mup": -1.0,
    "depth_mup": 0.0,
    "completep": 0.0,
    "depth_mup + completed_p": 1.0,
}  # octaves from the tuned rate
CURVATURE = 0.01  # of the logarithm of the loss, an octave squared


BATCH, STEPS = jump.JUMPS["batch"], jump.JUMPS["steps"]


@pytest.fixture(autouse=True)
def results(tmp_path, monkeypatch):
    monkeypatch.setattr(jump, "RESULTS", tmp_path)
    monkeypatch.setattr(jump, "IMAGES", tmp_path)


def plant(of):
    rng, rows = np.random.default_rng(0), []
    for case in of.cases:
        for size, best in ((of.small, -6), (of.large, -6 + OPTIMA[case])):
            for octave in range(-11, -2):
                for seed in range(3):
                    loss = 2 * np.exp(CURVATURE * (octave - best) ** 2 + 1e-4 * rng.standard_normal())
                    rows.append((case, *size, 2.0**octave, seed, loss, False))
    pandas.DataFrame(rows, columns=jump.COLUMNS).to_parquet(of.path)


def cells(of):
    return {
        line[0].strip("`"): line for line in (line.strip("| ").split(" | ") for line in jump.table(of).splitlines()[2:])
    }


def test_the_table():
    """An optimum that is n octaves off costs exp(.01 n^2) - 1: 9.4%, 1% and 0."""
    plant(BATCH)
    lines = cells(BATCH)
    assert list(lines) == list(OPTIMA)
    assert [float(line[2].split()[0]) for line in lines.values()] == pytest.approx(list(OPTIMA.values()), abs=0.05)
    assert [float(line[3]) for line in lines.values()] == pytest.approx([2.19, 2.02, 2.0, 2.0, 2.02], abs=0.011)
    cost = [float(line[4].split("%")[0]) for line in lines.values()]
    assert cost == pytest.approx([9.4, 1.0, 0.0, 0.0, 1.0], abs=0.1)
    assert [line[5] for line in lines.values()] == ["does not", *["carries"] * 4]


def test_a_rule_of_steps_carries_the_rate(tmp_path):
    """token_horizon divides the rate by 4^.32, .64 octaves: what "mup" costs falls from 1% to .13%, and "completep",
    whose optimum stays, then costs .41%."""
    plant(STEPS)
    plant(BATCH)
    lines = cells(STEPS)
    cost = {name: float(line[4].split("%")[0]) for name, line in lines.items()}
    assert cost["mup + token_horizon"] == pytest.approx(0.13, abs=0.06)
    assert cost["completep + token_horizon"] == pytest.approx(0.41, abs=0.06)
    assert lines["mup"][5] == "undecided" or lines["mup"][5] == "does not"
    jump.draw()
    for name in jump.JUMPS:
        assert (tmp_path / f"jump_{name}.png").stat().st_size > 10_000


def test_the_averages_in_batch(monkeypatch):
    """docs/batch.md: the losses of the large training at the learning rate 2^-5, with the averages of completed_p and
    without; its rule halves the rates of the rows."""
    monkeypatch.undo()
    rows = pandas.read_parquet(BATCH.path)
    large = rows[rows["width"] == BATCH.large[0]].groupby(["parameterization", "learning_rate"])["loss"].mean()
    moved, kept = large["depth_mup + completed_p", 2**-4], large["depth_mup", 2**-5]
    text = " ".join((jump.ROOT / "docs" / "batch.md").read_text().split())
    assert f"the loss is {moved:.2f} with these and {kept:.2f} with .9 and .95" in text


def test_the_answer():
    assert jump.answer(Cost(0.018, 0.01, 0.03), 2.0) == "undecided"
    assert jump.answer(Cost(0.018, 0.01, 0.019), 2.0) == "carries"
    assert jump.answer(Cost(0.028, 0.021, 0.03), 2.0) == "does not"
    assert jump.answer(None, 2.0) == "does not: diverges"
