"""Does the estimator of optima find what was planted, also beside a divergence cliff?

    python -m experiments.planted_curves [redraws] [file.json]      500 redraws: five minutes on one core

docs/results/planted_curves.json has the numbers of 500 redraws. `planted_verdicts.summary` makes the table of
docs/laws.md from them.

Curves of known shape are planted, with noise between seeds, on grids whose place differs from redraw to redraw, and
`fit.optimum` looks for their optimum. A row of the table is a kind of curve, a grid and a number of seeds:

- bias: the mean of log2(found / planted). The planted optimum is the best of all learning rates, not only those of the
  grid, at which all seeds train.
- coverage: how often, in percent, the 95% interval holds the planted optimum; the smaller number of two, for the
  optimum below the drawn seeds' edges and the one below the middle of all edges.
- width: the median width of the interval in octaves.
- edge: how often the 95% interval of the edge holds the planted one.
- on curve: how often the loss at the optimum, interpolated between grid points, is at most the smallest of the grid
  plus its standard error (with one seed: at most that of the worse neighbour of the smallest).

Of curves with a flat bottom the regret is shown instead: by how much, in percent, the planted loss at the optimum that
was found is above the smallest planted loss.

Cliffs: "fixed" is the same for all seeds, "moving" scatters by .2 octaves between seeds, "soft" is fixed and the loss
rises by a third within the half octave below it. At a "finite" one the loss rises to 1.02, 1.1 or 3 times (1.5 or 3
times where the bowl is as deep as those of the digits) within a quarter of an octave or a whole one, and stays there.
"Shallow" bowls are those of language models. The noise (between learning rates, for one seed; a seed's own level
scatters by .1 on top) is like that of our sweeps: .08 for smooth bowls, as with Adam, .15 for one-sided curves, as with
SGD, .003 for shallow ones.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from depthmup import fit

REDRAWS = 500
CAP = math.log(10)
LEVEL = -3.0  # log loss at the optimum
OF_SEED = 0.1  # scatter of a seed's own level
MOVING, SOFT = 0.2, 0.5  # octaves
PLACES = 8  # of the grid, within a grid step: smoothing weights are made once for each grid
Shape = Callable[[np.ndarray], np.ndarray]


def bowl(curvature: float, skew: float) -> Shape:
    """curvature u^2 near its minimum at 0, steeper to the right for a positive skew, which is not 0."""
    return lambda u: 2 * curvature / skew**2 * (np.exp(skew * u) - 1 - skew * u)


def corner(left: float, right: float, width: float) -> Shape:
    """Two straight flanks, with their slopes per octave, that meet in a corner rounded over `width` octaves."""
    shift = width * math.log(left / right)

    def curve(u: np.ndarray) -> np.ndarray:
        return width * (left * np.logaddexp(0, -u / width) + right * np.logaddexp(0, u / width))

    return lambda u: curve(u + shift) - curve(np.array(shift))


class Kind(NamedTuple):
    """A kind of curve. noise: of a training. cliff: octaves from the optimum to the middle of the edges. jump:
    the factor by which finite losses rise over `ramp` octaves above the cliff, where they stay; None: what lies above
    has diverged. Of sweeps alone, step: of the grid in octaves; grows: factor of the noise at the largest depth; up:
    whether the optimum rises with depth."""

    name: str
    shape: Shape
    noise: float
    cliff: float = math.inf
    moving: float = 0.0
    soft: bool = False
    jump: float | None = None
    ramp: float = 0.5
    step: float = 0.5
    grows: float = 1.0
    up: bool = False

    @property
    def diverges(self) -> bool:
        return self.cliff < math.inf and self.jump is None

    def loss(self, u: np.ndarray, edges: np.ndarray) -> np.ndarray:
        """The planted log loss, above LEVEL, at u octaves from the bowl's minimum. u broadcasts with edges."""
        if self.jump is not None:
            rise = np.clip((u - self.cliff) / self.ramp, 0, 1)
            return self.shape(np.minimum(u, self.cliff)) + math.log(self.jump) * rise
        wall = 0.3 * np.maximum((u - edges) / SOFT + 1, 0) ** 2 if self.soft else 0.0
        return self.shape(u) + wall


SYMMETRIC = Kind("symmetric", lambda u: 0.2 * u**2, 0.08)
LEFT = Kind("steep to the left", bowl(0.1, -0.6), 0.08)
ONE_SIDED = Kind("one-sided", corner(0.7, 0.35, 0.4), 0.15)
SMOOTH = (
    SYMMETRIC,
    Kind("symmetric, flatter", lambda u: 0.1 * u**2, 0.08),
    LEFT,
    Kind("steep to the right", bowl(0.1, 0.6), 0.08),
    ONE_SIDED,
    Kind("one-sided, steep to the right", corner(0.7, 1.0, 0.4), 0.15),
)
FLAT = Kind("flat bottom", lambda u: 0.3 * np.maximum(np.abs(u) - 1, 0) ** 2, 0.08)
SHARP = Kind("corner sharper than the grid", corner(0.7, 0.35, 0.1), 0.15)
CLIFFS = [
    kind._replace(name=f"{kind.name}, {name} cliff", cliff=distance, moving=moving, soft=soft)
    for kind in (SYMMETRIC, LEFT, ONE_SIDED)
    for name, moving, soft in (("fixed", 0.0, False), ("moving", MOVING, False), ("soft", 0.0, True))
    for distance in (0.1, 0.5, 1.0, 2.0)
]
SHALLOW = Kind("shallow", lambda u: 0.004 * u**2, 0.003)  # as of language models
JUMPS = [
    kind._replace(name=f"{kind.name}, finite cliff {place} above", cliff=distance, jump=jump, ramp=ramp)
    for kind, jumps in ((SHALLOW, (1.02, 1.1, 3.0)), (SYMMETRIC, (1.5, 3.0)))
    for jump in jumps
    for ramp in (0.25, 1.0)
    for distance, place in ((0.5, "half an octave"), (1.0, "1 or 2 octaves"), (2.0, "1 or 2 octaves"))
]
KINDS = (*SMOOTH, SHALLOW, FLAT, SHARP, *CLIFFS, *JUMPS)


class Planted(NamedTuple):
    """A made-up curve. optimum: log2, the best where all drawn seeds train. middle: the best below the middle edge."""

    rates: np.ndarray
    losses: np.ndarray
    optimum: float
    middle: float


def plant(rng: np.random.Generator, kind: Kind, step: float, seeds: int) -> Planted:
    """A curve of `kind` on a grid of `step` octaves, whose place is drawn as well."""
    x = np.arange(-5, 3.01, step) + step * (rng.integers(PLACES) + 0.5) / PLACES
    edges = kind.cliff + kind.moving * rng.normal(size=seeds) if kind.diverges else np.full(seeds, np.inf)
    log_loss = LEVEL + kind.loss(x[:, None], edges) + kind.noise * rng.normal(size=(len(x), seeds))
    log_loss += OF_SEED * rng.normal(size=seeds)
    fine = np.linspace(-3, 3, 3001)
    middle = kind.cliff if kind.diverges else math.inf
    planted = kind.loss(fine, np.array(middle))
    best = [fine[np.argmin(np.where(fine <= limit, planted, np.inf))] for limit in (edges.min(), middle)]
    return Planted(2**x, np.where(x[:, None] > edges, np.nan, np.exp(log_loss)), *map(float, best))


def compare(kind: Kind, planted: Planted) -> dict[str, float]:
    """The columns of the table for one curve; NaN where there is nothing to compare."""
    estimate = fit.optimum(planted.rates, planted.losses, CAP)
    if estimate.learning_rate is None:
        return {"none": 1.0}
    star, low, high = (math.log2(value) for value in (estimate.learning_rate, estimate.low, estimate.high))
    finite = np.isfinite(planted.losses).all(axis=1)
    log = np.log(planted.losses[finite])
    means = log.mean(axis=1)
    first = int(means.argmin())
    best, neighbours = log[first], means[max(first - 1, 0) : first + 2]
    worst = best.mean() + best.std(ddof=1) / math.sqrt(len(best)) if len(best) > 1 else max(neighbours)
    assert estimate.edge
    edge = math.nan
    if kind.diverges and not math.isnan(estimate.edge.low):
        edge = float(math.log2(estimate.edge.low) <= kind.cliff <= math.log2(estimate.edge.high))
    at = [float(kind.loss(np.array(value), np.array(kind.cliff))) for value in (star, planted.optimum)]
    return {
        "none": 0.0,
        "bias": star - planted.optimum,
        "coverage": float(low - 1e-9 <= planted.optimum <= high + 1e-9),
        "of the middle": float(low - 1e-9 <= planted.middle <= high + 1e-9),
        "width": high - low,
        "edge": edge,
        "on curve": float(math.log(estimate.loss) <= worst + 1e-9),
        "regret": math.expm1(at[0] - at[1]),
    }


def measured(kind: Kind, step: float, seeds: int, redraws: int) -> dict[str, float]:
    """The columns of the table: means over redraws, of widths medians."""
    rng = np.random.default_rng(0)
    curves = [compare(kind, plant(rng, kind, step, seeds)) for _ in range(redraws)]
    columns = dict.fromkeys(name for curve in curves for name in curve)
    result = dict[str, float]()
    for name in columns:
        values = np.array([curve.get(name, math.nan) for curve in curves])
        values = values[~np.isnan(values)]
        average = np.median if "width" in name else np.mean
        result[name] = float(average(values)) if values.size else math.nan
    result["coverage"] = min(result["coverage"], result["of the middle"])
    return result


def rows(redraws: int) -> Iterator[dict[str, Any]]:
    for kind in KINDS:
        cliff = kind.cliff if kind.cliff < math.inf else None
        for step in (0.5, 1.0):
            for seeds in (1, 3, 6):
                if seeds > 1 or not kind.moving:  # one seed has one cliff
                    columns = measured(kind, step, seeds, redraws)
                    yield {"curve": kind.name, "cliff": cliff, "step": step, "seeds": seeds, **columns}


def command(rows: Callable[[int], Iterator[dict[str, Any]]], redraws: int) -> None:
    """Print each row, and write all to the file that the command line names."""
    arguments, results = sys.argv[1:], []
    for row in rows(int(arguments[0]) if arguments else redraws):
        results.append(row)
        print(json.dumps(row), flush=True)
    if arguments[1:]:
        Path(arguments[1]).write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    command(rows, REDRAWS)
