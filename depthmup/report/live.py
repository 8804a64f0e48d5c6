"""report.html while its sweep is running."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas

from depthmup.report import page, words
from depthmup.report.curves import finished, judge
from depthmup.trials.plan import grid_trials
from depthmup.trials.progress import Progress
from depthmup.trials.study import Row, Study, Trial
from depthmup.trials.verdicts import TransferCurve

EVERY = 10.0  # seconds between two versions of the page, at least
SHARE = 0.02  # of the time of a sweep that writing its page may take


class LiveReport:
    """Writes report.html now and then, with progress, time left, and the verdicts of the sizes that are finished.
    Prints each verdict that differs from the last page's; after an interruption all that are decided.

    `depthmup.sweep.train` calls it, in the thread that trains. A page that cannot be written stops no training: the
    sweep says why, and goes on without it.
    """

    def __init__(self, study: Study, workdir: Path, command: str) -> None:
        self._study, self._workdir, self._command = study, workdir, command
        self._next = 0.0  # no page before this time
        self._last: tuple[Mapping[str, Row], str, float] | None = None
        self._plan: list[Trial] = []  # made once, if there is something to judge
        self._failed = False
        self._curves: Sequence[TransferCurve] = ()  # of the last page

    def __call__(self, rows: Mapping[str, Row], progress: Progress) -> None:
        start = time.monotonic()
        if start < self._next or self._failed:
            return
        self._last = rows, progress.line(), progress.share
        try:
            before, self._curves = self._curves, self._write("")
            if news := words.news(self._curves, before):
                progress.say(f"so far: {news}")
        except Exception as error:  # of any kind: the rows are worth more than the page
            self._failed = True
            progress.say(f"no report while this runs: {type(error).__name__}: {error}")
        end = time.monotonic()
        self._next = end + max(EVERY, (end - start) / SHARE)

    def stop(self) -> None:
        """Say in the page that the sweep has been stopped, if there is a page."""
        if self._last and not self._failed:
            self._write("stopped; the same command goes on")

    def _write(self, stopped: str) -> Sequence[TransferCurve]:
        assert self._last
        rows, line, share = self._last
        if rows and not self._plan and not self._study.sweep.adaptive:
            self._plan = grid_trials(self._study)
        judged = finished(rows, self._study, self._plan) if rows else None
        table, study = judged or (pandas.DataFrame(rows.values()), self._study)
        curves = judge(table, study) if judged else []
        unfinished = page.Unfinished(stopped or line, share, time.time())
        page.write_report(curves, table, study, self._workdir, self._command, unfinished)
        return curves
