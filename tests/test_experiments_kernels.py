"""Experiments on kernels, small: what they print as numbers against the limit, closed forms and planted ensembles."""

import sys

import numpy as np
import pytest

from experiments import convolutional_kernels, ntk_depth, one_step_kernels


@pytest.fixture(autouse=True)
def picture(tmp_path, monkeypatch):
    """Where the picture goes."""
    path = tmp_path / "picture.png"
    monkeypatch.setattr(sys, "argv", ["experiment", str(path)])
    return path


def test_ntk_of_networks():
    """Within 4.5 standard errors, which are small, of the limit at that depth."""
    found, limit = ntk_depth.networks(64, 2, 400, 0), ntk_depth.over_angles(2)
    for name in ntk_depth.PARTS:
        pairs = ntk_depth.by_angle(found[name])
        mean, error = pairs.mean(axis=0), pairs.std(axis=0, ddof=1) / 20
        expected = limit[name][:: ntk_depth.EVERY]
        assert np.abs((mean - expected) / error).max() < 4.5
        assert error.max() < 0.03 * np.abs(expected).max()


def test_ntk_depth(picture, monkeypatch):
    """Slopes in depth of the limit; slope and bias in width of planted networks."""
    bias, noise = np.array([-0.4, 0.3, 0.0, 0.2, -0.1, 0.6]), 0.3
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
    depths = (4, 8, 16, 32, 64)
    numbers = ntk_depth.main((32, 64, 128, 256), 8, 300, depths, activations=("relu",))
    assert picture.stat().st_size > 10_000
    assert np.diff(firsts).min() >= 300  # networks of two widths share random numbers of one seed
    for name in ("H(1)", "G(0)", "NTK"):
        found = numbers["depth"][f"relu, {name}"]
        assert found["last slope"] == pytest.approx(-1, abs=0.02)
        assert found["slope"][0] > found["slope of the upper half"][0] > found["last slope"]  # it nears -1 from above
    assert ntk_depth.over_angles(4)["total"][0] == pytest.approx(1.95776367, abs=1e-7)  # tests/test_lazy.py
    limit = ntk_depth.over_angles(None)
    assert [limit["H(1)"][0], limit["G(0)"][0]] == pytest.approx([1.64872127, 0.82436064], abs=1e-7)
    for name in ntk_depth.PARTS:
        found = numbers["networks"][name]
        slope, low, high = found["slope"]
        assert low < -1 < high
        assert slope == pytest.approx(-1, abs=0.05)
        assert found["v"].value == pytest.approx(noise**2, rel=0.1)
        assert np.abs((found["m"] - bias) / found["m stderr"]).max() < 4
        assert found["m stderr"].max() < 0.1


def test_one_step_kernels(picture, monkeypatch):
    """Networks within 4.5 standard errors of the recursion at their depth; the recursion nears the closed form."""
    monkeypatch.setattr(one_step_kernels, "CS", (1.0,))
    numbers = one_step_kernels.main(64, 4, 64, (4,), (4, 8, 16, 32, 64))
    assert picture.stat().st_size > 10_000
    for readin, last in (("frozen", 15.033375), ("trained", 66.756768)):  # docs/theory.md section 3
        found = numbers[readin]["c = 1"]
        np.testing.assert_allclose(found["limit"][-1], last, atol=1e-6)
        assert found["largest z"] < 4.5
        assert found["s.e."][-1] < 0.1 * found["networks"][-1]
        slopes = numbers["convergence"][f"c = 1, {readin}"]
        assert -1 < slopes["last slope"] < -0.85


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
