"""One run, from its config to its final metrics. `main.py train` calls it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from clu.parameter_overview import get_parameter_overview as overview

from depthmup import bucket
from depthmup.files import first_difference, write_atomically
from depthmup.rules.specs import PyTree, specs_to_json
from depthmup.settings import Settings, SettingsError, flat
from depthmup.train import flops
from depthmup.train.build import batches_of, check_split, hyper_of, identity_of_data, steps_of, task_of
from depthmup.train.checkpoint import FOLDER, METRIC, Checkpoints, check_place
from depthmup.train.chips import chip_of
from depthmup.train.devices import BatchOverDevices, StateOverDevices, check_mesh
from depthmup.train.divergence import NEVER, finite
from depthmup.train.log import RunLog
from depthmup.train.loop import Hooks, TrialLoop, drive, stretch_ends
from depthmup.train.step import Hyper
from depthmup.train.stop import Stop
from depthmup.train.workdir import Workdir, WorkdirError

Say = Callable[[str], None]
Report = Callable[[int, Mapping[str, np.ndarray]], None]
RESULT = "metrics.json"
PROFILED = (2, 3)  # the trace covers the steps between these two reports, when compilation is over
PAUSE = 1.0  # seconds between two attempts to write the last metrics
BEHIND = 1  # number of stretches until all processes know a request of one process


class Diverged(Exception):
    """The loss or the gradient of a run is not finite at `step`."""

    def __init__(self, step: int, loss: float, grad_norm: float) -> None:
        super().__init__(f"at step {step} the loss is {loss:.4g} and the norm of the gradient {grad_norm:.4g}")
        self.step = step


def train_network(
    settings: Settings, workdir: str | Path | None = None, command: str = "", profile: bool = False
) -> dict[str, Any]:
    """Train one network and return its metrics at the end, one number each.

    The run goes on from its last checkpoint if there is one. It writes into the workdir: `metrics.json`,
    `metrics.jsonl` (a row per report), `settings.json`, `checkpoints/`, and with `profile` a trace of `log_every` steps
    in `profile/`. Without a workdir it writes nothing. If there are several processes, each of them calls this function
    with the same arguments (docs/training.md).

    The metric "diverged" says whether the run has diverged. If the run was stopped because its loss or gradient was not
    finite, "diverged_at_step" is the step, and there are no losses. Raises SettingsError, WorkdirError or ValueError
    (bad data) before anything is compiled, Stopped when asked to stop, and NotSaved if that is of no use any more.
    """
    first = jax.process_index() == 0
    if profile and workdir is None:
        raise SettingsError("--profile needs --workdir=DIR, where the trace goes")
    workdir = None if workdir is None else bucket.folder(workdir)
    if workdir:
        check_place(workdir, settings.checkpoint)
    if profile and workdir and bucket.in_bucket(workdir):
        raise SettingsError(f"--profile writes no trace to {workdir}: give it a local --workdir")
    loop, hyper = loop_of(settings), hyper_of(settings)
    identity = flat(settings) | identity_of_data(settings)
    with contextlib.ExitStack() as stack:
        messages, check = list[str](), _nothing
        if workdir and first:
            opened = Workdir(workdir, identity, FOLDER, differs=_difference)
            stack.callback(opened.close)
            messages, check = opened.messages, opened.check

        def before_saving() -> None:
            check()
            log.flush()

        log = _log(settings, loop, hyper, workdir if first else None)
        stack.callback(log.close)
        # Of several processes only the first prints and logs.
        say: Say = log.say if first else lambda text: None
        say(overview(jax.eval_shape(loop.task.init, hyper.arrays()).params, include_stats=False))
        say(_headline(settings, loop))
        for message in messages:
            say(message)
        if workdir is None:
            say("nothing is saved: --workdir=DIR keeps metrics and checkpoints")
        checkpoints = None
        if workdir and settings.checkpoint.every.unit != "never":
            checkpoints = Checkpoints(
                workdir,
                identity,
                seconds=settings.checkpoint.every.seconds,
                keep=settings.checkpoint.keep,
                best=settings.checkpoint.best,
                failures=settings.checkpoint.failures,
                specs=json.loads(specs_to_json(loop.task.specs)),
                say=say,
                before=before_saving,
            )
            stack.callback(checkpoints.close)
        stop = stack.enter_context(Stop())
        report: Report = log if first else lambda step, metrics: None
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
            content = {"metrics": metrics, "settings": dataclasses.asdict(settings), "command": command}
            check()
            _finish(log, workdir, metrics, json.dumps(content, indent=1))
        if checkpoints:
            checkpoints.wait()
    return metrics


def metrics_words(metrics: Mapping[str, Any]) -> str:
    return ", ".join(f"{k} {v:.4f}" if isinstance(v, float) else f"{k} {v}" for k, v in metrics.items())


def _nothing() -> None:
    pass


def _difference(saved: Any, here: Any) -> str:
    """`first_difference`. If the length of the training differs, the text says why a longer one starts anew."""
    difference = first_difference(saved, here)
    reason = " the schedule of the learning rate is that of the whole training, so that a longer one starts anew"
    return f"{difference};{reason}" if difference.startswith("epochs was") else difference


def _finish(log: RunLog, workdir: Path | None, metrics: Mapping[str, Any], content: str) -> None:
    """Write the metrics of the end. Raises WorkdirError, with the metrics printed, where two attempts fail."""
    for last in (False, True):
        try:
            log.finished(metrics)
            if workdir:
                write_atomically(workdir / RESULT, content)
        except OSError as error:
            if last:
                log.say(metrics_words(metrics))
                raise WorkdirError(
                    f"{workdir}: the metrics above are not saved ({error}): with room, and the folder in its place, "
                    "the same command saves them"
                ) from error
            time.sleep(PAUSE)
        else:
            return


def train_loop(
    settings: Settings, loop: TrialLoop, hyper: Hyper, report: Report, checkpoints: Checkpoints | None, stop: Stop
) -> dict[str, Any]:
    """Train one network and return its metrics at the end. Log and files are the caller's, except checkpoints.

    report: is called with the number of steps done and the metrics of a stretch, or of an evaluation, (1, ...) each.

    Raises Diverged, and Stopped when asked to stop.
    """
    hooks = RunHooks(settings, loop, report, checkpoints, stop)
    restored = checkpoints.restore(loop.state_shapes([hyper])) if checkpoints else None
    begin = restored[0] if restored else 0
    steps = stretch_ends(hooks.steps, settings.log_every, hooks.evaluating, hooks.saving, start=begin)
    state, hypers = drive(loop, [hyper], steps, hooks, restored and restored[:2])
    metrics = {name: value[0].item() for name, value in loop.results(state, hypers).items()}
    hooks.scores = {hooks.steps: {METRIC: metrics[METRIC]}}
    hooks.save(hooks.steps, state)
    return metrics


class RunHooks(Hooks):
    """Log, evaluations and checkpoints of a lone run. evaluating: steps between two evaluations; None for none."""

    def __init__(
        self, settings: Settings, loop: TrialLoop, report: Report, checkpoints: Checkpoints | None, stop: Stop
    ) -> None:
        per_epoch, self.steps = loop.batches.steps_per_epoch, steps_of(settings)
        super().__init__(checkpoints, stop, settings.checkpoint.every.steps(per_epoch) if checkpoints else None)
        self._loop, self._report = loop, report
        self.evaluating = settings.evaluate_every.steps(per_epoch)
        self.looks = range(self.evaluating, self.steps, self.evaluating) if self.evaluating else ()
        self.scores: dict[int, dict[str, float]] = {}  # {step: its evaluation}, of the last one
        self._agreed = _agreed(loop, super().asked)
        self._greatest = loop.placement.greatest() if jax.process_count() > 1 else int

    def read(self, step: int, metrics: Mapping[str, np.ndarray]) -> None:
        self._report(step, metrics)
        _raise_if_diverged(step, metrics)

    def look(self, step: int, state: PyTree, hyper: PyTree) -> None:
        values = self._loop.evaluate(state, hyper, self._loop.batches.splits["validation_"])
        self._report(step, {f"validation_{name}": value for name, value in values.items()})
        self.scores = {step: {f"validation_{name}": float(value[0]) for name, value in values.items()}}

    def asked(self) -> int:
        return self._agreed()

    def due(self, step: int) -> bool:
        score = self.scores.get(step)
        best = bool(self.checkpoints and score and self.checkpoints.improves(score[METRIC]))
        if score:  # the first process alone knows the best, and each has a part of the state to save
            best = bool(self._greatest(best))
        return best or super().due(step)

    def save(self, step: int, state: PyTree) -> None:
        if self.checkpoints and self._loop.halted(state)[0] == NEVER:
            self.checkpoints.save(step, self._loop.placement.get(state), self.scores.get(step))


def loop_of(settings: Settings, described: Sequence[jax.Device] | None = None) -> TrialLoop:
    """The loop of a lone run. The devices of `parallel.devices` share each batch, and by `parallel.mesh` the state.

    described: devices to compile for that are not there (`Placement.local`); None: the devices of all processes.
    """
    wanted, devices, axes = settings.parallel.devices, list(described or jax.devices()), settings.parallel.axes
    if wanted is None and not axes and devices[0].platform == "cpu" and jax.process_count() == 1:
        wanted = 1  # the same numbers on a machine with any number of cores
    if wanted and wanted > len(devices):
        raise SettingsError(f"parallel.devices = {wanted}, but there are {len(devices)}: lower it, or leave it unset")
    if wanted and jax.process_count() > 1 and wanted != len(devices):
        raise SettingsError(f"parallel.devices = {wanted}: several processes use all {len(devices)}; leave it unset")
    task, batches, devices = task_of(settings), batches_of(settings), devices[:wanted]
    if axes:
        check_mesh(settings.parallel, len(devices))
    check_split(settings, len(devices), "parallel.mesh" if axes else "parallel.devices")
    if axes:
        return TrialLoop(task, batches, StateOverDevices(axes, devices, described is not None))
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
    bad = np.flatnonzero(~finite(loss, norm))
    if bad.size:
        raise Diverged(end - len(loss) + int(bad[0]), float(loss[bad[0]]), float(norm[bad[0]]))


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
