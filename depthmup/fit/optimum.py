"""The optimum of a learning-rate curve and the edge above it, with their errors from the scatter between seeds."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike  # importing it loads more of NumPy than `import depthmup` needs

POINTS = 5  # number of grid points that a curve needs
CONFIDENCE = 0.95
FLOOR = 1e-12  # losses below count as 0, since their logarithms would outweigh all others
DEGREE = 3  # of the local polynomials: a parabola's vertex is drawn to the flatter side of a bowl
BANDWIDTH = 2.0  # octaves to either side in which grid points have weight in a local polynomial
NEAREST = DEGREE + 1  # number of grid points that have weight at least
FINE = 64  # learning rates per octave among which the optimum is looked for
NEVER_DIVERGES = "no seed diverges on the grid"
# The level of the t test for slopes. The interval ends at the first slopes that fail the test, and some slope fails
# before the true optimum more often than the slope there (experiments/planted_curves.py).
LEVEL = 0.97
UNSEEN = 1 / 8  # of a grid step: the interval reaches as far at least, since a grid does not show what lies between


class Edge(NamedTuple):
    """The learning rate above which training is not possible.

    Each seed has an edge of its own: halfway, in octaves, between its last learning rate that trains and its first
    larger one that does not, because it diverges or ends at the loss of chance.

    learning_rate: the median over seeds; None if it is not on the grid.
    all_train: the largest learning rate up to which all seeds train, counted from the optimum.
    reason: "" if there is an edge, else why not.
    low, high: 95% interval: half a grid step, plus the seeds' standard error times the quantile of Student's t. NaN
        for a single seed or without an edge.
    stderr: the standard error of the seeds' mean edge, in octaves; NaN for a single seed or without an edge.
    resolution: half the grid step that holds the edge, in octaves; NaN without an edge.
    """

    learning_rate: float | None
    all_train: float
    reason: str = ""
    low: float = math.nan
    high: float = math.nan
    stderr: float = math.nan
    resolution: float = math.nan


class Optimum(NamedTuple):
    """The best learning rate of one curve (loss over learning rate). An octave is a factor of 2.

    learning_rate: where the mean over seeds of the log loss is smallest; None if the curve has no optimum inside the
        grid. It never lies beyond the last learning rate at which all seeds train.
    reason: "" if there is an optimum, else why not.
    edge: where training stops to be possible; None if nothing trains.
    at_edge: whether the optimum is within a grid step of the edge. The interval then reaches to the upper end of the
        edge's interval.
    loss: the loss there: the geometric mean over seeds, interpolated in log-log between grid points. NaN without an
        optimum.
    low, high: 95% interval of learning_rate; NaN for a single seed or without an optimum.
    stderr: standard error of learning_rate in octaves, from the scatter between seeds alone; NaN where low is.
    resolution: octaves by which the optimum may lie above learning_rate because the grid does not resolve the edge:
        half a grid step if at_edge, else 0. NaN without an optimum.

    docs/laws.md has the biases and the coverage of the intervals on planted curves (`experiments/planted_curves.py`).
    """

    learning_rate: float | None
    reason: str = ""
    edge: Edge | None = None
    at_edge: bool = False
    loss: float = math.nan
    low: float = math.nan
    high: float = math.nan
    stderr: float = math.nan
    resolution: float = math.nan


def half_width(degrees: int, level: float = CONFIDENCE) -> float:
    """Half the width of an interval, in standard errors: Student's t with `degrees` of freedom; NaN for 0."""
    from scipy import special  # here, so that `import depthmup` stays light

    return float(special.stdtrit(degrees, 0.5 + level / 2))


def capped(losses: np.ndarray, cap: float | None) -> np.ndarray:
    """Losses cut at `cap` (None: the largest finite loss); NaN and infinity, which mean divergence, become the cap."""
    losses = np.asarray(losses, np.float64)
    finite = losses[np.isfinite(losses)]
    top = (finite.max() if finite.size else 1.0) if cap is None else cap
    return np.clip(np.where(np.isfinite(losses), losses, top), FLOOR, top)


def log_losses(losses: np.ndarray, cap: float | None) -> np.ndarray:
    """Natural logarithms of the `capped` losses; a loss of 0 counts as half the smallest other loss."""
    cut = capped(losses, cap)
    positive = cut[cut > FLOOR]
    return np.log(np.maximum(cut, positive.min() / 2 if positive.size else FLOOR))


def optimum(
    lrs: np.ndarray, losses: np.ndarray, cap: float | None = None, diverged: np.ndarray | None = None
) -> Optimum:
    """The learning rate with the smallest mean log loss, where all seeds train.

    Args:
      lrs: (points,), positive learning rates in any order.
      losses: (points,) or (points, seeds).
      cap: a training that ends at or above it has learned nothing; for cross-entropy ln(classes), the loss of chance.
        None: every finite loss has learned something.
      diverged: bool, shaped like losses. None: losses that are NaN or infinite are those of diverged trainings.

    What has diverged is censored: above the best learning rate only those learning rates count at which all seeds
    train. On them, the log loss of every seed is smoothed by local polynomials of degree 3 in log2 learning rate. The
    optimum is the minimum of the seeds' mean, among the learning rates at which the mean log loss itself, interpolated
    linearly between grid points, is at most the smallest of the grid plus its standard error: a star lies on its curve.
    The interval reaches from the optimum to the next learning rates at which the slopes of the smooth curves are below
    or above 0 by a t test over seeds. Taking slopes seed by seed keeps the seeds paired.

    A loss of 0, such as the error where no example is wrong, counts as half the smallest other loss, so that its
    logarithm does not outweigh the rest.

    Raises ValueError for bad shapes, negative losses, a loss that is NaN though its training has not diverged, learning
    rates that are not positive or not different, or fewer than five points.
    """
    x, losses, failed = _checked(lrs, losses, cap, diverged)
    log, trains = log_losses(losses, cap), np.logical_not(failed.any(axis=1))
    if not trains.any():
        reason = "never trains" if failed.all() else "no learning rate trains all seeds: the grid is too coarse"
        return Optimum(None, reason)
    best = int(np.argmin(np.where(trains, log.mean(axis=1), np.inf)))
    edge = _edge(x, failed, best)
    # Below the best point a loss above chance is one of too small a learning rate: only divergence is censored there.
    stop = best + int(np.argmin(np.append(trains[best:], False)))  # the first point above that does not train
    used = [i for i in range(stop) if bool(np.isfinite(losses[i]).all())]
    x, log, best = x[used], log[used], used.index(best)
    if best == 0:
        return Optimum(None, "at the lower edge of the grid", edge)
    if best == len(x) - 1 and edge.reason == NEVER_DIVERGES:
        return Optimum(None, "at the upper edge of the grid", edge)
    if len(x) < 3:
        return Optimum(None, f"only {len(x)} learning rates train: refine the grid, or widen it downwards", edge)
    return _inside(x, log, best, edge)


def _checked(
    lrs: np.ndarray, losses: np.ndarray, cap: float | None, diverged: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """log2 learning rates, rising; losses, NaN where diverged; whether training failed: (points, seeds)."""
    lrs, losses = np.asarray(lrs, np.float64), np.asarray(losses, np.float64)
    if lrs.ndim != 1 or losses.ndim not in (1, 2) or losses.shape[0] != len(lrs) or losses.size == 0:
        raise ValueError(f"losses must be (points,) or (points, seeds) for {len(lrs)} rates, got {losses.shape}")
    if diverged is not None:
        diverged = np.asarray(diverged, bool)
        if diverged.shape != losses.shape:
            raise ValueError(f"diverged must have the shape of losses, {losses.shape}, got {diverged.shape}")
        missing = np.argwhere(~np.isfinite(losses) & ~diverged)
        if missing.size:
            raise ValueError(
                f"the loss at learning rate {lrs[missing[0][0]]:g} is {losses[tuple(missing[0])]}, but its training "
                "has not diverged: mark it as diverged, or leave the learning rate out"
            )
        losses = np.where(diverged, np.nan, losses)
    if (losses < 0).any():
        raise ValueError("losses must not be negative: the fit is of their logarithm")
    losses = losses.reshape(len(lrs), -1)
    if len(lrs) < POINTS:
        raise ValueError(f"an optimum needs at least {POINTS} learning rates, got {len(lrs)}: widen the grid")
    if not (lrs > 0).all() or len(np.unique(lrs)) != len(lrs):
        raise ValueError("learning rates must be positive and different from each other")
    order = np.argsort(lrs)
    x, losses = np.log2(lrs[order]), losses[order]
    return x, losses, ~np.isfinite(losses) | (losses >= (math.inf if cap is None else cap))


def _edge(x: np.ndarray, failed: np.ndarray, best: int) -> Edge:
    """The edge above the grid point `best`. x: (points,), rising; failed: (points, seeds)."""
    above = failed & (np.arange(len(x)) > best)[:, None]
    fails, points = above.any(axis=0), above.any(axis=1)
    if not fails.any():
        return Edge(None, float(2 ** x[-1]), NEVER_DIVERGES)
    first = above.argmax(axis=0)  # of each seed
    edges = np.where(fails, (x[first] + x[first - 1]) / 2, np.inf)
    steps = np.where(fails, x[first] - x[first - 1], 0.0)
    all_train = float(2 ** x[int(points.argmax()) - 1])
    middle = float(np.median(edges))
    if not math.isfinite(middle):
        return Edge(None, all_train, "half of the seeds train at the largest learning rate")
    resolution, seeds = float(np.median(steps[fails])) / 2, len(edges)
    if seeds == 1:
        return Edge(2**middle, all_train, resolution=resolution)
    known = np.where(fails, edges, x[-1] + resolution)  # the edge of a seed that never fails is above the grid
    stderr = float(known.std(ddof=1) / math.sqrt(seeds))
    half = resolution + half_width(seeds - 1) * stderr
    return Edge(2**middle, all_train, "", 2 ** (middle - half), 2 ** (middle + half), stderr, resolution)


def _inside(x: np.ndarray, log: np.ndarray, best: int, edge: Edge) -> Optimum:
    """The optimum of a curve whose best grid point is `best`. x: (points,); log: (points, seeds), log losses."""
    seeds, last = log.shape[1], len(x) - 1
    fine, values, slope = _smoother(tuple(x))
    slopes = slope @ log  # (fine, seeds)
    mean = log.mean(axis=1)
    worst = mean[best] + (log[best].std(ddof=1) / math.sqrt(seeds) if seeds > 1 else math.inf)
    centre = int(np.argmin(np.where(np.interp(fine, x, mean) <= worst, values @ mean, np.inf)))
    refined = _refined(fine, slopes.mean(axis=1), centre)
    star = refined if np.interp(refined, x, mean) <= worst else float(fine[centre])
    loss = float(np.exp(np.interp(star, x, mean)))
    step = x[min(best + 1, last)] - x[min(best, last - 1)]
    at_edge = edge.learning_rate is not None and star >= math.log2(edge.learning_rate) - 2 * edge.resolution - 1e-9
    resolution = edge.resolution if at_edge else 0.0
    if seeds == 1:
        return Optimum(2**star, "", edge, at_edge, loss, resolution=resolution)
    stderr = slopes.std(axis=1, ddof=1) / math.sqrt(seeds)
    errors = half_width(seeds - 1, LEVEL) * stderr
    first, _ = _connected(slopes.mean(axis=1) > -errors, centre)
    _, end = _connected(slopes.mean(axis=1) < errors, centre)
    low, high = min(fine[first], star - UNSEEN * step), max(fine[end], min(star + UNSEEN * step, x[-1]))
    scatter = (high - low) / 2 / half_width(seeds - 1, LEVEL)
    if at_edge:
        # What limits the optimum is the edge, whose place differs between seeds, or the bowl below.
        scatter = max(edge.stderr, (star - low) / half_width(seeds - 1, LEVEL))
    if best >= last - 1:
        high = max(high, x[-1])  # the only point above the best may lie on a wall, which the grid does not resolve
    if (at_edge or end == len(fine) - 1) and edge.learning_rate is not None:
        high = max(high, math.log2(edge.high))
    return Optimum(2**star, "", edge, at_edge, loss, 2**low, 2**high, scatter, resolution)


@functools.lru_cache(maxsize=64)
def _smoother(x: tuple[float, ...]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(fine,) places between x[0] and x[-1], and twice (fine, points): the weights that turn the values of a curve at x
    into its smoothed values and slopes there, by local polynomials of degree DEGREE with tricube weights (Cleveland
    1979)."""
    points = np.array(x)
    count = round((x[-1] - x[0]) * FINE) + 1
    fine = np.unique(np.concatenate([np.linspace(x[0], x[-1], count), points]))
    distance = np.abs(fine[:, None] - points)
    nearest = np.sort(distance, axis=1)[:, min(NEAREST, len(x)) - 1]
    bandwidth = np.maximum(1.1 * nearest, BANDWIDTH)  # 1.1: the farthest of the nearest has weight, too
    weights = np.clip(1 - (distance / bandwidth[:, None]) ** 3, 0, None) ** 3
    powers = (points - fine[:, None])[..., None] ** np.arange(min(DEGREE, len(x) - 1) + 1)
    normal = np.einsum("fpi,fp,fpj->fij", powers, weights, powers)
    coefficients = np.linalg.solve(normal, np.einsum("fpi,fp->fip", powers, weights))
    return fine, coefficients[:, 0], coefficients[:, 1]


def _refined(fine: np.ndarray, slopes: np.ndarray, i: int) -> float:
    """The place next to fine[i] where the slopes, (fine,), cross 0 from below; fine[i] if they do not."""
    for start in (i - 1, i):
        if 0 <= start < len(fine) - 1 and slopes[start] < 0 <= slopes[start + 1]:
            share = slopes[start] / (slopes[start] - slopes[start + 1])
            return float(fine[start] + share * (fine[start + 1] - fine[start]))
    return float(fine[i])


def _connected(holds: np.ndarray, start: int) -> tuple[int, int]:
    """The first and the last index of the stretch of `holds`, (points,) bool, around `start`; start itself if not."""
    fails = np.flatnonzero(~holds)
    below, above = fails[fails < start], fails[fails > start]
    low = int(below[-1]) + 1 if below.size else 0
    return low, int(above[0]) - 1 if above.size else len(holds) - 1


def settled(lrs: ArrayLike, losses: ArrayLike, cap: float | None = None, band: float = 0.25) -> int | None:
    """The first time from which on the optimum stays within `band` octaves of the optimum at the last time.

    Args:
      lrs: (points,) learning rates, as in `optimum`.
      losses: (times, points, seeds); NaN and infinity are divergence.
      cap: as in `optimum`.

    Returns an index into the times, or None if the last time has no optimum. A time without an optimum is not within
    the band. Paper A asks this question in appendix B.2 and figure B.3. Raises ValueError as `optimum` does.
    """
    rates, of_times = np.asarray(lrs, np.float64), np.asarray(losses, np.float64)
    if of_times.ndim != 3 or not len(of_times):
        raise ValueError(f"losses must be (times, points, seeds), got {of_times.shape}")
    found = [optimum(rates, curve, cap).learning_rate for curve in of_times]
    last = found[-1]
    if last is None:
        return None
    time = len(found) - 1
    while time and (before := found[time - 1]) is not None and abs(math.log2(before / last)) <= band:
        time -= 1
    return time
