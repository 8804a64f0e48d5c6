"""Settings -> data, task and hyperparameters: the one way that a config reaches a training step (docs/design.md)."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from depthmup.data import Batches, load
from depthmup.models import MODELS, Model
from depthmup.settings import Settings, SettingsError
from depthmup.train.recipe import Recipe
from depthmup.train.task import Hyper, Task


def batches_of(settings: Settings) -> Batches:
    """The data set of a config, in batches. Raises ValueError for bad data or a batch larger than the data set."""
    data = settings.data
    dataset = load(data.name, data.data_dir, data.image_size, data.skip_corrupt)
    return Batches(dataset, data.batch_size, data.seed, data.augment, data.workers, data.skip_corrupt)


def task_of(settings: Settings, recipe: Recipe | None = None) -> Task:
    """The training task of a config; the same object for the same settings, so that measurements share programs.

    recipe: instead of the config's own.

    Raises SettingsError for what does not fit together, ValueError as `batches_of`.
    """
    if settings.data.batch_size % settings.accumulate:
        raise SettingsError(
            f"data.batch_size {settings.data.batch_size} is not a multiple of accumulate = {settings.accumulate}"
        )
    dataset = batches_of(settings).dataset
    options = settings.model.options
    model = MODELS[settings.model.name](
        width=settings.model.width, depth=settings.model.depth, outputs=dataset.classes, **options
    )
    try:
        model.check((1, *dataset.shape))
    except ValueError as error:
        raise SettingsError(f"model: {error}") from error
    if settings.loss == "centered_mse" and (options.get("norm") == "batch" or options.get("dropout")):
        raise SettingsError(
            "the loss centered_mse needs a model without batch norm and dropout: it follows one function"
        )
    return _task(model, dataset.shape, settings.optimizer.name, recipe or recipe_of(settings))


def recipe_of(settings: Settings) -> Recipe:
    """How a config trains."""
    return Recipe(
        schedule=settings.schedule,
        loss=settings.loss,
        label_noise=settings.label_noise > 0,
        label_smoothing=settings.label_smoothing,
        clip=settings.clip,
        accumulate=settings.accumulate,
        ema=settings.ema,
        log_updates=settings.log_updates,
    )


def hyper_of(settings: Settings) -> Hyper:
    """The hyperparameters of the trial that a config describes."""
    per_epoch = batches_of(settings).steps_per_epoch
    optimizer = {k: v for k, v in dataclasses.asdict(settings.optimizer).items() if k != "name"}
    return task_of(settings).hyper(
        settings.parameterization.build(),
        seed=settings.seed,
        steps=steps_of(settings),
        warmup=round(settings.warmup_epochs * per_epoch),
        label_noise=settings.label_noise,
        **optimizer,
    )


def steps_of(settings: Settings) -> int:
    """Steps of the whole training."""
    return max(1, round(settings.epochs * batches_of(settings).steps_per_epoch))


def examples(batches: Batches, count: int) -> tuple[jax.Array, np.ndarray]:
    """The first training examples as the network sees them, not augmented, and their labels."""
    parts = batches.evaluation(batches.dataset.train, count)
    inputs, labels = (np.concatenate(leaves)[:count] for leaves in zip(*parts, strict=True))
    return batches.prepare(jnp.asarray(inputs)), labels


@functools.lru_cache
def _task(model: Model, input_shape: tuple[int, ...], optimizer: str, recipe: Recipe) -> Task:
    # A bound method is another function for another object, though the objects are equal: programs are shared by name.
    return Task(model, input_shape, optimizer, recipe)
