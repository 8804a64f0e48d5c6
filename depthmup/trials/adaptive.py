"""The adaptive sweep (sweep.adaptive): the same optima with fewer trials.

The smallest size trains its whole grid of learning rates. Each larger size trains only the rates around the optimum of
the size before, and goes on until it has found its own optimum.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from depthmup.fit import Need, log_losses, optimum
from depthmup.fit.curve import POINTS
from depthmup.fit.table import grouped_by
from depthmup.fit.thresholds import TRAINS
from depthmup.trials.plan import by_size, combinations, learning_rates, score, size_keys, trials_of
from depthmup.trials.study import Point, Row, Study, Trial

AROUND = 1.5  # octaves around the best rate that are trained; `optimum` hardly uses what is farther away
PARTS = 4  # of a grid's step, which is halved twice at most until verdicts are decided
WIDER = 4  # octaves (factors of 2) by which a search may leave the grid at either end
Shape = tuple[Any, ...]  # the sizes of a point


class Lattice(NamedTuple):
    """The learning rates that a grid may be refined and extended by: numbered, with PARTS to a step of the grid.

    rates: the grid, which starts at 2^low. It is extended by WIDER octaves at either end.
    """

    rates: tuple[float, ...]
    low: float
    per_octave: int

    @classmethod
    def of(cls, study: Study, optimizer: str) -> Lattice:
        low, _ = study.sweep.log2_learning_rates[optimizer]
        return cls(learning_rates(study, optimizer), low, study.sweep.per_octave)

    def number(self, rate: float) -> int:
        return round((math.log2(rate) - self.low) * PARTS * self.per_octave)

    def rate(self, number: int) -> float:
        place, part = divmod(number, PARTS)
        if not part and 0 <= place < len(self.rates):
            return self.rates[place]
        return float(np.exp2(self.low + number / (PARTS * self.per_octave)))

    def more(self, need: Need) -> list[float]:
        """The rates that a finer or a wider grid has in addition; none where it is as fine or wide as it may be."""
        low, high = self.number(need.low), self.number(need.high)
        if need.kind == "finer":
            return [self.rate((low + high) // 2)] if high - low > 1 else []
        beyond = WIDER * self.per_octave * PARTS
        numbers = range(low, high, PARTS) if need.kind == "lower" else range(high, low, -PARTS)
        return [self.rate(n) for n in numbers if -beyond <= n <= (len(self.rates) - 1) * PARTS + beyond]


class Found(NamedTuple):
    """What the search of one curve has found. Learning rates are given by their number on the curve's lattice.

    best: the rate with the lowest mean loss; None if nothing trains.
    carried: the rate nearest to the fitted optimum; None if there is no optimum.
    asked: all rates that the search needed.
    """

    best: int | None
    carried: int | None
    asked: set[int]


class GridCurve:
    """One learning-rate curve on the grid, which is extended by WIDER octaves at either end.

    Rates are numbered: 0 is the first rate of the grid, and numbers outside `grid` are rates beyond the grid.

    trials: {number of a rate: the trials of all seeds at this rate}.
    """

    def __init__(self, study: Study, point: Point) -> None:
        lattice, per_octave = Lattice.of(study, point.optimizer), study.sweep.per_octave
        self.grid = range(len(lattice.rates))
        numbers = range(-WIDER * per_octave, len(self.grid) + WIDER * per_octave)
        self.trials = {n: tuple(trials_of(study, point, [lattice.rate(PARTS * n)])) for n in numbers}
        self._study, self._measure, self._per_octave = study, study.sweep.judge_by, per_octave

    def window(self, centre: int) -> set[int]:
        """The numbers within AROUND octaves of `centre`, POINTS at least: an optimum is fitted to these rates."""
        size = max(POINTS, 2 * round(AROUND * self._per_octave) + 1)
        first = min(max(centre - size // 2, min(self.trials)), max(self.trials) - size + 1)
        return set(range(first, first + size))

    def search(self, rows: Mapping[str, Row], start: Iterable[int]) -> tuple[set[int], Found | None]:
        """(numbers to train next, the result). The result is None while there are numbers to train.

        The search begins with the numbers in `start` and goes on until the best rate has all its neighbours (`window`).
        If nothing trains, it asks for the whole grid. Rows of numbers that it did not ask for change nothing, so after
        an interruption it asks for the same numbers.
        """
        asked = set(start)
        while True:
            missing = {n for n in asked if any(trial.key not in rows for trial in self.trials[n])}
            if missing:
                return missing, None
            numbers = sorted(asked)
            losses = np.array([[score(rows[t.key], self._measure) for t in self.trials[n]] for n in numbers])
            cap = self._study.chance(self._measure, [rows[trial.key] for n in numbers for trial in self.trials[n]])
            log = log_losses(losses, cap).mean(axis=1)
            best = numbers[int(np.argmin(log))]
            trains = log.min() < math.log(cap) - TRAINS
            more = (self.window(best) if trains else set(self.grid)) - asked
            if not more:
                return set(), Found(best if trains else None, self._nearest(numbers, losses, cap), asked)
            asked |= more

    def _nearest(self, numbers: list[int], losses: np.ndarray, cap: float) -> int | None:
        """The number of the rate nearest to the optimum. losses: (numbers, seeds)."""
        rates = {n: self.trials[n][0].learning_rate for n in numbers}
        best = optimum(np.array(list(rates.values())), losses, cap).learning_rate
        return min(numbers, key=lambda n: abs(math.log(rates[n] / best))) if best else None


class Search:
    """The search over all curves of a sweep: which trials come next, given the rows of the finished trials.

    The answer is a pure function of settings and rows, so a sweep can be interrupted at any time.
    """

    def __init__(self, study: Study) -> None:
        keys = size_keys(study)
        axes = [sorted(of_axis.items()) for of_axis in study.along.values() if of_axis]
        self._axes: list[list[Shape]] = [[tuple(at[key] for key in keys) for _, at in axis] for axis in axes]
        self._families: dict[Any, dict[Shape, GridCurve]] = {}  # a family: curves that differ only in their sizes
        for point, _ in combinations(study):
            shape = tuple(point.leaves[key] for key in keys)
            self._families.setdefault(point.without(*keys), {})[shape] = GridCurve(study, point)

    def next_trials(self, rows: Mapping[str, Row]) -> list[Trial]:
        """The trials that can be trained now, small shapes first. There are none if all optima are found."""
        return sorted(self._walk(rows)[0], key=by_size)

    def evaluated(self, rows: Mapping[str, Row]) -> list[Trial]:
        """All trials that the search has asked for. Call it when the search is finished."""
        return [trial for _, trials in self._walk(rows)[1] for trial in trials]

    def finished(self, rows: Mapping[str, Row]) -> dict[Shape, list[Trial]]:
        """{shape: the trials that it has asked for}, of the shapes where the searches of all curves have ended."""
        ended = grouped_by(self._walk(rows)[1], lambda of_curve: of_curve[0])
        curves = Counter(shape for family in self._families.values() for shape in family)
        return {
            shape: [trial for _, trials in of_shape for trial in trials]
            for shape, of_shape in ended.items()
            if len(of_shape) == curves[shape]
        }

    def _walk(self, rows: Mapping[str, Row]) -> tuple[list[Trial], list[tuple[Shape, list[Trial]]]]:
        """(the trials to train now; the shape of each curve whose search has ended, and the trials of the curve)"""
        to_train, ended = list[Trial](), list[tuple[Shape, list[Trial]]]()
        for curves in self._families.values():
            results: dict[Shape, Found] = {}
            for shape, curve in curves.items():
                start = self._start(shape, curve, results)
                if start is None:
                    continue
                missing, result = curve.search(rows, start)
                to_train += [trial for n in sorted(missing) for trial in curve.trials[n]]
                if result:
                    results[shape] = result
                    ended.append((shape, [trial for n in sorted(result.asked) for trial in curve.trials[n]]))
        return to_train, ended

    def _start(self, shape: Shape, curve: GridCurve, results: Mapping[Shape, Found]) -> set[int] | None:
        """The numbers that a curve starts with; None if it must wait for the result of another shape."""
        before, smallest = self._before(shape)
        if before is None:
            return set(curve.grid)
        if any(other not in results for other in (before, *smallest)):
            return None
        centre = results[before].best
        if centre is None:
            return set(curve.grid)
        # The verdict asks how good the smallest size's best rate is at every size, so every size trains it.
        carried = {results[other].carried for other in smallest} - {None}
        return curve.window(centre) | {number for number in carried if number is not None}

    def _before(self, shape: Shape) -> tuple[Shape | None, list[Shape]]:
        """(the next smaller shape, the smallest shape of each axis) on the axes that have `shape`."""
        axes = [axis for axis in self._axes if shape in axis]
        smaller = [axis[axis.index(shape) - 1] for axis in axes if axis.index(shape)]
        return (smaller[0] if smaller else None), [axis[0] for axis in axes if axis[0] != shape]
