"""Stacks of equal blocks, scanned or unrolled: running them, their states, and converting their parameters."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

PyTree = Any


def sow_state(module: nn.Module, h: jax.Array) -> None:
    """One of h^0 .. h^L, as "h" in the collection "stream"."""
    if not module.is_initializing():
        module.sow("stream", "h", h)


def sow_hidden(module: nn.Module, h: jax.Array) -> None:
    """The last state, as "hidden" in the collection "features"."""
    if not module.is_initializing():
        module.sow("features", "hidden", h, reduce_fn=lambda _, new: new, init_fn=lambda: None)


def stack(
    parent: nn.Module,
    make: Callable[[str], nn.Module],
    call: Callable[[nn.Module, jax.Array], jax.Array],
    h: jax.Array,
    count: int,
    *,
    scan: bool,
    first: int = 0,
    scanned: str = "blocks",
) -> jax.Array:
    """h <- call(make("block_i"), h) for i = first .. first + count - 1, or scanned over one make(`scanned`).

    The blocks must be equal. `parent` sows each state.
    """
    if scan and count:
        keep = parent.is_mutable_collection("stream") and not parent.is_initializing()

        def body(module: nn.Module, h: jax.Array) -> tuple[jax.Array, jax.Array | None]:
            h = call(module, h)
            return h, h if keep else None

        blocks = nn.scan(
            body,
            variable_axes={"params": 0, "batch_stats": 0},
            split_rngs={"params": True, "dropout": True},
            length=count,
        )
        h, states = blocks(make(scanned), h)
        for state in states if states is not None else ():
            sow_state(parent, state)
        return h
    for i in range(first, first + count):
        h = call(make(f"block_{i}"), h)
        sow_state(parent, h)
    return h


def states(sown: PyTree) -> list[jax.Array]:
    """h^0 .. h^L from the collection "stream"."""
    if not isinstance(sown, Mapping):
        return list(sown)
    return [h for name in sorted(sown, key=natural) for h in states(sown[name])]


def stack_blocks(tree: PyTree, like: PyTree, join: Callable[..., Any] = lambda *leaves: jnp.stack(leaves)) -> PyTree:
    """The tree of an unrolled model (parameters, gradients, batch statistics) as that of the scanned one.

    like: the scanned model's tree, arrays or shapes: where it has `blocks`, the next unrolled `block_i` are joined.
    """
    result, following = {}, 0
    if not isinstance(like, Mapping):
        return tree
    for name in sorted(like, key=natural):
        if re.fullmatch(r"blocks(_\d+)?", name):
            count = jax.tree.leaves(like[name])[0].shape[0]
            blocks = [tree[f"block_{following + i}"] for i in range(count)]
            result[name] = jax.tree.map(join, *blocks)
            following += count
        else:
            result[name] = stack_blocks(tree[name], like[name], join)
            following += bool(re.fullmatch(r"block_\d+", name))
    return result


def unstack_blocks(tree: PyTree) -> PyTree:
    """The tree of a scanned model as that of the unrolled one; undoes `stack_blocks`."""
    if not isinstance(tree, Mapping):
        return tree
    result, following = {}, 0
    for name in sorted(tree, key=natural):
        if re.fullmatch(r"blocks(_\d+)?", name):
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
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]
