"""Attention of queries to keys and values: of few tokens whole, of many in blocks or by an accelerator's own kernel."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, PartitionSpec

BLOCK = 512  # tokens up to which all scores are stored
ROWS = 128  # queries of a block
SPANS = 4  # parts of the queries of causal attention, each of which leaves out the keys behind it
TILE = 128  # of the TPU's kernel, which takes whole ones

Kernel = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


def attend(q: jax.Array, k: jax.Array, v: jax.Array, factor: Any, *, causal: bool, kernels: bool = True) -> jax.Array:
    """softmax(factor q . k) v of each head: (batch, tokens, heads, head_dim) -> the same shape.

    k, v: (batch, tokens, kv_heads, head_dim), kv_heads a divisor of heads: each is shared by neighbouring heads.
    factor: may be traced. causal: a token sees itself and the tokens before it. Scores and softmax are in float32 or
    wider.

    Of more than `BLOCK` tokens no (tokens, tokens) array is stored, forwards or backwards: blocks of queries run one
    after another, and gradients compute them again. With `kernels` a TPU runs Pallas's flash attention there (Dao et
    al. 2022), and a GPU in bfloat16 cuDNN's. These have gradients, but no other derivatives: no jvp, no Hessian.
    """
    tokens, group = q.shape[1], q.shape[2] // k.shape[2]
    share = lambda z: z if group == 1 else jnp.repeat(z, group, axis=2)  # noqa: E731
    if tokens <= BLOCK:
        return _rows(q, share(k), share(v), factor, 0, causal)
    blocks = functools.partial(_blocks, factor=factor, causal=causal)
    if not kernels or jax.dtypes.canonicalize_dtype(float) == jnp.float64:  # where Pallas's does not compile
        return blocks(q, share(k), share(v))
    scaled = lambda q: (factor * q).astype(q.dtype)  # noqa: E731  # kernels take a Python number alone
    flash = _over_batch(functools.partial(_flash, causal=causal), len(q))
    branches: dict[str, Kernel] = {"tpu": lambda q, k, v: flash(scaled(q), share(k), share(v))} if flash else {}
    if q.dtype == jnp.bfloat16 and jax.default_backend() == "gpu" and q.shape[-1] % 8 == 0 and q.shape[-1] <= 128:
        branches["cuda"] = lambda q, k, v: jax.nn.dot_product_attention(  # JAX has it where there is a GPU alone
            scaled(q), k, v, scale=1.0, is_causal=causal, implementation="cudnn"
        )
    return jax.lax.platform_dependent(q, k, v, **branches, default=lambda q, k, v: blocks(q, share(k), share(v)))


def _rows(q: jax.Array, k: jax.Array, v: jax.Array, factor: Any, first: Any, causal: bool) -> jax.Array:
    """Attention of the queries from token `first` on to all keys; it stores all scores."""
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k)
    scores = scores.astype(jnp.promote_types(scores.dtype, jnp.float32))
    scores = jnp.asarray(factor, scores.dtype) * scores
    if causal:
        seen = first + jnp.arange(q.shape[1])[:, None] >= jnp.arange(k.shape[1])
        scores = jnp.where(seen, scores, -jnp.inf)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores).astype(v.dtype), v)


def _blocks(q: jax.Array, k: jax.Array, v: jax.Array, factor: Any, causal: bool) -> jax.Array:
    """`_rows` of one block of queries after another, whose scores gradients compute again."""
    tokens = q.shape[1]
    count = -(-tokens // ROWS)
    q = jnp.pad(q, ((0, 0), (0, count * ROWS - tokens), (0, 0), (0, 0)))
    parts = q.reshape(q.shape[0], count, ROWS, *q.shape[2:]).swapaxes(0, 1)
    spans = min(SPANS, count) if causal else 1
    results = []
    for span in range(spans):
        low, high = span * count // spans, (span + 1) * count // spans
        seen = min(high * ROWS, tokens) if causal else tokens
        results.append(_span(parts[low:high], k[:, :seen], v[:, :seen], factor, low * ROWS, causal))
    out = jnp.concatenate(results).swapaxes(0, 1)
    return out.reshape(*q.shape)[:, :tokens]


def _span(parts: jax.Array, k: jax.Array, v: jax.Array, factor: Any, first: int, causal: bool) -> jax.Array:
    @functools.partial(jax.checkpoint, prevent_cse=False)  # a loop's body is not merged with its repetition
    def block(numbered: tuple[jax.Array, jax.Array]) -> jax.Array:
        number, queries = numbered
        return _rows(queries, k, v, factor, first + number * ROWS, causal)

    return jax.lax.map(block, (jnp.arange(len(parts)), parts))


def _over_batch(kernel: Kernel, batch: int) -> Kernel | None:
    """The kernel of each device's part of the batch, where XLA splits the program over the mesh of the context: it
    cannot split a TPU's kernel. None for a batch that the devices do not divide."""
    mesh = jax.sharding.get_abstract_mesh()
    axes = [axis for axis, kind in zip(mesh.axis_names, mesh.axis_types, strict=True) if kind == AxisType.Auto]
    if batch % math.prod(mesh.shape[axis] for axis in axes):
        return None
    split = PartitionSpec(tuple(axes))
    return jax.shard_map(kernel, in_specs=split, out_specs=split, check_vma=False) if axes else kernel


def _flash(q: jax.Array, k: jax.Array, v: jax.Array, causal: bool) -> jax.Array:
    """Pallas's attention on a TPU, of q . k."""
    from jax.experimental.pallas.ops.tpu.flash_attention import BlockSizes, SegmentIds, flash_attention

    batch, tokens = q.shape[:2]
    padded = -(-tokens // TILE) * TILE
    size = next(size for size in (512, 256, 128) if padded % size == 0)
    pad = lambda z: jnp.pad(z, ((0, 0), (0, padded - tokens), (0, 0), (0, 0))).swapaxes(1, 2)  # noqa: E731
    segments = None
    if padded > tokens and not causal:  # causal queries do not see what is behind them
        ids = jnp.broadcast_to((jnp.arange(padded) >= tokens).astype(jnp.int32), (batch, padded))
        segments = SegmentIds(ids, ids)
    sizes = BlockSizes(**{f.name: size for f in dataclasses.fields(BlockSizes)} | {"block_b": 1})
    out = flash_attention(pad(q), pad(k), pad(v), segment_ids=segments, causal=causal, block_sizes=sizes)
    return out.swapaxes(1, 2)[:, :tokens]
