"""experiments/richness.py at small sizes."""

import numpy as np
import pytest

from experiments import richness
from experiments.networks import mean_error


def test_common_draws():
    """gamma^2 with an error that is linear in gamma, the same at all gammas: the interval must allow for it."""
    gammas, rng = np.array([0.01, 0.02, 0.05, 0.1, 0.2, 1.0]), np.random.default_rng(0)
    held, widths = 0, []
    for _ in range(100):
        runs = 0.3 * gammas**2 + 0.01 * rng.normal(size=(16, 1)) * gammas
        runs[:, -1] += 5  # beyond `largest`
        measured = richness.of_draws(runs[..., None, None], richness.most, gammas, 0.2)
        slope, low, high = measured.law
        held += low < 2 < high
        others = richness.exponent(gammas, measured.value, measured.stderr, 0.2)
        widths.append([high - low, np.subtract(*others[:0:-1])])
        assert low < slope < high
    assert 88 <= held < 100
    assert np.median(np.array(widths), axis=0) @ [1, -2] > 0  # than that from the scatter about the line
    np.testing.assert_allclose(measured.value, np.abs(runs.mean(0)))


def test_points_within_noise_are_left_out():
    x, value, noise = [16, 32, 64, 128], np.array([1, 1 / 2, 1 / 4, 1]), np.array([0.01, 0.01, 0.01, 1.0])
    assert richness.exponent(x, value, noise)[0] == pytest.approx(-1)
    assert richness.exponent(x, value, 0 * noise)[0] > -0.5
    assert np.isnan(richness.exponent(x, value, noise, largest=32)).all()
    draws = value[:, None, None] + noise[:, None, None] * 2 * np.array([1, -1, 1, -1])[:, None, None, None]
    assert richness.of_draws(draws, richness.most, x).law[0] == pytest.approx(-1, abs=0.01)
    assert np.isnan(richness.of_draws(draws, richness.most, x, largest=32).law).all()


def test_standard_error_of_draws():
    """Of the largest entry it is that of the mean."""
    values = 3 + np.random.default_rng(1).normal(size=(20, 4, 1, 1))
    values = values * [[1.0], [-0.5]]  # two times, the first of which has the largest magnitude
    measured = richness.of_draws(values, richness.most, [1, 2, 3, 4])
    expected, error = mean_error(values[:, :, 0, 0])
    np.testing.assert_allclose(measured.value, expected)
    np.testing.assert_allclose(measured.stderr, error, rtol=1e-12)


def test_movement():
    kernel = np.random.default_rng(2).normal(size=(4, 3, 4, 3))
    first, last = kernel[0, :, 0], kernel[3, :, 3]
    expected = np.sqrt(np.sum((last - first) ** 2) / np.sum(first**2))
    assert richness.movement(kernel) == pytest.approx(expected, rel=1e-5)


def test_richness():
    """Theory and networks; movement grows as gamma0^2, and linear networks are lazy up to gamma0^2."""
    sizes = dict(depth=1, steps=3, samples=4000, width=64, seeds=64)
    moved = (0.05, 0.07, 0.1, 0.15, 0.2, 0.5, 1.0)
    first, *kernels = richness.rows(**sizes, activations=("linear",), gammas=(0.01, 0.05, 0.2, 1.0), moved=moved)
    assert first.value == pytest.approx(2, abs=0.02)
    assert 0 < first.half < 0.1
    assert len(kernels) == 4
    for exact, networks in (kernels[:2], kernels[2:]):
        assert exact.value == pytest.approx(2, abs=0.3)  # of few samples
        assert networks.value == pytest.approx(2, abs=0.1)
    for exact, networks in richness.moves(moved, 4000, dict(depth=1, steps=3), dict(width=64, seeds=64)).values():
        assert networks.value[-1] == pytest.approx(exact[-1], abs=4 * networks.stderr[-1])
        assert networks.stderr[-1] < 0.1 * networks.value[-1]
