"""The verdict on transfer: is the best learning rate of the smallest size also good at the larger sizes?"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from depthmup.fit.drift import Drift, fitted_drift
from depthmup.fit.optimum import Optimum, capped, optimum
from depthmup.fit.table import LossCurve, loss_curves

BAND = 0.25  # octaves per doubling of the size


class Transfer(NamedTuple):
    """The result of `transfer`. Every list has one entry per size, sizes rising.

    Learning rates are values of the hyperparameter, losses are values of the minimized measure (see `transfer`).
    """

    values: list[float]  # the sizes
    optimal_lr: list[float | None]  # None for a size without an optimum
    optima: list[Optimum]
    drift: Drift | None  # None if fewer than two sizes have an optimum
    regret: list[float | None]  # `regret_at` with the smallest size's best learning rate; None if that size has none
    learning_rates: list[np.ndarray]  # (points,) each
    losses: list[np.ndarray]  # (points, seeds) each
    verdict: str  # "transfers" | "does not transfer" | "inconclusive"
    reason: str  # why this is the verdict, in words
    diverged: list[np.ndarray]  # (points, seeds) each, bool
    cap: float | None
    # The best seed-mean validation accuracy minus the one at the smallest size's best learning rate. None where
    # `regret` is None, and everywhere if a row of the table lacks "validation_accuracy".
    regret_accuracy: list[float | None]


def transfer(
    table: Iterable[Mapping[str, Any]],
    axis: str = "depth",
    cap: float | None = None,
    *,
    hyperparameter: str = "learning_rate",
    measure: str = "loss",
) -> Transfer:
    """The optimum at each size, its drift over sizes, the regret of the smallest size's best learning rate, a verdict.

    Args:
      table: rows with `axis`, `hyperparameter`, "seed", `measure` and (if known) "diverged", "validation_accuracy".
      axis: name of the column of sizes, such as "depth" or "width".
      cap: larger losses are cut to it (see `optimum`); in the units of the minimized quantity.
      hyperparameter: the column whose optimum is followed; its values are positive. "Learning rate" below means it.
      measure: the column to minimize; if its name ends in "accuracy", the error 1 - accuracy is minimized.

    The verdict, with d the drift in octaves (factors of 2) per doubling of the size:
      "transfers"          the 95% interval of d lies within +-0.25, and the smallest size's best learning rate trains
                           at every size;
      "does not transfer"  the interval lies outside of +-0.25, or that learning rate diverges at some size, or a
                           size has no optimum inside the grid;
      "inconclusive"       otherwise.

    `drift.fitted_drift` explains the interval of d; `regret_at` explains regret. Sizes may have different rates
    (an adaptive sweep), but each size needs all seeds at each of its rates.
    Raises ValueError for an empty table, fewer than two sizes, a column or a seed that is missing, two rows for one
    trial, values of `axis` or `hyperparameter` that are not positive, or accuracies outside 0 to 1.
    """
    of_size = loss_curves(table, axis, hyperparameter, measure)
    sizes, found = list(of_size), list(of_size.values())
    optima = [optimum(curve.rates, np.where(curve.diverged, np.nan, curve.losses), cap) for curve in found]
    best = optima[0].learning_rate
    seeds = found[0].losses.shape[1]
    drift = fitted_drift(sizes, optima, seeds)
    diverges_at = [] if best is None else [s for s, c in of_size.items() if c.diverged[nearest(c.rates, best)].any()]
    name = "LR" if hyperparameter == "learning_rate" else hyperparameter
    verdict, reason = _verdict(axis, name, sizes, seeds, optima, drift, diverges_at)
    result = Transfer(
        values=sizes,
        optimal_lr=[o.learning_rate for o in optima],
        optima=optima,
        drift=drift,
        regret=[],
        learning_rates=[curve.rates for curve in found],
        losses=[curve.losses for curve in found],
        verdict=verdict,
        reason=reason,
        diverged=[curve.diverged for curve in found],
        cap=cap,
        regret_accuracy=[None if best is None else _regret_accuracy(curve, best) for curve in found],
    )
    return result._replace(regret=[None if best is None else regret_at(result, i, best) for i in range(len(sizes))])


def regret_at(result: Transfer, i: int, learning_rate: float) -> float | None:
    """At the size with index `i`: the loss at the grid point nearest to `learning_rate`, minus the best loss.

    None if a seed diverges at that point, or if the point is more than half a grid step away, which happens outside the
    grid and in gaps of an adaptive sweep's grid.
    """
    rates = result.learning_rates[i]
    chosen = nearest(rates, learning_rate)
    if not _on_grid(rates, learning_rate) or result.diverged[i][chosen].any():
        return None
    mean = capped(np.where(result.diverged[i], np.nan, result.losses[i]), result.cap).mean(axis=1)
    return float(mean[chosen] - mean.min())


def _regret_accuracy(curve: LossCurve, learning_rate: float) -> float | None:
    """The best accuracy minus the accuracy at `learning_rate`; None as in `regret_at`, or if an accuracy is unknown."""
    if curve.accuracy is None:
        return None
    mean = np.where(curve.diverged, np.nan, curve.accuracy).mean(axis=1)
    chosen = mean[nearest(curve.rates, learning_rate)]
    if not _on_grid(curve.rates, learning_rate) or math.isnan(chosen):
        return None
    return float(np.nanmax(mean) - chosen)


def nearest(rates: np.ndarray, rate: float) -> int:
    """The index of the grid point in rates, (points,), that is nearest to `rate` in octaves."""
    return int(np.argmin(np.abs(np.log2(rates) - math.log2(rate))))


def _on_grid(rates: np.ndarray, rate: float) -> bool:
    """Whether `rate` is at most half of the grid's smallest step away from a grid point. rates: (points,), rising."""
    x = np.log2(rates)
    return bool(np.abs(x - math.log2(rate)).min() <= 0.5 * np.diff(x).min() + 1e-9)


def _verdict(
    axis: str,
    name: str,
    sizes: list[float],
    seeds: int,
    optima: list[Optimum],
    drift: Drift | None,
    diverges_at: list[float],
) -> tuple[str, str]:
    """(verdict, reason). name: the hyperparameter's name in the reason."""
    without = [f"{axis} {size:g}: {o.reason}" for size, o in zip(sizes, optima, strict=True) if o.reason]
    if without:
        return "does not transfer", "no optimum at " + "; ".join(without)
    if diverges_at:
        return "does not transfer", f"the best {name} of {axis} {sizes[0]:g} diverges at {axis} {diverges_at[0]:g}"
    assert drift is not None  # two sizes at least, each with an optimum
    if seeds == 1 and len(sizes) == 2:
        slope = f"{drift.octaves_per_doubling:+.2f} octaves per doubling"
        return "inconclusive", f"one seed: two sizes give no interval of the drift, which is {slope}"
    interval = f"95% interval of the drift [{drift.low:+.2f}, {drift.high:+.2f}] octaves per doubling"
    source = " (one seed: it comes from the scatter about the line alone)" if seeds == 1 else ""
    if drift.low > BAND or drift.high < -BAND:
        return "does not transfer", f"{interval} excludes +-{BAND}{source}"
    if -BAND <= drift.low and drift.high <= BAND:
        return "transfers", f"{interval} is within +-{BAND}{source}"
    return "inconclusive", f"{interval} is neither within +-{BAND} nor beyond{source}"
