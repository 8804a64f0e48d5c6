"""Digits and batches."""

import numpy as np
import pytest

from depthmup.data import Split, batch_indices, digits, steps_per_epoch


def test_digits():
    dataset = digits.load()
    assert [len(s.labels) for s in dataset[:3]] == [1437, 180, 180]
    inputs = dataset.train.inputs
    assert inputs.dtype == np.float32
    assert np.mean(np.sum(inputs**2, axis=(1, 2, 3))) / 64 == pytest.approx(
        1, rel=1e-4
    )  # Kx of docs/theory.md section 0
    np.testing.assert_allclose(inputs.mean(axis=0), 0, atol=1e-5)
    rows = {tuple(image.ravel()) for split in dataset[:3] for image in split.inputs}
    assert len(rows) == 1797  # no example in two splits
    np.testing.assert_array_equal(digits.load().test.inputs, dataset.test.inputs)


def test_bad_data_is_refused():
    dataset = digits.load()
    inputs = dataset.train.inputs.copy()
    inputs[7, 3] = np.nan
    with pytest.raises(ValueError, match="train split: 1 examples have NaN or infinite inputs, the first is number 7"):
        digits.checked(dataset._replace(train=Split(inputs, dataset.train.labels)))
    with pytest.raises(ValueError, match=r"labels must be 0\.\.9, got 10"):
        digits.checked(dataset._replace(train=Split(dataset.train.inputs, dataset.train.labels + 1)))


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
