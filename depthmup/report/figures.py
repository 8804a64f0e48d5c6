"""The pictures of a sweep: over the learning rate, over sizes, over the steps of training and over the layers."""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter

from depthmup.fit import Optimum, Verdict
from depthmup.fit.picture import SizeCurve, draw_losses, size_colors
from depthmup.names import plain
from depthmup.report.curves import TransferCurve
from depthmup.report.learning_curves import LearningCurves

VERDICT_COLORS: dict[Verdict, str] = {
    "transfers": "#1a7f37",
    "does not transfer": "#b42318",
    "undecided": "#8a6d00",
    "nothing learned": "#5f5f5f",
}
LOSSES = {"loss": "training loss", "last_loss": "training loss (last tenth)", "mean_loss": "training loss (mean)"}
# Of each measured quantity the label, and what is drawn of its values (trials, steps, layers) at each step.
QUANTITIES: dict[str, tuple[str, Callable[[np.ndarray], np.ndarray]]] = {
    "updates": ("maximal-update learning rate", lambda values: np.median(values.mean(axis=-1), axis=0) ** -0.5),
    "sharpness": ("sharpness", lambda values: values[:, :, 0].mean(axis=0)),
    "kernels": ("movement of the last feature kernel", lambda values: values[:, :, -1].mean(axis=0)),
    "noise_scale": ("gradient noise scale in examples", lambda values: np.median(values[:, :, 0], axis=0)),
}


def loss_curves(curves: Sequence[TransferCurve]) -> Figure | None:
    """The score against the learning rate, or against another hyperparameter, with a line for each size."""
    axis, hyperparameter = (name.replace("_", " ") for name in (curves[0].axis, curves[0].hyperparameter))

    def draw(panel: Axes, c: TransferCurve, colors: np.ndarray) -> None:
        found = c.result
        lines = zip(found.values, found.learning_rates, found.optima, strict=True)
        sizes = [
            SizeCurve(f"{axis} {size:g}", rates, found.log_losses(i), best)
            for i, (size, rates, best) in enumerate(lines)
        ]
        highest = draw_losses(panel, sizes, colors)
        if highest > c.chance / 1.5:  # far above all curves the line would squeeze them
            panel.axhline(c.chance, color="gray", lw=0.8, ls=":")
        words = textwrap.fill(found.reason, 50, max_lines=3, placeholder=" ...")
        panel.set_title(
            f"{_names(c, f': {found.verdict}')}\n{plain(words)}", fontsize=8.5, color=VERDICT_COLORS[found.verdict]
        )

    measure = curves[0].measure.replace("_", " ")
    score = f"1 - {measure}" if "accuracy" in measure else measure
    x = f"{hyperparameter} at the base shape" if hyperparameter == "learning rate" else hyperparameter
    title = f"Loss against {hyperparameter} over {axis} (star: optimum; tick: edge; band: seeds; dotted: chance)"
    return _grid(curves, draw, title, x, LOSSES.get(curves[0].measure, score))


def optima(curves: Sequence[TransferCurve]) -> Figure:
    """The optimum against the size with its fit: a row for each variant, a column for each optimizer.

    The fit is the power law with its band where there are three optima, else the line of the drift.
    """
    axis, hyperparameter = (name.replace("_", " ") for name in (curves[0].axis, curves[0].hyperparameter))
    rows, columns, names = (
        list(dict.fromkeys(getattr(c, key) for c in curves)) for key in ("variant", "optimizer", "parameterization")
    )
    figure = Figure(figsize=(5.6 * len(columns) + 0.4, 4.2 * len(rows)), layout="constrained")
    panels = figure.subplots(len(rows), len(columns), squeeze=False)
    for c in curves:
        panel = panels[rows.index(c.variant), columns.index(c.optimizer)]
        _draw_optima(panel, c, names.index(c.parameterization))
        panel.set_title(plain(", ".join(filter(None, (c.optimizer, c.variant)))))
    for panel in panels.flat:
        panel.set_xscale("log", base=2)
        panel.set_xlabel(axis)
        panel.set_xticks(curves[0].result.values, [f"{size:g}" for size in curves[0].result.values])
        panel.minorticks_off()
        panel.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=3, columnspacing=1)
    for panel in panels[:, 0]:
        panel.set_ylabel(plain(f"log2 optimal {hyperparameter}"))
    title = f"Optimal {hyperparameter} against {axis}, drift in octaves per doubling [95%]"
    _set_title(figure, f"{title} (bars: 95%; band: 95% of the fit; dotted: edge; x: no optimum)")
    return figure


def learning_curves(curves: Sequence[TransferCurve], learning: LearningCurves) -> Figure | None:
    """The training loss of all sizes over steps, at the smallest size's best learning rate."""
    axis = curves[0].axis

    def draw(panel: Axes, c: TransferCurve, colors: np.ndarray) -> None:
        for size, color in zip(c.result.values, colors, strict=True):
            losses = learning.loss(c.carried(size))
            if losses is not None:
                width = max(1, len(losses) // 50)  # a running mean: batches scatter more than sizes differ
                smooth = np.convolve(losses, np.full(width, 1 / width), "valid")
                panel.plot(losses.index[width - 1 :], smooth, color=color, label=f"{axis} {size:g}", lw=1.3)

    title = f"Training loss at every {axis} with the smallest {axis}'s best learning rate (missing: none, or diverged)"
    return _grid(curves, draw, title, "step", "training loss", small=True)


def update_profiles(curves: Sequence[TransferCurve]) -> Figure | None:
    """S_l of the first step at the best learning rate of each depth, over layer time."""

    def draw(panel: Axes, c: TransferCurve, colors: np.ndarray) -> None:
        for size, best, color in zip(c.result.values, c.result.optimal_lr, colors, strict=True):
            if best is not None and size in c.laws.updates:
                profile = c.laws.updates[size].per_layer * best**2
                layer_times = np.linspace(0, 1, len(profile))
                panel.plot(layer_times, profile, "-o", ms=3, color=color, label=f"depth {size:g}", lw=1.3)

    title = (
        "Mean square change S_l of each layer in the first step, linearised, at the depth's best learning rate\n"
        "(AM-muP: mean 1)"
    )
    return _grid([c for c in curves if c.laws.updates], draw, title, "layer time l / L", "S_l", small=True)


def over_training(curves: Sequence[TransferCurve], learning: LearningCurves, quantity: str) -> Figure | None:
    """A measured quantity of all sizes over steps, at the smallest size's best learning rate."""
    axis, (label, reduce) = curves[0].axis, QUANTITIES[quantity]

    def draw(panel: Axes, c: TransferCurve, colors: np.ndarray) -> None:
        for size, color in zip(c.result.values, colors, strict=True):
            trials = c.carried(size)
            found = learning.measured(quantity, trials)
            if found is None:
                continue
            steps, values = found
            with np.errstate(divide="ignore"):
                series = reduce(values)
            positive = series > 0  # kernels have not moved at the start
            panel.plot(steps[positive], series[positive], "-o", ms=3, color=color, label=f"{axis} {size:g}", lw=1.3)
            first = trials.iloc[0]
            if quantity == "sharpness" and c.optimizer == "sgd" and first["schedule"] == "constant":
                panel.axhline(2 / first["learning_rate"], color="gray", lw=0.8, ls=":")

    title = f"{label[0].upper()}{label[1:]} at every {axis}, with the smallest {axis}'s best learning rate"
    if quantity == "sharpness":
        title += "\n(dotted: 2 / learning rate, of SGD without a schedule)"
    return _grid(curves, draw, title, "step", label, small=True)


def png(figure: Figure) -> bytes:
    """The figure as PNG bytes, the same for the same figure."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120, metadata={"Software": None})
    return buffer.getvalue()


def _draw_optima(panel: Axes, c: TransferCurve, place: int) -> None:
    """The optima with their intervals, the fit, the edges, and a cross at the foot for each size without an optimum.

    place: of the parameterization among all, which decides color and marker.
    """
    color, marker, label = f"C{place}", "osD^vP*"[place % 7], plain(c.parameterization)
    found = [(size, *np.log2([o.learning_rate, o.low, o.high])) for size, o in _pairs(c) if o.learning_rate]
    sizes = np.geomspace(c.result.values[0], c.result.values[-1], 50)
    if c.result.drift:
        drift, law = c.result.drift, c.laws.power_law
        label += f": {drift.octaves_per_doubling:+.2f} [{drift.low:+.2f}, {drift.high:+.2f}]"
        line = drift.intercept + drift.octaves_per_doubling * np.log2(sizes / found[0][0])
        if law:
            line = np.log2(law(sizes))
            panel.fill_between(sizes, *np.log2(law.band(sizes)), color=color, alpha=0.12, lw=0)
        panel.plot(sizes, line, color=color, lw=1, ls="--")
    x, rates, low, high = np.array(found).reshape(-1, 4).T
    interval = np.nan_to_num([rates - low, high - rates])
    panel.errorbar(x, rates, interval, color=color, marker=marker, ls="none", capsize=3, elinewidth=0.8, label=label)
    edges = [(size, o.edge.learning_rate) for size, o in _pairs(c) if o.edge and o.edge.learning_rate]
    if edges:
        sizes, rates = np.array(edges).T
        panel.plot(sizes, np.log2(rates), color=color, marker="_", ms=9, lw=0.7, ls=":", alpha=0.7)
    foot = panel.get_xaxis_transform()
    for size in set(c.result.values) - set(x):
        panel.plot(size, 0.03 + 0.05 * place, marker="x", color=color, ms=7, mew=2, transform=foot)


def _names(c: TransferCurve, end: str = "") -> str:
    """What a curve is of, in lines that a panel has room for."""
    return plain(textwrap.fill(", ".join(filter(None, (c.parameterization, c.optimizer, c.variant))) + end, 40))


def _pairs(c: TransferCurve) -> list[tuple[float, Optimum]]:
    return list(zip(c.result.values, c.result.optima, strict=True))


def _grid(
    curves: Sequence[TransferCurve],
    draw: Callable[[Axes, TransferCurve, np.ndarray], None],
    title: str,
    x: str,
    y: str,
    small: bool = False,
) -> Figure | None:
    """A row for each optimizer and variant, a column for each parameterization; None if nothing was drawn.

    If some parameterization lacks a variant, the panels follow each other instead, without gaps.
    draw: takes the panel of a curve, the curve and a color for each size. small: lower panels with smaller labels.
    """
    if not curves:
        return None
    rows = list(dict.fromkeys((c.optimizer, c.variant) for c in curves))
    columns = list(dict.fromkeys(c.parameterization for c in curves))
    places = [(rows.index((c.optimizer, c.variant)), columns.index(c.parameterization)) for c in curves]
    shape = len(rows), len(columns)
    if len(set(places)) < math.prod(shape):
        shape = math.ceil(len(curves) / 2), 2
        places = [divmod(i, 2) for i in range(len(curves))]
    height = 2.9 * shape[0] + 0.6 if small else 3.1 * shape[0] + 0.5
    figure = Figure(figsize=(max(3.6 * shape[1] + 0.9, 6.4), height), layout="constrained")  # the title needs room
    shared: dict[str, Any] = {"sharey": "row"} if small else {"sharex": "row", "sharey": True}
    panels = figure.subplots(*shape, squeeze=False, **shared)
    for place in np.ndindex(shape):
        panels[place].set_visible(place in places)
    handles: dict[str, Artist] = {}
    for c, place in zip(curves, places, strict=True):
        panel = panels[place]
        panel.set_title(_names(c), fontsize=10)
        draw(panel, c, size_colors(len(c.result.values)))
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    if not handles:
        return None
    for panel in panels.flat:
        panel.set_yscale("log")
        panel.yaxis.set_major_formatter(LogFormatter())
        panel.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(1, 0.5)))  # labels between powers of ten
    for panel in panels[:, 0]:
        panel.set_ylabel(y, fontsize=9 if small else 10)
    for panel in panels[-1]:
        panel.set_xlabel(plain(x))
    order = sorted(handles, key=lambda label: float(label.split()[-1]))
    figure.legend([handles[label] for label in order], order, loc="outside right upper", fontsize=9)
    _set_title(figure, title)
    return figure


def _set_title(figure: Figure, title: str) -> None:
    """In as many lines as it takes, clear of the legend at the right."""
    width = round(9.5 * figure.get_figwidth() - 16)  # letters
    figure.suptitle(plain("\n".join(textwrap.fill(line, width) for line in title.split("\n"))), fontsize=11)
