"""The convolution of our own against that of `lax`: values, all derivatives, all transformations, programs."""

import functools
import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from depthmup.models import convolution
from depthmup.models.convolution import circular_conv, conv_general_dilated


def drawn(rng, space):
    """A random convolution: (inputs, kernel, keyword arguments)."""
    batch, features_in, features_out = rng.integers(1, 4, 3)
    size, kernel = rng.integers(5, 9, space), rng.integers(1, 4, space)
    lhs_dilation, rhs_dilation = rng.integers(1, 3, space), rng.integers(1, 3, space)
    low = rng.integers(-1, 3, space)
    extent = (size - 1) * lhs_dilation + 1 + low
    high = np.maximum(rng.integers(-1, 3, space), (kernel - 1) * rhs_dilation + 1 - extent)
    options = dict(
        window_strides=tuple(map(int, rng.integers(1, 4, space))),
        padding=tuple((int(a), int(b)) for a, b in zip(low, high, strict=True)),
        lhs_dilation=tuple(map(int, lhs_dilation)),
        rhs_dilation=tuple(map(int, rhs_dilation)),
        dimension_numbers=[("NHC", "HIO", "NHC"), ("NHWC", "HWIO", "NHWC")][space - 1],
    )
    x = rng.normal(size=(batch, *size, features_in))
    w = rng.normal(size=(*kernel, features_in, features_out))
    return jnp.asarray(x), jnp.asarray(w), options


def pair(options):
    """(ours, that of `lax`), of (inputs, kernel)."""
    return tuple(functools.partial(f, **options) for f in (conv_general_dilated, lax.conv_general_dilated))


def assert_same(actual, expected, *arguments, rtol=1e-12):
    actual, expected = (jax.jit(f)(*arguments) for f in (actual, expected))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol), actual, expected)


def scalar(conv):
    """A function of (inputs, kernel) with derivatives of every order in both together."""
    return lambda x, w: jnp.sum(jnp.sin(conv(x, w)) ** 2)


def hessian_product(f):
    return lambda x, w: jax.jvp(jax.grad(f, (0, 1)), (x, w), (jnp.cos(x), jnp.cos(w)))[1]


def reverse_over_reverse(f):
    return lambda x, w: jax.grad(lambda x, w: sum(jnp.vdot(a, a) for a in jax.grad(f, (0, 1))(x, w)), (0, 1))(x, w)


def jvp(f):
    return lambda x, w: jax.jvp(f, (x, w), (jnp.cos(x), jnp.cos(w)))


DERIVATIVES = {
    "value": lambda f: f,
    "gradient": lambda f: jax.grad(f, (0, 1)),
    "jvp": jvp,
    "hessian product": hessian_product,
    "reverse over reverse": reverse_over_reverse,
    "gradient of a gradient's jvp": lambda f: jax.grad(lambda x, w: jnp.sum(hessian_product(f)(x, w)[0] ** 2), (0, 1)),
}


@pytest.mark.parametrize("space", [1, 2])
@pytest.mark.parametrize("seed", range(4))
def test_derivatives_are_those_of_lax(space, seed, x64):
    """On random shapes, strides, dilations, and paddings (negative ones crop)."""
    x, w, options = drawn(np.random.default_rng([space, seed]), space)
    depthmup_conv, lax_conv = pair(options)
    assert_same(depthmup_conv, lax_conv, x, w)

    def derivatives(f):
        return jax.jit(lambda x, w: {name: of(scalar(f))(x, w) for name, of in DERIVATIVES.items()})(x, w)

    actual, expected = derivatives(depthmup_conv), derivatives(lax_conv)
    for name in DERIVATIVES:
        for a, b in zip(jax.tree.leaves(actual[name]), jax.tree.leaves(expected[name]), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12 * np.abs(b).max(initial=1), err_msg=name)


@pytest.mark.parametrize("axes", [(0, None), (None, 0), (0, 0), (2, None), (None, 3), (1, 2)])
def test_vmap(axes, x64):
    rng = np.random.default_rng(3)
    x, w, options = drawn(rng, 2)
    stack = lambda array, axis: array if axis is None else jnp.stack([array, 2 * array, array**2], axis)  # noqa: E731
    depthmup_grad, lax_grad = (jax.vmap(jax.grad(scalar(f), (0, 1)), axes) for f in pair(options))
    assert_same(depthmup_grad, lax_grad, stack(x, axes[0]), stack(w, axes[1]))
    depthmup_grad, lax_grad = (
        jax.grad(lambda *of, f=f: jax.vmap(scalar(f), axes)(*of).sum(), (0, 1)) for f in pair(options)
    )
    assert_same(depthmup_grad, lax_grad, stack(x, axes[0]), stack(w, axes[1]))


def test_vmap_over_one_operand_keeps_the_primitive():
    x, w, options = drawn(np.random.default_rng(3), 2)
    conv, _ = pair(options)
    for axes, kept in (((0, None), True), ((None, 0), True), ((0, 0), False)):
        operands = [a if axis is None else jnp.stack([a, a]) for a, axis in zip((x, w), axes, strict=True)]
        assert ("depthmup_conv" in str(jax.make_jaxpr(jax.vmap(conv, axes))(*operands))) == kept


def test_bfloat16():
    """Rounded as `lax` rounds, in value and gradient."""
    x, w, options = drawn(np.random.default_rng(5), 2)
    x, w = x.astype(jnp.bfloat16), w.astype(jnp.bfloat16)
    depthmup_conv, lax_conv = pair(options)
    assert depthmup_conv(x, w).dtype == jnp.bfloat16
    for derivative in (lambda f: f, lambda f: jax.grad(f, (0, 1))):
        actual, expected = (derivative(scalar(f))(x, w) for f in (depthmup_conv, lax_conv))
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(np.float32(a), np.float32(b), rtol=0.05, atol=0.05),
            actual,
            expected,
        )


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_through_flax(padding, x64):
    """nn.Conv with its strides and paddings by name: the same parameters, outputs and gradients."""
    x = jax.random.normal(jax.random.key(0), (2, 9, 8, 3), jnp.float64)
    modules = [
        nn.Conv(4, (3, 2), strides=2, padding=padding, param_dtype=jnp.float64, conv_general_dilated=conv)
        for conv in (conv_general_dilated, lax.conv_general_dilated)
    ]
    params = [module.init(jax.random.key(1), x) for module in modules]
    jax.tree.map(np.testing.assert_array_equal, *params)
    depthmup_grad, lax_grad = (jax.grad(lambda p, x, m=m: jnp.sum(jnp.sin(m.apply(p, x))), (0, 1)) for m in modules)
    assert_same(depthmup_grad, lax_grad, params[0], x)


def lowered(f, platform, *arguments):
    return jax.jit(f).trace(*arguments).lower(lowering_platforms=(platform,)).as_text()


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_other_backends_get_the_program_of_lax(platform):
    """The same StableHLO, forward and in both gradients; on a CPU the gradients have transpositions besides."""
    x, w, options = drawn(np.random.default_rng(1), 2)

    def squared(f):
        return lambda x, w: jnp.sum(f(x, w) ** 2)

    for derivative in (lambda f: f, lambda f: jax.grad(squared(f), (0, 1))):
        depthmup_program, lax_program = (lowered(derivative(f), platform, x, w) for f in pair(options))
        assert "stablehlo.convolution" in depthmup_program
        assert depthmup_program == lax_program


@pytest.mark.parametrize(
    ("size", "kernel", "stride"), [(8, 3, 1), (8, 3, 2), (8, 1, 2), (2, 3, 1), (1, 3, 1), (4, 5, 2)]
)
def test_a_cpu_computes_one_layout(size, kernel, stride):
    """Value and gradients, also in a loop: every convolution that XLA has made of them reads b01f_01io, which alone is
    fast. Without our lowering the gradients do not, nor convolutions of an image smaller than the kernel."""
    x, w = jnp.ones((4, size, size, 2)), jnp.ones((kernel, kernel, 2, 3))
    padding = [((kernel - 1) // 2, kernel // 2)] * 2
    numbers = ("NHWC", "HWIO", "NHWC")
    depthmup_conv, lax_conv = pair(dict(window_strides=(stride, stride), padding=padding, dimension_numbers=numbers))

    def layouts(conv):
        def descend(x, w):
            gradients = jax.grad(scalar(conv), (0, 1))
            return lax.fori_loop(0, 3, lambda i, of: jax.tree.map(jnp.subtract, of, gradients(*of)), (x, w))

        text = jax.jit(descend).lower(x, w).compile().as_text()
        return set(re.findall(r"dim_labels=(\S+?)[,\s]", text))

    assert layouts(depthmup_conv) <= {"b01f_01io->b01f"}  # none where XLA makes a product of matrices of it
    if kernel == 3 and stride == 1:
        assert layouts(depthmup_conv)
        assert not layouts(lax_conv) <= {"b01f_01io->b01f"}


@pytest.mark.parametrize("check", [True, False])
def test_inside_shard_map(check, x64):
    """Examples over two devices, one kernel for all."""
    rng = np.random.default_rng(2)
    x, w = jnp.asarray(rng.normal(size=(4, 6, 6, 2))), jnp.asarray(rng.normal(size=(3, 3, 2, 3)))
    options = dict(window_strides=(1, 1), padding="SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    mesh = jax.make_mesh((2,), ("batch",), axis_types=(jax.sharding.AxisType.Auto,))

    def gradient(conv):
        def local(x, w):
            gradients = jax.grad(scalar(conv), (0, 1))(x, w)
            return gradients if check else (gradients[0], lax.psum(gradients[1], "batch"))

        part, whole = jax.P("batch"), jax.P()
        return jax.shard_map(local, mesh=mesh, in_specs=(part, whole), out_specs=(part, whole), check_vma=check)

    depthmup_conv, lax_conv = pair(options)
    assert_same(jax.jit(gradient(depthmup_conv)), jax.jit(gradient(lax_conv)), x, w)
    assert_same(jax.jit(gradient(depthmup_conv)), jax.grad(scalar(lax_conv), (0, 1)), x, w)


@pytest.mark.parametrize("small", [0, 2**17])
@pytest.mark.parametrize(("size", "kernel"), [((5, 7), (3, 3)), ((4, 4), (2, 5)), ((5, 3), (5, 1)), ((6,), (3,))])
def test_circular(size, kernel, small, x64, monkeypatch):
    """Values and derivatives, by either way to compute them, are those of a convolution without padding of the image
    that `numpy.pad` wraps."""
    monkeypatch.setattr(convolution, "SMALL", small)
    rng = np.random.default_rng(3)
    x, w = jnp.asarray(rng.normal(size=(2, *size, 2))), jnp.asarray(rng.normal(size=(*kernel, 2, 3)))
    numbers = [("NHC", "HIO", "NHC"), ("NHWC", "HWIO", "NHWC")][len(size) - 1]
    padding, ones = [((k - 1) // 2, k // 2) for k in kernel], (1,) * len(size)

    def depthmup_conv(x, w):
        return circular_conv(x, w, ones, padding, dimension_numbers=numbers)

    def padded_conv(x, w):
        wrapped = jnp.pad(x, [(0, 0), *padding, (0, 0)], mode="wrap")
        return lax.conv_general_dilated(wrapped, w, ones, "VALID", dimension_numbers=numbers)

    assert ("dot_general" in str(jax.make_jaxpr(depthmup_conv)(x, w))) == (small > 0 and len(size) == 2)
    assert_same(depthmup_conv, padded_conv, x, w)
    assert_same(hessian_product(scalar(depthmup_conv)), hessian_product(scalar(padded_conv)), x, w, rtol=1e-11)
    many = jnp.stack([w, 2 * w])
    assert_same(
        jax.vmap(depthmup_conv, (None, 0)), lambda x, many: jnp.stack([padded_conv(x, w) for w in many]), x, many
    )


def test_circular_convolutions_have_stride_1():
    with pytest.raises(ValueError, match=r"a circular convolution has stride 1, got \(2, 2\)"):
        circular_conv(jnp.ones((1, 4, 4, 2)), jnp.ones((3, 3, 2, 2)), (2, 2), [(1, 1)] * 2)


def test_groups_and_mistakes():
    x, w = jnp.ones((1, 5, 5, 4)), jnp.ones((3, 3, 2, 6))
    numbers = ("NHWC", "HWIO", "NHWC")
    depthmup_conv, lax_conv = pair(
        dict(window_strides=(1, 1), padding="SAME", dimension_numbers=numbers, feature_group_count=2)
    )
    assert_same(depthmup_conv, lax_conv, x, w)
    ungrouped, _ = pair(dict(window_strides=(1, 1), padding="SAME", dimension_numbers=numbers))
    with pytest.raises(ValueError, match="feature dimension"):
        ungrouped(x, w)
    with pytest.raises(ValueError, match="dilated inputs"):
        conv_general_dilated(x, w[:, :, :1].repeat(4, 2), (1, 1), "SAME", (2, 2), dimension_numbers=numbers)
