"""A sweep on disk: one file for each finished group of trials, which is written whole or not at all.

Several processes may read and write a sweep at the same time.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from depthmup import bucket
from depthmup.files import digest, without_nan, write_atomically
from depthmup.train.workdir import Workdir, WorkdirError
from depthmup.trials.identity import HASHES, difference
from depthmup.trials.study import Row

if TYPE_CHECKING:
    import pandas
    import pyarrow
    from pyarrow import parquet

GROUPS = "groups"  # folder of the finished groups
RESULTS = "results.jsonl"  # file of all rows for other programs, written by `Store.export`
# Columns of a group's file that hold a list for each trial; their names are "curve/step", "measured/step", ...
LISTS = {"curve": ("step", "loss", "grad_norm"), "measured": ("step", "quantity", "layer", "value")}
KINDS = {"step": "int32", "layer": "int32", "quantity": "string"}  # pyarrow types; of other columns float
IDENTITY = b"depthmup"  # key of a file's metadata: the settings of the sweep, as settings.json has them
JOIN = "to join a sweep with an executor start more of its workers, one without an executor the same command"
ALWAYS = ("schema", "axes")  # entries that every identity has
Columns = Mapping[str, np.ndarray]
NOTHING: Columns = {}


class Finished(NamedTuple):
    """A finished trial. curve, measured: columns (LISTS) of its learning curve and measurements, or none."""

    row: Row
    curve: Columns = NOTHING
    measured: Columns = NOTHING


class Store:
    """The finished trials of a sweep.

    The trials are in `workdir/groups`, and the settings that they belong to are in `settings.json`. Several processes
    may have a store open at once. The files of several workdirs of one sweep may be copied into one.

    rows: {key: row}, in the order in which this process has read them.

    Raises WorkdirError if the workdir belongs to other settings or has another SCHEMA, or if a file of a group is that
    of another sweep.
    """

    def __init__(
        self,
        workdir: Path,
        settings: Mapping[str, Any],
        beyond_keys: Collection[str] = (),
        part: str = "",
        shared: bool = True,
    ) -> None:
        """settings: `Study.identity` with `Study.beyond_keys`. beyond_keys: the names of the latter.
        part, shared: as of `Workdir`."""
        self.rows, self._path = dict[str, Row](), workdir
        self._seen, self._unreadable, self._agree = set[Path](), set[Path](), set[bytes]()
        results = GROUPS if _is_there(workdir / GROUPS) else RESULTS  # rows copied alone must not be lost
        self._identity = json.dumps(settings)
        self._beyond_keys = {
            key: value for key, value in json.loads(self._identity).items() if key in (*ALWAYS, *beyond_keys)
        }
        self._workdir = Workdir(
            workdir,
            settings,
            results,
            shared=shared,
            differs=extension,
            remembered=lambda: _identity(workdir),
            part=part,
            join=JOIN,
        )
        self._messages = self._workdir.messages
        bucket.make(workdir / GROUPS)
        try:
            self.refresh()
        except WorkdirError:
            self.close()
            raise

    def add(self, group: Sequence[Finished]) -> None:
        """Add finished trials. When this returns, all of them are on the disk; if it raises, none of them is.

        Raises NotSaved as `Workdir.check`.
        """
        self.check()
        group = [finished._replace(row=without_nan(finished.row)) for finished in group]
        name, content = digest([finished.row["key"] for finished in group]), _bytes(group, self._identity)
        path = self._path / GROUPS / f"{name}.{_checksum(content)}.parquet"
        write_atomically(path, content, sync=True)
        self._take(path, [finished.row for finished in group])

    def refresh(self) -> None:
        """Read the rows that other processes have added.

        A file that cannot be read is tried again at each call, since another process may have rewritten it.
        """
        for path in sorted(set(_files(self._path)) - self._seen):
            try:
                rows, identity = _read(path)
            except Exception as error:  # damaged bytes make the reader raise many kinds of errors
                if path not in self._unreadable:
                    self._messages.append(f"{path} cannot be read, and its trials run again: {error}")
                self._unreadable.add(path)
                continue
            self._check(path, identity)
            self._take(path, rows)

    def messages(self) -> list[str]:
        """The messages to the user that are new since the last call."""
        new, self._messages = self._messages, []
        return new

    def export(self) -> None:
        """Write all rows to `results.jsonl`, one JSON object per line."""
        self.check()
        write_atomically(self._path / RESULTS, "".join(json.dumps(row) + "\n" for row in self.rows.values()))

    def check(self) -> None:
        """Raises NotSaved as `Workdir.check`."""
        self._workdir.check()

    def alone(self) -> bool:
        """Whether no process of another part of the sweep has this folder of a bucket."""
        return self._workdir.alone()

    def close(self) -> None:
        self._workdir.close()

    def _check(self, path: Path, identity: bytes) -> None:
        """Raise WorkdirError if the rows of a file are those of another sweep."""
        if identity in self._agree:
            return
        saved = json.loads(identity)
        other = extension({key: saved[key] for key in self._beyond_keys if key in saved}, self._beyond_keys)
        if other:
            raise WorkdirError(_foreign(path, other))
        self._agree.add(identity)

    def _take(self, path: Path, rows: Iterable[Row]) -> None:
        for row in rows:
            self.rows.setdefault(row["key"], row)
        self._seen.add(path)


def load(workdir: str | Path) -> pandas.DataFrame:
    """The rows of a sweep as a table (docs/sweeps.md).

    Args:
      workdir: of the sweep. If it has no files of groups, the rows come from results.jsonl, which may have been copied
        alone.

    Returns:
      A row per trial, a column per setting and result.

    Raises WorkdirError if the workdir holds no rows, or files of two sweeps of models.
    """
    import pandas

    rows: dict[str, Row] = {}
    first: dict[str, Any] = {}  # the identity of the first file, where keys of rows do not tell all that decides them
    for path in _files(bucket.folder(workdir)):
        group, content = _readable(_read, path) or ([], b"{}")
        identity = json.loads(content)
        if HASHES in identity:
            first = first or identity
            if other := extension(identity, first):
                raise WorkdirError(_foreign(path, other))
        for row in group:
            rows.setdefault(row["key"], row)
    exported = bucket.folder(workdir) / RESULTS
    if not rows and _is_there(exported):
        for number, line in enumerate(exported.read_text().splitlines(), 1):
            try:
                row = json.loads(line)
                rows.setdefault(row.get("key", str(number)), row)
            except (ValueError, AttributeError) as error:
                raise WorkdirError(f"{exported} line {number} is not a JSON object: delete that line") from error
    if not rows:
        raise WorkdirError(f"{workdir} holds no rows of a sweep: give the --workdir of main.py sweep")
    return pandas.DataFrame(rows.values())


def curves(workdir: str | Path) -> pandas.DataFrame:
    """The learning curves of a sweep.

    Args:
      workdir: of the sweep.

    Returns:
      A table with the columns key (as in `load`), step, loss, grad_norm.

    Raises WorkdirError if the workdir holds no rows.
    """
    return _lists(bucket.folder(workdir), "curve", "learning curves")


def measured(workdir: str | Path) -> pandas.DataFrame:
    """The measurements (sweep.measure) of a sweep.

    Args:
      workdir: of the sweep.

    Returns:
      A table with the columns key (as in `load`), step, quantity, layer, value.

    Raises WorkdirError if the workdir holds no rows.
    """
    return _lists(bucket.folder(workdir), "measured", "measurements")


def _lists(workdir: Path, about: str, words: str) -> pandas.DataFrame:
    """The lists of all trials as one table, a row for each entry. A trial that is in two files counts once."""
    import pandas
    import pyarrow as pa
    import pyarrow.compute as pc

    parts, seen = [], set[str]()
    for path in _files(workdir):
        table = _readable(_read_lists, path, about)
        if table is None:
            continue
        table = table.filter(pa.array([key not in seen for key in table["key"].to_pylist()], pa.bool_()))
        seen.update(table["key"].to_pylist())
        columns = {name: table[f"{about}/{name}"].combine_chunks() for name in LISTS[about]}
        trial = pc.list_parent_indices(columns["step"])
        flat = {name: pc.list_flatten(column) for name, column in columns.items()}
        parts.append(pa.table({"key": table["key"].combine_chunks().take(trial), **flat}))
    if not sum(map(len, parts)):
        raise WorkdirError(f"{workdir} holds no {words}: give the --workdir of main.py sweep")
    return pandas.concat([part.to_pandas() for part in parts], ignore_index=True)


def _foreign(path: Path, other: str) -> str:
    return f"{path} holds rows of another sweep: {other}. Move this file away"


def _is_there(path: Path) -> bool:
    with bucket.errors(path):
        return path.exists()


def _files(workdir: Path) -> list[Path]:
    with bucket.errors(workdir):
        return sorted((workdir / GROUPS).glob("*.parquet"))


def _readable(read: Any, path: Path, *arguments: Any) -> Any:
    """The result of `read`. If the file cannot be read, print a message and return None."""
    try:
        return read(path, *arguments)
    except Exception as error:  # any error, as in `Store.refresh`
        print(f"{path} cannot be read and is left out: {error}")
        return None


def _read(path: Path) -> tuple[list[Row], bytes]:
    """(rows, settings of their sweep as JSON)"""
    file = _opened(path)
    rows = file.read([name for name in file.schema_arrow.names if "/" not in name]).to_pylist()
    return rows, file.schema_arrow.metadata[IDENTITY]


def _read_lists(path: Path, about: str) -> pyarrow.Table:
    return _opened(path).read(["key", *(f"{about}/{name}" for name in LISTS[about])])


def _identity(workdir: Path) -> Any:
    """The settings of the sweep as its first readable file of a group has them; None if none has."""
    for path in _files(workdir):
        with contextlib.suppress(Exception):  # as in `Store.refresh`
            return json.loads(_opened(path).schema_arrow.metadata[IDENTITY])
    return None


def _opened(path: Path) -> parquet.ParquetFile:
    """The file of a group. Raises ValueError if it is not the one that was written."""
    from pyarrow import parquet

    content = path.read_bytes()
    if path.stem.partition(".")[2] != _checksum(content):
        raise ValueError("its bytes have changed")
    return parquet.ParquetFile(io.BytesIO(content), page_checksum_verification=True)


def _checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _bytes(group: Sequence[Finished], identity: str) -> bytes:
    import pyarrow as pa
    from pyarrow import parquet

    table = pa.Table.from_pylist([finished.row for finished in group])
    for about, names in LISTS.items():
        for name in names:
            kind = pa.list_(pa.type_for_alias(KINDS.get(name, "float")))
            lists = [getattr(finished, about).get(name, []) for finished in group]
            table = table.append_column(f"{about}/{name}", pa.array([list(values) for values in lists], kind))
    content = io.BytesIO()
    table = table.replace_schema_metadata({IDENTITY: identity})
    parquet.write_table(table, content, compression="zstd", write_page_checksum=True)
    return content.getvalue()


def extension(saved: Any, here: Any) -> str:
    """The first setting in which one sweep is no extension of another, in words: swept keys may differ."""
    if saved.get("schema") != here["schema"]:
        return f"schema was {saved.get('schema', 'none')}, now it is {here['schema']}"
    swept = {"axes", "sweep", *saved.get("axes", ()), *here["axes"]}
    return difference(*({k: v for k, v in tree.items() if k not in swept} for tree in (saved, here)))
