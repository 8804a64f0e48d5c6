"""Gaussian averages of activations: Phi = <phi(u) phi(v)> and Phidot = <phi'(u) phi'(v)>."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from depthmup.parameterization import unknown

Function = Callable[[jax.Array], jax.Array]
Pair = Callable[[jax.Array, jax.Array, jax.Array], tuple[jax.Array, jax.Array]]
TERMS = 128  # of Mehler's series
TINY = 1e-300


class Moments(NamedTuple):
    """(Phi, Phidot) of (u, v) ~ N(0, [[a, c], [c, b]]), elementwise; docs/theory.md section 2.

    pair: (a (P, 1), b (1, Q), c (P, Q)) -> twice (P, Q).   same: a (P,) -> twice (P,), for u = v.
    """

    pair: Pair
    same: Callable[[jax.Array], tuple[jax.Array, jax.Array]]

    def __call__(self, a: jax.Array, b: jax.Array, c: jax.Array) -> tuple[jax.Array, jax.Array]:
        """`pair`, or `same` for all three (P,), where near rho = 1 half the digits of an angle would be lost."""
        return self.same(c) if c.ndim == 1 else self.pair(a, b, c)


FUNCTIONS: dict[str, Function] = {
    "linear": lambda h: h,
    "relu": jax.nn.relu,
    "erf": jax.lax.erf,
    "tanh": jnp.tanh,
    "gelu": functools.partial(jax.nn.gelu, approximate=False),
}


def known(activation: str | Function) -> str | Function:
    """The name, if it is that of a function here, given by name or not. Raises ValueError for another name."""
    if isinstance(activation, str) and activation not in FUNCTIONS:
        raise unknown("activation", activation, FUNCTIONS, "; any function of arrays will do as well")
    names = [name for name, function in FUNCTIONS.items() if function is activation]
    return names[0] if names else activation


def function_of(activation: str | Function) -> Function:
    """phi by name, or the callable itself. Raises ValueError for an unknown name."""
    activation = known(activation)
    return FUNCTIONS[activation] if isinstance(activation, str) else activation


def derivative_of(function: Function) -> Function:
    """phi', elementwise, for arrays of any shape."""
    return lambda h: jax.jvp(function, (h,), (jnp.ones_like(h),))[1]


def moments(activation: str | Function) -> Moments:
    """Closed forms for "linear", "relu" and "erf"; Mehler's series for all others. Raises ValueError as `function_of`.

    Mehler: <phi(u) phi(v)> = sum_k rho^k c_k(a) c_k(b), c_k(a) = <phi(sqrt(a) z) he_k(z)>, he_k the normalised Hermite
    polynomials, with `TERMS` terms: the remainder is at most rho^TERMS times what the c_k^2 lack of <phi^2>
    (tanh: 5e-15 of it at a = 1, 3e-9 at a = 3; gelu: 1e-16, 2e-16). phi may have its kink at 0 only.
    """
    activation = known(activation)
    if isinstance(activation, str) and activation in CLOSED:
        return CLOSED[activation]
    function = function_of(activation)
    return Moments(functools.partial(_mehler, function), functools.partial(_same, function))


def remainder(activation: str | Function, norm: float, rho: float) -> float:
    """Bound of the relative error of Phidot by the series for two samples of this norm and overlap; 0 if not used."""
    activation = known(activation)
    if activation in CLOSED:
        return 0.0
    z, weights, hermite = _hermite()
    slopes = np.asarray(derivative_of(function_of(activation))(jnp.asarray(np.sqrt(norm) * z)))
    whole = float(weights @ slopes**2)
    lacking = whole - float(((hermite * weights) @ slopes) @ ((hermite * weights) @ slopes))
    return rho**TERMS * lacking / max(whole, TINY)


def angle(rho: jax.Array) -> jax.Array:
    """arccos, exactly 0 at 1 and with a finite derivative at both ends."""
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
    """Nodes and weights of averages over z ~ N(0, 1), (nodes,), and he_k at the nodes, (TERMS, nodes).

    Gauss-Legendre in panels of 1/2, one of whose borders is 0, where activations have kinks.
    """
    x, w = np.polynomial.legendre.leggauss(16)
    starts = np.arange(-13, 13, 0.5)
    z = (starts[:, None] + (x + 1) / 4).ravel()
    weights = np.tile(w / 4, len(starts)) * np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)
    rows = [np.ones_like(z), z]
    for k in range(1, TERMS - 1):
        rows.append((z * rows[k] - np.sqrt(k) * rows[k - 1]) / np.sqrt(k + 1))
    return z, weights, np.array(rows)


def _mehler(function: Function, a: jax.Array, b: jax.Array, c: jax.Array) -> tuple[jax.Array, jax.Array]:
    z, weights, hermite = _hermite()
    basis = hermite * weights
    rho = overlap(a, b, c)

    def series(f: Function) -> jax.Array:
        left, right = (basis @ f(jnp.sqrt(v.ravel() + TINY) * z[:, None]) for v in (a, b))  # (TERMS, P), (TERMS, Q)

        def horner(total: jax.Array, both: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
            return total * rho + both[0][:, None] * both[1], None

        return jax.lax.scan(horner, jnp.zeros_like(rho), (left, right), reverse=True, unroll=16)[0]

    return series(function), series(derivative_of(function))


def _same(function: Function, a: jax.Array) -> tuple[jax.Array, jax.Array]:
    z, weights, _ = _hermite()
    h = jnp.sqrt(a[:, None] + TINY) * z
    return function(h) ** 2 @ weights, derivative_of(function)(h) ** 2 @ weights
