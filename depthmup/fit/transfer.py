"""The verdicts on transfer: does the optimum move with the size, and what does the smallest size's best value cost?"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from depthmup.fit.drift import Drift, fitted_drift
from depthmup.fit.optimum import Edge, Optimum, capped, half_width, log_losses, optimum
from depthmup.fit.table import LossCurve, loss_curves

BAND = 0.25  # octaves per doubling of the size
COST = 0.05  # of the best loss
TRANSFERS, NOT, UNDECIDED = VERDICTS = "transfers", "does not transfer", "undecided"


class Law(NamedTuple):
    """How a learning rate moves with the size.

    drift: None if fewer than two sizes have the learning rate.
    verdict: "transfers" | "does not transfer" | "undecided". reason: why this is the verdict, in words.
    """

    drift: Drift | None
    verdict: str
    reason: str


class Cost(NamedTuple):
    """What a learning rate costs at one size: the share by which its loss is above the best loss, such as .05.

    Both losses are geometric means over seeds; between grid points the log loss is interpolated.
    low, high: 95% interval from the seeds' own ratios; NaN for one seed. If the next larger grid point diverges, share
        is that of the next smaller one and high is infinite.
    """

    share: float
    low: float
    high: float


class Transfer(NamedTuple):
    """The result of `transfer`. Every list has one entry per size, sizes rising.

    Learning rates are values of the hyperparameter, losses are values of the minimized measure (see `transfer`).
    """

    values: list[float]  # the sizes
    optimal_lr: list[float | None]  # None for a size without an optimum
    optima: list[Optimum]
    drift: Drift | None  # of the optimum; None if fewer than two sizes have an optimum
    verdict: str  # about the drift of the optimum: "transfers" | "does not transfer" | "undecided"
    reason: str  # why this is the verdict, in words
    edge: Law  # the drift of the edge, above which training is not possible
    regret: list[float | None]  # `regret_at` with the smallest size's best learning rate; None if that size has none
    # Of the smallest size's best learning rate; None if that size has none, if it diverges, or if it is off the grid.
    costs: list[Cost | None]
    by_regret: Law  # the verdict by costs; its drift is None
    # The best seed-mean validation accuracy minus the one at the smallest size's best learning rate. None where
    # `regret` is None, and everywhere if a row of the table lacks "validation_accuracy".
    regret_accuracy: list[float | None]
    learning_rates: list[np.ndarray]  # (points,) each
    losses: list[np.ndarray]  # (points, seeds) each
    diverged: list[np.ndarray]  # (points, seeds) each, bool
    cap: float | None


def transfer(
    table: Iterable[Mapping[str, Any]],
    axis: str = "depth",
    cap: float | None = None,
    *,
    hyperparameter: str = "learning_rate",
    measure: str = "loss",
) -> Transfer:
    """The optimum and the edge at each size, their drifts over sizes, the cost of the smallest size's best learning
    rate at each size, and verdicts.

    Args:
      table: rows with `axis`, `hyperparameter`, "seed", `measure` and (if known) "diverged", "validation_accuracy".
      axis: name of the column of sizes, such as "depth" or "width".
      cap: a training that ends at or above it has learned nothing (see `optimum`); in units of the minimized quantity.
      hyperparameter: the column whose optimum is followed; its values are positive. "Learning rate" below means it.
      measure: the column to minimize; if its name ends in "accuracy", the error 1 - accuracy is minimized.

    The verdict, with d the drift of the optimum in octaves (factors of 2) per doubling of the size:
      "transfers"          the 95% interval of d lies within +-0.25;
      "does not transfer"  the interval lies outside of +-0.25, or a size has no optimum inside the grid;
      "undecided"          otherwise.
    The verdict on the edge is made likewise from the sizes that have an edge.

    The verdict by regret asks what decides in practice, with c the share by which the loss at the smallest size's best
    learning rate is above the size's best loss:
      "transfers"          the 95% interval of c ends below 5% at every size;
      "does not transfer"  the interval of c begins above 5% at some size, or this learning rate diverges there, or a
                           size has no optimum;
      "undecided"          otherwise.
    Between two grid points of which only the larger one diverges nothing is known, and the interval of c has no end.

    `drift.fitted_drift` explains the interval of d; `regret_at` explains regret. Sizes may have different rates
    (an adaptive sweep), but each size needs all seeds at each of its rates.
    Raises ValueError for an empty table, fewer than two sizes, a column or a seed that is missing, two rows for one
    trial, values of `axis` or `hyperparameter` that are not positive, accuracies outside 0 to 1, or a NaN that is not
    one of a diverged training.
    """
    of_size = loss_curves(table, axis, hyperparameter, measure)
    sizes, found = list(of_size), list(of_size.values())
    optima = [optimum(curve.rates, curve.losses, cap, curve.diverged) for curve in found]
    best, seeds = optima[0].learning_rate, found[0].losses.shape[1]
    law = _law([optimum.reason for optimum in optima], axis, sizes, seeds, optima)
    edges = [o.edge for o in optima]
    result = Transfer(
        values=sizes,
        optimal_lr=[o.learning_rate for o in optima],
        optima=optima,
        drift=law.drift,
        verdict=law.verdict,
        reason=law.reason,
        edge=_edge_law(axis, sizes, seeds, edges),
        regret=[],
        costs=[],
        by_regret=law,
        regret_accuracy=[None if best is None else _regret_accuracy(curve, best) for curve in found],
        learning_rates=[curve.rates for curve in found],
        losses=[curve.losses for curve in found],
        diverged=[curve.diverged for curve in found],
        cap=cap,
    )
    all_sizes = range(len(sizes))
    result = result._replace(
        regret=[None if best is None else regret_at(result, i, best) for i in all_sizes],
        costs=[None if best is None else _cost(result, i, best) for i in all_sizes],
    )
    name = "LR" if hyperparameter == "learning_rate" else hyperparameter
    return result._replace(by_regret=_by_regret(result, axis, name, seeds))


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


def _cost(result: Transfer, i: int, learning_rate: float) -> Cost | None:
    """The cost of `learning_rate` at the size with index `i`, with its log loss interpolated between grid points.

    None if the grid point at or below it diverges, or if it is more than half a grid step beyond the grid.
    """
    rates, failed = result.learning_rates[i], [bool(flags.any()) for flags in result.diverged[i]]
    if not _on_grid(rates, learning_rate):
        return None
    x, at = np.log2(rates), math.log2(learning_rate)
    below = int(np.clip(np.searchsorted(x, at + 1e-9) - 1, 0, len(x) - 1))
    above = min(below + 1, len(x) - 1) if at > x[below] + 1e-9 else below
    if failed[below]:
        return None
    log = log_losses(np.where(result.diverged[i], np.nan, result.losses[i]), result.cap)
    share = 0.0 if above == below or failed[above] else (at - x[below]) / (x[above] - x[below])
    ratios = log[below] + share * (log[above] - log[below]) - log[int(log.mean(axis=1).argmin())]  # of each seed
    mean, half = float(ratios.mean()), math.nan
    if len(ratios) > 1:
        half = half_width(len(ratios) - 1) * float(ratios.std(ddof=1)) / math.sqrt(len(ratios))
    high = math.inf if failed[above] else math.expm1(mean + half)
    return Cost(math.expm1(mean), math.expm1(mean - half), high)


def _by_regret(result: Transfer, axis: str, name: str, seeds: int) -> Law:
    first = f"the best {name} of {axis} {result.values[0]:g}"
    for size, found in zip(result.values, result.optima, strict=True):
        if found.learning_rate is None:
            return Law(None, NOT, f"{axis} {size:g} has no best {name}: {found.reason}")
    pairs = list(zip(result.values, result.costs, strict=True))
    without = [f"{size:g}" for size, cost in pairs if cost is None]
    if without:
        return Law(None, NOT, f"{first} diverges, or was not trained, at {axis} {', '.join(without)}")
    costs = [(size, cost) for size, cost in pairs if cost is not None]
    if seeds == 1:
        worst, cost = max(costs, key=lambda pair: pair[1].share)
        return Law(None, UNDECIDED, f"one seed: no interval; {first} costs {cost.share:.1%} at {axis} {worst:g}")
    beyond = [f"{size:g}" for size, cost in costs if cost.low > COST]
    if beyond:
        return Law(None, NOT, f"{first} costs more than {COST:.0%} of the best loss at {axis} {', '.join(beyond)}")
    unknown = [f"{size:g}" for size, cost in costs if math.isinf(cost.high)]
    if unknown:
        return Law(None, UNDECIDED, f"the next larger {name} of the grid diverges at {axis} {', '.join(unknown)}")
    worst, cost = max(costs, key=lambda pair: pair[1].high)
    words = f"{first} costs at most {cost.high:.1%} of the best loss (the end of the interval at {axis} {worst:g})"
    return Law(None, TRANSFERS if cost.high <= COST else UNDECIDED, words)


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


def _edge_law(axis: str, sizes: list[float], seeds: int, edges: list[Edge | None]) -> Law:
    known = [(size, edge) for size, edge in zip(sizes, edges, strict=True) if edge and edge.learning_rate]
    if len(known) < 2:
        return Law(None, UNDECIDED, f"fewer than two values of {axis} have an edge inside the grid")
    return _law([], axis, [size for size, _ in known], seeds, [edge for _, edge in known])


def _law(reasons: Sequence[str], axis: str, sizes: Sequence[float], seeds: int, found: Sequence[Optimum | Edge]) -> Law:
    """The drift of optima or edges, and the verdict. reasons: for each size why it has no optimum, or ""."""
    drift = fitted_drift(sizes, found, seeds)
    without = [f"{axis} {size:g}: {reason}" for size, reason in zip(sizes, reasons, strict=False) if reason]
    if without:
        return Law(drift, NOT, "no optimum at " + "; ".join(without))
    assert drift is not None  # two sizes at least, each with a learning rate
    if seeds == 1 and len(sizes) == 2:
        slope = f"{drift.octaves_per_doubling:+.2f} octaves per doubling"
        return Law(drift, UNDECIDED, f"one seed: two sizes give no interval of the drift, which is {slope}")
    interval = f"95% interval of the drift [{drift.low:+.2f}, {drift.high:+.2f}] octaves per doubling"
    source = " (one seed: it comes from the scatter about the line alone)" if seeds == 1 else ""
    if drift.low > BAND or drift.high < -BAND:
        return Law(drift, NOT, f"{interval} excludes +-{BAND}{source}")
    if -BAND <= drift.low and drift.high <= BAND:
        return Law(drift, TRANSFERS, f"{interval} is within +-{BAND}{source}")
    return Law(drift, UNDECIDED, f"{interval} is neither within +-{BAND} nor beyond{source}")
