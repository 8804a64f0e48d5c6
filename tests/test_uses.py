"""reading/graph/axes.py: what each use of a parameter in a program says of its axes, and that names say nothing."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from depthmup.reading.graph import traced_program, uses_of

H = np.ones((2, 6, 8), np.float32)  # (batch, tokens, width)
TOKENS = np.zeros((2, 6), np.int32)


def uses(apply, *inputs, **shapes):
    params = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}
    return uses_of(traced_program(lambda params, *values: apply(*values, **params), params, inputs), params)


def scanned(h, w):
    return jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), None), h, w)[0]


def scanned_by_number(h, w):
    return jax.lax.scan(lambda h, i: (jnp.tanh(h @ w[i]), None), h, jnp.arange(3))[0]


def looped(h, w):
    return jax.lax.fori_loop(0, 3, lambda i, h: jnp.tanh(h @ w[i]), h)


def chosen(h, w):
    return jax.lax.cond(h.sum() > 0, lambda h: h @ w, lambda h: 2 * h @ w, h)


def from_learned_state(h, w):
    """The first state is a parameter: an activation from the second step on."""
    first = jnp.broadcast_to(w["first"], (2, 8))
    return jax.lax.scan(lambda s, x: (jnp.tanh(x + s @ w["hidden"]), None), first, jnp.swapaxes(h, 0, 1))[0]


def convolved(features=1):
    def apply(h, w):
        numbers = ("NHC", "HIO", "NHC")
        return jax.lax.conv_general_dilated(h, w, (1,), "SAME", dimension_numbers=numbers, feature_group_count=features)

    return apply


CASES = {
    "matrix": (lambda h, w: h @ w, (8, 5), "io"),
    "transposed": (lambda h, w: h @ w.T, (5, 8), "oi"),
    "heads": (lambda h, w: jnp.einsum("bte,ehd->bthd", h, w), (8, 2, 4), "ioo"),
    "heads before": (lambda h, w: jnp.einsum("bte,hed->bhtd", h, w), (2, 8, 4), "oio"),
    "out of heads": (lambda h, w: jnp.einsum("bthd,hde->bte", h.reshape(2, 6, 2, 4), w), (2, 4, 8), "iio"),
    "stored flat": (lambda h, w: h @ w.reshape(8, 5), (40,), ""),
    "stored joined": (lambda h, w: jnp.einsum("bte,ehd->bthd", h, w.reshape(8, 2, 4)), (8, 8), "io"),
    "experts": (lambda h, w: jnp.einsum("ebi,eio->ebo", h, w), (2, 8, 5), "-io"),
    "experts, outputs first": (lambda h, w: jnp.einsum("ebi,eoi->ebo", h, w), (2, 5, 8), "-oi"),
    "blocks": (lambda h, w: jnp.einsum("btki,kio->btko", h.reshape(2, 6, 2, 4), w), (2, 4, 4), "-io"),
    "ragged": (lambda h, w: jax.lax.ragged_dot(h[0], w, jnp.array([2, 4])), (2, 8, 5), "-io"),
    "convolution": (convolved(), (3, 8, 5), "iio"),
    "depthwise": (convolved(8), (3, 1, 8), "iio"),
    "fused": (lambda h, w: jnp.split(h @ w, 3, -1)[1], (8, 15), "io"),
    "part": (lambda h, w: h @ w[:, 2:7], (8, 15), "io"),
    "joined": (lambda h, w: h @ jnp.concatenate([w, 2 * w], axis=1), (8, 5), "io"),
    "taken": (lambda h, w: h @ jnp.take(w, 1, axis=0), (3, 8, 5), "-io"),
    "barrier": (lambda h, w: h @ jax.lax.optimization_barrier(w), (8, 5), "io"),
    "reversed, cast": (lambda h, w: h @ w[::-1].astype(jnp.bfloat16), (8, 5), "io"),
    "scanned": (scanned, (3, 8, 8), "-io"),
    "scanned by number": (scanned_by_number, (3, 8, 8), "-io"),
    "fori_loop": (looped, (3, 8, 8), "-io"),
    "unrolled": (lambda h, w: h @ w[0] @ w[1], (2, 8, 8), "-io"),
    "cond": (chosen, (8, 5), "io"),
    "jit, remat": (lambda h, w: jax.jit(jax.checkpoint(lambda h, w: h @ w))(h, w), (8, 5), "io"),
    "custom_jvp": (lambda h, w: jax.nn.silu(h) @ jax.nn.relu(w), (8, 5), "io"),
    "vmap": (lambda h, w: jax.vmap(lambda row: w @ row)(h[0]), (5, 8), "oi"),
    "normalized": (lambda h, w: h @ (w / jnp.linalg.norm(w, axis=0, keepdims=True)), (8, 5), "io"),
    "standardized": (lambda h, w: h @ ((w - w.mean(0)) / jnp.sqrt(w.var(0) + 1)), (8, 5), "io"),
    "masked": (lambda h, w: h @ (jnp.tri(8) * w), (8, 8), "io"),
    "one output": (lambda h, w: h @ w, (8,), "i"),
    "one output, by hand": (lambda h, w: (h * w).sum(-1), (8,), "i"),
    "one output, scaled": (lambda h, w: (0.5 * (h * w)).sum(-1), (8,), "i"),
    "multiplied and summed": (lambda h, w: (h[..., None] * w).sum(-2), (8, 5), "io"),
    "one input": (lambda h, w: h[..., :1] @ w, (1, 5), "io"),
    "looked up": (lambda h, w: w[h[..., 0].astype(int)], (20, 8), "io"),
    "looked up in columns": (lambda h, w: w[:, h[..., 0].astype(int)], (8, 20), "oi"),
    "tied": (lambda h, w: (w[h[..., 0].astype(int)] + h) @ w.T, (20, 8), "io"),
    "one-hot": (lambda h, w: jax.nn.one_hot(h[..., 0].astype(int), 20) @ w, (20, 8), "io"),
    # What acts entry by entry is told by shapes.
    "scale": (lambda h, w: h * w, (8,), ""),
    "scale in front of a norm": (lambda h, w: (x := h * w) - x.mean(-1, keepdims=True), (8,), ""),
    "scale, its norm": (lambda h, w: (x := h * w) / jnp.sqrt((x * x).mean(-1, keepdims=True)), (8,), ""),
    "positions": (lambda h, w: h + w, (6, 8), ""),
    "positions by number": (lambda h, w: h + w[jnp.arange(6)], (10, 8), ""),
    "positions, resized": (lambda h, w: h + jnp.ones((6, 3)) @ w, (3, 8), "io"),
    # What is used in two ways
    "autoencoder": (lambda h, w: jnp.tanh(h @ w) @ w.T, (8, 5), ""),
    "unused": (lambda h, w: h, (8, 5), ""),
}


@pytest.mark.parametrize("name", CASES)
def test_axes(name):
    apply, shape, letters = CASES[name]
    assert uses(apply, H, w=shape).axes.get("w", "") == letters


def test_entry_by_entry():
    both = uses(lambda h, scale, positions, kernel: (h * scale + positions) @ kernel, H, scale=(8,), positions=(6, 8),
                kernel=(8, 5))  # fmt: skip
    assert both.entries == {"scale": set(), "positions": set()}
    assert both.axes == {"kernel": "io"}
    assert both.layout == "in_out"
    outer = uses(lambda h, decay: jnp.exp(jnp.einsum("btd,dn->btdn", h, decay)).mean(-1), H, decay=(8, 8))
    assert outer[:2] == ({}, {"decay": set()})
    scaled = uses(lambda h, v, g: h @ (v * g), H, v=(8, 5), g=(1, 5))  # one number for all entries is no axis
    assert scaled.axes == {"v": "io", "g": "-o"}
    assert uses(lambda h, a, b: h @ a.T @ b.T, H, a=(5, 8), b=(7, 5)).layout == "out_in"
    assert uses(lambda h, a: h + a, H, a=(8,)).layout is None


def test_experts_that_see_the_same_input():
    def apply(h, up, down):
        each = jax.nn.gelu(jnp.einsum("btd,edf->btef", h, up))
        return jnp.einsum("btef,efd->bted", each, down)

    read = uses(apply, H, up=(3, 8, 16), down=(3, 16, 8))
    assert read.axes == {"up": "-io", "down": "-io"}
    heads = uses(lambda h, q, out: jnp.einsum("bthd,hde->bte", jnp.einsum("bte,ehd->bthd", h, q), out), H,
                 q=(8, 2, 4), out=(2, 4, 8))  # fmt: skip
    assert heads.axes == {"q": "ioo", "out": "iio"}


def of_growing(apply, growing, **shapes):
    params = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}
    return uses_of(traced_program(lambda params, h: apply(h, **params), params, (H,)), params, growing)


@pytest.mark.parametrize(
    "apply",
    [
        lambda h, a, b: h @ (a @ b),
        lambda h, a, b: (2 * (a @ b).T @ h.swapaxes(1, 2)).swapaxes(1, 2),
        lambda h, a, b: h @ jnp.einsum("ir,ro->oi", a, b).reshape(5, 2, 4).reshape(5, 8).T,
    ],
)
def test_products_of_parameters_are_one_weight(apply):
    assert uses(apply, H, a=(8, 2), b=(2, 5)).axes == {"a": "io", "b": "io"}


def test_a_table_that_is_a_product():
    read = uses(lambda tokens, a, b: (a @ b)[tokens], jnp.zeros((2, 6), int), a=(20, 2), b=(2, 8))
    assert read.axes == {"a": "io", "b": "io"}


GROWING_B = {("b", 1)}


@pytest.mark.parametrize("act", [lambda product: product, jnp.tanh])
def test_a_product_that_becomes_no_weight_has_a_layer(act):
    read = of_growing(lambda h, a, b: h + act(a @ b), GROWING_B, a=(6, 2), b=(2, 8))
    assert read.axes == {"b": "io"}
    assert "a" in read.entries
    neither = of_growing(lambda h, a, b: h + act(a @ b), (), a=(6, 2), b=(2, 8))
    assert not neither.axes
    assert not neither.entries


def test_a_weight_that_a_layer_makes_of_a_table():
    """Behind an activation function a product of two is no weight of low rank."""
    read = of_growing(lambda h, a, b: h @ jnp.tanh(a @ b), GROWING_B, a=(8, 2), b=(2, 8))
    assert (read.axes, read.entries) == ({"b": "io"}, {"a": set()})


def test_a_layer_of_learned_queries():
    """Of two parameters the one whose outputs grow with width is the weight."""
    growing = {("q", 1), ("kernel", 0), ("kernel", 1)}
    read = of_growing(lambda h, q, kernel: h[..., :4] + (q @ kernel).sum(0), growing, q=(3, 8), kernel=(8, 4))
    assert (read.axes, read.entries) == ({"kernel": "io"}, {"q": set()})
    attention = of_growing(
        lambda h, q, kernel, key: (q @ kernel) @ (h @ key).swapaxes(1, 2), growing | {("key", 0), ("key", 1)},
        q=(3, 8), kernel=(8, 4), key=(8, 4),
    )  # fmt: skip
    assert attention.axes == {"kernel": "io", "key": "io"}


def test_a_learned_state():
    shapes = {"first": (8,), "hidden": (8, 8)}
    params = {"w": {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}}
    read = uses_of(traced_program(lambda params, h: from_learned_state(h, **params), params, (H,)), params)
    assert read.axes == {"w/hidden": "io"}


def test_a_product_that_a_scan_sums_is_not_seen():
    """Its weight was taken for a vector. A bias along two axes of outputs is one."""

    def prefix_sums(h, w):
        return jax.lax.associative_scan(jnp.add, h[..., None] * w, axis=2)[:, :, -1]

    read = of_growing(prefix_sums, {("w", 0), ("w", 1)}, w=(8, 16))
    assert (read.axes, read.entries) == ({}, {})
    assert re.fullmatch(r"mul \(.*test_uses.py:\d+.*\)", read.unseen["w"])
    assert of_growing(prefix_sums, {("w", 1)}, w=(8, 16)).entries == {"w": set()}
    biased = of_growing(
        lambda h, w, bias: jnp.einsum("btd,dnk->btnk", h, w) + bias,
        {(name, axis) for name, axes in (("w", 3), ("bias", 2)) for axis in range(axes)},
        w=(8, 2, 4), bias=(2, 4),
    )  # fmt: skip
    assert (biased.entries, biased.unseen) == ({"bias": {0, 1}}, {})


def test_an_operation_without_a_rule_is_not_told():
    def apply(h, w):
        return h @ jax.pure_callback(lambda w: w, jax.ShapeDtypeStruct((8, 5), jnp.float32), w)

    assert uses(apply, H, w=(8, 5))[:2] == ({}, {})
    assert uses(lambda h, w: h @ jnp.fft.fft(w).real, H, w=(8, 5)).axes == {}


def test_a_scan_keeps_what_its_body_does_in_the_last_step():
    """The carry is an activation from the second step on, and the program says so of each parameter of the body."""

    def apply(h, w, v):
        def step(carry, _):
            state, weight = carry
            return (h[:, 0] @ weight + state, weight), None

        return jax.lax.scan(step, (jnp.zeros((2, 8)), w * v), None, length=2)[0][0]

    assert uses(apply, H, w=(8, 8), v=(8,)).axes["w"] == "io"
