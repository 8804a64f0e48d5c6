"""Windows of the tokens of files, read from the disk where a batch needs them."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Generator
from typing import Any, NamedTuple

import numpy as np

from depthmup.data.batches import shuffled

AHEAD = 4  # batches that are read before they are asked for


class Shard(NamedTuple):
    """A part of the tokens of one file: windows first..first + windows - 1, which start at every multiple of the
    context."""

    path: str
    dtype: str
    offset: int  # bytes before the first token of the file
    first: int
    windows: int


class Windows(NamedTuple):
    """Windows of context + 1 tokens of files on disk. The last token of a window is the first of the next one in its
    file, so that each token is a label once. None of them is kept in memory."""

    shards: tuple[Shard, ...]
    context: int
    vocabulary: int
    limit: int | None = None  # number of windows that are examples, the first in a fixed random order; None: all

    @property
    def all(self) -> int:
        """The number of windows."""
        return sum(shard.windows for shard in self.shards)

    @property
    def examples(self) -> int:
        return min(self.all, self.limit or self.all)

    def read(self, windows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(tokens, the token behind each) of these windows, by their number, (windows, context) int32 each. Raises
        ValueError for a token that the vocabulary does not have, and for a file that has become shorter."""
        ends = np.cumsum([shard.windows for shard in self.shards])
        places = np.searchsorted(ends, windows, side="right")
        result = np.empty((len(windows), self.context + 1), np.int32)
        for place in np.unique(places):
            shard, chosen = self.shards[place], places == place
            starts = (windows[chosen] - (ends[place] - shard.windows) + shard.first) * self.context
            # Mapped anew each time, as by nanoGPT: the pages of a map that stays would count as memory of the process.
            tokens = mapped(shard.path, shard.dtype, shard.offset)
            if len(tokens) < (shard.first + shard.windows) * self.context + 1:
                raise ValueError(f"{shard.path} has become shorter since the training began: make it anew")
            batch = tokens[starts[:, None] + np.arange(self.context + 1)]
            if (largest := int(batch.max())) >= self.vocabulary:
                raise ValueError(beyond_vocabulary(shard.path, largest, self.vocabulary))
            result[chosen] = batch
        return result[:, :-1], result[:, 1:]

    def at(self, examples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(inputs, labels) of these examples, by their places in the fixed random order."""
        return self.read(shuffled(self.all, 0, 0, examples))


def ahead(batch: Callable[[int], Any], start: int, stop: int) -> Generator[Any, None, None]:
    """batch(start), ..., batch(stop - 1), which a thread of Grain's computes ahead of time."""
    import grain

    class Steps:
        def __len__(self) -> int:
            return stop - start

        def __getitem__(self, number: Any) -> Any:
            return batch(start + int(number))

    options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=AHEAD)
    iterator = iter(grain.MapDataset.source(Steps()).to_iter_dataset(options))
    try:
        yield from iterator
    finally:
        iterator.close()


def mapped(path: str, dtype: str, offset: int = 0) -> np.ndarray:
    """The tokens of a file, (tokens,), which are read from the disk where they are used."""
    with open(path, "rb") as file:
        pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    pages.madvise(mmap.MADV_RANDOM)  # else the system reads 128 kB around each window
    return np.frombuffer(pages, dtype, (len(pages) - offset) // np.dtype(dtype).itemsize, offset)


def beyond_vocabulary(where: str, largest: int, vocabulary: int) -> str:
    """What is wrong with tokens that the vocabulary does not have."""
    return (
        f"{where} has the token {largest}, and the vocabulary has {vocabulary}: set data.vocabulary to "
        f"{largest + 1} or more, or leave it unset"
    )
