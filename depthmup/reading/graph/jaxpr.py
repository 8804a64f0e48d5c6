"""Jaxprs: their operations, those that they call, and those that scans repeat."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import primitives

from depthmup.rules.specs import PyTree

Value = TypeVar("Value")
CONTRACTIONS = ("dot_general", "reduce_sum")  # models write the product of queries and keys with one of them
CLOSED = ("while", "cond")  # operations whose bodies are not in the graph
# Operations that act on each entry alone.
ELEMENTWISE = frozenset((
    "abs", "acos", "acosh", "add", "add_any", "and", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "ceil", "clamp",
    "complex", "conj", "convert_element_type", "copy", "copy_p", "cos", "cosh", "digamma", "div", "eq", "erf",
    "erf_inv", "erfc", "exp", "exp2", "expm1", "floor", "ge", "gt", "imag", "integer_pow", "is_finite", "le", "lgamma",
    "log", "log1p", "logistic", "lt", "max", "min", "mul", "ne", "neg", "nextafter", "not", "or", "pow", "pvary",
    "real", "reduce_precision", "rem", "round", "rsqrt", "select_n", "shift_left", "shift_right_arithmetic",
    "shift_right_logical", "sign", "sin", "sinh", "sqrt", "square", "stop_gradient", "sub", "tan", "tanh", "xor",
))  # fmt: skip
# Products of a weight and an activation, or of two activations: each has a rule in axes.py, its cost in train/flops.py.
PRODUCTS = ("dot_general", "ragged_dot_general", "conv_general_dilated", "depthmup_conv")
# Operations that only move or mark numbers, which JAX's own list does not have.
MORE = (
    *("stack", "unstack", "split", "tile", "broadcast_to", "scatter-sub"),
    *("optimization_barrier", "reshard", "pvary", "layout_constraint", "with_memory_space_constraint"),
    *("random_wrap", "random_unwrap", "random_clone"),
)
# Operations whose meaning is known. What another one computes, such as a kernel or a callback, the graph does not see.
OF_JAX = (primitive.name for name, primitive in vars(primitives).items() if name.endswith("_p"))
KNOWN = frozenset((*OF_JAX, *PRODUCTS, *MORE)) - {"shard_map"}
# Operations between devices that do nothing on one, where a shard_map is a call like others.
OF_DEVICES = ("psum", "psum_invariant", "pmax", "pmin", "pvary", "ppermute")


def contractions(jaxpr: Any) -> list[int]:
    """The number of terms of each of a program's CONTRACTIONS, in its order."""
    sizes: list[int] = []
    for equation in jaxpr.eqns:
        inner = inner_jaxpr(equation)
        if inner is not None:
            sizes += contractions(inner[0])
        elif equation.primitive.name in CONTRACTIONS:
            sizes.append(summed(equation))
    return sizes


def interpreted(
    jaxpr: Any,
    consts: Sequence[Any],
    arguments: Sequence[Any],
    of_constant: Callable[[Any], Any],
    of_equation: Callable[[Any, list[Any]], Sequence[Any]],
) -> list[Any]:
    """What a jaxpr's results are in another meaning of its values: of_constant(number) is that of a constant,
    of_equation(equation, operands) are those of an operation's results.

        # Does a value depend on x?  lambda x, w: 2 * x + w, of the arguments [True, False]
        interpreted(jaxpr, [], [True, False], lambda _: False, lambda _, operands: [any(operands)])     # [True]
    """
    values = dict(zip(jaxpr.invars, arguments, strict=True))
    values |= zip(jaxpr.constvars, map(of_constant, consts), strict=True)

    def value_of(atom: Any) -> Any:
        return of_constant(atom.val) if hasattr(atom, "val") else values[atom]

    for equation in jaxpr.eqns:
        values |= zip(equation.outvars, of_equation(equation, [*map(value_of, equation.invars)]), strict=True)
    return [value_of(atom) for atom in jaxpr.outvars]


def values_at(
    places: Collection[tuple[int, int]], apply: Callable[..., Any], params: PyTree, *inputs: Any
) -> list[jax.Array]:
    """The values of `apply(params, *inputs)` at these `Node.place`s in the order in which they are computed, those in a
    scan at every step. It can be jitted and differentiated."""
    closed = jax.make_jaxpr(apply)(*jax.tree.map(typed, (params, *inputs)))
    return _watched(closed.jaxpr, closed.consts, jax.tree.leaves((params, inputs)), places, 0)[1]


def _watched(
    jaxpr: Any, consts: Sequence[Any], arguments: Sequence[Any], places: Collection[tuple[int, int]], number: int
) -> tuple[list[Any], list[jax.Array]]:
    """(results of a jaxpr whose first operation has this number, the values at the places inside)"""
    watched: list[jax.Array] = []

    def results_of(equation: Any, operands: list[Any]) -> list[Any]:
        nonlocal number
        first, inner, number = number, inner_jaxpr(equation), number + _count(equation)
        inside = [place for place in sorted(set(places)) if first <= place[0] < number]
        if inside and equation.primitive.name == "scan":
            results, more = _watched_scan(equation, operands, places, first)
        elif inside and inner is not None:
            results, more = _watched(*inner, operands, places, first)
        else:
            results = bind(equation, operands)
            more = [results[index] for _, index in inside]
        watched.extend(more)
        return results

    return interpreted(jaxpr, consts, arguments, lambda number: number, results_of), watched


def _watched_scan(
    equation: Any, operands: Sequence[Any], places: Collection[tuple[int, int]], number: int
) -> tuple[list[Any], list[jax.Array]]:
    """`_watched` of a scan: the values at the places in each step, first step to last."""
    closed, length, backwards = (equation.params[key] for key in ("jaxpr", "length", "reverse"))
    fixed, start, sequences = operands_of_scan(equation, operands)

    def step(carry: list[Any], members: list[Any]) -> tuple[list[Any], tuple[list[Any], list[jax.Array]]]:
        results, watched = _watched(closed.jaxpr, closed.consts, [*fixed, *carry, *members], places, number)
        return results[: len(start)], (results[len(start) :], watched)

    carry, (stacked, watched) = jax.lax.scan(step, list(start), list(sequences), length=length, reverse=backwards)
    steps = reversed(range(length)) if backwards else range(length)
    return carry + stacked, [value[i] for i in steps for value in watched]


def _count(equation: Any) -> int:
    """The number of operations that an equation stands for, as `Graph` counts them: a scan's body once, and nothing
    that does nothing on one device."""
    inner = inner_jaxpr(equation)
    if is_between_devices(equation):
        return 0
    return 1 if inner is None else sum(map(_count, inner[0].eqns))


def is_between_devices(equation: Any) -> bool:
    """Whether an equation is one of OF_DEVICES, and no sum over an axis of an array, as psum under vmap is."""
    axes = equation.params.get("axes", ())
    return equation.primitive.name in OF_DEVICES and not any(isinstance(axis, int) for axis in axes)


def bind(equation: Any, operands: Sequence[Any]) -> list[Any]:
    """The results of an equation."""
    primitive = equation.primitive
    if is_between_devices(equation):
        return list(operands)
    results = primitive.bind(*operands, **primitive.get_bind_params(equation.params))
    return list(results) if primitive.multiple_results else [results]


def parts_of_scan(equation: Any) -> tuple[int, int]:
    """(number of a scan's constants, of its carries)

    Operands are constants, carries and members of sequences; results are carries and members. A member has one axis
    less in the body. (The parameters of the equation that say so have other names in each version of JAX.)
    """
    body = equation.params["jaxpr"].jaxpr
    carries = _unsliced(equation.outvars, body.outvars)
    return _unsliced(equation.invars, body.invars) - carries, carries


def operands_of_scan(equation: Any, operands: Sequence[Value]) -> tuple[list[Value], list[Value], list[Value]]:
    """(a scan's constants, the carries that it starts with, its sequences) among its operands"""
    consts, carries = parts_of_scan(equation)
    return [*operands[:consts]], [*operands[consts : consts + carries]], [*operands[consts + carries :]]


def inner_jaxpr(equation: Any) -> tuple[Any, Sequence[Any]] | None:
    """(the jaxpr that an equation is a call of, or that a scan repeats, its constants); None for an operation."""
    name = equation.primitive.name
    if name in CLOSED or (name == "shard_map" and equation.params["mesh"].size > 1):
        return None
    inner: Any = next(
        (equation.params[key] for key in ("jaxpr", "call_jaxpr", "fun_jaxpr") if key in equation.params), None
    )
    if inner is None:
        return None
    takes, gets = (
        [getattr(var.aval, "shape", None) for var in of.invars] for of in (getattr(inner, "jaxpr", inner), equation)
    )
    if len(takes) != len(gets) or (name != "scan" and takes != gets):  # as of what a reduction does with two numbers
        return None
    return (inner.jaxpr, inner.consts) if hasattr(inner, "consts") else (inner, ())


def takes_members(jaxpr: Any, stack: Any) -> bool:
    """Whether a jaxpr does nothing with one of its arguments but take members along the first axis, one at a time, by
    numbers that it computes. (Which members is not looked at: a scan of as many steps takes each once.)"""
    uses = [(equation, place) for equation in jaxpr.eqns for place, var in enumerate(equation.invars) if var is stack]

    def takes(equation: Any, place: int) -> bool:
        inner, name = inner_jaxpr(equation), equation.primitive.name
        if inner is not None:
            return name != "scan" and takes_members(inner[0], inner[0].invars[place])
        if name != "dynamic_slice" or place > 0 or hasattr(equation.invars[1], "val"):
            return False
        return equation.params["slice_sizes"] == (1, *stack.aval.shape[1:])

    return all(takes(*use) for use in uses) and not any(var is stack for var in jaxpr.outvars)


def operations(equation: Any) -> frozenset[str]:
    """The names of an equation's operation and of all operations in the jaxprs that it calls."""
    names = {equation.primitive.name}
    for value in equation.params.values():
        for inner in value if isinstance(value, (tuple, list)) else (value,):
            names.update(*map(operations, getattr(getattr(inner, "jaxpr", inner), "eqns", ())))
    return frozenset(names)


def _unsliced(outside: Sequence[Any], inside: Sequence[Any]) -> int:
    """How many of a scan's operands, or results, have the same shape in its body."""
    return sum(a.aval.ndim == b.aval.ndim for a, b in zip(outside, inside, strict=True))


def summed(equation: Any) -> int:
    """The number of terms of one of CONTRACTIONS."""
    if equation.primitive.name == "reduce_sum":
        axes = equation.params["axes"]
    else:
        (axes, _), _ = equation.params["dimension_numbers"]
    return int(np.prod([equation.invars[0].aval.shape[axis] for axis in axes]))


def typed(leaf: Any) -> jax.ShapeDtypeStruct:
    """Shape and dtype of an array as JAX takes it, of a strong type: a weak one adds conversions to the program."""
    return jax.ShapeDtypeStruct(leaf.shape, jnp.result_type(leaf))
