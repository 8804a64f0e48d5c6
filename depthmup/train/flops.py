"""Operations (multiplications and additions) of a step, and the peak of a device: MFU is the share that is used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from depthmup.models.convolution import conv_p
from depthmup.train.task import Hyper, Task

# Dense bfloat16 operations per second of one jax device, from the vendors' data sheets. A device has the value of the
# first name here that its `device_kind` contains.
PEAK = {
    "H100": 989e12,
    "H200": 989e12,
    "B200": 2250e12,
    "A100": 312e12,
    "V100": 125e12,
    "TPU v6": 918e12,
    "TPU v5p": 459e12,
    "TPU v5 lite": 197e12,
    "TPU v5e": 197e12,
    "TPU v4": 275e12,
    "TPU v3": 61.5e12,
}


def peak(device: jax.Device) -> float | None:
    """Operations per second that a device can do in bfloat16; None if its kind is not in PEAK."""
    return next((value for name, value in PEAK.items() if name in device.device_kind), None)


def count(function: Callable[..., Any], *arguments: Any) -> float:
    """Operations of all matrix products and convolutions of a function.

    A multiplication and its addition count as 2. The body of a scan counts as often as it runs, the body of a
    `while_loop` once, and a `cond` as its most expensive branch. The gradient of a strided convolution puts zeros
    between pixels; operations on these zeros count too.

    arguments: arrays or shapes.
    """
    return _count(jax.make_jaxpr(function)(*arguments).jaxpr)


def of_step(task: Task, hyper: Hyper, batch_size: int) -> float:
    """Operations of a training step, forwards and backwards."""
    inputs = jax.ShapeDtypeStruct((batch_size, *task.input_shape), np.float32)
    labels = jax.ShapeDtypeStruct((batch_size,), np.int32)
    arrays = hyper.arrays()
    return count(task.step, jax.eval_shape(task.init, arrays), (inputs, labels), arrays)


def _count(jaxpr: Any) -> float:
    total = 0.0
    for equation in jaxpr.eqns:
        name, parameters = equation.primitive.name, equation.params
        if name == "dot_general":
            (contracted, _), _ = parameters["dimension_numbers"]
            total += 2.0 * equation.outvars[0].aval.size * _size(equation.invars[0].aval.shape, contracted)
        elif name in ("conv_general_dilated", conv_p.name):
            numbers = parameters["window"].dimension_numbers if name == conv_p.name else parameters["dimension_numbers"]
            kernel, out_features = equation.invars[1].aval, numbers.rhs_spec[0]
            total += 2.0 * equation.outvars[0].aval.size * kernel.size / kernel.shape[out_features]
        else:
            inner = [_count(sub) for value in parameters.values() for sub in _jaxprs(value)]
            total += (max(inner, default=0.0) if name == "cond" else sum(inner)) * parameters.get("length", 1)
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
