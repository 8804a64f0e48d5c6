"""A run goes on in another storage form as if nothing had happened, and assert_transfers says what a check says."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from flax import nnx

import depthmup as dm
from depthmup.reading.forward import absorb
from depthmup.rules.parameterization import TABLES, Table
from tests.test_forward import OPTIMIZERS, NormedConv, network

SHAPE = {"base_width": 4, "base_depth": 1, "base_head_dim": 2}


@functools.cache
def step_of(apply, tx):
    """The compiled step of training: (params, state, x) -> (params, state, logits before it)"""

    @jax.jit
    def step(params, state, x):
        def loss(params):
            logits = apply(params, x)
            labels = jnp.arange(len(x)) % 5
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean(), logits

        grads, logits = jax.grad(loss, has_aux=True)(params)
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state, logits

    return step


def stretch(apply, tx, params, state, x, steps):
    """(params, state, logits before each step) after some steps."""
    seen = []
    for _ in range(steps):
        params, state, logits = step_of(apply, tx)(params, state, x)
        seen.append(logits)
    return params, state, np.array(seen)


@functools.cache
def forms(model, name="depth_mup"):
    """A network in both forms, in float64: (parameterization, specs, apply with its factors), (absorbed form, specs
    with the places of factors, apply without factors), (initial parameters, inputs)."""
    specs, apply_with, params, x = network(model)
    params = jax.tree.map(lambda w: w.astype(jnp.float64), params)
    p = dm.parameterization(name, **SHAPE, gamma0=0.7, beta0=0.6)
    factors, unedited = p.forward_factors(width=8, depth=2, head_dim=4), apply_with((1, 1, 1))
    explicit = apply_with((factors.branch, factors.output, factors.attention * 2.0))
    absorbed_specs = absorb(specs, unedited, params, x, kinds=p.kinds)
    return (p, specs, explicit), (p.in_form("absorbed"), absorbed_specs, unedited), (params, x)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", ["scanned", "fused", "gemma"])
def test_the_run_goes_on(name, optimizer, x64, tmp_path):
    """From explicit factors to absorbed ones in mid-run, through a checkpoint, and back."""
    (p, specs, explicit), (q, absorbed_specs, unedited), (params, x) = forms(name)
    rate, options = OPTIMIZERS[optimizer]
    absorbed_tx, explicit_tx = (
        dm.optimizer(*of, optimizer, rate, **options) for of in ((q, absorbed_specs), (p, specs))
    )
    params = dm.rescale(p, specs, params)
    _, _, expected = stretch(explicit, explicit_tx, params, explicit_tx.init(params), x, 6)
    params, state, first = stretch(explicit, explicit_tx, params, explicit_tx.init(params), x, 2)

    params, state = dm.convert(p, specs, q, absorbed_specs, params, state, optimizer=optimizer)
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "converted", {"params": params, "state": state})
        checkpointer.wait_until_finished()
        restored = checkpointer.restore(tmp_path / "converted", {"params": params, "state": state})
    params, state, second = stretch(unedited, absorbed_tx, restored["params"], restored["state"], x, 2)
    params, state = dm.convert(q, absorbed_specs, p, specs, params, state, optimizer=optimizer)
    _, _, third = stretch(explicit, explicit_tx, params, state, x, 2)
    np.testing.assert_allclose(np.concatenate([first, second, third]), expected, rtol=0, atol=1e-10)


def accumulated(tx):
    return optax.MultiSteps(tx, 2).gradient_transformation()


def wrapped(tx):
    return lambda *of: dm.wrap(*of, tx)


def named(name, **options):
    return lambda *of: dm.optimizer(*of, name, 0.02, **options)


STATES = {
    "adamw accumulated": ("adamw", lambda *of: accumulated(named("adamw", eps=1e-3)(*of)), 3),
    "momentum accumulated": ("momentum", lambda *of: accumulated(named("momentum")(*of)), 3),
    "clipped lion accumulated": (
        "lion",
        lambda *of: optax.chain(optax.zero_nans(), accumulated(named("lion")(*of))),
        3,
    ),
    "wrap of momentum": (None, wrapped(optax.sgd(0.02, momentum=0.9)), 3),
    "wrap of adam": (None, wrapped(optax.adam(0.02)), 3),
    "wrap accumulated": (None, lambda *of: accumulated(wrapped(optax.sgd(0.02, momentum=0.9))(*of)), 2),
    "wrap of accumulated": (None, wrapped(accumulated(optax.sgd(0.02, momentum=0.9))), 2),
}


@pytest.mark.parametrize("kind", STATES)
def test_states_of_other_transformations(kind, x64):
    """Gradients that are kept go over; what `wrap` keeps is the same in all forms."""
    optimizer, make, steps = STATES[kind]
    (p, specs, explicit), (q, absorbed_specs, unedited), (params, x) = forms("scanned")
    tx, params = make(p, specs), dm.rescale(p, specs, params)
    _, _, expected = stretch(explicit, tx, params, tx.init(params), x, steps + 4)
    params, state, first = stretch(explicit, tx, params, tx.init(params), x, steps)
    params, state = dm.convert(p, specs, q, absorbed_specs, params, state, optimizer=optimizer)
    _, _, second = stretch(unedited, make(q, absorbed_specs), params, state, x, 4)
    # (Some numbers of MultiSteps are float32.)
    np.testing.assert_allclose(np.concatenate([first, second]), expected, rtol=0, atol=1e-8)


@pytest.mark.parametrize(("name", "model"), [*((name, "scanned") for name in TABLES), ("depth_mup", "gemma")])
def test_wrapped_runs_go_on_under_every_parameterization(name, model, x64):
    """Into the form that takes no factors in mid-run, and back, whatever families the parameterization has."""
    (p, specs, explicit), (q, absorbed_specs, unedited), (params, x) = forms(model, name)
    tx = optax.sgd(0.02, momentum=0.9) if "sgd" in p.table.families else optax.adamw(0.02, eps=1e-5, weight_decay=0.1)
    absorbed_tx, explicit_tx = dm.wrap(q, absorbed_specs, tx), dm.wrap(p, specs, tx)
    params = dm.rescale(p, specs, params)
    _, _, expected = stretch(explicit, explicit_tx, params, explicit_tx.init(params), x, 6)
    params, state, first = stretch(explicit, explicit_tx, params, explicit_tx.init(params), x, 2)
    params, state = dm.convert(p, specs, q, absorbed_specs, params, state, optimizer=None)
    params, state, second = stretch(unedited, absorbed_tx, params, state, x, 2)
    params, state = dm.convert(q, absorbed_specs, p, specs, params, state, optimizer=None)
    _, _, third = stretch(explicit, explicit_tx, params, state, x, 2)
    np.testing.assert_allclose(np.concatenate([first, second, third]), expected, rtol=0, atol=1e-10)
    assert not np.allclose(first[0], third[0], rtol=0, atol=1e-3)


def test_states_that_cannot_go_over():
    specs, _, params, _ = network("scanned")
    p = dm.parameterization("depth_mup", **SHAPE)
    of = (p, specs, p.in_form("canonical"), specs, params)
    tx = dm.wrap(p, specs, optax.sgd(0.1, momentum=0.9))
    with pytest.raises(ValueError, match=r"state of optax.sgd, not of dm.optimizer: .* optimizer=None"):
        dm.convert(*of, tx.init(params), optimizer="momentum")
    tx = accumulated(tx)
    state = tx.update(params, tx.init(params), params)[1]
    with pytest.raises(ValueError, match="convert after a whole accumulation"):
        dm.convert(*of, state, optimizer=None)


class Dropped(nnx.Module):
    """Blocks with batch norm and dropout: variables that are no parameters."""

    def __init__(self, width, depth, rngs):
        self.read_in, self.head = nnx.Linear(8, width, rngs=rngs), nnx.Linear(width, 5, rngs=rngs)
        self.blocks = nnx.List([nnx.Linear(width, width, rngs=rngs) for _ in range(depth)])
        self.norm, self.drop = nnx.BatchNorm(width, rngs=rngs), nnx.Dropout(0.1, rngs=rngs)

    def __call__(self, x):
        h = self.norm(self.read_in(x))
        for block in self.blocks:
            h = h + self.drop(block(nnx.relu(h)))
        return self.head(h)


def equinox_with_statistics():
    eqx = pytest.importorskip("equinox")

    class Net(eqx.Module):
        read_in: eqx.nn.Linear
        norm: eqx.nn.BatchNorm
        blocks: list
        head: eqx.nn.Linear

        def __init__(self, width, depth, key):
            first, last, *keys = jax.random.split(key, depth + 2)
            self.read_in, self.head = eqx.nn.Linear(8, width, key=first), eqx.nn.Linear(width, 5, key=last)
            self.norm = eqx.nn.BatchNorm(width, axis_name="batch", mode="batch")
            self.blocks = [eqx.nn.Linear(width, width, key=key) for key in keys]

        def __call__(self, x, state):
            h, state = self.norm(self.read_in(x), state)
            for block in self.blocks:
                h = h + block(jax.nn.relu(h))
            return self.head(h), state

    def call(held, x):
        return jax.vmap(held[0], axis_name="batch", in_axes=(0, None), out_axes=(0, None))(x, held[1])

    return lambda w, d, key: eqx.nn.make_with_state(Net)(w, d, key=key), {"call": call}


INITS = {
    "linen": lambda: (lambda w, d: NormedConv(w, d), {}),
    "nnx": lambda: (Dropped, {}),
    "equinox": equinox_with_statistics,
}


@pytest.mark.parametrize("framework", INITS)
def test_what_init_returns(framework):
    """The parameters in it are converted, all else stays: forth as they would start in the other form, and back."""
    factory, options = INITS[framework]()
    x = jax.random.normal(jax.random.key(1), (3, 8, 8, 3) if framework == "linen" else (6, 8))
    m = dm.setup("depth_mup", factory, x, width=16, depth=2, base=(8, 1), fan_in_init=False, **options)
    held, p = m.init(jax.random.key(0)), m.parameterization.in_form("mup")
    converted, _ = dm.convert(m.parameterization, m.specs, p, m.specs, held, optimizer="adam")
    params = m.model.split(converted)[0]
    expected = dm.rescale(p, m.specs, m.model.init(jax.random.key(0))[0])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), params, expected)
    tx = optax.MultiSteps(m.optimizer("adam", 0.1), 2)  # of a Linen model it may have all variables of the parameters
    kept = tx.init({"params": held["params"]} if framework == "linen" else m.model.split(held)[0])
    _, after = dm.convert(m.parameterization, m.specs, p, m.specs, held, kept, optimizer="adam")
    assert jax.tree.structure(after) == jax.tree.structure(kept)
    back, _ = dm.convert(p, m.specs, m.parameterization, m.specs, converted, optimizer="adam")
    assert type(back) is type(held)
    for before, after in zip(m.model.split(held), m.model.split(back), strict=True):
        for a, b in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
            np.testing.assert_allclose(*(jax.random.key_data(k) if jnp.issubdtype(k.dtype, jax.dtypes.prng_key) else k
                                         for k in (a, b)), rtol=1e-6)  # fmt: skip


def test_without_a_state():
    specs, _, params, _ = network("scanned")
    p = dm.parameterization("depth_mup", **SHAPE)
    stored, state = dm.convert(p, specs, p.in_form("canonical"), specs, dm.rescale(p, specs, params), optimizer="sgd")
    jax.tree.map(np.testing.assert_allclose, stored, dm.rescale(p.in_form("canonical"), specs, params))
    assert state is None


def test_bad_input():
    specs, _, params, _ = network("scanned")
    p = dm.parameterization("depth_mup", **SHAPE)
    with pytest.raises(ValueError, match="only the storage form may differ"):
        dm.convert(p, specs, dm.parameterization("mup", **SHAPE), specs, params, optimizer="sgd")
    with pytest.raises(dm.SpecError, match="different shapes"):
        dm.convert(p, specs, p, specs, jax.tree.map(lambda w: w[..., :1], params), optimizer="sgd")


def test_assert_transfers_of_a_model():
    """As in a user's own tests: of a network under mup, and under sp, which does not transfer."""

    def network(width, depth, key):
        del depth
        first, middle, last = jax.random.split(key, 3)
        normal = lambda key, *shape: jax.random.normal(key, shape) * shape[0] ** -0.5  # noqa: E731
        return {"in": normal(first, 8, width), "w": normal(middle, width, width), "out": normal(last, width, 3)}

    def call(params, x):
        return jnp.tanh(jnp.tanh(x @ params["in"]) @ params["w"]) @ params["out"]

    def loss(logits, targets):
        return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()

    x, y = jax.random.normal(jax.random.key(0), (16, 8)), jnp.arange(16) % 3
    options = {"width": 128, "depth": 1, "base": (32, 1), "residual": False, "call": call, "fan_in_init": False}
    check = {"widths": (64, 256), "depths": (), "steps": (1,), "seeds": 8, "max_seeds": 16, "tolerance": 0.2}
    dm.testing.assert_transfers(dm.setup("mup", network, x, **options), loss, (x, y), **check)
    with pytest.raises(AssertionError, match=r"not ok:\n(.*\n)*width +hidden"):
        dm.testing.assert_transfers(dm.setup("sp", network, x, **options), loss, (x, y), **check)


def test_assert_transfers_says_what_a_check_says():
    class Setup:
        def check(self, loss, batch, **options):
            assert (loss, batch, options) == ("loss", "batch", {"seeds": 3})
            return self

    m = Setup()
    m.ok, m.verdict = True, "ok"
    dm.testing.assert_transfers(m, "loss", "batch", seeds=3)
    m.ok, m.verdict = False, "undecided"
    with pytest.raises(AssertionError, match="undecided"):
        dm.testing.assert_transfers(m, "loss", "batch", seeds=3)


@pytest.mark.parametrize("name", [*TABLES, "mine"])
def test_the_state_of_wrap_under_every_parameterization(name, monkeypatch):
    """The family does not matter to what is stored: a parameterization without SGD converts as well."""
    monkeypatch.setitem(TABLES, "mine", Table(alpha=0.5, families=("adam",)))
    specs, _, params, _ = network("scanned")
    p = dm.parameterization(name, **SHAPE)
    q = p.in_form("canonical")
    converted, state = dm.convert(p, specs, q, specs, params, optax.EmptyState(), optimizer=None)
    assert state == optax.EmptyState()
    family = p.table.families[-1]
    before, after = (dm.factors(of, specs, family).init for of in (p, q))
    jax.tree.map(
        lambda w, v, a, b: np.testing.assert_allclose(w, v * b / a, rtol=1e-6), converted, params, before, after
    )
