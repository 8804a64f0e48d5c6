"""Does the best learning rate of the smallest size serve the larger ones? A verdict that can be wrong out loud."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from depthmup.fit.optimum import Optimum, capped, optimum

BAND = 0.25  # octaves per doubling of the size
CONFIDENCE = 0.95


class Drift(NamedTuple):
    """Slope of log2 optimum over log2 size, with its 95% interval; and the line's value at the first size."""

    octaves_per_doubling: float
    low: float
    high: float
    intercept: float


class Transfer(NamedTuple):
    """values: sizes; optimal_lr, regret: one each, None where there is none; drift: None with fewer than two optima."""

    values: list[float]
    optimal_lr: list[float | None]
    optima: list[Optimum]
    drift: Drift | None
    regret: list[float | None]
    learning_rates: list[np.ndarray]  # of each size, (points,)
    losses: list[np.ndarray]  # of each size, (points, seeds)
    verdict: str  # "transfers" | "does not transfer" | "inconclusive"
    reason: str


def transfer(table: Iterable[Mapping[str, Any]], axis: str = "depth", cap: float | None = None) -> Transfer:
    """Optimum per size, its drift, the regret of the smallest size's best learning rate, and the verdict.

    Args:
      table: rows with `axis`, "learning_rate", "seed", "loss" and (if known) "diverged".
      axis: name of the size, such as "depth" or "width".
      cap: losses are cut there (see `optimum`).

    Verdict, with d the drift in octaves per doubling: "transfers" if the 95% interval of d lies within +-0.25 and the
    smallest size's best learning rate trains at every size; "does not transfer" if the interval excludes +-0.25, or
    that learning rate diverges somewhere, or a size has no optimum inside the grid; else "inconclusive".

    The drift's error is the scatter of the optima between seeds, pooled over sizes, or that of the optima about the
    line where it is larger. Regret is loss minus the best loss at that size, None where a seed
    diverges.
    Sizes may have different learning rates (an adaptive sweep); each needs all seeds at each of its own.
    Raises ValueError for an empty table, fewer than two sizes, or a seed that is missing.
    """
    sizes, lrs, losses, diverged = _arrays(table, axis)
    optima = [optimum(own, curve, cap) for own, curve in zip(lrs, losses, strict=True)]
    best = [o.learning_rate for o in optima]
    drift = _drift(sizes, optima, losses[0].shape[1])
    regret: list[float | None] = [None] * len(sizes)
    diverges_at: list[float] = []
    if best[0] is not None:
        for i, size in enumerate(sizes):
            chosen = int(np.argmin(np.abs(np.log2(lrs[i]) - math.log2(best[0]))))
            if diverged[i][chosen].any():
                diverges_at.append(size)
            else:
                mean = capped(losses[i], cap).mean(axis=1)
                regret[i] = float(mean[chosen] - mean.min())
    verdict, reason = _verdict(axis, sizes, optima, drift, diverges_at)
    return Transfer(sizes, best, optima, drift, regret, lrs, losses, verdict, reason)


def _arrays(
    table: Iterable[Mapping[str, Any]], axis: str
) -> tuple[list[float], list[np.ndarray], list[np.ndarray], list[np.ndarray]]:
    """Sizes, and of each its learning rates (points,), losses and whether they diverged (points, seeds)."""
    rows = list(table)
    if not rows:
        raise ValueError("the table is empty: there is no trial to judge")
    for key in (axis, "learning_rate", "seed", "loss"):
        if any(key not in row for row in rows):
            raise ValueError(f"a row of the table has no {key!r}")
    sizes, seeds = (sorted({row[key] for row in rows}) for key in (axis, "seed"))
    if sizes[0] <= 0:
        raise ValueError(f"{axis} must be positive, got {sizes[0]}")
    if len(sizes) < 2:
        raise ValueError(f"transfer over {axis} needs at least two values of it, got {sizes}")
    lrs, losses, diverged = [], [], []
    for size in sizes:
        own = [row for row in rows if row[axis] == size]
        rates = sorted({row["learning_rate"] for row in own})
        found: dict[tuple[float, Any], Mapping[str, Any]] = {}
        for row in own:
            at = row["learning_rate"], row["seed"]
            if at in found:
                raise ValueError(f"two rows for {axis}={size}, learning_rate={at[0]}, seed={at[1]}")
            found[at] = row
        for at in ((rate, seed) for rate in rates for seed in seeds):
            if at not in found:
                raise ValueError(f"no row for {axis}={size}, learning_rate={at[0]}, seed={at[1]}: it needs all seeds")
        values = [[found[rate, seed] for seed in seeds] for rate in rates]
        lrs.append(np.array(rates))
        losses.append(np.array([[math.nan if r["loss"] is None else r["loss"] for r in line] for line in values]))
        flags = np.array([[bool(r.get("diverged", False)) for r in line] for line in values])
        diverged.append(flags | ~np.isfinite(losses[-1]))
    return sizes, lrs, losses, diverged


def _drift(sizes: list[float], optima: list[Optimum], seeds: int) -> Drift | None:
    from scipy import stats  # here, so that `import depthmup` stays light

    found = [
        (math.log2(s), math.log2(o.learning_rate), o.stderr)
        for s, o in zip(sizes, optima, strict=True)
        if o.learning_rate
    ]
    if len(found) < 2:
        return None
    x, y, stderr = (np.array(column) for column in zip(*found, strict=True))
    centred = x - x.mean()
    slope = float(centred @ y / (centred @ centred))
    intercept = float(y.mean() + slope * (x[0] - x.mean()))
    misses = y - y.mean() - slope * centred
    free = len(x) - 2
    scatter = float(misses @ misses) / free if free else 0.0
    variance = float(np.mean(stderr**2))
    if seeds > 1:
        error, degrees = math.sqrt(max(variance, scatter)), len(x) * (seeds - 1)
    elif free:
        error, degrees = math.sqrt(scatter), free
    else:
        return Drift(slope, -math.inf, math.inf, intercept)
    half = float(stats.t.ppf(0.5 + CONFIDENCE / 2, degrees)) * error / math.sqrt(float(centred @ centred))
    return Drift(slope, slope - half, slope + half, intercept)


def _verdict(
    axis: str, sizes: list[float], optima: list[Optimum], drift: Drift | None, diverges_at: list[float]
) -> tuple[str, str]:
    without = [f"{axis} {size:g}: {o.reason}" for size, o in zip(sizes, optima, strict=True) if o.reason]
    if without:
        return "does not transfer", "no optimum at " + "; ".join(without)
    if diverges_at:
        return "does not transfer", f"the best LR of {axis} {sizes[0]:g} diverges at {axis} {diverges_at[0]:g}"
    assert drift is not None  # two sizes at least, each with an optimum
    interval = f"95% interval of the drift [{drift.low:+.2f}, {drift.high:+.2f}] octaves per doubling"
    if drift.low > BAND or drift.high < -BAND:
        return "does not transfer", f"{interval} excludes +-{BAND}"
    if -BAND <= drift.low and drift.high <= BAND:
        return "transfers", f"{interval} is within +-{BAND}"
    return "inconclusive", f"{interval} is neither within +-{BAND} nor beyond"
