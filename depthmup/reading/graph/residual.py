"""The residual additions of a forward pass: where branches begin and end, and what acts on the stream between them."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from depthmup.reading.graph.graph import ADDITIONS, RESHAPES, Graph, Node, Nodes, as_stored, reached, union
from depthmup.reading.graph.products import attentions, factors_of, source

GATES = {"logistic", "tanh"}  # of recurrent cells
STEPS_AROUND = 1  # how far the operations around the place of a parameter go back: not to the layer before


Origin = Literal["stream", "injection", "term"]


class Branch(NamedTuple):
    """A residual addition: sum = skip + end. `end` is computed from `start`; `skip` is `start`, a number times it, or a
    projection of it.
    An end that is not computed from the stream, such as a condition, has a start beside the stream, which is also its
    skip: then the sum is that of the stream and the end, an "injection". A "term" is what a block adds to a sum over
    all blocks beside the stream."""

    sum: Node
    end: Node
    start: Node
    skip: Node
    origin: Origin = "stream"


def branches(graph: Graph) -> list[Branch]:
    """Every residual addition, or subtraction.

        h + mlp(norm(h))                # Branch(sum, end=mlp(...), start=h, skip=h)
        h @ w + mlp(h)                  # start=h, skip=h @ w

    The skip is the value that the branch is computed from; the sum of it and of parallel branches, h + attention(h) +
    mlp(h); or a projection of it: one weight layer, where the branch has more of them and is not linear. Last come
    values that are added to the stream and computed from something else, such as a condition.
    """
    result, others = list[Branch](), repeated_states(graph).keys() | _biased_attentions(graph)
    for total in _additions(graph, (*ADDITIONS, "sub")):
        if total not in others and (branch := _added(graph, total, result)):
            result.append(branch)
    # A parameter may be the first state of the stream. It is not where the sum leaves the stream: a learned part of
    # queries, to which a part that sees the inputs is added.
    stream = _stream(graph, result)
    result = [branch for branch in result if graph.sees_inputs(branch.start) or branch.sum in stream]
    factors = {as_stored(factor) for node in graph.nodes for factor in factors_of(graph, node)}
    result = [branch for branch in result if not (branch.sum in factors and _reaches_in(graph, branch, result))]
    return result + _injections(graph, result)


def _added(graph: Graph, total: Node, known: Sequence[Branch]) -> Branch | None:
    """The branch that a sum adds to the stream; None if it is no residual addition. known: the branches before it."""
    left, right = total.operands
    # Either operand may be the end of the branch, the other one is its skip; of a difference the right one alone.
    ways = [(end, skip) for end, skip in ((right, left), (left, right)) if end in graph.fed]
    ways = [(end, skip) for end, skip in ways if total.op != "sub" or skip is left]
    # Where the start is a summand of both, the two are states of the stream, as in a mean of parallel blocks.
    pairs = [(end, start) for end, skip in ways for start in _summands(graph, skip, end)
             if start not in _chain(graph, end)]  # fmt: skip
    if pairs:
        # The skip itself is preferred to a summand of it, and the shorter branch to the longer one.
        end, start = min(pairs, key=lambda pair: (pair[1] not in (left, right), len(graph.ancestors(*pair))))
        return Branch(total, end, start, start) if _has_parameters(graph, end, start) else None
    # The skip is a number times the start, 0.5 * h + f(h), or a projection of it, h @ w + f(h).
    multiplied = ((end, skip, before_numbers(graph, skip)[0]) for end, skip in ways)
    scaled = [Branch(total, end, start, skip) for end, skip, start in multiplied if start in graph.ancestors(end)]
    if scaled and _has_parameters(graph, scaled[0].end, scaled[0].start):
        return scaled[0]
    return _projected(graph, total, known) if len(ways) == 2 else None


def _reaches_in(graph: Graph, branch: Branch, branches: Sequence[Branch]) -> bool:
    """Whether a sum that is a factor of a product inside another branch adds something from before it that is no state
    of a stream: the values of the first block, which all others add to their own (value residuals)."""
    states = _states(graph, branch.start) & {other.sum for other in branches}
    if states or any(branch.sum in _states(graph, other.start) for other in branches):
        return False
    before = graph.descendants([branch.start])
    around = (other for other in branches if other.start in before and other.start is not branch.start)
    return any(branch.sum in _inside(graph, other) for other in around)


def _has_parameters(graph: Graph, end: Node, start: Node) -> bool:
    """Whether parameters act on the way from one value to another. On the way from the mean of a batch to what a norm
    adds to it (BatchRenorm) none do: they act on the batch, before its mean and its variance."""
    return any(map(graph.parameters_of, graph.ancestors(end, start) - graph.ancestors(start)))


def _stream(graph: Graph, branches: Sequence[Branch]) -> set[Node]:
    """The values at which branches start, and those that they are made of without weights, as by a norm after the
    sum."""
    stream = set[Node]()
    for branch in branches:
        value: Node | None = branch.start
        while value is not None and value not in stream:
            stream.add(value)
            value = source(graph, value)
    return stream


def _additions(graph: Graph, operations: Sequence[str] = ADDITIONS) -> Iterator[Node]:
    """Sums of two different values of one shape."""
    for node in graph.nodes:
        alike = node.op in operations and all(operand.shape == node.shape for operand in node.operands)
        if alike and node.is_last_copy and node.operands[0] is not node.operands[1]:
            yield node


def _biased_attentions(graph: Graph) -> set[Node]:
    """Attention logits with a bias that no attention made, such as of positions, or to which several layers add one
    and the same bias, such as of distances in a graph: they start anew in each layer."""
    products = {product for *_, product in attentions(graph)}
    biased = collections.defaultdict[Node, list[Node]](list)
    for node in _additions(graph):
        for logits, bias in (node.operands, node.operands[::-1]):
            if as_stored(before_numbers(graph, as_stored(logits))[0]) in products:
                biased[bias].append(node)
    behind = graph.descendants(products)
    return {node for bias, nodes in biased.items() if len(nodes) > 1 or bias not in behind for node in nodes}


def _injections(graph: Graph, branches: Sequence[Branch]) -> list[Branch]:
    """What is added to the stream between branches and is not computed from it. Its start is the last value on the
    way to it that acts elsewhere too."""
    stream = {node for branch in branches for node in (branch.sum, branch.start)}
    known = {branch.sum for branch in branches}.union(*(_inside(graph, branch) for branch in branches))
    injections = []
    for node in (addition for addition in _additions(graph) if addition not in known):
        for skip, end in (node.operands, node.operands[::-1]):
            beside = end in graph.fed and stream.isdisjoint(_chain(graph, end)) and skip not in graph.ancestors(end)
            if skip in stream and beside:
                start = _shared(graph, end)
                if graph.parameters_between(end, start):
                    injections.append(Branch(node, end, start, start, "injection"))
                    stream.add(node)
    return injections


def calls(graph: Graph, branches: Sequence[Branch]) -> list[list[Branch]]:
    """The branches, those together that are one branch in several calls of its tower, in the order of the calls.
    Blocks of one stream that share their weights are branches of their own, and so are parts of what one layer makes
    of a state."""
    groups = collections.defaultdict[frozenset[str], list[Branch]](list)
    for branch in branches:
        groups[graph.parameters_between(branch.end, branch.start)].append(branch)
    result = list[list[Branch]]()
    for group in groups.values():
        sums = {branch.sum for branch in group}
        one_stream = any(not _states(graph, branch.sum).isdisjoint(sums - {branch.sum}) for branch in group)
        one_call = len({branch.start for branch in group}) < len(group)
        result += [[branch] for branch in group] if one_stream or one_call else [group]
    return result


def _states(graph: Graph, state: Node) -> set[Node]:
    """A state of the stream, and those that it is made of without weights, as by a norm after the sum."""
    return reached([state], lambda node: [*_chain(graph, node), *filter(None, [source(graph, node)])])


def containing_branches(graph: Graph, branches: Sequence[Branch]) -> list[frozenset[int]]:
    """The numbers of the branches that each one is a part of, sum and start: where two streams feed each other in
    turn, the sum of the one alone lies in a branch of the other, or the logits depend on it otherwise, too.

        h + f(g + up(g)), g = down(h)       # the branch up(g) is a part of f(...)
    """
    values = [_inside(graph, branch) - graph.ancestors(graph.output, branch.end) for branch in branches]
    return [
        frozenset(
            number
            for number, (outer, parts) in enumerate(zip(branches, values, strict=True))
            if branch.sum in parts
            and (branch.start in parts or branch.start is outer.start or not graph.sees_inputs(branch.start))
        )
        for branch in branches
    ]


def accumulations(graph: Graph, branches: Sequence[Branch]) -> list[Branch]:
    """The terms of sums over the blocks beside the stream, such as the skip connections of WaveNet: with the stream
    the sum makes a state to which each block adds. A term starts where its block does."""
    outer = [
        branch for branch, numbers in zip(branches, containing_branches(graph, branches), strict=True) if not numbers
    ]
    stream = {node for branch in outer for node in (branch.sum, branch.start)}
    inside = {branch.sum for branch in branches}.union(*(_inside(graph, branch) for branch in branches))
    additions = set(_additions(graph)) - inside
    result, starts = list[Branch](), {branch.start for branch in outer}
    for total in (node for node in graph.nodes if node not in starts):  # (those are states of the stream)
        terms, scanned = _terms(graph, total, additions)
        of_blocks = []
        for end, node in terms.items():
            before = stream & graph.ancestors(end)
            if end in graph.fed and end not in before and before:
                *_, start = before
                if graph.parameters_between(end, start) and stream.isdisjoint(graph.ancestors(end, start)):
                    of_blocks.append(Branch(node, end, start, start, "term"))
        blocks = {branch.start for branch in of_blocks}
        if len(blocks) == len(of_blocks) == len(terms) and len(blocks) + scanned > 1:
            result += of_blocks
    return result


def _terms(graph: Graph, total: Node, additions: set[Node]) -> tuple[dict[Node, Node], bool]:
    """({term: the operation that adds it} of the whole sum `total`, whether a scan adds one at each step)"""
    if total.op == "reduce_sum":
        (joined,) = total.operands
        if joined.op == "stacked" and joined.operands[0].op == "emitted":
            return {joined.operands[0].operands[0]: total}, True
        if joined.op in ("stack", "concatenate") and np.size(joined.operands[0].value) == np.size(total.value):
            return dict.fromkeys(joined.operands, total), False
    if total not in additions or additions.intersection(total.consumers):
        return {}, False
    chain = sorted(_chain(graph, total) & additions, key=lambda addition: addition.order)
    terms = {operand: node for node in chain for operand in node.operands if operand not in additions}
    carries = {term for term in terms if term.op == "carry" and len(term.consumers) == 1}
    return {term: node for term, node in terms.items() if term not in carries}, bool(carries)


def joined(total: Node) -> Iterator[Node]:
    """The values that a sum over the blocks is made of, where it is a sum along an axis of what they give."""
    if total.op == "reduce_sum":
        yield total.operands[0]
        yield from (operand for operand in total.operands[0].operands if operand.op == "emitted")


def _shared(graph: Graph, node: Node) -> Node:
    """The last value that `node` is computed from and that acts on something else as well; else an input."""
    before = graph.ancestors(node)
    near = before | graph.descendants([node])
    values = [value for value in before & graph.fed if value is not node]
    shared = [value for value in values if not near >= {*value.consumers}]
    return (shared or [value for value in values if not value.operands])[-1]


def biases(graph: Graph, branch: Branch) -> Iterator[Node]:
    """The biases that are added right behind a residual sum: in h + f(h) + bias the bias is a part of the
    branch."""
    node = branch.sum
    while len(node.consumers) == 1 and node.consumers[0].op in ADDITIONS:
        (consumer,) = node.consumers
        weights = [operand for operand in consumer.operands if operand not in graph.fed]
        if len(weights) != 1:
            return
        yield weights[0]
        node = consumer


def multiplier(graph: Graph, branch: Branch) -> float:
    """The number that a block multiplies the stream by: in front of the sum, or right behind it.

    0.5 * h + mlp(h)                # 0.5
    """
    number = 1.0 if branch.skip is branch.start else before_numbers(graph, branch.skip)[1]
    for consumer in branch.sum.consumers if len(branch.sum.consumers) == 1 else ():
        value, behind = before_numbers(graph, consumer)
        number *= behind if value is branch.sum else 1.0
    return number


def before_numbers(graph: Graph, node: Node) -> tuple[Node, float]:
    """(a value without the numbers of the program that multiply it, their product)"""
    number = 1.0
    while node.op in ("mul", "div") and len(fed := graph.activations(node)) == 1:
        factor = next(operand for operand in node.operands if operand is not fed[0])
        if graph.parameters_of(node) or np.ptp(factor.value) or (node.op == "div" and factor is node.operands[0]):
            break
        value = float(np.ravel(factor.value)[0])
        node, number = fed[0], number * (value if node.op == "mul" else 1 / value)
    return node, number


def stream_parameters(graph: Graph, branches: Sequence[Branch], ends: Collection[Node]) -> frozenset[str]:
    """The paths of the parameters that act on the stream behind a residual sum, such as norms after the sum, or on
    what is added to it there. ends: those of all branches."""
    starts = [*(branch.start for branch in branches), *(node for node in graph.nodes if node.op == "carried")]
    stream = reached([graph.output, *starts], lambda node: () if node in ends else node.operands) - {*ends}
    states = [*(branch.sum for branch in branches), *(node for node in graph.nodes if node.op == "carry")]
    behind = stream & graph.descendants(states)
    behind |= {as_stored(operand) for node in behind if node.op in ADDITIONS for operand in node.operands} & stream
    added = {node for branch in branches for node in biases(graph, branch)}
    return union(map(graph.parameters_of, behind)) - union(node.paths for node in added)


def alone(graph: Graph, branches: Sequence[Branch], around: Sequence[Collection[int]]) -> list[frozenset[str]]:
    """The paths of the parameters of each branch, without those of other branches that its end is computed from, such
    as the blocks of an encoder, and of what other branches start from. around: as `containing_branches`."""
    result = []
    for number, branch in enumerate(branches):
        others = [one for one, outer in zip(branches, around, strict=True) if number not in outer and one != branch]
        result.append(_parameters_without(graph, branch, others))
    return result


def _parameters_without(graph: Graph, branch: Branch, others: Sequence[Branch]) -> frozenset[str]:
    inside, sums = _inside(graph, branch), {other.sum for other in others}
    made = inside - graph.descendants(sums & inside)  # first states of other streams, too
    stops = (sums | {branch.start, *(other.start for other in others if other.start not in made)}) - {branch.end}
    values = reached([branch.end], lambda node: [operand for operand in node.operands if operand not in stops])
    return frozenset(value.path for value in values if value.path)


def streams(graph: Graph, branches: Sequence[Branch]) -> list[int]:
    """The number of the stream of each branch: of one stream are branches that start from a sum of another one, without
    weights between them."""
    numbers = list(range(len(branches)))
    by_sum = collections.defaultdict[Node, list[int]](list)
    for number, branch in enumerate(branches):
        by_sum[branch.sum].append(number)
    for number, branch in enumerate(branches):
        for before in [one for state in _states(graph, branch.start) for one in by_sum[state]]:
            old, new = sorted((numbers[before], numbers[number]), reverse=True)
            numbers = [new if of == old else of for of in numbers]
    return numbers


def likeness(graph: Graph, branch: Branch) -> int:
    """A number that branches share which compute the same from their start: a hash of operations and shapes."""
    return hash(frozenset(collections.Counter((node.op, node.shape) for node in _inside(graph, branch)).items()))


def acts(graph: Graph) -> dict[str, tuple[Node, int]]:
    """{path of a parameter: (the operation by which it first acts on activations, a number that parameters share which
    act alike: a hash of the operations around that place)}"""

    def around(node: Node, steps: int) -> Any:
        if node.op == "parameter" or not steps:
            return node.op, node.shape
        return node.op, node.shape, tuple(sorted((around(operand, steps - 1) for operand in node.operands), key=repr))

    result: dict[str, tuple[Node, int]] = {}
    for node in graph.nodes:
        paths = sorted(graph.parameters_of(node) - result.keys()) if node in graph.fed else []
        if paths:
            result |= dict.fromkeys(paths, (node, hash(repr(around(node, STEPS_AROUND)))))
    return result


def _inside(graph: Graph, branch: Branch) -> Nodes:
    """The values of a branch: what lies between its start and its end."""
    return graph.ancestors(branch.end, branch.start) & graph.descendants([branch.start])


def _summands(graph: Graph, total: Node, value: Node) -> list[Node]:
    """[total] if `value` is computed from `total`, or else the outermost summands of `total` that `value` is
    computed from.

        h + attention(h), mlp(h)        # [h], as in parallel blocks
    """
    summands, todo, before = [], [total], graph.ancestors(value)
    while todo:
        node = todo.pop()
        if node in before:
            summands.append(node)
        elif node.op in ADDITIONS or node.op == "transpose":  # (a matrix may give the transposed start of the stream)
            todo += graph.activations(node)
    return summands


def _projected(graph: Graph, node: Node, known: Sequence[Branch]) -> Branch | None:
    """A residual addition whose skip is a projection; None if the sum is no such addition. known: those before it.

    There is none where one of the two is a sum of the stream, or is computed from one behind the fork: then the other
    is a condition, or both are states of the stream, as in a feature pyramid. The sum in a gate is none either."""
    left, right = node.operands
    common = graph.ancestors(left) & graph.ancestors(right) & graph.fed
    if not common:
        return None
    *_, fork = common
    past = graph.ancestors(left, fork) | graph.ancestors(right, fork)
    state = source(graph, fork)
    while state and state not in past:
        state = source(graph, state)
    fork = state or fork  # hyper-connections make weights of its norm, by which they mix the state itself
    layers = {operand: _count_layers(graph, operand, fork) for operand in (left, right)}
    skip, branch = sorted((left, right), key=layers.__getitem__)
    if not layers[skip] == 1 < layers[branch] or _is_odd(graph, branch, fork):
        return None
    states = _chain(graph, branch) | (graph.ancestors(branch, fork) & graph.descendants([fork]))
    beside = any(one.sum in states for one in known)
    return None if beside or _is_gate(graph, node) else Branch(node, branch, fork, skip)


def _is_gate(graph: Graph, node: Node) -> bool:
    """Whether a value, maybe with a bias, goes into sigmoids or tanhs alone."""

    def is_biased(value: Node) -> bool:
        return value.op in (*ADDITIONS, "sub", *RESHAPES) and len(graph.activations(value)) == 1

    values = reached([node], lambda value: filter(is_biased, value.consumers))
    return {consumer.op for value in values for consumer in value.consumers if consumer not in values} <= GATES


def _chain(graph: Graph, node: Node, multiples: bool = False) -> set[Node]:
    """A value, its summands, and theirs. multiples: also those that numbers multiply."""

    def summands(total: Node) -> Iterable[Node]:
        operands = graph.activations(total) if total.op in ADDITIONS else []
        return itertools.chain(*(_multiples(graph, operand) for operand in operands)) if multiples else operands

    return reached([node], summands)


def _count_layers(graph: Graph, node: Node, start: Node) -> int:
    """The largest number of weight layers on a path from `start` to a value."""
    counts = {start: 0}
    for between in graph.ancestors(node) & graph.descendants([start]):
        if between is not start:
            counts[between] = max(counts[o] for o in between.operands if o in counts) + graph.weighs(between)
    return counts[node]


def layers(graph: Graph, node: Node, start: Node) -> tuple[frozenset[str], ...]:
    """The paths of the parameters of each weight layer between `start` and a value, first to last; layers side by
    side count as one. Those before a norm do not count: it takes the size of their weights away.

        relu(h @ up) @ down             # with h as the start: ({"up"}, {"down"})
    """
    layers = {start: tuple[frozenset[str], ...]()}
    for between in graph.ancestors(node) & graph.descendants([start]):
        if between is start:
            continue
        backwards = [reversed(layers[operand]) for operand in dict.fromkeys(between.operands) if operand in layers]
        behind = [union(level) for level in itertools.zip_longest(*backwards, fillvalue=frozenset())]
        before = () if graph.normed(between) else tuple(reversed(behind))
        counts = graph.weighs(between) and between.is_last_copy
        layers[between] = (*before, graph.parameters_of(between)) if counts else before
    return layers[node]


def sums(graph: Graph) -> Iterator[tuple[Node, frozenset[str]]]:
    """Every sum of two activations, with the paths of the parameters that only one of the two depends on."""
    for node in graph.nodes:
        fed = graph.activations(node)
        alike = node.op in ADDITIONS and len(fed) == 2 and all(operand.shape == node.shape for operand in fed)
        if alike and node.is_last_copy and (paths := fed[0].paths ^ fed[1].paths):
            yield node, paths


def repeated_states(graph: Graph) -> dict[Node, frozenset[str]]:
    """{sum that adds an earlier summand of the stream to it again, such as the first state: the paths of the
    parameters that multiply this summand}

        h1 = h0 + f(h0);  h1 + scale * h0               # {h1 + scale * h0: {"scale"}}
    """
    sums = {}
    for node in _additions(graph):
        for state, total in (node.operands, node.operands[::-1]):
            values = _multiples(graph, state)
            total = _multiples(graph, total)[-1]
            if values[-1] is not total and values[-1] in _chain(graph, total, multiples=True):
                multiplied = (value for value in values[:-1] if value.op in ("mul", "div"))
                sums[node] = union(map(graph.parameters_of, multiplied))
                break
    return sums


def _multiples(graph: Graph, node: Node) -> list[Node]:
    """A value and the one that it is a multiple of, up to a shift by parameters, with all values in between."""
    values = [node]
    while node.op in ("mul", "div", "carry", *ADDITIONS, *RESHAPES):
        fed = graph.activations(node)
        if len(fed) != 1:
            break
        (node,) = fed
        values.append(node)
    return values


def _is_odd(graph: Graph, node: Node, start: Node) -> bool:
    """Whether a value changes its sign with an earlier one, as what is linear in it does, and tanh of it."""
    values = graph.changed({start: -start.value}, graph.ancestors(node))
    return bool(np.array_equal(values.get(node, node.value), -np.asarray(node.value)))
