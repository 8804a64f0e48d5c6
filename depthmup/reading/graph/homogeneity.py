"""The parameters in which a value of the forward pass is homogeneous of degree 1.

Going back from the value, sets of parameters are proposed. Each is tested by numbers: where its parameters are doubled,
the value must double and nothing else may change. Doubling is exact in floating point: the test has no tolerance.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from depthmup.reading.graph.graph import ADDITIONS, Graph, Node

Parts = Mapping[str, np.ndarray | None]  # {path of a parameter: a mask of its entries, None for all}
# Going back from a value, these operations are where homogeneity ends.
NONLINEAR = ("exp", "exp2", "log", "log1p", "expm1", "tanh", "logistic", "erf", "erfc", "sin", "cos", "rsqrt", "sqrt",
             "integer_pow", "square", "pow", "sign", "argmax", "eq", "ne", "lt", "le", "gt", "ge")  # fmt: skip
# Their results are homogeneous if all operands are that are not 0.
SUMS = (*ADDITIONS, "sub", "concatenate", "stack", "select_n", "stacked")
PROPOSALS = 8  # the largest number of sets of parameters that are proposed for one value


def homogeneous_in(graph: Graph, node: Node, stop: Node | None = None, calls: Sequence[Node] = ()) -> Parts | None:
    """Parameters whose doubling doubles a value and changes nothing else, None if there are none.

        gelu(h @ up) @ down             # {"down": None}
        (h @ qkv)[..., :width]          # {"qkv": the mask of its first columns}

    calls: the same value in each call of a layer that is called several times, which doubles as well; `node` is one.
    The nearest parameters are tried first: all of their entries, then those that the value depends on, such as
    the queries' in a kernel that makes queries, keys and values.
    """
    for paths in _proposals(graph, node, stop):
        leaves: Parts = dict.fromkeys(sorted(paths))
        if _doubles_alone(graph, node, leaves, calls):
            return leaves
        parts = _entries(graph, node, sorted(paths), stop)
        if any(mask is not None for mask in parts.values()) and _doubles_alone(graph, node, parts, calls):
            return parts
    return None


def _proposals(graph: Graph, node: Node, stop: Node | None) -> list[frozenset[str]]:
    """Sets of parameters in which a value may be homogeneous, the nearest first: PROPOSALS of them."""
    proposals = {} if stop else graph.proposals  # {value: {set: number of operations on the way to it}}
    for value in graph.ancestors(node, stop) - proposals.keys():
        if value.op in NONLINEAR:
            costs: dict[frozenset[str], int] = {}
        elif value.op == "parameter":
            costs = {frozenset([value.path]): 0}
        elif value.op in SUMS:  # every operand that is not 0 must double
            operands = value.operands[1:] if value.op == "select_n" else value.operands
            costs = {frozenset(): 0}
            for operand in (o for o in dict.fromkeys(operands) if np.any(o.value)):
                pairs = itertools.product(costs.items(), proposals.get(operand, {}).items())
                costs = _nearest((paths | more, a + b) for (paths, a), (more, b) in pairs)
        else:  # one operand must double
            operands = value.operands[:1] if value.op in ("carried", "emitted", "div") else value.operands
            costs = _nearest(pair for operand in operands for pair in proposals.get(operand, {}).items())
        proposals[value] = {paths: cost + 1 for paths, cost in costs.items() if paths}
    return list(proposals[node])


def _doubles_alone(graph: Graph, node: Node, parts: Parts, calls: Sequence[Node]) -> bool:
    """Whether a value doubles with these parameters, and nothing else changes that does not come from it."""
    copies = calls if len(calls) > 1 else node.copies or (node,)
    allowed = functools.reduce(operator.or_, map(graph.ancestors, copies))
    values = graph.changed(_doubled(graph, parts), allowed, cut=copies)
    if values is None or node not in values:
        return False
    all_double = all(np.array_equal(values.get(copy, copy.value), 2 * np.asarray(copy.value)) for copy in copies)
    return all_double and bool(np.any(node.value))


def doubles(graph: Graph, node: Node, parts: Parts, earlier: Sequence[Node] = ()) -> bool:
    """Whether a value doubles with these parameters, whatever else changes. earlier: the same value in earlier calls of
    its layer and in earlier steps of a recurrence, in which nothing changes.

        relu(h @ up) @ down             # True of {"down": None} and of {"up": None}, False of both together
        h @ up + bias                   # False of {"up": None}
    """
    allowed = set(graph.nodes) if earlier else graph.ancestors(node)
    values = graph.changed(_doubled(graph, parts), allowed, cut=earlier)
    return bool(np.array_equal(values.get(node, node.value), 2 * np.asarray(node.value)))


def _doubled(graph: Graph, parts: Parts) -> dict[Node, Any]:
    """{parameter: its value with these entries doubled}"""
    return {
        leaf: 2 * leaf.value if (mask := parts[leaf.path]) is None else np.where(mask, 2 * leaf.value, leaf.value)
        for leaf in graph.nodes
        if leaf.path in parts
    }


def _entries(graph: Graph, node: Node, paths: Sequence[str], stop: Node | None) -> Parts:
    """The entries of parameters that a value depends on otherwise than through `stop`; None where it depends on
    all, or is not homogeneous in them. The body of a scan over blocks is in the graph once: its weights stand for those
    of all blocks."""
    leaves = [n for n in graph.nodes if n.path in paths]
    between = graph.descendants(leaves) & graph.ancestors(node, stop)
    of_blocks = {inner for inner in between if inner.op == "member" and inner not in graph.fed}

    def value(numbers: Sequence[Any]) -> Any:
        values = dict(zip(leaves, numbers, strict=True))
        for inner in between - leaves:
            operands = [values.get(operand, operand.value) for operand in inner.operands]
            values[inner] = operands[0].sum(0) if inner in of_blocks else inner.evaluate(*operands)
        return values[node]

    numbers = [leaf.value for leaf in leaves]
    before = value(numbers) if of_blocks else node.value
    if not np.array_equal(value([2 * number for number in numbers]), 2 * np.asarray(before)):
        return dict.fromkeys(paths)  # the gradient takes several times as long
    _, pull = jax.vjp(value, numbers)
    shape = jnp.shape(node.value)
    weights = np.random.default_rng(0).standard_normal(shape).astype(jnp.result_type(node.value))
    masks = {}
    for leaf, gradient in zip(leaves, pull(jnp.asarray(weights))[0], strict=True):
        mask = np.asarray(gradient) != 0
        masks[leaf.path] = None if mask.all() or leaf.path in graph.offset else mask
    return masks


def _nearest(pairs: Iterable[tuple[frozenset[str], int]]) -> dict[frozenset[str], int]:
    """The PROPOSALS sets with the smallest numbers, in their order."""
    best: dict[frozenset[str], int] = {}
    for paths, cost in sorted(pairs, key=lambda pair: pair[1]):
        best.setdefault(paths, cost)
    return dict(itertools.islice(best.items(), PROPOSALS))
