"""The arguments of `Setup.sweep` and `Setup.tune` as types, by which an editor completes and checks them. `Setup.sweep`
says what they mean, `model_sweep.study_of` has their defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, Literal, TypedDict

from depthmup.data.user_feed import Batches
from depthmup.rules.optim import OptimizerName
from depthmup.rules.parameterization import Name
from depthmup.schedules import Schedule
from depthmup.settings import Judged, Until, Wrapper
from depthmup.trials.model_study import Fixed, MakeOptimizer

Hyperparameter = Literal["learning_rate", "weight_decay", "momentum", "b1", "b2", "eps"]  # what a tune searches for
NamedOptimizers = OptimizerName | Sequence[OptimizerName]
OwnOptimizers = MakeOptimizer | Mapping[str, MakeOptimizer]
Numbers = float | Sequence[float]  # one value, or an axis of several


class TrainingOptions(TypedDict, total=False):
    """What a training is and how it is judged, of a sweep and of a tune."""

    momentum: Numbers
    nesterov: bool | Sequence[bool]
    b1: Numbers
    b2: Numbers
    eps: Numbers
    weight_decay: Numbers
    mask: Any  # a tree, or a function params -> tree, as of `dm.optimizer`
    batch_size: int | Sequence[int] | None
    evaluate: Batches
    schedule: Schedule
    warmup: int
    clip: float | None
    own_outputs: bool
    seeds: int
    until: Until
    max_seeds: int
    judge_by: Judged | None
    margin: float | str
    chance: float | None
    per_octave: int
    at_once: int | None
    max_trials: int
    measure: Sequence[Literal["noise_scale"]]
    measure_points: int
    devices_per_trial: int
    wrapper: Wrapper
    progress: bool
    executor: Executor | None
    retries: int


class SweepOptions(TrainingOptions, total=False):
    """The options of `Setup.sweep` beside those that its signature has."""

    sizes: Sequence[Sequence[int]]
    fixed: Fixed
    adaptive: bool
    shard: tuple[int, int]


class TuneOptions(TrainingOptions, total=False):
    """The options of `Setup.tune` beside those that its signature has."""

    against: Sequence[Name]
    workdir: str | Path | None
