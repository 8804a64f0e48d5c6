"""What a figure of a paper has to say: the curves of its sweeps against the paper's claim."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from depthmup.fit import VERDICTS, Transfer, transfer
from depthmup.fit.curve import half_width
from depthmup.report import figures
from depthmup.report.curves import TransferCurve
from depthmup.report.page import verdict_table
from experiments.published import RESULTS, ROOT, Sweep

AGREES, DISAGREES, UNDECIDED = "agrees", "disagrees", "undecided at this scale"
TRANSFERS, DOES_NOT, _, NOTHING = VERDICTS
IMAGES = ROOT / "docs" / "images"
Sweeps = Mapping[str, Sweep]


class Outcome(NamedTuple):
    """ours: our numbers with their intervals, a line each. verdict: AGREES, DISAGREES or UNDECIDED."""

    ours: Sequence[str]
    verdict: str


class Experiment(NamedTuple):
    """One figure of the paper. The docstring of its module has the paper's settings, ours, and why they differ.

    paper: what the paper found.
    sweeps: {name of a sweep: scale ("demo" or "paper") -> its config}. Figures that share a sweep share its trials.
    remarks: what a reader should know beside the numbers: disagreements, and what was tried to explain them; or what
        makes this from the sweeps.
    classes: of the folder of images that its sweeps are trained on.
    table: the numbers of its section, as Markdown; None: the verdicts of its curves.
    needs: the sweeps without which there is no outcome; the others enter it when they are finished. None named: all.
    """

    figure: str  # such as "1"
    claim: str
    paper: str
    sweeps: Mapping[str, Callable[[str], Any]]
    outcome: Callable[[Sweeps], Outcome]
    pictures: Callable[[Sweeps], Mapping[str, Figure]]
    remarks: str | Callable[[Sweeps], str] = ""
    classes: int = 10
    table: Callable[[Sweeps], str] | None = None
    needs: Sequence[str] = ()


class Paper(NamedTuple):
    """A paper whose figures are trained anew.

    name: of its package, and of the folders of its rows and pictures. reading: how to read its column "ours".
    figures: {name on the command line: its experiment}. elsewhere: rows of figures that have no module; a row has the
    columns of `page.COLUMNS`.
    """

    name: str
    title: str
    reading: str
    figures: Mapping[str, Experiment]
    elsewhere: Sequence[tuple[str, ...]]

    @property
    def sweeps(self) -> dict[str, Callable[[str], Any]]:
        """{name: scale -> config} of the sweeps of all figures, each once."""
        return {name: config for figure in self.figures.values() for name, config in figure.sweeps.items()}

    @property
    def rows(self) -> Path:
        return RESULTS / self.name

    @property
    def images(self) -> Path:
        return IMAGES / self.name


def curve_of(curves: Sequence[TransferCurve], axis: str, parameterization: str, variant: str = "") -> TransferCurve:
    """The learning-rate curve of these names. Raises StopIteration if there is none."""
    wanted = (axis, parameterization, variant, "learning_rate")
    return next(c for c in curves if (c.axis, c.parameterization, c.variant, c.hyperparameter) == wanted)


def words(c: TransferCurve) -> str:
    """A curve's drift, verdict and cost, as `Paper.reading` explains them; of a curve that learned nothing no drift."""
    result, parts = c.result, list[str]()
    if result.drift and result.verdict != NOTHING:
        drift = result.drift
        parts.append(f"{drift.octaves_per_doubling:+.2f} [{drift.low:+.2f}, {drift.high:+.2f}]")
    parts.append(result.verdict)
    if result.cost:
        parts.append(f"costs at most {result.cost}")
    return f"{c.name} over {c.axis}: {', '.join(parts)}"


def agreement(result: Transfer, transfers: bool = True) -> str:
    """What a verdict says of the claim that the optimum transfers, or that it does not."""
    if result.verdict not in (TRANSFERS, DOES_NOT):
        return UNDECIDED
    return AGREES if (result.verdict == TRANSFERS) == transfers else DISAGREES


def chance(c: TransferCurve, measure: str) -> float:
    """What a network that has learned nothing has by one of the measures in a sweep's rows, as it is minimized."""
    if measure.endswith("accuracy"):
        return c.chance if c.measure.endswith("accuracy") else 1 - math.exp(-c.chance_loss)
    return c.chance if measure == c.measure else c.chance_loss


def by(c: TransferCurve, measure: str) -> TransferCurve:
    """The same trials judged by another measure in their rows."""
    result = transfer(c.trials, c.axis, chance(c, measure), hyperparameter=c.hyperparameter, measure=measure)
    return dataclasses.replace(c, measure=measure, chance=chance(c, measure), result=result)


def best_losses(result: Transfer, i: int) -> np.ndarray:
    """(seeds,), the losses, or errors, of the size with index `i` at its best learning rate that trains all seeds."""
    means = np.where(result.diverged[i].any(axis=1), np.inf, result.losses[i].mean(axis=1))
    return result.losses[i][means.argmin()]


def paired(differences: np.ndarray) -> tuple[float, float, float]:
    """The mean of paired differences, (seeds,), with its 95% interval by Student's t."""
    half = half_width(len(differences) - 1) * float(np.std(differences, ddof=1)) / math.sqrt(len(differences))
    mean = float(np.mean(differences))
    return mean, mean - half, mean + half


def judged(curves: Sequence[TransferCurve], expected: Mapping[tuple[str, str], bool], variant: str = "") -> Outcome:
    """Our curves against a claim. expected: {(parameterization, axis): whether the claim says that it transfers}."""
    chosen = {curve_of(curves, axis, name, variant): transfers for (name, axis), transfers in expected.items()}
    answers = [agreement(c.result, transfers) for c, transfers in chosen.items()]
    return Outcome([words(c) for c in chosen], combined(answers))


def loss_pictures(curves: Mapping[str, Sequence[TransferCurve]]) -> dict[str, Figure]:
    """The loss against the hyperparameter, a line for each size: {name of a picture: its curves} -> {name: picture}."""
    drawn = {name: figures.loss_curves(chosen) for name, chosen in curves.items()}
    return {name: figure for name, figure in drawn.items() if figure}


def verdicts(sweep: Sweep) -> str:
    """The drifts and verdicts of a sweep's curves, as a block of Markdown."""
    return "\n".join(f"    {line}".rstrip() for line in verdict_table(sweep.curves).splitlines())


def by_measures(curves: Iterable[TransferCurve], measures: Mapping[str, str]) -> str:
    """What each curve says by other measures, as a Markdown table. measures: {column of the rows: its words}."""
    rows = [(*words(by(c, name)).split(": ", 1), label) for c in curves for name, label in measures.items()]
    return markdown(("curve", "by", "drift, verdict, cost"), [(name, label, text) for name, text, label in rows])


def along(curves: Sequence[TransferCurve], prefix: str) -> dict[str, list[TransferCurve]]:
    """{"prefix_width": the curves over width, "prefix_depth": those over depth}."""
    return {f"{prefix}_{axis}": [c for c in curves if c.axis == axis] for axis in ("width", "depth")}


def markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    return "\n".join("| " + " | ".join(line) + " |" for line in (columns, ["---"] * len(columns), *rows))


def combined(answers: Sequence[str]) -> str:
    """One disagreement disagrees; else one undecided answer is undecided."""
    return next((word for word in (DISAGREES, UNDECIDED) if word in answers), AGREES)
