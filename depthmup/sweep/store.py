"""Rows on disk: append-only, one JSON object per finished trial, safe against a kill at any moment."""

from __future__ import annotations

import fcntl
import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from depthmup.sweep.plan import Trial

Row = dict[str, Any]


class StoreError(RuntimeError):
    """A workdir that cannot be used; the message says why and how to go on."""


class Store:
    """`workdir/results.jsonl` and the settings it belongs to, in `workdir/settings.json`.

    Opening it takes a lock for as long as the process lives. A line that a kill cut off is removed, with a message in
    `self.message`; its trial runs again. Raises StoreError for a workdir of other settings, one in use by another
    process, or a corrupt line before the last.
    """

    def __init__(self, workdir: Path, settings: Mapping[str, Any]) -> None:
        self.path = workdir / "results.jsonl"
        self.message = ""
        self._check_settings(workdir / "settings.json", json.loads(json.dumps(settings)))
        workdir.mkdir(parents=True, exist_ok=True)
        self._file = open(self.path, "a+b")  # noqa: SIM115 - held open: the lock lives as long as the file
        try:
            self._lock()
            write_atomically(workdir / "settings.json", json.dumps(settings, indent=1))
            self.rows = self._read()
        except BaseException:
            self._file.close()
            raise

    def done(self) -> set[Trial]:
        """The trials that are finished."""
        return {Trial.of(row) for row in self.rows}

    def append(self, rows: Iterable[Row]) -> None:
        """Add finished trials: one write, on the disk when this returns."""
        rows = [{k: (None if isinstance(v, float) and not math.isfinite(v) else v) for k, v in r.items()} for r in rows]
        self._file.write("".join(json.dumps(row) + "\n" for row in rows).encode())
        self._file.flush()
        os.fsync(self._file.fileno())
        self.rows += rows

    def close(self) -> None:
        self._file.close()

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            where = self.path.parent
            raise StoreError(f"{where} is in use by another process: wait for it or give another --workdir") from error

    def _read(self) -> list[Row]:
        self._file.seek(0)
        content = self._file.read()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            os.truncate(self.path, whole)
            self.message = f"{self.path}: the last row was cut off and is removed; its trial runs again"
        rows = []
        for number, line in enumerate(content[:whole].splitlines(), 1):
            try:
                rows.append(json.loads(line))
            except ValueError as error:
                raise StoreError(
                    f"{self.path} line {number} is not JSON: delete that line to run its trial again"
                ) from error
        return rows

    def _check_settings(self, path: Path, settings: Any) -> None:
        if not path.exists():
            if self.path.exists() and self.path.stat().st_size:
                raise StoreError(f"{path.parent} holds results.jsonl but no settings.json: give another --workdir")
            return
        try:
            saved = json.loads(path.read_text())
        except ValueError as error:
            raise StoreError(f"{path} is not JSON: give another --workdir, or delete this one to start over") from error
        differing = [k for k, v in _flat(settings).items() if _flat(saved).get(k, "nothing") != v]
        differing += [k for k in _flat(saved) if k not in _flat(settings)]
        if differing:
            key = differing[0]
            raise StoreError(
                f"{path.parent} holds results of another config: {key} was {_flat(saved).get(key)!r}, now it is "
                f"{_flat(settings).get(key)!r}. Give another --workdir, or delete this one to start over"
            )


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file so that a reader, or a kill, sees the old content or the new, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(content.encode() if isinstance(content, str) else content)
    os.replace(temporary, path)


def _flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(tree, dict):
        return {prefix: tree}
    return {
        key: value for name, sub in tree.items() for key, value in _flat(sub, f"{prefix}.{name}".strip(".")).items()
    }
