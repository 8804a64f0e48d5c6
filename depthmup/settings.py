"""The settings of a run: every key of a config, declared once, and what follows from the declarations.

A key is added by declaring it here, in `Recipe`, on its family of models or in `Augment`, and by using it; `make
configs` then writes configs/default.py and docs/settings.md anew.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import re
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np

from depthmup.data import Augment, dataset_names
from depthmup.declare import SIZE, Key, declared, key
from depthmup.fit.curve import POINTS
from depthmup.losses import LOSSES
from depthmup.measure.coordinate_check import coordinate_check
from depthmup.models import MODELS
from depthmup.models.layers import MESH_AXES
from depthmup.names import LARGEST, nearest, short, unknown, unknown_key
from depthmup.rules.batch_rules import RuleName, Run
from depthmup.rules.optim import DEFAULTS, OPTIMIZERS, RANGES, family_of
from depthmup.rules.parameterization import LR_DEPTH, Name, Parameterization, parameterization
from depthmup.training_settings import Recipe

FAMILY = "residual_mlp"  # the family of models of a config that names none
LEARNING_RATE = "optimizer.learning_rate"
Judged = Literal["loss", "last_loss", "mean_loss", "validation_loss", "accuracy", "validation_accuracy"]
Until = Literal["planned", "decided"]
Wrapper = Literal["pmap", "jit"]
Quantity = Literal["updates", "sharpness", "kernels", "noise_scale"]  # `train.quantities` measures them
LOG2: dict[str, Any] = {"low": -100, "most": 100}  # the range of log2 of a learning rate
# The signature of `coordinate_check` declares its defaults, since its reference shows them.
CHECK_DEFAULTS = {name: argument.default for name, argument in inspect.signature(coordinate_check).parameters.items()}
# The keys that `sweep.axes` does not take, each with the key whose values are swept instead.
OWN = {
    "parameterization.name": "sweep.parameterizations",
    "optimizer.name": "sweep.optimizers",
    "model.depth": "sweep.depths",
    "model.width": "sweep.widths",
    "seed": "sweep.seeds",
}


OF_RUN = ("base_batch_size", "base_steps", "batch_rule")  # of ParameterizationSettings


class SettingsError(ValueError):
    """A config that cannot be run; the message names the key and the way out."""


@dataclasses.dataclass(frozen=True)
class Interval:
    """How often: "never", "100 steps", "0.5 epochs" or "10 minutes"."""

    number: float
    unit: str  # step | epoch | minute | never

    def steps(self, per_epoch: int) -> int | None:
        """In steps, at least 1; None for minutes and never."""
        if self.unit not in ("step", "epoch"):
            return None
        return max(1, round(self.number * (per_epoch if self.unit == "epoch" else 1)))

    @property
    def seconds(self) -> float | None:
        return 60 * self.number if self.unit == "minute" else None

    def __str__(self) -> str:
        number = np.format_float_positional(self.number, trim="-")
        return "never" if self.unit == "never" else f"{number} {self.unit}{'s' * (self.number != 1)}"


@dataclasses.dataclass(frozen=True)
class ModelSettings:
    """A family of models and its attributes, which its class declares; options: all but width and depth."""

    name: str
    width: int
    depth: int
    options: Mapping[str, Any]

    def __post_init__(self) -> None:
        if self.name not in MODELS:
            raise SettingsError(str(unknown("model.name", self.name, MODELS)))

    def __hash__(self) -> int:
        return hash((self.name, self.width, self.depth, *sorted(self.options.items())))

    @classmethod
    def of(cls, name: str = FAMILY, **attributes: Any) -> ModelSettings:
        """A family with its defaults but for these attributes."""
        values = {attribute: k.default for attribute, k in declared(MODELS[name]).items()} | attributes
        return cls(name, values.pop("width"), values.pop("depth"), values)


MODEL_NAME = Key(meaning="the family of models", choices=tuple(MODELS), column="model", kind=str, default=FAMILY)


@dataclasses.dataclass(frozen=True)
class ParameterizationSettings:
    name: Name = key("depth_mup", "the rules (docs/rules.md)", traced=True, column="parameterization")
    base_width: int = key(32, "counts what model.width counts", low=1, traced=True)
    base_depth: int = key(2, "counts what model.depth counts", low=1, traced=True)
    base_head_dim: int = key(1, "attention equals 1/sqrt(head_dim) at this head size", low=1, traced=True)
    alpha: float | None = key(None, "branch exponent in [1/2, 1]; unset: the parameterization's own", traced=True)
    gamma0: float = key(1.0, "richness: the output is divided by it", positive=True, traced=True)
    beta0: float = key(1.0, "branch multiplier at the base depth", positive=True, traced=True)
    lr_depth: float | None = key(
        None,
        "exponent in depth of every LR (am_mup; unset: -3/2) or of the LRs in branches (the others; unset: 2 alpha - 1 "
        "for SGD, alpha - 1 for Adam)",
        low=LR_DEPTH.low,
        most=LR_DEPTH.most,
        traced=True,
    )
    branch_init: str = key("*", "am_mup: glob of branch weights whose initial variance falls with depth", traced=True)
    base_batch_size: int | None = key(None, "batch size of the tuned training", low=1, traced=True, newer=True)
    base_steps: int | None = key(None, "steps of the tuned training", low=1, traced=True, newer=True)
    batch_rule: RuleName | None = key(None, "how hyperparameters follow both (docs/batch.md)", traced=True, newer=True)

    def build(self) -> Parameterization:
        values = dataclasses.asdict(self)
        return parameterization(**{k: v for k, v in values.items() if k not in OF_RUN})

    def run(self, batch_size: int, steps: int) -> Run | None:
        """Batch size and steps beside the base's; None without a rule. Raises SettingsError for a rule without both."""
        if (self.base_batch_size, self.base_steps, self.batch_rule) == (None, None, None):
            return None
        if self.base_batch_size is None or self.base_steps is None or self.batch_rule is None:
            missing = [f"parameterization.{name}" for name in OF_RUN if getattr(self, name) is None]
            raise SettingsError(f"set {' and '.join(missing)} too, or none of {', '.join(OF_RUN)}")
        return Run(batch_size, steps, self.base_batch_size, self.base_steps, self.batch_rule)


@dataclasses.dataclass(frozen=True)
class OptimizerSettings:
    name: str = key("sgd", "", choices=OPTIMIZERS, column="optimizer")
    learning_rate: float = key(0.5, "at the base shape", within=RANGES["learning_rate"], traced=True, at_start=False)
    momentum: float = key(DEFAULTS["momentum"], "for momentum", within=RANGES["momentum"], traced=True, at_start=False)
    b1: float = key(DEFAULTS["b1"], "for adam and adamw", within=RANGES["b1"], traced=True)
    b2: float = key(DEFAULTS["b2"], "for adam and adamw", within=RANGES["b2"], traced=True)
    eps: float = key(DEFAULTS["eps"], "for adam and adamw", within=RANGES["eps"], traced=True)
    weight_decay: float = key(
        DEFAULTS["weight_decay"],
        "learning rate x decay is the same at every shape",
        within=RANGES["weight_decay"],
        traced=True,
    )

    @property
    def numbers(self) -> dict[str, float]:
        """All but the learning rate. One that is left at its default in a config is that of the optimizer's row."""
        usual = OPTIMIZERS[self.name].numbers
        values = {name: getattr(self, name) for name in DEFAULTS}
        return {name: usual[name] if value == DEFAULTS[name] else value for name, value in values.items()}


@dataclasses.dataclass(frozen=True)
class DataSettings:
    name: str = key("digits", " | ".join(dataset_names()), column="data")
    data_dir: str | None = key(
        None,
        "folder of images; file or folder of text, unset: NumPy's docstrings; folder of tokens, unset: the Python "
        "sources of the pinned packages; or folder of prepared data sets, unset: ~/tensorflow_datasets",
        decides=False,
    )
    batch_size: int = key(64, "examples of a step", low=1)
    seed: int = key(
        0, "of the order of examples and their augmentation", low=0, high=2**31, at_start=False, column="data_seed"
    )
    image_size: int | None = key(
        None, "side of images of imagenet* (unset: 64, 224), patches (32), folder (its own)", low=1, high=2**14
    )
    context: int | None = key(
        None,
        "bytes of text, or tokens, that a model sees, each with the next one as its label (unset: 64)",
        low=1,
        newer=True,
    )
    vocabulary: int | None = key(
        None,
        "number of different tokens (unset: as tokens.json says, or by the largest one)",
        low=1,
        high=2**20,
        newer=True,
    )
    augment: Augment = key(Augment(), "random changes of training images, each image with its own draw")
    workers: int = key(
        0, "processes that decode images (imagenet*, large folders); 0: threads", low=0, high=1024, decides=False
    )
    skip_corrupt: bool = key(False, "go on without records that cannot be read, and count them")
    verify: bool = key(False, "read all files of a folder of images anew, unchanged ones too", decides=False)


@dataclasses.dataclass(frozen=True)
class CheckpointSettings:
    every: Interval = key(Interval(10, "minute"), '"100 steps" | "1 epoch" | "10 minutes" | "never"')
    keep: int = key(2, "checkpoints kept, the last ones", low=1)
    best: int = key(1, "checkpoints kept besides, those with the lowest validation loss", low=0, high=2**31)
    failures: int = key(2, "so many in a row that cannot be written end the run with status 1; 0: none does", low=0)


@dataclasses.dataclass(frozen=True)
class ParallelSettings:
    devices: int | None = key(None, "devices that share each batch of main.py train; unset: all, but one CPU", low=1)
    wrapper: Wrapper = key("pmap", "jit: over a mesh; of sweeps too")
    devices_per_trial: int = key(
        1, "devices that share each batch of a trial of main.py sweep; 2 or more by jit", low=1
    )
    mesh: str | None = key(
        None, '"data=4,fsdp=8": by jit, the state of a training split over fsdp, its batches over both (docs/pods.md)'
    )

    @property
    def axes(self) -> dict[str, int] | None:
        """{axis: size} of the mesh; None without one. Raises SettingsError for a text that is no mesh."""
        if self.mesh is None:
            return None
        axes: dict[str, int] = {}
        for part in self.mesh.split(","):
            name, _, size = part.strip().partition("=")
            if name not in MESH_AXES or name in axes or not re.fullmatch(r"[1-9]\d{0,6}", size):
                raise SettingsError(
                    f"parallel.mesh = {short(self.mesh)} must be like 'data=4,fsdp=8': some of the axes "
                    f"{' and '.join(MESH_AXES)}, each once, with its number of devices"
                )
            axes[name] = int(size)
        return axes

    @property
    def share(self) -> int:
        """How many devices share a trial of a sweep."""
        return math.prod(self.axes.values()) if self.axes else self.devices_per_trial


@dataclasses.dataclass(frozen=True)
class SweepSettings:
    parameterizations: tuple[Name, ...] = key(("sp", "mup", "depth_mup"), "", nonempty=True)
    optimizers: tuple[str, ...] = key(("sgd", "adam"), "", choices=OPTIMIZERS, nonempty=True)
    depths: tuple[int, ...] = key((2, 4, 8, 16, 32), "", **SIZE)
    widths: tuple[int, ...] = key((32, 64, 128, 256), "", **SIZE)
    batch_sizes: tuple[int, ...] = key((), "at data.batch_size else, and as many epochs: fewer steps if larger", low=1)
    epochs: tuple[float, ...] = key((), "lengths of training at data.batch_size; at `epochs` else", positive=True)
    log2_learning_rates: Mapping[str, tuple[float, float]] = key(
        {name: row.grid for name, row in OPTIMIZERS.items()},
        "the lowest and the highest learning rate of each optimizer",
        **LOG2,
    )
    per_octave: int = key(2, "grid points per factor of 2", low=1)
    seeds: int = key(6, "config.seed, config.seed + 1, ...: so many trainings of each point", low=1)
    until: Until = key("planned", "decided: then more seeds and rates, where verdicts need them (docs/sweeps.md)")
    max_seeds: int = key(24, "seeds are doubled up to this until verdicts are decided", low=1)
    axes: str = key("", 'more axes, any key: "parameterization.gamma0 = log(0.1, 10, 5); model.norm = none, layer"')
    judge_by: Judged = key("loss", "last_loss: of the last tenth of the steps; mean_loss: of all steps")
    margin: str = key("1 octave", "0.5%: of the loss; what a value may cost that transfers (docs/laws.md)")
    calibrate: bool = key(True, "the report predicts learning rates by a gradient and a jvp at each depth too")
    measure: tuple[Quantity, ...] = key((), "measured of trials trained from now on (docs/sweeps.md)")
    measure_points: int = key(5, "how often while a trial trains, from its start to its end", low=1)
    adaptive: bool = key(False, "from the second size on, train only the rates around the last size's optimum")
    at_once: int | None = key(None, "trials that run together; unset: as many as fit in memory, at most 128", low=1)
    max_trials: int = key(20_000, "a plan of more trials is refused, by --dry_run too, unless --yes is given", low=1)
    cache: bool = key(True, "compiled programs are kept in the workdir")


@dataclasses.dataclass(frozen=True)
class CheckSettings:
    optimizers: tuple[str, ...] = key(("sgd", "adam"), "", choices=OPTIMIZERS, nonempty=True)
    log2_learning_rates: Mapping[str, float] = key(
        {name: row.check for name, row in OPTIMIZERS.items()}, "small: saturation hides slopes", **LOG2
    )
    widths: tuple[int, ...] = key((64, 128, 256, 512), "", **SIZE)
    depths: tuple[int, ...] = key((4, 8, 16, 32, 64), "", **SIZE)
    width: int = key(CHECK_DEFAULTS["width"], "", **SIZE)
    depth: int = key(CHECK_DEFAULTS["depth"], "", **SIZE)
    steps: tuple[int, ...] = key(
        CHECK_DEFAULTS["steps"], "after which the change of the features is measured", low=1, nonempty=True
    )
    seeds: int = key(CHECK_DEFAULTS["seeds"], "of each training", low=1)
    max_seeds: int = key(
        CHECK_DEFAULTS["max_seeds"], "seeds are doubled up to this where the answer is undecided", low=1
    )
    batch_size: int = key(32, "training examples; all, if there are fewer", low=1)
    beta0: float = key(1.0, "branch multiplier at depth 1, on top of parameterization.beta0", positive=True)
    tolerance: float = key(
        CHECK_DEFAULTS["tolerance"], "a slope is ok within +- this, not ok beyond, else undecided", positive=True
    )


# What main.py check does for other families than the residual MLP: convolutions are dear. Plain networks claim nothing
# along depth. Behind batch norm the correction at small depth is large, so a ResNet has a small beta0 (docs/checks.md).
SHORT = CheckSettings(steps=(1, 4), batch_size=8)


def _short(sgd: float, adam: float, **others: Any) -> CheckSettings:
    rates = {**SHORT.log2_learning_rates, "sgd": sgd, "adam": adam}
    return dataclasses.replace(SHORT, log2_learning_rates=rates, **others)


CHECKS = {
    "mlp": dataclasses.replace(SHORT, depths=()),
    "cnn": _short(-11.0, -13.0, widths=(32, 64, 128), depths=(), depth=3),
    "residual_cnn": _short(-11.0, -13.0, widths=(32, 64, 128), depths=(4, 8, 16, 32), width=64, depth=4),
    "simple_resnet": _short(-5.0, -10.0, widths=(128, 256, 512), depths=(4, 8, 16, 32), width=256, depth=4),
    "resnet": _short(-12.0, -13.0, widths=(16, 32, 64), depths=(2, 4, 8, 16), width=16, depth=1, beta0=1 / 16),
    "vit": _short(-12.0, -13.0, widths=(64, 128, 256), depths=(4, 8, 16, 32), width=64, depth=4),
    "gpt": _short(-12.0, -13.0, widths=(64, 128, 256), depths=(4, 8, 16, 32), width=64, depth=4, batch_size=2),
}
DATA = {family: DataSettings(name="text") for family, model in MODELS.items() if model.tokens}


@dataclasses.dataclass(frozen=True)
class TaskSettings:
    """What is trained, but for the recipe."""

    model: ModelSettings = key(ModelSettings.of(), "")
    parameterization: ParameterizationSettings = key(
        ParameterizationSettings(),
        "At the base shape, where hyperparameters are tuned, sp, mup, depth_mup and depth_ode are all the same.",
    )
    optimizer: OptimizerSettings = key(OptimizerSettings(), "")
    data: DataSettings = key(DataSettings(), "")


@dataclasses.dataclass(frozen=True)
class Settings(Recipe, TaskSettings):
    """One config. Its keys are those of `TaskSettings`, those of `Recipe` and its own, in this order: a dataclass has
    the fields of its last base first."""

    seed: int = key(0, "of the initial parameters", low=0, high=2**31, traced=True)
    log_every: int = key(10, "steps between two lines of progress", low=1, decides=False)
    evaluate_every: Interval = key(
        Interval(1, "epoch"), '"100 steps" | "0.5 epochs" | "never": at the end', decides=False
    )
    checkpoint: CheckpointSettings = key(
        CheckpointSettings(),
        "main.py train with a workdir goes on from its last checkpoint. A sweep checkpoints the trials that it trains. "
        "A best checkpoint is written at any evaluation.",
        decides=False,
    )
    parallel: ParallelSettings = key(ParallelSettings(), "", decides=False)
    sweep: SweepSettings = key(
        SweepSettings(),
        "main.py sweep: learning rate x parameterization x optimizer x seed at each depth (width = model.width) and at "
        "each width (depth = model.depth).",
        decides=False,
    )
    check: CheckSettings = key(
        CheckSettings(),
        "main.py check: coordinate check over widths (at check.depth) and depths (at check.width). The base shape is "
        "taken as 1, since a base depth has honest transients at small depth.",
        decides=False,
    )

    def __post_init__(self) -> None:
        """Everything that can be known to be wrong before anything is compiled or written."""
        # What does not fit the shape of the data a family tells when that is known (`Model.check`).
        options = {f"model.{option}" for option in self.model.options}
        for name, declaration in keys(self.model.name).items():
            value = value_of(self, name)
            try:
                declaration.check(name, value)
            except ValueError as error:
                raise SettingsError(str(error)) from error
            is_list = isinstance(value, tuple) and ... in typing.get_args(declaration.kind)
            if (
                is_list and name not in options and len(set(value)) < len(value)
            ):  # a model's layers may have equal sizes
                raise SettingsError(f"{name} = {value} has a value twice: remove one")
        self._check_together()

    def _check_together(self) -> None:
        """What is wrong with several keys at once, or with one in a way that bounds do not say."""
        if not (self.sweep.depths or self.sweep.widths or self.sweep.batch_sizes or self.sweep.epochs):
            raise SettingsError(
                "sweep.depths, widths, batch_sizes and epochs are empty: the grid has no trial; give a value"
            )
        if self.sweep.until == "decided" and not 1 < self.sweep.seeds <= self.sweep.max_seeds:
            raise SettingsError(
                f"sweep.until = decided needs sweep.seeds from 2 to sweep.max_seeds = {self.sweep.max_seeds}, got "
                f"{self.sweep.seeds}: one seed decides nothing"
            )
        for where, swept in (("sweep", self.sweep), ("check", self.check)):
            for name in swept.optimizers:
                if name not in swept.log2_learning_rates:
                    raise SettingsError(f"{where}.log2_learning_rates has no entry for the optimizer {name!r}: add one")
        if self.parallel.devices_per_trial > 1 and self.parallel.wrapper != "jit":
            raise SettingsError(
                f"parallel.devices_per_trial = {self.parallel.devices_per_trial} needs a mesh of devices: set "
                "parallel.wrapper to 'jit'"
            )
        if self.parallel.axes and (self.parallel.wrapper != "jit" or self.parallel.devices_per_trial > 1):
            raise SettingsError(
                f"parallel.mesh = {self.parallel.mesh!r} is for jit: set parallel.wrapper to 'jit', and "
                "parallel.devices_per_trial to 1"
            )
        if self.warmup_epochs >= self.epochs:
            raise SettingsError(
                f"warmup_epochs must be at least 0 and less than {self.epochs:g}, got {self.warmup_epochs}"
            )
        if self.evaluate_every.unit == "minute":
            raise SettingsError("evaluate_every must be in steps or epochs, or never, so that runs can be repeated")
        if self.label_smoothing and not LOSSES[self.loss].of_labels:
            raise SettingsError(f"label_smoothing is for the loss cross_entropy, not for {self.loss}: set it to 0")
        for optimizer, (low, high) in self.sweep.log2_learning_rates.items():
            grid = f"sweep.log2_learning_rates.{optimizer} = ({low}, {high})"
            if low > high:
                raise SettingsError(f"{grid} is an empty grid: give (lowest, highest)")
            points = (high - low) * self.sweep.per_octave + 1
            if points != round(points) or points < POINTS:
                raise SettingsError(
                    f"{grid} must be a whole number of grid points, {POINTS} or more, "
                    f"at {self.sweep.per_octave} per octave"
                )
        try:
            self.parameterization.build()
            if run := self.parameterization.run(self.data.batch_size, 1):
                run.row(family_of(self.optimizer.name))
        except ValueError as error:
            raise SettingsError(f"parameterization: {error}") from error


def defaults(family: str = FAMILY) -> Settings:
    """The settings of configs/default.py for a family of models."""
    data, check = DATA.get(family, DataSettings()), CHECKS.get(family, CheckSettings())
    return Settings(model=ModelSettings.of(family), data=data, check=check)


@functools.cache
def keys(family: str = FAMILY) -> dict[str, Key]:
    """{config key: its declaration}, in their order, for a family of models."""

    def walk(kind: type, prefix: str, decides: bool) -> Iterator[tuple[str, Key]]:
        if kind is ModelSettings:
            yield f"{prefix}name", MODEL_NAME
            kind = MODELS[family]
        for name, k in declared(kind).items():
            if is_group(k):
                yield from walk(k.kind, f"{prefix}{name}.", decides and k.decides)
            else:
                yield f"{prefix}{name}", dataclasses.replace(k, decides=decides and k.decides)

    return dict(walk(Settings, "", True))


def is_group(k: Key) -> bool:
    """Whether a key of the config has keys of its own."""
    return dataclasses.is_dataclass(k.kind) and k.kind is not Interval


ALL = {name: k for family in MODELS for name, k in keys(family).items()}
TRACED = frozenset(name for name, k in ALL.items() if k.traced)  # trials that differ in these alone share a program
NOT_AT_THE_START = frozenset(name for name, k in ALL.items() if not k.at_start)


def column(name: str) -> str:
    """The name that a config key has in a row: the one it declares, or its words behind the group."""
    return (ALL[name].column if name in ALL else "") or "_".join(name.split(".")[1:]) or name


def value_of(settings: Settings, name: str) -> Any:
    """The value of a config key."""
    node: Any = settings
    for word in name.split("."):
        node = node.options[word] if isinstance(node, ModelSettings) and word in node.options else getattr(node, word)
    return node


def flat(settings: Settings) -> dict[str, Any]:
    """{config key: value} of every setting that decides what a training results in, as JSON has it."""
    values = {name: (k, value_of(settings, name)) for name, k in keys(settings.model.name).items() if k.decides}
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, (k, value) in values.items()
        if not (k.newer and value is None)
    }


def put(settings: Settings, values: Mapping[str, Any]) -> Settings:
    """The settings with other values of some keys.

    Args:
      settings: of a run or a sweep.
      values: {key of `flat`, such as "model.width": value}.

    Returns:
      New `Settings`.

    Raises SettingsError if they do not go together.
    """
    changes: dict[str, Any] = {}
    for name, value in values.items():
        *groups, last = name.split(".")
        node = changes
        for group in groups:
            node = node.setdefault(group, {})
        node[last] = value
    return _changed(settings, changes)


def _changed(node: Any, changes: Mapping[str, Any]) -> Any:
    """All changes at once: a setting may be wrong with the old value of another."""
    if isinstance(node, ModelSettings):
        attributes = {"name": node.name, "width": node.width, "depth": node.depth, **node.options}
        return ModelSettings.of(**{**attributes, **changes})
    inner = {n: _changed(getattr(node, n), v) if isinstance(v, dict) else v for n, v in changes.items()}
    return dataclasses.replace(node, **inner)


def from_config(config: Mapping[str, Any]) -> Settings:
    """ConfigDict -> Settings. Raises SettingsError for an unknown, missing or mistyped key."""
    return converted(Settings, config, "config")


def converted(kind: Any, value: Any, where: str) -> Any:
    """`value` as `kind`: a dataclass from a mapping, tuples and mappings element by element, scalars checked."""
    if kind is Interval:
        return _interval(value, where)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return _group(kind, value, where)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is types.UnionType:
        return None if value is None else converted(arguments[0], value, where)
    if origin is tuple:
        if isinstance(value, str | bytes) or hasattr(value, "keys") or not hasattr(value, "__iter__"):
            raise SettingsError(f"{where} must be a list of values, got {short(value)}")
        kinds = [arguments[0]] * len(value) if arguments[-1] is Ellipsis else list(arguments)
        if len(kinds) != len(value):
            points = "; sweep.per_octave has the points of an octave" if ".log2_learning_rates." in where else ""
            raise SettingsError(f"{where} must be (lowest, highest){points}, got {short(value)}")
        return tuple(converted(k, v, f"{where}[{i}]") for i, (k, v) in enumerate(zip(kinds, value, strict=True)))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        if not hasattr(value, "keys"):
            raise SettingsError(f"{where} must have one entry per optimizer, got {value!r}")
        return {name: converted(arguments[1], value[name], f"{where}.{name}") for name in value}
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(max(-2 * LARGEST, min(value, 2 * LARGEST)))  # what is larger than LARGEST no setting takes
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise SettingsError(f"{where} must be {kind.__name__}, got {type(value).__name__} {short(value)}")
    return value


def _group(kind: type, value: Any, where: str) -> Any:
    """A dataclass of settings from a mapping that has each of its keys and no other."""
    if not hasattr(value, "keys"):
        raise SettingsError(f"{where} must have keys of its own, got {value!r}")
    family, default = "", "configs/default.py"
    expected = declared(kind)
    if kind is ModelSettings:
        family = converted(str, dict(value).get("name"), f"{where}.name")
        if family not in MODELS:
            raise SettingsError(str(unknown("model.name", family, MODELS)))
        expected, default = {"name": MODEL_NAME, **declared(MODELS[family])}, f"{default}:{family}"
    for name in value:
        if name not in expected:
            owners = [other for other, model in MODELS.items() if family and name in declared(model)]
            if owners:
                raise SettingsError(
                    f"{where}.{name} is a setting of {', '.join(owners)}, not of {family}: choose the family by the "
                    f"config, --config=default:{owners[0]}"
                )
            raise SettingsError(str(unknown_key(where, name, nearest(name, sorted(expected)))))
    missing = sorted(expected.keys() - set(value))
    if missing:
        raise SettingsError(f"{where}.{missing[0]} is missing: override {default} instead of starting anew")
    values = {name: converted(k.kind, value[name], f"{where}.{name}") for name, k in expected.items()}
    try:
        return ModelSettings.of(**values) if kind is ModelSettings else kind(**values)
    except SettingsError:
        raise
    except ValueError as error:  # of a group that does not know where it is in a config
        raise SettingsError(f"{where.rpartition('.')[0]}.{error}".removeprefix("config.")) from error


def _interval(text: Any, where: str) -> Interval:
    if text == "never":
        return Interval(0, "never")
    match = re.fullmatch(r"(\d+(?:\.\d+)?) (step|epoch|minute)s?", text) if isinstance(text, str) else None
    if not match or not 0 < float(match[1]) < 2**31:
        raise SettingsError(f"{where} must be like '100 steps', '1 epoch', '10 minutes' or 'never', got {short(text)}")
    return Interval(float(match[1]), match[2])
