"""Kernels of finite networks: H, Phi and G of features and gradients; and how far two kernels are apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

PyTree = Any
Forward = Callable[[PyTree, jax.Array, Any], tuple[jax.Array, PyTree]]


class NetworkFields(NamedTuple):
    """Of every layer l = 0..L: h^l and phi(h^l), (examples, units); g^l, (examples x outputs, units)."""

    h: list[jax.Array]
    phi: list[jax.Array]
    g: list[jax.Array]


class NetworkKernels(NamedTuple):
    """H^l and Phi^l, (L+1, examples, examples); G^l, (L+1, examples x outputs, examples x outputs)."""

    H: jax.Array
    Phi: jax.Array
    G: jax.Array


def network_fields(
    forward: Forward, params: PyTree, x: jax.Array, *, phi: Callable[[jax.Array], jax.Array], gamma0: float = 1.0
) -> NetworkFields:
    """h^l, phi(h^l) and g^l = gamma_0 N dF/dh^l of every layer, l = 0..L; docs/theory.md section 0.

    N is the number of entries of one example's h^l: positions of images and tokens count as units. Rows of g^l are the
    outputs of one example next to each other. `feature_kernels` of a field is its kernel; of the fields of two times,
    one after the other, the kernel between the times.

    Args:
      forward: (params, x, shifts) -> (outputs (examples,) or (examples, outputs), states). The leaves of `states` are
        h^0..h^L, (examples, ...), in the order of depth (JAX sorts a dict by its keys); shifts is the same tree, of
        what is added to each state before anything is computed from it (else g is 0), or None. For models of ours:
        `model.forward(factors)`. In Equinox, NNX or plain JAX write the pass as a loop: `h = block(h)`, then `h = h if
        shifts is None else h + shifts[l]`, then `states.append(h)`. Examples must not act on each other.
      phi: the activation, such as `model.phi`.
      gamma0: that of F = w.psi / (gamma_0 N), which is the parameterization's if its base width is 1.

    Raises ValueError if forward returns something else.
    """
    shapes = jax.eval_shape(lambda: forward(params, x, None))
    if not (isinstance(shapes, tuple) and len(shapes) == 2 and jax.tree.leaves(shapes[1])):
        raise ValueError("forward must return (outputs, states), with states h^0..h^L; it returned no states")
    check_outputs("forward", shapes[0], x)
    for h in jax.tree.leaves(shapes[1]):
        if h.shape[:1] != x.shape[:1]:
            raise ValueError(f"each state must be (examples, ...), got {h.shape} for inputs {x.shape}")
    zeros = jax.tree.map(lambda h: jnp.zeros(h.shape, h.dtype), shapes[1])

    def summed(shifts: PyTree) -> tuple[jax.Array, PyTree]:  # over examples: each moves with its own shift only
        outputs, states = forward(params, x, shifts)
        return outputs.reshape(len(x), -1).sum(axis=0), states

    slopes, states = jax.jacrev(summed, has_aux=True)(zeros)
    h, activated = ([of(state).reshape(len(x), -1) for state in jax.tree.leaves(states)] for of in (jnp.asarray, phi))
    by_example = [jnp.moveaxis(slope, 0, 1) for slope in jax.tree.leaves(slopes)]
    g = [gamma0 * of.shape[1] * slope.reshape(-1, of.shape[1]) for of, slope in zip(h, by_example, strict=True)]
    return NetworkFields(h, activated, g)


def network_kernels(
    forward: Forward, params: PyTree, x: jax.Array, *, phi: Callable[[jax.Array], jax.Array], gamma0: float = 1.0
) -> NetworkKernels:
    """H^l, Phi^l and G^l of a finite network, as `theory` has them in the limit; arguments as in `network_fields`.

    May be jitted, and mapped over seeds of params. Test and training examples: give both as one x.
    """
    fields = network_fields(forward, params, x, phi=phi, gamma0=gamma0)
    return NetworkKernels(*(feature_kernels(field) for field in fields))


def feature_kernels(states: Sequence[jax.Array]) -> jax.Array:
    """H^l = h^l h^l^T / units of every layer, (layers, examples, examples); each h^l is (examples, ...).

    docs/theory.md section 0; the positions of images and tokens count as units. In float32 or wider.
    """
    flat = [h.reshape(len(h), -1).astype(jnp.promote_types(h.dtype, jnp.float32)) for h in states]
    return jnp.stack([h @ h.T / h.shape[1] for h in flat])


def distance(a: jax.Array, b: jax.Array) -> jax.Array:
    """|a - b| / |b|, Frobenius, of kernels on the last two axes, such as to the limit: (..., P, P) twice -> (...)."""
    return jnp.linalg.norm(a - b, axis=(-2, -1)) / jnp.linalg.norm(b, axis=(-2, -1))


def alignment(a: jax.Array, b: jax.Array, *, centred: bool = False) -> jax.Array:
    """<a, b> / (|a| |b|), Frobenius, of kernels on the last two axes: (..., P, P) twice -> (...); 1 for multiples.

    centred: of the kernels of features less their mean over examples (linear CKA; Kornblith et al. 2019).
    """
    if centred:
        for axis in (-1, -2):
            a, b = (k - k.mean(axis, keepdims=True) for k in (a, b))
    return (a * b).sum((-2, -1)) / (jnp.linalg.norm(a, axis=(-2, -1)) * jnp.linalg.norm(b, axis=(-2, -1)))


def kernel_movement(before: jax.Array, after: jax.Array) -> jax.Array:
    """|H_after - H_before| / |H_before|, Frobenius, of every layer: (layers, P, P) twice -> (layers,)."""
    return distance(after, before)


def check_outputs(what: str, outputs: Any, x: jax.Array) -> None:
    shape: tuple[int, ...] = getattr(outputs, "shape", ())  # of one array, not a tree
    if len(shape) not in (1, 2) or shape[0] != len(x):
        raise ValueError(f"{what} must return (examples,) or (examples, outputs), got {outputs} for inputs {x.shape}")
