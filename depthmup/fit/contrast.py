"""The cost of one learning rate against another at one size, with its error: differences on the smooth curves."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from depthmup.fit.curve import Curve, Smooth, half_width, levels
from depthmup.fit.optimum import Optimum

LEAST = math.log(1.005)  # a difference of log losses that nobody cares about, half a percent
NEAR = 1e-9  # octaves: rounding
HELD = 0.1  # octaves: an optimum so near to the end of its curve is held there
ALIKE = 0.05  # the level of the tests that permit to pool


@dataclasses.dataclass(frozen=True, eq=False)
class Size:
    """The trainings of one size. smooth: the curve by local parabolas, which scatter half as much as the cubics that an
    optimum needs to be unbiased; None where no learning rate trains all seeds. seeds: the names of the seeds."""

    size: Any
    curve: Curve
    optimum: Optimum
    smooth: Smooth | None
    seeds: Sequence[Any]

    @functools.cached_property
    def star(self) -> float:
        """log2 of the best learning rate on the smooth curve, within an octave of the optimum: where its slope is 0,
        which scatters less than the place of the smallest value."""
        smooth = self.smooth
        assert smooth is not None
        assert self.optimum.learning_rate is not None
        near = np.abs(smooth.fine - math.log2(self.optimum.learning_rate)) <= 1
        slopes, values = smooth.slopes, np.where(near, smooth.values, np.inf)
        rising = np.flatnonzero((slopes[:-1] < 0) & (slopes[1:] >= 0) & near[:-1] & near[1:])
        if not len(rising):
            return float(smooth.fine[np.argmin(values)])
        i = int(rising[np.argmin(values[rising])])
        return float(np.interp(0.0, slopes[i : i + 2], smooth.fine[i : i + 2]))

    def value(self, at: float) -> np.ndarray | None:
        """(points,), weights of the mean log losses that make the log loss at log2 rate `at`: of the smooth curve up to
        its cliff, beyond it of the line between grid points; None where one of these has diverged, or off the grid."""
        x, smooth = self.curve.x, self.smooth
        if smooth is not None and smooth.x[0] - NEAR <= at <= smooth.x[-1] + NEAR:
            return self.embedded(smooth.value(at))
        if not x[0] - NEAR <= at <= x[-1] + NEAR:
            return None
        above = int(np.clip(np.searchsorted(x, at), 1, len(x) - 1))
        share = float(np.clip((at - x[above - 1]) / (x[above] - x[above - 1]), 0, 1))
        weights = np.zeros(len(x))
        weights[[above - 1, above]] = 1 - share, share
        return None if (weights[~self.comparable] > 0).any() else weights

    def shift(self, at: float) -> np.ndarray:
        """(points,), weights that make the shift by noise of the smooth curve's optimum `at`, in octaves: slope over
        curvature, which is taken over an octave to either side. 0 where the end of the curve holds the optimum."""
        smooth = self.smooth
        assert smooth is not None
        low, high = max(at - 1, smooth.x[0]), min(at + 1, smooth.x[-1])
        if min(at - low, high - at) < HELD:
            return np.zeros(len(self.curve.x))
        curvature = float((smooth.slope(high) - smooth.slope(low)) @ smooth.mean) / (high - low)
        return self.embedded(-smooth.slope(at)) / max(curvature, 2 * LEAST)

    def slope(self, at: float) -> float:
        """The slope of the log loss at log2 rate `at`, per octave."""
        smooth = self.smooth
        if smooth is not None and smooth.x[0] - NEAR <= at <= smooth.x[-1] + NEAR:
            return float(smooth.slope(at) @ smooth.mean)
        below, above = (self.value(float(np.clip(at + off, *self.curve.x[[0, -1]]))) for off in (-0.25, 0.25))
        return 0.0 if below is None or above is None else float((above - below) @ self.mean / 0.5)

    def embedded(self, weights: np.ndarray) -> np.ndarray:
        """(points,), weights of the smooth curve's points among those of the whole curve."""
        assert self.smooth is not None
        result = np.zeros(len(self.curve.x))
        result[np.searchsorted(self.curve.x, self.smooth.x)] = weights
        return result

    @functools.cached_property
    def comparable(self) -> np.ndarray:
        """(points,), whether every seed that was trained has a loss."""
        return np.array((self.curve.finite | np.isnan(self.curve.log)).all(axis=1))

    @functools.cached_property
    def _levels(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(means (points,), residuals (points, seeds), numbers of seeds (points,)) of the comparable points."""
        log = self.curve.log[self.comparable]
        return *levels(log), (~np.isnan(log)).sum(axis=1)

    @functools.cached_property
    def mean(self) -> np.ndarray:
        """(points,), mean log losses where they are comparable, 0 elsewhere."""
        result = np.zeros(len(self.curve.x))
        result[self.comparable] = self._levels[0]
        return result

    def influence(self, weights: np.ndarray) -> dict[Any, float]:
        """{seed: its part of the error of the sum with these weights}."""
        _, residual, counts = self._levels
        return dict(zip(self.seeds, (weights[self.comparable] / counts) @ residual, strict=True))

    def spread(self, weights: np.ndarray) -> float:
        """The variance of the sum with these weights if that of a single training is 1."""
        return float((weights**2 / np.maximum(1, (~np.isnan(self.curve.log)).sum(axis=1))).sum())

    def variances(self, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """((points,), each point's part of the variance of the sum with these weights; (points,), the degrees of
        freedom of each part). A part comes from the scatter of the seeds about their mean and levels, or with one seed
        from the scatter about the smooth curve."""
        _, residual, counts = self._levels
        used = weights[self.comparable] ** 2 / counts
        if len(self.seeds) == 1:
            scatter, freedom = (0.0, 0.0) if self.smooth is None else (self.smooth.scatter, self.smooth.freedom)
            return np.array([np.nan_to_num(scatter) ** 2 * used.sum()]), np.array([freedom])
        several = counts > 1
        levelled = len(counts) / max(1, len(counts) - 1)  # the levels of the seeds take up a share of the scatter
        scatter = levelled * (residual**2).sum(axis=1)[several] / (counts[several] - 1)
        if not several.all():  # points of a single seed scatter as the others do
            used[several] += used[~several].sum() / several.sum()
        return used[several] * scatter, counts[several] - 1.0


class Contrast(NamedTuple):
    """A difference of log losses at one size, which depends on the tuned size through its optimum.

    weights: (points,) of the mean log losses at `size`; tuned: the same at `base`, the tuned size. less: a constant
    that is subtracted.
    """

    size: Size
    weights: np.ndarray
    base: Size
    tuned: np.ndarray
    less: float = 0.0


class Measured(NamedTuple):
    """A difference with its standard error. freedom: degrees of freedom; 0 if nothing is known of the error."""

    value: float
    stderr: float
    freedom: float

    def reach(self, error: float) -> float:
        """Half the width of an interval that is exceeded at one end in a share `error` of cases; infinite if nothing is
        known of the error."""
        return half_width(self.freedom, 1 - 2 * error) * self.stderr if self.freedom else math.inf


def measured(contrasts: Sequence[Contrast]) -> list[Measured]:
    """Every contrast with its error.

    The error comes from the scatter of the seeds at every learning rate that has weight, after the level of each seed
    is subtracted (Welch and Satterthwaite's degrees of freedom, since learning rates scatter differently). The variance
    of a single training is then pooled over the contrasts, unless Bartlett's test tells them apart. Both steps assume
    that trainings at two learning rates are independent. Where they are not, the contrasts of single seeds scatter
    more; if an F test over all contrasts shows it, their scatter is the error. With one seed the error comes from the
    scatter about the smooth curves.
    """
    from scipy import special  # here, so that `import depthmup` stays light

    values = [float(c.weights @ c.size.mean) - c.less for c in contrasts]
    spreads = np.array([c.size.spread(c.weights) + c.base.spread(c.tuned) for c in contrasts])
    parts = [_parts(c) for c in contrasts]
    training_variances = np.array([float(shares.sum()) for shares, _ in parts]) / np.maximum(spreads, 1e-300)
    freedoms = np.array([_freedom(shares, freedom) for shares, freedom in parts])
    estimated = (spreads > 0) & (freedoms > 0)
    if pooled := _pooled(training_variances[estimated], freedoms[estimated]):
        training_variances[estimated], freedoms[estimated] = pooled
    variances = training_variances * spreads
    ratios = [_of_seeds(c) / variance for c, variance in zip(contrasts, variances, strict=True) if variance > 0]
    seeds = min((len(c.size.seeds) for c in contrasts), default=1)
    if seeds > 1 and ratios:
        numerator, ratio = len(ratios) * (seeds - 1.0), sum(ratios) / len(ratios)
        if special.fdtrc(numerator, max(1.0, float(freedoms.max())), ratio) < ALIKE:
            variances, freedoms = ratio * variances, np.minimum(freedoms, numerator)
    return [Measured(*fields) for fields in zip(values, np.sqrt(variances).tolist(), freedoms.tolist(), strict=True)]


def _pooled(variances: np.ndarray, freedoms: np.ndarray) -> tuple[float, float] | None:
    """The common variance and its degrees of freedom; None if Bartlett's test tells the variances apart."""
    from scipy import special  # here, so that `import depthmup` stays light

    if len(variances) < 2 or (variances <= 0).any():
        return None
    freedom = float(freedoms.sum())
    common = float(variances @ freedoms) / freedom
    statistic = freedom * math.log(common) - float(freedoms @ np.log(variances))
    correction = 1 + (float((1 / freedoms).sum()) - 1 / freedom) / (3 * (len(variances) - 1))
    return (common, freedom) if special.chdtrc(len(variances) - 1, statistic / correction) > ALIKE else None


def _parts(c: Contrast) -> tuple[np.ndarray, np.ndarray]:
    """Each point's part of a contrast's variance and the degrees of freedom of that part, over the points of both
    sizes."""
    pairs = zip(c.size.variances(c.weights), c.base.variances(c.tuned), strict=True)
    parts, freedoms = (np.concatenate(pair) for pair in pairs)
    return parts, freedoms


def _freedom(parts: np.ndarray, freedoms: np.ndarray) -> float:
    """The degrees of freedom of a sum of variances with these degrees of freedom, by Welch and Satterthwaite."""
    used = parts > 0
    if not used.any():
        return float(freedoms.max(initial=0.0))
    return float(parts[used].sum() ** 2 / (parts[used] ** 2 / np.maximum(freedoms[used], 1e-9)).sum())


def _of_seeds(c: Contrast) -> float:
    """The variance of a contrast from its values for single seeds, which are paired between sizes."""
    errors = c.size.influence(c.weights)
    for seed, error in c.base.influence(c.tuned).items():
        errors[seed] = errors.get(seed, 0.0) + error
    seeds = len(errors)
    return sum(error**2 for error in errors.values()) * seeds / (seeds - 1) if seeds > 1 else 0.0
