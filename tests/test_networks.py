"""experiments/networks.py against the canonical network written out in NumPy (docs/theory.md sections 0 and 4.3)."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from depthmup.models import stationary_gain
from depthmup.theory import Problem
from depthmup.training_settings import Recipe
from experiments.networks import inputs, network, train
from tests.test_train import compilations

N, L, D, P, T, SEEDS = 16, 4, 5, 3, 6, 3
ETA0, GAMMA0, BETA = 0.4, 1.3, 0.8
X = np.random.default_rng(0).normal(size=(P, D))
Y = np.array([[1.0, -0.5], [-0.7, 0.2], [0.4, 0.9]])
FIELDS = [field.name for field in dataclasses.fields(Problem)]
DESCRIBED = dict(depth=L, steps=T, eta0=ETA0, gamma0=GAMMA0, beta=BETA)
TRAINED = dict(width=N, seeds=SEEDS, chunk=1)  # 1: compiles fast
PHI = {
    "tanh": (np.tanh, lambda h: 1 - np.tanh(h) ** 2),
    "relu": (lambda h: np.maximum(h, 0), lambda h: (h > 0).astype(float)),
    "identity": (lambda h: h, np.ones_like),
}
BATCHES = [[0, 1], [2, 0], [1, 2], [2, 1], [0, 2], [1, 1]]
EXACT = dict(rtol=0, atol=1e-12)


def parameters(params, forward):
    """What is observed here: one function, so that the tests share programs."""
    return params, forward


def trained(x=X, y=Y[:, 0], **options):
    """`train` with fields of a problem of these samples, and with options of its own."""
    described = DESCRIBED | {name: options.pop(name) for name in FIELDS if name in options}
    return train(Problem(x @ x.T / x.shape[1], y, **described), x, **TRAINED | options)


def ensemble(y=Y[:, 0], **options):
    """predictions, and {name of a layer: its weights (seeds, 2, ...)}"""
    predictions, (params, _) = trained(y=y, **dict(observe=parameters) | options)
    return predictions, {name: jax.tree.leaves(layer)[0] for name, layer in params.items()}


def canonical(observed, seed, end):
    """[W_in (N, D), W^0 .. W^{L-1}, w (N, C)] of one network, at the start or the end, all entries N(0, 1) at first."""
    layers = {name: leaf[seed, end] for name, leaf in observed.items()}
    blocks = [layers[f"block_{i}"].T * np.sqrt(N) for i in range(L)]
    return [layers["read_in"].T * np.sqrt(D), *blocks, layers["readout"]]


def by_hand(start, y, activation="tanh", readout="phi", alpha=0.5, a=None, kap=None, m=None):
    """W(t) = a_t W(0) + sum_{s<t} kap_{t,s} upd(s), upd the step of section 0 with sample weights m_{s,nu} for 1/P.

    Returns centred predictions (T, P, C) and the weights at the last step.
    """
    phi, dphi = PHI[activation]
    psi, dpsi = PHI[activation if readout == "phi" else "identity"]
    a = np.ones(T) if a is None else a
    kap = np.ones((T, T)) if kap is None else kap
    m = np.full((T, P), 1 / P) if m is None else m
    b, c = BETA * L**-alpha, ETA0 * GAMMA0
    updates, predictions = [], []
    for t in range(T):
        W = [a[t] * w + sum((kap[t, s] * updates[s][i] for s in range(t)), 0 * w) for i, w in enumerate(start)]
        h = [W[0] @ X.T / np.sqrt(D)]
        for l in range(L):  # noqa: E741 - the layer of docs/theory.md
            h.append(h[-1] + b / np.sqrt(N) * W[1 + l] @ phi(h[-1]))
        predictions.append(psi(h[L]).T @ W[-1] / (GAMMA0 * N))
        weighted = m[t][:, None] * (y - (predictions[t] - predictions[0]))  # m Delta, (P, C)
        update = [c * psi(h[L]) @ weighted]
        g = dpsi(h[L])[:, :, None] * W[-1][:, None, :]  # (N, P, C)
        for l in reversed(range(L)):  # noqa: E741
            drift = np.einsum("ipc,pc->ip", g, weighted)
            update.append(c * b * L ** (2 * alpha - 1) / np.sqrt(N) * drift @ phi(h[l]).T)
            g = g + b / np.sqrt(N) * dphi(h[l])[:, :, None] * np.einsum("ij,ipc->jpc", W[1 + l], g)
        update.append(c / np.sqrt(D) * np.einsum("ipc,pc->ip", g, weighted) @ X)
        updates.append(update[::-1])
    return np.array(predictions) - predictions[0], W


def assert_by_hand(y, *, of_hand, **options):
    """Every network of the ensemble has the predictions and last weights that are computed by hand; the predictions."""
    predictions, observed = ensemble(y, **options)
    for seed in range(SEEDS):
        expected, weights = by_hand(canonical(observed, seed, 0), y.reshape(P, -1), **of_hand)
        np.testing.assert_allclose(predictions[seed].reshape(expected.shape), expected, **EXACT)
        for trained_layer, layer in zip(canonical(observed, seed, 1), weights, strict=True):
            np.testing.assert_allclose(trained_layer, layer, **EXACT)
    return predictions


@pytest.mark.parametrize(
    ("y", "options"),
    [(Y[:, 0], dict(activation="tanh")), (Y, dict(activation="relu", readout="linear", alpha=0.75))],
)
def test_canonical_network(x64, y, options):
    predictions = assert_by_hand(y, **options, of_hand=options)
    assert predictions.shape == (SEEDS, T, *y.shape)
    assert predictions.dtype == np.float64
    assert np.mean((predictions[:, -1] - y) ** 2) < 0.8 * np.mean(y**2)  # it learns


def heavy_ball(mu):
    return np.ones(T), np.array([[(1 - mu ** (t - s)) / (1 - mu) for s in range(T)] for t in range(T)])


def decayed(rho):
    return rho ** np.arange(T), np.array([[rho ** (t - 1 - s) for s in range(T)] for t in range(T)])


def coupled(mu, rho):
    """Impulse responses of v <- mu v + step - (1 - rho) W, W <- W + v."""

    def response(W, steps):
        v, path = 0.0, [W]
        for step in steps:
            v = mu * v + step - (1 - rho) * W
            W += v
            path.append(W)
        return np.array(path)

    kap = np.stack([response(0.0, np.eye(T - 1)[s]) for s in range(T - 1)], axis=1)
    return response(1.0, np.zeros(T - 1)), kap


@pytest.mark.parametrize(
    ("options", "effective"),
    [
        (dict(momentum=0.6), heavy_ball(0.6)),
        (dict(weight_decay=0.1), decayed(1 - ETA0 * 0.1)),
        (dict(momentum=0.6, weight_decay=0.1), coupled(0.6, 1 - ETA0 * 0.1)),
        (dict(momentum=0.6, batches=BATCHES), heavy_ball(0.6)),
        (dict(momentum=0.6, weight_decay=0.1, batches=BATCHES[:-1]), coupled(0.6, 1 - ETA0 * 0.1)),
    ],
)
def test_effective_form(x64, options, effective):
    m = None
    if "batches" in options:
        m = np.array([[batch.count(nu) / 2 for nu in range(P)] for batch in BATCHES])
    assert_by_hand(Y[:, 0], **options, of_hand=dict(a=effective[0], kap=effective[1], m=m))


@pytest.mark.parametrize("group", ["readin", "branch", "readout"])
def test_frozen_groups_stay(x64, group):
    """Under decay and momentum, too; the others move."""
    others = [name for name in ("readin", "branch", "readout") if name != group]
    _, observed = ensemble(momentum=0.6, weight_decay=0.1, trained=others)
    kept = {name for name, layer in observed.items() if np.array_equal(layer[:, 1], layer[:, 0])}
    start = {"readin": "read_in", "readout": "readout", "branch": "block"}[group]
    assert kept == {name for name in observed if name.startswith(start)}


def test_read_in_of_one_input_is_trained(x64):
    _, (params, _) = trained(X[:, :1], observe=parameters)
    weights = params["read_in"]["kernel"]
    assert np.abs(weights[:, 1] - weights[:, 0]).min() > 1e-6


def test_initial_weights_are_normal(x64):
    parts = [ensemble(first_seed=SEEDS * i)[1] for i in range(20)]
    every = [canonical(observed, seed, 0) for observed in parts for seed in range(SEEDS)]
    for weights in zip(*every, strict=True):
        entries = np.concatenate([w.ravel() for w in weights])
        error = 4 / np.sqrt(entries.size)
        assert abs(entries.mean()) < error
        assert abs(entries.var() - 1) < 2**0.5 * error


def test_a_network_depends_on_its_seed_alone(x64):
    result, _ = ensemble()
    np.testing.assert_array_equal(ensemble()[0], result)
    np.testing.assert_array_equal(ensemble(first_seed=2)[0][0], result[2])
    np.testing.assert_allclose(ensemble(chunk=SEEDS)[0], result, **EXACT)
    assert np.abs(result[1:, -1] - result[:-1, -1]).min() > 1e-3


def test_one_program_for_all_values(x64):
    ensemble()
    count = compilations()
    options = dict(eta0=0.1, gamma0=0.3, beta=1.1, first_seed=1001, weight_decay=0.3, trained=("branch",), alpha=1.0)
    ensemble(-Y[:, 1], **options)
    assert compilations() == count


def test_observed_parameters_are_those_of_the_network(x64):
    predictions, observed = trained(observe=parameters)
    at_start, at_end = (jax.tree.map(lambda leaf, end=end: leaf[0, end], observed) for end in (0, 1))
    before, after = (network(N, L).apply({"params": w}, X, forward) for w, forward in (at_start, at_end))
    np.testing.assert_allclose(predictions[0, -1], (after - before)[:, 0], **EXACT)


def test_mirrored(x64):
    """With the readout weights of the other sign: the network trained on -y, its readout weights negated."""
    (plus, W), (minus, W_minus), (both, W_both) = ensemble(), ensemble(-Y[:, 0]), ensemble(mirrored=True)
    np.testing.assert_allclose(both, (plus - minus) / 2, **EXACT)
    for name, layer in W_both.items():
        other = -W_minus[name] if name == "readout" else W_minus[name]
        np.testing.assert_allclose(layer, (W[name] + other) / 2, **EXACT)
    assert np.abs(plus + minus).max() > 0.01  # what is cancelled


def test_lazy_limit_is_ntp(x64):
    """gamma_0 = N^-1/2 with eta_0 gamma_0^2 N = eta_0 is NTP (docs/theory.md section 1)."""
    expected, _ = ensemble(gamma0=N**-0.5)
    np.testing.assert_allclose(ensemble(gamma0=1.0, parameterization="ntp", alpha=0.5)[0], expected, **EXACT)


def test_plain_network(x64):
    """Without skips: He init, all learning rates eta_0 gamma_0^2 N for weights with multipliers D^-1/2, N^-1/2 and
    1/(gamma_0 N)."""
    y = Y[:, 0]
    predictions, observed = ensemble(y, activation="relu", residual=False)
    names = ["read_in", *(f"block_{i}" for i in range(L - 1)), "readout"]
    assert set(observed) == set(names)
    multipliers = [D**-0.5, *[N**-0.5] * (L - 1), 1 / (GAMMA0 * N)]

    def f(weights):
        z = multipliers[0] * X @ weights[0]
        for multiplier, w in zip(multipliers[1:], weights[1:], strict=True):
            z = multiplier * jax.nn.relu(z) @ w
        return z[:, 0]

    gradient = jax.jit(jax.grad(lambda weights, start: 0.5 * jnp.mean((f(weights) - start - y) ** 2)))
    for seed in range(SEEDS):
        stored = [observed[name][seed, 0] for name in names]
        weights = [w / s for w, s in zip(stored[:-1], multipliers[:-1], strict=True)] + stored[-1:]
        start = f(weights)
        for t in range(T):
            np.testing.assert_allclose(predictions[seed, t], f(weights) - start, **EXACT)
            step = gradient(weights, start)
            weights = [w - ETA0 * GAMMA0**2 * N * g for w, g in zip(weights, step, strict=True)]
    hidden = np.concatenate([observed[name][:, 0].ravel() for name in names[1:-1]])
    assert abs(hidden.var() * N / stationary_gain("relu") - 1) < 0.15


def test_float32_by_default():
    assert trained(depth=1, steps=1).dtype == np.float32


def test_inputs():
    for Kx in (X @ X.T, np.ones((4, 4)), np.array([[0.7]])):
        x = inputs(Kx)
        np.testing.assert_allclose(x @ x.T / x.shape[1], Kx, rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(residual=False, readout="linear"), "a network without skips has the readout 'phi', not 'linear'"),
        (dict(activation="tanhh"), "unknown activation 'tanhh'; did you mean 'tanh'"),
        (dict(seeds=0), "seeds must be at least 1, got 0"),
        (dict(depth=None), "networks need a finite depth"),
        (dict(gamma0=0), "networks need gamma0 above 0"),
        (dict(eta0=np.ones(T)), "networks need one eta0 for all steps"),
        (dict(branch_weights=2), "networks need branches of one weight"),
        (dict(sample_weights=[0.5, 0.5, 0]), "networks need batches, and not sample_weights"),
        (dict(activation=np.sin), "networks need an activation that has a name"),
    ],
)
def test_errors(options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        trained(y=Y, **options)


def test_inputs_of_another_kernel():
    problem = Problem(X @ X.T / D, Y, **DESCRIBED)
    for x in (2 * X, X[:2], X[:, 0]):
        with pytest.raises(ValueError, match=re.escape(f"x must be (3, D) with x x^T / D = Kx, got shape {x.shape}")):
            train(problem, x, **TRAINED)


@pytest.mark.parametrize("loss", ["mse", "centered_mse"])
def test_real_targets_of_the_losses(loss):
    recipe, logits = Recipe(loss=loss), np.arange(6, dtype=np.float32).reshape(3, 2)
    y = Y.astype(np.float32)
    np.testing.assert_allclose(recipe.example_losses(logits, y, train=True), ((logits - y) ** 2).sum(-1) / 2, rtol=1e-6)
    whole = np.array([1, 0, 1])
    expected = recipe.example_losses(logits, np.eye(2, dtype=np.float32)[whole], train=True)
    np.testing.assert_array_equal(recipe.example_losses(logits, whole, train=True), expected)


@pytest.mark.parametrize(
    ("loss", "labels"),
    [
        ("mse", np.zeros(3)),
        ("mse", np.zeros((3, 1))),
        ("mse", np.zeros((3, 2), int)),
        ("mse", np.zeros(3, bool)),
        ("cross_entropy", np.zeros((3, 2))),
        ("cross_entropy", np.zeros(3)),
    ],
)
def test_labels_that_are_neither(loss, labels):
    with pytest.raises(ValueError, match=f"labels must be integers .* real targets .3, 2.: {loss} got {labels.dtype}"):
        Recipe(loss=loss).example_losses(np.zeros((3, 2)), labels, train=True)
