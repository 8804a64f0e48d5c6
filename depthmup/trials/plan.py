"""The plan of a sweep: its trials, and the groups of trials that run together."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from depthmup.files import digest
from depthmup.fit.curve import POINTS
from depthmup.optim import OPTIONS, family_of
from depthmup.parameterization import TABLES
from depthmup.settings import (
    LEARNING_RATE,
    OWN,
    TRACED,
    Settings,
    SettingsError,
    SweepSettings,
    convert,
    defaults,
    flat,
    keys,
    named,
    put,
    value_of,
)
from depthmup.train.build import batches_of
from depthmup.train.recipe import chance
from depthmup.trials.axes import parse

AXES = ("depth", "width")
SCHEMA = 4  # version of the results: raise it when the same settings give other results than before


class Trial(NamedTuple):
    """One training.

    key: hash of SCHEMA and all settings that decide the result. leaves: these settings, {config key: value}.
    """

    key: str
    settings: Settings
    leaves: Mapping[str, Any]

    @property
    def learning_rate(self) -> float:
        return self.settings.optimizer.learning_rate

    @property
    def program(self) -> tuple[Any, ...]:
        """The settings that the compiled program depends on: trials with equal values share one program."""
        return *self.without(*TRACED), self.settings.label_noise > 0

    def without(self, *keys: str) -> tuple[Any, ...]:
        """The values of all settings except these keys."""
        return tuple(_hashable(v) for k, v in self.leaves.items() if k not in keys)

    def at(self, learning_rate: float, seed: int) -> Trial:
        """The same training at another learning rate and seed."""
        leaves = {**self.leaves, LEARNING_RATE: learning_rate, "seed": seed}
        optimizer = dataclasses.replace(self.settings.optimizer, learning_rate=learning_rate)
        settings = dataclasses.replace(self.settings, optimizer=optimizer, seed=seed)
        return Trial(digest({"schema": SCHEMA, **leaves}), settings, leaves)

    def __str__(self) -> str:
        s = self.settings
        return f"{s.optimizer.name} {s.parameterization.name} width {s.model.width} depth {s.model.depth}"


@dataclasses.dataclass(frozen=True)
class Group:
    """Trials of one program that run together. size: number of trials that the program takes, at least as many."""

    trials: tuple[Trial, ...]
    size: int

    @property
    def settings(self) -> Settings:
        """The settings of the first trial. Use them for what all trials of the group have in common."""
        return self.trials[0].settings

    @property
    def program(self) -> tuple[Any, ...]:
        return self.trials[0].program

    @property
    def name(self) -> str:
        """A hash of the trials' keys."""
        return digest([trial.key for trial in self.trials])

    def __str__(self) -> str:
        model, names = self.settings.model, {t.settings.parameterization.name: None for t in self.trials}
        return f"{self.settings.optimizer.name} {' '.join(names)} width {model.width} depth {model.depth}"


def learning_rates(settings: Settings, optimizer: str) -> tuple[float, ...]:
    """The grid of one optimizer: `per_octave` rates for each factor of 2, both ends included."""
    low, high = settings.sweep.log2_learning_rates[optimizer]
    return tuple(float(lr) for lr in np.exp2(np.linspace(low, high, grid_points(settings, optimizer))))


def grid_points(settings: Settings, optimizer: str) -> int:
    """The number of `learning_rates`."""
    low, high = settings.sweep.log2_learning_rates[optimizer]
    return round((high - low) * settings.sweep.per_octave) + 1


def shapes(settings: Settings) -> list[tuple[int, int]]:
    """(width, depth): every depth at model.width and every width at model.depth, each shape once."""
    along_depth = [(settings.model.width, depth) for depth in settings.sweep.depths]
    along_width = [(width, settings.model.depth) for width in settings.sweep.widths]
    return sorted(dict.fromkeys(along_depth + along_width), key=lambda shape: shape[0] ** 2 * shape[1])


def axes(settings: Settings) -> Iterator[tuple[str, tuple[int, ...]]]:
    """(name, values) of depth and of width, if the sweep gives it at least two values."""
    for axis, values in zip(AXES, (settings.sweep.depths, settings.sweep.widths), strict=True):
        if len(set(values)) > 1:
            yield axis, values


def followed(settings: Settings) -> list[str]:
    """The config keys whose optimum is followed over sizes, the learning rate first: each has POINTS values or more."""
    more, result = parse(settings), []
    if len(more.pop(LEARNING_RATE, range(POINTS))) >= POINTS:
        result.append(LEARNING_RATE)
    for key, values in more.items():
        numbers = all(isinstance(value, int | float) for value in values)
        if key in TRACED and numbers and len(values) >= POINTS:
            result.append(key)
    return result


def combinations(settings: Settings) -> list[tuple[Settings, tuple[float, ...]]]:
    """(settings of a learning-rate curve, its rates) for all curves, small shapes first.

    Curves that share a program are next to each other. Raises SettingsError where `axes.parse` does, and for a
    parameterization that is not defined for an optimizer.
    """
    more = parse(settings)
    rates = more.pop(LEARNING_RATE, None)
    if not followed(settings):
        raise SettingsError(
            f"sweep.axes: {LEARNING_RATE} needs {POINTS} values or more for an optimum, unless another traced number, "
            "such as parameterization.gamma0, has them"
        )
    static = {key: values for key, values in more.items() if key not in TRACED}
    traced = {key: values for key, values in more.items() if key in TRACED}
    result = []
    for (width, depth), optimizer, *others in itertools.product(
        shapes(settings), settings.sweep.optimizers, *static.values()
    ):
        grid = rates or learning_rates(settings, optimizer)
        at = {
            "model.width": width,
            "model.depth": depth,
            "optimizer.name": optimizer,
            **dict(zip(static, others, strict=True)),
        }
        for name, *values in itertools.product(settings.sweep.parameterizations, *traced.values()):
            point = {"parameterization.name": name, **dict(zip(traced, values, strict=True))}
            curve = put(settings, at | point | _unused(settings, optimizer, name))
            try:
                curve.parameterization.build().check_family(family_of(optimizer))
            except ValueError as error:
                raise named("sweep", error) from error
            result.append((curve, grid))
    for key, given in traced.items():
        if not {flat(curve)[key] for curve, _ in result}.issuperset(given):
            raise SettingsError(f"sweep.axes: {key} is a setting of none of the optimizers and parameterizations swept")
    return result


def count(settings: Settings) -> int:
    """The number of `trials`, which are not made for it."""
    more = parse(settings)
    rates = len(more.pop(LEARNING_RATE, ()))
    per_shape = 0
    for optimizer, name in itertools.product(settings.sweep.optimizers, settings.sweep.parameterizations):
        unused = _unused(settings, optimizer, name)
        points = math.prod(len(values) for key, values in more.items() if key not in unused)
        per_shape += points * (rates or grid_points(settings, optimizer))
    return per_shape * len(shapes(settings)) * settings.sweep.seeds


def trials(settings: Settings) -> list[Trial]:
    """All trials of the full grid, each once: small shapes first, then by curve, learning rate and seed."""
    result: dict[str, Trial] = {}
    for curve, rates in combinations(settings):
        for trial in trials_of(curve, rates):
            result.setdefault(trial.key, trial)
    return list(result.values())


def trials_of(curve: Settings, rates: Iterable[float]) -> Iterator[Trial]:
    """The trials of one learning-rate curve: all seeds at each of these rates."""
    any_of_them = Trial("", curve, flat(curve))
    for rate in rates:
        for seed in range(curve.seed, curve.seed + curve.sweep.seeds):
            yield any_of_them.at(rate, seed)


def grouped(wanted: Iterable[Trial], size_of: Callable[[tuple[Any, ...]], int]) -> list[Group]:
    """The trials in groups. A group has at most `size_of(program)` trials, of one program, in their order."""
    by_program: dict[tuple[Any, ...], list[Trial]] = {}
    for trial in wanted:
        by_program.setdefault(trial.program, []).append(trial)
    groups = []
    for program, own in by_program.items():
        size = size_of(program)
        groups += [Group(tuple(own[i : i + size]), size) for i in range(0, len(own), size)]
    return groups


def part(plan: Sequence[Trial], number: int, parts: int) -> list[Trial]:
    """The trials of part `number` of the plan: an equal slice of each program's trials, the same on every machine."""
    result: list[Trial] = []
    for i, group in enumerate(grouped(plan, lambda program: len(plan))):
        ends = np.linspace(0, len(group.trials), parts + 1).round().astype(int)
        place = (number + i) % parts  # slices may differ by a trial: the parts take turns at the larger ones
        result += group.trials[ends[place] : ends[place + 1]]
    return result


def identity(settings: Settings) -> dict[str, Any]:
    """The identity of a sweep, which its workdir keeps: the settings that all its trials share, by config key.

    The entry "axes" names the keys that are swept, and "sweep" has the settings of the sweep. Both may change when a
    sweep is extended.
    """
    axes = [*OWN, LEARNING_RATE, *parse(settings)]
    fixed = {key: value for key, value in flat(settings).items() if key not in axes}
    sweep = {**dataclasses.asdict(settings.sweep), "width": settings.model.width, "depth": settings.model.depth}
    if settings.sweep.until == "planned":  # as sweeps have it that are older than these settings
        sweep = {key: value for key, value in sweep.items() if key not in ("until", "max_seeds")}
    return {"schema": SCHEMA, **fixed, "axes": sorted(axes), "sweep": sweep}


def from_identity(saved: Mapping[str, Any]) -> Settings:
    """The settings of a sweep from its `identity`, as settings.json has it; what decides no result has its default.

    Raises SettingsError if it is not that of a sweep, or that of another version.
    """
    if saved.get("schema") != SCHEMA:
        kind = f"of schema {saved['schema']}" if "schema" in saved else "not that of a sweep"
        raise SettingsError(f"it is {kind}, and this is schema {SCHEMA}")
    sweep = {**dataclasses.asdict(SweepSettings()), **saved["sweep"]}
    shape = {"model.width": sweep.pop("width"), "model.depth": sweep.pop("depth")}
    family = saved["model.name"]
    values = {key: convert(k.kind, saved[key], key) for key, k in keys(family).items() if key in saved}
    return put(dataclasses.replace(defaults(family), sweep=convert(SweepSettings, sweep, "sweep")), values | shape)


def _unused(settings: Settings, optimizer: str, name: str) -> dict[str, Any]:
    """{traced key that this optimizer or this parameterization does not use: the value that it keeps}.

    Points of a sweep that differ in unused keys alone are one trial. alpha and lr_depth are used only by
    parameterizations with a depth rule of their own, and branch_init only by am_mup: a sweep of alpha changes
    `depth_mup`, say, but not `mup`.
    """
    options = {option for used in OPTIONS.values() for option in used} - set(OPTIONS[optimizer])
    unused = TRACED & {f"optimizer.{option}" for option in options}
    result = {key: value_of(settings, key) for key in unused}
    if TABLES[name].alpha is None:
        result |= {"parameterization.alpha": None, "parameterization.lr_depth": None}
    if TABLES[name].lr_depth is None:
        result["parameterization.branch_init"] = "*"
    return result


def _hashable(value: Any) -> Any:
    return tuple(map(_hashable, value)) if isinstance(value, list) else value


def score(row: Mapping[str, Any], settings: Settings) -> float:
    """The score of a row, which the sweep minimizes (sweep.judge_by): a loss, or the error 1 - accuracy.

    The score is infinite if the trial has diverged or if the row has no value.
    """
    measure = settings.sweep.judge_by
    value = row[measure]
    if value is None or math.isnan(value) or row["diverged"]:
        return math.inf
    return 1 - value if measure.endswith("accuracy") else value


def cap(settings: Settings, measure: str, classes: int | None = None) -> float:
    """The score, by this measure, of a network that has learned nothing: the error or loss of guessing.

    classes: of the data set; None: it is loaded and asked.
    """
    classes = classes or batches_of(settings).dataset.classes
    return 1 - 1 / classes if measure.endswith("accuracy") else chance(settings.loss, classes)
