"""The results of operations by NumPy: JAX compiles a program for each operation and shape, which takes longer than all
else that a graph does with them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from depthmup.reading.graph.jaxpr import bind, summed

LARGEST = 2**18  # multiplications of a product by NumPy: for more of them its threads start, and wait busily


def evaluated(equation: Any, operands: Sequence[Any]) -> list[Any]:
    """The results of an equation: by NumPy if it has the operation and all operands are its arrays, else by JAX."""
    rule, shape = RULES.get(equation.primitive.name), equation.outvars[0].aval.shape
    if rule is _dot_general and math.prod(shape) * summed(equation) > LARGEST:
        rule = None
    if rule and all(isinstance(operand, np.ndarray) and operand.dtype.kind in "fiub" for operand in operands):
        with np.errstate(all="ignore"):
            return [np.asarray(rule(equation.params, *operands), equation.outvars[0].aval.dtype)]
    return [as_numpy(result) for result in bind(equation, operands)]


def as_numpy(value: Any) -> Any:
    """An array or a number as NumPy's array; traced ones and keys as they are."""
    kept = isinstance(value, jax.core.Tracer) or jax.dtypes.issubdtype(
        jax.numpy.result_type(value), jax.dtypes.extended
    )
    return value if kept else np.asarray(value, jax.numpy.result_type(value))


def _dot_general(params: Any, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    (contracted, batch), operands = params["dimension_numbers"], (left, right)
    free = [
        [axis for axis in range(operand.ndim) if axis not in (*sums, *copies)]
        for operand, sums, copies in zip(operands, contracted, batch, strict=True)
    ]
    copies, rows, columns, terms = (
        [operand.shape[axis] for axis in axes]
        for operand, axes in ((left, batch[0]), (left, free[0]), (right, free[1]), (left, contracted[0]))
    )
    left = left.transpose(*batch[0], *free[0], *contracted[0]).reshape(*copies, math.prod(rows), math.prod(terms))
    right = right.transpose(*batch[1], *contracted[1], *free[1]).reshape(*copies, math.prod(terms), math.prod(columns))
    # A copy: of a matrix and itself NumPy sums in another order.
    return np.matmul(left, np.ascontiguousarray(right)).reshape(*copies, *rows, *columns)


def _broadcast_in_dim(params: Any, operand: np.ndarray) -> np.ndarray:
    shape, sizes = params["shape"], dict(zip(params["broadcast_dimensions"], operand.shape, strict=True))
    return np.broadcast_to(operand.reshape([sizes.get(axis, 1) for axis in range(len(shape))]), shape)


def _slice(params: Any, operand: np.ndarray) -> np.ndarray:
    steps = params["strides"] or [1] * operand.ndim
    return operand[tuple(map(slice, params["start_indices"], params["limit_indices"], steps))]


def _iota(params: Any) -> np.ndarray:
    indices = np.indices(params["shape"], params["dtype"], sparse=True)
    return np.broadcast_to(indices[params["dimension"]], params["shape"])


def _divided(_: Any, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    return left / right if left.dtype.kind == "f" else np.trunc(left / right)


def _special(name: str) -> Callable[..., Any]:
    def function(operand: np.ndarray) -> Any:
        from scipy import special  # here, since it is slow to load

        return getattr(special, name)(operand)

    return function


UFUNCS: dict[str, Callable[..., Any]] = {
    **{name: getattr(np, name) for name in ("abs", "ceil", "cos", "exp", "exp2", "expm1", "floor", "log", "log1p")},
    **{name: getattr(np, name) for name in ("sign", "sin", "sqrt", "square", "tan", "tanh")},
    **{"add": np.add, "add_any": np.add, "sub": np.subtract, "mul": np.multiply, "neg": np.negative},
    **{"max": np.maximum, "min": np.minimum, "is_finite": np.isfinite, "copy": np.asarray, "copy_p": np.asarray},
    **{"stop_gradient": np.asarray, "nextafter": np.nextafter},
    **{"and": np.bitwise_and, "or": np.bitwise_or, "not": np.invert, "xor": np.bitwise_xor},
    **{"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater},
    **{"ge": np.greater_equal, "erf": _special("erf"), "erfc": _special("erfc"), "erf_inv": _special("erfinv")},
}
REDUCTIONS = {"reduce_sum": np.add, "reduce_max": np.maximum, "reduce_min": np.minimum}
# {operation: (its parameters, operands) -> its result}
RULES: dict[str, Callable[..., Any]] = {
    **{name: lambda _, *operands, of=ufunc: of(*operands) for name, ufunc in UFUNCS.items()},
    **{
        name: lambda params, operand, of=ufunc: of.reduce(operand, tuple(params["axes"]), operand.dtype)
        for name, ufunc in REDUCTIONS.items()
    },
    "bitcast_convert_type": lambda params, operand: operand.view(params["new_dtype"]),
    "broadcast_in_dim": _broadcast_in_dim,
    "clamp": lambda _, low, operand, high: np.minimum(np.maximum(operand, low), high),
    "concatenate": lambda params, *operands: np.concatenate(operands, params["dimension"]),
    "convert_element_type": lambda params, operand: operand.astype(params["new_dtype"]),
    "div": _divided,
    "dot_general": _dot_general,
    "integer_pow": lambda params, operand: operand ** params["y"],
    "iota": _iota,
    "logistic": lambda _, operand: 1 / (1 + np.exp(-operand)),
    "reshape": lambda params, operand: operand.reshape(params["new_sizes"]),
    "rsqrt": lambda _, operand: 1 / np.sqrt(operand),
    "select_n": lambda _, which, *cases: np.choose(which, cases),
    "shift_right_logical": lambda _, operand, bits: (
        operand.view(f"u{operand.itemsize}") >> bits.view(f"u{bits.itemsize}")
    ),
    "slice": _slice,
    "squeeze": lambda params, operand: operand.squeeze(tuple(params["dimensions"])),
    "transpose": lambda params, operand: operand.transpose(params["permutation"]),
}
