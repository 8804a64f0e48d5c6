"""What a data set is: three splits, in memory or as records on disk, and how its pixels are normalized."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

HELD_OUT = 0.1  # share of the training examples that are the validation split where a data set has none


class Split(NamedTuple):
    """Examples in memory. inputs: (examples, height, width, channels), uint8 or float32; labels: (examples,) int32."""

    inputs: np.ndarray
    labels: np.ndarray

    @property
    def examples(self) -> int:
        return len(self.labels)


class Records(NamedTuple):
    """Encoded examples on disk, read one by one. It travels to worker processes: everything in it can be pickled.

    source: random access to {"image": bytes, "label": int, ...}; order: (examples,) places in the source.
    """

    source: Any
    order: np.ndarray
    classes: int
    size: int  # side of the images that the network sees
    name: str  # "imagenet2012, split train", for messages

    @property
    def examples(self) -> int:
        return len(self.order)


class Dataset(NamedTuple):
    """mean, std: of the raw pixels, shapes that broadcast to one example; shape: of one example."""

    train: Split | Records
    validation: Split | Records
    test: Split | Records
    mean: np.ndarray
    std: np.ndarray
    shape: tuple[int, ...]
    names: tuple[str, ...]  # of the classes

    @property
    def classes(self) -> int:
        return len(self.names)

    @property
    def in_memory(self) -> bool:
        return isinstance(self.train, Split)


def held_out(examples: int) -> tuple[np.ndarray, np.ndarray]:
    """Places of the training and of the validation examples: a fixed shuffle, whose last tenth is held out."""
    order = np.random.default_rng(0).permutation(examples).astype(np.int32)
    kept = examples - round(examples * HELD_OUT)
    return order[:kept], order[kept:]


def checked(dataset: Dataset) -> Dataset:
    """The data set itself. Raises ValueError if a split is empty, of another shape or not finite, or a label is off."""
    for name in ("train", "validation", "test"):
        split = getattr(dataset, name)
        if not split.examples:
            raise ValueError(f"{name} split: it is empty; every data set needs train, validation and test examples")
        if not isinstance(split, Split):
            continue
        if split.inputs.shape != (split.examples, *dataset.shape):
            raise ValueError(
                f"{name} split: inputs of shape {split.inputs.shape} do not fit {split.examples} labels of examples of "
                f"shape {dataset.shape}"
            )
        if np.issubdtype(split.inputs.dtype, np.floating):
            bad = np.flatnonzero(~np.isfinite(split.inputs).all(axis=tuple(range(1, split.inputs.ndim))))
            if bad.size:
                raise ValueError(
                    f"{name} split: {bad.size} examples have NaN or infinite inputs, the first is number {bad[0]}: "
                    "remove or repair them"
                )
        low, high = split.labels.min(), split.labels.max()
        if not 0 <= low <= high < dataset.classes:
            raise ValueError(f"{name} split: labels must be 0..{dataset.classes - 1}, got {low if low < 0 else high}")
    return dataset
