"""The optimum of a learning-rate curve, with its error from the scatter between seeds, and when it is settled."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike  # importing it loads more of NumPy than `import depthmup` needs

WINDOW = 5  # number of grid points in the local fit
REDRAWS = 200  # number of bootstrap samples of the seeds
CONFIDENCE = 0.95
FLOOR = 1e-12  # losses below count as 0, since their logarithms would outweigh all others


class Optimum(NamedTuple):
    """The best learning rate of one curve (loss over learning rate). An octave is a factor of 2.

    learning_rate: the minimum of the fit; None if the curve has no optimum inside the grid.
    stderr: standard error of learning_rate in octaves, from redraws of the seeds with replacement (the bootstrap); NaN
        for a single seed or without an optimum.
    reason: "" if there is an optimum, else why not ("at the lower edge of the grid", "at the upper edge of the grid",
        "never trains").
    loss: the smallest seed-mean loss on the grid, of losses cut at the cap.
    low, high: 95% interval of learning_rate (t distribution with seeds - 1 degrees of freedom); NaN if stderr is NaN.
    cliff: octaves from the optimum up to the first larger learning rate of the grid at which a seed diverges; None if
        no seed diverges there, or without an optimum.

    In simulations of smooth curves, with 3 or 6 seeds, the interval held the optimum of infinitely many seeds in 95 to
    99 of 100 cases. Where the five points of the fit reach a divergence cliff whose place differs between seeds, it
    held the optimum in 85 to 96 of 100 cases with 6 seeds and in as few as 66 with 3: redraws cannot show what the
    drawn seeds do not.
    """

    learning_rate: float | None
    stderr: float
    reason: str
    loss: float
    low: float
    high: float
    cliff: float | None


def half_width(degrees: int) -> float:
    """Half the width of a 95% interval, in standard errors: Student's t with `degrees` of freedom; NaN for 0."""
    from scipy import special  # here, so that `import depthmup` stays light

    return float(special.stdtrit(degrees, 0.5 + CONFIDENCE / 2))


def capped(losses: np.ndarray, cap: float | None) -> np.ndarray:
    """Losses cut at `cap` (None: the largest finite loss); NaN and infinity, which mean divergence, become the cap."""
    losses = np.asarray(losses, np.float64)
    finite = losses[np.isfinite(losses)]
    top = (finite.max() if finite.size else 1.0) if cap is None else cap
    return np.clip(np.where(np.isfinite(losses), losses, top), FLOOR, top)


def optimum(lrs: np.ndarray, losses: np.ndarray, cap: float | None = None) -> Optimum:
    """The learning rate with the smallest loss: the vertex of a parabola of log loss over log2 learning rate, fitted by
    least squares to the five grid points around the smallest loss.

    Args:
      lrs: (points,), positive learning rates in any order.
      losses: (points,) or (points, seeds); NaN and infinity mean divergence.
      cap: larger losses are cut to it; for cross-entropy, ln(classes), the loss of chance. None: the largest finite
        loss.

    The parabola's vertex is clipped to the range of the five points. If the smallest mean loss is at an end of the
    grid, there is no optimum. A loss of 0, such as the error where no example is wrong, counts as half the smallest
    other loss, so that its logarithm does not outweigh the rest.
    Raises ValueError for bad shapes, negative losses, learning rates that are not positive or not different, or fewer
    than five points.
    """
    lrs = np.asarray(lrs, np.float64)
    losses = np.asarray(losses, np.float64)
    if lrs.ndim != 1 or losses.ndim not in (1, 2) or losses.shape[0] != len(lrs) or losses.size == 0:
        raise ValueError(f"losses must be (points,) or (points, seeds) for {len(lrs)} rates, got {losses.shape}")
    if (losses < 0).any():
        raise ValueError("losses must not be negative: the fit is of their logarithm")
    losses = losses.reshape(len(lrs), -1)
    if len(lrs) < WINDOW:
        raise ValueError(f"an optimum needs at least {WINDOW} learning rates, got {len(lrs)}: widen the grid")
    if not (lrs > 0).all() or len(np.unique(lrs)) != len(lrs):
        raise ValueError("learning rates must be positive and different from each other")
    order = np.argsort(lrs)
    x, losses = np.log2(lrs[order]), losses[order]
    cut, log_loss = capped(losses, cap), log_losses(losses, cap)
    mean = log_loss.mean(axis=1)
    best = int(np.argmin(mean))
    loss = float(cut.mean(axis=1).min())
    if mean[best] >= mean.max():
        return _none("never trains", loss)
    if best in (0, len(x) - 1):
        return _none(f"at the {'lower' if best == 0 else 'upper'} edge of the grid", loss)
    vertex, stderr = float(_vertices(x, mean[:, None])[0]), _stderr(x, log_loss)
    half = stderr * half_width(losses.shape[1] - 1)
    beyond = x[~np.isfinite(losses).all(axis=1) & (x > vertex)]
    cliff = float(beyond[0] - vertex) if beyond.size else None
    return Optimum(2**vertex, stderr, "", loss, 2 ** (vertex - half), 2 ** (vertex + half), cliff)


def _none(reason: str, loss: float) -> Optimum:
    return Optimum(None, math.nan, reason, loss, math.nan, math.nan, None)


def log_losses(losses: np.ndarray, cap: float | None) -> np.ndarray:
    """Natural logarithms of the `capped` losses; a loss of 0 counts as half the smallest other loss."""
    cut = capped(losses, cap)
    positive = cut[cut > FLOOR]
    return np.log(np.maximum(cut, positive.min() / 2 if positive.size else FLOOR))


def _vertices(x: np.ndarray, means: np.ndarray) -> np.ndarray:
    """(curves,): the vertex of the parabola of each column of means, (points, curves), clipped to the points that the
    parabola is fitted to."""
    best = means.argmin(axis=0)
    first = np.clip(best - WINDOW // 2, 0, len(x) - WINDOW)
    vertices = x[best]  # A parabola without a minimum says nothing: then the best grid point stays.
    for start in np.unique(first):  # one fit for all curves that use the same points
        near, own = x[start : start + WINDOW], np.flatnonzero(first == start)
        centre = near[WINDOW // 2]
        square, linear, _ = np.polyfit(near - centre, means[start : start + WINDOW, own], 2)
        bowl = square > 0
        vertices[own[bowl]] = np.clip(centre - linear[bowl] / (2 * square[bowl]), near[0], near[-1])
    return vertices


def _stderr(x: np.ndarray, log_loss: np.ndarray) -> float:
    """Standard deviation of the vertex over redraws of the n seeds with replacement, times sqrt(n / (n - 1)), since the
    variance of redraws is too small by (n - 1) / n."""
    seeds = log_loss.shape[1]
    if seeds == 1:
        return math.nan
    draws = np.random.default_rng(0).integers(seeds, size=(REDRAWS, seeds))
    vertices = _vertices(x, log_loss[:, draws].mean(axis=2))
    return float(np.std(vertices) * math.sqrt(seeds / (seeds - 1)))


def settled(lrs: ArrayLike, losses: ArrayLike, cap: float | None = None, band: float = 0.25) -> int | None:
    """The first time from which on the optimum stays within `band` octaves of the optimum at the last time.

    Args:
      lrs: (points,) learning rates, as in `optimum`.
      losses: (times, points, seeds); NaN and infinity are divergence.
      cap: losses are cut there (see `optimum`).

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
