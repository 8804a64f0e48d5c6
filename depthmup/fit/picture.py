"""Pictures of panels as plain data, and how Matplotlib draws them: readable at the width of a phone.

report.js draws the same data with Plotly; the tests hold both to the same kinds of marks.
"""

from __future__ import annotations

import contextlib
import io
import math
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from depthmup.colors import VERDICT_COLORS, size_colors
from depthmup.fit.marks import FOOT, Mark, paint, plain_log
from depthmup.fit.table import grouped_by
from depthmup.fit.verdict import Verdict
from depthmup.names import plain

WIDTH = 6.4  # inches of a figure: its letters of 10 points are 8 pixels high where it is shown at 400 pixels
STYLE: Any = {"font.size": 10.5, "axes.titlesize": 9.5, "axes.spines.top": False, "axes.spines.right": False}
COLUMNS = "optimizer", "variant"  # names of panels that may have a column each
LETTERS = 38  # that the title of one of two panels has room for
Note = tuple[str, Verdict | Literal[""], str]


class Line(NamedTuple):
    """The marks of one size, or of one parameterization in a picture of optima.

    name: the size or the parameterization; a switch of this name hides the line. label: of the legend. place: the index
    of its color. sweep: the letter of its sweep; the lines of a sweep are dashed alike.
    """

    name: str
    label: str
    place: int
    sweep: str
    marks: list[Mark]


class Panel(NamedTuple):
    """One pair of axes with its lines.

    names: {what it is: its name}, such as the optimizer. notes: (letter of a sweep, its verdict, the tuned value's
    cost); any may be empty. level: the height of a dotted line. x, y: the ends of both axes.
    """

    names: dict[str, str]
    notes: list[Note]
    lines: list[Line]
    level: float | None = None
    x: tuple[float, float] = (0.5, 2.0)
    y: tuple[float, float] = (0.5, 2.0)


class Picture(NamedTuple):
    """Panels whose y is logarithmic.

    name: of its file. title, caption: what it shows, and what its marks mean. x, y: titles of the axes. scale: of x.
    lines: what a line stands for, such as "depth". colors: on white, and on black. main: whether the report shows it at
    first. ticks: of x; if empty, the painter chooses them.
    """

    name: str
    title: str
    caption: str
    x: str
    y: str
    scale: Literal["log", "linear"]
    lines: str
    colors: tuple[list[str], list[str]]
    panels: list[Panel]
    main: bool = False
    ticks: Sequence[float] = ()


def framed(panels: Iterable[Panel], scale: Literal["log", "linear"]) -> list[Panel]:
    """Panels of the same names as one. Panels of one optimizer get the same ends of axes. scale: of x."""
    joined = []
    for same in grouped_by(panels, lambda panel: tuple(panel.names.values())).values():
        notes, lines = [note for p in same for note in p.notes], [line for p in same for line in p.lines]
        joined.append(Panel(same[0].names, notes, lines, next((p.level for p in same if p.level), None)))
    framed = []
    for panel in joined:
        beside = [p for p in joined if p.names.get("optimizer") == panel.names.get("optimizer")]
        marks = [mark for p in beside for line in p.lines for mark in line.marks if mark.kind not in (*FOOT, "band")]
        heights = [part for mark in marks for part in (mark.y, mark.low, mark.high)]
        levels = [[p.level] for p in beside if p.level]
        x, y = _ends([mark.x for mark in marks], scale == "log"), _ends([*heights, *levels], log=True)
        framed.append(panel._replace(x=x, y=y))
    return framed


def _ends(lists: Iterable[Any], log: bool) -> tuple[float, float]:
    """The smallest and the largest of some lists of numbers, with a margin."""
    numbers = np.concatenate([[], *(np.asarray(values, float) for values in lists)])
    numbers = numbers[np.isfinite(numbers) & (numbers > 0 if log else True)]
    if not numbers.size:
        return 0.5, 2.0
    ends = np.array([numbers.min(), numbers.max()])
    low, high = (np.log2(ends) if log else ends).tolist()
    margin = 0.05 * (high - low) or 0.5
    return (2 ** (low - margin), 2 ** (high + margin)) if log else (low - margin, high + margin)


def loss_picture(
    title: str, axis: str, hyperparameter: str, y: str, panels: Sequence[Panel], *, name: str = "loss", x: str = ""
) -> Picture:
    """The loss against a hyperparameter, a line for each size along an axis. x: its title; "": the hyperparameter."""
    return Picture(
        name=name,
        title=title,
        caption=f"star: best {hyperparameter}; tick below: training diverges above it; band: scatter of seeds; "
        "dotted: chance",
        x=x or hyperparameter,
        y=y,
        scale="log",
        lines=axis,
        colors=colors_of_sizes(1 + max(line.place for panel in panels for line in panel.lines)),
        panels=framed(panels, "log"),
        main=True,
    )


def level_of_chance(lines: Iterable[Line], chance: float | None) -> float | None:
    """The height of the dotted line of chance; None where it lies far above all curves, which it would squeeze."""
    highest = max(np.max(line.marks[0].y) for line in lines)
    return chance if chance and math.isfinite(chance) and highest > chance / 1.5 else None


def colors_of_sizes(count: int) -> tuple[list[str], list[str]]:
    """The colors of this many sizes, on white and on black."""
    on_white, on_black = size_colors(count), size_colors(count, "black")
    return [to_hex(color) for color in on_white], [to_hex(color) for color in on_black]


@contextlib.contextmanager
def panelled(count: int, caption: str, more: float) -> Iterator[tuple[Figure, list[Axes]]]:
    """A figure of so many panels, two in a row, above a caption. more: inches of height beside those of the panels."""
    rows, columns = math.ceil(count / 2), min(2, count)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, 2.9 * rows + more), layout="constrained")
        grid = figure.subplots(rows, columns, squeeze=False).flat
        for axes in grid[count:]:
            axes.set_visible(False)
        yield figure, list(grid[:count])
        figure.supxlabel(plain(textwrap.fill(caption, 84)), fontsize=8.5, color="#57606a")


def draw(picture: Picture, more: float = 0.9) -> Figure:
    """The picture with two panels in a row. If it has two optimizers or variants with as many panels each, each of them
    has a column. more: of `panelled`."""
    shown = picture.panels
    first, *others = grouped_by(shown, lambda panel: tuple(map(panel.names.get, COLUMNS))).values()
    if [len(group) for group in others] == [len(first)]:
        shown = [panel for pair in zip(first, *others, strict=True) for panel in pair]
    with panelled(len(shown), picture.caption, more) as (figure, grid):
        for i, (axes, panel) in enumerate(zip(grid, shown, strict=True)):
            _draw(axes, picture, panel)
            axes.tick_params(labelleft=i % 2 == 0 or shown[i - 1].y != panel.y)
            if i % 2 == 0:
                axes.set_ylabel(plain(picture.y))
            if i + 2 >= len(shown):
                axes.set_xlabel(plain(picture.x))
        _legends(figure, picture, grid)
    return figure


def _draw(axes: Axes, picture: Picture, panel: Panel) -> None:
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
    verdicts = list(dict.fromkeys(verdict for _, verdict, _ in panel.notes if verdict))
    color = VERDICT_COLORS[verdicts[0]] if len(verdicts) == 1 else "black"
    lines = [": ".join(filter(None, (name, ", ".join(verdicts)))), *(price for _, _, price in panel.notes)]
    title = "\n".join(textwrap.fill(line, LETTERS, max_lines=3) for line in lines if line)
    axes.set_title(plain(title), color=color)


def _differing(picture: Picture) -> list[str]:
    """The kinds of names, such as "optimizer", that tell panels apart; the others stand in the figure's title."""
    return [kind for kind in picture.panels[0].names if len({panel.names[kind] for panel in picture.panels}) > 1]


def _legends(figure: Figure, picture: Picture, shown: Sequence[Axes]) -> None:
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
        places = {plain(line.label): line.place for panel in picture.panels for line in panel.lines}
        first, *others = sorted(handles, key=places.__getitem__)
        lines = [handles[label] for label in (first, *others)]
        place: Any = {"loc": "outside upper center", "ncols": 5, "frameon": False}
        names = [f"{picture.lines.replace('_', ' ')} {first}".lstrip(), *others]
        figure.legend(lines, names, title=title, title_fontsize=11.5, **place)


def png(figure: Figure, dpi: int = 120) -> bytes:
    """The figure as PNG bytes, the same for the same figure."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi, metadata={"Software": None})
    return buffer.getvalue()
