"""A sweep small enough for tests."""

from configs import digits
from depthmup.settings import from_config
from depthmup.trials.config_study import ConfigStudy
from depthmup.trials.plan import grid_trials, grouped

OVERRIDES = {
    "model.width": 16,
    "parameterization.base_width": 8,
    "sweep.depths": (2, 4),
    "sweep.widths": (8, 16),
    "sweep.seeds": 2,
    "sweep.per_octave": 1,
    "sweep.log2_learning_rates": {"sgd": (-4.0, 1.0), "adam": (-8.0, -3.0)},
    "epochs": 0.5,
}


def config(**overrides):
    """configs/digits.py with OVERRIDES and then `overrides`, dots written as double underscores."""
    result = digits.get_config().to_dict()
    for path, value in (OVERRIDES | {k.replace("__", "."): v for k, v in overrides.items()}).items():
        *rooms, key = path.split(".")
        target = result
        for room in rooms:
            target = target[room]
        target[key] = value
    return result


def settings(**overrides):
    return from_config(config(**overrides))


def study(**overrides):
    return ConfigStudy(settings(**overrides))


def groups(size, **overrides):
    """All trials of the study in groups of `size`."""
    of = study(**overrides)
    return grouped(of, grid_trials(of), lambda program: size)
