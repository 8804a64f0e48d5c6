"""Attention of many tokens against attention that stores all scores, and what its programs store."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from depthmup.models import GPT, attend
from depthmup.models.attend import BLOCK, ROWS
from depthmup.rules.parameterization import ForwardFactors
from tests.families import FACTORS, applied, init

LONG = BLOCK + ROWS + 3  # a number of tokens that blocks do not divide


def operands(tokens, heads=2, kv_heads=2, size=4, dtype=np.float64):
    rng = np.random.default_rng(0)
    return [rng.normal(size=(1, tokens, count, size)).astype(dtype) for count in (heads, kv_heads, kv_heads)]


def whole(q, k, v, factor, causal):
    """The equation, one query head after another, in NumPy."""
    results = []
    for head in range(q.shape[2]):
        shared = head * k.shape[2] // q.shape[2]
        scores = factor * np.einsum("bqd,bkd->bqk", q[:, :, head], k[:, :, shared])
        if causal:
            scores = np.where(np.tri(q.shape[1], dtype=bool), scores, -np.inf)
        e = np.exp(scores - scores.max(-1, keepdims=True))
        results.append(np.einsum("bqk,bkd->bqd", e / e.sum(-1, keepdims=True), v[:, :, shared]))
    return np.stack(results, axis=2)


@functools.partial(jax.jit, static_argnames=("causal", "stored"))
def pulled(q, k, v, factor, *, causal, stored):
    """Attention in blocks, or with all scores stored, and the gradients of a function of it."""

    def run(q, k, v, factor):
        if stored:
            k, v = (jnp.repeat(z, q.shape[2] // k.shape[2], axis=2) for z in (k, v))
            return attend._rows(q, k, v, factor, 0, causal)
        return attend.attend(q, k, v, factor, causal=causal)

    out, pull = jax.vjp(run, q, k, v, factor)
    return out, pull(jnp.cos(out))


@pytest.mark.parametrize(("causal", "kv_heads"), [(True, 4), (True, 2), (False, 1)])
def test_blocks_equal_the_whole(causal, kv_heads, x64):
    """Forwards and backwards, also where blocks do not divide the tokens; queries share keys in order."""
    q, k, v = operands(LONG, heads=4, kv_heads=kv_heads)
    blocks, stored = (pulled(q, k, v, 0.7, causal=causal, stored=stored) for stored in (False, True))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-11), blocks, stored)
    np.testing.assert_allclose(blocks[0], whole(q, k, v, 0.7, causal), rtol=1e-11, atol=1e-11)
    few = [z[:, :5] for z in (q, k, v)]
    np.testing.assert_allclose(attend.attend(*few, 0.7, causal=causal), whole(*few, 0.7, causal), rtol=1e-12)


def test_factors_of_trials(x64):
    """A traced factor of each trial, and derivatives of gradients where no kernel is asked for."""
    q, k, v = operands(LONG, size=2)
    factors = jnp.array([0.3, 2.0])

    def loss(factor, q):
        return jnp.sin(attend.attend(q, k, v, factor, causal=True, kernels=False)).sum()

    each = jax.jit(jax.vmap(jax.grad(loss, argnums=1), (0, None)))(factors, q)
    mapped = jax.jit(lambda: jax.lax.map(lambda factor: jax.grad(loss, argnums=1)(factor, q), factors))()
    np.testing.assert_allclose(each, mapped, rtol=1e-10, atol=1e-12)
    gradient = jax.jit(jax.grad(functools.partial(loss, 0.3)))
    product = jax.jit(lambda q: jax.jvp(gradient, (q,), (k,))[1])(q)
    step = 1e-5
    difference = (gradient(q + step * k) - gradient(q - step * k)) / (2 * step)
    np.testing.assert_allclose(product, difference, atol=1e-7)


def shapes(text):
    """The shapes of all arrays of a compiled program."""
    return {tuple(map(int, axes.split(","))) for axes in re.findall(r"\b\w\d+\[([\d,]+)\]", text)}


def step_text(module, tokens, platform=None):
    """The program of a gradient, compiled for this machine or lowered for a platform."""
    held = jax.eval_shape(module.init, jax.random.key(0), jnp.ones((1, tokens), jnp.int32), FACTORS)["params"]
    x = jax.ShapeDtypeStruct((2, tokens), np.int32)

    def loss(params, x, factors):
        return jnp.sin(module.apply({"params": params}, x, factors)).sum()

    factors = ForwardFactors(*(jax.ShapeDtypeStruct((), np.float32),) * 3)
    traced = jax.jit(jax.grad(loss)).trace(held, x, factors)
    return traced.lower(lowering_platforms=(platform,)).as_text() if platform else traced.lower().compile().as_text()


def small(**options):
    return GPT(16, 1, 5, heads=4, kv_heads=2, positions="rotary", **options)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_no_scores_are_stored(dtype, monkeypatch):
    """Forwards or backwards no array has more numbers than the scores of one block, of 2 examples and 4 heads; the
    plain form has all."""
    most = lambda text: max(map(np.prod, shapes(text)))  # noqa: E731
    assert most(step_text(small(dtype=dtype), LONG)) <= 2 * 4 * ROWS * LONG
    monkeypatch.setattr(attend, "BLOCK", LONG)
    assert most(step_text(small(dtype=dtype), LONG)) >= 2 * 4 * LONG * LONG


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_tpu_has_its_kernel(dtype):
    """Of three parts: forwards, and backwards of queries and of keys. `kernels` switches them off; so does a context
    that is whole."""
    text = step_text(small(dtype=dtype), LONG, "tpu")
    assert text.count("@tpu_custom_call") == 3
    assert f"{LONG}x{LONG}x" not in text
    assert "tpu_custom_call" not in step_text(small(dtype=dtype, kernels=False), LONG, "tpu")
    assert "tpu_custom_call" not in step_text(small(dtype=dtype), BLOCK, "tpu")


def test_a_mesh_splits_the_kernel():
    """Over the axes over which XLA splits the program; a batch that they do not divide runs in blocks."""
    mesh = jax.make_mesh(
        (2, 2), ("data", "fsdp"), axis_types=(jax.sharding.AxisType.Auto,) * 2, devices=jax.devices()[:4]
    )
    part = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(("data", "fsdp")))

    gradients = jax.grad(lambda *qkv: attend.attend(*qkv, 1.0, causal=True).sum(), argnums=(0, 1, 2))

    def run(*qkv):
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            return gradients(*qkv)

    for batch, kernels in ((4, 3), (3, 0)):
        shape = jax.ShapeDtypeStruct((batch, LONG, 2, 8), np.float32, sharding=part if batch == 4 else None)
        text = jax.jit(run).trace(*[shape] * 3).lower(lowering_platforms=("tpu",)).as_text()
        assert text.count("@tpu_custom_call") == kernels
        assert ("tensor<1x2x768x8xf32>" in text) == bool(kernels)
    operands = [jnp.asarray(z, jnp.float32) for z in np.random.default_rng(0).normal(size=(3, 4, LONG, 2, 8))]
    split, expected = jax.jit(run)(*jax.device_put(operands, part)), jax.jit(gradients)(*operands)
    for one, whole in zip(split, expected, strict=True):
        np.testing.assert_allclose(one, whole, rtol=1e-4, atol=1e-5)


def test_a_gpu_has_cudnn(monkeypatch):
    """In bfloat16. JAX asks which cuDNN is there when it traces: here its answer is made up."""
    from jax._src.cudnn import fused_attention_stablehlo as fused

    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(fused, "check_cudnn_version", lambda: 91000)
    module = small(dtype="bfloat16").clone(width=32)
    text = step_text(module, LONG + 5, "cuda")
    assert {"__cudnn$fmhaSoftmax", "__cudnn$fmhaSoftmaxBackward"} <= set(re.findall(r"__cudnn\$\w+", text))
    assert "cudnn" not in step_text(module.clone(dtype="float32"), LONG + 5, "cuda")


def test_grouped_queries_are_heads_repeated(x64):
    """Of a model whose heads of keys and values are those of the other, repeated."""
    grouped, tokens = small(scan=False), np.arange(12).reshape(2, 6) % 5
    held = init(grouped, tokens)["params"]
    rng = np.random.default_rng(0)
    held = jax.tree.map(lambda w: w + rng.normal(0, 0.3, w.shape), held)
    attention = dict(held["block_0"]["attention"])
    for name in ("key", "value"):
        attention[name] = jax.tree.map(lambda w: np.repeat(w, 2, axis=-2), attention[name])
    same = {**held, "block_0": {**held["block_0"], "attention": attention}}
    np.testing.assert_allclose(
        applied(grouped)({"params": held}, tokens),
        applied(grouped.clone(kv_heads=None))({"params": same}, tokens),
        rtol=1e-12,
    )
    assert held["block_0"]["attention"]["key"]["kernel"].shape == (16, 2, 4)
    with pytest.raises(ValueError, match="kv_heads must divide the heads: 3 of 4"):
        init(grouped.clone(kv_heads=3), tokens)
