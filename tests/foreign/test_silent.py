"""Models that were once given wrong roles without an error (the cases S1 to S14), as users write them."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from flax import nnx

import depthmup as dm
from tests.foreign.roles import blocks, by_path, fans, infer, refused, z


# S1: the layout (out, in), not said.
def torch_like(weight, bias):
    def init(w, d):
        def linear(out, inputs):
            return {weight: z((out, inputs))} | ({bias: z(out)} if bias else {})

        return {"embed": linear(w, 20), "h": blocks({"fc": linear(4 * w, w), "proj": linear(w, 4 * w)}, d),
                "head": linear(10, w)}  # fmt: skip

    return init


@pytest.mark.parametrize("names", [("w", "b"), ("weight", "bias"), ("weight", None), ("w", None)])
def test_forgotten_layout(names):
    init = torch_like(*names)
    with pytest.raises(dm.SpecError, match="layout='out_in'"):
        infer(init)
    inferred = infer(init, layout="out_in")
    assert (inferred[f"embed/{names[0]}"], inferred[f"head/{names[0]}"]) == ("input", "readout")
    assert fans(init, layout="out_in")[f"h/0/fc/{names[0]}"] == (16, 64)


def test_wrong_layout():
    def init(w, d):
        return {"a": {"kernel": z((20, w)), "bias": z(w)}, "h": blocks({"kernel": z((w, w))}, d),
                "z": {"kernel": z((w, 10)), "bias": z(10)}}  # fmt: skip

    with pytest.raises(dm.SpecError, match=r"a/kernel .* layout='in_out'"):
        infer(init, layout="out_in")
    assert infer(init)["a/kernel"] == "input"


def test_weights_named_weight_in_flax_order():
    def init(w, d):
        return {"a": {"weight": z((20, w))}, "h": blocks({"weight": z((w, w))}, d), "z": {"weight": z((w, 10))}}

    with pytest.raises(dm.SpecError, match="or layout='in_out'"):
        infer(init)
    assert infer(init, layout="in_out")["a/weight"] == "input"


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


# S4: cross-attention to a context of fixed size, with heads that grow.
def test_cross_attention():
    def init(bias, name):
        def of(w, d):
            key = {"kernel": z((48, w // 16, 16))} | ({"bias": z((w // 16, 16))} if bias else {})
            one = {"query": {"kernel": z((w, w // 16, 16))}, name: key, "out": {"kernel": z((w // 16, 16, w))}}
            return {"in": z((20, w)), "h": blocks(one, d), "final": z((w, 10))}

        return of

    for with_bias, name in ((True, "context"), (False, "key"), (False, "to_v")):
        leaf_specs = by_path(dm.infer_specs(init(with_bias, name), layout="in_out", width=64, depth=2))
        spec = leaf_specs[f"h/0/{name}/kernel"]
        assert (spec.role, spec.in_branch, spec.fan_in, spec.fan_out) == ("input", True, 48, 64)
        assert leaf_specs["h/0/out/kernel"].fan_in == 64
    assert refused(init(False, "context"), "stands between two others", 64) == {
        "h/*/context/kernel": "branch/input ioo"
    }


# S5: state-space parameters, vectors of two axes.
def ssm(one):
    return lambda w, d: {"in": z((20, w)), "h": blocks(one(w), d), "out": z((w, 10))}


def test_state_space():
    mamba = ssm(lambda w: {"A_log": z((2 * w, 16)), "D": z(2 * w), "in_proj": {"kernel": z((w, 4 * w))},
                           "dt_proj": {"kernel": z((4, 2 * w)), "bias": z(2 * w)},
                           "x_proj": {"kernel": z((2 * w, 36))}, "out_proj": {"kernel": z((2 * w, w))}})  # fmt: skip
    inferred = infer(mamba)
    assert (inferred["h/0/A_log"], inferred["h/0/x_proj/kernel"]) == ("branch/vector", "branch/output")
    assert (inferred["h/0/dt_proj/kernel"], inferred["h/0/D"]) == ("branch/input", "branch/vector")
    s5 = ssm(lambda w: {"Lambda_re": z(16), "B_re": z((16, w)), "B_im": z((16, w)), "C_re": z((w, 16)), "D": z(w)})
    inferred = by_path(dm.infer_specs(s5, layout="in_out", width=32, depth=2))
    assert [inferred[f"h/0/{k}"].role for k in ("B_re", "B_im", "C_re")] == ["output", "output", "input"]
    assert (inferred["h/1/B_re"].fan_in, inferred["h/1/C_re"].fan_in) == (32, 16)
    paired = infer(ssm(lambda w: {"Lambda_re": z(16), "B": z((16, w, 2)), "C": z((w, 16, 2))}), 32)
    assert (paired["h/0/B"], paired["h/0/C"]) == ("branch/output", "branch/input")
    for s4d in (lambda w: {"log_A_real": z((w, 16)), "A_imag": z((w, 16)), "C": z((w, 16, 2)), "log_dt": z(w)},
                lambda w: {"A": z((w, 16)), "B": z((w, 16)), "C": z((w, 16))}):  # fmt: skip
        assert {role for path, role in infer(ssm(s4d)).items() if "h/" in path} == {"branch/vector"}


def test_low_rank_factors_are_matrices():
    inferred = infer(ssm(lambda w: {"kernel": z((w, w)), "lora_A": z((w, 4)), "lora_B": z((4, w))}))
    assert (inferred["h/0/lora_A"], inferred["h/0/lora_B"]) == ("branch/output", "branch/input")


def test_vectors_of_two_axes():
    one = lambda w: {"qkv": {"kernel": z((w, 3, w // 8, 8)), "b": z((3, w // 8, 8))}, "b_q": z((w // 8, 8)),  # noqa: E731
                     "q_bias": z((w // 8, 8)), "beta": z((w, 1)), "norm": {"scale": z((w, 1))},
                     "to_one": {"kernel": z((w, 1))}}  # fmt: skip
    inferred = infer(ssm(one), 32)
    for name in ("qkv/b", "b_q", "q_bias", "beta", "norm/scale"):
        assert inferred[f"h/0/{name}"] == "branch/vector", name
    assert (inferred["h/0/to_one/kernel"], inferred["h/0/qkv/kernel"]) == ("branch/output", "branch/hidden")
    gated = refused(
        ssm(lambda w: {"w": z((w, w)), "gate": z((w // 8, 1)), "decay": z((w, 16))}), "gate .* a matrix", 32
    )
    assert gated == {"h/*/gate": "branch/vector", "h/*/decay": "branch/vector"}


# S7: lists that hold more than blocks, blocks without a skip connection.
def test_read_in_and_readout_in_the_list():
    inferred = infer(lambda w, d: {"layers": [z((20, w)), *blocks(z((w, w)), d - 1)], "head": z((w, 10))}, depth=3)
    assert list(inferred.values()) == ["readout", "input", "branch/hidden", "branch/hidden"]
    layer = lambda a, b: {"w": z((a, b)), "b": z(b)}  # noqa: E731
    inferred = infer(lambda w, d: {"layers": [layer(20, w), *blocks(layer(w, w), d - 1)], "head": z((w, 10))}, depth=3)
    assert (inferred["layers/0/w"], inferred["layers/0/b"], inferred["layers/1/b"]) == (
        "input",
        "vector",
        "branch/vector",
    )
    inferred = infer(lambda w, d: {"layers": [z((20, w)), *blocks(z((w, w)), d), z((w, 10))]})
    assert list(inferred.values()) == ["input", "branch/hidden", "branch/hidden", "readout"]


def mobile(shortcut):
    def block(inputs, outputs, project):
        one = {"expand": z((1, 1, inputs, 6 * inputs)), "dw": z((3, 3, 1, 6 * inputs)),
               "project": z((1, 1, 6 * inputs, outputs))}  # fmt: skip
        return one | ({"same": z((1, 1, inputs, outputs))} if project else {})

    def init(w, d):
        stage = lambda i: [block(w * i, 2 * w * i, shortcut), *blocks(block(2 * w * i, 2 * w * i, False), d - 1)]  # noqa: E731
        return {"stem": z((3, 3, 3, w)), "stages": [stage(1), stage(2)], "head": z((4 * w, 10))}

    return init


def test_blocks_without_skip():
    pasted = refused(mobile(False), "stages/0/0/.* changes the width, and no parameter projects", depth=3)
    assert pasted["stages/*/0/expand"] == "trunk/hidden"
    assert set(pasted) == {f"stages/*/0/{k}" for k in ("expand", "dw", "project")}
    assert infer(mobile(True), depth=3)["stages/0/0/expand"] == "branch/hidden"
    assert infer(mobile(True), depth=3)["stages/0/0/same"] == "hidden"


# S8: the up path of a U-Net, whose shortcuts are in every block.
def test_shortcuts_in_every_block():
    def init(name):
        def of(w, d):
            up = {"conv1": z((3, 3, 2 * w, w)), "conv2": z((3, 3, w, w)), name: z((1, 1, 2 * w, w))}
            down = {"conv1": z((3, 3, w, w)), "conv2": z((3, 3, w, w))}
            return {"stem": z((3, 3, 3, w)), "up": blocks(up, d), "down": blocks(down, d), "last": z((3, 3, w, 3))}

        return of

    for name in ("shortcut", "nin_shortcut", "res_conv", "skip_conv"):
        inferred = infer(init(name))
        assert (inferred[f"up/1/{name}"], inferred["up/1/conv1"]) == ("hidden", "branch/hidden")
    assert refused(init("c"), "up/0/c .*shortcut") == {"up/*/c": "trunk/hidden"}


# S9: a tied embedding in the layout (out, in).
def test_tied_embedding():
    def init(name):
        return lambda w, d: {
            name: {"weight": z((50, w))},
            "h": blocks({"weight": z((4 * w, w)), "v": z((w, 4 * w))}, d),
        }

    for name in ("tok", "wte", "token_embedding"):
        assert infer(init(name), layout="out_in")[f"{name}/weight"] == "input"
    with pytest.raises(dm.SpecError, match="no parameter looks like a read-in"):
        infer(init("x"), layout="out_in")
    assert infer(init("x"), layout="out_in", overrides={"x/*": "input"})["x/weight"] == "input"


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

    leaf_specs = by_path(dm.infer_specs(init, layout="in_out", width=16, depth=4))
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


# S13: fans.
def test_experts():
    def init(name, router):
        def of(w, d):
            one = {name: z((8, w, 4 * w))} | ({"router": {"kernel": z((w, 8))}} if router else {})
            return {"in": z((20, w)), "h": blocks(one, d), "out": z((w, 10))}

        return of

    for case in (("experts_in", False), ("wi", True)):
        assert fans(init(*case), 64)[f"h/0/{case[0]}"] == (64, 256)
    assert fans(init("wi", False), 64, overrides={"h/*": "-io"})["h/0/wi"] == (64, 256)
    assert fans(init("conv", False), 64)["h/0/conv"] == (512, 256)

    def mapped(w, d):  # nn.vmap of Dense
        one = {"kernel": z((6, w, 4 * w)), "bias": z((6, 4 * w))}
        return {"in": z((20, w)), "h": blocks({"up": one}, d), "out": z((w, 10))}

    assert fans(mapped, 64)["h/0/up/kernel"] == (64, 256)


@pytest.mark.parametrize("fixed_heads", [True, False])
def test_einsum_of_gemma(fixed_heads):
    def init(w, d):
        heads, size = (4, w // 4) if fixed_heads else (w // 8, 8)
        attn = {"q_einsum": {"w": z((heads, w, size))}, "kv_einsum": {"w": z((2, 1, w, size))},
                "attn_vec_einsum": {"w": z((heads, size, w))}}  # fmt: skip
        mlp = {"gating_einsum": {"w": z((2, w, 4 * w))}, "linear": z((4 * w, w))}
        return {
            "embedder": {"input_embedding": z((50, w))},
            **{f"layer_{i}": {"attn": attn, "mlp": mlp} for i in range(d)},
        }

    fan_pairs = fans(init, 32)
    assert fan_pairs["layer_0/attn/q_einsum/w"] == fan_pairs["layer_0/attn/attn_vec_einsum/w"] == (32, 32)
    assert fan_pairs["layer_0/mlp/gating_einsum/w"] == (32, 256)
    if fixed_heads:
        assert fan_pairs["layer_1/attn/kv_einsum/w"] == (32, 16)


def test_kernels_of_flax_gpt2():
    """Flax names, but its Conv1D keeps (out, in): the biases tell."""

    def init(w, d):
        conv = lambda out, inputs: {"kernel": z((out, inputs)), "bias": z(out)}  # noqa: E731
        one = {"attn": {"c_attn": conv(3 * w, w), "c_proj": conv(w, w)}, "mlp": {"c_fc": conv(4 * w, w)}}
        return {"wte": {"embedding": z((50, w))}, "h": {str(i): one for i in range(d)}, "ln_f": {"scale": z(w)}}

    fan_pairs = fans(init, 32)
    assert (fan_pairs["h/0/attn/c_attn/kernel"], fan_pairs["h/0/mlp/c_fc/kernel"]) == ((32, 96), (32, 128))
    square = fans(lambda w, d: {"in": z((5, w)), "h": blocks({"w": z((4 * w, w))}, d), "out": z((w, 3))}, 32,
                  overrides={"h/*": "oi"})  # fmt: skip
    assert square["h/0/w"] == (32, 128)


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
