"""Digits and batches."""

import dataclasses

import numpy as np
import pytest

from depthmup.data import (
    NONE,
    Batches,
    Split,
    batch_indices,
    catalog,
    checked_dataset,
    dataset_names,
    digits,
    load,
    steps_per_epoch,
)
from depthmup.data.dataset import held_out
from depthmup.train.build import hyper_of, task_of
from tests import tiny


def test_digits():
    dataset = load("digits")
    assert [split.examples for split in dataset[:3]] == [1437, 180, 180]
    assert dataset.train.inputs.dtype == np.uint8
    inputs = np.asarray(Batches(dataset, 64).prepare(dataset.train.inputs))
    # Kx of docs/theory.md section 0
    assert np.mean(np.sum(inputs**2, axis=(1, 2, 3))) / 64 == pytest.approx(1, rel=1e-4)
    np.testing.assert_allclose(inputs.mean(axis=0), 0, atol=1e-5)
    rows = {tuple(image.ravel()) for split in dataset[:3] for image in split.inputs}
    assert len(rows) == 1797  # no example in two splits
    np.testing.assert_array_equal(digits.load_digits().test.inputs, dataset.test.inputs)


def test_bad_data_is_refused():
    dataset = load("digits")
    inputs = dataset.train.inputs.astype(np.float32)
    inputs[7, 3] = np.nan
    labels = dataset.train.labels
    for split, message in (
        (Split(inputs, labels), "train split: 1 examples have NaN or infinite inputs, the first is number 7"),
        (Split(dataset.train.inputs, labels + 1), r"train split: labels must be 0\.\.9, got 10"),
        (Split(dataset.train.inputs, labels - 1), r"train split: labels must be 0\.\.9, got -1"),
        (Split(dataset.train.inputs[:, :7], labels), r"inputs of shape \(1437, 7, 8, 1\) do not fit 1437 labels"),
        (Split(dataset.train.inputs[:9], labels), "do not fit 1437 labels"),
        (Split(dataset.train.inputs[:0], labels[:0]), "train split: it is empty"),
    ):
        with pytest.raises(ValueError, match=message):
            checked_dataset(dataset._replace(train=split))


def test_a_row_is_all_that_a_data_set_needs(tmp_path, monkeypatch):
    """Also one that needs a folder: the arguments of its function are the keys that it takes."""

    def mine(data_dir=None, image_size=None):
        assert (data_dir, image_size) == (str(tmp_path), 8)
        return load("digits")

    monkeypatch.setitem(catalog.CATALOG, "mine", mine)
    assert "mine" in dataset_names()
    settings = tiny.settings(data__name="mine", data__data_dir=str(tmp_path), data__image_size=8)
    assert task_of(settings).model.outputs == 10
    assert hyper_of(settings).steps == 11
    with pytest.raises(ValueError, match=r"data\.context is for text, tokens, not for mine: leave it unset"):
        load("mine", str(tmp_path), 8, context=4)
    with pytest.raises(ValueError, match=r"data\.image_size is for patches, .*, mine, not for digits"):
        load("digits", image_size=8)


def test_held_out_is_a_fixed_tenth():
    train, validation = held_out(50_000)
    assert (len(train), len(validation)) == (45_000, 5_000)
    assert set(train) | set(validation) == set(range(50_000))
    np.testing.assert_array_equal(validation, held_out(50_000)[1])
    assert np.std(validation) == pytest.approx(50_000 / 12**0.5, rel=0.02)  # of all, not the last examples


def test_a_batch_is_a_function_of_seed_and_step():
    whole = batch_indices(100, 8, 0, 40, seed=3)
    assert whole.shape == (40, 8)
    for start, stop in ((0, 5), (11, 13), (5, 40), (24, 25)):
        np.testing.assert_array_equal(batch_indices(100, 8, start, stop, seed=3), whole[start:stop])
    per_epoch = steps_per_epoch(100, 8)
    for epoch in range(3):
        examples = whole[epoch * per_epoch : (epoch + 1) * per_epoch].ravel()
        assert len(set(examples)) == per_epoch * 8  # none twice in an epoch
    assert not np.array_equal(whole[:per_epoch], whole[per_epoch : 2 * per_epoch])
    assert not np.array_equal(whole, batch_indices(100, 8, 0, 40, seed=4))
    with pytest.raises(ValueError, match="batch_size 101 is more than the 100 training examples"):
        steps_per_epoch(100, 101)


def test_batches_in_memory():
    """Raw, the same on any number of processes; augmented by (seed, step), normalized, evaluated once each."""
    dataset = load("digits")
    batches = Batches(dataset, 8, seed=5, augment=dataclasses.replace(NONE, rotate=30.0))
    whole = list(batches.train(3, 6))
    for (inputs, labels), index in zip(whole, batches.indices(3, 6), strict=True):
        np.testing.assert_array_equal(inputs, dataset.train.inputs[index])
        np.testing.assert_array_equal(labels, dataset.train.labels[index])
    parts = [list(batches.train(3, 6, shard=(i, 2))) for i in range(2)]
    for step, (inputs, labels) in enumerate(whole):
        np.testing.assert_array_equal(np.concatenate([part[step][0] for part in parts]), inputs)
        np.testing.assert_array_equal(np.concatenate([part[step][1] for part in parts]), labels)
    raw = whole[0][0]
    plain, first, second = (np.asarray(batches.prepare(raw, step)) for step in (None, 3, 4))
    np.testing.assert_allclose(plain, (raw - dataset.mean) / dataset.std, rtol=1e-5, atol=1e-6)
    other = np.asarray(dataclasses.replace(batches, seed=6).prepare(raw, 3))
    for different in (plain, second, other):
        assert abs(first - different).max() > 0.1
    np.testing.assert_array_equal(first, batches.prepare(raw, 3))
    counted = np.concatenate([labels for _, labels in batches.evaluation(dataset.train, 700)])
    np.testing.assert_array_equal(counted[:700], dataset.train.labels[:700])
    assert (counted[700:] == -1).all()
    assert len(counted) % 256 == 0
    with pytest.raises(ValueError, match="batch_size 5000 is more than the 1437 training examples"):
        Batches(dataset, 5000)
