"""Settings -> model, specs, trainer and hyperparameters: the one way that data flows (docs/design.md)."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from depthmup.data import SOURCES, Dataset, steps_per_epoch
from depthmup.models import ACTIVATIONS, MODELS
from depthmup.optim import family_of
from depthmup.parameterization import ForwardFactors, Parameterization, unknown
from depthmup.settings import ModelSettings, OptimizerSettings, ParameterizationSettings, Settings, SettingsError
from depthmup.specs import factors as leaf_factors
from depthmup.specs import infer_specs
from depthmup.train.step import Hyper, Trainer, make_trainer

PyTree = Any
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
    ):
        if name not in known:
            raise SettingsError(str(unknown(key, name, known)))


def load_data(settings: Settings) -> tuple[Dataset, int]:
    """The data set and the number of training steps. Raises ValueError for bad data or a batch larger than the data."""
    dataset = SOURCES[settings.data.name]()
    per_epoch = steps_per_epoch(len(dataset.train.labels), settings.data.batch_size)
    return dataset, max(1, round(settings.epochs * per_epoch))


def build_model(model: ModelSettings, outputs: int) -> nn.Module:
    arguments = {k: v for k, v in dataclasses.asdict(model).items() if k != "name"}
    return MODELS[model.name](**arguments, outputs=outputs)


@functools.lru_cache
def specs_of(model: ModelSettings, features: int, outputs: int) -> PyTree:
    """The spec tree of the model at its width and depth."""

    def init(width: int, depth: int) -> PyTree:
        sized = dataclasses.replace(model, width=width, depth=depth)
        return build_model(sized, outputs).init(jax.random.key(0), jnp.ones((1, features)), UNIT)["params"]

    return infer_specs(init, width=model.width, depth=model.depth)


def trainer_of(model: ModelSettings, features: int, outputs: int, optimizer: str) -> Trainer:
    module = build_model(model, outputs)

    def init_params(key: jax.Array) -> PyTree:
        return module.init(key, jnp.ones((1, features)), UNIT)["params"]

    def apply(params: PyTree, inputs: jax.Array, forward: ForwardFactors) -> jax.Array:
        return module.apply({"params": params}, inputs, forward)

    return make_trainer(init_params, apply, optimizer)


def hyper_of(
    p: Parameterization | ParameterizationSettings,
    specs: PyTree,
    optimizer: OptimizerSettings,
    *,
    width: int,
    depth: int,
    seed: int,
) -> Hyper:
    """The hyperparameters of one trial, factors included."""
    p = p.build() if isinstance(p, ParameterizationSettings) else p
    values = {k: v for k, v in dataclasses.asdict(optimizer).items() if k != "name"}
    return Hyper(
        seed=seed,
        forward=p.forward_factors(width=width, depth=depth, head_dim=1),
        factors=leaf_factors(p, specs, family_of(optimizer.name)),
        **values,
    )
