"""The loop: trials of one shape together, in chunks of steps. A single run is a sweep of one."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from depthmup.data import Dataset, batch_indices, steps_per_epoch
from depthmup.train.parallel import TrialMap
from depthmup.train.step import Hyper, Metrics, Trainer, TrainState

Progress = Callable[[int, np.ndarray], None]  # (steps done, (trials, steps of the chunk) losses)


class TrialLoop:
    """Compiled once for a trainer, a data set and a number of trials; `run` it for as many groups as you like.

    A chunk of steps is one program that indexes the data set itself: the host does nothing per step. In the layout
    "turn" a step is one program, and the host hands it the batch.
    """

    def __init__(
        self,
        trainer: Trainer,
        dataset: Dataset,
        *,
        trials: int,
        batch_size: int,
        data_seed: int,
        layout: str | None = None,
        devices: Sequence[jax.Device] | None = None,
    ) -> None:
        steps_per_epoch(len(dataset.train.labels), batch_size)  # raises if there is not one batch
        self.dataset, self.batch_size, self.data_seed = dataset, batch_size, data_seed
        self.map = TrialMap(trials, layout or trainer.layout, devices)

        def step(state: TrainState, hyper: Hyper, batch: Any) -> tuple[TrainState, jax.Array]:
            state, metrics = trainer.train_step(state, batch, hyper)
            return state, metrics["loss"]

        def in_one_program(
            state: TrainState, hyper: Hyper, split: Any, indices: jax.Array
        ) -> tuple[TrainState, jax.Array]:
            def next_step(state: TrainState, index: jax.Array) -> tuple[TrainState, jax.Array]:
                return step(state, hyper, jax.tree.map(lambda leaf: leaf[index], split))

            return jax.lax.scan(next_step, state, indices)

        def evaluate(state: TrainState, hyper: Hyper, train: Any, validation: Any) -> Metrics:
            on_train, held_out = (trainer.evaluate(state, split, hyper) for split in (train, validation))
            return {**on_train, "validation_loss": held_out["loss"], "validation_accuracy": held_out["accuracy"]}

        self.init = self.map.over(trainer.init, mapped=1)
        if self.map.layout == "turn":
            one_step = self.map.over(step, mapped=2, shared=1, donate=True)
            self.advance: Callable[..., Any] = functools.partial(step_by_step, one_step)
        else:
            self.advance = self.map.over(in_one_program, mapped=2, shared=2, donate=True)
        self.evaluate = self.map.over(evaluate, mapped=2, shared=2)

    def run(
        self, hypers: Sequence[Hyper], steps: int, chunk: int | None = None, progress: Progress | None = None
    ) -> dict[str, np.ndarray]:
        """Train all trials for `steps` steps, `chunk` of them per call; metrics at the end, each (trials,).

        "loss", "accuracy" over the whole training split, "validation_loss", "validation_accuracy", and "diverged": the
        loss ended not finite or above twice the first batch's.
        """
        if len(hypers) != self.map.trials:
            raise ValueError(f"this loop is compiled for {self.map.trials} trials, got {len(hypers)}")
        hyper = self.map.split([h.arrays() for h in hypers])
        state = self.init(hyper)
        chunk = chunk or steps
        for start in range(0, steps, chunk):
            stop = min(start + chunk, steps)
            examples = len(self.dataset.train.labels)
            indices = batch_indices(examples, self.batch_size, start, stop, self.data_seed)
            state, losses = self.advance(state, hyper, self.dataset.train, indices)
            if progress:
                progress(stop, self.map.join(losses))
        return self.map.join(self.evaluate(state, hyper, self.dataset.train, self.dataset.validation))


def step_by_step(
    step: Callable[..., Any], states: list[TrainState], hypers: list[Hyper], split: Any, indices: np.ndarray
) -> tuple[list[TrainState], list[np.ndarray]]:
    """A chunk in the layout "turn": states and losses (devices, steps), one for each turn."""
    losses = []
    for index in indices:
        results = step(states, hypers, jax.tree.map(lambda leaf, index=index: leaf[index], split))
        states = [state for state, _ in results]
        losses.append([loss for _, loss in results])
    return states, [np.stack([np.asarray(loss) for loss in turn], axis=1) for turn in zip(*losses, strict=True)]
