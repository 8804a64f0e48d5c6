"""Train the trials of a sweep that its workdir does not hold yet."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from depthmup import bucket
from depthmup.fit.transfer import margin_of
from depthmup.interrupt import GOES_ON
from depthmup.settings import LEARNING_RATE, Settings, SettingsError
from depthmup.train.checkpoint import check_place
from depthmup.train.devices import check_sets
from depthmup.train.stop import Stop, Stopped
from depthmup.trials.adaptive import Search
from depthmup.trials.claims import Claims, OneProcess
from depthmup.trials.config_study import ConfigStudy
from depthmup.trials.estimate import Estimator, at_once
from depthmup.trials.group import CACHE, UNFINISHED, GroupCheckpoints, OutOfMemory, Runner, compiled_in
from depthmup.trials.plan import Group, by_program, count, grouped, has_grid, part, trials
from depthmup.trials.progress import Progress, about
from depthmup.trials.store import Finished, Store
from depthmup.trials.study import Row, Study, Trial
from depthmup.trials.until import decide, most

WAIT = 0.5  # seconds between two looks at the work of other processes
MOST_PARTS = 1_000_000


def train(
    sweep: Settings | Mapping[str, Any] | Study,
    workdir: str | Path,
    *,
    shard: tuple[int, int] = (0, 1),
    yes: bool = False,
    progress: bool = True,
    watch: Callable[[Mapping[str, Row], Progress], None] | None = None,
    chosen: Sequence[Trial] | None = None,
    runner: Runner | None = None,
) -> list[Row]:
    """Train every trial of the sweep that `workdir` does not hold yet, and return the rows of the plan, in its order.

    A trial is a pure function of its settings. So the rows are the same after any number of interruptions, and several
    processes may train trials for one workdir at the same time.

    Args:
      sweep: the settings or the config of a sweep, or a `Study`.
      shard: (i, n): train only part i of n parts of the plan, i from 0. Parts may have separate workdirs on separate
        machines. A call without a shard reads the files of all parts that were copied into `workdir/groups`, and then
        goes on until verdicts are decided, if sweep.until says so.
      yes: allow a plan of more than sweep.max_trials trials.
      progress: whether to show the progress.
      watch: called with the rows so far, {key: row}, and the progress whenever there is news, many times a minute.
      chosen: trials at points of the study, which are trained in the place of its plan; []: it only checks the workdir.
        With sweep.at_once their groups have that size, however few they are, so that a later call has the same program.
      runner: keeps the last compiled program from one call to the next.

    Raises SettingsError, WorkdirError or ValueError (bad data) before anything is compiled, and Stopped when asked to
    stop, and NotSaved if that is of no use any more.
    """
    study, workdir = ConfigStudy.of(sweep), bucket.folder(workdir)
    options, plan = study.sweep, checked(study, shard, yes) if chosen is None else _checked_points(chosen)
    sizes = _sizes(study, plan, None if chosen is None else options.at_once)
    check_place(workdir, study.checkpoint)
    with contextlib.ExitStack() as stack:
        beyond_keys, of = study.beyond_keys, "" if shard[1] == 1 else f"-{shard[0]}-of-{shard[1]}"
        store = stack.enter_context(contextlib.closing(Store(workdir, study.identity | beyond_keys, beyond_keys, of)))
        stack.callback(store.export)
        one_process = bucket.in_bucket(workdir)
        claims = stack.enter_context(contextlib.closing(OneProcess(store) if one_process else Claims(store, workdir)))
        stack.enter_context(compiled_in(workdir / CACHE if options.cache else None))
        stop = stack.enter_context(Stop())
        seen = functools.partial(watch, store.rows) if watch else None
        goes_on = options.adaptive or options.until == "decided"
        shown = stack.enter_context(Progress(silent=not progress, watch=seen, goes_on=goes_on))
        training = _Training(study, workdir, store, claims, shown, stop, plan, sizes, runner or Runner())
        if options.adaptive:
            search = Search(study)
            while more := search.next_trials(store.rows):
                training.run(more)
            plan = search.evaluated(store.rows)
        else:
            training.run(part(study, plan, *shard))
        if options.until == "decided" and shard[1] == 1:
            plan = training.until_decided(plan)
        if shard[1] == 1 and claims.alone():
            bucket.remove(workdir / UNFINISHED)
    return [store.rows[trial.key] for trial in plan if trial.key in store.rows]


def cost(sweep: Settings | Mapping[str, Any] | Study, shard: tuple[int, int] = (0, 1), yes: bool = False) -> str:
    """The cost of a sweep that has not begun, in words, as --dry_run prints it. This measures a few training steps.

    sweep, shard, yes and errors are those of `train`.
    """
    study = ConfigStudy.of(sweep)
    plan = part(study, checked(study, shard, yes), *shard)
    groups, estimator = grouped(study, plan, _sizes(study, plan)), Estimator()
    estimator.measure(groups, Runner())
    adaptive = "; adaptive: about half of that" if study.sweep.adaptive else ""
    most_more = most(study) if shard[1] == 1 else 0
    more = f"; and up to {most_more:,} more trials until verdicts are decided" if most_more else ""
    return f"{estimator.total(groups)}{adaptive}{more}"


def checked(study: Study, shard: tuple[int, int] = (0, 1), yes: bool = False) -> list[Trial]:
    """All trials of the sweep. Raises SettingsError or ValueError if the sweep cannot be run.

    yes: make a plan of any size. Otherwise a plan of more than sweep.max_trials is refused before its trials are made,
    since a million of them take minutes and gigabytes.
    """
    sweep = study.sweep
    if not 0 <= shard[0] < shard[1] <= MOST_PARTS:
        raise SettingsError(
            f"shard {shard[0]}/{shard[1]} is out of range: give i/n with i from 0 to n - 1, and n up to {MOST_PARTS:,}"
        )
    if sweep.adaptive and shard[1] > 1:
        raise SettingsError("sweep.adaptive goes by results, so that it has no parts: leave --shard out")
    if sweep.adaptive and not has_grid(study):
        raise SettingsError(f"sweep.adaptive needs the grids of sweep.log2_learning_rates: leave {LEARNING_RATE} out")
    try:
        margin_of(sweep.margin)
    except ValueError as error:
        raise SettingsError(f"sweep.{error}") from error
    planned = count(study)
    if planned > sweep.max_trials and not yes:
        raise SettingsError(
            f"the sweep would have {planned:,} trials, more than sweep.max_trials = {sweep.max_trials:,}: leave out "
            "values of an axis or seeds, or raise sweep.max_trials, or give --yes"
        )
    return _checked_points(trials(study))


def _checked_points(plan: Sequence[Trial]) -> list[Trial]:
    """The trials. Raises SettingsError or ValueError for a point that cannot be trained."""
    for point in {trial.point.program: trial.point for trial in plan}.values():
        point.check()
    return list(plan)


@dataclasses.dataclass
class _Training:
    """What one call of `train` works with. An adaptive sweep calls `run` several times with the same objects."""

    study: Study
    workdir: Path
    store: Store
    claims: Claims | OneProcess
    progress: Progress
    stop: Stop
    plan: list[Trial]
    sizes: Callable[[Any], int]
    runner: Runner

    def __post_init__(self) -> None:
        self.estimator = Estimator()
        self.said = False

    def until_decided(self, plan: Sequence[Trial]) -> list[Trial]:
        """Train what verdicts need beyond the plan, whose rows are there. Returns all trials that they are about."""
        while (so_far := decide(plan, self.store.rows, self.study)).more:
            self.run(so_far.more, f"undecided so far: {so_far}")
        if so_far.undecided:
            self.progress.say(f"undecided: {so_far}; {so_far.spent}")
        return so_far.asked

    def run(self, wanted: Sequence[Trial], why: str = "") -> None:
        """Train the wanted trials that the store does not have. Wait for trials that other processes train.

        why: what the trials are for, if not those of the plan.
        """
        todo = self._missing(grouped(self.study, wanted, self.sizes))
        if not todo:
            return self._say_messages()
        self._say_cost(todo, why)
        while todo:
            self.progress.expect(self.estimator.expected(todo), self.estimator.measured)
            self._train(todo)
            self.store.refresh()
            self._say_messages()
            todo = self._missing(todo)
            if todo:
                self.progress.note(f"another process is at what is left, {len(todo)} groups; waiting for it")
                self._stop_if_asked()
                time.sleep(WAIT)

    def _train(self, todo: Sequence[Group]) -> None:
        """Train the groups that no other process has claimed."""
        self._stop_if_asked("before the next group")
        while taken := self._take(todo):
            planned, group = taken
            say = functools.partial(self.progress.running, planned.name, str(group))
            say(0.0)
            with contextlib.ExitStack() as stack:
                checkpoints = None
                if self.study.checkpoint.every.unit != "never":
                    checkpoints = GroupCheckpoints(
                        self.workdir / UNFINISHED, group, self.progress.say, self.store.check
                    )
                    stack.callback(checkpoints.close)
                try:
                    finished = self.runner.train(group, say, checkpoints, self.stop)
                except OutOfMemory as error:
                    finished = self._in_halves(group, error)
                self.store.add(finished)
                self.claims.release(group)
                self._say_messages()
                self.progress.finished(planned.name, len(finished))
                if checkpoints:
                    checkpoints.remove()
            self._stop_if_asked(f"after {group}")

    def _in_halves(self, group: Group, error: OutOfMemory) -> list[Finished]:
        """Train a group that did not fit in two parts, once: what does not fit then is an error."""
        if len(group.trials) < 2:
            raise error
        half = -(-len(group.trials) // 2)
        self.progress.say(f"{group}: {len(group.trials)} trials do not fit in memory at once; {half} at a time")
        parts = [dataclasses.replace(group, trials=t, size=half) for t in (group.trials[:half], group.trials[half:])]
        return [finished for part in parts for finished in self.runner.train(part, stop=self.stop)]

    def _take(self, todo: Sequence[Group]) -> tuple[Group, Group] | None:
        """Claim a group as `Claims.take` does, and tell the progress which groups other processes have finished."""
        taken = self.claims.take(todo)
        self.progress.only({group.name for group in self._missing(todo)})
        return taken

    def _missing(self, groups: Sequence[Group]) -> list[Group]:
        return [group for group in groups if any(trial.key not in self.store.rows for trial in group.trials)]

    def _say_cost(self, todo: Sequence[Group], why: str) -> None:
        """Print the cost of the groups: of the plan once per call of `train`, and of all that follows it.

        Steps are measured for it only if the progress is shown.
        """
        if self.said and not why:
            return
        if self.progress.shown and not self.said:
            every = grouped(self.study, self.plan, self.sizes) if self.study.sweep.adaptive else todo
            self.estimator.measure(every, self.runner)
        self._say_messages()
        left = [
            dataclasses.replace(group, trials=tuple(t for t in group.trials if t.key not in self.store.rows))
            for group in todo
        ]
        self.said, done, estimate = True, len(self.store.rows), self.estimator.total(left)
        words = f"{done:,} trials are there; to do: {estimate}" if done else str(estimate)
        words += " for the first sizes" * self.study.sweep.adaptive
        if why:
            time_left = "" if estimate.seconds is None else f", {about(estimate.seconds)}"
            words = f"{why}; {estimate.trials:,} more trials{time_left}"
        self.progress.say(words)

    def _say_messages(self) -> None:
        for message in self.store.messages():
            self.progress.say(message)

    def _stop_if_asked(self, where: str = "") -> None:
        if self.stop.requested:
            raise Stopped(self.stop.requested, f"{where}: {GOES_ON}".lstrip(": "))


def _sizes(study: Study, plan: Sequence[Trial], every: int | None = None) -> Callable[[Any], int]:
    """A function: program -> the number of its trials in a group. every: that of every program, if it is given.

    The groups of a program have equal sizes, and no group is larger than `at_once` allows. Raises SettingsError if the
    devices of this process do not split into equal sets.
    """
    check_sets(study.parallel, len(jax.local_devices()))
    if every and not study.parallel.axes:
        return lambda program: every
    trials_of = by_program(plan)

    @functools.cache
    def size(program: Any) -> int:
        trials = trials_of[program]
        return -(-len(trials) // -(-len(trials) // at_once(study, trials[0])))

    return size
