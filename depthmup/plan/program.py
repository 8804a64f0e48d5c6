"""What the compiler says of a program: its memory, and what devices send each other."""

from __future__ import annotations

import dataclasses
import math
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax

COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "collective-permute", "all-to-all")
BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s16": 2, "u16": 2, "f64": 8, "s64": 8, "u64": 8}
ARRAY = re.compile(r"(\w+)\[([\d,]*)\]")
INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%\S+ = (\(.*?\)|\S+) ([a-z][\w-]*)\((.*)", re.M)
COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.-]+) \(.*\{\n((?:.*\n)*?)\}", re.M)
LOOP = re.compile(r" while\(.*condition=%(?P<condition>[\w.-]+), body=%(?P<body>[\w.-]+)")
FUSED = re.compile(r" fusion\(.*calls=%([\w.-]+)")
CHANNEL = re.compile(r"channel_id=(\d+)")
LENGTH = re.compile(r"known_trip_count[^0-9]*(\d+)|s32\[\]\S* constant\((\d+)\)")


class DoesNotFit(Exception):
    """The compiler refuses a program that needs more memory than a device has."""


@dataclasses.dataclass(frozen=True)
class CompiledProgram:
    """One compiled program, as each device runs it. All sizes are in bytes.

    arguments: what it is given; donated: the part of it that the results take over.
    results, temporaries, code: what else it takes.
    collectives: {kind: (number, bytes)} of what devices exchange in a step. seconds: the time it took to compile.
    """

    arguments: int
    donated: int
    results: int
    temporaries: int
    code: int
    collectives: dict[str, tuple[int, int]]
    seconds: float

    @property
    def memory(self) -> int:
        return self.arguments + self.results - self.donated + self.temporaries + self.code


def compiled(function: Callable[..., Any], arguments: tuple[Any, ...]) -> CompiledProgram:
    """Compile a function of `TrialLoop.program`. Raises DoesNotFit if the compiler says so."""
    begin = time.perf_counter()
    try:
        done = function.lower(*arguments).compile()  # type: ignore[attr-defined]
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        raise DoesNotFit(str(error).split("RESOURCE_EXHAUSTED: ")[-1].splitlines()[0]) from error
    seconds, memory = time.perf_counter() - begin, done.memory_analysis()
    return CompiledProgram(
        arguments=memory.argument_size_in_bytes,
        donated=memory.alias_size_in_bytes,
        results=memory.output_size_in_bytes,
        temporaries=memory.temp_size_in_bytes,
        code=memory.generated_code_size_in_bytes,
        collectives=collectives(done.as_text()),
        seconds=seconds,
    )


def collectives(text: str) -> dict[str, tuple[int, int]]:
    """{kind: (number, bytes of their results)} of what devices exchange in a step, from an optimized program's text.

    The result of a TPU's reduce-scatter counts before it is scattered.
    """
    exchanged: dict[str, tuple[int, int]] = {}
    gathered: set[str] = set()
    for times, body, fusion in _computations(text):
        for shape, operation, rest in INSTRUCTION.findall(body):
            kind = operation.removesuffix("-start")
            if kind in COLLECTIVES:
                channel = CHANNEL.search(rest)
                if fusion and kind == "all-gather" and channel:  # in parts, beside what is computed meanwhile
                    if channel[1] in gathered:
                        continue
                    gathered.add(channel[1])
                if "reduce-scatter" in fusion:  # a TPU's program writes it as a sum of which each device takes a part
                    kind = "reduce-scatter"
                arrays = [_size(*array) for array in ARRAY.findall(shape) if array != ("u32", "")]  # not its flags
                if operation != kind and kind != "all-reduce":  # the start of others also names its operands
                    arrays = arrays[len(arrays) // 2 :]
                number, size = exchanged.get(kind, (0, 0))
                exchanged[kind] = number + times, size + times * sum(arrays)
    return exchanged


def _computations(text: str) -> Iterator[tuple[int, str, str]]:
    """(how often it runs in a step, its text, "") of the program itself and of the bodies of its loops, and of their
    fusions with the fusion's name in the third place."""
    bodies = {name: body for _, name, body in COMPUTATION.findall(text)}
    following = [(name, 1) for start, name, _ in COMPUTATION.findall(text) if start]
    while following:
        name, times = following.pop()
        yield times, bodies[name], ""
        for line in bodies[name].splitlines():
            if match := FUSED.search(line):
                yield times, bodies.get(match[1], ""), match[1]
            if match := LOOP.search(line):
                # A scan compares its counter with a number; a loop of steps has no such number, and counts once.
                ends = LENGTH.search(line) or LENGTH.search(bodies[match["condition"]])
                length = int(ends[1] or ends[2]) if ends else 1
                following.append((match["body"], times * length))


def _size(kind: str, axes: str) -> int:
    """Bytes of an array, such as ("bf16", "8,16")."""
    return BYTES.get(kind, 4) * math.prod(int(axis) for axis in axes.split(",") if axis)
