"""What a sweep can vary, and each mistake in saying it."""

import pytest

from depthmup.settings import OWN, TRACED, SettingsError, column, flat, keys, put
from tests import tiny


def parsed(text):
    return tiny.study(sweep__axes=text).axes


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("optimizer.momentum = 0, 0.5, .9", {"optimizer.momentum": (0.0, 0.5, 0.9)}),
        ("clip = None, 1", {"clip": (None, 1.0)}),
        ("data.batch_size = 32, 64;", {"data.batch_size": (32, 64)}),
        ("data.batch_size = grid(16, 64, 4)", {"data.batch_size": (16, 32, 48, 64)}),
        ("data.batch_size = log(16, 256, 5)", {"data.batch_size": (16, 32, 64, 128, 256)}),
        ("epochs = grid(0.5, 2, 4)", {"epochs": (0.5, 1.0, 1.5, 2.0)}),
        ("parameterization.gamma0 = log(0.25, 4, 3)", {"parameterization.gamma0": (0.25, 1.0, 4.0)}),
        (
            "model.norm = none, 'layer'; model.use_bias=True,False",
            {"model.norm": ("none", "layer"), "model.use_bias": (True, False)},
        ),
        ("data.augment.scale = (0.8, 1.2), (1, 1)", {"data.augment.scale": ((0.8, 1.2), (1.0, 1.0))}),
        ("data.name = digits, imagenet_resized/64x64", {"data.name": ("digits", "imagenet_resized/64x64")}),
        ("model.activation = 'relu', tanh,", {"model.activation": ("relu", "tanh")}),
        ("clip = log(0.5, 2, 3)", {"clip": (0.5, 1.0, 2.0)}),
        ("", {}),
    ],
)
def test_values(text, values):
    assert {axis.key: axis.values for axis in parsed(text)} == values
    assert all(axis.traced == (axis.key in TRACED) for axis in parsed(text))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gamma0 = 1, 2", r"unknown axis 'gamma0'; did you mean 'parameterization.gamma0'\?"),
        ("optimizer.momentun = 1", "unknown axis 'optimizer.momentun'; did you mean 'optimizer.momentum'"),
        ("model.depth = 2, 4", "model.depth is an axis already, that of sweep.depths"),
        ("seed = 2, 4", "seed is an axis already, that of sweep.seeds"),
        ("epochs = 1; epochs = 2", "epochs is given twice"),
        ("epochs = 1, 1.0", "epochs has a value twice"),
        ("epochs =", "epochs has no value"),
        ("epochs", "'epochs' must be 'key = values'"),
        ("epochs = long", "epochs must be float, got str 'long'"),
        ("model.use_bias = 1", "model.use_bias must be bool, got int 1"),
        ("epochs = grid(1, 2)", r"must be grid\(low, high, points\)"),
        ("epochs = grid(2, 1, 3)", "needs low < high"),
        ("epochs = log(0, 1, 3)", "for log a low above 0"),
        ("epochs = grid(0, 1, 1e9)", "2 to 1,000,000 points"),
        ("epochs = grid(0, 1, 2.5)", r"must be grid\(low, high, points\)"),
        ("data.batch_size = grid(1, 2, 3)", "data.batch_size must be int, got float"),
        ("model.name = cnn", "run a sweep for each"),
        ("log_every = 1, 2", "log_every decides nothing"),
        ("checkpoint.keep = 1, 2", "checkpoint.keep decides nothing"),
        ("data.workers = 1, 2", "data.workers decides nothing"),
        ("sweep.per_octave = 1, 2", "sweep.per_octave decides nothing"),
        ("epochs = 1, (", "epochs has values that cannot be read"),
        ("data.name = foo-bar", "data.name has values that cannot be read, 'foo-bar': quote a word"),
    ],
)
def test_mistakes(text, message):
    with pytest.raises(SettingsError, match=message):
        parsed(text)


def test_every_setting_can_be_put():
    """And comes back under its key; every key has a name of its own in a row; a swept value is checked as any."""
    settings = tiny.settings()
    leaves = flat(settings)
    assert put(settings, {key: value for key, value in leaves.items() if not isinstance(value, list)}) == settings
    changed = put(settings, {"model.norm": "layer", "data.augment.rotate": 5.0, "seed": 3})
    assert {k for k, v in flat(changed).items() if v != leaves[k]} == {"model.norm", "data.augment.rotate", "seed"}
    assert len({column(key) for key in leaves}) == len(leaves)
    newer = {key for key, k in keys(settings.model.name).items() if k.newer}
    assert (TRACED | OWN.keys()) - newer <= leaves.keys()
    both = {"warmup_epochs": 3.0, "epochs": 4.0}  # each wrong with the old value of the other
    assert {k: flat(put(settings, both))[k] for k in both} == both
    with pytest.raises(SettingsError, match="warmup_epochs must be at least 0 and less"):
        put(settings, {"warmup_epochs": 1.0})
