"""Standard deviations of a model's initial parameters, without making the parameters.

The program that makes them is traced. Each parameter is then computed backwards from its result, on SAMPLE numbers that
stand for arrays of any size: initializers are elementwise functions of random numbers. An orthogonal matrix has
columns of norm 1, so that the mean square of its entries is one over the number of rows.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
from jax.interpreters.partial_eval import dce_jaxpr

from depthmup.reading.graph import ELEMENTWISE, as_numpy, evaluated, inner_jaxpr, parts_of_scan
from depthmup.rules.specs import PyTree, Shape, flatten_shapes, parameters_only

SAMPLE = 4096  # numbers that stand for a random array
LARGEST = 2**20  # entries of an array that is computed as it is, such as a table of positions
# Operations that move entries: any part of a sample is a sample.
MOVES = frozenset((
    "broadcast_in_dim", "dynamic_slice", "expand_dims", "optimization_barrier", "reshape", "rev", "sharding_constraint",
    "slice", "split", "squeeze", "transpose",
))  # fmt: skip


class Std(NamedTuple):
    """value: the standard deviation of a parameter's entries, None if the program does not tell. entries: the number of
    random entries that it was computed from; None where they are so evenly spread that it has no error. shape: of the
    parameter. constant: what all of its entries are, or None."""

    value: float | None
    entries: int | None
    shape: Shape
    constant: float | None = None

    @classmethod
    def of(cls, entries: Any, count: int | None, shape: Shape) -> Std:
        """From entries that stand for all of a parameter."""
        std = spread(entries)
        constant = None if std or not np.size(entries) else float(np.ravel(np.asarray(entries))[0].real)
        return cls(std, count if std else None, shape, constant)


class Unknown(Exception):
    """The operation that makes a value cannot be computed on a sample."""


Kind = Literal["array", "same", "sample"]


@dataclasses.dataclass
class InitValue:
    """kind "array": an array as it is; "same": the one number of a constant array; "sample": SAMPLE of its entries."""

    kind: Kind
    entries: Any


class InitProgram(NamedTuple):
    """A traced init. closed: its jaxpr, whose first results are the parameters. params: their tree, of shapes."""

    closed: Any
    params: PyTree

    def stds(self) -> dict[str, Std]:
        """{path: the standard deviation of its entries} of the parameters. Nothing of their size is made.

        An initializer that is neither an elementwise function of random numbers nor orthogonal has None.
        """
        outs, consts = self.closed.jaxpr.outvars, self.closed.consts
        key = [lambda: InitValue("array", jax.random.key(0)) for _ in self.closed.jaxpr.invars]
        program = _Program(self.closed.jaxpr, consts, key, np.random.default_rng(0))
        return {path: program.std(out) for path, out in zip(flatten_shapes(self.params)[0], outs, strict=False)}


def traced_init(init: Callable[[], PyTree]) -> InitProgram:
    """init: () -> parameters, any pytree."""
    trees = []

    def leaves() -> list[jax.Array]:
        arrays, treedef = jax.tree.flatten(parameters_only(init()))
        trees.append(treedef)
        return arrays

    closed, shapes = jax.make_jaxpr(leaves, return_shape=True)()
    return InitProgram(closed, jax.tree.unflatten(trees[-1], shapes))


def evaluate(closed: Any, *arguments: Any, mask: Sequence[bool] | None = None) -> list[jax.Array]:
    """The results of a program, or those in a mask, operation by operation, without operations that none needs."""
    jaxpr, _ = dce_jaxpr(closed.jaxpr, mask or [True] * len(closed.jaxpr.outvars), instantiate=True)
    return jax.core.eval_jaxpr(jaxpr, closed.consts, *arguments)


def spread(entries: Any) -> float:
    """The standard deviation in double precision; 0 of no entries."""
    entries = np.asarray(entries)
    if not entries.size:
        return 0.0
    return float(entries.astype(np.complex128 if np.iscomplexobj(entries) else np.float64).std())


class _Program:
    """A jaxpr whose values are computed when they are asked for.

    arguments: () -> value, for each of its inputs. rng: the generator that all programs of one parameter share. The
    same values asked for in the same order get the same samples at any size, so ratios of standard deviations are
    exact.
    """

    def __init__(
        self, jaxpr: Any, consts: Sequence[Any], arguments: Sequence[Callable[[], InitValue]], rng: np.random.Generator
    ) -> None:
        self.arguments = dict(zip(jaxpr.invars, arguments, strict=True))
        self.consts = dict(zip(jaxpr.constvars, consts, strict=True))
        self.equations = {out: equation for equation in jaxpr.eqns for out in equation.outvars}
        self.rng = rng
        self.values: dict[Any, InitValue] = {}

    def std(self, out: Any) -> Std:
        """The standard deviation of one result, whatever was read before."""
        self.values, self.rng = {}, np.random.default_rng(0)
        try:
            value = self.read(out)
        except Unknown:
            return Std(None, None, out.aval.shape)
        return Std.of(value.entries, np.size(value.entries) if value.kind == "array" else None, out.aval.shape)

    def read(self, atom: Any) -> InitValue:
        if hasattr(atom, "val"):
            return InitValue("same", np.asarray(atom.val, atom.aval.dtype))
        if atom not in self.values:
            if atom in self.arguments:
                self.values[atom] = self.arguments[atom]()
            elif atom in self.consts:
                self.values[atom] = InitValue("array", as_numpy(self.consts[atom]))
            else:
                self.values[atom] = self._compute(self.equations[atom], atom)
        return self.values[atom]

    def _compute(self, equation: Any, out: Any) -> InitValue:
        name, shape = equation.primitive.name, out.aval.shape
        if name == "random_bits":
            return InitValue("sample", _bits(self.rng, equation.params["bit_width"]))
        if name == "qr":  # an orthogonal init multiplies the first result by the signs of the diagonal of the second
            rows = equation.invars[0].aval.shape[-2]
            first = out is equation.outvars[0]
            return InitValue("sample", _normal(self.rng) / math.sqrt(rows)) if first else InitValue("same", np.ones(()))
        if equation.params.get("name") == "diagonal" and (whole := self.read(equation.invars[0])).kind == "same":
            return whole
        inner = inner_jaxpr(equation)
        if inner is not None:
            return self._called(equation, *inner, out)
        if name == "concatenate":
            return _joined([(self.read(atom), math.prod(atom.aval.shape)) for atom in equation.invars], self.rng)
        operands = [self.read(atom) for atom in equation.invars]
        kinds = {operand.kind for operand in operands}
        if name in ELEMENTWISE or name == "bitcast_convert_type":
            return self._elementwise(equation, operands, shape)
        if name in MOVES and operands and operands[0].kind != "array":
            return operands[0]
        if kinds <= {"array", "same"} and math.prod(shape) <= LARGEST:
            arrays = [_whole(value, atom.aval.shape) for value, atom in zip(operands, equation.invars, strict=True)]
            return InitValue("array", evaluated(equation, arrays)[equation.outvars.index(out)])
        raise Unknown(name)

    def _elementwise(self, equation: Any, operands: Sequence[InitValue], shape: Shape) -> InitValue:
        kinds = {operand.kind for operand in operands}
        if "sample" in kinds and any(operand.kind == "array" and np.size(operand.entries) > 1 for operand in operands):
            raise Unknown(equation.primitive.name)
        kind: Kind = "sample" if "sample" in kinds else "array" if "array" in kinds else "same"
        filled = [_whole(operand, {"sample": (SAMPLE,), "array": shape, "same": ()}[kind]) for operand in operands]
        return InitValue(kind, evaluated(equation, filled)[0])

    def _called(self, equation: Any, jaxpr: Any, consts: Sequence[Any], out: Any) -> InitValue:
        """A result of a called function, or of the first step of a scan."""
        arguments = [lambda atom=atom: self.read(atom) for atom in equation.invars]
        position = equation.outvars.index(out)
        if equation.primitive.name != "scan":
            return _Program(jaxpr, consts, arguments, self.rng).read(jaxpr.outvars[position])
        unsliced = sum(parts_of_scan(equation))
        members = [lambda argument=argument: _first(argument()) for argument in arguments[unsliced:]]
        value = _Program(jaxpr, consts, [*arguments[:unsliced], *members], self.rng).read(jaxpr.outvars[position])
        if position < parts_of_scan(equation)[1] or (value.kind == "array" and np.size(value.entries) > 1):
            raise Unknown("scan")
        return value if value.kind == "sample" else InitValue("same", np.ravel(value.entries)[0])


def _bits(rng: np.random.Generator, width: int) -> np.ndarray:
    """Random bits, as evenly spread as they can be."""
    levels = (np.arange(SAMPLE) + 0.5) / SAMPLE * 2.0**width
    return rng.permutation(levels.astype(f"uint{width}"))


def _normal(rng: np.random.Generator) -> np.ndarray:
    """Normal numbers, as evenly spread as they can be, of mean square 1."""
    numbers = np.asarray(jax.scipy.special.ndtri((np.arange(SAMPLE) + 0.5) / SAMPLE), np.float64)
    return rng.permutation(numbers / numbers.std())


def _whole(value: InitValue, shape: Shape) -> Any:
    if np.shape(value.entries) == shape:
        return value.entries
    if math.prod(shape) > LARGEST:
        raise Unknown("a large constant")
    if value.kind == "array":
        return np.broadcast_to(value.entries, shape)  # an axis of size 1
    return np.broadcast_to(np.ravel(value.entries)[:1], shape)


def _first(value: InitValue) -> InitValue:
    return InitValue("array", value.entries[0]) if value.kind == "array" else value


def _joined(parts: Sequence[tuple[InitValue, int]], rng: np.random.Generator) -> InitValue:
    """Arrays side by side: a sample of all of them, of each as much as its share of the entries."""
    total = sum(size for _, size in parts)
    entries = [
        np.resize(np.ravel(np.asarray(value.entries)), max(1, round(SAMPLE * size / total)))
        for value, size in parts
        if size
    ]
    if all(value.kind == "same" for value, _ in parts) and np.ptp(np.concatenate(entries)) == 0:
        return parts[0][0]
    if any(value.kind == "array" for value, _ in parts):
        raise Unknown("concatenate")
    return InitValue("sample", rng.permutation(np.resize(np.concatenate(entries), SAMPLE)))
