"""What is kept of a group of trials while it trains: metrics of every step, and what is measured now and then."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence

import numpy as np

POINTS = 1000  # of a learning curve, at most: of longer trainings means over equal stretches of steps
METRICS = ("loss", "grad_norm")  # of a learning curve
LAST = 0.1  # share of the steps that the last loss is a mean over
Columns = dict[str, np.ndarray]


def measured_after(steps: int, points: int) -> list[int]:
    """Numbers of steps after which a training of so many is measured: from its start to its end."""
    return sorted(set(np.linspace(0, steps, points).round().astype(int).tolist()))


class History:
    """values: (metrics, trials, steps), NaN where there is none. measured: step -> {quantity: (trials, layers)}."""

    def __init__(self, trials: int, steps: int) -> None:
        self.values = np.full((len(METRICS), trials, steps), np.nan, np.float32)
        self.measured: dict[int, dict[str, np.ndarray]] = {}

    def content(self, step: int) -> bytes:
        """What `restore` takes, up to this step."""
        named = {f"{at}/{name}": array for at, arrays in self.measured.items() for name, array in arrays.items()}
        buffer = io.BytesIO()
        np.savez(buffer, values=self.values[:, :, :step], **named)  # type: ignore[arg-type]
        return buffer.getvalue()

    def restore(self, content: bytes, step: int) -> None:
        """Raises what `np.load` does, or KeyError, for bytes that are not whole."""
        with np.load(io.BytesIO(content)) as arrays:
            self.values[:, :, :step] = arrays["values"]
            for name in set(arrays.files) - {"values"}:
                at, quantity = name.split("/")
                self.measured.setdefault(int(at), {})[quantity] = arrays[name]

    def add(self, first: int, metrics: Mapping[str, np.ndarray]) -> None:
        """Metrics of the steps from `first` on, (trials, steps) each; there may be more trials."""
        last = first + metrics["loss"].shape[1]
        for i, name in enumerate(METRICS):
            self.values[i, :, first:last] = metrics[name][: self.values.shape[1]]

    def measure(self, step: int, quantities: Mapping[str, np.ndarray]) -> None:
        """Quantities after `step` steps, (trials, layers) each; there may be more trials."""
        self.measured[step] = {name: array[: self.values.shape[1]] for name, array in quantities.items()}

    def losses(self, trial: int, steps: int) -> dict[str, float]:
        """Training loss of a trial, before each step on that step's batch: the mean over the last tenth of its steps,
        and over all (the criterion of the AM-muP paper's code)."""
        curve = self.values[0, trial, :steps].astype(np.float64)
        last = max(1, round(LAST * steps))
        return {"last_loss": float(curve[-last:].mean()), "mean_loss": float(curve.mean())}

    def curves(self, steps: Sequence[int]) -> Columns:
        """Columns trial, step (the last of a stretch) and METRICS. steps: of each trial; where there is no loss (it has
        diverged) there is no point."""
        parts = []
        for trial, count in enumerate(steps):
            starts = np.arange(0, count, -(-count // POINTS))
            ends = np.append(starts[1:], count)
            means = np.add.reduceat(self.values[:, trial, :count], starts, axis=1) / (ends - starts).astype(np.float32)
            there = ~np.isnan(means[0])
            parts.append((np.full(there.sum(), trial, np.int32), ends[there].astype(np.int32), *means[:, there]))
        columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
        return dict(zip(("trial", "step", *METRICS), columns, strict=True))

    def measurements(self, steps: Sequence[int], points: int) -> Columns:
        """Columns trial, step, quantity, layer, value. steps, points: of each trial, at whose `measured_after` it was
        measured; nothing of a trial that has diverged."""
        own = [set(measured_after(count, points)) for count in steps]
        parts = []
        for at, quantities in sorted(self.measured.items()):
            for name, values in quantities.items():
                there = np.isfinite(values) & np.array([at in ats for ats in own])[:, None]
                trial, layer = np.nonzero(there)
                same = np.full(len(trial), at, np.int32), np.full(len(trial), name)
                parts.append((trial.astype(np.int32), *same, layer.astype(np.int32), values[there].astype(np.float32)))
        names = ("trial", "step", "quantity", "layer", "value")
        if not parts:
            return {name: np.zeros(0) for name in names}
        return dict(zip(names, (np.concatenate(column) for column in zip(*parts, strict=True)), strict=True))
