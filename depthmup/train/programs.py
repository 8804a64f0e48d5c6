"""What is compiled for trials of one shape: start, advance by some steps, evaluate."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from depthmup.data import Batches
from depthmup.data.dataset import Records, Split
from depthmup.data.pipeline import EVALUATION_BATCH, TRAIN_EVALUATED, Batch, part_of
from depthmup.train.parallel import TrialMap
from depthmup.train.step import NEVER, Hyper, Trainer, TrainState, diverged, going

PyTree = Any
Measurement = tuple[Callable[..., dict[str, jax.Array]], Any]
CHUNK = 64  # steps that one program can take at most
AHEAD = 2  # steps that the host may be ahead of the devices: the next batches travel while a step is computed


class Programs:
    """Compiled once for a trainer, a data set and a `TrialMap`, for as many groups of trials as you like.

    What fits in memory lies on the devices as raw pixels, and up to CHUNK steps are one program that indexes, augments
    and trains: the host does nothing per step. For data on disk a step is one program, and the host hands it the batch.

    measurement: (state, hyper, batch) -> arrays, and the batch that they are measured on.
    waited: seconds so far that were spent on getting a batch while the devices had nothing left to do, at most.
    """

    def __init__(
        self, trainer: Trainer, batches: Batches, trial_map: TrialMap, measurement: Measurement | None = None
    ) -> None:
        self.batches, self.map = batches, trial_map
        self.stepwise = not batches.dataset.in_memory
        self.waited = 0.0
        self._last: Any = None  # metrics of the step that was handed over last
        self._source: Generator[Batch, None, None] | None = None
        self._next_step = -1  # of `_source`
        processes = jax.process_count() if trial_map.by_batch else 1
        self.shard = (jax.process_index() if trial_map.by_batch else 0, processes)
        devices = len(trial_map.devices) if trial_map.by_batch else 1
        if batches.batch_size % devices:
            raise ValueError(f"a batch of {batches.batch_size} cannot be split evenly over {devices} devices")
        self.evaluation_batch = -(-EVALUATION_BATCH // devices) * devices
        self._part = part_of(batches.batch_size, self.shard)
        self._places = np.arange(batches.batch_size, dtype=np.int32)[self._part]

        # Where the trials of a device run one after another, one that is frozen takes no time.
        one_by_one = not trial_map.by_batch and (trial_map.layout == "map" or trial_map.per_device == 1)

        def step(state: TrainState, hyper: Hyper, batch: Any, number: Any) -> tuple[TrainState, Any]:
            places, inputs, labels = batch
            return trainer.train_step(state, (batches.prepare(inputs, number, places), labels), hyper)

        def steps(
            state: TrainState, hyper: Hyper, order: Any, split: Any, first: Any, count: Any
        ) -> tuple[TrainState, Any]:
            places, indices = order

            def at(i: Any, state: TrainState) -> tuple[TrainState, Any]:
                batch = jax.tree.map(lambda leaf: leaf[indices[:, i]], split)
                return step(state, hyper, (places, *batch), first + i)

            def next_step(i: Any, carry: tuple[TrainState, Any]) -> tuple[TrainState, Any]:
                state, metrics = at(i, carry[0])
                return state, jax.tree.map(lambda all, one: all.at[i].set(one), carry[1], metrics)

            # The number of steps is traced, so that a shorter stretch before an evaluation is no other program.
            shapes = jax.eval_shape(at, 0, state)[1]
            metrics = jax.tree.map(lambda leaf: jnp.full((CHUNK, *leaf.shape), jnp.nan, leaf.dtype), shapes)
            if not one_by_one:
                return jax.lax.fori_loop(0, count, next_step, (state, metrics))

            def more(carry: Any) -> jax.Array:
                return (carry[0] < count) & going(carry[1], hyper)

            last, state, metrics = jax.lax.while_loop(
                more, lambda carry: (carry[0] + 1, *next_step(carry[0], carry[1:])), (jnp.int32(0), state, metrics)
            )
            return state._replace(step=state.step + count - last), metrics

        def evaluate(state: TrainState, hyper: Hyper, batch: Any) -> Any:
            inputs, labels = batch

            def evaluated() -> Any:
                return trainer.evaluate(state, (batches.prepare(inputs), labels), hyper)

            if not one_by_one:
                return evaluated()
            nothing = jax.tree.map(lambda leaf: jnp.ones(leaf.shape, leaf.dtype), jax.eval_shape(evaluated))
            return jax.lax.cond(hyper.steps > 0, evaluated, lambda: nothing)  # of no step: it only fills up a group

        self._init = trial_map.over(trainer.init, trial=1)
        self._evaluate = trial_map.over(evaluate, trial=2, batch=1)
        if measurement:
            if trial_map.by_batch:
                raise ValueError("a measurement is of whole trials: it cannot be split over the devices by batch")
            quantities, self._examples = measurement

            def measure(state: TrainState, hyper: Hyper, batch: Any) -> Any:
                if not one_by_one:
                    return quantities(state, hyper, batch)
                nothing = jax.tree.map(
                    lambda leaf: jnp.full(leaf.shape, jnp.nan, leaf.dtype),
                    jax.eval_shape(quantities, state, hyper, batch),
                )
                there = (state.halted == NEVER) & (hyper.steps > 0)
                return jax.lax.cond(there, lambda: quantities(state, hyper, batch), lambda: nothing)

            self._measure = trial_map.over(measure, trial=2, batch=1)
        if self.stepwise:
            self._step = trial_map.over(step, trial=2, batch=1, shared=1, donate=True)
        else:
            self._steps = trial_map.over(steps, trial=2, batch=1, shared=3, donate=True)
            self._split = trial_map.replicate(tuple(batches.dataset.train))

    def start(self, hypers: Sequence[Hyper]) -> tuple[Any, Any]:
        """(state, hyper) of the trials, on the devices. Raises ValueError if they are not as many as compiled for."""
        if len(hypers) != self.map.trials:
            raise ValueError(f"this loop is compiled for {self.map.trials} trials, got {len(hypers)}")
        hyper = self.map.split([h.arrays() for h in hypers])
        return self._init(hyper), hyper

    def advance(
        self,
        state: Any,
        hyper: Any,
        start: int,
        stop: int,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> tuple[Any, list[Any]]:
        """Train steps start..stop-1; the old state is gone. (state, what `read` takes).

        meanwhile: called once the devices have enough to do; to wait for what came before keeps none of them waiting.
        """
        parts: list[Any] = []
        if not self.stepwise:
            for first in range(start, stop, CHUNK):
                count = min(CHUNK, stop - first)
                indices = np.zeros((len(self._places), CHUNK), np.int32)
                indices[:, :count] = self.batches.indices(first, first + count)[:, self._part].T
                order = self.map.spread((self._places, indices))
                state, metrics = self._steps(state, hyper, order, self._split, np.int32(first), np.int32(count))
                parts.append((metrics, count))
                if len(parts) == 1:
                    meanwhile()
            return state, parts
        for number in range(start, stop):
            before = time.perf_counter()
            batch = self.map.spread((self._places, *self._batch(number)))
            if all(leaf.is_ready() for leaf in jax.tree.leaves(self._last)):
                self.waited += time.perf_counter() - before
            state, metrics = self._step(state, hyper, batch, np.int32(number))
            self._last = metrics
            parts.append((metrics, None))
            if number == min(start + AHEAD, stop) - 1:
                meanwhile()
            if len(parts) > AHEAD:
                jax.block_until_ready(parts[-1 - AHEAD][0])
        return state, parts

    def read(self, parts: list[Any]) -> dict[str, np.ndarray]:
        """Metrics of every step, each (trials, steps); waits for the devices."""
        stretches = []
        for metrics, count in parts:
            joined = self.map.join(metrics)
            stretches.append({k: v[:, None] if count is None else v[:, :count] for k, v in joined.items()})
        return {name: np.concatenate([s[name] for s in stretches], axis=1) for name in stretches[0]}

    def evaluate(self, state: Any, hyper: Any, split: Split | Records) -> dict[str, np.ndarray]:
        """Loss and accuracy over a split (of the training split its first examples), each (trials,)."""
        limit = TRAIN_EVALUATED if split is self.batches.dataset.train else None
        queue: deque[Any] = deque()
        total: Any = None

        def add(total: Any, sums: Any) -> Any:
            sums = jax.tree.map(lambda leaf: leaf.astype(np.float64), self.map.join(sums))
            return sums if total is None else jax.tree.map(np.add, total, sums)

        for batch in self.batches.evaluation(split, limit, self.evaluation_batch, self.shard):
            queue.append(self._evaluate(state, hyper, self.map.spread(batch)))
            if len(queue) > AHEAD:
                total = add(total, queue.popleft())
        for sums in queue:
            total = add(total, sums)
        return {name: np.asarray(total[name].compute(), np.float32) for name in ("loss", "accuracy")}

    def metrics(self, state: Any, hyper: Any) -> dict[str, np.ndarray]:
        """All splits of a state at the end of training, each (trials,).

        "loss" and "accuracy" of the training split (its first 10,000 examples), the same with "validation_" and
        "test_", and "diverged": the trial was frozen, or its loss ended above twice the first batch's or not finite.
        The losses of a frozen trial are NaN.
        """
        data = self.batches.dataset
        result: dict[str, np.ndarray] = {}
        halted = self.halted(state) != NEVER
        for prefix, split in (("", data.train), ("validation_", data.validation), ("test_", data.test)):
            values = self.evaluate(state, hyper, split)
            values["loss"] = np.where(halted, np.float32(np.nan), values["loss"])
            result |= {prefix + name: value for name, value in values.items()}
        first = self.map.join(state.first_loss)
        return {**result, "diverged": diverged(result["loss"], first)}

    def measure(self, state: Any, hyper: Any) -> dict[str, np.ndarray]:
        """The measurement of every trial, (trials, ...) each; NaN of one that has diverged."""
        values = self.map.join(self._measure(state, hyper, self._examples))
        good = self.halted(state) == NEVER
        return {k: np.where(good.reshape(-1, *[1] * (v.ndim - 1)), v, np.nan) for k, v in values.items()}

    def halted(self, state: Any) -> np.ndarray:
        """`TrainState.halted` of every trial."""
        return self.map.join(state.halted)

    def close(self) -> None:
        """End the data set's workers."""
        if self._source:
            self._source.close()
        self._source, self._next_step = None, -1

    def _batch(self, number: int) -> Batch:
        """The raw batch of a step; those of the following steps are read ahead."""
        if self._next_step != number:
            self.close()
            self._source = self.batches.train(number, 2**30, self.shard)
        self._next_step = number + 1
        assert self._source is not None
        return next(self._source)
