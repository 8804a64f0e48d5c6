"""Operations (multiplications and additions) of a step; MFU is the share of a chip's peak that they use."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
from jax.extend.core import jaxprs_in_params

from depthmup.models.convolution import conv_p
from depthmup.train.step import Hyper, Trainable


def count_operations(function: Callable[..., Any], *arguments: Any) -> float:
    """Operations of all matrix products and convolutions of a function.

    A multiplication and its addition count as 2. The body of a scan counts as often as it runs, the body of a
    `while_loop` once, and a `cond` as its most expensive branch. The gradient of a strided convolution puts zeros
    between pixels; operations on these zeros count too.

    arguments: arrays or shapes.
    """
    return _count(jax.make_jaxpr(function)(*arguments).jaxpr)


def of_step(task: Trainable, hyper: Hyper, batch_size: int) -> float:
    """Operations of a training step, forwards and backwards."""
    arrays = hyper.arrays()
    return count_operations(task.step, jax.eval_shape(task.init, arrays), task.batch_shapes(batch_size), arrays)


def _count(jaxpr: Any) -> float:
    total = 0.0
    for equation in jaxpr.eqns:
        name, parameters = equation.primitive.name, equation.params
        if name == "dot_general":
            (contracted, _), _ = parameters["dimension_numbers"]
            left = equation.invars[0].aval.shape
            total += 2.0 * equation.outvars[0].aval.size * math.prod(left[axis] for axis in contracted)
        elif name == "ragged_dot_general":
            numbers = parameters["ragged_dot_dimension_numbers"]
            (contracted, _), _ = numbers.dot_dimension_numbers
            left, groups = equation.invars[0].aval.shape, equation.invars[2].aval.shape[-1]
            terms = math.prod(left[axis] for axis in contracted)
            if set(numbers.lhs_ragged_dimensions) & set(contracted):
                terms /= groups  # each group sums over its own rows
            total += 2.0 * equation.outvars[0].aval.size * terms
        elif name in ("conv_general_dilated", conv_p.name):
            numbers = parameters["window"].dimension_numbers if name == conv_p.name else parameters["dimension_numbers"]
            kernel, out_features = equation.invars[1].aval, numbers.rhs_spec[0]
            total += 2.0 * equation.outvars[0].aval.size * kernel.size / kernel.shape[out_features]
        else:
            inner = [_count(sub) for sub in jaxprs_in_params(parameters)]
            total += parameters.get("length", 1) * (max(inner) if name == "cond" else sum(inner))
    return total
