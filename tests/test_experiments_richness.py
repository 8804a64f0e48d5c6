"""experiments/richness.py, ntp_against_mup.py and alpha_family.py at small sizes."""

import inspect
import json
import math
import sys

import numpy as np
import pytest

from depthmup.theory import Dynamics, dmft, lazy_kernels, linear_dmft
from experiments import alpha_family, ntp_against_mup, richness
from experiments.networks import train


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Runs an experiment; what it returns."""

    def run(main, **sizes):
        monkeypatch.setattr(sys, "argv", ["experiment", str(tmp_path / "figure.png")])
        numbers = main(**sizes)
        assert (tmp_path / "figure.png").stat().st_size > 10_000
        assert json.loads((tmp_path / "figure.json").read_text()).keys() == numbers.keys()
        return numbers

    return run


def test_common_draws():
    """gamma^2 with an error that is linear in gamma, the same at all gammas: the interval must allow for it."""
    gammas, rng = np.array([0.01, 0.02, 0.05, 0.1, 0.2, 1.0]), np.random.default_rng(0)
    held, widths = 0, []
    for _ in range(100):
        runs = 0.3 * gammas**2 + 0.01 * rng.normal(size=(16, 1)) * gammas
        runs[:, -1] += 5  # beyond `largest`
        found = richness.of_draws(runs[..., None, None], richness.rms, gammas, 0.2)
        slope, low, high = found.law
        held += low < 2 < high
        widths.append([high - low, np.subtract(*richness.exponent(gammas, found.value, found.stderr, 0.2)[:0:-1])])
        assert low < slope < high
    assert 88 <= held < 100
    assert np.median(np.array(widths), axis=0) @ [1, -2] > 0  # than that from the scatter about the line
    np.testing.assert_allclose(found.value, np.abs(runs.mean(0)))


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
    found = richness.of_draws(values, richness.most, [1, 2, 3, 4])
    expected, error = richness.mean(values[:, :, 0, 0])
    np.testing.assert_allclose(found.value, expected)
    np.testing.assert_allclose(found.stderr, error, rtol=1e-12)


def test_movement():
    kernel = np.random.default_rng(2).normal(size=(4, 3, 4, 3))
    first, last = kernel[0, :, 0], kernel[3, :, 3]
    expected = np.sqrt(np.sum((last - first) ** 2) / np.sum(first**2))
    assert richness.movement(kernel) == pytest.approx(expected, rel=1e-5)


def test_richness(written):
    """Theory and networks; movement grows as gamma0^2, and linear networks are lazy up to gamma0^2."""
    sizes = dict(depth=1, steps=3, samples=4000, width=64, seeds=64, activations=("linear",), shown=(1.0,))
    moved = (0.05, 0.07, 0.1, 0.15, 0.2, 0.5, 1.0)
    numbers = written(richness.main, **sizes, gammas=(0.01, 0.05, 0.2, 1.0), moved=moved)
    slope, low, high = numbers["distance"]["linear, exact"]["law"]
    assert slope == pytest.approx(2, abs=0.02)
    assert low < slope < high
    for kernel in ("H", "Phi"):
        found = numbers["movement"][kernel]
        assert found["networks"][-1] == pytest.approx(found["theory"][-1], abs=4 * found["stderr"][-1])
        assert found["stderr"][-1] < 0.1 * found["networks"][-1]
        exact, networks = found["laws"]
        assert exact[0] == pytest.approx(2, abs=0.3)  # of few samples
        assert networks[0] == pytest.approx(2, abs=0.1)
    curve = numbers["curves"]["1"]
    assert np.all(np.abs(curve["networks"] - curve["theory"])[1:] < 4 * curve["stderr"][1:] + 0.01)
    assert np.all(curve["stderr"][1:] < 0.01)
    assert np.abs(curve["theory"][-1]).min() > 0.05


def test_limit():
    """Each draw is another; they are the same for all gamma0, so that differences are far smaller than their noise."""
    options = dict(eta0=0.5, depth=1, steps=3, draws=2, samples=4000, activation="tanh")
    (rich, moved), (lazy, hardly) = (ntp_against_mup.limit(gamma0, **options) for gamma0 in (0.05, 1e-3))
    assert 0 < np.abs(rich - lazy).max() < 0.2 * np.abs(lazy[0] - lazy[1]).max()
    assert 0 < hardly < 0.01 * moved


def test_ntp_against_mup(written, monkeypatch):
    """A planted limit, best at eta0 = 2 / (1 + gamma0), and planted networks about it."""
    v, m, rng = 0.5, 3.0, np.random.default_rng(3)

    def planted_limit(gamma0, eta0, depth, steps, draws, samples, activation="relu"):
        learnt = 1 - (1 - eta0 * (1 + gamma0) / 2) ** np.arange(steps)
        noise = 0.01 * np.random.default_rng(0).normal(size=(draws, 1, 1))
        return learnt[:, None] * richness.Y + (0.02 * gamma0**2 + noise) * np.ones((1, 3)), 0.6 * gamma0**2

    def planted_networks(problem, **options):
        inspect.signature(train).bind(problem, **options)
        width, seeds, steps = options["width"], options["seeds"], problem.steps
        goal, moved = planted_limit(problem.gamma0, problem.eta0, 1, steps, 8, 1000)
        noise = np.sqrt(v / width) * rng.normal(size=(seeds, steps, 3))
        kernels = np.array([1, 1 + moved])[:, None, None, None] * np.ones((2, 3, 3))
        kernels = kernels * np.exp(0.01 * rng.normal(size=(seeds, 1, 1, 1, 1)))
        predictions = goal.mean(0) + m / width + noise - noise.mean(0)
        return (predictions, kernels) if "observe" in options else predictions

    monkeypatch.setattr(ntp_against_mup, "limit", planted_limit)
    monkeypatch.setattr(ntp_against_mup, "train", planted_networks)
    sizes = dict(depth=1, steps=3, draws=8, widths=(16, 32, 64, 128), networks=2**14)
    numbers = written(ntp_against_mup.main, **sizes, rates=2.0 ** np.arange(-1, 2.1, 0.25))
    for name, exponent in (("muP", 0), ("NTP", -0.5), ("NTP from 16", -0.5)):
        assert numbers["movement"][name]["laws"]["gamma_eff"][0] == pytest.approx(exponent, abs=0.01)
        errors = numbers["errors"][name]
        for law, expected in ((errors["one"]["law"], -0.5), (errors["mean"]["law"], -1)):
            assert law[0] == pytest.approx(expected, abs=0.06)
            assert law[1] < law[0] < law[2]
        assert errors["v"].value == pytest.approx(v, rel=0.1)
        assert errors["m2"].value == pytest.approx(m**2, rel=0.1)
        noise = np.mean(richness.mean(planted_limit(1, 0.5, 1, 3, 8, 1)[0])[1] ** 2)
        assert errors["mean"]["value"][-1] ** 2 == pytest.approx((m / 128) ** 2 - v / 128**2 - noise, rel=0.01)
        best = [2 / (1 + ntp_against_mup.RULES[name](width)) for width in sizes["widths"]]
        np.testing.assert_allclose(numbers["tuned"][name]["theory"], best, rtol=0.1)
    assert np.ptp(numbers["tuned"]["muP"]["theory"]) == 0
    assert numbers["tuned"]["muP"]["transferred"] < 4 < 5 < numbers["tuned"]["NTP from 16"]["transferred"]
    lazy = ntp_against_mup.RULES["NTP"](16)
    expected = richness.rms(planted_limit(lazy, 0.5, 1, 3, 8, 1)[0][0] - planted_limit(1e-3, 0.5, 1, 3, 8, 1)[0][0])
    assert numbers["errors"]["NTP"]["to lazy, relu"]["value"][0] == pytest.approx(expected, rel=1e-3)


def test_loss_of_what_diverged():
    predictions = np.array([[0, 0, 0], richness.Y + np.array([0, 0, 2])])
    assert ntp_against_mup.loss(predictions) == pytest.approx(0.5 * 4 / 3)
    for far in (np.nan, np.inf, 1e30):
        assert ntp_against_mup.loss(np.full((2, 3), far)) == math.inf


def added(depths):
    """H^L - H^0 of tanh at initialization, alpha = 1, at infinite width."""
    return np.array([lazy_kernels(richness.KX, n, "tanh", alpha=1).H[-1] - richness.KX for n in depths])


def test_networks_of_alpha():
    predictions, kernels = alpha_family.networks((1.0,), (2,), width=32, seeds=400, steps=2)[1.0][2]
    assert predictions.shape == (400, 2, 3)
    start, error = richness.mean(kernels[:, 0])  # of H^0 and H^L
    expected = richness.KX + np.array([np.zeros((3, 3)), added([2])[0]])
    assert np.abs((start - expected) / error).max() < 4.5
    between, error = richness.mean(kernels[:, 0, 1] - kernels[:, 0, 0])
    assert np.abs((between - added([2])[0]) / error).max() < 4.5
    assert np.diag(between).min() > 10 * np.diag(error).max()


def test_alpha_family(written, monkeypatch):
    """Planted rates of theory, and planted networks about the kernels at initialization."""
    rate, steps, depths, rng = 0.5, 2, (1, 2, 4), np.random.default_rng(4)
    own, toward = rng.normal(size=(2, steps, 3))

    def planted_theory(problem, *, seed=None, **options):
        inspect.signature(linear_dmft if seed is None else dmft).bind(problem, **options)
        away = 0 if problem.depth is None else problem.depth**-rate
        draw = 0 if seed is None else np.random.default_rng(seed).normal(size=own.shape)
        H = np.ones((2, steps, 3, steps, 3)) * np.array([1, 2 + away])[:, None, None, None]
        predictions = own + draw + away * (1 + 0.02 * draw) * toward
        return Dynamics(predictions, np.arange(2), H, None, None, error=0 * own)

    def planted_networks(problem, **options):
        inspect.signature(train).bind(problem, **options)
        start = np.array([richness.KX, richness.KX + added([problem.depth])[0]])
        ends = np.array([start, start * np.array([1, 1.5])[:, None, None]])
        noise = 0.1 * rng.normal(size=(options["seeds"], *ends.shape))
        return own + 0.1 * rng.normal(size=(options["seeds"], *own.shape)), ends + noise

    monkeypatch.setattr(alpha_family, "dmft", planted_theory)
    monkeypatch.setattr(alpha_family, "linear_dmft", planted_theory)
    monkeypatch.setattr(alpha_family, "train", planted_networks)
    sizes = dict(alphas=(1.0,), steps=steps, shallow=depths, depths=depths, wired=depths, width=32, seeds=400)
    numbers = written(alpha_family.main, **sizes)
    found = numbers["initialization"]["1"]
    np.testing.assert_allclose(
        found["theory"], np.linalg.norm(added(depths), axis=(1, 2)) / np.linalg.norm(richness.KX)
    )
    assert np.all(np.abs(found["value"] - found["theory"]) < 4 * found["stderr"] + 0.005)
    assert found["slope of theory"][0] == pytest.approx(-1, abs=0.05)
    for name in ("linear", "tanh"):
        away = numbers["distance"][f"{name}, 1"]
        assert away["law"][0] == pytest.approx(-rate, abs=0.01)
        np.testing.assert_allclose(away["value"][0], richness.rms(toward), rtol=0.05)
    np.testing.assert_allclose(numbers["curves"]["1"]["networks"], own, atol=0.03)
    moved = numbers["movement"]["1"]
    assert [moved["linear"][1], moved["infinite"]["linear"]] == pytest.approx([2, 1])
    np.testing.assert_allclose(moved["value"], 0.5, atol=0.1)
