"""What the pictures of a sweep show, as plain data: figures.py draws it with Matplotlib, report.js with Plotly."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
from matplotlib.colors import to_hex

from depthmup.fit import Verdict
from depthmup.fit.picture import FOOT, Mark, loss_marks, size_colors
from depthmup.report import words
from depthmup.report.curves import TransferCurve
from depthmup.report.learning_curves import LearningCurves

LOSSES = {"loss": "training loss", "last_loss": "training loss (last tenth)", "mean_loss": "training loss (mean)"}
# Of each measured quantity its label, and what is drawn of its values (trials, steps, layers) at each step.
QUANTITIES: dict[str, tuple[str, Callable[[np.ndarray], np.ndarray]]] = {
    "updates": ("maximal-update learning rate", lambda values: np.median(values.mean(axis=-1), axis=0) ** -0.5),
    "sharpness": ("sharpness", lambda values: values[:, :, 0].mean(axis=0)),
    "kernels": ("movement of the last feature kernel", lambda values: values[:, :, -1].mean(axis=0)),
    "noise_scale": ("gradient noise scale in examples", lambda values: np.median(values[:, :, 0], axis=0)),
}
POINTS = 200  # most points of a line over the steps of training
Points = tuple[Any, Any] | None  # x and y of a line
Labelled = Sequence[tuple[str, TransferCurve]]  # the letter of a curve's sweep, "" where there is one sweep only


class Line(NamedTuple):
    """The marks of one size, or of one parameterization in a picture of optima.

    name: of the size or parameterization, which a switch turns off. label: of the legend. place: of its color.
    sweep: the letter of its sweep, whose lines are dashed alike.
    """

    name: str
    label: str
    place: int
    sweep: str
    marks: list[Mark]


class Panel(NamedTuple):
    """names: {what it is: its name}, such as the optimizer. notes: (letter of a sweep, its verdict, the tuned value's
    cost). level: a dotted line at this height. x, y: their ends."""

    names: dict[str, str]
    notes: list[tuple[str, Verdict, str]]
    lines: list[Line]
    level: float | None = None
    x: tuple[float, float] = (0.5, 2.0)
    y: tuple[float, float] = (0.5, 2.0)


class Picture(NamedTuple):
    """Panels whose y is logarithmic.

    name: of its file. title, caption: what it shows, and what its marks mean. x, y: titles of the axes. scale: of x.
    lines: what a line stands for, such as "depth". colors: on white, and on black. main: whether the report shows it at
    first. ticks: of x; empty: as they come.
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
    main: bool
    ticks: Sequence[float] = ()


def pictures(
    curves: Sequence[TransferCurve],
    learning: LearningCurves | None = None,
    trials: Sequence[str] = (),
    sweeps: Sequence[str] | None = None,
) -> Iterator[Picture]:
    """All pictures of a sweep that show something.

    Args:
      learning: the learning curves of its workdir; None: pictures over sizes and learning rates alone.
      trials: keys of trials; a point names its trials by their numbers in this list.
      sweeps: if the curves are those of several sweeps, the letter of each curve's sweep.
    """
    labelled = list(zip(sweeps or [""] * len(curves), curves, strict=True))
    number = {key: i for i, key in enumerate(trials)}
    for axis, key in dict.fromkeys((c.axis, c.hyperparameter) for c in curves):
        beside = [(sweep, c) for sweep, c in labelled if (c.axis, c.hyperparameter) == (axis, key)]
        yield losses(beside, number)
        yield optima(beside)
        if learning and key == "learning_rate":
            yield from filter(_shows, _over_steps([c for _, c in beside], learning))
    if learning and (own := [c for c in curves if c.laws.updates]):
        title = "Change of each layer in the first step (S_l, by a linear model) at each depth's best learning rate"
        x, y = "layer / number of layers", "mean square change"
        yield from filter(_shows, [_lines(own, "update_profiles", title, x, y, _profile)])


def losses(own: Labelled, number: Mapping[str, int] | None = None) -> Picture:
    """The score against the hyperparameter: a panel for each parameterization, optimizer and variant, a line for each
    size. number: of each trial, by its key."""
    sizes, first = _sizes(own), own[0][1]
    panels: dict[tuple[str, ...], Panel] = {}
    for sweep, c in own:
        names = {"parameterization": c.parameterization, "optimizer": c.optimizer, "variant": c.variant}
        panel = panels.setdefault(tuple(names.values()), Panel(names, [], []))
        panel.notes.append((sweep, c.result.verdict, words.price(c.result)))
        lines = [Line(f"{size:g}", _label(c, size, sweep), sizes.index(size), sweep, _size_marks(c, size, number or {}))
                 for size in c.result.values]  # fmt: skip
        panel.lines.extend(lines)
        highest = max(np.max(line.marks[0].y) for line in lines)
        if math.isfinite(c.chance) and highest > c.chance / 1.5:  # far above all curves it would squeeze them
            panels[tuple(names.values())] = panel._replace(level=c.chance)
    name, measure = first.hyperparameter.replace("_", " "), first.measure.replace("_", " ")
    score = f"1 - {measure}" if "accuracy" in measure else LOSSES.get(first.measure, measure)
    picture = Picture(
        name=file("loss", first),
        title=f"Loss against {name} at each {_size(first)}",
        caption=f"star: best {name}; tick below: training diverges above it; band: scatter of seeds; dotted: chance",
        x=f"{name} at the base shape" if name == "learning rate" else name,
        y=score,
        scale="log",
        lines=first.axis,
        colors=_of_sizes(len(sizes)),
        panels=list(panels.values()),
        main=True,
    )
    return _framed(picture)


def optima(own: Labelled) -> Picture:
    """The optimum against the size: a panel for each optimizer and variant, a line for each parameterization.

    Its fit is the power law with its band where there are three optima, else the line of the drift.
    """
    places = list(dict.fromkeys(c.parameterization for _, c in own))
    panels: dict[tuple[str, ...], Panel] = {}
    for sweep, c in own:
        names = {"optimizer": c.optimizer, "variant": c.variant}
        panel = panels.setdefault(tuple(names.values()), Panel(names, [], []))
        place = places.index(c.parameterization)
        drift = f": {words.drift(c.result.drift)}" if c.result.drift else ""
        label = f"{sweep}{': ' * bool(sweep)}{c.parameterization}{drift}"
        panel.lines.append(Line(c.parameterization, label, place, sweep, _optimum_marks(c, place)))
    first = own[0][1]
    name, colors = first.hyperparameter.replace("_", " "), [to_hex(f"C{i % 10}") for i in range(len(places))]
    picture = Picture(
        name=file("optimum", first),
        title=f"Best {name} against {_axis(first)}",
        caption="bars: 95%; dashed: fit with its 95% band, and the octaves by which it moves when the size doubles; "
        "dotted: training diverges above it; x: no best value",
        x=_axis(first),
        y=f"best {name}",
        scale="log",
        lines="parameterization",
        colors=(colors, colors),
        panels=list(panels.values()),
        main=False,
        ticks=_sizes(own),
    )
    return _framed(picture)


def _over_steps(own: Sequence[TransferCurve], learning: LearningCurves) -> Iterator[Picture]:
    """The training loss, and each quantity that was measured, over steps, at the smallest size's best learning rate."""
    axis, at = own[0].axis, f"at each {_size(own[0])}, with the smallest one's best learning rate"
    yield _lines(own, f"curves_over_{axis}", f"Training loss {at}", "step", "training loss", partial(_loss, learning))
    for quantity, (label, _) in QUANTITIES.items():
        if quantity in learning.quantities:
            title, points = f"{label[0].upper()}{label[1:]} {at}", partial(_measured, learning, quantity)
            level = _stability if quantity == "sharpness" else lambda c: None
            yield _lines(own, f"{quantity}_over_{axis}", title, "step", label, points, level)


def _loss(learning: LearningCurves, c: TransferCurve, size: float) -> Points:
    found = learning.loss(c.carried(size))
    if found is None:
        return None
    wide, every = max(1, len(found) // 50), -(-len(found) // POINTS)
    smooth = np.convolve(found, np.full(wide, 1 / wide), "valid")  # batches scatter more than sizes differ
    return found.index[wide - 1 :].to_numpy()[::every], smooth[::every]


def _measured(learning: LearningCurves, quantity: str, c: TransferCurve, size: float) -> Points:
    found = learning.measured(quantity, c.carried(size))
    if found is None:
        return None
    steps, values = found
    with np.errstate(divide="ignore"):
        series = QUANTITIES[quantity][1](values)
    return steps[series > 0], series[series > 0]  # kernels have not moved at the start


def _stability(c: TransferCurve) -> float | None:
    """The level 2 / learning rate of sharpness, of SGD without a schedule."""
    trials = c.carried(c.result.values[0])
    constant = c.optimizer == "sgd" and not trials.empty and trials["schedule"].iloc[0] == "constant"
    return 2 / float(trials["learning_rate"].iloc[0]) if constant else None


def _profile(c: TransferCurve, size: float) -> Points:
    """S_l of the first step at the best learning rate of a depth, over layer time."""
    best = c.result.optimal_lr[c.result.values.index(size)]
    if best is None or size not in c.laws.updates:
        return None
    found = c.laws.updates[size].per_layer * best**2
    return np.linspace(0, 1, len(found)), found


def _lines(
    own: Sequence[TransferCurve],
    name: str,
    title: str,
    x: str,
    y: str,
    points: Callable[[TransferCurve, float], Points],
    level: Callable[[TransferCurve], float | None] = lambda c: None,
) -> Picture:
    """A panel for each curve, a line for each size. points: (x, y) of a curve and size, None without any."""
    sizes, panels = _sizes([("", c) for c in own]), []
    for c in own:
        found = [(size, points(c, size)) for size in c.result.values]
        lines = [
            Line(f"{size:g}", _label(c, size), sizes.index(size), "", [Mark("line", *xy)])
            for size, xy in found
            if xy and len(xy[0])
        ]
        names = {"parameterization": c.parameterization, "optimizer": c.optimizer, "variant": c.variant}
        panels.append(Panel(names, [], lines, level(c) if lines else None))
    caption = "no line: its training diverges, or there is no best learning rate"
    colors = _of_sizes(len(sizes))
    picture = Picture(name, title, caption, x, y, "linear", own[0].axis, colors, panels, main=False)
    return _framed(picture)


def _size_marks(c: TransferCurve, size: float, number: Mapping[str, int]) -> list[Mark]:
    """The marks of one size of a loss curve, with what is behind each point."""
    i = c.result.values.index(size)
    values, diverged, log = c.result.learning_rates[i], c.result.diverged[i], c.result.log_losses(i)
    trained = ~np.isnan(log)
    keys = c.at(size).pivot(index=c.hyperparameter, columns="seed", values="key") if number else None
    behind = [[-1] * int(n) for n in trained.sum(axis=1)]
    if keys is not None:
        ordered = keys.reindex(columns=sorted(c.trials["seed"].unique())).to_numpy()
        behind = [[number.get(key, -1) for key in row[of]] for row, of in zip(ordered, trained, strict=True)]
    line, *others = loss_marks(values, log, c.result.optima[i])
    name = c.hyperparameter.replace("_", " ")
    about = [
        f"{name} {value:.4g}<br>mean loss {y:.4g}<br>seeds: {count}, diverged: {bad}"
        for value, y, count, bad in zip(values, line.y, trained.sum(axis=1), diverged.sum(axis=1), strict=True)
    ]
    seeds = Mark(
        "seeds",
        np.repeat(values, trained.sum(axis=1)),
        np.exp(log[trained]),
        about=[f"one seed{', diverged' * bool(bad)}" for bad in diverged[trained]],
        trials=[[trial] for trials in behind for trial in trials],
    )
    said = {"best": f"best {name}", "edge": "training diverges above"}
    others = [
        mark._replace(about=[f"{said[mark.kind]} {x:.4g}" for x in mark.x]) if mark.kind in said else mark
        for mark in others
    ]
    return [line._replace(about=about, trials=behind), seeds, *others]


def _optimum_marks(c: TransferCurve, place: int) -> list[Mark]:
    """The optima of a curve with their intervals, the fit, the edges, a cross at the foot for each missing optimum."""
    pairs = list(zip(c.result.values, c.result.optima, strict=True))
    found = [(size, o.learning_rate, o.low, o.high) for size, o in pairs if o.learning_rate]
    edges = [(size, o.edge.learning_rate) for size, o in pairs if o.edge and o.edge.learning_rate]
    missing = [size for size, o in pairs if not o.learning_rate]
    x, best, low, high = np.array(found, float).reshape(-1, 4).T
    about = [
        f"{c.axis} {size:g}<br>best {rate:.3g}" + ("" if math.isnan(a) else f" [{a:.3g}, {b:.3g}]")
        for size, rate, a, b in found
    ]
    low, high = np.where(np.isnan([low, high]), best, [low, high])  # no bars
    marks = [Mark("optima", x, best, low, high, about)]
    drift, law, sizes = c.result.drift, c.laws.power_law, np.geomspace(c.result.values[0], c.result.values[-1], 50)
    if law:
        marks += [Mark("fit", sizes, law(sizes)), Mark("band", sizes, low=law.band(sizes)[0], high=law.band(sizes)[1])]
    elif drift:
        marks.append(Mark("fit", sizes, 2 ** (drift.intercept + drift.octaves_per_doubling * np.log2(sizes / x[0]))))
    if edges:
        at, rates = np.array(edges).T
        marks.append(Mark("edges", at, rates, about=[f"training diverges above {rate:.3g}" for rate in rates]))
    if missing:
        heights = [0.03 + 0.05 * place] * len(missing)
        marks.append(Mark("none", missing, heights, about=[f"{c.axis} {size:g}: no best value" for size in missing]))
    return marks


def _framed(picture: Picture) -> Picture:
    """With the ends of both axes, which panels of one optimizer share."""

    def framed(panel: Panel) -> Panel:
        beside = [p for p in picture.panels if p.names["optimizer"] == panel.names["optimizer"]]
        marks = [mark for p in beside for line in p.lines for mark in line.marks if mark.kind not in (*FOOT, "band")]
        heights = [part for mark in marks for part in (mark.y, mark.low, mark.high)]
        levels = [[p.level] for p in beside if p.level]
        x = _ends([mark.x for mark in marks], picture.scale != "linear")
        return panel._replace(x=x, y=_ends([*heights, *levels], log=True))

    return picture._replace(panels=list(map(framed, picture.panels)))


def _ends(values: Iterable[Any], log: bool) -> tuple[float, float]:
    """From the smallest to the largest of some lists of numbers, with a margin."""
    every = np.concatenate([[], *(np.asarray(own, float) for own in values)])
    every = every[np.isfinite(every) & (every > 0 if log else True)]
    if not every.size:
        return 0.5, 2.0
    ends = np.array([every.min(), every.max()])
    low, high = (np.log2(ends) if log else ends).tolist()
    margin = 0.05 * (high - low) or 0.5
    return (2 ** (low - margin), 2 ** (high + margin)) if log else (low - margin, high + margin)


def _shows(picture: Picture) -> bool:
    return any(panel.lines for panel in picture.panels)


def _label(c: TransferCurve, size: float, sweep: str = "") -> str:
    return f"{sweep}{': ' * bool(sweep)}{_axis(c)} {size:g}"


def _axis(c: TransferCurve) -> str:
    return c.axis.replace("_", " ")


def _size(c: TransferCurve) -> str:
    return f"number of {c.axis}" if c.axis in ("steps", "epochs") else _axis(c)


def file(kind: str, c: TransferCurve) -> str:
    """The name of a picture of curves like this one. kind: "loss" or "optimum"."""
    other = "" if c.hyperparameter == "learning_rate" else f"_{c.hyperparameter.replace(' ', '')}"
    return f"{kind}_over_{c.axis}{other}"


def _sizes(own: Labelled) -> list[float]:
    return sorted({size for _, c in own for size in c.result.values})


def _of_sizes(count: int) -> tuple[list[str], list[str]]:
    on_white, on_black = size_colors(count), size_colors(count, 0.3, 1.0)
    return [to_hex(color) for color in on_white], [to_hex(color) for color in on_black]
