"""The picture of a verdict: the loss against the hyperparameter, a line for each size. Its marks, and their paint."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from depthmup.fit.optimum import Optimum
from depthmup.names import plain

Kind = Literal["line", "band", "best", "edge", "seeds", "optima", "fit", "edges", "none"]
FOOT = ("edge", "none")  # kinds whose y is a share of the height of the panel
# How Matplotlib draws the kinds; report.js has the same for Plotly.
STYLES: dict[Kind, dict[str, Any]] = {
    "line": {"lw": 1.6},
    "best": {"ls": "none", "marker": "*", "ms": 13, "mec": "black", "mew": 0.8, "zorder": 5},
    "edge": {"ls": "none", "marker": "|", "ms": 11, "mew": 2},
    "optima": {"ls": "none", "capsize": 3, "elinewidth": 0.8},
    "fit": {"ls": "--", "lw": 1},
    "edges": {"ls": ":", "lw": 0.8, "marker": "_", "ms": 9, "alpha": 0.7},
    "none": {"ls": "none", "marker": "x", "ms": 7, "mew": 2},
}
MARKERS = "osD^vP*"  # of optima, a marker for each color


class Mark(NamedTuple):
    """Points that are drawn in one way.

    kind: "line", "best" (a star) and "edge" (a tick at the foot, where divergence starts) of the loss over a
      hyperparameter, "band" from low to high, "seeds" (a dot for each training); of the optimum over sizes "optima"
      (bars from low to high), their "fit", "edges", and "none" (a cross at the foot: no optimum).
    x, y: (points,); of a kind in FOOT, y is a share of the height. low, high: (points,), or empty.
    about: the text of each point, or empty. trials: the numbers of the trials behind each point, or empty.
    """

    kind: Kind
    x: Any
    y: Any = ()
    low: Any = ()
    high: Any = ()
    about: Sequence[str] = ()
    trials: Sequence[Sequence[int]] = ()


def loss_marks(values: np.ndarray, log_losses: np.ndarray, optimum: Optimum) -> list[Mark]:
    """The marks of one size, the line first. values: (points,). log_losses: (points, seeds), NaN: not trained."""
    mean, spread = np.nanmean(log_losses, axis=1), np.nanstd(log_losses, axis=1)
    marks = [
        Mark("line", values, np.exp(mean)),
        Mark("band", values, low=np.exp(mean - spread), high=np.exp(mean + spread)),
    ]
    if optimum.learning_rate is not None:
        at = np.exp(np.interp(np.log(optimum.learning_rate), np.log(values), mean))
        marks.append(Mark("best", [optimum.learning_rate], [float(at)]))
    if optimum.edge and optimum.edge.learning_rate:
        marks.append(Mark("edge", [optimum.edge.learning_rate], [0.04]))
    return marks


def paint(panel: Axes, marks: Sequence[Mark], color: Any, label: str, place: int = 0) -> None:
    """Draw marks. label: of the legend. place: the index of the color, which decides the marker of optima."""
    for mark in marks:
        if mark.kind == "band":
            panel.fill_between(mark.x, mark.low, mark.high, color=color, alpha=0.15, lw=0)
        elif mark.kind == "optima":
            bars = np.subtract(mark.y, mark.low), np.subtract(mark.high, mark.y)
            style = STYLES["optima"] | {"marker": MARKERS[place % len(MARKERS)]}
            panel.errorbar(mark.x, mark.y, bars, color=color, label=plain(label), **style)
        elif mark.kind in STYLES:
            where = panel.get_xaxis_transform() if mark.kind in FOOT else panel.transData
            named: dict[str, Any] = {"label": plain(label)} if mark.kind == "line" else {}
            panel.plot(mark.x, mark.y, color=color, transform=where, **STYLES[mark.kind], **named)


def plain_log(axis: Axis) -> None:
    """Make the ticks of a logarithmic axis plain numbers, such as 0.01, 0.02, 0.05; call it once the limits are set."""
    low, high = axis.get_view_interval()
    decades, has_room = math.log10(high / low), low > 0.002  # 0.0003 is wide
    subs = (1, 2, 5) if decades < 1.7 else (1, 3) if decades < 2 + has_room else (1,)
    axis.set_major_locator(LogLocator(subs=subs))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.6g}"))
    axis.set_minor_locator(NullLocator())
