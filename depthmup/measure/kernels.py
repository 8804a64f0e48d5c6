"""Kernels of finite networks (H, Phi and G, of features and gradients), and distances between kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from depthmup.names import POSITIVE, listed, short
from depthmup.rules.specs import PyTree

Forward = Callable[[PyTree, jax.Array, Any], tuple[jax.Array, PyTree]]


class NetworkFields(NamedTuple):
    """Features and gradients of a network: one array per layer l = 0..L in each list."""

    h: list[jax.Array]  # h^l, (examples, units)
    phi: list[jax.Array]  # phi(h^l), (examples, units)
    g: list[jax.Array]  # g^l, (examples x outputs, units)


class NetworkKernels(NamedTuple):
    """Kernels of a network, one per layer l = 0..L."""

    H: jax.Array  # kernels of h^l, (L+1, examples, examples)
    Phi: jax.Array  # kernels of phi(h^l), (L+1, examples, examples)
    G: jax.Array  # kernels of g^l, (L+1, examples x outputs, examples x outputs)


def network_fields(
    forward: Forward, params: PyTree, x: jax.Array, *, phi: Callable[[jax.Array], jax.Array], gamma0: float = 1.0
) -> NetworkFields:
    """h^l, phi(h^l) and g^l = gamma_0 N dF/dh^l of every layer, l = 0..L; docs/theory.md section 0.

    N is the number of entries of one example's h^l: positions of images and tokens count as units. In g^l the rows of
    one example's outputs are next to each other. `feature_kernels` turns a field into its kernel; give it the fields of
    two times, concatenated along the examples, for the kernel between the times.

    Args:
      forward: (params, x, shifts) -> (outputs (examples,) or (examples, outputs), states). The leaves of `states` are
        h^0..h^L, (examples, ...), in the order of depth (JAX sorts a dict by its keys). `shifts` is None or a tree like
        `states`; forward must add each of its arrays to its state before it computes anything from the state (otherwise
        g is 0). For our models forward is `model.forward(factors)`. In Equinox, NNX or plain JAX write the forward pass
        as a loop: `h = block(h)`, then `h = h if shifts is None else h + shifts[l]`, then `states.append(h)`. Examples
        must not act on each other.
      phi: the activation, such as `model.phi`.
      gamma0: gamma_0 in F = w.psi / (gamma_0 N); it equals the parameterization's gamma0 if the base width is 1.

    Returns:
      `NetworkFields`: h and phi(h), lists of (examples, units), and g, a list of (examples x outputs, units).

    Raises ValueError if forward returns something else, or for a gamma0 that is not positive.
    """
    POSITIVE.check("gamma0", gamma0)
    shapes = jax.eval_shape(lambda: forward(params, x, None))
    if not (isinstance(shapes, tuple) and len(shapes) == 2 and jax.tree.leaves(shapes[1])):
        raise ValueError("forward must return (outputs, states), with states h^0..h^L; it returned no states")
    check_outputs("forward", shapes[0], x)
    for h in jax.tree.leaves(shapes[1]):
        if h.shape[:1] != x.shape[:1]:
            raise ValueError(f"each state must be (examples, ...), got {h.shape} for inputs {x.shape}")
    zeros = jax.tree.map(lambda h: jnp.zeros(h.shape, h.dtype), shapes[1])

    # An example's outputs depend on its own shifts only, so the sum over examples has each example's gradient.
    def summed(shifts: PyTree) -> tuple[jax.Array, PyTree]:
        outputs, states = forward(params, x, shifts)
        return outputs.reshape(len(x), -1).sum(axis=0), states

    slopes, states = jax.jacrev(summed, has_aux=True)(zeros)
    h, activated = ([f(state).reshape(len(x), -1) for state in jax.tree.leaves(states)] for f in (jnp.asarray, phi))
    by_example = [jnp.moveaxis(slope, 0, 1) for slope in jax.tree.leaves(slopes)]
    g = [gamma0 * hl.shape[1] * slope.reshape(-1, hl.shape[1]) for hl, slope in zip(h, by_example, strict=True)]
    return NetworkFields(h, activated, g)


def network_kernels(
    forward: Forward, params: PyTree, x: jax.Array, *, phi: Callable[[jax.Array], jax.Array], gamma0: float = 1.0
) -> NetworkKernels:
    """H^l, Phi^l and G^l of a finite network, whose infinite-width limits `theory` computes.

    The function may be jitted, and vmapped over params of several seeds. For kernels between test and training
    examples, give both in one x.

    Args:
      forward, params, x, phi, gamma0: those of `network_fields`.

    Returns:
      `NetworkKernels`: H and Phi, (layers, examples, examples), and G, (layers, examples x outputs, examples x
      outputs).

    Raises as `network_fields`.
    """
    fields = network_fields(forward, params, x, phi=phi, gamma0=gamma0)
    return NetworkKernels(*(feature_kernels(field) for field in fields))


def feature_kernels(states: Sequence[jax.Array]) -> jax.Array:
    """H^l = h^l h^l^T / units for every layer (docs/theory.md 0).

    Args:
      states: h^l, (examples, ...) each; positions of images and tokens count as units.

    Returns:
      (layers, examples, examples), in float32 or wider.

    Raises ValueError for states of different numbers of examples, or of none.
    """
    shapes = [np.shape(h) for h in listed("states", states)]
    if len({shape[:1] for shape in shapes}) != 1 or min(map(len, shapes)) < 2:
        raise ValueError(f"states must be (examples, ...) each, of the same examples, got {short(shapes)}")
    flat = [h.reshape(len(h), -1).astype(jnp.promote_types(h.dtype, jnp.float32)) for h in states]
    return jnp.stack([h @ h.T / h.shape[1] for h in flat])


def distance(a: jax.Array, b: jax.Array) -> jax.Array:
    """|a - b| / |b| with Frobenius norms over the last two axes.

    Args:
      a, b: kernels, (..., P, P).

    Returns:
      (...). It is NaN for a kernel with a NaN, as that of a network that has diverged, and not finite where b is 0.

    Raises ValueError for shapes that do not fit.
    """
    _check_kernels(a, b)
    return jnp.linalg.norm(a - b, axis=(-2, -1)) / jnp.linalg.norm(b, axis=(-2, -1))


def alignment(a: jax.Array, b: jax.Array, *, centred: bool = False) -> jax.Array:
    """<a, b> / (|a| |b|) with Frobenius products over the last two axes.

    Args:
      a, b: kernels, (..., P, P).
      centred: first subtract from the features their mean over examples (linear CKA; Kornblith et al. 2019).

    Returns:
      (...): 1 if a is a positive multiple of b, and NaN where one of them is 0 or has a NaN.

    Raises ValueError for shapes that do not fit.
    """
    _check_kernels(a, b)
    if centred:
        for axis in (-1, -2):
            a, b = (k - k.mean(axis, keepdims=True) for k in (a, b))
    return (a * b).sum((-2, -1)) / (jnp.linalg.norm(a, axis=(-2, -1)) * jnp.linalg.norm(b, axis=(-2, -1)))


def kernel_movement(before: jax.Array, after: jax.Array) -> jax.Array:
    """|H_after - H_before| / |H_before| of every layer (Frobenius norms): two kernels (layers, P, P) -> (layers,)."""
    return distance(after, before)


def _check_kernels(a: jax.Array, b: jax.Array) -> None:
    left, right = np.shape(a), np.shape(b)
    if len(left) < 2 or len(right) < 2 or left[-2:] != right[-2:]:
        raise ValueError(f"two kernels must be (..., P, P) with the same P, got shapes {left} and {right}")


def check_outputs(what: str, outputs: Any, x: jax.Array) -> None:
    shape: tuple[int, ...] = getattr(outputs, "shape", ())  # A tree has no shape and fails the test below.
    if len(shape) not in (1, 2) or shape[0] != len(x):
        raise ValueError(f"{what} must return (examples,) or (examples, outputs), got {outputs} for inputs {x.shape}")
