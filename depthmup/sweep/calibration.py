"""The maximal-update learning rate of our models: a gradient and a jvp at the start of training (AM-muP)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from depthmup.fit import chain_path_sum
from depthmup.measure.maximal_update import MaximalUpdate, checked, warn_if_deep
from depthmup.settings import NOT_AT_THE_START, Settings
from depthmup.sweep.plan import SCHEMA, Trial, trials_of
from depthmup.train.build import batches_of, examples, hyper_of, task_of
from depthmup.train.quantities import update_profile
from depthmup.train.recipe import Recipe
from depthmup.train.workdir import digest, write_atomically

FILE = "calibration.json"  # of every curve of a sweep that was calibrated: {key: (s_l and mean squares, seeds, layers)}


def calibrate(settings: Settings, average: str = "arithmetic") -> MaximalUpdate:
    """`measure.maximal_update` of a config: the learning rate is one at the parameterization's base shape.

    A gradient and a jvp for each of sweep.seeds seeds, on the first data.batch_size training examples, not augmented,
    without clipping and label noise.
    Warns where depth is above .05 of the width; raises ValueError where nothing moves, SettingsError as `task_of`.
    """
    per_seed, mean_squares = next(_profiles([settings]))
    found = MaximalUpdate(per_seed, mean_squares, average)
    warn_if_deep(settings.model.depth, settings.model.width)
    return checked(found)


def calibrations(
    curves: Iterable[Settings], workdir: Path, say: Callable[[str], None] = lambda text: None
) -> dict[str, MaximalUpdate]:
    """`calibrate` of many curves of a sweep, by `key`; what the workdir has is not computed again.

    A curve whose network has no update to measure is left out.
    """
    path = workdir / FILE
    known = json.loads(path.read_text()) if path.exists() else {}
    wanted = {key(curve): curve for curve in curves}
    missing = {name: curve for name, curve in wanted.items() if name not in known}
    for number, (name, profile) in enumerate(zip(missing, _profiles(missing.values()), strict=True)):
        # JSON has no infinity.
        known[name] = np.where(np.isfinite(profile), profile.astype(object), None).tolist()  # type: ignore[call-overload]
        say(f"maximal updates: {number + 1} of {len(missing)}")
        write_atomically(path, json.dumps(known))
    found = {name: MaximalUpdate(*np.array(known[name], np.float64)) for name in wanted}
    return {name: update for name, update in found.items() if 0 < update.mean < np.inf}


def key(curve: Settings) -> str:
    """A hash of the settings that a calibration depends on."""
    leaves = {name: value for name, value in _start(curve)[0].leaves.items() if name not in NOT_AT_THE_START}
    return digest({"schema": SCHEMA, "seeds": curve.sweep.seeds, **leaves})


def path_sum(settings: Settings) -> int:
    """PathSum of the config's model: sum over paths of (layers on the path)^3."""
    return chain_path_sum(task_of(settings).model.ways)


def _start(curve: Settings) -> list[Trial]:
    """All seeds, at a learning rate that is never used."""
    return list(trials_of(curve, [1.0]))


def _profiles(curves: Iterable[Settings]) -> Iterator[np.ndarray]:
    """s_l and mean squares of each, (2, seeds, layers). Curves of one program next to each other share it."""
    program, function = None, None
    for curve in curves:
        trials = _start(curve)
        if program != trials[0].program or function is None:
            program, function = trials[0].program, _function(curve)
        batch = examples(batches_of(curve), curve.data.batch_size)
        yield np.stack([function(hyper_of(trial.settings).arrays(), batch) for trial in trials], axis=1)


def _function(curve: Settings) -> Any:
    task = task_of(curve, Recipe(loss=curve.loss, label_smoothing=curve.label_smoothing))
    profile = update_profile(task)
    return jax.jit(lambda hyper, batch: profile(task.init(hyper), batch, hyper))
