"""The sweep of a model of one's own, as a `Study`."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeVar

import jax
import numpy as np
import optax

from depthmup.data.user_feed import UserFeed, digest_of
from depthmup.names import short
from depthmup.reading.audit import InitAudit
from depthmup.reading.frameworks import FrameworkModel, as_returned
from depthmup.rules.batch_rules import Run
from depthmup.rules.optim import OPTIONS
from depthmup.rules.parameterization import Parameterization
from depthmup.rules.specs import PyTree
from depthmup.settings import (
    LEARNING_RATE,
    CheckpointSettings,
    ParallelSettings,
    Quantity,
    SettingsError,
    SweepSettings,
    column,
)
from depthmup.train.loop import Measurement
from depthmup.train.model_task import Loss, ModelTask, task_programs, trial_hyper
from depthmup.train.quantities import measurement
from depthmup.train.step import Hyper
from depthmup.training_settings import Recipe
from depthmup.trials.identity import HASHES, Hashes, Programs, of_factors, of_loss, of_optimizer, programs
from depthmup.trials.plan import combinations
from depthmup.trials.study import SCHEMA, Axis, Point, Row, Size, Study, of_sizes

WIDTH, DEPTH, OPTIMIZER, PARAMETERIZATION = "model.width", "model.depth", "optimizer.name", "parameterization.name"
SIZES = (WIDTH, DEPTH, "batch_size", "steps")
NAMED = (*SIZES, OPTIMIZER, PARAMETERIZATION, LEARNING_RATE, "seed")  # in `ModelPoint.where` by other words
Fixed = Literal["examples", "steps"]
T = TypeVar("T")
MakeOptimizer = Callable[..., optax.GradientTransformation]  # (setup, **hyperparameters) -> of learning rate 1


class SetupLike(Protocol):
    """What a study asks of a `Setup`."""

    @property
    def parameterization(self) -> Parameterization: ...
    @property
    def specs(self) -> PyTree: ...
    @property
    def width(self) -> int: ...
    @property
    def depth(self) -> int: ...
    @property
    def model(self) -> FrameworkModel: ...
    @property
    def correction(self) -> InitAudit | None: ...
    @property
    def run(self) -> Run | None: ...

    def at(self, width: int, depth: int, batch: int | None = None, steps: int | None = None) -> SetupLike: ...
    def under(self, name: Any) -> SetupLike: ...


@dataclasses.dataclass(frozen=True, eq=False)
class Training:
    """How all trials of a sweep are trained.

    setups: {name of a parameterization: the model under it}. optimizers: {name: None for one of `dm.optimizer`, or what
    makes the transformation}. criterion: (outputs, targets) -> scalar. own_outputs: whether it takes the model's own
    outputs, not its logits. feeds: {batch size: its batches}, the base first. steps, warmup: at the base.
    fixed: {hyperparameter: value}, those that are not axes.
    """

    setups: Mapping[str, SetupLike]
    optimizers: Mapping[str, MakeOptimizer | None]
    criterion: Loss
    own_outputs: bool
    feeds: Mapping[int, UserFeed]
    steps: int
    warmup: int
    recipe: Recipe
    fixed: Mapping[str, Any]
    _setups: dict[Any, SetupLike] = dataclasses.field(default_factory=dict, init=False, repr=False)
    _of_programs: dict[Any, Any] = dataclasses.field(default_factory=dict, init=False, repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return Training, tuple(getattr(self, field.name) for field in dataclasses.fields(self) if field.init)

    @property
    def feed(self) -> UserFeed:
        """The batches of the base's size."""
        return next(iter(self.feeds.values()))

    def setup(self, parameterization: str, width: int, depth: int, batch: int, steps: int) -> SetupLike:
        setup = self.setups[parameterization]
        run = (batch, steps) if setup.run else (None, None)
        key = parameterization, width, depth, *run
        if key not in self._setups:
            self._setups[key] = setup.at(width, depth, *run)
        return self._setups[key]

    def once(self, key: Any, make: Callable[[], T]) -> T:
        """One object for all points of a program, which share its compiled functions and its hashes."""
        if key not in self._of_programs:
            self._of_programs[key] = make()
        return self._of_programs[key]


@dataclasses.dataclass(frozen=True, eq=False)
class ModelPoint(Point):
    """A point of the sweep of a model of one's own. training: None where rows alone are judged."""

    leaves: Mapping[str, Any]
    training: Training | None

    def __reduce__(self) -> tuple[Any, ...]:
        return ModelPoint, (self.leaves, None)  # `ModelStudy.received` has the training

    @property
    def steps(self) -> int:
        return int(self.leaves["steps"])

    @property
    def batch_size(self) -> int:
        return int(self.leaves.get("batch_size", self._training.feed.batch_size))

    @property
    def cost(self) -> float:
        return super().cost * self.steps * int(self.leaves.get("batch_size", 1))

    @property
    def feed(self) -> UserFeed:
        return self._training.feeds[self.batch_size]

    @functools.cached_property
    def program(self) -> Any:
        """Under another parameterization a named optimizer has other numbers, and a function makes another one."""
        hyper = self.hyper(1.0, 0)
        leaves, structure = jax.tree.flatten(hyper.arrays())
        correction = self._setup.correction
        return (
            self.width,
            self.depth,
            self.batch_size,
            self.optimizer,
            None if self._named else self.without(LEARNING_RATE, "seed"),
            tuple(self._compiled),
            structure,
            tuple(np.shape(leaf) for leaf in leaves),
            tuple(sorted(correction.factors.items())) if correction else (),
        )

    @property
    def task(self) -> ModelTask:
        return self._training.once(("task", self.program), self._make)

    def hyper(self, learning_rate: float, seed: int) -> Hyper:
        setup, training = self._setup, self._training
        numbers = {k: v for k, v in self._hyperparameters.items() if _is_number(v)}
        if setup.run and self._named:  # a function of the setup applies the rule itself
            numbers = setup.run.scaled(self.optimizer, {"learning_rate": learning_rate, **numbers})
            learning_rate = numbers.pop("learning_rate")
        return trial_hyper(
            setup.parameterization,
            setup.specs,
            self.optimizer if self._named else None,
            learning_rate,
            seed=seed,
            steps=self.steps,
            warmup=round(training.warmup * self.steps / training.steps),
            head_dim=getattr(setup.model.made, "head_dim", None) if setup.model.factors is not None else None,
            numbers=numbers,
            clips=training.recipe.clip is not None,
        )

    def measurement(self, quantities: Sequence[Quantity]) -> Measurement:
        return measurement(self.task, quantities, self.feed.first_examples, self.batch_size)

    def check(self) -> None:
        self.programs()

    def programs(self) -> Programs:
        """The hashes of the programs here."""
        task, hyper, feed = self.task, self.hyper(1.0, 0).arrays(), self.feed
        return self._training.once(
            ("programs", self.program),
            lambda: programs(task, task_programs(task, hyper, feed.first), hyper, feed.held_out),
        )

    @property
    def where(self) -> str:
        """What the programs here depend on, in words."""
        return " ".join([str(self), f"batch size {self.batch_size} steps {self.steps}", *self._compiled])

    @property
    def _compiled(self) -> list[str]:
        """The swept hyperparameters that programs have as constants, with their values: those of a function, and those
        of a named optimizer that are no numbers."""
        swept = {column(key): value for key, value in self.leaves.items() if key not in NAMED}
        return [f"{name} {value}" for name, value in swept.items() if not (self._named and _is_number(value))]

    @property
    def _training(self) -> Training:
        if self.training is None:
            raise SettingsError("these are rows alone: train them with `sweep` of the model")
        return self.training

    @property
    def _setup(self) -> SetupLike:
        return self._training.setup(self.parameterization, self.width, self.depth, self.batch_size, self.steps)

    @property
    def _named(self) -> bool:
        return self._training.optimizers[self.optimizer] is None

    @property
    def _hyperparameters(self) -> dict[str, Any]:
        prefix = "optimizer."
        swept = {k.removeprefix(prefix): v for k, v in self.leaves.items() if k.startswith(prefix)}
        names = [name for name, value in swept.items() if name not in ("name", "learning_rate") and value is not None]
        return {**self._training.fixed, **{name: swept[name] for name in names}}

    def _make(self) -> ModelTask:
        training, setup, values = self._training, self._setup, self._hyperparameters
        make = training.optimizers[self.optimizer]
        tx = self.optimizer if make is None else make(setup, **values)
        if not (isinstance(tx, str) or (hasattr(tx, "init") and hasattr(tx, "update"))):
            raise SettingsError(f"optimizer {self.optimizer!r} must make an Optax transformation, it makes {short(tx)}")
        model = dataclasses.replace(setup.model, output=as_returned) if training.own_outputs else setup.model
        return ModelTask(
            model,
            setup.specs,
            setup.correction,
            training.criterion,
            tx,
            self.feed.raw_shapes,
            training.recipe,
            {name: value for name, value in values.items() if not _is_number(value)} if make is None else {},
        )


@dataclasses.dataclass(frozen=True, eq=False)
class ModelStudy(Study):
    """The sweep of a model of one's own.

    about: what else decides its results, for its workdir. durations: numbers of steps at the base batch size.
    fixed: what stays as at the base where the batch size differs. runs: sizes that differ from the base in everything
    at once, along the axis "compute": that of the base is 1. lattice: further sizes, for a law over all sizes alone:
    they are on no axis, and have no verdicts.
    """

    sweep: SweepSettings
    parallel: ParallelSettings
    checkpoint: CheckpointSettings
    width: int
    depth: int
    seed: int
    axes: Sequence[Axis]
    about: Mapping[str, Any]
    chance_loss: float | None = None
    training: Training | None = None
    durations: Sequence[int] = ()
    fixed: Fixed = "examples"
    runs: Sequence[Size] = ()
    lattice: Sequence[Size] = ()
    target: Mapping[str, int] | None = None
    searched: str = LEARNING_RATE

    trainable = False  # no rule of calibration is known of a model of one's own

    def __post_init__(self) -> None:
        if self.runs and len(self.along["compute"]) <= len(self.runs):
            raise SettingsError(
                f"sizes = {tuple(map(tuple, self.runs))}: two of them, or one and the base, take equal compute"
            )

    @property
    def identity(self) -> dict[str, Any]:
        swept = [OPTIMIZER, PARAMETERIZATION, WIDTH, DEPTH, "seed", LEARNING_RATE, *(axis.key for axis in self.axes)]
        sweep = {**dataclasses.asdict(self.sweep), "width": self.width, "depth": self.depth}
        sweep |= {"steps": list(self.durations), "fixed": self.fixed, "sizes": [list(size) for size in self.runs]}
        sweep |= {"lattice": [list(size) for size in self.lattice]}
        axes = {axis.key: list(axis.values) for axis in self.axes}
        return {"schema": SCHEMA, **self.about, "axes": sorted(set(swept)), "sweep": {**sweep, "axes": axes}}

    @property
    def beyond_keys(self) -> dict[str, Any]:
        return {**self.about, HASHES: self._hashes()}

    def _hashes(self) -> dict[str, Hashes]:
        """{where: hashes} of batches, and of programs and factors at every point, since code may look at sizes. The
        base is always one of them, so that all sweeps of one base have something to compare."""
        names = itertools.product(self.sweep.optimizers, self.sweep.parameterizations)
        bases = [self.base_point(*of) for of in names]
        every = [*bases, *(point for point, _ in combinations(self) if isinstance(point, ModelPoint))]
        off_axes = itertools.product(self.lattice, self.sweep.optimizers, self.sweep.parameterizations)
        every += [self.point_at(*of) for of in off_axes]
        points = {point.where: point for point in every}.values()
        first = bases[0]
        hyper, feed = first.hyper(1.0, 0).arrays(), first.feed
        result = {"": of_loss(first.task, hyper, feed.first)}
        if feed.held_out:
            result[""]["the held-out data"] = digest_of(feed.held_out)
        steps: dict[int, set[int]] = {}
        for point in points:
            steps.setdefault(point.batch_size, set()).add(point.steps)
        training = first._training
        for size, lengths in steps.items():
            hashes = functools.partial(training.feeds[size].hashes, lengths)
            result[f"batch size {size}"] = training.once(("batches", size, *sorted(lengths)), hashes)
        for point in points:
            result[f"{point.parameterization} width {point.width} depth {point.depth}"] = point.programs().init
        for point in bases:
            result[point.where] = of_optimizer(point.task, point.hyper(1.0, 0).arrays())
        for point in points:
            factors = of_factors(point.hyper(1.0, 0).arrays())
            result.setdefault(point.where, {}).update(point.programs().step | factors)
        return result

    def received(self, point: Point) -> ModelPoint:
        return ModelPoint(point.leaves, self.training)

    def base_point(self, optimizer: str, parameterization: str) -> ModelPoint:
        """A point of the base, with the first value of every further axis."""
        return self._point({WIDTH: self.width, DEPTH: self.depth}, optimizer, parameterization)

    def point_at(self, size: Size, optimizer: str, parameterization: str) -> ModelPoint:
        """It has a batch size and steps of its own only in a study where one of them is swept."""
        keys = SIZES if self.of_run[0] else (WIDTH, DEPTH)
        return self._point(dict(zip(keys, size, strict=False)), optimizer, parameterization)

    def with_value(self, point: Point, key: str, value: Any) -> ModelPoint:
        return self.point({**point.leaves, key: value})

    def point_of(self, row: Row, optimizer: str, parameterization: str) -> ModelPoint | None:
        """Rows of studies where neither batch size nor steps were swept have the base's."""
        batch = row.get("batch_size")
        if batch is not None and batch == batch:
            size = Size(*(int(row[name]) for name in Size._fields))
            return dataclasses.replace(self, durations=(self.base.steps,)).point_at(size, optimizer, parameterization)
        if row["steps"] != self.base.steps:
            return None
        size = self.base._replace(width=int(row["width"]), depth=int(row["depth"]))
        return dataclasses.replace(self, durations=()).point_at(size, optimizer, parameterization)

    def at_sizes(self, sizes: Sequence[Size]) -> ModelStudy:
        widths, depths, batches, steps = (self.along_axis(sizes, place) for place in range(len(Size._fields)))
        sweep = dataclasses.replace(
            self.sweep, widths=widths, depths=depths, batch_sizes=batches if len(batches) > 1 else ()
        )
        off = tuple(size for size in sizes if sum(a != b for a, b in zip(size, self.base, strict=True)) > 1)
        return dataclasses.replace(self, sweep=sweep, durations=steps if self.durations else (), lattice=off)

    def _point(self, at: Mapping[str, int], optimizer: str, parameterization: str) -> ModelPoint:
        first = {axis.key: axis.values[0] for axis in self.axes if axis.key != LEARNING_RATE}
        names = {OPTIMIZER: optimizer, PARAMETERIZATION: parameterization}
        unused = self.unused(optimizer, parameterization)
        return self.point({**at, **names, **first, **unused})

    def point(self, values: Mapping[str, Any]) -> ModelPoint:
        leaves = {"steps": self.about["steps"], **values}
        return ModelPoint(leaves, self.training)

    @property
    def of_run(self) -> tuple[dict[str, Any], dict[str, dict[float, dict[str, Any]]]]:
        if not (self.sweep.batch_sizes or self.durations or self.runs):
            return {}, {}
        batch, steps = self.about["batch_size"], self.about["steps"]
        by_compute = {self._compute(size): size for size in (self.base, *self.runs)} if self.runs else {}
        by_batch = {b: steps if self.fixed == "steps" else round(steps * batch / b) for b in self.sweep.batch_sizes}
        return {"batch_size": batch, "steps": steps}, {
            "batch_size": {b: {"batch_size": b, "steps": s} for b, s in by_batch.items()},
            "steps": {s: {"steps": s} for s in self.durations},
            "compute": {compute: dict(zip(SIZES, size, strict=True)) for compute, size in by_compute.items()},
        }

    @property
    def base(self) -> Size:
        return Size(self.width, self.depth, self.about["batch_size"], self.about["steps"])

    def _compute(self, size: Size) -> float:
        """The compute of a run, in units of the base's."""
        return size.compute / self.base.compute

    def unused(self, optimizer: str, parameterization: str) -> dict[str, Any]:
        if self.training and self.training.optimizers[optimizer] is not None:
            return {}
        options = (*OPTIONS.get(optimizer, ()), "weight_decay", "learning_rate")
        swept = [axis.key for axis in self.axes if axis.key.startswith("optimizer.")]
        return {key: None for key in swept if key.removeprefix("optimizer.") not in options}

    def chance(self, measure: str, rows: Sequence[Mapping[str, Any]]) -> float:
        """The given loss of chance; else the median over the trials of the first batch's loss: who ends above it has
        learned nothing."""
        if self.chance_loss is not None:
            return self.chance_loss
        losses = [row["first_loss"] for row in rows if row.get("first_loss") is not None]
        losses = [loss for loss in losses if math.isfinite(loss)]
        return float(np.median(losses)) if losses else math.inf

    def in_words(self, changes: Mapping[str, Any], flags: bool) -> str:
        """Arguments of m.sweep."""
        words = []
        for key, value in changes.items():
            if isinstance(value, tuple):
                low, high, step = *value, 1 / self.sweep.per_octave
                words.append(f"learning_rates=2.0 ** numpy.arange({low:g}, {high:g} + .01, {step:.4g})")
            else:
                words.append(f'{key}="{value}"' if isinstance(value, str) else f"{key}={value}")
        return ", ".join(words)

    def call(
        self, width: int, depth: int, values: Mapping[str, Any], optimizer: str, parameterization: str = ""
    ) -> str:
        """The call that makes the optimizer of another shape, with these values of hyperparameters, {key: value}."""
        first = self.sweep.parameterizations[0]
        under = "" if parameterization in ("", first) else f'.under("{parameterization}")'
        others = [f", {column(key)}={value:.3g}" for key, value in values.items() if key != LEARNING_RATE]
        rate = f"{values[LEARNING_RATE]:.3g}"
        return f'm{under}.at({width}, {depth}).optimizer("{optimizer}", {rate}{"".join(others)})'

    def sized(self, sizes: Mapping[str, Sequence[Any]]) -> ModelStudy:
        runs = tuple(size for size in self.runs if self._compute(size) in sizes.get("compute", ()))
        durations = tuple(sizes.get("steps", ()))
        return dataclasses.replace(self, sweep=of_sizes(self.sweep, sizes), durations=durations, runs=runs)


def model_study_from(saved: Mapping[str, Any]) -> ModelStudy:
    """The study of a workdir's settings.json, whose rows can be judged. Raises SettingsError where it is none."""
    sweep = dict(saved["sweep"])
    others = ("width", "depth", "axes", "steps", "fixed", "sizes", "lattice")
    width, depth, axes, steps, fixed, runs, lattice = (sweep.pop(key) for key in others)
    lists: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in sweep.items()}
    about = {key: value for key, value in saved.items() if key not in ("schema", "axes", "sweep", HASHES)}
    return ModelStudy(
        SweepSettings(**lists),
        ParallelSettings(),
        CheckpointSettings(),
        width,
        depth,
        about["first_seed"],
        tuple(Axis(key, tuple(values), key != "optimizer.name") for key, values in axes.items()),
        about,
        about["chance_loss"],
        durations=tuple(steps),
        fixed=fixed,
        runs=[Size(*size) for size in runs],
        lattice=[Size(*size) for size in lattice],
    )


def is_identity(saved: Mapping[str, Any]) -> bool:
    return "program" in saved


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)
