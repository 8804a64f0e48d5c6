"""From a table of trainings to what `joint_fit` fits: curves, sizes in octaves, and the priors of the law's links."""

from __future__ import annotations

import csv
import dataclasses
import math
import os
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from depthmup.fit.curve import Curve, checked_curve
from depthmup.fit.joint_fit import LN2, Links, Rows
from depthmup.names import POSITIVE, floats, listed, short, unknown

Axis = Literal["width", "depth", "parameters", "tokens", "steps", "batch_size"]
AXES: tuple[Axis, ...] = get_args(Axis)
MODEL: tuple[Axis, ...] = ("width", "depth", "parameters")
CONDITIONS = ("optimizer", "family", "parameterization", "schedule", "context_length", "data", "dataset")
SMOOTHED = 5  # rates of a curve that is smoothed
LEAST = 3  # rates of a curve that shows a curvature, and of a table
CURVATURE = 0.01  # of log losses, where no curve shows one
NOISE, QUIET = 0.003, 1e-4  # scatter of one training's log loss, where no curve shows it; the least that it may be
NEAR = 2.0  # octaves to either side of the best rate that show the curvature
FREE = 3.0  # sd of an exponent without a prior
DIGITS = 6  # of log2 of sizes and rates, by which trainings are told apart

# Exponents of the loss per octave, (mean, sd), of Chinchilla's law; parameters grow as width^2 x depth.
LOSS = {"parameters": (-0.34, 0.12), "width": (-0.68, 0.3), "depth": (-0.34, 0.2), "data": (-0.28, 0.1)}

CRITICAL = (0.5, 0.3)  # exponent of the critical batch size over data, (mean, sd)
BEND = 3.0  # octaves of the batch size, sd: how far from the middle of the rows the critical batch size may lie
BENT = {"slope": (0.75, 0.3), "sharpness": (-0.7, 0.4), "flatter": (0.0, 0.3)}  # links of a bend, (mean, sd)


class Prior(NamedTuple):
    """What is known of the exponents of the best rate before the rows: {axis: (mean, sd)} for width, depth, batch_size
    (at as many steps) and steps (at one batch size), or parameters in the place of width and depth. An axis that is
    left out has a free exponent."""

    exponents: Mapping[str, tuple[float, float]]

    def of(self, axis: str) -> tuple[float, float]:
        """The mean and sd of an exponent. Parameters grow with the cube of width and depth where both grow alike."""
        if axis == "parameters" and axis not in self.exponents and {"width", "depth"} <= self.exponents.keys():
            (width, sd), (depth, sd2) = self.exponents["width"], self.exponents["depth"]
            return (width + depth) / 3, math.hypot(sd, sd2) / 3
        return self.exponents.get(axis, (0.0, FREE))

    def check(self) -> Prior:
        """Itself. Raises ValueError for an axis that has no exponent, or for what is no mean and sd."""
        known = [axis for axis in AXES if axis != "tokens"]  # more tokens at one batch size are more steps
        for axis, pair in self.exponents.items():
            if axis not in known:
                raise unknown("axis of a prior", axis, known, "; tokens at one batch size are steps")
            if not (isinstance(pair, Sequence) and len(pair) == 2):
                raise ValueError(f"the prior of {axis} must be (mean, sd), got {short(pair)}")
            if not math.isfinite(pair[0]) or not 0 < pair[1] < math.inf:
                raise ValueError(f"the prior of {axis} must have a finite mean and a positive sd, got {short(pair)}")
        return self


Training = tuple[float | str, ...]  # log2 of the sizes and of the rate, and the seed


class TrainingTable(NamedTuple):
    """Columns of trainings. columns: {name: (rows,)}. conditions: what all rows share, such as the optimizer.
    trainings: which they are."""

    columns: dict[str, np.ndarray]
    conditions: dict[str, Any]
    trainings: frozenset[Training]


def trainings(sizes: Sequence[np.ndarray], rates: np.ndarray, seeds: Sequence[Any] | None) -> list[Training]:
    """What makes trainings the same. sizes: of each axis (rows,); seeds: None where they have none."""
    keys = np.round(np.log2(np.column_stack([*sizes, rates])), DIGITS).tolist()
    names = ["" if seeds is None else _name(seed) for seed in (seeds or [""] * len(rates))]
    return [(*key, name) for key, name in zip(keys, names, strict=True)]


def _name(seed: Any) -> str:
    """The seed, whether a table has it as 1 or as 1.0."""
    return f"{seed:g}" if isinstance(seed, int | float | np.number) else str(seed)


def read_columns(table: Any) -> dict[str, list[Any]]:
    """{column: values} of a DataFrame, a dict of columns, a list of rows, or the path of a CSV file."""
    if isinstance(table, str | os.PathLike):
        path = Path(table)
        if not path.is_file():
            raise ValueError(f"there is no table {str(path)!r}")
        result = _csv(path)
    elif isinstance(table, Mapping) or hasattr(table, "columns"):
        names = list(table.columns) if hasattr(table, "columns") else list(table)
        result = {str(name): list(table[name]) for name in names}
    else:
        rows = listed("table", table)
        for row in rows:
            if not hasattr(row, "keys"):
                raise ValueError(f"a table must have rows {{column: value}}, or be a DataFrame, got {short(row)}")
        names = list(dict.fromkeys(name for row in rows for name in row))
        result = {name: [row.get(name) for row in rows] for name in names}
    lengths = {len(values) for values in result.values()}
    if len(lengths) > 1:
        raise ValueError(f"the columns of a table must be equally long, got {sorted(lengths)} rows")
    if not lengths or lengths == {0}:
        raise ValueError("the table is empty: there is no training to fit")
    return result


def _csv(path: Path) -> dict[str, list[Any]]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        lines = csv.reader(file)
        names = [name.strip() for name in next(lines, [])]
        rows = []
        for cells in lines:
            if len(cells) not in (0, len(names)):
                raise ValueError(
                    f"line {lines.line_num} of {path} has {len(cells)} cells, the first line names {len(names)} columns"
                )
            rows += [[_parsed(cell) for cell in cells]] if cells else []
    return {name: [row[i] for row in rows] for i, name in enumerate(names)}


def _parsed(text: str) -> Any:
    """A cell of a CSV file: a number, True or False, None for an empty cell, else its text."""
    words = {"": None, "true": True, "false": False}
    if text.strip().lower() in words:
        return words[text.strip().lower()]
    try:
        return float(text)
    except ValueError:
        return text


def is_accuracy(measure: str) -> bool:
    """Whether a measure is better when it is larger; then 1 - measure is minimized."""
    return measure.lower().endswith(("accuracy", "acc"))


def checked_table(
    table: Any, hyperparameter: str, measure: str, sizes: Sequence[str] | None
) -> tuple[TrainingTable, tuple[str, ...]]:
    """The columns that the law needs, and its axes. Raises ValueError for what is missing or not possible."""
    columns = read_columns(table)
    for name in (hyperparameter, measure):
        if name not in columns:
            raise ValueError(f"the table has no column {name!r} (it has {', '.join(map(str, columns))})")
    axes = _axes(columns, sizes)
    result = {name: POSITIVE.array(name, columns[name]) for name in (hyperparameter, *axes)}
    result["rate"] = result.pop(hyperparameter)
    flags = columns.get("diverged", [False] * len(result["rate"]))
    if any(flag not in (None, False, True) for flag in flags):
        raise ValueError(f"diverged must be True or False, got {short(flags)}")
    result["diverged"] = np.array([bool(flag) for flag in flags])
    loss = floats(measure, [math.nan if value is None else value for value in columns[measure]])
    if is_accuracy(measure):
        loss = 1 - loss
    if (loss[np.isfinite(loss)] < 0).any():
        raise ValueError(f"{measure} must not be negative: the fit is of its logarithm")
    if (~np.isfinite(loss) & ~result["diverged"]).any():
        result["diverged"] = result["diverged"] | ~np.isfinite(loss)
    result["loss"] = loss
    result["seed"] = np.unique([str(s) for s in columns.get("seed", [0] * len(loss))], return_inverse=True)[1]
    conditions = {}
    for name in CONDITIONS:
        if name in columns:
            values = list(dict.fromkeys(columns[name]))
            if len(values) > 1:
                raise ValueError(
                    f"the rows have {len(values)} values of {name}, {short(values)}: one law is of one, so keep the "
                    f"rows of one (depthmup law: --target=...,{name}=...)"
                )
            conditions[name] = values[0]
    _check_twice(columns, result, axes, {hyperparameter, measure, "seed", "diverged", *axes, *CONDITIONS})
    done = trainings([result[axis] for axis in axes], result["rate"], columns.get("seed"))
    return TrainingTable(result, conditions, frozenset(done)), axes


def _check_twice(
    columns: Mapping[str, list[Any]], checked: Mapping[str, np.ndarray], axes: Sequence[str], read_ones: Set[str]
) -> None:
    """Raise ValueError for two rows of one size, rate and seed: of one training, or of two that differ elsewhere."""
    keys = np.column_stack([checked[name] for name in (*axes, "rate", "seed")])
    first: dict[tuple[float, ...], int] = {}
    for number, key in enumerate(map(tuple, keys.tolist())):
        earlier = first.setdefault(key, number)
        if earlier == number:
            continue
        words = ", ".join(f"{axis} {size:g}" for axis, size in zip(axes, key, strict=False))
        unread = [name for name in columns if name not in read_ones]
        differ = [name for name in unread if repr(columns[name][earlier]) != repr(columns[name][number])]
        remedy = "give them a column 'seed'"
        if differ:
            remedy = f"they differ in {', '.join(differ)}, unknown to the law: keep one value, or say which size it is"
        raise ValueError(f"two rows have the same rate and seed at {words}: {remedy}")


def _axes(columns: Mapping[str, Any], sizes: Sequence[str] | None) -> tuple[str, ...]:
    """The sizes of the law: `sizes`, or width and depth before parameters, and steps before tokens."""
    if sizes is not None:
        names = listed("sizes", sizes)
        for name in names:
            if name not in AXES:
                raise unknown("size", name, AXES)
            if name not in columns:
                raise ValueError(f"the table has no column {name!r} (it has {', '.join(map(str, columns))})")
        if {"steps", "tokens"} <= set(names):
            raise ValueError("sizes must have steps or tokens, not both: tokens are steps times batch size")
        if "parameters" in names and {"width", "depth"} & set(names):
            raise ValueError("sizes must have width and depth, or parameters, not both")
    else:
        names = [name for name in AXES if name in columns]
        if {"width", "depth"} & set(names):
            names = [name for name in names if name != "parameters"]
        if "steps" in names:
            names = [name for name in names if name != "tokens"]
    if not names:
        raise ValueError(f"the table has no column of a size (one of {', '.join(AXES)})")
    return tuple(name for name in AXES if name in names)


@dataclasses.dataclass(frozen=True)
class Coordinates:
    """Where trainings lie, in octaves from the middle of the rows. axes: the law's sizes. middle: log2 of each."""

    axes: tuple[str, ...]
    middle: Mapping[str, float]

    def octaves(self, sizes: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {axis: np.log2(sizes[axis]) - self.middle[axis] for axis in self.axes}

    @property
    def model(self) -> tuple[str, ...]:
        return tuple(axis for axis in self.axes if axis in MODEL)

    @property
    def batched(self) -> bool:
        return "batch_size" in self.axes

    @property
    def timed(self) -> bool:
        return bool({"steps", "tokens"} & set(self.axes))

    def design(self, sizes: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """{column: (rows,)}: 1, the model's sizes, data, batch size and steps; data = batch size x steps."""
        x = self.octaves(sizes)
        zero = np.zeros(len(next(iter(x.values()))))
        batch = x.get("batch_size", zero)
        steps = x["steps"] if "steps" in x else x["tokens"] - batch if "tokens" in x else zero
        columns = {"1": zero + 1, "data": batch + steps, "batch_size": batch, "steps": steps}
        return {**columns, **{axis: x[axis] for axis in self.model}}

    def places(self, design: Mapping[str, np.ndarray]) -> np.ndarray:
        """(rows, axes) for kernels; the batch size is the last."""
        return np.column_stack([*(design[axis] for axis in self.model), design["data"], design["batch_size"]])


class Gathered(NamedTuple):
    """Rows of the fit, and what the curves say of the priors of intercepts."""

    rows: Rows
    coordinates: Coordinates
    noise: float  # scatter of one training's log loss
    best: float  # log2 of the median best rate
    lowest: float  # the median of the best log losses
    curvature: float  # logarithm of the median curvature
    sizes: dict[str, np.ndarray]  # (curves,), log2 of each size

    @property
    def curves(self) -> int:
        return len(self.rows.sizes)


def gathered(table: TrainingTable, axes: tuple[str, ...]) -> Gathered:
    """The curves of a table as rows: means over seeds at each rate, without trainings that failed by chance. Rates
    beyond the cliff say that they are too high."""
    columns = table.columns
    sizes = np.column_stack([columns[axis] for axis in axes])
    groups, number = np.unique(sizes, axis=0, return_inverse=True)
    group, rate, loss, count, high = [], [], [], [], []
    scatters, bests, lowest, curvatures = [], [], [], []
    for g, of_group in enumerate(
        np.split(np.argsort(number.ravel(), kind="stable"), np.cumsum(np.bincount(number.ravel()))[:-1])
    ):
        curve = _curve({name: values[of_group] for name, values in columns.items()})
        used = np.arange(len(curve.x))[curve.trains & curve.compared] if curve.best is not None else np.zeros(0, int)
        if len(used) >= SMOOTHED:
            smooth = curve.smooth()
            scatters.append(smooth.scatter * math.sqrt(np.median(smooth.counts)))
        mean = curve.mean
        counts = (~np.isnan(curve.kept)).sum(axis=1)
        beyond = [i for i in range(len(curve.x)) if len(used) == 0 or i > used[-1]]
        for i in (*used, *beyond[:1]):
            group.append(g)
            rate.append(curve.x[i])
            loss.append(mean[i] if i in used else 0.0)
            count.append(max(counts[i], 1))
            high.append(i not in used)
        if curve.best is not None:
            bests.append(curve.x[curve.best])
            lowest.append(mean[curve.best])
            near = used[np.abs(curve.x[used] - curve.x[curve.best]) <= NEAR]
            if len(near) >= LEAST:
                curvatures.append(2 * np.polyfit(curve.x[near] - curve.x[curve.best], mean[near], 2)[0])
    if not lowest:
        raise ValueError("no training converged: every row has diverged")
    good = [value for value in curvatures if value > 0]
    if len(np.unique(np.round(rate, 2))) < LEAST:
        raise ValueError(f"the rows have fewer than {LEAST} rates: more would show which is best")
    middle = {axis: float(np.log2(groups[:, i]).mean()) for i, axis in enumerate(axes)}
    coordinates = Coordinates(axes, middle)
    design = coordinates.design({axis: groups[:, i] for i, axis in enumerate(axes)})
    finite = [value for value in scatters if value > 0]
    rows = Rows(
        coordinates.places(design),
        design,
        np.array(group),
        np.array(rate),
        np.array(loss),
        np.array(count, float),
        np.array(high),
    )
    return Gathered(
        rows,
        coordinates,
        max(float(np.median(finite)), QUIET) if finite else NOISE,
        float(np.median(bests)),
        float(np.median(lowest)),
        math.log(float(np.median(good)) if good else CURVATURE),
        {axis: np.log2(groups[:, i]) for i, axis in enumerate(axes)},
    )


def _curve(columns: Mapping[str, np.ndarray]) -> Curve:
    rates, seeds = np.unique(columns["rate"]), np.unique(columns["seed"])
    shape = (len(rates), len(seeds))
    losses, diverged, trained = np.full(shape, np.nan), np.zeros(shape, bool), np.zeros(shape, bool)
    at = np.searchsorted(rates, columns["rate"]), np.searchsorted(seeds, columns["seed"])
    trained[at] = True
    losses[at], diverged[at] = columns["loss"], columns["diverged"]
    return checked_curve(rates, losses, None, diverged & trained, trained)


def links(of: Gathered, prior: Prior, bend: bool) -> Links:
    """The priors of the law's coefficients, {link: {column: (mean, sd)}}. bend: whether the optimum bends above a
    critical batch size."""
    coordinates = of.coordinates
    model = coordinates.model
    has_data = coordinates.batched or coordinates.timed
    both = coordinates.batched and coordinates.timed

    def plane(
        mean: float, sd: float, slope: float, data: tuple[float, float] | None = None, batch: bool = True
    ) -> dict[str, tuple[float, float]]:
        """A link that may change with every size, by `slope` an octave."""
        result = {"1": (mean, sd), **dict.fromkeys(model, (0.0, slope))}
        if has_data:
            result["data"] = data or (0.0, slope)
        if both and batch:
            result["batch_size"] = (0.0, slope)
        return result

    result: dict[str, dict[str, tuple[float, float]]] = {"floor": {"1": (of.lowest - 0.37, 0.2)}}
    if model:
        loss = {axis: (LOSS[axis][0] * LN2, LOSS[axis][1] * LN2) for axis in model}
        result["size"] = {"1": (of.lowest - 1.5, 0.6), **loss}
    if has_data:
        result["data"] = {"1": (of.lowest - 1.5, 0.6), "data": (LOSS["data"][0] * LN2, LOSS["data"][1] * LN2)}
    optimum = {"1": (of.best, 2.0), **{axis: prior.of(axis) for axis in model}}
    if coordinates.batched:
        optimum["batch_size"] = prior.of("batch_size")
    if coordinates.timed:
        optimum["steps"] = prior.of("steps")
    result["optimum"] = optimum
    result["curvature"] = plane(of.curvature, 1.0, 0.3)
    result["left"] = plane(-0.3, 0.5, 0.15)
    result["right"] = plane(0.1, 0.5, 0.15)
    result["cliff"] = {"1": (of.best + 3, 1.0), **dict.fromkeys(model, (0.0, 0.3))}
    result["height"] = {"1": (-5.5, 1.0)}
    if both:
        result["best batch"] = plane(0.0, 1.0, 0.15, (0.5, 0.2), batch=False)
        result["batch"] = plane(-5.5, 1.0, 0.1, batch=False)
        result["small batch"] = result["large batch"] = {"1": (-0.22, 0.5)}
    if bend:
        result["bend"] = plane(0.0, BEND, 0.2, CRITICAL, batch=False)
        result |= {name: {"1": of_link} for name, of_link in BENT.items()}
    return result
