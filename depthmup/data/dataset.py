"""The types of a data set: three splits, in memory or as records on disk, and the normalization of its inputs."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import numpy as np

from depthmup.data.windows import Windows

HELD_OUT = 0.1  # share of the training examples that become the validation split of a data set without one
HINT = "data.skip_corrupt=True goes on without it"  # where an image cannot be read


class CorruptRecord(ValueError):
    """A record cannot be read, or is no image of a known class."""


class Split(NamedTuple):
    """Examples in memory. inputs: (examples, height, width, channels), uint8 or float32; labels: (examples,) int32. Or
    inputs: tokens (examples, context), uint8; labels: the token behind each, (examples, context) int32."""

    inputs: np.ndarray
    labels: np.ndarray

    @property
    def examples(self) -> int:
        return len(self.labels)

    def at(self, examples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(inputs, labels) of these examples."""
        return self.inputs[examples], self.labels[examples]


class Records(NamedTuple):
    """Encoded examples on disk, read one by one. Worker processes get a copy, so all fields can be pickled."""

    source: Any  # a sequence of records {"image": bytes, "label": int, ...} with random access
    order: np.ndarray  # (examples,): the place in the source of each example
    classes: int
    size: int  # side in pixels of the images that the network sees
    name: str  # for messages, such as "imagenet2012, split train"
    channels: int = 3  # 1: grey
    centre: float = 0.875  # side of the square that evaluation sees, over the shorter side of the image

    @property
    def examples(self) -> int:
        return len(self.order)


class Dataset(NamedTuple):
    """Three splits, all in memory or all on disk, and what is known about their examples."""

    train: Split | Records | Windows
    validation: Split | Records | Windows
    test: Split | Records | Windows
    mean: np.ndarray | None  # of the raw pixels, which is subtracted; broadcasts to one example; None: of tokens
    std: np.ndarray | None  # standard deviation of the raw pixels, which divides; likewise
    shape: tuple[int, ...]  # shape of one example
    names: tuple[str, ...]  # names of the classes
    digest: str = ""  # what the examples are, where the name of the data set does not say it

    @property
    def tokens(self) -> bool:
        """Whether inputs are tokens, with a label for each."""
        return self.mean is None

    @property
    def classes(self) -> int:
        return len(self.names)

    @property
    def in_memory(self) -> bool:
        return isinstance(self.train, Split)


def pixel_moments(images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(mean, standard deviation) of each channel of images (examples, height, width, channels) uint8; (channels,) each,
    from counts of the 256 values."""
    values, channels = np.arange(256), images.shape[-1]
    counts = np.stack([np.bincount(channel, minlength=256) for channel in images.reshape(-1, channels).T])
    shares = counts * channels / images.size
    mean = shares @ values
    return mean, np.sqrt(shares @ values**2 - mean**2)


def held_out(examples: int) -> tuple[np.ndarray, np.ndarray]:
    """Places of the training and of the validation examples: a fixed shuffle, whose last tenth is for validation."""
    order = np.random.default_rng(0).permutation(examples).astype(np.int32)
    kept = examples - round(examples * HELD_OUT)
    return order[:kept], order[kept:]


def note_left_out(split: str, count: int, of: str) -> None:
    """Print how many examples of a split are left out, if any. of: what they are part of, such as "of 100 files"."""
    if count:
        print(f"{split}: left out {count} {of}", file=sys.stderr)


def checked_dataset(dataset: Dataset) -> Dataset:
    """Returns the data set. Raises ValueError if a split is empty, has inputs or labels of another shape or inputs that
    are not finite, or has a label that is not the number of a class."""
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
        of_tokens = dataset.shape if dataset.tokens else ()
        if split.labels.shape != (split.examples, *of_tokens):
            raise ValueError(f"{name} split: labels of an example must be {of_tokens}, got {split.labels.shape[1:]}")
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
