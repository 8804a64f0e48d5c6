"""PathSum of architecture-aware scaling: a rule for the learning rate from all paths through a network."""

from __future__ import annotations

import math
import operator
from collections.abc import Hashable, Iterable, Sequence
from graphlib import CycleError, TopologicalSorter


def path_sum(edges: Iterable[tuple[Hashable, Hashable, int]], source: Hashable, sink: Hashable) -> int:
    """P = sum over all paths p from `source` to `sink` of L_p^3; the rule is lr ~ P^(-1/2) (rules.md section 5).

    Args:
      edges: (from, to, layers) for every edge of a graph without cycles, with 0 layers or more. The length L_p of a
        path is the sum of the layers of its edges. Several edges between the same two nodes make different paths.

    The sum is an exact integer. It passes sums of L_p^k, k = 0..3, from node to node, and never lists the paths, whose
    number grows exponentially with depth.
    Raises ValueError for a cycle, negative layers, or a sink that no path reaches; TypeError for layers that are not
    integers.
    """
    into: dict[Hashable, list[tuple[Hashable, int]]] = {source: []}
    for start, end, layers in edges:
        layers = operator.index(layers)  # a Python integer, since NumPy's integers would overflow
        if layers < 0:
            raise ValueError(f"layers must not be negative, got {layers} from {start!r} to {end!r}")
        into.setdefault(end, []).append((start, layers))
    before = {node: [start for start, _ in ways] for node, ways in into.items()}
    try:
        order = list(TopologicalSorter(before).static_order())
    except CycleError as error:
        raise ValueError(f"the graph has a cycle through {error.args[1][0]!r}") from error
    # {node: sums of L_p^k, k = 0..3, over all paths from the source to the node}; the source's own path has length 0.
    moments: dict[Hashable, tuple[int, ...]] = {source: (1, 0, 0, 0)}
    for node in order:
        ways = [(moments[start], layers) for start, layers in into.get(node, ()) if start in moments]
        if ways:
            moments[node] = tuple(sum(_longer(sums, layers, k) for sums, layers in ways) for k in range(4))
    if sink not in moments:
        raise ValueError(f"no path leads from {source!r} to {sink!r}")
    return moments[sink][3]


def _longer(sums: tuple[int, ...], layers: int, k: int) -> int:
    """sum_p (L_p + layers)^k from the sums of L_p^j, j <= k."""
    return sum(math.comb(k, j) * layers ** (k - j) * sums[j] for j in range(k + 1))


def chain_path_sum(stages: Sequence[Sequence[int]]) -> int:
    """`path_sum` of a chain of stages; a stage lists the number of layers on each of its parallel ways.

    (1,) is a plain layer, (0, 1) a residual block of one layer, (1, 2) a block of two with a projection shortcut.
    """
    edges = [(i, i + 1, layers) for i, ways in enumerate(stages) for layers in ways]
    return path_sum(edges, 0, len(stages))
