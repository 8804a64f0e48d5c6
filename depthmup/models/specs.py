"""Spec trees of the models in this package, scanned or unrolled."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from depthmup.models.layers import Model
from depthmup.models.stack import stack_blocks
from depthmup.reading import infer_specs
from depthmup.rules.parameterization import ForwardFactors
from depthmup.rules.specs import ParamSpec, PyTree, flatten_shapes, is_spec

UNIT = ForwardFactors(1.0, 1.0, 1.0)


def model_specs(model: Model, input_shape: tuple[int, ...]) -> PyTree:
    """The spec tree of one of our models, by `infer_specs` with the model's `places`.

    In some families the number of scanned blocks does not double with depth, because depth also counts the read-in or
    a layer between stages. Their roles are inferred on the unrolled model and then stacked.

    Args:
      model: a module of `depthmup.models`.
      input_shape: of one example, without the batch.

    Returns:
      A tree of `ParamSpec`.

    Raises ValueError as `Model.check` does.
    """

    def init(model: Model) -> PyTree:
        """Zeros in place of the parameters, of which only the shapes matter here."""
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape), _shapes(model, input_shape))

    direct = model.even_scan or not model.scan
    specs = infer_specs(
        lambda width, depth: init(model.clone(width=width, depth=depth, scan=direct and model.scan)),
        width=model.width,
        depth=model.depth,
        residual=model.residual,
        layout="in_out",
        overrides=model.places,
    )
    if direct:
        return specs
    shapes = _shapes(model, input_shape)
    stacked = stack_blocks(specs, shapes, join=_stack)
    leaves, treedef = jax.tree.flatten(stacked, is_leaf=is_spec)
    pairs = zip(leaves, flatten_shapes(shapes)[0], strict=True)
    return jax.tree.unflatten(treedef, [dataclasses.replace(spec, path=path) for spec, path in pairs])


@functools.lru_cache(maxsize=1024)
def _shapes(model: Model, input_shape: tuple[int, ...]) -> PyTree:
    """The shapes of the parameters. The shapes of a grid need those at twice and four times the width, and at twice the
    depth, which are often in the grid themselves."""
    inputs = jnp.ones_like(model.batch_shapes(1, input_shape)[0])
    return jax.eval_shape(lambda: model.init(jax.random.key(0), inputs, UNIT)["params"])


def _stack(*blocks: ParamSpec) -> Any:
    spec = blocks[0]
    return dataclasses.replace(spec, shape=(len(blocks), *spec.shape), stack_axis=0)
