"""What rules for the learning rate predict at every size from the one tuned at the smallest."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from depthmup.fit.transfer import Transfer, regret_at

Octaves = list[float | None]  # log2 of a learning rate at each size


class Rule(NamedTuple):
    """One rule against the optima that were found; lists have one entry per size.

    predicted: learning rates; None where the rule has no prediction.
    octaves_off: log2(predicted / optimum); None where either is missing.
    regret: loss with the prediction minus the best loss; None where there is no prediction or `regret_at` gives none.
    tuned: index of the size that the prediction starts from.
    """

    name: str
    predicted: list[float | None]
    octaves_off: list[float | None]
    regret: list[float | None]
    tuned: int

    @property
    def worst(self) -> float | None:
        """Largest |octaves_off| beyond the tuned size; None if there is nothing to compare."""
        return max(self._beyond(), default=None)

    @property
    def mean(self) -> float | None:
        """Mean |octaves_off| beyond the tuned size; None if there is nothing to compare."""
        beyond = self._beyond()
        return sum(beyond) / len(beyond) if beyond else None

    def _beyond(self) -> list[float]:
        return [abs(off) for off in self.octaves_off[self.tuned + 1 :] if off is not None]


def learning_rate_rules(
    result: Transfer,
    *,
    path_sums: Mapping[float, int] | None = None,
    calibrated: Mapping[str, Mapping[float, float | None]] | None = None,
) -> list[Rule]:
    """Every rule's predictions from (L0, lr0), the smallest size with an optimum; [] if no size has one.

    Args:
      result: sizes L with their optima.
      path_sums: {size: PathSum P} (see `path_sum`), or None.
      calibrated: {name of a rule: {size: learning rate c}}, calibrations such as paper B's maximal update.

    Rules: "constant" lr0; "L^-1" lr0 L0/L; "L^-3/2" lr0 (L0/L)^(3/2) (paper B, theorem 3); "PathSum"
    lr0 sqrt(P(L0)/P(L)) (rules.md section 5); "fitted" the line in log-log through the optima of all smaller sizes, at
    least two; those of `calibrated` lr0 c(L)/c(L0). A size that path_sums or calibrated lacks has no prediction.
    Raises ValueError if either lacks L0 or holds a value that is not positive.
    """
    tuned = next((i for i, lr in enumerate(result.optimal_lr) if lr is not None), None)
    if tuned is None:
        return []
    x = np.log2(result.values)
    optima = [None if lr is None else math.log2(lr) for lr in result.optimal_lr]
    start = optima[tuned]
    assert start is not None
    rules: dict[str, Octaves] = {
        "constant": [start] * len(x),
        "L^-1": [float(start - own) for own in x - x[tuned]],
        "L^-3/2": [float(start - 1.5 * own) for own in x - x[tuned]],
    }
    if path_sums is not None:
        rules["PathSum"] = _scaled("path_sums", path_sums, -0.5, result.values, tuned, start)
    rules["fitted"] = [_extrapolated(x, optima, i) for i in range(len(x))]
    for name, rates in (calibrated or {}).items():
        rules[name] = _scaled(name, rates, 1.0, result.values, tuned, start)
    return [_rule(name, predicted, optima, result, tuned) for name, predicted in rules.items()]


def _scaled(
    name: str, given: Mapping[float, float | None], power: float, sizes: list[float], tuned: int, start: float
) -> Octaves:
    """log2 of lr0 (given(L) / given(L0))^power. `math.log2` takes integers that no float holds."""
    found = [given.get(size) for size in sizes]
    if not all(value is None or value > 0 for value in found):
        raise ValueError(f"{name} must be positive or None, got {dict(given)}")
    octaves = [None if value is None else math.log2(value) for value in found]
    base = octaves[tuned]
    if base is None:
        raise ValueError(f"{name} has no value at {sizes[tuned]:g}, the size that the prediction starts from")
    return [None if own is None else start + power * (own - base) for own in octaves]


def _extrapolated(x: np.ndarray, optima: Octaves, i: int) -> float | None:
    """The line through the optima before size `i`, at size `i`."""
    y = np.array(optima[:i], np.float64)  # NaN for None
    found = ~np.isnan(y)
    if found.sum() < 2:
        return None
    return float(np.polyval(np.polyfit(x[:i][found], y[found], 1), x[i]))


def _rule(name: str, predicted: Octaves, optima: Octaves, result: Transfer, tuned: int) -> Rule:
    rates = [None if octaves is None else 2**octaves for octaves in predicted]
    pairs = zip(predicted, optima, strict=True)
    off = [None if own is None or best is None else own - best for own, best in pairs]
    regret = [None if rate is None else regret_at(result, i, rate) for i, rate in enumerate(rates)]
    return Rule(name, rates, off, regret, tuned)
