"""Our models equal PyTorch's: the numbers in tests/golden/ are those of `tests/parity.py`, `make parity`."""

import numpy as np
import pytest

from tests import golden


def read(name):
    with np.load(golden.FOLDER / f"{name}.npz") as file:
        return dict(file)


@pytest.mark.parametrize("name", golden.CASES)
def test_equals_pytorch(name, x64):
    """Logits, the gradient of every parameter, new batch statistics."""
    expected, computed = read(name), golden.flax_numbers(name)
    assert {key: array.shape for key, array in computed.items()} == {
        key: array.shape for key, array in expected.items()
    }
    assert all(array.dtype == np.float64 for array in computed.values())
    zeros = {key for key, array in expected.items() if np.abs(array).max() < 1e-14}
    assert zeros == set(filter(golden.zero, expected))
    differences = golden.differences(computed, expected)
    assert not {key: value for key, value in differences.items() if not value < golden.TOLERANCE}


SLIPS = [
    (name, factor)
    for name in ("simple_resnet", "resnet18_train", "vit", "gpt_llama")
    for factor, value in golden.CASES[name].factors._asdict().items()
    if value is not None
]


@pytest.mark.parametrize(("name", "factor"), SLIPS)
def test_sees_a_small_error(name, factor, x64):
    """A factor off by a millionth."""
    wrong = getattr(golden.CASES[name].factors, factor) * (1 + 1e-6)
    differences = golden.differences(golden.flax_numbers(name, **{factor: wrong}), read(name))
    assert differences["logits"] > 10 * golden.TOLERANCE
