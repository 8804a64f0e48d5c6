"""The maximal-update learning rate of our models (AM-muP), from a gradient and a jvp at the start of training."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import jax
import numpy as np

from depthmup.files import digest, write_atomically
from depthmup.fit import chain_path_sum
from depthmup.measure.maximal_update import MaximalUpdate, checked, warn_if_deep
from depthmup.settings import NOT_AT_THE_START, Settings
from depthmup.train.build import batches_of, examples, hyper_of, task_of
from depthmup.train.quantities import update_profile
from depthmup.train.recipe import Recipe
from depthmup.train.task import Hyper
from depthmup.trials.plan import SCHEMA, Trial, trials_of

FILE = "calibration.json"  # {key of a curve: (s_l and mean squares, seeds, layers)} of all curves that were calibrated


def calibrate(settings: Settings, average: str = "arithmetic") -> MaximalUpdate:
    """`measure.maximal_update` of a config: the learning rate is one at the parameterization's base shape.

    It takes a gradient and a jvp for each of sweep.seeds seeds, on the first data.batch_size training examples, which
    are not augmented, without clipping and label noise. Warns where depth is above .05 of the width. Raises ValueError
    where nothing moves, and SettingsError for a config that cannot be trained.
    """
    per_seed, mean_squares = next(_profiles([settings]))
    found = MaximalUpdate(per_seed, mean_squares, average)
    warn_if_deep(settings.model.depth, settings.model.width)
    return checked(found)


def calibrations(
    curves: Iterable[Settings], workdir: Path, say: Callable[[str], None] = lambda text: None
) -> dict[str, MaximalUpdate]:
    """`calibrate` of many curves of a sweep, by `key`. A curve in the workdir's calibration.json is not computed again.

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
    first = _trials(curve)[0]
    leaves = {name: value for name, value in first.leaves.items() if name not in NOT_AT_THE_START}
    return digest({"schema": SCHEMA, "seeds": curve.sweep.seeds, **leaves})


def path_sum(settings: Settings) -> int:
    """PathSum of the config's model: the sum over all its paths of (layers on the path)^3."""
    return chain_path_sum(task_of(settings).model.ways)


def _trials(curve: Settings) -> list[Trial]:
    """The curve's trials of all seeds, at a learning rate that is never used."""
    return list(trials_of(curve, [1.0]))


def _profiles(curves: Iterable[Settings]) -> Iterator[np.ndarray]:
    """s_l and mean squares of each curve, (2, seeds, layers). Neighbouring curves of one program share its function."""
    program, function = None, None
    for curve in curves:
        trials = _trials(curve)
        if program != trials[0].program or function is None:
            program, function = trials[0].program, _profile_function(curve)
        batch = examples(batches_of(curve), curve.data.batch_size)
        yield np.stack([function(hyper_of(trial.settings).arrays(), batch) for trial in trials], axis=1)


def _profile_function(curve: Settings) -> Callable[[Hyper, tuple[jax.Array, np.ndarray]], jax.Array]:
    task = task_of(curve, Recipe(loss=curve.loss, label_smoothing=curve.label_smoothing))
    profile = update_profile(task)
    return jax.jit(lambda hyper, batch: profile(task.init(hyper), batch, hyper))
