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
    learning_rates: np.ndarray  # (points,)
    losses: np.ndarray  # (sizes, points, seeds)
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
    Raises ValueError for an empty table, fewer than two sizes, or sizes with different learning rates or seeds.
    """
    sizes, lrs, losses, diverged = _arrays(table, axis)
    optima = [optimum(lrs, curve, cap) for curve in losses]
    best = [o.learning_rate for o in optima]
    drift = _drift(sizes, optima, losses.shape[2])
    regret: list[float | None] = [None] * len(sizes)
    diverges_at: list[float] = []
    if best[0] is not None:
        chosen = int(np.argmin(np.abs(np.log2(lrs) - math.log2(best[0]))))
        for i, size in enumerate(sizes):
            if diverged[i, chosen].any():
                diverges_at.append(size)
            else:
                mean = capped(losses[i], cap).mean(axis=1)
                regret[i] = float(mean[chosen] - mean.min())
    verdict, reason = _verdict(axis, sizes, optima, drift, diverges_at)
    return Transfer(sizes, best, optima, drift, regret, lrs, losses, verdict, reason)


def _arrays(table: Iterable[Mapping[str, Any]], axis: str) -> tuple[list[float], np.ndarray, np.ndarray, np.ndarray]:
    rows = list(table)
    if not rows:
        raise ValueError("the table is empty: there is no trial to judge")
    for key in (axis, "learning_rate", "seed", "loss"):
        if any(key not in row for row in rows):
            raise ValueError(f"a row of the table has no {key!r}")
    sizes, lrs, seeds = (sorted({row[key] for row in rows}) for key in (axis, "learning_rate", "seed"))
    if sizes[0] <= 0:
        raise ValueError(f"{axis} must be positive, got {sizes[0]}")
    if len(sizes) < 2:
        raise ValueError(f"transfer over {axis} needs at least two values of it, got {sizes}")
    losses = np.full((len(sizes), len(lrs), len(seeds)), np.nan)
    diverged = np.zeros(losses.shape, bool)
    seen = np.zeros(losses.shape, bool)
    for row in rows:
        at = sizes.index(row[axis]), lrs.index(row["learning_rate"]), seeds.index(row["seed"])
        if seen[at]:
            raise ValueError(
                f"two rows for {axis}={row[axis]}, learning_rate={row['learning_rate']}, seed={row['seed']}"
            )
        value = row["loss"]
        losses[at] = math.nan if value is None else value
        diverged[at] = bool(row.get("diverged", False)) or not math.isfinite(losses[at])
        seen[at] = True
    if not seen.all():
        i, j, k = np.argwhere(~seen)[0]
        raise ValueError(
            f"no row for {axis}={sizes[i]}, learning_rate={lrs[j]}, seed={seeds[k]}: the grid must be full"
        )
    return sizes, np.asarray(lrs), losses, diverged


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
