"""Is the value tuned at the smallest size as good at a larger one as tuning there? An answer for each size, and the
trainings that would decide an open one."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from depthmup.fit.contrast import LEAST, NEAR, Contrast, Measured, Size, measured
from depthmup.fit.curve import CONFIDENCE

MOST_SEEDS = 999  # more are not worth naming

Verdict = Literal["transfers", "does not transfer", "undecided", "nothing learned"]
VERDICTS = get_args(Verdict)
TRANSFERS, NOT, UNDECIDED, NOTHING = VERDICTS
Answer = Literal["within", "beyond", "open", "not learned"]
WITHIN, BEYOND, OPEN, UNLEARNED = get_args(Answer)
Kind = Literal["finer", "lower", "higher", "seeds"]


class Cost(NamedTuple):
    """The cost of a value at one size: the share by which its loss is above the best loss, such as .05; for accuracies
    the difference. low, high: 95% interval; NaN where the error is not known, high infinite where the next learning
    rate of the grid diverges."""

    share: float
    low: float
    high: float

    def __str__(self) -> str:
        share, low, high = (f"{100 * end:.1f}".replace("-0.0", "0.0") for end in self)
        interval = "" if math.isnan(self.low) else f" [{low}, {'?' if math.isinf(self.high) else high}]"
        return f"{share}%{interval}"


class Need(NamedTuple):
    """The trainings that would decide an open size.

    kind: "seeds" (more of them at learning rates from low to high, here and at the smallest size), "finer" (rates
        between low, which trains, and high, which does not), "lower" or "higher" (rates beyond the grid's end).
    seeds: the number of seeds that would decide, if the mean losses stay as they are; for other kinds the present one.
    """

    size: Any
    kind: Kind
    low: float
    high: float
    seeds: int


class Judged(NamedTuple):
    """The verdict over some sizes; every list has one entry per size. `Transfer` explains the fields.

    margins: the cost of a value `margin` octaves below the optimum, as a share of the best loss; NaN without an
    optimum.
    """

    verdict: Verdict
    answers: list[Answer]
    tuned: float | None
    costs: list[Cost | None]
    cost: Cost | None
    needs: list[Need]
    margins: list[float]


def judged(sizes: Sequence[Size], margin: float, looks: int) -> Judged:
    """The verdict over sizes, of which the first is the one that was tuned. `transfer` explains margin and looks."""
    learned = [size.curve.learned() for size in sizes]
    answers: list[Answer] = [OPEN if is_learned else UNLEARNED for is_learned in learned]
    none = Judged(NOTHING, answers, None, [None] * len(sizes), None, [], [math.nan] * len(sizes))
    if sum(learned) < 2:
        return none
    if sizes[0].optimum.learning_rate is None:
        return none._replace(verdict=UNDECIDED, needs=[_wider(sizes[0])] if learned[0] else [])
    error = (1 - CONFIDENCE) / 2 / looks
    tuned = Tuned(sizes[0], sizes[0].star, _interval(sizes[0], error), margin, error, sizes[-1], len(sizes) - 1)
    answers[0] = WITHIN
    needs, tested = list[Need](), dict[int, Contrast]()
    for i, size in enumerate(sizes):
        if not i or not learned[i]:
            continue
        answers[i], need = tuned.without_test(size)
        contrast = tuned.against_margin(size) if answers[i] == OPEN and need is None else None
        if contrast is not None:
            tested[i] = contrast
        needs += [need] if need else []
    for (i, contrast), difference in zip(tested.items(), measured(list(tested.values())), strict=True):
        answers[i], need = tuned.answer(contrast.size, difference)
        needs += [need] if need else []
    contrasts = {i: cost for i, size in enumerate(sizes) if learned[i] and (cost := tuned.cost(size)) is not None}
    differences = dict(zip(contrasts, measured(list(contrasts.values())), strict=True))
    costs = [tuned.share(size, differences[i]) if i in differences else None for i, size in enumerate(sizes)]
    verdict: Verdict = NOT if BEYOND in answers else TRANSFERS if set(answers) == {WITHIN} else UNDECIDED
    if max(len(size.seeds) for size in sizes) == 1:  # another seed may have another curve: one does not show it
        verdict = UNDECIDED
        needs = [need for need in needs if need.kind != "seeds"]
        needs += [tuned.more_seeds(size, 2) for size, answer in zip(sizes, answers, strict=True) if answer != UNLEARNED]
    lows = [differences[i].value - differences[i].reach(tuned.error_at(sizes[i])) for i in differences if i]
    largest = _largest(costs, lows)
    return Judged(verdict, answers, 2**tuned.at, costs, largest, needs, [tuned.margin_at(size) for size in sizes])


@dataclasses.dataclass(frozen=True)
class Tuned:
    """The value that was tuned, and the questions that are asked of it at other sizes.

    base: the size where it was tuned. at: log2 of the value. interval: log2 rates, between which the base's optimum
    lies. margin: octaves. error: probability of a wrong answer to one side. largest: the largest size. others: the
    number of sizes beside the base.
    """

    base: Size
    at: float
    interval: tuple[float, float]
    margin: float
    error: float
    largest: Size
    others: int

    def error_at(self, size: Size) -> float:
        """The share of the error that an answer "beyond" may have, which is one of several: half of it belongs to the
        largest size, where a drift shows most, and the rest to all others."""
        if self.others == 1:
            return self.error
        return self.error / 2 if size is self.largest else self.error / 2 / (self.others - 1)

    def cost(self, size: Size) -> Contrast | None:
        """The cost of the value at a size, in log loss; None where it was not trained or the size has no optimum."""
        if size.optimum.learning_rate is None:
            return None
        value, best = size.value(self.at), size.value(size.star)
        if value is None or best is None:
            return None
        if size is self.base:
            return Contrast(size, 0 * best, size, 0 * best)
        return Contrast(size, value - best, self.base, size.slope(self.at) * self.base.shift(self.at))

    def margin_at(self, size: Size) -> float:
        """The cost of a value `margin` octaves below the size's optimum, as a share of the best loss."""
        if size.optimum.learning_rate is None:
            return math.nan
        below, best = size.value(self._below(size)), size.value(size.star)
        return math.expm1(LEAST if below is None or best is None else max(LEAST, float((below - best) @ size.mean)))

    def against_margin(self, size: Size, at: float | None = None) -> Contrast | None:
        """The cost of the value minus the margin, in log loss. at: another log2 value, whose cost counts instead; it
        is no optimum, so its place has no error."""
        cost = (self if at is None else dataclasses.replace(self, at=at)).cost(size)
        if cost is None:
            return None
        if at is not None:
            cost = cost._replace(tuned=0 * cost.tuned)
        if self.margin_at(size) <= math.expm1(LEAST):
            return cost._replace(less=LEAST)
        below, best = size.value(self._below(size)), size.value(size.star)
        assert below is not None
        assert best is not None
        weights = cost.weights + best - below
        if self._below(size) > size.curve.x[0]:  # the place of the margin moves with the optimum
            weights = weights - size.slope(self._below(size)) * size.shift(size.star)
        return cost._replace(weights=weights)

    def without_test(self, size: Size) -> tuple[Answer, Need | None]:
        """The answer where differences on smooth curves give none: at the ends of grids, beside divergence, and without
        an optimum. (OPEN, None) where they do."""
        x, curve, step = size.curve.x, size.curve, float(np.diff(size.curve.x).min())
        if not x[0] - NEAR <= self.at <= x[-1] + NEAR:
            end = float(x[0] if self.at < x[0] else x[-1])  # what costs too much there costs more beyond
            if self._surely_beyond(size, end):
                return BEYOND, None
            return OPEN, _wider(size, "lower" if self.at < x[0] else "higher")
        above = min(int(np.searchsorted(x, self.at - NEAR)), len(x) - 1)
        below = above if x[above] <= self.at + NEAR else above - 1
        fails = curve.failed & (x > x[curve.best or 0])[:, None]
        if fails[above].any() or fails[below].any():
            failing = int(np.argmax(fails.any(axis=1)))  # the first
            if self._surely_beyond(size, float(x[failing - 1])):
                return BEYOND, None
            lowest = int(np.searchsorted(x, self.interval[0] + step / 4)) - 1
            if fails[below].any() and 2 * fails[max(lowest, 0)].sum() > (~np.isnan(curve.log[max(lowest, 0)])).sum():
                return BEYOND, None
            return OPEN, Need(size.size, "finer", float(2 ** x[failing - 1]), float(2 ** x[failing]), len(size.seeds))
        if size.optimum.learning_rate is not None:
            return OPEN, None
        return (BEYOND, None) if self._surely_beyond_the_end(size) else (OPEN, _wider(size))

    def answer(self, size: Size, difference: Measured) -> tuple[Answer, Need | None]:
        """The answer that the difference `against_margin` gives, and the need of an open size."""
        side = self._side_of_optima(size)
        if difference.value + difference.reach(self.error) < 0 and side <= 0:
            return WITHIN, None
        if difference.value - difference.reach(self.error_at(size)) > 0 and side >= 0 and self._far(size):
            return BEYOND, None
        if self._short(size):
            return OPEN, _wider(size, "lower")
        reach = difference.reach(self.error if difference.value < 0 else self.error_at(size))
        seeds, number = len(size.seeds), MOST_SEEDS
        if difference.value and math.isfinite(reach):
            number = max(seeds + 1, math.ceil(seeds * (reach / abs(difference.value)) ** 2))
        return OPEN, self.more_seeds(size, number)

    def more_seeds(self, size: Size, number: int) -> Need:
        """The need for `number` seeds, at the learning rates that the difference looks at."""
        star = self.at if size.optimum.learning_rate is None else size.star
        low, high = min(self.at, star - self.margin), max(self.at, star)
        return Need(size.size, "seeds", 2**low, 2**high, min(MOST_SEEDS, number))

    def share(self, size: Size, difference: Measured) -> Cost:
        """The cost as a share, with its interval, which has no end beside divergence."""
        reach = difference.reach(self.error)
        if math.isinf(reach):
            return Cost(math.expm1(difference.value), math.nan, math.nan)
        above = min(int(np.searchsorted(size.curve.x, self.at - NEAR)), len(size.curve.x) - 1)
        fails = size.curve.failed[above].any() and size.curve.x[above] > size.star
        low = max(min(0.0, difference.value), difference.value - reach)
        return Cost(math.expm1(difference.value), math.expm1(low), math.inf if fails else math.expm1(low + 2 * reach))

    def _below(self, size: Size) -> float:
        """log2 of the rate whose cost is the margin: `margin` octaves below the optimum, or the end of the grid."""
        return float(max(size.star - self.margin, size.curve.x[0]))

    def _short(self, size: Size) -> bool:
        """Whether the grid ends above the rate whose cost is the margin."""
        return bool(size.star - self.margin < size.curve.x[0] - NEAR)

    def _far(self, size: Size) -> bool:
        """Whether the value costs more than the margin also where straight lines do not tell its error: at the end of
        its interval that is nearer to the size's optimum, since a cliff may lie between; and by its distance, where the
        grid is too short to show the margin."""
        star = size.star
        if self._short(size) and abs(self.at - star) <= self.margin:
            return False
        nearer = max(self.interval[0], star) if self.at > star else min(self.interval[1], star)
        contrast = self.against_margin(size, nearer)
        return contrast is not None and float(contrast.weights @ size.mean) - contrast.less > 0

    def _side_of_optima(self, size: Size) -> float:
        """The sign of the cost minus the margin by the optima of both sizes, from local cubics, without an error: the
        parabolas of the test draw optima to the flatter side of a skew bowl. 0 where these curves do not reach."""
        curve, tuned = size.curve.smooth(), self.base.optimum.learning_rate
        assert tuned is not None
        assert size.optimum.learning_rate is not None
        at, best = math.log2(tuned), math.log2(size.optimum.learning_rate)
        if not curve.x[0] <= min(at, best - self.margin) <= at <= curve.x[-1]:
            return 0.0
        cost, unit = (
            float((curve.value(place) - curve.value(best)) @ curve.mean) for place in (at, best - self.margin)
        )
        return float(np.sign(cost - max(unit, LEAST)))

    def _surely_beyond(self, size: Size, at: float) -> bool:
        """Whether a learning rate of the grid, log2, surely costs more than the margin."""
        contrast = self.against_margin(size, at)
        if contrast is None or (self._short(size) and abs(at - size.star) <= self.margin):
            return False
        (difference,) = measured([contrast])
        return difference.value - difference.reach(self.error_at(size)) > 0

    def _surely_beyond_the_end(self, size: Size) -> bool:
        """Whether the best value lies beyond an end of the grid that is farther than the margin, and surely better."""
        smooth = size.smooth
        if smooth is None or len(smooth.x) < 3:
            return False
        end = float(smooth.x[0] if smooth.best == 0 else smooth.x[-1])
        distance = self.at - end if smooth.best == 0 else end - self.at
        value, best = size.value(self.at), size.value(end)
        if distance <= self.margin or value is None or best is None:
            return False
        moved = size.slope(self.at) * self.base.shift(self.at)
        (difference,) = measured([Contrast(size, value - best, self.base, moved, LEAST)])
        return difference.value - difference.reach(self.error_at(size)) > 0


def _interval(base: Size, error: float) -> tuple[float, float]:
    """Where the optimum of the tuned size may be, log2: the interval of `Optimum`, or that of its shift by noise where
    it is narrower."""
    star, low, high = base.star, math.log2(base.optimum.low), math.log2(base.optimum.high)  # NaN stays NaN
    shift = base.shift(star)
    (noise,) = measured([Contrast(base, shift, base, 0 * shift)])
    reach = noise.reach(error) if shift.any() else math.inf  # the end of a curve that holds an optimum tells no shift
    low, high = (star - reach, star + reach) if math.isnan(low) else (min(star, low), max(star, high))
    return max(low, star - reach), min(high, star + reach)


def _largest(costs: Sequence[Cost | None], lows: Sequence[float]) -> Cost | None:
    """An interval for the largest cost beyond the smallest size. Its upper end is the largest upper end: it is exceeded
    no more often than that of the size whose cost is the largest. lows: lower ends, in log loss, that hold together."""
    measured_costs = [cost for cost in costs[1:] if cost is not None]
    if len(measured_costs) < len(costs) - 1:
        return None
    share = max(cost.share for cost in measured_costs)
    if any(math.isnan(cost.high) for cost in measured_costs):
        return Cost(share, math.nan, math.nan)
    return Cost(share, math.expm1(max(0.0, *lows)), max(cost.high for cost in measured_costs))


def _wider(size: Size, kind: Kind | None = None) -> Need:
    """The need of a size whose grid is too short. kind: by default the end of the grid at which its best rate is."""
    x, smooth = size.curve.x, size.smooth
    if kind is None:
        kind = "lower" if smooth is None or smooth.best == 0 or len(smooth.x) < 3 else "higher"
    low, high = (x[0] - 2, x[0]) if kind == "lower" else (x[-1], x[-1] + 2)
    return Need(size.size, kind, float(2**low), float(2**high), len(size.seeds))
