"""What is wrong with a batch: labels that are no classes, numbers that are not finite, integers that are cut off."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from depthmup.names import short

PyTree = Any
Batch = tuple[Any, ...]
Loss = Callable[[Any, Any], jax.Array]
UNTRACED = (jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError)
NOT_COMPILED = (
    "the model or the loss cannot be compiled, since it asks for the value of an array, as float(), if and NumPy do: "
    "write it with jax.numpy alone"
)


def check_loss(loss: Loss, logits: jax.ShapeDtypeStruct, targets: PyTree) -> None:
    """Raises ValueError for a loss that has no gradient in the logits, and for targets of which it makes something that
    is not finite or that it takes for classes which they are not. Labels that a loss masks are as they should be."""
    check_callable(loss)
    outputs = jnp.asarray(np.random.default_rng(0).standard_normal(logits.shape), logits.dtype)
    try:
        value = jax.eval_shape(loss, outputs, targets)
    except UNTRACED as error:
        raise ValueError(NOT_COMPILED) from error
    except Exception as error:
        error.add_note(f"(of the loss, which was called with logits of shape {logits.shape} and the targets)")
        raise
    if problem := no_loss(value):
        raise ValueError(problem)
    try:
        value, gradient = jax.jit(jax.value_and_grad(loss))(outputs, targets)
    except UNTRACED as error:
        raise ValueError(NOT_COMPILED) from error
    outside = _outside(targets, logits.shape)
    if outside and (not jnp.isfinite(value) or loss(outputs, _taken(targets, logits.shape)) == value):
        raise ValueError(
            f"{outside}, and the loss takes it for one or is not finite: correct the labels, or mask them in the loss"
        )
    if not jnp.isfinite(value):
        raise ValueError(
            f"the loss of finite logits is {value}; {not_finite((0, targets)) or 'the targets are finite'}"
        )
    if not jnp.any(gradient):
        raise ValueError("the loss does not depend on the logits: its gradient is 0")


def no_loss(value: Any) -> str:
    """Why what a loss returns, with shapes for arrays, is none, in words; "" if it is one number."""
    if getattr(value, "shape", None) == () and jnp.issubdtype(value.dtype, jnp.floating):
        return ""
    what = f"an array {value.dtype} {value.shape}" if hasattr(value, "shape") else f"a {type(value).__name__}"
    return f"the loss must be one number, the mean over the batch; loss(outputs, targets) gives {what}"


def check_callable(loss: object) -> None:
    """Raises ValueError for a loss that is no function."""
    if not callable(loss):
        raise ValueError(f"the loss must be a function (logits, targets) -> scalar, got {short(loss)}")


def checked_batch(batch: Any) -> Batch:
    """A batch as a tuple. Raises ValueError for what is none."""
    if not isinstance(batch, tuple | list) or len(batch) < 2:
        raise ValueError(f"a batch must be a tuple (*inputs, targets), got {short(batch)}")
    return tuple(batch)


def not_finite(batch: Batch) -> str:
    """Which part of a batch (*inputs, targets) has a number that is not finite, in words; "" if none."""
    for name, leaf in _leaves(batch):
        if jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
            places = np.argwhere(~np.isfinite(np.asarray(leaf, np.float32)))
            if len(places):
                first = tuple(places[0].tolist())
                where = f" in example {first[0]}" if first else ""
                return f"{name} has {np.asarray(leaf)[first]}{where}"
    return ""


def too_large(batch: Batch) -> str:
    """Which part of a batch has integers that JAX cuts off, in words; "" if none."""
    for name, leaf in _leaves(batch):
        if isinstance(leaf, np.ndarray) and leaf.dtype in (np.int64, np.uint64) and leaf.size:
            kept = np.iinfo(jax.dtypes.canonicalize_dtype(leaf.dtype))
            low, high = int(leaf.min()), int(leaf.max())
            if low < kept.min or high > kept.max:
                return f"{name} has integers from {low} to {high}, beyond the {kept.bits} bits of JAX's"
    return ""


def is_odd(batch: Batch, shape: tuple[int, ...] = ()) -> bool:
    """Whether a batch is to be looked at. shape: of the logits, () where targets are no labels of these."""
    return bool(too_large(batch) or not_finite(batch) or (shape and _outside(batch[-1], shape)))


def shapes_of(tree: PyTree) -> PyTree:
    """The tree with shapes for arrays."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.result_type(leaf)), tree)


def _leaves(batch: Batch) -> Iterator[tuple[str, Any]]:
    """(its name, the array) of the parts of a batch."""
    for path, leaf in jax.tree_util.tree_flatten_with_path(tuple(batch))[0]:
        number, rest = path[0].idx, jax.tree_util.keystr(path[1:])
        yield (f"targets{rest}" if number == len(batch) - 1 > 0 else f"inputs[{number}]{rest}"), leaf


def _labels(targets: PyTree) -> list[Any]:
    return [leaf for leaf in jax.tree.leaves(targets) if jnp.issubdtype(jnp.result_type(leaf), jnp.integer)]


def _outside(targets: PyTree, shape: tuple[int, ...]) -> str:
    """The first label that is none of the classes, in words; "" if none. shape: of the logits; the number of examples
    may differ."""
    for leaf in _labels(targets):
        if jnp.shape(leaf)[1:] == shape[1:-1]:
            values = np.asarray(leaf)
            odd = values[(values < 0) | (values >= shape[-1])]
            if odd.size:
                return f"the label {odd[0]} is none of the classes 0 to {shape[-1] - 1}"
    return ""


def _taken(targets: PyTree, shape: tuple[int, ...]) -> PyTree:
    """The targets with the classes that an index beyond the ends stands for."""

    def inside(leaf: Any) -> Any:
        if not jnp.issubdtype(jnp.result_type(leaf), jnp.integer) or jnp.shape(leaf)[1:] != shape[1:-1]:
            return leaf
        return jnp.clip(jnp.where(jnp.asarray(leaf) < 0, leaf + shape[-1], leaf), 0, shape[-1] - 1)

    return jax.tree.map(inside, targets)
