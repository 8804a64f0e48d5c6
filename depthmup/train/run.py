"""One run, from its config to its final metrics. `main.py train` calls it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from clu.parameter_overview import get_parameter_overview as overview

from depthmup.files import write_atomically
from depthmup.settings import Settings, SettingsError, flat
from depthmup.specs import specs_to_json
from depthmup.train import flops
from depthmup.train.build import batches_of, check_split, hyper_of, identity_of_data, steps_of, task_of
from depthmup.train.checkpoint import FOLDER, METRIC, Checkpoints
from depthmup.train.chips import chip_of
from depthmup.train.devices import BatchOverDevices
from depthmup.train.log import RunLog
from depthmup.train.loop import Reader, TrialLoop, ends
from depthmup.train.stop import Stop, Stopped
from depthmup.train.task import NEVER, Hyper
from depthmup.train.workdir import Workdir

Say = Callable[[str], None]
Report = Callable[[int, Mapping[str, np.ndarray]], None]
RESULT = "metrics.json"
PROFILED = (2, 3)  # the trace covers the steps between these two reports, when compilation is over
SAVE, STOP = 1, 2  # requests that one process may make to all processes
BEHIND = 1  # number of stretches until all processes know a request of one process


class Diverged(Exception):
    """The loss or the gradient of a run is not finite at `step`."""

    def __init__(self, step: int, loss: float, grad_norm: float) -> None:
        super().__init__(f"at step {step} the loss is {loss:.4g} and the norm of the gradient {grad_norm:.4g}")
        self.step = step


def train(settings: Settings, workdir: Path | None = None, command: str = "", profile: bool = False) -> dict[str, Any]:
    """Train one network and return its metrics at the end, one number each.

    The run goes on from its last checkpoint if there is one. It writes into the workdir: `metrics.json`,
    `metrics.jsonl` (a row per report), `settings.json`, `checkpoints/`, and with `profile` a trace of `log_every` steps
    in `profile/`. Without a workdir it writes nothing. If there are several processes, each of them calls this function
    with the same arguments (docs/training.md).

    The metric "diverged" says whether the run has diverged. If the run was stopped because its loss or gradient was not
    finite, "diverged_at_step" is the step, and there are no losses. Raises SettingsError, WorkdirError or ValueError
    (bad data) before anything is compiled, and Stopped when asked to stop.
    """
    first = jax.process_index() == 0
    if profile and workdir is None:
        raise SettingsError("--profile needs --workdir=DIR, where the trace goes")
    loop, hyper = loop_of(settings), hyper_of(settings)
    identity = flat(settings) | identity_of_data(settings)
    with contextlib.ExitStack() as stack:
        messages: list[str] = []
        if workdir and first:
            opened = Workdir(workdir, identity, FOLDER)
            stack.callback(opened.close)
            messages = opened.messages
        log = _log(settings, loop, hyper, workdir if first else None)
        stack.callback(log.close)
        say: Say = log.say if first else _silent
        say(overview(jax.eval_shape(loop.task.init, hyper.arrays()).params, include_stats=False))
        say(_headline(settings, loop))
        for message in messages:
            say(message)
        if workdir is None:
            say("nothing is saved: --workdir=DIR keeps metrics and checkpoints")
        checkpoints = None
        if workdir and settings.checkpoint.every.unit != "never":
            checkpoints = _checkpoints(settings, loop, workdir, identity, say)
            stack.callback(checkpoints.close)
        stop = stack.enter_context(Stop())
        report: Report = log if first else _unheard
        if profile and first and workdir:
            report = stack.enter_context(_profiled(log, workdir / "profile", say))
        try:
            metrics = train_loop(settings, loop, hyper, report, checkpoints, stop)
        except Diverged as error:
            if checkpoints:
                checkpoints.wait()
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


def train_loop(
    settings: Settings, loop: TrialLoop, hyper: Hyper, report: Report, checkpoints: Checkpoints | None, stop: Stop
) -> dict[str, Any]:
    """Train one network and return its metrics at the end. Log and files are the caller's, except checkpoints.

    report: is called with the number of steps done and the metrics of a stretch, or of an evaluation, (1, ...) each.

    Raises Diverged, and Stopped when asked to stop.
    """
    steps, per_epoch = steps_of(settings), loop.batches.steps_per_epoch
    restored = checkpoints.restore(loop.state_shapes([hyper])) if checkpoints else None
    begin = restored[0] if restored else 0
    state, hypers = loop.start([hyper], restored[1] if restored else None)

    def read(step: int, metrics: Mapping[str, np.ndarray]) -> None:
        report(step, metrics)
        _raise_if_diverged(step, metrics)

    def save(step: int, state: Any, metrics: Mapping[str, float] | None = None) -> None:
        reader.catch_up()
        if checkpoints and loop.halted(state)[0] == NEVER:
            checkpoints.save(step, loop.placement.get(state), metrics)

    def wish() -> int:
        if stop.requested:
            return STOP
        return SAVE if checkpoints and checkpoints.overdue() else 0

    reader, asked = Reader(read), _agreed(loop, wish)
    evaluating = settings.evaluate_every.steps(per_epoch)
    saving = settings.checkpoint.every.steps(per_epoch) if checkpoints else None
    for stretch in loop.stretches(
        state, hypers, begin, ends(steps, settings.log_every, evaluating, saving, start=begin)
    ):
        step, state = stretch.step, stretch.state
        reader.follow(stretch)
        answer = asked()
        if step == steps:
            break
        scores: dict[str, float] = {}
        if evaluating and step % evaluating == 0:
            reader.catch_up()
            found = loop.evaluate(state, hypers, loop.batches.dataset.validation)
            report(step, {f"validation_{name}": value for name, value in found.items()})
            scores = {f"validation_{name}": float(value[0]) for name, value in found.items()}
        if checkpoints:
            best = bool(scores) and checkpoints.improves(scores[METRIC])
            if best or answer or (saving and step % saving == 0):
                save(step, state, scores)
        if answer == STOP:
            reader.catch_up()
            raise Stopped.at(stop.requested, step, checkpoints is not None and checkpoints.has(step))
    reader.catch_up()
    metrics = {name: value[0].item() for name, value in loop.results(state, hypers).items()}
    save(steps, state, {METRIC: metrics[METRIC]})
    return metrics


def loop_of(settings: Settings, described: Sequence[jax.Device] | None = None) -> TrialLoop:
    """The loop of a lone run. The devices of `parallel.devices` share each batch.

    described: devices to compile for that are not there (`Placement.local`); None: the devices of all processes.
    """
    wanted, devices = settings.parallel.devices, list(described or jax.devices())
    if wanted is None and devices[0].platform == "cpu" and jax.process_count() == 1:
        wanted = 1  # the same numbers on a machine with any number of cores
    if wanted and wanted > len(devices):
        raise SettingsError(f"parallel.devices = {wanted}, but there are {len(devices)}: lower it, or leave it unset")
    if wanted and jax.process_count() > 1 and wanted != len(devices):
        raise SettingsError(f"parallel.devices = {wanted}: several processes use all {len(devices)}; leave it unset")
    task, batches, devices = task_of(settings), batches_of(settings), devices[:wanted]
    check_split(settings, len(devices), "parallel.devices")
    return TrialLoop(task, batches, BatchOverDevices(devices, settings.parallel.wrapper, described is not None))


def _agreed(loop: TrialLoop, wish: Callable[[], int]) -> Callable[[], int]:
    """A function that returns the greatest wish (0, SAVE or STOP) of all processes. Call it once per stretch.

    Several processes exchange their wishes, and the answer is from an earlier stretch: so all processes get the same
    answer at the same step, and no process waits for another.
    """
    if jax.process_count() == 1:
        return wish
    greatest, votes = loop.placement.greatest(), deque[Any]()

    def asked() -> int:
        votes.append(greatest(wish()))
        return int(votes.popleft()) if len(votes) > BEHIND else 0

    return asked


def _raise_if_diverged(end: int, metrics: Mapping[str, np.ndarray]) -> None:
    """Raise `Diverged` for the first step that is not finite. end: number of steps done after these metrics."""
    loss, norm = metrics["loss"][0], metrics["grad_norm"][0]
    bad = np.flatnonzero(~(np.isfinite(loss) & np.isfinite(norm)))
    if bad.size:
        raise Diverged(end - len(loss) + int(bad[0]), float(loss[bad[0]]), float(norm[bad[0]]))


def _checkpoints(
    settings: Settings, loop: TrialLoop, workdir: Path, identity: Mapping[str, Any], say: Say
) -> Checkpoints:
    how = settings.checkpoint
    specs = json.loads(specs_to_json(loop.task.specs))
    return Checkpoints(workdir, identity, seconds=how.every.seconds, keep=how.keep, best=how.best, specs=specs, say=say)


def _log(settings: Settings, loop: TrialLoop, hyper: Hyper, workdir: Path | None) -> RunLog:
    devices, batches = loop.placement.devices, loop.batches
    chip = chip_of(devices[0].device_kind)
    return RunLog(
        workdir,
        steps=steps_of(settings),
        batch_size=batches.batch_size,
        steps_per_epoch=batches.steps_per_epoch,
        devices=len(devices),
        flops=flops.of_step(loop.task, hyper, batches.batch_size) if chip else 0.0,
        peak=chip.peak if chip else None,
        waited=lambda: loop.waited,
    )


def _headline(settings: Settings, loop: TrialLoop) -> str:
    model, devices = settings.model, loop.placement.devices
    return (
        f"{settings.parameterization.name}, {settings.optimizer.name}, width {model.width}, depth {model.depth}: "
        f"{steps_of(settings)} steps of {loop.batches.batch_size} examples on {len(devices)} x {devices[0].device_kind}"
    )


@contextlib.contextmanager
def _profiled(log: RunLog, folder: Path, say: Say) -> Iterator[Report]:
    """`log`, and a profiler trace of the steps between the two reports in PROFILED."""
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
    """Drop a message: of several processes only the first prints."""


def _unheard(step: int, metrics: Mapping[str, np.ndarray]) -> None:
    """Drop a report: of several processes only the first logs."""
