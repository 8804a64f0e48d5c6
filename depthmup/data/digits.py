"""The 1,797 handwritten digits inside scikit-learn, which need no download."""

from __future__ import annotations

import itertools

import numpy as np

from depthmup.data.dataset import Dataset, Split

SPLIT_SIZES = (1437, 180, 180)  # train, validation, test


def load_digits() -> Dataset:
    """Images of 8x8x1 pixels with values 0..16, split by a fixed shuffle.

    The mean image and one standard deviation for all pixels normalize them, so that |x|^2 / D is about 1 for D pixels.
    """
    from sklearn import datasets

    pixels, labels = datasets.load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    inputs = pixels[order].astype(np.uint8).reshape(-1, 8, 8, 1)
    labels = labels[order].astype(np.int32)
    mean = inputs[: SPLIT_SIZES[0]].mean(axis=0)
    std = (inputs[: SPLIT_SIZES[0]] - mean).std()
    bounds = np.cumsum((0, *SPLIT_SIZES))
    train, validation, test = (Split(inputs[a:b], labels[a:b]) for a, b in itertools.pairwise(bounds))
    return Dataset(train, validation, test, mean, std, (8, 8, 1), tuple("0123456789"))
