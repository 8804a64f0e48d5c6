"""Batches of data sets that do not fit in memory: Grain reads, decodes and batches records in worker processes.

A position counts examples since step 0: step * batch_size + place in the batch. The example at a position is a function
of (seed, position). So batches are the same for any number of processes and workers, and a run resumes at step k by
asking for step k.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import threading
from collections.abc import Iterator
from typing import Any

import grain
import numpy as np
from absl import flags, logging

from depthmup.data.batches import epoch_order, steps_per_epoch
from depthmup.data.dataset import HINT, CorruptRecord, Records
from depthmup.data.decode import decode

AHEAD = 2  # batches that each worker keeps ready
TRIES = 100  # number of records that are tried for one position before giving up
PADDING = -1  # label of the examples that fill up the last batch of an evaluation
Batch = tuple[np.ndarray, np.ndarray]  # images (batch, size, size, channels) uint8, labels (batch,) int32


@dataclasses.dataclass(frozen=True)
class Examples:
    """The examples of this process from first_step to stop_step - 1, as a sequence with random access, which Grain
    copies to its workers.

    crop: for training, the range of shares of the area that `decode` takes. None is for evaluation: all examples once
    and in order, and the last batch filled up with label -1.
    """

    records: Records
    batch_size: int  # number of examples in a batch of all processes together
    first_step: int
    stop_step: int
    crop: tuple[float, float] | None = None
    seed: int = 0
    skip_corrupt: bool = False
    shard: tuple[int, int] = (0, 1)  # (number of this process, number of processes)

    def __len__(self) -> int:
        return (self.stop_step - self.first_step) * (self.batch_size // self.shard[1])

    def __getitem__(self, number: int) -> dict[str, Any]:
        """{"image": (size, size, channels) uint8, "label": int32, "corrupt": number of records passed over, int32}."""
        process, processes = self.shard
        local = self.batch_size // processes
        step, place = divmod(number, local)
        position = (self.first_step + step) * self.batch_size + process * local + place
        image, label, passed = self._train(position) if self.crop else self._evaluate(position)
        return {"image": image, "label": np.int32(label), "corrupt": np.int32(passed)}

    def __setstate__(self, fields: dict[str, Any]) -> None:
        """In a worker, to which Grain copies the examples. It ends when this process does, also by a kill: Grain's
        workers would wait for it for ever."""
        self.__dict__.update(fields)
        if multiprocessing.parent_process():
            threading.Thread(target=_end_with_parent, daemon=True).start()

    def _train(self, position: int) -> tuple[np.ndarray, int, int]:
        examples = self.records.examples
        epoch, place = divmod(position, steps_per_epoch(examples, self.batch_size) * self.batch_size)
        order = epoch_order(examples, self.seed, epoch)
        for passed in range(TRIES):
            try:
                rng = np.random.default_rng((self.seed, position))
                return *self._read(order[(place + passed) % examples], rng), passed
            except CorruptRecord as error:
                if not self.skip_corrupt:
                    raise
                logging.warning("%s; the next one takes its place", error)
        raise CorruptRecord(f"{self.records.name}: {TRIES} records in a row are corrupt: prepare it anew")

    def _evaluate(self, position: int) -> tuple[np.ndarray, int, int]:
        nothing = np.zeros((self.records.size, self.records.size, self.records.channels), np.uint8)
        if position >= self.records.examples:
            return nothing, PADDING, 0
        try:
            return *self._read(position, None), 0
        except CorruptRecord as error:
            if not self.skip_corrupt:
                raise
            logging.warning("%s; left out", error)
            return nothing, PADDING, 1

    def _read(self, example: int, rng: np.random.Generator | None) -> tuple[np.ndarray, int]:
        record, name = self.records.order[example], ""
        try:
            raw = self.records.source[int(record)]
            name = "".join(f" ({raw[key]})" for key in ("file_name", "id") if key in raw)
            label = int(raw["label"])
            if not 0 <= label < self.records.classes:
                raise ValueError(f"its label {label} is not in 0..{self.records.classes - 1}")
            crop, how = self.crop or (1.0, 1.0), self.records
            return decode(raw["image"], how.size, crop, rng, how.channels, how.centre), label
        except Exception as error:  # Readers and decoders raise many types for bad bytes.
            hint = "" if self.skip_corrupt else f" ({HINT})"
            raise CorruptRecord(f"{self.records.name}: record {record}{name} cannot be used: {error}{hint}") from error


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent
    parent.join()
    os._exit(1)


def stream(examples: Examples, workers: int = 0) -> Iterator[tuple[Batch, int]]:
    """(batch, number of corrupt records that were passed over for it) for each batch of this process.

    `workers` processes read and decode ahead of time; if workers is 0, threads of this process do. Raises ValueError if
    the processes cannot share a batch evenly, CorruptRecord at a corrupt record unless `examples` skips them.
    """
    processes = examples.shard[1]
    if examples.batch_size % processes:
        raise ValueError(f"batch_size {examples.batch_size} is not a multiple of the {processes} processes")
    # Grain's workers leave shared memory behind when they reach the end of the examples. So the examples have no end
    # here, and the workers are closed instead.
    endless = dataclasses.replace(examples, stop_step=examples.stop_step + 2**30)
    batches = grain.MapDataset.source(endless).batch(examples.batch_size // processes)
    if workers:
        if not flags.FLAGS.is_parsed():  # Grain's workers read absl flags, which only some programs parse.
            flags.FLAGS.mark_as_parsed()
        options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=AHEAD)
        dataset = batches.to_iter_dataset(options).mp_prefetch(grain.MultiprocessingOptions(workers, AHEAD))
    else:
        threads = min(16, os.cpu_count() or 1)
        dataset = batches.to_iter_dataset(grain.ReadOptions(num_threads=threads, prefetch_buffer_size=AHEAD * threads))
    iterator = iter(dataset)
    try:
        for _, batch in zip(range(examples.stop_step - examples.first_step), iterator, strict=False):
            # The batch is copied, so that the memory it shares with a worker is freed at once.
            images, labels, corrupt = np.array(batch["image"]), np.array(batch["label"]), int(batch["corrupt"].sum())
            del batch
            yield (images, labels), corrupt
    finally:
        iterator.close()
