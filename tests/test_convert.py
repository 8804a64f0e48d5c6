"""A run goes on in another storage form as if nothing had happened, and assert_transfers says what a check says."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest

import depthmup as dm
from depthmup.forward import absorb
from tests.test_forward import OPTIMIZERS, network

SHAPE = {"base_width": 4, "base_depth": 1, "base_head_dim": 2}


def stretch(apply, tx, params, state, x, steps):
    """(params, state, logits before each step) after some steps."""
    labels, seen = jnp.arange(len(x)) % 5, []

    def loss(params):
        logits = apply(params, x)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean(), logits

    for _ in range(steps):
        grads, logits = jax.grad(loss, has_aux=True)(params)
        updates, state = tx.update(grads, state, params)
        params = optax.apply_updates(params, updates)
        seen.append(logits)
    return params, state, np.array(seen)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", ["scanned", "fused"])
def test_the_run_goes_on(name, optimizer, x64, tmp_path):
    """From explicit factors to absorbed ones in mid-run, through a checkpoint, and back."""
    specs, apply_with, params, x = network(name)
    params = jax.tree.map(lambda w: w.astype(jnp.float64), params)
    p = dm.parameterization("depth_mup", **SHAPE, gamma0=0.7, beta0=0.6)
    q = p.in_form("absorbed")
    rate, options = OPTIMIZERS[optimizer]
    factors = p.forward_factors(width=8, depth=2, head_dim=4)
    explicit, unedited = apply_with((factors.branch, factors.output, factors.attention * 2.0)), apply_with((1, 1, 1))
    found = absorb(specs, unedited, params, x)
    ours, theirs = (dm.optimizer(*of, optimizer, rate, **options) for of in ((q, found), (p, specs)))
    params = dm.rescale(p, specs, params)
    _, _, expected = stretch(explicit, theirs, params, theirs.init(params), x, 6)
    params, state, first = stretch(explicit, theirs, params, theirs.init(params), x, 2)

    params, state = dm.convert(p, specs, q, found, params, state, optimizer=optimizer)
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "converted", {"params": params, "state": state})
        checkpointer.wait_until_finished()
        restored = checkpointer.restore(tmp_path / "converted", {"params": params, "state": state})
    params, state, second = stretch(unedited, ours, restored["params"], restored["state"], x, 2)
    params, state = dm.convert(q, found, p, specs, params, state, optimizer=optimizer)
    _, _, third = stretch(explicit, theirs, params, state, x, 2)
    np.testing.assert_allclose(np.concatenate([first, second, third]), expected, rtol=0, atol=1e-10)


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


def test_assert_transfers():
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
