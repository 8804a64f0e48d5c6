"""Train one group of trials. The result depends only on their settings, not on the process that trains them."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental.compilation_cache import compilation_cache

from depthmup import bucket
from depthmup.backend import free_programs, out_of_memory, proc_lines
from depthmup.data.batch_checks import not_finite
from depthmup.data.user_feed import UserFeed
from depthmup.files import digest
from depthmup.rules.specs import PyTree
from depthmup.settings import ParallelSettings, SettingsError
from depthmup.train.checkpoint import Checkpoints
from depthmup.train.devices import Placement, StateOverDevices, TrialsOverDevices
from depthmup.train.loop import Hooks, TrialLoop, drive, stretch_ends
from depthmup.train.step import Hyper
from depthmup.train.stop import Stop
from depthmup.train.workdir import WorkdirError
from depthmup.trials.history import History, measured_after
from depthmup.trials.plan import Group
from depthmup.trials.rows import row_of
from depthmup.trials.store import Finished

LOG_EVERY = 64  # steps between two reports, after which a group can be checkpointed or stopped
UNFINISHED = "unfinished"  # folder of the checkpoints of groups that are being trained
CACHE = "compiled"  # folder of compiled programs


class OutOfMemory(SettingsError):
    """So many trials do not fit in memory at once."""


class Runner:
    """Trains groups. It keeps the compiled programs of the last group for further groups of this program and size, and
    frees those of earlier ones before there are too many."""

    def __init__(self) -> None:
        self._loop: TrialLoop | None = None
        self._program: Any = None

    def loop(self, group: Group) -> TrialLoop:
        """The training loop with the compiled programs of a group."""
        measure, parallel = group.study.sweep.measure, group.study.parallel
        program = group.program, group.size, measure, parallel
        if self._loop is None or self._program != program:
            if self._loop:
                self._loop.close()
            self._loop = None
            free_programs()
            point = group.point
            measured = point.measurement(measure) if measure else None
            self._loop = TrialLoop(point.task, point.feed, placement(parallel, group.size), measured)
            self._program = program
        return self._loop

    def train(
        self,
        group: Group,
        progress: Callable[[float], None] = lambda share: None,
        checkpoints: GroupCheckpoints | None = None,
        stop: Stop | None = None,
    ) -> list[Finished]:
        """Train all trials of a group, from its checkpoint if there is one.

        progress: is called with the share of the steps that is done.

        Raises Stopped when asked to stop, after a checkpoint, and OutOfMemory.
        """
        hypers, points = hypers_of(group), group.study.sweep.measure_points
        steps = [int(hyper.steps) for hyper in hypers]
        try:
            loop = self.loop(group)
            hooks = GroupHooks(group, loop, steps, progress, checkpoints, stop)
            history = hooks.history
            restored = checkpoints.resume(loop.state_shapes(hypers), history) if checkpoints else None
            begin = restored[0] if restored else 0
            reports = stretch_ends(max(steps), LOG_EVERY, hooks.saving, also=hooks.looks, start=begin)
            results = loop.results(*drive(loop, hypers, reports, hooks, restored))
        except jax.errors.JaxRuntimeError as error:
            if not out_of_memory(error):
                raise
            raise OutOfMemory(f"{group}: out of memory; set sweep.at_once below {group.size}") from error
        _check_batches(group, history.values[0])
        finished = []
        for i, (trial, count) in enumerate(zip(group.trials, steps, strict=False)):  # steps: of what fills it up too
            of_state = {name: value[i].item() for name, value in results.items()}
            row = row_of(trial, count, of_state, history.columns(i, count))
            finished.append(Finished(row, history.curve(i, count), history.measurements(i, count, points)))
        return finished

    def train_in_memory(
        self,
        group: Group,
        say: Callable[[str], None] = print,
        progress: Callable[[float], None] = lambda share: None,
        checkpoints: GroupCheckpoints | None = None,
        stop: Stop | None = None,
    ) -> list[Finished]:
        """`train`; a group that does not fit into memory in two parts, once: what does not fit then is an error."""
        try:
            return self.train(group, progress, checkpoints, stop)
        except OutOfMemory:
            if len(group.trials) < 2:
                raise
        half = -(-len(group.trials) // 2)
        say(f"{group}: {len(group.trials)} trials do not fit in memory at once; {half} at a time")
        parts = [dataclasses.replace(group, trials=t, size=half) for t in (group.trials[:half], group.trials[half:])]
        return [finished for part in parts for finished in self.train(part, stop=stop)]


def _check_batches(group: Group, losses: np.ndarray) -> None:
    """Raises SettingsError where all trials stop at a step whose batch has numbers that are not finite.

    losses: of all steps, (trials, steps), NaN from the step on at which a trial stopped.
    """
    feed, stopped = group.point.feed, {int(step) for step in np.isfinite(losses).argmin(axis=1)}
    if len(stopped) > 1 or np.isfinite(losses).all(axis=1).any() or not isinstance(feed, UserFeed):
        return
    (first,) = stopped
    steps = [step for step in (first - 1, first) if step >= 0]  # a gradient may not be finite before a loss is
    for step, batch in zip(steps, feed.at(steps), strict=False):
        if problem := not_finite(batch):
            raise SettingsError(
                f"the batch of step {step}: {problem}, and all {len(losses)} trials of {group} stop there"
            )


class GroupHooks(Hooks):
    """History, measurements and checkpoints of a group of trials."""

    def __init__(
        self,
        group: Group,
        loop: TrialLoop,
        steps: Sequence[int],
        progress: Callable[[float], None],
        checkpoints: GroupCheckpoints | None,
        stop: Stop | None,
    ) -> None:
        super().__init__(checkpoints, stop, checkpoints.steps_between if checkpoints else None)
        sweep, self._last = group.study.sweep, max(steps)
        self._loop, self._progress = loop, progress
        self.history = History(len(group.trials), self._last)
        points = sweep.measure_points if sweep.measure else 0
        self.looks = {step for count in steps for step in measured_after(count, points)}
        self._frozen = np.zeros(group.size, bool)

    def read(self, step: int, metrics: Mapping[str, np.ndarray]) -> None:
        self.history.add(step, metrics)
        self._frozen = np.isnan(metrics["loss"][:, -1])
        self._progress(step / self._last)

    def look(self, step: int, state: PyTree, hyper: PyTree) -> None:
        self.history.measure(step, self._loop.measure(state, hyper))

    def save(self, step: int, state: PyTree) -> None:
        if self.checkpoints:
            self.checkpoints.save(step, self._loop.placement.get(state), more=self.history.arrays(step))

    def over(self) -> bool:
        return bool(self._frozen.all())


def placement(
    parallel: ParallelSettings, trials: int, devices: Sequence[jax.Device] | None = None, described: bool = False
) -> Placement:
    """Where so many trials of a sweep are trained; over a mesh, one. devices: of one process; None: this process's."""
    if parallel.axes:
        if trials > 1:
            raise ValueError(f"a mesh takes one trial at a time, got {trials}")
        return StateOverDevices(parallel.axes, devices or jax.local_devices(), described)
    share = parallel.devices_per_trial
    return TrialsOverDevices(trials, devices, parallel.wrapper, share=share, described=described)


def hypers_of(group: Group) -> list[Hyper]:
    """The hyperparameters of all trials. If the program is for more trials, trials of 0 steps fill it up."""
    hypers = [trial.hyper for trial in group.trials]
    return hypers + [hypers[-1]._replace(steps=0)] * (group.size - len(hypers))


class GroupCheckpoints(Checkpoints):
    """The checkpoints of a group of trials. The arrays of a checkpoint contain the history of the trials so far.

    steps_between: steps from one checkpoint to the next; None if checkpoints are not due by steps.
    """

    def __init__(
        self, folder: Path, group: Group, say: Callable[[str], None], before: Callable[[], None] = lambda: None
    ) -> None:
        """folder: the folder with the checkpoints of all groups. say, before: as of `Checkpoints`."""
        self.folder = folder / f"{group.name}-{group.size}"
        trials = {"trials": [trial.key for trial in group.trials], "size": group.size}
        every, failures = group.study.checkpoint.every, group.study.checkpoint.failures
        self.steps_between = every.steps(group.point.feed.steps_per_epoch)
        super().__init__(
            self.folder, trials, seconds=every.seconds, keep=1, best=0, failures=failures, say=say, before=before
        )

    def resume(self, like: Any, history: History) -> tuple[int, Any] | None:
        """(step, state) to go on from, or None to start from the beginning. Fills `history` up to this step.

        A checkpoint of another program is removed, and the group starts from the beginning.
        """
        try:
            checkpoint = self.restore(like)
        except WorkdirError as error:
            self._say(f"a group of trials starts anew: {error}")
            self.remove()
            return None
        if not checkpoint:
            return None
        history.restore(checkpoint[2], checkpoint[0])
        return checkpoint[:2]

    def remove(self) -> None:
        """Remove the checkpoints: the group is finished, or they cannot be used."""
        self.close()
        bucket.remove(self.folder)


@contextlib.contextmanager
def compiled_in(folder: Path | None) -> Iterator[None]:
    """While this context is open, JAX keeps compiled programs in this folder and looks for them there.

    If JAX has a folder for compiled programs already, that folder stays in use.
    """
    if folder is None or getattr(jax.config, "jax_compilation_cache_dir"):  # noqa: B009 - jax declares it at run time
        yield
        return
    wanted = {
        "jax_compilation_cache_dir": str(folder / _machine()),
        "jax_persistent_cache_min_compile_time_secs": 0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    if jax.default_backend() == "cpu":  # else each program's key contains the folder's path, which may change
        wanted["jax_persistent_cache_enable_xla_caches"] = "none"
    before = {name: getattr(jax.config, name) for name in wanted}
    for name, value in wanted.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()  # JAX may have looked for the cache before, when it had no folder
    try:
        yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()


def _machine() -> str:
    """A name that machines share if they can run each other's programs. Programs use the instruction set of the CPU."""
    if jax.default_backend() != "cpu":
        return jax.default_backend()
    kinds = ("flags", "Features", "model name")
    return "cpu-" + digest([line for line in proc_lines("cpuinfo") if line.startswith(kinds)][:2])
