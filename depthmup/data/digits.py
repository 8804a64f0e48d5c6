"""The 1,797 handwritten digits inside scikit-learn: no download."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np

SPLIT_SIZES = (1437, 180, 180)  # train, validation, test


class Split(NamedTuple):
    """inputs: (examples, ...) float32; labels: (examples,) int32."""

    inputs: np.ndarray
    labels: np.ndarray


class Dataset(NamedTuple):
    train: Split
    validation: Split
    test: Split
    classes: int


def load() -> Dataset:
    """Digits less the mean image, with variance 1 (so |x|^2 / D is about 1), split by a fixed shuffle.

    Inputs are images, (examples, 8, 8, 1).
    """
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    pixels, labels = pixels[order], labels[order].astype(np.int32)
    centred = pixels - pixels[: SPLIT_SIZES[0]].mean(axis=0)
    inputs = (centred / centred[: SPLIT_SIZES[0]].std()).astype(np.float32).reshape(-1, 8, 8, 1)
    bounds = np.cumsum((0, *SPLIT_SIZES))
    train, validation, test = (Split(inputs[a:b], labels[a:b]) for a, b in itertools.pairwise(bounds))
    return checked(Dataset(train, validation, test, classes=10))


def checked(dataset: Dataset) -> Dataset:
    """The data set itself. Raises ValueError if an input is not finite or a label is out of range."""
    for name in ("train", "validation", "test"):
        split: Split = getattr(dataset, name)
        bad = np.flatnonzero(~np.isfinite(split.inputs).all(axis=tuple(range(1, split.inputs.ndim))))
        if bad.size:
            raise ValueError(
                f"{name} split: {bad.size} examples have NaN or infinite inputs, the first is number {bad[0]}: "
                "remove or repair them"
            )
        if split.labels.size and not (0 <= split.labels.min() and split.labels.max() < dataset.classes):
            raise ValueError(f"{name} split: labels must be 0..{dataset.classes - 1}, got {split.labels.max()}")
    return dataset
