"""The optimum of a learning-rate curve, with its error from the scatter between seeds."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

WINDOW = 5  # points of the grid in the local fit
FLOOR = 1e-12  # losses below are as good as 0; their logarithm is not


class Optimum(NamedTuple):
    """The best learning rate of one curve.

    learning_rate: from the fit; None if the curve has no optimum inside the grid.
    reason: "" or why there is none ("at the lower edge of the grid", "at the upper edge of the grid", "never trains").
    loss: the smallest seed-mean loss on the grid (losses capped); index: where on the sorted grid.
    influence: (seeds,) how far each seed pulls log2 of the optimum; its variance / seeds is the optimum's.
    """

    learning_rate: float | None
    reason: str
    loss: float
    index: int
    influence: np.ndarray

    @property
    def stderr(self) -> float:
        """Standard error of log2 learning_rate, in octaves; NaN for a single seed."""
        n = len(self.influence)
        return float(np.sqrt(np.sum(self.influence**2) / (n - 1) / n)) if n > 1 else math.nan


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

    The vertex is clipped to the five points. A smallest mean loss at an end of the grid is no optimum.
    Raises ValueError for bad shapes, learning rates that are not positive, or fewer than five points.
    """
    lrs = np.asarray(lrs, np.float64)
    losses = np.asarray(losses, np.float64).reshape(len(lrs), -1)
    if len(lrs) < WINDOW:
        raise ValueError(f"an optimum needs at least {WINDOW} learning rates, got {len(lrs)}: widen the grid")
    if not (lrs > 0).all() or len(np.unique(lrs)) != len(lrs):
        raise ValueError("learning rates must be positive and different from each other")
    order = np.argsort(lrs)
    x, cut = np.log2(lrs[order]), capped(losses[order], cap)
    log_loss = np.log(cut)
    mean = log_loss.mean(axis=1)
    best = int(np.argmin(mean))
    loss, nothing = float(cut.mean(axis=1)[best]), np.zeros(losses.shape[1])
    if best in (0, len(x) - 1) or mean[best] >= mean.max():
        flat = mean[best] >= mean.max()
        edge = f"at the {'lower' if best == 0 else 'upper'} edge of the grid"
        return Optimum(None, "never trains" if flat else edge, loss, best, nothing)

    first = min(max(best - WINDOW // 2, 0), len(x) - WINDOW)
    window = slice(first, first + WINDOW)
    design = np.vander(x[window] - x[best], 3)  # columns: square, linear, constant
    solve = np.linalg.pinv(design)
    square, linear, _ = solve @ mean[window]
    if square <= 0:  # no bowl: the grid point is all that is known
        return Optimum(float(2 ** x[best]), "", loss, best, nothing)
    vertex = -linear / (2 * square)
    clipped = float(np.clip(x[best] + vertex, x[window][0], x[window][-1]))
    slope = -solve[1] / (2 * square) + linear * solve[0] / (2 * square**2)  # d vertex / d mean
    influence = slope @ (log_loss[window] - mean[window, None])
    return Optimum(2**clipped, "", loss, best, influence)
