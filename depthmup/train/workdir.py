"""Files of a run: written whole or not at all, by one process at a time, and only if the settings are the same."""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

Row = dict[str, Any]
LOCK = ".lock"
SETTINGS = "settings.json"


class WorkdirError(RuntimeError):
    """A workdir that cannot be used; the message says why and how to go on."""


class Workdir:
    """A folder of results and the settings that decide them, in `settings.json`.

    Opening it takes a lock for as long as the process lives. Raises WorkdirError if it belongs to other settings,
    naming the first that differs, or is in use by another process.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any], results: str) -> None:
        """results: the file without which there is nothing to protect."""
        self.path = path
        settings = json.loads(json.dumps(settings))
        self._check_settings(settings, path / results)
        path.mkdir(parents=True, exist_ok=True)
        self._lock = _locked(path)
        try:
            write_atomically(path / SETTINGS, json.dumps(settings, indent=1))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._lock.close()

    def _check_settings(self, settings: Any, results: Path) -> None:
        saved_at = self.path / SETTINGS
        if not saved_at.exists():
            if results.exists() and (results.is_dir() or results.stat().st_size):
                raise WorkdirError(f"{self.path} holds {results.name} but no {SETTINGS}: give another --workdir")
            return
        try:
            saved = json.loads(saved_at.read_text())
        except ValueError as error:
            raise WorkdirError(
                f"{saved_at} is not JSON: give another --workdir, or delete this one to start over"
            ) from error
        difference = first_difference(saved, settings)
        if difference:
            raise WorkdirError(
                f"{self.path} holds results of another config: {difference}. Give another --workdir, or delete this "
                "one to start over"
            )


def first_difference(saved: Any, here: Any) -> str:
    """ "key was 1, now it is 2" for the first leaf in which two trees of JSON differ; "" if none."""
    before, now = flat(saved), flat(here)
    for key in [*now, *before]:
        if before.get(key, "nothing") != now.get(key, "nothing"):
            return f"{key} was {before.get(key, 'nothing')!r}, now it is {now.get(key, 'nothing')!r}"
    return ""


def flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    """{"a.b": leaf} of nested mappings."""
    if not isinstance(tree, dict):
        return {prefix: tree}
    return {key: value for name, sub in tree.items() for key, value in flat(sub, f"{prefix}.{name}".strip(".")).items()}


def digest(tree: Any) -> str:
    """Hash of a tree of JSON, the same whatever the order of its keys."""
    return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()[:16]


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file so that a reader, or a kill, sees the old content or the new, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


class Lines:
    """A file of JSON objects, one a line, to which whole lines are appended.

    A last line that a kill cut off is removed on opening (`cut` says so); `rows` are the others. Raises WorkdirError
    for a line that is not JSON.
    """

    def __init__(self, path: Path, remedy: str) -> None:
        """remedy: what to do about a line that is not JSON."""
        content = path.read_bytes() if path.exists() else b""
        whole = content.rfind(b"\n") + 1
        self.cut, self._path = whole < len(content), path
        self.rows: list[Row] = []
        for number, line in enumerate(content[:whole].splitlines(), 1):
            try:
                self.rows.append(json.loads(line))
            except ValueError as error:
                raise WorkdirError(f"{path} line {number} is not JSON: {remedy}") from error
        if self.cut:
            os.truncate(path, whole)
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115 - held open: one append after another

    def append(self, rows: Iterable[Row], sync: bool = True) -> None:
        """In the file, and with `sync` on the disk, when this returns; if it raises OSError (a full disk), nothing of
        them is. NaN becomes null."""
        rows = [{k: (None if isinstance(v, float) and not math.isfinite(v) else v) for k, v in r.items()} for r in rows]
        content = "".join(json.dumps(row) + "\n" for row in rows).encode()
        before = os.fstat(self._file.fileno()).st_size
        try:
            while content:
                content = content[self._file.write(content) :]
            if sync:
                os.fsync(self._file.fileno())
        except OSError:
            os.ftruncate(self._file.fileno(), before)
            raise
        self.rows += rows

    def keep(self, wanted: Callable[[Row], bool]) -> None:
        """Remove the other rows, all at once."""
        rows = [row for row in self.rows if wanted(row)]
        if len(rows) < len(self.rows):
            write_atomically(self._path, "".join(json.dumps(row) + "\n" for row in rows))
            self._file.close()
            self._file = open(self._path, "ab", buffering=0)  # noqa: SIM115
            self.rows = rows

    def close(self) -> None:
        self._file.close()


def _locked(path: Path) -> BinaryIO:
    file = open(path / LOCK, "ab")  # noqa: SIM115 - held open: the lock lives as long as the file
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise WorkdirError(
            f"{path} is in use by another process: wait for it or give another --workdir (the processes of one run "
            "over several hosts need --distributed)"
        ) from error
    return file
