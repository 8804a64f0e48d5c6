"""What experiments have in common: rows of statements and measured values, intervals, verdicts, tables."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axis import Axis

from depthmup.fit.curve import half_width

AGREES, DISAGREES, UNDECIDED = "agrees", "disagrees", "undecided"
NOT_RUN = "not run"  # what the claim is about was not trained
Band = tuple[float, float]


class Row(NamedTuple):
    """One number that docs/theory.md states, and what was measured."""

    section: str
    statement: str
    band: Band
    value: float
    half: float = 0.0  # half the width of the 95% interval; 0 for what has no noise

    @property
    def holds(self) -> bool:
        return self.band[0] <= self.value - self.half and self.value + self.half <= self.band[1]

    def __str__(self) -> str:
        band = f"[{self.band[0]:.4g}, {self.band[1]:.4g}]"
        interval = f" [{self.value - self.half:.4g}, {self.value + self.half:.4g}]" if self.half else ""
        verdict = "yes" if self.holds else "NO"
        return f"{self.section:5} {self.statement:82} {band:16} {f'{self.value:.4g}{interval}':30} {verdict}"


def about(value: float, tolerance: float) -> Band:
    return value - tolerance, value + tolerance


def mean(values: np.ndarray) -> tuple[float, float]:
    """Mean over seeds, and half of its 95% interval."""
    seeds = len(values)
    return float(values.mean()), float(half_width(seeds - 1) * values.std(ddof=1) / np.sqrt(seeds))


def of_law(law: tuple[Any, ...]) -> tuple[float, float]:
    """The exponent and half of its 95% interval, of a law whose first three fields are the exponent and its ends."""
    exponent, _, high = law[:3]
    return exponent, high - exponent


def interval(of: tuple[Any, ...], form: str = "+.2f", unit: str = "") -> str:
    """Such as "+0.5% [-0.1, +1.1]": a number and the ends of its 95% interval, which are the first three of `of`."""
    value, low, high = of[:3]
    return f"{value:{form}}{unit} [{low:{form}}, {high:{form}}]"


def ticks(axis: Axis, values: Sequence[float]) -> None:
    """Give a logarithmic axis (`axes.xaxis` or `axes.yaxis`) ticks at these values only, written without powers."""
    axis.set_ticks(values, [f"{value:g}" for value in values])
    axis.set_ticks([], minor=True)


class Interval(NamedTuple):
    """A number with the ends of its 95% interval."""

    value: float
    low: float
    high: float

    def text(self, form: str = "+.2f", unit: str = "") -> str:
        """Such as "+0.5% [-0.1, +1.1]", each number in the format `form`."""
        return interval(self, form, unit)

    def minus(self, other: Interval) -> Interval:
        """The difference of two numbers whose errors are independent."""
        value, half = self.value - other.value, math.hypot(self.high - self.low, other.high - other.low) / 2
        return Interval(value, value - half, value + half)

    def against(self, claimed: float, close: float) -> str:
        """The verdict on the claim that the number is `claimed`.

        It disagrees where the interval excludes the claim, agrees where the interval lies within `close` of it, and is
        undecided where the interval is wider.
        """
        within = max(self.high - claimed, claimed - self.low) < close
        return decided(within, not self.low <= claimed <= self.high)


def paired(differences: np.ndarray) -> Interval:
    """The mean of paired differences, (seeds,), with its 95% interval by Student's t."""
    value, half = mean(differences)
    return Interval(value, value - half, value + half)


def percent(ratios: np.ndarray) -> Interval:
    """By how many percent paired losses differ, of their ratios, (seeds,): the geometric mean."""
    return Interval(*(100 * math.expm1(end) for end in paired(np.log(ratios))))


def markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(line) + " |" for line in (columns, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(columns), *lines[1:]])


def decided(agrees: bool, disagrees: bool) -> str:
    """A verdict from whether a claim surely holds, and whether it surely does not."""
    return DISAGREES if disagrees else AGREES if agrees else UNDECIDED


def combined(answers: Sequence[str]) -> str:
    """One disagreement disagrees; else one undecided answer is undecided."""
    return decided(UNDECIDED not in answers, DISAGREES in answers)
