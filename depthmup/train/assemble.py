"""Settings -> model, specs, trainer and hyperparameters: the one way that data flows (docs/design.md)."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from depthmup.data import Batches, load
from depthmup.models import MODELS, Model, model_specs, states
from depthmup.models.specs import UNIT
from depthmup.optim import family_of
from depthmup.parameterization import ForwardFactors, unknown
from depthmup.settings import ModelSettings, OptimizerSettings, ParameterizationSettings, Settings, SettingsError
from depthmup.specs import factors as leaf_factors
from depthmup.specs import group, is_spec
from depthmup.train.recipe import LOSSES, SCHEDULES, Recipe
from depthmup.train.step import Hyper, Trainer, make_trainer

PyTree = Any


class Problem(NamedTuple):
    """Data and length of training, and what is built for one model, optimizer and parameterization on them."""

    batches: Batches
    recipe: Recipe

    @property
    def steps(self) -> int:
        """Of the whole training."""
        return self.recipe.steps

    def model(self, settings: ModelSettings) -> Model:
        """The module. Raises SettingsError if a setting is out of range or does not fit the data."""
        outputs = self.batches.dataset.classes
        model = MODELS[settings.name](width=settings.width, depth=settings.depth, outputs=outputs, **settings.options)
        try:
            model.check((1, *self.input_shape))
        except ValueError as error:
            raise SettingsError(f"model: {error}") from error
        return model

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one example."""
        return self.batches.dataset.shape

    def examples(self, count: int) -> tuple[jax.Array, np.ndarray]:
        """The first training examples as the network sees them, not augmented, and their labels."""
        parts = self.batches.evaluation(self.batches.dataset.train, count)
        inputs, labels = (np.concatenate(leaves)[:count] for leaves in zip(*parts, strict=True))
        return self.batches.prepare(jnp.asarray(inputs)), labels

    def specs(self, settings: ModelSettings) -> PyTree:
        """The spec tree of the model at its width and depth."""
        return _specs(self.model(settings), self.input_shape)

    def trainer(self, settings: ModelSettings, optimizer: str) -> Trainer:
        """The training functions of a model; the same objects for the same arguments, so that programs are shared."""
        return _trainer(self.model(settings), self.input_shape, optimizer, self.recipe.static)

    def hyper(
        self,
        settings: ModelSettings,
        parameterization: ParameterizationSettings,
        optimizer: OptimizerSettings,
        seed: int,
    ) -> Hyper:
        """The hyperparameters of one trial, factors included."""
        p, model = parameterization.build(), self.model(settings)
        values = {k: v for k, v in dataclasses.asdict(optimizer).items() if k != "name"}
        return Hyper(
            seed=seed,
            steps=self.recipe.steps,
            warmup=self.recipe.warmup,
            label_noise=self.recipe.label_noise,
            forward=p.forward_factors(width=model.width, depth=model.depth, head_dim=model.head_dim),
            factors=leaf_factors(p, self.specs(settings), family_of(optimizer.name)),
            **values,
        )


def problem_of(settings: Settings) -> Problem:
    """Raises SettingsError for what does not exist or does not fit, ValueError for bad data or too large a batch."""
    names: dict[str, tuple[str, Iterable[str]]] = {
        "schedule": (settings.schedule, SCHEDULES),
        "loss": (settings.loss, LOSSES),
    }
    for key, (name, known) in names.items():
        if name not in known:
            raise SettingsError(str(unknown(key, name, known)))
    data = settings.data
    dataset = load(data.name, data.data_dir, data.image_size, data.skip_corrupt)
    batches = Batches(dataset, data.batch_size, data.seed, data.augment, data.workers, data.skip_corrupt)
    recipe = recipe_of(settings, batches.steps_per_epoch)
    if data.batch_size % recipe.accumulate:
        raise SettingsError(f"data.batch_size {data.batch_size} is not a multiple of accumulate = {recipe.accumulate}")
    problem = Problem(batches, recipe)
    problem.model(settings.model)
    options = settings.model.options
    if recipe.loss == "centered_mse" and (options.get("norm") == "batch" or options.get("dropout")):
        raise SettingsError(
            "the loss centered_mse needs a model without batch norm and dropout: it follows one function"
        )
    return problem


def recipe_of(settings: Settings, per_epoch: int) -> Recipe:
    """per_epoch: steps of an epoch."""
    return Recipe(
        steps=max(1, round(settings.epochs * per_epoch)),
        schedule=settings.schedule,
        warmup=round(settings.warmup_epochs * per_epoch),
        label_noise=settings.label_noise,
        loss=settings.loss,
        label_smoothing=settings.label_smoothing,
        clip=settings.clip,
        accumulate=settings.accumulate,
        ema=settings.ema,
        log_updates=settings.log_updates,
    )


@functools.lru_cache
def _specs(model: Model, input_shape: tuple[int, ...]) -> PyTree:
    return model_specs(model, input_shape)


@functools.lru_cache
def _trainer(model: Model, input_shape: tuple[int, ...], optimizer: str, recipe: Recipe) -> Trainer:
    def init_model(key: jax.Array) -> tuple[PyTree, PyTree]:
        variables = dict(model.init(key, jnp.ones((1, *input_shape)), UNIT))
        params = variables.pop("params")
        return params, {k: v for k, v in variables.items() if k == "batch_stats"}

    def apply(
        params: PyTree, statistics: PyTree, inputs: jax.Array, forward: ForwardFactors, key: jax.Array | None
    ) -> tuple[jax.Array, PyTree]:
        variables = {"params": params, **statistics}
        if key is None:
            return model.apply(variables, inputs, forward), statistics  # type: ignore[return-value]
        return model.apply(variables, inputs, forward, train=True, mutable=list(statistics), rngs={"dropout": key})

    def stream(params: PyTree, statistics: PyTree, inputs: jax.Array, forward: ForwardFactors) -> list[jax.Array]:
        # As in training: batch norm by the batch's statistics (those of the first steps say little), one dropout mask.
        variables, rngs = {"params": params, **statistics}, {"dropout": jax.random.key(0)}
        mutable = ["stream", *statistics]
        _, sown = model.apply(variables, inputs, forward, train=True, mutable=mutable, rngs=rngs)
        return states(sown["stream"])

    groups = jax.tree.map(group, _specs(model, input_shape), is_leaf=is_spec) if recipe.log_updates else None
    return make_trainer(init_model, apply, optimizer, recipe, groups, stream)
