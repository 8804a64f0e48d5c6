"""A model's forward pass as a graph of values."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from depthmup.reading.graph.evaluate import as_numpy, evaluated
from depthmup.reading.graph.jaxpr import (
    CLOSED,
    CONTRACTIONS,
    PRODUCTS,
    Value,
    inner_jaxpr,
    interpreted,
    is_between_devices,
    operands_of_scan,
    operations,
    summed,
    takes_members,
    typed,
)
from depthmup.rules.specs import PyTree, flatten_shapes, parameters_only

ADDITIONS = ("add", "add_any")
NORMS = ("rsqrt", "sqrt")  # their result is the divisor of a norm
RESHAPES = ("reshape", "transpose", "squeeze", "copy", "convert_element_type")  # they leave the numbers as they are
COPIES = (*RESHAPES, "broadcast_in_dim")  # these may repeat them
STEPS = 4  # the largest number of steps of a recurrence that are followed


def union(sets: Iterable[AbstractSet[Value]]) -> frozenset[Value]:
    """What is in any of these sets."""
    return frozenset[Value]().union(*sets)


class ForwardError(ValueError):
    """A factor has no place among a model's parameters; the message says which value it is about and what to edit."""


@dataclasses.dataclass(eq=False)
class Node:
    """One value of the forward pass.

        relu(x @ w)     # Node("max", (Node("dot_general", (Node("input"), Node("parameter", path="w"))), ...))

    Of every node
      op: the operation that computes it; or "parameter", "constant", "input", and at the borders of a scan's body
        "carry", "member", "carried", "emitted" and "stacked".
      operands, evaluate: what it is computed from; values of the operands -> this value.
      value: of the test, in which parameters and inputs are random. consumers: the nodes of which it is an operand.
      paths: of all parameters that it depends on. order: its number among the values of the graph.
      before: the mask of `Graph.ancestors`.
      copies: the same value at each step of a recurrence that is in the graph, itself included.
      handed_to: of what a scan's body hands on, the carries that it is in the next step.
    Of some kinds alone: path of a parameter; summed, number, heads, axes of a product; operations of a closed one.
    """

    op: str
    operands: tuple[Node, ...]
    evaluate: Callable[..., Any]
    path: str = ""
    paths: frozenset[str] = frozenset()
    order: int = 0
    before: int = 0
    value: Any = None
    consumers: list[Node] = dataclasses.field(default_factory=list)
    summed: int = 0  # of one of CONTRACTIONS, the number of terms that it sums over
    number: int = 0  # of one of CONTRACTIONS, its number in `contractions`
    heads: int = 0  # of a dot_general, the number of axes that it does not sum over and both operands have
    axes: tuple[tuple[int, ...], ...] = ()  # of a dot_general, the axes of each operand that it sums over
    operations: frozenset[str] = frozenset()  # of one of CLOSED, the names of all operations in its bodies
    copies: tuple[Node, ...] = ()
    handed_to: tuple[Node, ...] = ()
    place: tuple[int, int] | None = None  # of an operation: its number in the program, and the index of this result
    times: int = 1  # how often a forward pass computes it: once for each step of the scans that it is in

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(np.shape(self.value))

    @property
    def is_last_copy(self) -> bool:
        return not self.copies or self.copies[-1] is self


@dataclasses.dataclass(frozen=True, eq=False)
class Nodes(AbstractSet[Node]):
    """A set of values of one graph, in their order. values: all of the graph. mask: its bits say which are in it."""

    values: Sequence[Node]
    mask: int

    def __contains__(self, node: Any) -> bool:
        return bool(self.mask >> node.order & 1)

    def __iter__(self) -> Iterator[Node]:
        return itertools.compress(self.values, map(int, reversed(f"{self.mask:b}")))

    def __len__(self) -> int:
        return self.mask.bit_count()

    def __and__(self, other: Iterable[Any]) -> Nodes:
        return Nodes(self.values, self.mask & _mask(other))

    def __or__(self, other: Iterable[Any]) -> Nodes:
        return Nodes(self.values, self.mask | _mask(other))

    def __sub__(self, other: Iterable[Any]) -> Nodes:
        return Nodes(self.values, self.mask & ~_mask(other))

    __rand__, __ror__ = __and__, __or__


def _mask(nodes: Iterable[Node]) -> int:
    return nodes.mask if isinstance(nodes, Nodes) else _bits_of(1 << node.order for node in nodes)


def _bits_of(masks: Iterable[int]) -> int:
    return functools.reduce(operator.or_, masks, 0)


class Program(NamedTuple):
    """A traced forward pass. closed: its jaxpr, of parameters, state and inputs in this order. outputs: what it returns
    of real numbers, in words. inputs: the number of arrays among the inputs."""

    closed: Any
    outputs: Sequence[str]
    inputs: int


def traced_program(
    apply: Callable[..., Any], params: PyTree, inputs: Sequence[Any], state: Sequence[Any] = ()
) -> Program:
    """The program of `apply(params, *state, *inputs)`. Of all arrays shapes will do."""
    trainable = parameters_only(params)
    leaves, structure = jax.tree.flatten(trainable)
    input_leaves, input_tree = jax.tree.flatten(tuple(inputs))
    state_leaves, state_tree = jax.tree.flatten(tuple(state))
    names = list[str]()

    def logits(numbers: Sequence[Any], arrays: Sequence[Any], values: Sequence[Any]) -> Any:
        tree = jax.tree.unflatten(structure, numbers)
        tree = jax.tree.map(lambda a, b: b if a is None else a, tree, params, is_leaf=lambda leaf: leaf is None)
        outputs = apply(tree, *jax.tree.unflatten(state_tree, arrays), *jax.tree.unflatten(input_tree, values))
        names.extend(
            f"outputs{jax.tree_util.keystr(path)} {np.shape(leaf)}"
            for path, leaf in jax.tree_util.tree_flatten_with_path(outputs)[0]
            if _floating(leaf)
        )
        return outputs

    closed = jax.make_jaxpr(logits)(*jax.tree.map(typed, (leaves, state_leaves, input_leaves)))
    return Program(closed, names, len(input_leaves))


class Graph:
    """The forward pass as a graph of values, evaluated once.

    nodes: in the order of evaluation. Only those that the logits depend on.
    number: array or shape -> the value of a parameter or an input; by default random numbers.
    open_scans: whether the body of a scan is in the graph instead of the whole scan as one operation: once for a scan
      over blocks, for the first steps of a recurrence.
    fed: the values that depend on the inputs.
    offset: the paths of parameters that act through 1 + parameter alone, as the scale of a norm may: these sums are in
      the graph in their place.
    state: the arguments of `apply` before the inputs, such as batch statistics: neither parameters nor activations.
    positive: whether the random inputs are positive and below 1, such as the scale of noise, of which a logarithm is
      taken.
    size: of the random parameters, by which they are multiplied.
    program: the forward pass if it was traced already.
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
        positive: bool = False,
        size: float = 1.0,
        program: Program | None = None,
    ) -> None:
        shapes, leaves = flatten_shapes(params)[0], jax.tree.leaves(parameters_only(params))
        input_leaves, state_leaves = jax.tree.leaves(tuple(inputs)), jax.tree.leaves(tuple(state))
        rng = np.random.default_rng(seed)
        number = number or functools.partial(_random, rng)

        closed, names, _ = program or traced_program(apply, params, inputs, state)
        self.nodes: list[Node] = []
        self._values = self.nodes
        self.proposals: dict[Node, dict[frozenset[str], int]] = {}  # of `homogeneous_in` without a stop
        self.fed: AbstractSet[Node] = Nodes(self._values, 0)
        self._members: set[Node] = set()  # that a scan's body takes from stacks by their number
        self._rng, self._open_scans, self._contractions = rng, open_scans, 0
        self._number, self._times = 0, 1  # of the next operation; how often it is computed
        numbers = [number(leaf) for leaf in leaves]
        if size != 1:
            numbers = [np.asarray(size * leaf, leaf.dtype) for leaf in numbers]
        arguments = [self._leaf("parameter", leaf, path) for leaf, path in zip(numbers, shapes, strict=True)]
        arguments += [self._leaf("constant", value) for value in state_leaves]
        values = [number(leaf) for leaf in input_leaves]
        if positive:
            values = [np.tanh(np.abs(value)) if _floating(value) else value for value in values]
        arguments += [self._leaf("input", value) for value in values]
        outputs = self._inline(closed.jaxpr, closed.consts, arguments)
        floating = [node for node in outputs if _floating(node.value)]
        if len(floating) != 1:
            raise ForwardError(_outputs_message(names))
        (self.output,) = floating
        self._link()
        self.offset = self._offsets()
        self._link()
        self._behind: dict[Node, int] = {}
        for node in reversed(self.nodes):
            self._behind[node] = _bits_of((1 << node.order, *(self._behind[consumer] for consumer in node.consumers)))
        self.fed |= self.descendants(self._learned_states())

    # Building the graph

    def _link(self) -> None:
        """Keep the values that the logits depend on, and tell each of them its consumers."""
        alive = {self.output}
        for node in reversed(self.nodes):
            alive.update(node.operands if node in alive else ())
        self.nodes = [node for node in self.nodes if node in alive]
        for node in self.nodes:
            node.consumers = []
            for operand in dict.fromkeys(node.operands):
                operand.consumers.append(node)

    def _offsets(self) -> frozenset[str]:
        """Put the sums 1 + parameter in the place of parameters that act through these alone; their paths."""
        paths = set[str]()
        for leaf in [node for node in self.nodes if node.op == "parameter"]:
            for total in _sums_with_one(leaf):
                total.op, total.path, total.operands = "parameter", leaf.path, ()
                paths.add(leaf.path)
        return frozenset(paths)

    def _leaf(self, op: str, value: Any, path: str = "") -> Node:
        value = as_numpy(value)
        return self._add(Node(op, (), lambda: value, path))

    def _add(self, node: Node) -> Node:
        node.value = node.evaluate(*(operand.value for operand in node.operands))
        node.times, node.order = self._times, len(self.nodes)
        node.before = _bits_of((1 << node.order, *(operand.before for operand in node.operands)))
        node.paths = frozenset([node.path] if node.path else ()).union(*(operand.paths for operand in node.operands))
        self.nodes.append(node)
        if node.op in ("input", "carry") or any(operand in self.fed for operand in node.operands):
            self.fed |= {node}
        return node

    def _inline(self, jaxpr: Any, consts: Sequence[Any], arguments: Sequence[Node]) -> list[Node]:
        """Add the operations of a jaxpr; the nodes of its results."""
        return interpreted(jaxpr, consts, arguments, functools.partial(self._leaf, "constant"), self._equation)

    def _equation(self, equation: Any, operands: list[Node]) -> list[Node]:
        name, inner = equation.primitive.name, inner_jaxpr(equation)
        if name == "scan" and self._open_scans:
            return self._scan(equation, operands)
        if is_between_devices(equation):
            return operands
        if inner is not None and name != "scan":
            return self._inline(*inner, operands)

        inside = operations(equation) if name in CLOSED else frozenset()
        number, self._number = self._number, self._number + 1
        if operands and operands[0] in self._members and name == "dynamic_slice":
            return [self._add(Node("reshape", (operands[0],), lambda value: value[None]))]
        if name == "scatter-add" and operands[0] in self.fed:  # x.at[i].add(y) is the sum of x and y at these places
            zeros = self._leaf("constant", np.zeros_like(operands[0].value))
            spread = self._add(Node(name, (zeros, *operands[1:]), lambda *values: evaluated(equation, values)[0]))
            return [self._add(Node("add", (operands[0], spread), operator.add, place=(number, 0)))]
        nodes = []
        for i in range(len(equation.outvars)):
            take = lambda *values, i=i: evaluated(equation, values)[i]  # noqa: E731
            nodes.append(self._add(Node(name, tuple(operands), take, place=(number, i), operations=inside)))
        if name in CONTRACTIONS:
            nodes[0].summed, nodes[0].number = summed(equation), self._contractions
            self._contractions += 1
        if name == "dot_general":
            nodes[0].axes, batch = equation.params["dimension_numbers"]
            nodes[0].heads = len(batch[0])
            if not nodes[0].axes[0]:  # it sums over nothing: an einsum such as "ld,dn->ldn"
                nodes[0].op = "mul"
        return nodes

    def _scan(self, equation: Any, operands: list[Node]) -> list[Node]:
        """A scan is one over blocks if its body takes members of stacks of parameters: of its sequences, or of its
        constants by their number."""
        body, length = equation.params["jaxpr"].jaxpr, equation.params["length"]
        fixed, carry, sequences = operands_of_scan(equation, operands)
        outside, self._times = self._times, self._times * length

        def learned(operand: Node) -> bool:
            return operand not in self.fed and bool(operand.paths)

        variables = [*zip(fixed, body.invars, strict=False)]
        stacks = [
            stack
            for stack in dict.fromkeys(fixed)
            if stack.shape[:1] == (length,)
            and learned(stack)
            and all(takes_members(body, var) for operand, var in variables if operand is stack)
        ]
        if any(len(stack.shape) > 2 for stack in stacks) or any(map(learned, sequences)):
            results = self._blocks(equation, fixed, carry, sequences, stacks)
        else:
            results = self._recurrence(equation, fixed, carry, sequences)
        self._times = outside
        return results

    def _blocks(
        self, equation: Any, fixed: list[Node], carry: list[Node], sequences: list[Node], stacks: Sequence[Node]
    ) -> list[Node]:
        """A scan over parameters: its body once. Its carry is what was handed in plus noise, so that it is like any
        later carry. stacks: the operands from which the body takes members by their number."""

        def member(operand: Node) -> Node:
            return self._add(Node("member", (operand,), lambda value: value[0]))

        def later(operand: Node) -> Node:
            if not _floating(operand.value):  # a number or a key
                return self._add(Node("carry", (operand,), lambda value: value))
            noise = _random(self._rng, operand.value)
            return self._add(Node("carry", (operand,), lambda value: value + noise))

        closed, members = equation.params["jaxpr"], {stack: member(stack) for stack in stacks}
        self._members.update(members.values())
        states = list(map(later, carry))
        arguments = [*(members.get(operand, operand) for operand in fixed), *states, *map(member, sequences)]
        results = self._inline(closed.jaxpr, closed.consts, arguments)
        handed, sequence = results[: len(carry)], results[len(carry) :]
        for result, state in zip(handed, states, strict=True):
            result.handed_to += (state,)

        def of_steps(op: str, result: Node) -> Node:  # it depends on all carries of earlier steps
            return self._add(Node(op, (result, *handed), lambda value, *_: value))

        emitted = [self._stacked([of_steps("emitted", result)], equation) for result in sequence]
        return [of_steps("carried", result) for result in handed] + emitted

    def _recurrence(self, equation: Any, fixed: list[Node], carry: list[Node], sequences: list[Node]) -> list[Node]:
        """A scan over anything else, such as time: its first steps, as many as a parameter needs to reach each
        carry."""
        closed, reverse = equation.params["jaxpr"], equation.params["reverse"]
        emitted, copies = list[list[Node]](), list[list[Node]]()
        contraction, number = self._contractions, self._number
        for step in range(min(equation.params["length"], len(carry) + 1, STEPS)):
            start, self._contractions, self._number = len(self.nodes), contraction, number
            index = -1 - step if reverse else step
            members = [
                self._add(Node("member", (operand,), lambda value, index=index: value[index])) for operand in sequences
            ]
            results = self._inline(closed.jaxpr, closed.consts, [*fixed, *carry, *members])
            carry = results[: len(carry)]
            emitted.append(results[len(carry) :])
            copies.append(self.nodes[start:])
        for nodes in list(zip(*copies, strict=True)):
            all_copies = tuple(copy for node in nodes for copy in (node.copies or (node,)))
            for node in nodes:
                node.copies = all_copies
        return carry + [self._stacked(steps, equation) for steps in zip(*emitted, strict=True)]

    def _stacked(self, steps: Sequence[Node], scan: Any) -> Node:
        """The sequence of a body's results; the last that is in the graph stands for all later ones."""

        def stack(*values: Any) -> Any:
            rows = [*values, *([values[-1]] * (scan.params["length"] - len(values)))]
            numpy = np if all(isinstance(row, np.ndarray) for row in rows) else jnp
            return numpy.stack(rows[::-1] if scan.params["reverse"] else rows)

        return self._add(Node("stacked", tuple(steps), stack))

    def _learned_states(self) -> Iterator[Node]:
        """The first states of streams that do not depend on the inputs, such as learned queries that attend to
        themselves: values to which is added what a layer makes of them."""
        for node in self.nodes:
            if node.op not in ADDITIONS or node in self.fed:
                continue
            for skip, end in (node.operands, node.operands[::-1]):
                between = self.ancestors(end, skip) & self.descendants([skip])
                if skip.shape == node.shape and any(value.op in PRODUCTS for value in between):
                    yield skip

    # Walking in the graph

    def ancestors(self, node: Node, stop: Node | None = None) -> Nodes:
        """The values that a value is computed from, itself included; those behind `stop` only if another path leads to
        them.

            norm(h) @ w, of this product and stop=h         # {norm(h) @ w, norm(h), w, scale of the norm, ...}
        """
        before = Nodes(self._values, node.before)
        between = before & self.descendants([stop]) - {stop} if stop else ()
        others = {operand for inner in between for operand in inner.operands if operand not in between} - {stop}
        return Nodes(self._values, _bits_of(operand.before for operand in others)) | between if between else before

    def descendants(self, nodes: Iterable[Node]) -> Nodes:
        return Nodes(self._values, _bits_of(self._behind[node] for node in nodes))

    def parameters_of(self, node: Node) -> frozenset[str]:
        """The paths of the parameters that an operation applies to activations."""
        return union(operand.paths for operand in node.operands if operand not in self.fed)

    def parameters_between(self, node: Node, stop: Node) -> frozenset[str]:
        """The paths of the parameters that a value depends on otherwise than through `stop`."""
        return frozenset(ancestor.path for ancestor in self.ancestors(node, stop) if ancestor.path)

    def activations(self, node: Node) -> list[Node]:
        """The operands of an operation that depend on the inputs."""
        return [operand for operand in node.operands if operand in self.fed]

    def sees_inputs(self, node: Node) -> bool:
        """Whether a value depends on the inputs, and not on learned states alone."""
        return any(ancestor.op in ("input", "carry") for ancestor in self.ancestors(node))

    def weighs(self, node: Node) -> bool:
        """Whether an operation applies weights to activations."""
        return node.op in PRODUCTS and node in self.fed and any(operand not in self.fed for operand in node.operands)

    def normed(self, node: Node) -> bool:
        """Whether an operation divides activations by their size, as in a norm."""
        fed = self.activations(node)
        return node.op in ("mul", "div") and 0 < sum(operand in self._sizes for operand in fed) < len(fed)

    @functools.cached_property
    def _sizes(self) -> set[Node]:
        """Roots of activations, and the values that are computed from roots alone."""
        sizes = set[Node]()
        for node in self.nodes:
            fed = self.activations(node)
            if fed and (node.op in NORMS or (node.op not in PRODUCTS and all(operand in sizes for operand in fed))):
                sizes.add(node)
        return sizes

    def changed(self, changes: Mapping[Node, Any], allowed: AbstractSet[Node], cut: Sequence[Node] = ()) -> Any:
        """{value: its new number} of the values in `allowed` that change with these.

            changed({w: 2 * w.value}, {h @ w})      # {w: ..., h @ w: ...}, whatever else depends on w

        With `cut`, whose old numbers are used behind it, None as soon as a value changes that is not in `allowed`.
        """
        # A number times an array in bfloat16 is float32 in NumPy.
        values = {node: np.asarray(number, np.asarray(node.value).dtype) for node, number in changes.items()}
        todo = self.descendants(changes) - changes.keys()
        for node in todo:
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


def _sums_with_one(leaf: Node) -> list[Node]:
    """The sums 1 + parameter through which alone a parameter acts; none if it acts otherwise too."""
    sums, todo = list[Node](), [leaf]
    while todo:
        for consumer in todo.pop().consumers:
            if consumer.op in (*COPIES, "member"):
                todo.append(consumer)
            elif consumer.op in ADDITIONS and any(map(_is_one, consumer.operands)):
                sums.append(consumer)
            else:
                return []
    return sums


def _is_one(node: Node) -> bool:
    """Whether a value is the number 1 of the program, or an array of them."""
    stored = as_stored(node)
    return stored.op == "constant" and not isinstance(stored.value, jax.core.Tracer) and bool(np.all(stored.value == 1))


def _random(rng: np.random.Generator, like: Any) -> Any:
    """Normal numbers of an array's shape and dtype; integers and keys stay, and shapes of integers become 0 and 1.

    Those of a matrix are divided by a power of 2 near sqrt(fan_in), or deep networks without norms would overflow.
    """
    dtype = like.dtype
    if jnp.issubdtype(dtype, jnp.floating):
        scale = 2.0 ** -round(math.log2(max(like.shape)) / 2) if len(like.shape) > 1 and all(like.shape) else 1.0
        return np.asarray(scale * rng.standard_normal(like.shape), dtype)
    if isinstance(like, jax.ShapeDtypeStruct):
        return np.asarray(np.arange(np.prod(like.shape, dtype=int)).reshape(like.shape) % 2, dtype)
    return like


def _outputs_message(names: Sequence[str]) -> str:
    """The message for a model that does not return one array."""
    if not names:
        return "the model must return an array of logits, it returns no array of real numbers: pass setup an output="
    first, _, _ = names[0].partition(" ")
    return (
        f"the model must return one array of logits, it returns {len(names)}: {', '.join(names)}. Pass setup an "
        f"output= that chooses one, such as output=lambda outputs: {first}; for several heads all of them, "
        "output=lambda outputs: jnp.concatenate([x.reshape(len(x), -1) for x in jax.tree.leaves(outputs)], axis=-1). "
        "absorb needs an apply that returns the logits alone"
    )


def reached(starts: Iterable[Node], onward: Callable[[Node], Iterable[Node]]) -> set[Node]:
    """These values and all that `onward` leads to from them, step by step.

    reached([relu(h @ w) + b], lambda node: node.operands)      # its ancestors
    """
    values, todo = set[Node](), [*starts]
    while todo:
        node = todo.pop()
        if node not in values:
            values.add(node)
            todo += onward(node)
    return values


def as_stored(node: Node) -> Node:
    """The value before conversions and changes of shape."""
    while node.op in COPIES:
        (node,) = node.operands
    return node


def _floating(value: Any) -> bool:
    return bool(jnp.issubdtype(jnp.result_type(value), jnp.floating))
