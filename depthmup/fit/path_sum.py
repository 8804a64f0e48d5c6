"""Learning rates from all paths through a network: PathSum, and the minimal depth of AM-muP."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Hashable, Iterable, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import TypeVar

from depthmup.names import listed, short

Edges = Iterable[tuple[Hashable, Hashable, int]]
Value = TypeVar("Value")


def path_sum(edges: Edges, source: Hashable, sink: Hashable) -> int:
    """P = sum over all paths p from `source` to `sink` of L_p^3; the rule is lr ~ P^(-1/2) (rules.md section 4).

    Args:
      edges: (from, to, layers) for every edge of a graph without cycles, with 0 layers or more. The length L_p of a
        path is the sum of the layers of its edges. Several edges between the same two nodes make different paths.

    Returns:
      P, a whole number.

    The sum is an exact integer. It passes sums of L_p^k, k = 0..3, from node to node, and never lists the paths, whose
    number grows exponentially with depth.
    Raises ValueError for a cycle, layers that are negative or no integers, or a sink that no path reaches.
    """

    def onwards(ways: Sequence[tuple[tuple[int, ...], int]]) -> tuple[int, ...]:
        return tuple(sum(_longer(sums, layers, k) for sums, layers in ways) for k in range(4))

    # The source's own path has length 0.
    start: tuple[int, ...] = (1, 0, 0, 0)
    return _along(edges, source, sink, start, onwards)[3]


def minimal_depth(edges: Edges, source: Hashable, sink: Hashable) -> int:
    """L = min over all paths p from `source` to `sink` of sum_{e in p} max(1, layers of the edge e): the number of
    residual blocks, each of which counts as 1 whatever is in it, and of layers that no skip goes around.

    This is the depth of AM-muP's eta ~ L^(-3/2) (paper B, sections 3.2 and 3.4, and its Figure 1: "depth equals the
    minimal path length; each residual block counts as 1"). An edge without layers is the skip of a block: its length is
    that of a layer.

    Args:
      edges, source, sink: of `path_sum`.

    Returns:
      L, a whole number.

    Raises as `path_sum`.
    """
    return _along(edges, source, sink, 0, lambda ways: min(length + max(1, layers) for length, layers in ways))


def _along(
    edges: Edges,
    source: Hashable,
    sink: Hashable,
    start: Value,
    onwards: Callable[[Sequence[tuple[Value, int]]], Value],
) -> Value:
    """The value at the sink. start: at the source; onwards: (value, layers) of each edge into a node -> its value."""
    incoming: dict[Hashable, list[tuple[Hashable, int]]] = {source: []}
    for edge in listed("edges", edges):
        node, end, layers = _edge(edge)
        incoming.setdefault(end, []).append((node, layers))
    before = {node: [origin for origin, _ in ways] for node, ways in incoming.items()}
    try:
        order = list(TopologicalSorter(before).static_order())
    except CycleError as error:
        raise ValueError(f"the graph has a cycle through {error.args[1][0]!r}") from error
    values = {source: start}
    for node in order:
        ways = [(values[origin], layers) for origin, layers in incoming.get(node, ()) if origin in values]
        if ways:
            values[node] = onwards(ways)
    if sink not in values:
        raise ValueError(f"no path leads from {source!r} to {sink!r}")
    return values[sink]


def _edge(edge: tuple[Hashable, Hashable, int]) -> tuple[Hashable, Hashable, int]:
    """The edge with its layers as a Python integer, since NumPy's integers would overflow."""
    try:
        node, end, number = edge
        hash((node, end))
        layers = operator.index(number)
    except (TypeError, ValueError):
        raise ValueError(f"an edge must be (from, to, a whole number of layers), got {short(edge)}") from None
    if layers < 0:
        raise ValueError(f"layers must not be negative, got {layers} from {node!r} to {end!r}")
    return node, end, layers


def _longer(sums: tuple[int, ...], layers: int, k: int) -> int:
    """sum_p (L_p + layers)^k from the sums of L_p^j, j <= k."""
    return sum(math.comb(k, j) * layers ** (k - j) * sums[j] for j in range(k + 1))


def chain_path_sum(stages: Sequence[Sequence[int]]) -> int:
    """`path_sum` of a chain of stages.

    Args:
      stages: each lists the number of layers on each of its parallel ways. (1,) is a plain layer, (0, 1) a residual
        block of one layer, (1, 2) a block of two with a projection shortcut.

    Returns:
      P, a whole number.

    Raises ValueError as `path_sum`.
    """
    edges = [
        (i, i + 1, layers)
        for i, ways in enumerate(listed("stages", stages))
        for layers in listed("the ways of a stage", ways)
    ]
    return path_sum(edges, 0, len(stages))
