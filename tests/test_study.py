"""The study of a config: what every part of a sweep knows of it."""

import math

import pytest

from depthmup.settings import SettingsError, from_config
from depthmup.trials.config_study import ConfigStudy
from depthmup.trials.plan import grid_trials, shapes
from tests import tiny


def test_a_trial_is_its_point_at_a_learning_rate_and_a_seed():
    """Its key is that of all of them; its hyperparameters are those of its settings."""
    every = grid_trials(tiny.study())
    for trial in (every[0], every[-1]):
        settings = trial.point.at(trial.learning_rate, trial.seed)
        leaves = {"optimizer.learning_rate": settings.optimizer.learning_rate, "seed": settings.seed}
        assert trial.leaves == {**trial.point.leaves, **leaves}
        assert (trial.hyper.learning_rate, trial.hyper.seed) == (trial.learning_rate, trial.seed)
        assert (trial.point.width, trial.point.depth) == (settings.model.width, settings.model.depth)
        assert (trial.point.optimizer, trial.point.parameterization) == (
            settings.optimizer.name,
            settings.parameterization.name,
        )
    shape = {"model.width", "model.depth"}
    assert every[0].point.without(*every[0].leaves.keys() - shape) == (8, 2)


def test_of():
    """A config, settings and a study are one sweep."""
    study = ConfigStudy.of(tiny.config())
    assert ConfigStudy.of(study) is study
    assert study.settings == ConfigStudy.of(tiny.settings()).settings == from_config(tiny.config())


def test_a_study_of_some_sizes():
    study = tiny.study(sweep__depths=(2, 4, 8), sweep__widths=(8, 16, 32))
    part = study.sized({"width": [16, 32], "depth": [2, 8]})
    assert sorted(tuple(at.values()) for at in shapes(part)) == [(16, 2), (16, 8), (32, 2)]
    keys = {trial.key for trial in grid_trials(study)}
    assert {trial.key for trial in grid_trials(part)} < keys


def test_rows_are_judged_without_the_data(monkeypatch):
    """Where the number of classes is known. Each loss that is swept has its own chance."""
    study = ConfigStudy(tiny.settings(sweep__axes="loss = cross_entropy, mse"), classes=7)
    assert (tiny.study().trainable, study.trainable) == (True, False)
    monkeypatch.setattr("depthmup.trials.config_study.batches_of", lambda settings: pytest.fail("data are loaded"))
    rows = [{"loss_function": "mse"}]
    assert study.chance("validation_accuracy", rows) == pytest.approx(6 / 7)
    assert study.chance("loss", rows) == 0.5
    assert study.chance("loss", [{"loss_function": "cross_entropy"}]) == pytest.approx(math.log(7))


def test_values_that_do_not_go_together():
    values = {"parameterization.name": "am_mup", "optimizer.name": "adam"}
    with pytest.raises(SettingsError, match="sweep: am_mup is defined for the sgd family only"):
        tiny.study().point(values)
