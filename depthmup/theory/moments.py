"""Gaussian averages of activations: Phi = <phi(u) phi(v)> and Phidot = <phi'(u) phi'(v)>."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from depthmup.activations import ACTIVATIONS, Activation, ActivationName
from depthmup.names import short, unknown

Pair = Callable[[jax.Array, jax.Array, jax.Array], tuple[jax.Array, jax.Array]]
TERMS = 128  # the number of terms of Mehler's series
TINY = 1e-300  # added to numbers that may be 0 before they are divided by or their root is taken


class Moments(NamedTuple):
    """(Phi, Phidot) for (u, v) ~ N(0, [[a, c], [c, b]]); docs/theory.md section 2.

    pair: for P values of u and Q values of v: a (P, 1), b (1, Q) and c (P, Q) give two arrays (P, Q).
    same: for u = v: a (P,) gives two arrays (P,).
    """

    pair: Pair
    same: Callable[[jax.Array], tuple[jax.Array, jax.Array]]

    def __call__(self, a: jax.Array, b: jax.Array, c: jax.Array) -> tuple[jax.Array, jax.Array]:
        """`pair`; or, for one array a = b = c of shape (P,), `same`: at rho = 1 `pair` loses half its digits."""
        return self.same(c) if c.ndim == 1 else self.pair(a, b, c)


def known(activation: ActivationName | Activation) -> ActivationName | Activation:
    """The name of an activation that has one, given by its name or as the function; any other function as it is.

    Raises ValueError for a name that is not in `ACTIVATIONS`, and for what is no function.
    """
    if isinstance(activation, str) and activation not in ACTIVATIONS:
        raise unknown("activation", activation, ACTIVATIONS, "; any function of arrays will do as well")
    if not isinstance(activation, str) and not callable(activation):
        raise ValueError(f"activation must be a name or a function of arrays, got {short(activation)}")
    names = [name for name, function in ACTIVATIONS.items() if function is activation]
    return names[0] if names else activation


def function_of(activation: ActivationName | Activation) -> Activation:
    """phi by name, or the callable itself. Raises ValueError for an unknown name."""
    activation = known(activation)
    return ACTIVATIONS[activation] if isinstance(activation, str) else activation


def derivative_of(function: Activation) -> Activation:
    """phi', elementwise, for arrays of any shape."""
    return lambda h: jax.jvp(function, (h,), (jnp.ones_like(h),))[1]


def moments(activation: ActivationName | Activation) -> Moments:
    """Closed forms for "linear", "relu" and "erf"; Mehler's series for all others. phi may have a kink at 0 only.

    Mehler's series is <phi(u) phi(v)> = sum_k rho^k c_k(a) c_k(b), where c_k(a) = <phi(sqrt(a) z) he_k(z)> and he_k are
    the normalised Hermite polynomials. After `TERMS` terms the remainder is at most rho^TERMS (<phi^2> - sum_k c_k^2).
    That difference is 5e-15 of <phi^2> for tanh at a = 1 and 3e-9 at a = 3, for gelu 1e-16 and 2e-16.

    Raises ValueError for an unknown name.
    """
    activation = known(activation)
    if isinstance(activation, str) and activation in CLOSED:
        return CLOSED[activation]
    function = function_of(activation)
    return Moments(functools.partial(_mehler, function), functools.partial(_same, function))


def remainder(activation: ActivationName | Activation, norm: float, rho: float) -> float:
    """A bound of the relative error of Phidot for two samples with norm a = b = `norm` and overlap `rho`.

    It is the error of Mehler's series; closed forms have none, 0.
    """
    activation = known(activation)
    if activation in CLOSED:
        return 0.0
    z, weights, hermite = _hermite()
    slopes = np.asarray(derivative_of(function_of(activation))(jnp.asarray(np.sqrt(norm) * z)))
    coefficients = (hermite * weights) @ slopes
    total = float(weights @ slopes**2)
    missing = total - float(coefficients @ coefficients)
    return rho**TERMS * missing / max(total, TINY)


def angle(rho: jax.Array) -> jax.Array:
    """arccos(rho); exactly 0 at rho = 1, and with a finite derivative at rho = -1 and 1."""
    inside = jnp.clip(rho, -1 + 1e-15, 1 - 1e-15)
    return jnp.where(rho < 1 - 1e-15, jnp.arccos(inside), 0.0)


def overlap(a: jax.Array, b: jax.Array, c: jax.Array) -> jax.Array:
    """rho = c / sqrt(ab), clipped; 0 where a or b is 0."""
    return jnp.clip(c / jnp.sqrt(jnp.maximum(a * b, TINY)), -1, 1)


def relu_pair(theta: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(Phi / sqrt(ab), Phidot) of ReLU at the angle theta; docs/theory.md section 2."""
    return (jnp.sin(theta) + (jnp.pi - theta) * jnp.cos(theta)) / (2 * jnp.pi), (jnp.pi - theta) / (2 * jnp.pi)


def _relu(a: jax.Array, b: jax.Array, c: jax.Array) -> tuple[jax.Array, jax.Array]:
    phi, phidot = relu_pair(angle(overlap(a, b, c)))
    return jnp.sqrt(a * b + TINY) * phi, phidot


def _erf(a: jax.Array, b: jax.Array, c: jax.Array) -> tuple[jax.Array, jax.Array]:
    square = (1 + 2 * a) * (1 + 2 * b)
    return 2 / jnp.pi * jnp.arcsin(2 * c / jnp.sqrt(square)), 4 / jnp.pi / jnp.sqrt(square - 4 * c**2)


CLOSED = {
    "linear": Moments(lambda a, b, c: (c, jnp.ones_like(c)), lambda a: (a, jnp.ones_like(a))),
    "relu": Moments(_relu, lambda a: (a / 2, jnp.full_like(a, 0.5))),
    "erf": Moments(_erf, lambda a: _erf(a, a, a)),
}


@functools.cache
def _hermite() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Nodes and weights that average over z ~ N(0, 1), (nodes,) each, and he_k at the nodes, (TERMS, nodes).

    Gauss-Legendre quadrature on panels of length 1/2. Two panels meet at 0, where activations have their kinks.
    """
    x, w = np.polynomial.legendre.leggauss(16)
    starts = np.arange(-13, 13, 0.5)
    z = (starts[:, None] + (x + 1) / 4).ravel()
    weights = np.tile(w / 4, len(starts)) * np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)
    rows = [np.ones_like(z), z]
    for k in range(1, TERMS - 1):
        rows.append((z * rows[k] - np.sqrt(k) * rows[k - 1]) / np.sqrt(k + 1))
    return z, weights, np.array(rows)


def _mehler(function: Activation, a: jax.Array, b: jax.Array, c: jax.Array) -> tuple[jax.Array, jax.Array]:
    z, weights, hermite = (jnp.asarray(array, a.dtype) for array in _hermite())
    basis = hermite * weights
    rho = overlap(a, b, c)

    def series(f: Activation) -> jax.Array:
        left, right = (basis @ f(jnp.sqrt(v.ravel() + TINY) * z[:, None]) for v in (a, b))  # (TERMS, P), (TERMS, Q)

        def horner(total: jax.Array, coefficients: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
            return total * rho + coefficients[0][:, None] * coefficients[1], None

        return jax.lax.scan(horner, jnp.zeros_like(rho), (left, right), reverse=True, unroll=16)[0]

    return series(function), series(derivative_of(function))


def _same(function: Activation, a: jax.Array) -> tuple[jax.Array, jax.Array]:
    z, weights, _ = (jnp.asarray(array, a.dtype) for array in _hermite())
    h = jnp.sqrt(a[:, None] + TINY) * z
    return function(h) ** 2 @ weights, derivative_of(function)(h) ** 2 @ weights
