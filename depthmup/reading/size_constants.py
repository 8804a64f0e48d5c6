"""Numbers in a forward pass that change with the size of the model, such as sqrt(width) behind an embedding."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.interpreters.partial_eval import dce_jaxpr

from depthmup.reading.graph import ADDITIONS, CONTRACTIONS, COPIES, evaluated, inner_jaxpr, interpreted, union
from depthmup.rules.specs import PyTree, flatten_shapes, starred

# Operations that hand a number on which multiplies their operand.
LINEAR = (
    *(*COPIES, *ADDITIONS, "sub", "neg", "max", "min", "select_n", "clamp", "tanh"),
    *("concatenate", "split", "slice", "dynamic_slice", "gather", "pad", "rev"),
)

# {power of 1/head_dim: that of products of queries and keys}; fourth roots multiply both queries and keys
HEAD_POWERS = {1.0: 1.0, 0.5: 0.5, 0.25: 0.5}
POWERS = (-1.0, -0.5, -0.25, 0.25, 0.5, 1.0)  # of a block's number


class Constant(NamedTuple):
    """A number that multiplies a value of the forward pass. behind: the last parameter in front of it. normalized:
    whether the value is behind a norm, as in x / ||x|| * sqrt(width). order: its place among the program's numbers."""

    value: float
    behind: str
    normalized: bool = False
    order: int = 0


@dataclasses.dataclass(frozen=True)
class _Value:
    """What is known of a value of the forward pass.

        x / sqrt((x * x).sum())     # the sum is_sum, its root is_norm, the quotient is_normalized
        x / sqrt((x * x).mean())    # none of these: its entries have one size at every width

    number: what all its entries are, if that depends on no argument. behind: the last parameter that it depends on.
    is_activation: whether it depends on the inputs. is_sum: whether it is a sum over entries. is_norm: the root of one,
      or of a moment of weights, as in weight standardization. is_normalized: divided by one.
    is_square: whether it is a square. is_moment: a sum of squares over entries, times any number.
    constants: the numbers that multiplied it since the last of CONTRACTIONS. products: the numbers of those that it is
      made of since then, as a sum of two products of queries and keys is.
    """

    number: float | None = None
    behind: str = ""
    is_activation: bool = False
    is_sum: bool = False
    is_norm: bool = False
    is_normalized: bool = False
    is_square: bool = False
    is_moment: bool = False
    constants: frozenset[Constant] = frozenset()
    products: frozenset[int] = frozenset()


class Change(NamedTuple):
    """A number of the forward pass at two sizes. behind: the kinds of the parameters in front of what it multiplies, or
    their paths (`changes`)."""

    before: float
    after: float
    behind: frozenset[str]

    def size(self, power: float, growth: float) -> int | None:
        """The size whose power the number is, where it changes as that of a size that grows by this factor."""
        ratio = self.after / self.before if self.before > 0 else 0.0
        return round(self.before ** (1 / power)) if math.isclose(ratio, growth**power, rel_tol=1e-2) else None


def changes(
    small: Sequence[Constant], large: Sequence[Constant], kind_of: Callable[[str], str] = starred
) -> list[Change]:
    """How the numbers of a model change from one size to another.

        sqrt(width) * embed[tokens]     # [Change(before=8, after=11.3, behind={"embed"})] from width 64 to 128

    Behind each kind of parameter, which `kind_of` makes of its path, as many different numbers must be new as are gone:
    one that differs from block to block is no change.
    """
    behind: dict[tuple[float, float], set[str]] = {}
    for kind in dict.fromkeys(kind_of(constant.behind) for constant in small):
        few, many = ({c.value for c in numbers if kind_of(c.behind) == kind} for numbers in (small, large))
        gone, new = sorted(few - many), sorted(many - few)
        for numbers in zip(gone, new, strict=True) if len(gone) == len(new) else ():
            behind.setdefault(numbers, set()).add(kind)
    return [Change(*numbers, frozenset(kinds)) for numbers, kinds in behind.items()]


def head_power(small: Sequence[Constant], large: Sequence[Constant], head_dim: int, growth: float) -> float:
    """The power of 1/head_dim by which numbers multiply a product of queries and keys, from those at two widths.

        q / 8 @ k.T, at twice the head_dim of 64 q / 11.3 @ k.T      # 0.5

    growth: the head_dim at the larger width over that at the smaller one.
    """
    # Without the sqrt(head_dim) of q / ||q|| * sqrt(head_dim), which is a part of the norm.
    few, many = ([c for c in numbers if c.value < 1 or not c.normalized] for numbers in (small, large))
    changed, powers = changes(few, many, lambda _: ""), [0.0]
    for part, power in HEAD_POWERS.items():
        powers += [power for change in changed if change.size(-part, growth) == head_dim]
        # Flax's T5 and GPT-Neo multiply queries by the root that Flax's attention divides them by.
        powers += [-power for change in changed if change.size(part, growth) == head_dim]
    # Of the powers that divide the largest counts, once: two square roots are one. A root that multiplies is below 0
    # and takes one that divides back.
    return max(powers) + min(powers)


def trends(small: Sequence[Constant], large: Sequence[Constant], depth: int) -> dict[str, float]:
    """{kind of a parameter: power of a block's number} of numbers behind it that go from block to block as this power,
    at `depth` and at twice that: -1/2 of norms divided by the root of the block's number, 1, 0.71, 0.58, 0.5."""
    result: dict[str, float] = {}
    for kind in dict.fromkeys(starred(constant.behind) for constant in small):
        few, many = ([c.value for c in numbers if starred(c.behind) == kind] for numbers in (small, large))
        if len(few) % depth or len(many) != 2 * len(few) or len(set(few)) == 1 or 0 in few:
            continue
        blocks, deeper = (np.reshape(numbers, (-1, len(few) // depth)) for numbers in (few, many))
        ratios = deeper[1::2] / blocks  # of block 2 l and block l
        for power in POWERS:
            if np.allclose(ratios, 2**power, rtol=1e-2):
                result[kind] = power
    return result


def constants(closed: Any, params: PyTree) -> list[Constant]:
    """The numbers that multiply what a forward pass computes from parameters, in the order of the program.

    Left out are those of a mean (a sum divided by a number), and those of what the logits do not depend on, such as an
    auxiliary loss. The body of a scan counts once; nothing is computed.

    closed: the traced forward pass; its first arguments are the parameters.
    """
    alive, _ = dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars), instantiate=True)
    return _NumberReader(alive, closed.consts, params).constants


def constants_of_products(closed: Any, params: PyTree) -> dict[int, list[Constant]]:
    """{number of a product in `contractions`: the numbers that multiply its two factors behind the layers that make
    them, and the product itself before another operation than sums, masks and caps, in the order of the program}"""
    products = _NumberReader(closed.jaxpr, closed.consts, params).products
    return {number: sorted(of, key=lambda constant: constant.order) for number, of in products.items()}


class _NumberReader:
    """Reads a program. constants: as `constants` returns them. products: {number of one of CONTRACTIONS: the numbers
    that multiply it and its factors}."""

    def __init__(self, jaxpr: Any, consts: Sequence[Any], params: PyTree) -> None:
        self.constants: list[Constant] = []
        self.products: dict[int, set[Constant]] = {}
        self._orders = itertools.count()
        paths = flatten_shapes(params)[0]
        weights = [_Value(behind=path) for path in paths]
        activations = [_Value(is_activation=True)] * (len(jaxpr.invars) - len(paths))
        self._read(jaxpr, consts, weights + activations)

    def _read(self, jaxpr: Any, consts: Sequence[Any], arguments: Sequence[_Value]) -> list[_Value]:
        """What is known of the results of a jaxpr."""

        def results_of(equation: Any, operands: list[_Value]) -> list[_Value]:
            inner = inner_jaxpr(equation)
            return self._read(*inner, operands) if inner else [self._result(equation, operands)] * len(equation.outvars)

        return interpreted(jaxpr, consts, arguments, _known, results_of)

    def _multiplied(self, value: _Value, number: float) -> _Value:
        """A value times a number, which is noted behind parameters, but for the one that makes a mean of a sum."""
        if value.is_sum or value.is_moment or not value.behind:
            return dataclasses.replace(value, is_sum=False)
        constant = Constant(number, value.behind, value.is_normalized, next(self._orders))
        self.constants.append(constant)
        for product in value.products:
            self.products[product].add(constant)
        return dataclasses.replace(value, constants=value.constants | {constant})

    def _result(self, equation: Any, operands: Sequence[_Value]) -> _Value:
        name, numbers = equation.primitive.name, [operand.number for operand in operands if operand.number is not None]
        product = frozenset[int]()
        if name in CONTRACTIONS:
            product = frozenset([len(self.products)])
            self.products[len(self.products)] = set(union(operand.constants for operand in operands))
        if name in COPIES:
            return operands[0]
        if operands and len(numbers) == len(operands):
            return _folded(equation, numbers)
        changed = [operand for operand in operands if operand.number is None]
        if name in ("mul", "div") and len(changed) == len(numbers) == 1:
            divides = name == "div" and operands[1].number
            return self._multiplied(changed[0], 1 / numbers[0] if divides else numbers[0])
        is_activation = any(value.is_activation for value in operands)
        of_sum = any(value.is_sum or (value.is_moment and not is_activation) for value in operands)
        of_norm = any(value.is_norm for value in operands)
        kept = name in ("add", "max", "min")  # eps
        squares = name == "dot_general" and equation.invars[0] is equation.invars[1]  # einsum("...d,...d->...", x, x)
        moment = squares or (name == "reduce_sum" and any(value.is_square for value in operands))
        # A norm takes the numbers away that multiply what it divides.
        linear = name in LINEAR or (name in ("mul", "div") and not of_norm)
        return _Value(
            behind=next((operand.behind for operand in reversed(changed) if operand.behind), ""),
            is_activation=is_activation,
            is_sum=name == "reduce_sum" or squares or (kept and of_sum),
            is_norm=(name in ("sqrt", "rsqrt") and of_sum) or (kept and of_norm),
            is_square=name == "square" or (name == "integer_pow" and equation.params["y"] == 2),
            is_moment=moment or ((kept or name in ("sub", "select_n")) and any(value.is_moment for value in operands)),
            is_normalized=name in ("mul", "div") and (of_norm or any(value.is_normalized for value in operands)),
            constants=union(value.constants for value in operands) if linear else frozenset(),
            products=product.union(*(value.products for value in operands)) if linear else product,
        )


def _folded(equation: Any, numbers: Sequence[Any]) -> _Value:
    """An operation of numbers alone, such as sqrt(width)."""
    if any(var.aval.shape for var in (*equation.invars, *equation.outvars)) or len(equation.outvars) != 1:
        return _Value()
    arrays = (np.asarray(number, var.aval.dtype) for number, var in zip(numbers, equation.invars, strict=True))
    with jax.ensure_compile_time_eval():
        return _known(evaluated(equation, [*arrays])[0])


def _known(value: Any) -> _Value:
    """A constant of the program."""
    if np.size(value) != 1 or not jax.numpy.issubdtype(jax.numpy.result_type(value), np.number):
        return _Value()
    return _Value(number=float(np.asarray(value).real.item()))
