"""Tuning to a target, of a model and of a config: which study and which sizes `target_search` has to choose from."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import itertools
import math
import re
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import jax
import numpy as np

from depthmup.batch_rules import Run
from depthmup.data.user_feed import Batches, of_size
from depthmup.names import POSITIVE, at_least_one, short, unknown
from depthmup.optim import family_of
from depthmup.report.result import SweepResult
from depthmup.settings import Settings, SettingsError, put, value_of
from depthmup.target_search import GUESS, search
from depthmup.train.build import run_of
from depthmup.train.devices import trial_layout
from depthmup.train.model_task import Loss
from depthmup.trials.config_study import ConfigStudy
from depthmup.trials.model_study import ModelStudy, SetupLike
from depthmup.trials.study import Size
from depthmup.trials.workers import RETRIES
from depthmup.tuning import GRIDS, study_of

TOLERANCE = 0.01
DOUBLINGS = 5  # of an axis of the lattice at most
AT_ONCE = 8  # trainings in a group, where one is trained after another: a program is compiled for so many
UNITS = {"s": 1.0, "sec": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
CONFIG_SIZES = {"width": "model.width", "depth": "model.depth", "batch_size": "data.batch_size", "epochs": "epochs"}
CHOSEN = (  # arguments of `m.sweep` that a tune chooses itself
    "widths",
    "depths",
    "sizes",
    "fixed",
    "seeds",
    "max_seeds",
    "until",
    "adaptive",
    "learning_rates",
    "against",
    "shard",
)


def tune_target(
    setup: SetupLike,
    loss: Loss,
    batches: Batches,
    *,
    steps: int,
    target: Mapping[str, int],
    budget: str | float | None = None,
    tolerance: float = TOLERANCE,
    learning_rate: float | None = None,
    workdir: str | Path | None = None,
    progress: bool = True,
    executor: Executor | None = None,
    retries: int = RETRIES,
    **options: Any,
) -> SweepResult:
    """`Setup.tune` with a target, which explains the arguments."""
    seconds = _seconds(budget)
    POSITIVE.check("tolerance", tolerance)
    sizes = _checked(target, options)
    at_least_one("steps", steps)
    study = _study(setup, loss, batches, steps, sizes, learning_rate, options)
    base = study.base
    aim = _aim(base, sizes)
    if aim.batch_size > base.batch_size and options.get("batch_size") is None and not setup.run:
        of_size(batches, aim.batch_size)  # says what batches of other sizes need
    lattice = _lattice(base, aim, setup.run, options.get("optimizer", "adamw"))
    study = dataclasses.replace(
        study,
        sweep=dataclasses.replace(study.sweep, adaptive=False, batch_sizes=()),
        durations=(steps,) if base[2:] != aim[2:] else (),
        fixed="steps",
        target=aim._asdict(),
    )
    return search(study, lattice, seconds, tolerance, workdir, progress, "m.tune", executor, retries)


def tune_config(
    settings: Settings,
    target: Mapping[str, float],
    *,
    budget: str | float | None = None,
    tolerance: float = TOLERANCE,
    workdir: str | Path | None = None,
    progress: bool = True,
    command: str = "tune_config",
    executor: Executor | None = None,
) -> SweepResult:
    """The same of a config, whose sizes are the base, and whose learning rate is the first guess.

    Args:
      target: of `CONFIG_SIZES`; those that are left out are the config's. Width and depth are in the config's units.
      command: of the report. executor: whose workers train.

    Raises SettingsError or ValueError for a target that cannot be tuned, and what `Setup.tune` raises.
    """
    seconds = _seconds(budget)
    POSITIVE.check("tolerance", tolerance)
    if settings.sweep.axes:
        raise SettingsError("a tune chooses learning rates alone: leave sweep.axes out")
    changes = _changes(settings, target)
    optimizer, middle = settings.optimizer.name, math.log2(settings.optimizer.learning_rate)
    sweep = dataclasses.replace(
        settings.sweep,
        parameterizations=(settings.parameterization.name,),
        optimizers=(optimizer,),
        widths=(settings.model.width,),
        depths=(),
        batch_sizes=(),
        epochs=(settings.epochs,) if {"data.batch_size", "epochs"} & set(changes) else (),
        log2_learning_rates={optimizer: (middle - GUESS, middle + GUESS)},
        seeds=1,
        until="planned",
        adaptive=False,
        at_once=settings.sweep.at_once or _at_once(settings.parallel.devices_per_trial),
    )
    study = ConfigStudy(dataclasses.replace(settings, sweep=sweep))
    study.point({}).check()  # raises
    aim = _aim(study.base, ConfigStudy(put(settings, changes)).base._asdict())
    lattice = _lattice(study.base, aim, run_of(settings), optimizer, functools.partial(_is_trainable, study))
    study = ConfigStudy(study.settings, target=aim._asdict())
    return search(study, lattice, seconds, tolerance, workdir, progress, command, executor)


def _changes(settings: Settings, target: Mapping[str, float]) -> dict[str, Any]:
    """{key: its value} of the sizes of a target that are not the config's. Raises ValueError for what is no size, and
    SettingsError for sizes that the config cannot have."""
    result = dict[str, Any]()
    for name, value in target.items():
        if name not in CONFIG_SIZES:
            raise unknown("size of the target", name, CONFIG_SIZES)
        if name == "epochs":
            POSITIVE.check("epochs of the target", value)
        else:
            value = at_least_one(f"{name} of the target", int(value) if float(value).is_integer() else value)
        result[CONFIG_SIZES[name]] = value
    study = ConfigStudy(put(settings, result))
    study.point({}).check()  # raises
    return {key: value for key, value in result.items() if value != value_of(settings, key)}


def _is_trainable(study: ConfigStudy, size: Size) -> bool:
    """Whether the config's model and data have such a size."""
    try:
        study.point_at(size, study.sweep.optimizers[0], study.sweep.parameterizations[0]).check()
    except ValueError:  # a width that its heads do not divide, a batch that is larger than the data
        return False
    return True


def _at_once(devices_per_trial: int) -> int | None:
    """Trainings in a group; None: as many as fit."""
    if trial_layout() != "map":
        return None
    return AT_ONCE * max(1, len(jax.local_devices()) // devices_per_trial)  # one program for any number of them


def _seconds(budget: str | float | None) -> float:
    """Seconds. Raises ValueError for what is none."""
    if budget is None:
        return math.inf
    if isinstance(budget, str):
        match = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*([a-z]+)\s*", budget)
        if not match or match[2] not in UNITS:
            raise ValueError(
                f'budget must be such as "30min", "2h", "90s", or seconds as a number, got {short(budget)}'
            )
        budget = float(match[1]) * UNITS[match[2]]
    POSITIVE.check("budget", budget)
    return float(budget)


def _aim(base: Size, sizes: Mapping[str, int]) -> Size:
    """The target; sizes that are left out are the base's. Raises ValueError for one below the base or equal to it."""
    aim = base._replace(**sizes)
    for name, value, least in zip(Size._fields, aim, base, strict=True):
        if value < least:
            raise ValueError(f"the target's {name}, {value}, is below the base's, {least}: no small size is like it")
    if aim == base:
        raise ValueError(f"the target is the base itself, {base}: leave target out to tune it")
    return aim


def _checked(target: Mapping[str, int], options: Mapping[str, Any]) -> dict[str, int]:
    """The sizes of the target. Raises ValueError for what is none, and for options that a tune does not take."""
    if not isinstance(target, Mapping):
        raise ValueError(f"target must be dict(width=, depth=, batch_size=, steps=), got {short(target)}")
    for name in target:
        if name not in Size._fields:
            raise unknown("size of the target", name, Size._fields)
    for name in options:
        if name in CHOSEN:
            raise ValueError(f"with target= the trainings are chosen: leave {name}= out")
    if not isinstance(options.get("optimizer", "adamw"), str) and not callable(options["optimizer"]):
        raise ValueError("with target= one optimizer is tuned: give one name, or one function")
    return {name: at_least_one(f"{name} of the target", value) for name, value in target.items()}


def _study(
    setup: SetupLike,
    loss: Loss,
    batches: Batches,
    steps: int,
    target: Mapping[str, int],
    learning_rate: float | None,
    options: Mapping[str, Any],
) -> ModelStudy:
    """The study of the base, with the batches of all sizes of the lattice."""
    batch: Any = options.get("batch_size")
    batch = setup.run.base_batch if batch is None and setup.run else batch
    if not (batch is None or isinstance(batch, int | np.integer)) or isinstance(batch, bool):
        raise ValueError(f"batch_size must be that of the base, one number, got {short(batch)}")
    if batch is None and _needs_size(batches):
        raise ValueError("batches are a function (step, batch_size): give batch_size=, that of the base")
    durations = _values(steps, target.get("steps", steps))
    batch_sizes = [] if batch is None else _values(int(batch), target.get("batch_size", 0))
    if len(batch_sizes) == 1 and _needs_size(batches):
        batches = of_size(batches, batch_sizes[0])
    if len(durations) > 1 and setup.run and setup.run.base_steps != steps:
        raise ValueError(f"steps = {steps} must be base_steps = {setup.run.base_steps}, since the target's differ")
    if learning_rate is None:
        name = options.get("optimizer", "adamw")
        if name not in GRIDS:
            raise ValueError(
                "no learning rate is known for an optimizer of your own: give learning_rate=, a first guess"
            )
        learning_rate = 2.0 ** (sum(GRIDS[name]) / 2)
    others = {name: value for name, value in options.items() if name != "batch_size"}
    others.setdefault("at_once", _at_once(others.get("devices_per_trial", 1)))
    width, _ = setup.parameterization.base_or(setup.width, setup.depth)
    study = study_of(
        setup,
        loss,
        batches,
        steps=durations if len(durations) > 1 else steps,
        batch_size=batch_sizes or None,
        learning_rates=learning_rate,
        widths=(width,),
        depths=(),
        seeds=1,
        **others,
    )
    if study.axes:
        raise ValueError(
            f"with target= the learning rate alone is tuned: give one {study.axes[0].key.partition('.')[2]}"
        )
    return study


def _lattice(
    base: Size, aim: Size, run: Run | None, optimizer: Any, is_trainable: Callable[[Size], bool] = lambda size: True
) -> list[Size]:
    """The sizes between the base and the target that can be trained and have a batch rule, small ones first."""
    values = [_values(*ends) for ends in zip(base, aim, strict=True)]
    lattice = [size for size in itertools.starmap(Size, itertools.product(*values)) if is_trainable(size)]
    if run and isinstance(optimizer, str):
        _rule(run, optimizer, aim)
        lattice = [size for size in lattice if _has_rule(run, optimizer, size)]
    if len(lattice) < 2:
        raise ValueError(
            f"no size lies between the base, {base}, and the target, and a law needs two: twice the base must "
            "be below the target on some axis"
        )
    return sorted(lattice, key=lambda size: (size.compute, size))


def _rule(run: Run, optimizer: str, size: Size) -> None:
    """Raises ValueError for a size at which the batch rule says nothing."""
    run.at(size.batch_size, size.steps).factors(family_of(optimizer))


def _has_rule(run: Run, optimizer: str, size: Size) -> bool:
    try:
        _rule(run, optimizer, size)
    except ValueError:
        return False
    return True


def _needs_size(batches: Batches) -> bool:
    """Whether they are a function that cannot be called with the step alone."""
    if not callable(batches):
        return False
    parameters = inspect.signature(batches).parameters.values()
    return sum(p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters) == 2


def _values(base: int, target: int) -> list[int]:
    """The base times 1, 2, 4, ..., as far as it is below the target."""
    return [base] + [base * 2**k for k in range(1, DOUBLINGS + 1) if base * 2**k < target]
