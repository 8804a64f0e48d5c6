"""A model's forward pass as a graph of operations: its residual branches, its readout and its attentions.

Going back from such a value, sets of parameters are proposed in which it may be homogeneous of degree 1. Each is tested
by numbers: where its parameters are doubled, the value must double and nothing else may change. Doubling is exact in
floating point: the test has no tolerance.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from depthmup.specs import PyTree, flatten_shapes, parameters_only

Parts = Mapping[str, np.ndarray | None]  # {path of a parameter: a mask of its entries, None for all}
# Going back from a value, these operations are where homogeneity ends.
NONLINEAR = ("exp", "exp2", "log", "log1p", "expm1", "tanh", "logistic", "erf", "erfc", "sin", "cos", "rsqrt", "sqrt",
             "integer_pow", "square", "pow", "sign", "argmax", "eq", "ne", "lt", "le", "gt", "ge")  # fmt: skip
ADDITIONS = ("add", "add_any")
# Their results are homogeneous if all operands are that are not 0.
SUMS = (*ADDITIONS, "sub", "concatenate", "stack", "select_n", "stacked")
NORMS = ("rsqrt", "sqrt")  # their result is the divisor of a norm
SOFTMAX = ("exp", "exp2")
GATES = ("logistic", "max")  # they make weights of attention logits without a softmax, and gates elsewhere
# Products of a weight and an activation, or of two activations.
PRODUCTS = ("dot_general", "ragged_dot_general", "conv_general_dilated", "depthmup_conv")
CONTRACTIONS = ("dot_general", "reduce_sum")  # models write the product of queries and keys with one of them
CLOSED = ("while", "cond")  # operations whose bodies are not in the graph
PROPOSALS = 8  # the largest number of sets of parameters that are proposed for one value
RESHAPES = ("reshape", "transpose", "squeeze", "copy", "convert_element_type")  # they leave the numbers as they are
COPIES = (*RESHAPES, "broadcast_in_dim")  # these may repeat them
STEPS = 4  # the largest number of steps of a recurrence that are followed


class ForwardError(ValueError):
    """A factor has no place among a model's parameters; the message says which value it is about and what to edit."""


@dataclasses.dataclass(eq=False)
class Node:
    """One value of the forward pass.

    op: the operation that computes it; or "parameter", "constant", "input", and at the borders of a scan's body
      "carry", "member", "carried", "emitted" and "stacked".
    evaluate: values of the operands -> this value. path: of a parameter.
    copies: the same value at each step of a recurrence that is in the graph, itself included.
    """

    op: str
    operands: tuple[Node, ...]
    evaluate: Callable[..., Any]
    path: str = ""
    value: Any = None
    consumers: list[Node] = dataclasses.field(default_factory=list)
    summed: int = 0  # of one of CONTRACTIONS, the number of terms that it sums over
    number: int = 0  # of one of CONTRACTIONS, its number in `contractions`
    operations: frozenset[str] = frozenset()  # of one of CLOSED, the names of all operations in its bodies
    copies: tuple[Node, ...] = ()
    place: tuple[int, int] | None = None  # of an operation: its number in the program, and the index of this result
    times: int = 1  # how often a forward pass computes it: once for each step of the scans that it is in

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(np.shape(self.value))

    @property
    def is_last_copy(self) -> bool:
        return not self.copies or self.copies[-1] is self


class Branch(NamedTuple):
    """A residual addition: sum = skip + end. `end` is computed from `start`; `skip` is `start` or a projection of it.
    An end that is not computed from the stream, such as a condition, has a start beside the stream, which is also its
    skip: then the sum is that of the stream and the end."""

    sum: Node
    end: Node
    start: Node
    skip: Node


def contractions(apply: Callable[..., Any], params: PyTree, *inputs: Any) -> list[int]:
    """The number of terms of each of the forward pass's CONTRACTIONS, in the order of the program."""
    sizes = []

    def walk(jaxpr: Any) -> None:
        for equation in jaxpr.eqns:
            inner = inner_jaxpr(equation)
            if inner is not None:
                walk(inner[0])
            elif equation.primitive.name in CONTRACTIONS:
                sizes.append(_summed(equation))

    walk(jax.make_jaxpr(apply)(params, *inputs).jaxpr)
    return sizes


def values_at(
    places: Collection[tuple[int, int]], apply: Callable[..., Any], params: PyTree, *inputs: Any
) -> list[jax.Array]:
    """The values of `apply(params, *inputs)` at these `Node.place`s in the order in which they are computed, those in a
    scan at every step. It can be jitted and differentiated."""
    closed = jax.make_jaxpr(apply)(*jax.tree.map(_typed, (params, *inputs)))
    return _watched(closed.jaxpr, closed.consts, jax.tree.leaves((params, inputs)), places, 0)[1]


def _watched(
    jaxpr: Any, consts: Sequence[Any], arguments: Sequence[Any], places: Collection[tuple[int, int]], number: int
) -> tuple[list[Any], list[jax.Array]]:
    """(results of a jaxpr whose first operation has this number, the values at the places inside)"""
    values = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *arguments], strict=True))
    watched: list[jax.Array] = []

    def value_of(atom: Any) -> Any:
        return atom.val if hasattr(atom, "val") else values[atom]

    for equation in jaxpr.eqns:
        operands, inner, after = [*map(value_of, equation.invars)], inner_jaxpr(equation), number + _count(equation)
        inside = [place for place in sorted(set(places)) if number <= place[0] < after]
        if inside and equation.primitive.name == "scan":
            results, more = _watched_scan(equation, operands, places, number)
        elif inside and inner is not None:
            results, more = _watched(*inner, operands, places, number)
        else:
            results = bind(equation, operands)
            more = [results[index] for _, index in inside]
        values.update(zip(equation.outvars, results, strict=True))
        watched, number = watched + more, after
    return [value_of(atom) for atom in jaxpr.outvars], watched


def _watched_scan(
    equation: Any, operands: Sequence[Any], places: Collection[tuple[int, int]], number: int
) -> tuple[list[Any], list[jax.Array]]:
    closed, length, backwards = (equation.params[key] for key in ("jaxpr", "length", "reverse"))
    consts, carries = parts_of_scan(equation)

    def step(carry: list[Any], slices: list[Any]) -> tuple[list[Any], tuple[list[Any], list[jax.Array]]]:
        results, watched = _watched(closed.jaxpr, closed.consts, [*operands[:consts], *carry, *slices], places, number)
        return results[:carries], (results[carries:], watched)

    start, slices = operands[consts : consts + carries], operands[consts + carries :]
    carry, (stacked, watched) = jax.lax.scan(step, list(start), list(slices), length=length, reverse=backwards)
    steps = reversed(range(length)) if backwards else range(length)
    return carry + stacked, [value[i] for i in steps for value in watched]


def _count(equation: Any) -> int:
    """The number of operations that an equation stands for, with a scan's body once."""
    inner = inner_jaxpr(equation)
    return 1 if inner is None else sum(map(_count, inner[0].eqns))


def bind(equation: Any, operands: Sequence[Any]) -> list[Any]:
    """The results of an equation."""
    primitive = equation.primitive
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


def inner_jaxpr(equation: Any) -> tuple[Any, Sequence[Any]] | None:
    """(the jaxpr that an equation is a call of, or that a scan repeats, its constants); None for an operation."""
    if equation.primitive.name in CLOSED:
        return None
    inner: Any = next(
        (equation.params[key] for key in ("jaxpr", "call_jaxpr", "fun_jaxpr") if key in equation.params), None
    )
    if inner is None or len(getattr(inner, "jaxpr", inner).invars) != len(equation.invars):
        return None
    return (inner.jaxpr, inner.consts) if hasattr(inner, "consts") else (inner, ())


def _operations(equation: Any) -> frozenset[str]:
    """The names of an equation's operation and of all operations in the jaxprs that it calls."""
    names = {equation.primitive.name}
    for value in equation.params.values():
        for inner in value if isinstance(value, (tuple, list)) else (value,):
            names.update(*map(_operations, getattr(getattr(inner, "jaxpr", inner), "eqns", ())))
    return frozenset(names)


def _unsliced(outside: Sequence[Any], inside: Sequence[Any]) -> int:
    """How many of a scan's operands, or results, have the same shape in its body."""
    return sum(a.aval.ndim == b.aval.ndim for a, b in zip(outside, inside, strict=True))


def _summed(equation: Any) -> int:
    if equation.primitive.name == "reduce_sum":
        axes = equation.params["axes"]
    else:
        (axes, _), _ = equation.params["dimension_numbers"]
    return int(np.prod([equation.invars[0].aval.shape[axis] for axis in axes]))


class Graph:
    """The forward pass as a graph of values, evaluated once.

    nodes: in the order of evaluation. Only those that the logits depend on.
    number: array or shape -> the value of a parameter or an input; by default random numbers.
    open_scans: whether the body of a scan is in the graph instead of the whole scan as one operation: once for a scan
      over blocks, for the first steps of a recurrence.
    fed: the values that depend on the inputs.
    state: the arguments of `apply` before the inputs, such as batch statistics: neither parameters nor activations.
    """

    def __init__(
        self,
        apply: Callable[..., Any],
        params: PyTree,
        inputs: Sequence[Any],
        seed: int = 0,
        number: Callable[[Any], Any] | None = None,
        open_scans: bool = True,
        state: Sequence[Any] = (),
    ) -> None:
        shapes, trainable = flatten_shapes(params)[0], parameters_only(params)
        leaves = jax.tree.leaves(trainable)
        input_leaves, input_tree = jax.tree.flatten(tuple(inputs))
        state_leaves, state_tree = jax.tree.flatten(tuple(state))
        rng = np.random.default_rng(seed)
        number = number or functools.partial(_random, rng)

        def logits(numbers: Sequence[Any], arrays: Sequence[Any], values: Sequence[Any]) -> Any:
            tree = jax.tree.unflatten(jax.tree.structure(trainable), numbers)
            tree = jax.tree.map(lambda a, b: b if a is None else a, tree, params, is_leaf=lambda leaf: leaf is None)
            outputs = apply(tree, *jax.tree.unflatten(state_tree, arrays), *jax.tree.unflatten(input_tree, values))
            names.extend(
                f"outputs{jax.tree_util.keystr(path)} {np.shape(leaf)}"
                for path, leaf in jax.tree_util.tree_flatten_with_path(outputs)[0]
                if _floating(leaf)
            )
            return outputs

        names = list[str]()
        closed = jax.make_jaxpr(logits)(*jax.tree.map(_typed, (leaves, state_leaves, input_leaves)))
        self.nodes: list[Node] = []
        self.fed: set[Node] = set()
        self._rng, self._open_scans, self._contractions = rng, open_scans, 0
        self._number, self._times = 0, 1  # of the next operation; how often it is computed
        arguments = [self._leaf("parameter", number(leaf), path) for leaf, path in zip(leaves, shapes, strict=True)]
        arguments += [self._leaf("constant", value) for value in state_leaves]
        arguments += [self._leaf("input", number(leaf)) for leaf in input_leaves]
        outputs = self._inline(closed.jaxpr, [self._leaf("constant", value) for value in closed.consts], arguments)
        floating = [node for node in outputs if _floating(node.value)]
        if len(floating) != 1:
            raise ForwardError(_outputs_message(names))
        (self.output,) = floating
        alive = self.ancestors(self.output)
        self.nodes = [node for node in self.nodes if node in alive]
        self.order = {node: number for number, node in enumerate(self.nodes)}
        for node in self.nodes:
            for operand in dict.fromkeys(node.operands):
                operand.consumers.append(node)

    # Building the graph

    def _leaf(self, op: str, value: Any, path: str = "") -> Node:
        return self._add(Node(op, (), lambda: value, path))

    def _add(self, node: Node) -> Node:
        node.value = node.evaluate(*(operand.value for operand in node.operands))
        node.times = self._times
        self.nodes.append(node)
        if node.op in ("input", "carry") or any(operand in self.fed for operand in node.operands):
            self.fed.add(node)
        return node

    def _inline(self, jaxpr: Any, consts: Sequence[Node], arguments: Sequence[Node]) -> list[Node]:
        """Add the operations of a jaxpr; the nodes of its results."""
        nodes = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *arguments], strict=True))

        def node_of(atom: Any) -> Node:
            return self._leaf("constant", atom.val) if hasattr(atom, "val") else nodes[atom]

        for equation in jaxpr.eqns:
            results = self._equation(equation, [node_of(atom) for atom in equation.invars])
            nodes.update(zip(equation.outvars, results, strict=True))
        return [node_of(atom) for atom in jaxpr.outvars]

    def _equation(self, equation: Any, operands: list[Node]) -> list[Node]:
        name, parameters, inner = equation.primitive.name, equation.params, inner_jaxpr(equation)
        if name == "scan" and self._open_scans:
            return self._scan(equation, operands)
        if inner is not None and name != "scan":
            jaxpr, consts = inner
            return self._inline(jaxpr, [self._leaf("constant", value) for value in consts], operands)

        def evaluate(*values: Any) -> Any:
            return equation.primitive.bind(*values, **parameters)

        inside = _operations(equation) if name in CLOSED else frozenset()
        number, self._number = self._number, self._number + 1
        if not equation.primitive.multiple_results:
            node = self._add(Node(name, tuple(operands), evaluate, place=(number, 0)))
            if name in CONTRACTIONS:
                node.summed, node.number = _summed(equation), self._contractions
                self._contractions += 1
            return [node]
        nodes = []
        for i in range(len(equation.outvars)):
            take = lambda *values, i=i: evaluate(*values)[i]  # noqa: E731
            nodes.append(self._add(Node(name, tuple(operands), take, place=(number, i), operations=inside)))
        return nodes

    def _scan(self, equation: Any, operands: list[Node]) -> list[Node]:
        closed, length = equation.params["jaxpr"], equation.params["length"]
        consts, carries = parts_of_scan(equation)
        sequences = operands[consts + carries :]
        outside, self._times = self._times, self._times * length
        if any(node.path for operand in sequences if operand not in self.fed for node in self.ancestors(operand)):
            results = self._blocks(closed, length, operands, consts, carries)
        else:
            results = self._recurrence(closed, length, operands, consts, carries, equation.params["reverse"])
        self._times = outside
        return results

    def _body(self, closed: Any, arguments: Sequence[Node]) -> list[Node]:
        return self._inline(closed.jaxpr, [self._leaf("constant", value) for value in closed.consts], arguments)

    def _blocks(self, closed: Any, length: int, operands: list[Node], consts: int, carries: int) -> list[Node]:
        """A scan over parameters: its body once. Its carry is what was handed in plus noise, so that it is like any
        later carry."""
        body = operands[:consts]
        for operand in operands[consts : consts + carries]:
            noise = _random(self._rng, operand.value) if _floating(operand.value) else 0
            body.append(self._add(Node("carry", (operand,), lambda value, noise=noise: value + noise)))
        body += [self._add(Node("member", (operand,), lambda value: value[0])) for operand in operands[len(body) :]]
        results = self._body(closed, body)
        handed = results[:carries]

        def of_steps(op: str, result: Node) -> Node:  # it depends on all carries of earlier steps
            return self._add(Node(op, (result, *handed), lambda value, *_: value))

        emitted = [self._stacked([of_steps("emitted", result)], length) for result in results[carries:]]
        return [of_steps("carried", carry) for carry in handed] + emitted

    def _recurrence(
        self, closed: Any, length: int, operands: list[Node], consts: int, carries: int, reverse: bool
    ) -> list[Node]:
        """A scan over anything else, such as time: its first steps, as many as a parameter needs to reach each
        carry."""
        state, steps = operands[consts : consts + carries], list[list[Node]]()
        copies: list[list[Node]] = []
        contraction, number = self._contractions, self._number
        for step in range(min(length, carries + 1, STEPS)):
            start, self._contractions, self._number = len(self.nodes), contraction, number
            index = -1 - step if reverse else step
            members = [
                self._add(Node("member", (operand,), lambda value, index=index: value[index]))
                for operand in operands[consts + carries :]
            ]
            results = self._body(closed, [*operands[:consts], *state, *members])
            state = results[:carries]
            steps.append(results[carries:])
            copies.append(self.nodes[start:])
        for nodes in list(zip(*copies, strict=True)):
            all_copies = tuple(copy for node in nodes for copy in (node.copies or (node,)))
            for node in nodes:
                node.copies = all_copies
        return state + [self._stacked(results, length, reverse) for results in zip(*steps, strict=True)]

    def _stacked(self, results: Sequence[Node], length: int, reverse: bool = False) -> Node:
        """The sequence of a body's results; the last that is in the graph stands for all later ones."""

        def stack(*values: Any) -> Any:
            rows = [*values, *([values[-1]] * (length - len(values)))]
            return jnp.stack(rows[::-1] if reverse else rows)

        return self._add(Node("stacked", tuple(results), stack))

    # Walking in the graph

    def ancestors(self, node: Node, stop: Node | None = None) -> set[Node]:
        """The values that a value is computed from, itself included; those behind `stop` only if another path leads to
        them."""
        ancestors, todo = {node}, [node]
        while todo:
            for operand in todo.pop().operands:
                if operand not in ancestors and operand is not stop:
                    ancestors.add(operand)
                    todo.append(operand)
        return ancestors

    def _descendants(self, nodes: Iterable[Node]) -> set[Node]:
        descendants, todo = set[Node](), list(nodes)
        while todo:
            node = todo.pop()
            if node not in descendants:
                descendants.add(node)
                todo += node.consumers
        return descendants

    def parameters_of(self, node: Node) -> frozenset[str]:
        """The paths of the parameters that an operation applies to activations."""
        weights = [operand for operand in node.operands if operand not in self.fed]
        return frozenset(ancestor.path for operand in weights for ancestor in self.ancestors(operand) if ancestor.path)

    def parameters_of_value(self, node: Node) -> frozenset[str]:
        """The paths of the parameters that a value depends on."""
        return frozenset(ancestor.path for ancestor in self.ancestors(node) if ancestor.path)

    def parameters_between(self, node: Node, stop: Node) -> frozenset[str]:
        """The paths of the parameters that a value depends on otherwise than through `stop`."""
        return frozenset(ancestor.path for ancestor in self.ancestors(node, stop) if ancestor.path)

    # Finding the values that factors multiply

    def branches(self) -> list[Branch]:
        """Every residual addition. The skip is the value that the branch is computed from;
        the sum of it and of parallel branches, h + attention(h) + mlp(h); or a projection of it: one weight layer,
        where the branch has more of them and is not linear. Last come values that are added to the stream and computed
        from something else, such as a condition."""
        branches, others = list[Branch](), {*self.repeated_states} | self._attention_logits()
        for node in (addition for addition in self._additions() if addition not in others):
            left, right = node.operands
            ways = [(a, b) for a, b in ((left, right), (right, left)) if a in self.fed]
            pairs = [(a, start) for a, b in ways for start in self._summands(b, a)]
            if not pairs:
                if left in self.fed and right in self.fed:
                    branches += self._projected(node, branches)
                continue
            # The skip itself is preferred to a summand of it, and the shorter branch to the longer one.
            branch, start = min(pairs, key=lambda pair: (pair[1] not in (left, right), len(self.ancestors(*pair))))
            if self.parameters_between(branch, start):
                branches.append(Branch(node, branch, start, start))
        return branches + self._injections(branches)

    def _additions(self) -> Iterator[Node]:
        """Sums of two different values of one shape."""
        for node in self.nodes:
            alike = node.op in ADDITIONS and all(operand.shape == node.shape for operand in node.operands)
            if alike and node.is_last_copy and node.operands[0] is not node.operands[1]:
                yield node

    def _injections(self, branches: Sequence[Branch]) -> list[Branch]:
        """What is added to the stream between branches and is not computed from it. Its start is the last value on the
        way to it that acts elsewhere too."""
        stream = {node for branch in branches for node in (branch.sum, branch.start)}
        known = {branch.sum for branch in branches}.union(*map(self.parts_of, branches))
        injections = []
        for node in (addition for addition in self._additions() if addition not in known):
            for skip, end in (node.operands, node.operands[::-1]):
                if skip in stream and end in self.fed and end not in stream and self.parameters_of_value(end):
                    start = self._shared(end)
                    if self.parameters_between(end, start):
                        injections.append(Branch(node, end, start, start))
                        stream.add(node)
        return injections

    def around(self, branches: Sequence[Branch]) -> list[frozenset[int]]:
        """The numbers of the branches that each one is a part of, sum and start: where two streams feed each other in
        turn, the sum of the one alone lies in a branch of the other."""
        values = [self.parts_of(branch) for branch in branches]
        return [
            frozenset(
                number
                for number, (outer, parts) in enumerate(zip(branches, values, strict=True))
                if branch.sum in parts and (branch.start in parts or branch.start is outer.start)
            )
            for branch in branches
        ]

    def accumulations(self, branches: Sequence[Branch]) -> list[Branch]:
        """The terms of sums over the blocks beside the stream, such as the skip connections of WaveNet: with the stream
        the sum makes a state to which each block adds. A term starts where its block does."""
        outer = [branch for branch, around in zip(branches, self.around(branches), strict=True) if not around]
        stream = {node for branch in outer for node in (branch.sum, branch.start)}
        inside = {branch.sum for branch in branches}.union(*map(self.parts_of, branches))
        additions = set(self._additions()) - inside
        result = list[Branch]()
        for total in self.nodes:
            terms, scanned = self._terms(total, additions)
            of_blocks = []
            for end, node in terms.items():
                before = stream & self.ancestors(end)
                if end in self.fed and end not in before and before:
                    start = max(before, key=self.order.__getitem__)
                    if self.parameters_between(end, start):
                        of_blocks.append(Branch(node, end, start, start))
            starts = {branch.start for branch in of_blocks}
            if len(starts) == len(of_blocks) == len(terms) and len(starts) + scanned > 1:
                result += of_blocks
        return result

    def _terms(self, total: Node, additions: set[Node]) -> tuple[dict[Node, Node], bool]:
        """({term: the operation that adds it} of the whole sum `total`, whether a scan adds one at each step)"""
        if total.op == "reduce_sum":
            (joined,) = total.operands
            if joined.op == "stacked" and joined.operands[0].op == "emitted":
                return {joined.operands[0].operands[0]: total}, True
            if joined.op in ("stack", "concatenate") and np.size(joined.operands[0].value) == np.size(total.value):
                return dict.fromkeys(joined.operands, total), False
        if total not in additions or additions.intersection(total.consumers):
            return {}, False
        chain = sorted(self._chain(total) & additions, key=self.order.__getitem__)
        terms = {operand: node for node in chain for operand in node.operands if operand not in additions}
        carries = {term for term in terms if term.op == "carry" and len(term.consumers) == 1}
        return {term: node for term, node in terms.items() if term not in carries}, bool(carries)

    def _shared(self, node: Node) -> Node:
        """The last value that `node` is computed from and that acts on something else as well; else an input."""
        before = self.ancestors(node)
        around = before | self._descendants([node])
        values = [value for value in before & self.fed if value is not node]
        shared = [value for value in values if not around.issuperset(value.consumers)]
        return max(shared or [value for value in values if not value.operands], key=self.order.__getitem__)

    def biases(self, branch: Branch) -> Iterator[Node]:
        """The biases that are added right behind a residual sum: in h + f(h) + bias the bias is a part of the
        branch."""
        node = branch.sum
        while len(node.consumers) == 1 and node.consumers[0].op in ADDITIONS:
            (consumer,) = node.consumers
            weights = [operand for operand in consumer.operands if operand not in self.fed]
            if len(weights) != 1:
                return
            yield weights[0]
            node = consumer

    def number_behind(self, node: Node) -> float:
        """The number that a value is multiplied by before anything else is done with it."""
        if len(node.consumers) != 1 or node.consumers[0].op not in ("mul", "div"):
            return 1.0
        (consumer,) = node.consumers
        multiplied, factor = consumer.operands
        if multiplied is not node or factor is node or self.parameters_of(consumer) or np.ptp(factor.value):
            return 1.0
        number = float(np.ravel(factor.value)[0])
        return number if consumer.op == "mul" else 1 / number

    def between(self, branches: Sequence[Branch]) -> frozenset[str]:
        """The paths of the parameters that act on the stream behind a residual sum, such as norms after the sum, or on
        what is added to it there."""
        ends = {branch.end for branch in branches}
        starts = [*(branch.start for branch in branches), *(node for node in self.nodes if node.op == "carried")]
        stream, todo = set[Node](), [self.output, *starts]
        while todo:
            node = todo.pop()
            if node not in stream and node not in ends:
                stream.add(node)
                todo += node.operands
        states = [*(branch.sum for branch in branches), *(node for node in self.nodes if node.op == "carry")]
        behind = stream & self._descendants(states)
        behind |= {_as_stored(operand) for node in behind if node.op in ADDITIONS for operand in node.operands} & stream
        biases = {node for branch in branches for node in self.biases(branch)}
        return frozenset[str]().union(*(self.parameters_of(node) for node in behind)) - frozenset(
            path for node in biases for path in self.parameters_of_value(node)
        )

    def parts_of(self, branch: Branch) -> set[Node]:
        """The values of a branch: what lies between its start and its end."""
        return self.ancestors(branch.end, branch.start) & self._descendants([branch.start])

    def _summands(self, total: Node, value: Node) -> list[Node]:
        """[total] if `value` is computed from `total`, or else the outermost summands of `total` that `value` is
        computed from."""
        summands, todo, before = [], [total], self.ancestors(value)
        while todo:
            node = todo.pop()
            if node in before:
                summands.append(node)
            elif node.op in ADDITIONS:
                todo += [operand for operand in node.operands if operand in self.fed]
        return summands

    def _projected(self, node: Node, sums: Sequence[Branch]) -> list[Branch]:
        """A residual addition whose skip is a projection; none if the sum is no such addition. sums: those before it.

        Where one of the two is the stream, or is computed from a stream that passes the other's projected value, that
        value is a condition beside the stream."""
        left, right = node.operands
        common = self.ancestors(left) & self.ancestors(right) & self.fed
        if not common:
            return []
        fork = max(common, key=self.order.__getitem__)
        layers = {operand: self._layers(operand, fork) for operand in (left, right)}
        skip, branch = sorted((left, right), key=layers.__getitem__)
        if not layers[skip] == 1 < layers[branch] or self._is_linear(branch, fork):
            return []
        behind, chain = self._descendants([fork]), self._chain(branch)
        between = self.ancestors(branch, fork) & behind
        beside = any(one.sum in chain or (one.sum in between and one.start not in behind) for one in sums)
        return [] if beside else [Branch(node, branch, fork, skip)]

    def _chain(self, node: Node) -> set[Node]:
        """A value, its summands, and theirs."""
        chain, todo = {node}, [node]
        while todo:
            node = todo.pop()
            if node.op in ADDITIONS:
                todo += [operand for operand in node.operands if operand in self.fed and operand not in chain]
                chain.update(todo)
        return chain

    def _all_summands(self, node: Node) -> set[Node]:
        """The summands of a value and theirs, up to numbers that multiply them."""
        multiples = self._multiples(node)
        summands, todo = set[Node](), [multiples[-1]]
        while todo:
            node = todo.pop()
            if node.op in ADDITIONS:
                more = [value for operand in node.operands if operand in self.fed for value in self._multiples(operand)]
                todo += [value for value in more if value not in summands]
                summands.update(more)
        return summands

    def _layers(self, node: Node, start: Node) -> int:
        """The largest number of weight layers on a path from `start` to a value."""
        counts = {start: 0}
        for between in sorted(self.ancestors(node) & self._descendants([start]), key=self.order.__getitem__):
            if between is not start:
                counts[between] = max(counts[o] for o in between.operands if o in counts) + self.weighs(between)
        return counts[node]

    def layers(self, node: Node, start: Node) -> tuple[frozenset[str], ...]:
        """The paths of the parameters of each weight layer between `start` and a value, first to last; layers side by
        side count as one. Those before a norm do not count: it takes the size of their weights away."""
        layers = {start: tuple[frozenset[str], ...]()}
        for between in sorted(self.ancestors(node) & self._descendants([start]), key=self.order.__getitem__):
            if between is start:
                continue
            backwards = [reversed(layers[operand]) for operand in dict.fromkeys(between.operands) if operand in layers]
            behind = [frozenset().union(*level) for level in itertools.zip_longest(*backwards, fillvalue=frozenset())]
            before = () if self.normed(between) else tuple(reversed(behind))
            counts = self.weighs(between) and between.is_last_copy
            layers[between] = (*before, self.parameters_of(between)) if counts else before
        return layers[node]

    def normed(self, node: Node) -> bool:
        """Whether an operation divides activations by their size, as in a norm."""
        fed = [operand for operand in node.operands if operand in self.fed]
        return node.op in ("mul", "div") and 0 < sum(operand in self._sizes for operand in fed) < len(fed)

    @functools.cached_property
    def _sizes(self) -> set[Node]:
        """Roots of activations, and the values that are computed from roots alone."""
        sizes = set[Node]()
        for node in self.nodes:
            fed = [operand for operand in node.operands if operand in self.fed]
            if fed and (node.op in NORMS or (node.op not in PRODUCTS and all(operand in sizes for operand in fed))):
                sizes.add(node)
        return sizes

    def sums(self) -> Iterator[tuple[Node, frozenset[str]]]:
        """Every sum of two activations, with the paths of the parameters that only one of the two depends on."""
        for node in self.nodes:
            fed = [operand for operand in node.operands if operand in self.fed]
            if node.op in ADDITIONS and len(fed) == 2 and all(operand.shape == node.shape for operand in fed):
                left, right = map(self.parameters_of_value, fed)
                if node.is_last_copy and left != right:
                    yield node, left ^ right

    @functools.cached_property
    def repeated_states(self) -> dict[Node, frozenset[str]]:
        """{sum that adds an earlier summand of the stream to it again, such as the first state: the paths of the
        parameters that multiply this summand}"""
        sums = {}
        for node in self._additions():
            for state, total in (node.operands, node.operands[::-1]):
                values = self._multiples(state)
                if values[-1] in self._all_summands(total):
                    multiplied = (value for value in values[:-1] if value.op in ("mul", "div"))
                    sums[node] = frozenset[str]().union(*map(self.parameters_of, multiplied))
                    break
        return sums

    def _multiples(self, node: Node) -> list[Node]:
        """A value and the one that it is a multiple of, up to a shift by parameters, with all values in between."""
        values = [node]
        while node.op in ("mul", "div", "carry", *ADDITIONS, *RESHAPES):
            fed = [operand for operand in node.operands if operand in self.fed]
            if len(fed) != 1:
                break
            (node,) = fed
            values.append(node)
        return values

    def contracted(self) -> dict[str, int]:
        """{path of a parameter: the axis that a product sums over, and that alone}, as in a matrix with one output: a
        gate or a readout h @ v or (h * v).sum(-1), of several heads or not. Scales and biases act on each entry."""
        axes = {}
        for node in self.nodes:
            factors = self._factors(node)
            for operand, other in (factors, factors[::-1]) if factors else ():
                parameter = _as_stored(operand)
                alike = [axis for axis, size in enumerate(parameter.shape) if size == node.summed]
                outputs = np.size(node.value) * node.summed
                one_output = parameter.path and len(alike) == 1 and outputs == np.size(other.value)
                if one_output and (node.op == "dot_general" or self._sums_over(node, parameter, alike[0])):
                    axes[parameter.path] = alike[0]
        return axes

    def _sums_over(self, total: Node, parameter: Node, axis: int) -> bool:
        """Whether all entries along an axis of a parameter act on the same numbers of a sum, not each on its own."""
        shape = [-1 if a == axis else 1 for a in range(len(parameter.shape))]
        moved = (parameter.value + row.reshape(shape) for row in np.eye(parameter.shape[axis])[:2])
        values = (self._changed({parameter: value}, self.ancestors(total)) for value in moved)
        one, other = (np.not_equal(changed.get(total, total.value), total.value) for changed in values)
        return bool(np.array_equal(one, other))

    def weighs(self, node: Node) -> bool:
        """Whether an operation applies weights to activations."""
        return node.op in PRODUCTS and any(operand not in self.fed for operand in node.operands)

    def _is_linear(self, node: Node, start: Node) -> bool:
        values = self._changed({start: -start.value}, self.ancestors(node))
        return bool(np.array_equal(values.get(node, node.value), -np.asarray(node.value)))

    def attentions(self) -> Iterator[tuple[Node, Node, Node]]:
        """(queries, keys, product) of every product of two activations that goes into a softmax, or into a sigmoid
        or ReLU that weighs other activations; through a tanh or a mask, but not through weights, as gates do."""
        products = set[Node]()
        for node in self.nodes:
            if node.op in SOFTMAX or (node.op in GATES and self._products_next_to(node, "consumers")):
                for product in self._products_next_to(node, "operands"):
                    if product not in products and product.is_last_copy:
                        products.add(product)
                        query, key = self._multiplied(product)
                        yield query, key, product

    def _attention_logits(self) -> set[Node]:
        """The values between a product of two activations and its softmax. A bias that all attentions add to them, and
        that their inputs depend on, is no residual stream."""
        logits = set[Node]()
        for node in self.nodes:
            if node.op in SOFTMAX and (products := self._products_next_to(node, "operands")):
                logits |= self.ancestors(node) & self._descendants(products)
        return logits

    def _products_next_to(self, node: Node, side: str) -> list[Node]:
        """The products of two activations that a value comes from ("operands") or goes into ("consumers") with no other
        product in between. A sum over the positions of one, which normalizes it, is no product of its own."""
        products, todo, passed = [], [node], {node}
        while todo:
            for neighbour in getattr(todo.pop(), side):
                if neighbour in passed or neighbour not in self.fed:
                    continue
                passed.add(neighbour)
                if self._multiplied(neighbour):
                    inner = self._products_next_to(neighbour, "operands") if neighbour.op == "reduce_sum" else []
                    products += inner or [neighbour]
                elif neighbour.op not in PRODUCTS:
                    todo.append(neighbour)
        return products

    def _multiplied(self, node: Node) -> tuple[Node, ...]:
        """The two activations whose product is summed over by one of CONTRACTIONS; nothing for other operations."""
        factors = self._factors(node)
        return factors if all(factor in self.fed for factor in factors) else ()

    def _factors(self, node: Node) -> tuple[Node, ...]:
        """The two values whose product is summed over by one of CONTRACTIONS; nothing for other operations."""
        if node.op == "reduce_sum":  # (q * k).sum(-1), but not the x * x of a norm
            (node,) = node.operands
            while node.op == "convert_element_type":
                (node,) = node.operands
            contracts = node.op == "mul" and node.operands[0] is not node.operands[1]
        else:
            contracts = node.op == "dot_general"
        return node.operands if contracts else ()

    def readouts(self) -> list[tuple[Node, Parts | None]]:
        """(logits of a head without the bias that is added last, the parameters in which they are homogeneous) of each
        head: the output factor multiplies neither biases nor what becomes of logits, as in a soft cap. A cosine needs
        no factor, and has no parameters."""
        heads = self._heads(self.output)
        places = [(head, {}) if self.cosine(head) else self._before_caps(head) for head in heads]
        if len(heads) > 1 and any(parts is None for _, parts in places):
            return [(self.output, self.parts(self.output))]
        return places

    def cosine(self, node: Node) -> tuple[Node, ...]:
        """The two factors of a value that is a product of vectors of norm 1, up to numbers that multiply it; nothing
        for other values."""
        while node.op in ("mul", "div", "add", "sub", *COPIES):
            fed = [operand for operand in node.operands if operand in self.fed]
            if len(fed) != 1:
                return ()
            (node,) = fed
        factors = node.operands if node.op == "dot_general" else self._multiplied(node)
        return tuple(map(self._unscaled, factors)) if len(factors) == 2 and self.is_cosine(*factors) else ()

    def is_cosine(self, left: Node, right: Node) -> bool:
        """Whether two factors of a product are vectors of norm 1, up to what multiplies all entries of each."""
        return _has_unit_norm(self._unscaled(left)) and _has_unit_norm(self._unscaled(right))

    def _unscaled(self, node: Node) -> Node:
        """Vectors without the numbers that multiply them: those of the program, and parameters of each vector."""
        while node.op in ("mul", "div", "convert_element_type", "transpose"):
            vectors = []
            for operand in node.operands:
                axis = -1 if node in self.fed and operand not in self.fed else None
                if np.ptp(np.atleast_1d(operand.value), axis).any():
                    vectors.append(operand)
            if len(vectors) != 1:
                break
            (node,) = vectors
        return node

    def _heads(self, node: Node) -> list[Node]:
        operands = [operand for operand in node.operands if operand in self.fed]
        if node.op == "concatenate" and len(operands) > 1:
            return [head for operand in operands for head in self._heads(operand)]
        if len(operands) == 1 and node.op in ("add", "convert_element_type", "reshape", "copy", "broadcast_in_dim",
                                              "squeeze", "concatenate", "transpose"):  # fmt: skip
            return self._heads(operands[0])
        return [node]

    def _before_caps(self, node: Node) -> tuple[Node, Parts | None]:
        parts = self.parts(node)
        while parts is None and not self.weighs(node):
            operands = {operand for operand in node.operands if operand in self.fed}
            if len(operands) != 1:
                break
            (node,) = operands
            parts = self.parts(node)
        return node, parts

    def weights(self) -> frozenset[str]:
        """The paths of the parameters that products alone apply to activations: matrices and kernels, but no norms, no
        biases and no embeddings, whose rows are looked up."""
        products = (self.parameters_of(node) for node in self.nodes if self.weighs(node))
        tables = (self.parameters_of(node) for node in self.nodes if node.op == "gather" and node in self.fed)
        return frozenset[str]().union(*products) - frozenset[str]().union(*tables)

    # Parameters in which a value is homogeneous

    def parts(self, node: Node, stop: Node | None = None) -> Parts | None:
        """Parameters whose doubling doubles a value and changes nothing else, None if there are none.

        The nearest parameters are tried first: all of their entries, then those that the value depends on, such as
        the queries' in a kernel that makes queries, keys and values.
        """
        for paths in self._proposals(node, stop):
            leaves: Parts = dict.fromkeys(sorted(paths))
            if self._doubles_alone(node, leaves):
                return leaves
            parts = self._entries(node, sorted(paths), stop)
            if any(mask is not None for mask in parts.values()) and self._doubles_alone(node, parts):
                return parts
        return None

    def _proposals(self, node: Node, stop: Node | None) -> list[frozenset[str]]:
        """Sets of parameters in which a value may be homogeneous, the nearest first: PROPOSALS of them."""
        proposals: dict[Node, dict[frozenset[str], int]] = {}  # {set: number of operations on the way to it}
        for value in sorted(self.ancestors(node, stop), key=self.order.__getitem__):
            if value.op in NONLINEAR:
                costs: dict[frozenset[str], int] = {}
            elif value.op == "parameter":
                costs = {frozenset([value.path]): 0}
            elif value.op in SUMS:  # every operand that is not 0 must double
                operands = value.operands[1:] if value.op == "select_n" else value.operands
                costs = {frozenset(): 0}
                for operand in (o for o in dict.fromkeys(operands) if not _zero(o)):
                    pairs = itertools.product(costs.items(), proposals.get(operand, {}).items())
                    costs = _nearest((paths | more, a + b) for (paths, a), (more, b) in pairs)
            else:  # one operand must double
                operands = value.operands[:1] if value.op in ("carried", "emitted", "div") else value.operands
                costs = _nearest(pair for operand in operands for pair in proposals.get(operand, {}).items())
            proposals[value] = {paths: cost + 1 for paths, cost in costs.items() if paths}
        return list(proposals[node])

    def _doubles_alone(self, node: Node, parts: Parts) -> bool:
        """Whether a value doubles with these parameters, and nothing else changes that does not come from it."""
        copies = node.copies or (node,)
        values = self._changed(self._doubled(parts), set().union(*map(self.ancestors, copies)), cut=copies)
        if values is None or node not in values:
            return False
        all_double = all(np.array_equal(values.get(copy, copy.value), 2 * np.asarray(copy.value)) for copy in copies)
        return all_double and bool(np.any(node.value))

    def doubles(self, node: Node, parts: Parts) -> bool:
        """Whether a value doubles with these parameters, whatever else changes."""
        values = self._changed(self._doubled(parts), self.ancestors(node))
        return bool(np.array_equal(values.get(node, node.value), 2 * np.asarray(node.value)))

    def _doubled(self, parts: Parts) -> dict[Node, Any]:
        doubled = {}
        for leaf in (n for n in self.nodes if n.path in parts):
            mask = parts[leaf.path]
            doubled[leaf] = 2 * leaf.value if mask is None else jnp.where(mask, 2 * leaf.value, leaf.value)
        return doubled

    def _changed(self, changes: Mapping[Node, Any], allowed: set[Node], cut: Sequence[Node] = ()) -> Any:
        """{value: its new number} of all values that change with these. The values behind `cut` are computed from its
        old number. None as soon as a value changes that is not in `allowed`."""
        values = dict(changes)
        todo = self._descendants(changes) - changes.keys()
        for node in sorted(todo, key=self.order.__getitem__):
            if not any(operand in values and operand not in cut for operand in node.operands):
                continue
            if not cut and node not in allowed:
                continue
            new = node.evaluate(*(o.value if o in cut else values.get(o, o.value) for o in node.operands))
            if np.array_equal(new, node.value, equal_nan=True):
                continue
            if node not in allowed:
                return None
            values[node] = new
        return values

    def _entries(self, node: Node, paths: Sequence[str], stop: Node | None) -> Parts:
        """The entries of parameters that a value depends on otherwise than through `stop`; None where it depends on
        all. The body of a scan over blocks is in the graph once: its weights stand for those of all blocks."""
        leaves = [n for n in self.nodes if n.path in paths]
        between = sorted(self._descendants(leaves) & self.ancestors(node, stop), key=self.order.__getitem__)

        def value(numbers: Sequence[Any]) -> Any:
            values = dict(zip(leaves, numbers, strict=True))
            for inner in between:
                if inner not in values:
                    operands = [values.get(operand, operand.value) for operand in inner.operands]
                    weights = inner.op == "member" and inner not in self.fed
                    values[inner] = operands[0].sum(0) if weights else inner.evaluate(*operands)
            return values[node]

        _, pull = jax.vjp(value, [leaf.value for leaf in leaves])
        shape = jnp.shape(node.value)
        weights = np.random.default_rng(0).standard_normal(shape).astype(jnp.result_type(node.value))
        masks = {}
        for leaf, gradient in zip(leaves, pull(jnp.asarray(weights))[0], strict=True):
            mask = np.asarray(gradient) != 0
            masks[leaf.path] = None if mask.all() else mask
        return masks


def _typed(leaf: Any) -> jax.ShapeDtypeStruct:
    """Shape and dtype of an array as JAX takes it, of a strong type: a weak one adds conversions to the program."""
    return jax.ShapeDtypeStruct(leaf.shape, jnp.result_type(leaf))


def _random(rng: np.random.Generator, like: Any) -> Any:
    """Normal numbers of an array's shape and dtype; integers and keys stay, and shapes of integers become 0 and 1.

    Those of a matrix are divided by a power of 2 near sqrt(fan_in), or deep networks without norms would overflow.
    """
    dtype = like.dtype
    if jnp.issubdtype(dtype, jnp.floating):
        scale = 2.0 ** -round(math.log2(max(like.shape)) / 2) if len(like.shape) > 1 and all(like.shape) else 1.0
        return jnp.asarray(scale * rng.standard_normal(like.shape), dtype)
    if isinstance(like, jax.ShapeDtypeStruct):
        return jnp.asarray(np.arange(np.prod(like.shape, dtype=int)).reshape(like.shape) % 2, dtype)
    return like


def _outputs_message(names: Sequence[str]) -> str:
    """The message for a model that does not return one array."""
    if not names:
        return "the model must return an array of logits, it returns no array of real numbers: pass setup an output="
    arrays = [name.partition(" ")[0] for name in names]
    return (
        f"the model must return one array of logits, it returns {len(names)}: {', '.join(names)}. Pass setup an "
        f"output= that chooses one, such as output=lambda outputs: {arrays[0]}; for several heads all of them, "
        f"output=lambda outputs: jnp.concatenate([{', '.join(arrays[:3])}], axis=-1). absorb needs an apply that "
        "returns the logits alone"
    )


def _nearest(pairs: Iterable[tuple[frozenset[str], int]]) -> dict[frozenset[str], int]:
    """The PROPOSALS sets with the smallest numbers, in their order."""
    best: dict[frozenset[str], int] = {}
    for paths, cost in sorted(pairs, key=lambda pair: pair[1]):
        best.setdefault(paths, cost)
    return dict(itertools.islice(best.items(), PROPOSALS))


def _as_stored(node: Node) -> Node:
    """The value before conversions and changes of shape."""
    while node.op in COPIES:
        (node,) = node.operands
    return node


def _has_unit_norm(node: Node) -> bool:
    norms = (np.linalg.norm(np.asarray(node.value), axis=a) for a, size in enumerate(node.shape) if size > 1)
    return any(np.allclose(norm, 1, rtol=1e-3) for norm in norms)


def _floating(value: Any) -> bool:
    return bool(jnp.issubdtype(jnp.result_type(value), jnp.floating))


def _zero(node: Node) -> bool:
    return not np.any(node.value)
