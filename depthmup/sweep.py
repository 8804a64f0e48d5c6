"""Sweeps from Python: train many trials, judge them, write the report, read rows and learning curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import pandas
from rich.console import Console

from depthmup import bucket
from depthmup.measure import MaximalUpdate
from depthmup.report import page, words
from depthmup.report.calibration import calibrate, calibrations, path_sum
from depthmup.report.compare import compare
from depthmup.report.curves import curves_along_depth
from depthmup.report.curves import judge as curves_of
from depthmup.report.grow import Grown, grow
from depthmup.report.learning_curves import LearningCurves, noise_scales
from depthmup.report.live import LiveReport
from depthmup.report.result import SweepResult
from depthmup.report.result import of_table as judge
from depthmup.report.tables import best_table, rule_table, verdict_table
from depthmup.settings import Settings, put
from depthmup.trials.config_study import ConfigStudy
from depthmup.trials.engine import cost, train
from depthmup.trials.group import CACHE, compiled_in
from depthmup.trials.store import curves, load, measured
from depthmup.trials.study import Row, Study
from depthmup.trials.verdicts import TransferCurve

__all__ = [
    "Grown",
    "Result",
    "SweepResult",
    "calibrate",
    "compare",
    "cost",
    "curves",
    "grow",
    "judge",
    "load",
    "measured",
    "path_sum",
    "put",
    "run",
    "train",
]


class Result(NamedTuple):
    """rows: of all trials. verdicts: a short table, the learning rates to use, and what to do next. page: the path of
    report.html, or None for a part of a sweep. tables: optima, edges and rules at every size, as text. curves: with the
    verdicts as data. noise: the lines of `verdicts` about the gradient noise scale."""

    rows: list[Row]
    verdicts: str
    page: Path | None
    tables: str = ""
    curves: Sequence[TransferCurve] = ()
    noise: str = ""


def run(config: Settings | Mapping[str, Any] | Study, workdir: str | Path, command: str = "", **options: Any) -> Result:
    """Train the missing trials of the sweep of a config, or of a `Study`; then write verdicts, pictures and report.html
    into `workdir`.

    While it trains, report.html has the progress and what is known so far.

    Args:
      command: the command of the sweep, which the report shows.
      options: arguments of `train`, which also says what is raised.

    Returns:
      A `Result`: the rows, the verdicts as text, and the path of report.html.

    Raises what `train` raises.
    """
    study, workdir = ConfigStudy.of(config), bucket.folder(workdir)
    _, parts = options.get("shard", (0, 1))
    live = LiveReport(study, workdir, command)
    try:
        rows = train(study, workdir, watch=live if parts == 1 else None, **options)
    except BaseException:
        live.stop()
        raise
    if parts > 1:
        note = f"{len(rows)} trials; when all {parts} parts are done, the same without a shard reports"
        return Result(rows, note, None)
    table = pandas.DataFrame(rows)
    judged = curves_of(table, study, _calibrated(study, workdir))
    tables = filter(None, (verdict_table(judged), rule_table(judged)))
    path = page.write_report(judged, table, study, workdir, command)
    conclusion = words.conclusion(judged, study, command) or best_table(table, study)
    with_noise = "noise_scale" in study.sweep.measure
    noise = noise_scales(judged, LearningCurves(workdir)) if with_noise else ""
    return Result(rows, "\n".join(filter(None, (conclusion, noise))), path, "\n\n".join(tables), judged, noise)


def _calibrated(study: Study, workdir: Path) -> dict[str, MaximalUpdate]:
    """The maximal updates of the sweep's curves along depth, if the config asks for them and they can be computed."""
    if not study.sweep.calibrate:
        return {}
    cache = workdir / CACHE if study.sweep.cache else None
    with compiled_in(cache), Console(stderr=True).status("") as status:
        try:
            return calibrations(study, curves_along_depth(study).values(), workdir, status.update)
        except (jax.errors.JaxRuntimeError, ValueError) as error:  # out of memory; a network that cannot be calibrated
            print(f"the report comes without calibrated rules: {error}")
            return {}
