"""Pictures of a sweep over the course of training, and over the layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from depthmup.sweep.histories import Histories
from depthmup.sweep.plots import title_of
from depthmup.sweep.verdicts import Curve

# Label; of values (trials, steps, layers) -> (steps,).
QUANTITIES: dict[str, tuple[str, Callable[[np.ndarray], np.ndarray]]] = {
    "updates": ("maximal-update learning rate", lambda values: np.median(values.mean(axis=-1), axis=0) ** -0.5),
    "sharpness": ("sharpness", lambda values: values[:, :, 0].mean(axis=0)),
    "kernels": ("movement of the last feature kernel", lambda values: values[:, :, -1].mean(axis=0)),
}


def learning_curves(curves: Sequence[Curve], histories: Histories, axis: str) -> Figure | None:
    """Training loss over steps with the smallest size's best learning rate, all sizes in one panel."""

    def draw(panel: Any, c: Curve, size: float, color: Any) -> None:
        found = histories.loss(c.carried.get(size, ()))
        if found is None:
            return
        steps, losses = found
        width = max(1, len(steps) // 50)  # a running mean: batches scatter more than sizes differ
        smooth = np.convolve(losses, np.full(width, 1 / width), "valid")
        panel.plot(steps[width - 1 :], smooth, color=color, label=f"{axis} {size:g}", lw=1.3)

    title = f"Training loss at every {axis} with the smallest {axis}'s best learning rate (missing: none, or diverged)"
    return _panels([c for c in curves if c.axis == axis], draw, title, "step", "training loss")


def update_profiles(curves: Sequence[Curve]) -> Figure | None:
    """S_l at the best learning rate of each depth, over layer time."""

    def draw(panel: Any, c: Curve, size: float, color: Any) -> None:
        best = dict(zip(c.result.values, c.result.optimal_lr, strict=True))[size]
        if best is None or size not in c.updates:
            return
        profile = c.updates[size].per_layer * best**2
        panel.plot(np.linspace(0, 1, len(profile)), profile, "-o", ms=3, color=color, label=f"depth {size:g}", lw=1.3)

    title = (
        "Mean square change S_l of each layer in the first step, linearised, at the depth's best learning rate\n"
        "(AM-muP: mean 1)"
    )
    return _panels([c for c in curves if c.updates], draw, title, "layer time l / L", "S_l")


def over_training(curves: Sequence[Curve], histories: Histories, axis: str, quantity: str) -> Figure | None:
    """What was measured of the trials with the smallest size's best learning rate, over steps."""
    label, of = QUANTITIES[quantity]

    def draw(panel: Any, c: Curve, size: float, color: Any) -> None:
        found = histories.measured(quantity, c.carried.get(size, ()))
        if found is None:
            return
        steps, values = found
        with np.errstate(divide="ignore"):
            series = of(values)
        positive = series > 0  # kernels have not moved at the start
        panel.plot(steps[positive], series[positive], "-o", ms=3, color=color, label=f"{axis} {size:g}", lw=1.3)
        trial = histories.rows[c.carried[size][0]]
        if quantity == "sharpness" and c.optimizer == "sgd" and trial["schedule"] == "constant":
            panel.axhline(2 / trial["learning_rate"], color="gray", lw=0.8, ls=":")

    title = f"{label[0].upper()}{label[1:]} at every {axis}, with the smallest {axis}'s best learning rate"
    if quantity == "sharpness":
        title += "\n(dotted: 2 / learning rate, of SGD without a schedule)"
    return _panels([c for c in curves if c.axis == axis], draw, title, "step", label)


def _panels(
    curves: Sequence[Curve], draw: Callable[[Any, Curve, float, Any], None], title: str, x: str, y: str
) -> Figure | None:
    """A row per optimizer and variant, a column per parameterization, a line per size; None if nothing was drawn."""
    curves = [c for c in curves if c.hyperparameter == "learning_rate"]
    if not curves:
        return None
    rows = list(dict.fromkeys((c.optimizer, c.variant) for c in curves))
    columns = list(dict.fromkeys(c.parameterization for c in curves))
    figure = Figure(figsize=(3.6 * len(columns) + 0.9, 2.9 * len(rows) + 0.6), layout="constrained")
    panels = figure.subplots(len(rows), len(columns), squeeze=False, sharey="row")
    handles: dict[str, Any] = {}
    for c in curves:
        panel = panels[rows.index((c.optimizer, c.variant))][columns.index(c.parameterization)]
        colors = matplotlib.colormaps["viridis"](np.linspace(0, 0.9, len(c.result.values)))
        for size, color in zip(c.result.values, colors, strict=True):
            draw(panel, c, size, color)
        panel.set_title(", ".join(filter(None, (c.parameterization, c.optimizer, c.variant))), fontsize=10)
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    if not handles:
        return None
    for panel in panels.flat:
        panel.set_yscale("log")
    for row in panels:
        row[0].set_ylabel(y, fontsize=9)
    for panel in panels[-1]:
        panel.set_xlabel(x)
    order = sorted(handles, key=lambda label: float(label.split()[1]))
    figure.legend([handles[label] for label in order], order, loc="outside right upper", fontsize=9)
    title_of(figure, title)
    return figure
