"""Optax transformations that apply a parameterization's per-leaf factors, and the optimizer factory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from depthmup.parameterization import LeafFactors, Parameterization, unknown
from depthmup.specs import check_shapes, is_hidden
from depthmup.specs import factors as leaf_factors

PyTree = Any
OPTIMIZERS = {"sgd": "sgd", "momentum": "sgd", "adam": "adam", "adamw": "adam"}  # optimizer -> family of its LR rule


def family_of(name: str) -> str:
    """The family of an optimizer, "sgd" or "adam". Raises ValueError for an unknown optimizer."""
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
      family: "sgd" if the update is linear in the gradient, "adam" if its size does not depend on the
        size of the gradient.

    Source: docs/rules.md section 0, rows `SGD LR` and `Adam LR`.
    """
    return _of_specs(specs, scale_by_tree(leaf_factors(p, specs, family).lr))


def scale_by_eps_factors(p: Parameterization, specs: PyTree) -> optax.GradientTransformation:
    """Divide each leaf's gradient by its eps factor, which does the same as multiplying Adam's eps by the factor.

    Put it after clipping, right before `optax.scale_by_adam` or another transformation m / (sqrt(v) + eps).
    Source: docs/rules.md section 0, row `Adam eps`.
    """
    return _of_specs(specs, scale_by_tree(jax.tree.map(lambda e: 1 / e, leaf_factors(p, specs, "adam").eps)))


def optimizer(
    p: Parameterization,
    specs: PyTree,
    name: str,
    learning_rate: optax.ScalarOrSchedule,
    *,
    momentum: float | jax.Array | None = None,
    nesterov: bool | None = None,
    b1: float | jax.Array | None = None,
    b2: float | jax.Array | None = None,
    eps: float | jax.Array | None = None,
    weight_decay: float | jax.Array = 0.0,
    decay: str = "uncoupled",
    mask: PyTree | Callable[[PyTree], PyTree] | None = None,
) -> optax.GradientTransformation:
    """SGD or Adam with the LR, eps and weight decay that `p` gives to every leaf.

    One step changes the leaf w by
      w <- w - learning_rate (f.lr u + f.lr f.decay weight_decay w),
    where f are the leaf's factors (docs/rules.md section 0) and u is the optimizer's update (Adam's eps times f.eps).

    Args:
      name: "sgd", "momentum", "adam" or "adamw"; the last two are the same here, since decay is 0 unless given.
      learning_rate: a number, a traced scalar or an Optax schedule; the per-leaf factors multiply it at each step.
      momentum, nesterov: options of "momentum", by default 0.9 and False.
      b1, b2, eps: options of Adam, by default 0.9, 0.999 and 1e-8.
      weight_decay: base weight decay, applied apart from the gradient (as in AdamW) for every optimizer; 0: none.
      decay: "uncoupled": learning rate x decay is the same at every width, depth and gamma0. "coupled": f.decay is
        left out, so that each leaf's decay follows its learning rate (and depends on the storage form).
      mask: the leaves to decay, as a tree of bools or a function from params to such a tree, as in `optax.adamw`.

    Raises ValueError for an unknown name, a learning rate that is not positive, an option of another optimizer, or a
    parameterization that is not defined for this optimizer.
    """
    options = {"momentum": momentum, "nesterov": nesterov, "b1": b1, "b2": b2, "eps": eps}
    factors = leaf_factors(p, specs, family_of(name))
    given = {key: value for key, value in options.items() if value is not None}
    tx = from_factors(factors, name, learning_rate, weight_decay=weight_decay, decay=decay, mask=mask, **given)
    return _of_specs(specs, tx)


OPTIONS = {"sgd": (), "momentum": ("momentum", "nesterov"), "adam": ("b1", "b2", "eps"), "adamw": ("b1", "b2", "eps")}


def from_factors(
    factors: LeafFactors,
    name: str,
    learning_rate: optax.ScalarOrSchedule,
    *,
    weight_decay: float | jax.Array = 0.0,
    decay: str = "uncoupled",
    mask: PyTree | Callable[[PyTree], PyTree] | None = None,
    **options: Any,
) -> optax.GradientTransformation:
    """`optimizer` from trees of factors. The factors may be traced: then call this inside the jitted step."""
    family = family_of(name)
    if isinstance(learning_rate, float | int | np.number) and not 0 < learning_rate < np.inf:
        raise ValueError(f"learning_rate must be positive and finite, got {learning_rate}")
    if decay not in ("uncoupled", "coupled"):
        raise unknown("decay", decay, ("uncoupled", "coupled"))
    for key in options:
        if key not in OPTIONS[name]:
            raise ValueError(f"{key} is not an option of {name!r}, which has {', '.join(OPTIONS[name]) or 'none'}")
    parts = []
    if family == "adam":
        parts += [scale_by_tree(jax.tree.map(lambda e: 1 / e, factors.eps)), optax.scale_by_adam(**options)]
    elif name == "momentum":
        parts += [optax.trace(decay=options.get("momentum", 0.9), nesterov=options.get("nesterov", False))]
    parts += [scale_by_tree(factors.lr)]
    if not isinstance(weight_decay, float | int) or weight_decay != 0:
        per_leaf = factors.lr if decay == "coupled" else jax.tree.map(lambda a, b: a * b, factors.lr, factors.decay)
        parts += [add_decayed_weights(weight_decay, per_leaf, mask)]
    return optax.chain(*parts, optax.scale_by_learning_rate(learning_rate))


def _of_specs(specs: PyTree, tx: optax.GradientTransformation) -> optax.GradientTransformation:
    """`tx`, whose `init` raises SpecError for parameters of another model or shape than the specs'."""

    def init(params: PyTree) -> PyTree:
        check_shapes(specs, params)
        return tx.init(params)

    return optax.GradientTransformation(init, tx.update)


def scale_by_tree(scale: PyTree) -> optax.GradientTransformation:
    """Multiply each leaf of the updates by a scalar and keep its dtype; leaves hidden by `optax.masked` stay hidden."""

    def update(updates: PyTree, params: PyTree | None = None) -> PyTree:
        del params
        return jax.tree.map(
            lambda u, s: u if is_hidden(u) else u * jnp.asarray(s, u.dtype), updates, scale, is_leaf=is_hidden
        )

    return optax.stateless(update)


def add_decayed_weights(
    weight_decay: float | jax.Array, scale: PyTree, mask: PyTree | Callable[[PyTree], PyTree] | None = None
) -> optax.GradientTransformation:
    """Add weight_decay * scale * w to the update of each leaf w where `mask` is true; `scale` is a tree of scalars."""

    def update(updates: PyTree, params: PyTree | None = None) -> PyTree:
        if params is None:
            raise ValueError("weight decay needs the parameters: call tx.update(grads, state, params)")

        def add(u: Any, w: Any, s: Any, chosen: Any = True) -> Any:
            return u if is_hidden(u) or not chosen else u + jnp.asarray(weight_decay * s, u.dtype) * w

        trees = (params, scale) if mask is None else (params, scale, mask(params) if callable(mask) else mask)
        return jax.tree.map(add, updates, *trees, is_leaf=is_hidden)

    return optax.stateless(update)
