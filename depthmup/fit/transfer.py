"""The verdict on transfer: is the value tuned at the smallest size as good at every size as tuning there?"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np

from depthmup.fit.contrast import LEAST, Contrast, Measured, Size, measured
from depthmup.fit.curve import CONFIDENCE, POINTS, SAME, capped, checked, half_width, log_losses
from depthmup.fit.drift import Drift, fitted_drift
from depthmup.fit.optimum import Optimum, of_curve
from depthmup.fit.table import LossCurve, loss_curves

if TYPE_CHECKING:
    import pandas

MARGIN = 1.0  # octaves below the optimum whose cost is the margin of a verdict
MOST_SEEDS = 999  # more are not worth naming

Verdict = Literal["transfers", "does not transfer", "undecided", "nothing learned"]
TRANSFERS, NOT, UNDECIDED, NOTHING = VERDICTS = get_args(Verdict)
Answer = Literal["within", "beyond", "open", "not learned"]
WITHIN, BEYOND, OPEN, UNLEARNED = get_args(Answer)
Kind = Literal["finer", "lower", "higher", "seeds"]


class Cost(NamedTuple):
    """What a value costs at one size: the share by which its loss is above the best loss, such as .05; or, of
    accuracies, the difference. low, high: 95% interval; NaN where nothing tells the error, high infinite where the
    next learning rate of the grid diverges."""

    share: float
    low: float
    high: float

    def __str__(self) -> str:
        if math.isnan(self.low):
            return f"{100 * self.share:.1f}%"
        high = "?" if math.isinf(self.high) else f"{100 * self.high:.1f}"
        return f"{100 * self.share:.1f}% [{100 * self.low:.1f}, {high}]"


class Need(NamedTuple):
    """What would decide an open size.

    kind: "seeds" (more of them at learning rates from low to high, here and at the smallest size), "finer" (rates
        between low, which trains, and high, which does not), "lower" or "higher" (rates beyond the grid's end).
    seeds: how many there would have to be in all, if losses stay what they are; the present number for other kinds.
    """

    size: Any
    kind: Kind
    low: float
    high: float
    seeds: int


class Transfer(NamedTuple):
    """The result of `transfer`. Every list has one entry per size, sizes rising.

    Learning rates are values of the hyperparameter, losses are values of the minimized measure (see `transfer`).
    """

    axis: str
    hyperparameter: str
    values: list[Any]  # the sizes
    verdict: Verdict
    reason: str  # the verdict's evidence in words
    margin: float  # in octaves: see `transfer`
    answers: list[Answer]  # "within" the margin, "beyond" it, "open", or "not learned"; of the smallest size "within"
    # The best value of the smallest size on the smooth curve that verdicts use (local parabolas, which scatter half as
    # much as `optima`); None if that size has none.
    tuned: float | None
    costs: list[Cost | None]  # of the tuned value at each size; None where it diverges or was not trained
    cost: Cost | None  # the largest: an interval for the largest of all costs; None if one is not known
    needs: list[Need]  # what would decide the open sizes
    optimal_lr: list[float | None]  # None for a size without an optimum
    optima: list[Optimum]
    drift: Drift | None  # of the optimum; None if fewer than two sizes have an optimum
    edge_drift: Drift | None  # of the edge, above which training is not possible
    regret: list[float | None]  # `regret_at` with the smallest size's best value; None if that size has none
    # The best seed-mean validation accuracy minus the one at the smallest size's best value, with the interval of the
    # paired seeds. None where `regret` is None, and everywhere if a row of the table lacks "validation_accuracy".
    regret_accuracy: list[Cost | None]
    learning_rates: list[np.ndarray]  # (points,) each
    losses: list[np.ndarray]  # (points, seeds) each; NaN where a seed was not trained
    diverged: list[np.ndarray]  # (points, seeds) each, bool
    cap: float | None

    def __str__(self) -> str:
        return f"{self.axis} {self.values[0]:g} to {self.values[-1]:g}: {self.verdict}: {self.reason}"

    def log_losses(self, i: int) -> np.ndarray:
        """(points, seeds), log losses at the size with index `i`, cut to the cap; NaN where a seed was not trained."""
        trained = np.isfinite(self.losses[i]) | self.diverged[i]
        log = log_losses(np.where(self.diverged[i], np.nan, np.where(trained, self.losses[i], np.inf)), self.cap)
        return np.where(trained, log, np.nan)


def transfer(
    table: Iterable[Mapping[str, Any]] | pandas.DataFrame,
    axis: str = "depth",
    cap: float | None = None,
    *,
    hyperparameter: str = "learning_rate",
    measure: str = "loss",
    margin: float = MARGIN,
    looks: int = 1,
) -> Transfer:
    """The verdict, the optimum and the edge at each size, and the cost of the smallest size's best value at each size.

    Args:
      table: rows, or a DataFrame, with `axis`, `hyperparameter`, "seed", `measure` and (if known) "diverged",
        "validation_accuracy".
      axis: name of the column of sizes, such as "depth" or "width".
      cap: a training that ends at or above it has learned nothing (see `optimum`); in units of the minimized quantity.
      hyperparameter: the column whose optimum is followed; its values are positive. "Learning rate" below means it.
      measure: the column to minimize; if its name ends in "accuracy", the error 1 - accuracy is minimized.
      margin: in octaves (factors of 2).
      looks: at how many times in all a verdict is asked for while seeds are added; errors are corrected for them.

    The question of the verdict: is the learning rate that is best at the smallest size as good at a larger one as the
    best there? What it costs is the difference of log losses on the smooth curves of `optimum`. It is compared with the
    sweep's own unit, what a learning rate `margin` octaves below the size's optimum would cost there, or half a percent
    where that is less:
      "transfers"          the cost is surely below the margin at every size;
      "does not transfer"  it is surely above the margin at some size, or the learning rate diverges there for most
                           seeds, or the size's optimum is surely farther away than the grid reaches;
      "undecided"          otherwise; `needs` says what would decide it;
      "nothing learned"    fewer than two sizes have a training that is surely better than chance (`Curve.learned`).
    A size where nothing learned has no answer, and a table with such a size does not transfer to it.

    "Surely" is 97.5% to one side, for "does not transfer" at all sizes together (Bonferroni). The errors (`contrast`)
    are those of the difference and of both optima, which are not known exactly either.

    Sizes may have different rates, rates different numbers of seeds: an adaptive sweep, or one whose seeds were added
    where they were needed. Raises ValueError for an empty table, fewer than two sizes, fewer than five rates, a column
    that is missing, two rows for one trial, values of `axis` or `hyperparameter` that are not positive numbers,
    accuracies outside 0 to 1, or a NaN that is not one of a diverged training.
    """
    if not margin > 0 or looks < 1:
        raise ValueError(f"margin must be positive and looks at least 1, got {margin} and {looks}")
    rows = table.to_dict("records") if hasattr(table, "to_dict") else table
    of_size = loss_curves(rows, axis, hyperparameter, measure)
    sizes = [_size(size, curve, axis, hyperparameter, cap) for size, curve in of_size.items()]
    judged = _judged(sizes, margin, looks)
    optima = [size.optimum for size in sizes]
    seeds, best = max(len(size.seeds) for size in sizes), optima[0].learning_rate
    result = Transfer(
        axis=axis,
        hyperparameter=hyperparameter,
        values=list(of_size),
        verdict=judged.verdict,
        reason="",
        margin=margin,
        answers=judged.answers,
        tuned=judged.tuned,
        costs=judged.costs,
        cost=judged.cost,
        needs=judged.needs,
        optimal_lr=[o.learning_rate for o in optima],
        optima=optima,
        drift=fitted_drift(list(of_size), optima, seeds),
        edge_drift=fitted_drift(list(of_size), [o.edge for o in optima], seeds),
        regret=[],
        regret_accuracy=[None if best is None else _regret_accuracy(curve, best) for curve in of_size.values()],
        learning_rates=[curve.rates for curve in of_size.values()],
        losses=[curve.losses for curve in of_size.values()],
        diverged=[curve.diverged for curve in of_size.values()],
        cap=cap,
    )
    regret = [None if best is None else regret_at(result, i, best) for i in range(len(sizes))]
    return result._replace(regret=regret, reason=_words(result, judged.margins, len(sizes[0].seeds)))


class _Judged(NamedTuple):
    verdict: Verdict
    answers: list[Answer]
    tuned: float | None
    costs: list[Cost | None]
    cost: Cost | None
    needs: list[Need]
    margins: list[float]  # of each size, as a share of its best loss; NaN where it has none


def _size(size: Any, curve: LossCurve, axis: str, hyperparameter: str, cap: float | None) -> Size:
    present = np.array(curve.trained.any(axis=0))
    losses, trained = curve.losses[:, present], curve.trained[:, present]
    of_size = checked(curve.rates, losses, cap, curve.diverged[:, present] | ~trained, trained)
    if len(of_size.x) < POINTS:
        raise ValueError(
            f"{axis}={size:g} has {len(of_size.x)} values of {hyperparameter}: an optimum needs {POINTS} at least"
        )
    seeds = [seed for seed, there in zip(curve.seeds, present.tolist(), strict=True) if there]
    return Size(size, of_size, of_curve(of_size), of_size.smooth(degree=2) if of_size.best is not None else None, seeds)


def _judged(sizes: Sequence[Size], margin: float, looks: int) -> _Judged:
    learned = [size.curve.learned() for size in sizes]
    nowhere = _Judged(NOTHING, [], None, [None] * len(sizes), None, [], [math.nan] * len(sizes))
    nowhere = nowhere._replace(answers=[OPEN if known else UNLEARNED for known in learned])
    if sum(learned) < 2:
        return nowhere
    base = sizes[0]
    if base.optimum.learning_rate is None:
        return nowhere._replace(verdict=UNDECIDED, needs=[_wider(base)] if learned[0] else [])
    at = base.star
    ends = _ends(base, at, (1 - CONFIDENCE) / 2)
    error = (1 - CONFIDENCE) / 2 / looks
    others = max(1, len(sizes) - 1)
    answers: list[Answer] = [WITHIN if known else UNLEARNED for known in learned]
    margins, needs = [math.nan] * len(sizes), list[Need]()
    tested, costs = dict[int, Contrast](), dict[int, Contrast]()
    for i, size in enumerate(sizes):
        if not learned[i]:
            continue
        known = _known(size, base, at, ends[0], margin, error / others) if i else None
        if known is not None:
            answers[i], need = known
            needs += [need] if need else []
        cost, against, margins[i] = _contrasts(size, base, at, margin)
        if cost is not None:
            costs[i] = cost
        if i and known is None and against is not None:
            tested[i] = against
    for (i, contrast), found in zip(tested.items(), measured(list(tested.values())), strict=True):
        size = contrast.at
        if found.value + found.reach(error) < 0:
            answers[i] = WITHIN
        elif found.value - found.reach(error / others) > 0 and _far(size, base, at, ends, margin):
            answers[i] = BEYOND
        else:
            answers[i] = OPEN
            if size.star - margin < size.curve.x[0] - 1e-9:
                needs.append(_wider(size, "lower"))
            else:
                needs.append(_seeds(size, at, margin, found, error if found.value < 0 else error / others))
    in_order = dict(zip(costs, measured(list(costs.values())), strict=True))
    shares = [_cost(size, at, in_order[i], error) if i in in_order else None for i, size in enumerate(sizes)]
    if BEYOND in answers:
        verdict: Verdict = NOT
    else:
        verdict = TRANSFERS if set(answers) == {WITHIN} else UNDECIDED
    largest = _largest(in_order, shares, error, others)
    return _Judged(verdict, answers, 2**at, shares, largest, needs, margins)


def _ends(base: Size, at: float, error: float) -> tuple[float, float]:
    """An interval of the optimum of the smallest size, log2: of `Optimum`, or of its shift by noise if that is less."""
    low, high = base.optimum.low, base.optimum.high
    shift = base.shift(at)
    (found,) = measured([Contrast(base, shift, base, np.zeros(len(shift)))])
    reach = found.reach(error)
    if math.isnan(low) or not shift.any():
        return (at - reach, at + reach) if math.isnan(low) else (min(at, math.log2(low)), max(at, math.log2(high)))
    return max(min(at, math.log2(low)), at - reach), min(max(at, math.log2(high)), at + reach)


def _known(
    size: Size, base: Size, at: float, low: float, margin: float, error: float
) -> tuple[Answer, Need | None] | None:
    """The answer about a size that no test of differences gives, and what it lacks; None if the test is possible."""
    x, curve = size.curve.x, size.curve
    below = int(np.clip(np.searchsorted(x, at + 1e-9) - 1, 0, len(x) - 1))
    above = below if at <= x[below] + 1e-9 else min(below + 1, len(x) - 1)
    fails = curve.failed & (x > x[curve.best or 0])[:, None]
    step = float(np.diff(x).min())
    if at < x[0] - step / 2 or at > x[-1] + step / 2:
        return OPEN, _wider(size, "lower" if at < x[0] else "higher")
    if fails[below].any() or fails[above].any():
        last = int(np.argmax(fails.any(axis=1))) - 1
        if size.optimum.learning_rate is not None and _surely_far(size, base, float(x[last]), margin, error):
            return BEYOND, None
    if fails[below].any():
        lowest = int(np.clip(np.searchsorted(x, low + 1e-9) - 1, 0, len(x) - 1))
        if 2 * fails[lowest].sum() > (~np.isnan(curve.log[lowest])).sum():
            return BEYOND, None
        return OPEN, _finer(size, int(np.argmax(fails.any(axis=1))))
    if fails[above].any():
        return OPEN, _finer(size, above)
    if size.optimum.learning_rate is None:
        if size.smooth is None or len(size.smooth.x) < 3:
            return OPEN, _wider(size)
        end = x[0] if size.smooth.best == 0 else x[-1]
        sign = 1 if size.smooth.best == 0 else -1
        if sign * (at - end) > margin:
            rows = size.value(at), size.value(float(end))
            if rows[0] is not None and rows[1] is not None:
                contrast = Contrast(size, rows[0] - rows[1], base, size.slope(at) * base.shift(at), LEAST)
                (found,) = measured([contrast])
                if found.value - found.reach(error) > 0:
                    return BEYOND, None
        return OPEN, _wider(size)
    return None


def _contrasts(size: Size, base: Size, at: float, margin: float) -> tuple[Contrast | None, Contrast | None, float]:
    """(what the value at log2 `at` costs, the same minus the margin, the margin as a share) at one size."""
    none = np.zeros(len(base.curve.x))
    if size.optimum.learning_rate is None:
        return None, None, math.nan
    star = size.star
    here, best = size.value(min(max(at, size.curve.x[0]), size.curve.x[-1])), size.value(star)
    if best is None:
        return None, None, math.nan
    below = max(star - margin, size.curve.x[0])
    lower = size.value(below)
    unit = 0.0 if lower is None else float((lower - best) @ size.mean)
    if here is None:
        return None, None, math.expm1(max(unit, LEAST))
    tuned = none if size is base else size.slope(at) * base.shift(at)
    cost = Contrast(size, here - best, base, tuned)
    if size is base:
        cost = cost._replace(weights=none)
    if lower is None or unit < LEAST:
        return cost, cost._replace(less=LEAST), math.expm1(LEAST)
    moved = none if size is base else np.zeros(len(size.curve.x))
    if below > size.curve.x[0] and size.smooth is not None:
        moved = -size.slope(below) * size.shift(star)
    return cost, Contrast(size, here - lower + moved, base, tuned), math.expm1(unit)


def _surely_far(size: Size, base: Size, at: float, margin: float, error: float) -> bool:
    """Whether a learning rate, log2, surely costs more than the margin."""
    _, against, _ = _contrasts(size, base, at, margin)
    if against is None or not _far(size, base, at, (at, at), margin):
        return False
    (found,) = measured([against._replace(tuned=0 * against.tuned)])
    return found.value - found.reach(error) > 0


def _far(size: Size, base: Size, at: float, ends: tuple[float, float], margin: float) -> bool:
    """Whether the value costs more than the margin also where straight lines do not tell its error: at the end of its
    interval that is nearer to the size's optimum, since a cliff may lie between; and by its distance, where the grid is
    too short to show the margin."""
    star, first = size.star, size.curve.x[0]
    if star - margin < first - 1e-9 and abs(at - star) <= margin:
        return False
    nearest_end = max(ends[0], star, first) if at > star else min(ends[1], star)
    _, against, _ = _contrasts(size, base, nearest_end, margin)
    return against is not None and float(against.weights @ size.mean) - against.less > 0


def _cost(size: Size, at: float, found: Measured, error: float) -> Cost:
    x = size.curve.x
    above = int(np.clip(np.searchsorted(x, at - 1e-9), 0, len(x) - 1))
    reach = found.reach(error)
    if math.isinf(reach):
        return Cost(math.expm1(found.value), math.nan, math.nan)
    fails = bool((size.curve.failed[above] & (x[above] > x[size.curve.best or 0])).any())
    return Cost(
        math.expm1(found.value),
        math.expm1(min(0.0, found.value) if found.value < reach else found.value - reach),
        math.inf if fails else math.expm1(found.value + reach),
    )


def _largest(found: Mapping[int, Measured], shares: Sequence[Cost | None], error: float, others: int) -> Cost | None:
    """An interval for the largest cost beyond the smallest size. Its upper end is the largest upper end: it is exceeded
    no more often than that of the size whose cost is the largest. Its lower end is that of all sizes together."""
    costs = [cost for cost in shares[1:] if cost is not None]
    if len(costs) < len(shares) - 1 or not costs:
        return None
    if any(math.isnan(cost.high) for cost in costs):
        return Cost(max(cost.share for cost in costs), math.nan, math.nan)
    lows = [math.expm1(max(0.0, one.value - one.reach(error / others))) for i, one in found.items() if i]
    return Cost(max(cost.share for cost in costs), max(lows), max(cost.high for cost in costs))


def _finer(size: Size, fails: int) -> Need:
    x = size.curve.x
    return Need(size.size, "finer", float(2 ** x[fails - 1]), float(2 ** x[fails]), len(size.seeds))


def _wider(size: Size, kind: Kind | None = None) -> Need:
    """What a size lacks whose grid is too short. kind: by default the end of the grid at which its best rate is."""
    x, smooth = size.curve.x, size.smooth
    if kind is None:
        kind = "lower" if smooth is None or smooth.best == 0 or len(smooth.x) < 3 else "higher"
    low, high = (x[0] - 2, x[0]) if kind == "lower" else (x[-1], x[-1] + 2)
    return Need(size.size, kind, float(2**low), float(2**high), len(size.seeds))


def _seeds(size: Size, at: float, margin: float, found: Measured, error: float) -> Need:
    """How many seeds would decide, at the rates that the difference looks at."""
    star, seeds = size.star, len(size.seeds)
    needed = MOST_SEEDS
    if found.value and math.isfinite(found.reach(error)):
        needed = math.ceil(seeds * (found.reach(error) / abs(found.value)) ** 2)
    low, high = min(at, star - margin), max(at, star)
    return Need(size.size, "seeds", 2**low, 2**high, min(MOST_SEEDS, max(needed, seeds + 1)))


def _words(result: Transfer, margins: Sequence[float], seeds: int) -> str:
    """The verdict's evidence."""
    axis, sizes = result.axis, result.values
    factor, name = f"a factor of {2**result.margin:g}", result.hyperparameter.replace("_", " ")
    unlearned = [f"{s:g}" for s, answer in zip(sizes, result.answers, strict=True) if answer == UNLEARNED]
    chance = f"no {name} does surely better than chance at {axis} {', '.join(unlearned)}" if unlearned else ""
    if result.verdict == NOTHING:
        return chance or f"fewer than two values of {axis} learned"
    rate = result.tuned
    if rate is None:
        return f"{axis} {sizes[0]:g} has no best {name}: {chance or result.optima[0].reason}"
    value = f"{rate:.3g} of {axis} {sizes[0]:g}"
    cost = f"; {value} costs at most {result.cost}" if result.cost else ""
    if result.verdict == TRANSFERS:
        return f"within {factor} of the best{cost} at any {axis}"
    if result.verdict == NOT:
        return _beyond(result, margins, value, factor)
    return "; ".join(filter(None, [_open(result), chance])) + cost


def _beyond(result: Transfer, margins: Sequence[float], value: str, factor: str) -> str:
    axis, parts = result.axis, []
    beyond = [i for i, answer in enumerate(result.answers) if answer == BEYOND]
    fails = [i for i in beyond if result.costs[i] is None and result.optimal_lr[i] is not None]
    outside = [i for i in beyond if result.optimal_lr[i] is None]
    costly = [i for i in beyond if result.costs[i] is not None]
    if fails:
        parts.append(f"{value} diverges at {axis} {', '.join(f'{result.values[i]:g}' for i in fails)}")
    if costly:
        worst = max(costly, key=lambda i: result.costs[i].share)  # type: ignore[union-attr]
        parts.append(
            f"{value} costs {result.costs[worst]} at {axis} {result.values[worst]:g}, where {factor} below the best "
            f"costs {100 * margins[worst]:.1f}%"
        )
    if outside:
        where = ", ".join(f"{result.values[i]:g}" for i in outside)
        parts.append(
            f"the best of {axis} {where} is more than {factor} from {value}, {result.optima[outside[0]].reason}"
        )
    return "; ".join(parts)


def _open(result: Transfer) -> str:
    """What would decide, in words."""
    axis, parts, name = result.axis, [], result.hyperparameter.replace("_", " ")
    for kind in get_args(Kind):
        needs = [need for need in result.needs if need.kind == kind]
        if not needs:
            continue
        where = f"at {axis} {', '.join(f'{need.size:g}' for need in needs)}"
        low, high = min(need.low for need in needs), max(need.high for need in needs)
        if kind == "finer":
            parts.append(f"a finer grid between {name} {low:.3g} and {high:.3g} {where}")
        elif kind == "seeds":
            most = max(need.seeds for need in needs)
            number = "hundreds of" if most >= MOST_SEEDS else f"about {most}"
            parts.append(f"{number} seeds {where} ({name} {low:.3g} to {high:.3g})")
        else:
            parts.append(f"a {name} {kind} than {high if kind == 'lower' else low:.3g} {where}")
    return f"would be decided by {' and '.join(parts)}" if parts else ""


def regret_at(result: Transfer, i: int, learning_rate: float) -> float | None:
    """At the size with index `i`: the loss at the grid point nearest to `learning_rate`, minus the best loss.

    None if a seed diverges at that point, or if the point is more than half a grid step away, which happens outside the
    grid and in gaps of an adaptive sweep's grid.
    """
    rates = result.learning_rates[i]
    chosen = nearest(rates, learning_rate)
    if not _on_grid(rates, learning_rate) or result.diverged[i][chosen].any():
        return None
    losses = capped(np.where(result.diverged[i], np.nan, result.losses[i]), result.cap)
    trained = np.isfinite(result.losses[i]) | result.diverged[i]
    mean = np.nanmean(np.where(trained, losses, np.nan), axis=1)
    return float(mean[chosen] - mean.min())


def _regret_accuracy(curve: LossCurve, learning_rate: float) -> Cost | None:
    """The best accuracy minus the accuracy at `learning_rate`; None as in `regret_at`, or if an accuracy is unknown."""
    if curve.accuracy is None:
        return None
    accuracy = np.where(curve.diverged, np.nan, curve.accuracy)
    known = ~np.isnan(accuracy) | ~curve.trained
    mean = np.array([np.nanmean(row) if ok.all() else np.nan for row, ok in zip(accuracy, known, strict=True)])
    chosen = nearest(curve.rates, learning_rate)
    if not _on_grid(curve.rates, learning_rate) or math.isnan(mean[chosen]):
        return None
    best = int(np.nanargmax(mean))
    pairs = accuracy[best] - accuracy[chosen]
    pairs = pairs[~np.isnan(pairs)]
    value, half = float(mean[best] - mean[chosen]), math.nan
    if len(pairs) > 1:
        half = half_width(len(pairs) - 1) * float(pairs.std(ddof=1)) / math.sqrt(len(pairs))
    return Cost(value, value - half, value + half)


def nearest(rates: np.ndarray, rate: float) -> int:
    """The index of the grid point in rates, (points,), that is nearest to `rate` in octaves."""
    return int(np.argmin(np.abs(np.log2(rates) - math.log2(rate))))


def _on_grid(rates: np.ndarray, rate: float) -> bool:
    """Whether `rate` is at most half of the grid's smallest step away from a grid point. rates: (points,), rising."""
    x = np.log2(rates)
    steps = np.diff(x)
    return bool(np.abs(x - math.log2(rate)).min() <= 0.5 * steps[steps > SAME].min() + 1e-9)
