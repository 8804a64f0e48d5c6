"""Which axes of each parameter are inputs and outputs: what the products of a forward pass do with them.

The program is read and not computed. Each value of it is an activation, or it is made of parameters alone; then each of
its axes knows the parameters' axes that it comes from, through transposes, reshapes, slices and sums of parameters. An
axis that a product with an activation sums over is an axis of inputs, an axis that the result keeps one of outputs, and
one that both factors share counts copies:

    h @ w                                      w (in, out): "io"
    jnp.einsum("bte,ehd->bthd", h, w)          w (width, heads, head_dim): "ioo"
    jnp.einsum("ebi,eio->ebo", h, w)           w (experts, in, out): "-io"
    table[tokens]                              table (vocabulary, width): "io"
    h @ (a @ b)                                as (h @ a) @ b: a (width, rank): "io", b (rank, width): "io"

Names decide nothing, nor do sizes.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import numpy as np
from jax.extend.source_info_util import summarize

from depthmup.reading.graph.graph import Program, union
from depthmup.reading.graph.jaxpr import ELEMENTWISE, KNOWN, inner_jaxpr, interpreted, operands_of_scan
from depthmup.rules.specs import Layout, PyTree, flatten_shapes

Letter = Literal["i", "o", "-"]
Axis = tuple[str, int]  # (path of a parameter, number of its axis)
Axes = tuple[frozenset[Axis], ...]  # for each axis of a value, the parameters' axes that it comes from

# Those of ELEMENTWISE of a sum, or of one factor: a product of parameters stays one.
LINEAR = frozenset((
    "add", "add_any", "convert_element_type", "copy", "copy_p", "div", "mul", "neg", "pvary", "reduce_precision", "sub",
    "select_n", "stop_gradient",
))  # fmt: skip
# Operations that keep the axes of their first operand, though maybe not the sizes.
SAME_AXES = frozenset((
    "cumlogsumexp", "cummax", "cummin", "cumprod", "cumsum", "dynamic_slice", "pad", "reduce_window_sum", "rev",
    "slice", "sort", "split",
))  # fmt: skip


class Side(NamedTuple):
    """A factor of a product of two parameters: what the product does with its axes, and its parameters.

    In h @ (a @ b) the left side is Side({(("a", 0), "o"), (("a", 1), "i")}, {"a"}).
    """

    letters: frozenset[tuple[Axis, Letter]]
    paths: frozenset[str]

    def axes(self, letter: Letter) -> set[Axis]:
        return {axis for axis, of_axis in self.letters if of_axis == letter}


@dataclasses.dataclass(frozen=True)
class TracedValue:
    """A value of the program.

    is_activation: whether it depends on the inputs, or is what a product makes.
    axes: what each axis comes from; of an activation, the axes of parameters that have just been multiplied with it.
    paths: of what is no activation, the parameters that it is made of.
    outputs: of an activation, the parameters' axes whose outputs its axes are; () if that is not known.
    products: of what is no activation, the products of parameters that it is made of, the last one first.
    """

    is_activation: bool
    axes: Axes
    paths: frozenset[str] = frozenset()
    outputs: Axes = ()
    products: tuple[tuple[Side, Side], ...] = ()

    @property
    def is_weight(self) -> bool:
        return bool(self.paths) and not self.is_activation


class Uses(NamedTuple):
    """What a program does with its parameters.

    axes: {path: a letter for each axis} of the parameters that products apply, or whose rows are looked up: i (inputs),
      o (outputs), - (neither). Parameters that the program uses in two ways, or in a way that has no rule, are left
      out. An axis of outputs that the next product shares with its weight counts copies, if it does not grow: experts
      that all see one input.
    entries: {path: the axes along which lie outputs of a product, as those of a bias (heads, head_dim)} of the
      parameters whose entries act each on its own.
    meetings: pairs of an axis of outputs and the axis of inputs by which the next product sums over it.
    unseen: {path: the operation and its line} of the parameters that an operation takes whose insides the program does
      not show, such as a kernel or a callback; none of these where products show how matrices are stored (lookups do
      not). And of those that multiply activations entry by entry along two axes that grow, of which one is no axis of
      outputs: what sums over it later, as an associative_scan does, is not seen.
    """

    axes: dict[str, str]
    entries: dict[str, set[int]]
    meetings: frozenset[tuple[Axis, Axis]] = frozenset()
    unseen: Mapping[str, str] = MappingProxyType({})

    @property
    def layout(self) -> Layout | None:
        """How most matrices are stored; None without matrices."""
        ends = Counter((text[0], text[-1]) for text in (text.strip("-") for text in self.axes.values()) if text)
        outputs, inputs = ends["o", "i"], ends["i", "o"]
        return None if not outputs + inputs else "out_in" if outputs > inputs else "in_out"


def uses_of(program: Program, params: PyTree, growing: Collection[Axis] = ()) -> Uses:
    """The uses of the parameters of a forward pass. growing: the axes that grow with width."""
    shapes, reader = flatten_shapes(params)[0], _Reader(frozenset(growing))
    jaxpr = program.closed.jaxpr
    arguments = [_parameter(path, shape) for path, shape in shapes.items()]
    state = len(jaxpr.invars) - program.inputs
    arguments += [_nothing(False, variable) for variable in jaxpr.invars[len(shapes) : state]]
    arguments += [_nothing(True, variable) for variable in jaxpr.invars[state:]]
    reader.read(jaxpr, program.closed.consts, arguments)
    axes = {path: text for path, shape in shapes.items() if (text := reader.letters(path, shape))}
    looked_up = {path for path, _ in reader.looked_up}
    used = looked_up | {path for path, _ in reader.uses}
    entries = {
        path: {axis for axis in range(len(shape)) if (path, axis) in reader.neurons}
        for path, shape in shapes.items()
        if path in reader.elementwise - used - reader.lost
    }
    grids = {path: reader.grids[path] for path in entries.keys() & reader.grids.keys()
             if not {axis for of, axis in growing if of == path} <= entries[path]}  # fmt: skip
    entries = {path: of for path, of in entries.items() if path not in grids}
    matrices = Uses({path: text for path, text in axes.items() if path not in looked_up}, {})
    return Uses(axes, entries, frozenset(reader.meetings), grids | ({} if matrices.layout else reader.unseen))


def _parameter(path: str, shape: Sequence[int]) -> TracedValue:
    return TracedValue(False, tuple(frozenset([(path, axis)]) for axis in range(len(shape))), frozenset([path]))


def _nothing(is_activation: bool, of: Any) -> TracedValue:
    """A value that no parameter's axis is an axis of."""
    return TracedValue(is_activation, (frozenset(),) * _rank(of))


def _spread(value: TracedValue, before: Any, after: Any) -> TracedValue:
    """A value whose axes of size 1 are repeated: one number for all entries is no axis."""
    if _rank(before) != _rank(after):
        return value
    sizes = zip(np.shape(before.val) if hasattr(before, "val") else before.aval.shape, after.aval.shape, strict=True)
    kept = [
        axes if size == repeated else frozenset[Axis]()
        for axes, (size, repeated) in zip(value.axes, sizes, strict=True)
    ]
    return dataclasses.replace(value, axes=tuple(kept))


def _rank(of: Any) -> int:
    return len(of.aval.shape) if hasattr(of, "aval") else np.ndim(of)


class _Reader:
    """Reads a program equation by equation.

    uses: {axis of a parameter: what products do with it}. looked_up: the same of lookups, which win: a tied embedding
    is one. lost: the paths of parameters that went through something without a rule. unseen: as in `Uses`.
    elementwise: of those that act on activations entry by entry. grids: {path: the operation and its line} of those of
    them with two axes that grow.
    """

    def __init__(self, growing: Set[Axis]) -> None:
        self.growing = growing
        self.uses: dict[Axis, set[Letter]] = defaultdict(set)
        self.looked_up: dict[Axis, set[Letter]] = defaultdict(set)
        self.members = set[Axis]()  # axes of which single members are taken
        self.copied, self.neurons = set[Axis](), set[Axis]()  # those that count copies; that lie along outputs
        self.meetings = set[tuple[Axis, Axis]]()  # as in `Uses`
        self.lost, self.elementwise = set[str](), set[str]()
        self.unseen, self.grids = dict[str, str](), dict[str, str]()
        self.records = True  # not while a loop's carries are not known yet

    def letters(self, path: str, shape: Sequence[int]) -> str:
        """The letters of a parameter; "" if the program does not tell them."""
        axes = [(path, axis) for axis in range(len(shape))]
        uses = self.looked_up if any(axis in self.looked_up for axis in axes) else self.uses
        if path in self.lost or not any(axis in uses for axis in axes):
            return ""
        result = ""
        for axis, size in zip(axes, shape, strict=True):
            letters = uses.get(axis) or ({"-"} if size == 1 or axis in self.members else set())
            if len(letters) != 1:
                return ""
            copies = letters == {"o"} and axis in self.copied - self.growing
            result += "-" if copies else next(iter(letters))
        return result

    # The program

    def read(self, jaxpr: Any, consts: Sequence[Any], arguments: Sequence[TracedValue]) -> list[TracedValue]:
        """The values of a jaxpr's results."""
        read = [atom for equation in jaxpr.eqns for atom in equation.invars] + jaxpr.outvars
        times = Counter(atom for atom in read if not hasattr(atom, "val"))

        def of_equation(equation: Any, operands: list[TracedValue]) -> list[TracedValue]:
            # A value that is read again, as that of a norm's mean and of its difference, is no term of a product.
            return [
                dataclasses.replace(_nothing(True, variable), outputs=result.outputs)
                if result.is_activation and times[variable] > 1
                else result
                for variable, result in zip(equation.outvars, self._equation(equation, operands), strict=True)
            ]

        return interpreted(jaxpr, consts, arguments, functools.partial(_nothing, False), of_equation)

    def _equation(self, equation: Any, operands: list[TracedValue]) -> list[TracedValue]:
        name, inner = equation.primitive.name, inner_jaxpr(equation)
        if name == "scan":
            return self._scan(equation, operands)
        if name == "while":
            return self._while(equation, operands)
        if name == "cond":
            branches = [self._closed(branch, operands[1:]) for branch in equation.params["branches"]]
            return [_either(results) for results in zip(*branches, strict=True)]
        if inner is not None:
            return self.read(*inner, operands)
        if not any(operand.paths or operand.outputs or any(operand.axes) for operand in operands):
            is_activation = any(operand.is_activation for operand in operands)
            return [_nothing(is_activation, variable) for variable in equation.outvars]
        rule = RULES.get(name)
        if name == "optimization_barrier":
            return operands
        if rule is not None:
            return [rule(self, equation, operands)]
        if name in ELEMENTWISE:
            return [self._elementwise(equation, operands)]
        if name in SAME_AXES:
            return [self._result(variable, operands, operands[0].axes) for variable in equation.outvars]
        if name not in KNOWN:
            paths = union(operand.paths for operand in operands)
            self.unseen |= dict.fromkeys(paths, f"{name} ({summarize(equation.source_info)})")
        self._lose(operands)
        return [self._result(variable, operands, ()) for variable in equation.outvars]

    def _closed(self, closed: Any, arguments: Sequence[TracedValue]) -> list[TracedValue]:
        return self.read(closed.jaxpr, closed.consts, arguments)

    def _carried(
        self, step: Callable[[list[TracedValue]], list[TracedValue]], carry: list[TracedValue]
    ) -> list[TracedValue]:
        """The results of a loop's body: it is read until its carries stay, and then once with what it does."""
        records, self.records = self.records, False
        while True:
            after = [_either(pair) for pair in zip(carry, step(carry), strict=False)]
            if after == carry:
                break
            carry = after
        self.records = records
        return step(carry)

    def _scan(self, equation: Any, operands: list[TracedValue]) -> list[TracedValue]:
        closed, (fixed, carry, sequences) = equation.params["jaxpr"], operands_of_scan(equation, operands)
        members = [self._member(sequence) for sequence in sequences]
        results = self._carried(lambda values: self._closed(closed, [*fixed, *values, *members]), carry)
        handed, emitted = results[: len(carry)], results[len(carry) :]
        return handed + [dataclasses.replace(of, axes=(frozenset(), *of.axes), outputs=()) for of in emitted]

    def _while(self, equation: Any, operands: list[TracedValue]) -> list[TracedValue]:
        of_condition, of_body = equation.params["cond_nconsts"], equation.params["body_nconsts"]
        fixed, carry = operands[of_condition : of_condition + of_body], operands[of_condition + of_body :]
        body = equation.params["body_jaxpr"]
        return self._carried(lambda values: self._closed(body, [*fixed, *values]), carry)

    def _member(self, stack: TracedValue) -> TracedValue:
        self._take(stack.axes[0])
        return dataclasses.replace(stack, axes=stack.axes[1:], outputs=())

    # What operations do with parameters

    def _take(self, axes: Iterable[Axis]) -> None:
        if self.records:
            self.members.update(axes)

    def _lose(self, operands: Iterable[TracedValue]) -> None:
        if self.records:
            self.lost.update(*(operand.paths for operand in operands))

    def use(self, weight: TracedValue, letters: Sequence[Letter]) -> None:
        """Note what a product does with the axes of a weight."""
        self._note(self.uses, weight, letters)

    def look_up(self, table: TracedValue, letters: Sequence[Letter]) -> None:
        self._note(self.looked_up, table, letters)

    def _note(self, uses: dict[Axis, set[Letter]], weight: TracedValue, letters: Sequence[Letter]) -> None:
        if not self.records:
            return
        notes = {(axis, letter) for axes, letter in zip(weight.axes, letters, strict=True) for axis in axes}
        for side in (side for product in weight.products for side in product):  # in h @ (a @ b)
            beside = {letter for axis, letter in notes if axis in side.axes("o")} - {"-"}
            if len(beside) == 1:
                notes |= {(axis, "o" if "i" in beside else "i") for axis in side.axes("i")}
        for axis, letter in notes:
            uses[axis].add(letter)

    def _layers_of(self, values: Iterable[TracedValue]) -> None:
        """Note of products of parameters that become no weight which factor is a layer: the one with outputs that
        grow. It is applied to the other one."""
        for product in _products(values) if self.records else ():
            layers = [side for side in product if self.growing & side.axes("o")]
            for side in product:
                if len(layers) != 1:
                    self.lost.update(side.paths)
                elif side is layers[0]:
                    for axis, letter in side.letters:
                        self.uses[axis].add(letter)
                else:
                    self.elementwise.update(side.paths)

    def _result(self, variable: Any, operands: Sequence[TracedValue], axes: Axes) -> TracedValue:
        """What an operation makes of operands. axes: of a result that has other ones, none are known."""
        is_activation = any(operand.is_activation for operand in operands)
        paths = union(operand.paths for operand in operands)
        axes = axes if len(axes) == _rank(variable) else _nothing(is_activation, variable).axes
        if is_activation:
            return TracedValue(True, axes)
        return TracedValue(False, axes, paths, products=_products(operands))

    def _elementwise(self, equation: Any, operands: list[TracedValue]) -> TracedValue:
        """What an operation on each entry makes of parameters alone: a weight, unless it bends a product of them."""
        (variable,) = equation.outvars
        operands = [_spread(operand, of, variable) for operand, of in zip(operands, equation.invars, strict=True)]
        if any(operand.is_activation for operand in operands):
            return self._on_activations(equation, operands)
        if any(operand.products for operand in operands) and equation.primitive.name not in LINEAR:
            self._layers_of(operands)
            return _nothing(True, variable)
        alike = [operand.axes for operand in operands if len(operand.axes) == _rank(variable)]
        return self._result(variable, operands, tuple(union(axes) for axes in zip(*alike, strict=True)))

    def _on_activations(self, equation: Any, operands: list[TracedValue]) -> TracedValue:
        """`_elementwise` of activations and parameters. Behind h * w, of which nothing else is made, a sum over an axis
        is a product: it has the axes of w."""
        name, weights = equation.primitive.name, [operand for operand in operands if operand.is_weight]
        factors = [operand for operand in operands if operand.is_weight or any(operand.axes)]
        outputs = next((operand.outputs for operand in operands if operand.outputs), ())
        self._layers_of(operands)
        self.elementwise.update(*(operand.paths for operand in factors))
        for weight in weights:
            self.neurons.update(*(axes for axes, of in zip(weight.axes, outputs, strict=False) if of))
            grow = Counter(path for axes in weight.axes for path, _ in axes & self.growing)
            where = f"{name} ({summarize(equation.source_info)})"
            self.grids |= {path: where for path, axes in grow.items() if axes > 1}
        multiplied = name in ("mul", "convert_element_type") and len(factors) == 1
        result = self._result(equation.outvars[0], operands, factors[0].axes if multiplied else ())
        return dataclasses.replace(result, outputs=outputs)

    def product(self, equation: Any, operands: list[TracedValue], letters: Sequence[Sequence[Letter]]) -> TracedValue:
        """Of two operands with these letters."""
        for operand, of_operand in zip(operands, letters, strict=True):
            if operand.is_weight:
                self.use(operand, of_operand)
        return _nothing(True, equation.outvars[0])

    def product_of_weights(
        self,
        equation: Any,
        operands: list[TracedValue],
        letters: Sequence[Sequence[Letter]],
        copies: Sequence[Sequence[int]],
    ) -> TracedValue:
        """Two parameters that make one weight, as those of a LoRA; or a layer that is applied to the other one, such as
        to learned queries, whose number does not grow as their size does."""
        left, right = (
            Side(
                frozenset((axis, letter) for axes, letter in zip(value.axes, of, strict=True) for axis in axes),
                value.paths,
            )
            for value, of in zip(operands, letters, strict=True)
        )
        shared = [operands[0].axes[axis] | operands[1].axes[other] for axis, other in zip(*copies, strict=True)]
        outputs = [axes for operand, of in zip(operands, letters, strict=True) for axes in _outputs(operand, of)]
        result = self._result(equation.outvars[0], operands, (*shared, *outputs))
        result = dataclasses.replace(result, products=((left, right), *result.products))
        both_grow = all(self.growing & side.axes("o") for side in (left, right))
        if both_grow or not self.growing & (left.axes("i") | right.axes("i")):
            return result
        self._layers_of([result])
        activation = _nothing(True, equation.outvars[0])
        return dataclasses.replace(activation, outputs=(*(frozenset[Axis]() for _ in shared), *outputs))


def _either(values: Sequence[TracedValue]) -> TracedValue:
    """A value that is one of these."""
    axes = tuple(union(of) for of in zip(*(value.axes for value in values), strict=True))
    is_activation = any(value.is_activation for value in values)
    paths = union(value.paths for value in values)
    return TracedValue(True, axes) if is_activation else TracedValue(False, axes, paths, products=_products(values))


def _products(values: Iterable[TracedValue]) -> tuple[tuple[Side, Side], ...]:
    return tuple(dict.fromkeys(product for value in values for product in value.products))


def _dot_general(reader: _Reader, equation: Any, operands: list[TracedValue]) -> TracedValue:
    return _contract(reader, equation, operands, equation.params["dimension_numbers"])


def _ragged_dot_general(reader: _Reader, equation: Any, operands: list[TracedValue]) -> TracedValue:
    numbers = equation.params["ragged_dot_dimension_numbers"]
    contracted, (left, right) = numbers.dot_dimension_numbers
    copies = left, (*right, *numbers.rhs_group_dimensions)
    return _contract(reader, equation, operands[:2], (contracted, copies))


def _contract(reader: _Reader, equation: Any, operands: list[TracedValue], numbers: Any) -> TracedValue:
    """A product. numbers: (the axes of each operand that it sums over, those that both share)"""
    contracted, copies = numbers
    if not contracted[0]:  # it sums over nothing, as an outer product
        reader.elementwise.update(*(operand.paths for operand in operands))
        return reader._result(equation.outvars[0], operands, ())
    letters = [_letters(operand, *of) for operand, *of in zip(operands, contracted, copies, strict=True)]
    for activation, weight, shared, left, right in zip(
        operands, operands[::-1], copies, contracted, contracted[::-1], strict=True
    ):
        if activation.outputs and weight.is_weight:
            reader.copied.update(*(activation.outputs[axis] for axis in shared))
            for summed in zip(left, right, strict=True):
                reader.meetings.update(itertools.product(activation.outputs[summed[0]], weight.axes[summed[1]]))
    if all(operand.is_weight for operand in operands):
        return reader.product_of_weights(equation, operands, letters, copies)
    outputs = [frozenset[Axis]()] * len(copies[0])
    for operand, of in zip(operands, letters, strict=True):
        outputs += [axes if operand.is_weight else frozenset() for axes in _outputs(operand, of)]
    return dataclasses.replace(reader.product(equation, operands, letters), outputs=tuple(outputs))


def _letters(operand: TracedValue, contracted: Sequence[int], copies: Sequence[int]) -> list[Letter]:
    """What a product does with each axis."""
    return ["i" if axis in contracted else "-" if axis in copies else "o" for axis in range(len(operand.axes))]


def _outputs(operand: TracedValue, letters: Sequence[Letter]) -> list[frozenset[Axis]]:
    """What each axis comes from that the result of a product keeps."""
    return [axes for axes, letter in zip(operand.axes, letters, strict=True) if letter == "o"]


def _convolution(reader: _Reader, equation: Any, operands: list[TracedValue]) -> TracedValue:
    numbers = equation.params["dimension_numbers"]
    return reader.product(
        equation,
        operands,
        [
            _letters(operand, [axis for axis in range(len(operand.axes)) if axis != outputs], ())
            for operand, outputs in zip(operands, (numbers.lhs_spec[1], numbers.rhs_spec[0]), strict=True)
        ],
    )


def _gather(reader: _Reader, equation: Any, operands: list[TracedValue]) -> TracedValue:
    table, places = operands
    numbers, (variable,) = equation.params["dimension_numbers"], equation.outvars
    rows = (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
    if places.is_activation and table.is_weight:
        reader.look_up(table, _letters(table, rows, ()))
        return _nothing(True, variable)
    kept = iter([axes for axis, axes in enumerate(table.axes) if axis not in rows])
    taken = union(table.axes[row] for row in rows)
    if len(numbers.offset_dims) == _rank(variable):
        reader._take(taken)
    result = [next(kept) if axis in numbers.offset_dims else taken for axis in range(_rank(variable))]
    return reader._result(variable, operands, tuple(result))


def _reduce_sum(reader: _Reader, equation: Any, operands: list[TracedValue]) -> TracedValue:
    (operand,), (variable,), summed = operands, equation.outvars, equation.params["axes"]
    if operand.is_activation:
        if any(operand.axes[axis] for axis in summed):  # (w * h).sum() is a product
            reader.use(operand, _letters(operand, summed, ()))
        return _nothing(True, variable)
    return _reduce(reader, equation, operands)


def _reduce(reader: _Reader, equation: Any, operands: list[TracedValue]) -> TracedValue:
    summed = equation.params["axes"]
    axes = tuple(axes for axis, axes in enumerate(operands[0].axes) if axis not in summed)
    return reader._result(equation.outvars[0], operands, axes)


def _transpose(reader: _Reader, equation: Any, operands: list[TracedValue]) -> TracedValue:
    axes, outputs = (
        tuple(of[axis] for axis in equation.params["permutation"]) if of else ()
        for of in (operands[0].axes, operands[0].outputs)
    )
    return dataclasses.replace(reader._result(equation.outvars[0], operands, axes), outputs=outputs)


def _broadcast(reader: _Reader, equation: Any, operands: list[TracedValue]) -> TracedValue:
    (variable,), before = equation.outvars, equation.invars[0].aval.shape
    axes = [frozenset[Axis]()] * _rank(variable)
    for axis, place in enumerate(equation.params["broadcast_dimensions"]):
        if before[axis] == variable.aval.shape[place]:  # one entry for all is no axis
            axes[place] = operands[0].axes[axis]
    return reader._result(variable, operands, tuple(axes))


def _squeeze(reader: _Reader, equation: Any, operands: list[TracedValue]) -> TracedValue:
    gone = [axis % len(operands[0].axes) for axis in equation.params["dimensions"]]
    for axis in gone:
        reader._take(operands[0].axes[axis])
    axes = tuple(axes for axis, axes in enumerate(operands[0].axes) if axis not in gone)
    return reader._result(equation.outvars[0], operands, axes)


def _reshape(reader: _Reader, equation: Any, operands: list[TracedValue]) -> TracedValue:
    """Axes that are split or joined: each part has the axes of its group."""
    (variable,), before = equation.outvars, equation.invars[0].aval.shape
    after = variable.aval.shape
    axes, start, end = [frozenset[Axis]()] * len(after), 0, 0
    while start < len(before) and end < len(after):
        olds, news = [start], [end]
        sizes = before[start], after[end]
        while sizes[0] != sizes[1]:
            if sizes[0] < sizes[1]:
                olds.append(olds[-1] + 1)
            else:
                news.append(news[-1] + 1)
            sizes = math.prod(before[i] for i in olds), math.prod(after[i] for i in news)
        group = union(operands[0].axes[i] for i in olds)
        for i in news:
            axes[i] = group if after[i] > 1 or len(news) == 1 else frozenset()
        start, end = olds[-1] + 1, news[-1] + 1
    for i in range(start, len(before)):  # trailing axes of size 1
        reader._take(operands[0].axes[i])
    return reader._result(variable, operands, tuple(axes))


def _concatenate(reader: _Reader, equation: Any, operands: list[TracedValue]) -> TracedValue:
    alike = (operand.axes for operand in operands if not operand.is_activation)
    axes = tuple(union(of) for of in zip(*alike, strict=True))
    return reader._result(equation.outvars[0], operands, axes)


Rule = Callable[[_Reader, Any, list[TracedValue]], TracedValue]
# What operations do with the axes of their operands; ELEMENTWISE and SAME_AXES have those that leave them as they are.
RULES: dict[str, Rule] = {
    "dot_general": _dot_general,
    "ragged_dot_general": _ragged_dot_general,
    "conv_general_dilated": _convolution,
    "gather": _gather,
    "reduce_sum": _reduce_sum,
    **dict.fromkeys(
        ("reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or", "argmax", "argmin"), _reduce
    ),
    "transpose": _transpose,
    "broadcast_in_dim": _broadcast,
    "squeeze": _squeeze,
    "reshape": _reshape,
    "concatenate": _concatenate,
}
