"""The coordinate check of a config: its model at many widths and depths, trained by `Task.step`."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping

import jax

from depthmup.measure import CoordinateReport, Probe, coordinate_check, groups_of, train_only
from depthmup.recipe import Recipe
from depthmup.rules.optim import ConfigOptimizer
from depthmup.settings import Settings
from depthmup.train.build import batches_of, examples, hyper_of, task_of
from depthmup.train.task import Task
from depthmup.train.trainable import FOREVER, Batch, Hyper, TrainState


def check_optimizer(
    settings: Settings, name: ConfigOptimizer, progress: Callable[[str], None] = lambda text: None
) -> CoordinateReport:
    """The coordinate check of one optimizer. The base width and base depth are 1 (the absolute form)."""
    c = settings.check
    return coordinate_check(
        functools.partial(probe_at, settings, name),
        widths=c.widths,
        depths=c.depths,
        width=c.width,
        depth=c.depth,
        steps=c.steps,
        seeds=c.seeds,
        max_seeds=c.max_seeds,
        tolerance=c.tolerance,
        title=f"{settings.parameterization.name}, {name}, learning rate 2^{c.log2_learning_rates[name]:g}",
        progress=progress,
    )


def probe_at(settings: Settings, name: ConfigOptimizer, width: int, depth: int) -> Probe:
    """The `Probe` of the config's model at one width and depth, trained by `name` at a constant learning rate."""
    beta0 = settings.parameterization.beta0 * settings.check.beta0
    rate = 2.0 ** settings.check.log2_learning_rates[name]
    s = dataclasses.replace(
        settings,
        model=dataclasses.replace(settings.model, width=width, depth=depth),
        parameterization=dataclasses.replace(settings.parameterization, base_width=1, base_depth=1, beta0=beta0),
        optimizer=dataclasses.replace(settings.optimizer, name=name, learning_rate=rate),
    )
    task = task_of(s, Recipe(schedule="constant", loss=settings.loss))
    full = hyper_of(s)._replace(steps=FOREVER, warmup=0)

    def hyper(group: str, seed: int) -> Hyper:
        return full._replace(seed=seed, factors=train_only(full.factors, task.specs, group)).arrays()

    batch = examples(batches_of(s), settings.check.batch_size)
    return Probe(jax.jit(task.init), task.step, _features(task), hyper, groups_of(task.specs), batch)


@functools.lru_cache
def _features(task: Task) -> Callable[[TrainState, Batch, Hyper], Mapping[str, jax.Array]]:
    """The function that returns what the model sows in "features", its logits and, of a language model, its loss.

    The same task gets the same function, so that checks share compiled programs.
    """

    def features(state: TrainState, batch: Batch, hyper: Hyper) -> Mapping[str, jax.Array]:
        logits, sown = task.sown("features", state.params, state, batch, hyper)
        if not task.model.tokens:
            return {**sown, "logits": logits}
        return {**sown, "logits": logits, "loss": task.recipe.example_losses(logits, batch[1], train=True).mean()}

    return features
