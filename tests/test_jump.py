"""The jump of all sizes at once: its table and picture from planted rows."""

import numpy as np
import pandas
import pytest

from experiments import jump, scaling
from experiments.output import Interval

OPTIMA = {
    "sp": -3.0,
    "mup": -1.0,
    "depth_mup": 0.0,
    "depth_mup + completed_p": 0.5,
    "completep": 0.0,
}  # octaves from the tuned rate
CURVATURE = 0.01  # of the logarithm of the loss, an octave squared


def plant(path):
    rng, rows = np.random.default_rng(0), []
    for case, moved in OPTIMA.items():
        for size, best in ((jump.SMALL, -6), (jump.LARGE, -6 + moved)):
            for octave in range(-11, -2):
                for seed in range(3):
                    loss = 2 * np.exp(CURVATURE * (octave - best) ** 2 + 1e-4 * rng.standard_normal())
                    rows.append((case, *size, 2.0**octave, seed, loss, False))
    pandas.DataFrame(rows, columns=jump.COLUMNS).to_parquet(path)


def test_the_table(tmp_path, monkeypatch):
    """An optimum that is n octaves off costs about exp(.01 n^2) - 1: 9.4%, 1% and 0 (a quarter percent below the
    best rate that was trained, half an octave off itself)."""
    monkeypatch.setattr(jump, "ROWS", tmp_path / "jump.parquet")
    monkeypatch.setattr(jump, "IMAGES", tmp_path)
    plant(jump.ROWS)
    lines = {
        cells[0].strip("`"): cells
        for cells in (line.strip("| ").split(" | ") for line in jump.table().splitlines()[2:])
    }
    assert list(lines) == list(OPTIMA)
    assert [float(cells[2]) for cells in lines.values()] == pytest.approx(list(OPTIMA.values()), abs=0.05)
    cost = [float(cells[4].split("%")[0]) for cells in lines.values()]
    assert [float(cells[3]) for cells in lines.values()] == pytest.approx([2.19, 2.02, 2.0, 2.0, 2.0], abs=0.011)
    assert cost == pytest.approx([9.4, 1.0, 0.0, 0.0, 0.0], abs=0.1)
    assert [cells[5] for cells in lines.values()] == ["does not", *["carries"] * 4]
    jump.draw()
    assert (tmp_path / "jump.png").stat().st_size > 10_000


def test_the_numbers_of_readme():
    costs = {c.parameterization: scaling.regret(c.result, 0.0, 1, -1) for c in jump.curves()}
    text = " ".join((jump.ROOT / "README.md").read_text().split())
    for case, digits in (("sp", 0), ("mup", 1), ("depth_mup", 1), ("completep", 1)):
        assert costs[case].text(f".{digits}f", "%") in text


def test_the_averages_in_batch():
    """docs/batch.md: the losses of the large training at the learning rate 2^-5, with the averages of completed_p and
    without; its rule halves the rates of the rows."""
    rows = pandas.read_parquet(jump.ROWS)
    large = rows[rows["width"] == jump.LARGE[0]].groupby(["parameterization", "learning_rate"])["loss"].mean()
    moved, kept = large["depth_mup + completed_p", 2**-4], large["depth_mup", 2**-5]
    text = " ".join((jump.ROOT / "docs" / "batch.md").read_text().split())
    assert f"the loss is {moved:.2f} with these and {kept:.2f} with .9 and .95" in text


def test_the_answer():
    assert jump.answer(Interval(1.8, 1.0, 3.0)) == "undecided"
    assert jump.answer(None) == "does not: diverges"
