"""Which trials of a shared workdir each process is training."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import uuid
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO

from depthmup.train.workdir import one_at_a_time
from depthmup.trials.plan import Group
from depthmup.trials.store import Store

CLAIMS = "claims"  # folder of locked files: the trials that each running process trains


class OneProcess:
    """Like `Claims`, for a sweep in a bucket, which has no locks: one process trains it, or each part of it."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def take(self, groups: Iterable[Group]) -> tuple[Group, Group] | None:
        return first_free(groups, self._store.rows.keys())

    def release(self, group: Group) -> None:
        """Nothing is claimed."""

    def alone(self) -> bool:
        return self._store.alone()

    def close(self) -> None:
        """Nothing is held."""


class Claims:
    """The trials that each process of a shared workdir is training, so that no process repeats the work of another.

    A claim is a file with the keys of some trials. Its process keeps the file locked until these trials are finished.
    The system frees the lock when the process is killed, so no claim outlives its process.
    """

    def __init__(self, store: Store, workdir: Path) -> None:
        self._store, self._dir = store, workdir / CLAIMS
        self._dir.mkdir(exist_ok=True)
        self._held: dict[str, IO[str]] = {}
        with self._mutex():
            self._hold(uuid.uuid4().hex, [])  # an empty claim: it shows until `close` that this process uses the store

    def take(self, groups: Iterable[Group]) -> tuple[Group, Group] | None:
        """Claim the free trials, neither done nor claimed, of the first group that has any.

        Returns (this group, a group of its free trials); None if no group has free trials.
        """
        with self._mutex():
            self._store.refresh()
            claims = [*map(self._file, self._held), *self._others()]
            taken = self._store.rows.keys() | {key for path in claims for key in json.loads(path.read_text())}
            pair = first_free(groups, taken)
            if pair:
                self._hold(pair[1].name, [trial.key for trial in pair[1].trials])
            return pair

    def release(self, group: Group) -> None:
        """Give up the claim of a group, whose trials are finished."""
        with self._mutex():
            self._let_go(group.name)

    def alone(self) -> bool:
        """Whether no other process uses this store."""
        with self._mutex():
            return not any(True for _ in self._others())

    def close(self) -> None:
        with self._mutex():
            for name in list(self._held):
                self._let_go(name)

    def _mutex(self) -> AbstractContextManager[None]:
        return one_at_a_time(self._dir / ".lock")

    def _hold(self, name: str, keys: Sequence[str]) -> None:
        file = open(self._file(name), "w")  # noqa: SIM115 - held open: the claim lives as long as the file
        fcntl.flock(file, fcntl.LOCK_EX)
        json.dump(list(keys), file)
        file.flush()
        self._held[name] = file

    def _let_go(self, name: str) -> None:
        self._file(name).unlink(missing_ok=True)
        self._held.pop(name).close()

    def _file(self, name: str) -> Path:
        return self._dir / f"{name}.json"

    def _others(self) -> Iterator[Path]:
        """The claims of other processes."""
        for path in self._dir.glob("*.json"):
            if path.stem in self._held:
                continue
            with open(path) as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except OSError:
                    yield path
                else:  # the lock is free: its process has ended
                    path.unlink(missing_ok=True)


def first_free(groups: Iterable[Group], taken: Collection[str]) -> tuple[Group, Group] | None:
    """(the first group with free trials, a group of these)"""
    for group in groups:
        free = tuple(trial for trial in group.trials if trial.key not in taken)
        if free:
            return group, dataclasses.replace(group, trials=free)
    return None
