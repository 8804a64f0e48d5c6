"""Settings: what a config file may say, as frozen dataclasses. A ConfigDict goes no further than `from_config`."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from typing import Any

from depthmup.data.augment import Augment
from depthmup.fit.optimum import WINDOW
from depthmup.models import MODELS
from depthmup.optim import OPTIMIZERS
from depthmup.parameterization import TABLES, Parameterization, at_least_one, parameterization, unknown


class SettingsError(ValueError):
    """A config that cannot be run; the message names the key and the way out."""


@dataclasses.dataclass(frozen=True)
class ModelSettings:
    """options: the family's other attributes (those of the class MODELS[name])."""

    name: str
    width: int
    depth: int
    options: Mapping[str, Any]

    def __hash__(self) -> int:
        return hash((self.name, self.width, self.depth, *sorted(self.options.items())))


@dataclasses.dataclass(frozen=True)
class ParameterizationSettings:
    name: str
    base_width: int
    base_depth: int
    base_head_dim: int
    alpha: float | None
    gamma0: float
    beta0: float
    lr_depth: float | None
    branch_init: str

    def build(self) -> Parameterization:
        return parameterization(**dataclasses.asdict(self))


@dataclasses.dataclass(frozen=True)
class OptimizerSettings:
    name: str
    learning_rate: float
    momentum: float
    b1: float
    b2: float
    eps: float
    weight_decay: float


@dataclasses.dataclass(frozen=True)
class DataSettings:
    name: str
    data_dir: str | None
    batch_size: int
    seed: int
    image_size: int | None
    augment: Augment
    workers: int
    skip_corrupt: bool


@dataclasses.dataclass(frozen=True)
class SweepSettings:
    parameterizations: tuple[str, ...]
    optimizers: tuple[str, ...]
    depths: tuple[int, ...]
    widths: tuple[int, ...]
    log2_learning_rates: Mapping[str, tuple[float, float]]
    per_octave: int
    seeds: int


@dataclasses.dataclass(frozen=True)
class CheckSettings:
    optimizers: tuple[str, ...]
    log2_learning_rates: Mapping[str, float]
    widths: tuple[int, ...]
    depths: tuple[int, ...]
    width: int
    depth: int
    steps: tuple[int, ...]
    seeds: int
    batch_size: int
    beta0: float
    tolerance: float


@dataclasses.dataclass(frozen=True)
class Settings:
    """One config file; see configs/default.py for what each key means."""

    model: ModelSettings
    parameterization: ParameterizationSettings
    optimizer: OptimizerSettings
    data: DataSettings
    epochs: float
    schedule: str
    seed: int
    log_every: int
    sweep: SweepSettings
    check: CheckSettings

    def __post_init__(self) -> None:
        """Everything that can be known to be wrong before anything is compiled or written."""
        self._check_numbers()
        for name in (self.optimizer.name, *self.sweep.optimizers, *self.check.optimizers):
            if name not in OPTIMIZERS:
                raise _error("optimizer", unknown("optimizer", name, OPTIMIZERS))
        for name in (self.parameterization.name, *self.sweep.parameterizations):
            if name not in TABLES:
                raise _error("parameterization", unknown("parameterization", name, TABLES))
        for where, grids in (("sweep", self.sweep.log2_learning_rates), ("check", self.check.log2_learning_rates)):
            for name in getattr(self, where).optimizers:
                if name not in grids:
                    raise SettingsError(f"{where}.log2_learning_rates has no entry for the optimizer {name!r}: add one")
        for name, (low, high) in self.sweep.log2_learning_rates.items():
            if not (math.isfinite(low) and math.isfinite(high) and low <= high):
                raise SettingsError(
                    f"sweep.log2_learning_rates.{name} = ({low}, {high}) is an empty grid: give (lowest, highest)"
                )
            points = (high - low) * self.sweep.per_octave + 1
            if points != round(points) or points < WINDOW:
                raise SettingsError(
                    f"sweep.log2_learning_rates.{name} = ({low}, {high}) must be a whole number of grid points, "
                    f"{WINDOW} or more, at {self.sweep.per_octave} per octave"
                )
        for name, exponent in self.check.log2_learning_rates.items():
            if not -100 < exponent < 100:
                raise SettingsError(f"check.log2_learning_rates.{name} must be between -100 and 100, got {exponent}")
        try:
            self.parameterization.build()
        except ValueError as error:
            raise _error("parameterization", error) from error

    def _check_numbers(self) -> None:
        counts = {
            "model.width": self.model.width,
            "model.depth": self.model.depth,
            "data.batch_size": self.data.batch_size,
            "log_every": self.log_every,
            "sweep.per_octave": self.sweep.per_octave,
            "sweep.seeds": self.sweep.seeds,
            "check.seeds": self.check.seeds,
            "check.width": self.check.width,
            "check.depth": self.check.depth,
            "check.batch_size": self.check.batch_size,
        }
        lists = {"sweep": ("depths", "widths"), "check": ("depths", "widths", "steps")}
        for room, names in lists.items():
            for name in names:
                counts |= {f"{room}.{name}[{i}]": v for i, v in enumerate(getattr(getattr(self, room), name))}
        for key, value in counts.items():
            try:
                at_least_one(key, value)
            except ValueError as error:
                raise SettingsError(str(error)) from error
        for key, positive in (
            ("optimizer.learning_rate", self.optimizer.learning_rate),
            ("epochs", self.epochs),
            ("check.beta0", self.check.beta0),
        ):
            if not 0 < positive < math.inf:
                raise SettingsError(f"{key} must be positive and finite, got {positive}")
        for key, values in (
            ("sweep.parameterizations", self.sweep.parameterizations),
            ("sweep.optimizers", self.sweep.optimizers),
            ("check.optimizers", self.check.optimizers),
            ("check.steps", self.check.steps),
        ):
            if not values:
                raise SettingsError(f"{key} is empty: the grid has no trial; give at least one value")
        if not self.sweep.depths and not self.sweep.widths:
            raise SettingsError("sweep.depths and sweep.widths are empty: the grid has no trial; give a value")
        for room, names in {**lists, "sweep": ("parameterizations", "optimizers", *lists["sweep"])}.items():
            for name in names:
                values = getattr(getattr(self, room), name)
                if len(set(values)) != len(values):
                    raise SettingsError(f"{room}.{name} = {values} has a value twice: remove one")
        ranges = {
            "seed": (self.seed, 0, 2**31),
            "data.seed": (self.data.seed, 0, 2**31),
            "data.workers": (self.data.workers, 0, 1024),
            "data.image_size": (self.data.image_size or 1, 1, 2**14),
            "optimizer.momentum": (self.optimizer.momentum, 0, 1),
            "optimizer.b1": (self.optimizer.b1, 0, 1),
            "optimizer.b2": (self.optimizer.b2, 0, 1),
            "optimizer.eps": (self.optimizer.eps, 0, math.inf),
            "optimizer.weight_decay": (self.optimizer.weight_decay, 0, math.inf),
        }
        for key, (number, low, high) in ranges.items():
            if not low <= number < high:
                raise SettingsError(f"{key} must be at least {low} and less than {high:g}, got {number}")


def from_config(config: Mapping[str, Any]) -> Settings:
    """ConfigDict -> Settings. Raises SettingsError for an unknown, missing or mistyped key."""
    return _convert(Settings, config, "config")


def _model(value: Any, key: str) -> ModelSettings:
    """The model's settings: name, width, depth, and the attributes of its family with the types of their defaults."""
    name = _convert(str, dict(value).get("name"), f"{key}.name")
    if name not in MODELS:
        raise SettingsError(str(unknown("model.name", name, MODELS)))
    kinds: dict[str, Any] = {"name": str, "width": int, "depth": int, **MODELS[name].option_types()}
    for option in value:
        if option not in kinds:
            owners = [family for family, model in MODELS.items() if option in model.option_types()]
            if owners:
                raise SettingsError(
                    f"{key}.{option} is a setting of {', '.join(owners)}, not of {name}: choose the family by the "
                    f"config, --config=configs/default.py:{owners[0]}"
                )
            raise _error(key, unknown("key", f"{key}.{option}", [f"{key}.{k}" for k in kinds]))
    missing = sorted(kinds.keys() - set(value))
    if missing:
        raise SettingsError(
            f"{key}.{missing[0]} is missing: override configs/default.py:{name} instead of starting anew"
        )
    values = {option: _convert(kind, value[option], f"{key}.{option}") for option, kind in kinds.items()}
    return ModelSettings(values.pop("name"), values.pop("width"), values.pop("depth"), values)


def _convert(kind: Any, value: Any, key: str) -> Any:
    """`value` as `kind`: a dataclass from a mapping, tuples and mappings element by element, scalars checked."""
    if kind is ModelSettings and hasattr(value, "keys"):
        return _model(value, key)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        if not hasattr(value, "keys"):
            raise SettingsError(f"{key} must have keys of its own, got {value!r}")
        fields = typing.get_type_hints(kind)
        for name in value:
            if name not in fields:
                raise _error(key, unknown("key", f"{key}.{name}", [f"{key}.{f}" for f in fields]))
        missing = sorted(fields.keys() - set(value))
        if missing:
            raise SettingsError(f"{key}.{missing[0]} is missing: override configs/default.py instead of starting anew")
        return kind(**{name: _convert(hint, value[name], f"{key}.{name}") for name, hint in fields.items()})
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is types.UnionType:
        return None if value is None else _convert(arguments[0], value, key)
    if origin is tuple:
        if isinstance(value, str) or not hasattr(value, "__iter__"):
            raise SettingsError(f"{key} must be a list of values, got {value!r}")
        kinds = [arguments[0]] * len(value) if arguments[-1] is Ellipsis else list(arguments)
        if len(kinds) != len(value):
            raise SettingsError(f"{key} must have {len(kinds)} values, got {len(value)}: {value!r}")
        return tuple(_convert(k, v, f"{key}[{i}]") for i, (k, v) in enumerate(zip(kinds, value, strict=True)))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        if not hasattr(value, "keys"):
            raise SettingsError(f"{key} must have one entry per optimizer, got {value!r}")
        return {name: _convert(arguments[1], value[name], f"{key}.{name}") for name in value}
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise SettingsError(f"{key} must be {kind.__name__}, got {type(value).__name__} {value!r}")
    return value


def _error(key: str, error: ValueError) -> SettingsError:
    return SettingsError(f"{key}: {error}")
