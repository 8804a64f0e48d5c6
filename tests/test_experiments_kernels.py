"""Experiments on kernels, small: what they print as numbers against the limit, closed forms and planted ensembles."""

import numpy as np
import pytest

from experiments import convolutional_kernels, ntk_depth, theory_checks


def test_ntk_of_networks():
    """Within 4.5 standard errors, which are small, of the limit at that depth."""
    kernels, limit = ntk_depth.networks(64, 2, 400, 0), ntk_depth.over_angles(2)
    for name in ntk_depth.PARTS:
        pairs = ntk_depth.by_angle(kernels[name])
        mean, error = pairs.mean(axis=0), pairs.std(axis=0, ddof=1) / 20
        expected = limit[name][:: ntk_depth.EVERY]
        assert np.abs((mean - expected) / error).max() < 4.5
        assert error.max() < 0.03 * np.abs(expected).max()


def test_ntk_depth(monkeypatch):
    """Slopes in depth of the limit; slope and bias in width of planted networks."""
    bias, noise = np.array([-0.4, 0.3, 0.2, 0.1, -0.1, 0.6]), 0.3
    rng = np.random.default_rng(0)

    firsts = []

    def planted(width, depth, seeds, first_seed):
        firsts.append(first_seed)
        apart = np.abs(np.subtract.outer(range(6), range(6)))
        limit = {name: line[:: ntk_depth.EVERY] for name, line in ntk_depth.over_angles(depth).items()}
        return {
            name: (limit[name] + bias / width)[apart] + noise * width**-0.5 * rng.normal(size=(seeds, 6, 6))
            for name in ntk_depth.PARTS
        }

    monkeypatch.setattr(ntk_depth, "networks", planted)
    rows = ntk_depth.rows((32, 64, 128, 256), 8, 300, (4, 8, 16, 32, 64), activations=("relu",))
    assert np.diff(firsts).min() >= 300  # networks of two widths share random numbers of one seed
    depths = [row.value for row in rows if row.section == "2"]
    assert depths == pytest.approx([-1, -1, -1], abs=0.02)
    assert ntk_depth.over_angles(4)["total"][0] == pytest.approx(1.95776367, abs=1e-7)  # tests/test_lazy.py
    limit = ntk_depth.over_angles(None)
    assert [limit["H(1)"][0], limit["G(0)"][0]] == pytest.approx([1.64872127, 0.82436064], abs=1e-7)
    slopes = [row for row in rows if "slope in N" in row.statement]
    biases = [row for row in rows if "bias" in row.statement]
    assert (len(slopes), len(biases)) == (4, 2)
    for row in slopes:
        assert row.holds
        assert row.value == pytest.approx(-1, abs=0.05)
    for row, planted_bias in zip(biases, bias[[2, 3]], strict=True):
        assert abs(row.value - planted_bias) < 2 * row.half
        assert row.half < 0.2


def test_one_step_kernels():
    """Networks within 4.5 standard errors of the recursion at their depth; the recursion nears the closed form."""
    rows = theory_checks.one_step_kernels(64, 4, 64, (4, 8, 16, 32, 64), (1.0,))
    assert len(rows) == 4
    for networks, depth in (rows[:2], rows[2:]):
        assert 0 < networks.value < 4.5
        assert -1 < depth.value < -0.85


def test_convolutional_kernels(monkeypatch):
    """Networks of 8 to 32 channels against the limit of their depth; planted convergence in depth."""
    real = convolutional_kernels.limit

    def limit(x, depth, padding):
        planted = dict.fromkeys(("H", "NTK"), np.eye(2) * (1 + (0.3 / depth if depth else 0)))
        return real(x, depth, padding) if depth == 2 else planted

    monkeypatch.setattr(convolutional_kernels, "limit", limit)
    rows = convolutional_kernels.rows(2, (8, 16, 32), 2, 60, (64, 128), "zero")
    for row in rows[:2]:
        assert abs(row.value + 1) < 0.4, row
    assert [row.value for row in rows[2:]] == pytest.approx([-1] * 4, abs=1e-6)
    images = convolutional_kernels.images(2)
    for name, kernels in convolutional_kernels.networks(images, 32, 2, 60, "zero", 0).items():
        exact, error = real(images, 2, "zero")[name], kernels.std(axis=0, ddof=1) / 60**0.5
        assert np.all(np.abs(kernels.mean(axis=0) - exact) < 4.5 * error + exact / 16), name  # a bias of 1/N
        assert error.max() < 0.15 * exact.max(), name
