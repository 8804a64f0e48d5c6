"""What a forward pass shows: the values that factors multiply, and the parameters in front of them."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from depthmup.reading.graph import products, residual
from depthmup.reading.graph.graph import Graph, Node, Program, traced_program, union
from depthmup.reading.graph.homogeneity import Parts, doubles, homogeneous_in
from depthmup.reading.graph.jaxpr import CLOSED
from depthmup.rules.parameterization import Kind
from depthmup.rules.specs import PyTree, flatten_shapes

SHARED = "shared"


@dataclasses.dataclass(frozen=True, eq=False)
class Site:
    """A value that a factor multiplies, or what else the forward pass shows of parameters.

    kind: that of the factor, or
      "sum": a sum of two activations that is no residual addition;
      "bilinear": a product of two activations without a softmax; if it sums over more terms at twice the width it takes
        the attention factor, and if that has a place it is an "attention" in what `Source.sites` returns;
      "cosine": a table of parameters (inside) whose vectors of norm 1 are a factor of the logits;
      "applied": a matrix or the kernel of a convolution (inside) that a product applies to activations;
      "acts": a parameter (inside) that acts on activations;
      "again": an earlier state of the stream, times parameters (inside), that is added to the stream again;
      "unseen": what an operation (where) computes that is not JAX's own, of parameters (inside) or of none;
      "unused": parameters (inside) on which the logits do not depend; "offset": those to which 1 is added before they
        act.
    parts: parameters in which the value is homogeneous of degree 1 and which act on nothing else; None if there are
      none.
    where: the operation that ends the value, for messages; one of CLOSED if the value is inside, where it is not seen;
      SHARED if the value of a branch acts on something else too.

    Fields of a branch
      inside: the paths of all parameters between its beginning and its end. (Of a sum: the paths of the parameters that
        only one summand depends on and that are in no branch.)
      skip: the paths of the parameters that project the skip. before: of those that act on the branch's beginning.
      between: of those that act on the stream behind any residual sum that is a part of the same other branches.
      number, around: its number, and the numbers of the branches that it is a part of; -1 of one that is not seen.
      layers: `residual.layers`.
      times: the number of residual additions that it stands for: more than 1 if blocks are scanned, 0 for a bias that
        is added behind one, or for another value that its block adds beside the stream.
      multiplier: the number that its block multiplies the stream by.
      alone: of the parameters inside those that are in no other branch that its end is computed from. origin, like,
        stream: `residual.Branch.origin`, `residual.likeness`, `residual.streams`. steps: how often the program
        computes it.
    Fields of an output
      weights: all parameters that products alone apply to activations (`products.weights`), but those that stand in one
        product with a part, as the direction of a normalized weight does.
      normalized: those outside the branches whose size a norm behind them takes away.
    Fields of a parameter that acts on activations (kind "acts")
      number, like: `residual.acts`. behind_sums: whether it acts behind a residual sum.
    Field of an applied matrix and of a parameter that acts
      behind: the parameters that act on what becomes of its product.
    Fields of an attention, a bilinear product and an applied matrix
      inside: the parameters of the layers that make queries and keys.
      one_unit_norm: whether the queries or the keys, not both, have norm 1. head_dim: the head size.
      product: the number of its product in `contractions`.
    """

    kind: Kind | Literal["sum", "bilinear", "cosine", "applied", "acts", "again", "unseen", "unused", "offset"]
    parts: Parts | None
    inside: frozenset[str] = frozenset()
    skip: frozenset[str] = frozenset()
    before: frozenset[str] = frozenset()
    between: frozenset[str] = frozenset()
    number: int = 0
    around: frozenset[int] = frozenset()
    layers: tuple[frozenset[str], ...] = ()
    times: int = 1
    multiplier: float = 1.0
    alone: frozenset[str] = frozenset()
    origin: residual.Origin = "stream"
    like: int = 0
    stream: int = 0
    steps: int = 1
    behind_sums: bool = False
    weights: frozenset[str] = frozenset()
    normalized: frozenset[str] = frozenset()
    behind: frozenset[str] = frozenset()
    one_unit_norm: bool = False
    head_dim: int = 0
    product: int = 0
    where: str = ""

    @property
    def is_closed(self) -> bool:
        """Whether it lies in one of CLOSED, whose insides are not seen."""
        return self.where in CLOSED


def sites(
    apply: Callable[..., Any],
    params: PyTree,
    *inputs: Any,
    seed: int = 0,
    program: Program | None = None,
    state: Sequence[Any] = (),
) -> list[Site]:
    """The branches, the readout and the attentions of `apply(params, *inputs)`, which returns the logits.

    Blocks that are scanned count once. Nothing of a parameter counts but its shape and dtype: the values of the test
    are random. Of the inputs, floating ones are replaced by random numbers too, positive ones if others give NaN. If
    these do, parameters are small: the values of a network without norms can overflow (EGNN). program: of `apply`, if
    it was traced already. state: as in `Graph`.
    """
    program = program or traced_program(apply, params, inputs, state)
    for positive, size in ((False, 1.0), (True, 1.0), (False, 0.125)):
        graph = Graph(apply, params, inputs, seed, state=state, positive=positive, size=size, program=program)
        if not np.isnan(graph.output.value).any():
            break
    unused = frozenset(flatten_shapes(params)[0]) - {node.path for node in graph.nodes}
    additions, behind = residual.branches(graph), products.parameters_behind(graph)
    terms = residual.accumulations(graph, additions)
    branches = _branches(graph, additions, terms)
    branches += _beside(graph, {branch.sum for branch in (*additions, *terms)}, union(site.inside for site in branches))
    inside = union(site.inside for site in branches)
    return [
        *branches,
        *_applied(graph, behind),
        *_acts(graph, behind, additions),
        *([Site("unused", None, unused)] if unused else []),
        *(Site("unseen", None, graph.parameters_of(node), where=node.op) for node in products.unseen(graph)),
        *([Site("offset", None, graph.offset)] if graph.offset else []),
        *_attentions(graph),
        *_outputs(graph, products.normalized(graph, products.weights(graph) - inside)),
    ]


def paths_of(sites: Iterable[Site], kind: str) -> frozenset[str]:
    """The paths of the parameters inside the sites of a kind."""
    return union(site.inside for site in sites if site.kind == kind)


def last_matrices(sites: Iterable[Site], growing: Collection[str]) -> frozenset[str]:
    """The matrices that grow with width and behind which nothing does. growing: the parameters that do."""
    ends = (site.inside for site in sites if site.kind == "applied" and site.behind.isdisjoint(growing))
    return union(ends).intersection(growing)


def _applied(graph: Graph, behind: Mapping[Node, frozenset[str]]) -> Iterator[Site]:
    for path, product in products.applied(graph).items():
        yield Site("applied", None, frozenset([path]), behind=behind[product], product=product.number)


def _acts(graph: Graph, behind: Mapping[Node, frozenset[str]], additions: Sequence[residual.Branch]) -> Iterator[Site]:
    carries = [node for node in graph.nodes if node.op in ("carry", "carried")]
    stream = graph.descendants([*(branch.sum for branch in additions), *carries])
    for path, (node, like) in residual.acts(graph).items():
        yield Site("acts", None, frozenset([path]), number=node.order, like=like, behind=behind[node],
                   behind_sums=node in stream, steps=node.times)  # fmt: skip


def _branches(graph: Graph, additions: Sequence[residual.Branch], terms: Sequence[residual.Branch]) -> list[Site]:
    """The branches, once for all calls of one, and the biases behind their sums."""
    result, branches = list[Site](), [*additions, *terms]
    moved = {branch.start for branch in additions}
    around = residual.containing_branches(graph, branches)
    alone, streams = residual.alone(graph, branches, around), residual.streams(graph, branches)
    groups: dict[frozenset[int], list[residual.Branch]] = {}
    for branch, outer in zip(branches, around, strict=True):
        groups.setdefault(outer, []).append(branch)
    ends = {branch.end for branch in branches}
    between = {outer: residual.stream_parameters(graph, group, ends) for outer, group in groups.items()}
    sums = {branch.sum for branch in branches}
    joined = {value for total in sums for value in residual.joined(total)}
    last_calls = {group[-1]: [branch.end for branch in group] for group in residual.calls(graph, branches)}
    for number, branch in enumerate(branches):
        if branch not in last_calls:
            continue
        projected, calls = branch.skip is not branch.start, last_calls[branch]
        unshared = (sums | joined).issuperset(consumer for end in calls for consumer in end.consumers)
        parts: Parts | None = {}  # what queries that start at 0 attend to in their first block is 0: no factor
        if np.any(branch.end.value):
            parts = homogeneous_in(graph, branch.end, branch.start, calls) if unshared else None
        site = Site(
            "branch",
            parts,
            inside=graph.parameters_between(branch.end, branch.start),
            skip=graph.parameters_between(branch.skip, branch.start) if projected else frozenset(),
            before=branch.start.paths,
            between=between[around[number]],
            number=number,
            around=around[number],
            layers=residual.layers(graph, branch.end, branch.start),
            times=0 if branch in terms and branch.start in moved else branch.sum.times,
            multiplier=residual.multiplier(graph, branch),
            alone=alone[number],
            origin=branch.origin,
            like=residual.likeness(graph, branch),
            stream=streams[number],
            steps=branch.sum.times,
            where=branch.end.op if unshared else SHARED,
        )
        result.append(site)
        for bias in residual.biases(graph, branch):
            parts, paths = homogeneous_in(graph, bias), bias.paths
            bias_of = dataclasses.replace(site, parts=parts, inside=paths, alone=paths, skip=frozenset(), layers=())
            result.append(dataclasses.replace(bias_of, times=0))
    return result


def _beside(graph: Graph, known: Collection[Node], inside: frozenset[str]) -> Iterator[Site]:
    """Sums that are no residual additions, states that are added again, branches in operations that are not seen.
    known: the sums of branches. inside: the parameters in these."""
    for total, paths in residual.sums(graph):
        if total not in known and paths - inside:
            yield Site("sum", None, paths - inside)
    for total, paths in residual.repeated_states(graph).items():
        yield Site("again", None, paths, times=total.times)
    for node in graph.nodes:
        if node.op in CLOSED and node in graph.fed:
            paths = graph.parameters_of(node) - inside
            like = hash((node.op, node.operations))
            yield Site("branch", None, paths, number=-1, alone=paths, like=like, where=node.op)


def _attentions(graph: Graph) -> Iterator[Site]:
    yield from _products(graph, "attention", products.attentions(graph))
    yield from _products(graph, "bilinear", products.bilinear(graph))
    for node in graph.nodes:
        attends = "dot_general" in node.operations and node.operations.intersection(products.SOFTMAX)
        if node.op in CLOSED and node in graph.fed and attends:
            yield Site("attention", None, where=node.op)


def _products(
    graph: Graph, kind: Literal["attention", "bilinear"], multiplied: Iterable[tuple[Node, Node, Node]]
) -> Iterator[Site]:
    calls = collections.defaultdict[Any, list[tuple[Node, Node, Node]]](list)  # of one attention, by its layers
    inside: dict[Any, frozenset[str]] = {}
    for query, key, product in multiplied:
        layers = products.last_layer(graph, query), products.last_layer(graph, key)
        weights = tuple(graph.parameters_of(layer) if layer else None for layer in layers)
        attention = weights if None not in weights else product
        calls[attention].append((query, key, product))
        inside[attention] = union(filter(None, weights))
    for attention, group in calls.items():
        query, key, product = group[-1]
        values = [dict.fromkeys(of_calls) for of_calls in list(zip(*group, strict=True))[:2]]
        candidates = (
            homogeneous_in(graph, value, calls=list(of_calls))
            for value, of_calls in zip((query, key), values, strict=True)
        )
        # Earlier calls and steps keep their numbers. (Where queries and keys are the same, their product grows by the
        # square.)
        earlier = [copy for *_, call in group for copy in call.copies or (call,) if copy is not product]
        parts = next((parts for parts in candidates if parts and doubles(graph, product, parts, earlier)), None)
        if parts is None and products.is_cosine(graph, query, key):
            continue  # it is at most 1 at any size of the heads
        unit = products.one_has_unit_norm(query, key)
        yield Site(kind, parts, inside[attention], one_unit_norm=unit, head_dim=product.summed, product=product.number)


def _outputs(graph: Graph, normalized: frozenset[str]) -> Iterator[Site]:
    weights = products.weights(graph)
    for logits, parts in products.readouts(graph):
        applied = [graph.parameters_of(node) for node in graph.nodes if graph.weighs(node)]
        beside = union(paths for paths in applied if not paths.isdisjoint(parts or ()))
        others = weights - (beside - set(parts or ()))
        yield Site("output", parts, weights=others, normalized=normalized, where=logits.op)
        for factor in products.cosine(graph, logits):
            if factor not in graph.fed:
                yield Site("cosine", {}, factor.paths)
