"""What the compiler says of a program: memory, bytes moved, what devices send each other, padding, precision."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax

COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "collective-permute", "all-to-all")
BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s16": 2, "u16": 2, "f64": 8, "s64": 8, "u64": 8}
ALIASES = ("parameter", "tuple", "get-tuple-element", "bitcast", "while", "conditional", "call")  # nothing is written
ARRAY = r"(\w+)\[([\d,]*)\](?:\{([\d,]*)(?::([^{}]*))?\})?"
INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%\S+ = (\(.*?\)|\S+) ([a-z][\w-]*)\(", re.M)
REPEATED = re.compile(r"^\s*(?:ROOT )?%[\w.-]*\.remat\S* = ", re.M)
COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.-]+) \(.*\{\n((?:.*\n)*?)\}", re.M)
LOOP = re.compile(r" while\(.*condition=%(?P<condition>[\w.-]+), body=%(?P<body>[\w.-]+)")
LENGTH = re.compile(r"known_trip_count[^0-9]*(\d+)|s32\[\]\S* constant\((\d+)\)")


class DoesNotFit(Exception):
    """The compiler refuses a program that needs more memory than a device has."""


@dataclasses.dataclass(frozen=True)
class Program:
    """One compiled program, as each device runs it. All sizes are in bytes.

    arguments: what it is given, with the padding of its layout; donated: the part of it that the results take over.
    results, temporaries, code: what else it takes. moved: bytes that the operations of a step read and write, about.
    collectives: {kind: (number, bytes)} of what devices exchange in a step. padding: the share of the bytes of the
    program's arrays that only fills tiles. written: {dtype, in the compiler's words: share of the bytes of the arrays
    that a step writes}. recomputed: number of operations that the compiler repeats in a step to save memory, besides
    `model.remat`. wide: whether it computes in float64. hosts: whether it calls the host. seconds: the time it took to
    compile.
    """

    arguments: int
    donated: int
    results: int
    temporaries: int
    code: int
    moved: float
    collectives: dict[str, tuple[int, int]]
    padding: float
    written: dict[str, float]
    recomputed: int
    wide: bool
    hosts: bool
    seconds: float

    @property
    def memory(self) -> int:
        return self.arguments + self.results - self.donated + self.temporaries + self.code

    @property
    def sent(self) -> int:
        """Bytes of the arrays of all collectives."""
        return sum(size for _, size in self.collectives.values())


def compiled(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Program:
    """Compile a function of `TrialLoop.program`. Raises DoesNotFit if the compiler says so."""
    begin = time.perf_counter()
    try:
        done = function.lower(*arguments).compile()  # type: ignore[attr-defined]
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        raise DoesNotFit(str(error).split("RESOURCE_EXHAUSTED: ")[-1].splitlines()[0]) from error
    seconds, text = time.perf_counter() - begin, done.as_text()
    program = parts(text)
    memory, cost = done.memory_analysis(), done.cost_analysis()
    return Program(
        arguments=memory.argument_size_in_bytes,
        donated=memory.alias_size_in_bytes,
        results=memory.output_size_in_bytes,
        temporaries=memory.temp_size_in_bytes,
        code=memory.generated_code_size_in_bytes,
        moved=float(cost.get("bytes accessed", 0.0)) * repeated(program),  # the compiler counts a loop's body once
        collectives=collectives(program),
        padding=padding(program),
        written=written(program),
        recomputed=sum(part.times * part.recomputed for part in program),
        wide="f64[" in text,
        hosts=bool(re.search(r"callback| (infeed|outfeed|send|recv)\(", text)),
        seconds=seconds,
    )


@dataclasses.dataclass(frozen=True)
class Part:
    """One computation of an optimized program: the program itself or the body of a loop.

    times: how often it runs in a step. length: how often in a run of its own loop, 1 where that is a loop of steps.
    instructions: (shape, operation) of each. recomputed: number of those that the compiler repeats to save memory.
    """

    times: int
    length: int
    instructions: list[tuple[str, str]]
    recomputed: int = 0

    @property
    def sizes(self) -> tuple[float, float]:
        """(bytes, bytes with padding) of the arrays that it writes."""
        return sum(plain for plain, _ in self.by_dtype.values()), sum(padded for _, padded in self.by_dtype.values())

    @functools.cached_property
    def by_dtype(self) -> dict[str, tuple[float, float]]:
        """{dtype, in the compiler's words: `sizes`}"""
        total: dict[str, tuple[float, float]] = {}
        for shape in (shape for shape, operation in self.instructions if operation not in ALIASES):
            for kind, dims, (plain, padded) in _arrays(shape):
                # What a loop carries with an axis of its length is a stack: each time writes one part of it in place.
                of = self.length if dims in self.stacks else 1
                before = total.get(kind, (0.0, 0.0))
                total[kind] = before[0] + plain / of, before[1] + padded / of
        return total

    @functools.cached_property
    def stacks(self) -> set[tuple[int, ...]]:
        carried = [dims for shape, kind in self.instructions if kind == "parameter" for _, dims, _ in _arrays(shape)]
        return {dims for dims in carried if self.length in dims}


def parts(text: str) -> list[Part]:
    """The parts of an optimized program's text, without the computations inside fusions, which are in no memory."""
    bodies = {name: body for _, name, body in COMPUTATION.findall(text)}
    (entry,) = (name for start, name, _ in COMPUTATION.findall(text) if start)
    result, following = [], [(entry, 1, 1)]
    while following:
        name, times, length = following.pop()
        result.append(Part(times, length, INSTRUCTION.findall(bodies[name]), len(REPEATED.findall(bodies[name]))))
        for line in bodies[name].splitlines():
            if found := LOOP.search(line):
                # A scan compares its counter with a number; a loop of steps has no such number, and counts once.
                ends = LENGTH.search(line) or LENGTH.search(bodies[found["condition"]])
                length = int(ends[1] or ends[2]) if ends else 1
                following.append((found["body"], times * length, length))
    return result


def collectives(program: Iterable[Part]) -> dict[str, tuple[int, int]]:
    """{kind: (number, bytes of their results)} of what devices exchange in a step."""
    found: dict[str, tuple[int, int]] = {}
    for part in program:
        for shape, operation in part.instructions:
            kind = operation.removesuffix("-start")
            if kind in COLLECTIVES:
                arrays = [plain for *_, (plain, _) in _arrays(shape)]
                if operation != kind and kind != "all-reduce":  # the start of others also names its operands
                    arrays = arrays[len(arrays) // 2 :]
                number, size = found.get(kind, (0, 0))
                found[kind] = number + part.times, size + part.times * sum(arrays)
    return found


def padding(program: Iterable[Part]) -> float:
    """The share of padding in the arrays that a program writes: a TPU keeps an array in tiles, such as 8 x 128."""
    sizes = [(part.times, *part.sizes) for part in program]
    padded = sum(times * own for times, _, own in sizes)
    return 1 - sum(times * own for times, own, _ in sizes) / padded if padded else 0.0


def repeated(program: Iterable[Part]) -> float:
    """Bytes written with the body of a loop counted as often as it runs, over those with each body counted once."""
    sizes = [(part.times, part.sizes[1]) for part in program]
    return sum(times * own for times, own in sizes) / max(1, sum(own for _, own in sizes))


def written(program: Iterable[Part]) -> dict[str, float]:
    """{dtype: share of the bytes, without padding, of the arrays that a program writes}, the largest first."""
    total = Counter[str]()
    for part in program:
        total.update({dtype: part.times * plain for dtype, (plain, _) in part.by_dtype.items()})
    return {dtype: size / max(1, total.total()) for dtype, size in total.most_common()}


def _arrays(shape: str) -> Iterator[tuple[str, tuple[int, ...], tuple[int, int]]]:
    """(dtype, sizes of the axes, (bytes, bytes with padding)) of each of "(f32[256]{0:T(256)}, bf16[8,16]{1,0})"."""
    for kind, numbers, order, layout in re.findall(ARRAY, shape):
        sizes = [int(number) for number in numbers.split(",") if number]
        each = BYTES.get(kind, 4)
        tiles = re.search(r"T\(([\d,]+)\)", layout)
        padded = [sizes[int(axis)] for axis in reversed(order.split(","))] if order else list(sizes)
        for i, tile in enumerate(reversed(tiles[1].split(",")) if tiles and padded else ()):
            if i < len(padded):
                padded[-1 - i] = -(-padded[-1 - i] // int(tile)) * int(tile)
        yield kind, tuple(sizes), (each * math.prod(sizes), each * math.prod(padded))
