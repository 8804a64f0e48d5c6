"""Storage forms: one trajectory, and the package against networks written out by hand (docs/theory.md section 1)."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import depthmup as dm
from depthmup.models import ResidualMLP

N, L, D, P, STEPS = 16, 5, 4, 6, 20
UNIT = dm.ForwardFactors(1.0, 1.0, None)
GAMMA0, BETA0, ETA0 = 0.7, 1.3, 0.05


def data():
    rng = np.random.default_rng(0)
    return jnp.asarray(rng.normal(size=(P, D))), jnp.asarray(rng.normal(size=(P, 1)))


def draws():
    """N(0, 1) for all weights, as the model's parameter tree."""
    rng = np.random.default_rng(1)
    normal = lambda *shape: jnp.asarray(rng.normal(size=shape))  # noqa: E731
    return {
        "read_in": {"kernel": normal(D, N)},
        "blocks": {"dense": {"kernel": normal(L, N, N)}},
        "readout": {"kernel": normal(N, 1)},
    }


def train(predict, params, tx):
    """Predictions before each of 20 full-batch steps on MSE, (STEPS, P)."""
    x, y = data()
    state = tx.init(params)

    def step(carry, _):
        params, state = carry
        predictions = predict(params, x)
        grads = jax.grad(lambda p: 0.5 * jnp.mean((predict(p, x) - y) ** 2))(params)
        updates, state = tx.update(grads, state, params)
        return (optax.apply_updates(params, updates), state), predictions[:, 0]

    return np.asarray(jax.jit(lambda carry: jax.lax.scan(step, carry, length=STEPS)[1])((params, state)))


def package(p, optimizer, lr=None, **options):
    """The same network through depthmup's model, specs, rescale and optimizer (a name, or of p a transformation)."""
    model = ResidualMLP(N, L, outputs=1, activation="tanh")

    def init(width, depth):
        return ResidualMLP(width, depth, outputs=1).init(jax.random.key(0), jnp.ones((1, D)), UNIT)["params"]

    specs = dm.infer_specs(init, layout="in_out", width=N, depth=L)
    fan_in = jax.tree.map(lambda s: s.fan_in, specs, is_leaf=lambda s: isinstance(s, dm.ParamSpec))
    params = dm.rescale(p, specs, jax.tree.map(lambda w, n: w / jnp.sqrt(float(n)), draws(), fan_in))
    forward = p.forward_factors(width=N, depth=L)
    tx = optimizer(p) if callable(optimizer) else dm.optimizer(p, specs, optimizer, lr, **options)
    return train(lambda w, x: model.apply({"params": dm.forward_params(p, specs, w)}, x, forward), params, tx)


def by_hand(stds, multipliers, lrs, make):
    """h += m W tanh(h), three groups (read-in, branch, readout) with their own init, multiplier and optimizer."""
    params = dict(zip("ibo", [draws()[k] for k in ("read_in", "blocks", "readout")], strict=True))
    params = {k: jax.tree.leaves(w)[0] * s for (k, w), s in zip(params.items(), stds, strict=True)}

    def predict(w, x):
        h = multipliers[0] * x @ w["i"]
        for layer in range(L):
            h = h + multipliers[1] * jnp.tanh(h) @ w["b"][layer]
        return multipliers[2] * jnp.tanh(h) @ w["o"]

    groups = {k: make(lr) for k, lr in zip("ibo", lrs, strict=True)}
    return train(predict, params, optax.partition(groups, {k: k for k in "ibo"}))


# The table of docs/theory.md section 1: (std, multiplier, SGD LR / eta_0) of read-in, branch and readout. Our read-in
# LR is D times that of the table.
G2 = GAMMA0**2
B = BETA0 / L**0.5
FORMS = {
    "canonical": ((1, 1, 1), (D**-0.5, B * N**-0.5, 1 / (GAMMA0 * N)), (G2 * N * D, G2 * N, G2 * N)),
    "mup": ((D**-0.5, N**-0.5, 1), (1, B, 1 / (GAMMA0 * N)), (G2 * N, G2, G2 * N)),
    "fan_in": ((D**-0.5, N**-0.5, N**-0.5), (1, B, 1 / (GAMMA0 * N**0.5)), (G2 * N, G2, G2)),
    "absorbed": ((D**-0.5, B * N**-0.5, 1 / (GAMMA0 * N)), (1, 1, 1), (G2 * N, G2 * B**2, 1 / N)),
}
OPTIMIZERS = {
    "sgd": ("sgd", ETA0, {}),
    "momentum": ("momentum", ETA0 / 5, {"momentum": 0.8}),
    "sgd decay": ("sgd", ETA0, {"weight_decay": 0.1}),
    "adam eps 0": ("adam", 0.01, {"eps": 1e-30}),
    "adam": ("adam", 0.01, {"eps": 1e-3}),
    "adamw": ("adamw", 0.01, {"eps": 1e-3, "weight_decay": 0.1}),
}


@pytest.mark.parametrize("form", FORMS)
def test_theory_table(form, x64):
    """Ours, in any form, is the table's row written out by hand."""
    stds, multipliers, lrs = FORMS[form]
    expected = by_hand(stds, multipliers, [ETA0 * lr for lr in lrs], optax.sgd)
    assert np.ptp(expected, axis=0).max() > 0.1  # it learns something
    p = dm.parameterization("depth_mup", gamma0=GAMMA0, beta0=BETA0).in_form(form)
    np.testing.assert_allclose(package(p, "sgd", ETA0), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "optimizer"),
    [("depth_mup", o) for o in OPTIMIZERS]
    + [(n, o) for n in ("depth_ode", "ntp", "sp") for o in ("momentum", "adamw")],
)
def test_forms_have_one_trajectory(name, optimizer, x64):
    kind, lr, options = OPTIMIZERS[optimizer]
    lr = lr / N if name == "sp" else lr
    p = dm.parameterization(name, base_width=2, gamma0=GAMMA0, beta0=BETA0)
    reference = package(p, kind, lr, **options)
    assert np.ptp(reference, axis=0).max() > 0.01
    for form in ("fan_in", "canonical", "absorbed"):
        np.testing.assert_allclose(package(p.in_form(form), kind, lr, **options), reference, rtol=0, atol=1e-12)


@pytest.mark.parametrize("family", ["muon", "adafactor"])
@pytest.mark.parametrize("name", ["depth_mup", "ntp", "sp"])
def test_update_kinds_in_all_forms(name, family, x64):
    """By the LR factors alone: Optax's transformations act on the stored weights."""

    def trained(p):
        specs = dm.infer_specs(
            lambda width, depth: ResidualMLP(width, depth, outputs=1).init(jax.random.key(0), jnp.ones((1, D)), UNIT)[
                "params"
            ],
            layout="in_out",
            width=N,
            depth=L,
        )
        axes = lambda tree: jax.tree.map(  # noqa: E731
            lambda w: optax.contrib.MuonDimensionNumbers(w.ndim - 2, w.ndim - 1), tree
        )
        update = {
            "muon": optax.contrib.scale_by_muon(weight_dimension_numbers=axes, eps=0.0),
            "adafactor": optax.chain(optax.scale_by_factored_rms(), optax.scale_by_param_block_rms()),
        }[family]
        return optax.chain(update, dm.scale_by_parameterization(p, specs, family), optax.scale(-0.01))

    p = dm.parameterization(name, base_width=2, gamma0=GAMMA0, beta0=BETA0)
    reference = package(p, trained)
    assert np.ptp(reference, axis=0).max() > 0.005
    for form in ("fan_in", "canonical", "absorbed"):
        np.testing.assert_allclose(package(p.in_form(form), trained), reference, rtol=0, atol=1e-10)


def test_adam_canonical_by_hand(x64):
    """Canonical Adam LRs: gamma_0 eta_0 (sqrt(D), N^-1/2 L^(alpha-1), 1) (docs/theory.md section 1.1)."""
    stds, multipliers, _ = FORMS["canonical"]
    lrs = [0.01 * GAMMA0 * f for f in (D**0.5, N**-0.5 * L**-0.5, 1)]
    expected = by_hand(stds, multipliers, lrs, lambda lr: optax.adam(lr, eps=1e-30))
    p = dm.parameterization("depth_mup", gamma0=GAMMA0, beta0=BETA0)
    np.testing.assert_allclose(package(p, "adam", 0.01, eps=1e-30), expected, rtol=0, atol=1e-12)


def test_sp_by_hand(x64):
    """SP: all variances 1/fan_in, every multiplier 1, one LR e = N(0, 1) weights with LRs (e D, e N, e N)."""
    multipliers = (D**-0.5, N**-0.5, N**-0.5)
    expected = by_hand((1, 1, 1), multipliers, [0.02 * f for f in (D, N, N)], optax.sgd)
    np.testing.assert_allclose(package(dm.parameterization("sp"), "sgd", 0.02), expected, rtol=0, atol=1e-12)


def test_ntp_by_hand(x64):
    """NTP: canonical with gamma_0 = N^-1/2 and LR eta_0, without branch scale, then with L^-1/2."""
    for alpha, branch in ((None, 1.0), (0.5, L**-0.5)):
        multipliers = (D**-0.5, branch * N**-0.5, N**-0.5)
        expected = by_hand((1, 1, 1), multipliers, [0.02 * D, 0.02, 0.02], optax.sgd)
        p = dm.parameterization("ntp", alpha=alpha)
        np.testing.assert_allclose(package(p, "sgd", 0.02), expected, rtol=0, atol=1e-12)


def test_absorbed_needs_one_weight_layer_per_branch():
    def init(width, depth):
        model = ResidualMLP(width, depth, norm="layer")
        return model.init(jax.random.key(0), jnp.ones((1, D)), UNIT)["params"]

    specs = dm.infer_specs(init, layout="in_out", width=N, depth=L)
    with pytest.raises(ValueError, match="exactly one weight layer"):
        dm.factors(dm.parameterization("depth_mup").in_form("absorbed"), specs)
