"""Rules that predict the best learning rate at every size from the best learning rate at the smallest size."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from depthmup.fit.transfer import Transfer, regret_at
from depthmup.names import POSITIVE, short


class Rule(NamedTuple):
    """One rule, compared with the optima that were found; every list has one entry per size.

    predicted: learning rates; None where the rule has no prediction.
    octaves_off: log2(predicted / optimum); None where the prediction or the optimum is missing.
    regret: loss at the prediction minus the best loss; None without a prediction or where `regret_at` is None.
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


def predictions(
    depth: float,
    learning_rate: float,
    target: float,
    *,
    path_sums: Mapping[float, int] | None = None,
    calibrated: Mapping[str, Mapping[float, float | None]] | None = None,
) -> dict[str, float | None]:
    """What each rule predicts at depth `target`, given that `learning_rate` is the best one at `depth`.

    Args:
      depth, learning_rate: where it was tuned.
      target: another depth.
      path_sums, calibrated: of `learning_rate_rules`, which explains the rules.

    Returns:
      {rule: learning rate}, None where path_sums or calibrated lack a depth. "fitted", which needs two tuned depths, is
      not among them.

    Raises ValueError for values that are not positive.
    """
    for what, number in (("depth", depth), ("learning_rate", learning_rate), ("target", target)):
        POSITIVE.check(what, number)
    ratio = target / depth
    result: dict[str, float | None] = {
        "constant": learning_rate,
        "L^-1": learning_rate / ratio,
        "L^-3/2": learning_rate * ratio**-1.5,
    }
    if path_sums is not None:
        result["PathSum"] = _times(learning_rate, "path_sums", path_sums, -0.5, depth, target)
    for name, rates in (calibrated or {}).items():
        result[name] = _times(learning_rate, name, rates, 1.0, depth, target)
    return result


def learning_rate_rules(
    result: Transfer,
    *,
    path_sums: Mapping[float, int] | None = None,
    calibrated: Mapping[str, Mapping[float, float | None]] | None = None,
) -> list[Rule]:
    """Every rule's predictions at all sizes; [] if no size has an optimum.

    Args:
      result: sizes L with their optima. Predictions start from L0, the smallest size with an optimum, and its lr0.
      path_sums: {size: PathSum P} (see `path_sum`), or None.
      calibrated: {name of a rule: {size: learning rate c}} of calibrations such as paper B's maximal update.

    Returns:
      A `Rule` for each rule: its learning rate at every size, None where it has none.

    The rules predict at size L:
      "constant"   lr0
      "L^-1"       lr0 L0/L
      "L^-3/2"     lr0 (L0/L)^(3/2)  (paper B, theorem 3)
      "PathSum"    lr0 sqrt(P(L0)/P(L))  (rules.md section 4)
      "fitted"     the line in log-log through the optima of all smaller sizes, at least two
      calibrated   lr0 c(L)/c(L0)
    A rule has no prediction at a size that path_sums or calibrated lacks. Raises ValueError if one of them lacks L0 or
    has a value that is not positive.
    """
    if not isinstance(result, Transfer):
        raise ValueError(f"rules are compared with a result of `transfer`, got {short(result)}")
    tuned = next((i for i, lr in enumerate(result.optimal_lr) if lr is not None), None)
    if tuned is None:
        return []
    base, start = result.values[tuned], result.optimal_lr[tuned]
    assert start is not None
    for name, values in {"path_sums": path_sums, **(calibrated or {})}.items():
        if values is not None and _value(name, values, base) is None:
            raise ValueError(f"{name} has no value at {base:g}, the size that the prediction starts from")
    tables = [predictions(base, start, size, path_sums=path_sums, calibrated=calibrated) for size in result.values]
    rules = {name: [table[name] for table in tables] for name in tables[0]}
    fitted = [_extrapolated(result, i) for i in range(len(result.values))]
    names = [*(n for n in rules if n not in (calibrated or {})), "fitted", *(calibrated or {})]
    return [_rule(name, {**rules, "fitted": fitted}[name], result, tuned) for name in names]


def _times(
    learning_rate: float, name: str, values: Mapping[float, float | None], power: float, depth: float, target: float
) -> float | None:
    """learning_rate (given(target) / given(depth))^power, by logarithms: a PathSum may be too large for a float, and
    `math.log2` takes integers of any size."""
    start, end = (_value(name, values, size) for size in (depth, target))
    if start is None or end is None:
        return None
    return learning_rate * 2 ** (power * (math.log2(end) - math.log2(start)))


def _value(name: str, values: Mapping[float, float | None], size: float) -> float | None:
    if not isinstance(values, Mapping):
        raise ValueError(f"{name} must be {{size: value}}, got {short(values)}")
    value = values.get(size)
    if value is None or value != value:  # NaN; an integer may be too large for math.isnan
        return None
    POSITIVE.check(f"{name} at {size:g}", value)
    return value


def _extrapolated(result: Transfer, i: int) -> float | None:
    """The line in log-log through the optima of the sizes before size `i`, at size `i`; None for fewer than two."""
    x, y = np.log2(result.values), np.log2(np.array(result.optimal_lr[:i], np.float64))  # NaN for None
    tuned = ~np.isnan(y)
    if tuned.sum() < 2:
        return None
    return float(2 ** np.polyval(np.polyfit(x[:i][tuned], y[tuned], 1), x[i]))


def _rule(name: str, predicted: list[float | None], result: Transfer, tuned: int) -> Rule:
    pairs = zip(predicted, result.optimal_lr, strict=True)
    off = [None if rate is None or best is None else math.log2(rate / best) for rate, best in pairs]
    regret = [None if rate is None else regret_at(result, i, rate) for i, rate in enumerate(predicted)]
    return Rule(name, predicted, off, regret, tuned)
