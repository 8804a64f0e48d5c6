"""The drift: how fast the optimum moves with the size (width or depth)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from depthmup.fit.optimum import Optimum, half_width


class Drift(NamedTuple):
    """The line through log2 optimum over log2 size; an octave is a factor of 2."""

    octaves_per_doubling: float  # slope of the line
    low: float  # ends of the slope's 95% interval
    high: float
    intercept: float  # log2 optimum of the line at the first size that has an optimum


def fitted_drift(sizes: Sequence[float], optima: Sequence[Optimum], seeds: int) -> Drift | None:
    """The drift of the sizes that have an optimum; None if fewer than two sizes have one.

    The error of an optimum is estimated in two ways: from the scatter between seeds, pooled over sizes, and from the
    scatter of the optima about the line. The larger estimate counts. With one seed only the scatter about the line is
    known; with one seed and two optima neither is, and the interval is infinite.

    Where optima scatter about the line more than seeds do, the interval held the slope in 91 to 94 of 100 simulations,
    and in fewer where this scatter was much larger. A wider interval would leave most sweeps of three sizes undecided.
    """
    found = [
        (math.log2(s), math.log2(o.learning_rate), o.stderr)
        for s, o in zip(sizes, optima, strict=True)
        if o.learning_rate
    ]
    if len(found) < 2:
        return None
    x, y, stderr = (np.array(column) for column in zip(*found, strict=True))
    centred = x - x.mean()
    slope = float(centred @ y / (centred @ centred))
    intercept = float(y.mean() + slope * (x[0] - x.mean()))
    misses = y - y.mean() - slope * centred
    free = len(x) - 2
    scatter = float(misses @ misses) / free if free else 0.0
    variance = float(np.mean(stderr**2))
    if seeds > 1:
        error, degrees = math.sqrt(max(variance, scatter)), len(x) * (seeds - 1)
    elif free:
        error, degrees = math.sqrt(scatter), free
    else:
        return Drift(slope, -math.inf, math.inf, intercept)
    half = half_width(degrees) * error / math.sqrt(float(centred @ centred))
    return Drift(slope, slope - half, slope + half, intercept)
