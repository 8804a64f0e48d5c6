"""The pictures of a sweep (panels.py) as Matplotlib draws them: readable at the width of a phone."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from depthmup.colors import VERDICT_COLORS
from depthmup.fit.marks import paint, plain_log
from depthmup.names import plain
from depthmup.report import panels
from depthmup.report.curves import grouped_by
from depthmup.report.drawing import STYLE, WIDTH
from depthmup.trials.verdicts import TransferCurve

LETTERS = 38  # that the title of one of two panels has room for


def loss_figure(curves: Sequence[TransferCurve]) -> Figure | None:
    """The score against the learning rate, or against another hyperparameter, with a line for each size. None without
    curves."""
    return draw(panels.losses(curves)) if curves else None


def optima_figure(curves: Sequence[TransferCurve]) -> Figure:
    """The optimum against the size with its fit."""
    return draw(panels.optima_panels(curves))


def draw(picture: panels.Picture) -> Figure:
    """The picture with two panels in a row. If it has two optimizers or variants with as many panels each, each of them
    has a column."""
    shown, columns = picture.panels, min(2, len(picture.panels))
    first, *others = grouped_by(shown, lambda panel: (panel.names["optimizer"], panel.names["variant"])).values()
    if [len(group) for group in others] == [len(first)]:
        shown = [panel for pair in zip(first, *others, strict=True) for panel in pair]
    rows = math.ceil(len(shown) / 2)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, 2.9 * rows + 0.9), layout="constrained")
        grid = figure.subplots(rows, columns, squeeze=False)
        for axes in grid.flat[len(shown) :]:
            axes.set_visible(False)
        for i, (axes, panel) in enumerate(zip(grid.flat, shown, strict=False)):
            _draw(axes, picture, panel)
            axes.tick_params(labelleft=i % 2 == 0 or shown[i - 1].y != panel.y)
            if i % 2 == 0:
                axes.set_ylabel(plain(picture.y))
            if i + 2 >= len(shown):
                axes.set_xlabel(plain(picture.x))
        _legends(figure, picture, list(grid.flat[: len(shown)]))
    return figure


def _draw(axes: Axes, picture: panels.Picture, panel: panels.Panel) -> None:
    axes.set_yscale("log")
    axes.set_xscale(picture.scale)
    for line in panel.lines:
        paint(axes, line.marks, picture.colors[0][line.place], line.label, line.place)
    if panel.level:
        axes.axhline(panel.level, color="gray", lw=0.8, ls=":")
    axes.set_xlim(panel.x)
    axes.set_ylim(panel.y)
    plain_log(axes.yaxis)
    if picture.ticks:
        axes.set_xticks(picture.ticks, [f"{size:g}" for size in picture.ticks])
        axes.minorticks_off()
    elif picture.scale == "log":
        plain_log(axes.xaxis)
    name = ", ".join(filter(None, (panel.names[kind] for kind in _differing(picture))))
    verdicts = dict.fromkeys(verdict for _, verdict, _ in panel.notes)
    color = VERDICT_COLORS[panel.notes[0][1]] if len(verdicts) == 1 else "black"
    lines = [": ".join(filter(None, (name, ", ".join(verdicts)))), *(price for _, _, price in panel.notes)]
    title = "\n".join(textwrap.fill(line, LETTERS, max_lines=3) for line in lines if line)
    axes.set_title(plain(title), color=color)


def _differing(picture: panels.Picture) -> list[str]:
    """The kinds of names, such as "optimizer", that tell panels apart; the others stand in the figure's title."""
    return [kind for kind in picture.panels[0].names if len({panel.names[kind] for panel in picture.panels}) > 1]


def _legends(figure: Figure, picture: panels.Picture, shown: Sequence[Axes]) -> None:
    """The legend of sizes on top, or one of parameterizations in each panel; below, what marks mean."""
    differing = _differing(picture)
    same = ", ".join(name for kind, name in picture.panels[0].names.items() if name and kind not in differing)
    title = plain(textwrap.fill(f"{picture.title}{f' ({same})' * bool(same)}", 60))
    if picture.lines == "parameterization":
        figure.suptitle(title, fontsize=11.5)
        for axes in shown:
            axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), fontsize=9, frameon=False)
    else:
        drawn = [axes.get_legend_handles_labels() for axes in shown]
        handles = {label: handle for pair in drawn for handle, label in zip(*pair, strict=True)}
        first, *others = sorted(handles, key=float)
        lines = [handles[size] for size in (first, *others)]
        place: Any = {"loc": "outside upper center", "ncols": 5, "frameon": False}
        names = [f"{picture.lines.replace('_', ' ')} {first}", *others]
        figure.legend(lines, names, title=title, title_fontsize=11.5, **place)
    figure.supxlabel(plain(textwrap.fill(picture.caption, 84)), fontsize=8.5, color="#57606a")
