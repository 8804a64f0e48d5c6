"""The loop: trials of one shape together, in chunks of steps. A single run is a sweep of one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from depthmup.data import Batches
from depthmup.data.pipeline import TRAIN_EVALUATED, Batch
from depthmup.train.parallel import TrialMap
from depthmup.train.step import Hyper, Trainer, TrainState, diverged

Progress = Callable[[int, np.ndarray], None]  # (steps done, (trials, steps of the chunk) losses)
AHEAD = 2  # steps that the host may be ahead of the devices: the next batches travel while a step is computed


class TrialLoop:
    """Compiled once for a trainer, a data set and a number of trials; `run` it for as many groups as you like.

    What fits in memory lies on the devices as raw pixels, and a chunk of steps is one program that indexes, augments
    and trains: the host does nothing per step. In the layout "turn", and for data on disk, a step is one program, and
    the host hands it the batch.
    """

    def __init__(
        self,
        trainer: Trainer,
        batches: Batches,
        *,
        trials: int,
        layout: str | None = None,
        devices: Sequence[jax.Device] | None = None,
    ) -> None:
        self.batches = batches
        self.map = TrialMap(trials, layout or trainer.layout, devices)
        self.stepwise = self.map.layout == "turn" or not batches.dataset.in_memory

        def step(state: TrainState, hyper: Hyper, batch: Any, number: Any) -> tuple[TrainState, jax.Array]:
            inputs, labels = batch
            state, metrics = trainer.train_step(state, (batches.prepare(inputs, number), labels), hyper)
            return state, metrics["loss"]

        def chunk(
            state: TrainState, hyper: Hyper, split: Any, indices: jax.Array, numbers: jax.Array
        ) -> tuple[TrainState, jax.Array]:
            def next_step(state: TrainState, at: tuple[jax.Array, jax.Array]) -> tuple[TrainState, jax.Array]:
                index, number = at
                return step(state, hyper, jax.tree.map(lambda leaf: leaf[index], split), number)

            return jax.lax.scan(next_step, state, (indices, numbers))

        def evaluate(state: TrainState, hyper: Hyper, batch: Any) -> dict[str, jax.Array]:
            inputs, labels = batch
            sums = trainer.evaluate(state, (batches.prepare(inputs), labels), hyper)
            return {**sums, "first_loss": state.first_loss}

        self.init = self.map.over(trainer.init, mapped=1)
        self.evaluate = self.map.over(evaluate, mapped=2, shared=1)
        if self.stepwise:
            self.step = self.map.over(step, mapped=2, shared=2, donate=True)
        else:
            self.chunk = self.map.over(chunk, mapped=2, shared=3, donate=True)
            self.split = self.map.replicate(tuple(batches.dataset.train))

    def run(
        self, hypers: Sequence[Hyper], steps: int, chunk: int | None = None, progress: Progress | None = None
    ) -> dict[str, np.ndarray]:
        """Train all trials for `steps` steps, `chunk` of them per call; metrics at the end, each (trials,).

        "loss" and "accuracy" on the training split (its first 10,000 examples), the same with "validation_" and
        "test_", and "diverged": the loss ended not finite or above twice the first batch's.
        """
        if len(hypers) != self.map.trials:
            raise ValueError(f"this loop is compiled for {self.map.trials} trials, got {len(hypers)}")
        hyper = self.map.split([h.arrays() for h in hypers])
        state, chunk = self.init(hyper), chunk or steps
        source = self.batches.train(0, steps) if self.stepwise else None
        for start in range(0, steps, chunk):
            stop = min(start + chunk, steps)
            numbers = np.arange(start, stop, dtype=np.int32)
            if source:
                state, losses = self._step_by_step(state, hyper, zip(numbers, source, strict=False))
            else:
                state, losses = self.chunk(state, hyper, self.split, self.batches.indices(start, stop), numbers)
            if progress:
                progress(stop, self.map.join(losses))
        if source:
            source.close()  # and with it the workers
        return self.metrics(state, hyper)

    def metrics(self, state: Any, hyper: Any) -> dict[str, np.ndarray]:
        """What `run` returns, of a state."""
        data, result = self.batches.dataset, {}
        for prefix, split in (("", data.train), ("validation_", data.validation), ("test_", data.test)):
            limit = TRAIN_EVALUATED if split is data.train else None
            parts = [self.evaluate(state, hyper, batch) for batch in self.batches.evaluation(split, limit)]
            joined = [self.map.join(part) for part in parts]
            total = {name: np.stack([part[name] for part in joined]).sum(0, np.float64) for name in joined[0]}
            result[f"{prefix}loss"] = np.asarray(total["loss"] / total["examples"], np.float32)
            result[f"{prefix}accuracy"] = np.asarray(total["correct"] / total["examples"], np.float32)
            if not prefix:
                result["diverged"] = diverged(result["loss"], joined[0]["first_loss"])
        return result

    def _step_by_step(self, state: Any, hyper: Any, numbered: Iterator[tuple[np.int32, Batch]]) -> tuple[Any, Any]:
        """A chunk, each step a program: the state, and losses as `join` takes them."""
        losses: list[Any] = []
        for number, batch in numbered:
            result = self.step(state, hyper, batch, number)
            if self.map.layout == "turn":
                result = [state for state, _ in result], [loss for _, loss in result]
            state, loss = result
            losses.append(loss)
            if len(losses) > AHEAD:
                jax.block_until_ready(losses[-1 - AHEAD])
        return state, jax.tree.map(lambda *steps: np.stack([np.asarray(loss) for loss in steps], axis=-1), *losses)
