"""What a sweep kept of its trials while they trained, for its report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from depthmup.fit import settled
from depthmup.sweep import store
from depthmup.sweep.verdicts import Curve
from depthmup.train.workdir import Row, WorkdirError

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
        starts = np.flatnonzero(np.append(True, table["key"].to_numpy()[1:] != table["key"].to_numpy()[:-1]))
        steps, losses = table["step"].to_numpy(), table["loss"].to_numpy()
        for start, end in zip(starts, [*starts[1:], len(table)], strict=True):
            self._losses[table["key"].iat[start]] = steps[start:end], losses[start:end]
        try:
            table = store.measured(workdir)
        except WorkdirError:
            return
        for (key, quantity, step), part in table.groupby(["key", "quantity", "step"], sort=True):
            self._measured.setdefault((key, quantity), {})[int(step)] = part.sort_values("layer")["value"].to_numpy()

    def loss(self, keys: Sequence[str]) -> Series | None:
        """Mean over trials at the steps that all of them have; None if some trial has diverged or has no curve."""
        series = [self._losses.get(key) for key in keys]
        if not keys or any(self.rows[key]["diverged"] for key in keys) or any(s is None for s in series):
            return None
        steps = min((s[0] for s in series if s is not None), key=len)
        return steps, np.mean([s[1][: len(steps)] for s in series if s is not None], axis=0)

    def measured(self, quantity: str, keys: Sequence[str]) -> tuple[np.ndarray, np.ndarray] | None:
        """(steps, mean over trials (steps, layers)); None if some trial lacks it."""
        found = [self._measured.get((key, quantity)) for key in keys]
        if not found or any(f is None for f in found):
            return None
        steps = sorted(set.intersection(*(set(f) for f in found if f is not None)))
        return np.array(steps), np.mean([[f[step] for step in steps] for f in found if f is not None], axis=0)

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
            time = settled(rates, np.moveaxis(losses, -1, 0), curve.result.cap) if known else None
            result.append(None if time is None else (time + 1) / STRETCHES)
        return result
