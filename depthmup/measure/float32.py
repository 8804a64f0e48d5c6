"""A program computed in float32, whatever precision it is written in: changes of a few steps are below bfloat16's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from depthmup.reading.graph.jaxpr import KNOWN, bind, inner_jaxpr, parts_of_scan
from depthmup.rules.specs import PyTree

LOW = (jnp.dtype("bfloat16"), jnp.dtype("float16"))
# Of known operations: what they read or write are the bits of a number, or its rounding.
AS_WRITTEN = ("bitcast_convert_type", "reduce_precision", "rng_bit_generator")


def widened(tree: PyTree) -> PyTree:
    """A tree with float32 for arrays of lower precision."""
    return jax.tree.map(lambda leaf: leaf.astype(jnp.float32) if _is_low(leaf) else leaf, tree)


def in_float32(function: Callable[..., Any], *likes: PyTree) -> Callable[..., Any]:
    """`function` with all that it computes in bfloat16 or float16 in float32; itself where it computes nothing so.

    likes: its arguments, of which shapes will do, in their own precision; those of the result may be `widened`. The
    result is. Operations that are not known, such as kernels, compute as they are written. Gradients are to be taken
    inside of the function: rules of derivatives are followed where it is traced.
    """
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.result_type(leaf)), likes)
    closed, out = jax.make_jaxpr(function, return_shape=True)(*shapes)
    if not _computes_low(closed.jaxpr):
        return function

    def computed(*arguments: PyTree) -> PyTree:
        leaves = jax.tree.leaves(widened(arguments))
        return jax.tree.unflatten(jax.tree.structure(out), _evaluated(closed.jaxpr, closed.consts, leaves))

    return computed


def _evaluated(jaxpr: Any, consts: Sequence[Any], arguments: Sequence[Any]) -> list[Any]:
    """The results of a jaxpr, in float32. arguments: widened."""
    values = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*widened(list(consts)), *arguments], strict=True))

    def value_of(atom: Any) -> Any:
        return widened(jnp.asarray(atom.val, atom.aval.dtype)) if hasattr(atom, "val") else values[atom]

    for equation in jaxpr.eqns:
        values.update(zip(equation.outvars, _results(equation, [*map(value_of, equation.invars)]), strict=True))
    return [value_of(atom) for atom in jaxpr.outvars]


def _results(equation: Any, operands: Sequence[Any]) -> Sequence[Any]:
    name, params, inner = equation.primitive.name, equation.params, inner_jaxpr(equation)
    if not _is_equation_low(equation):
        return bind(equation, operands)
    if name == "scan":
        consts, carries = parts_of_scan(equation)
        body = params["jaxpr"]

        def step(carry: list[Any], slices: list[Any]) -> tuple[list[Any], list[Any]]:
            results = _evaluated(body.jaxpr, body.consts, [*operands[:consts], *carry, *slices])
            return results[:carries], results[carries:]

        start, slices = list(operands[consts : consts + carries]), list(operands[consts + carries :])
        carry, stacked = jax.lax.scan(step, start, slices, length=params["length"], reverse=params["reverse"])
        return [*carry, *stacked]
    if name == "cond":
        branches = [lambda *values, b=b: _evaluated(b.jaxpr, b.consts, values) for b in params["branches"]]
        return jax.lax.switch(operands[0], branches, *operands[1:])
    if name == "while":
        first, second = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
        test, body = params["cond_jaxpr"], params["body_jaxpr"]
        return jax.lax.while_loop(
            lambda carry: _evaluated(test.jaxpr, test.consts, [*operands[:first], *carry])[0],
            lambda carry: _evaluated(body.jaxpr, body.consts, [*operands[first:second], *carry]),
            list(operands[second:]),
        )
    if name in ("scatter-add", "scatter_add"):  # its parameters have a program of its own
        return [_scatter_add(params, *operands)]
    if name in KNOWN and inner is not None and name != "shard_map":
        return _evaluated(*inner, operands)
    if name in KNOWN and name not in AS_WRITTEN:
        primitive = equation.primitive
        wide = {key: np.dtype("float32") if _is_low_type(value) else value for key, value in params.items()}
        results = primitive.bind(*operands, **wide)
        return results if primitive.multiple_results else [results]
    narrow = [jnp.asarray(value, atom.aval.dtype) for value, atom in zip(operands, equation.invars, strict=True)]
    return widened(bind(equation, narrow))


def _scatter_add(params: Any, operand: Any, indices: Any, updates: Any) -> jax.Array:
    return jax.lax.scatter_add(
        operand,
        indices,
        updates,
        params["dimension_numbers"],
        indices_are_sorted=params["indices_are_sorted"],
        unique_indices=params["unique_indices"],
        mode=params["mode"],
    )


def _is_low_type(value: Any) -> bool:
    """Whether a value is a type of low precision."""
    return isinstance(value, np.dtype) and value in LOW


def _is_low(value: Any) -> bool:
    return getattr(value, "dtype", None) in LOW


def _is_equation_low(equation: Any) -> bool:
    atoms = [*equation.invars, *equation.outvars]
    inner = [
        value for part in equation.params.values() for value in (part if isinstance(part, tuple | list) else [part])
    ]
    jaxprs = [getattr(value, "jaxpr", value) for value in inner]
    return any(_is_low(atom.aval) for atom in atoms) or any(map(_computes_low, jaxprs))


def _computes_low(jaxpr: Any) -> bool:
    """Whether a jaxpr has operations of low precision."""
    return any(map(_is_equation_low, getattr(jaxpr, "eqns", ())))
