"""Who trains the groups of a sweep: this process, perhaps beside others that share its folder, or an executor."""

from __future__ import annotations

import abc
import asyncio
import collections
import contextlib
import functools
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any, NamedTuple

from depthmup import bucket
from depthmup.interrupt import GOES_ON, KEPT
from depthmup.settings import SettingsError
from depthmup.train.stop import Stop, Stopped
from depthmup.trials.claims import Claims, OneProcess, first_free
from depthmup.trials.estimate import at_once
from depthmup.trials.group import UNFINISHED, GroupCheckpoints, OutOfMemory, Runner
from depthmup.trials.plan import Group, Program, missing
from depthmup.trials.progress import Progress
from depthmup.trials.remote import SENT, Failure, most_at_once, pack, time_group, train_group, words_of, work
from depthmup.trials.seconds import Timing
from depthmup.trials.store import Finished, Store
from depthmup.trials.study import Study, Trial

WAIT = 0.5  # seconds between two looks at requests to stop and at the work of other processes
RETRIES = 2
ERRORS = {"input": SettingsError, "memory": OutOfMemory, "code": RuntimeError}  # of the kinds of failures
Add = Callable[[Group, Sequence[Finished]], None]  # stores the rows of a group


class WorkersLost(RuntimeError):
    """The workers of an executor are gone. The message says what is kept and how to go on."""


class Workers(abc.ABC):
    """What the engine asks of who trains. measures: whether steps may be timed in this process beforehand."""

    measures: bool

    def __init__(self, store: Store, progress: Progress, stop: Stop) -> None:
        self._store, self._progress, self._stop = store, progress, stop

    @abc.abstractmethod
    def at_once(self, first: Mapping[Program, Trial]) -> Callable[[Program], int]:
        """A function: program -> the largest number of its trials in a group. first: a trial of each program."""

    @abc.abstractmethod
    def train(self, todo: Sequence[Group], add: Add) -> None:
        """Train some of the groups, the first before the others: until some are added, or a moment has passed.

        Raises Stopped when asked to stop.
        """

    def alone(self) -> bool:
        """Whether no other process uses the workdir."""
        return True

    @abc.abstractmethod
    def close(self) -> None: ...

    def _stop_if_asked(self, where: str = "") -> None:
        if self._stop.requested:
            raise Stopped(self._stop.requested, f"{where}: {GOES_ON}".lstrip(": "))


class Here(Workers):
    """This process. Others may share the workdir: each takes groups that no other is at."""

    measures = True

    def __init__(
        self, store: Store, progress: Progress, stop: Stop, study: Study, workdir: Path, runner: Runner
    ) -> None:
        super().__init__(store, progress, stop)
        self._study, self._workdir, self._runner = study, workdir, runner
        self._claims = OneProcess(store) if bucket.in_bucket(workdir) else Claims(store, workdir)

    def at_once(self, first: Mapping[Program, Trial]) -> Callable[[Program], int]:
        return lambda program: at_once(self._study, first[program])

    def train(self, todo: Sequence[Group], add: Add) -> None:
        self._stop_if_asked("before the next group")
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
        self._stop_if_asked(f"after {group}")

    def alone(self) -> bool:
        return self._claims.alone()

    def close(self) -> None:
        self._claims.close()


class _Call(NamedTuple):
    """A call of a worker. words: what it is of."""

    words: str
    task: Callable[..., Any]
    arguments: tuple[Any, ...]


class Calls:
    """Calls of an executor's workers, until they are closed.

    retries: how often a call whose worker was lost is made again. say: is told of each.
    """

    def __init__(
        self, study: Study, workdir: Path, executor: Executor, retries: int, say: Callable[[str], object]
    ) -> None:
        self._executor, self._retries, self._workdir, self._say = executor, retries, workdir, say
        self._parcel = pack(study, workdir)
        self._running = dict[Future[Any], Any]()  # {future: name of the call}
        self._lost, self._errors = collections.Counter[Any](), dict[Any, Exception]()

    @property
    def running(self) -> int:
        """How many workers are at one."""
        return sum(future.running() for future in self._running)

    def close(self) -> None:
        for future in self._running:
            future.cancel()
        bucket.remove(self._workdir / SENT)

    def collect(
        self, results: dict[Any, Any], names: Collection[Any], call_of: Callable[[Any], _Call], stop: Callable[[], None]
    ) -> None:
        """Add the results of those names that have none. stop: is called again and again, and raises to give up."""
        while left := [name for name in names if name not in results]:
            results |= self.results(left, call_of)
            stop()

    def results(self, names: Iterable[Any], call_of: Callable[[Any], _Call]) -> dict[Any, Any]:
        """{name: result} of those calls that have ended. The others are made unless they run; waits a moment for them.

        What went wrong is raised when nothing runs any more, so that the results of all other calls are there; memory
        that is too small only if nothing else went wrong.
        """
        for name in names:
            if name not in self._running.values() and name not in self._errors:
                self._submit(name, call_of(name))
        done, _ = wait(self._running, WAIT, FIRST_COMPLETED)
        results = dict[Any, Any]()
        for future in done:
            name = self._running.pop(future)
            try:
                result = future.result()
            except (Exception, asyncio.CancelledError) as error:
                self._lose(name, call_of(name).words, error)
                continue
            if isinstance(result, Failure):
                self._errors[name] = ERRORS[result.kind](f"{call_of(name).words} {result.words}")
            else:
                results[name] = result
        if self._errors and not (self._running or results):
            raise min(self._errors.values(), key=lambda error: isinstance(error, OutOfMemory))
        return results

    def _submit(self, name: Any, call: _Call) -> None:
        try:
            future = self._executor.submit(work, uuid.uuid4().hex, self._parcel, call.task, *call.arguments)
        except Exception as error:  # of any kind: an executor that is broken, shut down or not reached
            raise WorkersLost(f"the executor takes no more work ({_in_words(error)}): {KEPT}") from error
        self._running[future] = name

    def _lose(self, name: Any, words: str, error: BaseException) -> None:
        """Count and say that the worker of a call was lost."""
        self._lost[name] += 1
        text = f"{words}: its worker was lost ({_in_words(error)})"
        if self._lost[name] > self._retries:
            self._errors[name] = WorkersLost(f"{text}, {self._lost[name]} times: {KEPT}")
        else:
            self._say(f"{text}; it is submitted again")


class Pool(Workers):
    """An executor's workers. This process alone writes the workdir."""

    measures = False

    def __init__(self, store: Store, progress: Progress, stop: Stop, calls: Calls) -> None:
        super().__init__(store, progress, stop)
        self._calls = calls

    def at_once(self, first: Mapping[Program, Trial]) -> Callable[[Program], int]:
        def call(program: Program) -> _Call:
            return _Call(str(first[program]), most_at_once, (words_of(first[program]),))

        every = dict[Program, int]()

        def most(program: Program) -> int:
            self._calls.collect(every, first, call, lambda: self._stop_if_asked("before the first group"))
            return every[program]

        return most

    def train(self, todo: Sequence[Group], add: Add) -> None:
        groups = {group.name: group for group in todo}

        def call(name: str) -> _Call:
            _, group = first_free([groups[name]], self._store.rows.keys()) or (None, groups[name])
            words, keys = [words_of(trial) for trial in group.trials], [trial.key for trial in group.trials]
            return _Call(str(group), train_group, (words, group.size, keys))

        for name, finished in self._calls.results(groups, call).items():
            add(groups[name], finished)
        self._progress.elsewhere(self._calls.running)
        self._stop_if_asked("while workers train; what they have not finished is given up")

    def close(self) -> None:
        self._calls.close()


def time_groups(
    groups: Mapping[str, Group], timings: dict[str, Timing], calls: Calls, stop: Callable[[], None]
) -> None:
    """Add to `timings` what trainings take in each of the groups that has none. stop: of `Calls.collect`.

    Raises OutOfMemory when all that fit are timed.
    """

    def call(name: str) -> _Call:
        group = groups[name]
        return _Call(str(group), time_group, ([words_of(trial) for trial in group.trials], group.size))

    calls.collect(timings, groups, call, stop)


def check_executor(executor: Any, shard: tuple[int, int] = (0, 1)) -> None:
    """Raises TypeError or SettingsError for what cannot train."""
    if shard[1] > 1:
        raise SettingsError("an executor shares out the whole sweep: leave the shard out")
    if not isinstance(executor, Executor):
        raise TypeError(
            f"executor must be a concurrent.futures.Executor, such as client.get_executor() of a Dask client, got "
            f"{type(executor).__name__}"
        )
    context = getattr(executor, "_mp_context", None)
    if isinstance(executor, ProcessPoolExecutor) and context and context.get_start_method() == "fork":
        raise SettingsError(
            "JAX does not survive a fork: give ProcessPoolExecutor(mp_context=multiprocessing.get_context('spawn'))"
        )


def _in_words(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".rstrip(": ").split())
