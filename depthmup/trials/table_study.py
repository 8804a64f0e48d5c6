"""A table of trials that were trained anywhere, as a `Study` whose rows can be judged."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import pandas

from depthmup.files import digest
from depthmup.fit.transfer import margin_of
from depthmup.settings import CheckpointSettings, Judged, ParallelSettings, SettingsError, SweepSettings
from depthmup.trials.study import Axis, Point, Study

NAMES = {"optimizer": "optimizer", "parameterization": "model", "seed": 0, "diverged": False}
SIZES = ("depth", "width")
RUN = ("batch_size", "steps", "epochs")  # sizes of a training, where a table has several of them
# Columns that say how a training went, not what it was.
RESULTS = ("loss", "accuracy", "diverged", "steps", "step", "key", "schema", "learning_rate", "seed", "environment")


@dataclasses.dataclass(frozen=True, eq=False)
class TableStudy(Study):
    """rows: with all columns that judging needs. sizes: what `along` returns. assumed: sizes that the table lacks."""

    rows: pandas.DataFrame
    sizes: Mapping[str, Mapping[float, Mapping[str, Any]]]
    sweep: SweepSettings
    width: int
    depth: int
    axes: Sequence[Axis]
    chance_value: float | None
    assumed: Sequence[str] = ()

    parallel = ParallelSettings()
    checkpoint = CheckpointSettings()
    seed = 0
    trainable = False

    @classmethod
    def of(cls, table: pandas.DataFrame, measure: str, chance: float | None, margin: float | str) -> TableStudy:
        missing = [name for name in ("learning_rate", measure) if name not in table]
        if not any(size in table for size in (*SIZES, *RUN)):
            missing.append("depth (or width, batch_size, steps)")
        if missing:
            raise SettingsError(f"the table has no column {', '.join(missing)}; it has {', '.join(map(str, table))}")
        values = {name: value for name, value in NAMES.items() if name not in table}
        assumed = [size for size in SIZES if size not in table]
        values |= dict.fromkeys(assumed, 1)
        rows = table.reset_index(drop=True).assign(**values)
        if "loss" not in rows:
            rows["loss"] = rows[measure]
        rows["diverged"] = rows["diverged"].astype(bool) | ~rows[measure].astype(float).map(math.isfinite)
        if "key" not in rows:
            rows["key"] = [digest({str(k): str(v) for k, v in row.items()}) for row in rows.to_dict("records")]
        sizes = [*SIZES, *(name for name in RUN if name in rows and rows[name].nunique() > 1)]
        if {"batch_size", "steps"} <= set(sizes):
            rows["examples"] = rows["batch_size"] * rows["steps"]
        along = {axis: _along(rows, axis, sizes) for axis in sizes}
        if all(len(of_axis) < 2 for of_axis in along.values()):
            along["compute"] = _together(rows, sizes)
        width, depth = (
            next(iter(along[axis].values()))[name] for axis, name in (("depth", "width"), ("width", "depth"))
        )
        words = [
            name
            for name in rows.columns
            if name not in (*NAMES, *SIZES, *RUN, *RESULTS, measure)
            and rows[name].map(lambda value: isinstance(value, str | bool)).all()
            and rows[name].nunique() > 1
        ]
        sweep = SweepSettings(
            parameterizations=tuple(dict.fromkeys(rows["parameterization"])),
            optimizers=tuple(dict.fromkeys(rows["optimizer"])),
            depths=tuple(along["depth"]),  # type: ignore[arg-type]
            widths=tuple(along["width"]),  # type: ignore[arg-type]
            judge_by=cast(Judged, measure),  # any column of the table
            margin=str(margin_of(margin)),
            calibrate=False,
        )
        axes = [Axis(name, tuple(dict.fromkeys(rows[name])), False) for name in words]
        return cls(rows, along, sweep, width, depth, axes, chance, assumed)

    @property
    def along(self) -> dict[str, dict[float, dict[str, Any]]]:
        return {axis: {size: dict(at) for size, at in of_axis.items()} for axis, of_axis in self.sizes.items()}

    @property
    def identity(self) -> dict[str, Any]:
        return {"axes": [axis.key for axis in self.axes], "sweep": dataclasses.asdict(self.sweep)}

    def point(self, values: Mapping[str, Any]) -> Point:
        raise SettingsError("a table of trials has nothing to train")

    def chance(self, measure: str, rows: Sequence[Mapping[str, Any]]) -> float:
        return math.inf if self.chance_value is None else self.chance_value

    def sized(self, sizes: Mapping[str, Sequence[Any]]) -> TableStudy:
        chosen = {axis: {size: self.sizes[axis][size] for size in values} for axis, values in sizes.items()}
        return dataclasses.replace(self, sizes=chosen)


def _together(rows: pandas.DataFrame, sizes: Sequence[str]) -> dict[float, dict[str, Any]]:
    """{compute of a run over that of the smallest: sizes of the run} where several sizes differ at once. {} if two runs
    take equal compute, since they would be one point on this axis."""
    runs = rows[list(sizes)].drop_duplicates().to_dict("records")
    powers = dict.fromkeys(sizes, 1) | {"width": 2}
    if "epochs" in powers:  # as many examples at every batch size
        powers.pop("batch_size", None)
    compute = [math.prod(run[name] ** power for name, power in powers.items()) for run in runs]
    if len(set(compute)) < len(runs):
        return {}
    return {cost / min(compute): run for cost, run in sorted(zip(compute, runs, strict=True), key=lambda pair: pair[0])}


def _along(rows: pandas.DataFrame, axis: str, sizes: Sequence[str]) -> dict[float, dict[str, Any]]:
    """{size: the sizes of its rows} of an axis where the other sizes stay: where most sizes are, of equal ones the
    smallest. Batch sizes are compared at fixed steps or at fixed examples."""
    others = [name for name in sizes if name != axis]
    kept = [others]
    if axis == "batch_size" and "steps" in others:
        kept.append(["examples" if name == "steps" else name for name in others])
    best: dict[float, dict[str, Any]] = {}
    for names in kept:
        counts = rows.groupby(names)[axis].nunique()
        if counts.max() > len(best):
            values = counts.idxmax()
            at = dict(zip(names, values if isinstance(values, tuple) else (values,), strict=True))
            here = rows[(rows[list(at)] == pandas.Series(at)).all(axis=1)]
            best = {size: {**at, axis: size} for size in sorted(set(here[axis]))}
    return best
