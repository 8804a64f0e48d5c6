"""Settings: what a config file may say, as frozen dataclasses. A ConfigDict goes no further than `from_config`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from depthmup.convert import Interval, SettingsError, convert, interval, named
from depthmup.data.augment import Augment
from depthmup.fit.optimum import WINDOW
from depthmup.models import MODELS
from depthmup.optim import OPTIMIZERS
from depthmup.parameterization import TABLES, Parameterization, at_least_one, parameterization, unknown

JUDGED = ("loss", "last_loss", "mean_loss", "validation_loss", "accuracy", "validation_accuracy")  # sweep.judge_by
QUANTITIES = ("updates", "sharpness", "kernels")  # sweep.measure; train.quantities says what they are
# Keys of a config that change no result of a training.
DECIDES_NOTHING = ("check", "log_every", "log_updates", "evaluate_every", "checkpoint", "parallel")


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
class CheckpointSettings:
    every: Interval
    keep: int
    best: int


@dataclasses.dataclass(frozen=True)
class ParallelSettings:
    devices: int | None
    wrapper: str


@dataclasses.dataclass(frozen=True)
class SweepSettings:
    parameterizations: tuple[str, ...]
    optimizers: tuple[str, ...]
    depths: tuple[int, ...]
    widths: tuple[int, ...]
    log2_learning_rates: Mapping[str, tuple[float, float]]
    per_octave: int
    seeds: int
    axes: str
    judge_by: str
    calibrate: bool
    measure: tuple[str, ...]
    measure_points: int
    adaptive: bool
    at_once: int | None
    max_trials: int
    cache: bool
    cpus: float
    gpus: float


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
    warmup_epochs: float
    loss: str
    label_smoothing: float
    label_noise: float
    clip: float | None
    accumulate: int
    ema: float | None
    seed: int
    log_every: int
    log_updates: bool
    evaluate_every: Interval
    checkpoint: CheckpointSettings
    parallel: ParallelSettings
    sweep: SweepSettings
    check: CheckSettings

    def __post_init__(self) -> None:
        """Everything that can be known to be wrong before anything is compiled or written."""
        self._check_numbers()
        for name in (self.optimizer.name, *self.sweep.optimizers, *self.check.optimizers):
            if name not in OPTIMIZERS:
                raise named("optimizer", unknown("optimizer", name, OPTIMIZERS))
        for name in (self.parameterization.name, *self.sweep.parameterizations):
            if name not in TABLES:
                raise named("parameterization", unknown("parameterization", name, TABLES))
        for where, grids in (("sweep", self.sweep.log2_learning_rates), ("check", self.check.log2_learning_rates)):
            for name in getattr(self, where).optimizers:
                if name not in grids:
                    raise SettingsError(f"{where}.log2_learning_rates has no entry for the optimizer {name!r}: add one")
        if self.sweep.judge_by not in JUDGED:
            raise SettingsError(str(unknown("sweep.judge_by", self.sweep.judge_by, JUDGED)))
        for name in self.sweep.measure:
            if name not in QUANTITIES:
                raise SettingsError(str(unknown("sweep.measure", name, QUANTITIES)))
        if self.evaluate_every.unit == "minute":
            raise SettingsError("evaluate_every must be in steps or epochs, or never, so that runs can be repeated")
        if self.label_smoothing and self.loss != "cross_entropy":
            raise SettingsError(f"label_smoothing is for the loss cross_entropy, not for {self.loss}: set it to 0")
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
            raise named("parameterization", error) from error

    def deciding(self) -> dict[str, Any]:
        """The settings that decide what a training results in, as a tree of JSON."""
        result = {k: v for k, v in dataclasses.asdict(self).items() if k not in DECIDES_NOTHING}
        del result["data"]["data_dir"], result["data"]["workers"]
        return result

    def _check_numbers(self) -> None:
        counts = {
            "model.width": self.model.width,
            "model.depth": self.model.depth,
            "data.batch_size": self.data.batch_size,
            "log_every": self.log_every,
            "accumulate": self.accumulate,
            "checkpoint.keep": self.checkpoint.keep,
            "parallel.devices": 1 if self.parallel.devices is None else self.parallel.devices,
            "sweep.per_octave": self.sweep.per_octave,
            "sweep.seeds": self.sweep.seeds,
            "sweep.at_once": 1 if self.sweep.at_once is None else self.sweep.at_once,
            "sweep.max_trials": self.sweep.max_trials,
            "sweep.measure_points": self.sweep.measure_points,
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
            ("clip", 1.0 if self.clip is None else self.clip),
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
            "warmup_epochs": (self.warmup_epochs, 0, self.epochs),
            "label_smoothing": (self.label_smoothing, 0, 1),
            "label_noise": (self.label_noise, 0, 1),
            "ema": (self.ema or 0, 0, 1),
            "checkpoint.best": (self.checkpoint.best, 0, 2**31),
            "optimizer.momentum": (self.optimizer.momentum, 0, 1),
            "optimizer.b1": (self.optimizer.b1, 0, 1),
            "optimizer.b2": (self.optimizer.b2, 0, 1),
            "optimizer.eps": (self.optimizer.eps, 0, math.inf),
            "sweep.cpus": (self.sweep.cpus, 0, 2**14),
            "sweep.gpus": (self.sweep.gpus, 0, 2**14),
            "optimizer.weight_decay": (self.optimizer.weight_decay, 0, math.inf),
        }
        for key, (number, low, high) in ranges.items():
            if not low <= number < high:
                raise SettingsError(f"{key} must be at least {low} and less than {high:g}, got {number}")


def from_config(config: Mapping[str, Any]) -> Settings:
    """ConfigDict -> Settings. Raises SettingsError for an unknown, missing or mistyped key."""
    return convert(Settings, config, "config", {ModelSettings: _model, Interval: interval})


def _model(value: Any, key: str) -> ModelSettings:
    """The model's settings: name, width, depth, and the attributes of its family with the types of their defaults."""
    if not hasattr(value, "keys"):
        raise SettingsError(f"{key} must have keys of its own, got {value!r}")
    name = convert(str, dict(value).get("name"), f"{key}.name", {})
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
            raise named(key, unknown("key", f"{key}.{option}", [f"{key}.{k}" for k in kinds]))
    missing = sorted(kinds.keys() - set(value))
    if missing:
        raise SettingsError(
            f"{key}.{missing[0]} is missing: override configs/default.py:{name} instead of starting anew"
        )
    values = {option: convert(kind, value[option], f"{key}.{option}", {}) for option, kind in kinds.items()}
    return ModelSettings(values.pop("name"), values.pop("width"), values.pop("depth"), values)
