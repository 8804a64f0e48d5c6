"""`sweep.grow` from planted rows: nothing is trained."""

import math

import pytest

from depthmup import sweep
from depthmup.settings import SettingsError, flat, put
from depthmup.sweep import grow
from depthmup.train.build import steps_of
from depthmup.trials.config_study import ConfigStudy
from tests import tiny
from tests.test_report import GRID, planted


def finished(tmp_path, optimum=None, **changes):
    settings = tiny.settings(**GRID | changes)
    planted(ConfigStudy(settings), optimum).to_json(tmp_path / "results.jsonl", orient="records", lines=True)
    return settings


def test_the_best_learning_rate_of_the_smallest_size(tmp_path):
    settings = finished(tmp_path)
    grown = sweep.grow(
        put(settings, {"parameterization.name": "mup", "optimizer.learning_rate": 3.0}), 64, 48, tmp_path
    )
    assert math.log2(grown.changes["optimizer.learning_rate"]) == pytest.approx(-1, abs=0.1)
    assert set(grown.changes) == {"model.width", "model.depth", "optimizer.learning_rate"}
    assert (grown.settings.model.width, grown.settings.model.depth) == (64, 48)
    assert "at depth 3; depth 3 to 24: does not transfer: " in grown.notes[0]
    assert flat(grown.settings)["optimizer.learning_rate"] == grown.changes["optimizer.learning_rate"]


def test_what_a_sweep_cannot_tell(tmp_path):
    settings = finished(tmp_path)
    says = r"no best learning rate of ntp with sgd .* \(curves: depth_mup with sgd, mup with sgd\)"
    with pytest.raises(SettingsError, match=says):
        sweep.grow(put(settings, {"parameterization.name": "ntp"}), 64, 48, tmp_path)
    settings = finished(tmp_path, sweep__axes="parameterization.gamma0 = 0.5, 1.0")
    with pytest.raises(SettingsError, match=r"without sweep\.axes; this one has gamma0 0\.5, gamma0 1"):
        sweep.grow(settings, 64, 48, tmp_path)


def test_sp_goes_on_from_the_shape_where_it_was_tuned(tmp_path):
    settings = put(
        finished(tmp_path, lambda point: -1.0, sweep__parameterizations=("sp",)), {"parameterization.name": "sp"}
    )
    changes = sweep.grow(settings, 64, 48, tmp_path).changes
    assert changes["parameterization.name"] == "depth_mup"
    assert changes["parameterization.base_width"] == settings.model.width
    assert changes["parameterization.base_depth"] == 3


def test_a_larger_batch_and_a_longer_training():
    """The tuned training is the base, the rule is said, and what it cannot say is refused."""
    tuned = tiny.settings()
    grown = grow(tuned, 32, 4, batch_size=256, epochs=1.0, batch_rule="timescale")
    p = grown.settings.parameterization
    assert (p.base_batch_size, p.base_steps, p.batch_rule) == (tuned.data.batch_size, steps_of(tuned), "timescale")
    assert any("batch_rule 'timescale': weight decay x" in note for note in grown.notes)
    again = grow(grown.settings, 32, 4, epochs=2.0)  # the base stays
    assert again.settings.parameterization == p
    assert again.settings.epochs == 2.0
    with pytest.raises(SettingsError, match="no rule says how: give --batch_rule, one of none, sde"):
        grow(tuned, 32, 4, batch_size=256)
    with pytest.raises(SettingsError, match="batch_rule 'sde' is for as many examples as at the base"):
        grow(tuned, 32, 4, epochs=8.0, batch_rule="sde")
