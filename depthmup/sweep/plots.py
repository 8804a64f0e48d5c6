"""The pictures of a sweep."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from depthmup.fit import log_losses

if TYPE_CHECKING:
    from depthmup.sweep.verdicts import Curve

VERDICT_COLORS = {"transfers": "#1a7f37", "does not transfer": "#b42318", "inconclusive": "#8a6d00"}


def loss_curves(curves: Sequence[Curve]) -> Figure:
    """Loss against learning rate, or another hyperparameter: a row per optimizer and variant, a column per
    parameterization, a curve per size."""
    axis, hyperparameter = curves[0].axis, curves[0].hyperparameter.replace("_", " ")
    rows = list(dict.fromkeys((c.optimizer, c.variant) for c in curves))
    columns = list(dict.fromkeys(c.parameterization for c in curves))
    figure = Figure(figsize=(3.6 * len(columns) + 0.9, 3.1 * len(rows) + 0.5), layout="constrained")
    panels = figure.subplots(len(rows), len(columns), squeeze=False, sharex="row", sharey=True)
    for c in curves:
        panel = panels[rows.index((c.optimizer, c.variant))][columns.index(c.parameterization)]
        colors = matplotlib.colormaps["viridis"](np.linspace(0, 0.9, len(c.result.values)))
        of_sizes = zip(c.result.values, c.result.learning_rates, c.result.losses, c.result.optima, colors, strict=True)
        for size, rates, losses, optimum, color in of_sizes:
            log = log_losses(losses, c.chance)
            mean, spread = log.mean(axis=1), log.std(axis=1)
            panel.plot(rates, np.exp(mean), color=color, label=f"{axis} {size:g}")
            panel.fill_between(rates, np.exp(mean - spread), np.exp(mean + spread), color=color, alpha=0.2, lw=0)
            if optimum.learning_rate is not None:
                at = np.exp(np.interp(np.log(optimum.learning_rate), np.log(rates), mean))
                panel.plot(optimum.learning_rate, at, "*", color=color, ms=13, mec="black", mew=0.8, zorder=5)
        panel.axhline(c.chance, color="gray", lw=0.8, ls=":")
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        verdict = c.result.verdict
        title = f"{c.parameterization}, {c.optimizer}: {verdict}" + f"\n{c.variant}" * bool(c.variant)
        panel.set_title(title, fontsize=10, color=VERDICT_COLORS[verdict])
    measure = curves[0].measure.replace("_", " ")
    for row in panels:
        row[0].set_ylabel(
            {"loss": "training loss"}.get(measure, f"1 - {measure}" if "accuracy" in measure else measure)
        )
    for panel in panels[-1]:
        panel.set_xlabel(f"{hyperparameter} at the base shape" if hyperparameter == "learning rate" else hyperparameter)
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", fontsize=9)
    title_of(figure, f"Loss against {hyperparameter} over {axis} (star: optimum; band: seeds; dotted: chance)")
    return figure


def optima(curves: Sequence[Curve]) -> Figure:
    """Optimum against size with its fit: a column per optimizer, a row per variant, a line per parameterization.

    The fit is the power law with its band where there are three optima, else the drift's line.
    """
    axis, hyperparameter = curves[0].axis, curves[0].hyperparameter.replace("_", " ")
    optimizers, variants, names = (
        list(dict.fromkeys(getattr(c, key) for c in curves)) for key in ("optimizer", "variant", "parameterization")
    )
    figure = Figure(figsize=(5.6 * len(optimizers) + 0.4, 4.2 * len(variants)), layout="constrained")
    grid = figure.subplots(len(variants), len(optimizers), squeeze=False)
    for c in curves:
        panel = grid[variants.index(c.variant)][optimizers.index(c.optimizer)]
        place = names.index(c.parameterization)
        color, marker = f"C{place}", "osD^vP*"[place % 7]
        pairs = zip(c.result.values, c.result.optima, strict=True)
        found = [(size, np.log2(o.learning_rate), o.stderr) for size, o in pairs if o.learning_rate]
        label = c.parameterization
        sizes = np.geomspace(c.result.values[0], c.result.values[-1], 50)
        if c.result.drift:
            d = c.result.drift
            label += f": {d.octaves_per_doubling:+.2f} [{d.low:+.2f}, {d.high:+.2f}]"
            line = d.intercept + d.octaves_per_doubling * np.log2(sizes / found[0][0])
            if c.law:
                line = np.log2(c.law(sizes))
                panel.fill_between(sizes, *np.log2(c.law.band(sizes)), color=color, alpha=0.12, lw=0)
            panel.plot(sizes, line, color=color, lw=1, ls="--")
        x, lr, stderr = np.array(found).reshape(-1, 3).T
        panel.errorbar(x, lr, np.nan_to_num(stderr), color=color, marker=marker, ls="none", capsize=3, label=label)
        for size in set(c.result.values) - set(x):
            panel.plot(
                size, 0.03 + 0.05 * place, marker="x", color=color, ms=7, mew=2, transform=panel.get_xaxis_transform()
            )
        panel.set_title(", ".join(filter(None, (c.optimizer, c.variant))))
    for panel in grid.flat:
        panel.set_xscale("log", base=2)
        panel.set_xlabel(axis)
        panel.set_xticks(curves[0].result.values, [f"{size:g}" for size in curves[0].result.values])
        panel.minorticks_off()
        panel.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=3, columnspacing=1)
    for row in grid:
        row[0].set_ylabel(f"log2 optimal {hyperparameter}")
    title = f"Optimal {hyperparameter} against {axis}, drift in octaves per doubling [95%]"
    title_of(figure, f"{title} (band: 95% of the fit; x: no optimum)")
    return figure


def title_of(figure: Figure, title: str) -> None:
    """In as many lines as it takes, clear of the legend at the right."""
    width = round(9.5 * figure.get_figwidth() - 16)  # letters
    figure.suptitle("\n".join(textwrap.fill(line, width) for line in title.split("\n")), fontsize=11)


def png(figure: Figure) -> bytes:
    """The figure as PNG bytes, the same for the same figure."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120, metadata={"Software": None})
    return buffer.getvalue()
