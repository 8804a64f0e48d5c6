"""Scanned blocks are the unrolled blocks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import depthmup as dm
from depthmup.models import ResidualMLP

FACTORS = dm.ForwardFactors(0.3, 0.7, None)


@pytest.mark.parametrize(
    "options", [{}, {"use_bias": True, "norm": "layer", "activation": "tanh", "readout": "linear"}]
)
def test_scan_equals_unrolled(options, x64):
    """Outputs and gradients, the unrolled parameters stacked."""
    x = jax.random.normal(jax.random.key(1), (4, 5), jnp.float64)
    scanned, unrolled = (ResidualMLP(8, 3, scan=scan, **options) for scan in (True, False))
    params = unrolled.init(jax.random.key(0), x, FACTORS)["params"]
    params = jax.tree.map(lambda w: w + 0.1 * jax.random.normal(jax.random.key(2), w.shape), params)  # biases not 0

    def stacked(tree):
        blocks = [tree[f"block_{i}"] for i in range(3)]
        rest = {k: v for k, v in tree.items() if not k.startswith("block_")}
        return rest | {"blocks": jax.tree.map(lambda *leaves: jnp.stack(leaves), *blocks)}

    def run(model, params):
        return jax.value_and_grad(lambda p: jnp.sum(jnp.sin(model.apply({"params": p}, x, FACTORS))))(params)

    (out, grads), (out_scanned, grads_scanned) = run(unrolled, params), run(scanned, stacked(params))
    np.testing.assert_allclose(out, out_scanned, rtol=1e-13)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-13), stacked(grads), grads_scanned)


def test_equation(x64):
    """h^{l+1} = h^l + b W phi(h^l), logits = c W_out phi(h^L): docs/theory.md section 0."""
    model = ResidualMLP(8, 3, activation="tanh", scan=True)
    x = np.random.default_rng(0).normal(size=(4, 5))
    params = model.init(jax.random.key(0), x, FACTORS)["params"]
    h = x @ params["read_in"]["kernel"]
    for w in params["blocks"]["dense"]["kernel"]:
        h = h + 0.3 * np.tanh(h) @ w
    expected = 0.7 * np.tanh(h) @ params["readout"]["kernel"]
    logits, sown = model.apply({"params": params}, x, FACTORS, mutable=["features"])
    np.testing.assert_allclose(logits, expected, rtol=1e-12)
    np.testing.assert_allclose(sown["features"]["hidden"], h, rtol=1e-12)


def test_init_has_variance_one_over_fan_in():
    params = ResidualMLP(256, 4).init(jax.random.key(0), jnp.ones((1, 64)), FACTORS)["params"]
    for leaf, fan_in in ((params["read_in"], 64), (params["blocks"]["dense"], 256), (params["readout"], 256)):
        kernel = np.asarray(leaf["kernel"])
        assert kernel.std() == pytest.approx(fan_in**-0.5, rel=5 / np.sqrt(2 * kernel.size))  # five standard errors
