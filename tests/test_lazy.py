"""The lazy limit: kernels, NTK and predictions (docs/theory.md section 2)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.linalg

from depthmup.theory import lazy, lazy_kernels, lazy_predictor, linear_dmft

PAIR = np.array([[1, 0.3], [0.3, 1]])
# H12(.5), H12(1), Phi12(1), G12(0), G12(.5), G12(1), br12(.5), br12(1), NTK12, NTK11: ReLU, beta 1, readout phi.
TABLE = """
4    .42994327 .60231723 .42375989 .41714607 .36093775 .31135444 .04854524 .10413848 .65304219 1.95776367
16   .43806553 .62353081 .43543337 .42240645 .36377667 .31222665 .05348685 .11524689 .67740219 2.03279368
64   .44028622 .62937201 .43863614 .42382479 .36454273 .31246424 .05487293 .11837539 .68415898 2.05371213
None .44104516 .63137230 .43973182 .42430763 .36480357 .31254535 .05535006 .11945357 .68647768 2.06090159
"""


# As many samples at the same times share the programs of infinite depth.
TIMES, SAMPLES = (0.0, 0.3, 1.0), 6


def random_kernel(samples, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(samples, 6)) * rng.uniform(0.4, 1.2, (samples, 1))
    return x @ x.T / 6


@pytest.mark.parametrize("row", TABLE.strip().splitlines(), ids=lambda row: row.split()[0])
def test_reference_table(row):
    depth, *expected = row.split()
    k = lazy_kernels(PAIR, None if depth == "None" else int(depth), times=(0, 0.5, 1))
    kernels = [k.H[1], k.H[2], k.Phi[2], k.G[0], k.G[1], k.G[2], k.ntk_branch_until[1], k.ntk_branch, k.ntk]
    np.testing.assert_allclose([*(of[0, 1] for of in kernels), k.ntk[0, 0]], np.float64(expected), rtol=0, atol=1e-8)
    assert k.Phi[0, 0, 1] == pytest.approx(0.24137214, abs=1e-8)


def test_closed_forms_at_infinite_depth():
    K, beta, tau = random_kernel(SAMPLES), 0.8, np.array(TIMES)
    k = lazy_kernels(K, None, "linear", beta, times=tau)
    grown = np.exp(beta**2 * tau)[:, None, None]
    np.testing.assert_allclose(k.H, K * grown, rtol=1e-10)
    np.testing.assert_allclose(k.G, np.exp(beta**2) / grown * np.ones_like(K), rtol=1e-10)
    np.testing.assert_allclose(k.ntk_branch, beta**2 * np.exp(beta**2) * K, rtol=1e-10)
    np.testing.assert_allclose(k.ntk, (2 + beta**2) * np.exp(beta**2) * K, rtol=1e-10)
    for readout, top in (("phi", 0.5), ("linear", 1.0)):
        k = lazy_kernels(K, None, "relu", beta, readout, times=tau)
        H, G, branch = (np.diagonal(of, axis1=-2, axis2=-1) for of in (k.H, k.G, k.ntk_branch_until))
        norms, grown = np.diag(K), np.exp(beta**2 * tau / 2)[:, None]
        np.testing.assert_allclose(H, norms * grown, rtol=1e-10)
        np.testing.assert_allclose(G, top * np.exp(beta**2 / 2) / grown * np.ones(SAMPLES), rtol=1e-10)
        np.testing.assert_allclose(branch, beta**2 * norms * tau[:, None] * G[0] / 2, rtol=1e-10, atol=1e-12)


def relu_by_an_ode_solver(K, beta):
    """(H(1), NTK) with G integrated backwards from the readout, as the equations are written."""
    outer = np.sqrt(np.outer(np.diag(K), np.diag(K)))
    tau = np.linspace(0, 1, 2001)

    def theta(H, tau):
        return np.arccos(np.clip(H / (outer * np.exp(beta**2 * tau / 2)), -1, 1))

    def Phi(H, tau):
        angle = theta(H, tau)
        size = outer * np.exp(beta**2 * tau / 2)
        return size * (np.sin(angle) + (np.pi - angle) * np.cos(angle)) / (2 * np.pi)

    def slope(tau, flat):
        return beta**2 * Phi(flat.reshape(K.shape), tau).ravel()

    H = scipy.integrate.solve_ivp(slope, (0, 1), K.ravel(), "DOP853", tau, rtol=1e-12, atol=1e-13).y.T
    H = H.reshape(-1, *K.shape)
    Phidot = np.array([(np.pi - theta(*each)) / (2 * np.pi) for each in zip(H, tau, strict=True)])
    integral = scipy.integrate.cumulative_simpson(Phidot, x=tau, axis=0, initial=0)
    G = Phidot[-1] * np.exp(beta**2 * (integral[-1] - integral))
    every = np.array([Phi(*each) for each in zip(H, tau, strict=True)])
    branch = beta**2 * scipy.integrate.simpson(every * G, x=tau, axis=0)
    return H[-1], branch + K * G[0] + every[-1]


def test_relu_at_infinite_depth_for_any_angle():
    """The interpolated flow, up to nearly opposite and nearly equal samples."""
    x = np.linalg.cholesky(random_kernel(SAMPLES) + 0.1 * np.eye(SAMPLES))
    x[1], x[2] = -0.9 * x[0] + 1e-2 * x[3], 1.1 * x[0] + 1e-2 * x[4]
    K = x @ x.T
    k = lazy_kernels(K, None, "relu", 1.2, times=TIMES)
    H, ntk = relu_by_an_ode_solver(K, 1.2)
    between = ~np.eye(SAMPLES, dtype=bool)  # of a sample with itself the solver above keeps half the digits
    np.testing.assert_allclose(k.H[-1][between], H[between], rtol=0, atol=1e-9)
    np.testing.assert_allclose(k.ntk[between], ntk[between], rtol=0, atol=1e-9)


def by_the_recursion(K, depth, activation, beta, readout, alpha=0.5):
    """Equations of section 2 as they are written, with the package's averages only."""
    with jax.enable_x64(True):
        moments = lazy.moments(activation)
        diagonal = np.arange(len(K))

        def both(H):
            a = jnp.diag(H)
            pairs = zip(moments.pair(a[:, None], a[None], H), moments.same(a), strict=True)
            return [np.asarray(of.at[diagonal, diagonal].set(same)) for of, same in pairs]

        H, square = [K], beta**2 * depth ** (-2 * alpha)
        for _ in range(depth):
            H.append(H[-1] + square * both(jnp.asarray(H[-1]))[0])
        Phi, Phidot = zip(*(both(jnp.asarray(each)) for each in H), strict=True)
    G = [Phidot[-1] if readout == "phi" else np.ones_like(K)]
    for each in Phidot[-2::-1]:
        G.insert(0, G[0] * (1 + square * each))
    branch = [beta**2 / depth * Phi[i] * G[i + 1] for i in range(depth)]
    until = np.array([sum(branch[:i], np.zeros_like(K)) for i in range(depth + 1)])
    parts = until[-1], K * G[0], Phi[-1] if readout == "phi" else H[-1]
    return np.array(H), np.array(Phi), np.array(G), until, *parts


@pytest.mark.parametrize(
    ("activation", "readout", "alpha"), [("relu", "phi", 0.5), ("erf", "linear", 0.75), ("gelu", "phi", 1.0)]
)
def test_finite_depth_is_the_recursion(activation, readout, alpha):
    K = random_kernel(4)
    k = lazy_kernels(K, 5, activation, 1.1, readout, alpha=alpha)
    np.testing.assert_allclose(k.times, np.arange(6) / 5)
    for kernel, expected in zip(k[1:], by_the_recursion(K, 5, activation, 1.1, readout, alpha), strict=True):
        np.testing.assert_allclose(kernel, expected, rtol=1e-12)


@pytest.mark.parametrize(("activation", "readout"), [("relu", "phi"), ("erf", "linear")])
def test_finite_depth_approaches_infinite_depth_as_one_over_depth(activation, readout):
    K, times = random_kernel(3), (0.5, 1)
    limit = lazy_kernels(K, None, activation, 1.0, readout, times=times)
    shallow, deep = (lazy_kernels(K, depth, activation, 1.0, readout, times=times) for depth in (256, 1024))
    for name in ("H", "G", "Phi", "ntk"):
        near, far = (np.abs(getattr(k, name) - getattr(limit, name)).max() for k in (deep, shallow))
        assert np.log(near / far) / np.log(4) == pytest.approx(-1, abs=0.02), name


def test_blocks_of_samples(monkeypatch):
    """Training against test samples by their norms, in blocks of any size: entries of one big kernel."""
    K = random_kernel(7)
    whole = lazy_kernels(K, 3, times=(0, 1))
    norms = np.diag(K)
    part = lazy_kernels(K[:4, 4:], 3, norms=(norms[:4], norms[4:]), times=(0, 1))
    monkeypatch.setattr(lazy, "BLOCK", 15)  # two rows at a time, with one to fill up
    lazy._kernels.clear_cache()
    blocks = lazy_kernels(K, 3, times=(0, 1))
    lazy._kernels.clear_cache()
    for all_, some, again in zip(whole[1:], part[1:], blocks[1:], strict=True):
        np.testing.assert_allclose(some, all_[..., :4, 4:], rtol=1e-12)
        np.testing.assert_allclose(again, all_, rtol=1e-12)


def test_above_one_half_kernels_stay():
    """theory.md section 1.1: the random branches vanish as L^(1 - 2 alpha), only what training adds stays."""
    K = random_kernel(4)
    limit = lazy_kernels(K, None, "erf", 0.9, alpha=0.75, times=(0, 1))
    np.testing.assert_allclose(limit.H, [K, K], rtol=1e-12)
    np.testing.assert_allclose(limit.G[0], limit.G[1], rtol=1e-12)
    np.testing.assert_allclose(limit.ntk_branch, 0.81 * limit.Phi[1] * limit.G[1], rtol=1e-10)
    errors = [np.abs(lazy_kernels(K, L, "erf", 0.9, alpha=0.75, times=()).ntk - limit.ntk).max() for L in (1024, 4096)]
    assert np.log(errors[1] / errors[0]) / np.log(4) == pytest.approx(-0.5, abs=0.02)


def test_float64_whatever_the_caller_has():
    k = lazy_kernels(np.float32(PAIR), 2)
    assert isinstance(k.H, np.ndarray)
    assert k.H.dtype == k.ntk.dtype == np.float64
    assert k.ntk[0, 1] == lazy_kernels(np.float64(np.float32(PAIR)), 2).ntk[0, 1]
    assert jnp.zeros(1).dtype == jnp.float32  # what it was
    slope = jax.grad(lambda beta: lazy_kernels(PAIR, 2, beta=beta).ntk[0, 1])(1.0)
    assert slope.dtype == jnp.float32


def test_derivatives(x64):
    def entry(scale, beta):
        off = jnp.array([[0.0, 1.0], [1.0, 0.0]])
        return lazy_kernels(jnp.asarray(PAIR) + scale * off, 3, "relu", beta, times=()).ntk[0, 1]

    gradient = jax.grad(entry, (0, 1))(0.0, 1.0)
    h = 1e-4
    expected = [(entry(h, 1.0) - entry(-h, 1.0)) / (2 * h), (entry(0.0, 1 + h) - entry(0.0, 1 - h)) / (2 * h)]
    np.testing.assert_allclose(gradient, expected, rtol=1e-6)


def test_from_a_caller_in_float32():
    """Derivatives and compilation of the caller's: computed in 64 bits, returned in 32."""
    K = jnp.float32(PAIR)
    slope = jax.jit(jax.grad(lambda K: lazy_kernels(K, 2, "erf", times=()).ntk[0, 1]))(K)
    with jax.enable_x64(True):
        exact = jax.grad(lambda K: lazy_kernels(K, 2, "erf", times=()).ntk[0, 1])(jnp.asarray(PAIR))
    assert slope.dtype == jnp.float32
    np.testing.assert_allclose(slope, exact, rtol=1e-5)
    compiled = jax.jit(lambda K: lazy_kernels(K, 2, "erf", times=()).ntk)(K)
    assert compiled.dtype == jnp.float32
    np.testing.assert_allclose(compiled, lazy_kernels(K, 2, "erf", times=()).ntk, rtol=1e-6)
    rate = jax.grad(lambda ntk: lazy_predictor(ntk, np.ones(2), 0.3, steps=3).train[-1].sum())(K)
    h = 1e-3 * np.array([[0, 1], [1, 0]])
    up, down = (lazy_predictor(PAIR + s * h, np.ones(2), 0.3, steps=3).train[-1].sum() for s in (1, -1))
    assert rate[0, 1] + rate[1, 0] == pytest.approx((up - down) / 2e-3, rel=1e-3)


def test_kernels_of_float32_data_are_kernels():
    x = np.random.default_rng(0).normal(size=(150, 40)).astype(np.float32)
    K = x @ x.T / 40
    assert np.linalg.eigvalsh(K.astype(np.float64))[0] < -1e-8
    k = lazy_kernels(K, 1, times=())
    assert np.isfinite(k.ntk).all()
    norms = np.diag(K)
    np.testing.assert_allclose(lazy_kernels(K, 1, times=(), norms=(norms, norms)).ntk, k.ntk, atol=1e-4)
    with pytest.raises(ValueError, match="positive semi-definite"):
        lazy_kernels(K - np.float32(1e-3) * np.eye(150, dtype=np.float32), 1)


def test_functions_that_are_known_have_their_closed_form():
    K = np.array([[1, 0.999], [0.999, 1]])
    np.testing.assert_array_equal(lazy_kernels(K, 2, jax.nn.relu).ntk, lazy_kernels(K, 2, "relu").ntk)
    with pytest.warns(UserWarning, match=r"off by .* overlap of 0\.999: the series of 128 terms") as warned:
        other = lazy_kernels(K, 2, lambda h: jnp.maximum(h, 0)).ntk
    assert warned[0].filename == __file__
    assert 1e-4 < np.abs(other - lazy_kernels(K, 2, "relu").ntk).max() < 0.05


def test_bad_kernels_and_options():
    with pytest.raises(ValueError, match=r"Kx must be a square kernel \(samples, samples\), got shape \(2, 3\)"):
        lazy_kernels(np.ones((2, 3)), 2)
    with pytest.raises(ValueError, match=r"positive semi-definite: its smallest eigenvalue is -1"):
        lazy_kernels([[1, 2], [2, 1]], 2)
    with pytest.raises(ValueError, match=r"symmetric: entry \(0, 1\) is 0.2, entry \(1, 0\) 0.1"):
        lazy_kernels([[1, 0.2], [0.1, 1]], 2)
    with pytest.raises(ValueError, match="not finite"):
        lazy_kernels([[np.nan]], 2)
    with pytest.raises(ValueError, match="no block of a positive semi-definite kernel"):
        lazy_kernels([[1.5]], 2, norms=([1], [1]))
    with pytest.raises(ValueError, match=r"norms of shapes \(2,\) and \(1,\) do not fit a block of shape"):
        lazy_kernels([[0.5]], 2, norms=([1, 1], [1]))
    with pytest.raises(ValueError, match="no block of a positive semi-definite kernel"):
        lazy_kernels([[0.5]], 2, norms=([-1], [-1]))
    for depth in (0, -1, 2.5):
        with pytest.raises(ValueError, match="depth"):
            lazy_kernels(PAIR, depth)
    with pytest.raises(ValueError, match="unknown readout 'Phi'; did you mean 'phi'"):
        lazy_kernels(PAIR, 2, readout="Phi")
    with pytest.raises(ValueError, match=r"alpha must be in \[0.5, 1\]"):
        lazy_kernels(PAIR, 2, alpha=0.4)
    with pytest.raises(ValueError, match=r"0\.3 is no layer of a network of depth 2"):
        lazy_kernels(PAIR, 2, times=(0.3,))
    with pytest.raises(ValueError, match="ascending"):
        lazy_kernels(PAIR, times=(1, 0.5))
    with pytest.raises(
        ValueError, match=r"would need about 0\.2 GiB, above memory_limit=0\.1: raise it, or give fewer"
    ):
        lazy_kernels(np.eye(64), 2000, memory_limit=0.1)


def trained(Theta, y, eta0, steps):
    """Gradient descent on a linear model whose features have this kernel."""
    values, vectors = np.linalg.eigh(Theta)
    features = vectors * np.sqrt(np.maximum(values, 0))
    w, predictions = np.zeros((len(y), *y.shape[1:])), []
    for _ in range(steps):
        predictions.append(features @ w)
        w = w + eta0 / len(y) * features.T @ (y - predictions[-1])
    return np.array(predictions)


@pytest.mark.parametrize("outputs", [(), (2,)])
def test_predictor_descends(outputs):
    rng = np.random.default_rng(0)
    Theta, y = random_kernel(4), rng.normal(size=(4, *outputs))
    np.testing.assert_allclose(lazy_predictor(Theta, y, 1.5, steps=8).train, trained(Theta, y, 1.5, 8), atol=1e-12)
    t = np.array([0.0, 0.5, 30.0])
    flow = lazy_predictor(Theta, y, 1.5, times=t).train
    for time, prediction in zip(t, flow, strict=True):
        np.testing.assert_allclose(prediction, y - scipy.linalg.expm(-1.5 * Theta * time / 4) @ y, atol=1e-12)
    start = rng.normal(size=y.shape)
    moved = lazy_predictor(Theta, y, 1.5, steps=8, initial=start).train
    np.testing.assert_allclose(moved - start, trained(Theta, y - start, 1.5, 8), atol=1e-12)


def test_predictor_on_test_samples():
    """Those of linear networks in which the test samples have no weight, also where the kernel has a null space."""
    K, y = random_kernel(9), np.random.default_rng(1).normal(size=9)  # of 6 dimensions
    k = lazy_kernels(K, 3, "linear", times=())
    weights = np.r_[np.full(7, 1 / 7), 0, 0]
    whole = linear_dmft(K, y, depth=3, steps=6, eta0=0.5, gamma0=0, sample_weights=weights)
    predictor = lazy_predictor(k.ntk[:7, :7], y[:7], 0.5, steps=6, test_ntk=k.ntk[:7, 7:], test_initial=np.ones(2))
    np.testing.assert_allclose(predictor.train, whole.predictions[:, :7], atol=1e-12)
    np.testing.assert_allclose(predictor.test, whole.predictions[:, 7:] + 1, atol=1e-12)
    flow = lazy_predictor(k.ntk[:7, :7], y[:7], 0.5, times=[1e9], test_ntk=k.ntk[:7, 7:]).test
    np.testing.assert_allclose(
        flow[0], np.linalg.lstsq(k.ntk[:7, :7], y[:7], rcond=1e-10)[0] @ k.ntk[:7, 7:], atol=1e-6
    )


def test_predictor_with_slow_modes():
    """What a mode of small eigenvalue learns late shows on test samples, where it is divided by that eigenvalue."""
    ntk, across, t = np.diag([1.0, 1e-5, 1e-9]), np.array([[0.3], [0.2], [0.1]]), np.array([1e5])
    left = np.exp(-np.diag(ntk) * t / 3)
    prediction = lazy_predictor(ntk, np.ones(3), 1.0, times=t, test_ntk=across).test
    np.testing.assert_allclose(prediction[0, 0], across[:, 0] @ ((1 - left) / np.diag(ntk)), rtol=1e-7)


def test_samples_with_themselves_are_exact():
    """Also where the series does not reach: at an overlap of 1, of a function with a kink."""
    K, depth, beta = random_kernel(5), 6, 0.9
    for activation, readout, top in (("relu", "phi", 0.5), (lambda h: jnp.maximum(h, 0), "linear", 1.0)):
        k = lazy_kernels(K, depth, activation, beta, readout)
        grown = (1 + beta**2 / (2 * depth)) ** np.arange(depth + 1)[:, None]
        for of, expected in ((k.H, np.diag(K) * grown), (k.Phi, np.diag(K) * grown / 2), (k.G, top * grown[::-1])):
            np.testing.assert_allclose(np.diagonal(of, axis1=1, axis2=2), expected * np.ones(5), rtol=1e-13)


def test_predictor_says_when_descent_diverges():
    Theta, y = np.diag([1.0, 4.0]), np.ones(2)
    bound = 2 * 2 / 4.0
    assert np.abs(lazy_predictor(Theta, y, 0.99 * bound, steps=500).train[-1] - y).max() < 0.1
    with pytest.warns(UserWarning, match=r"eta0 = 1\.01 is above 1, 2 \(1 \+ momentum\) over the largest eigenvalue"):
        grown = lazy_predictor(Theta, y, 1.01 * bound, steps=500).train
    assert np.abs(grown[-1]).max() > 1e3


def test_bad_predictor_options():
    with pytest.raises(ValueError, match="either steps, of gradient descent, or times"):
        lazy_predictor(PAIR, np.ones(2), 0.1)
    for options, message in (
        (dict(eta0=[0.1, 0.2]), "eta0 must be one number; for one a step use linear_dmft or dmft with gamma0=0"),
        (dict(steps=0), "steps must be at least 1, got 0"),
        (dict(steps=2.5), "steps must be a whole number, got 2.5"),
        (dict(steps=None, times=1.0), r"times must be \(times,\), got shape \(\)"),
        (dict(initial=np.ones((2, 1))), r"initial must have the shape of y, \(2,\), got \(2, 1\)"),
        (dict(test_ntk=np.ones((2, 3)), test_initial=np.ones(2)), r"test_initial needs the shape \(3, ...\) as y"),
    ):
        with pytest.raises(ValueError, match=message):
            lazy_predictor(PAIR, np.ones(2), **{"eta0": 0.1, "steps": 2, **options})
    with pytest.raises(ValueError, match=r"y has shape \(3,\); the kernel of 2 samples needs \(2,\)"):
        lazy_predictor(PAIR, np.ones(3), 0.1, steps=2)
    with pytest.raises(ValueError, match=r"test_ntk must be \(training samples, test samples\) = \(2, ...\)"):
        lazy_predictor(PAIR, np.ones(2), 0.1, steps=2, test_ntk=np.ones((3, 2)))
