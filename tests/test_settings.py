"""Each mistake in a config is one line that names the key and the way out."""

import subprocess
import sys
from pathlib import Path

import pytest

from configs import default
from depthmup.cli.write_config import default_config, settings_page
from depthmup.models import MODELS
from depthmup.settings import (
    NOT_AT_THE_START,
    TRACED,
    CheckSettings,
    OptimizerSettings,
    Settings,
    SettingsError,
    defaults,
    flat,
    from_config,
    keys,
)
from depthmup.train.build import task_of
from tests import tiny

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize(
    ("path", "text"),
    [("configs/default.py", default_config), ("docs/settings.md", settings_page)],
    ids=["config", "docs"],
)
def test_written_from_the_declarations(path, text):
    assert (ROOT / path).read_text() == text(), f"{path} is not what `make configs` writes"


@pytest.mark.parametrize("family", MODELS)
def test_defaults(family):
    """In Python as in configs/default.py; every key has a type, and a default within its bounds."""
    settings = defaults(family)
    assert settings == from_config(default.get_config(family))
    # A key that came later is left out where it is unset, so that trials of before keep their names.
    newer = {name for name, k in keys(family).items() if k.newer}
    assert flat(settings).keys() | newer == {name for name, k in keys(family).items() if k.decides}
    assert settings.model.options.keys() | {"width", "depth"} <= set(default.get_config(family).model)
    for name, k in keys(family).items():
        k.check(name, k.default)
        assert k.kind is not None


def test_settings_of_their_own():
    assert Settings() == defaults()
    assert OptimizerSettings(learning_rate=0.1).momentum == 0.9
    assert CheckSettings().log2_learning_rates is not CheckSettings().log2_learning_rates
    with pytest.raises(SettingsError, match=r"optimizer\.learning_rate must be positive and finite, got -1"):
        Settings(optimizer=OptimizerSettings(learning_rate=-1.0))
    with pytest.raises(SettingsError, match=r"unknown model\.name 'resnt'"):
        type(defaults().model)("resnt", 8, 2, {})


def test_what_a_key_does():
    """The lists that follow from the declarations."""
    optimizer = {"learning_rate", "momentum", "b1", "b2", "eps", "weight_decay"}
    traced = {f"optimizer.{name}" for name in optimizer} | {"seed", "epochs", "warmup_epochs", "label_noise"}
    assert {key for key in TRACED if not key.startswith("parameterization.")} == traced
    assert {key for key in keys() if key.startswith("parameterization.")} <= TRACED
    later = {"optimizer.learning_rate", "optimizer.momentum", "epochs", "schedule", "warmup_epochs", "label_noise"}
    assert later | {"clip", "accumulate", "ema", "data.seed"} == NOT_AT_THE_START
    nothing = {key for key, k in keys().items() if not k.decides}
    groups = {"checkpoint", "parallel", "sweep", "check"}
    others = {key for key in nothing if key.split(".")[0] not in groups}
    of_data = {"data.data_dir", "data.workers", "data.verify"}
    assert others == of_data | {"log_every", "log_updates", "evaluate_every", "model.remat"}
    assert {key for key in keys() if key.split(".")[0] in groups} <= nothing
    assert TRACED.isdisjoint(nothing)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"model__depht": 3}, "unknown key 'config.model.depht'; did you mean 'config.model.depth'"),
        ({"epoch": 3.0}, "unknown key 'config.epoch'; did you mean 'config.epochs'"),
        ({"model__depth": "8"}, "config.model.depth must be int, got str '8'"),
        ({"model__depth": True}, "config.model.depth must be int, got bool"),
        ({"model__depth": 0}, "model.depth must be at least 1 and less than 1,048,576, got 0"),
        ({"model__width": -4}, "model.width must be at least 1"),
        ({"sweep__depths": (2, 0)}, r"sweep.depths\[1\] must be at least 1"),
        ({"sweep__depths": 2}, "config.sweep.depths must be a list"),
        ({"sweep__depths": (), "sweep__widths": ()}, "are empty: the grid has no trial"),
        ({"sweep__optimizers": ()}, "sweep.optimizers is empty"),
        ({"sweep__optimizers": ("sgd", "sgd")}, "has a value twice"),
        ({"sweep__optimizers": ("momentum",)}, "sweep.log2_learning_rates has no entry for the optimizer 'momentum'"),
        ({"sweep__log2_learning_rates": {"sgd": (1.0, -8.0), "adam": (-8.0, 1.0)}}, "is an empty grid"),
        (
            {"sweep__log2_learning_rates": {"sgd": (1.0,), "adam": (-8.0, 1.0)}},
            "has the points of an octave, got",
        ),
        ({"optimizer__learning_rate": 0.0}, "optimizer.learning_rate must be positive"),
        ({"optimizer__learning_rate": float("nan")}, "optimizer.learning_rate must be positive"),
        ({"optimizer__name": "adma"}, "did you mean 'adam'"),
        ({"parameterization__name": "depthmup"}, "did you mean 'depth_mup'"),
        ({"parameterization__alpha": 2.0}, "parameterization: alpha must be between 1/2 and 1"),
        ({"parameterization__base_width": 0}, "base_width must be at least 1"),
        ({"epochs": 0.0}, "epochs must be positive"),
        ({"sweep__depths": (2, 4, 4)}, "sweep.depths = .* has a value twice"),
        (
            {"sweep__log2_learning_rates": {"sgd": (-2.0, 0.0), "adam": (-8.0, 1.0)}},
            "must be a whole number of grid points, 5",
        ),
        (
            {"sweep__log2_learning_rates": {"sgd": (-6.5, 0.0), "adam": (-8.0, 1.0)}},
            "must be a whole number of grid points",
        ),
        ({"seed": -1}, "seed must be at least 0"),
        ({"warmup_epochs": -0.1}, "warmup_epochs must be at least 0"),
        ({"warmup_epochs": 0.5}, "warmup_epochs must be at least 0 and less than 0.5"),
        ({"clip": 0.0}, "clip must be positive and finite"),
        ({"ema": 1.0}, "ema must be at least 0 and less than 1"),
        ({"data__image_size": 0}, "data.image_size must be at least 1"),
        ({"optimizer__eps": float("inf")}, "optimizer.eps must be at least 0"),
        ({"parallel__wrapper": "pjit"}, "unknown parallel.wrapper 'pjit'; did you mean 'jit'"),
        ({"check__steps": ()}, "check.steps is empty"),
        ({"evaluate_every": "5 minutes"}, "evaluate_every must be in steps or epochs"),
        ({"checkpoint__every": "often"}, "config.checkpoint.every must be like '100 steps'"),
        ({"optimizer__b1": 1.5}, "optimizer.b1 must be at least 0 and less than 1"),
        ({"optimizer__weight_decay": float("nan")}, "optimizer.weight_decay must be at least 0"),
        ({"check__log2_learning_rates": {"sgd": 2000.0, "adam": 0.0}}, "check.log2_learning_rates.sgd must be in"),
    ],
)
def test_settings_errors(overrides, message):
    with pytest.raises(SettingsError, match=message):
        tiny.settings(**overrides)


def test_a_row_is_all_that_an_optimizer_needs():
    done = subprocess.run(
        [sys.executable, "-m", "tests.new_optimizers"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.stdout == "as they should be\n", done.stderr


def test_missing_key():
    config = tiny.config()
    del config["model"]["width"]
    with pytest.raises(SettingsError, match=r"config\.model\.width is missing"):
        from_config(config)


def test_integers_are_numbers():
    assert tiny.settings(epochs=3).epochs == 3.0


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"model__activation": "rleu"}, "unknown model.activation 'rleu'; did you mean 'relu'"),
        ({"model__norm": "batch"}, "unknown model.norm 'batch'"),
        ({"data__name": "cifar"}, "data.name: unknown data set 'cifar'; did you mean 'cifar10'"),
        ({"schedule": "cosin"}, "unknown schedule 'cosin'; did you mean 'cosine'"),
        (
            {"data__image_size": 32},
            "data.image_size is for patches, folder, .*, not for digits: leave it unset",
        ),
        ({"data__batch_size": 5000}, "batch_size 5000 is more than the 1437 training examples"),
    ],
)
def test_task_errors(overrides, message):
    with pytest.raises(ValueError, match=message):
        task_of(tiny.settings(**overrides))
