"""Training at infinite width: the linear and the Monte Carlo solver, their limits, and networks (theory.md 3 and 4)."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from depthmup.measure import network_kernels
from depthmup.theory import Problem, dmft, lazy_kernels, lazy_predictor, linear_dmft, minibatches, one_step_linear
from depthmup.theory.checks import GROUPS
from depthmup.theory.equations import weight_evolution
from experiments.networks import inputs, network, train

KX = np.array([[1, 0.3, -0.2], [0.3, 1, 0.1], [-0.2, 0.1, 1]])
Y = np.array([1, -0.5, 0.8])
# H_1(tau) at tau = .25, .5, .75, 1 and beta = 1 by (c, whether the read-in is trained); docs/theory.md section 3.
ONE_STEP = {
    (0.5, False): [1.347651, 2.022195, 3.330862, 5.797055],
    (1.0, False): [1.538530, 3.142618, 6.972446, 15.033375],
    (2.0, False): [2.302042, 7.624307, 21.538784, 51.978656],
    (0.5, True): [3.201896, 5.943673, 10.703946, 18.727903],
    (1.0, True): [8.955508, 18.828529, 36.464785, 66.756768],
}
# F(T-1) of KX, Y, L = 3, T = 10, eta_0 = .5, gamma_0 = 1; another code, of 32,000 samples, agrees to .0008.
CURVES = {"relu": [0.9945, -0.4700, 0.7957], "tanh": [0.7853, -0.4179, 0.6757]}


def random_problem(seed, samples=3):
    """(Kx, y), a kernel of fewer dimensions than samples."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(samples, samples - 1))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    return x @ x.T, rng.normal(size=samples)


@functools.cache
def solved(activation):
    return dmft(KX, Y, depth=3, steps=10, activation=activation, eta0=0.5, samples=8000)


@pytest.mark.parametrize(("c", "readin"), ONE_STEP)
def test_one_step_table(c, readin):
    kernels = one_step_linear(c, train_readin=readin, times=np.array([0.25, 0.5, 0.75, 1]))
    np.testing.assert_allclose(kernels.H1, ONE_STEP[c, readin], rtol=0, atol=5.1e-7)


@pytest.mark.parametrize(("beta", "readin"), [(1.0, True), (0.7, False)])
def test_one_step_is_the_linear_solver(beta, readin):
    exact = one_step_linear(0.5 * 0.8, 12, beta=beta, train_readin=readin)
    groups = ("readin", "branch", "readout") if readin else ("branch",)
    dynamics = linear_dmft([[1.0]], [0.8], depth=12, steps=2, eta0=0.1, gamma0=5.0, beta=beta, trained=groups)
    np.testing.assert_allclose(dynamics.H[:, 0, 0, 0, 0], exact.H0, rtol=1e-12)
    np.testing.assert_allclose(dynamics.H[:, 1, 0, 1, 0], exact.H1, rtol=1e-12)
    limit = one_step_linear(0.5, beta=beta, train_readin=readin).H1[-1]
    errors = [abs(one_step_linear(0.5, L, beta=beta, train_readin=readin).H1[-1] - limit) for L in (512, 2048)]
    assert np.log(errors[1] / errors[0]) / np.log(4) == pytest.approx(-1, abs=0.02)


@pytest.mark.parametrize("seed", [0, 1])
def test_monte_carlo_of_a_linear_network_is_exact(seed):
    """With all that both solvers take, on random kernels of low rank; for one output and two."""
    Kx, y = random_problem(seed)
    batches = minibatches([[0, 1], [2, 1], [0, 2], [1, 1], [0, 1], [2, 2]], 3)
    options = dict(depth=2, steps=6, eta0=np.linspace(0.3, 0.2, 6), gamma0=0.8, beta=1.1, momentum=0.4)
    options |= dict(weight_decay=0.1, sample_weights=batches)
    if seed:
        y = np.stack([y, y[::-1]], axis=1)
        options |= dict(trained=("readin", "branch"), alpha=0.75)
    exact = linear_dmft(Kx, y, **options)
    dynamics = dmft(Kx, y, activation="linear", samples=1000, replicates=1, **options)
    for name in ("predictions", "H", "Phi", "G"):
        np.testing.assert_allclose(getattr(dynamics, name), getattr(exact, name), rtol=0, atol=1e-8)
    assert dynamics.predictions.shape == (6, *y.shape)
    assert dynamics.G.shape == (3, 6, *y.shape, 6, *y.shape)
    assert dynamics.stderr is None


@pytest.mark.parametrize("activation", sorted(CURVES))
def test_reference_curves(activation):
    dynamics = solved(activation)
    error = dynamics.stderr[-1] + 0.0008
    assert (dynamics.stderr[-1] < 0.005).all()
    np.testing.assert_array_less(np.abs(dynamics.predictions[-1] - CURVES[activation]), 4 * error)
    # Kernels of the initial weights are those of the lazy limit.
    lazy = lazy_kernels(KX, 3, activation)
    for name in ("H", "Phi", "G"):
        start = getattr(dynamics, name)[:, 0, :, 0, :]
        np.testing.assert_allclose(start, getattr(lazy, name), rtol=0, atol=0.02)
        flat = getattr(dynamics, name).reshape(4, 30, 30)
        # A product of matrices may round its two triangles differently.
        np.testing.assert_allclose(flat, np.swapaxes(flat, 1, 2), rtol=0, atol=1e-14)


def test_it_is_said_when_descent_diverges():
    """Gradient descent with the NTK of the start: learning rates on both sides of the bound."""
    options = dict(depth=3, steps=60, momentum=0.5, gamma0=0)
    ntk = lazy_kernels(KX, 3, "erf").ntk
    bound = 2 * 1.5 * 3 / np.linalg.eigvalsh(ntk)[-1]
    assert np.abs(dmft(KX, Y, activation="erf", eta0=0.95 * bound, **options).predictions[-1]).max() < 3
    with pytest.warns(
        UserWarning, match=rf"eta0 = {1.1 * bound:.4g} is above {bound:.4g}, 2 \(1 \+ momentum\) over"
    ) as warned:
        grown = dmft(KX, Y, activation="erf", eta0=1.1 * bound, **options)
    assert warned[0].filename == __file__
    assert np.abs(grown.predictions[-1]).max() > 10
    bound = 2 / (np.linalg.eigvalsh(KX[:2, :2])[-1] * ((1 + 1 / 3) ** 2 + 2 * (1 + 1 / 3) ** 3) / 2)
    with pytest.warns(UserWarning, match=rf"is above {bound:.4g}"):
        linear_dmft(KX, Y, depth=3, steps=2, eta0=1.01 * bound, sample_weights=[0.5, 0.5, 0])


@pytest.mark.slow
@pytest.mark.parametrize("activation", sorted(CURVES))
def test_networks_approach_the_limit_as_one_over_width(activation):
    """The means of networks trained by the package's own step; the full measurement is experiments.convergence."""
    limit = solved(activation)
    means, errors = {}, {}
    for width in (64, 128):
        problem = Problem(KX, Y, depth=3, steps=10, eta0=0.5, activation=activation)
        curves = train(problem, width=width, seeds=256, mirrored=True)
        means[width], errors[width] = curves.mean(0), curves.std(0, ddof=1) / 16
    noise = np.sqrt(4 * errors[128] ** 2 + errors[64] ** 2 + limit.stderr**2)
    np.testing.assert_array_less(np.abs(2 * means[128] - means[64] - limit.predictions)[1:], 4 * noise[1:] + 1e-3)
    if activation == "relu":  # whose bias is well above the noise
        near, far = (np.sqrt(np.mean((means[width] - limit.predictions) ** 2)) for width in (128, 64))
        assert 1.5 < far / near < 2.8


def test_gradient_kernel_of_networks():
    """Where the response of a gradient to the same time's source (t = s in docs/theory.md section 4) counts most."""
    Kx, width = np.ones((1, 1)), 256
    problem = Problem(Kx, np.ones(1), depth=1, steps=3, eta0=1.0, beta=1.5, activation="tanh")
    model = network(width, 1, 1, "tanh")

    def gradients(params, factors):
        return network_kernels(model.forward(factors), params, jnp.asarray(inputs(Kx)), phi=model.phi).G[0]

    _, G = train(problem, width=width, seeds=128, mirrored=True, observe=gradients)
    limit = dmft(problem, samples=16000).G[0, -1, 0, -1, 0]
    assert G[:, 1].mean() == pytest.approx(limit, abs=0.006)  # without: 0.012 larger
    assert G[:, 1].std() / 128**0.5 < 0.0015


@pytest.mark.parametrize("solver", [linear_dmft, functools.partial(dmft, activation="tanh", samples=400, replicates=1)])
def test_frozen_weights_do_not_decay(solver):
    """Features of what stands before the weights that are trained stay, and gradients of what stands behind them."""
    Kx, y = random_problem(2)
    options = dict(depth=2, steps=4, eta0=0.4, weight_decay=0.3)
    H, G = ({group: getattr(solver(Kx, y, trained=(group,), **options), of) for group in GROUPS} for of in "HG")
    for kernels, stay, moves in (
        (H, {"branch": [0], "readout": [0, 1, 2]}, {"readin": 0, "branch": 2}),
        (G, {"readin": [2], "branch": [2]} if solver is linear_dmft else {}, {"readout": 2}),
    ):
        diagonals = {group: np.diagonal(of, axis1=1, axis2=3) for group, of in kernels.items()}  # (layers, P, P, times)
        for group, layers in stay.items():
            np.testing.assert_allclose(
                diagonals[group][layers], diagonals[group][layers][..., :1] * np.ones(4), rtol=0, atol=1e-6
            )
        for group, layer in moves.items():
            first, last = diagonals[group][layer, ..., 0], diagonals[group][layer, ..., -1]
            assert np.abs(last - first).max() > 0.1 * np.abs(first).max()


def test_seeds_and_replicates():
    options = dict(depth=1, steps=3, activation="tanh", eta0=0.5, samples=200)
    one, again, other = (dmft(KX, Y, seed=seed, **options) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one.predictions, again.predictions)
    assert (one.predictions[1:] != other.predictions[1:]).all()
    # The scatter of seeds is what the replicates say: chi^2 of the differences of ten pairs.
    runs = [dmft(KX, Y, seed=seed, **options) for seed in range(20)]
    scatter = np.std([run.predictions[-1] for run in runs], axis=0, ddof=1)
    stderr = np.sqrt(np.mean([run.stderr[-1] ** 2 for run in runs], axis=0))
    assert (0.5 < scatter / stderr).all()
    assert (scatter / stderr < 2).all()


@pytest.mark.parametrize("weight_decay", [0.0, 0.2])
def test_lazy_limit(weight_decay):
    """gamma0 = 0 through the same calls: approached as gamma0^2; without decay, gradient descent with the NTK."""
    Kx, y = random_problem(3)
    options = dict(depth=4, steps=6, eta0=0.4, momentum=0.3, weight_decay=weight_decay)
    limit = linear_dmft(Kx, y, gamma0=0, **options)
    errors = []
    for gamma0 in (0.03, 0.01):
        dynamics = linear_dmft(Kx, y, gamma0=gamma0, **options)
        errors.append(max(np.abs(getattr(dynamics, name) - getattr(limit, name)).max() for name in ("H", "G")))
        errors.append(np.abs(dynamics.predictions - limit.predictions).max())
    np.testing.assert_allclose(np.log(np.divide(errors[:2], errors[2:])) / np.log(3), 2, atol=0.02)


@pytest.mark.parametrize(("activation", "readout"), [("relu", "phi"), ("tanh", "linear")])
def test_lazy_limit_of_any_activation(activation, readout):
    options = dict(depth=3, steps=6, activation=activation, readout=readout, eta0=0.5)
    limit = dmft(KX, Y, gamma0=0, **options)
    kernels = lazy_kernels(KX, 3, activation, readout=readout)
    np.testing.assert_allclose(limit.predictions, lazy_predictor(kernels.ntk, Y, 0.5, steps=6).train, atol=1e-12)
    np.testing.assert_allclose(limit.H[:, 2, :, 5], kernels.H, atol=1e-12)
    near = dmft(KX, Y, gamma0=0.05, samples=4000, **options)
    np.testing.assert_array_less(np.abs(near.predictions - limit.predictions)[1:], 4 * near.stderr[1:] + 3e-3)


def test_predictions_move_with_the_kernels():
    """F(t+1) - F(t) = (eta_0 / P) Theta(t,t) Delta + O(eta_0^2), with the NTK of section 2 of the kernels at t."""
    y, misses = np.array([2.0, -1.5, 1.0]), []
    for eta0 in (0.03, 0.015):
        steps = int(0.6 / eta0)
        dynamics = linear_dmft(KX, y, depth=2, steps=steps, eta0=eta0, gamma0=1.5)
        t = steps - 2
        H, G = dynamics.H[:, t, :, t], dynamics.G[:, t, :, t]
        Theta = (H[:-1] * G[1:]).sum(0) / 2 + H[-1] + KX * G[0]
        expected = eta0 / 3 * Theta @ (y - dynamics.predictions[t])
        misses.append(
            np.abs(dynamics.predictions[t + 1] - dynamics.predictions[t] - expected).max() / np.abs(expected).max()
        )
        assert Theta[0, 0] > 1.2 * lazy_kernels(KX, 2, "linear").ntk[0, 0]  # far from lazy
    assert misses[0] < 0.1
    assert misses[0] / misses[1] == pytest.approx(2, abs=0.4)


def test_branches_of_two_weights():
    """One small step of a linear network: both weights of a branch move the predictions, by the same part of the NTK.

    Networks are compared with in experiments.two_weight_blocks.
    """
    L, beta = 3, 1.2
    options = dict(depth=L, steps=2, eta0=0.1, gamma0=0.01, beta=beta, branch_weights=2, activation="linear")
    dynamics = dmft(KX, Y, samples=400, replicates=1, **options)
    grown = 1 + beta**2 / L
    ntk = KX * (2 * grown**L + 2 * beta**2 * grown ** (L - 1))
    np.testing.assert_allclose(dynamics.predictions[1], 0.1 / 3 * ntk @ Y, rtol=1e-4)
    np.testing.assert_allclose(dynamics.H[:, 0, :, 0], KX * grown ** np.arange(L + 1)[:, None, None], rtol=1e-10)
    frozen = dmft(KX, Y, samples=400, replicates=1, trained=("readin", "readout"), **options)
    np.testing.assert_allclose(frozen.predictions[1], 0.1 / 3 * 2 * grown**L * KX @ Y, rtol=1e-4)


def test_infinite_depth_is_extrapolated():
    Kx, y = random_problem(5)
    options = dict(steps=4, eta0=0.3)
    limit = linear_dmft(Kx, y, depths=(4, 8, 16), **options)
    deep = linear_dmft(Kx, y, depth=64, **options)
    shallow = linear_dmft(Kx, y, depth=16, **options)
    far = np.abs(deep.predictions - limit.predictions).max()
    assert np.abs(shallow.predictions - limit.predictions).max() / far == pytest.approx(4, rel=0.2)
    assert (
        np.abs(limit.predictions - (2 * deep.predictions - linear_dmft(Kx, y, depth=32, **options).predictions))
        <= limit.error + 1e-12
    ).all()
    assert limit.H.shape == (5, 4, 3, 4, 3)
    np.testing.assert_array_equal(limit.times, [0, 0.25, 0.5, 0.75, 1])
    start = lazy_kernels(Kx, None, "linear", times=limit.times)
    np.testing.assert_allclose(limit.H[:, 0, :, 0], start.H, rtol=1e-3)
    np.testing.assert_allclose(limit.G[:, 0, :, 0], start.G, rtol=1e-3)
    with pytest.raises(ValueError, match=r"depths must be L, 2L and 4L, got \(2, 4, 6\)"):
        linear_dmft(Kx, y, depths=(2, 4, 6), **options)
    sampled = dmft(Kx, y, activation="linear", depths=(1, 2, 4), samples=800, replicates=2, **options)
    exact = linear_dmft(Kx, y, depths=(1, 2, 4), **options)
    np.testing.assert_allclose(sampled.predictions, exact.predictions, atol=1e-8)
    np.testing.assert_allclose(sampled.error, exact.error, atol=1e-8)


def test_above_one_half_random_branches_vanish():
    """alpha = 1: predictions at depth L approach infinite depth, of which the random weights are no part, as 1/L."""
    Kx, y = random_problem(6)
    options = dict(steps=4, eta0=0.3, alpha=1.0)
    limit = linear_dmft(Kx, y, depths=(4, 8, 16), **options)
    np.testing.assert_allclose(limit.H[:, 0, :, 0], np.broadcast_to(Kx, (5, 3, 3)), rtol=1e-12)
    errors = [np.abs(linear_dmft(Kx, y, depth=L, **options).predictions - limit.predictions).max() for L in (16, 32)]
    assert np.log2(errors[1] / errors[0]) == pytest.approx(-1, abs=0.1)


def test_test_samples_do_not_train():
    Kx, y = random_problem(7, samples=4)
    options = dict(depth=3, steps=5, eta0=0.3)
    alone = linear_dmft(Kx[:3, :3], y[:3], **options)
    with_test = linear_dmft(Kx, y, sample_weights=[1 / 3] * 3 + [0], **options)
    np.testing.assert_allclose(with_test.predictions[:, :3], alone.predictions, rtol=1e-12)
    assert np.abs(with_test.predictions[-1, 3]) > 1e-3


def test_how_weights_evolve():
    """a_t and k_{t,s} against the loop of momentum with decay, and the formulas of section 4.3."""
    rng = np.random.default_rng(0)
    steps, eta0, w = rng.normal(size=7), rng.uniform(0.1, 0.5, 7), 1.3
    with jax.enable_x64(True):
        decay, memory = (np.asarray(of) for of in weight_evolution(jnp.asarray(eta0), 0.6, 0.2))
        heavy = np.asarray(weight_evolution(jnp.full(5, 0.1), 0.6, 0.0)[1])
        shrunk, left = (np.asarray(of) for of in weight_evolution(jnp.full(5, 0.1), 0.0, 0.2))
    weight, velocity = w, 0.0
    for t in range(7):
        assert decay[t] * w + memory[t] @ steps == pytest.approx(weight, rel=1e-12)
        velocity = 0.6 * velocity + steps[t] - 0.2 * weight
        weight += eta0[t] * velocity
    t, s = np.tril_indices(5, -1)
    np.testing.assert_allclose(heavy[t, s], 0.1 * (1 - 0.6 ** (t - s)) / 0.4, rtol=1e-12)
    np.testing.assert_allclose(left[t, s], 0.1 * 0.98 ** (t - 1 - s), rtol=1e-12)
    np.testing.assert_allclose(shrunk, 0.98 ** np.arange(5), rtol=1e-12)
    assert (np.triu(memory) == 0).all()


@pytest.mark.parametrize("solver", [linear_dmft, functools.partial(dmft, samples=400, replicates=1)])
def test_a_problem_is_its_fields(solver):
    fields = dict(
        depth=2, steps=3, eta0=[0.3, 0.2, 0.1], gamma0=0.7, trained=["readout", "branch"], activation="linear"
    )
    problem = Problem(KX, Y, **fields)
    np.testing.assert_array_equal(solver(problem).predictions, solver(KX, Y, **fields).predictions)
    other = solver(dataclasses.replace(problem, gamma0=0.1, depth=1))
    np.testing.assert_array_equal(other.G, solver(KX, Y, **fields | dict(gamma0=0.1, depth=1)).G)
    for more, named in (((), dict(depth=3, beta=2.0)), ((Y,), {})):
        with pytest.raises(TypeError, match=r"a problem comes alone, got (beta, depth|y) with it"):
            solver(problem, *more, **named)


def test_problems_are_pytrees():
    """Derivatives with respect to a problem are a problem whose arrays need not make sense; many problems at once."""
    problem = Problem(jnp.asarray(KX), jnp.asarray(Y), depth=2, steps=3, eta0=0.3, activation="linear")

    def last(problem):
        return linear_dmft(problem).predictions[-1]

    slopes = jax.jit(jax.grad(lambda problem: last(problem).sum()))(problem)
    expected = jax.grad(lambda y: last(dataclasses.replace(problem, y=y)).sum())(problem.y)
    np.testing.assert_allclose(slopes.y, expected, rtol=1e-6)
    h = 1e-4
    up, down = (last(dataclasses.replace(problem, eta0=0.3 + s * h)).sum() for s in (1, -1))
    assert slopes.eta0 == pytest.approx((up - down) / (2 * h), rel=1e-4)
    rates = np.array([0.1, 0.3], np.float32)
    both = jax.vmap(lambda eta0: last(dataclasses.replace(problem, eta0=eta0)))(rates)
    np.testing.assert_allclose(both[1], last(problem), rtol=1e-6)


def test_derivatives(x64):
    def loss(eta0, gamma0, entry):
        kernel = jnp.asarray(KX).at[0, 1].add(entry).at[1, 0].add(entry)
        dynamics = linear_dmft(kernel, Y, depth=2, steps=4, eta0=eta0, gamma0=gamma0)
        return ((dynamics.predictions[-1] - Y) ** 2).sum()

    gradient = jax.grad(loss, (0, 1, 2))(0.5, 0.8, 0.0)
    point, h = np.array([0.5, 0.8, 0.0]), 1e-5
    expected = [(loss(*(point + h * e)) - loss(*(point - h * e))) / (2 * h) for e in np.eye(3)]
    np.testing.assert_allclose(gradient, expected, rtol=1e-6)


def test_from_a_caller_in_float32():
    def last(Kx, solver):
        return solver(Kx).predictions[-1].sum()

    solvers = (
        lambda Kx: linear_dmft(Kx, Y, depth=1, steps=3, eta0=0.3),
        lambda Kx: dmft(Kx, Y, depth=1, steps=3, eta0=0.3, samples=200, replicates=1),
    )
    for solver in solvers:
        Kx = 0.7 * np.eye(3) + 0.3  # of equal eigenvalues
        slope = jax.jit(jax.grad(last), static_argnums=1)(jnp.float32(Kx), solver)
        assert slope.dtype == jnp.float32
        step = 1e-4 * (np.ones((3, 3)) - np.eye(3))
        expected = (last(Kx + step, solver) - last(Kx - step, solver)) / 2e-4
        assert slope.sum() - jnp.trace(slope) == pytest.approx(expected, rel=2e-3)


def test_what_is_said_of_single_steps():
    """Each step has its own bound; the last makes no update."""
    options = dict(depth=1, gamma0=0)
    each = minibatches([[t % 3] for t in range(40)], 3)
    with pytest.warns(UserWarning, match=r"eta0 = 0\.5 is above 0\.4, 2 "):
        dynamics = linear_dmft(KX, Y, steps=40, eta0=0.5, sample_weights=each, **options)
    with pytest.warns(UserWarning, match=r"eta0 = 1\.1 is above"):
        linear_dmft(KX, Y, steps=4, eta0=[0.1, 1.1, 0.1, 0.1], **options)
    linear_dmft(KX, Y, steps=3, eta0=[0.1, 0.1, 30.0], **options)
    assert np.isfinite(dynamics.predictions).all()


def test_bad_options():
    good = dict(depth=2, steps=3, eta0=0.2)
    for options, message in (
        (dict(depth=0), "depth must be at least 1, got 0"),
        (dict(steps=0), "steps must be at least 1"),
        (dict(depth=2.5), "depth must be a whole number, got 2.5"),
        (dict(eta0=-0.1), "eta0 must be at least 0, got -0.1"),
        (dict(gamma0=0, memory_limit=1e-9), "the lazy limit would need about"),
        (dict(momentum=1.0), "momentum must be at least 0 and less than 1, got 1"),
        (dict(weight_decay=-0.1), "weight_decay must be at least 0, got -0.1"),
        (dict(gamma0=-1.0), "gamma0 must be at least 0, got -1"),
        (dict(trained=("branches",)), "unknown group of weights 'branches'; did you mean 'branch'"),
        (dict(sample_weights=np.ones((2, 3))), r"sample_weights must be \(3,\) or \(3, 3\), got \(2, 3\)"),
        (dict(eta0=[0.1, 0.2]), r"eta0 must be a number, or \(3,\)"),
        (dict(memory_limit=1e-6), r"linear_dmft would need about 0\.0 GiB, above memory_limit=1e-06"),
    ):
        with pytest.raises(ValueError, match=message):
            linear_dmft(KX, Y, **{**good, **options})
    with pytest.raises(ValueError, match=r"y has shape \(2,\); Kx of 3 samples needs \(3,\) or \(3, outputs\)"):
        linear_dmft(KX, Y[:2], **good)
    with pytest.raises(ValueError, match="positive semi-definite"):
        dmft(-KX, Y, **good)
    with pytest.raises(
        ValueError, match=r"samples=100 are too few to match the moments of 21 sources at depth 2: take at"
    ):
        dmft(KX, Y, samples=100, **good)
    with pytest.raises(ValueError, match="dmft would need about"):
        dmft(KX, Y, memory_limit=1e-3, **good)
    with pytest.raises(ValueError, match="unknown activation"):
        dmft(KX, Y, activation="tan", **good)
    with pytest.raises(
        ValueError, match="linear_dmft takes activation='linear' and branch_weights=1, got 'relu' and 1"
    ):
        linear_dmft(KX, Y, activation="relu", **good)
    with pytest.raises(ValueError, match=r"linear_dmft takes .* got 'linear' and 2: use dmft"):
        linear_dmft(KX, Y, branch_weights=2, **good)
    with pytest.raises(ValueError, match="branch_weights must be 1 or 2"):
        dmft(KX, Y, branch_weights=3, **good)
    with pytest.raises(ValueError, match="branches of two weights are solved for alpha = 1/2 and gamma0 > 0 only"):
        dmft(KX, Y, branch_weights=2, gamma0=0, **good)
    with pytest.raises(ValueError, match=r"the batch of step 1 must name some of the samples 0\.\.2, got"):
        minibatches([[0], [3]], 3)
