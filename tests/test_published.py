"""Committed rows: what was finished counts as finished, and training goes on from it."""

import contextlib
import json

import numpy as np
import pandas
import pytest

from depthmup import fit, sweep
from depthmup.files import CONTENTS
from depthmup.train.build import FILES
from depthmup.train.workdir import WorkdirError, read_settings
from depthmup.trials.config_study import ConfigStudy
from depthmup.trials.engine import train
from depthmup.trials.store import Store
from experiments import published
from tests import tiny

ONE = {
    "sweep__optimizers": ("sgd",),
    "sweep__parameterizations": ("sp", "depth_mup"),
    "sweep__widths": (),
    "epochs": 2.0,
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """(settings, workdir) of a finished sweep."""
    settings, workdir = tiny.settings(**ONE, sweep__calibrate=False), tmp_path_factory.mktemp("sweep")
    train(settings, workdir, progress=False)
    return settings, workdir


def trains_nothing(monkeypatch):
    monkeypatch.setattr("depthmup.trials.group.Runner.train", lambda *_, **__: pytest.fail("a trial was trained again"))


def test_a_fresh_clone_goes_on_from_the_rows(finished, tmp_path, monkeypatch):
    """All rows are there: nothing is trained, and what is written then is what was read."""
    settings, workdir = finished
    published.write(tmp_path / "rows", settings, workdir, complete=True, classes=10)
    stored = published.read(tmp_path / "rows", settings)
    published.restore(stored, tmp_path / "other")
    with monkeypatch.context() as patched:
        trains_nothing(patched)
        rows = train(settings, tmp_path / "other", progress=False)
    assert {row["key"]: row["loss"] for row in rows} == {
        row["key"]: pytest.approx(row["loss"], rel=1e-6) for row in sweep.load(workdir).to_dict("records")
    }
    published.write(tmp_path / "again", settings, tmp_path / "other", complete=True, classes=10)
    again = pandas.read_parquet(tmp_path / "again.parquet")
    for name, values in pandas.read_parquet(tmp_path / "rows.parquet").items():
        if name == "curve":
            for a, b in zip(values, again[name], strict=True):
                np.testing.assert_array_equal(a, b)
        else:
            pandas.testing.assert_series_equal(values, again[name])


def test_a_curve_with_more_seeds_has_been_looked_at_before(finished, monkeypatch):
    """Its errors are corrected for that; those of the other curve are not."""
    settings, workdir = finished
    rows, looks = sweep.load(workdir), []

    def transfer(*arguments, **options):
        looks.append(options["looks"])
        return fit.transfer(*arguments, **options)._replace(reason=f"looks {looks[-1]}")

    monkeypatch.setattr("depthmup.trials.verdicts.transfer", transfer)
    of_one = rows[rows["parameterization"] == "depth_mup"]
    for more, expected in (rows[:0], ["looks 1", "looks 1"]), (of_one, ["looks 1", "looks 3"]):
        again = more.assign(seed=more["seed"] + 100, key=more["key"] + "again")
        curves = published._judged(pandas.concat([rows, again]), ConfigStudy(settings, 10), {})
        assert [c.result.reason for c in curves] == expected


def test_what_is_missing_is_trained(finished, tmp_path):
    settings, workdir = finished
    published.write(tmp_path / "rows", settings, workdir, complete=False, classes=10)
    stored = published.read(tmp_path / "rows", settings)
    assert not stored.curves  # an unfinished sweep is not judged, unless it is asked for
    assert published.read(tmp_path / "rows", settings, so_far=True).curves
    published.restore(stored._replace(rows=stored.rows.iloc[::2]), tmp_path / "other")
    rows = train(settings, tmp_path / "other", progress=False)
    whole = sweep.load(workdir).set_index("key")["loss"]
    assert {row["key"]: row["loss"] for row in rows} == pytest.approx(whole.to_dict(), rel=1e-6, nan_ok=True)


def test_training_that_was_interrupted_goes_on_from_its_workdir(finished, tmp_path):
    """Rows older than hashes of contents name the images' files alone; the workdir that went on from them has both."""
    settings, workdir = finished
    published.write(tmp_path / "rows", settings, workdir, complete=True, classes=10)
    sweep_of_files = published.read(tmp_path / "rows", settings)
    sweep_of_files.about["settings"][FILES] = "10 files, abc"
    published.restore(sweep_of_files, tmp_path / "other")
    saved = read_settings(tmp_path / "other") | {FILES: f"10 files, abc{CONTENTS}def"}
    with contextlib.closing(Store(tmp_path / "other", saved)):
        pass
    published.restore(sweep_of_files, tmp_path / "other")
    assert read_settings(tmp_path / "other")[FILES] == f"10 files, abc{CONTENTS}def"


def test_learning_curves_are_means_of_equal_parts(finished, tmp_path):
    settings, workdir = finished
    published.write(tmp_path / "rows", settings, workdir, complete=True, classes=10)
    rows, curves = published.read(tmp_path / "rows", settings).rows, sweep.curves(workdir)
    steps = int(rows["steps"].iloc[0])
    assert steps > published.STRETCHES
    whole = rows[~rows["diverged"].astype(bool)].iloc[0]
    losses = curves[curves["key"] == whole["key"]].sort_values("step")["loss"].to_numpy(float)
    parts = [
        losses[np.arange(steps) * published.STRETCHES // steps == part].mean() for part in range(published.STRETCHES)
    ]
    np.testing.assert_allclose(np.asarray(whole["curve"]) / published.SCALE, parts, atol=0.51 / published.SCALE)
    blown = rows[rows["diverged"].astype(bool)]
    assert (blown["curve"].map(len) <= published.STRETCHES).all()


def test_judged_without_the_data(finished, tmp_path, monkeypatch):
    """The number of classes is written beside the rows, so that a clone without the images draws the same verdicts."""
    settings, workdir = finished
    published.write(tmp_path / "rows", settings, workdir, complete=True, classes=10)
    curves = published.read(tmp_path / "rows", settings).curves
    monkeypatch.setattr("depthmup.train.build.load", lambda *_: pytest.fail("the data set was loaded"))
    again = published.read(tmp_path / "rows", settings).curves
    assert [c.result.verdict for c in again] == [c.result.verdict for c in curves]
    assert again[0].chance == pytest.approx(np.log(10))


def test_other_settings_are_refused_and_extensions_are_not(finished, tmp_path):
    settings, workdir = finished
    published.write(tmp_path / "rows", settings, workdir, complete=True, classes=10)
    other = tiny.settings(**{**ONE, "epochs": 3.0}, sweep__calibrate=False)
    with pytest.raises(ValueError, match=r"computed with other settings .*epochs was 2\.0, now it is 3\.0.*delete its"):
        published.read(tmp_path / "rows", other, extended=True)
    more = tiny.settings(**ONE, sweep__calibrate=False, sweep__seeds=3)
    with pytest.raises(ValueError, match=r"sweep\.seeds was 2, now it is 3"):
        published.read(tmp_path / "rows", more)
    assert not published.read(tmp_path / "rows", more, extended=True).curves
    about = json.loads((tmp_path / "rows.json").read_text())
    about["settings"][FILES] = "10 files, abc"
    (tmp_path / "rows.json").write_text(json.dumps(about))
    stored = published.read(tmp_path / "rows", settings)  # the images need not be there to read the rows
    published.restore(stored, tmp_path / "other")
    with pytest.raises(WorkdirError, match=r"files of data.data_dir was '10 files, abc', now it is 'nothing'"):
        train(settings, tmp_path / "other", progress=False)
