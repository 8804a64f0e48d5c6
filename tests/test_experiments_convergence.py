"""Experiments on the approach to the limit: what they make of planted networks, and a few real ones."""

from types import SimpleNamespace

import numpy as np
import pytest

from experiments import convergence, two_weight_blocks
from experiments.convergence import BLOCKS, Y

LIMIT = np.array([0.9, -0.4, 0.7])
NOISE = 0.45  # N times the variance between networks


@pytest.fixture
def picture(tmp_path, monkeypatch):
    """Where the next experiment draws."""
    monkeypatch.setattr(convergence, "IMAGES", tmp_path)
    return tmp_path / "convergence.png"


def holds(interval, truth):
    _, low, high = interval
    assert high - low < 0.5 * abs(truth)  # it says something
    return low <= truth <= high


def draws(rng, count, mean, spread, steps):
    return mean + spread * rng.normal(size=(count, steps - 1, len(Y)))


def planted_blocks(distance, rng):
    """Solutions that are `distance` / L from the limit."""
    return lambda problem, *_: draws(rng, BLOCKS, LIMIT + distance / problem.depth, 2e-4, problem.steps)


@pytest.mark.parametrize("power", [1, 0.5])
def test_convergence_finds_what_is_planted(power, picture, monkeypatch):
    rng = np.random.default_rng(0)
    m, k, widths = 2.0, 0.3, {32: 2000, 64: 2000, 128: 2000, 256: 2000}

    def networks(activation, width, seeds):
        mean = LIMIT + k / convergence.DEPTH + m * width**-power
        return draws(rng, seeds, mean, (NOISE / width) ** 0.5, convergence.STEPS)

    def linear(Kx, y, *, depth, steps, eta0):
        return SimpleNamespace(predictions=np.tile(LIMIT + k * depth**-power, (steps, 1)))

    monkeypatch.setattr(convergence, "networks", networks)
    monkeypatch.setattr(convergence, "blocks", planted_blocks(k, rng))
    monkeypatch.setattr(convergence, "linear_dmft", linear)
    numbers = convergence.main(widths, {"relu": (1, 1)}, depths=(1, 2, 4, 8), linear_depths=(2, 4, 8, 16))
    assert picture.stat().st_size > 10_000
    assert holds(numbers["relu"]["slope of the bias"], -power)
    assert holds(numbers["relu"]["slope of the variance"], -1)
    assert holds(numbers["relu"]["v"], NOISE)
    assert holds(numbers["depth"]["relu"]["slope"], -1)
    np.testing.assert_allclose(numbers["relu"]["F(T-1)"], LIMIT + k / convergence.DEPTH, atol=5e-4)
    if power == 1:
        assert holds(numbers["relu"]["m2"], m**2)
        np.testing.assert_allclose(numbers["depth"]["linear"]["between neighbours"], -1, atol=1e-4)


def test_an_error_of_the_limit_widens_the_interval():
    """It is the same at all widths, so that the points scatter about the line as if there were none."""
    rng = np.random.default_rng(0)
    widths, steps = [32, 64, 128, 256], 5
    for spread, least in ((1e-5, 0), (4e-3, 0.1)):
        limit = draws(rng, BLOCKS, LIMIT, spread, steps) + spread * rng.normal(size=(BLOCKS, 1, 1))
        networks = [np.tile(LIMIT + 2 / n, (3, steps - 1, 1)) for n in widths]
        law = convergence.slope(widths, lambda blocks: [convergence.bias(of, blocks) for of in networks], limit)  # noqa: B023
        assert law.low <= -1 <= law.high
        assert least <= law.high - law.low <= least + 0.6


def test_bias_is_free_of_the_noise_of_both():
    rng, truth, estimates = np.random.default_rng(1), 0.01, []
    for _ in range(100):
        limit, networks = (draws(rng, count, LIMIT + off, 0.05, 5) for count, off in ((BLOCKS, 0), (50, truth)))
        estimates.append(convergence.bias(networks, limit).value)
    assert np.mean(estimates) == pytest.approx(truth**2, abs=4 * np.std(estimates) / 10)
    assert np.std(estimates) / 10 < truth**2 / 5  # the noise of the limit alone has a square of 3e-4


def test_two_weight_networks_approach_their_own_limit(monkeypatch):
    """About .9/N; the limit of branches of one matrix is .065 away."""
    monkeypatch.setattr(convergence, "BLOCKS", 4)
    limit = convergence.blocks(two_weight_blocks.problem("relu", 2), samples=2000, replicates=1)
    distance, error = convergence.bias(two_weight_blocks.networks("relu", 64, 1024), limit).root
    assert error < 0.004
    assert abs(distance - 0.9 / 64) < 3 * error


def test_inner_matrices_move_the_features_as_much_as_outer_ones():
    """Though their own updates move their pre-activations as depth^-1/2."""
    rms, cosine, inner_rms = two_weight_blocks.changes(64, 16, 32)
    ratio = rms[:, 0] / rms[:, 1]
    error = ratio.std(ddof=1) / len(ratio) ** 0.5
    assert error < 0.05
    assert abs(ratio.mean() - 1) < 0.1 + 4 * error
    assert 0.8 < cosine.mean() < 1
    shallow = two_weight_blocks.changes(64, 4, 32)[-1]
    assert np.log2(inner_rms.mean() / shallow.mean()) / 2 == pytest.approx(-0.5, abs=0.1)
