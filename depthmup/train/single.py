"""One run from its config to its metrics: main.py's `train`."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from clu.parameter_overview import get_parameter_overview as overview

from depthmup.settings import Settings, SettingsError, flat
from depthmup.specs import specs_to_json
from depthmup.train import flops
from depthmup.train.assemble import Problem, problem_of
from depthmup.train.checkpoint import Checkpoints, Every
from depthmup.train.log import RunLog
from depthmup.train.loop import Diverged, TrialLoop
from depthmup.train.saved import FOLDER
from depthmup.train.step import Hyper, Trainer
from depthmup.train.stop import Stop
from depthmup.train.workdir import Workdir, write_atomically

RESULT = "metrics.json"
PROFILED = (2, 3)  # reports between which a trace is taken: compilation is over


def train(settings: Settings, workdir: Path | None = None, command: str = "", profile: bool = False) -> dict[str, Any]:
    """Train one network, from its last checkpoint if there is one; its metrics at the end, one number each.

    In the workdir: `metrics.json`, `metrics.jsonl` (a row per report), `settings.json`, `checkpoints/`, and with
    `profile` a trace of `log_every` steps in `profile/`. Without one nothing is written. Over several processes each
    calls this alike (docs/training.md).

    "diverged" among the metrics says whether the run did; with "diverged_at_step", and no losses, if it was stopped
    there. Raises SettingsError, WorkdirError, ValueError (bad data) before anything is compiled, Stopped when asked to
    stop.
    """
    first = jax.process_index() == 0
    problem = problem_of(settings)
    if profile and workdir is None:
        raise SettingsError("--profile needs --workdir=DIR, where the trace goes")
    loop = loop_of(problem, settings)
    trainer = problem.trainer(settings.model, settings.optimizer.name)
    hyper = problem.hyper(settings.model, settings.parameterization, settings.optimizer, settings.seed)
    identity = flat(settings)
    with contextlib.ExitStack() as stack:
        messages: list[str] = []
        if workdir and first:
            opened = Workdir(workdir, identity, FOLDER)
            stack.callback(opened.close)
            messages = opened.messages
        log = _log(problem, loop, trainer, hyper, workdir if first else None)
        stack.callback(log.close)
        say = log.say if first else _silent
        say(overview(jax.eval_shape(trainer.init, hyper.arrays()).params, include_stats=False))
        say(_headline(problem, settings, loop))
        for message in messages:
            say(message)
        if workdir is None:
            say("nothing is saved: --workdir=DIR keeps metrics and checkpoints")
        checkpoints = None
        if workdir and settings.checkpoint.every.unit != "never":
            checkpoints = _checkpoints(problem, settings, workdir, identity, say)
            stack.callback(checkpoints.close)
        stop = stack.enter_context(Stop())
        progress: Any = log if first else None
        if profile and first and workdir:
            progress = stack.enter_context(_profiled(log, workdir / "profile", say))
        try:
            result = loop.run(
                [hyper],
                problem.steps,
                settings.log_every,
                progress,
                evaluate_every=settings.evaluate_every.steps(problem.batches.steps_per_epoch),
                checkpoints=checkpoints,
                stop=stop,
                alone=True,
            )
            metrics = {name: value[0].item() for name, value in result.items()}
        except Diverged as error:
            last = checkpoints.steps()[-1:] if checkpoints else []
            kept = f"the last good checkpoint is that of step {last[0]}" if last else "there is no checkpoint"
            say(f"diverged: {error}; {kept}; lower the learning rate (in another --workdir)")
            metrics = {"diverged": True, "diverged_at_step": error.step}
        if first:
            log.finished(metrics)
            if workdir:
                content = {"metrics": metrics, "settings": dataclasses.asdict(settings), "command": command}
                write_atomically(workdir / RESULT, json.dumps(content, indent=1))
    return metrics


def loop_of(problem: Problem, settings: Settings) -> TrialLoop:
    """The loop of a lone run, its batches shared by `parallel.devices`."""
    wanted = settings.parallel.devices
    if wanted is None and jax.default_backend() == "cpu" and jax.process_count() == 1:
        wanted = 1  # the same numbers whatever the number of cores
    devices = jax.devices()
    if wanted and wanted > len(devices):
        raise SettingsError(f"parallel.devices = {wanted}, but there are {len(devices)}: lower it, or leave it unset")
    if wanted and jax.process_count() > 1 and wanted != len(devices):
        raise SettingsError(f"parallel.devices = {wanted}: several processes use all {len(devices)}; leave it unset")
    parts = len(devices[:wanted]) * settings.accumulate
    if problem.batches.batch_size % parts:
        raise SettingsError(
            f"data.batch_size {problem.batches.batch_size} cannot be split evenly over {len(devices[:wanted])} devices "
            f"in {settings.accumulate} parts each: choose a multiple of {parts}, or fewer devices by parallel.devices"
        )
    trainer = problem.trainer(settings.model, settings.optimizer.name)
    split, wrapper = "batch", settings.parallel.wrapper
    return TrialLoop(trainer, problem.batches, trials=1, devices=devices[:wanted], split=split, wrapper=wrapper)


def _checkpoints(
    problem: Problem, settings: Settings, workdir: Path, identity: Mapping[str, Any], say: Callable[[str], None]
) -> Checkpoints:
    how = settings.checkpoint
    return Checkpoints(
        workdir,
        identity,
        every=Every.of(how.every, problem.batches.steps_per_epoch),
        keep=how.keep,
        best=how.best,
        specs=json.loads(specs_to_json(problem.specs(settings.model))),
        say=say,
    )


def _log(problem: Problem, loop: TrialLoop, trainer: Trainer, hyper: Hyper, workdir: Path | None) -> RunLog:
    devices, batch_size = loop.map.devices, problem.batches.batch_size
    peak = flops.peak(devices[0])
    return RunLog(
        workdir,
        steps=problem.steps,
        batch_size=batch_size,
        steps_per_epoch=problem.batches.steps_per_epoch,
        devices=len(devices),
        flops=flops.of_step(trainer, hyper, problem.input_shape, batch_size) if peak else 0.0,
        peak=peak,
        waited=lambda: loop.programs.waited,
    )


def _headline(problem: Problem, settings: Settings, loop: TrialLoop) -> str:
    model, devices = settings.model, loop.map.devices
    return (
        f"{settings.parameterization.name}, {settings.optimizer.name}, width {model.width}, depth {model.depth}: "
        f"{problem.steps} steps of {problem.batches.batch_size} examples on {len(devices)} x {devices[0].device_kind}"
    )


@contextlib.contextmanager
def _profiled(log: RunLog, folder: Path, say: Callable[[str], None]) -> Iterator[Any]:
    """`log`, with a trace of the steps between two of the reports."""
    reports, running = 0, False

    def progress(step: int, metrics: Mapping[str, np.ndarray]) -> None:
        nonlocal reports, running
        log(step, metrics)
        reports += "loss" in metrics
        if reports == PROFILED[0] and not running:
            jax.profiler.start_trace(str(folder))
            running = True
        elif reports == PROFILED[1] and running:
            end()

    def end() -> None:
        nonlocal running
        if running:
            jax.profiler.stop_trace()
            running = False
            say(f"trace: {folder} (tensorboard --logdir={folder}, or ui.perfetto.dev)")

    try:
        yield progress
    finally:
        end()


def _silent(text: str) -> None:
    """Of several processes only the first speaks."""
