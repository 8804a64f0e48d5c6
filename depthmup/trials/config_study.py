"""The sweep of a config: our models, trained as main.py train does."""

from __future__ import annotations

import dataclasses
import functools
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax

from depthmup.data.feed import Feed
from depthmup.fit import chain_path_sum
from depthmup.losses import LOSSES
from depthmup.rules.optim import OPTIONS, family_of
from depthmup.rules.parameterization import TABLES
from depthmup.settings import (
    LEARNING_RATE,
    OWN,
    TRACED,
    Quantity,
    Settings,
    SettingsError,
    SweepSettings,
    column,
    converted,
    defaults,
    flat,
    from_config,
    keys,
    put,
    value_of,
)
from depthmup.train.build import batches_of, check_split, examples, hyper_of, identity_of_data, steps_of, task_of
from depthmup.train.loop import Measurement
from depthmup.train.quantities import measurement, update_profile
from depthmup.train.step import Hyper
from depthmup.train.task import Task
from depthmup.training_settings import Recipe
from depthmup.trials import axes
from depthmup.trials.study import SCHEMA, Axis, Point, Size, Study, of_sizes


@dataclasses.dataclass(frozen=True, eq=False)
class ConfigPoint(Point):
    """A point of the sweep of a config; settings: with the base's learning rate and seed."""

    settings: Settings

    def __reduce__(self) -> tuple[Any, ...]:
        return ConfigPoint, (self.settings,)

    @functools.cached_property
    def leaves(self) -> Mapping[str, Any]:  # type: ignore[override]
        numbers = self.settings.optimizer.numbers
        return flat(self.settings) | {f"optimizer.{name}": value for name, value in numbers.items()}

    @functools.cached_property
    def program(self) -> tuple[Any, ...]:
        return *self.without(*TRACED), self.settings.label_noise > 0

    @property
    def task(self) -> Task:
        return task_of(self.settings)

    @property
    def feed(self) -> Feed:
        return batches_of(self.settings)

    @property
    def steps(self) -> int:
        return steps_of(self.settings)

    @property
    def batch_size(self) -> int:
        return self.settings.data.batch_size

    def at(self, learning_rate: float, seed: int) -> Settings:
        """The settings of one trial."""
        optimizer = dataclasses.replace(self.settings.optimizer, learning_rate=learning_rate)
        return dataclasses.replace(self.settings, optimizer=optimizer, seed=seed)

    def hyper(self, learning_rate: float, seed: int) -> Hyper:
        return hyper_of(self.at(learning_rate, seed))

    def check(self) -> None:
        task_of(self.settings)
        parallel = self.settings.parallel
        check_split(self.settings, parallel.share, f"parallel.{'mesh' if parallel.axes else 'devices_per_trial'}")

    @property
    def path_sum(self) -> int:
        return chain_path_sum(self.task.model.ways)

    def profile(self) -> tuple[Callable[[Hyper, Any], jax.Array], Any]:
        """On the first data.batch_size training examples, which are not augmented, without clipping and label noise."""
        settings = self.settings
        task = task_of(settings, Recipe(loss=settings.loss, label_smoothing=settings.label_smoothing))
        sizes = update_profile(task)
        batch = examples(batches_of(settings), settings.data.batch_size)
        return jax.jit(lambda hyper, batch: sizes(task.init(hyper), batch, hyper)), batch

    def measurement(self, quantities: Sequence[Quantity]) -> Measurement:
        batch = functools.partial(examples, batches_of(self.settings))
        return measurement(self.task, quantities, batch, self.settings.data.batch_size)


class ConfigStudy(Study):
    """The sweep of a config. classes: of its data, where rows are judged without it; the data are not loaded then."""

    def __init__(
        self,
        settings: Settings,
        classes: int | None = None,
        target: Mapping[str, int] | None = None,
        searched: str = LEARNING_RATE,
    ) -> None:
        self.settings, self.classes, self.trainable = settings, classes, classes is None
        self.target, self.searched = target, searched
        self.sweep, self.parallel, self.checkpoint = settings.sweep, settings.parallel, settings.checkpoint
        self.width, self.depth, self.seed = settings.model.width, settings.model.depth, settings.seed

    @classmethod
    def of(cls, config: Settings | Mapping[str, Any] | Study) -> Study:
        """The sweep of settings or of a config. A study is returned as it is."""
        if isinstance(config, Study):
            return config
        return cls(config if isinstance(config, Settings) else from_config(config))

    @functools.cached_property
    def axes(self) -> tuple[Axis, ...]:  # type: ignore[override]
        return axes.parse_axes(self.settings)

    @property
    def identity(self) -> dict[str, Any]:
        swept = [*OWN, LEARNING_RATE, *(axis.key for axis in self.axes)]
        fixed = {key: value for key, value in flat(self.settings).items() if key not in swept}
        sweep = {**dataclasses.asdict(self.sweep), "width": self.width, "depth": self.depth}
        return {"schema": SCHEMA, **fixed, "axes": sorted(swept), "sweep": sweep}

    @property
    def data(self) -> dict[str, str]:
        return identity_of_data(self.settings)

    @property
    def beyond_keys(self) -> dict[str, Any]:
        return self.data

    def point(self, values: Mapping[str, Any]) -> ConfigPoint:
        settings = put(self.settings, values)
        try:
            settings.parameterization.build().check_family(family_of(settings.optimizer.name))
        except ValueError as error:
            raise SettingsError(f"sweep: {error}") from error
        return ConfigPoint(settings)

    def unused(self, optimizer: str, parameterization: str) -> dict[str, Any]:
        """Points of a sweep that differ in unused keys alone are one trial. alpha and lr_depth are used only by
        parameterizations with a depth rule of their own, and branch_init only by am_mup: a sweep of alpha changes
        `depth_mup`, say, but not `mup`."""
        options = {option for used in OPTIONS.values() for option in used} - set(OPTIONS[optimizer])
        unused = TRACED & {f"optimizer.{option}" for option in options}
        result = {key: value_of(self.settings, key) for key in unused}
        if TABLES[parameterization].alpha is None:
            result |= {"parameterization.alpha": None, "parameterization.lr_depth": None}
        if TABLES[parameterization].lr_depth is None:
            result["parameterization.branch_init"] = "*"
        return result

    def chance(self, measure: str, rows: Sequence[Mapping[str, Any]]) -> float:
        """The error or loss of guessing. The loss and the data set may be axes, and are then those of the rows."""
        swept = [key for key in ("loss", "data.name") if any(axis.key == key for axis in self.axes)]
        settings = put(self.settings, {key: rows[0][column(key)] for key in swept})
        classes = self.classes or batches_of(settings).dataset.classes
        return 1 - 1 / classes if measure.endswith("accuracy") else LOSSES[settings.loss].chance(classes)

    @property
    def of_run(self) -> tuple[dict[str, Any], dict[str, dict[float, dict[str, Any]]]]:
        if not (self.sweep.batch_sizes or self.sweep.epochs):
            return {}, {}
        return {"data.batch_size": self.settings.data.batch_size, "epochs": self.settings.epochs}, {
            "batch_size": {size: {"data.batch_size": size} for size in self.sweep.batch_sizes},
            "epochs": {epochs: {"epochs": epochs} for epochs in self.sweep.epochs},
        }

    @functools.cached_property
    def base(self) -> Size:
        return Size(self.width, self.depth, self.settings.data.batch_size, steps_of(self.settings))

    def point_at(self, size: Size, optimizer: str, parameterization: str) -> ConfigPoint:
        names = {"optimizer.name": optimizer, "parameterization.name": parameterization}
        sizes = {"model.width": size.width, "model.depth": size.depth, "data.batch_size": size.batch_size}
        return self.point(names | sizes | {"epochs": self._epochs(size)} | self.unused(optimizer, parameterization))

    def with_value(self, point: Point, key: str, value: Any) -> ConfigPoint:
        assert isinstance(point, ConfigPoint)
        return ConfigPoint(put(point.settings, {key: value}))

    def _epochs(self, size: Size) -> float:
        """The number with fewest digits that has the steps of a size; at the base's batch size and steps its own."""
        if size[2:] == self.base[2:]:
            return self.settings.epochs
        per_epoch = batches_of(put(self.settings, {"data.batch_size": size.batch_size})).steps_per_epoch
        rounded = (float(f"{size.steps / per_epoch:.{digits}g}") for digits in range(1, 18))
        return next(epochs for epochs in rounded if max(1, round(epochs * per_epoch)) == size.steps)

    def at_sizes(self, sizes: Sequence[Size]) -> ConfigStudy:
        """The axis of batch sizes has as many epochs everywhere, not as many steps: so they are on none."""
        widths, depths, _, steps = (self.along_axis(sizes, place) for place in range(len(Size._fields)))
        lengths = tuple(self._epochs(self.base._replace(steps=count)) for count in steps)
        sweep = dataclasses.replace(
            self.sweep, widths=widths, depths=depths, epochs=lengths if self.sweep.epochs else ()
        )
        return ConfigStudy(dataclasses.replace(self.settings, sweep=sweep), self.classes, self.target, self.searched)

    def sized(self, sizes: Mapping[str, Sequence[Any]]) -> ConfigStudy:
        settings = dataclasses.replace(self.settings, sweep=of_sizes(self.sweep, sizes))
        return ConfigStudy(settings, self.classes, self.target, self.searched)

    def in_words(self, changes: Mapping[str, Any], flags: bool) -> str:
        if flags:
            return shlex.join(f"--config.sweep.{key}={value}" for key, value in changes.items())
        return "; ".join(f"config.sweep.{key} = {value!r}" for key, value in changes.items())

    def command(self, swept: Collection[str]) -> list[str]:
        """The flags that make the shipped default config of a family that of a trial, apart from what is swept."""
        family = self.settings.model.name
        shown = [key for key, k in keys(family).items() if k.decides or key.startswith("data.")]
        flags = [self.flag(key, value_of(self.settings, key)) for key in shown if key not in (*swept, "model.name")]
        return [f"--config=default:{family}", *(flag for parts in flags for flag in parts)]

    def flag(self, key: str, value: Any) -> list[str]:
        """[] for the default of a key; but a learning rate always has its flag, since optimizers differ in it."""
        is_default = value == value_of(defaults(self.settings.model.name), key) and key != LEARNING_RATE
        return [] if is_default else [f"--config.{key}={value}"]


def config_study_from(saved: Mapping[str, Any], data_dir: str | None = None) -> ConfigStudy:
    """The sweep of a config from its `identity`, as settings.json has it. Settings that cannot change a result have
    their defaults.

    Raises SettingsError if it is not that of a sweep, or that of another version.
    """
    if saved.get("schema") != SCHEMA:
        kind = f"of schema {saved['schema']}" if "schema" in saved else "not that of a sweep"
        raise SettingsError(f"it is {kind}, and this is schema {SCHEMA}")
    sweep = dict(saved["sweep"])
    shape = {"model.width": sweep.pop("width"), "model.depth": sweep.pop("depth")}
    family = saved["model.name"]
    values = {key: converted(k.kind, saved[key], key) for key, k in keys(family).items() if key in saved}
    base = dataclasses.replace(defaults(family), sweep=converted(SweepSettings, sweep, "sweep"))
    return ConfigStudy(put(base, values | shape | {"data.data_dir": data_dir}))
