"""Models with leaves, names of axes and arrays that not every model has."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from flax import nnx
from jax.sharding import Mesh, PartitionSpec

import depthmup as dm
from depthmup.rules.specs import leaves_of

X = jnp.ones((4, 5))
SIZES = {"width": 16, "depth": 2, "base": (8, 1), "fan_in_init": False}


class Odd(nn.Module):
    """Blocks of two layers, with something odd in them."""

    width: int
    depth: int
    kind: str = ""

    @nn.compact
    def __call__(self, x):
        h = nn.Dense(self.width, name="embed")(x)
        if self.kind == "integers":
            h = h[:, self.param("order", lambda key: jnp.arange(self.width)[::-1])]
        if self.kind == "empty":
            h = h + self.param("none", nn.initializers.ones, (self.width, 0)).sum()
        for i in range(self.depth):
            if self.kind == "axis":
                h = nn.BatchNorm(use_running_average=False, axis_name="batch", name=f"norm_{i}")(h)
            up = self.param(f"up_{i}", nn.initializers.lecun_normal(), (self.width, 2 * self.width))
            down = self.param(f"down_{i}", nn.initializers.lecun_normal(), (2 * self.width, self.width))
            h = h + (_sharded if self.kind == "shards" else _mlp)(h, up, down)
        return nn.Dense(3, use_bias=False, name="head")(h)


def _mlp(h, up, down):
    return nn.relu(h @ up) @ down


def _sharded(h, up, down):
    """As tensor parallelism writes it."""
    spec = PartitionSpec
    return jax.shard_map(
        lambda *parts: jax.lax.psum(_mlp(*parts), "model"),
        mesh=Mesh(np.array(jax.devices()[:1]), ("model",)),
        in_specs=(spec(), spec(None, "model"), spec("model", None)),
        out_specs=spec(),
    )(h, up, down)


def roles(m):
    return {s.path: (s.placed_role, s.absorbs) for s in leaves_of(m.specs)}


@functools.cache
def plain():
    return roles(dm.setup("depth_mup", Odd, X, **SIZES))


@pytest.mark.parametrize("kind", ["integers", "empty", "axis", "shards"])
def test_they_are_read_as_others(kind):
    m = dm.setup("depth_mup", functools.partial(Odd, kind=kind), X, **SIZES)
    assert {path: role for path, role in roles(m).items() if path in plain()} == plain()
    variables = m.init(jax.random.key(0))
    assert ("order" in variables["params"]) == (kind == "integers")
    if kind != "axis":  # which needs the axis outside of setup
        assert m.apply(variables, X).shape == (4, 3)
        logits, _ = m.model.run(*m.model.split(variables), X)
        np.testing.assert_array_equal(logits, m.apply(variables, X))


def test_integers_are_no_parameters():
    """Of NNX too; the optimizer leaves them as they are."""

    class Coded(nnx.Module):
        def __init__(self, width, depth, rngs):
            self.embed, self.head = nnx.Linear(5, width, rngs=rngs), nnx.Linear(width, 3, rngs=rngs)
            self.codes = nnx.Param(jnp.arange(width, dtype=jnp.int8)[::-1])
            self.blocks = nnx.List([nnx.Linear(width, width, rngs=rngs) for _ in range(depth)])

        def __call__(self, x):
            h = self.embed(x)[:, self.codes[...].astype(int)]
            for block in self.blocks:
                h = h + block(nnx.relu(h))
            return self.head(h)

    m = dm.setup("depth_mup", Coded, X, **SIZES)
    module = m.init(jax.random.key(0))
    assert module.codes.dtype == jnp.int8
    assert "codes" not in {s.path for s in leaves_of(m.specs)}
    params = nnx.state(module, nnx.Param)
    updates = jax.tree.map(lambda w: jnp.ones_like(w), params)
    for tx in (m.optimizer("sgd", 1.0), m.clip_by_global_norm(1e3)):
        scaled, _ = tx.update(updates, tx.init(params), params)
        assert scaled["codes"].shape == (16,)
    floats = nnx.to_pure_dict(params)
    masked = optax.masked(m.optimizer("adam", 1.0), {name: name != "codes" for name in floats})
    masked.update(floats, masked.init(floats), floats)


def test_a_factory_inside_of_jit():
    """It computes an array, which all later calls keep."""

    class Scaled(nn.Module):
        width: int
        depth: int
        table: jax.Array

        @nn.compact
        def __call__(self, x):
            h = nn.Dense(self.width, name="embed")(x)
            return nn.Dense(3, name="head")(h) * self.table

    m = dm.setup("mup", lambda width, depth: Scaled(width, depth, jnp.arange(1.0, 4.0)), X, residual=False, **SIZES)
    jax.jit(lambda key: m.at(32, 2).init(key))(jax.random.key(0))
    assert m.at(32, 2).init(jax.random.key(0))["params"]["head"]["kernel"].shape == (32, 3)


def test_an_array_that_a_module_hides():
    class Hiding(eqx.Module):
        embed: eqx.nn.Linear
        head: eqx.nn.Linear
        last: object = eqx.field(static=True)

        def __init__(self, width, depth, key):
            self.embed, self.head = eqx.nn.Linear(5, width, key=key), eqx.nn.Linear(width, 3, key=key)
            table = jnp.arange(1.0, 4.0)
            self.last = lambda y: y * table

        def __call__(self, x):
            return self.last(self.head(self.embed(x)))

    with pytest.raises(TypeError, match="in a closure or a static field, where JAX sees none: compute it with NumPy"):
        dm.setup("mup", Hiding, X, call=lambda model, x: jax.vmap(model)(x), residual=False, **SIZES)


def test_an_error_of_the_model():
    """It is the model's own, and says where it happened."""

    class Broken(nn.Module):
        width: int
        depth: int

        @nn.compact
        def __call__(self, x):
            h = nn.Dense(self.width, name="embed")(x)
            return nn.Dense(3, name="head")(h @ jnp.ones((7, 7)))

    with pytest.raises(TypeError, match="dot_general requires contracting dimensions") as error:
        dm.setup("mup", Broken, X, residual=False, **SIZES)
    notes = [note for note in error.value.__notes__ if note.startswith("(setup")]
    assert notes == ["(setup made the model at width 8, depth 1, and called it with float32[4, 5])"]
