"""Which examples make up which batch: a pure function of (seed, step)."""

from __future__ import annotations

import functools

import numpy as np


def steps_per_epoch(examples: int, batch_size: int) -> int:
    """The number of whole batches in one epoch. Raises ValueError if it is 0."""
    if batch_size > examples:
        raise ValueError(
            f"batch_size {batch_size} is more than the {examples} training examples: lower data.batch_size"
        )
    return examples // batch_size


@functools.lru_cache(maxsize=4)
def epoch_order(examples: int, seed: int, epoch: int) -> np.ndarray:
    """The permutation of one epoch, (examples,) int32."""
    order = np.random.default_rng((seed, epoch)).permutation(examples).astype(np.int32)
    order.flags.writeable = False
    return order


def shuffled(examples: int, seed: int, epoch: int, places: np.ndarray) -> np.ndarray:
    """What lies at some places of a permutation of range(examples), int64: as `epoch_order`, for so many examples that
    no array has them all. Grain computes each place alone. Raises ValueError for 2^32 examples or more."""
    from grain.experimental import index_shuffle

    if examples >= 2**32:
        raise ValueError(f"{examples} examples are too many to shuffle, 2^32 or more: raise data.context")
    key = int(np.random.SeedSequence((seed, epoch)).generate_state(1)[0])
    numbers = (index_shuffle(int(place), max_index=examples - 1, seed=key, rounds=4) for place in places)
    return np.fromiter(numbers, np.int64, len(places))


def batch_indices(examples: int, batch_size: int, start: int, stop: int, seed: int) -> np.ndarray:
    """Indices of the batches of steps start..stop-1, (steps, batch_size) int32.

    Each epoch is a new permutation, a function of (seed, epoch), whose last incomplete batch is left out. So a batch
    depends on (seed, step) alone: not on earlier steps, and not on the number of devices.
    """
    per_epoch = steps_per_epoch(examples, batch_size)

    def indices(step: int) -> np.ndarray:
        epoch, place = divmod(step, per_epoch)
        return epoch_order(examples, seed, epoch)[place * batch_size : (place + 1) * batch_size]

    return np.stack([indices(step) for step in range(start, stop)])
