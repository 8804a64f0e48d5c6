"""Is the value tuned at the smallest size as good at a larger one as tuning there? An answer for each size, and the
trainings that would decide an open one."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from depthmup.fit.curve import Curve
from depthmup.fit.optimum import Optimum
from depthmup.fit.posterior import Posterior
from depthmup.fit.thresholds import CONFIDENCE, MARGIN, NEGLIGIBLE

MOST_SEEDS = 999  # more are not worth naming
NEAR = 1e-9  # octaves: rounding

Verdict = Literal["transfers", "does not transfer", "undecided", "nothing learned"]
VERDICTS = get_args(Verdict)
TRANSFERS, NOT, UNDECIDED, NOTHING = VERDICTS
BELOW = f"a value of {2**-MARGIN:.2g} times the best one"  # what the margin allows
MEANINGS: dict[Verdict, str] = {
    TRANSFERS: f"at every size the tuned value surely costs less than {BELOW} would: use it",
    NOT: f"at some size the tuned value surely costs more than {BELOW} would, or it diverges there",
    UNDECIDED: "the trials allow neither answer: more of them would decide",
    NOTHING: "fewer than two sizes have a training that is surely better than chance: train longer, or widen the grid",
}
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


class Risk(NamedTuple):
    """How many trainings failed at the learning rates next to a value, at all sizes. low, high: 95% interval of the
    probability (Clopper and Pearson 1934)."""

    failed: int
    trained: int
    low: float
    high: float


class Judged(NamedTuple):
    """The verdict over some sizes; every list has one entry per size. `Transfer` explains the fields.

    margins: what the margin allows a value to cost, as a share of the best loss; NaN without an optimum.
    """

    verdict: Verdict
    answers: list[Answer]
    tuned: float | None
    costs: list[Cost | None]
    cost: Cost | None
    needs: list[Need]
    margins: list[float]
    risk: Risk | None
    valleys: dict[Any, tuple[float, float]]


class Margin(NamedTuple):
    """What a value may cost: as much as one so many octaves below the best, or a share of the loss."""

    octaves: float | None
    share: float = 0.0

    def __str__(self) -> str:
        if self.octaves is None:
            return f"{100 * self.share:g}%"
        return f"{self.octaves:g} octave{'s' * (self.octaves != 1)}"


@dataclasses.dataclass(frozen=True, eq=False)
class SizeTrials:
    """The trainings of one size. seeds: their names. posterior: None where too few learning rates train."""

    size: Any
    curve: Curve
    optimum: Optimum
    seeds: Sequence[Any]
    posterior: Posterior | None

    @property
    def has_optimum(self) -> bool:
        return self.optimum.learning_rate is not None and self.posterior is not None

    def known(self) -> Posterior:
        """The posterior of a size that has one."""
        assert self.posterior is not None
        return self.posterior


class Difference(NamedTuple):
    """A difference of log losses: its value, and its draws, (draws,)."""

    value: float
    draws: np.ndarray

    def low(self, error: float) -> float:
        """The difference is below this in a share `error` of cases."""
        return float(np.quantile(self.draws, error))

    def high(self, error: float) -> float:
        return float(np.quantile(self.draws, 1 - error))


def judged(sizes: Sequence[SizeTrials], margin: Margin, looks: int) -> Judged:
    """The verdict over sizes, of which the first is the one that was tuned. `transfer` explains margin and looks.

    optima 2^-4, 2^-4.1, 2^-4.2 with narrow intervals, margin 1 octave      # "transfers"
    optima 2^-4, 2^-5.5, 2^-7                                               # "does not transfer"
    the same from one seed                                                  # "undecided", with the need of seeds
    """
    learned = [size.curve.learned() for size in sizes]
    answers: list[Answer] = [OPEN if is_learned else UNLEARNED for is_learned in learned]
    none = Judged(NOTHING, answers, None, [None] * len(sizes), None, [], [math.nan] * len(sizes), None, {})
    if sum(learned) < 2:
        return none
    if not sizes[0].has_optimum:
        return none._replace(verdict=UNDECIDED, needs=[_wider(sizes[0])] if learned[0] else [])
    error = (1 - CONFIDENCE) / 2 / looks
    base = sizes[0].known()
    tuned = Tuned(sizes[0], base.star, base.stars, margin, error, sizes[-1], len(sizes) - 1)
    answers[0] = WITHIN
    needs = list[Need]()
    for i, size in enumerate(sizes):
        if i and learned[i]:
            answers[i], need = tuned.answer(size)
            needs += [need] if need else []
    costs = [tuned.cost(size) if is_learned else None for size, is_learned in zip(sizes, learned, strict=True)]
    verdict: Verdict = NOT if BEYOND in answers else TRANSFERS if set(answers) == {WITHIN} else UNDECIDED
    if max(len(size.seeds) for size in sizes) == 1:  # another seed may have another curve: one does not show it
        verdict = UNDECIDED
        needs = [need for need in needs if need.kind != "seeds"]
        needs += [tuned.more_seeds(size, 2) for size, answer in zip(sizes, answers, strict=True) if answer != UNLEARNED]
    lows = [tuned.surely_costs(size) for size, cost in zip(sizes[1:], costs[1:], strict=True) if cost]
    valleys = {size.size: pair for size in sizes if size.posterior and (pair := size.posterior.valleys)}
    margins = [tuned.margin_at(size) for size in sizes]
    return Judged(
        verdict, answers, 2**tuned.at, costs, _largest(costs, lows), needs, margins, _risk(sizes, tuned.at), valleys
    )


@dataclasses.dataclass(frozen=True, eq=False)
class Tuned:
    """The value that was tuned, and the questions that are asked of it at other sizes.

    base: the size where it was tuned. at: log2 of the value. drawn: (draws,), where the base's optimum may be. margin:
    what the value may cost. error: probability of a wrong answer to one side. largest: the largest size. others: the
    number of sizes beside the base.
    """

    base: SizeTrials
    at: float
    drawn: np.ndarray
    margin: Margin
    error: float
    largest: SizeTrials
    others: int

    def error_at(self, size: SizeTrials) -> float:
        """The share of the error that an answer "beyond" may have, which is one of several: half of it belongs to the
        largest size, where a drift shows most, and the rest to all others."""
        if self.others == 1:
            return self.error
        return self.error / 2 if size is self.largest else self.error / 2 / (self.others - 1)

    def loss(self, size: SizeTrials, at: float | None = None) -> Difference:
        """The loss of the value above the best at a size; at: of another one, which is no optimum and has no error."""
        curve = size.known()
        value = max(0.0, curve.value(self.at if at is None else at) - curve.value(curve.star))
        return Difference(value, curve.values(self.drawn if at is None else at) - curve.least)

    def allowed(self, size: SizeTrials) -> float:
        """What the margin allows at a size, in log loss: a number, as it is printed, without an error."""
        if self.margin.octaves is None:
            return math.log1p(self.margin.share)
        curve = size.known()
        return max(NEGLIGIBLE, curve.value(curve.star - self.margin.octaves) - curve.value(curve.star))

    def excess(self, size: SizeTrials, at: float | None = None) -> Difference:
        """The cost of the value beyond the margin, in log loss."""
        loss, allowed = self.loss(size, at), self.allowed(size)
        return Difference(loss.value - allowed, loss.draws - allowed)

    def margin_at(self, size: SizeTrials) -> float:
        """`allowed` as a share of the loss; NaN without an optimum."""
        return math.expm1(self.allowed(size)) if size.has_optimum else math.nan

    def answer(self, size: SizeTrials) -> tuple[Answer, Need | None]:
        """The answer of a size, and what would decide an open one.

        First the cases in which the loss of the value was not measured: it lies outside the grid, where training
        diverges, or where no curve is known. Then the interval of its cost beyond the margin decides.
        """
        x, curve = size.curve.x, size.curve
        # Outside the grid: beyond if the end of the grid costs too much already and the loss rises towards the value.
        if not x[0] - NEAR <= self.at <= x[-1] + NEAR:
            above = self.at > x[0]
            end = float(x[-1] if above else x[0])
            if self._surely_beyond(size, end) and self._rises(size, end):
                return BEYOND, None
            return OPEN, _wider(size, "higher" if above else "lower")
        if curve.edge < len(x) and self.at > x[curve.edge - 1] + NEAR:  # above the last rate at which all seeds train
            return self._at_edge(size)
        if not size.has_optimum or not size.known().covers(self.at):
            return (BEYOND, None) if self._surely_beyond_the_end(size) else (OPEN, _wider(size))
        excess, posterior = self.excess(size), size.known()
        if not posterior.freedom:  # no scatter, no interval
            return OPEN, self.more_seeds(size, 2)
        if excess.high(self.error) < 0:
            return WITHIN, None
        # The margin is not measured where the grid ends within it: a value that near may still be within.
        short = self._short(size)
        if excess.low(self.error_at(size)) > 0 and not (short and abs(self.at - posterior.star) <= self._octaves):
            return BEYOND, None
        if short:
            return OPEN, _wider(size, "lower")
        # Open: the interval falls as one over the square root of the seeds until it leaves 0 out.
        is_within = excess.value < 0
        middle = float(np.median(excess.draws))
        reach = excess.high(self.error) - middle if is_within else middle - excess.low(self.error_at(size))
        seeds, number = len(size.seeds), MOST_SEEDS
        if middle:
            number = max(seeds + 1, math.ceil(seeds * min(1e3, (reach / abs(middle)) ** 2)))
        return OPEN, self.more_seeds(size, number)

    def more_seeds(self, size: SizeTrials, number: int) -> Need:
        """The need for `number` seeds, at the learning rates that the difference looks at."""
        star = size.known().star if size.has_optimum else self.at
        low, high = min(self.at, star - self._octaves), max(self.at, star)
        return Need(size.size, "seeds", 2**low, 2**high, min(MOST_SEEDS, number))

    def cost(self, size: SizeTrials) -> Cost | None:
        """The cost as a share, with its interval, which has no end beside divergence; None where it diverges or was not
        trained, or the size has no optimum."""
        if not size.has_optimum or not size.curve.x[0] - NEAR <= self.at:
            return None
        posterior, x, edge = size.known(), size.curve.x, size.curve.edge
        in_gap = not posterior.covers(self.at) and edge < len(x) and self.at < x[edge] - NEAR
        if not posterior.covers(self.at) and not (in_gap and posterior.star < self.at):
            return None
        loss = self.loss(size)
        if not posterior.freedom:
            return Cost(math.expm1(loss.value), math.nan, math.nan)
        if size is self.base:
            return Cost(0.0, 0.0, 0.0)
        low, high = min(loss.value, self.surely_costs(size)), max(loss.value, loss.high(self.error))
        return Cost(math.expm1(loss.value), math.expm1(low), math.inf if in_gap else math.expm1(high))

    def surely_costs(self, size: SizeTrials) -> float:
        """The lower end of the cost, in log loss: 0 unless the optima surely differ."""
        off = np.quantile(self.drawn - size.known().stars, [self.error, 1 - self.error])
        return 0.0 if off[0] <= 0 <= off[1] else max(0.0, self.loss(size).low(self.error))

    @property
    def _octaves(self) -> float:
        return 1.0 if self.margin.octaves is None else self.margin.octaves

    def _short(self, size: SizeTrials) -> bool:
        """Whether the grid ends above the rate whose cost is the margin."""
        return self.margin.octaves is not None and size.known().star - self._octaves < size.curve.x[0] - NEAR

    def _at_edge(self, size: SizeTrials) -> tuple[Answer, Need | None]:
        """The answer where the value lies above the last learning rate below the edge."""
        x, curve = size.curve.x, size.curve
        last = float(x[curve.edge - 1])
        if self._surely_beyond(size, last):
            return BEYOND, None
        lowest = min(self.at, float(np.quantile(self.drawn, self.error)))
        failing = np.flatnonzero((x <= lowest + NEAR) & (np.arange(len(x)) >= curve.edge) & (curve.share > 0.5))
        if len(failing):
            return BEYOND, None
        return OPEN, Need(size.size, "finer", 2**last, float(2 ** x[curve.edge]), len(size.seeds))

    def _surely_beyond(self, size: SizeTrials, at: float) -> bool:
        """Whether a learning rate of the grid, log2, surely costs more than the margin."""
        if not size.has_optimum or not size.known().covers(at) or not size.known().freedom:
            return False
        if self._short(size) and abs(at - size.known().star) <= self._octaves:
            return False
        return self.excess(size, at).low(self.error_at(size)) > 0

    def _rises(self, size: SizeTrials, end: float) -> bool:
        """Whether the loss surely rises towards an end of the grid, and goes on to the value: that is at most half as
        far beyond as the loss was seen to rise. A second valley may lie farther off, and where one was seen nothing
        goes on."""
        curve = size.known()
        inner = end - math.copysign(0.5, self.at - end)
        rise = curve.values(end) - curve.values(inner)
        near = abs(self.at - end) <= abs(end - curve.star) / 2
        return near and curve.valleys is None and float(np.quantile(rise, self.error)) > 0

    def _surely_beyond_the_end(self, size: SizeTrials) -> bool:
        """Whether the best value lies beyond an end of the grid that is farther than the margin, and surely better."""
        curve = size.posterior
        if curve is None or not curve.freedom or not curve.covers(self.at):
            return False
        is_lowest = size.curve.best == 0
        end = float(curve.places[0] if is_lowest else curve.places[curve.bowl - 1])
        if (self.at - end if is_lowest else end - self.at) <= self._octaves:
            return False
        least = NEGLIGIBLE if self.margin.octaves is not None else math.log1p(self.margin.share)
        return float(np.quantile(curve.values(self.drawn) - curve.values(end), self.error_at(size))) > least


def _risk(sizes: Sequence[SizeTrials], at: float) -> Risk | None:
    """The trainings that failed at the grid points next to a value, log2, on either side; None without any."""
    from scipy import special  # here, so that `import depthmup` stays light

    failed = trained = 0
    for size in sizes:
        x = size.curve.x
        if not x[0] - NEAR <= at <= x[-1] + NEAR:
            continue
        above = min(int(np.searchsorted(x, at - NEAR)), len(x) - 1)
        for i in {above, above if x[above] <= at + NEAR else above - 1}:
            failed += int(size.curve.failed[i].sum())
            trained += int((~np.isnan(size.curve.log[i])).sum())
    if not failed:
        return None
    low = float(special.betaincinv(failed, trained - failed + 1, (1 - CONFIDENCE) / 2))
    high = 1.0 if failed == trained else float(special.betaincinv(failed + 1, trained - failed, (1 + CONFIDENCE) / 2))
    return Risk(failed, trained, low, high)


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


def _wider(size: SizeTrials, kind: Kind | None = None) -> Need:
    """The need of a size whose grid is too short. kind: by default the end of the grid at which its best rate is."""
    x, best = size.curve.x, size.curve.best
    if kind is None:
        kind = "higher" if best and size.posterior is not None else "lower"
    low, high = (x[0] - 2, x[0]) if kind == "lower" else (x[-1], x[-1] + 2)
    return Need(size.size, kind, float(2**low), float(2**high), len(size.seeds))
