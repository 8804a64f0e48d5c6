"""Train the trials of a sweep that its workdir does not hold yet."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, Protocol

import jax

from depthmup import bucket
from depthmup.fit.transfer import margin_of
from depthmup.settings import LEARNING_RATE, Settings, SettingsError
from depthmup.train.checkpoint import check_place
from depthmup.train.devices import check_sets
from depthmup.train.stop import Stop
from depthmup.trials.adaptive import Search
from depthmup.trials.claims import Claims, OneProcess
from depthmup.trials.config_study import ConfigStudy
from depthmup.trials.estimate import Estimator, at_once
from depthmup.trials.group import CACHE, UNFINISHED, GroupCheckpoints, Runner, compiled_in
from depthmup.trials.plan import Group, Program, by_program, grid_trials, grouped, has_grid, missing, part, trial_count
from depthmup.trials.progress import Progress, about
from depthmup.trials.store import Finished, Store
from depthmup.trials.study import Row, Study, Trial
from depthmup.trials.until import decide, most
from depthmup.trials.workers import RETRIES, WAIT, Add, Calls, Pool, check_executor

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
    executor: Executor | None = None,
    retries: int = RETRIES,
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
      executor: whose workers train, a group each, in the place of this process, which alone writes the workdir.
      retries: how often a group is submitted again whose worker was lost.

    Returns:
      The rows, {column: value} each.

    Raises SettingsError, WorkdirError or ValueError (bad data) before anything is compiled, and Stopped when asked to
    stop, NotSaved if that is of no use any more, and WorkersLost.
    """
    study, workdir = ConfigStudy.of(sweep), bucket.folder(workdir)
    options, plan = study.sweep, checked_trials(study, shard, yes) if chosen is None else _checked_points(chosen)
    if executor:
        check_executor(executor, shard)
    else:
        check_sets(study.parallel, len(jax.local_devices()))
    check_place(workdir, study.checkpoint)
    with contextlib.ExitStack() as stack:
        beyond_keys, of = study.beyond_keys, "" if shard[1] == 1 else f"-{shard[0]}-of-{shard[1]}"
        identity = study.identity | beyond_keys
        store = stack.enter_context(contextlib.closing(Store(workdir, identity, beyond_keys, of, shared=not executor)))
        stack.callback(store.export)
        stack.enter_context(compiled_in(workdir / CACHE if options.cache else None))
        stop = stack.enter_context(Stop())
        seen = functools.partial(watch, store.rows) if watch else None
        goes_on = options.adaptive or options.until == "decided"
        shown = stack.enter_context(Progress(silent=not progress, watch=seen, goes_on=goes_on))
        runner = runner or Runner()
        workers: Workers
        if executor:
            workers = Pool(store, shown, stop, Calls(study, workdir, executor, retries, shown.say))
        else:
            workers = Here(store, shown, stop, study, workdir, runner)
        stack.callback(workers.close)
        size = None if chosen is None else options.at_once
        training = _Training(study, store, workers, shown, runner, plan, size)
        if options.adaptive:
            search = Search(study)
            training.run(search.next_trials)
            plan = search.evaluated(store.rows)
        else:
            mine = part(study, plan, *shard)
            training.run(lambda rows: mine)
        if options.until == "decided" and shard[1] == 1:
            plan = training.until_decided(plan)
        if shard[1] == 1 and workers.alone():
            bucket.remove(workdir / UNFINISHED)
    return [store.rows[trial.key] for trial in plan if trial.key in store.rows]


def cost(sweep: Settings | Mapping[str, Any] | Study, shard: tuple[int, int] = (0, 1), yes: bool = False) -> str:
    """The cost of a sweep that has not begun. This measures a few training steps.

    Args:
      sweep, shard, yes: of `train`.

    Returns:
      The cost in words, as --dry_run prints it.

    Raises as `train`.
    """
    study = ConfigStudy.of(sweep)
    plan = part(study, checked_trials(study, shard, yes), *shard)
    check_sets(study.parallel, len(jax.local_devices()))
    sizes = _sizes(study, plan, lambda first: lambda program: at_once(study, first[program]))
    groups, estimator = grouped(study, plan, sizes), Estimator()
    estimator.measure(groups, Runner())
    adaptive = "; adaptive: about half of that" if study.sweep.adaptive else ""
    most_more = most(study) if shard[1] == 1 else 0
    more = f"; and up to {most_more:,} more trials until verdicts are decided" if most_more else ""
    return f"{estimator.total(groups)}{adaptive}{more}"


def checked_trials(study: Study, shard: tuple[int, int] = (0, 1), yes: bool = False) -> list[Trial]:
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
    planned = trial_count(study)
    if planned > sweep.max_trials and not yes:
        raise SettingsError(
            f"the sweep would have {planned:,} trials, more than sweep.max_trials = {sweep.max_trials:,}: leave out "
            "values of an axis or seeds, or raise sweep.max_trials, or give --yes"
        )
    return _checked_points(grid_trials(study))


def _checked_points(plan: Sequence[Trial]) -> list[Trial]:
    """The trials. Raises SettingsError or ValueError for a point that cannot be trained."""
    for point in {trial.point.program: trial.point for trial in plan}.values():
        point.check()
    return list(plan)


class Workers(Protocol):
    """Who trains: this process, or those of an executor. measures: whether steps may be timed here beforehand."""

    measures: bool

    def at_once(self, first: Mapping[Program, Trial]) -> Callable[[Program], int]:
        """A function: program -> the largest number of its trials in a group. first: a trial of each program."""

    def train(self, todo: Sequence[Group], add: Add) -> None:
        """Train some of the groups, the first before the others: until some are added, or a moment has passed.

        Raises Stopped when asked to stop.
        """

    def alone(self) -> bool:
        """Whether no other process uses the workdir."""

    def close(self) -> None: ...


class Here:
    """This process. Others may share the workdir: each takes groups that no other is at."""

    measures = True

    def __init__(
        self, store: Store, progress: Progress, stop: Stop, study: Study, workdir: Path, runner: Runner
    ) -> None:
        self._store, self._progress, self._stop = store, progress, stop
        self._study, self._workdir, self._runner = study, workdir, runner
        self._claims = OneProcess(store) if bucket.in_bucket(workdir) else Claims(store, workdir)
        self.alone, self.close = self._claims.alone, self._claims.close

    def at_once(self, first: Mapping[Program, Trial]) -> Callable[[Program], int]:
        return lambda program: at_once(self._study, first[program])

    def train(self, todo: Sequence[Group], add: Add) -> None:
        self._stop.check("before the next group")
        taken = self._claims.take(todo)
        left = missing(todo, self._store.rows)
        self._progress.only({group.name for group in left})
        if not taken:
            if left:
                self._progress.note(f"another process is at what is left, {len(left)} groups; waiting for it")
                time.sleep(WAIT)
            return
        planned, group = taken
        say = functools.partial(self._progress.running, planned.name, str(group))
        say(0.0)
        with contextlib.ExitStack() as stack:
            checkpoints = None
            if group.study.checkpoint.every.unit != "never":
                checkpoints = GroupCheckpoints(self._workdir / UNFINISHED, group, self._progress.say, self._store.check)
                stack.callback(checkpoints.close)
            add(planned, self._runner.train_in_memory(group, self._progress.say, say, checkpoints, self._stop))
            self._claims.release(group)
            if checkpoints:
                checkpoints.remove()
        self._stop.check(f"after {group}")


@dataclasses.dataclass
class _Training:
    """What one call of `train` works with.

    plan: what is known of what will be trained, by which groups have their sizes. size: of the groups of every program,
    if it is given.
    """

    study: Study
    store: Store
    workers: Workers
    progress: Progress
    runner: Runner
    plan: Sequence[Trial]
    size: int | None

    def __post_init__(self) -> None:
        self.estimator = Estimator()
        self.said = False
        self.sizes = _sizes(self.study, self.plan, self.workers.at_once, self.size)

    def until_decided(self, plan: Sequence[Trial]) -> list[Trial]:
        """Train what verdicts need beyond the plan, whose rows are there. Returns all trials that they are about."""
        while (so_far := decide(plan, self.store.rows, self.study)).more:
            more = so_far.more
            self.run(lambda rows, more=more: more, f"undecided so far: {so_far}")  # type: ignore[misc]
        if so_far.undecided:
            self.progress.say(f"undecided: {so_far}; {so_far.spent}")
        return so_far.asked

    def run(self, wanted: Callable[[Mapping[str, Row]], Sequence[Trial]], why: str = "") -> None:
        """Train the wanted trials that the store does not have, and those that are wanted when there are more rows.

        wanted: rows -> trials. why: what the trials are for, if not those of the plan.
        """
        asked, todo, seen = set[str](), list[Group](), -1
        while True:
            more = list[Group]()
            if len(self.store.rows) != seen:
                seen = len(self.store.rows)
                new = [trial for trial in wanted(self.store.rows) if trial.key not in asked]
                asked |= {trial.key for trial in new}
                if any(trial.key not in self.store.rows for trial in new):
                    more = missing(grouped(self.study, new, self.sizes), self.store.rows)
            if more:
                self._say_cost(more, why)
                self.progress.expect(self.estimator.expected(more), self.estimator.measured)
            self._say_messages()
            todo = missing([*todo, *more], self.store.rows)
            if not todo:
                return
            self.workers.train(todo, self._add)

    def _add(self, planned: Group, finished: Sequence[Finished]) -> None:
        self.store.add(finished)
        self._say_messages()
        self.progress.finished(planned.name, len(finished))

    def _say_cost(self, todo: Sequence[Group], why: str) -> None:
        """Print the cost of the groups: of the plan once per call of `train`, and of all that follows it.

        Steps are measured for it only if the progress is shown.
        """
        if self.said and not why:
            return
        if self.progress.shown and not self.said and self.workers.measures:
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


def _sizes(
    study: Study,
    plan: Sequence[Trial],
    at_once: Callable[[Mapping[Any, Trial]], Callable[[Any], int]],
    every: int | None = None,
) -> Callable[[Any], int]:
    """A function: program -> the number of its trials in a group. every: that of every program, if it is given.

    The groups of a program have equal sizes, and no group is larger than `Workers.at_once` allows.
    """
    if every and not study.parallel.axes:
        return lambda program: every
    trials_of = by_program(plan)
    most = at_once({program: trials[0] for program, trials in trials_of.items()})

    @functools.cache
    def size(program: Any) -> int:
        count = len(trials_of[program])
        return -(-count // -(-count // most(program)))

    return size
