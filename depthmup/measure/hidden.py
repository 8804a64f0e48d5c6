"""What a check looks at in a model: the input of its readout, and its logits, with the model's own derivatives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from depthmup.reading.graph.graph import ForwardError, Graph, traced_program
from depthmup.reading.graph.jaxpr import bind, inner_jaxpr
from depthmup.reading.graph.products import last_layer
from depthmup.rules.specs import PyTree, parameters_only

Place = tuple[int, int]  # of a value: the number of its operation, and which of its results it is (`Node.place`)
NOWHERE: Place = (-1, 0)


def with_hidden(apply: Callable[..., Any], params: PyTree, *inputs: Any) -> Callable[[PyTree], dict[str, jax.Array]]:
    """params -> {"hidden": the input of the readout, "logits": `apply(params, *inputs)`}.

    The readout is the last operation that applies weights to activations. Derivatives of the logits are the model's
    own, with the rules of jax.custom_vjp and jax.custom_jvp; "hidden" may have none. Raises ForwardError if there is no
    readout.
    """
    program = traced_program(apply, params, inputs)
    graph = Graph(apply, params, inputs, number=lambda leaf: leaf, open_scans=False, program=program)
    last = last_layer(graph, graph.output)
    if last is None:
        raise ForwardError("no operation of the model applies weights to activations: it has no features to look at")
    (node,) = graph.activations(last)
    closed = program.closed
    place = NOWHERE if node.place is None or _in_a_rule(closed.jaxpr, node.place) else node.place

    def look(params: PyTree) -> dict[str, jax.Array]:
        watched: list[jax.Array] = []
        leaves = jax.tree.leaves((parameters_only(params), inputs))
        results = _watched(closed.jaxpr, closed.consts, leaves, place, 0, watched)
        (logits,) = (result for result in results if jnp.issubdtype(result.dtype, jnp.floating))
        return {"hidden": watched[0] if watched else node.value, "logits": logits}

    return look


def _watched(
    jaxpr: Any, consts: Sequence[Any], arguments: Sequence[Any], place: Place, number: int, watched: list[jax.Array]
) -> list[Any]:
    """The results of a jaxpr whose first operation has this number. The value at the place is appended to `watched`."""
    values = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *arguments], strict=True))

    def value_of(atom: Any) -> Any:
        return atom.val if hasattr(atom, "val") else values[atom]

    for equation in jaxpr.eqns:
        operands, call, after = [*map(value_of, equation.invars)], _call(equation), number + _count(equation)
        if number <= place[0] < after and call:
            results = _watched(*call, operands, place, number, watched)
        else:
            results = bind(equation, operands)
            watched += [results[place[1]]] if number == place[0] else []
        values.update(zip(equation.outvars, results, strict=True))
        number = after
    return [value_of(atom) for atom in jaxpr.outvars]


def _in_a_rule(jaxpr: Any, place: Place, number: int = 0) -> bool:
    """Whether a place is inside of a call with rules of derivatives, which would be lost if the call were opened."""
    for equation in jaxpr.eqns:
        call, after = _call(equation), number + _count(equation)
        if number <= place[0] < after and call:
            return equation.primitive.name.startswith("custom_") or _in_a_rule(call[0], place, number)
        number = after
    return False


def _call(equation: Any) -> tuple[Any, Sequence[Any]] | None:
    """(the jaxpr that an equation is a call of, its constants), where the graph of the forward pass opens it."""
    return None if equation.primitive.name == "scan" else inner_jaxpr(equation)


def _count(equation: Any) -> int:
    """The number of operations that an equation stands for."""
    call = _call(equation)
    return 1 if call is None else sum(map(_count, call[0].eqns))
