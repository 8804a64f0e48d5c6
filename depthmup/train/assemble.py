"""Settings -> model, specs, trainer and hyperparameters: the one way that data flows (docs/design.md)."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from depthmup.data import SOURCES, Dataset, steps_per_epoch
from depthmup.infer import infer_specs
from depthmup.models import ACTIVATIONS, MODELS
from depthmup.optim import family_of
from depthmup.parameterization import ForwardFactors, unknown
from depthmup.settings import ModelSettings, OptimizerSettings, ParameterizationSettings, Settings, SettingsError
from depthmup.specs import factors as leaf_factors
from depthmup.train.step import Hyper, Trainer, make_trainer

PyTree = Any
SCHEDULES: dict[str, Callable[[int], optax.Schedule]] = {
    "constant": lambda steps: optax.constant_schedule(1.0),
    "linear": lambda steps: optax.linear_schedule(1.0, 0.0, steps),
}
UNIT = ForwardFactors(1.0, 1.0, 1.0)


def check_names(settings: Settings) -> None:
    """Raises SettingsError for a model, activation, norm, readout or data set that does not exist."""
    model = settings.model
    for key, name, known in (
        ("model.name", model.name, MODELS),
        ("model.activation", model.activation, ACTIVATIONS),
        ("model.norm", model.norm, ("none", "layer")),
        ("model.readout", model.readout, ("phi", "linear")),
        ("data.name", settings.data.name, SOURCES),
        ("schedule", settings.schedule, SCHEDULES),
    ):
        if name not in known:
            raise SettingsError(str(unknown(key, name, known)))


def build_model(model: ModelSettings, outputs: int) -> nn.Module:
    arguments = {k: v for k, v in dataclasses.asdict(model).items() if k != "name"}
    return MODELS[model.name](**arguments, outputs=outputs)


class Problem(NamedTuple):
    """Data and length of training, and what is built for one model, optimizer and parameterization on them."""

    dataset: Dataset
    steps: int
    schedule: str

    @property
    def sizes(self) -> tuple[int, int]:
        """(input features, outputs) of a model."""
        return self.dataset.train.inputs.shape[1], self.dataset.classes

    def specs(self, model: ModelSettings) -> PyTree:
        """The spec tree of the model at its width and depth."""
        return _specs(model, *self.sizes)

    def trainer(self, model: ModelSettings, optimizer: str) -> Trainer:
        """The training functions of a model; the same objects for the same arguments, so that programs are shared."""
        return _trainer(model, *self.sizes, optimizer, self.schedule, self.steps)

    def hyper(
        self, model: ModelSettings, parameterization: ParameterizationSettings, optimizer: OptimizerSettings, seed: int
    ) -> Hyper:
        """The hyperparameters of one trial, factors included."""
        p = parameterization.build()
        values = {k: v for k, v in dataclasses.asdict(optimizer).items() if k != "name"}
        return Hyper(
            seed=seed,
            forward=p.forward_factors(width=model.width, depth=model.depth, head_dim=1),
            factors=leaf_factors(p, self.specs(model), family_of(optimizer.name)),
            **values,
        )


def problem_of(settings: Settings) -> Problem:
    """Raises SettingsError for a name that does not exist, ValueError for bad data or a batch larger than the data."""
    check_names(settings)
    dataset = SOURCES[settings.data.name]()
    per_epoch = steps_per_epoch(len(dataset.train.labels), settings.data.batch_size)
    return Problem(dataset, max(1, round(settings.epochs * per_epoch)), settings.schedule)


@functools.lru_cache
def _specs(model: ModelSettings, features: int, outputs: int) -> PyTree:
    def init(width: int, depth: int) -> PyTree:
        sized = dataclasses.replace(model, width=width, depth=depth)
        return build_model(sized, outputs).init(jax.random.key(0), jnp.ones((1, features)), UNIT)["params"]

    return infer_specs(init, width=model.width, depth=model.depth)


@functools.lru_cache
def _trainer(model: ModelSettings, features: int, outputs: int, optimizer: str, schedule: str, steps: int) -> Trainer:
    module = build_model(model, outputs)

    def init_params(key: jax.Array) -> PyTree:
        return module.init(key, jnp.ones((1, features)), UNIT)["params"]

    def apply(params: PyTree, inputs: jax.Array, forward: ForwardFactors) -> jax.Array:
        return module.apply({"params": params}, inputs, forward)  # type: ignore[return-value]

    return make_trainer(init_params, apply, optimizer, SCHEDULES[schedule](steps))
