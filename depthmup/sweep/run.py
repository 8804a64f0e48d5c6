"""Run what is missing of a sweep."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tqdm import tqdm

from depthmup.settings import Settings
from depthmup.sweep.plan import Group, Trial, plan
from depthmup.sweep.store import Row, Store
from depthmup.train.assemble import Problem, problem_of
from depthmup.train.checkpoint import Checkpoints, Every
from depthmup.train.loop import TrialLoop
from depthmup.train.step import Hyper
from depthmup.train.stop import Stop, Stopped
from depthmup.train.workdir import digest

BAR = "{percentage:3.0f}%|{bar:25}| {elapsed} elapsed, {remaining} left | {desc}"
LOG_EVERY = 64  # steps between two movements of the bar, after which a sweep can be checkpointed or stopped
UNFINISHED = "unfinished"  # folder of the checkpoints of the trials that the sweep is at
COMPILING = 5e7  # a program's compilation in units of `Group.cost`: about 4 seconds of training on two cores


def run(settings: Settings, workdir: str | Path, progress: bool = True) -> list[Row]:
    """Train every trial of the sweep that `workdir` does not hold yet; all rows, in the plan's order.

    A trial is a pure function of its settings, so the rows are the same after any number of interruptions. Groups of
    one shape and optimizer share one compiled program; rows reach the disk when a group is done.
    Raises SettingsError, WorkdirError or ValueError (bad data) before anything is compiled; Stopped when asked to stop.
    """
    groups = plan(settings)
    problem = problem_of(settings)
    for group in groups:
        problem.model(group.model)
    workdir = Path(workdir)
    store = Store(workdir, identity(settings))
    try:
        if store.message:
            print(store.message)
        done = store.done()
        todo = [group for group in groups if not done.issuperset(group.trials)]
        programs = len({group.program for group in todo})
        total = sum(group.cost for group in todo) + COMPILING * programs
        with (
            Stop() as stop,
            tqdm(total=total, disable=not (progress and todo), bar_format=BAR, smoothing=0, mininterval=0) as bar,
        ):
            loop: TrialLoop | None = None
            compiled_for = None
            for group in todo:
                bar.set_description_str(str(group))
                started = bar.n
                if loop is None or group.program != compiled_for:
                    loop, compiled_for = loop_of(problem, group, settings), group.program
                    started += COMPILING

                def advance(step: int, metrics: object, from_: float = started, cost: float = group.cost) -> None:
                    bar.update(from_ + cost * step / problem.steps - bar.n)

                hypers = [hyper_of(problem, group, trial) for trial in group.trials]
                with unfinished(workdir, settings, group, problem.batches.steps_per_epoch) as checkpoints:
                    metrics = loop.run(hypers, problem.steps, LOG_EVERY, advance, checkpoints=checkpoints, stop=stop)
                rows = [
                    {
                        **trial._asdict(),
                        **_common(settings, group, problem.steps),
                        **{k: v[i].item() for k, v in metrics.items()},
                    }
                    for i, trial in enumerate(group.trials)
                ]
                store.append([row for trial, row in zip(group.trials, rows, strict=True) if trial not in done])
                shutil.rmtree(workdir / UNFINISHED, ignore_errors=True)
                if stop.requested and group is not todo[-1]:
                    raise Stopped(stop.requested, f"after {group}: the same command goes on from there")
            bar.set_description_str("done")
        order = {trial: i for i, trial in enumerate(t for group in groups for t in group.trials)}
        return sorted(store.rows, key=lambda row: order[Trial.of(row)])
    finally:
        store.close()


@contextlib.contextmanager
def unfinished(workdir: Path, settings: Settings, group: Group, per_epoch: int) -> Iterator[Checkpoints]:
    """Checkpoints of the group of trials that the sweep is at."""
    trials = {**identity(settings), "trials": [list(trial) for trial in group.trials]}
    every = Every.of(settings.checkpoint.every, per_epoch)
    checkpoints = Checkpoints(workdir / UNFINISHED / digest(trials), trials, every=every, keep=1, best=0)
    try:
        yield checkpoints
    finally:
        checkpoints.close()


def loop_of(problem: Problem, group: Group, settings: Settings) -> TrialLoop:
    """The loop that all groups of this shape and optimizer share."""
    trainer, wrapper = problem.trainer(group.model, group.optimizer.name), settings.parallel.wrapper
    return TrialLoop(trainer, problem.batches, trials=len(group.trials), wrapper=wrapper)


def hyper_of(problem: Problem, group: Group, trial: Trial) -> Hyper:
    """The hyperparameters of a trial of this group."""
    optimizer = dataclasses.replace(group.optimizer, learning_rate=trial.learning_rate)
    return problem.hyper(group.model, group.parameterization, optimizer, trial.seed)


def identity(settings: Settings) -> dict[str, Any]:
    """The settings that decide a sweep's rows; what it sweeps over is in `sweep`."""
    result = settings.deciding()
    for part, key in (("parameterization", "name"), ("optimizer", "name"), ("optimizer", "learning_rate")):
        del result[part][key]
    return result


def _common(settings: Settings, group: Group, steps: int) -> Row:
    """The settings that all trials of a group have in common."""
    skip = {"name", "width", "depth", "learning_rate"}
    common: Row = {
        "steps": steps,
        "epochs": settings.epochs,
        **{key: getattr(settings, key) for key in ("schedule", "warmup_epochs", "label_smoothing", "clip", "ema")},
        "loss_function": settings.loss,
        "data": settings.data.name,
        "model": group.model.name,
    }
    data = settings.data
    common |= {"batch_size": data.batch_size, "data_seed": data.seed, "image_size": data.image_size}
    augment = {f"augment_{k}": v for k, v in dataclasses.asdict(data.augment).items()}
    for part in (
        augment,
        group.model.options,
        dataclasses.asdict(group.parameterization),
        dataclasses.asdict(group.optimizer),
    ):
        common |= {k: list(v) if isinstance(v, tuple) else v for k, v in part.items() if k not in skip}
    return common
