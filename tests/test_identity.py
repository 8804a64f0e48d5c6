"""What a workdir of `m.sweep` knows of its rows: another model, init, loss, optimizer or data are named; more of the
same sweep is not."""

import functools
import json
import re
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn

import depthmup as dm
from depthmup import sweep
from depthmup.train.workdir import WorkdirError
from depthmup.trials.engine import train
from depthmup.trials.identity import settings
from depthmup.trials.store import extension
from depthmup.tune.model_sweep import study_of

INPUTS, CLASSES, BATCH, STEPS = 6, 4, 8, 20
X = np.random.default_rng(0).normal(size=(32, INPUTS)).astype(np.float32)
Y = np.random.default_rng(1).integers(0, CLASSES, 32).astype(np.int32)
RATES = tuple(2.0**x for x in range(-9, -4))


class Net(nn.Module):
    """Options of a factory that change the init, an array, one depth, or evaluation alone."""

    width: int
    depth: int
    std: float = 0.1
    bias: tuple[float, ...] = (0.0,) * CLASSES
    table: tuple[float, ...] = (0.0,) * INPUTS
    gate: int = 9
    evaluated: float = 1.0

    @nn.compact
    def __call__(self, x, train):
        dense = functools.partial(nn.Dense, kernel_init=nn.initializers.normal(self.std))
        h = dense(self.width, name="first")(x + np.float32(self.table))
        for i in range(self.depth):
            y = dense(self.width, name=f"block_{i}")(nn.relu(h))
            h = y + h if self.depth >= self.gate else h + y
        logits = dense(CLASSES, name="head", bias_init=lambda *_: jnp.asarray(np.float32(self.bias)))(h)
        return logits if train else logits * self.evaluated


def loss(logits, targets):
    return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()


def weighted(weights):
    def loss(logits, targets):
        each = optax.softmax_cross_entropy_with_integer_labels(logits, targets)
        return (each * jnp.asarray(weights)[targets]).mean()

    return loss


def times(scale):
    def loss(logits, targets):
        return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean() * scale

    return loss


def batches(step, other_from=10**6):
    places = (step * BATCH + jnp.arange(BATCH)) % len(X)
    return jnp.where(step >= other_from, -1, 1) * jnp.asarray(X)[places], jnp.asarray(Y)[places]


LIST = [tuple(map(np.asarray, batches(step))) for step in range(STEPS)]


def adam(**options):
    return lambda m: optax.adam(1.0, **options)


def setup(factory=Net, **options):
    settings = {"width": 8, "depth": 1, "base": (8, 1), "fan_in_init": False, "options": {"train": True}, **options}
    return dm.setup("depth_mup", factory, jnp.zeros((1, INPUTS)), **settings)


SWEEP = {"steps": STEPS, "learning_rates": RATES, "widths": (), "depths": (1, 2), "seeds": 1}


def identity(factory=Net, loss=loss, batches=batches, setup_options=None, **options):
    """The identity of a sweep, as a workdir has it. setup_options: of `setup`."""
    study = study_of(setup(factory, **setup_options or {}), loss, batches, **SWEEP | options)
    return json.loads(json.dumps(study.identity | study.beyond_keys))


HELD_OUT = {"evaluate": (X, Y)}
AT_BASE = r"\(depth_mup width 8 depth 1\)"
# What one sweep has, what the other has in its place, and what is said of it.
CHANGES = {
    "init": ({}, {"factory": functools.partial(Net, std=0.5)}, rf"the init of block_\*/kernel changed {AT_BASE}"),
    "array in the init": (
        {},
        {"factory": functools.partial(Net, bias=(1.0,) * CLASSES)},
        "the init of head/bias changed",
    ),
    "correction of the init": ({}, {"setup_options": {"fan_in_init": True}}, "the init of .* changed"),
    "array in the loss": (
        {"loss": weighted(np.ones(CLASSES, np.float32))},
        {"loss": weighted(np.float32([5, 1, 1, 1]))},
        r"the loss's constants of shape \(4,\) changed$",
    ),
    "number in the loss": ({"loss": times(1.5)}, {"loss": times(2.5)}, "the loss changed$"),
    "JAX scalar in the loss": (
        {"loss": times(jnp.float32(1.5))},
        {"loss": times(jnp.float32(2.5))},
        r"the loss('s constants of shape \(\))? changed$",
    ),
    "array in the model": (
        {},
        {"factory": functools.partial(Net, table=(1.0,) * INPUTS)},
        r"the training step's constants of shape \(6,\) changed \(adamw depth_mup width 8 depth 1 ",
    ),
    "model at a depth": (
        {},
        {"factory": functools.partial(Net, gate=2)},
        r"the training step changed \(adamw depth_mup width 8 depth 2 batch size 8 steps 20\)",
    ),
    "evaluation": (HELD_OUT, {"factory": functools.partial(Net, evaluated=2.0)} | HELD_OUT, "the evaluation changed"),
    "held-out data": (HELD_OUT, {"evaluate": (-X, Y)}, "the held-out data changed$"),
    "function of batches": (
        {},
        {"batches": functools.partial(batches, other_from=2)},
        r"the batches of step 2 changed \(batch size 8\)",
    ),
    "function of the last batch": (
        {},
        {"batches": functools.partial(batches, other_from=STEPS - 1)},
        f"the batches of step {STEPS - 1} changed",
    ),
    "list of batches": ({"batches": LIST}, {"batches": [*LIST[:-1], LIST[0]]}, "the batches of step 19 changed"),
    "iterator": (
        {"batches": lambda: iter(LIST)},
        {"batches": lambda: iter([*LIST[:-1], LIST[0]])},
        "the batches of step 19 changed",
    ),
    "arrays": (
        {"batches": (X, Y), "batch_size": BATCH},
        {"batches": (np.where(np.arange(32)[:, None] == 31, 9, X), Y), "batch_size": BATCH},
        "the (arrays of examples|batches of step [01]) changed",
    ),
    "order of arrays": (
        {"batches": (X[:24], Y[:24]), "batch_size": BATCH, "steps": 3},
        {"batches": LIST[:3], "steps": 3},
        "the batches of step 0 changed",
    ),
    "second optimizer": (
        {"optimizer": {"A": adam(), "B": adam(b1=0.8)}},
        {"optimizer": {"A": adam(), "B": adam(b1=0.9)}},
        r"the optimizer changed \(B depth_mup width 8 depth 1 batch size 8 steps 20\)",
    ),
    "roles": (
        {},
        {"setup_options": {"overrides": {"first/kernel": "input"}}},
        "overrides.first/kernel was 'nothing', now",
    ),
}


@pytest.fixture(scope="module")
def plain():
    return identity()


@pytest.mark.parametrize("what", CHANGES)
def test_what_changed_is_named(what, plain):
    one, other, words = CHANGES[what]
    assert re.search(words, extension(identity(**one) if one else plain, identity(**other)))


def test_sweeps_of_other_sizes_share_the_base():
    one, other = (identity(**options, depths=(depth,)) for options, depth in (({}, 2), (CHANGES["init"][1], 4)))
    assert re.search(rf"the init of block_\*/kernel changed {AT_BASE}", extension(one, other))


SETTINGS = {
    "jax_enable_x64": True,
    "jax_default_prng_impl": "rbg",
    "jax_default_matmul_precision": "highest",
}


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_of_jax(name, plain):
    before = getattr(jax.config, name)
    jax.config.update(name, SETTINGS[name])
    try:
        here = plain | {"jax": settings()}
    finally:
        jax.config.update(name, before)
    key = name.removeprefix("jax_")
    assert extension(plain, here) == f"jax.{key} was {before!r}, now it is {SETTINGS[name]!r}"


def named_otherwise(logits, targets):
    return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()


named_otherwise.__qualname__ = "loss"
MORE = {
    "seeds and depths": {"seeds": 3, "depths": (1, 2, 4)},
    "another shape": {"widths": (16,), "depths": ()},
    "rates": {"learning_rates": [0.1, 0.01, 0.3, 0.03, 0.5], "at_once": 3},
    "an optimizer and a parameterization": {"optimizer": ("sgd", "adamw"), "against": ("sp",)},
    "the same batches by another way": {"batches": LIST},
    "the same loss, written again": {"loss": named_otherwise},
    "steps": {"steps": (STEPS, 2 * STEPS)},
}


@pytest.mark.parametrize("what", MORE)
def test_more_of_the_same_sweep(what, plain):
    assert extension(plain, identity(**MORE[what])) == ""


def trained(workdir, criterion=loss, **options):
    return train(
        study_of(setup(), criterion, batches, **SWEEP | {"steps": 4, "depths": (1,)} | options), workdir, progress=False
    )


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep")
    trained(folder)
    return folder


def test_a_file_of_another_sweep_is_refused(workdir, tmp_path):
    """By its name, when it is trained on and when it is read."""
    one, other = tmp_path / "one", tmp_path / "other"
    shutil.copytree(workdir, one)
    trained(other, times(2.0), seeds=2)
    (foreign,) = sorted((other / "groups").iterdir())
    shutil.copy(foreign, one / "groups")
    for read in (lambda: trained(one, seeds=2), lambda: sweep.load(one)):
        with pytest.raises(WorkdirError, match=r"\.parquet holds rows of another sweep: the loss changed") as refused:
            read()
    assert f"{one / 'groups'}" in str(refused.value)
    one.joinpath("groups", foreign.name).unlink()
    assert len(trained(one)) == len(RATES)
