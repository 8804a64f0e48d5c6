"""The plan of a sweep: its trials, and the groups of trials that run together."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from depthmup.files import digest
from depthmup.fit.curve import POINTS
from depthmup.settings import LEARNING_RATE, SettingsError
from depthmup.trials.study import Point, Study, Trial

Program = Any  # of `Point.program`


@dataclasses.dataclass(frozen=True)
class Group:
    """Trials of one program that run together. size: number of trials that the program takes, at least as many.

    study: what they belong to, which says how they are run.
    """

    trials: tuple[Trial, ...]
    size: int
    study: Study

    @property
    def point(self) -> Point:
        """The point of the first trial. Use it for what all trials of the group have in common."""
        return self.trials[0].point

    @property
    def program(self) -> Program:
        return self.point.program

    @property
    def name(self) -> str:
        """A hash of the trials' keys."""
        return digest([trial.key for trial in self.trials])

    def __str__(self) -> str:
        point, names = self.point, dict.fromkeys(trial.point.parameterization for trial in self.trials)
        return f"{point.optimizer} {' '.join(names)} width {point.width} depth {point.depth}"


def learning_rates(study: Study, optimizer: str) -> tuple[float, ...]:
    """The grid of one optimizer: `per_octave` rates for each factor of 2, both ends included."""
    low, high = study.sweep.log2_learning_rates[optimizer]
    return tuple(float(lr) for lr in np.exp2(np.linspace(low, high, grid_points(study, optimizer))))


def grid_points(study: Study, optimizer: str) -> int:
    """The number of `learning_rates`."""
    low, high = study.sweep.log2_learning_rates[optimizer]
    return round((high - low) * study.sweep.per_octave) + 1


def has_grid(study: Study) -> bool:
    """Whether learning rates are those of sweep.log2_learning_rates, a grid that can be refined and extended."""
    return all(axis.key != LEARNING_RATE for axis in study.axes)


def shapes(study: Study) -> list[dict[str, Any]]:
    """{key: value} of the sizes of every point, each once; along an axis rising, as an adaptive search walks it."""
    result: list[dict[str, Any]] = []
    for of_axis in study.along.values():
        result += [of_axis[size] for size in sorted(of_axis) if of_axis[size] not in result]
    return result


def size_keys(study: Study) -> tuple[str, ...]:
    """The config keys of the axes of sizes."""
    return tuple(dict.fromkeys(key for at in shapes(study) for key in at))


def sizes(study: Study) -> Iterator[tuple[str, tuple[float, ...]]]:
    """(name, values) of every axis of sizes to which the sweep gives at least two values."""
    for axis, of_axis in study.along.items():
        if len(of_axis) > 1:
            yield axis, tuple(of_axis)


def followed(study: Study) -> list[str]:
    """The config keys whose optimum is followed over sizes, the learning rate first: each has POINTS values or more."""
    few = [axis for axis in study.axes if axis.key == LEARNING_RATE and len(axis.values) < POINTS]
    result = [] if few else [LEARNING_RATE]
    for axis in study.axes:
        numbers = all(isinstance(value, int | float) for value in axis.values)
        if axis.key != LEARNING_RATE and axis.traced and numbers and len(axis.values) >= POINTS:
            result.append(axis.key)
    return result


def combinations(study: Study) -> list[tuple[Point, tuple[float, ...]]]:
    """(point of a learning-rate curve, its rates) for all curves, small shapes first.

    Curves that share a program are next to each other. Raises SettingsError where `study.point` does.
    """
    if not followed(study):
        raise SettingsError(
            f"sweep.axes: {LEARNING_RATE} needs {POINTS} values or more for an optimum, unless another traced number, "
            "such as parameterization.gamma0, has them"
        )
    if not shapes(study):
        raise SettingsError(
            "there is no size to train: widths and depths are both empty; give the base's depth, or m.tune"
        )
    rates = next((axis.values for axis in study.axes if axis.key == LEARNING_RATE), None)
    static = {axis.key: axis.values for axis in study.axes if not axis.traced}
    traced = {axis.key: axis.values for axis in study.axes if axis.traced and axis.key != LEARNING_RATE}
    result: list[tuple[Point, tuple[float, ...]]] = []
    for shape, optimizer, *others in itertools.product(shapes(study), study.sweep.optimizers, *static.values()):
        grid = rates or learning_rates(study, optimizer)
        at = {**shape, "optimizer.name": optimizer, **dict(zip(static, others, strict=True))}
        for name, *numbers in itertools.product(study.sweep.parameterizations, *traced.values()):
            of_name = {"parameterization.name": name, **dict(zip(traced, numbers, strict=True))}
            result.append((study.point(at | of_name | study.unused(optimizer, name)), grid))
    for key, values in traced.items():
        if not {point.leaves[key] for point, _ in result}.issuperset(values):
            raise SettingsError(f"sweep.axes: {key} is a setting of none of the optimizers and parameterizations swept")
    return sorted(result, key=lambda of_curve: of_curve[0].cost)


def trial_count(study: Study) -> int:
    """The number of `trials`, which are not made for it."""
    more = {axis.key: axis.values for axis in study.axes}
    rates = len(more.pop(LEARNING_RATE, ()))
    per_shape = 0
    for optimizer, name in itertools.product(study.sweep.optimizers, study.sweep.parameterizations):
        unused = study.unused(optimizer, name)
        points = math.prod(len(values) for key, values in more.items() if key not in unused)
        per_shape += points * (rates or grid_points(study, optimizer))
    return per_shape * len(shapes(study)) * study.sweep.seeds


def grid_trials(study: Study) -> list[Trial]:
    """All trials of the full grid, each once: small shapes first, then by curve, learning rate and seed."""
    result: dict[str, Trial] = {}
    for point, rates in combinations(study):
        for trial in trials_of(study, point, rates):
            result.setdefault(trial.key, trial)
    return list(result.values())


def trials_of(study: Study, point: Point, rates: Iterable[float]) -> Iterator[Trial]:
    """The trials of one learning-rate curve: all seeds at each of these rates."""
    for rate in rates:
        for seed in range(study.seed, study.seed + study.sweep.seeds):
            yield Trial(point, rate, seed)


def by_program(mixed: Iterable[Trial]) -> dict[Program, list[Trial]]:
    """{program: its trials, in their order}"""
    result: dict[Program, list[Trial]] = {}
    for trial in mixed:
        result.setdefault(trial.point.program, []).append(trial)
    return result


def by_size(trial: Trial) -> float:
    """What orders trials from small shapes to large ones."""
    return trial.point.cost


def grouped(study: Study, wanted: Iterable[Trial], size_of: Callable[[Program], int]) -> list[Group]:
    """The trials in groups. A group has at most `size_of(program)` trials, of one program, in their order."""
    groups = []
    for program, trials in by_program(wanted).items():
        size = size_of(program)
        groups += [Group(tuple(trials[i : i + size]), size, study) for i in range(0, len(trials), size)]
    return groups


def missing(groups: Iterable[Group], rows: Container[str]) -> list[Group]:
    """The groups with trials that have no row."""
    return [group for group in groups if any(trial.key not in rows for trial in group.trials)]


def part(study: Study, plan: Sequence[Trial], number: int, parts: int) -> list[Trial]:
    """The trials of part `number` of the plan: an equal slice of each program's trials, the same on every machine."""
    result: list[Trial] = []
    for i, group in enumerate(grouped(study, plan, lambda program: len(plan))):
        ends = np.linspace(0, len(group.trials), parts + 1).round().astype(int)
        place = (number + i) % parts  # slices may differ by a trial: the parts take turns at the larger ones
        result += group.trials[ends[place] : ends[place + 1]]
    return result


def score(row: Mapping[str, Any], measure: str) -> float:
    """The score of a row, which the sweep minimizes (sweep.judge_by): a loss, or the error 1 - accuracy.

    The score is infinite if the trial has diverged or if the row has no value.
    """
    value = row[measure]
    if value is None or math.isnan(value) or row["diverged"]:
        return math.inf
    return 1 - value if measure.endswith("accuracy") else value
