"""The optimum of a learning-rate curve and the edge above it, with their errors from the scatter between seeds."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from depthmup.fit.curve import POINTS, Curve, Smooth, checked_curve, half_width
from depthmup.names import NOT_NEGATIVE, floats

if TYPE_CHECKING:
    from numpy.typing import ArrayLike  # importing it loads more of NumPy than `import depthmup` needs

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
    edge: the learning rate above which training is not possible; None if no learning rate trains all seeds.
    at_edge: whether the optimum is within a grid step of the edge, or of the cliff where a curve of finite losses ends.
        The interval then reaches to the upper end of the edge's, or to the first learning rate beyond the cliff.
    loss: the loss at the optimum, the geometric mean over seeds, interpolated in log-log between grid points; NaN
        without an optimum.
    low, high: 95% interval of learning_rate, with one seed from its scatter about the smooth curve; NaN without an
        optimum, and for one seed with too few learning rates to tell the scatter.
    stderr: standard error of learning_rate in octaves, from the scatter alone; NaN where low is.
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

    Returns:
      An `Optimum`: the learning rate, its 95% interval, and the reason if there is none.

    What lies beyond a cliff is censored: above the best learning rate only those learning rates count at which all
    seeds train, and of these only those before the first jump that no bowl makes, several times steeper than the curve
    is anywhere before it (`curve.STEEPER`), be it to a plateau, to a large loss or to divergence. On them, the log loss
    is smoothed by local polynomials of degree 3 in log2 learning rate. The optimum is the minimum of the smooth curve,
    among the learning rates at which the mean log loss itself, interpolated linearly between grid points, is at most
    the smallest of the grid plus its standard error: a star lies on its curve. (One seed has no standard error. Its
    scatter about the smooth curve takes the place, or half of the distance up to the better neighbour: a line between
    grid points may lie that far above a parabola's vertex.)

    The interval reaches from the optimum to the next learning rates at which the slope of the smooth curve is below
    or above 0 by a t test over seeds, whose slopes are compared seed by seed: seeds stay paired. With one seed the
    test's error comes from the scatter about the smooth curve.

    A loss of 0, such as the error where no example is wrong, counts as half the smallest other loss, so that its
    logarithm does not outweigh the rest. Learning rates that are equal up to rounding count as one, with the geometric
    mean of their losses.

    Raises ValueError for bad shapes, negative losses, a loss that is NaN though its training has not diverged, learning
    rates that are not positive and finite, or fewer than five points.
    """
    curve = checked_curve(lrs, losses, cap, diverged)
    if len(curve.x) < POINTS:
        raise ValueError(f"an optimum needs at least {POINTS} learning rates, got {len(curve.x)}: widen the grid")
    return curve_optimum(curve)


def curve_optimum(curve: Curve) -> Optimum:
    """The optimum of a curve, as `optimum` explains it."""
    best = curve.best
    if best is None:
        if curve.failed.all():
            return Optimum(None, "never trains")
        return Optimum(None, "no learning rate trains all seeds: the grid is too coarse")
    edge, smooth = _edge(curve, best), curve.smooth()
    if smooth.best == 0:
        return Optimum(None, "at the lower edge of the grid", edge)
    if smooth.best == len(smooth.x) - 1 and edge.reason == NEVER_DIVERGES and not smooth.ended:
        return Optimum(None, "at the upper edge of the grid", edge)
    if len(smooth.x) < 3:
        return Optimum(None, f"only {len(smooth.x)} learning rates train: refine the grid, or widen it downwards", edge)
    return _inside(smooth, curve, edge)


def _edge(curve: Curve, best: int) -> Edge:
    """The edge above the grid point `best`."""
    x, seeds = curve.x, np.flatnonzero((~np.isnan(curve.log)).any(axis=0))
    pairs = []  # (edge, half of the grid step that holds it) of each seed; an infinite edge is not on the grid
    for seed in seeds:
        trained = np.flatnonzero(~np.isnan(curve.log[:, seed]))
        fails = [i for i in trained if i > best and curve.failed[i, seed]]
        before = trained[trained < fails[0]] if fails else trained
        if fails and len(before):
            low, high = x[before[-1]], x[fails[0]]
            pairs.append(((low + high) / 2, (high - low) / 2))
        else:
            pairs.append((math.inf, math.nan))
    edges, halves = np.array(pairs).T
    failing = np.flatnonzero(curve.failed.any(axis=1) & (np.arange(len(x)) > best))
    if not len(failing):
        return Edge(None, float(2 ** x[-1]), NEVER_DIVERGES)
    all_train, middle = float(2 ** x[failing[0] - 1]), float(np.median(edges))
    if not math.isfinite(middle):
        return Edge(None, all_train, "half of the seeds train at the largest learning rate")
    resolution = float(np.nanmedian(halves))
    if len(seeds) == 1:
        return Edge(2**middle, all_train, resolution=resolution)
    # The edge of a seed that never fails is above the grid.
    stderr = float(np.where(np.isfinite(edges), edges, x[-1] + resolution).std(ddof=1) / math.sqrt(len(seeds)))
    half = resolution + half_width(len(seeds) - 1) * stderr
    return Edge(2**middle, all_train, "", 2 ** (middle - half), 2 ** (middle + half), stderr, resolution)


def _inside(smooth: Smooth, curve: Curve, edge: Edge) -> Optimum:
    """The optimum of a curve whose best grid point is neither its first nor, without a cliff, its last."""
    x, mean, best, last = smooth.x, smooth.mean, smooth.best, len(smooth.x) - 1
    fine, slopes = smooth.fine, smooth.slopes
    worst = mean[best] + _height(smooth, curve.log[np.searchsorted(curve.x, x[best])])
    near = np.zeros(len(fine), bool)  # the places on the curve that are connected with the best grid point
    start, end = _connected(np.interp(fine, x, mean) <= worst, int(np.searchsorted(fine, x[best])))
    near[start : end + 1] = True
    centre = int(np.argmin(np.where(near, smooth.values, np.inf)))
    refined = _refined(fine, slopes, centre)
    star = refined if np.interp(refined, x, mean) <= worst else float(fine[centre])
    loss = float(np.exp(np.interp(star, x, mean)))
    step = x[min(best + 1, last)] - x[min(best, last - 1)]
    wall = _wall(smooth, curve, edge)
    at_edge = wall is not None and bool(star >= wall[0] - 2 * wall[1] - 1e-9)
    resolution = wall[1] if wall is not None and at_edge else 0.0
    stderr, freedom = smooth.slope_errors()
    if not freedom:
        return Optimum(2**star, "", edge, at_edge, loss, resolution=resolution)
    quantile = half_width(freedom, LEVEL)
    start, _ = _connected(slopes > -quantile * stderr, centre)
    _, end = _connected(slopes < quantile * stderr, centre)
    low, high = min(fine[start], star - UNSEEN * step), max(fine[end], min(star + UNSEEN * step, x[-1]))
    scatter = (high - low) / 2 / quantile
    if at_edge:
        # What limits the optimum is the edge, whose place differs between seeds, or the bowl below.
        scatter = max(0.0 if math.isnan(edge.stderr) else edge.stderr, (star - low) / quantile)
    if smooth.misses:  # a corner that the smooth curve rounds off
        low, high = min(low, x[max(best - 1, 0)]), max(high, x[min(best + 1, last)])
    if best >= last - 1:
        high = max(high, x[-1])  # the only point above the best may lie on a wall, which the grid does not resolve
    if (at_edge or end == len(fine) - 1) and wall is not None:
        high = max(high, wall[2])
    return Optimum(2**star, "", edge, at_edge, loss, 2**low, 2**high, scatter, resolution)


def _height(smooth: Smooth, log: np.ndarray) -> float:
    """How far above the smallest mean the optimum may lie on the line between grid points. log: of the best point."""
    log = log[~np.isnan(log)]
    if len(log) > 1:
        return float(log.std(ddof=1)) / math.sqrt(len(log))
    best, last = smooth.best, len(smooth.x) - 1
    neighbour = min(smooth.mean[i] for i in (best - 1, best + 1) if 0 <= i <= last)
    return max(0.0 if math.isnan(smooth.scatter) else smooth.scatter, (neighbour - smooth.mean[best]) / 2)


def _wall(smooth: Smooth, curve: Curve, edge: Edge) -> tuple[float, float, float] | None:
    """(place, half of the grid step that holds it, the largest place that it may have) of the cliff or of the edge, in
    octaves, whichever is lower; None if there is neither."""
    if smooth.ended:
        low = smooth.x[-1]
        high = float(curve.x[np.searchsorted(curve.x, low) + 1])
        return (low + high) / 2, (high - low) / 2, high
    if edge.learning_rate is None:
        return None
    middle = math.log2(edge.learning_rate)
    return middle, edge.resolution, middle + edge.resolution if math.isnan(edge.high) else math.log2(edge.high)


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
    NOT_NEGATIVE.check("band", band)
    rates, curves = floats("learning rates", lrs), floats("losses", losses)
    if curves.ndim != 3 or not len(curves):
        raise ValueError(f"losses must be (times, points, seeds), got {curves.shape}")
    optima = [optimum(rates, curve, cap).learning_rate for curve in curves]
    final = optima[-1]
    if final is None:
        return None
    time = len(optima) - 1
    while time and (before := optima[time - 1]) is not None and abs(math.log2(before / final)) <= band:
        time -= 1
    return time
