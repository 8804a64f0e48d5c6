"""The lazy limit of convolutional networks (docs/theory.md section 2.2)."""

import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import depthmup as dm
from depthmup.models import ResidualCNN, model_specs
from depthmup.theory import lazy_conv_kernels, lazy_kernels
from depthmup.theory.moments import moments


def images(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def by_hand(x, depth, activation, beta, kernel, padding, alpha):
    """(H, Phi, branch, read-in, readout) with G sent backward through the layers, all pairs of positions in one matrix.

    M is the matrix over positions of one image that averages over a filter, tap by tap: M[tap, s, s + tap] = 1.
    """
    P, *space, C = x.shape
    S = int(np.prod(space))
    taps = list(itertools.product(*(range(-((kernel - 1) // 2), kernel // 2 + 1) for _ in space)))
    M = np.zeros((len(taps), S, S))
    for (i, tap), s in itertools.product(enumerate(taps), range(S)):
        at = np.add(np.unravel_index(s, space), tap)
        if padding == "circular" or all(0 <= a < size for a, size in zip(at, space, strict=True)):
            M[i, s, np.ravel_multi_index(at % space, space)] = 1
    shift = lambda K: np.einsum("ist,ptqu,ivu->psqv", M, K.reshape(P, S, P, S), M).reshape(P * S, -1) / len(taps)  # noqa: E731
    back = lambda K: np.einsum("its,ptqu,iuv->psqv", M, K.reshape(P, S, P, S), M).reshape(P * S, -1) / len(taps)  # noqa: E731

    def averages(H):
        with jax.enable_x64(True):
            a = jnp.diag(H)
            pair, same = moments(activation).pair(a[:, None], a[None], jnp.asarray(H)), moments(activation).same(a)
        matrices = [np.array(of) for of in pair]
        for of, diagonal in zip(matrices, same, strict=True):
            np.fill_diagonal(of, diagonal)
        return matrices

    flat = x.reshape(P * S, C)
    Kx = shift(flat @ flat.T / C)
    b2, Hs = beta**2 * depth ** (-2 * alpha), [Kx]
    for _ in range(depth):
        Hs.append(Hs[-1] + b2 * shift(averages(Hs[-1])[0]))
    Phis, Phidots = zip(*map(averages, Hs), strict=True)
    over = lambda K: K.reshape(P, S, P, S).sum((1, 3))  # noqa: E731
    G, branch = Phidots[-1] / S**2, 0
    for Phi, Phidot in zip(Phis[-2::-1], Phidots[-2::-1], strict=True):
        branch += beta**2 / depth * over(G * shift(Phi))
        G = G + b2 * Phidot * back(G)
    one_position = lambda Ks: np.array([np.einsum("psqs->pq", K.reshape(P, S, P, S)) / S for K in Ks])  # noqa: E731
    return one_position(Hs), one_position(Phis), branch, over(G * Kx), over(Phis[-1]) / S**2


@pytest.mark.parametrize(
    ("shape", "activation", "kernel", "padding", "alpha"),
    [
        ((3, 4, 3, 2), "relu", 3, "circular", 0.5),
        ((2, 3, 4, 1), "relu", 3, "zero", 0.75),
        ((3, 5, 2), "erf", 2, "zero", 0.5),
        ((2, 6, 1), "tanh", 5, "circular", 1.0),
    ],
)
def test_against_gradient_kernels(shape, activation, kernel, padding, alpha, monkeypatch):
    """Filters that are even, larger than the image, images that are not square; several blocks of pairs."""
    monkeypatch.setattr("depthmup.theory.convolutional.TOGETHER", 4 * int(np.prod(shape[1:-1])) ** 2)
    x, depth, beta = images(*shape), 3, 1.1
    options = dict(depth=depth, activation=activation, beta=beta, kernel=kernel, padding=padding, alpha=alpha)
    kernels = lazy_conv_kernels(x, **options)
    expected = by_hand(x, *options.values())
    for of, other in zip(kernels[1:], expected, strict=True):
        np.testing.assert_allclose(of, other, rtol=0, atol=1e-10 * np.abs(other).max())
    np.testing.assert_array_equal(kernels.times, np.arange(depth + 1) / depth)
    block = lazy_conv_kernels(x[:1], **options, x2=x[1:], times=(0, 1))
    for name in ("H", "Phi", "ntk_branch", "ntk_readin", "ntk_readout"):
        rows = getattr(kernels, name)[..., :1, 1:]
        rows = rows[[0, -1]] if name in ("H", "Phi") else rows
        np.testing.assert_allclose(getattr(block, name), rows, rtol=0, atol=1e-12)
    np.testing.assert_allclose(block.ntk, kernels.ntk[:1, 1:], rtol=1e-12)


@pytest.mark.parametrize("depth", [4, None])
@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_one_position_is_a_dense_network(depth, activation):
    x = images(4, 1, 1, 6)
    dense = lazy_kernels(x[:, 0, 0] @ x[:, 0, 0].T / 6, depth, activation, 1.2, times=(0, 0.5, 1))
    kernels = lazy_conv_kernels(x, depth, activation, 1.2, kernel=1, times=(0, 0.5, 1))
    for name in ("H", "Phi", "ntk_branch", "ntk_readin", "ntk_readout", "ntk"):
        np.testing.assert_allclose(getattr(kernels, name), getattr(dense, name), rtol=0, atol=1e-9)


def test_infinite_depth():
    """2 F_2L - F_L is off by order 1/L^2."""
    x = images(3, 4, 4, 2)
    limit = lazy_conv_kernels(x, times=(1,))
    one, two, four = (lazy_conv_kernels(x, depth, times=(1,)) for depth in (64, 128, 256))
    for name in ("H", "Phi", "ntk_branch", "ntk_readin", "ntk_readout"):
        at, a, b, c = (getattr(of, name) for of in (limit, one, two, four))
        size = np.abs(at).max()
        coarse, fine = np.abs(2 * b - a - at).max() / size, np.abs(2 * c - b - at).max() / size
        assert fine < 2e-5, name
        assert coarse == pytest.approx(4 * fine, rel=0.1), name
    above = lazy_conv_kernels(x, alpha=0.75, times=(0, 1))
    np.testing.assert_allclose(above.H[1], above.H[0], rtol=1e-12)


def test_networks():
    """`ResidualCNN` at initialization: its kernels' mean over seeds, and with the package's own rates its NTK."""
    x, depth, width, seeds, gain = images(3, 4, 4, 2), 2, 48, 200, 1.5
    model = ResidualCNN(width, depth, 1, "relu", kernels=(3,), gain=gain, scan=False)
    specs, p = model_specs(model, x.shape[1:]), dm.parameterization("depth_mup")
    factors, rates = p.forward_factors(width=width, depth=depth), dm.factors(p, specs).lr
    run = model.forward(factors)
    groups = jax.tree.map(lambda spec: spec.role, specs, is_leaf=lambda of: isinstance(of, dm.ParamSpec))

    @jax.jit
    @jax.vmap
    def measured(key):
        params = dm.rescale(p, specs, model.init(key, x, factors)["params"])
        f = lambda params, x: run(params, x, None)[0]  # noqa: E731
        ntk = dm.empirical_ntk(f, params, x, rates=rates, groups=groups)
        kernels = dm.network_kernels(run, params, x, phi=model.phi)
        return kernels.H, kernels.Phi, gain / 9 * ntk["hidden"], ntk["input"] / 18, ntk["readout"]

    per_seed = measured(jax.random.split(jax.random.key(0), seeds))
    limit = lazy_conv_kernels(x, depth, "relu", gain**0.5)
    # Independent entries, so that the largest of some sixty is rarely 4 standard errors off; a bias of 1/N beside.
    for name, of in zip(("H", "Phi", "ntk_branch", "ntk_readin", "ntk_readout"), per_seed, strict=True):
        of, at = np.asarray(of, float), getattr(limit, name)
        error = of.std(0, ddof=1) / np.sqrt(seeds)
        assert np.abs(of.mean(0) - at).max() < 4 * error.max() + 0.5 / width * np.abs(at).max(), name
        assert error.max() < 0.05 * np.abs(at).max(), name


def test_derivatives():
    x, options = images(2, 3, 3, 1), dict(depth=2, activation="erf", times=())
    ntk = lambda beta, x: lazy_conv_kernels(x, beta=beta, **options).ntk.sum()  # noqa: E731
    with jax.enable_x64(True):
        slopes = jax.grad(ntk, (0, 1))(1.1, jnp.asarray(x))
    step = np.zeros_like(x)
    step[1, 0, 2, 0] = 1e-5
    assert slopes[0] == pytest.approx((ntk(1.1 + 1e-5, x) - ntk(1.1 - 1e-5, x)) / 2e-5, rel=1e-7)
    assert slopes[1][1, 0, 2, 0] == pytest.approx((ntk(1.1, x + step) - ntk(1.1, x - step)) / 2e-5, rel=1e-7)


def test_series_that_does_not_reach():
    """Positions next to each other in a smooth image are nearly alike."""
    smooth = np.linspace(1, 1.01, 5)[None, :, None]
    with pytest.warns(UserWarning, match=r"overlap of 1: the series of 128 terms") as warned:
        lazy_conv_kernels(smooth, 1, lambda h: jnp.maximum(h, 0.1 * h), padding="zero")
    assert warned[0].filename == __file__


@pytest.mark.parametrize(
    ("x", "options", "message"),
    [
        (images(3, 4), {}, "images must be (P, length, channels) or (P, height, width, channels), got (3, 4)"),
        (images(3, 4, 2), dict(x2=images(3, 5, 2)), "must have one shape, got (4, 2) and (5, 2)"),
        (images(3, 4, 2), dict(padding="same"), "unknown padding 'same'"),
        (images(3, 2, 2), dict(kernel=6), "circular padding of a kernel of 6 needs images of 3 or more"),
        (images(3, 4, 2), dict(depth=0), "depth must be at least 1"),
        (images(3, 4, 2), dict(kernel=0), "kernel must be at least 1"),
        (images(3, 4, 2), dict(depth=3, times=(0.5,)), "time 0.5 is no layer of a network of depth 3"),
        (images(1, 64, 64, 1), dict(memory_limit=1), "would need about 6.0 GiB, above memory_limit=1"),
    ],
)
def test_bad_input(x, options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        lazy_conv_kernels(x, **options)
