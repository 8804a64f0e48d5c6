"""What a training loop needs of data: batches by step, on the device or from the host, and splits to evaluate on."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from typing import Any, Protocol

import jax
import numpy as np

PyTree = Any


class Feed(Protocol):
    """Batches that are a pure function of the step, the same for all trials and devices.

    A batch is a tuple of arrays (batch, ...), the targets last. A raw batch is what the host hands over;
    `prepared` makes a batch of it inside the compiled step.

    batch_size: number of examples of a batch.
    steps_per_epoch: number of batches before the examples are seen again.
    in_memory: whether all examples lie on the devices, where `pick` takes each batch from; else the host hands over
      each batch of `train`.
    evaluated_examples: how many examples all splits are evaluated on.
    splits: {prefix of its metrics, such as "validation_": what `evaluation` takes}.
    """

    @property
    def batch_size(self) -> int: ...
    @property
    def steps_per_epoch(self) -> int: ...
    @property
    def in_memory(self) -> bool: ...
    @property
    def splits(self) -> Mapping[str, Any]: ...

    @property
    def evaluated_examples(self) -> int: ...

    def resident(self) -> PyTree:
        """The arrays that lie on the devices."""

    def indices(self, start: int, stop: int) -> np.ndarray:
        """Which examples make up the batches of steps start..stop-1, (steps, batch_size) int32."""

    def pick(self, resident: PyTree, indices: jax.Array, step: jax.Array) -> Any:
        """The raw batch of some examples, traced. indices: (examples,)."""

    def train(self, start: int, stop: int, shard: tuple[int, int] = (0, 1)) -> Generator[Any, None, None]:
        """The raw batches of steps start..stop-1. shard: (number of this process, number of processes)."""

    def prepared(self, raw: Any, step: Any = None, places: Any = None) -> tuple[Any, ...]:
        """The batch of a raw batch, traced. places: of the examples in the whole batch. step None: of an evaluation."""

    def evaluated(self, split: Any, parts: int = 1, shard: tuple[int, int] = (0, 1)) -> Iterator[Any]:
        """The raw batches of a split on which it is evaluated; each splits over `parts` devices."""

    def raw_shapes(self, examples: int) -> Any:
        """Shapes and dtypes of a raw batch."""
