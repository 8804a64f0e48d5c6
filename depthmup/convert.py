"""A run that goes on in another storage form, or in a model that takes no factors."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from depthmup.optim import family_of
from depthmup.parameterization import Parameterization
from depthmup.specs import PyTree, check_shapes, factors


def convert(
    p: Parameterization,
    specs: PyTree,
    to: Parameterization,
    to_specs: PyTree,
    params: PyTree,
    state: PyTree = None,
    *,
    optimizer: str,
) -> tuple[PyTree, PyTree]:
    """(params, state) of a run under `to` that goes on exactly where one under `p` is.

    Both must be the same network at the same shape, with the same parameter tree: in two storage forms
    (`p.in_form(...)`), or with explicit factors and with absorbed ones (the specs that `absorb` or `setup` returns).

    Args:
      params: stored under p and specs.
      state: the state of `dm.optimizer(p, specs, optimizer, ...)`, or None.
      optimizer: its name.

    The stored weight of a leaf is multiplied by r, the ratio of the two init factors; so its gradients, and momentum's
    trace of them, are divided by r. Adam's moments stay: `dm.optimizer` divides gradients by the eps factor before,
    which changes by 1/r as well (docs/theory.md section 1).

    Raises SpecError for parameters of another model, ValueError if the two parameterizations are not equivalent.
    """
    if to.in_form(p.form) != p:
        raise ValueError(f"only the storage form may differ, but these differ otherwise: {p} and {to}")
    for own in (specs, to_specs):
        check_shapes(own, params)
    family = family_of(optimizer)
    before, after = (factors(q, own, family).init for q, own in ((p, specs), (to, to_specs)))
    of = zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True)
    ratio = jax.tree.unflatten(jax.tree.structure(params), [b / a for a, b in of])

    def is_trace(node: PyTree) -> bool:
        return jax.tree.map(jnp.shape, node) == jax.tree.map(jnp.shape, params)

    def divided(node: PyTree) -> PyTree:
        return jax.tree.map(lambda leaf, r: leaf / jnp.asarray(r, leaf.dtype), node, ratio) if is_trace(node) else node

    if family == "sgd":
        state = jax.tree.map(divided, state, is_leaf=is_trace)
    return jax.tree.map(lambda leaf, r: leaf * jnp.asarray(r, leaf.dtype), params, ratio), state
