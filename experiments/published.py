"""The rows of sweeps in docs/results/: tables and pictures are drawn from them, and sweeps go on from them.

Of a config's sweep NAME.parquet has the rows, NAME.json its settings, the calibrations that its rules start from, what
it was computed with, and the number of classes of its data. Sweeps of `m.sweep` have rows alone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
import pandas

from depthmup.files import first_difference, write_atomically
from depthmup.fit.table import ACCURACY
from depthmup.measure import MaximalUpdate
from depthmup.report.calibration import kept
from depthmup.report.curves import judge
from depthmup.settings import Judged, Settings, column
from depthmup.sweep import curves, load
from depthmup.train.build import FILES
from depthmup.train.workdir import SETTINGS, read_settings
from depthmup.trials.config_study import ConfigStudy
from depthmup.trials.store import Finished, Store, extension
from depthmup.trials.verdicts import TransferCurve, seed_stages

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs" / "results"
STRETCHES = 40  # equal parts of a training; "curve" has the mean training loss of each
SCALE = 1000  # of the losses in "curve", which are whole numbers of thousandths


class Sweep(NamedTuple):
    """A published sweep. rows: the trials; about: the content of NAME.json; curves: none where it is not judged."""

    rows: pandas.DataFrame
    settings: Settings
    curves: list[TransferCurve]
    about: Mapping[str, Any]


def read(path: Path, settings: Settings, extended: bool = False, so_far: bool = False) -> Sweep:
    """The sweep published at `path`.parquet. Raises ValueError if its rows were computed with other settings.

    extended: the settings may ask for more trials than were published. An unfinished sweep has no curves, unless it is
    judged by what it has `so_far`.
    """
    about = json.loads(path.with_suffix(".json").read_text())
    check(path.name, about["settings"], settings, extended)
    rows = pandas.read_parquet(path.with_suffix(".parquet"))
    order = rows["parameterization"].map(settings.sweep.parameterizations.index)
    measures = [name for name in get_args(Judged) if name in rows]
    rows = rows.astype(dict.fromkeys(measures, float)).iloc[order.argsort(kind="stable")]
    calibrated = {key: MaximalUpdate(*np.array(lists, np.float64)) for key, lists in about["calibration"].items()}
    whole = about.get("complete", True) and not difference(about["settings"], settings)
    timed = rows
    if minutes := about.get("minutes"):
        shares = rows["width"].astype(float) ** 2 * rows["depth"]  # as `Point.cost`
        timed = rows.assign(seconds=60 * minutes * shares / shares.sum())
    judged = _judged(timed, ConfigStudy(settings, about.get("classes")), calibrated) if whole or so_far else []
    return Sweep(rows, settings, judged, about)


def _judged(rows: pandas.DataFrame, study: ConfigStudy, calibrated: Mapping[str, MaximalUpdate]) -> list[TransferCurve]:
    """The curves of a sweep. Those that got more seeds than its settings give have been looked at before: their errors
    are corrected as those of a sweep that goes on until it is decided."""
    curves, sweep = judge(rows, study, calibrated), study.sweep
    again = [c.trials.groupby([c.axis, c.hyperparameter]).size().max() > seed_stages(study)[-1] for c in curves]
    if not any(again):
        return curves
    most = 2 * sweep.max_seeds if sweep.until == "decided" else sweep.seeds
    longer = dataclasses.replace(sweep, until="decided", max_seeds=most)
    corrected = ConfigStudy(dataclasses.replace(study.settings, sweep=longer), study.classes)
    return [b if more else a for a, b, more in zip(curves, judge(rows, corrected, calibrated), again, strict=True)]


def difference(saved: Mapping[str, Any], settings: Settings, extended: bool = False) -> str:
    """In what the identity of a sweep differs from that of these settings; the images are not compared.

    extended: axes and the settings of the sweep itself may differ, which ask for more trials of the same kind.
    """
    identity = json.loads(json.dumps(ConfigStudy(settings).identity))
    saved = {k: v for k, v in saved.items() if k != FILES}
    return extension(saved, identity) if extended else first_difference(saved, identity)


def check(name: str, saved: Mapping[str, Any], settings: Settings, extended: bool = False) -> None:
    """Raise ValueError for what `difference` finds."""
    if different := difference(saved, settings, extended):
        raise ValueError(
            f"docs/results/{name} was computed with other settings than its config has: {different}. Go back to these "
            "settings, or delete its files to train anew"
        )


def write(path: Path, settings: Settings, workdir: Path, **about: Any) -> None:
    """Write the rows of the sweep in `workdir` to `path`.parquet and .json.

    about: more entries of the JSON. With "classes" the rows have what `restore` needs: keys, learning curves and every
    measure that a sweep may be judged by.
    """
    trials, saved = load(workdir), read_settings(workdir)
    if different := difference(saved, settings):
        raise ValueError(f"{workdir} is not the sweep {path.name}: {different}")
    resumable = "classes" in about
    measures = dict.fromkeys(get_args(Judged) if resumable else ("loss", settings.sweep.judge_by, ACCURACY))
    axes = [column(axis.key) for axis in ConfigStudy(settings).axes]
    names = dict.fromkeys(("optimizer", "parameterization", "width", "depth", "learning_rate", *axes, "seed"))
    trials = trials.sort_values([*names], ignore_index=True)
    rows = trials[[*names, *measures, "diverged"]].astype(dict.fromkeys(measures, "float32"))  # as they were computed
    if resumable:
        rows = rows.assign(key=trials["key"], steps=trials["steps"].astype("int32"), curve=_curves(workdir, trials))
    path.parent.mkdir(parents=True, exist_ok=True)
    rows.to_parquet(path.with_suffix(".parquet"), compression="zstd", index=False)
    content = {
        "settings": saved,
        "computed with": json.loads((workdir / "environment.json").read_text()),
        "calibration": {key: rounded(lists) for key, lists in kept(workdir).items()},
        **about,
    }
    write_atomically(path.with_suffix(".json"), json.dumps(content) + "\n")


def restore(sweep: Sweep, workdir: Path) -> None:
    """Put the published rows that `workdir` lacks into it, so that training goes on from them.

    A restored row has the columns and the learning curve that were published. Raises WorkdirError if the workdir
    belongs to other settings.
    """
    identity = sweep.about["settings"]
    if (workdir / SETTINGS).exists() and not extension(identity, saved := read_settings(workdir)):
        identity = saved  # training may have gone on there: it asks for more, and knows the contents of the images
    with contextlib.closing(Store(workdir, identity)) as store:
        missing = sweep.rows[~sweep.rows["key"].isin(list(store.rows))]
        group = []
        for row in missing.to_dict("records"):
            losses = np.asarray(row.pop("curve"), np.float32) / SCALE
            parts = min(STRETCHES, row["steps"])
            ends = np.ceil(np.arange(1, len(losses) + 1) * row["steps"] / parts).astype(np.int32)
            group.append(Finished(row, {"step": ends, "loss": losses, "grad_norm": np.full(len(losses), np.nan)}))
        if group:
            store.add(group)


def replace(path: Path, rows: pandas.DataFrame, by: Sequence[str]) -> None:
    """Put rows of `m.sweep` into the table `path`, in the place of those that equal them in the columns `by`."""
    table = pandas.concat([pandas.read_parquet(path), rows]) if path.exists() else rows
    keys = list(table[[*by]].itertuples(index=False, name=None))
    place = {key: i for i, key in enumerate(dict.fromkeys(keys))}
    old = len(table) - len(rows)
    replaced = set(keys[old:])
    kept = [i for i, key in enumerate(keys) if i >= old or key not in replaced]
    kept.sort(key=lambda i: place[keys[i]])
    write_atomically(path, table.iloc[kept].to_parquet(index=False, compression="zstd"))


def _curves(workdir: Path, rows: pandas.DataFrame) -> list[np.ndarray]:
    """The mean training loss of each trial in each of STRETCHES equal parts of its steps, up to its divergence."""
    table = curves(workdir)
    steps = table["key"].map(rows.set_index("key")["steps"])
    stretch = (table["step"] - 1) * steps.clip(upper=STRETCHES) // steps
    means = table["loss"].astype(float).groupby([table["key"], stretch]).mean().unstack()
    thousandths = (means.reindex(rows["key"]).to_numpy() * SCALE).clip(max=2**31 - 1)
    return [curve[~np.isnan(curve)].round().astype(np.int32) for curve in thousandths]


def rounded(tree: Any, digits: int = 6) -> Any:
    """A list of lists of numbers, with these significant digits."""
    if isinstance(tree, list):
        return [rounded(value, digits) for value in tree]
    return float(f"{tree:.{digits}g}") if isinstance(tree, float) else tree
