"""Operations (multiplications and additions) of a step; MFU is the share of a chip's peak that they use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from depthmup.models.convolution import conv_p
from depthmup.train.task import Hyper, Task


def count(function: Callable[..., Any], *arguments: Any) -> float:
    """Operations of all matrix products and convolutions of a function.

    A multiplication and its addition count as 2. The body of a scan counts as often as it runs, the body of a
    `while_loop` once, and a `cond` as its most expensive branch. The gradient of a strided convolution puts zeros
    between pixels; operations on these zeros count too.

    arguments: arrays or shapes.
    """
    return sum(by_dtype(function, *arguments).values())


def by_dtype(function: Callable[..., Any], *arguments: Any) -> dict[str, float]:
    """The operations of `count` by what they multiply: {"bfloat16": operations, "float32": operations}."""
    return dict(_count(jax.make_jaxpr(function)(*arguments).jaxpr))


def of_step(task: Task, hyper: Hyper, batch_size: int) -> float:
    """Operations of a training step, forwards and backwards."""
    return sum(of_step_by_dtype(task, hyper, batch_size).values())


def of_step_by_dtype(task: Task, hyper: Hyper, batch_size: int) -> dict[str, float]:
    """`by_dtype` of a training step, forwards and backwards."""
    batch, arrays = task.model.batch_shapes(batch_size, task.input_shape), hyper.arrays()
    return by_dtype(task.step, jax.eval_shape(task.init, arrays), batch, arrays)


def _count(jaxpr: Any) -> Counter[str]:
    total = Counter[str]()
    for equation in jaxpr.eqns:
        name, parameters = equation.primitive.name, equation.params
        if name == "dot_general":
            (contracted, _), _ = parameters["dimension_numbers"]
            operand = equation.invars[0].aval
            total[operand.dtype.name] += 2.0 * equation.outvars[0].aval.size * _size(operand.shape, contracted)
        elif name in ("conv_general_dilated", conv_p.name):
            numbers = parameters["window"].dimension_numbers if name == conv_p.name else parameters["dimension_numbers"]
            kernel, out_features = equation.invars[1].aval, numbers.rhs_spec[0]
            total[kernel.dtype.name] += 2.0 * equation.outvars[0].aval.size * kernel.size / kernel.shape[out_features]
        else:
            inner = [_count(sub) for value in parameters.values() for sub in _jaxprs(value)]
            if name == "cond":
                inner = [max(inner, key=Counter.total)]
            for counted in inner:
                total.update({dtype: parameters.get("length", 1) * number for dtype, number in counted.items()})
    return total


def _size(shape: tuple[int, ...], axes: tuple[int, ...]) -> int:
    return int(np.prod([shape[axis] for axis in axes]))


def _jaxprs(value: Any) -> Iterator[Any]:
    if hasattr(value, "eqns"):
        yield value
    elif hasattr(value, "jaxpr"):
        yield value.jaxpr
    elif isinstance(value, tuple | list):
        for one in value:
            yield from _jaxprs(one)
