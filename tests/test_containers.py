"""An optimizer takes its model's parameters in whatever holds them, and updates each as in the model's own tree."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from flax import linen as nn
from flax import nnx
from flax.core import freeze
from flax.traverse_util import flatten_dict
from jax.sharding import PartitionSpec

import depthmup as dm
from depthmup.rules.specs import SpecError, is_hidden, leaves_of, matched

X = jnp.ones((4, 5))


class Net(nn.Module):
    """Blocks of two layers, whose kernels are boxed."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, x):
        kernel_init = nn.with_partitioning(nn.initializers.lecun_normal(), ("in", "out"))
        h = nn.Dense(self.width, name="embed")(x)
        for i in range(self.depth):
            y = nn.relu(nn.Dense(2 * self.width, kernel_init=kernel_init, name=f"up_{i}")(h))
            h = h + nn.Dense(self.width, use_bias=False, kernel_init=kernel_init, name=f"down_{i}")(y)
        return nn.Dense(3, use_bias=False, name="head")(h)


class Module(nnx.Module):
    def __init__(self, width, depth, rngs):
        self.embed = nnx.Linear(5, width, rngs=rngs)
        self.blocks = nnx.List([nnx.Linear(width, width, rngs=rngs) for _ in range(depth)])
        self.head = nnx.Linear(width, 3, use_bias=False, rngs=rngs)

    def __call__(self, x):
        h = self.embed(x)
        for block in self.blocks:
            h = h + block(nnx.relu(h))
        return self.head(h)


@functools.cache
def set_up(model):
    m = dm.setup("depth_mup", model, X, width=16, depth=2, base=(8, 1), fan_in_init=True)
    params = m.init(jax.random.key(0))
    return m, params["params"] if model is Net else nnx.state(params, nnx.Param)


def restored(tree, path):
    """What Orbax reads without a target."""
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(path / "saved", tree)
        checkpointer.wait_until_finished()
        return checkpointer.restore(path / "saved")


CONTAINERS = {
    "unboxed": (Net, lambda params, path: nn.unbox(params)),
    "variables": (Net, lambda params, path: {"params": params}),
    "unboxed variables": (Net, lambda params, path: {"params": nn.unbox(params)}),
    "frozen": (Net, lambda params, path: freeze({"params": nn.unbox(params)})),
    "keys with slashes": (Net, lambda params, path: flatten_dict(nn.unbox(params), sep="/")),
    "tuples as keys": (Net, lambda params, path: flatten_dict(nn.unbox(params))),
    "orbax": (Net, lambda params, path: restored({"params": params}, path)),
    "pure": (Module, lambda params, path: nnx.to_pure_dict(params)),
    "flat": (Module, lambda params, path: flatten_dict(nnx.to_pure_dict(params))),
    "orbax of NNX": (Module, lambda params, path: restored(params, path)),
}


@pytest.mark.parametrize("name", CONTAINERS)
def test_containers(name, tmp_path):
    model, put_into = CONTAINERS[name]
    m, params = set_up(model)
    by_shape = {np.shape(w): i for i, w in enumerate(jax.tree.leaves(params))}  # a number for each kind of parameter
    other = put_into(params, tmp_path)
    rates = {"adamw": 1.0, "momentum": 1.0}
    transformations = [m.optimizer(*rate, weight_decay=0.1) for rate in rates.items()]
    transformations += [m.clip_by_global_norm(0.1), _wrapped(model)]
    for tx in transformations:
        grads = [jax.tree.map(lambda w: jnp.full(w.shape, 1.0 + by_shape[w.shape]), tree) for tree in (params, other)]
        updates = [tx.update(g, tx.init(p), p)[0] for g, p in zip(grads, (params, other), strict=True)]
        assert jax.tree.structure(updates[1]) == jax.tree.structure(other)
        sizes = [sorted((np.shape(u), float(jnp.abs(u).sum())) for u in jax.tree.leaves(tree)) for tree in updates]
        assert sizes[0] == sizes[1]
    assert len({round(size / np.prod(shape), 6) for shape, size in sizes[0]}) > 2  # so that a wrong one is seen


@functools.cache
def _wrapped(model):
    return set_up(model)[0].wrap(optax.adamw(1.0, weight_decay=0.1))


def test_other_parameters_are_refused():
    m, params = set_up(Net)
    plain = nn.unbox(params)
    for wrong in ({**plain, "tail": {"kernel": X}}, {"params": {**plain, "head": {"kernel": X}}}):
        for tx in (m.optimizer("adam", 1.0), dm.optimizer(m.parameterization, m.specs, "adam", 1.0)):
            with pytest.raises(SpecError, match="parameters and specs are of different"):
                tx.init(wrong)
    with pytest.raises(SpecError, match="there is no parameter down_0/kernel"):
        dm.optimizer(m.parameterization, m.specs, "adam", 1.0).init({"params": {"head": plain["head"]}})


def test_a_hidden_part_in_another_container():
    """A mask over a whole layer, and over NNX's pure dict."""
    m, params = set_up(Net)
    plain = nn.unbox(params)
    tx = optax.masked(m.optimizer("sgd", 1.0), {name: name != "embed" for name in plain})
    ones = jax.tree.map(jnp.ones_like, plain)
    updates, _ = tx.update(ones, tx.init(plain), plain)
    whole = m.optimizer("sgd", 1.0).update(ones, m.optimizer("sgd", 1.0).init(plain), plain)[0]
    assert jax.tree.all(jax.tree.map(jnp.array_equal, {**whole, "embed": ones["embed"]}, updates))


TRANSFORMATIONS = {
    "adamw": lambda m: m.optimizer("adamw", 1.0, weight_decay=0.1),
    "muon": lambda m: m.optimizer("muon", 1.0),
    "wrap": lambda m: _wrapped(Net),
    "dm.optimizer": lambda m: dm.optimizer(m.parameterization, m.specs, "adam", 1.0),
    "clip": lambda m: optax.chain(m.clip_by_global_norm(1.0), m.optimizer("adam", 1.0)),
    "inject": lambda m: optax.inject_hyperparams(m.optimizer, static_args="mask")("adamw", 1.0, mask=lambda tree: tree),
}


@pytest.mark.parametrize("name", TRANSFORMATIONS)
def test_tree_map_params(name):
    """Optax' own way to shard a state: the moments get the sharding of their parameters."""
    m, params = set_up(Net)
    plain = nn.unbox(params)
    tx, shardings = TRANSFORMATIONS[name](m), jax.tree.map(lambda w: PartitionSpec(*"ab"[: w.ndim]), plain)
    state = tx.init(plain)
    mapped = optax.tree_map_params(
        tx,
        lambda leaf, sharding: leaf if is_hidden(leaf) else sharding,
        state,
        shardings,
        transform_non_params=lambda _: 0,
        is_leaf=is_hidden,
    )
    pairs = zip(
        jax.tree.leaves(state), jax.tree.leaves(mapped, is_leaf=lambda x: isinstance(x, PartitionSpec)), strict=True
    )
    ranks = [(np.ndim(leaf), len(sharding)) for leaf, sharding in pairs if sharding != 0]
    assert len(ranks) >= len(leaves_of(m.specs))
    assert all(rank == axes for rank, axes in ranks)


def test_hyperparameters_in_the_state():
    """A learning rate that is changed between two steps acts, and the mask is no schedule."""
    m, params = set_up(Net)
    plain = nn.unbox(params)

    def mask(tree):
        return jax.tree.map(lambda w: w.ndim > 1, tree)

    tx = optax.inject_hyperparams(m.optimizer, static_args="mask")("adamw", 0.5, weight_decay=0.1, mask=mask)
    ones, state = jax.tree.map(jnp.ones_like, plain), tx.init(plain)
    state.hyperparams["learning_rate"] = jnp.float32(0.25)
    updates, _ = tx.update(ones, state, plain)
    plain_tx = m.optimizer("adamw", 0.25, weight_decay=0.1, mask=mask)
    expected, _ = plain_tx.update(ones, plain_tx.init(plain), plain)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5), updates, expected)


def test_a_mask_sees_what_the_user_holds():
    m, params = set_up(Net)
    variables = {"params": nn.unbox(params)}
    tx = m.optimizer(
        "sgd", 1.0, weight_decay=1.0, mask=lambda tree: {"params": {name: name == "head" for name in tree["params"]}}
    )
    zeros = jax.tree.map(jnp.zeros_like, variables)
    updates, _ = tx.update(zeros, tx.init(variables), variables)
    assert {name for name, part in updates["params"].items() if any(map(jnp.any, jax.tree.leaves(part)))} == {"head"}


@pytest.mark.parametrize("is_function", [True, False])
def test_a_wrapped_mask_of_variables(is_function):
    """It is probed by their structure, acts on them, and says in one line that bare parameters are not those."""
    m, params = set_up(Net)
    plain = nn.unbox(params)
    chosen = {"params": jax.tree.map_with_path(lambda path, _: path[0].key == "head", plain)}
    tx = m.wrap(optax.adamw(1.0, weight_decay=0.5, mask=(lambda tree: tree and chosen) if is_function else chosen))
    variables = {"params": plain}
    zeros = jax.tree.map(jnp.zeros_like, variables)
    updates, _ = tx.update(zeros, tx.init(variables), variables)
    assert {name for name, part in updates["params"].items() if any(map(jnp.any, jax.tree.leaves(part)))} == {"head"}
    with pytest.raises(ValueError, match="does its mask have their structure") as error:
        tx.init(plain)
    assert "\n" not in str(error.value)


def test_what_a_module_keeps_beside_its_arrays():
    """A structure that cannot be compared is matched by path."""

    @jax.tree_util.register_dataclass
    @dataclasses.dataclass
    class Holder:
        arrays: dict
        table: np.ndarray = dataclasses.field(metadata={"static": True}, default_factory=lambda: np.zeros(2))

    m, params = set_up(Net)
    plain = nn.unbox(params)
    specs = Holder({s.path: dataclasses.replace(s, path=f"arrays/{s.path}") for s in leaves_of(m.specs)})
    tree = Holder(flatten_dict(plain, sep="/"))
    assert [s.path for s in leaves_of(matched(specs, tree))] == [s.path for s in leaves_of(specs)]
