"""The learning-rate curves of several sizes as draws from their posterior: smooth curves that the trainings allow.

The log loss of a size, over log2 of the learning rate, is a bowl of one of several `SHAPES` plus a smooth deviation, a
Gaussian process whose third derivative is white noise (its mean is a smoothing spline: Wahba 1978; Rasmussen and
Williams 2006, sections 2.7 and 6.3). The shape and the size of the deviation, in units of the bowl's curvature, are
alike at all sizes, and all sizes together choose them: by the restricted likelihood, averaged, not maximized. Costs,
optima and their errors are read off the draws, with no straight line in the place of a curve.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from depthmup.fit.curve import Curve, Smooth

DRAWS = 2000  # half of them mirror the other half, so that their mean is exact
FINE = 8  # places of a drawn curve per octave, beside the points of the grid
# Steeper above the optimum for a positive skew: Morse's potential (exp(skew u) - 1)^2, a parabola for 0, and parabolas
# that are exp(2 skew) times as steep above as below. Points half an octave apart hardly tell one from the other, but
# their optima differ.
MORSE = np.linspace(-0.8, 0.8, 17)
SPLIT = np.log([1 / 5, 1 / 4, 1 / 3, 1 / 2, 2, 3, 4, 5]) / 2
SHAPES = np.concatenate([MORSE, SPLIT])
LIKELY_SKEW = 0.35, 0.6  # standard deviations of the priors of the two kinds of shapes
# Change of the curvature within an octave, by the curvature: its logarithm has an even prior up to SMOOTH.
ROUGHNESS = np.geomspace(0.02, 3.0, 8)
SMOOTH = 0.08
OF_SKEW = 0.3  # roughness of a shape of skew 1: what is skew is seldom exactly of its shape
HEIGHT = 0.02  # share of its height above the lowest point by which a point may miss the curve: bowls hold near it
REACH = 2.0  # octaves from the lowest point at which the variance of a point doubles: it grows by (distance / REACH)^4
LEAST_CHANCE = 0.03  # of the most likely shape and roughness: less likely ones are left out
ALIKE = 0.05  # the level of the tests that permit to pool variances
PRIOR_FREEDOM = 6.0  # of the variance at single points, about that of their size


class Noise(NamedTuple):
    """The variance of a single training and its degrees of freedom; 0 if nothing is known of it. ratio: of this to the
    scatter about the seeds' levels."""

    variance: float
    freedom: float
    ratio: float = 1.0


@dataclasses.dataclass(frozen=True, eq=False)
class Points:
    """The points of one size up to its cliff. x, mean, counts: (points,), log2 learning rates, mean log losses, numbers
    of seeds. residual: (points, seeds). noise: of a single training."""

    x: np.ndarray
    mean: np.ndarray
    counts: np.ndarray
    residual: np.ndarray
    noise: Noise

    @classmethod
    def of(cls, smooth: Smooth) -> Points:
        freedom = float(smooth.counts.sum()) - len(smooth.x) - smooth.seeds + 1
        if smooth.seeds > 1 and freedom > 0:
            noise = Noise(float((smooth.residual**2).sum()) / freedom, freedom)
        else:  # one seed: the scatter about the smooth curve
            noise = Noise(0.0, 0.0) if math.isnan(smooth.scatter) else Noise(smooth.scatter**2, smooth.freedom)
        return cls(smooth.x, smooth.mean, smooth.counts, smooth.residual, noise)

    def variances(self, noise: Noise) -> np.ndarray:
        """(points,), variances of the means: each from the scatter of its seeds, held near that of all points."""
        levelled = len(self.x) / max(1, len(self.x) - 1)  # the levels of the seeds take up a share of the scatter
        seeds = self.counts - 1.0
        scatter = noise.ratio * levelled * (self.residual**2).sum(axis=1)
        return (PRIOR_FREEDOM * noise.variance + scatter * (seeds > 0)) / (PRIOR_FREEDOM + seeds) / self.counts

    def tilt(self) -> tuple[float, float]:
        """(the sum over seeds of how much their residuals are tilted, squared, in units of the variance of a training;
        its degrees of freedom if trainings at two rates are independent)."""
        seeds = self.residual.shape[1]
        if seeds < 2 or len(self.x) < 3:
            return 0.0, 0.0
        off = self.x - self.x.mean()
        return float(((off @ self.residual) ** 2).sum() / (off @ off)), seeds - 1.0


def noises(sizes: Sequence[Points]) -> list[Noise]:
    """The variance of a single training at each size: a common one, unless Bartlett's test tells sizes apart. It is
    larger where seeds are tilted against each other by more than independent trainings are (an F test): seeds then have
    optima of their own, and only their number tells the error."""
    from scipy import special  # here, so that `import depthmup` stays light

    known = [size.noise for size in sizes if size.noise.freedom and size.noise.variance > 0]
    result = [size.noise for size in sizes]
    if len(known) > 1:
        variances, freedoms = np.array(known, float).T[:2]
        freedom = float(freedoms.sum())
        common = float(variances @ freedoms) / freedom
        statistic = freedom * math.log(common) - float(freedoms @ np.log(variances))
        correction = 1 + (float((1 / freedoms).sum()) - 1 / freedom) / (3 * (len(known) - 1))
        alike = special.chdtrc(len(known) - 1, statistic / correction) > ALIKE
        pooled = Noise(common, freedom)
        result = [pooled if alike or not noise.freedom else noise for noise in result]
    tilts = [(*size.tilt(), noise) for size, noise in zip(sizes, result, strict=True) if noise.variance > 0]
    numerator = sum(freedom for _, freedom, _ in tilts)
    if numerator:
        ratio = sum(tilt / noise.variance for tilt, _, noise in tilts) / numerator
        if special.fdtrc(numerator, max(1.0, *(noise.freedom for *_, noise in tilts)), ratio) < ALIKE:
            result = [Noise(ratio * noise.variance, min(noise.freedom, numerator), ratio) for noise in result]
    return result


def covariances(s: np.ndarray, t: np.ndarray) -> np.ndarray:
    """(s, t), of a process whose third derivative is white noise, of variance 1 per octave, and which is 0 at 0 with
    its first two derivatives; s, t >= 0."""
    low, off = np.minimum(s[:, None], t), np.abs(s[:, None] - t)
    return (low**5 / 5 + off * low**4 / 2 + off**2 * low**3 / 3) / 4


def bowls(u: np.ndarray) -> np.ndarray:
    """(shapes, places, 3), the functions that make a bowl of each shape at u octaves from about its minimum: a level,
    the bowl, and its derivative, which moves it. u: (shapes, places)."""
    skew = MORSE[:, None]
    is_skew = np.abs(skew) > 1e-9
    v = np.where(is_skew, np.expm1(skew * u[: len(MORSE)]) / np.where(is_skew, skew, 1.0), u[: len(MORSE)])
    split = u[len(MORSE) :]
    steep = np.where(split > 0, np.exp(2 * SPLIT)[:, None], 1.0)
    return np.stack(
        [np.ones_like(u), np.concatenate([v, steep * split]), np.concatenate([v * v, steep * split * split])], axis=-1
    )


class _Bowl:
    """One size under every shape and roughness: its likelihoods and its smoothing weights."""

    def __init__(self, points: Points, noise: Noise) -> None:
        self.points = points
        best, height = float(points.x[np.argmin(points.mean)]), points.mean - points.mean.min()
        noise_at = points.variances(noise)
        beyond_shape = ((points.x - best) / REACH) ** 4 * noise_at + (HEIGHT * height) ** 2
        self.variance = noise_at + np.minimum(beyond_shape, (height / 4) ** 2)  # what is high stays above the lowest
        self.variance += 1e-12 * np.ptp(points.mean) ** 2 + 1e-24
        self.place = points.x - points.x[0]
        self.kernel = covariances(self.place, self.place)
        root = 1 / np.sqrt(self.variance)
        self.centres = np.full(len(SHAPES), best)
        split = slice(len(MORSE), None)
        for _ in range(3):  # the parabolas meet at the minimum, which is looked for
            design = bowls(points.x - self.centres[:, None])[split] * root[:, None]
            _, slope, curvature = np.moveaxis(np.linalg.pinv(design) @ (points.mean * root), -1, 0)
            off = np.where(curvature > 0, -slope / np.where(curvature > 0, curvature, 1.0) / 2, 0.0)
            self.centres[split] = np.clip(self.centres[split] + off, best - 1, best + 1)
        self.designs = bowls(points.x - self.centres[:, None])
        parabola = self.designs[len(MORSE) // 2] * root[:, None]
        curvature = np.linalg.lstsq(parabola, points.mean * root, rcond=None)[0][2]
        error = np.linalg.pinv(parabola.T @ parabola)[2, 2]
        # (shapes, roughness), standard deviations of the change of curvature within an octave.
        self.deviations = 2 * math.sqrt(curvature**2 + error) * np.hypot(OF_SKEW * SHAPES[:, None], ROUGHNESS)

    def likelihoods(self) -> np.ndarray:
        """(shapes, roughness), logarithms: of what the bowls themselves cannot fit."""
        root = 1 / np.sqrt(self.variance)
        rest = np.linalg.qr(self.designs * root[:, None], mode="complete")[0][:, :, 3:]
        turned = np.swapaxes(rest, 1, 2)
        values, vectors = np.linalg.eigh(turned @ (self.kernel * root[:, None] * root) @ rest)
        misses = np.einsum("sij,si->sj", vectors, turned @ (self.points.mean * root))[:, None]
        variances = self.deviations[..., None] ** 2 * np.maximum(values, 0)[:, None] + 1
        return np.asarray(-0.5 * (np.log(variances) + misses**2 / variances).sum(axis=-1))

    def weights(self, likely: np.ndarray, places: np.ndarray) -> np.ndarray:
        """(likely, places, points): the weights of the points' means in the mean of the posterior. likely: (likely, 2),
        the numbers of a shape and of a roughness."""
        shapes, scale = likely[:, 0], self.deviations[*likely.T][:, None, None] ** 2
        covariance = scale * self.kernel + np.diag(self.variance)
        unit = np.sqrt(np.diagonal(covariance, axis1=1, axis2=2))
        units = unit[:, :, None] * unit[:, None]
        inverse = np.linalg.inv(covariance / units) / units
        design = self.designs[shapes]
        gain = inverse @ design
        across = scale * covariances(places - self.points.x[0], self.place)
        rest = bowls(places - self.centres[:, None])[shapes] - across @ gain
        turned = np.swapaxes(gain, 1, 2)
        return np.asarray(across @ inverse + rest @ np.linalg.solve(turned @ design, turned))


@functools.lru_cache(maxsize=128)
def _prior(x: tuple[float, ...], end: float, number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(places,) from the first of x to the last and on to below the end; (DRAWS / 2, places) deviations of unit size
    at them; (DRAWS / 2, points) standard normal errors. number: of the size, which has its own draws."""
    points = np.array(x)
    fine = np.arange(x[0], end, 1 / FINE)
    places = np.union1d(fine[np.abs(fine[:, None] - points).min(axis=1) > 1e-6], points)
    values, vectors = np.linalg.eigh(covariances(places - x[0], places - x[0]))
    rng = np.random.default_rng([number, len(x)])
    deviations = rng.standard_normal((DRAWS // 2, len(places))) @ (vectors * np.sqrt(np.maximum(values, 0))).T
    return places, deviations, rng.standard_normal((DRAWS // 2, len(x)))


@dataclasses.dataclass(frozen=True, eq=False)
class Posterior:
    """The curve of one size. places: (places,), log2 learning rates, rising. mean: (places,), its log loss. draws:
    (draws, places). bowl: the number of places up to the last rate below the cliff; beyond it the curve is the line
    between grid points. stars, least: (draws,), log2 of the best learning rate of each draw and its log loss, which may
    lie between that last rate and the cliff. freedom: degrees of freedom of the error; 0 if nothing is known of it."""

    places: np.ndarray
    mean: np.ndarray
    draws: np.ndarray
    bowl: int
    stars: np.ndarray
    least: np.ndarray
    freedom: float

    @functools.cached_property
    def star(self) -> float:
        """log2 of the best learning rate of the mean curve."""
        places, mean = self.places[: self.bowl], self.mean[: self.bowl]
        i = int(np.argmin(mean))
        if not 0 < i < len(places) - 1:
            return float(places[i])
        _, slope, curvature = np.linalg.solve(
            np.vander(places[i - 1 : i + 2] - places[i], 3, True), mean[i - 1 : i + 2]
        )
        return float(places[i] - slope / curvature / 2 if curvature > 0 else places[i])

    def covers(self, at: float) -> bool:
        """Whether the curve is known at a log2 rate."""
        return bool(self.places[0] - 1e-9 <= at <= self.places[-1] + 1e-9)

    def values(self, at: float | np.ndarray) -> np.ndarray:
        """(draws,), log losses at log2 rates, one for each draw or one for all; those off the grid at its end."""
        at = np.broadcast_to(np.clip(at, self.places[0], self.places[-1]), len(self.draws))
        above = np.clip(np.searchsorted(self.places, at), 1, len(self.places) - 1)
        share = (at - self.places[above - 1]) / (self.places[above] - self.places[above - 1])
        row = np.arange(len(self.draws))
        return np.asarray((1 - share) * self.draws[row, above - 1] + share * self.draws[row, above])

    def value(self, at: float) -> float:
        """The log loss of the mean curve at a log2 rate."""
        return float(np.interp(at, self.places, self.mean))

    @functools.cached_property
    def valleys(self) -> tuple[float, float] | None:
        """log2 of the learning rates of two valleys with surely a hill between them; None with one."""
        mean = self.mean[: self.bowl]
        falls, rises = np.append(True, np.diff(mean) < 0), np.append(np.diff(mean) > 0, True)
        low = np.flatnonzero(falls & rises)
        for i, j in itertools.pairwise(low):
            hill = i + int(np.argmax(mean[i : j + 1]))
            ends = np.maximum(self.draws[:, i], self.draws[:, j])
            if np.quantile(self.draws[:, hill] - ends, 0.025) > 0:
                return float(self.places[i]), float(self.places[j])
        return None


def posteriors(curves: Sequence[Curve]) -> list[Posterior | None]:
    """The posterior of each size; None where no learning rate trains, and where fewer than three do."""
    smooths = [None if curve.best is None else curve.smooth() for curve in curves]
    number = [i for i, smooth in enumerate(smooths) if smooth is not None and len(smooth.x) > 2]
    sizes = [Points.of(smooth) for smooth in smooths if smooth is not None and len(smooth.x) > 2]
    of_size = noises(sizes)
    bowls = [_Bowl(points, noise) for points, noise in zip(sizes, of_size, strict=True)]
    spread = np.where(np.arange(len(SHAPES)) < len(MORSE), *LIKELY_SKEW)
    kinds = np.where(np.arange(len(SHAPES)) < len(MORSE), 1 / len(MORSE), 1 / len(SPLIT))
    prior = np.log(kinds)[:, None] - 0.5 * (SHAPES / spread)[:, None] ** 2 - np.log1p((ROUGHNESS / SMOOTH) ** 2)
    log = sum((of_bowl.likelihoods() for of_bowl in bowls), prior)
    chance = np.exp(log - log.max())
    likely = np.argwhere(chance > LEAST_CHANCE)
    chances = chance[*likely.T]
    ends = np.round(np.cumsum(chances / chances.sum()) * (DRAWS // 2)).astype(int)
    result: list[Posterior | None] = [None] * len(curves)
    for i, of_bowl, noise in zip(number, bowls, of_size, strict=True):
        result[i] = _drawn(of_bowl, noise, curves[i], i, likely, ends)
    return result


def _drawn(of_bowl: _Bowl, noise: Noise, curve: Curve, number: int, likely: np.ndarray, ends: np.ndarray) -> Posterior:
    """The posterior of one size. likely: (likely, 2), as of `_Bowl.weights`. ends: (likely,), the first draws that no
    longer belong to each shape and roughness."""
    points, last = of_bowl.points, float(of_bowl.points.x[-1])
    cliff = float(min(curve.x[curve.x > last + 1e-9], default=last))
    places, deviations, errors = _prior(tuple(points.x.tolist()), cliff, number)
    at = np.searchsorted(places, points.x - 1e-9)
    rng = np.random.default_rng(number)
    # Few seeds do not tell the variance: Student's t.
    stretch = (
        np.sqrt(noise.freedom / rng.chisquare(noise.freedom, DRAWS // 2)) if noise.freedom else np.ones(DRAWS // 2)
    )
    errors = errors * np.sqrt(of_bowl.variance) * stretch[:, None]
    centres, offs, start = np.empty_like(deviations), np.empty_like(deviations), 0
    scales = of_bowl.deviations[*likely.T]
    for weights, scale, end in zip(of_bowl.weights(likely, places), scales, ends.tolist(), strict=True):
        rows = slice(start, end)
        deviation = scale * deviations[rows]
        centres[rows] = weights @ points.mean
        offs[rows] = deviation - (deviation[:, at] + errors[rows]) @ weights.T
        start = end
    draws = np.concatenate([centres + offs, centres - offs])
    # A draw that falls up to the last rate that trains goes on to the cliff, which lies anywhere below the next one.
    bowl, end = int(np.sum(places <= last + 1e-9)), last + (cliff - last) * rng.random((DRAWS, 1))
    falls = np.argmin(draws[:, :bowl], axis=1) == bowl - 1
    reached = (places <= last + 1e-9) | (falls[:, None] & (places <= end))
    stars = np.argmin(np.where(reached, draws, np.inf), axis=1)
    least = draws[np.arange(DRAWS), stars]
    stars, places, draws = places[stars], places[:bowl], draws[:, :bowl]
    beyond = np.flatnonzero((curve.x > last + 1e-9) & curve.compared)
    if len(beyond):
        lone = np.sqrt(noise.variance / (~np.isnan(curve.log[beyond])).sum(axis=1)) * stretch[:, None]
        off = lone * rng.standard_normal((DRAWS // 2, len(beyond)))
        wall = np.concatenate([curve.mean[beyond] + off, curve.mean[beyond] - off])
        draws = np.concatenate([draws, wall], axis=1)
    places = np.append(places, curve.x[beyond])
    return Posterior(places, draws.mean(axis=0), draws, bowl, stars, least, noise.freedom)
