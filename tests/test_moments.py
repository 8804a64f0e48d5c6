"""Gaussian averages of activations (docs/theory.md section 2)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from depthmup.activations import ACTIVATIONS
from depthmup.theory.moments import CLOSED, Moments, _mehler, derivative_of, moments

pytestmark = pytest.mark.usefixtures("x64")
COVARIANCES = [(1.0, 1.0, 0.3), (1.5, 0.7, -0.6), (2.0, 1.0, 1.1)]


def matrices(a, b, c):
    return jnp.array([[a]]), jnp.array([[b]]), jnp.array([[c]])


def quadrature(f, a, b, c):
    """<f(u) f(v)> by Gauss-Hermite in two dimensions."""
    z, weights = np.polynomial.hermite_e.hermegauss(160)
    weights = weights / weights.sum()
    u = np.sqrt(a) * z[:, None]
    v = c / np.sqrt(a) * z[:, None] + np.sqrt(b - c**2 / a) * z
    return float(weights @ (np.asarray(f(u)) * np.asarray(f(v))) @ weights)


@pytest.mark.parametrize("covariance", COVARIANCES)
@pytest.mark.parametrize("name", ["linear", "erf", "tanh", "gelu"])
def test_smooth_activations_are_integrals(name, covariance):
    pair = moments(name).pair(*matrices(*covariance))
    for value, f in zip(pair, (ACTIVATIONS[name], derivative_of(ACTIVATIONS[name])), strict=True):
        assert float(value[0, 0]) == pytest.approx(quadrature(f, *covariance), abs=2e-10)


@pytest.mark.parametrize("covariance", COVARIANCES)
@pytest.mark.parametrize("name", sorted(CLOSED))
def test_series_is_the_closed_form(name, covariance):
    """Also for a kink at 0, below its tolerance where rho^128 is."""
    series = _mehler(ACTIVATIONS[name], *matrices(*covariance))
    np.testing.assert_allclose(series, moments(name).pair(*matrices(*covariance)), rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_phidot_is_the_derivative_of_phi(name):
    """Price's theorem, d Phi / d c = Phidot, and with it the derivatives that callers take."""
    a, b, c = matrices(1.3, 0.8, 0.4)
    slope = jax.grad(lambda c: moments(name).pair(a, b, c)[0].sum())(c)
    np.testing.assert_allclose(slope, moments(name).pair(a, b, c)[1], rtol=1e-9)


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_a_sample_with_itself(name):
    a = jnp.array([0.5, 1.0])
    same = moments(name).same(a)
    for i, value in enumerate(np.asarray(a)):
        pair = moments(name).pair(*matrices(value, value, value))
        np.testing.assert_allclose([of[i] for of in same], [of[0, 0] for of in pair], rtol=0, atol=2e-12)


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_a_sample_of_norm_zero(name):
    pair = moments(name).pair(*matrices(0.0, 1.0, 0.0))
    assert float(pair[0][0, 0]) == pytest.approx(0, abs=1e-12)
    slope = {"linear": 1, "erf": 4 / np.pi / np.sqrt(3), "relu": 0.25, "gelu": 0.25, "silu": 0.25, "tanh": None}[name]
    if slope is not None:
        assert float(pair[1][0, 0]) == pytest.approx(slope, rel=1e-9)
    assert np.isfinite(moments(name).same(jnp.zeros(1))).all()


def test_any_function_will_do():
    leaky = moments(lambda h: jnp.where(h > 0, h, 0.1 * h))
    relu, linear = (moments(name).pair(*matrices(1.0, 2.0, 0.5)) for name in ("relu", "linear"))
    # leaky = .9 relu + .1 h, and <relu(u) v> = c / 2
    expected = [0.81 * relu[0] + 2 * 0.09 * 0.25 + 0.01 * linear[0], 0.81 * relu[1] + 2 * 0.09 * 0.5 + 0.01]
    np.testing.assert_allclose(leaky.pair(*matrices(1.0, 2.0, 0.5)), expected, rtol=1e-9)
    assert isinstance(leaky, Moments)


def test_unknown_name():
    with pytest.raises(ValueError, match="unknown activation 'rely'; did you mean 'relu'"):
        moments("rely")
