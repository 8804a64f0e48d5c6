"""The pictures of a sweep (panels.py) as Matplotlib draws them: readable at the width of a phone."""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Sequence
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from depthmup.fit import Verdict
from depthmup.fit.picture import paint, plain_log
from depthmup.names import plain
from depthmup.report import panels
from depthmup.report.curves import TransferCurve

VERDICT_COLORS: dict[Verdict, str] = {
    "transfers": "#1a7f37",
    "does not transfer": "#b42318",
    "undecided": "#8a6d00",
    "nothing learned": "#5f5f5f",
}
WIDTH = 6.4  # inches of a figure: its letters of 10 points are 8 pixels high where it is shown at 400 pixels
LETTERS = 38  # that the title of one of two panels has room for
STYLE: Any = {"font.size": 10.5, "axes.titlesize": 9.5, "axes.spines.top": False, "axes.spines.right": False}


def loss_curves(curves: Sequence[TransferCurve]) -> Figure | None:
    """The score against the learning rate, or against another hyperparameter, with a line for each size."""
    return draw(panels.losses([("", c) for c in curves])) if curves else None


def optima(curves: Sequence[TransferCurve]) -> Figure:
    """The optimum against the size with its fit."""
    return draw(panels.optima([("", c) for c in curves]))


def draw(picture: panels.Picture) -> Figure:
    """Two panels in a row: of two optimizers, or variants, one in each column; else one after another."""
    kinds = list(dict.fromkeys((p.names["optimizer"], p.names["variant"]) for p in picture.panels))
    rows = math.ceil(len(picture.panels) / 2)
    places = [divmod(i, 2) for i in range(len(picture.panels))]
    if len(kinds) == 2 and len(picture.panels) % 2 == 0:
        seen = [kinds.index((p.names["optimizer"], p.names["variant"])) for p in picture.panels]
        if seen.count(0) == rows:
            places = [(seen[:i].count(kind), kind) for i, kind in enumerate(seen)]
    columns = min(2, len(picture.panels))
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, 2.9 * rows + 0.9), layout="constrained")
        grid = figure.subplots(rows, columns, squeeze=False)
        for axes in grid.flat:
            axes.set_visible(False)
        for panel, place in zip(picture.panels, places, strict=True):
            _draw(grid[place], picture, panel)
        for (row, column), panel in zip(places, picture.panels, strict=True):
            left = [p for p, place in zip(picture.panels, places, strict=True) if place == (row, column - 1)]
            grid[row, column].tick_params(labelleft=not left or left[0].y != panel.y)
            if not left:
                grid[row, column].set_ylabel(plain(picture.y))
            if (row + 1, column) not in places:
                grid[row, column].set_xlabel(plain(picture.x))
        _legends(figure, picture, [grid[place] for place in places])
    return figure


def png(figure: Figure) -> bytes:
    """The figure as PNG bytes, the same for the same figure."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120, metadata={"Software": None})
    return buffer.getvalue()


def _draw(axes: Axes, picture: panels.Picture, panel: panels.Panel) -> None:
    axes.set_visible(True)
    axes.set_yscale("log")
    if picture.scale != "linear":
        axes.set_xscale("log")
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
    """The kinds of names that tell panels apart; the others stand in the title."""
    return [kind for kind in picture.panels[0].names if len({panel.names[kind] for panel in picture.panels}) > 1]


def _legends(figure: Figure, picture: panels.Picture, shown: Sequence[Axes]) -> None:
    """What a line stands for: of sizes once, on top; of parameterizations in each panel. And what marks mean, below."""
    first, differing = picture.panels[0].names, _differing(picture)
    same = ", ".join(name for kind, name in first.items() if name and kind not in differing)
    title = plain(textwrap.fill(f"{picture.title}{f' ({same})' * bool(same)}", 60))
    if picture.lines == "parameterization":
        figure.suptitle(title, fontsize=11.5)
        for axes in shown:
            axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), fontsize=9, frameon=False)
    else:
        drawn = [axes.get_legend_handles_labels() for axes in shown]
        handles = {label: handle for pair in drawn for handle, label in zip(*pair, strict=True)}
        order = sorted(handles, key=lambda label: float(label.split()[-1]))
        names = [label.split()[-1] if i else label for i, label in enumerate(order)]
        lines = [handles[label] for label in order]
        place: Any = {"loc": "outside upper center", "ncols": 5, "frameon": False}
        figure.legend(lines, names, title=title, title_fontsize=11.5, **place)
    figure.supxlabel(plain(textwrap.fill(picture.caption, 84)), fontsize=8.5, color="#57606a")
