"""Kernels of finite networks: against networks written out by hand, Jacobians, and the lazy limit."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import depthmup as dm
from depthmup.measure import (
    alignment,
    distance,
    empirical_ntk,
    feature_kernels,
    kernel_movement,
    linen_dense,
    network_fields,
    network_kernels,
)
from depthmup.models import CNN, MLP, ResidualMLP, ViT, model_specs, unstack_blocks
from depthmup.rules.specs import group, is_spec
from depthmup.theory.lazy import lazy_kernels
from tests import families
from tests.families import FACTORS, IMAGE, init

N, L, D, P, C = 12, 3, 4, 5, 2
GAMMA0, BETA0 = 0.7, 1.3
FORMS = ("mup", "fan_in", "canonical", "absorbed")
MODEL = ResidualMLP(N, L, outputs=C, activation="tanh")


def groups_of(specs):
    return jax.tree.map(group, specs, is_leaf=is_spec)


def canonical():
    """Inputs and N(0, 1) weights: W_in (N, D), W (L, N, N), w (C, N), as in docs/theory.md section 0."""
    rng = np.random.default_rng(0)
    return rng.normal(size=(P, D)), [rng.normal(size=shape) for shape in ((N, D), (L, N, N), (C, N))]


def kernels_by_hand(x, weights):
    """H, Phi, G and the NTK of each group (canonical form, all rates gamma_0^2 N) by the recursions of section 0."""
    W_in, W, w = weights
    b = BETA0 / np.sqrt(L)
    h = [x @ W_in.T / np.sqrt(D)]
    for l in range(L):  # noqa: E741
        h.append(h[l] + b * np.tanh(h[l]) @ W[l].T / np.sqrt(N))
    g = [(1 - np.tanh(h[L]) ** 2)[:, None] * w]  # (P, C, N)
    for l in reversed(range(L)):  # noqa: E741
        g.insert(0, g[0] + b * (1 - np.tanh(h[l]) ** 2)[:, None] * (g[0] @ W[l]) / np.sqrt(N))
    rows = [field.reshape(P * C, N) for field in g]
    H, Phi, G = (np.stack([f @ f.T / N for f in fields]) for fields in (h, [np.tanh(v) for v in h], rows))
    return H, Phi, G


def function_by_hand(weights, x):
    h = x @ weights[0].T / np.sqrt(D)
    for W in weights[1]:
        h = h + BETA0 / np.sqrt(L * N) * jnp.tanh(h) @ W.T
    return jnp.tanh(h) @ weights[2].T / (GAMMA0 * N)


def package(form):
    """The same network of ours: (stored parameters, multipliers, learning-rate factors, forward factors)."""
    p = dm.parameterization("depth_mup", gamma0=GAMMA0, beta0=BETA0).in_form(form)
    specs = model_specs(MODEL, (D,))
    W_in, W, w = canonical()[1]
    params = {
        "read_in": {"kernel": W_in.T / np.sqrt(D)},
        "blocks": {"dense": {"kernel": W.swapaxes(1, 2) / np.sqrt(N)}},
        "readout": {"kernel": w.T / np.sqrt(N)},
    }
    factors = dm.factors(p, specs)
    stored = dm.rescale(p, specs, jax.tree.map(jnp.asarray, params))
    return stored, factors.multiplier, factors.lr, p.forward_factors(width=N, depth=L)


@functools.cache
def kernels_of(scan):
    """(weights in the equation, forward factors) -> fields, kernels; one program for all storage forms."""
    model = MODEL.clone(scan=scan)

    def measure(weights, f):
        x, options = canonical()[0], {"phi": jnp.tanh, "gamma0": GAMMA0}
        forward = model.forward(f)
        return network_fields(forward, weights, x, **options), network_kernels(forward, weights, x, **options)

    return jax.jit(measure)


@functools.cache
def ntk_both_ways():
    """(stored parameters, multipliers, rates, forward factors) -> the NTK from Jacobians and from dense layers."""
    x, groups = canonical()[0], groups_of(model_specs(MODEL, (D,)))

    def measure(stored, multipliers, rates, f):
        def function(weights, x):
            return MODEL.apply({"params": weights}, x, f)

        def of_stored(stored, x):
            return function(jax.tree.map(jnp.multiply, stored, multipliers), x)

        weights = jax.tree.map(jnp.multiply, stored, multipliers)
        squared = jax.tree.map(lambda rate, multiplier: rate * multiplier**2, rates, multipliers)
        return (
            empirical_ntk(of_stored, stored, x, rates=rates, groups=groups),
            empirical_ntk(function, weights, x, rates=squared, groups=groups, dense=linen_dense(MODEL, f)),
        )

    return jax.jit(measure)


@pytest.mark.parametrize("form", FORMS)
def test_kernels_are_those_written_out_by_hand(form, x64):
    expected = kernels_by_hand(*canonical())
    assert np.abs(expected[2][0] - expected[2][-1]).max() > 0.1
    stored, multipliers, _, f = package(form)
    weights = jax.tree.map(jnp.multiply, stored, multipliers)
    for scan in (True, False):
        _, measured = kernels_of(scan)(weights if scan else unstack_blocks(weights), f)
        for kernel, hand in zip(measured, expected, strict=True):
            np.testing.assert_allclose(kernel, hand, rtol=1e-12, atol=1e-13)


def test_kernels_of_a_plain_function(x64):
    """The recipe for other frameworks."""
    x, weights = canonical()

    def forward(weights, x, shifts):
        states = []
        for layer in range(L + 1):
            h = x @ weights[0].T / D**0.5
            if layer:
                h = states[-1] + BETA0 / (L * N) ** 0.5 * jnp.tanh(states[-1]) @ weights[1][layer - 1].T
            states.append(h if shifts is None else h + shifts[layer])
        return jnp.tanh(states[-1]) @ weights[2].T / (GAMMA0 * N), states

    measured = jax.jit(lambda w: network_kernels(forward, w, x, phi=jnp.tanh, gamma0=GAMMA0))(weights)
    for kernel, hand in zip(measured, kernels_by_hand(x, weights), strict=True):
        np.testing.assert_allclose(kernel, hand, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("form", FORMS)
def test_ntk_of_the_storage_forms(form, x64):
    """gamma_0^2 N dF dF' of the canonical form, the read-in D times (docs/theory.md section 1), both ways."""
    x, weights = canonical()
    jacobians = jax.jit(jax.jacobian(function_by_hand))([jnp.asarray(w) for w in weights], x)
    for kernels in ntk_both_ways()(*package(form)):
        assert list(kernels) == ["branch/hidden", "input", "readout"]
        for name, jacobian in zip(("input", "branch/hidden", "readout"), jacobians, strict=True):
            flat = jacobian.reshape(P * C, -1)
            expected = GAMMA0**2 * N * (D if name == "input" else 1) * flat @ flat.T
            np.testing.assert_allclose(kernels[name], expected, rtol=1e-12, atol=1e-12)


def test_the_ntk_is_made_of_the_kernels(x64):
    """Kx * G^0, sum_l Phi^l * G^(l+1), Phi^L (docs/theory.md section 2, branch factor 1), exact at any width."""
    x = np.random.default_rng(0).normal(size=(P, D))
    model = MLP(N, 4, outputs=1, activation="erf")
    params = jax.tree.map(lambda w: jnp.asarray(w, jnp.float64), init(model, x)["params"])
    names = groups_of(model_specs(model, (D,)))

    @jax.jit
    def measure(w):
        forward = model.forward(FACTORS._replace(output=1 / N))
        kernels = network_kernels(forward, w, x, phi=model.phi)
        return kernels, empirical_ntk(lambda w, x: forward(w, x, None)[0], w, x, groups=names)

    (H, Phi, G), ntk = measure(params)
    assert len(H) == 4
    np.testing.assert_allclose(ntk["input"], x @ x.T * G[0] / N, rtol=1e-12)
    np.testing.assert_allclose(ntk["hidden"], (Phi[:-1] * G[1:]).sum(0), rtol=1e-12)
    np.testing.assert_allclose(ntk["readout"], Phi[-1] / N, rtol=1e-12)


class Odd(nn.Module):
    """Dense layers used in unusual ways: (batch, 3, 4) -> (batch, 2)."""

    @nn.compact
    def __call__(self, x):
        shared = nn.Dense(6, name="shared")
        tokens = nn.Dense(6, name="flattened")(x.reshape(-1, 4)).reshape(-1, 3, 6)
        table = nn.Dense(6, name="without_batch")(self.param("table", nn.initializers.normal(1.0), (5, 4)))
        h = jnp.tanh(shared(jnp.tanh(shared(tokens)))) + table.sum(0)
        h = nn.remat(nn.Dense)(6, name="remat")(jnp.swapaxes(h, 0, 1))
        scanned = nn.scan(
            lambda layer, h, _: (jnp.sin(layer(h)), None),
            variable_broadcast="params",
            split_rngs={"params": False},
            length=2,
        )
        h, _ = scanned(nn.Dense(6, name="repeated"), h, None)
        return nn.Dense(2, use_bias=False, name="last")(h.sum(0))


CASES = {
    "mlp": (ResidualMLP(8, 2, outputs=2, use_bias=True, scan=False), (5,), (FACTORS,), 6),
    "mlp scanned": (ResidualMLP(8, 2, outputs=2, use_bias=True, norm="layer"), (5,), (FACTORS,), 4),
    "vit": (ViT(8, 1, outputs=1, patch=8, use_bias=False, scan=False), IMAGE, (FACTORS,), 2),
    "cnn": (CNN(4, 2, outputs=2, scan=False), (4, 4, 3), (FACTORS,), 0),
    "odd": (Odd(), (3, 4), (), 9),
}


@pytest.mark.parametrize("case", CASES)
def test_dense_layers_need_no_gradients(case, x64):
    """What `linen_dense` finds gives the kernels of the Jacobian, leaf by leaf."""
    model, shape, arguments, layers = CASES[case]
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3, *shape))
    params = jax.tree.map(
        lambda w: 0.5 * rng.normal(size=w.shape),
        jax.eval_shape(lambda: model.init(jax.random.key(0), jnp.asarray(x), *arguments))["params"],
    )
    names = jax.tree_util.tree_map_with_path(lambda path, _: jax.tree_util.keystr(path), params)
    rates = jax.tree.map(lambda _: rng.uniform(1, 2), params)
    dense = linen_dense(model, *arguments)
    assert len(jax.eval_shape(dense, params, x[0])) == layers

    @jax.jit
    def both(w):
        def f(w, x):
            return model.apply({"params": w}, x, *arguments)

        return jax.jacobian(f)(w, jnp.asarray(x)), empirical_ntk(
            f, w, x, rates=rates, groups=names, dense=dense, block=2 if "scanned" in case else 32
        )

    jacobians, kernels = both(params)
    for name, rate, jacobian in zip(*map(jax.tree.leaves, (names, rates, jacobians)), strict=True):
        flat = jacobian.reshape(len(x) * jacobian.shape[1], -1)
        expected = rate * flat @ flat.T
        assert expected.max() > 1e-6
        np.testing.assert_allclose(kernels[name], expected, rtol=0, atol=1e-10 * expected.max())


def two_layers(w, x):
    return jnp.tanh(x @ w["a"]) @ w["b"]


ntk = functools.partial(empirical_ntk, two_layers)


def two_layer_problem():
    rng = np.random.default_rng(0)
    x, other, a, b = (jnp.asarray(rng.normal(size=s)) for s in ((7, 3), (4, 3), (3, 5), (5, 2)))
    return {"a": a, "b": b}, x, other


def test_blocks_change_nothing(x64):
    params, x, other = two_layer_problem()
    ntks = jax.jit(lambda w: [[ntk(w, x, x2, block=block)["all"] for block in (3, 7)] for x2 in (None, other)])(params)
    for shape, (parts, whole) in zip(((14, 14), (14, 8)), ntks, strict=True):
        assert whole.shape == shape
        np.testing.assert_allclose(parts, whole, rtol=1e-12)


def test_groups_that_are_asked_for(x64):
    params, x, _ = two_layer_problem()
    groups = {"a": "first", "b": "second"}
    both, one, whole = jax.jit(
        lambda w: (ntk(w, x, groups=groups), ntk(w, x, groups=groups, only=["second"]), ntk(w, x))
    )(params)
    assert list(one) == ["second"]
    np.testing.assert_allclose(one["second"], both["second"], rtol=1e-12)
    np.testing.assert_allclose(sum(both.values()), whole["all"], rtol=1e-12)


def test_one_output_without_an_axis(x64):
    params, x, _ = two_layer_problem()
    first, both = jax.jit(
        lambda w: (empirical_ntk(lambda w, x: two_layers(w, x)[:, 0], w, x)["all"], ntk(w, x)["all"])
    )(params)
    np.testing.assert_allclose(first, both[::2, ::2], rtol=1e-12)


def test_lazy_limit_over_seeds():
    """All seeds in one program; means within 4.5 standard errors, which are small, of docs/theory.md section 2."""
    width, depth, seeds = 64, 4, 512
    x = np.random.default_rng(0).normal(size=(3, D)).astype(np.float32)
    model = ResidualMLP(width, depth, outputs=1)
    p = dm.parameterization("depth_mup", gamma0=GAMMA0)
    specs, f = model_specs(model, (D,)), p.forward_factors(width=width, depth=depth)
    names, forward = groups_of(specs), model.forward(f)

    def of_seed(seed):
        params = dm.rescale(p, specs, model.init(jax.random.key(seed), x, f)["params"])
        kernels = network_kernels(forward, params, x, phi=model.phi, gamma0=GAMMA0)
        rates = dm.factors(p, specs).lr
        ntk = empirical_ntk(
            lambda w, x: forward(w, x, None)[0], params, x, rates=rates, groups=names, dense=linen_dense(model, f)
        )
        return {**kernels._asdict(), **ntk}

    per_seed = jax.jit(jax.vmap(of_seed))(np.arange(seeds, dtype=np.uint32))
    limit = lazy_kernels(x @ x.T / D, depth=depth)
    expected = {"H": limit.H, "Phi": limit.Phi, "G": limit.G, "branch/hidden": limit.ntk_branch}
    expected |= {"readout": limit.ntk_readout, "input": D * limit.ntk_readin}
    for name, kernel in expected.items():
        measured = np.asarray(per_seed[name], np.float64)
        mean, error = measured.mean(0), measured.std(0, ddof=1) / np.sqrt(seeds)
        assert np.abs((mean - kernel) / error).max() < 4.5, name
        assert np.median(error) < 0.01 * np.abs(kernel).max()
    to_limit = distance(per_seed["H"], jnp.asarray(limit.H, jnp.float32))
    assert to_limit.shape == (seeds, depth + 1)
    assert 0.1 < to_limit.mean() < 0.4


def test_fields_of_two_times_give_the_kernel_between_them(x64):
    x, weights = canonical()
    params, _, _, f = package("mup")
    one, two = (kernels_of(True)(jax.tree.map(lambda w, s=s: s * w, params), f)[0] for s in (1.0, 1.1))
    between = feature_kernels([jnp.concatenate(pair) for pair in zip(one.g, two.g, strict=True)])
    np.testing.assert_allclose(between[:, : P * C, : P * C], kernels_by_hand(x, weights)[2], rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(between[1, 0, P * C], one.g[1][0] @ two.g[1][0] / N, rtol=1e-12)


def test_kernels_of_half_precision():
    h = np.random.default_rng(0).normal(size=(3, 50)).astype(jnp.bfloat16)
    wide = h.astype(np.float32)
    np.testing.assert_allclose(feature_kernels([h])[0], wide @ wide.T / 50, rtol=1e-5)
    image = h.reshape(len(h), 5, -1)  # positions count as units
    np.testing.assert_array_equal(feature_kernels([image]), feature_kernels([h]))


def test_distances():
    rng = np.random.default_rng(0)
    features = rng.normal(size=(2, 3, 6, 4)) + 1
    a, b = (f @ f.swapaxes(-1, -2) for f in features)  # (3, 6, 6) each
    flat = [(k.reshape(3, -1), np.linalg.norm(k.reshape(3, -1), axis=1)) for k in (a, b)]
    np.testing.assert_allclose(distance(a, b), np.linalg.norm((a - b).reshape(3, -1), axis=1) / flat[1][1], rtol=1e-5)
    np.testing.assert_allclose(kernel_movement(a, b), distance(b, a))
    cosine = (flat[0][0] * flat[1][0]).sum(1) / (flat[0][1] * flat[1][1])
    np.testing.assert_allclose(alignment(a, b), cosine, rtol=1e-5)
    np.testing.assert_allclose(alignment(a, 3 * a), 1, rtol=1e-5)
    centre = np.eye(6) - 1 / 6
    expected = alignment(centre @ a @ centre, centre @ b @ centre)
    np.testing.assert_allclose(alignment(a, b, centred=True), expected, rtol=1e-4)
    assert (np.asarray(alignment(a, b, centred=True)) < cosine - 0.05).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"only": ["secnd"]}, "unknown group of parameters 'secnd'; did you mean 'second'"),
        ({"rates": {"a": 1.0}}, r"rates must be a tree with one leaf for each parameter; they differ in \['b'\]"),
        ({"groups": {"a": "first", "c": "second"}}, r"groups must be .* differ in \['b'\], \['c'\]"),
        ({"rates": ([1.0, 1.0],)}, "rates must be a tree with one leaf for each parameter"),
        ({"x2": np.ones((2, 4))}, r"examples of x and x2 must have one shape, got \(3,\) and \(4,\)"),
        ({"block": 0}, "block must be at least 1, got 0"),
        (
            {"f": lambda w, x: jnp.sum(w["a"])},
            r"f must return \(examples,\) or \(examples, outputs\), got .*shape=\(\)",
        ),
        ({"f": lambda w, x: two_layers(w, x)[None]}, r"f must return .* got .*\(1, 1, 2\).* for inputs \(1, 3\)"),
    ],
)
def test_errors_of_the_ntk(options, message):
    params, x, _ = two_layer_problem()
    given = {"f": two_layers, "params": params, "x": x, "groups": {"a": "first", "b": "second"}, **options}
    with pytest.raises(ValueError, match=message):
        empirical_ntk(**given)


@pytest.mark.parametrize(
    ("forward", "message"),
    [
        (lambda w, x, s: two_layers(w, x), "must return .outputs, states.*it returned no states"),
        (lambda w, x, s: (two_layers(w, x), []), "it returned no states"),
        (
            lambda w, x, s: (two_layers(w, x), [w["a"]]),
            r"each state must be .examples, ...., got \(3, 5\) for",
        ),
        (lambda w, x, s: (two_layers(w, x).T, [x]), r"forward must return .*, got .*\(2, 7\).* for inputs \(7, 3\)"),
    ],
)
def test_errors_of_the_kernels(forward, message):
    params, x, _ = two_layer_problem()
    with pytest.raises(ValueError, match=message):
        network_kernels(forward, params, x, phi=jnp.tanh)


@pytest.mark.parametrize("case", ["cnn 1-D", "simple_resnet", "resnet", "vit"])
def test_every_state_of_every_family_can_be_shifted(case):
    """Else its gradient would be 0."""
    module = families.model(case)
    x = np.random.default_rng(0).normal(size=(2, *families.CASES[case][2])).astype(np.float32)
    variables = dict(init(module, x))
    forward = module.forward(FACTORS, **{name: variables[name] for name in variables if name != "params"})
    _, states = jax.eval_shape(lambda: forward(variables["params"], x, None))
    flat, tree = jax.tree.flatten(states)
    assert len(flat) >= module.depth
    run = jax.jit(lambda moved: forward(variables["params"], x, jax.tree.unflatten(tree, moved))[0])
    zeros = [np.zeros(h.shape, h.dtype) for h in flat]
    for i, h in enumerate(flat):
        some = np.random.default_rng(1).normal(size=h.shape).astype(h.dtype)
        shifted = [*zeros[:i], some, *zeros[i + 1 :]]
        assert np.abs(run(shifted) - run(zeros)).max() > 1e-4, i
