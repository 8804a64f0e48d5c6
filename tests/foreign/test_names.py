"""Blocks by any name, trees with leaves that are no parameters, and calls that cannot work."""

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


def test_all_at_once():
    """A line for each parameter that is unclear, of whatever kind, and of one kind a glob."""
    init = around(lambda w, d: {"h": blocks({"cube": z((w, w, w)), "odd": z((int(w**0.5), w))}, d), "more": z((w, 7))})
    assert refused(init, "three axes grow") == {
        "h/*/cube": "branch/hidden",
        "h/*/odd": "branch/hidden",
        "head/kernel": "trunk/output",
        "more": "trunk/readout",
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
        specs = dm.infer_specs(lambda w, d, tied=tied: Net(w, d, tied), width=16, depth=2, layout="out_in",
                               overrides={"tok/weight": "input"})  # fmt: skip
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
