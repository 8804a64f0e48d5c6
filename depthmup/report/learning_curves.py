"""The training losses and the measurements of a sweep's trials, over the steps of training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas

from depthmup.train.workdir import WorkdirError
from depthmup.trials import store
from depthmup.trials.verdicts import TransferCurve


class LearningCurves:
    """Reads the learning curves and the measurements of a workdir; there are none where rows alone were copied.

    quantities: the names of what was measured.
    """

    def __init__(self, workdir: Path) -> None:
        self._losses = _read(store.curves, workdir)
        self._measured = _read(store.measured, workdir)
        self.quantities = set(self._measured["quantity"])
        # {key: positions of its rows}, computed once: the tables may have millions of rows.
        self._losses_of = self._losses.groupby("key").indices
        self._measured_of = self._measured.groupby("key").indices

    def loss(self, trials: pandas.DataFrame) -> pandas.Series | None:
        """The mean training loss of some trials by step, at the steps that all have.

        None if there is no trial, or if one has diverged or has no learning curve.
        """
        keys = list(trials["key"])
        if not keys or trials["diverged"].any() or not all(key in self._losses_of for key in keys):
            return None
        curves = [self._losses.take(self._losses_of[key]).set_index("step")["loss"] for key in keys]
        return pandas.concat(curves, axis=1, join="inner").mean(axis=1)

    def thinned(self, keys: Sequence[str], points: int) -> tuple[np.ndarray, np.ndarray]:
        """(last steps (trials,), losses (trials, points)) of some trials: means over equal stretches of the curves.

        A curve of fewer points stays as it is, with NaN behind its end; without a curve all is NaN, and the step 0.
        """
        steps, result = np.zeros(len(keys), int), np.full((len(keys), points), np.nan)
        all_steps, all_losses = (self._losses[name].to_numpy(float) for name in ("step", "loss"))
        for i, key in enumerate(keys):
            positions = self._losses_of.get(key, np.array([], int))
            if length := len(positions):
                steps[i] = all_steps[positions[-1]]
                count = min(points, length)
                starts = np.arange(count) * length // count
                result[i, :count] = np.add.reduceat(all_losses[positions], starts) / np.diff(starts, append=length)
        return steps, result

    def measured(self, quantity: str, trials: pandas.DataFrame) -> tuple[np.ndarray, np.ndarray] | None:
        """(steps, values (trials, steps, layers)) of a quantity at the steps that all trials have; None without any."""
        rows = [self._measured_of[key] for key in trials["key"] if key in self._measured_of]
        table = self._measured.take(np.concatenate(rows) if rows else [])
        table = table[table["quantity"] == quantity]
        if table.empty:
            return None
        by_step = table.pivot(index="step", columns=["key", "layer"], values="value")
        wanted = pandas.MultiIndex.from_product([trials["key"], sorted(table["layer"].unique())])
        by_step = by_step.reindex(columns=wanted).dropna()
        if by_step.empty:
            return None
        values = by_step.to_numpy().reshape(len(by_step), len(trials), -1)
        return by_step.index.to_numpy(), values.swapaxes(0, 1)


def noise_scales(curves: Sequence[TransferCurve], learning: LearningCurves) -> str:
    """A line for each curve over batch sizes, with the gradient noise scale where sweep.measure asked for it."""
    lines = []
    for c in curves:
        if c.axis != "batch_size" or c.hyperparameter != "learning_rate":
            continue
        measured = learning.measured("noise_scale", c.carried(c.result.values[0]))
        if measured is None:
            continue
        steps, values = measured
        scales = np.median(values[:, :, 0], axis=0)
        at = ", ".join(f"{scale:.3g} at step {step}" for step, scale in zip(steps, scales, strict=True))
        lines.append(
            f"{c.optimizer}, {c.name}: the gradient noise scale of batch {c.result.values[0]:g} at its best rate is "
            f"{at} (examples); rules of the batch size are meant for batches below it"
        )
    return "\n".join(lines)


def _read(reader: Callable[[Path], pandas.DataFrame], workdir: Path) -> pandas.DataFrame:
    try:
        return reader(workdir)
    except WorkdirError:
        return pandas.DataFrame(columns=["key", "step", "loss", "quantity", "layer", "value"])
