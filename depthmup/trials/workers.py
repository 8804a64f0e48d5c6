"""The workers of an executor, which train the groups of a sweep in the place of this process."""

from __future__ import annotations

import asyncio
import collections
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any, NamedTuple

from depthmup import bucket
from depthmup.interrupt import KEPT
from depthmup.settings import SettingsError
from depthmup.train.stop import Stop
from depthmup.trials.claims import first_free
from depthmup.trials.group import OutOfMemory
from depthmup.trials.plan import Group, Program
from depthmup.trials.progress import Progress
from depthmup.trials.remote import SENT, Failure, most_at_once, pack, time_group, train_group, words_of, work
from depthmup.trials.seconds import Timing
from depthmup.trials.store import Finished, Store
from depthmup.trials.study import Study, Trial

WAIT = 0.5  # seconds between two looks at requests to stop and at the work of others
RETRIES = 2
ERRORS = {"input": SettingsError, "memory": OutOfMemory, "code": RuntimeError}  # of the kinds of failures
Add = Callable[[Group, Sequence[Finished]], None]  # stores the rows of a group


class WorkersLost(RuntimeError):
    """The workers of an executor are gone. The message says what is kept and how to go on."""


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


class Pool:
    """`Workers` of the engine: those of an executor. This process alone writes the workdir."""

    measures = False

    def __init__(self, store: Store, progress: Progress, stop: Stop, calls: Calls) -> None:
        self._store, self._progress, self._stop, self._calls = store, progress, stop, calls

    def at_once(self, first: Mapping[Program, Trial]) -> Callable[[Program], int]:
        def call(program: Program) -> _Call:
            return _Call(str(first[program]), most_at_once, (words_of(first[program]),))

        every = dict[Program, int]()

        def most(program: Program) -> int:
            self._calls.collect(every, first, call, lambda: self._stop.check("before the first group"))
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
        self._stop.check("while workers train; what they have not finished is given up")

    def alone(self) -> bool:
        return True

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
