"""The seconds of trainings of many sizes, of which few are measured."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np

from depthmup.backend import out_of_memory
from depthmup.trials.estimate import Estimator, at_once
from depthmup.trials.group import OutOfMemory, Runner
from depthmup.trials.plan import Group
from depthmup.trials.study import Size, Study, Trial


class Timing(NamedTuple):
    """Of the program of a shape: operations and seconds of a step of one trial, seconds to compile."""

    operations: float
    step: float
    compiling: float


def timing_of(group: Group, runner: Runner) -> Timing:
    """Compile and time the program of a group. Raises OutOfMemory."""
    estimator = Estimator()
    try:
        estimator.measure([group], runner)
    except jax.errors.JaxRuntimeError as error:
        if not out_of_memory(error):
            raise
        raise OutOfMemory(f"{group}: out of memory") from error
    step = estimator.seconds(group) / estimator.steps(group)
    return Timing(estimator.work(group), step, estimator.total([group]).compiling)


class Seconds:
    """What trainings take: by the step that was timed at their shape, else by operations, whose seconds are
    interpolated between the shapes that were timed.

    Operations of a step are proportional to the batch size, linear in depth and quadratic in width. So they are counted
    at two widths and two depths, the smallest of `sizes`.

    measured: {shape: its timing}. runner: has the program that was timed last.
    """

    def __init__(self, study: Study, sizes: Sequence[Size]) -> None:
        self.measured, self.runner = dict[str, Timing](), Runner()
        self._study, self._estimator = study, Estimator()
        self._widths, self._depths = (sorted({size[i] for size in sizes})[:2] for i in (0, 1))
        self._base = min(sizes, key=lambda size: size.compute)
        self._coefficients: np.ndarray | None = None

    def training(self, size: Size) -> float:
        """Seconds of one training, without compilation. Something must have been measured."""
        steps = self._estimator.steps(self.group([self._trial(size)]))
        timing = self.measured.get(shape_of(size))
        if timing:
            return steps * timing.step
        timed = sorted(self.measured.values())
        operations = self._operations(size)
        each = [max(t.step / max(t.operations, 1.0), 1e-300) for t in timed]
        at = np.log([max(t.operations, 1.0) for t in timed])
        return steps * operations * float(np.exp(np.interp(np.log(operations), at, np.log(each))))

    def compiling(self, size: Size) -> float:
        """Seconds to compile what trains a size; 0 where that was measured, since it is kept."""
        if shape_of(size) in self.measured:
            return 0.0
        return float(np.mean([timing.compiling for timing in self.measured.values()]))

    def measure(self, trials: Sequence[Trial]) -> None:
        """Compile and time the program of these trials of one shape, unless that is done. Raises OutOfMemory."""
        shape = shape_of(trials[0].point.size)
        if shape not in self.measured:
            self.measured[shape] = timing_of(self.group(trials), self.runner)

    def _operations(self, size: Size) -> float:
        """Of a step."""
        if self._coefficients is None:
            corners = list(itertools.product(self._widths, self._depths))
            counted = [
                self._estimator.work(self.group([self._trial(self._base._replace(width=w, depth=d))]))
                for w, d in corners
            ]
            self._coefficients = np.linalg.solve(np.array([self._terms(w, d) for w, d in corners]), np.array(counted))
            self._least = min(counted)
        operations = float(self._terms(size.width, size.depth) @ self._coefficients)
        return max(operations, self._least, 1.0) * size.batch_size / self._base.batch_size

    def _terms(self, width: int, depth: int) -> np.ndarray:
        of_width = [width, width**2] if len(self._widths) > 1 else [1.0]
        of_depth = [1.0, depth] if len(self._depths) > 1 else [1.0]
        return np.outer(of_width, of_depth).ravel()

    def _trial(self, size: Size) -> Trial:
        sweep = self._study.sweep
        return Trial(self._study.point_at(size, sweep.optimizers[0], sweep.parameterizations[0]), 1.0, 0)

    def group(self, trials: Sequence[Trial]) -> Group:
        """Trials as the engine groups them, those of the first group."""
        count, size = len(trials), 1 if self._study.parallel.axes else self._study.sweep.at_once
        if not size:
            size = -(-count // -(-count // at_once(self._study, trials[0]))) if count > 1 else 1
        return Group(tuple(trials[:size]), size, self._study)


def shape_of(size: Size) -> str:
    return f"width {size.width} depth {size.depth} batch size {size.batch_size}"
