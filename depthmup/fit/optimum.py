"""The optimum of a learning-rate curve, with its error from the scatter between seeds."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

WINDOW = 5  # points of the grid in the local fit
REDRAWS = 200
FLOOR = 1e-12  # losses below are as good as 0; their logarithm is not


class Optimum(NamedTuple):
    """The best learning rate of one curve.

    learning_rate: from the fit; None if the curve has no optimum inside the grid.
    stderr: its standard error in octaves, from redraws of the seeds; NaN for a single seed or without an optimum.
    reason: "" or why there is none ("at the lower edge of the grid", "at the upper edge of the grid", "never trains").
    loss: the smallest seed-mean loss on the grid (losses capped).
    """

    learning_rate: float | None
    stderr: float
    reason: str
    loss: float


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
    x, cut = np.log2(lrs[order]), capped(losses[order], cap)
    log_loss = np.log(cut)
    mean = log_loss.mean(axis=1)
    best = int(np.argmin(mean))
    loss = float(cut.mean(axis=1).min())
    if mean[best] >= mean.max():
        return Optimum(None, math.nan, "never trains", loss)
    if best in (0, len(x) - 1):
        return Optimum(None, math.nan, f"at the {'lower' if best == 0 else 'upper'} edge of the grid", loss)
    return Optimum(float(2 ** _vertex(x, mean)), _stderr(x, log_loss), "", loss)


def _vertex(x: np.ndarray, mean: np.ndarray) -> float:
    """The parabola's vertex, clipped to the five points it is fitted to."""
    best = int(np.argmin(mean))
    first = min(max(best - WINDOW // 2, 0), len(x) - WINDOW)
    near = x[first : first + WINDOW]
    square, linear, _ = np.polyfit(near - x[best], mean[first : first + WINDOW], 2)
    if square <= 0:  # no bowl: the grid point is all that is known
        return float(x[best])
    return float(np.clip(x[best] - linear / (2 * square), near[0], near[-1]))


def _stderr(x: np.ndarray, log_loss: np.ndarray) -> float:
    """Spread of the vertex over redraws of the seeds with replacement (their variance is (n - 1) / n too small)."""
    seeds = log_loss.shape[1]
    if seeds == 1:
        return math.nan
    draws = np.random.default_rng(0).integers(seeds, size=(REDRAWS, seeds))
    vertices = [_vertex(x, log_loss[:, draw].mean(axis=1)) for draw in draws]
    return float(np.std(vertices) * math.sqrt(seeds / (seeds - 1)))
