"""Learning-rate sweeps of a model of one's own: the study, its training and what it says."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import math
import tempfile
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, get_args

import jax
import numpy as np
import pandas

from depthmup import bucket
from depthmup.data.batch_checks import Batch, check_loss, is_odd, not_finite, too_large
from depthmup.data.user_feed import Batches, UserFeed, feed_of, of_size
from depthmup.data.user_feed import size_of as batch_size_of
from depthmup.declare import SIZE
from depthmup.fit.curve import POINTS
from depthmup.fit.thresholds import MARGIN
from depthmup.fit.transfer import margin_of
from depthmup.names import FINITE, POSITIVE, Range, at_least_one, floats, listed, short, unknown
from depthmup.report.result import SweepResult
from depthmup.rules.batch_rules import Run
from depthmup.rules.optim import GRIDS, OPTIONS, check_numbers
from depthmup.rules.parameterization import Parameterization
from depthmup.schedules import SCHEDULES, Schedule
from depthmup.settings import (
    LEARNING_RATE,
    CheckpointSettings,
    Interval,
    Judged,
    ParallelSettings,
    Quantity,
    SettingsError,
    SweepSettings,
    Until,
    Wrapper,
)
from depthmup.sweep import run
from depthmup.train.model_task import Loss
from depthmup.training_settings import Recipe
from depthmup.trials.engine import cost
from depthmup.trials.identity import settings
from depthmup.trials.model_study import Fixed, MakeOptimizer, ModelStudy, SetupLike, Training
from depthmup.trials.study import Axis, Size
from depthmup.trials.workers import RETRIES

AROUND = 2.5  # octaves to either side of a first guess; the search goes on from there
LOOKED_AT = 4  # batches with odd numbers whose loss is computed
LearningRates = Sequence[float] | float | None


def sweep_model(
    setup: SetupLike,
    loss: Loss,
    batches: Batches,
    *,
    workdir: str | Path | None = None,
    shard: tuple[int, int] = (0, 1),
    progress: bool = True,
    executor: Executor | None = None,
    retries: int = RETRIES,
    **options: Any,
) -> SweepResult:
    """`Setup.sweep`, which explains the arguments."""
    if workdir is not None:
        bucket.check_path(workdir)
    if not isinstance(shard, tuple | list) or len(shard) != 2:
        raise SettingsError(f"shard must be (i, n), part i of n, got {short(shard)}")
    study = study_of(setup, loss, batches, **options)
    _warn_of_larger_bases(study)
    return _run(study, workdir, shard=shard, progress=progress, executor=executor, retries=retries)


def _warn_of_larger_bases(study: ModelStudy) -> None:
    """Sizes below the base's along one axis leave the other axis at the base, where trainings cost most."""
    of_axis = {"width": (study.width, study.sweep.widths), "depth": (study.depth, study.sweep.depths)}
    for (axis, (base, sizes)), (other, (_, others)) in itertools.permutations(of_axis.items()):
        if sizes and others and max(sizes) < base:
            warnings.warn(
                f"{other}s {others} are trained at the base's {axis} {base}, above all {axis}s {sizes}: {other}s=() "
                "leaves them out",
                stacklevel=4,
            )


def _run(study: ModelStudy, workdir: str | Path | None, **options: Any) -> SweepResult:
    if workdir is not None:
        result = run(study, workdir, command="m.sweep", yes=True, **options)
        return SweepResult(pandas.DataFrame(result.rows), result.curves, study, bucket.folder(workdir), result.noise)
    with tempfile.TemporaryDirectory() as folder:
        result = run(study, folder, command="m.sweep", yes=True, **options)
        note = "nothing is stored: workdir=DIR keeps the rows, and an interrupted sweep goes on from there"
        notes = "\n".join(filter(None, (result.noise, note)))
        return SweepResult(pandas.DataFrame(result.rows), result.curves, study, None, notes)


def study_of(
    setup: SetupLike,
    loss: Loss,
    batches: Batches,
    *,
    steps: int | Sequence[int],
    optimizer: str | MakeOptimizer | Mapping[str, MakeOptimizer] | Sequence[str] = "adamw",
    learning_rates: LearningRates = None,
    widths: Sequence[int] | None = None,
    depths: Sequence[int] | None = None,
    against: Sequence[str] = (),
    batch_size: int | Sequence[int] | None = None,
    sizes: Sequence[Sequence[int]] = (),
    fixed: Fixed = "examples",
    evaluate: Batches = None,
    seeds: int = 3,
    until: Until = "planned",
    max_seeds: int = SweepSettings.max_seeds,
    judge_by: Judged | None = None,
    margin: float | str = MARGIN,
    chance: float | None = None,
    schedule: Schedule = "constant",
    warmup: int = 0,
    clip: float | None = None,
    own_outputs: bool = False,
    adaptive: bool = False,
    per_octave: int = SweepSettings.per_octave,
    at_once: int | None = None,
    max_trials: int = SweepSettings.max_trials,
    measure: Sequence[Quantity] = (),
    measure_points: int = SweepSettings.measure_points,
    devices_per_trial: int = 1,
    wrapper: Wrapper = "pmap",
    **hyperparameters: Any,
) -> ModelStudy:
    """The study that `Setup.sweep` runs. Raises SettingsError for arguments that cannot be trained."""
    durations, batch_sizes = _several("steps", steps), _several("batch_size", batch_size)
    base_steps = setup.run.base_steps if setup.run and len(durations) > 1 else durations[0]
    runs = tuple(map(_run_size, listed("sizes", sizes)))
    _check_names(schedule, until, fixed, measure)
    _check_numbers(base_steps, warmup, seeds, max_seeds, until)
    counts = {"per_octave": per_octave, "max_trials": max_trials, "measure_points": measure_points}
    for name, value in {**counts, "max_seeds": max_seeds}.items():
        at_least_one(name, value)
    for name, value in (("at_once", 1 if at_once is None else at_once), ("devices_per_trial", devices_per_trial)):
        at_least_one(name, value)
    for name, number, numbers in (("clip", clip, POSITIVE), ("chance", chance, FINITE)):
        if number is not None:
            numbers.check(name, number)
    feeds = _feeds(batches, durations, batch_sizes, runs, evaluate, setup.run)
    setups = {setup.parameterization.name: setup, **{name: setup.under(name) for name in listed("against", against)}}
    optimizers = _optimizers(optimizer)
    if not optimizers:
        raise SettingsError("optimizer is empty: give a name, or a function (setup, ...) -> a transformation")
    width, depth = setup.parameterization.base_or(setup.width, setup.depth)
    axes, constants = _axes(hyperparameters, optimizers)
    rates, is_search = _rates(learning_rates, optimizers, per_octave)
    sweep = SweepSettings(
        parameterizations=tuple(setups),
        optimizers=tuple(optimizers),
        depths=_sizes("depths", (depth, 2 * depth, 4 * depth) if depths is None else depths),
        widths=_sizes("widths", (width, 2 * width, 4 * width) if widths is None else widths),
        batch_sizes=batch_sizes if len(batch_sizes) > 1 else (),
        log2_learning_rates=rates if isinstance(rates, dict) else {},
        per_octave=per_octave,
        seeds=seeds,
        until=until,
        max_seeds=max_seeds,
        judge_by=_measure(judge_by, next(iter(feeds.values()))),
        margin=str(margin_of(margin)),
        calibrate=False,
        adaptive=adaptive or is_search,
        at_once=at_once,
        max_trials=max_trials,
        measure=tuple(measure),
        measure_points=measure_points,
    )
    recipe = Recipe(schedule=schedule, clip=clip)
    training = Training(setups, optimizers, loss, own_outputs, feeds, base_steps, warmup, recipe, constants)
    about = _about(training, setup, (width, depth), chance)
    study = ModelStudy(
        sweep,
        ParallelSettings(wrapper=wrapper, devices_per_trial=devices_per_trial),
        CheckpointSettings(every=Interval(10, "minute")),
        width,
        depth,
        seed=0,
        axes=(rates, *axes) if isinstance(rates, Axis) else axes,
        about=about,
        chance_loss=chance,
        training=training,
        durations=durations if len(durations) > 1 else (),
        fixed=fixed,
        runs=runs,
    )
    _check_batches(study, training, max([*study.durations, base_steps, *(size.steps for size in runs)]))
    return study


def _check_batches(study: ModelStudy, training: Training, steps: int) -> None:
    """Raises SettingsError for batches that give no loss, and for labels that are no classes. Of a batch with numbers
    that are not finite it is what the model makes of them that counts."""
    point = study.base_point(study.sweep.optimizers[0], study.sweep.parameterizations[0])
    task, feed, hyper = point.task, point.feed, point.hyper(1.0, 0).arrays()
    logits = None if training.own_outputs else task.output_shapes(feed.first[:-1], hyper)

    def check(words: str, batch: Batch) -> None:
        try:
            if problem := too_large(batch):
                raise SettingsError(problem)
            if logits is not None:
                shape = (batch_size_of(batch), *logits.shape[1:])
                check_loss(task.criterion, jax.ShapeDtypeStruct(shape, logits.dtype), batch[-1])
            problem = not_finite(batch)
            if problem:
                state = jax.jit(task.init)(hyper)
                if not np.isfinite(jax.jit(task.objective)(state.params, state, batch, hyper)):
                    raise SettingsError(f"{problem}, and the loss is not finite")
        except ValueError as error:
            raise SettingsError(f"{words}: {error}") from error

    check("the first batch", feed.first)
    looked_at = itertools.chain(feed.looked_at(steps), (("the held-out data", batch) for batch in feed.held_out))
    odd = ((words, batch) for words, batch in looked_at if is_odd(batch, logits.shape if logits is not None else ()))
    for words, batch in itertools.islice(odd, LOOKED_AT):
        check(words, batch)


def _check_names(schedule: Schedule, until: Until, fixed: Fixed, measure: Sequence[Quantity]) -> None:
    """Raises ValueError for a name that the argument does not take."""
    for argument, name, known in (
        ("schedule", schedule, SCHEDULES),
        ("until", until, get_args(Until)),
        ("fixed", fixed, get_args(Fixed)),
    ):
        if name not in known:
            raise unknown(argument, name, known)
    if set(measure) - {"noise_scale"}:
        raise SettingsError(f"of a model of your own only 'noise_scale' is measured, got measure={tuple(measure)}")


def _check_numbers(steps: int, warmup: int, seeds: int, max_seeds: int, until: Until) -> None:
    """Raises ValueError for a number that is out of range."""
    at_least_one("steps", steps)
    at_least_one("seeds", seeds)
    if not 0 <= warmup < steps:
        raise SettingsError(f"warmup must be from 0 to steps - 1 = {steps - 1}, got {warmup}")
    if until == "decided" and not 1 < seeds <= max_seeds:
        raise SettingsError(f"until='decided' needs seeds from 2 to max_seeds = {max_seeds}, got {seeds}")


def _several(name: str, values: int | Sequence[int] | None) -> tuple[int, ...]:
    """The value or the values of a size; () where none is given."""
    if values is None:
        return ()
    sizes = _sizes(name, values if isinstance(values, Iterable) and not isinstance(values, str) else (values,))
    if not sizes:
        raise SettingsError(f"{name} is empty: give a value")
    return sizes


def _sizes(name: str, values: Sequence[int]) -> tuple[int, ...]:
    """The values of a size, each once. Raises ValueError otherwise, and unless they are whole numbers of at least 1."""
    sizes = tuple(at_least_one(name, value) for value in listed(name, values))
    for value in sizes if name in ("widths", "depths") else ():
        Range(**SIZE).check(name, value)
    if len(set(sizes)) < len(sizes):
        raise SettingsError(f"{name} = {sizes} has a value twice: remove one")
    return sizes


def _run_size(size: Sequence[int]) -> Size:
    """One of `sizes`. Raises ValueError unless it is four whole numbers of at least 1."""
    if len(size) != len(Size._fields):
        raise SettingsError(f"each of sizes is ({', '.join(Size._fields)}), got {tuple(size)}")
    return Size(*(at_least_one(f"{name} of sizes", value) for name, value in zip(Size._fields, size, strict=True)))


def _feeds(
    batches: Batches,
    durations: Sequence[int],
    batch_sizes: Sequence[int],
    runs: Sequence[Size],
    evaluate: Batches,
    run: Run | None,
) -> dict[int, UserFeed]:
    """{batch size: its batches}, the base first."""
    steps = max([*durations, *(size.steps for size in runs)])
    if runs and not (batch_sizes or run):
        raise SettingsError("sizes differ in the batch size: give batch_size=, that of the base")
    if len(batch_sizes) < 2 and not runs:
        feed = feed_of(batches, steps, batch_sizes[0] if batch_sizes else None, evaluate)
        return {feed.batch_size: feed}
    base = run.base_batch if run and len(batch_sizes) != 1 else batch_sizes[0]
    every = dict.fromkeys((base, *batch_sizes, *(size.batch_size for size in runs)))
    return {size: feed_of(of_size(batches, size), steps, size, evaluate) for size in every}


def _measure(judge_by: Judged | None, feed: UserFeed) -> Judged:
    """The column that verdicts are of."""
    names = [name for name in get_args(Judged) if "accuracy" not in name]
    known = [name for name in names if feed.held_out or "validation" not in name]
    chosen = judge_by or ("validation_loss" if feed.held_out else "last_loss")
    if chosen not in known:
        raise unknown("judge_by", chosen, known)
    return chosen


def _about(training: Training, setup: SetupLike, base: tuple[int, int], chance: float | None) -> dict[str, Any]:
    """What decides the rows besides the axes, as JSON."""
    feed, source = training.feed, getattr(setup, "source", setup)
    return {
        "program": {"jax": jax.__version__},
        "jax": settings(),
        "model": name_of(source),
        "overrides": {_plain(key): value for key, value in getattr(source, "overrides", {}).items()},
        "loss": _callable_name(training.criterion),
        "base": list(base),
        "parameterization": _settings_of(setup.parameterization),
        "batch_rule": [setup.run.rule, setup.run.base_batch, setup.run.base_steps] if setup.run else None,
        "steps": training.steps,
        "batch_size": feed.batch_size,
        "held_out": [len(feed.held_out), feed.evaluated_examples],
        "schedule": training.recipe.schedule,
        "warmup": training.warmup,
        "clip": training.recipe.clip,
        "own_outputs": training.own_outputs,
        "fixed": {key: _plain(value) for key, value in training.fixed.items()},
        "first_seed": 0,
        "chance_loss": chance,
    }


def _settings_of(p: Parameterization) -> dict[str, Any]:
    """The settings of a parameterization, as JSON; its numbers of blocks stand for the function that counts them."""
    fields = {field.name: getattr(p, field.name) for field in dataclasses.fields(p) if field.name != "blocks"}
    return fields | {"blocks": [p.count_blocks(depth) for depth in (p.base_depth, 2 * p.base_depth)]}


def _optimizers(optimizers: Any) -> dict[str, MakeOptimizer | None]:
    """{name: None, or what makes the transformation}"""
    if isinstance(optimizers, str) or not (callable(optimizers) or isinstance(optimizers, Iterable)):
        optimizers = [optimizers]
    if callable(optimizers):
        return {_callable_name(optimizers): optimizers}
    if isinstance(optimizers, Mapping):
        for name, make in optimizers.items():
            if not callable(make):
                raise SettingsError(f"optimizer {name!r} must be a function of the setup, got {short(make)}")
        return dict(optimizers)
    for name in (optimizers := list(optimizers)):
        if not isinstance(name, str) or name not in OPTIONS:
            raise unknown(
                "optimizer", name, OPTIONS, "; for another give a function, lambda m: m.wrap(optax.NAME(1.0))"
            )
    return dict.fromkeys(optimizers)


def _axes(hyperparameters: Mapping[str, Any], optimizers: Mapping[str, Any]) -> tuple[tuple[Axis, ...], dict[str, Any]]:
    """(axes of the hyperparameters with several values, {name: value} of the others)"""
    named = [name for name, make in optimizers.items() if make is None]
    known = {option for name in named for option in OPTIONS[name]} | {"weight_decay", "mask"}
    axes, fixed = [], {}
    for name, value in hyperparameters.items():
        if len(named) == len(optimizers) and name not in known:
            raise unknown("argument of sweep, or hyperparameter", name, known)
        several = isinstance(value, tuple | list)
        for number in value if several else (value,):
            check_numbers({name: number})
        if several:
            axes.append(Axis(f"optimizer.{name}", tuple(value), len(named) == len(optimizers)))
        else:
            fixed[name] = value
    return tuple(axes), fixed


def _rates(learning_rates: LearningRates, optimizers: Mapping[str, Any], per_octave: int) -> tuple[Any, bool]:
    """({optimizer: log2 of the ends of its grid}, or an axis of rates that are no grid; whether to search there)"""
    if learning_rates is None:
        missing = [name for name, make in optimizers.items() if make is not None]
        if missing:
            raise SettingsError(
                f"no learning rate is known for {missing[0]}: give learning_rates=, a list, or one to search from"
            )
        return {name: GRIDS[name] for name in optimizers}, False
    values: Any = np.atleast_1d(floats("learning_rates", learning_rates))
    if not (np.isfinite(values).all() and (values > 0).all()):
        raise SettingsError(f"learning rates must be positive and finite, got {learning_rates}")
    if values.size == 1:
        middle = round(math.log2(float(values[0])) * per_octave) / per_octave
        return dict.fromkeys(optimizers, (middle - AROUND, middle + AROUND)), True
    if values.size < POINTS:
        raise SettingsError(f"an optimum needs {POINTS} learning rates, got {values.size}; or give one to search from")
    values = np.sort(values)
    log = np.log2(values)
    if np.allclose(np.diff(log), 1 / per_octave, atol=1e-9):
        low = round(float(log[0]), 9)
        return dict.fromkeys(optimizers, (low, low + (values.size - 1) / per_octave)), False
    return Axis(LEARNING_RATE, tuple(values.tolist()), True), False


def name_of(source: Any) -> str:
    """The name of the model, of its factory."""
    return _callable_name(getattr(source, "factory", source))


def _callable_name(function: Callable[..., Any]) -> str:
    while hasattr(function, "func"):  # functools.partial
        function = function.func
    name = getattr(function, "__qualname__", type(function).__name__)
    return name.rpartition("<locals>.")[2]


def _plain(value: Any) -> Any:
    if callable(value):
        return _callable_name(value)
    try:
        return json.loads(json.dumps(value))
    except TypeError:
        return hashlib.sha256(repr(jax.tree.leaves(value)).encode()).hexdigest()[:16]


def tune_base(
    setup: SetupLike, loss: Loss, batches: Batches, *, steps: int, learning_rate: float | None = None, **options: Any
) -> SweepResult:
    """`Setup.tune`, which explains the arguments."""
    width, depth = setup.parameterization.base_or(setup.width, setup.depth)
    workdir = options.pop("workdir", None)
    how = {name: options.pop(name) for name in ("progress", "executor", "retries") if name in options}
    shared = {"steps": steps, **options}
    at_base = study_of(
        setup,
        loss,
        batches,
        learning_rates=learning_rate,
        widths=(width,),
        depths=(),
        **{**shared, "adaptive": True},
    )
    result = _run(at_base, workdir, **how)
    sizes = {"widths": (width, 2 * width, 4 * width), "depths": (depth, 2 * depth, 4 * depth)}
    needed = cost(study_of(setup, loss, batches, learning_rates=learning_rate, **{**shared, **sizes, "adaptive": True}))
    rate = result.learning_rate
    name = setup.parameterization.name
    answer = "no learning rate trains" if rate is None else f"{rate:.3g}, tuned at width {width}, depth {depth}"
    note = (
        f"learning rate for width {setup.width}, depth {setup.depth} under {name}: {answer}\n"
        f"to see whether it transfers, m.sweep over widths {sizes['widths']} and depths {sizes['depths']}: {needed}"
    )
    return dataclasses.replace(result, note="\n".join(filter(None, (note, result.note))))
