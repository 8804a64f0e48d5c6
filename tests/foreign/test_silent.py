"""Models that were once given wrong roles without an error (the cases S1 to S14), as users write them."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from flax import nnx

import depthmup as dm
from tests.foreign.roles import blocks, by_path, fans, infer, refused, z


# S2: init_fn ignores depth or width; weights shared over depth.
def net(w, d):
    return {"in": z((20, w)), "h": blocks({"w": z((w, 4 * w)), "v": z((4 * w, w))}, d), "out": z((w, 10))}


def test_ignored_depth():
    with pytest.raises(dm.SpecError, match="no parameter changes with depth"):
        infer(lambda w, d: net(w, 4))
    assert infer(lambda w, d: net(w, 4), residual=False)["h/0/w"] == "hidden"
    shared = infer(lambda w, d: net(w, 1), overrides={"h/*": "branch"})  # ALBERT
    assert (shared["h/0/w"], shared["in"], shared["out"]) == ("branch/hidden", "input", "readout")


def test_ignored_width():
    with pytest.raises(dm.SpecError, match="no parameter grows with width"):
        infer(lambda w, d: net(8, d))


# S5: state-space parameters, vectors of two axes.
ASKED = {
    "cross-attention": lambda w: {"key": z((48, w // 16, 16)), "out": z((w // 16, 16, w))},
    "state space": lambda w: {"A_log": z((2 * w, 16)), "in": z((w, 4 * w))},
    "low rank": lambda w: {"a": z((w, 4)), "b": z((4, w))},
    "biases of heads": lambda w: {"q": z((w, w // 8, 8)), "bias": z((w // 8, 8))},
    "one output": lambda w: {"beta": z((w, 1)), "up": z((w, w))},
}


@pytest.mark.parametrize("kind", ASKED)
def test_shapes_alone_ask_for_what_they_do_not_tell(kind):
    """One axis of several grows: inputs, outputs, or numbers of each neuron?"""
    pasted = refused(ssm(ASKED[kind]), "one axis grows, and its shape does not tell", 32)
    assert set(pasted.values()) == {"branch/vector"}


LISTS = {
    "read-in in the list": lambda w, d: {"layers": [z((20, w)), *blocks(z((w, w)), d - 1)], "head": z((w, 10))},
    "readout in the list": lambda w, d: {"in": z((5, w)), "layers": [*blocks(z((w, w)), d), z((w, 10))]},
    "stages": lambda w, d: {"in": z((5, w)), "h": [z((w, 2 * w)), *blocks(z((2 * w, 2 * w)), d - 1)], "o": z((w, 3))},
    "automatic names": lambda w, d: {f"Dense_{i}": z((w, w) if i else (5, w)) for i in range(d + 1)},
}


@pytest.mark.parametrize("kind", LISTS)
def test_shapes_alone_ask_for_lists_of_more_than_blocks(kind):
    with pytest.raises(dm.SpecError, match="cannot tell whether it is one of the blocks"):
        infer(LISTS[kind], depth=3)


def ssm(one):
    return lambda w, d: {"in": z((20, w)), "h": blocks(one(w), d), "out": z((w, 10))}


def test_no_readout():
    init = lambda w, d: {"a": z((20, w)), "h": blocks(z((w, w)), d)}  # noqa: E731
    with pytest.raises(dm.SpecError, match="no parameter looks like a readout"):
        infer(init)
    assert infer(init, overrides={"a": "input"})["a"] == "input"


# S10: axes that do not grow at small widths.
def test_plateaus():
    def init(w, d):
        one = {"q": z((w, w // 16, 16)), "k": z((w, max(1, w // 64), 16)), "mlp": z((w, -(-w // 64) * 128))}
        return {"in": z((20, w)), "h": blocks(one, d), "out": z((w, 10))}

    message = r"h/0/k: axis 1 grows from 1 to 1 to 2 at widths 32, 64, 128"
    assert refused(init, message, 32) == {"h/*/k": "branch/hidden", "h/*/mlp": "branch/hidden"}
    with pytest.raises(dm.SpecError, match="From width 64 on"):
        infer(init, 32)
    assert infer(init, 64)["h/0/k"] == "branch/hidden"
    assert fans(init, 32, overrides={"h/*": "branch/hidden"})["h/0/k"] == (32, 16)


# S11: another shape than the specs'.
def test_parameters_of_another_shape():
    specs, p = dm.infer_specs(net, layout="in_out", width=64, depth=2), dm.parameterization("depth_mup")
    wrong = jax.tree.map(jnp.asarray, net(128, 2))
    for call in (lambda: dm.rescale(p, specs, wrong), lambda: dm.forward_params(p, specs, wrong),
                 lambda: dm.optimizer(p, specs, "adam", 0.1).init(wrong),
                 lambda: dm.scale_by_parameterization(p, specs).init(wrong),
                 lambda: dm.scale_by_eps_factors(p, specs).init(wrong)):  # fmt: skip
        with pytest.raises(dm.SpecError, match=r"h/0/v is \(512, 128\), and \(256, 64\) in the specs, .* width 64"):
            call()
    with pytest.raises(dm.SpecError, match=r"the specs have no h/2/v"):
        dm.rescale(p, specs, net(64, 3))
    with pytest.raises(dm.SpecError, match=r"there is no parameter h/1/v"):
        dm.rescale(p, specs, net(64, 1))
    assert dm.forward_factors(p, specs, head_dim=4) == p.forward_factors(width=64, depth=2, head_dim=4)


# S12: matrices of fixed width.
def test_fixed_width():
    def init(w, d):
        stem = {"conv": {"kernel": z((3, 3, 3, 32)), "bias": z(32)}, "norm": {"scale": z(32), "bias": z(32)}}
        one = {"w": z((w, w)), "bottle": z((8, 8)), "b8": z(8), "scale": z(())}
        return {"stem": stem, "in": z((32, w)), "h": blocks(one, d), "head": {"kernel": z((w, 32)), "bias": z(32)}}

    # As many outputs as the stem's: shapes do not tell the readout's bias from the others.
    pasted = refused(init, "a readout's bias, or a vector before the readout", 16, 4)
    assert set(pasted) == {"stem/conv/bias", "stem/norm/bias", "stem/norm/scale", "head/bias"}
    overrides = {"stem/*/[bs]*": "fixed", "head/bias": "scalar"}
    leaf_specs = by_path(dm.infer_specs(init, layout="in_out", width=16, depth=4, overrides=overrides))
    names = ("stem/conv/kernel", "stem/conv/bias", "stem/norm/scale", "h/0/bottle")
    assert [leaf_specs[name].role for name in names] == ["fixed"] * 4
    assert [leaf_specs[name].role for name in ("head/bias", "h/0/b8", "h/0/scale")] == ["scalar"] * 3
    assert leaf_specs["stem/conv/kernel"].fan_in == 27
    rich = dm.parameterization("depth_mup", base_width=16, base_depth=4, gamma0=10.0)
    assert {leaf_specs[n].factors(rich, "sgd").lr for n in (*names, "in", "h/0/w")} == {100.0}
    assert {leaf_specs[n].factors(rich, "adam").lr for n in (*names, "in", "h/0/w")} == {10.0}
    assert leaf_specs["head/bias"].factors(rich, "sgd").lr == 1
    arithmetic = dm.parameterization("am_mup")
    assert leaf_specs["h/0/bottle"].factors(arithmetic, "sgd").init == 0.5
    assert {leaf_specs[n].factors(arithmetic, "sgd").init for n in ("stem/conv/kernel", "h/0/b8", "h/0/scale")} == {1.0}


# S14: keys with slashes.
def test_slashes_in_keys():
    def init(w, d):
        return {"a/b": {"w": z((5, w))}, "a": {"b": {"w": z((w, 3))}}, "h": blocks(z((w, w)), d)}

    inferred = infer(init)
    assert (inferred["a|b/w"], inferred["a/b/w"]) == ("input", "readout")
    params = jax.tree.map(lambda w: jnp.ones(w.shape), init(16, 2))
    scaled = dm.rescale(dm.parameterization("mup"), dm.infer_specs(init, layout="in_out", width=16, depth=2), params)
    assert (scaled["a/b"]["w"][0, 0], scaled["a"]["b"]["w"][0, 0]) == (1, 4)


def test_only_boxes_lose_their_attribute():
    class Boxed(nn.Module):
        w: int

        @nn.compact
        def __call__(self, x):
            init = nn.with_partitioning(nn.initializers.lecun_normal(), ("a", "b"))
            return nn.Dense(3, kernel_init=init)(nn.Dense(self.w)(x))

    inferred = infer(lambda w, d: Boxed(w).init(jax.random.key(0), jnp.ones((1, 5)))["params"], residual=False)
    assert set(inferred) == {"Dense_0/bias", "Dense_0/kernel", "Dense_1/bias", "Dense_1/kernel"}
    state = infer(lambda w, d: nnx.state(nnx.Linear(5, w, rngs=nnx.Rngs(0)), nnx.Param), residual=False)
    assert state == {"kernel": "input", "bias": "vector"}

    @jax.tree_util.register_dataclass
    @dataclasses.dataclass
    class Registered:
        value: jax.Array

    assert infer(lambda w, d: {"x": Registered(z((5, w)))}, residual=False) == {"x/value": "input"}
