"""What the rows of a sweep say of a larger run: `predict`, and the block of report.html. Nothing is trained."""

import math

import numpy as np
import pandas
import pytest

from depthmup import fit, sweep
from depthmup.report import large_run, page
from depthmup.report.curves import judge
from depthmup.report.large_run import sweep_law
from tests import tiny
from tests.test_judge import table
from tests.test_report import GRID, planted

LARGE = {"width": 64, "depth": 16}


@pytest.fixture(scope="module")
def mixed():
    """Two parameterizations and two optimizers; the best rate of the second parameterization is an octave lower."""
    tables = []
    for optimizer in ("adamw", "sgd"):
        for shift, name in enumerate(("depth_mup", "mup")):
            rows = table(optimizer=optimizer, parameterization=name)
            tables.append(rows.assign(learning_rate=rows["learning_rate"] / 2**shift))
    return sweep.judge(pandas.concat(tables))


def test_a_prediction_is_that_of_the_law(mixed):
    """Of the rows of one optimizer and parameterization, by default the first ones, with the prior of these names."""
    rows = mixed.rows[(mixed.rows["optimizer"] == "adamw") & (mixed.rows["parameterization"] == "depth_mup")]
    names = ["width", "depth", "learning_rate", "loss", "seed", "optimizer", "parameterization"]
    law = fit.scaling_law(rows[names])
    p = mixed.predict(**LARGE)
    assert p == law.at(**LARGE)
    assert math.log2(p.low) < -3 - 3 < math.log2(p.high)
    other = mixed.predict(parameterization="mup", **LARGE)
    assert other.learning_rate < p.learning_rate
    assert mixed.predict(optimizer="adamw", parameterization="depth_mup", variant="", **LARGE) == p


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"width": 64}, "the target has no depth"),
        ({**LARGE, "steps": 100}, "unknown size 'steps'"),
        ({**LARGE, "optimizer": "lion"}, r"unknown optimizer of the rows 'lion' \(known: adamw, sgd\)"),
        ({**LARGE, "parameterization": "mu"}, "unknown parameterization of the rows 'mu'; did you mean 'mup'"),
        ({**LARGE, "variant": "x"}, "unknown variant of the rows 'x'"),
        ({"width": 4, "depth": 4}, "width 4 is below the rows'"),
    ],
)
def test_what_cannot_be_predicted(mixed, arguments, message):
    with pytest.raises(ValueError, match=message):
        mixed.predict(**arguments)


def test_sizes_that_a_table_lacks():
    """The table study gives such rows a width of 1, and the law knows nothing of it."""
    rows = table()
    result = sweep.judge(rows[rows["width"] == 8].drop(columns="width"))
    assert set(sweep_law(result.rows, result.study).law.axes) == {"depth"}
    with pytest.raises(ValueError, match="the rows have no width"):
        result.predict(**LARGE)
    epochs = rows[rows["width"] == 8].rename(columns={"depth": "epochs"}).drop(columns="width")
    with pytest.raises(ValueError, match="the rows have epochs, and the law is over steps: give a column steps"):
        sweep.judge(epochs).predict(steps=100)


def test_the_variant_is_the_best_one():
    """Of several, that with the lowest loss at the base."""
    tables = [table(data=data) for data in "ab"]
    tables[0]["loss"] += 0.1
    result = sweep.judge(pandas.concat(tables))
    assert sweep_law(result.rows, result.study).names[2] == "data b"
    assert sweep_law(result.rows, result.study, variant="data a").names[2] == "data a"


def test_rates_under_a_batch_rule():
    """The law is of the rates that steps take; a prediction is a value at the base again."""
    rule = {"base_batch_size": 32, "base_steps": 80, "batch_rule": "sde"}
    grid = {**GRID, "sweep__depths": (), "sweep__batch_sizes": (16, 32, 64), "data__batch_size": 32}
    study = tiny.study(**grid, **{f"parameterization__{key}": value for key, value in rule.items()})
    rows = planted(study, lambda point: -2.0)
    rows["steps"] = 2560 // rows["batch_size"]
    law = sweep_law(rows, study)
    assert law.names == ("sgd", "depth_mup", "")
    factors = np.divide(law.columns["learning_rate"], rows["learning_rate"][rows["parameterization"] == "depth_mup"])
    assert factors.to_numpy() == pytest.approx(np.array(law.columns["batch_size"]) / 32)
    sizes = {"batch_size": 128, "steps": 20}
    p = law.at(**sizes)
    assert p.learning_rate == pytest.approx(law.law.at(**sizes).learning_rate / 4)
    assert math.log2(p.low) < -2 < math.log2(p.high)


def test_the_block_of_the_report(tmp_path):
    study = tiny.study(**GRID)
    rows = planted(study)
    text = page.write_report(judge(rows, study), rows, study, tmp_path, "").read_text()
    assert "<h2>The large run</h2>" in text
    assert "225 trainings at 5 sizes, sgd, depth_mup, linear, digits, width 16, depth 3 to 24" in text
    assert (tmp_path / "large_run.png").read_bytes().startswith(b"\x89PNG")
    law = sweep_law(rows, study)
    assert str(law.large_run().prediction).splitlines()[0] in text


def test_rows_that_allow_no_law(tmp_path, monkeypatch):
    """Fewer than two sizes with a best value: no block. A law that is refused: its reason."""
    study = tiny.study(**GRID)
    best = {3: -1, 4: -20, 6: -20, 8: -20, 24: -20}
    rows = planted(study, lambda point: best[point.depth])
    assert large_run.block(rows, study, judge(rows, study)) is None

    def refuses(*_, **__):
        raise ValueError("no <law>")

    monkeypatch.setattr(large_run, "scaling_law", refuses)
    rows = planted(study)
    text = page.write_report(judge(rows, study), rows, study, tmp_path, "").read_text()
    assert "No law over all sizes: no &lt;law&gt;." in text
