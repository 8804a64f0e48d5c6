"""Optimizers that act on matrices, each in its fewest lines: what `dm.wrap` and coordinate checks have to understand.

They are for experiments and tests: no blocking, new eigenvectors at every step. A leaf's last two axes are its matrix
(inputs, outputs), axes before them a stack.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from depthmup.rules.specs import PyTree


class Moments(NamedTuple):
    """Running means of G G^T and G^T G, and for SOAP of the rotated gradient and its square, over (1 - decay^steps)."""

    steps: jax.Array
    left: PyTree
    right: PyTree
    first: PyTree = ()
    second: PyTree = ()


def shampoo(power: float = 0.25, decay: float = 0.95, eps: float = 1e-6) -> optax.GradientTransformation:
    """L^-power G R^-power, where L and R are running means of G G^T and G^T G.

    power 1/4 is Shampoo (arXiv 1802.09568); 1/2 the Kronecker product to the power -1/2 (arXiv 2406.17748, without the
    trace, which would make the update free of the gradient's size again).
    """

    def init(params: PyTree) -> Moments:
        return Moments(jnp.zeros([], jnp.int32), *_grams(jax.tree.map(jnp.zeros_like, params)))

    def update(grads: PyTree, state: Moments, params: PyTree | None = None) -> tuple[PyTree, Moments]:
        state = _accumulated(state, grads, decay)
        share = 1 - decay**state.steps

        def of_leaf(g: jax.Array, left: jax.Array, right: jax.Array) -> jax.Array:
            return _root(left / share, power, eps) @ g @ _root(right / share, power, eps)

        return jax.tree.map(of_leaf, grads, state.left, state.right), state

    return optax.GradientTransformation(init, update)


def soap(
    b1: float = 0.9, b2: float = 0.95, eps: float = 1e-4, sides: tuple[bool, bool] = (True, True)
) -> optax.GradientTransformation:
    """Adam in the eigenvectors of L and R (arXiv 2409.11321), or of one of the two (sides)."""

    def init(params: PyTree) -> Moments:
        zeros = jax.tree.map(jnp.zeros_like, params)
        return Moments(jnp.zeros([], jnp.int32), *_grams(zeros), zeros, zeros)

    def update(grads: PyTree, state: Moments, params: PyTree | None = None) -> tuple[PyTree, Moments]:
        state = _accumulated(state, grads, b2)

        def basis(gram: jax.Array, side: bool) -> jax.Array:
            return _eigh(gram)[1] if side else jnp.broadcast_to(jnp.eye(gram.shape[-1]), gram.shape)

        def moments(g: jax.Array, left: jax.Array, right: jax.Array, m: jax.Array, v: jax.Array) -> Any:
            u, w = basis(left, sides[0]), basis(right, sides[1])
            turned = u.mT @ g @ w
            m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * turned**2  # the first moment is kept unrotated
            mean = u.mT @ m @ w / (1 - b1**state.steps)
            return u @ (mean / (jnp.sqrt(v / (1 - b2**state.steps)) + eps)) @ w.mT, m, v

        rows = jax.tree.map(moments, grads, state.left, state.right, state.first, state.second)
        updates, first, second = jax.tree.transpose(jax.tree.structure(grads), jax.tree.structure((0, 0, 0)), rows)
        return updates, state._replace(first=first, second=second)

    return optax.GradientTransformation(init, update)


def times_weight_norm(step: float = 1.0, project: bool = False) -> optax.GradientTransformation:
    """The update times |W| / |update| (Frobenius norms) and `step`; and back to the sphere |W| if `project`.

    Behind Adam or Muon this is AdamH or MuonH (hyperball optimization, Wen et al. 2025).
    """

    def norm(w: jax.Array) -> jax.Array:
        return jnp.sqrt(jnp.sum(w**2, axis=(-2, -1), keepdims=True))

    def of_leaf(u: jax.Array, w: jax.Array) -> jax.Array:
        u = step * u * norm(w) / norm(u)
        return (w + u) * norm(w) / norm(w + u) - w if project else u

    def update(updates: PyTree, params: PyTree) -> PyTree:
        return jax.tree.map(of_leaf, updates, params)

    return optax.stateless(update)


def of_each_leaf(function: Callable[[jax.Array], jax.Array]) -> optax.GradientTransformation:
    return optax.stateless(lambda updates, params: jax.tree.map(function, updates))


def muon(**options: Any) -> optax.GradientTransformation:
    """optax.contrib's Muon of every leaf, without a factor of the shape."""
    return optax.contrib.scale_by_muon(
        weight_dimension_numbers=lambda tree: jax.tree.map(
            lambda w: optax.contrib.MuonDimensionNumbers(w.ndim - 2, w.ndim - 1), tree
        ),
        **options,
    )


def scion(labels: PyTree) -> optax.GradientTransformation:
    """Scion (arXiv 2502.07529): steps of norm 1, each leaf in the norm of its label, with that norm's power of width.

    "columns": the weights of each input of root mean square 1; "spectral": singular values sqrt(outputs / inputs);
    "sign": entries 1 / inputs.
    """

    def columns(g: jax.Array) -> jax.Array:
        return g / jnp.sqrt(jnp.mean(g**2, axis=-1, keepdims=True))

    def spectral(u: jax.Array) -> jax.Array:
        return u * math.sqrt(u.shape[-1] / u.shape[-2])

    def sign(g: jax.Array) -> jax.Array:
        return jnp.sign(g) / g.shape[-2]

    norms = {
        "columns": of_each_leaf(columns),
        "spectral": optax.chain(muon(beta=0.0), of_each_leaf(spectral)),
        "sign": of_each_leaf(sign),
    }
    return optax.partition(norms, labels)


def _grams(grads: PyTree) -> tuple[PyTree, PyTree]:
    return jax.tree.map(lambda g: g @ g.mT, grads), jax.tree.map(lambda g: g.mT @ g, grads)


def _accumulated(state: Moments, grads: PyTree, decay: float) -> Moments:
    def mean(old: jax.Array, new: jax.Array) -> jax.Array:
        return decay * old + (1 - decay) * new

    left, right = _grams(grads)
    return state._replace(
        steps=state.steps + 1, left=jax.tree.map(mean, state.left, left), right=jax.tree.map(mean, state.right, right)
    )


def _eigh(matrix: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Eigenvalues and eigenvectors, one matrix after the other: jaxlib 0.10.2's batches hang on two busy cores."""
    if matrix.ndim == 2:
        return tuple(jnp.linalg.eigh(matrix))
    return jax.lax.map(_eigh, matrix)


def _root(matrix: jax.Array, power: float, eps: float) -> jax.Array:
    """(matrix + eps)^-power of symmetric matrices."""
    values, vectors = _eigh(matrix)
    return (vectors * (jnp.maximum(values, 0)[..., None, :] + eps) ** -power) @ vectors.mT


class Whitening(NamedTuple):
    """PSGD's preconditioners, P_L G P_R."""

    started: jax.Array
    left: PyTree
    right: PyTree


def psgd(rate: float = 0.1) -> optax.GradientTransformation:
    """P_L G P_R, where a step at each update fits P_L and P_R to whiten G (arXiv 1512.04202, Kronecker product).

    Relative steps minimise |P^1/2 G|^2 + |P^-1/2 v|^2 for normal v. Both factors start at the multiple of 1 that gives
    the first update a mean fourth power of 1, as in psgdax 0.1.1.
    """

    def init(params: PyTree) -> Whitening:
        left, right = _grams(jax.tree.map(jnp.zeros_like, params))
        eye = lambda gram: gram + jnp.eye(gram.shape[-1])  # noqa: E731
        return Whitening(jnp.asarray(False), jax.tree.map(eye, left), jax.tree.map(eye, right))

    def fitted(g: jax.Array, factor: jax.Array, other: jax.Array, started: jax.Array) -> jax.Array:
        """P_L after a step; of the transposed gradient P_R."""
        moment = jnp.mean(g**4, axis=(-2, -1), keepdims=True) ** -0.125
        factor, other = (jnp.where(started, p, p * moment) for p in (factor, other))
        signal = factor @ g @ other @ g.mT @ factor
        noise = jnp.trace(jnp.linalg.inv(other), axis1=-2, axis2=-1)[..., None, None]
        size = jnp.sqrt(jnp.sum(signal**2, axis=(-2, -1), keepdims=True)) + noise
        change = (signal - noise * jnp.eye(signal.shape[-1])) / size
        return factor - rate * (factor @ change + change @ factor) / 2

    def update(grads: PyTree, state: Whitening, params: PyTree | None = None) -> tuple[PyTree, Whitening]:
        started = state.started
        left = jax.tree.map(lambda g, a, b: fitted(g, a, b, started), grads, state.left, state.right)
        right = jax.tree.map(lambda g, a, b: fitted(g.mT, b, a, started), grads, state.left, state.right)
        return jax.tree.map(lambda g, a, b: a @ g @ b, grads, left, right), Whitening(jnp.asarray(True), left, right)

    return optax.GradientTransformation(init, update)
