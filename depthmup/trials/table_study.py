"""A table of trials that were trained anywhere, as a `Study` whose rows can be judged."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, cast

import pandas

from depthmup.files import digest
from depthmup.settings import CheckpointSettings, Judged, ParallelSettings, SettingsError, SweepSettings
from depthmup.trials.study import Axis, Point, Study

NAMES = {"optimizer": "optimizer", "parameterization": "model", "seed": 0, "diverged": False}
SIZES = ("depth", "width")
# Columns that say how a training went, not what it was.
RESULTS = ("loss", "accuracy", "diverged", "steps", "step", "key", "schema", "learning_rate", "seed")


@dataclasses.dataclass(frozen=True, eq=False)
class TableStudy(Study):
    """rows: with all columns that judging needs."""

    rows: pandas.DataFrame
    sweep: SweepSettings
    width: int
    depth: int
    axes: Sequence[Axis]
    chance_value: float | None

    parallel = ParallelSettings()
    checkpoint = CheckpointSettings()
    seed = 0
    trainable = False

    @classmethod
    def of(cls, table: pandas.DataFrame, measure: str, chance: float | None) -> TableStudy:
        missing = [name for name in ("learning_rate", measure) if name not in table]
        if not any(size in table for size in SIZES):
            missing.append("depth (or width)")
        if missing:
            raise SettingsError(f"the table has no column {', '.join(missing)}; it has {', '.join(map(str, table))}")
        values = {name: value for name, value in NAMES.items() if name not in table}
        values |= {size: 1 for size in SIZES if size not in table}
        rows = table.reset_index(drop=True).assign(**values)
        if "loss" not in rows:
            rows["loss"] = rows[measure]
        rows["diverged"] = rows["diverged"].astype(bool) | ~rows[measure].astype(float).map(math.isfinite)
        if "key" not in rows:
            rows["key"] = [digest({str(k): str(v) for k, v in row.items()}) for row in rows.to_dict("records")]
        width, depth = _corner(rows)
        words = [
            name
            for name in rows.columns
            if name not in (*NAMES, *SIZES, *RESULTS, measure)
            and rows[name].map(lambda value: isinstance(value, str | bool)).all()
            and rows[name].nunique() > 1
        ]
        sweep = SweepSettings(
            parameterizations=tuple(dict.fromkeys(rows["parameterization"])),
            optimizers=tuple(dict.fromkeys(rows["optimizer"])),
            depths=tuple(sorted(set(rows.loc[rows["width"] == width, "depth"]))),
            widths=tuple(sorted(set(rows.loc[rows["depth"] == depth, "width"]))),
            judge_by=cast(Judged, measure),  # any column of the table
            calibrate=False,
        )
        axes = [Axis(name, tuple(dict.fromkeys(rows[name])), False) for name in words]
        return cls(rows, sweep, width, depth, axes, chance)

    @property
    def identity(self) -> dict[str, Any]:
        return {"axes": [axis.key for axis in self.axes], "sweep": dataclasses.asdict(self.sweep)}

    def point(self, values: Mapping[str, Any]) -> Point:
        raise SettingsError("a table of trials has nothing to train")

    def chance(self, measure: str, rows: Sequence[Mapping[str, Any]]) -> float:
        return math.inf if self.chance_value is None else self.chance_value

    def checked(self, points: Collection[Point]) -> None:
        raise SettingsError("a table of trials has nothing to train")

    def sized(self, sizes: Mapping[str, Sequence[Any]]) -> TableStudy:
        sweep = dataclasses.replace(self.sweep, widths=tuple(sizes["width"]), depths=tuple(sizes["depth"]))
        return dataclasses.replace(self, sweep=sweep)


def _corner(rows: pandas.DataFrame) -> tuple[int, int]:
    """The width that has most depths, and the depth that has most widths; of equal ones the smallest."""
    depths, widths = rows.groupby("width")["depth"].nunique(), rows.groupby("depth")["width"].nunique()
    return depths.idxmax(), widths.idxmax()
