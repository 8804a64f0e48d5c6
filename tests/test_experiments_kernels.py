"""Experiments on kernels, small: what they print as numbers against the limit, closed forms and planted ensembles."""

import sys

import numpy as np
import pytest

from experiments import convolutional_kernels, fluctuations, ntk_depth, one_step_kernels


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
    numbers = ntk_depth.main((32, 64, 128, 256), 8, 300, depths, depths_shown=(4, 8), activations=("relu",))
    assert picture.stat().st_size > 10_000
    assert picture.with_suffix(".json").stat().st_size > 1000
    assert np.diff(firsts).min() >= 300  # networks of two widths share random numbers of one seed
    for name in ("H(1)", "G(0)", "NTK"):
        found = numbers["depth"][f"relu, {name}"]
        assert found["last slope"] == pytest.approx(-1, abs=0.02)
        assert found["slope"][0] > found["slope of the upper half"][0] > found["last slope"]  # it nears -1 from above
    assert numbers["angles"]["total, L = 4"][0] == pytest.approx(1.95776367, abs=1e-7)  # docs/theory.md section 2
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
        np.testing.assert_allclose(found["L = inf"][-1], last, atol=1e-6)
        assert found["largest z"] < 4.5
        assert found["s.e."][-1] < 0.1 * found["networks"][-1]
        slopes = numbers["convergence"][f"c = 1, {readin}"]
        assert -1 < slopes["last slope"] < -0.85


def test_fluctuations(picture, monkeypatch):
    """Slopes in depth and the ratio of widths, of planted ensembles."""
    rng = np.random.default_rng(0)

    firsts = {"residual": [], "plain": []}

    def planted(kind, width, depth, seeds, first_seed):
        firsts[kind].append(first_seed)
        slope = 1.0 if kind == "plain" else 0.0
        scale = np.sqrt(3 * depth**slope / width * (1 if kind == "plain" else width / 64))
        values = {name: 7 * (1 + scale * rng.normal(size=seeds)) for name in "HG"} | {"NTK": 1.0}
        values["NTK"] = values["H"]
        return {state: values | ({} if state == "initial" else {"F": -values["G"]}) for state in fluctuations.STATES}

    monkeypatch.setattr(fluctuations, "ensemble", planted)
    numbers = fluctuations.main((2, 4, 8, 16), (640, 1280), 2000)
    assert picture.stat().st_size > 10_000
    assert min(np.diff(of_kind).min() for of_kind in firsts.values()) >= 2000
    for state in fluctuations.STATES:
        for kind, slope, ratio in (("residual", 0.0, 1.0), ("plain", 1.0, 0.0)):
            found = numbers[f"{kind}, {state}"]
            assert ("F, N = 640" in found) == (state != "initial")
            law = found["G, N = 640"]
            assert law["slope"][0] == pytest.approx(slope, abs=0.1)
            assert law["late"][0] == pytest.approx(slope, abs=law["late"][1] * 2)
            found = found["H, log2 of the widths' ratio"]
            assert found["mean"] == pytest.approx(ratio, abs=4 * found["stderr"])
            assert found["stderr"] < 0.1
    exact = numbers["plain, initial"]["H, N = 640"]["exact"]
    np.testing.assert_allclose(exact[0], 7 + 10 / 640, rtol=1e-9)


def test_plain_networks_have_the_exact_law():
    """Of H before training; training changes it, and the means are those that the learning rate is chosen by."""
    width, depth, seeds = 32, 2, 4000
    found = fluctuations.ensemble("plain", width, depth, seeds, 0)
    variance = fluctuations.relative_variance(found["initial"]["H"])
    expected = fluctuations.plain_variance(width, np.array(depth)) / width
    assert variance.value == pytest.approx(expected, abs=4 * variance.stderr)
    assert variance.stderr < 0.04 * expected
    for name, limit in (("H", 2.0), ("G", 0.5), ("NTK", (depth + 2) / 2)):
        values = found["initial"][name].astype(float)
        assert values.mean() == pytest.approx(limit, abs=4 * values.std() / seeds**0.5)
    lazy, rich = (found[state] for state in fluctuations.STATES[1:])
    assert lazy["F"].mean() == pytest.approx(1 - 0.7**3, abs=0.1)
    assert rich["H"].mean() > 1.1 * lazy["H"].mean() > 1.1 * 2


def test_convolutional_kernels(picture, monkeypatch):
    """Networks of 8 to 32 channels against the limit of their depth; planted convergence in depth."""
    real = convolutional_kernels.limit

    def limit(x, depth, padding):
        planted = {name: np.eye(2) * (1 + (0.3 / depth if depth else 0)) for name in convolutional_kernels.PARTS}
        return real(x, depth, padding) if depth == 2 else planted

    monkeypatch.setattr(convolutional_kernels, "limit", limit)
    numbers = convolutional_kernels.main(2, (8, 16, 32), 2, 60, (4, 8, 32, 64, 128), "zero")
    assert picture.stat().st_size > 10_000
    for name, entries in numbers["entries"].items():
        exact, mean, error = entries.values()
        assert np.all(np.abs(mean - exact) < 4.5 * error + exact / 16), name  # a bias of 1/N
        assert error.max() < 0.15 * exact.max(), name
        slope, low, high = numbers["width"][name]["slope"]
        assert low < slope < high, name
        assert slope == pytest.approx(-1, abs=0.4), name
    for padding in ("circular", "zero"):
        for name in ("H", "ntk"):
            assert numbers["depth"][f"{name}, {padding}"]["last slope"] == pytest.approx(-1, abs=1e-6)
