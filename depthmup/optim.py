"""Optax transformations that apply a parameterization's per-leaf factors, and the optimizer factory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from depthmup.parameterization import LeafFactors, Parameterization, unknown
from depthmup.specs import factors as leaf_factors

PyTree = Any
OPTIMIZERS = {"sgd": "sgd", "momentum": "sgd", "adam": "adam", "adamw": "adam"}  # name -> family of its LR rule


def family_of(name: str) -> str:
    """Optimizer name -> "sgd" or "adam". Raises ValueError for an unknown one."""
    if name not in OPTIMIZERS:
        hint = "; any other optax transformation goes through dm.scale_by_parameterization"
        raise unknown("optimizer", name, OPTIMIZERS, hint)
    return OPTIMIZERS[name]


def scale_by_parameterization(p: Parameterization, specs: PyTree, family: str = "adam") -> optax.GradientTransformation:
    """Multiply each leaf's update by its LR factor.

    Put it after the transformation that makes the update and before the learning rate, which may be a schedule:

      optax.chain(optax.scale_by_lion(), dm.scale_by_parameterization(p, specs, family="adam"),
                  optax.scale_by_learning_rate(lr))

    Args:
      family: "sgd" if the update is linear in the gradient, "adam" if its size does not depend on the gradient's.

    Source: docs/rules.md section 0, rows `SGD LR` and `Adam LR`.
    """
    return scale_by_tree(leaf_factors(p, specs, family).lr)


def scale_by_eps_factors(p: Parameterization, specs: PyTree) -> optax.GradientTransformation:
    """Divide each leaf's gradient by its eps factor, which is the same as multiplying Adam's eps by it.

    Put it right before `optax.scale_by_adam` or another transformation m / (sqrt(v) + eps), and after clipping.
    Source: docs/rules.md section 0, row `Adam eps`.
    """
    return scale_by_tree(jax.tree.map(lambda e: 1 / e, leaf_factors(p, specs, "adam").eps))


def optimizer(
    p: Parameterization,
    specs: PyTree,
    name: str,
    learning_rate: optax.ScalarOrSchedule,
    **options: Any,
) -> optax.GradientTransformation:
    """ "sgd", "momentum", "adam" or "adamw" with every leaf's LR, eps and weight decay as `p` says.

    Args:
      learning_rate: a number, a traced scalar or an optax schedule; the per-leaf factors multiply it at each step.
      **options: as in `from_factors`: momentum, nesterov, b1, b2, eps, weight_decay, decay, mask.

    Raises ValueError for an unknown name, a learning rate that is not positive, or a parameterization that is not
    defined for this optimizer.
    """
    return from_factors(leaf_factors(p, specs, family_of(name)), name, learning_rate, **options)


def from_factors(
    factors: LeafFactors,
    name: str,
    learning_rate: optax.ScalarOrSchedule,
    *,
    momentum: float | jax.Array | None = None,
    nesterov: bool = False,
    b1: float | jax.Array = 0.9,
    b2: float | jax.Array = 0.999,
    eps: float | jax.Array = 1e-8,
    weight_decay: float | jax.Array = 0.0,
    decay: str = "uncoupled",
    mask: PyTree | Callable[[PyTree], PyTree] | None = None,
) -> optax.GradientTransformation:
    """The optimizer from trees of factors, which may be traced: build it inside the jitted step.

    With f = factors of the leaf and u the update of SGD, momentum or Adam (its eps times f.eps):
      w <- w - learning_rate (f.lr u + f.lr f.decay weight_decay w).

    Args:
      momentum: decay of the velocity, for "momentum" (0.9 unless given).
      weight_decay: decoupled from the gradient for every optimizer; 0 leaves it out.
      decay: "uncoupled": learning rate x decay is the same at every width, depth and gamma0. "coupled": f.decay is
        left out, so that each leaf's decay follows its learning rate (and depends on the storage form).
      mask: tree of bools, or a function from params to one, of the leaves to decay, as in `optax.adamw`.
    """
    family = family_of(name)
    if isinstance(learning_rate, float | int) and not learning_rate > 0:
        raise ValueError(f"learning_rate must be positive, got {learning_rate}")
    if decay not in ("uncoupled", "coupled"):
        raise unknown("decay", decay, ("uncoupled", "coupled"))
    if momentum is not None and name != "momentum":
        raise ValueError(f"momentum is an option of the optimizer 'momentum', not of {name!r}")
    parts = []
    if family == "adam":
        parts += [scale_by_tree(jax.tree.map(lambda e: 1 / e, factors.eps)), optax.scale_by_adam(b1, b2, eps)]
    elif name == "momentum":
        parts += [optax.trace(decay=0.9 if momentum is None else momentum, nesterov=nesterov)]
    parts += [scale_by_tree(factors.lr)]
    if not isinstance(weight_decay, float | int) or weight_decay != 0:
        per_leaf = factors.lr if decay == "coupled" else jax.tree.map(lambda a, b: a * b, factors.lr, factors.decay)
        parts += [add_decayed_weights(weight_decay, per_leaf, mask)]
    return optax.chain(*parts, optax.scale_by_learning_rate(learning_rate))


def scale_by_tree(scale: PyTree) -> optax.GradientTransformation:
    """Multiply each leaf of the updates by a scalar, keeping its dtype; what `optax.masked` hides stays hidden."""

    def update(updates: PyTree, params: PyTree | None = None) -> PyTree:
        del params
        return jax.tree.map(
            lambda u, s: u if _hidden(u) else u * jnp.asarray(s, u.dtype), updates, scale, is_leaf=_hidden
        )

    return optax.stateless(update)


def add_decayed_weights(
    weight_decay: float | jax.Array, scale: PyTree, mask: PyTree | Callable[[PyTree], PyTree] | None = None
) -> optax.GradientTransformation:
    """Add weight_decay * scale * w to each leaf, `scale` a tree of scalars, where `mask` is true."""

    def update(updates: PyTree, params: PyTree | None = None) -> PyTree:
        if params is None:
            raise ValueError("weight decay needs the parameters: call tx.update(grads, state, params)")
        chosen = mask(params) if callable(mask) else mask
        chosen = jax.tree.map(lambda _: True, scale) if chosen is None else chosen
        return jax.tree.map(
            lambda u, w, s, m: u if _hidden(u) or not m else u + jnp.asarray(weight_decay * s, u.dtype) * w,
            updates,
            params,
            scale,
            chosen,
            is_leaf=_hidden,
        )

    return optax.stateless(update)


def _hidden(leaf: object) -> bool:
    return isinstance(leaf, optax.MaskedNode)
