"""The maximal-update learning rate of our models (AM-muP), from a gradient and a jvp at the start of training."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from depthmup.files import digest, write_atomically
from depthmup.measure.maximal_update import Average, MaximalUpdate, checked_update, warn_if_deep
from depthmup.settings import NOT_AT_THE_START, Settings
from depthmup.trials.config_study import ConfigPoint, ConfigStudy
from depthmup.trials.plan import trials_of
from depthmup.trials.study import SCHEMA, Point, Study

# {"profiles": {key of a curve: (s_l and mean squares, seeds, layers)} of all calibrated curves, "checksum": their hash}
FILE = "calibration.json"


def calibrate(settings: Settings, average: Average = "arithmetic") -> MaximalUpdate:
    """`measure.maximal_update` of a config's settings.

    It takes a gradient and a jvp for each of sweep.seeds seeds, on the first data.batch_size training examples, which
    are not augmented, without clipping and label noise. Warns where depth is above .05 of the width.

    Args:
      settings: of a run.
      average: over layers, as in `maximal_update`.

    Returns:
      A `MaximalUpdate`, whose learning rate is one at the parameterization's base shape.

    Raises ValueError where nothing moves, and SettingsError for a config that cannot be trained.
    """
    study = ConfigStudy(settings)
    per_seed, mean_squares = next(_profiles(study, [ConfigPoint(settings)]))
    warn_if_deep(settings.model.depth, settings.model.width)
    return checked_update(MaximalUpdate(per_seed, mean_squares, average))


def calibrations(
    study: Study, points: Iterable[Point], workdir: Path, say: Callable[[str], None] = lambda text: None
) -> dict[str, MaximalUpdate]:
    """`calibrate` of many points of a sweep, by `key`. A point in the workdir's calibration.json is not computed again.

    A point whose network has no update to measure is left out.
    """
    path = workdir / FILE
    known = kept(workdir)
    asked = {calibration_key(study, point): point for point in points}
    missing = {name: point for name, point in asked.items() if name not in known}
    for number, (name, profile) in enumerate(zip(missing, _profiles(study, missing.values()), strict=True)):
        # JSON has no infinity.
        known[name] = np.where(np.isfinite(profile), profile.astype(object), None).tolist()  # type: ignore[call-overload]
        say(f"maximal updates: {number + 1} of {len(missing)}")
        write_atomically(path, json.dumps({"checksum": digest(known), "profiles": known}))
    updates = {name: MaximalUpdate(*np.array(known[name], np.float64)) for name in asked}
    return {name: update for name, update in updates.items() if 0 < update.mean < np.inf}


def kept(workdir: Path) -> dict[str, Any]:
    """The profiles in calibration.json; none, with a message, if it is damaged."""
    path = workdir / FILE
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_text())
        known: dict[str, Any] = content["profiles"]
        if content["checksum"] == digest(known):
            return known
    except (ValueError, TypeError, KeyError):
        pass
    print(f"{path} is damaged: it is made anew")
    return {}


def calibration_key(study: Study, point: Point) -> str:
    """A hash of what a calibration depends on."""
    leaves = {**point.leaves, "seed": study.seed}
    at_start = {name: value for name, value in leaves.items() if name not in NOT_AT_THE_START}
    return digest({"schema": SCHEMA, "seeds": study.sweep.seeds, **at_start})


def path_sum(settings: Settings) -> int:
    """PathSum of a model: the sum over all its paths of (layers on the path)^3.

    Args:
      settings: of a run.

    Returns:
      A whole number.
    """
    return ConfigPoint(settings).path_sum


def _profiles(study: Study, points: Iterable[Point]) -> Iterator[np.ndarray]:
    """s_l and mean squares of each point, (2, seeds, layers). Neighbouring points of one program share its function."""
    program, function, batch = None, None, None
    for point in points:
        if program != point.program or function is None:
            program, (function, batch) = point.program, point.profile()
        # The learning rate is not used.
        hypers = [trial.hyper.arrays() for trial in trials_of(study, point, [1.0])]
        yield np.stack([function(hyper, batch) for hyper in hypers], axis=1)
