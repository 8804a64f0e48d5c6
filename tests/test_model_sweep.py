"""`m.sweep`: a user's model of any framework, trained by the engine as a hand-written loop trains it."""

import json

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from flax import nnx

import depthmup as dm
from depthmup import sweep
from depthmup.settings import SettingsError
from depthmup.train.workdir import WorkdirError

WIDTH, DEPTH, INPUTS, CLASSES, BATCH, STEPS = 8, 1, 6, 4, 16, 70  # more steps than one call of a program takes
RATES = tuple(2.0**x for x in range(-9, -2))
X = np.random.default_rng(0).normal(size=(64, INPUTS)).astype(np.float32)
Y = np.random.default_rng(1).integers(0, CLASSES, 64).astype(np.int32)


class LinenNet(nn.Module):
    width: int
    depth: int

    @nn.compact
    def __call__(self, x):
        h = nn.Dense(self.width, name="first")(x)
        for i in range(self.depth):
            h = h + nn.Dense(self.width, name=f"block_{i}")(nn.relu(h))
        return nn.Dense(CLASSES, name="head")(h)


class NNXNet(nnx.Module):
    def __init__(self, width, depth, rngs):
        self.first = nnx.Linear(INPUTS, width, rngs=rngs)
        self.blocks = nnx.List([nnx.Linear(width, width, rngs=rngs) for _ in range(depth)])
        self.head = nnx.Linear(width, CLASSES, rngs=rngs)

    def __call__(self, x):
        h = self.first(x)
        for block in self.blocks:
            h = h + block(nnx.relu(h))
        return self.head(h)


class EquinoxNet(eqx.Module):
    first: eqx.nn.Linear
    blocks: list
    head: eqx.nn.Linear

    def __init__(self, width, depth, key):
        keys = jax.random.split(key, depth + 2)
        self.first = eqx.nn.Linear(INPUTS, width, key=keys[0])
        self.blocks = [eqx.nn.Linear(width, width, key=k) for k in keys[2:]]
        self.head = eqx.nn.Linear(width, CLASSES, key=keys[1])

    def __call__(self, x):
        h = self.first(x)
        for block in self.blocks:
            h = h + block(jax.nn.relu(h))
        return self.head(h)


def haiku_net(width, depth):
    hk = pytest.importorskip("haiku")

    def forward(x):
        h = hk.Linear(width, name="first")(x)
        for i in range(depth):
            h = h + hk.Linear(width, name=f"block_{i}")(jax.nn.relu(h))
        return hk.Linear(CLASSES, name="head")(h)

    return hk.without_apply_rng(hk.transform(forward))


def bare(width, depth, key):
    keys = jax.random.split(key, depth + 2)

    def normal(key, rows, columns):
        return jax.random.normal(key, (rows, columns)) / rows**0.5

    return {
        "first": normal(keys[0], INPUTS, width),
        "blocks": [normal(k, width, width) for k in keys[2:]],
        "head": normal(keys[1], width, CLASSES),
    }


def call_bare(params, x):
    h = x @ params["first"]
    for block in params["blocks"]:
        h = h + jax.nn.relu(h) @ block
    return h @ params["head"]


def batch_call(model, x):
    return jax.vmap(model)(x)


FRAMEWORKS = {
    "linen": (LinenNet, {}),
    "nnx": (NNXNet, {}),
    "equinox": (EquinoxNet, {"call": batch_call}),
    "haiku": (haiku_net, {}),
    "pytree": (bare, {"call": call_bare}),
}


def setup(framework="linen", name="depth_mup", **options):
    factory, call = FRAMEWORKS[framework]
    settings = {"width": WIDTH, "depth": DEPTH, "base": (WIDTH, DEPTH), "fan_in_init": False, **call, **options}
    return dm.setup(name, factory, jnp.zeros((1, INPUTS)), **settings)


def loss(logits, targets):
    return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()


def batches(step):
    places = jax.random.randint(jax.random.fold_in(jax.random.key(7), step), (BATCH,), 0, len(X))
    return jnp.asarray(X)[places], jnp.asarray(Y)[places]


def small(m, given=batches, **options):
    """A sweep of one shape."""
    settings = {"steps": STEPS, "learning_rates": RATES, "widths": (WIDTH,), "depths": (), "seeds": 1}
    return m.sweep(loss, given, **{**settings, "progress": False, **options})


def split(framework, held):
    """(what is trained, trained -> what the user holds), in the framework's own way."""
    if framework == "linen":
        return held["params"], lambda params: {"params": params}
    if framework == "nnx":
        definition, params, rest = nnx.split(held, nnx.Param, ...)
        return params, lambda params: nnx.merge(definition, params, jax.tree.map(lambda leaf: leaf, rest))
    if framework == "equinox":
        params, static = eqx.partition(held, eqx.is_inexact_array)
        return params, lambda params: eqx.combine(params, static)
    return held, lambda params: params


def by_hand(framework, m, rate, seed, make=lambda m, rate: m.optimizer("adamw", rate, weight_decay=0.1)):
    """The losses of a training as a user writes it with Optax, (STEPS,)."""
    # In one program, as the engine does it: XLA may round a division elsewhere than operation by operation.
    init = jax.jit(m.init) if framework == "pytree" else m.init
    params, joined = split(framework, init(jax.random.key(seed)))

    @jax.jit
    def step(params, state, rate, number):
        x, y = batches(number)
        value, grads = jax.value_and_grad(lambda params: loss(m.apply(joined(params), x), y))(params)
        updates, state = make(m, rate).update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    state, losses = make(m, rate).init(params), []
    for number in range(STEPS):
        params, state, value = step(params, state, jnp.float32(rate), jnp.int32(number))
        losses.append(np.float32(value))
    return np.array(losses)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_sweep_is_what_a_hand_written_loop_gives(framework, tmp_path):
    """To the last bit, at another depth than the base's; its factors, powers of 2, are exact in float32 as in float64."""
    m = setup(framework)
    result = small(m, widths=(), depths=(4 * DEPTH,), weight_decay=0.1, seeds=2, workdir=tmp_path)
    curves = sweep.curves(tmp_path).groupby("key")
    assert len(result.rows) == 2 * len(RATES)
    for row in result.rows.iloc[[0, 5, len(RATES)]].itertuples():
        losses = by_hand(framework, m.at(WIDTH, 4 * DEPTH), row.learning_rate, row.seed)
        np.testing.assert_array_equal(curves.get_group(row.key)["loss"], losses)
        assert row.last_loss == pytest.approx(losses[-7:].astype(float).mean(), rel=1e-12)
