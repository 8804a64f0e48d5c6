"""The history of a group of trials while it trains: metrics of every step, and measurements at some steps."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

POINTS = 1000  # most points of a learning curve; a longer training has means over equal numbers of steps
METRICS = ("loss", "grad_norm")  # metrics of a learning curve
LAST = 0.1  # "last_loss" is the mean over this last share of the steps
PREFIX = "history/"  # prefix of the history's arrays in a checkpoint
Columns = dict[str, np.ndarray]


def measured_after(steps: int, points: int) -> list[int]:
    """The steps at which a training of `steps` steps is measured: `points` equal distances from 0 to its end."""
    return sorted(set(np.linspace(0, steps, points).round().astype(int).tolist()))


class History:
    """The metrics and measurements of a group of trials.

    values: metrics of all steps, (metrics, trials, steps), NaN for steps that were not trained.
    measured: {step: {quantity: (trials, layers)}}.
    """

    def __init__(self, trials: int, steps: int) -> None:
        self.values = np.full((len(METRICS), trials, steps), np.nan, np.float32)
        self.measured: dict[int, dict[str, np.ndarray]] = {}

    def arrays(self, step: int) -> dict[str, np.ndarray]:
        """The history up to this step as arrays for a checkpoint; `restore` takes them."""
        named = {f"{PREFIX}{at}/{name}": array for at, named in self.measured.items() for name, array in named.items()}
        return {f"{PREFIX}values": self.values[:, :, :step], **named}

    def restore(self, arrays: Mapping[str, np.ndarray], step: int) -> None:
        """Fill this history with the arrays that `arrays` gave at this step."""
        for name, array in arrays.items():
            at, _, quantity = name.removeprefix(PREFIX).partition("/")
            if quantity:
                self.measured.setdefault(int(at), {})[quantity] = array
            else:
                self.values[:, :, :step] = array

    def add(self, step: int, metrics: Mapping[str, np.ndarray]) -> None:
        """Add metrics, (trials, steps) each, of the steps up to `step`. Trials that fill up the group are dropped."""
        first = step - metrics["loss"].shape[1]
        for i, name in enumerate(METRICS):
            self.values[i, :, first:step] = metrics[name][: self.values.shape[1]]

    def measure(self, step: int, quantities: Mapping[str, np.ndarray]) -> None:
        """Add quantities, (trials, layers) each, after `step` steps. Trials that fill up the group are dropped."""
        self.measured[step] = {name: array[: self.values.shape[1]] for name, array in quantities.items()}

    def columns(self, trial: int, steps: int) -> dict[str, float]:
        """What the row of a trial has of its steps, mean training losses: "last_loss" over the last tenth of them,
        "mean_loss" over all.

        The loss of a step is taken before the step, on the step's batch. The AM-muP paper's code judges by the mean
        over all steps.
        """
        curve = self.values[0, trial, :steps].astype(np.float64)
        last = max(1, round(LAST * steps))
        return {"last_loss": float(curve[-last:].mean()), "mean_loss": float(curve.mean())}

    def curve(self, trial: int, steps: int) -> Columns:
        """The learning curve of a trial: "step" and METRICS, (points,) each.

        A point is a mean over some steps, and "step" is the number of steps done after the last of them. The curve of a
        trial that has diverged ends there.
        """
        starts = np.arange(0, steps, -(-steps // POINTS))
        ends = np.append(starts[1:], steps)
        means = np.add.reduceat(self.values[:, trial, :steps], starts, axis=1) / (ends - starts).astype(np.float32)
        finite = ~np.isnan(means[0])
        return {"step": ends[finite].astype(np.int32), **dict(zip(METRICS, means[:, finite], strict=True))}

    def measurements(self, trial: int, steps: int, points: int) -> Columns:
        """The measurements of a trial: columns "step", "quantity", "layer" and "value", (measurements,) each.

        Only the steps in `measured_after` of this trial count, since other trials of the group may have other numbers
        of steps. Values that are not finite (the trial has diverged) are left out.
        """
        measured_steps = measured_after(steps, points)
        entries = [
            (at, name, layer, value)
            for at, quantities in sorted(self.measured.items())
            for name, values in quantities.items()
            for layer, value in enumerate(values[trial])
            if at in measured_steps and np.isfinite(value)
        ]
        columns = zip(*entries, strict=True) if entries else ((), (), (), ())
        kinds = {"step": np.int32, "quantity": str, "layer": np.int32, "value": np.float32}
        return {name: np.array(values, kind) for (name, kind), values in zip(kinds.items(), columns, strict=True)}
