"""A table of trials that were trained anywhere, as a `Study` whose rows can be judged."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

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
TRUE, FALSE = ("true", "yes", "1"), ("false", "no", "0")
LARGEST = 10.0  # the largest difference of a measure that may be below 0, in its unit


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
    note: str = ""

    parallel = ParallelSettings()
    checkpoint = CheckpointSettings()
    seed = 0
    trainable = False

    @classmethod
    def of(cls, table: pandas.DataFrame, measure: str, chance: float | None, margin: float | str) -> TableStudy:
        _check_columns(table, measure)
        values = {name: value for name, value in NAMES.items() if name not in table}
        assumed = [size for size in SIZES if size not in table]
        values |= dict.fromkeys(assumed, 1)
        known = [name for name in ("learning_rate", *SIZES, *RUN) if name in table]
        rows = table.dropna(subset=known).reset_index(drop=True).assign(**values)
        notes = [f"{len(table) - len(rows)} of {len(table)} rows have no {' or no '.join(known)}, and are left out"]
        notes = notes if len(rows) < len(table) else []
        if rows.empty:
            raise SettingsError(f"the table has no row with {', '.join(known)}")
        if "loss" not in rows:
            rows["loss"] = rows[measure]
        rows["diverged"] = _flags(rows["diverged"]) | ~rows[measure].astype(float).map(math.isfinite)
        if "accuracy" not in measure and (rows[measure][~rows["diverged"]] < 0).any():
            by = f"{measure}_difference"
            unit = _differences(rows, measure, by)
            if chance is not None:
                chance = math.exp((chance - unit.lowest) / unit.size)
            notes.append(
                f"{measure} is below 0, where percents say nothing: it is judged by differences, of which 1% is "
                f"{unit.size / 100:.3g}"
            )
            measure = by
        if "key" not in rows:
            rows["key"] = [digest({str(k): str(v) for k, v in row.items()}) for row in rows.to_dict("records")]
        sizes = [*SIZES, *(name for name in RUN if name in rows and rows[name].nunique() > 1)]
        if {"batch_size", "steps"} <= set(sizes):
            rows["examples"] = rows["batch_size"] * rows["steps"]
        along = {axis: _along(rows, axis, sizes) for axis in sizes}
        if all(len(of_axis) < 2 for of_axis in along.values()):
            along["compute"] = _together(rows, sizes)
            if along["compute"]:
                notes.append(f"{' and '.join(sizes)} differ together: runs are compared along their compute")
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
        aside = [name for name in words if _of_seeds(rows, name)]
        words = [name for name in words if name not in aside]
        notes += [f"the column {name!r} differs from seed to seed, and tells no variants apart" for name in aside]
        notes += [
            f"the column {name!r} tells {rows[name].nunique()} variants apart, each judged alone" for name in words
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
        return cls(rows, along, sweep, width, depth, axes, chance, assumed, "\n".join(notes))

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


class _Unit(NamedTuple):
    """Of differences of a measure."""

    lowest: float
    size: float


def _check_columns(table: Any, measure: str) -> None:
    """Raises SettingsError for what is no table, lacks a column, or has other than numbers where numbers are needed."""
    if not isinstance(table, pandas.DataFrame):
        raise SettingsError(
            f"the trials must be a pandas.DataFrame, got a {type(table).__name__}: pandas.DataFrame(trials)"
        )
    if isinstance(table.columns, pandas.MultiIndex) or not table.columns.is_unique:
        twice = table.columns[table.columns.duplicated()]
        what = f"two columns {twice[0]!r}" if len(twice) else "columns of several levels"
        raise SettingsError(f"the table has {what}: give each a name of its own")
    missing = [name for name in ("learning_rate", measure) if name not in table]
    if not any(size in table for size in (*SIZES, *RUN)):
        missing.append("depth (or width, batch_size, steps)")
    if missing:
        raise SettingsError(f"the table has no column {', '.join(missing)}; it has {', '.join(map(str, table))}")
    if table.empty:
        raise SettingsError("the table has no rows")
    for name in ("learning_rate", measure, *SIZES, *RUN):
        if name in table and not pandas.api.types.is_numeric_dtype(table[name]):
            odd = next((v for v in table[name] if not isinstance(v, int | float)), table[name].iloc[0])
            raise SettingsError(f"the column {name} must have numbers, it has {odd!r}")


def _flags(column: pandas.Series) -> pandas.Series:
    """Whether each trial diverged. Raises SettingsError for what is neither true nor false."""
    words = column.map(lambda value: str(value).strip().lower().removesuffix(".0"))
    odd = column[~words.isin((*TRUE, *FALSE))]
    if len(odd):
        raise SettingsError(f"the column diverged must be true or false in each row, it has {odd.iloc[0]}")
    return words.isin(TRUE)


def _differences(rows: pandas.DataFrame, measure: str, by: str) -> _Unit:
    """Add the column `by`, whose logarithm is the measure in units in which it spans at most LARGEST."""
    values = rows[measure].where(~rows["diverged"]).astype(float)
    unit = _Unit(float(values.min()), max(1.0, float(values.max() - values.min()) / LARGEST))
    rows[by] = ((values - unit.lowest) / unit.size).map(math.exp)
    return unit


def _of_seeds(rows: pandas.DataFrame, name: str) -> bool:
    """Whether a column says which seed or which row it is, such as a host's name."""
    values = rows.groupby("seed")[name].nunique()
    return rows[name].is_unique or (len(values) > 1 and bool((values == 1).all()))


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
