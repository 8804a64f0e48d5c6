"""Blocks by any name, trees with leaves that are no parameters, and calls that cannot work."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import depthmup as dm
from tests.foreign.roles import blocks, infer, refused, roles, z


def around(stack):
    """A read-in and a readout around what `stack` gives for (width, depth)."""
    return lambda w, d: {"read_in": z((20, w)), **stack(w, d), "head": {"kernel": z((w, 10)), "bias": z(10)}}


def assert_in_branches(inferred, branch):
    """The matrices at these paths are in branches. Nothing else is."""
    assert {path for path, role in inferred.items() if role.startswith("branch/")} == set(branch)
    assert (inferred["read_in"], inferred["head/kernel"], inferred["head/bias"]) == ("input", "readout", "scalar")


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_numbers_inside_names(depth):
    flat = around(lambda w, d: {f"layer_{i}_{k}": {"w": z((w, w))} for i in range(d) for k in ("attn", "mlp")})
    assert_in_branches(infer(flat, depth=depth), {f"layer_{i}_{k}/w" for i in range(depth) for k in ("attn", "mlp")})
    staged = around(
        lambda w, d: {f"stages_{s}_{i}_{k}": z((w, w)) for s in range(2) for i in range(d) for k in ("dw", "pw1x1")}
    )
    names = {f"stages_{s}_{i}_{k}" for s in range(2) for i in range(depth) for k in ("dw", "pw1x1")}
    assert_in_branches(infer(staged, depth=depth), names)


def test_named_blocks():
    named = around(lambda w, d: {"blocks": {"abcdefgh"[i]: {"w": z((w, w)), "b": z(w)} for i in range(d)}})
    assert_in_branches(infer(named, depth=3), {f"blocks/{c}/{k}" for c in "abc" for k in "wb"})


def test_named_blocks_at_the_top_ask():
    """Other parameters stand beside them; what the error prints is right for them."""
    named = around(lambda w, d: {"abcdefgh"[i] + "x": {"w": z((w, w))} for i in range(d)})
    assert refused(named, "appears at twice the depth, but none", depth=2) == {
        "ax/w": "branch/hidden",
        "bx/w": "branch/hidden",
    }


class Block(nn.Module):
    width: int
    stride: int
    project: str

    @nn.compact
    def __call__(self, x):
        y = nn.relu(nn.BatchNorm(use_running_average=True)(nn.Conv(self.width, (1, 1), use_bias=False)(x)))
        y = nn.BatchNorm(use_running_average=True)(nn.Conv(4 * self.width, (1, 1), self.stride, use_bias=False)(y))
        if x.shape != y.shape:
            x = nn.Conv(4 * self.width, (1, 1), self.stride, name=f"conv_{self.project}", use_bias=False)(x)
            x = nn.BatchNorm(use_running_average=True, name=f"norm_{self.project}")(x)
        return nn.relu(x + y)


class ResNet(nn.Module):
    """As in Flax's ImageNet example: blocks are numbered through all stages, so that names shift with depth."""

    width: int
    depth: int
    stages: tuple[int, ...]
    project: str

    @nn.compact
    def __call__(self, x):
        x = nn.BatchNorm(use_running_average=True, name="bn_init")(nn.Conv(self.width, (3, 3), name="conv_init")(x))
        for i, count in enumerate(self.stages):
            for j in range(count * self.depth):
                x = Block(self.width * 2**i, 2 if i and not j else 1, self.project)(x)
        return nn.Dense(10)(x.mean((1, 2)))


@pytest.mark.parametrize(("stages", "project"), [((2, 2, 2), "proj"), ((1, 2, 1), "match"), ((3, 4, 3), "match")])
def test_flax_resnet(stages, project):
    init = lambda w, d: ResNet(w, d, stages, project).init(jax.random.key(0), jnp.ones((1, 8, 8, 3)))["params"]  # noqa: E731
    inferred = infer(init, width=4, depth=1)
    branch = {path for path, role in inferred.items() if role.startswith("branch/")}
    assert branch == {path for path in inferred if path.startswith("Block") and project not in path}
    assert inferred[f"Block_0/conv_{project}/kernel"] == "hidden"
    assert inferred["Dense_0/kernel"] == "readout"


def densenet(w, d):
    def block(start):
        return {f"conv_{i}": {"kernel": z((3, 3, start + i * w, w))} for i in range(d)}

    tree = {"stem": {"kernel": z((3, 3, 3, w))}, "dense_0": block(w), "dense_1": block((1 + d) * w)}
    return {**tree, "transition": {"kernel": z((1, 1, (1 + d) * w, (1 + d) * w))}, "head": z(((1 + 2 * d) * w, 10))}


def test_densenet():
    """Not residual: then depth decides nothing. Else all that is unclear is asked at once."""
    inferred = infer(densenet, depth=3, residual=False)
    assert {role for path, role in inferred.items() if "conv_" in path or "trans" in path} == {"hidden"}
    assert (inferred["stem/kernel"], inferred["head"]) == ("input", "readout")
    pasted = refused(densenet, "its shape goes from", depth=3)
    assert set(pasted.values()) == {"trunk/hidden", "trunk/readout"}


def test_all_at_once():
    """A line for each parameter that is unclear, of whatever kind, and of one kind a glob."""
    init = around(lambda w, d: {"h": blocks({"cube": z((w, w, w)), "odd": z((int(w**0.5), w))}, d), "more": z((w, 7))})
    assert refused(init, "three axes grow") == {
        "h/*/cube": "branch/hidden",
        "h/*/odd": "branch/hidden",
        "head/kernel": "trunk/readout",
        "more": "trunk/output",
    }


def test_overrides_win():
    """Over names, the stack, growth and the layout; roles that cannot be are refused, unlikely ones warned of."""
    init = around(lambda w, d: {"s": z((d + 1, w)), "h": blocks({"w": z((w, w))}, d), "odd": z((w + 3, w))})
    overrides = {"s": "trunk/input", "odd": "trunk/hidden"}
    inferred = infer(init, overrides=overrides)
    assert (inferred["s"], inferred["odd"], inferred["h/0/w"]) == ("input", "hidden", "branch/hidden")
    assert infer(init, overrides=overrides | {"h/1/*": "trunk"})["h/1/w"] == "hidden"
    with pytest.warns(UserWarning, match=r"read_in .* has 1 axes that grow with width, 'hidden' has 2"):
        infer(init, overrides=overrides | {"read_in": "hidden"})
    with pytest.raises(dm.SpecError, match="2 axes, 'oio' has 3 letters"):
        infer(init, overrides=overrides | {"read_in": "oio"})
    with pytest.raises(ValueError, match="one letter per axis"):
        infer(init, overrides=overrides | {"read_in": "input ox"})


def test_leaves_that_are_no_parameters():
    """Functions, integers, keys, numbers of Python and None are passed over, and left as they are by `rescale`."""

    def init(w, d):
        tree = {"in": jnp.ones((20, w)), "h": [{"w": jnp.ones((w, w)), "phi": jnp.tanh, "p": 0.1} for _ in range(d)]}
        return {**tree, "out": jnp.ones((w, 10)), "step": jnp.zeros((), int), "none": None, "key": jax.random.key(0)}

    specs = dm.infer_specs(init, layout="in_out", width=16, depth=2)
    assert roles(specs) == {"in": "input", "h/0/w": "branch/hidden", "h/1/w": "branch/hidden", "out": "readout"}
    assert specs["h"][0]["phi"] is None
    params = dm.rescale(dm.parameterization("mup"), specs, init(16, 2))
    assert params["h"][1]["phi"] is jnp.tanh
    assert (params["h"][1]["p"], params["step"], params["out"][0, 0]) == (0.1, 0, 4)


def test_nnx_state_with_keys():
    def init(w, d):
        class Net(nnx.Module):
            def __init__(self, rngs):
                self.read = nnx.Linear(5, w, rngs=rngs)
                self.drop = nnx.Dropout(0.5, rngs=rngs)
                self.head = nnx.Linear(w, 3, rngs=rngs)

        return nnx.state(Net(nnx.Rngs(0)))

    assert set(infer(init, residual=False)) == {"read/kernel", "read/bias", "head/kernel", "head/bias"}


@jax.tree_util.register_pytree_node_class
class Unhashable:
    """A module whose attributes JAX cannot hash."""

    def __init__(self, kernel, sizes):
        self.kernel, self.sizes = kernel, sizes

    def tree_flatten(self):
        return (self.kernel,), self.sizes

    @classmethod
    def tree_unflatten(cls, sizes, leaves):
        return cls(leaves[0], sizes)


def test_unhashable_attributes():
    init = lambda w, d: {"in": Unhashable(jnp.ones((20, w)), [20, "x"]), "out": z((w, 10))}  # noqa: E731
    assert list(infer(init, residual=False).values()) == ["input", "readout"]


def test_depth_that_cannot_double():
    def init(w, d):
        if d % 6 != 2:
            raise ValueError("depth must be 6n + 2")
        return around(lambda w, d: {"first": z((w, w)), "h": blocks(z((w, w)), d - 2)})(w, d)

    with pytest.raises(dm.SpecError, match=r"init_fn\(width=16, depth=16\) raises ValueError: depth must be 6n"):
        infer(init, depth=8)
    assert infer(lambda w, n: init(w, 6 * n + 2), depth=1)["read_in"] == "input"


def test_axes_that_move_with_both():
    init = around(lambda w, d: {"h": blocks({"w": z((w, w))}, d), "mix": z((d * w, w))})
    assert refused(init, r"mix: its shape goes from \(32, 16\) to \(64, 16\)") == {"mix": "trunk/hidden"}


def test_equinox():
    eqx = pytest.importorskip("equinox")

    class Layer(eqx.Module):
        norm: eqx.nn.LayerNorm
        up: eqx.nn.Linear
        down: eqx.nn.Linear
        drop: eqx.nn.Dropout

        def __init__(self, w, key):
            self.norm, self.drop = eqx.nn.LayerNorm(w), eqx.nn.Dropout(0.1)
            self.up = eqx.nn.Linear(w, 4 * w, use_bias=False, key=key)
            self.down = eqx.nn.Linear(4 * w, w, key=key)

    class Net(eqx.Module):
        tok: eqx.nn.Embedding
        layers: list
        head: eqx.nn.Linear | None
        phi: object

        def __init__(self, w, d, tied):
            key = jax.random.key(0)
            self.tok, self.layers = eqx.nn.Embedding(50, w, key=key), [Layer(w, key) for _ in range(d)]
            self.head, self.phi = None if tied else eqx.nn.Linear(w, 50, use_bias=False, key=key), jax.nn.gelu

    for tied in (True, False):
        with pytest.raises(dm.SpecError, match="layout='out_in'"):
            infer(lambda w, d, tied=tied: Net(w, d, tied))
        specs = dm.infer_specs(lambda w, d, tied=tied: Net(w, d, tied), width=16, depth=2, layout="out_in")
        inferred = roles(specs)
        assert (inferred["tok/weight"], inferred.get("head/weight")) == ("input", None if tied else "readout")
        assert (inferred["layers/1/up/weight"], inferred["layers/1/down/bias"]) == ("branch/hidden", "branch/vector")
        model = Net(16, 2, tied)
        params = eqx.filter(model, eqx.is_inexact_array)
        scaled = dm.rescale(dm.parameterization("mup"), specs, params)
        assert jax.tree.structure(scaled) == jax.tree.structure(params)
        assert dm.rescale(dm.parameterization("mup"), specs, model).phi is jax.nn.gelu
        tx = dm.optimizer(dm.parameterization("mup"), specs, "adam", 0.1)
        updates, _ = tx.update(params, tx.init(params), params)
        assert np.isfinite(eqx.apply_updates(model, updates).tok.weight).all()
        assert roles(dm.specs_from_json(dm.specs_to_json(specs), params)) == inferred


def test_haiku():
    hk = pytest.importorskip("haiku")

    def init(w, d):
        def forward(x):
            x = hk.Linear(w, name="embed")(x)
            for _ in range(d):
                x = x + hk.Linear(w, name="block")(hk.LayerNorm(-1, True, True)(x))
            return hk.Linear(10, name="head")(x)

        return hk.transform(forward).init(jax.random.key(0), jnp.ones((1, 5)))

    inferred = infer(init, depth=3)
    assert (inferred["embed/w"], inferred["head/w"], inferred["head/b"]) == ("input", "readout", "scalar")
    assert {inferred[f"block{end}/w"] for end in ("", "_1", "_2")} == {"branch/hidden"}
    assert {inferred[f"layer_norm{end}/scale"] for end in ("", "_1", "_2")} == {"branch/vector"}
