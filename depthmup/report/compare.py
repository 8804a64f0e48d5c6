"""Several sweeps on one page: their curves over each other, their verdicts side by side, and what they differ in."""

from __future__ import annotations

import dataclasses
import json
import string
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from depthmup import bucket
from depthmup.files import flattened, write_atomically
from depthmup.fit.table import grouped_by
from depthmup.report import interactive, page, panels
from depthmup.report.curves import finished, judge
from depthmup.report.tables import NONE, Cells, best_values
from depthmup.train.workdir import SETTINGS, WorkdirError, read_settings
from depthmup.trials import model_study
from depthmup.trials.config_study import config_study_from
from depthmup.trials.identity import HASHES
from depthmup.trials.store import load
from depthmup.trials.verdicts import TransferCurve

FILE = "compare.html"
LINES = ("solid", "dashed", "dotted", "dash-dotted", "with long dashes")  # DASHES of report.js in words


class _Sweep(NamedTuple):
    letter: str
    workdir: Path
    settings: Mapping[str, Any]  # the content of settings.json, {key: value}, and "environment" of the rows
    curves: list[TransferCurve]


def compare(workdirs: Sequence[str | Path], to: str | Path | None = None, data_dir: str | None = None) -> Path:
    """Write a page that compares the finished sizes of several sweeps; its path.

    Args:
      workdirs: of sweeps, two or more, which may have any settings.
      to: the folder of compare.html; None: the first workdir.
      data_dir: the config's data.data_dir, which workdirs do not keep; for sweeps of images in folders.

    Returns:
      The path of compare.html.

    Raises WorkdirError for a workdir without a sweep or with fewer than two finished sizes, ValueError for fewer than
    two workdirs or more than 26, and for data that is not there.
    """
    folders = list(dict.fromkeys(map(bucket.folder, workdirs)))
    if not 2 <= len(folders) <= len(string.ascii_uppercase):
        raise ValueError(f"compare takes 2 to 26 workdirs of sweeps, got {len(folders)}: compare DIR DIR ...")
    sweeps = [_read(letter, folder, data_dir) for letter, folder in zip(string.ascii_uppercase, folders, strict=False)]
    compared = [c for sweep in sweeps for c in sweep.curves]
    alike = grouped_by(compared, lambda c: (c.axis, c.hyperparameter, c.title))
    curves = [c for group in alike.values() for c in group]
    pictures = list(panels.pictures(curves))
    verdicts = [_verdict(c) for c in curves]
    sizes = [f"{size:g}" for size in sorted({size for c in curves for size in c.result.values})]
    html = page.render(
        "compare.html.jinja",
        {"plots": interactive.plots(pictures)},
        sweeps=[
            {"sweep": sweep.letter, "lines": LINES[i % len(LINES)], "workdir": str(sweep.workdir)}
            for i, sweep in enumerate(sweeps)
        ],
        verdicts=verdicts,
        columns=[*(title for title in verdicts[0] if title not in sizes), *sizes],
        pictures=pictures,
        differences=_differences(sweeps),
    )
    path = bucket.folder(to or folders[0]) / FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, html)
    return path


def _verdict(c: TransferCurve) -> Cells:
    """A row of the table of verdicts."""
    return {
        "": c.title,
        "over": c.span,
        "sweep": c.sweep,
        "verdict": c.result.verdict,
        "costs at most": str(c.result.cost or NONE),
        "drift": str(c.result.drift or NONE),
        **best_values(c),
    }


def _read(letter: str, workdir: Path, data_dir: str | None) -> _Sweep:
    try:
        saved = read_settings(workdir)
        study = (
            model_study.model_study_from(saved)
            if model_study.is_identity(saved)
            else config_study_from(saved, data_dir)
        )
    except WorkdirError as error:
        raise WorkdirError(f"{error}: give the --workdir of main.py sweep") from error
    except (KeyError, TypeError, ValueError) as error:
        path = workdir / SETTINGS
        raise WorkdirError(f"{path} cannot be used: {error}. Give the --workdir of main.py sweep") from error
    table = load(workdir)
    rows = {row["key"]: row for row in table.to_dict("records")}
    judged = finished(rows, study)
    curves = [dataclasses.replace(c, sweep=letter) for c in judge(*judged)] if judged else []
    if not curves:
        raise WorkdirError(
            f"{workdir} has fewer than two finished sizes, so that there is no curve to compare: go on with its sweep"
        )
    settings = flattened({key: value for key, value in saved.items() if key != HASHES})
    return _Sweep(letter, workdir, {**settings, "environment": page.environments(table)}, curves)


def _differences(sweeps: Sequence[_Sweep]) -> list[Cells]:
    """A row for each setting whose value is not the same in all sweeps."""
    keys = dict.fromkeys(key for sweep in sweeps for key in sweep.settings)
    rows = [{"setting": key, **{sweep.letter: _words(sweep.settings, key) for sweep in sweeps}} for key in keys]
    return [row for row in rows if len({row[sweep.letter] for sweep in sweeps}) > 1]


def _words(settings: Mapping[str, Any], key: str) -> str:
    return json.dumps(settings[key]) if key in settings else "not set"
