"""What a sweep kept of its trials while they trained, for its report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from depthmup.fit import settled
from depthmup.sweep import store
from depthmup.sweep.verdicts import Curve
from depthmup.train.workdir import Row, WorkdirError

if TYPE_CHECKING:
    import pandas

STRETCHES = 10  # of a training, after each of which it is asked where the optimum is
Series = tuple[np.ndarray, np.ndarray]  # steps; values of the same length


class Histories:
    """Learning curves and measurements of the rows of a workdir; empty if it has none."""

    def __init__(self, workdir: Path, rows: Sequence[Row]) -> None:
        self.rows = {row["key"]: row for row in rows}
        self._losses: dict[str, Series] = {}
        self._measured: dict[tuple[str, str], dict[int, np.ndarray]] = {}
        try:
            table = store.curves(workdir)
        except WorkdirError:  # rows alone were copied
            return
        steps, losses = table["step"].to_numpy(), table["loss"].to_numpy()
        for (key,), part in _parts(table, ["key"]):
            self._losses[key] = steps[part], losses[part]
        try:
            names = ["key", "quantity", "step"]
            table = store.measured(workdir).sort_values([*names, "layer"], ignore_index=True)
        except WorkdirError:
            return
        values = table["value"].to_numpy()
        for (key, quantity, step), part in _parts(table, names):
            self._measured.setdefault((key, quantity), {})[int(step)] = values[part]

    def loss(self, keys: Sequence[str]) -> Series | None:
        """Mean over trials at the steps that all of them have; None if some trial has diverged or has no curve."""
        series = [self._losses.get(key) for key in keys]
        if not keys or any(self.rows[key]["diverged"] for key in keys) or any(s is None for s in series):
            return None
        steps = min((s[0] for s in series if s is not None), key=len)
        return steps, np.mean([s[1][: len(steps)] for s in series if s is not None], axis=0)

    def measured(self, quantity: str, keys: Sequence[str]) -> tuple[np.ndarray, np.ndarray] | None:
        """(steps, values (trials, steps, layers)) at the steps that all trials have; None if there is none."""
        found = [self._measured.get((key, quantity)) for key in keys]
        if not found or any(f is None for f in found):
            return None
        steps = sorted(set.intersection(*(set(f) for f in found if f is not None)))
        if not steps:
            return None
        return np.array(steps), np.array([[f[step] for step in steps] for f in found if f is not None])

    def stretches(self, key: str) -> np.ndarray:
        """Mean training loss in each tenth of a trial's steps, (STRETCHES,); NaN once it has diverged."""
        if key not in self._losses:
            return np.full(STRETCHES, np.nan)
        steps, losses = self._losses[key]
        tenth = np.minimum((steps - 1) * STRETCHES // self.rows[key]["steps"], STRETCHES - 1)
        counts = np.bincount(tenth, minlength=STRETCHES)
        with np.errstate(invalid="ignore"):
            return np.bincount(tenth, losses, minlength=STRETCHES) / counts

    def settles(self, curve: Curve) -> list[float | None]:
        """Of each size, the share of its training after which the optimum by the loss of the last tenth so far stays
        within a quarter of an octave of the last one; None if it has none. Paper A, appendix B.2."""
        result: list[float | None] = []
        for rates, keys in zip(curve.result.learning_rates, curve.keys, strict=True):
            losses = np.array([[self.stretches(key) for key in of_rate] for of_rate in keys])  # points, seeds, times
            known = np.isfinite(losses).any()
            time = settled(rates, np.moveaxis(losses, -1, 0), curve.chance_loss) if known else None
            result.append(None if time is None else (time + 1) / STRETCHES)
        return result


def _parts(table: pandas.DataFrame, names: list[str]) -> Iterator[tuple[tuple[Any, ...], slice]]:
    """(values of these columns, the rows that have them), for rows that lie next to each other."""
    columns = [table[name].to_numpy() for name in names]
    changes = np.any([column[1:] != column[:-1] for column in columns], axis=0) if len(table) else np.zeros(0, bool)
    starts = [0, *(np.flatnonzero(changes) + 1)][: len(table)]
    for start, end in zip(starts, [*starts[1:], len(table)], strict=True):
        yield tuple(column[start] for column in columns), slice(start, end)
