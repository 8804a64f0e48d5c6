"""Which trials a sweep consists of, and in which groups they run."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from depthmup.optim import family_of
from depthmup.parameterization import TABLES
from depthmup.settings import ModelSettings, OptimizerSettings, ParameterizationSettings, Settings, SettingsError

AXES = ("depth", "width")


class Trial(NamedTuple):
    """What tells two trials of a sweep apart."""

    optimizer: str
    parameterization: str
    width: int
    depth: int
    learning_rate: float
    seed: int

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Trial:
        """The trial that a row is the result of."""
        return cls(**{field: row[field] for field in cls._fields})


@dataclasses.dataclass(frozen=True)
class Group:
    """All learning rates and seeds of one optimizer, parameterization and shape; groups of a shape share a program."""

    model: ModelSettings
    parameterization: ParameterizationSettings
    optimizer: OptimizerSettings
    trials: tuple[Trial, ...]

    @property
    def cost(self) -> float:
        """Multiplications per step and example, about; for the time left."""
        return len(self.trials) * self.model.width * (self.model.width * self.model.depth + 100)

    @property
    def program(self) -> tuple[object, ...]:
        """What decides the compiled program: groups that agree in it share one."""
        return self.model, self.optimizer, len(self.trials)

    def __str__(self) -> str:
        return f"{self.optimizer.name} {self.parameterization.name} width {self.model.width} depth {self.model.depth}"


def learning_rates(settings: Settings, optimizer: str) -> tuple[float, ...]:
    """The grid of one optimizer: powers of 2, `per_octave` a factor of 2, both ends included."""
    low, high = settings.sweep.log2_learning_rates[optimizer]
    points = round((high - low) * settings.sweep.per_octave) + 1
    return tuple(float(lr) for lr in np.exp2(np.linspace(low, high, points)))


def shapes(settings: Settings) -> list[tuple[int, int]]:
    """(width, depth): every depth at model.width and every width at model.depth, each shape once."""
    along_depth = [(settings.model.width, depth) for depth in settings.sweep.depths]
    along_width = [(width, settings.model.depth) for width in settings.sweep.widths]
    return sorted(dict.fromkeys(along_depth + along_width), key=lambda shape: shape[0] ** 2 * shape[1])


def axes(settings: Settings) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The axes of which there are at least two values."""
    for axis, values in zip(AXES, (settings.sweep.depths, settings.sweep.widths), strict=True):
        if len(set(values)) > 1:
            yield axis, values


def plan(settings: Settings) -> list[Group]:
    """All groups, small shapes first. Raises SettingsError for a parameterization not defined for an optimizer."""
    groups = []
    for width, depth in shapes(settings):
        model = dataclasses.replace(settings.model, width=width, depth=depth)
        for name in settings.sweep.optimizers:
            optimizer = dataclasses.replace(settings.optimizer, name=name)
            grid = learning_rates(settings, name)
            for p in settings.sweep.parameterizations:
                chosen = _named(settings.parameterization, p)
                try:
                    chosen.build().check_family(family_of(name))
                except ValueError as error:
                    raise SettingsError(f"sweep: {error}") from error
                seeds = range(settings.seed, settings.seed + settings.sweep.seeds)
                trials = tuple(Trial(name, p, width, depth, lr, seed) for lr in grid for seed in seeds)
                groups.append(Group(model, chosen, optimizer, trials))
    return groups


def _named(settings: ParameterizationSettings, name: str) -> ParameterizationSettings:
    """These settings for another name: alpha, lr_depth and branch_init go only to those that have one of their own, so
    that, say, `mup` stays what it is beside a `depth_mup` of another alpha."""
    table = TABLES[name]
    if table.alpha is None:
        settings = dataclasses.replace(settings, alpha=None)
    if table.lr_depth is None:
        settings = dataclasses.replace(settings, lr_depth=None, branch_init="*")
    return dataclasses.replace(settings, name=name)
