"""Settings -> data, task and hyperparameters. A config reaches the training step only this way (docs/design.md)."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from depthmup.data import Batches, load
from depthmup.models import MODELS
from depthmup.rules.batch_rules import Run
from depthmup.settings import Settings, SettingsError
from depthmup.train.step import Hyper
from depthmup.train.task import Task
from depthmup.training_settings import Recipe

# JAX finds a compiled program by its function object. Bound methods of two equal tasks are different functions, so
# equal tasks must be one object to share programs.
_task = functools.lru_cache(Task)
FILES = "files of data.data_dir"  # the entry of an identity that says which images, text or tokens it has


def batches_of(settings: Settings) -> Batches:
    """The batches of a config's data set. Raises ValueError for bad data or a batch larger than the data set."""
    data = settings.data
    dataset = load(
        data.name, data.data_dir, data.image_size, data.skip_corrupt, data.context, data.verify, data.vocabulary
    )
    return Batches(dataset, data.batch_size, data.seed, data.augment, data.workers, data.skip_corrupt)


def identity_of_data(settings: Settings) -> dict[str, str]:
    """What decides the examples besides the settings, to be kept beside results: nothing, or the files of a folder, a
    text or tokens."""
    digest = batches_of(settings).dataset.digest
    return {FILES: digest} if digest else {}


def check_split(settings: Settings, devices: int, by: str) -> None:
    """Raises SettingsError if a batch does not split over so many devices. by: the key that sets their number."""
    parts = devices * settings.accumulate
    if settings.data.batch_size % parts:
        raise SettingsError(
            f"data.batch_size {settings.data.batch_size} cannot be split evenly over {devices} devices "
            f"in {settings.accumulate} parts each: choose a multiple of {parts}, or fewer devices by {by}"
        )


def task_of(settings: Settings, recipe: Recipe | None = None) -> Task:
    """The training task of a config. Equal settings give the same object, so that measurements share compiled programs.

    recipe: replaces the config's own recipe.

    Raises SettingsError for settings that contradict each other, and ValueError where `batches_of` does.
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
    if model.tokens != dataset.tokens:
        kinds = {True: "tokens", False: "images"}
        raise SettingsError(
            f"model.name={settings.model.name} takes {kinds[model.tokens]}, and data.name={settings.data.name} has "
            f"{kinds[dataset.tokens]}: change one of them"
        )
    try:
        model.check((1, *dataset.shape))
    except ValueError as error:
        raise SettingsError(f"model: {error}") from error
    if settings.loss == "centered_mse" and (options.get("norm") == "batch" or options.get("dropout")):
        raise SettingsError(
            "the loss centered_mse needs a model without batch norm and dropout: it follows one function"
        )
    return _task(model, dataset.shape, settings.optimizer.name, (recipe or settings).compiled)


def hyper_of(settings: Settings) -> Hyper:
    """The hyperparameters of the trial that a config describes."""
    optimizer = optimizer_of(settings)
    traced = settings.traced(batches_of(settings).steps_per_epoch)
    return task_of(settings).hyper(settings.parameterization.build(), seed=settings.seed, **traced, **optimizer)


def config_run(settings: Settings) -> Run | None:
    """Batch size and steps beside the base's, if the config has a batch_rule."""
    if settings.parameterization.batch_rule is None:  # the steps of every trial are not counted for nothing
        return None
    return settings.parameterization.run(settings.data.batch_size, steps_of(settings))


def optimizer_of(settings: Settings) -> dict[str, Any]:
    """The optimizer's hyperparameters at the batch size and the steps of this training. Raises SettingsError for what
    the batch_rule does not allow."""
    values = {"learning_rate": settings.optimizer.learning_rate, **settings.optimizer.numbers}
    run = config_run(settings)
    try:
        return run.scaled(settings.optimizer.name, values) if run else values
    except ValueError as error:
        raise SettingsError(f"parameterization.{error}") from error


def steps_of(settings: Settings) -> int:
    """The number of steps of the whole training."""
    return settings.steps(batches_of(settings).steps_per_epoch)


def examples(batches: Batches, count: int) -> tuple[jax.Array, np.ndarray]:
    """(inputs, labels) of the first `count` training examples, normalized for the network but not augmented."""
    parts = batches.evaluation(batches.dataset.train, count)
    inputs, labels = (np.concatenate(leaves)[:count] for leaves in zip(*parts, strict=True))
    return batches.prepare(jnp.asarray(inputs)), labels
