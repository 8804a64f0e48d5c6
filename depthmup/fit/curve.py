"""A learning-rate curve as numbers: rates and log losses, the cliff that ends it, its smooth shape, and its errors."""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np

from depthmup.fit.thresholds import CONFIDENCE, LEARNED
from depthmup.names import POSITIVE, Range, floats, short

POINTS = 5  # number of grid points that a curve needs
FLOOR = 1e-12  # losses below count as 0, since their logarithms would outweigh all others
DEGREE = 3  # of the local polynomials: a parabola's vertex is drawn to the flatter side of a bowl
BANDWIDTH = 2.0  # octaves to either side in which grid points have weight in a local polynomial
NEAREST = DEGREE + 1  # number of grid points that have weight at least
FINE = 64  # learning rates per octave among which the optimum is looked for
SAME = 0.01  # octaves: learning rates that are closer are one rate with another last digit
STEEPER = 2.5  # a cliff rises this much faster than the bowl does anywhere before it
FLANK = 2.0  # octaves below the best rate that say how fast the bowl rises
RISE = 3.0  # standard errors by which a cliff exceeds the fastest rise of the bowl
CAP = Range(positive=True, infinite=True)  # of a loss that may have no chance


def half_width(degrees: float, level: float = CONFIDENCE) -> float:
    """Half the width of an interval, in standard errors: Student's t with `degrees` of freedom; NaN for 0."""
    from scipy import special  # here, so that `import depthmup` stays light

    return float(special.stdtrit(degrees, 0.5 + level / 2)) if degrees > 0 else math.nan


def capped(losses: np.ndarray, cap: float | None) -> np.ndarray:
    """Losses cut at a cap, which NaN and infinity, divergence, become.

    Args:
      losses: any shape.
      cap: None or infinity: the largest finite loss.

    Returns:
      The losses in the same shape, all finite.
    """
    losses = floats("losses", losses)
    finite = losses[np.isfinite(losses)]
    if cap is not None:
        CAP.check("cap, the loss of chance,", cap)
    top = (finite.max() if finite.size else 1.0) if cap is None or cap == math.inf else cap
    return np.clip(np.where(np.isfinite(losses), losses, top), FLOOR, top)


def log_losses(losses: np.ndarray, cap: float | None) -> np.ndarray:
    """Natural logarithms of losses; a loss of 0 counts as half the smallest other loss.

    Args:
      losses, cap: of `capped`.

    Returns:
      The logarithms in the same shape, all finite.
    """
    cut = capped(losses, cap)
    positive = cut[cut > FLOOR]
    return np.log(np.maximum(cut, positive.min() / 2 if positive.size else FLOOR))


@dataclasses.dataclass(frozen=True, eq=False)
class Curve:
    """The trainings of one size.

    x: (points,), log2 of the learning rates, rising.
    log: (points, seeds), log losses, those of trainings that diverged cut to the cap; NaN where a seed was not trained.
    finite: (points, seeds), whether a training has a loss.
    failed: (points, seeds), whether a training has diverged or ended at the loss of chance.
    cap: the loss of chance, or None.
    """

    x: np.ndarray
    log: np.ndarray
    finite: np.ndarray
    failed: np.ndarray
    cap: float | None

    @functools.cached_property
    def share(self) -> np.ndarray:
        """(points,), the share of the trainings that have failed."""
        return np.asarray(self.failed.sum(axis=1) / (~np.isnan(self.log)).sum(axis=1))

    @functools.cached_property
    def edge(self) -> int:
        """The first point of the edge above which training is not possible; the number of points if the grid has none.

        At most half of the seeds train at a point of the edge, above one at which more do. The points next below at
        which a seed fails belong to it too: seeds have edges of their own. So do the last points of the grid.
        Elsewhere a training that has failed has done so by chance."""
        trains = self.share < 0.5
        if not trains.any():
            return 0
        trained = np.where(self.failed & trains[:, None], np.nan, self.log)
        lowest = int(np.argmin(np.where(trains, levels(trained)[0], np.inf)))
        edge = lowest + int(np.argmax(np.append(~trains[lowest:], True)))
        while self.share[edge - 1] > 0 and trains[: edge - 1].any():
            edge -= 1
        return edge

    @functools.cached_property
    def trains(self) -> np.ndarray:
        """(points,), whether a learning rate is below the edge and trains most seeds."""
        return np.asarray((np.arange(len(self.x)) < self.edge) & (self.share < 0.5))

    @functools.cached_property
    def kept(self) -> np.ndarray:
        """(points, seeds), log losses; NaN where a seed was not trained or has failed by chance."""
        chance = self.failed & self.trains[:, None]
        return np.where(chance, np.nan, self.log)

    @functools.cached_property
    def mean(self) -> np.ndarray:
        """(points,), the mean log loss over seeds, without those that failed by chance."""
        return levels(self.kept)[0]

    @functools.cached_property
    def best(self) -> int | None:
        """The grid point with the smallest mean log loss among those that train."""
        if not self.trains.any():
            return None
        return int(np.argmin(np.where(self.trains, self.mean, np.inf)))

    @functools.cached_property
    def compared(self) -> np.ndarray:
        """(points,), whether a point and all below it have losses, but for those that failed by chance."""
        diverged = (~self.finite & ~np.isnan(self.kept)).any(axis=1)
        below = np.arange(len(self.x)) <= (self.best or 0)
        return np.logical_and.accumulate(~diverged | below)

    def learned(self) -> bool:
        """Did a network learn at some learning rate? The best mean log loss must be below the loss of chance by more
        than LEARNED, surely: by the upper end of its 95% interval, from the scatter of seeds there and at the rates
        beside it, or with one seed by twice its scatter about the smooth curve. Without a cap every network has."""
        best = self.best
        if self.cap is None or best is None:
            return best is not None
        near = slice(max(best - 1, 0), best + 2)
        spread = self.kept[near] - np.nanmean(self.kept[near], axis=1, keepdims=True)
        counts = (~np.isnan(self.kept[near])).sum(axis=1)
        freedom = int((counts - 1).sum())
        if freedom:
            scatter = math.sqrt(float(np.nansum(spread**2)) / freedom)
            error = half_width(freedom) * scatter / math.sqrt((~np.isnan(self.kept[best])).sum())
        else:
            scatter = self.smooth().scatter
            error = 0.0 if math.isnan(scatter) else 2 * scatter
        return math.log(self.cap * (1 - LEARNED)) - float(np.nanmean(self.kept[best])) > error

    def smooth(self) -> Smooth:
        """The curve up to its cliff, smoothed. There must be a learning rate that trains."""
        used = self._up_to_divergence()
        best = used.index(int(self.best or 0))
        points = used[: best + _rising(self.x[used], self.kept[used], best) + 1]
        return Smooth(self.x[points], self.kept[points], best, len(points) < len(used))

    def _up_to_divergence(self) -> list[int]:
        """The points below the edge. Below the best point a loss above chance is one of too small a learning rate: only
        points at which seeds diverged, and not by chance, are censored there."""
        diverged = (~self.finite & ~np.isnan(self.kept)).any(axis=1)
        return [i for i in range(self.edge) if not diverged[i]]


def checked_curve(
    lrs: np.ndarray,
    losses: np.ndarray,
    cap: float | None = None,
    diverged: np.ndarray | None = None,
    trained: np.ndarray | None = None,
) -> Curve:
    """The curve of these trainings. Arguments and errors are those of `optimum`, but for the number of rates.

    trained: bool, shaped like losses: which seeds were trained at which rates. None: all at all rates.
    """
    lrs, losses = POSITIVE.array("learning rates", lrs), floats("losses", losses)
    if lrs.ndim != 1 or losses.ndim not in (1, 2) or losses.shape[0] != len(lrs) or losses.size == 0:
        raise ValueError(f"losses must be (points,) or (points, seeds) for {len(lrs)} rates, got {losses.shape}")
    absent = np.zeros(losses.shape, bool) if trained is None else np.logical_not(trained)
    if diverged is not None:
        diverged = np.asarray(diverged)
        if not np.isin(diverged, (False, True)).all():
            raise ValueError(f"diverged must be True or False for each loss, got {short(diverged)}")
        diverged = diverged.astype(bool)
        if diverged.shape != losses.shape:
            raise ValueError(f"diverged must have the shape of losses, {losses.shape}, got {diverged.shape}")
        missing = np.argwhere(~np.isfinite(losses) & ~diverged & ~absent)
        if missing.size:
            raise ValueError(
                f"the loss at learning rate {lrs[missing[0][0]]:g} is {losses[tuple(missing[0])]}, but its training "
                "has not diverged: mark it as diverged, or leave the learning rate out"
            )
        losses = np.where(diverged, np.nan, losses)
    if (losses < 0).any():
        raise ValueError("losses must not be negative: the fit is of their logarithm")
    order = np.argsort(lrs, kind="stable")
    x, losses, absent = np.log2(lrs[order]), losses[order].reshape(len(lrs), -1), absent[order].reshape(len(lrs), -1)
    x, losses, absent = _merged(x, losses, absent)
    finite = np.isfinite(losses) & ~absent
    log = log_losses(np.where(absent, np.nan, losses), cap)
    failed = ~absent & (~np.isfinite(losses) | (losses >= (math.inf if cap is None else cap)))
    return Curve(x, np.where(absent, np.nan, log), finite, failed, cap)


def _merged(x: np.ndarray, losses: np.ndarray, absent: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The points, with those that are equal up to rounding merged: their losses are geometric means. x rises."""
    number = np.concatenate([[0], np.cumsum(np.diff(x) > SAME)])
    if number[-1] == len(x) - 1:
        return x, losses, absent
    groups = [np.flatnonzero(number == n) for n in range(number[-1] + 1)]
    merged = []
    for group in groups:
        present = ~absent[group]
        log = np.where(present, np.log(np.maximum(losses[group], FLOOR)), 0.0)
        merged.append(np.exp(log.sum(axis=0) / np.maximum(present.sum(axis=0), 1)))
    return (
        np.array([x[group].mean() for group in groups]),
        np.array(merged),
        np.array([absent[group].all(axis=0) for group in groups]),
    )


def levels(log: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """((points,) means, (points, seeds) residuals) of log = mean of its point + level of its seed, by least squares.

    log: (points, seeds), NaN where a seed was not trained; the residual is 0 there. The levels of all seeds have mean
    0: seeds that were trained at some points only do not bend the curve.
    """
    present = ~np.isnan(log)
    values = np.where(present, log, 0.0)
    if present.all():
        mean, level = values.mean(axis=1), values.mean(axis=0) - values.mean()
    else:
        points, seeds = log.shape
        rows, columns = np.nonzero(present)
        design = np.zeros((len(rows) + 1, points + seeds))
        design[np.arange(len(rows)), rows] = design[np.arange(len(rows)), points + columns] = 1
        design[-1, points:] = 1
        solution = np.linalg.lstsq(design, np.append(log[present], 0.0), rcond=None)[0]
        mean, level = solution[:points], solution[points:]
    return mean, np.where(present, values - mean[:, None] - level, 0.0)


def _rising(x: np.ndarray, log: np.ndarray, best: int) -> int:
    """How many points above `best` belong to the bowl: all up to the first jump that no bowl makes.

    A jump is a cliff if it rises STEEPER times as fast as the bowl anywhere before it: on the flank below the best
    point, which reaches FLANK octaves down, or between the best point and the jump; and if that is no noise.
    """
    mean, residual = levels(log)
    steps = np.diff(x)
    rise = np.abs(np.diff(mean) / steps)
    number = np.arange(len(steps))
    flank = (x[:-1] >= x[best] - FLANK) & (number < best)
    for i in range(best, len(steps)):
        before = rise[flank | ((number >= best) & (number < i))]
        if len(before) < 2 or mean[i + 1] < mean[i]:
            continue
        excess = (rise[i] - STEEPER * float(before.max())) * steps[i]
        if excess > 0 and rise[i] * steps[i] > RISE * _error_of_rise(x, log, residual, best, i):
            return i - best
    return len(steps) - best


def _error_of_rise(x: np.ndarray, log: np.ndarray, residual: np.ndarray, best: int, i: int) -> float:
    """Standard error of the difference between the means of two neighbouring points, from the points up to i."""
    counts = (~np.isnan(log)).sum(axis=1)
    seeds = int(counts.max())
    if seeds > 1:
        used = residual[: i + 1]
        variance = float((used**2).sum()) / (len(used) * (seeds - 1))
        return math.sqrt(2 * variance / max(1, int(counts.min())))
    smooth = Smooth(x[: i + 1], log[: i + 1], best, ended=True)
    return 0.0 if math.isnan(smooth.scatter) else math.sqrt(2) * smooth.scatter


class Smooth:
    """A curve smoothed by local polynomials with tricube weights (Cleveland 1979): every value and every
    slope is a weighted sum of the mean log losses of its grid points.

    x, mean: (points,). best: index of the grid point with the smallest mean. ended: whether a cliff follows.
    residual: (points, seeds). counts: (points,), numbers of seeds. scatter: of the means about the smooth curve, with
    `freedom` degrees of freedom; NaN without any.
    """

    def __init__(self, x: np.ndarray, log: np.ndarray, best: int, ended: bool) -> None:
        self.x, self.best, self.ended = x, best, ended
        self.mean, self.residual = levels(log)
        self.counts, self.seeds = (~np.isnan(log)).sum(axis=1), int((~np.isnan(log)).any(axis=0).sum())
        self.fine, self._values, self._slopes = _smoother(tuple(x))

    def value(self, at: float) -> np.ndarray:
        """(points,), the weights that make the smoothed value at log2 rate `at`, between the first and last point."""
        return _between(self.fine, self._values, at)

    @property
    def values(self) -> np.ndarray:
        """(fine,), the smoothed values at the places `fine`."""
        return self._values @ self.mean

    @property
    def slopes(self) -> np.ndarray:
        return self._slopes @ self.mean

    @functools.cached_property
    def _hat(self) -> np.ndarray:
        """(points, points), the weights of the smoothed values at the grid points."""
        return np.array([self.value(at) for at in self.x])

    @functools.cached_property
    def _scatter(self) -> tuple[float, float]:
        """(scatter, its degrees of freedom): from the misses of the smooth curve; where that all but goes through the
        points, as on grids of an octave, from the misses of the cubics through two points to either side."""
        size = len(self.x)
        for misses in (np.eye(size) - self._hat, _cubic_misses(self.x)):
            power = float((misses**2).sum())
            freedom = power**2 / max(float(((misses @ misses.T) ** 2).sum()), 1e-300)
            if power > 1e-9 and freedom >= 1:
                values = misses @ self.mean
                return math.sqrt(float(values @ values) / power), freedom
        return math.nan, 0.0

    @property
    def scatter(self) -> float:
        return self._scatter[0]

    @property
    def freedom(self) -> float:
        return self._scatter[1]

    @property
    def misses(self) -> bool:
        """Does the smooth curve pass by the best grid point or one of its neighbours by more than seeds explain?"""
        if self.seeds == 1:
            return False
        near = slice(max(self.best - 1, 0), self.best + 2)
        weights = (np.eye(len(self.x)) - self._hat)[near]
        errors = self.influence(weights)
        stderr = np.sqrt((errors**2).sum(axis=1) * self.seeds / (self.seeds - 1))
        return bool((np.abs(weights @ self.mean) > half_width(self.seeds - 1, 0.99) * stderr).any())

    def influence(self, weights: np.ndarray) -> np.ndarray:
        """(..., seeds), each seed's part of the error of the sums with these weights, (..., points)."""
        return (weights / self.counts) @ self.residual

    def slope_errors(self) -> tuple[np.ndarray, float]:
        """((fine,), standard errors of the slopes; their degrees of freedom): over seeds, with one seed from the
        scatter."""
        if self.seeds > 1:
            errors = self.influence(self._slopes)
            return np.sqrt((errors**2).sum(axis=1) * self.seeds / (self.seeds - 1)), self.seeds - 1.0
        return self.scatter * np.sqrt((self._slopes**2).sum(axis=1)), self.freedom


def _cubic_misses(x: np.ndarray) -> np.ndarray:
    """(points - 4, points), how far each point lies from the cubic through the two points to either side."""
    rows = np.zeros((max(0, len(x) - 4), len(x)))
    for i in range(2, len(x) - 2):
        neighbours = [i - 2, i - 1, i + 1, i + 2]
        for j in neighbours:
            rows[i - 2, j] = -math.prod((x[i] - x[k]) / (x[j] - x[k]) for k in neighbours if k != j)
        rows[i - 2, i] = 1
        rows[i - 2] /= math.sqrt(float((rows[i - 2] ** 2).sum()))
    return rows


def _between(fine: np.ndarray, weights: np.ndarray, at: float) -> np.ndarray:
    """The weights at a place between two of `fine`, rising, by linear interpolation."""
    after = int(np.clip(np.searchsorted(fine, at), 1, len(fine) - 1))
    share = float(np.clip((at - fine[after - 1]) / (fine[after] - fine[after - 1]), 0, 1))
    return (1 - share) * weights[after - 1] + share * weights[after]


@functools.lru_cache(maxsize=128)
def _smoother(x: tuple[float, ...]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(fine,) places between x[0] and x[-1], and twice (fine, points): the weights of the values and of the slopes."""
    points = np.array(x)
    if len(points) == 1:
        return points, np.ones((1, 1)), np.zeros((1, 1))
    count = round((x[-1] - x[0]) * FINE) + 1
    fine = np.unique(np.concatenate([np.linspace(x[0], x[-1], count), points]))
    distance = np.abs(fine[:, None] - points)
    nearest = np.sort(distance, axis=1)[:, min(NEAREST, len(x)) - 1]
    width = np.maximum(1.1 * nearest, BANDWIDTH)  # 1.1: the farthest of the nearest has weight, too
    weights = np.clip(1 - (distance / width[:, None]) ** 3, 0, None) ** 3
    powers = (points - fine[:, None])[..., None] ** np.arange(min(DEGREE, len(x) - 1) + 1)
    normal = np.einsum("fpi,fp,fpj->fij", powers, weights, powers)
    coefficients = np.linalg.solve(normal, np.einsum("fpi,fp->fip", powers, weights))
    return fine, coefficients[:, 0], coefficients[:, 1]
