"""`sweep.judge`: trials that were trained anywhere, from a table."""

import itertools
import math

import numpy as np
import pandas
import pytest

from depthmup import fit, sweep
from depthmup.settings import SettingsError

RATES = 2.0 ** np.arange(-8.0, 1.0)


def table(**columns):
    """Parabolas whose best rate stays with width and falls by an octave for each doubling of the depth."""
    rng = np.random.default_rng(0)
    rows = [
        {"width": w, "depth": d, "learning_rate": rate, "seed": seed,
         "loss": 1 + 0.05 * (math.log2(rate) + 3 + math.log2(d / 2)) ** 2 + 0.001 * rng.standard_normal()}
        for w, d in ((8, 2), (16, 2), (32, 2), (8, 4), (8, 8))
        for rate in RATES
        for seed in range(3)
    ]  # fmt: skip
    return pandas.DataFrame(rows).assign(**columns)


def test_a_table_is_judged_along_both_axes(tmp_path):
    trials = table()
    result = sweep.judge(trials)
    verdicts = {c.axis: c.result for c in result.curves}
    assert verdicts["width"].verdict == "transfers"
    assert verdicts["depth"].verdict == "does not transfer"
    for axis, other, fixed in (("depth", "width", 8), ("width", "depth", 2)):
        alone = fit.transfer(trials[trials[other] == fixed], axis)
        assert verdicts[axis].line == alone.line
        assert verdicts[axis].drift == alone.drift
    assert result.learning_rate == verdicts["depth"].tuned
    page = result.report(tmp_path / "report").read_text()
    assert page.count("does not transfer") >= 2
    assert (tmp_path / "report" / "loss_over_depth.png").exists()
    with pytest.raises(ValueError, match="say where to write the report"):
        result.report()


def test_words_tell_variants_apart():
    """Names that are columns are names of curves; numbers are not variants."""
    halves = [table(optimizer="lion", parameterization="mup", data=data, tokens=i) for i, data in enumerate("ab")]
    result = sweep.judge(pandas.concat(halves))
    assert {(c.optimizer, c.parameterization, c.variant) for c in result.curves} == {
        ("lion", "mup", "data a"),
        ("lion", "mup", "data b"),
    }


def test_what_diverged_and_what_learned_nothing():
    trials = table()
    trials.loc[trials["learning_rate"] == RATES[-1], "loss"] = np.nan
    worse = {c.axis: c for c in sweep.judge(trials, chance=1.01).curves}
    assert worse["width"].result.diverged[0][-1].all()
    assert worse["width"].chance == 1.01
    assert sweep.judge(trials, chance=0.9).curves[0].result.verdict == "nothing learned"
    accurate = table().assign(accuracy=lambda rows: (1 / rows["loss"]).clip(upper=1.0)).drop(columns="loss")
    assert {c.axis: c.result.verdict for c in sweep.judge(accurate, "accuracy").curves}["width"] == "transfers"


def test_a_table_that_cannot_be_judged():
    with pytest.raises(SettingsError, match=r"no column learning_rate; it has width, depth, seed, loss"):
        sweep.judge(table().drop(columns="learning_rate"))
    with pytest.raises(SettingsError, match=r"no column depth \(or width, batch_size, steps\)"):
        sweep.judge(table().drop(columns=["depth", "width"]))
    with pytest.raises(ValueError, match="two rows for"):
        sweep.judge(pandas.concat([table(), table()]))


def test_batch_sizes_and_steps():
    """Batch sizes at fixed examples, steps at a fixed batch size; rows that are on neither axis are left out."""
    rng, rows = np.random.default_rng(0), []
    runs = [(8, 400), (16, 200), (32, 100), (64, 50), (32, 200), (32, 400), (8, 50)]
    for (batch, steps), octave, seed in itertools.product(runs, np.arange(-9, -2.5, 0.5), range(3)):
        best = -6 + 0.5 * np.log2(batch / 32) - 0.25 * np.log2(batch * steps / 3200)
        loss = 2 + 0.05 * (octave - best) ** 2 + 0.001 * rng.standard_normal()
        rows.append({"batch_size": batch, "steps": steps, "learning_rate": 2.0**octave, "seed": seed, "loss": loss})
    curves = {c.axis: c.result for c in sweep.judge(pandas.DataFrame(rows)).curves}
    assert {axis: result.values for axis, result in curves.items()} == {
        "batch_size": [8, 16, 32, 64],
        "steps": [100, 200, 400],
    }
    assert curves["batch_size"].drift.octaves_per_doubling == pytest.approx(0.5, abs=0.02)
    assert curves["steps"].drift.octaves_per_doubling == pytest.approx(-0.25, abs=0.02)


def changed(column, place, value):
    return (
        table()
        .astype({column: object})
        .assign(**{column: lambda t: [value if i == place else v for i, v in enumerate(t[column])]})
    )


@pytest.mark.parametrize(
    ("trials", "message"),
    [
        ({"depth": [1]}, "must be a pandas.DataFrame, got a dict"),
        (table().iloc[:0], "the table has no rows"),
        (pandas.concat([table(), table()[["loss"]]], axis=1), "the table has two columns 'loss'"),
        (table().T.set_index([list("abcde"), list("fghij")]).T, "columns of several levels"),
        (changed("depth", 3, "two"), "the column depth must have numbers, it has 'two'"),
        (table(diverged="maybe"), "the column diverged must be true or false in each row, it has maybe"),
        (table(diverged=math.nan), "the column diverged must be true or false in each row, it has nan"),
    ],
)  # fmt: skip
def test_types_of_columns(trials, message):
    with pytest.raises(SettingsError, match=message):
        sweep.judge(trials)


def test_what_is_left_out_is_said():
    trials = table()
    plain = {c.axis: c.result.verdict for c in sweep.judge(trials).curves}
    hosts = sweep.judge(
        trials.assign(host=lambda t: t["seed"].map("host {}".format), run=[str(i) for i in range(len(trials))])
    )
    assert {c.axis: c.result.verdict for c in hosts.curves} == plain
    assert "the column 'host' differs from seed to seed" in hosts.note
    assert "the column 'run' differs" in hosts.note
    missing = trials.assign(depth=trials["depth"].where(trials.index != 4, np.nan))
    assert f"1 of {len(trials)} rows have no" in sweep.judge(missing).note
    words = sweep.judge(trials.assign(diverged=["no"] * (len(trials) - 1) + ["True"]))
    assert words.rows["diverged"].sum() == 1
    together = trials[trials["width"] == 8].assign(width=lambda t: 4 * t["depth"])
    assert "differ together: runs are compared along their compute" in sweep.judge(together).note


@pytest.mark.parametrize("size", [1.0, 100.0])
def test_a_measure_below_0_is_judged_by_differences(size):
    """As its exponential is, which shows the same differences as ratios."""
    trials = table()
    below = sweep.judge(trials.assign(loss=size * (np.log(trials["loss"]) - 5)))
    assert "judged by differences" in below.note
    plain = {c.axis: c.result for c in sweep.judge(trials).curves}
    for curve in below.curves:
        assert curve.result.verdict == plain[curve.axis].verdict
        assert curve.result.tuned == pytest.approx(plain[curve.axis].tuned, rel=0.02)
