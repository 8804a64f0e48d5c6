"""The optimum of a learning-rate curve, with its error from the scatter between seeds, and when it is settled."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike  # importing it loads more of NumPy than `import depthmup` needs

WINDOW = 5  # points of the grid in the local fit
REDRAWS = 200
CONFIDENCE = 0.95
FLOOR = 1e-12  # losses below are as good as 0; their logarithm is not


class Optimum(NamedTuple):
    """The best learning rate of one curve.

    learning_rate: from the fit; None if the curve has no optimum inside the grid.
    stderr: its standard error in octaves, from redraws of the seeds; NaN for a single seed or without an optimum.
    reason: "" or why there is none ("at the lower edge of the grid", "at the upper edge of the grid", "never trains").
    loss: the smallest seed-mean loss on the grid (losses capped).
    low, high: 95% interval of learning_rate (t distribution with seeds - 1 degrees); NaN where stderr is.
    cliff: octaves from the optimum up to the first larger learning rate of the grid at which a seed diverges; None if
        none does, or without an optimum.

    In simulations of smooth bowls, with 3 or 6 seeds, the interval held the optimum of infinitely many seeds in 95 to
    99 of 100 cases. Where the five points of the fit reach a cliff that lies elsewhere for every seed it was 85 to 96
    of 100 with 6 seeds and down to 66 with 3: what the drawn seeds do not show, redraws of them cannot.
    """

    learning_rate: float | None
    stderr: float
    reason: str
    loss: float
    low: float
    high: float
    cliff: float | None


def half_width(degrees: int) -> float:
    """Half the 95% interval of Student's t with so many degrees of freedom, in standard errors; NaN for none."""
    from scipy import special  # here, so that `import depthmup` stays light

    return float(special.stdtrit(degrees, 0.5 + CONFIDENCE / 2))


def capped(losses: np.ndarray, cap: float | None) -> np.ndarray:
    """Losses with divergence, and anything above `cap`, as `cap` (the largest finite loss if None)."""
    losses = np.asarray(losses, np.float64)
    finite = losses[np.isfinite(losses)]
    top = (finite.max() if finite.size else 1.0) if cap is None else cap
    return np.clip(np.where(np.isfinite(losses), losses, top), FLOOR, top)


def optimum(lrs: np.ndarray, losses: np.ndarray, cap: float | None = None) -> Optimum:
    """The minimum of log loss over log2 learning rate: a least-squares parabola through five points around it.

    Args:
      lrs: (points,) learning rates, positive, any order.
      losses: (points,) or (points, seeds); NaN and infinity are divergence.
      cap: losses are cut there; for cross-entropy ln(classes), chance. None: the largest finite loss.

    The vertex is clipped to the five points. A smallest mean loss at an end of the grid is no optimum. A loss of 0,
    such as an error of no example, counts as half the smallest other loss: its logarithm must not outweigh the rest.
    Raises ValueError for bad shapes, learning rates that are not positive, or fewer than five points.
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
    """Natural logarithm of `capped` losses; 0, as an error may be, counts as half of the smallest other one."""
    cut = capped(losses, cap)
    positive = cut[cut > FLOOR]
    return np.log(np.maximum(cut, positive.min() / 2 if positive.size else FLOOR))


def _vertices(x: np.ndarray, means: np.ndarray) -> np.ndarray:
    """(curves,): of every column of (points, curves) the parabola's vertex, clipped to the points it is fitted to."""
    best = means.argmin(axis=0)
    first = np.clip(best - WINDOW // 2, 0, len(x) - WINDOW)
    vertices = x[best]  # without a bowl the grid point is all that is known
    for start in np.unique(first):  # one fit for all curves that use the same points
        near, own = x[start : start + WINDOW], np.flatnonzero(first == start)
        centre = near[WINDOW // 2]
        square, linear, _ = np.polyfit(near - centre, means[start : start + WINDOW, own], 2)
        bowl = square > 0
        vertices[own[bowl]] = np.clip(centre - linear[bowl] / (2 * square[bowl]), near[0], near[-1])
    return vertices


def _stderr(x: np.ndarray, log_loss: np.ndarray) -> float:
    """Spread of the vertex over redraws of the seeds with replacement (their variance is (n - 1) / n too small)."""
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
