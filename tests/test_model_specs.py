"""Roles of every parameter of every family, inferred from shapes with no override."""

import re

import jax
import jax.numpy as jnp
import pytest

import depthmup as dm
from depthmup.models import MODELS, model_specs
from depthmup.rules.specs import is_spec
from depthmup.train.task import Task
from tests.families import CASES, model

IN, HID, VEC, OUT, SCALAR = "input", "hidden", "vector", "readout", "scalar"
B = "branch/"
# {path with block and stage numbers starred: role}; a branch's norms and biases are all vectors.
EXPECTED = {
    "mlp": {"read_in/kernel": IN, "read_in/bias": VEC, "block_*/dense/kernel": HID, "block_*/dense/bias": VEC,
            "readout/kernel": OUT, "readout/bias": SCALAR},
    "residual_mlp": {"read_in/kernel": IN, "block_*/dense/kernel": B + HID, "readout/kernel": OUT},
    "cnn": {"read_in/conv/kernel": IN, "block_*/conv/kernel": HID, "readout/kernel": OUT},
    "cnn 1-D": {"read_in/conv/kernel": IN, "block_*/conv/kernel": HID, "readout/kernel": OUT},
    "residual_cnn": {"read_in/kernel": IN, "block_*/conv_*/kernel": B + HID, "block_*/last/kernel": B + HID,
                     "block_*/norm_*/scale": B + VEC, "block_*/norm_*/bias": B + VEC, "readout/kernel": OUT},
    "residual_cnn bottleneck": {"read_in/kernel": IN, "block_*/conv_*/kernel": B + HID, "block_*/last/kernel": B + HID,
                                "readout/kernel": OUT},
    "simple_resnet": {"read_in/kernel": IN, "double_*/kernel": HID, "block_*/conv/kernel": B + HID,
                      "block_*/norm/scale": B + VEC, "block_*/norm/bias": B + VEC, "readout/kernel": OUT},
    "resnet": {"read_in/kernel": IN, "read_in_norm/scale": VEC, "read_in_norm/bias": VEC,
               "stage_*/block_*/conv_*/kernel": B + HID, "stage_*/block_*/norm_*/scale": B + VEC,
               "stage_*/block_*/norm_*/bias": B + VEC, "stage_*/block_*/conv_shortcut/kernel": HID,
               "stage_*/block_*/norm_shortcut/scale": VEC, "stage_*/block_*/norm_shortcut/bias": VEC,
               "readout/kernel": OUT, "readout/bias": SCALAR},
    "vit": {"embed/kernel": IN, "embed/bias": VEC, "class_token": VEC, "positions": IN,
            "final_norm/scale": VEC, "final_norm/bias": VEC, "readout/kernel": OUT, "readout/bias": SCALAR}
    | {f"block_*/{part}/kernel": B + HID for part in ("mlp_in", "mlp_out")}
    | {f"block_*/attention/{part}/kernel": B + HID for part in ("query", "key", "value", "out")}
    | {f"block_*/{part}/bias": B + VEC for part in ("mlp_in", "mlp_out", "mlp_norm", "attention_norm")}
    | {f"block_*/attention/{part}/bias": B + VEC for part in ("query", "key", "value", "out")}
    | {f"block_*/{part}/scale": B + VEC for part in ("mlp_norm", "attention_norm")},
}  # fmt: skip
EXPECTED["resnet bottleneck"] = EXPECTED["resnet"]
ALIKE = {path: role for path, role in EXPECTED["vit"].items() if "block" in path or "final" in path}
EXPECTED["gpt"] = ALIKE | {"embed/embedding": IN, "positions": IN, "readout/kernel": OUT}
EXPECTED["gpt options"] = {path: role for path, role in ALIKE.items() if "bias" not in path} | {
    "block_*/mlp_gate/kernel": B + HID,
    "embed/embedding": IN,
}


def leaves(specs):
    return jax.tree.leaves(specs, is_leaf=is_spec)


def starred(path):
    parts = [part.rstrip("0123456789") for part in path.split("/")]
    return "/".join(f"{part}*" if part.endswith("_") else part for part in parts)


def starred_roles(specs):
    result = {}
    for s in leaves(specs):
        role = ("branch/" if s.in_branch else "") + s.role
        assert result.setdefault(starred(s.path), role) == role, s
    return result


@pytest.mark.parametrize("case", EXPECTED)
def test_roles(case):
    specs = model_specs(model(case), CASES[case][2])
    assert starred_roles(specs) == EXPECTED[case]
    module = model(case)
    assert {(s.width, s.depth) for s in leaves(specs)} == {(module.width, module.depth)}


def test_fans_of_grouped_queries():
    """Their keys and values have as many outputs as their own heads, and all heads' inputs."""
    specs = {s.path: s for s in leaves(model_specs(model("gpt", heads=4, kv_heads=2), (6,)))}
    fans = {name: specs[f"block_0/attention/{name}/kernel"] for name in ("query", "key", "value", "out")}
    assert {name: (s.fan_in, s.fan_out) for name, s in fans.items()} == {
        "query": (8, 8),
        "key": (8, 4),
        "value": (8, 4),
        "out": (8, 8),
    }


@pytest.mark.parametrize("case", CASES)
def test_scanned_specs_are_the_unrolled_ones_stacked(case):
    """Of every scanned leaf: role, place, fans and so factors; its shape and path those of the scanned model."""
    shape = CASES[case][2]
    flat = {s.path: s for s in leaves(model_specs(model(case), shape))}
    module = model(case, scan=True)
    scanned = leaves(model_specs(module, shape))
    forward = dm.ForwardFactors(1.0, 1.0, 1.0)
    shapes = jax.eval_shape(
        lambda: module.init(jax.random.key(0), jnp.ones_like(module.batch_shapes(1, shape)[0]), forward)
    )["params"]
    assert [s.shape for s in scanned] == [leaf.shape for leaf in jax.tree.leaves(shapes)]
    p = dm.parameterization("depth_mup", base_width=2, base_depth=1)
    for s in scanned:
        in_stack = "blocks" in s.path
        assert (s.stack_axis == 0) == in_stack
        shapes_of_one = s.shape[1:] if in_stack else s.shape
        same = [
            f for f in flat.values() if f.path.split("/")[-2:] == s.path.split("/")[-2:] and f.shape == shapes_of_one
        ]
        assert same
        assert all(f.factors(p, "adam") == s.factors(p, "adam") for f in same if f.in_branch == s.in_branch)
        assert any(f.in_branch == s.in_branch for f in same)


def test_transitions():
    """Fan-in that doubles from stage to stage: m_in and m_out are still ratios of width."""
    specs = {s.path: s for s in leaves(model_specs(model("resnet", width=8), CASES["resnet"][2]))}
    entry = specs["stage_1/block_0/conv_0/kernel"]
    assert (entry.fan_in, entry.fan_out) == (72, 16)
    shortcut = specs["stage_1/block_0/conv_shortcut/kernel"]
    assert (shortcut.fan_in, shortcut.fan_out, shortcut.in_branch) == (8, 16, False)
    p = dm.parameterization("depth_mup", base_width=2)
    assert entry.factors(p, "adam").lr == pytest.approx(1 / 4 * 2**-0.5, rel=1e-12)  # 1/m_in m_L^-1/2
    assert shortcut.factors(p, "adam").lr == pytest.approx(1 / 4, rel=1e-12)


def test_class_token_and_positions_scale_alike():
    """Vector or input, a leaf without fan-in gets the same factors; `rescale` leaves both as they are."""
    specs = {s.path: s for s in leaves(model_specs(model("vit"), CASES["vit"][2]))}
    for name in ("depth_mup", "completep"):
        p = dm.parameterization(name, base_width=2)
        token, positions = (specs[path].factors(p, "adam") for path in ("class_token", "positions"))
        assert token == positions
        assert token.init == 1


def test_am_mup_scales_all_or_the_last_layers_of_branches():
    """Var = c / (K fan_in) on the branch weights, by 1/sqrt(K) or 1/K on the weights; nothing else."""
    module = model("residual_cnn", depth=16)
    specs = model_specs(module, CASES["residual_cnn"][2])

    def scaled(**options):
        p = dm.parameterization("am_mup", **options)
        return {starred(s.path): s.factors(p, "sgd").init for s in leaves(specs) if s.factors(p, "sgd").init != 1}

    both = ("block_*/conv_*/kernel", "block_*/last/kernel")
    assert scaled() == dict.fromkeys(both, 1 / 4)
    assert scaled(alpha=1.0) == dict.fromkeys(both, 1 / 16)
    assert scaled(branch_init="*/last/*") == {both[1]: 1 / 4}
    with pytest.raises(ValueError, match="branch_init is a setting of am_mup only, not of 'mup'"):
        dm.parameterization("mup", branch_init="*/last/*")


def test_a_training_counts_the_blocks_of_its_model():
    """At the base depth 3 and at another: 8 and 11 weight layers, 3 and 6 blocks, 9 and 6 blocks."""
    for case, attributes, ratio in [
        ("simple_resnet", dict(depth=6, count="weight_layers"), 11 / 8),
        ("simple_resnet", dict(depth=6, count="blocks"), 2),
        ("resnet", dict(depth=2), 2 / 3),
    ]:
        task = Task(model(case, **attributes), CASES[case][2], "adam")
        hyper = task.hyper(dm.parameterization("depth_mup", base_width=task.model.width, base_depth=3), 0.1)
        assert hyper.forward.branch == pytest.approx(ratio**-0.5, rel=1e-12)
        rates = {s.path: lr for s, lr in zip(leaves(task.specs), jax.tree.leaves(hyper.factors.lr), strict=True)}
        kernel = "block_0/conv/kernel" if case == "simple_resnet" else "stage_0/block_0/conv_0/kernel"
        assert rates[kernel] == pytest.approx(ratio**-0.5, rel=1e-12)


@pytest.mark.parametrize("family", MODELS)
def test_explain_names_the_role_of_every_parameter(family):

    from configs import default
    from depthmup.settings import from_config
    from depthmup.train.build import task_of

    settings = from_config(default.get_config(family))
    specs = task_of(settings).specs
    table = dm.explain(settings.parameterization.build(), specs, "adam", learning_rate=1e-3)
    rows = [line.split() for line in str(table).splitlines()[2:]]
    for s in leaves(specs):
        (row,) = [
            row
            for row in rows  # equal blocks share one, with stars for their numbers
            if re.fullmatch(re.escape(row[0]).replace(r"\*", r"\d+"), s.path) and row[3] == "x".join(map(str, s.shape))
        ]
        assert row[2] == ("branch/" if s.in_branch else "") + s.role
