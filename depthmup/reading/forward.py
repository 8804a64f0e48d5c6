"""A model's forward pass shows which parameters are in a residual branch, and where a factor can go.

A factor multiplies a value of the forward pass: the branch factor a residual branch, the output factor the logits, the
attention factor the queries. A model that does not take factors as arguments can have them all the same, where the
value is homogeneous of degree 1 in some parameters that act on nothing else: these parameters are stored times the
factor (docs/theory.md section 1). `graph.py` finds these values and parameters.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from depthmup.reading.graph import (
    CLOSED,
    RESHAPES,
    SHARED,
    ForwardError,
    Graph,
    Node,
    Parts,
    Site,
    last_layer,
    last_matrices,
    paths_of,
    residual,
    sites,
    union,
    values_at,
)
from depthmup.reading.reading import in_no_branch
from depthmup.rules.parameterization import KINDS, Kind
from depthmup.rules.specs import Absorbed, ParamSpec, PyTree, is_spec, leaves_of

# {(kind of the factor, head size): the entries of a parameter that are stored times the factor, None for all}
Masks = dict[tuple[Kind, float], np.ndarray | None]


def absorb(
    specs: PyTree, apply: Callable[..., Any], params: PyTree, *inputs: Any, kinds: Collection[Kind] = KINDS
) -> PyTree:
    """The spec tree with the parameters named that the form "absorbed" stores the forward pass's factors in.

    Then `p.in_form("absorbed")` needs no change of the model: `apply` is called as it is, and `rescale` and `optimizer`
    do what explicit factors would do, to the last digits.

    Args:
      apply: (params, *inputs) -> logits, without factors: branches are added as they are, attention is divided by
        sqrt(head_dim).
      params: arrays or shapes; their values do not matter.
      inputs: arrays; floating ones are replaced by random numbers.
      kinds: the factors to find a place for, all by default; `p.kinds` are those that can differ from 1.

    Returns:
      The tree of `ParamSpec` with `absorbs` filled in.

    Raises ForwardError if a factor has no place, or if `specs` and the forward pass disagree on what is in a branch or
    which side of the readout its inputs are on.
    """
    return place(specs, sites(apply, params, *inputs) if kinds else [], kinds)


def place(
    specs: PyTree,
    sites: Sequence[Site],
    kinds: Collection[Kind] = KINDS,
    head_dims: Mapping[int, float] | None = None,
    placed: Collection[str] = (),
    growth: float = 1.0,
    wider: Callable[[], Sequence[Site]] = list,
) -> PyTree:
    """`absorb` by the sites of the same model, which may be those of another width.

    head_dims: {number of the product: head size} at the width of the specs; None: the sites have this width.
    placed: the parameters whose place, in a branch or outside, an override gives.
    growth: the width of the specs over that of the sites. wider: the sites at twice their width, for arrays that join
      parts of which some do not grow with width.
    """
    if not kinds:
        return jax.tree.map(lambda spec: dataclasses.replace(spec, absorbs=()), specs, is_leaf=is_spec)
    repeating = {spec.path for spec in leaves_of(specs) if spec.in_branch}
    branches = repeated(sites, repeating)
    leaves = _in_their_places(specs, sites, branches, placed)
    for site in sites:
        if site.kind == "output" and "output" in kinds and site.parts is not None:
            check_readout(specs, site.parts)
            # The outputs of blocks that are summed are logits, so that these blocks have readouts.
            summed = {path for path in site.parts if leaves[path].role == "output"} - set(placed)
            leaves |= {path: dataclasses.replace(leaves[path], role="readout") for path in summed}

    def masks_of(sites: Sequence[Site], branches: Sequence[Site]) -> dict[str, Masks]:
        masks: dict[str, Masks] = {path: {} for path in leaves}
        for site in sites:
            if site.kind not in KINDS or site.kind not in kinds or (site.kind == "branch" and site not in branches):
                continue
            parts = _heads(site, leaves, sites) if site.kind == "output" else site.parts
            if parts is None:
                raise ForwardError(_no_place(site, repeating))
            head_dim = head_dims[site.product] if head_dims and site.kind == "attention" else site.head_dim
            for path, mask in parts.items():
                other = masks[path].get((site.kind, head_dim), mask)  # of another block in the same array
                masks[path][site.kind, head_dim] = None if mask is None or other is None else mask | other
        return masks

    masks, twice, added = masks_of(sites, branches), dict[str, Masks](), paths_of(sites, "offset")
    if any(_joins(mask, leaves[path].shape, growth) for path, of_path in masks.items() for mask in of_path.values()):
        twice = masks_of(at_twice := wider(), repeated(at_twice, repeating))

    def placed_in(path: str) -> ParamSpec:
        ranges = ((key, _ranges(path, mask, leaves[path].shape, twice.get(path, {}).get(key)))
                  for key, mask in masks[path].items())  # fmt: skip
        absorbs = tuple(Absorbed(*key, *of_key) for key, of_key in ranges)
        return dataclasses.replace(leaves[path], absorbs=absorbs, offset=float(path in added))

    return jax.tree.map(lambda spec: placed_in(spec.path), specs, is_leaf=is_spec)


def _in_their_places(
    specs: PyTree, sites: Sequence[Site], branches: Sequence[Site], placed: Collection[str]
) -> dict[str, ParamSpec]:
    """{path: spec} with the places that the forward pass shows, for specs that come from shapes: projections of skips
    are outside, vectors that are in no branch on the stream. Raises ForwardError for weights that repeat with depth and
    are in no branch. placed: as in `place`."""
    leaves = {spec.path: spec for spec in leaves_of(specs)}
    for path in union(site.skip for site in branches).difference(placed):
        leaves[path] = dataclasses.replace(leaves[path], in_branch=False)
    inside = union(site.inside for site in branches).union(placed, paths_of(sites, "unused"))
    outside = {path for path, spec in leaves.items() if spec.in_branch and path not in inside}
    vectors = {path for path in outside if leaves[path].role in ("vector", "scalar")}
    for path in vectors:
        leaves[path] = dataclasses.replace(leaves[path], in_branch=False, in_stream=True)
    if outside - vectors:
        others = (site for site in sites if site.kind != "branch")
        raise ForwardError(in_no_branch(outside - vectors, leaves, [*branches, *others]))
    return leaves


def _heads(site: Site, leaves: Mapping[str, ParamSpec], sites: Sequence[Site]) -> Parts | None:
    """The parameters that store the output factor, with the part of each; {}: no factor is needed or none has a place;
    None: there is no head.

    relu(h) @ head + bias           # {"head": None}
    relu(h) @ head + x @ wide       # {"head": None}, without the linear part of a wide and deep network
    """
    parts = site.parts or {}
    fixed = {path for path, spec in leaves.items() if spec.role in ("scalar", "fixed")}
    heads = [path for path in sorted(site.weights) if leaves[path].role == "readout"]
    if site.parts is None:  # logits that are proportional to nothing, as where they are mixed: the last heads before
        return dict.fromkeys(last_matrices(sites, leaves.keys() - fixed).intersection(heads)) or None
    if fixed.issuperset(path for path, spec in leaves.items() if not spec.in_branch) and parts.keys() <= fixed:
        return {}  # a stream of fixed size, in whose branches alone something grows (TSMixer)
    lost = [path for path in site.normalized if leaves[path].role == "output" and not leaves[path].in_branch]
    # Layers of fixed size make the logits of what a head gives: the head stores the factor, unless a norm behind it
    # takes its size away (AlphaZero).
    if parts.keys() <= fixed and (lost or site.weights.intersection(parts)):
        return dict.fromkeys(heads) or ({} if lost else parts)
    if any(leaves[path].role == "readout" for path in parts):  # the biases beside a head do not store the factor
        logits = {path for site in sites if site.kind == "output" for path in site.parts or ()}
        growing = {path: mask for path, mask in parts.items() if path not in fixed}
        return growing | dict.fromkeys(path for path in heads if path not in logits)
    return parts


def repeated(sites: Sequence[Site], in_branch: Collection[str]) -> list[Site]:
    """The branches that repeat with depth: those whose factor goes into a parameter that repeats, or, where the factor
    has no place, those with such a parameter inside; and those with such a parameter that is in no other branch, as
    the norm of a block whose weights are of another kind (the dense blocks before a mixture of experts). A branch that
    is a part of another one, such as the sum in a recurrent cell, is left out.

    in_branch: the parameters that repeat with depth.
    """
    branches = [site for site in sites if site.kind == "branch"]
    alone = [{*(site.parts or site.inside), *exclusive(site, branches)} for site in branches]
    branches = [site for site, paths in zip(branches, alone, strict=True) if not paths.isdisjoint(in_branch)]
    numbers = {site.number for site in branches}
    return [site for site in branches if not numbers.intersection(site.around)]


def exclusive(site: Site, branches: Sequence[Site]) -> frozenset[str]:
    """The parameters inside a branch that are in no other one; none where other branches are a part of it."""
    if any(site.number in other.around for other in branches):
        return frozenset()
    return site.inside.difference(*(other.inside for other in branches if other.number != site.number))


def check_readout(specs: PyTree, parts: Collection[str]) -> None:
    """Raises ForwardError if the logits are proportional to a matrix that shapes take for a read-in: the matrices are
    stored the other way round than the specs say. parts: paths of the parameters that the logits are proportional to.
    """
    for spec in leaves_of(specs):
        if spec.path in parts and spec.role == "input":
            raise ForwardError(
                f"the logits are proportional to {spec.path} {spec.shape}, which shapes take for a read-in (role "
                f"{spec.role!r}): pass layout='out_in' if matrices are stored (out, in), layout='in_out' if they are "
                f"(in, out), or overrides={{{spec.path!r}: 'readout'}} if it is this one alone"
            )


def _no_place(site: Site, repeating: Collection[str]) -> str:
    some = ", ".join(sorted(site.inside.intersection(repeating) or site.inside)[:3])
    if site.is_closed:
        what = f"a block with {some}" if site.kind == "branch" else "an attention"
        return (
            f"{what} lies in a jax.lax.{site.where.replace('while', 'while_loop')}, into which the forward pass is not "
            "followed: repeat the blocks by a loop of Python or a scan (jax.lax.scan, nn.scan), or let the call of the "
            "model take `factors` and multiply: h + factors.branch * branch(h), attention logits by factors.attention"
        )
    if site.kind == "branch":
        if site.where == SHARED:
            why = "acts on something else than the residual sum too, where its factor does not belong"
        else:
            why = f"ends with {site.where!r} and is homogeneous in none of its parameters alone"
        return f"the residual branch with {some} {why}: multiply it in the model, h + factors.branch * branch(h)"
    if site.kind == "output":
        return (
            "the logits are homogeneous in no parameters alone: multiply what the network makes of them in the model, "
            "factors.output * logits, before any soft cap or softmax (where a tanh caps them, its argument)"
        )
    layers = f" that {some} make" if some else ""
    return (
        f"the queries and keys{layers} are homogeneous in no parameters alone (a norm without a scale behind them?): "
        "multiply the attention's logits in the model, by factors.attention instead of 1/sqrt(head_dim)"
    )


def _joins(mask: np.ndarray | None, shape: Sequence[int], growth: float) -> bool:
    """Whether an axis joins parts of which some grow with width and others do not."""
    if mask is None:
        return False
    return any(size not in (small, growth * small) for size, small in zip(shape, mask.shape, strict=True))


def _ranges(
    path: str, mask: np.ndarray | None, shape: Sequence[int], twice: np.ndarray | None
) -> tuple[int, tuple[tuple[int, int], ...]]:
    """(axis, half-open ranges along it) of the entries of a mask, for a parameter of this shape, whose width may differ
    from the mask's. twice: the mask at twice its width; None: all ends of ranges grow with the axis.
    Raises ForwardError if the entries are no such ranges.

        mask of the first 8 of 24 columns, shape (8, 48)        # (1, ((0, 16),))
    """
    if mask is None or mask.all():
        return 0, ()
    for axis in range(mask.ndim):
        ends = _ends(mask, axis)
        if ends is None:
            continue
        size, small = shape[axis], mask.shape[axis]
        more, grown = ends, small
        if twice is not None and twice.shape[axis] != small:
            at_twice = _ends(twice, axis)
            if at_twice is None or len(at_twice) != len(ends):
                continue
            more, grown = at_twice - ends, twice.shape[axis] - small
        steps, remainders = np.divmod(more * (size - small), grown)  # how far each end moves
        if not remainders.any():
            return axis, tuple((int(low), int(high)) for low, high in (ends + steps).reshape(-1, 2))
    raise ForwardError(f"{path}: a factor would multiply entries that are no ranges along one axis")


def _ends(mask: np.ndarray, axis: int) -> np.ndarray | None:
    """The ends of the ranges of entries along an axis; None if the entries are no such ranges.

    [1, 1, 0, 0, 0, 1]      # [0, 2, 5, 6]
    """
    line = np.moveaxis(mask, axis, 0).reshape(mask.shape[axis], -1)
    if (line.all(axis=1) != line.any(axis=1)).any():
        return None
    return np.flatnonzero(np.diff(np.concatenate([[0], line[:, 0].astype(int), [0]])))


def layer_outputs(
    apply: Callable[..., Any], params: PyTree, state: Sequence[Any], inputs: Sequence[Any], blocks: int
) -> Callable[..., list[jax.Array]]:
    """A function (params, *state, *inputs) -> the outputs z^l of the layers of `apply(params, *state, *inputs)`, the
    logits. It can be jitted and differentiated.

    The outputs of a network with residual branches are the value that enters the first branch and the residual stream
    after each block; those of any other network are the output W h + bias of each layer but the readout.

    state: arrays that are neither parameters nor activations, such as batch statistics. blocks: the number of blocks,
    which may have several branches each. Where the number of residual additions is no multiple of it, the stream after
    each of them is taken.
    Raises ForwardError if there are no layers, or if they are where the forward pass is not followed.
    """
    graph = Graph(apply, params, inputs, state=state)
    if any(node.op in CLOSED and node in graph.fed and graph.parameters_of(node) for node in graph.nodes):
        raise ForwardError(
            "layers lie in a jax.lax.while_loop or cond, into which the forward pass is not followed: repeat the "
            "blocks by a loop of Python or a scan, or give dm.maximal_update a function of the layers' outputs"
        )
    entries, nodes, per_block = _stream(graph, blocks)
    nodes = nodes or _pre_activations(graph)
    if not nodes:
        raise ForwardError("no operation but the readout applies weights to activations: there are no layers")
    places = [node.place for node in [*entries, *nodes] if node.place]

    def outputs(params: PyTree, *arguments: Any) -> list[jax.Array]:
        values = values_at(places, apply, params, *arguments)
        return values[: len(entries)] + values[len(entries) + per_block - 1 :: per_block]

    return outputs


def _stream(graph: Graph, blocks: int) -> tuple[list[Node], list[Node], int]:
    """([the value that enters the first branch], the residual additions, the number of additions in a block)"""
    branches = residual.branches(graph)
    values = [graph.ancestors(branch.end, branch.start) for branch in branches]
    outer = [branch for branch in branches if not any(branch.sum in within for within in values)]
    # Additions inside a branch are no residual stream, unless all others are too few.
    counts = [(additions, sum(branch.sum.times for branch in additions)) for additions in (outer, branches)]
    fitting = [(additions, count // blocks) for additions, count in counts if additions and count % blocks == 0]
    additions, per_block = (*fitting, (branches, 1))[0]
    entries = [branch.start.operands[0] if branch.start.op == "carry" else branch.start for branch in additions[:1]]
    sums = [branch.sum for branch in additions]
    inside = {node.place for node in sums}  # of a recurrence, where the start is the sum of an earlier step
    return [node for node in entries if node.place and node.place not in inside], sums, per_block


def _pre_activations(graph: Graph) -> list[Node]:
    """The outputs of the weight layers, with their bias, but for the readout."""
    readout, outputs = last_layer(graph, graph.output), []
    for node in graph.nodes:
        if not graph.weighs(node) or node is readout:
            continue
        while len(node.consumers) == 1:  # the bias, maybe behind a change of shape or type
            (after,) = node.consumers
            fed = [operand for operand in after.operands if operand in graph.fed]
            bias = after.op == "add" and len(fed) == 1 and graph.parameters_of(after)
            if not bias and after.op not in RESHAPES:
                break
            node = after
        outputs.append(node)
    return outputs
