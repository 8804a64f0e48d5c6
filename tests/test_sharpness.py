"""Sharpness against a dense Hessian, feature kernels against their definition."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from depthmup.measure import feature_kernels, kernel_movement, sharpness


@pytest.fixture(scope="module")
def problem():
    """A loss whose Hessian has eigenvalues of both signs, parameters in float64, its dense Hessian."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(32, 20)), rng.normal(size=32)
    with jax.enable_x64(True):
        params = {"a": jnp.asarray(rng.normal(size=(20, 4))), "b": jnp.asarray(rng.normal(size=4))}

        def loss(params):
            return jnp.mean((jnp.tanh(x @ params["a"]) @ params["b"] - y) ** 2)

        flat, unravel = ravel_pytree(params)
        yield loss, params, np.asarray(jax.hessian(lambda vector: loss(unravel(vector)))(flat))


def test_it_is_the_largest_eigenvalue(problem):
    loss, params, hessian = problem
    eigenvalues = np.linalg.eigvalsh(hessian)
    assert eigenvalues[0] < -0.1  # the largest in size is not what is asked for
    eigenvalue = sharpness(loss, params, iterations=30)
    assert float(eigenvalue) == pytest.approx(eigenvalues[-1], rel=1e-10)
    assert float(sharpness(loss, params)) == pytest.approx(eigenvalues[-1], rel=1e-6)
    assert float(sharpness(lambda p: -loss(p), params, iterations=60)) == pytest.approx(-eigenvalues[0], rel=1e-8)
    rough = float(sharpness(loss, params, iterations=4))
    assert 0.8 * eigenvalues[-1] < rough < eigenvalues[-1]  # a lower bound


def test_it_is_that_of_the_rescaled_parameters(problem):
    loss, params, hessian = problem
    root = np.sqrt(np.concatenate([np.full(80, 3.0), np.full(4, 0.5)]))
    expected = np.linalg.eigvalsh(root[:, None] * hessian * root)[-1]
    eigenvalue = sharpness(loss, params, scale={"a": 3.0, "b": 0.5}, iterations=30)
    assert float(eigenvalue) == pytest.approx(expected, rel=1e-10)


def test_more_iterations_than_there_are_directions():
    """What is left of a vector is then rounding, in which no eigenvalue is to be found."""
    assert float(sharpness(lambda w: 3 * w[0] ** 2 - w[1] ** 2, jnp.ones(7))) == pytest.approx(6, rel=1e-5)
    assert float(sharpness(lambda w: 2 * w[0] ** 2, jnp.ones(1))) == pytest.approx(4)


def test_gradient_descent_is_stable_below_two_over_it():
    """With learning rates per leaf, on a quadratic: the claim that `scale` is for."""
    rng = np.random.default_rng(1)
    root = rng.normal(size=(6, 6))
    matrix = jnp.asarray(root @ root.T, jnp.float32)
    scale = {"a": 4.0, "b": 0.25}

    def loss(params):
        w = jnp.concatenate([params["a"], params["b"]])
        return 0.5 * w @ matrix @ w

    params = {"a": jnp.ones(3), "b": jnp.ones(3)}
    edge = 2 / float(sharpness(loss, params, scale=scale))

    @jax.jit
    def descend(share):
        def step(_, w):
            grads = jax.grad(loss)(w)
            return {k: w[k] - share * edge * scale[k] * grads[k] for k in w}

        return loss(jax.lax.fori_loop(0, 400, step, params))

    for share, stable in ((0.98, True), (1.02, False)):
        assert (float(descend(share)) < float(loss(params))) == stable


def test_kernels():
    h = np.random.default_rng(0).normal(size=(5, 2, 3)).astype(np.float32)
    kernel = feature_kernels([h, 2 * h])
    np.testing.assert_allclose(kernel[0], np.einsum("ate,bte->ab", h, h) / 6, rtol=1e-5)
    np.testing.assert_allclose(kernel_movement(kernel, kernel), 0)
    np.testing.assert_allclose(kernel_movement(kernel[:1], kernel[1:]), 3, rtol=1e-5)
