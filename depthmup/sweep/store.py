"""Rows on disk: append-only, one JSON object per finished trial, safe against a kill at any moment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from depthmup.sweep.plan import Trial
from depthmup.train.workdir import Lines, Row, Workdir

RESULTS = "results.jsonl"


class Store:
    """`workdir/results.jsonl` and the settings it belongs to, in `workdir/settings.json`.

    A line that a kill cut off is removed, with a message in `self.message`; its trial runs again. Raises WorkdirError
    as `Workdir` and `Lines` do.
    """

    def __init__(self, workdir: Path, settings: Mapping[str, Any]) -> None:
        self.path = workdir / RESULTS
        self._workdir = Workdir(workdir, settings, RESULTS)
        try:
            self._lines = Lines(self.path, "delete that line to run its trial again")
        except BaseException:
            self._workdir.close()
            raise
        cut = f"{self.path}: the last row was cut off and is removed; its trial runs again"
        self.message = cut if self._lines.cut else ""

    @property
    def rows(self) -> list[Row]:
        return self._lines.rows

    def done(self) -> set[Trial]:
        """The trials that are finished."""
        return {Trial.of(row) for row in self.rows}

    def append(self, rows: Iterable[Row]) -> None:
        """Add finished trials: one write, on the disk when this returns."""
        self._lines.append(rows)

    def close(self) -> None:
        self._lines.close()
        self._workdir.close()
