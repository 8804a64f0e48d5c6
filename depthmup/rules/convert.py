"""A run that goes on in another storage form, or in a model that takes no factors."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
import optax

from depthmup.rules.optim import family_of
from depthmup.rules.parameterization import FAMILIES, Parameterization
from depthmup.rules.specs import PyTree, check_shapes, factors, is_spec, leaves_of, multiplied


def convert(
    p: Parameterization,
    specs: PyTree,
    to: Parameterization,
    to_specs: PyTree,
    params: PyTree,
    state: PyTree = None,
    *,
    optimizer: str | None,
) -> tuple[PyTree, PyTree]:
    """(params, state) of a run under `to` that goes on exactly where one under `p` is.

    Both must be the same network at the same shape, with the same parameter tree: in two storage forms
    (`p.in_form(...)`), or with explicit factors and with absorbed ones (the specs that `absorb` or `setup` returns).

    Args:
      to, to_specs: the parameterization and the specs to go on under.
      params: the parameters as p and specs store them; or a model as its init returns it, whose parameters are
        converted: Linen's variables, an NNX or Equinox module, or (parameters, state).
      state: the state of `dm.optimizer(p, specs, optimizer, ...)`, alone or inside another transformation such as
        MultiSteps; or None.
      optimizer: its name; None for the state of `dm.wrap`, which is the same in all forms.

    Returns:
      (parameters, state of the optimizer) under `to`, in the structures of `params` and `state`.

    The stored weight of a leaf is multiplied by r, the ratio of the two init factors; so its gradients are divided by
    r, and with them momentum's trace and what MultiSteps has added up. Adam's moments stay: `dm.optimizer` divides
    gradients by the eps factor before, which changes by 1/r as well (docs/theory.md section 1).

    Raises SpecError for parameters of another model, ValueError if the two parameterizations are not equivalent, for a
    state of momentum that is not that of `dm.optimizer`, and for one of `dm.wrap` in the middle of an accumulation.
    """
    if to.in_form(p.form) != p:
        raise ValueError(f"only the storage form may differ, but these differ otherwise: {p} and {to}")
    family = p.init_family if optimizer is None else family_of(optimizer)
    before, after = (factors(q, q_specs, family).init for q, q_specs in ((p, specs), (to, to_specs)))
    ratios = [b / a for a, b in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True)]

    # The specs of explicit factors have no offsets, and neither have gradients.
    with_offsets = max((specs, to_specs), key=lambda tree: sum(spec.offset for spec in leaves_of(tree)))
    without_offsets = jax.tree.map(lambda spec: dataclasses.replace(spec, offset=0.0), specs, is_leaf=is_spec)

    def scaled(tree: PyTree, by: list[Any], specs: PyTree) -> PyTree:
        check_shapes(to_specs, tree)
        return multiplied(specs, tree, by)

    def gradients(tree: PyTree) -> PyTree:
        return _of_parameters(lambda params: scaled(params, [1 / r for r in ratios], without_offsets), specs, tree)

    def converted(node: Any) -> Any:
        if isinstance(node, optax.MultiStepsState):
            if optimizer is None and np.any(node.mini_step):
                raise ValueError(
                    "nothing tells whether these accumulated gradients are those inside of dm.wrap: convert after a "
                    "whole accumulation"
                )
            inner = jax.tree.map(converted, node.inner_opt_state, is_leaf=_holds_gradients)
            return node._replace(inner_opt_state=inner, acc_grads=gradients(node.acc_grads))
        if isinstance(node, optax.TraceState) and optimizer is not None:
            return node._replace(trace=gradients(node.trace))
        return node

    if optimizer is not None and FAMILIES[family].linear:
        _check_trace(state)
    state = jax.tree.map(converted, state, is_leaf=_holds_gradients)
    return _of_parameters(lambda tree: scaled(tree, ratios, with_offsets), specs, params), state


def _holds_gradients(node: Any) -> bool:
    return isinstance(node, (optax.TraceState, optax.MultiStepsState))


def _check_trace(state: PyTree) -> None:
    """Raises ValueError for the state of `optax.sgd` with momentum, as `dm.wrap(p, specs, optax.sgd(...))` has it."""

    def is_of_optax(node: Any) -> bool:
        return type(node) is tuple and len(node) == 2 and isinstance(node[0], optax.TraceState)

    for node in jax.tree.leaves(state, is_leaf=is_of_optax):
        if is_of_optax(node) and type(node[1]) is not tuple:  # (A tuple: optax.trace in front of `dm.optimizer`.)
            raise ValueError(
                "this is a state of optax.sgd, not of dm.optimizer: for that of dm.wrap pass optimizer=None"
            )


def _of_parameters(function: Callable[[PyTree], PyTree], specs: PyTree, model: Any) -> Any:
    """The model in the user's form, as its init returns it, with `function` applied to its parameters."""
    top_keys = {spec.path.split("/")[0] for spec in leaves_of(specs)}
    nnx = sys.modules.get("flax.nnx")  # which is slow to load
    if nnx is not None and isinstance(model, nnx.Module):
        definition, params, state = nnx.split(model, nnx.Param, ...)
        # The new module takes over the variables of these trees: it gets copies.
        return nnx.merge(definition, function(params), jax.tree.map(lambda leaf: leaf, state))
    if isinstance(model, Mapping) and "params" in model and "params" not in top_keys:
        return {**model, "params": function(model["params"])}
    if type(model) is tuple and len(model) == 2 and not top_keys <= {"0", "1"}:
        return function(model[0]), model[1]
    return function(model)
