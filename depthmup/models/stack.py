"""Stacks of equal blocks, scanned or unrolled: how they run, record their states, and convert their parameters."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from depthmup.models.layers import split_batch
from depthmup.rules.specs import PyTree

SCANNED = re.compile(r"blocks(_\d+)?")  # names of scanned blocks, whose parameters have a leading axis over them
MIXED = "mixed"  # name of what attention makes of the values
RematKeeps = Literal["nothing", "dots"]
# What gradients keep of blocks that they compute again, beside their inputs.
REMAT_KEEPS: dict[RematKeeps, Callable[..., bool] | None] = {
    "nothing": None,
    "dots": jax.checkpoint_policies.save_from_both_policies(
        jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
        jax.checkpoint_policies.save_only_these_names(MIXED),
    ),
}


def state(module: nn.Module, h: jax.Array) -> jax.Array:
    """Record h as the module's next state, one of h^0 .. h^L, and return it; the model continues from the result.

    The state is sown as the next entry of the tuple "h" in the collection "stream". If the collection "shift" holds a
    tuple "h" of arrays, the entry at the same place is added first; "stream" must then be mutable.
    """
    for shift in next_shifts(module, 1):
        h = h + shift
    h = split_batch(h)
    if not module.is_initializing():
        module.sow("stream", "h", h)
    return h


def next_shifts(module: nn.Module, count: int) -> tuple[jax.Array, ...]:
    """The arrays to add to the next `count` states of this module; () if the collection "shift" holds none."""
    sown = len(module.get_variable("stream", "h", ()))
    return module.get_variable("shift", "h", ())[sown : sown + count]


def sow_hidden(module: nn.Module, h: jax.Array) -> None:
    """Sow the last state as "hidden" in the collection "features"."""
    if not module.is_initializing():
        module.sow("features", "hidden", h, reduce_fn=lambda _, new: new, init_fn=lambda: None)


def stack(
    parent: nn.Module,
    make: Callable[[str], nn.Module],
    call: Callable[[nn.Module, jax.Array], jax.Array],
    h: jax.Array,
    count: int,
    *,
    first: int = 0,
    scanned: str = "blocks",
    keep: Callable[..., bool] | None = None,
) -> jax.Array:
    """Apply `count` equal blocks to h; `parent` records each result as `state` does. Returns the last result.

    Unrolled: h <- call(make("block_i"), h) for i = first .. first + count - 1. With `parent.scan`: the same with one
    block make(scanned), whose parameters have a leading axis over the blocks. With `parent.remat`: gradients compute
    each block again from its input, and so keep nothing but the blocks' inputs and what `keep`, one of `REMAT_KEEPS`,
    chooses.
    """
    if parent.remat:  # a scanned body is a computation of its own, which XLA does not merge with its repetition
        call = nn.remat(call, prevent_cse=not parent.scan, policy=keep)
    if parent.scan and count:
        record = parent.is_mutable_collection("stream") and not parent.is_initializing()
        shifts = next_shifts(parent, count)

        def body(module: nn.Module, h: jax.Array, shift: jax.Array | None) -> tuple[jax.Array, jax.Array | None]:
            h = split_batch(call(module, h))
            h = h if shift is None else h + shift
            return h, h if record else None

        blocks = nn.scan(
            body,
            variable_axes={True: 0},  # all collections, since measurements write collections of their own
            split_rngs={"params": True, "dropout": True},
            length=count,
        )
        h, states = blocks(make(scanned), h, jnp.stack(shifts) if shifts else None)
        for after in states if states is not None else ():
            parent.sow("stream", "h", after)
        return h
    for i in range(first, first + count):
        h = state(parent, call(make(f"block_{i}"), h))
    return h


def states(sown: PyTree) -> list[jax.Array]:
    """The states of a model, in order.

    Args:
      sown: the collection "stream" that `apply(..., mutable=["stream"])` returns.

    Returns:
      h^0 .. h^L, (batch, ...) each.
    """
    if not isinstance(sown, Mapping):
        return list(sown)
    return [h for name in sorted(sown, key=natural) for h in states(sown[name])]


def stack_blocks(tree: PyTree, like: PyTree, join: Callable[..., Any] = lambda *leaves: jnp.stack(leaves)) -> PyTree:
    """Convert an unrolled model's tree (parameters, gradients or batch statistics) into the scanned model's tree.

    Args:
      tree: of the unrolled model, with `block_0`, `block_1`, ...
      like: the scanned model's tree, of arrays or shapes. Where it has `blocks`, the next unrolled `block_i` are
        joined.
      join: how, by default stacked along a new first axis.

    Returns:
      A tree in the structure of `like`.
    """
    result, following = {}, 0
    if not isinstance(like, Mapping):
        return tree
    for name in sorted(like, key=natural):
        if SCANNED.fullmatch(name):
            count = jax.tree.leaves(like[name])[0].shape[0]
            blocks = [tree[f"block_{following + i}"] for i in range(count)]
            result[name] = jax.tree.map(join, *blocks)
            following += count
        else:
            result[name] = stack_blocks(tree[name], like[name], join)
            following += bool(re.fullmatch(r"block_\d+", name))
    return result


def unstack_blocks(tree: PyTree) -> PyTree:
    """Convert a scanned model's tree into the unrolled model's tree; the inverse of `stack_blocks`.

    Args:
      tree: of the scanned model, with `blocks` whose arrays have a leading axis.

    Returns:
      The tree with `block_0`, `block_1`, ...
    """
    if not isinstance(tree, Mapping):
        return tree
    result, following = {}, 0
    for name in sorted(tree, key=natural):
        if SCANNED.fullmatch(name):
            count = jax.tree.leaves(tree[name])[0].shape[0]
            for i in range(count):
                result[f"block_{following + i}"] = jax.tree.map(lambda leaf, i=i: leaf[i], tree[name])
            following += count
        else:
            result[name] = unstack_blocks(tree[name])
            following += bool(re.fullmatch(r"block_\d+", name))
    return result


def natural(name: str) -> list[Any]:
    """Sort key under which block_2 comes before block_10, and block_0 before blocks."""
    return [int(word) if word.isdigit() else word for word in re.split(r"(\d+)", name)]
