"""Groups the rows of a table of trials into one curve (loss over learning rate) per size."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

import numpy as np

from depthmup.names import POSITIVE, floats, listed, short

ACCURACY = "validation_accuracy"
Row = Mapping[str, Any]
Item = TypeVar("Item")  # of `grouped_by`
Key = TypeVar("Key")


class LossCurve(NamedTuple):
    """The trials of one size."""

    rates: np.ndarray  # (points,), rising values of the hyperparameter
    seeds: list[Any]
    losses: np.ndarray  # (points, seeds); NaN where a seed was not trained
    diverged: np.ndarray  # (points, seeds), bool
    trained: np.ndarray  # (points, seeds), bool
    accuracy: np.ndarray | None  # (points, seeds), of validation; NaN where unknown, None if a row lacks the column


def curves_by_size(table: Iterable[Row], axis: str, hyperparameter: str, measure: str) -> dict[Any, LossCurve]:
    """{size: its curve}, sizes rising; arguments and errors are the same as in `transfer`."""
    rows = listed("table", table)
    if not rows:
        raise ValueError("the table is empty: there is no trial to judge")
    for row in rows:
        if not hasattr(row, "keys"):
            raise ValueError(f"a table must have rows {{column: value}}, or be a DataFrame, got {short(row)}")
    for key in (axis, hyperparameter, "seed", measure):
        if any(key not in row for row in rows):
            raise ValueError(f"a row of the table has no {key!r}")
    for key in (axis, hyperparameter):
        for row in rows:
            POSITIVE.check(key, row[key])
    sizes, seeds = sorted({row[axis] for row in rows}), _seeds(rows)
    if len(sizes) < 2:
        raise ValueError(f"transfer over {axis} needs at least two values of it, got {sizes}")
    has_accuracy, has_diverged = (all(key in row for row in rows) for key in (ACCURACY, "diverged"))
    result = dict[Any, LossCurve]()
    for size in sizes:
        lines = _lines([row for row in rows if row[axis] == size], seeds, f"{axis}={size}", hyperparameter)
        losses = _losses(lines, measure)
        trained = np.array([[row is not None for row in line] for line in lines])
        flags = np.array([[_has_diverged(row) for row in line] for line in lines])
        if has_diverged and (~np.isfinite(losses) & ~flags & trained).any():
            i, j = np.argwhere(~np.isfinite(losses) & ~flags & trained)[0]
            row = lines[i][j]
            assert row is not None
            raise ValueError(
                f"{measure} is {row[measure]} at {axis}={size}, {hyperparameter}={row[hyperparameter]}, "
                f"seed={row['seed']}, though it has not diverged: leave these trials out, or judge by another measure"
            )
        result[size] = LossCurve(
            rates=np.array([next(row[hyperparameter] for row in line if row) for line in lines], np.float64),
            seeds=seeds,
            losses=losses,
            diverged=(flags | ~np.isfinite(losses)) & trained,
            trained=trained,
            accuracy=_column(lines, ACCURACY) if has_accuracy else None,
        )
    return result


def _seeds(rows: list[Row]) -> list[Any]:
    """The seeds of all rows, rising."""
    try:
        seeds = {row["seed"] for row in rows}
        if all(seed is not None and seed == seed for seed in seeds):  # NaN is not
            return sorted(seeds)
    except TypeError:  # of two kinds that have no order, or unhashable
        pass
    raise ValueError(f"seeds must be numbers, or names, got {short([row['seed'] for row in rows])}")


def _has_diverged(row: Row | None) -> bool:
    flag = None if row is None else row.get("diverged")
    if flag not in (None, False, True):
        raise ValueError(f"diverged must be True or False, got {short(flag)}")
    return bool(flag)


def _lines(rows: list[Row], seeds: list[Any], size: str, hyperparameter: str) -> list[list[Row | None]]:
    """For each value of the hyperparameter, rising, the rows of all seeds in the order of `seeds`; None for a seed that
    was not trained."""
    trials: dict[tuple[float, Any], Row] = {}
    for row in rows:
        trial = row[hyperparameter], row["seed"]
        if trial in trials:
            raise ValueError(f"two rows for {size}, {hyperparameter}={trial[0]}, seed={trial[1]}")
        trials[trial] = row
    return [[trials.get((rate, seed)) for seed in seeds] for rate in sorted({rate for rate, _ in trials})]


def _losses(lines: list[list[Row | None]], measure: str) -> np.ndarray:
    values = _column(lines, measure)
    if not measure.endswith("accuracy"):
        return values
    if (values > 1).any() or (values < 0).any():
        raise ValueError(f"{measure} must lie between 0 and 1: what is minimized is the error, 1 - {measure}")
    return 1 - values


def _column(lines: list[list[Row | None]], key: str) -> np.ndarray:
    return floats(key, [[math.nan if row is None or row[key] is None else row[key] for row in line] for line in lines])


def grouped_by(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """{key: the items that have it}, in the order in which the keys first occur."""
    result: dict[Key, list[Item]] = {}
    for item in items:
        result.setdefault(key(item), []).append(item)
    return result
