"""The output of an experiment: a picture, and beside it a JSON file of the numbers that the picture shows."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axis import Axis
from matplotlib.figure import Figure

from depthmup.files import write_atomically
from depthmup.report.figures import png


def write(figure: Figure, numbers: dict[str, Any], default: str) -> None:
    """Write the picture as PNG and the numbers as JSON, and print where. The path ends in .png; it is the command
    line's first argument, or `default`."""
    path = Path(sys.argv[1] if len(sys.argv) > 1 else default)
    path.parent.mkdir(parents=True, exist_ok=True)
    table = path.with_suffix(".json")
    write_atomically(path, png(figure))
    write_atomically(table, json.dumps(numbers, indent=1, default=_plain) + "\n")
    print(f"{path}\n{table}")


def interval(of: tuple[Any, ...], form: str = "+.2f", unit: str = "") -> str:
    """Such as "+0.5% [-0.1, +1.1]": a number and the ends of its 95% interval, which are the first three of `of`."""
    value, low, high = of[:3]
    return f"{value:{form}}{unit} [{low:{form}}, {high:{form}}]"


def ticks(axis: Axis, values: Sequence[float]) -> None:
    """Give a logarithmic axis (`axes.xaxis` or `axes.yaxis`) ticks at these values only, written without powers."""
    axis.set_ticks(values, [f"{value:g}" for value in values])
    axis.set_ticks([], minor=True)


def _plain(value: Any) -> Any:
    """NumPy's numbers and arrays as Python's, to six digits."""
    return np.vectorize(lambda number: float(f"{number:.6g}"), otypes=[object])(np.asarray(value)).tolist()
