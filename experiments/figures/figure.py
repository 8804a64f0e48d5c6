"""What a figure of a paper has to say: the curves of its sweeps against the paper's claim."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from depthmup.files import write_atomically
from depthmup.fit import VERDICTS, Transfer, transfer
from depthmup.fit.curve import BANDWIDTH
from depthmup.fit.picture import draw, png
from depthmup.fit.verdict import MOST_SEEDS
from depthmup.report.panels import losses
from depthmup.settings import Judged
from depthmup.trials.verdicts import TransferCurve
from experiments.output import UNDECIDED, Interval, combined, decided, markdown
from experiments.published import RESULTS, ROOT, Sweep

TRANSFERS, DOES_NOT, _, NOTHING = VERDICTS
WORDS: Mapping[Judged, str] = {"loss": "last step's loss"}
IMAGES = ROOT / "docs" / "images"
Sweeps = Mapping[str, Sweep]
Part = tuple[str, str]  # of a claim: (the number that decides it, AGREES, DISAGREES or UNDECIDED)


class Outcome(NamedTuple):
    """What the sweeps of a figure say of its claim.

    verdict: AGREES, DISAGREES, UNDECIDED or NOT_RUN. number: the one that decides, with its 95% interval, in at most 25
    words.
    table: the numbers of the figure's section, as Markdown.
    """

    verdict: str
    number: str
    table: str = ""

    @classmethod
    def of(cls, parts: Sequence[Part], table: str = "") -> Outcome:
        """The verdict on a claim of these parts, with the number of the first part that has this verdict."""
        verdict = combined([answer for _, answer in parts])
        return cls(verdict, next(number for number, answer in parts if answer == verdict), table)


class CurveName(NamedTuple):
    """A learning-rate curve of a sweep. name: parameterization and variant."""

    sweep: str
    name: str
    axis: str = "depth"


class Experiment(NamedTuple):
    """One figure of a paper. The docstring of its module has the paper's settings, those used, and why they differ.

    figure: such as "1". claim: the paper's. sweeps: {name: () -> its config}; figures that share a sweep share its
    trials. question: of the first table of docs/results.md; "": the figure is not in it. classes: of
    the folder of images that its sweeps are trained on. needs: the sweeps without which there is no outcome; the others
    enter it when they are finished; none named: all. so_far: sweeps that enter it before, since what they lack is far
    from every optimum. printed: more numbers, which the command prints.
    """

    figure: str
    claim: str
    sweeps: Mapping[str, Callable[[], Any]]
    outcome: Callable[[Sweeps], Outcome]
    pictures: Callable[[Sweeps], Mapping[str, Figure]] = lambda sweeps: {}
    question: str = ""
    classes: int = 10
    needs: Sequence[str] = ()
    so_far: Sequence[str] = ()
    printed: Callable[[Sweeps], str] = lambda sweeps: ""

    @classmethod
    def transfers(
        cls,
        figure: str,
        claim: str,
        expected: Mapping[CurveName, bool | None],
        *,
        first_measure: Judged | None = None,
        **more: Any,
    ) -> Experiment:
        """A figure that claims of curves that the best value transfers, or that it does not.

        expected: {curve: whether the paper says that it transfers; None: it says nothing, and the curve stands beside}.
        first_measure: what the experiment was to be judged by before its first rows, if that changed; it is shown, too.
        """

        def outcome(sweeps: Sweeps) -> Outcome:
            curves = [(curve(sweeps, *name), claimed) for name, claimed in expected.items()]
            shown = {f"{c.name} over {c.axis}": c for c, _ in curves}
            result = Outcome.of(_parts(curves))
            if not first_measure:
                return result._replace(table=curve_table(shown))
            other = {name: judged_by(sweep, first_measure) for name, sweep in sweeps.items()}
            before = [(curve(other, *name), claimed) for name, claimed in expected.items()]
            first = {c: ", ".join(filter(None, cells(b)[1:])) for (c, _), (b, _) in zip(curves, before, strict=True)}
            verdict, number, _ = Outcome.of(_parts(before))
            column = f"by the {WORDS[first_measure]}"
            text = f"{result.number}; {column} {verdict}, {number.split(': ')[1]}"
            return Outcome(result.verdict, text, curve_table(shown, {column: first.__getitem__}))

        return cls(figure, claim, outcome=outcome, **more)


class Paper(NamedTuple):
    """A paper whose figures are trained anew.

    name: of its package, and of the folders of its rows, remarks and pictures. figures: {name on the command line: its
    experiment}. more: {name of a sweep: configs of trainings that its rows have in addition}, such as more seeds at
    single points of a curve that was undecided.
    """

    name: str
    title: str
    figures: Mapping[str, Experiment]
    more: Mapping[str, Sequence[Callable[[], Any]]] = MappingProxyType({})

    @property
    def sweeps(self) -> dict[str, Callable[[], Any]]:
        """{name: () -> config} of the sweeps of all figures, each once."""
        return {name: config for figure in self.figures.values() for name, config in figure.sweeps.items()}

    @property
    def rows(self) -> Path:
        return RESULTS / self.name

    @property
    def images(self) -> Path:
        return IMAGES / self.name


def _parts(curves: Sequence[tuple[TransferCurve, bool | None]]) -> list[Part]:
    return [says(c, claimed) for c, claimed in curves if claimed is not None]


def judged_by(sweep: Sweep, measure: Judged) -> Sweep:
    """The sweep with the verdicts on another measure of its rows."""
    curves = [
        dataclasses.replace(
            c, measure=measure, result=transfer(c.trials, c.axis, chance(c, measure), hyperparameter=c.hyperparameter,
            measure=measure), chance=chance(c, measure),
        )
        for c in sweep.curves
    ]  # fmt: skip
    return sweep._replace(curves=curves)


def curve(sweeps: Sweeps, sweep: str, name: str, axis: str = "depth") -> TransferCurve:
    """The learning-rate curve of this name. Raises StopIteration if there is none."""
    named = (c for c in sweeps[sweep].curves if (c.axis, c.name, c.hyperparameter) == (axis, name, "learning_rate"))
    return next(named)


def cells(c: TransferCurve) -> tuple[str, str, str]:
    """The drift of a curve in octaves a doubling, its cost and its verdict; of one that learned nothing no drift."""
    result = c.result
    drift = Interval(*result.drift[:3]).text() if result.drift and result.verdict != NOTHING else ""
    return drift, str(result.cost or ""), result.verdict


def curve_table(
    curves: Mapping[str, TransferCurve], more: Mapping[str, Callable[[TransferCurve], str]] = MappingProxyType({})
) -> str:
    """Trainings, drift, cost and verdict of curves with these labels, as a Markdown table, and what would decide the
    undecided ones, at which cost. more: {column: its cell of a curve}."""

    def row(label: str, c: TransferCurve) -> list[str]:
        missing = deciding(c) if c.result.verdict == UNDECIDED else ""
        numbers = (cell(c) for cell in more.values())
        return [label, str(len(c.trials)), *numbers, *(text or "-" for text in (*cells(c), missing))]

    rows = [row(label, c) for label, c in curves.items()]
    columns = ("curve", "trainings", *more, "drift", "costs at most", "verdict", "would decide")
    kept = slice(None if any(row[-1] != "-" for row in rows) else -1)
    return markdown(columns[kept], [row[kept] for row in rows])


def deciding(c: TransferCurve) -> str:
    """How many trainings would decide an undecided curve, and hours where its rows have the seconds of one."""
    result = c.result
    if not result.needs:
        return result.reason
    over = ">" if any(need.seeds >= MOST_SEEDS for need in result.needs) else ""
    missing = lacking(result)
    cost = f"{over}{sum(missing.values()):,} trainings"
    if "seconds" not in c.trials:
        return cost
    hours = sum(number * c.at(size)["seconds"].mean() for size, number in missing.items()) / 3600
    return f"{cost}, {over}" + (f"{60 * hours:.0f} min" if hours < 1 else f"{hours:.{int(hours < 10)}f} h")


def lacking(result: Transfer) -> dict[float, int]:
    """{size: how many trainings an undecided verdict asks for}: seeds at the values that smoothed curves depend on, at
    open sizes and at the tuned one, and values beyond a grid or between two of its own."""

    def seeds(i: int, low: float, high: float, number: int) -> int:
        rates = np.asarray(result.learning_rates[i])
        near = (rates >= low * 2.0**-BANDWIDTH) & (rates <= high * 2.0**BANDWIDTH)
        present = (np.isfinite(result.losses[i]) | result.diverged[i])[near].sum(axis=1)
        return int(np.maximum(number - present, 0).sum())

    missing, most = Counter[float](), max((need.seeds for need in result.needs if need.kind == "seeds"), default=0)
    for need in result.needs:
        i = result.values.index(need.size)
        step = np.diff(np.log2(result.learning_rates[i])).min()
        if need.kind == "seeds":
            missing[need.size] += seeds(i, need.low, need.high, need.seeds)
        elif need.kind == "finer":
            missing[need.size] += need.seeds
        else:
            missing[need.size] += need.seeds * max(1, round(math.log2(need.high / need.low) / step))
    if most and result.tuned is not None:
        missing[result.values[0]] += seeds(0, result.tuned, result.tuned, most)
    return dict(missing)


def says(c: TransferCurve, transfers: bool = True, label: str = "") -> Part:
    """A curve against the claim that its optimum transfers, or that it does not. label: "": its name."""
    drift, cost, verdict = cells(c)
    number = f"costs at most {cost}" if cost else f"drift {drift}" if drift else verdict
    return f"{label or f'{c.name} over {c.axis}'}: {number}", agreement(c.result, transfers)


def agreement(result: Transfer, transfers: bool = True) -> str:
    """What a verdict says of the claim that the optimum transfers, or that it does not."""
    claimed, other = (TRANSFERS, DOES_NOT) if transfers else (DOES_NOT, TRANSFERS)
    return decided(result.verdict == claimed, result.verdict == other)


def chance(c: TransferCurve, measure: str) -> float:
    """What a network that has learned nothing has by one of the measures in a sweep's rows, as it is minimized."""
    if measure.endswith("accuracy"):
        return c.chance if c.measure.endswith("accuracy") else 1 - math.exp(-c.chance_loss)
    return c.chance if measure == c.measure else c.chance_loss


def best_losses(result: Transfer, i: int) -> np.ndarray:
    """(seeds,), the losses, or errors, of the size with index `i` at its best learning rate that trains all seeds."""
    means = np.where(result.diverged[i].any(axis=1), np.inf, result.losses[i].mean(axis=1))
    return result.losses[i][means.argmin()]


def loss_pictures(curves: Mapping[str, Sequence[TransferCurve]]) -> dict[str, Figure]:
    """{name of a picture: the loss against the hyperparameter, a line for each size}. curves: {name: those drawn}."""
    return {name: draw(losses(chosen)) for name, chosen in curves.items() if chosen}


def save(folder: Path, pictures: Mapping[str, Figure]) -> None:
    """Write each picture to NAME.png in the folder, with the pixels of dense screens."""
    for name, picture in pictures.items():
        write_atomically(folder / f"{name}.png", png(picture, dpi=240))


def panels(
    draw: Mapping[str, Callable[[Axes], Any]],
    xlabel: str,
    ylabel: str,
    title: str = "",
    size: tuple[float, float] = (8, 3.8),
) -> Figure:
    """Panels in a row that share the vertical axis. draw: {title of a panel: what draws it}. size: inches."""
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(1, len(draw), sharey=True)
    for panel, (name, content) in zip(axes, draw.items(), strict=True):
        content(panel)
        panel.set(title=name, xlabel=xlabel)
        if panel.get_legend_handles_labels()[0]:
            panel.legend(fontsize=8)
    axes[0].set_ylabel(ylabel)
    if title:
        figure.suptitle(title)
    return figure


def along(curves: Sequence[TransferCurve], prefix: str) -> dict[str, list[TransferCurve]]:
    """{"prefix_width": the curves over width, "prefix_depth": those over depth}."""
    return {f"{prefix}_{axis}": [c for c in curves if c.axis == axis] for axis in ("width", "depth")}
