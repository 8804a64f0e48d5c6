"""Rows and learning curves on disk: append-only, safe against a kill at any moment, for several processes at once."""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from depthmup.sweep.plan import SCHEMA, Group
from depthmup.train.workdir import (
    Lines,
    Row,
    Workdir,
    WorkdirError,
    digest,
    first_difference,
    flat,
    parsed,
    write_atomically,
)

if TYPE_CHECKING:
    import pandas

RESULTS = "results*.jsonl"  # one file of this process's shard, those of the others beside it
CURVES = "curves"  # folder of parquet files, one per group of trials
MEASURED = "measured"  # likewise, of what sweep.measure asks for
CLAIMS = "claims"  # folder of files, one per process that is running: the keys of the trials it is at
REMEDY = "delete that line to run its trial again"
Columns = Mapping[str, np.ndarray]  # as of `history.History`


class Store:
    """The rows of a sweep, by key, in `workdir/results.jsonl`, and the settings they belong to, in `settings.json`.

    Several processes may have it open at once. Raises WorkdirError if it belongs to other settings or another schema,
    or holds a line that is not JSON; a last line that a kill cut off is removed, with a message in `messages`.
    """

    def __init__(self, workdir: Path, settings: Mapping[str, Any], shard: tuple[int, int] = (0, 1)) -> None:
        """settings: `engine.identity`. shard: (number of this part of the sweep, number of parts)."""
        name = "results.jsonl" if shard[1] == 1 else f"results-{shard[0]}-of-{shard[1]}.jsonl"
        self.path, self.rows, self._messages = workdir / name, dict[str, Row](), list[str]()
        self._dir, self._cut = workdir, 0
        self._others: dict[Path, tuple[int, int]] = {}  # files of other shards: bytes and lines that were read
        self._workdir = Workdir(workdir, settings, name, shared=True, differs=_difference)
        self._messages += self._workdir.messages
        try:
            self._lines, self._taken = Lines(self.path, REMEDY), 0
            self._take()
            self._read_others()
        except BaseException:
            self.close()
            raise

    def append(self, rows: Sequence[Row], curves: Columns, measured: Columns | None = None) -> None:
        """Add finished trials and what goes with them: on the disk when this returns, or nothing of them."""
        name = digest([row["key"] for row in rows])
        _write_columns(self._dir / CURVES / f"{name}.parquet", rows, curves)
        if measured and len(measured["trial"]):
            _write_columns(self._dir / MEASURED / f"{name}.parquet", rows, measured)
        self._lines.append(rows)
        self._take()

    def refresh(self) -> None:
        """Take in what other processes have added."""
        self._lines.refresh()
        self._take()
        self._read_others()

    def messages(self) -> list[str]:
        """What there is to say since the last time."""
        new, self._messages = self._messages, []
        return new

    def close(self) -> None:
        if hasattr(self, "_lines"):
            self._lines.close()
        self._workdir.close()

    def _add(self, rows: Iterable[Row], path: Path) -> None:
        for row in rows:
            if row.get("schema") != SCHEMA:
                raise WorkdirError(
                    f"{path} has rows of schema {row.get('schema', 'none')}, this version writes {SCHEMA}: its numbers "
                    "may be others. Give another --workdir, or delete this one to start over"
                )
            self.rows.setdefault(row["key"], row)

    def _read_others(self) -> None:
        for path in sorted(set(self._dir.glob(RESULTS)) - {self.path}):
            seen, lines = self._others.get(path, (0, 0))
            with open(path, "rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH)
                file.seek(seen)
                rows, whole, broken = parsed(file.read(), path, REMEDY, lines)
            self._add(rows, path)
            if broken and path not in self._others:
                self._messages.append(f"{path}: the last row is cut off and not used; its trial runs again")
            self._others[path] = seen + whole, lines + len(rows)

    def _take(self) -> None:
        """What is new in the file: of this process and of others."""
        new, self._taken = self._lines.rows[self._taken :], len(self._lines.rows)
        self._add(new, self.path)
        if self._lines.cut > self._cut:
            self._cut = self._lines.cut
            self._messages.append(f"{self.path}: the last row was cut off and is removed; its trial runs again")


class Claims:
    """What the processes that share a store are at, so that none repeats another's work: a file each, that its process
    holds a lock on for as long as it lives."""

    def __init__(self, store: Store, workdir: Path) -> None:
        self._store, self._dir = store, workdir / CLAIMS
        self._dir.mkdir(exist_ok=True)
        self._own: set[str] = set()
        self._path = self._dir / f"{os.uname().nodename}-{os.getpid()}-{uuid.uuid4().hex[:8]}.json"
        with self._mutex():
            self._file = open(self._path, "w+")  # noqa: SIM115 - held open: the claim lives as long as the file
            fcntl.flock(self._file, fcntl.LOCK_EX)
            self._write(set())

    def take(self, groups: Iterable[Group]) -> tuple[Group, Group] | None:
        """The first of these groups with trials neither done nor claimed, and a group of those, which it claims."""
        with self._mutex():
            self._store.refresh()
            taken = self._own.union(*self._others())
            for group in groups:
                free = tuple(t for t in group.trials if t.key not in self._store.rows and t.key not in taken)
                if free:
                    self._write(self._own | {trial.key for trial in free})
                    return group, Group(free, group.size)
        return None

    def release(self, group: Group) -> None:
        with self._mutex():
            self._write(self._own - {trial.key for trial in group.trials})

    def alone(self) -> bool:
        """Whether no other process is at this store."""
        with self._mutex():
            return not list(self._others())

    def close(self) -> None:
        with self._mutex():
            self._path.unlink(missing_ok=True)
            self._file.close()

    @contextlib.contextmanager
    def _mutex(self) -> Iterator[None]:
        with open(self._dir / ".lock", "ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _others(self) -> Iterator[set[str]]:
        for path in self._dir.glob("*.json"):
            if path == self._path:
                continue
            with open(path) as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except OSError:
                    yield set(json.load(file))
                else:  # nobody holds it: its process is gone
                    path.unlink(missing_ok=True)

    def _write(self, keys: set[str]) -> None:
        self._own = keys
        self._file.seek(0)
        self._file.truncate()
        json.dump(sorted(keys), self._file)
        self._file.flush()


def load(path: str | Path) -> pandas.DataFrame:
    """The rows of a sweep as a table: a row per trial, a column per setting and result (docs/sweeps.md).

    path: its workdir. Raises WorkdirError if it holds no rows, or a line that is not JSON.
    """
    import pandas

    files = sorted(Path(path).glob(RESULTS))
    rows: dict[str, Row] = {}
    for file in files:
        found, _, broken = parsed(file.read_bytes(), file, REMEDY)
        if broken:
            print(f"{file}: the last row is cut off and left out")
        for row in found:
            rows.setdefault(row.get("key", str(len(rows))), row)
    if not rows:
        raise WorkdirError(f"{path} holds no rows of a sweep ({RESULTS}): give the --workdir of main.py sweep")
    return pandas.DataFrame(rows.values())


def curves(path: str | Path) -> pandas.DataFrame:
    """The learning curves of a sweep: columns key (of `load`'s rows), step, loss, grad_norm."""
    return _read_columns(Path(path) / CURVES, "learning curves", ["key", "step"])


def measured(path: str | Path) -> pandas.DataFrame:
    """What a sweep has measured (sweep.measure): columns key (of `load`'s rows), step, quantity, layer, value."""
    return _read_columns(Path(path) / MEASURED, "measurements", ["key", "step", "quantity", "layer"])


def _read_columns(folder: Path, what: str, unique: list[str]) -> pandas.DataFrame:
    import pandas

    files = sorted(folder.glob("*.parquet"))
    if not files:
        raise WorkdirError(f"{folder} holds no {what}: give the --workdir of main.py sweep")
    parts = []
    for file in files:
        try:
            parts.append(pandas.read_parquet(file).astype({"key": "str"}))
        except (OSError, ValueError) as error:  # cut off by a power cut
            print(f"{file}: cannot be read and is left out ({error})")
    if not parts:
        raise WorkdirError(f"{folder} holds no {what} that can be read")
    return pandas.concat(parts, ignore_index=True).drop_duplicates(unique, ignore_index=True)


def _write_columns(path: Path, rows: Sequence[Row], columns: Columns) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    keys = pa.DictionaryArray.from_arrays(pa.array(columns["trial"]), pa.array([row["key"] for row in rows]))
    table = pa.table({"key": keys, **{name: pa.array(values) for name, values in columns.items() if name != "trial"}})
    path.parent.mkdir(exist_ok=True)
    content = io.BytesIO()
    parquet.write_table(table, content, compression="zstd")
    write_atomically(path, content.getvalue(), sync=True)


def _difference(saved: Any, here: Any) -> str:
    """The first setting in which two sweeps differ but for what they sweep over: a sweep may be extended."""
    if saved.get("schema") != here["schema"]:
        return f"schema was {saved.get('schema', 'none')}, now it is {here['schema']}"
    swept = {"axes", *saved["axes"], *here["axes"]}
    before, now = (
        {k: v for k, v in flat(tree).items() if k not in swept and not k.startswith("sweep.")} for tree in (saved, here)
    )
    return first_difference(before, now)
