"""The drift: how fast the optimum, or the edge, moves with the size (width or depth)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from depthmup.fit.curve import half_width
from depthmup.fit.optimum import Edge, Optimum


class Drift(NamedTuple):
    """The line through log2 learning rate over log2 size; an octave is a factor of 2."""

    octaves_per_doubling: float  # slope of the line
    low: float  # ends of the slope's 95% interval
    high: float
    intercept: float  # log2 learning rate of the line at the first size that has one

    def __str__(self) -> str:
        return f"{self.octaves_per_doubling:+.2f} [{self.low:+.2f}, {self.high:+.2f}]"


def fitted_drift(sizes: Sequence[float], optima: Sequence[Optimum | Edge | None], seeds: int) -> Drift | None:
    """The drift of the sizes that have a learning rate; None if fewer than two sizes have one.

    The statistical error of a learning rate is estimated in two ways: from the scatter between seeds, pooled over
    sizes, and from the scatter about the line. The larger estimate counts. With one seed only the scatter about the
    line is known; with one seed and two sizes neither is, and the interval is infinite.

    The interval also contains the resolution of the grid: each learning rate may be off by its `resolution`, and the
    slope by as much as if these errors conspired. Learning rates that lie between the same two grid points at every
    size look equal without being so, however many seeds there are.
    """
    pairs = [(math.log2(s), o) for s, o in zip(sizes, optima, strict=True) if o is not None and o.learning_rate]
    if len(pairs) < 2:
        return None
    x = np.array([size for size, _ in pairs])
    y, stderr, resolution = np.array([(math.log2(o.learning_rate or 1), o.stderr, o.resolution) for _, o in pairs]).T
    centred = x - x.mean()
    squares = float(centred @ centred)
    slope = float(centred @ y / squares)
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
    half = half_width(degrees) * error / math.sqrt(squares) + float(np.abs(centred) @ resolution) / squares
    return Drift(slope, slope - half, slope + half, intercept)
