"""Batches of what does not fit in memory: records read, decoded and batched by Grain, in worker processes.

A position counts examples since the first step: step * batch_size + place in the batch. What is at a position is a
function of (seed, position), so that batches are the same for any number of processes and workers, and a run goes on
at step k by asking for step k.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from typing import Any

import grain
import numpy as np
from absl import flags, logging

from depthmup.data.batches import epoch_order, steps_per_epoch
from depthmup.data.dataset import Records
from depthmup.data.decode import decode

AHEAD = 2  # batches that each worker keeps ready
TRIES = 100  # records tried in the place of a corrupt one
PADDING = -1  # label of what fills up the last batch of an evaluation
Batch = tuple[np.ndarray, np.ndarray]  # images (batch, size, size, 3) uint8, labels (batch,) int32


class CorruptRecord(ValueError):
    """A record that cannot be read or is no image of a known class."""


@dataclasses.dataclass(frozen=True)
class Examples:
    """What Grain calls a random access source, of the examples of this process from first_step on; workers get it.

    crop: of decode.decode, a range of shares of the area; None: evaluation, all examples once and in order, the last
    batch filled up with label -1.
    """

    records: Records
    batch_size: int  # of all processes together
    first_step: int
    stop_step: int
    crop: tuple[float, float] | None = None
    seed: int = 0
    skip_corrupt: bool = False
    shard: tuple[int, int] = (0, 1)  # this process, number of processes

    def __len__(self) -> int:
        return (self.stop_step - self.first_step) * (self.batch_size // self.shard[1])

    def __getitem__(self, number: int) -> dict[str, Any]:
        """{"image": (size, size, 3) uint8, "label": int32, "corrupt": records passed over, int32}."""
        process, processes = self.shard
        local = self.batch_size // processes
        step, place = divmod(number, local)
        position = (self.first_step + step) * self.batch_size + process * local + place
        image, label, passed = self._train(position) if self.crop else self._evaluate(position)
        return {"image": image, "label": np.int32(label), "corrupt": np.int32(passed)}

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
        nothing = np.zeros((self.records.size, self.records.size, 3), np.uint8)
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
            return decode(raw["image"], self.records.size, self.crop or (1.0, 1.0), rng), label
        except Exception as error:  # whatever the reader or the decoder raises for bytes that are not right
            hint = "" if self.skip_corrupt else " (data.skip_corrupt=True goes on without it)"
            raise CorruptRecord(f"{self.records.name}: record {record}{name} cannot be used: {error}{hint}") from error


def stream(examples: Examples, workers: int = 0) -> Iterator[tuple[Batch, int]]:
    """Batches of this process, each with the number of corrupt records passed over for it.

    Reading and decoding happen in `workers` processes ahead of time, in threads of this process if 0. Raises ValueError
    if processes do not share a batch evenly, CorruptRecord at a corrupt record.
    """
    processes = examples.shard[1]
    if examples.batch_size % processes:
        raise ValueError(f"batch_size {examples.batch_size} is not a multiple of the {processes} processes")
    # Without an end: Grain's workers that reach one leave shared memory behind. They are closed instead.
    endless = dataclasses.replace(examples, stop_step=examples.stop_step + 2**30)
    batches = grain.MapDataset.source(endless).batch(examples.batch_size // processes)
    if workers:
        if not flags.FLAGS.is_parsed():  # Grain's workers read flags of its own, which only some programs parse
            flags.FLAGS.mark_as_parsed()
        read = grain.ReadOptions(num_threads=1, prefetch_buffer_size=AHEAD)
        ahead = batches.to_iter_dataset(read).mp_prefetch(grain.MultiprocessingOptions(workers, AHEAD))
    else:
        threads = min(16, os.cpu_count() or 1)
        ahead = batches.to_iter_dataset(grain.ReadOptions(num_threads=threads, prefetch_buffer_size=AHEAD * threads))
    iterator = iter(ahead)
    try:
        for _, batch in zip(range(examples.stop_step - examples.first_step), iterator, strict=False):
            # Copied, so that the memory it shares with a worker is given back at once.
            images, labels, corrupt = np.array(batch["image"]), np.array(batch["label"]), int(batch["corrupt"].sum())
            del batch
            yield (images, labels), corrupt
    finally:
        iterator.close()
