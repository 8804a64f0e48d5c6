"""Fewer trials for the same optima: from the second size on only the learning rates around the last size's optimum."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from depthmup.fit import capped
from depthmup.fit.optimum import WINDOW
from depthmup.settings import Settings
from depthmup.sweep.plan import Trial, combinations, trials_of
from depthmup.train.assemble import problem_of
from depthmup.train.recipe import chance
from depthmup.train.workdir import Row

WIDER = 4  # octaves that a search may leave the grid by, at either end
SIDE = WINDOW // 2  # points on either side of the best that an optimum is fitted to
TRAINS = 0.05  # share by which the best loss must be below the worst: less is noise about chance, and no direction
Shape = tuple[int, int]  # width, depth
SHAPE = ("model.width", "model.depth")


class Curve:
    """One learning-rate curve on its grid of rates, numbered from the grid's first; numbers beyond it are wider.

    trials: {number: the trials of all seeds}.
    """

    def __init__(self, settings: Settings, rates: tuple[float, ...]) -> None:
        extra = WIDER * settings.sweep.per_octave
        step = rates[1] / rates[0]
        below = [rates[0] / step**i for i in range(extra, 0, -1)]
        above = [rates[-1] * step**i for i in range(1, extra + 1)]
        lattice = enumerate([*below, *rates, *above], -extra)
        self.trials = {number: tuple(trials_of(settings, [rate])) for number, rate in lattice}
        self.grid = range(len(rates))
        self.shape = settings.model.width, settings.model.depth
        classes = problem_of(settings).batches.dataset.classes
        self._cap = chance(settings.loss, classes)

    def losses(self, rows: Mapping[str, Row]) -> dict[int, float]:
        """Mean log loss over the seeds, at the numbers of which all seeds are there."""
        found = {}
        for number, trials in self.trials.items():
            if all(trial.key in rows for trial in trials):
                values = [rows[trial.key]["loss"] for trial in trials]
                cut = capped(np.array([np.nan if value is None else value for value in values]), self._cap)
                found[number] = float(np.log(cut).mean())
        return found

    def wanted(self, rows: Mapping[str, Row], near: Iterable[int]) -> tuple[set[int], int | None]:
        """(numbers that are still needed, the best number if none is): those in `near`, and both neighbours on each
        side of the best. Where nothing trains, the whole grid."""
        losses = self.losses(rows)
        missing = {number for number in near if number in self.trials} - losses.keys()
        if missing:
            return missing, None
        best = min(losses, key=lambda number: losses[number])
        if losses[best] > max(losses.values()) - TRAINS:
            return set(self.grid) - losses.keys(), None
        around = {number for number in range(best - SIDE, best + SIDE + 1) if number in self.trials}
        return around - losses.keys(), best


class Search:
    """Which trials come next, given the rows there are: a pure function of both, so that it can be interrupted."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._families: dict[Any, dict[Shape, Curve]] = {}  # curves that differ in their shape alone
        for curve, rates in combinations(settings):
            family = next(trials_of(curve, rates[:1])).without(*SHAPE)
            self._families.setdefault(family, {})[curve.model.width, curve.model.depth] = Curve(curve, rates)

    def next_trials(self, rows: Mapping[str, Row]) -> list[Trial]:
        """What can be trained now, small shapes first; nothing if all optima are found."""
        result = []
        for curves in self._families.values():
            best: dict[Shape, int | None] = {}  # of the curves that are finished
            for shape, curve in curves.items():
                needs, near = self._near(shape, curves, best)
                if needs:
                    continue  # another shape comes first
                missing, found = curve.wanted(rows, near)
                if missing:
                    result += [trial for number in sorted(missing) for trial in curve.trials[number]]
                else:
                    best[shape] = found
        return sorted(result, key=lambda trial: trial.settings.model.width**2 * trial.settings.model.depth)

    def evaluated(self, rows: Mapping[str, Row]) -> list[Trial]:
        """All trials that the search has used."""
        return [
            trial
            for curves in self._families.values()
            for curve in curves.values()
            for number in curve.losses(rows)
            for trial in curve.trials[number]
        ]

    def _near(
        self, shape: Shape, curves: Mapping[Shape, Curve], best: Mapping[Shape, int | None]
    ) -> tuple[bool, set[int]]:
        """(must another shape come first?, numbers that a curve starts with)."""
        before, smallest = self._before(shape, curves)
        if before is None:
            return False, set(curves[shape].grid)
        if any(other not in best for other in (before, *smallest)):
            return True, set()
        centre = best[before]
        if centre is None:
            return False, set(curves[shape].grid)
        # The smallest size's best rate is what the verdict is about: it is trained at every size.
        carried = {best[other] for other in smallest} - {None}
        return False, {*range(centre - SIDE, centre + SIDE + 1), *carried}

    def _before(self, shape: Shape, curves: Mapping[Shape, Curve]) -> tuple[Shape | None, list[Shape]]:
        """(the next smaller shape, the smallest ones) on the axes that a shape is on."""
        width, depth = self._settings.model.width, self._settings.model.depth
        depths = sorted((width, d) for d in self._settings.sweep.depths) if shape[0] == width else []
        widths = sorted((w, depth) for w in self._settings.sweep.widths) if shape[1] == depth else []
        smaller = [own[own.index(shape) - 1] for own in (depths, widths) if shape in own and own.index(shape)]
        return (smaller[0] if smaller else None), [
            own[0] for own in (depths, widths) if shape in own and own[0] != shape
        ]
