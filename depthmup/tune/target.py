"""Tuning to a target, of a model and of a config: which study and which sizes `search` has to choose from."""

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
import pandas

from depthmup.data.user_feed import Batches, of_size
from depthmup.names import POSITIVE, at_least_one, short, unknown
from depthmup.report.large_run import sweep_law
from depthmup.report.result import SweepResult
from depthmup.rules.batch_rules import Run
from depthmup.rules.optim import GRIDS, OPTIONS, family_of
from depthmup.settings import LEARNING_RATE, Settings, SettingsError, put, value_of
from depthmup.train.build import config_run
from depthmup.train.devices import trial_layout
from depthmup.train.model_task import Loss
from depthmup.trials.config_study import ConfigStudy
from depthmup.trials.model_study import ModelStudy, SetupLike
from depthmup.trials.store import load
from depthmup.trials.study import Size, Study, judged_value
from depthmup.trials.workers import RETRIES
from depthmup.tune.model_sweep import study_of
from depthmup.tune.options import Hyperparameter
from depthmup.tune.search import GUESS, search

TOLERANCE = 0.01
RATE_DIGITS = 2  # of log2 of a law's rate, so that a rate of another machine is the same to the last bit
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
    learning_rate: float | SweepResult | None = None,
    workdir: str | Path | None = None,
    progress: bool = True,
    executor: Executor | None = None,
    retries: int = RETRIES,
    hyperparameter: Hyperparameter = "learning_rate",
    **options: Any,
) -> SweepResult:
    """`Setup.tune` with a target, which explains the arguments."""
    seconds = _seconds(budget)
    POSITIVE.check("tolerance", tolerance)
    sizes = _checked(target, options)
    at_least_one("steps", steps)
    name = options.get("optimizer", "adamw")
    searched = f"optimizer.{hyperparameter}"
    if searched != LEARNING_RATE:
        options[hyperparameter] = [_first_guess(hyperparameter, name, options.get(hyperparameter))]
        _check_rule(setup.run, name, hyperparameter)
    tuned, rate = (learning_rate, None) if isinstance(learning_rate, SweepResult) else (None, learning_rate)
    study = _study(setup, loss, batches, steps, sizes, rate, options, searched)
    base = study.base
    aim = _aim(base, sizes)
    if tuned and tuned.study.target != aim._asdict():
        raise ValueError(f"learning_rate= is the result of a tune to {tuned.study.target}, not to {aim._asdict()}")
    if aim.batch_size > base.batch_size and options.get("batch_size") is None and not setup.run:
        of_size(batches, aim.batch_size)  # says what batches of other sizes need
    lattice = _lattice(base, aim, setup.run, options.get("optimizer", "adamw"))
    study = dataclasses.replace(
        study,
        sweep=dataclasses.replace(study.sweep, adaptive=False, batch_sizes=()),
        durations=(steps,) if base[2:] != aim[2:] else (),
        fixed="steps",
        target=aim._asdict(),
        searched=searched,
    )
    rates = (
        None if searched == LEARNING_RATE else _rates(tuned.rows, tuned.study) if tuned else _constant(rate, searched)
    )
    return search(study, lattice, seconds, tolerance, workdir, progress, "m.tune", executor, retries, rates)


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
    hyperparameter: str = "learning_rate",
    tuned: Path | None = None,
) -> SweepResult:
    """The same of a config, whose sizes are the base, and whose learning rate is the first guess.

    Args:
      target: of `CONFIG_SIZES`; those that are left out are the config's. Width and depth are in the config's units.
      command: of the report. executor: whose workers train.
      hyperparameter: what is tuned, of which the config has the first guess. tuned: of another than the learning rate:
        the workdir of the tune to this target that says the rate at each size; None: it is the config's at all sizes.

    Raises SettingsError or ValueError for a target that cannot be tuned, and what `Setup.tune` raises.
    """
    seconds = _seconds(budget)
    POSITIVE.check("tolerance", tolerance)
    if settings.sweep.axes:
        raise SettingsError("a tune chooses learning rates alone: leave sweep.axes out")
    changes = _changes(settings, target)
    optimizer, middle = settings.optimizer.name, math.log2(settings.optimizer.learning_rate)
    searched, axes = f"optimizer.{hyperparameter}", ""
    if searched != LEARNING_RATE:
        guess = _first_guess(hyperparameter, optimizer, settings.optimizer.numbers.get(hyperparameter))
        axes = f"{searched} = {guess!r}"
        _check_rule(config_run(settings), optimizer, hyperparameter)
    elif tuned:
        raise SettingsError("--tuned is for another --hyperparameter than the learning rate")
    sweep = dataclasses.replace(
        settings.sweep,
        axes=axes,
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
    lattice = _lattice(study.base, aim, config_run(settings), optimizer, functools.partial(_is_trainable, study))
    study = ConfigStudy(study.settings, target=aim._asdict(), searched=searched)
    rates = None if searched == LEARNING_RATE else _constant(settings.optimizer.learning_rate, searched)
    if tuned:
        of_rates = dataclasses.replace(settings, sweep=dataclasses.replace(sweep, axes=""))
        rates = _rates(load(tuned), ConfigStudy(of_rates, target=aim._asdict()))
    return search(study, lattice, seconds, tolerance, workdir, progress, command, executor, rates=rates)


def _first_guess(hyperparameter: str, optimizer: Any, value: Any) -> float:
    """Of an option of an optimizer, by the options or by its default. Raises ValueError for what cannot be tuned."""
    if not isinstance(optimizer, str):
        raise ValueError(f"with hyperparameter={hyperparameter!r} give the optimizer by its name, not as a function")
    options = {"weight_decay": 0.0, **OPTIONS[optimizer]}
    known = [name for name, default in options.items() if isinstance(default, float)]
    if hyperparameter not in known:
        raise unknown(f"hyperparameter of {optimizer}", hyperparameter, ["learning_rate", *known])
    value = options[hyperparameter] if value is None else value
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (is_number and 0 < judged_value(f"optimizer.{hyperparameter}", value) < math.inf):
        raise ValueError(f"give {hyperparameter}=, a first guess that is one number above 0, got {short(value)}")
    return float(value)


def _check_rule(run: Run | None, optimizer: str, hyperparameter: str) -> None:
    """Raises ValueError for an average that the batch rule changes: a law of its values at the base says little."""
    if run and hyperparameter in run.row(family_of(optimizer)).averages:
        raise ValueError(f"batch_rule {run.rule!r} changes {hyperparameter} itself: tune it under another rule")


def _constant(rate: float | None, searched: str) -> Callable[[Size], float]:
    if rate is None:
        raise ValueError(
            f"hyperparameter={searched.partition('.')[2]!r} needs learning_rate=: a number, the same at all sizes, or "
            "the result of m.tune to the same target, whose law says it"
        )
    POSITIVE.check("learning_rate", rate)
    return lambda size: float(rate)


def _rates(rows: pandas.DataFrame, study: Study) -> Callable[[Size], float]:
    """The learning rate at each size, by the law of a tune."""
    law = sweep_law(rows, study)

    @functools.cache
    def rate(size: Size) -> float:
        best = law.at(**{axis: getattr(size, axis) for axis in law.law.axes if axis not in law.law.fixed})
        return float(2 ** round(math.log2(best.learning_rate), RATE_DIGITS))

    return rate


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
    searched: str,
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
    for axis in study.axes:
        if axis.key != searched:
            name, tuned = (key.partition(".")[2] for key in (axis.key, searched))
            raise ValueError(f"with target= {tuned.replace('_', ' ')} alone is tuned: give one {name}")
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
