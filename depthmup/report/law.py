"""What a law over all sizes says of a large run: text, a picture, HTML. It needs NumPy, SciPy and Matplotlib alone."""

from __future__ import annotations

import base64
import dataclasses
import functools
import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from html import escape
from importlib import resources
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from depthmup.fit import Prediction, ScalingLaw
from depthmup.fit.curve import POINTS, checked_curve
from depthmup.fit.marks import Mark, paint, plain_log
from depthmup.fit.optimum import curve_optimum
from depthmup.fit.picture import panelled, png
from depthmup.fit.scaling_law import LawEstimate, Rates
from depthmup.fit.thresholds import BOTH_SIDES
from depthmup.names import floats, plain

PLACES = 6  # most sizes at which a part of a panel's law is computed
TITLE = 36  # letters of a line of a panel's title
RED = "C3"
CAPTION = (
    f"dots: measured, with {BOTH_SIDES}; pale: measured at other sizes than the title's, and moved to them by the law; "
    f"dashed: the law, with the {BOTH_SIDES} band of a new size"
)
STAR = "; star: the target; dotted: the law at the target's other sizes"


class Best(NamedTuple):
    """The measured best values, one of each combination of sizes whose curve has one.

    sizes: {axis: (curves,)}. value, low, high: (curves,), with 95% intervals, NaN where the ends are not known.
    """

    sizes: dict[str, np.ndarray]
    value: np.ndarray
    low: np.ndarray
    high: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class LargeRun:
    """A law, the trainings behind it, and the run that is asked for.

    columns: {name: values} of the trainings. measure: the column that is minimized. target: what `ScalingLaw.at` takes;
    empty: no run is asked for.
    """

    law: ScalingLaw
    columns: Mapping[str, Sequence[Any]]
    measure: str = "loss"
    target: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def prediction(self) -> Prediction | None:
        return self.law.at(**self.target) if self.target else None

    @functools.cached_property
    def best(self) -> Best:
        sizes, rates = self._sizes, np.asarray(self.columns[self.law.hyperparameter], float)
        losses = floats(self.measure, self.columns[self.measure])
        losses = 1 - losses if self.measure.endswith("accuracy") else losses
        flags = [bool(flag) for flag in self.columns.get("diverged", [False] * len(rates))]
        failed = np.array(flags) | ~np.isfinite(losses)
        seeds = np.unique([str(seed) for seed in self.columns.get("seed", [0] * len(rates))], return_inverse=True)[1]
        result = []
        for size in np.unique(sizes, axis=0):
            here = (sizes == size).all(axis=1)
            grid, at = np.unique(rates[here], return_inverse=True)
            shape = len(grid), seeds.max() + 1
            loss, diverged, trained = np.full(shape, np.nan), np.zeros(shape, bool), np.zeros(shape, bool)
            places = at, seeds[here]
            loss[places], diverged[places], trained[places] = losses[here], failed[here], True
            curve = checked_curve(grid, loss, None, diverged, trained)
            if len(curve.x) >= POINTS and (optimum := curve_optimum(curve)).learning_rate is not None:
                result.append([*size, optimum.learning_rate, optimum.low, optimum.high])
        *of_axes, value, low, high = np.array(result, float).reshape(-1, len(self.law.axes) + 3).T
        return Best(dict(zip(self.law.axes, of_axes, strict=True)), value, low, high)

    @property
    def _sizes(self) -> np.ndarray:
        return np.column_stack([np.asarray(self.columns[axis], float) for axis in self.law.axes])

    @property
    def lines(self) -> list[str]:
        """The lines of the prediction, or what would bring one."""
        if self.prediction:
            return str(self.prediction).splitlines()
        sizes = ",".join(f"{axis}=..." for axis in self.law.axes)
        return [f"no target: with {sizes} of the large run comes its {_words(self.law.hyperparameter)}"]

    @property
    def exponents(self) -> list[tuple[str, str]]:
        """(axis, exponent with its 95% interval), as text."""
        return [(_words(axis), _interval(exponent)) for axis, exponent in self.law.exponents.items()]

    @property
    def rules(self) -> list[tuple[str, str, str, str, str]]:
        """(published rule, size that doubles, what the rule says, what the law has, whether that holds it), as text."""
        return [
            (
                rule.rule,
                _words(rule.size),
                f"{rule.claimed:+.2f}",
                _interval(rule.measured),
                "yes" if rule.holds else "no",
            )
            for rule in self.law.rules
        ]

    @property
    def source(self) -> str:
        """Which trainings the law is of."""
        sizes = self._sizes
        ends = [f"{_words(axis)} {_span(size)}" for axis, size in zip(self.law.axes, sizes.T, strict=True)]
        conditions = [str(value) for value in self.law.conditions.values() if value is not None]
        curves = len(np.unique(sizes, axis=0))
        return ", ".join([f"{len(sizes):,} trainings at {curves:,} sizes", *conditions, *ends])

    @property
    def of_exponents(self) -> str:
        return f"octaves by which the best {_words(self.law.hyperparameter)} moves when a size doubles, {BOTH_SIDES}"

    def __str__(self) -> str:
        width = max(len(axis) for axis, _ in self.exponents)
        exponents = [f"  {axis:{width}}  {exponent}" for axis, exponent in self.exponents]
        notes = [f"note: {note}" for note in self.law.notes]
        lines = [*self.lines, "", f"{self.source}; {self.of_exponents}:", *exponents, *notes]
        if self.rules:
            lines.append("published rules, and whether they hold here:")
        for size in dict.fromkeys(size for _, size, *_ in self.rules):
            rules = [f"{name} {claimed} {holds}" for name, of, claimed, _, holds in self.rules if of == size]
            lines.append(f"  {size}: {', '.join(rules)}")
        return "\n".join(lines)

    def html(self, picture: bytes | None) -> str:
        """The same for a page, without a heading. picture: a PNG."""
        rows = [f'<tr><td data-title="size">{axis}<td data-title="exponent">{e}' for axis, e in self.exponents]
        question = question_of(self.law.hyperparameter)
        image = f'<img alt="{question}" src="data:image/png;base64,{base64.b64encode(picture or b"").decode()}">'
        return "\n".join(
            [
                f"<p>Target: {escape(_of(self.target))}.</p>" if self.target else "",
                f"<pre>{escape(chr(10).join(self.lines))}</pre>",
                f"<figure>{image}</figure>" if picture else "",
                f"<p>{escape(self.source)}; {escape(self.of_exponents)}:</p>",
                f"<table><thead><tr><th>size<th>exponent<tbody>{''.join(rows)}</table>",
                *(f"<p>Note: {escape(note)}.</p>" for note in self.law.notes),
                self._rules_html() if self.rules else "",
            ]
        )

    def _rules_html(self) -> str:
        names = "published rule", "size that doubles", "it says", "the law here", "holds"
        rows = [
            "<tr>" + "".join(f'<td data-title="{name}">{escape(cell)}' for name, cell in zip(names, row, strict=True))
            for row in self.rules
        ]
        table = f"<table><thead><tr>{''.join(f'<th>{name}' for name in names)}<tbody>{''.join(rows)}</table>"
        return f"<details><summary>Published rules</summary>{table}</details>"

    def picture(self) -> bytes | None:
        """`figure` as a PNG."""
        figure = self.figure()
        return png(figure) if figure else None

    def figure(self) -> Figure | None:
        """The best value against the size; None where fewer than two sizes have one.

        There is a panel for each axis along which several sizes have a best value while the others stay. Axes that move
        together have one, over the first of them.
        """
        axes = self._panels()
        if not axes:
            return None
        with panelled(len(axes), CAPTION + STAR * bool(self.target), 1.1) as (figure, grid):
            for panel, axis in zip(grid, axes, strict=True):
                self._draw_axis(panel, *axis)
            for panel in grid[::2]:
                panel.set_ylabel(plain(f"best {_words(self.law.hyperparameter)}"))
        return figure

    def _panels(self) -> list[tuple[str, ...]]:
        """The axes of each panel: one, or several that move together."""
        sizes = self.best.sizes
        varied = [axis for axis in sizes if len(set(sizes[axis])) > 1]
        together = tuple(axis for axis in varied if axis in self.law.together)
        groups = [together] * (len(together) > 1) + [
            (axis,) for axis in varied if len(together) < 2 or axis not in together
        ]
        lines = [group for group in groups if len(set(sizes[group[0]][self._line(*group)])) > 1]
        return lines or [tuple(varied)] * bool(varied)

    def _line(self, axis: str, *along: str) -> np.ndarray:
        """(curves,), whether a curve lies at the combination of the other sizes at which most sizes of the axis have a
        best value; of equal ones at that nearest to the target, else at the largest. along: axes that move with it."""
        sizes = self.best.sizes
        others = [name for name in sizes if name not in (axis, *along)]
        places = np.log(np.column_stack([sizes[name] for name in others] or [np.ones(len(self.best.value))]))
        combinations, number = np.unique(places, axis=0, return_inverse=True)
        number = number.ravel()
        counts = [len(set(sizes[axis][number == i])) for i in range(len(combinations))]
        aims = {name: math.log(self.target[name]) for name in others if isinstance(self.target.get(name), float | int)}
        far = [sum(abs(place[others.index(name)] - aim) for name, aim in aims.items()) for place in combinations]
        order = [(count, -distance, *place) for count, distance, place in zip(counts, far, combinations, strict=True)]
        return np.asarray(number == max(range(len(order)), key=lambda i: order[i]))

    def _draw_axis(self, panel: Axes, axis: str, *along: str) -> None:
        """One axis, at the other sizes of `_line`. along: axes that move with it."""
        sizes, here = self.best.sizes, self._line(axis, *along)
        target = {name: float(self.target[name]) for name in sizes if name in self.target}
        at = {name: float(size[here][0]) for name, size in sizes.items() if name not in (axis, *along)}
        ends = {name: [target[name]] * ({axis, *along} <= target.keys()) for name in (axis, *along) if name in target}
        logs = {name: np.log([*sizes[name][here], *ends.get(name, [])]) for name in (axis, *along)}
        order = np.argsort(logs[axis])

        def place(size: float) -> dict[str, float]:
            moved = {name: np.exp(np.interp(math.log(size), logs[axis][order], logs[name][order])) for name in along}
            return {**at, **moved, axis: size}

        self._draw(panel, axis, here, place, not along or bool(ends))
        if not here.all():
            away = {name: size[~here] for name, size in sizes.items()}
            on_line = self._rates([place(size) for size in away[axis].tolist()], scatter=False)
            moved = self.best.value[~here] * on_line.value / self.law.rates(away, scatter=False).value
            pale: Any = {"ls": "none", "marker": ".", "ms": 5, "color": "#b6bcc4", "zorder": 1}
            panel.plot(away[axis], moved, **pale)
        others = {name: target.get(name, size) for name, size in at.items()}
        if axis in target and others != at:
            x = np.geomspace(sizes[axis].min(), max(sizes[axis].max(), target[axis]), PLACES)
            panel.plot(x, self._rates([{**place(size), **others} for size in x.tolist()]).value, ":", lw=1, color=RED)
        titles = [f"at {_of(at)}"] * bool(at) + [f"with it move {', '.join(map(_words, along))}"] * bool(along)
        panel.set_title(plain("\n".join(textwrap.fill(title, TITLE) for title in titles)))

    def _rates(self, places: Sequence[Mapping[str, float]], scatter: bool = True) -> Rates:
        return self.law.rates({axis: [float(place[axis]) for place in places] for axis in self.law.axes}, scatter)

    def _draw(self, panel: Axes, axis: str, here: np.ndarray, at: Callable[[float], Any], beyond: bool) -> None:
        """here: (curves,), which of them are measured on the panel's line. at: from a size to all sizes of the line.
        beyond: whether the line goes on to the target."""
        best, target = self.best, float(self.target.get(axis, 0))
        measured = np.array(sorted(set(best.sizes[axis][here])))
        measured = measured[np.linspace(0, len(measured) - 1, min(len(measured), PLACES)).round().astype(int)]
        # The band is that of a new size: it is narrow where a best value was measured.
        parts = np.array([0.5]) if len(measured) > 3 else np.array([0.25, 0.5, 0.75])
        new = (measured[:-1, None] ** (1 - parts) * measured[1:, None] ** parts).ravel()
        last = max(best.sizes[axis].max(), target if beyond else 0)
        if last > measured[-1]:
            new = np.append(new, np.geomspace(measured[-1], last, PLACES)[1:])
        x = np.sort(np.append(measured, new))
        law = self._rates([at(size) for size in x.tolist()])
        between = np.isin(x, new)
        panel.set_xscale("log")
        panel.set_yscale("log")
        band = Mark("band", x[between], low=law.low[between], high=law.high[between])
        value, ends = best.value[here], (best.low[here], best.high[here])
        bars = Mark("optima", best.sizes[axis][here], value, *(np.where(np.isfinite(end), end, value) for end in ends))
        paint(panel, [band, Mark("fit", x, law.value), bars], "C0", "")
        if self.prediction and target:
            p = self.prediction
            star = Mark("optima", [target], [p.learning_rate], [p.low], [p.high])
            paint(panel, [star, Mark("best", [target], [p.learning_rate])], RED, "")
        plain_log(panel.yaxis)
        decades = math.log10(x[-1] / x[0])
        if decades < 1:
            panel.xaxis.set_major_locator(FixedLocator(sorted({*measured, x[-1]})))
        else:
            panel.xaxis.set_major_locator(
                LogLocator(subs=(1, 2, 5) if decades < 1.7 else (1, 3) if decades < 2.2 else (1,))
            )
        panel.xaxis.set_major_formatter(FuncFormatter(lambda size, _: _size(size)))
        panel.xaxis.set_minor_locator(NullLocator())
        panel.set_xlabel(plain(_words(axis)))


def law_page(run: LargeRun, command: str) -> str:
    """A page that needs no other file. command: what made it."""
    question = question_of(run.law.hyperparameter)
    style = resources.files("depthmup.report").joinpath("style.css").read_text()
    return f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{question}</title>
<style>
{style}
</style>
<h1>{question}</h1>
{run.html(run.picture())}
<pre>{escape(command)}</pre>
</html>
"""


def question_of(hyperparameter: str) -> str:
    return f"Which {_words(hyperparameter)} does the large run want?"


def _interval(e: LawEstimate) -> str:
    return f"{e.value:+.2f} [{e.low:+.2f}, {e.high:+.2f}]"


def _words(name: str) -> str:
    return name.replace("_", " ")


def _size(value: Any) -> str:
    """A size with three digits: 1024, 61k, 268M, 100B, 2T; what is no size stays."""
    if not isinstance(value, float | int):
        return str(value)
    for unit, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e4, "k")):
        if value >= unit:
            return f"{value / min(unit, 1e3 if letter == 'k' else unit):.3g}{letter}"
    return f"{value:.4g}"


def _of(sizes: Mapping[str, Any]) -> str:
    return ", ".join(f"{_words(name)} {_size(size)}" for name, size in sizes.items())


def _span(sizes: np.ndarray) -> str:
    low, high = _size(float(sizes.min())), _size(float(sizes.max()))
    return low if low == high else f"{low} to {high}"
