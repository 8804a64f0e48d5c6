"""Batches of a data set for training and evaluation, and the preparation of their inputs on the device."""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging

from depthmup.data.augment import NONE, Augment, augment
from depthmup.data.batches import batch_indices, shuffled, steps_per_epoch
from depthmup.data.dataset import Dataset, Records, Split
from depthmup.data.tokens import Windows, ahead

EVALUATION_BATCH = 256
EVALUATION_TOKENS = 2**14  # tokens of a batch of windows, at most: EVALUATION_BATCH of them may not fit on a device
TRAIN_EVALUATED = 10_000  # The training split is evaluated on its first labels; the split's order is random.
Batch = tuple[np.ndarray, np.ndarray]  # raw inputs (batch, ...), labels (batch,) or, of tokens, (batch, context) int32


@dataclasses.dataclass(frozen=True)
class Batches:
    """The batches of a data set: a pure function of (seed, step), the same for all trials, devices and workers.

    Raises ValueError if a batch is larger than the training split, and for an augmentation of tokens.
    """

    dataset: Dataset
    batch_size: int
    seed: int = 0
    augment: Augment = NONE
    workers: int = 0  # number of processes that decode records from disk; 0: threads of this process decode
    skip_corrupt: bool = False  # go on without records that cannot be read, instead of raising CorruptRecord

    def __post_init__(self) -> None:
        self.steps_per_epoch  # noqa: B018 - raises
        if self.dataset.tokens and self.augment != NONE:
            raise ValueError("data.augment changes images, and these examples are tokens: leave its keys as they are")

    @property
    def steps_per_epoch(self) -> int:
        return steps_per_epoch(self.dataset.train.examples, self.batch_size)

    @property
    def train_evaluated(self) -> int:
        """The number of training examples that are evaluated."""
        labels = self.dataset.shape[0] if self.dataset.tokens else 1
        return min(self.dataset.train.examples, max(1, TRAIN_EVALUATED // labels))

    def indices(self, start: int, stop: int) -> np.ndarray:
        """The indices of the training examples of steps start..stop-1, (steps, batch_size) int32."""
        return batch_indices(self.dataset.train.examples, self.batch_size, start, stop, self.seed)

    def train(self, start: int, stop: int, shard: tuple[int, int] = (0, 1)) -> Generator[Batch, None, None]:
        """The raw batches of steps start..stop-1. Images of a data set on disk are already cropped.

        shard: (number of this process, number of processes); each process gets its part of every batch.
        """
        split, part = self.dataset.train, part_of(self.batch_size, shard)
        if isinstance(split, Split):
            for step in range(start, stop):
                yield split.at(self.indices(step, step + 1)[0, part])
            return
        if isinstance(split, Windows):

            def batch(step: int) -> Batch:
                epoch, place = divmod(step, self.steps_per_epoch)
                places = np.arange(self.batch_size)[part] + place * self.batch_size
                return split.read(shuffled(split.examples, self.seed, epoch, places))

            yield from ahead(batch, start, stop)
            return
        from depthmup.data.stream import Examples, stream

        examples = Examples(split, self.batch_size, start, stop, self.augment.crop, self.seed, self.skip_corrupt, shard)
        yield from _counted(stream(examples, self.workers), split)

    def evaluation(
        self,
        split: Split | Records | Windows,
        examples: int | None = None,
        batch_size: int = EVALUATION_BATCH,
        shard: tuple[int, int] = (0, 1),
    ) -> Iterator[Batch]:
        """Batches of the first `examples` of a split (None: all) in order. The last batch is filled up with examples of
        label -1.

        shard: as in `train`.
        """
        count = min(examples or split.examples, split.examples)
        steps = -(-count // batch_size)
        if not isinstance(split, Records):
            for start in range(0, steps * batch_size, batch_size):
                places = np.arange(start, start + batch_size)[part_of(batch_size, shard)]
                inputs, labels = split.at(np.minimum(places, count - 1))
                yield inputs, np.where((places < count).reshape(-1, *[1] * (labels.ndim - 1)), labels, -1)
            return
        from depthmup.data.stream import Examples, stream

        split = split._replace(order=split.order[:count])
        ordered = Examples(split, batch_size, 0, steps, skip_corrupt=self.skip_corrupt, shard=shard)
        yield from _counted(stream(ordered, self.workers), split)

    @property
    def in_memory(self) -> bool:
        return self.dataset.in_memory

    @property
    def splits(self) -> dict[str, Split | Records | Windows]:
        data = self.dataset
        return {"": data.train, "validation_": data.validation, "test_": data.test}

    def evaluated(
        self, split: Split | Records | Windows, parts: int = 1, shard: tuple[int, int] = (0, 1)
    ) -> Iterator[Batch]:
        """The batches on which a split is evaluated, of the training split its first `train_evaluated` examples."""
        limit, size = self.train_evaluated if split is self.dataset.train else None, EVALUATION_BATCH
        if isinstance(split, Windows):
            size = min(size, -(-EVALUATION_TOKENS // split.context))
        return self.evaluation(split, limit, -(-size // parts) * parts, shard)

    @property
    def evaluated_examples(self) -> int:
        data = self.dataset
        return self.train_evaluated + data.validation.examples + data.test.examples

    def resident(self) -> Batch:
        """(inputs (examples, numbers of an example), labels) of the training split. A TPU pads an array's last axes: of
        images those are three channels, which a program would copy into another layout, eight times as large, before it
        picks from them."""
        split = self.dataset.train
        assert isinstance(split, Split)
        return split.inputs.reshape(split.examples, -1), split.labels

    def pick(self, resident: tuple[jax.Array, jax.Array], indices: jax.Array, step: jax.Array) -> Any:
        inputs, labels = jax.tree.map(lambda leaf: leaf[indices], resident)
        return inputs.reshape(-1, *self.dataset.shape), labels

    def raw_shapes(self, examples: int) -> Any:
        kind = np.int32 if isinstance(self.dataset.train, Windows) else np.uint8
        inputs = jax.ShapeDtypeStruct((examples, *self.dataset.shape), kind)
        labels = (examples, *self.dataset.shape) if self.dataset.tokens else (examples,)
        return inputs, jax.ShapeDtypeStruct(labels, np.int32)

    def prepared(self, raw: Any, step: Any = None, places: Any = None) -> tuple[jax.Array, jax.Array]:
        """(inputs, labels) with `prepare`d inputs."""
        inputs, labels = raw
        return self.prepare(inputs, step, places), labels

    def prepare(
        self, inputs: jax.Array, step: jax.Array | int | None = None, places: jax.Array | None = None
    ) -> jax.Array:
        """Raw inputs -> the network's inputs, inside the compiled step: augmented if `step` is given, then normalized;
        tokens as int32.

        Augmentation depends on (seed, step, place in the batch) only, so it is the same for all trials.
        places: (examples,) int, the inputs' places in the whole batch; None: the inputs are the whole batch.
        """
        if self.dataset.mean is None:
            return inputs.astype(jnp.int32)
        how = self.augment if self.dataset.in_memory else dataclasses.replace(self.augment, crop=(1.0, 1.0))
        if step is not None and how != NONE:
            inputs = augment(jax.random.fold_in(jax.random.key(self.seed), step), inputs, how, places)
        mean, std = (jnp.asarray(x, jnp.float32) for x in (self.dataset.mean, self.dataset.std))
        return (inputs.astype(jnp.float32) - mean) / std


def part_of(batch_size: int, shard: tuple[int, int]) -> slice:
    """The places in a batch that belong to one process. shard: (number of the process, number of processes)."""
    size = batch_size // shard[1]
    return slice(shard[0] * size, (shard[0] + 1) * size)


def _counted(batches: Iterator[tuple[Batch, int]], records: Records) -> Iterator[Batch]:
    corrupt = 0
    for batch, passed in batches:
        corrupt += passed
        yield batch
    if corrupt:
        logging.warning("%s: %d corrupt records were passed over", records.name, corrupt)
