"""Initialization against closed forms: AM-muP paper, Lemmas 1 and 3, the GELU variance map, the zero-padding loss."""

import numpy as np
import pytest

from depthmup.models import CNN, ResidualCNN, stationary_gain
from experiments.networks import mean_error
from experiments.signal_propagation import (
    padding_loss,
    ratios,
    second_moments,
    slope_moment,
    variance_map,
    white,
    zero_padded_variance,
)

SEEDS = 128


def agrees(measured, expected, sharpness):
    """Within five standard errors, and these are small enough to tell."""
    value, error = measured
    return error < sharpness and abs(value - expected) < 5 * error


@pytest.mark.parametrize("space", [(12,), (5, 6)])
def test_he_init_keeps_second_moments(space):
    """Lemma 1: E[T_l | z^{l-1}] = T_{l-1}, and the same for the variance; circular padding, kernels of two sizes."""
    model = CNN(64, 6, kernels=(3, 5), scan=False)
    for moments in second_moments(model, white(space, 8, 0.5), SEEDS):
        assert agrees(mean_error(ratios(moments)), 1.0, 0.009)


@pytest.mark.parametrize(("kernels", "growth"), [((3,), 1 + 3 / 16), ((3, 3), 1 + 9 / 256), ((3, 1, 3), 1 + 27 / 4096)])
def test_residual_blocks_multiply_second_moments(kernels, growth):
    """Lemma 3: by 1 + c/2K, for m convolutions with c / (K fan_in) on each by 1 + (c/2K)^m; here c = 3, K = 8."""
    c, k = 3.0, 8
    m = len(kernels)
    # all m layers c / (K fan_in): one 1/sqrt(K) as the branch factor, the other m - 1 in the gain, evenly
    gain = c * k ** -((m - 1) / m)
    model = ResidualCNN(96, k, kernels=kernels, gain=gain, scan=False)
    for moments in second_moments(model, white((12,), 8, 1.0), SEEDS, branch=k**-0.5):
        assert agrees(mean_error(ratios(moments)), growth, 0.0025)


def test_gelu():
    """The paper's factor grows from 1 to 16 in ten layers; that of `stationary` has a repelling fixed point at 1."""
    paper = variance_map("gelu", 2 * 2**0.5, 11)
    assert paper[10] == pytest.approx(16.1, abs=0.1)
    gain = stationary_gain("gelu")
    assert gain == pytest.approx(2.352, abs=5e-4)
    np.testing.assert_allclose(variance_map("gelu", gain, 11), 1, atol=1e-5)
    above, below = (variance_map("gelu", gain, 11, start) for start in (1.1, 0.9))
    assert np.all(np.diff(above) > 0)
    assert np.all(np.diff(below) < 0)
    for rule, factor in (("paper", 2 * 2**0.5), ("stationary", gain)):
        model = CNN(128, 4, activation="gelu", gelu_variance=rule, scan=False)
        z, _ = second_moments(model, white((12,), 8, 1 / factor), SEEDS)
        ratio = (z[:, -1] / z[:, 0]).mean(), (z[:, -1] / z[:, 0]).std(ddof=1) / SEEDS**0.5
        assert agrees(ratio, variance_map("gelu", factor, 4)[-1], 0.08)


def test_zero_padding_loses_more_with_depth_and_less_with_side():
    small, large = zero_padded_variance(8, 32), zero_padded_variance(32, 32)
    assert np.all(np.diff(small) < 0)
    assert small[-1] < 0.3 < 0.8 < large[-1]
    mean, error = padding_loss(8, 12, SEEDS, width=64)
    for layer in (3, 7, 11):
        assert agrees((mean[layer], error[layer]), zero_padded_variance(8, 12)[layer], 0.03)


def test_gradients_through_gelu():
    """<phi'^2> = .456 at variance 1, as appendix E says; times the paper's own gain, not He's, gradients grow."""
    assert slope_moment("relu") == pytest.approx(0.5, abs=1e-3)
    assert slope_moment("gelu") == pytest.approx(0.456, abs=1e-3)
    assert 2 * 2**0.5 * slope_moment("gelu") == pytest.approx(1.29, abs=0.005)
    assert slope_moment("gelu", 1e4) == pytest.approx(0.5, abs=0.01)
