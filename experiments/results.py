"""The output of an experiment: a picture, or rows of statements and measured values."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axis import Axis
from matplotlib.figure import Figure

from depthmup.files import write_atomically
from depthmup.fit import PowerLaw
from depthmup.fit.curve import half_width
from depthmup.report.figures import png

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


def of_law(law: PowerLaw) -> tuple[float, float]:
    """The exponent, and half of its 95% interval."""
    return law.exponent, law.high - law.exponent


def write(figure: Figure, default: str) -> None:
    """Write the picture as PNG to the command line's first argument, or to `default`, and print where."""
    path = Path(sys.argv[1] if len(sys.argv) > 1 else default)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, png(figure))
    print(path)


def interval(of: tuple[Any, ...], form: str = "+.2f", unit: str = "") -> str:
    """Such as "+0.5% [-0.1, +1.1]": a number and the ends of its 95% interval, which are the first three of `of`."""
    value, low, high = of[:3]
    return f"{value:{form}}{unit} [{low:{form}}, {high:{form}}]"


def ticks(axis: Axis, values: Sequence[float]) -> None:
    """Give a logarithmic axis (`axes.xaxis` or `axes.yaxis`) ticks at these values only, written without powers."""
    axis.set_ticks(values, [f"{value:g}" for value in values])
    axis.set_ticks([], minor=True)
