"""The gradient noise scale: published formulas by hand, a problem whose noise is known, a model of one's own."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import depthmup as dm
from depthmup.measure.noise_scale import from_products, in_training, noise_scale


def test_the_published_estimates():
    """McCandlish et al., A.1, with batches of 32 and 256: |G|^2 = (B_big |G_big|^2 - B_small |G_small|^2) / (B_big -
    B_small), S = (|G_small|^2 - |G_big|^2) / (1 / B_small - 1 / B_big)."""
    rng = np.random.default_rng(0)
    gradients = rng.standard_normal((8, 5)) + 1.0
    small, big = (gradients**2).sum(axis=1).mean(), (gradients.mean(axis=0) ** 2).sum()
    scale = from_products(gradients @ gradients.T, 32)
    square, noise = (256 * big - 32 * small) / (256 - 32), (small - big) / (1 / 32 - 1 / 256)
    np.testing.assert_allclose((scale.gradient, scale.noise, scale.value), (square, noise, noise / square))
    # 2.0 and .6 give .4, 51.2 and 128.
    products = np.full((8, 8), (0.6 * 64 - 8 * 2.0) / 56) + np.diag(np.full(8, 2.0 - (0.6 * 64 - 8 * 2.0) / 56))
    np.testing.assert_allclose(from_products(products, 32)[:1] + from_products(products, 32)[3:], (128, 0.4, 51.2))


def test_the_interval_covers_a_noise_that_is_known():
    """Gradients 1 + 10 xi in 20 dimensions: the noise scale is 100. Of 200 intervals about 190 cover it."""
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(200):
        gradients = 1 + 10 / np.sqrt(16) * rng.standard_normal((64, 20))
        scale = from_products(gradients @ gradients.T, 16)
        covered += scale.low <= 100 <= scale.high
    assert 180 <= covered <= 198


def test_noise_alone_has_no_scale():
    rng = np.random.default_rng(0)
    gradients = rng.standard_normal((8, 1000))
    assert noise_scale(lambda x: x.mean(axis=0), gradients, 2).high == np.inf
    with pytest.raises(ValueError, match="needs 4 parts or more: 8 examples in parts of 4 are 2"):
        noise_scale(lambda x: x.mean(axis=0), gradients, 4)


def test_in_training_it_is_the_same():
    rng = np.random.default_rng(0)
    gradients = {"w": 1 + rng.standard_normal((64, 3, 2)), "b": rng.standard_normal((64, 5))}

    def mean(part):
        return jax.tree.map(lambda leaf: leaf.mean(axis=0), part)

    with jax.enable_x64(True):
        traced = jax.jit(lambda batch: in_training(mean, batch, 8))(gradients)
        np.testing.assert_allclose(traced, noise_scale(mean, gradients, 8).value, rtol=1e-6)
        few = jax.tree.map(lambda leaf: leaf[:4], gradients)
        np.testing.assert_allclose(in_training(mean, few, 8), noise_scale(mean, few, 1).value, rtol=1e-6)
        assert in_training(lambda part: part.mean(), jnp.array([1.0, -1.0]), 2) == np.inf


class Linear(nn.Module):
    width: int
    depth: int

    @nn.compact
    def __call__(self, x):
        h = nn.Dense(self.width, name="embed", use_bias=False)(x)
        return nn.Dense(1, name="head", use_bias=False)(h)


def test_a_model_of_ones_own():
    """Against gradients of single examples that are made one by one."""
    m = dm.setup("mup", Linear, jnp.zeros((1, 3)), width=4, depth=1, base=(4, 1), fan_in_init=False)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((32, 3)).astype(np.float32)
    y = (x @ np.ones((3, 1)) + 0.1 * rng.standard_normal((32, 1))).astype(np.float32)

    def loss(outputs, targets):
        return ((outputs - targets) ** 2).mean()

    variables = m.init(jax.random.key(0))
    grads = [jax.grad(lambda v, i=i: loss(m.apply(v, x[i : i + 1]), y[i : i + 1]))(variables) for i in range(32)]
    rows = np.array([np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(g)]) for g in grads], np.float64)
    expected = from_products(rows @ rows.T, 1)
    np.testing.assert_allclose(m.noise_scale(loss, (x, y), variables), expected, rtol=1e-4)
    assert str(expected).endswith("examples")
