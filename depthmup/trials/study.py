"""What a sweep trains and how it is judged, whoever brings the model.

A `Study` is a grid of `Point`s; `ConfigStudy` makes it of a config, `Setup.sweep` of a model of one's own. Planning,
training, storing, judging and reporting know nothing else of a sweep.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from depthmup.data.feed import Feed
from depthmup.files import digest
from depthmup.settings import LEARNING_RATE, CheckpointSettings, ParallelSettings, Quantity, SweepSettings, column
from depthmup.train.loop import Measurement
from depthmup.train.step import Hyper, Trainable

COMPLEMENTS = ("optimizer.momentum", "optimizer.b1", "optimizer.b2")  # x is judged as 1 - x: one over a number of steps
SCHEMA = 4  # version of the results: raise it when the same settings give other results than before
Row = dict[str, Any]


class Size(NamedTuple):
    """All sizes of one training."""

    width: int
    depth: int
    batch_size: int
    steps: int

    @property
    def compute(self) -> int:
        """What a training costs, but for a factor."""
        return self.width**2 * self.depth * self.batch_size * self.steps

    def alike(self, other: Size, place: int) -> bool:
        """Whether both differ in this field at most."""
        return self._replace(**{self._fields[place]: other[place]}) == other

    def __str__(self) -> str:
        return f"width {self.width} depth {self.depth} batch size {self.batch_size} steps {self.steps}"


class Axis(NamedTuple):
    """A further axis of a sweep. key: the config key; traced: whether the compiled program takes its values."""

    key: str
    values: tuple[Any, ...]
    traced: bool


class Point(abc.ABC):
    """One point of the grid, at any learning rate and seed.

    leaves: {key: value} of all that decides the result of a training here.
    """

    leaves: Mapping[str, Any]

    @property
    def width(self) -> int:
        return int(self.leaves["model.width"])

    @property
    def depth(self) -> int:
        return int(self.leaves["model.depth"])

    @property
    @abc.abstractmethod
    def batch_size(self) -> int: ...

    @property
    def size(self) -> Size:
        return Size(self.width, self.depth, self.batch_size, self.steps)

    @property
    def cost(self) -> float:
        """What a training here costs, relative to others of the sweep."""
        return float(self.width**2 * self.depth)

    @property
    def optimizer(self) -> str:
        return str(self.leaves["optimizer.name"])

    @property
    def parameterization(self) -> str:
        return str(self.leaves["parameterization.name"])

    @property
    @abc.abstractmethod
    def program(self) -> Any:
        """What the compiled program depends on: points with equal values share one program."""

    @property
    @abc.abstractmethod
    def task(self) -> Trainable: ...

    @property
    @abc.abstractmethod
    def feed(self) -> Feed: ...

    @property
    @abc.abstractmethod
    def steps(self) -> int: ...

    @abc.abstractmethod
    def hyper(self, learning_rate: float, seed: int) -> Hyper:
        """The hyperparameters of a trial here."""

    @abc.abstractmethod
    def check(self) -> None:
        """Raises SettingsError or ValueError for a point that cannot be trained."""

    @abc.abstractmethod
    def measurement(self, quantities: Sequence[Quantity]) -> Measurement:
        """What measures these quantities while a trial trains (sweep.measure)."""

    @property
    def path_sum(self) -> int | None:
        """PathSum of the model, if it is known: the sum over all its paths of (layers on the path)^3."""
        return None

    def profile(self) -> tuple[Callable[[Hyper, Any], jax.Array], Any]:
        """((hyper, batch) -> update sizes and mean squares (2, layers) of the first step, jitted; the batch)"""
        raise NotImplementedError(f"{self} has no calibration")

    def without(self, *keys: str) -> tuple[Any, ...]:
        """The values of all leaves but these."""
        return tuple(_hashable(value) for key, value in self.leaves.items() if key not in keys)

    def __str__(self) -> str:
        return f"{self.optimizer} {self.parameterization} width {self.width} depth {self.depth}"


@dataclasses.dataclass(frozen=True, eq=False)
class Trial:
    """One training."""

    point: Point
    learning_rate: float
    seed: int

    @functools.cached_property
    def key(self) -> str:
        """A hash of SCHEMA and all that decides the result."""
        return digest({"schema": SCHEMA, **self.leaves})

    @property
    def leaves(self) -> dict[str, Any]:
        return {**self.point.leaves, LEARNING_RATE: self.learning_rate, "seed": self.seed}

    @property
    def hyper(self) -> Hyper:
        return self.point.hyper(self.learning_rate, self.seed)

    def __str__(self) -> str:
        return str(self.point)


class Study(abc.ABC):
    """A sweep: its grid, how it is run, and how it is judged.

    sweep: names and numbers of the grid, seeds, the measure to judge by. parallel, checkpoint: how trials are run.
    width, depth: the shape at which the other axis is swept. seed: the first seed. axes: further axes. target: {size:
    its value} of the large run that is asked about; None: that with the largest of all sizes. searched: the key of the
    hyperparameter whose value the large run wants; if it is another than the learning rate, it is the only axis.
    """

    sweep: SweepSettings
    parallel: ParallelSettings
    checkpoint: CheckpointSettings
    width: int
    depth: int
    seed: int
    axes: Sequence[Axis]
    target: Mapping[str, int] | None = None
    searched: str = LEARNING_RATE
    trainable: bool = True  # False where rows alone are judged, and nothing is known of the model

    @property
    @abc.abstractmethod
    def identity(self) -> dict[str, Any]:
        """What all trials share, as JSON, which the workdir keeps. The entry "axes" names the keys that are swept,
        "sweep" has the settings of the sweep. Both may change when a sweep is extended."""

    @property
    def beyond_keys(self) -> dict[str, Any]:
        """What decides rows besides all that their keys tell, such as the files of a folder: a further part of the
        identity, in which all files of a workdir's rows must agree."""
        return {}

    @property
    def data(self) -> dict[str, str]:
        """{what: its digest} of data that each machine reads by name."""
        return {}

    def received(self, point: Point) -> Point:
        """A point of this study that was pickled without it."""
        return point

    @abc.abstractmethod
    def point(self, values: Mapping[str, Any]) -> Point:
        """The point with these values of swept keys. Raises ValueError if they do not go together."""

    @property
    def base(self) -> Size:
        """The size that all axes share."""
        raise NotImplementedError(f"{self} cannot be tuned")

    def point_at(self, size: Size, optimizer: str, parameterization: str) -> Point:
        """The point of another size, with the first value of every further axis."""
        raise NotImplementedError(f"{self} cannot be tuned")

    def with_value(self, point: Point, key: str, value: Any) -> Point:
        """A point of this study, with another value of one key."""
        raise NotImplementedError(f"{self} cannot be tuned")

    def point_of(self, row: Row, optimizer: str, parameterization: str) -> Point | None:
        """The point of the sizes that a row has, whatever else it is of. None where this study has none like it."""
        return self.point_at(Size(*(int(row[name]) for name in Size._fields)), optimizer, parameterization)

    def at_sizes(self, sizes: Sequence[Size]) -> Study:
        """The same study at the base and at these sizes: those that differ from the base in one are on its axis, the
        others on none."""
        raise NotImplementedError(f"{self} cannot be tuned")

    def along_axis(self, sizes: Sequence[Size], place: int) -> tuple[int, ...]:
        """The values that one field has where all others are the base's, rising."""
        return tuple(sorted({self.base[place], *(size[place] for size in sizes if size.alike(self.base, place))}))

    def unused(self, optimizer: str, parameterization: str) -> dict[str, Any]:
        """{key that this optimizer or this parameterization does not use: the value that it keeps}."""
        return {}

    @abc.abstractmethod
    def chance(self, measure: str, rows: Sequence[Mapping[str, Any]]) -> float:
        """The score, by this measure, of a network that has learned nothing, of the trials in these rows."""

    @property
    def of_run(self) -> tuple[dict[str, Any], dict[str, dict[float, dict[str, Any]]]]:
        """({key: value} of batch size and length at the base, {axis: {size: what it changes of them}}). Both are empty
        unless one of them is swept."""
        return {}, {}

    @property
    def along(self) -> dict[str, dict[float, dict[str, Any]]]:
        """{axis of sizes: {size: {key: value} of the keys of all axes}}. On an axis the other sizes are the base's."""
        run, axes = self.of_run
        base = {"model.width": self.width, "model.depth": self.depth, **run}
        changes: dict[str, dict[float, dict[str, Any]]] = {
            "depth": {depth: {"model.depth": depth} for depth in self.sweep.depths},
            "width": {width: {"model.width": width} for width in self.sweep.widths},
            **axes,
        }
        return {axis: {size: {**base, **at} for size, at in of_axis.items()} for axis, of_axis in changes.items()}

    @abc.abstractmethod
    def sized(self, sizes: Mapping[str, Sequence[Any]]) -> Study:
        """The same study at these sizes of each axis alone."""

    def in_words(self, changes: Mapping[str, Any], flags: bool) -> str:
        """Other values of settings of the sweep, {key: value}, as arguments of the call that trained it, or as flags of
        the command; "" for rows that were trained elsewhere."""
        return ""

    def command(self, swept: Collection[str]) -> list[str]:
        """The flags of main.py that train one trial, but for those of the swept keys; [] if none do."""
        return []

    def flag(self, key: str, value: Any) -> list[str]:
        """The flag that gives a swept key its value."""
        return []


def of_sizes(sweep: SweepSettings, sizes: Mapping[str, Sequence[Any]]) -> SweepSettings:
    """The sweep at these sizes of each axis alone."""
    return dataclasses.replace(
        sweep,
        depths=tuple(sizes["depth"]),
        widths=tuple(sizes["width"]),
        batch_sizes=tuple(sizes.get("batch_size", ())),
        epochs=tuple(sizes.get("epochs", ())),
    )


def judged_name(key: str) -> str:
    """What a hyperparameter is judged by, as a column: "learning_rate", "weight_decay", "1 - b2"."""
    return f"1 - {column(key)}" if key in COMPLEMENTS else column(key)


def judged_value(key: str, value: Any) -> Any:
    """The value that a hyperparameter is judged by; of that value, the hyperparameter's."""
    return 1 - value if key in COMPLEMENTS else value


def _hashable(value: Any) -> Any:
    return tuple(map(_hashable, value)) if isinstance(value, list) else value
