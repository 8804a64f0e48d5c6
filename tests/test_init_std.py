"""Standard deviations of initial parameters, from the program that makes them."""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from depthmup.reading.init_std import evaluate, traced_init

KEY = jax.random.key(0)
INITIALIZERS = {
    "normal": nn.initializers.normal(0.02),
    "truncated": nn.initializers.truncated_normal(0.02),
    "lecun": nn.initializers.lecun_normal(),
    "xavier": nn.initializers.xavier_uniform(),
    "bfloat16": lambda key, shape: nn.initializers.he_normal()(key, shape, jnp.bfloat16),
    "complex": lambda key, shape: nn.initializers.normal(0.5)(key, shape, jnp.complex64),
    "product": lambda key, shape: jax.random.normal(key, shape) * jax.random.uniform(jax.random.split(key)[1], shape),
    "fused": lambda key, shape: jnp.concatenate([jnp.zeros(shape), jax.random.normal(key, shape)], axis=1),
    "zeros": lambda key, shape: jnp.zeros(shape),
    "table": lambda key, shape: jnp.sin(jnp.arange(shape[0])[:, None] * jnp.ones(shape)),
    "exponent": lambda key, shape: jnp.exp(jax.random.uniform(key, shape, minval=-3.0, maxval=-1.0)),
    "vmapped": lambda key, shape: jax.vmap(lambda k: jax.random.normal(k, shape[1:]))(jax.random.split(key, shape[0])),
}


def stds(init):
    return {path: std.value for path, std in traced_init(init).stds().items()}


@pytest.mark.parametrize("name", INITIALIZERS)
def test_elementwise_initializers(name):
    init, shape = INITIALIZERS[name], (256, 512)
    made = np.asarray(init(KEY, shape)).astype(complex)
    assert stds(lambda: {"w": init(KEY, shape)})["w"] == pytest.approx(float(made.std()), rel=2e-2)


def test_scanned_blocks():
    """Linen's own init, with the forward pass in it."""

    class Block(nn.Module):
        @nn.compact
        def __call__(self, h, _):
            return h + nn.Dense(64)(nn.LayerNorm()(h)), None

    blocks = nn.scan(nn.remat(Block), variable_axes={"params": 0}, split_rngs={"params": True}, length=3)()
    init = lambda: blocks.init(KEY, jnp.ones((2, 64)), None)["params"]  # noqa: E731
    measured = stds(init)
    kernels = [std for path, std in measured.items() if path.endswith("kernel")]
    assert kernels == [pytest.approx(1 / 8, rel=1e-3)]
    assert {std for path, std in measured.items() if not path.endswith("kernel")} == {0}


def test_ratios_are_exact():
    of = lambda width: stds(lambda: {"w": jax.random.normal(KEY, (width, width)) * width**-0.5})["w"]  # noqa: E731
    assert of(64) / of(4096) == pytest.approx(8, rel=1e-6)
    other = jax.random.fold_in(KEY, 1)  # of two samples, which are paired alike at every size
    both = lambda width: jax.random.normal(KEY, (width, width)) + jax.random.uniform(other, (width, width))  # noqa: E731
    of = lambda width: stds(lambda: {"w": both(width) * width**-0.5})["w"]  # noqa: E731
    assert of(64) / of(4096) == pytest.approx(8, rel=1e-6)


@pytest.mark.parametrize("shape", [(11, 64), (64, 64), (64, 3), (3, 3, 8, 16)])
def test_orthogonal_initializers(shape):
    """Rows or columns of norm 1, whichever are fewer, to the precision of float32; of members of an ensemble, too."""
    init = nn.initializers.orthogonal(2**0.5)
    deviations = stds(
        lambda: {"w": init(KEY, shape), "members": jax.vmap(lambda key: init(key, shape))(jax.random.split(KEY))}
    )
    exact = (2 / max(math.prod(shape[:-1]), shape[-1])) ** 0.5
    assert deviations == {"w": pytest.approx(exact, rel=1e-5), "members": pytest.approx(exact, rel=1e-5)}


def test_what_no_sample_tells():
    unseen = lambda: jnp.cumsum(jax.random.normal(KEY, (64, 64)), axis=0)  # noqa: E731
    init = lambda: {"w": unseen(), "v": jax.random.normal(KEY, (64,))}  # noqa: E731
    measured = traced_init(init).stds()
    assert (measured["w"].value, measured["w"].shape) == (None, (64, 64))
    assert measured["v"].value == pytest.approx(
        1, rel=1e-3
    )  # of a vector of 64 numbers, without the error of drawing it
    assert measured["v"].entries is None


def test_a_program_without_what_no_result_needs():
    """The forward pass that Linen's init runs: here one that a host callback would see."""
    seen = []

    def init(key):
        w = jax.random.normal(key, (3, 3))
        jax.pure_callback(lambda x: seen.append(1) or x, jax.ShapeDtypeStruct((3, 3), jnp.float32), w @ w)
        return w

    closed = jax.make_jaxpr(init)(KEY)
    (w,) = evaluate(closed, KEY)
    np.testing.assert_array_equal(w, jax.random.normal(KEY, (3, 3)))
    assert not seen
