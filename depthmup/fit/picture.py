"""The picture of a verdict: the loss against the hyperparameter, a line for each size."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from depthmup.fit.optimum import Optimum
from depthmup.names import plain


class SizeCurve(NamedTuple):
    """name: of the size. values: (points,) of the hyperparameter. log_losses: (points, seeds), NaN: not trained."""

    name: str
    values: np.ndarray
    log_losses: np.ndarray
    optimum: Optimum


def size_colors(count: int) -> np.ndarray:
    """A color for each size, from dark to light."""
    return matplotlib.colormaps["viridis"](np.linspace(0, 0.9, count))


def draw_losses(panel: Axes, curves: Sequence[SizeCurve], colors: np.ndarray) -> float:
    """Draw the mean over seeds with their spread, a star at each optimum, a tick at each edge; the highest loss."""
    highest = 0.0
    for (name, values, log, optimum), color in zip(curves, colors, strict=True):
        mean, spread = np.nanmean(log, axis=1), np.nanstd(log, axis=1)
        panel.plot(values, np.exp(mean), color=color, label=plain(name))
        panel.fill_between(values, np.exp(mean - spread), np.exp(mean + spread), color=color, alpha=0.2, lw=0)
        highest = max(highest, float(np.exp(mean).max()))
        if optimum.learning_rate is not None:
            at = np.exp(np.interp(np.log(optimum.learning_rate), np.log(values), mean))
            panel.plot(optimum.learning_rate, at, "*", color=color, ms=13, mec="black", mew=0.8, zorder=5)
        if optimum.edge and optimum.edge.learning_rate:
            foot = panel.get_xaxis_transform()
            panel.plot(optimum.edge.learning_rate, 0.04, "|", color=color, ms=10, mew=2, transform=foot)
    panel.set_xscale("log", base=2)
    return highest


def picture(title: str, axis: str, hyperparameter: str, curves: Sequence[tuple[Any, ...]]) -> Figure:
    """One panel with its legend. curves: as `SizeCurve`, with the size in the place of its name."""
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    panel = figure.subplots()
    named = [SizeCurve(f"{axis} {size:g}", *curve) for size, *curve in curves]
    draw_losses(panel, named, size_colors(len(named)))
    panel.set_yscale("log")
    panel.set_xlabel(plain(hyperparameter.replace("_", " ")))
    panel.set_ylabel("loss")
    panel.legend(fontsize=8)
    panel.set_title(plain(textwrap.fill(title, 70)), fontsize=9)
    return figure
