"""Many trials, one program per shape, nothing lost: from Python what `main.py sweep` is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
from tqdm import tqdm

from depthmup.measure import MaximalUpdate
from depthmup.settings import Settings, from_config, put
from depthmup.sweep import report, tables, verdicts
from depthmup.sweep.calibration import calibrate, calibrations, path_sum
from depthmup.sweep.engine import cost, train
from depthmup.sweep.group import CACHE, compiled_in
from depthmup.sweep.store import curves, load, measured
from depthmup.train.workdir import Row

__all__ = ["Result", "calibrate", "cost", "curves", "load", "measured", "path_sum", "put", "run", "train"]


class Result(NamedTuple):
    """rows: of all trials. verdicts: as text. page: report.html, or None for a part of a sweep."""

    rows: list[Row]
    verdicts: str
    page: Path | None


def run(config: Settings | Mapping[str, Any], workdir: str | Path, command: str = "", **options: Any) -> Result:
    """Train what is missing of the sweep of a config, then verdicts, pictures and report, in `workdir`.

    command: what the report says it was made by. options: of `train`, as what it raises is.
    """
    settings = config if isinstance(config, Settings) else from_config(config)
    rows = train(settings, workdir, **options)
    parts = options.get("shard", (0, 1))[1]
    if parts > 1:
        return Result(
            rows, f"{len(rows)} trials; when all {parts} parts are done, the same without a shard reports", None
        )
    found = verdicts.judge(rows, settings, _calibrated(settings, Path(workdir)))
    words = "\n\n".join(filter(None, (tables.verdict_table(found), tables.rule_table(found))))
    page = report.write(found, rows, settings, Path(workdir), command)
    return Result(rows, words or tables.best_table(rows, settings), page)


def _calibrated(settings: Settings, workdir: Path) -> dict[str, MaximalUpdate]:
    if not settings.sweep.calibrate:
        return {}
    with (
        compiled_in(workdir / CACHE if settings.sweep.cache else None),
        tqdm(bar_format="{desc}", leave=False, disable=None) as bar,
    ):
        try:
            return calibrations(verdicts.curves_to_calibrate(settings), workdir, bar.set_description_str)
        except (jax.errors.JaxRuntimeError, ValueError) as error:  # out of memory; a workdir's file that is not JSON
            print(f"the report comes without calibrated rules: {error}")
            return {}
