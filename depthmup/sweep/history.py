"""What is kept of a group of trials while it trains: metrics of every step, and what is measured now and then."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

POINTS = 1000  # of a learning curve, at most: of longer trainings means over equal stretches of steps
METRICS = ("loss", "grad_norm")  # of a learning curve
LAST = 0.1  # share of the steps that the last loss is a mean over
PREFIX = "history/"  # of the names of its arrays in a checkpoint
Columns = dict[str, np.ndarray]


def measured_after(steps: int, points: int) -> list[int]:
    """Numbers of steps after which a training of so many is measured: from its start to its end."""
    return sorted(set(np.linspace(0, steps, points).round().astype(int).tolist()))


class History:
    """values: (metrics, trials, steps), NaN where there is none. measured: step -> {quantity: (trials, layers)}."""

    def __init__(self, trials: int, steps: int) -> None:
        self.values = np.full((len(METRICS), trials, steps), np.nan, np.float32)
        self.measured: dict[int, dict[str, np.ndarray]] = {}

    def arrays(self, step: int) -> dict[str, np.ndarray]:
        """What `restore` takes, up to this step."""
        named = {f"{PREFIX}{at}/{name}": array for at, named in self.measured.items() for name, array in named.items()}
        return {f"{PREFIX}values": self.values[:, :, :step], **named}

    def restore(self, arrays: Mapping[str, np.ndarray], step: int) -> None:
        """Take in what `arrays` gave at this step."""
        for name, array in arrays.items():
            at, _, quantity = name.removeprefix(PREFIX).partition("/")
            if quantity:
                self.measured.setdefault(int(at), {})[quantity] = array
            else:
                self.values[:, :, :step] = array

    def add(self, step: int, metrics: Mapping[str, np.ndarray]) -> None:
        """Metrics of the steps up to `step`, (trials, steps) each; there may be more trials."""
        first = step - metrics["loss"].shape[1]
        for i, name in enumerate(METRICS):
            self.values[i, :, first:step] = metrics[name][: self.values.shape[1]]

    def measure(self, step: int, quantities: Mapping[str, np.ndarray]) -> None:
        """Quantities after `step` steps, (trials, layers) each; there may be more trials."""
        self.measured[step] = {name: array[: self.values.shape[1]] for name, array in quantities.items()}

    def losses(self, trial: int, steps: int) -> dict[str, float]:
        """Training loss of a trial, before each step on that step's batch: the mean over the last tenth of its steps,
        and over all (the criterion of the AM-muP paper's code)."""
        curve = self.values[0, trial, :steps].astype(np.float64)
        last = max(1, round(LAST * steps))
        return {"last_loss": float(curve[-last:].mean()), "mean_loss": float(curve.mean())}

    def curve(self, trial: int, steps: int) -> Columns:
        """The learning curve of a trial: "step" (the last of a stretch) and METRICS, (points,) each.

        There is no point where there is no loss, since the trial has diverged.
        """
        starts = np.arange(0, steps, -(-steps // POINTS))
        ends = np.append(starts[1:], steps)
        means = np.add.reduceat(self.values[:, trial, :steps], starts, axis=1) / (ends - starts).astype(np.float32)
        there = ~np.isnan(means[0])
        return {"step": ends[there].astype(np.int32), **dict(zip(METRICS, means[:, there], strict=True))}

    def measurements(self, trial: int, steps: int, points: int) -> Columns:
        """ "step", "quantity", "layer" and "value", (measurements,) each, of a trial's own `measured_after`; nothing of
        a trial that has diverged."""
        own = measured_after(steps, points)
        found = [
            (at, name, layer, value)
            for at, quantities in sorted(self.measured.items())
            for name, values in quantities.items()
            for layer, value in enumerate(values[trial])
            if at in own and np.isfinite(value)
        ]
        columns = zip(*found, strict=True) if found else ((), (), (), ())
        kinds = {"step": np.int32, "quantity": str, "layer": np.int32, "value": np.float32}
        return {name: np.array(values, kind) for (name, kind), values in zip(kinds.items(), columns, strict=True)}
