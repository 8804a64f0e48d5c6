"""What the pictures of a sweep show, as the plain data that fit/picture.py and report.js draw."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Literal

import numpy as np
from matplotlib.colors import to_hex

from depthmup.colors import curve_color
from depthmup.fit.marks import Mark, loss_marks
from depthmup.fit.picture import Line, Panel, Picture, colors_of_sizes, framed, level_of_chance, loss_picture
from depthmup.fit.thresholds import BOTH_SIDES
from depthmup.report.learning_curves import LearningCurves
from depthmup.report.tables import Block, blocks
from depthmup.settings import Quantity
from depthmup.train.quantities import QUANTITIES
from depthmup.trials.verdicts import TransferCurve

MEASURES = {"loss": "training loss", "last_loss": "training loss (last tenth)", "mean_loss": "training loss (mean)"}
POINTS = 200  # most points of a line over the steps of training


def pictures(
    curves: Sequence[TransferCurve], learning: LearningCurves | None = None, trials: Sequence[str] = ()
) -> Iterator[Picture]:
    """All pictures of a sweep, or of several sweeps, that have a line.

    Args:
      learning: the learning curves of the sweep's workdir; None: no picture shows steps of training.
      trials: keys of trials; a point names its trials by their indices in this list.
    """
    number = {key: i for i, key in enumerate(trials)}
    for block in blocks(curves):
        yield losses(block, number)
        yield optima_panels(block)
        if learning and block[0].of_rate:
            yield from _over_steps(block, learning)


def losses(block: Block, number: Mapping[str, int] | None = None) -> Picture:
    """The score against the hyperparameter: a panel for each parameterization, optimizer and variant, a line for each
    size. number: {key of a trial: its number}; None: points do not name their trials."""
    sizes, first, panels = _sizes(block), block[0], []
    for c in block:
        lines = [Line(f"{size:g}", f"{size:g}", sizes.index(size), c.sweep, _size_marks(c, size, number or {}))
                 for size in c.result.values]  # fmt: skip
        note = c.sweep, c.result.verdict, c.result.price
        panels.append(Panel(_names(c), [note], lines, level_of_chance(lines, c.chance)))
    name, measure = first.hyperparameter_name, first.measure.replace("_", " ")
    return loss_picture(
        f"Loss against {name} at each {_size(first)}",
        first.axis,
        name,
        f"1 - {measure}" if "accuracy" in measure else MEASURES.get(first.measure, measure),
        panels,
        name=file_name("loss", first),
        x=f"{name} at the base shape" * (name == "learning rate"),
    )


def optima_panels(block: Block) -> Picture:
    """The optimum against the size: a panel for each optimizer and variant, a line for each parameterization.

    The dashed fit is the power law with its band where there are three optima, else the line of the drift.
    """
    places, panels, first = list(dict.fromkeys(c.parameterization for c in block)), [], block[0]
    for c in block:
        place, drift = places.index(c.parameterization), c.result.drift
        label = ": ".join(filter(None, (c.sweep, c.parameterization, drift and str(drift))))
        line = Line(c.parameterization, label, place, c.sweep, _optimum_marks(c, place))
        panels.append(Panel({"optimizer": c.optimizer, "variant": c.variant}, [], [line]))
    colors = [to_hex(curve_color(i)) for i in range(len(places))]
    return Picture(
        name=file_name("optimum", first),
        title=f"Best {first.hyperparameter_name} against {first.axis_name}",
        caption=f"bars: {BOTH_SIDES}; dashed: fit with its {BOTH_SIDES} band, and the octaves by which it moves when "
        "the size doubles; dotted: training diverges above it; x: no best value",
        x=first.axis_name,
        y=f"best {first.hyperparameter_name}",
        scale="log",
        lines="parameterization",
        colors=(colors, colors),
        panels=framed(panels, "log"),
        ticks=_sizes(block),
    )


def file_name(kind: Literal["loss", "optimum"], c: TransferCurve) -> str:
    """The name of the picture that shows this curve, without an ending."""
    other = "" if c.of_rate else f"_{c.hyperparameter.replace(' ', '')}"
    return f"{kind}_over_{c.axis}{other}"


def _over_steps(block: Block, learning: LearningCurves) -> Iterator[Picture]:
    """The training loss, and each quantity that was measured, over steps, at the smallest size's best learning rate."""
    axis, at = block[0].axis, f"at each {_size(block[0])}, with the smallest one's best learning rate"
    title = f"Training loss {at}"
    yield from over_training(block, f"curves_over_{axis}", title, "training loss", partial(_loss, learning))
    for quantity, quantified in QUANTITIES.items():
        if quantity in learning.quantities:
            label, mark = quantified.label, partial(_measured, learning, quantity)
            title = f"{label[0].upper()}{label[1:]} {at}"
            level = _stability if quantity == "sharpness" else lambda c: None
            yield from over_training(block, f"{quantity}_over_{axis}", title, label, mark, level)


def over_training(
    curves: Sequence[TransferCurve],
    name: str,
    title: str,
    y: str,
    mark: Callable[[TransferCurve, float], Mark | None],
    level: Callable[[TransferCurve], float | None] = lambda c: None,
    x: str = "step",
) -> Iterator[Picture]:
    """A picture over steps with a panel for each curve and a line for each size, unless it would have no line.

    mark: what is drawn of a curve at a size, if anything. level: the height of a panel's dotted line, if it has one. x:
    what steps are counted in.
    """
    sizes, panels = _sizes(curves), []
    for c in curves:
        marks = [(size, mark(c, size)) for size in c.result.values]
        lines = [Line(f"{size:g}", f"{size:g}", sizes.index(size), "", [m]) for size, m in marks if m and len(m.x)]
        panels.append(Panel(_names(c), [], lines, level(c) if lines else None))
    if any(panel.lines for panel in panels):
        caption, panels = "no line: its training diverges, or there is no best learning rate", framed(panels, "linear")
        yield Picture(name, title, caption, x, y, "linear", curves[0].axis, colors_of_sizes(len(sizes)), panels)


def _loss(learning: LearningCurves, c: TransferCurve, size: float) -> Mark | None:
    loss = learning.loss(c.carried(size))
    if loss is None:
        return None
    window, stride = max(1, len(loss) // 50), -(-len(loss) // POINTS)
    smooth = np.convolve(loss, np.full(window, 1 / window), "valid")  # batches scatter more than sizes differ
    return Mark("line", loss.index[window - 1 :].to_numpy()[::stride], smooth[::stride])


def _measured(learning: LearningCurves, quantity: Quantity, c: TransferCurve, size: float) -> Mark | None:
    measured = learning.measured(quantity, c.carried(size))
    if measured is None:
        return None
    steps, values = measured
    with np.errstate(divide="ignore"):
        series = QUANTITIES[quantity].drawn(values)
    return Mark("line", steps[series > 0], series[series > 0])  # kernels have not moved at the start


def _stability(c: TransferCurve) -> float | None:
    """The level 2 / learning rate of sharpness, of SGD without a schedule."""
    trials = c.carried(c.result.values[0])
    constant = c.optimizer == "sgd" and not trials.empty and trials["schedule"].iloc[0] == "constant"
    return 2 / float(trials["learning_rate"].iloc[0]) if constant else None


def _size_marks(c: TransferCurve, size: float, number: Mapping[str, int]) -> list[Mark]:
    """The marks of one size of a loss curve. about, trials: the text of each point, and the numbers of its trials."""
    i = c.result.values.index(size)
    values, diverged, log = c.result.learning_rates[i], c.result.diverged[i], c.result.log_losses(i)
    trained, name = ~np.isnan(log), c.hyperparameter_name
    line, *others = loss_marks(values, log, c.result.optima[i])
    about = [
        f"{name} {value:.4g}<br>mean loss {y:.4g}<br>seeds: {count}, diverged: {bad}"
        for value, y, count, bad in zip(values, line.y, trained.sum(axis=1), diverged.sum(axis=1), strict=True)
    ]
    of_value = c.at(size).groupby(c.hyperparameter)["key"] if number else ()
    trials = [[number[key] for key in keys] for _, keys in of_value]
    seeds = Mark(
        "seeds",
        np.repeat(values, trained.sum(axis=1)),
        np.exp(log[trained]),
        about=[f"one seed{', diverged' * bool(bad)}" for bad in diverged[trained]],
        trials=[[trial] for of_point in trials for trial in of_point],
    )
    meanings = {"best": f"best {name}", "edge": "training diverges above"}
    others = [
        mark._replace(about=[f"{meanings[mark.kind]} {x:.4g}" for x in mark.x]) if mark.kind in meanings else mark
        for mark in others
    ]
    return [line._replace(about=about, trials=trials), seeds, *others]


def _optimum_marks(c: TransferCurve, place: int) -> list[Mark]:
    """The optima of a curve with their intervals, the fit, the edges, a cross at the foot for each missing optimum."""
    pairs = list(zip(c.result.values, c.result.optima, strict=True))
    known = [(size, o.learning_rate, o.low, o.high) for size, o in pairs if o.learning_rate]
    edges = [(size, o.edge.learning_rate) for size, o in pairs if o.edge and o.edge.learning_rate]
    missing = [size for size, o in pairs if not o.learning_rate]
    x, best, low, high = np.array(known, float).reshape(-1, 4).T
    about = [
        f"{c.axis} {size:g}<br>best {rate:.3g}" + ("" if math.isnan(a) else f" [{a:.3g}, {b:.3g}]")
        for size, rate, a, b in known
    ]
    low, high = np.where(np.isnan([low, high]), best, [low, high])  # no bars
    marks = [Mark("optima", x, best, low, high, about)]
    drift, law, sizes = c.result.drift, c.laws.power_law, np.geomspace(c.result.values[0], c.result.values[-1], 50)
    if law:
        low, high = law.band(sizes)
        marks += [Mark("fit", sizes, law(sizes)), Mark("band", sizes, low=low, high=high)]
    elif drift:
        marks.append(Mark("fit", sizes, 2 ** (drift.intercept + drift.octaves_per_doubling * np.log2(sizes / x[0]))))
    if edges:
        at, rates = np.array(edges).T
        marks.append(Mark("edges", at, rates, about=[f"training diverges above {rate:.3g}" for rate in rates]))
    if missing:
        heights = [0.03 + 0.05 * place] * len(missing)
        marks.append(Mark("none", missing, heights, about=[f"{c.axis} {size:g}: no best value" for size in missing]))
    return marks


def _names(c: TransferCurve) -> dict[str, str]:
    return {"parameterization": c.parameterization, "optimizer": c.optimizer, "variant": c.variant}


def _size(c: TransferCurve) -> str:
    return f"number of {c.axis}" if c.axis in ("steps", "epochs") else c.axis_name


def _sizes(curves: Sequence[TransferCurve]) -> list[float]:
    return sorted({size for c in curves for size in c.result.values})
