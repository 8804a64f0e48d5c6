"""The programs of docs/guide/codebases.md, at small sizes: `make test-foreign` has the packages that some need."""

import runpy
import sys
import warnings
from pathlib import Path

import equinox as eqx
import jax
import numpy as np
import optax
import pytest

import depthmup as dm
from depthmup import keras as dk

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(monkeypatch, name, *arguments):
    """The names of the program that this command runs."""
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    return runpy.run_path(str(EXAMPLES / name))


def test_keras(monkeypatch):
    """`fit` has the losses of a loop with `m.optimizer`."""
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    pytest.importorskip("keras")
    n = run(monkeypatch, "keras_fit.py", "--width=64", "--depth=4", "--epochs=4", "--batch_size=1024")
    m, x, labels = n["m"], n["x"], n["labels"]
    net = m.init(jax.random.key(0))
    tx = m.optimizer("adamw", 2.0**-9, weight_decay=0.01, eps=1e-7)  # Keras' own eps

    @jax.jit
    def step(net, state):
        def loss(net):
            return optax.softmax_cross_entropy_with_integer_labels(net(x), labels).mean()

        value, grads = jax.value_and_grad(loss)(net)
        updates, state = tx.update(grads, state, net)
        return optax.apply_updates(net, updates), state, value

    state, losses = tx.init(net), []
    for _ in n["history"]:
        net, state, value = step(net, state)
        losses.append(value)
    np.testing.assert_allclose(n["history"], losses, rtol=1e-4)


def test_an_optimizer_of_keras_without_a_rule(monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    optimizers = pytest.importorskip("keras").optimizers
    with pytest.raises(ValueError, match=r"no rule for keras\.optimizers\.Adafactor; known: SGD, Adam"):
        dk.scaled(None, None, optimizers.Adafactor)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_tunix(monkeypatch):
    pytest.importorskip("tunix")
    n = run(monkeypatch, "tunix_sft.py", "--steps=12")
    assert "attention factor 1 inside" in str(n["m"].explain())  # heads of a fixed size
    assert len(n["losses"]) == 12
    assert n["losses"][-1] < 0.7 * n["losses"][0]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_haliax(monkeypatch):
    pytest.importorskip("haliax", reason="of pip install --pre", exc_type=ImportError)
    n = run(monkeypatch, "haliax_mlp.py", "--width=64", "--depth=4", "--steps=20")
    assert "branch factor 0.5 inside blocks/*/down/" in str(n["m"].explain())
    assert n["losses"][-1] < 0.7 * n["losses"][0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "branch", "output"),
    [
        ("nanodo_lm.py", "attn_out_proj_*/kernel, down_*/kernel", "out_ln/scale"),
        ("big_vision_vit.py", "block*_attention/out/bias", "head/kernel"),
    ],
)
def test_restated(monkeypatch, name, branch, output):
    """Codebases that are on no package index, at twice the width and depth of the base."""
    n = run(monkeypatch, name, "--width=128", "--depth=4", "--steps=30")
    text = str(n["m"].explain())
    assert f"branch factor 0.5 inside {branch}" in text
    assert f"output factor 0.5 inside {output}" in text
    assert n["losses"][-1] < 0.85 * n["losses"][0]


def test_names_of_haliax_are_compared():
    """An axis of fixed size with the name of the one that grows."""
    hax = pytest.importorskip("haliax")
    import haliax.nn as hnn

    class Net(eqx.Module):
        embed: hnn.Linear
        side: hnn.Linear
        head: hnn.Linear

        def __init__(self, name, width, key):
            keys, Pixel, Embed = jax.random.split(key, 3), hax.Axis("pixel", 8), hax.Axis("embed", width)
            self.embed = hnn.Linear.init(Pixel, Embed, key=keys[0])
            self.side = hnn.Linear.init(Pixel, hax.Axis(name, 16), key=keys[1])
            self.head = hnn.Linear.init(Embed, hax.Axis("class", 3), key=keys[2])

        def __call__(self, x):
            x = hax.named(x, ("batch", "pixel"))
            gate = hax.mean(hnn.gelu(self.side(x)), self.side.Out)
            return self.head(hnn.gelu(self.embed(x)) * gate).rearrange(("batch", "class")).array

    def warnings_of(name):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            build = lambda width, depth, key: Net(name, width, key)  # noqa: E731
            dm.setup("mup", build, np.ones((2, 8), np.float32), width=64, depth=1, base=(32, 1), residual=False)
        return [str(warning.message) for warning in caught if "have one name" in str(warning.message)]

    assert warnings_of("side") == []
    (text,) = warnings_of("embed")
    assert "the axes 'embed' of" in text
    assert "side/weight" in text
