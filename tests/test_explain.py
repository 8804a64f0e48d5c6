"""The table shows what one step of the optimizer really does."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas
import pytest

import depthmup as dm
from depthmup.rules.explain import COLUMNS
from tests.test_forward import network

BIG = {"width": 16, "depth": 8}


def init(width, depth):
    return {"in": np.zeros((5, width)), "blocks": np.zeros((depth, width, width)), "out": np.zeros((width, 3))}


def table(text):
    """{parameter: {column: cell}}; cells hold no spaces."""
    rows = [row.split() for row in str(text).splitlines()[2:]]
    return {row[0]: dict(zip(COLUMNS, row, strict=True)) for row in rows if len(row) == len(COLUMNS)}  # not the notes


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_learning_rates_are_those_applied(name, x64):
    p = dm.parameterization("depth_mup", base_width=4, base_depth=2)
    specs = dm.infer_specs(init, layout="in_out", **BIG)
    shown = table(dm.explain(p, specs, name, learning_rate=0.1, weight_decay=0.3))
    params = jax.tree.map(jnp.ones_like, init(**BIG))
    tx = dm.optimizer(p, specs, name, 0.1)
    updates, _ = tx.update(params, tx.init(params), params)
    for key in params:
        assert float(shown[key]["LR"]) == pytest.approx(-float(updates[key].ravel()[0]), rel=1e-3)
        assert float(shown[key]["LR x decay"]) == pytest.approx(0.03, rel=1e-3)
        assert float(shown[key]["decay"]) == pytest.approx(0.3 * 0.1 / float(shown[key]["LR"]), rel=1e-3)
    assert [shown[k]["role"] for k in ("in", "blocks", "out")] == ["input", "branch/hidden", "readout"]
    assert [shown[k]["forward"] for k in ("in", "blocks", "out")] == ["1", "0.5", "0.25"]
    assert shown["blocks"]["eps"] == ("-" if name == "sgd" else "1.25e-09")
    assert float(shown["out"]["init std"]) == pytest.approx(4**-0.5, rel=1e-2)


def test_schedule_and_measured_std():
    p = dm.parameterization("mup")
    specs = dm.infer_specs(init, layout="in_out", **BIG)
    params = jax.tree.map(lambda w: np.random.default_rng(0).normal(0, 3, w.shape), init(**BIG))
    shown = table(dm.explain(p, specs, "adam", optax.linear_schedule(0.5, 0.0, 10), params=params))
    assert float(shown["blocks"]["init std"]) == pytest.approx(params["blocks"].std(), rel=1e-2)
    assert (shown["in"]["LR"], shown["blocks"]["LR"]) == ("1", "0.0625")  # the factors on the schedule
    shown = dm.explain(p, specs, "adamw", lambda t: 0.5 - t / 20, weight_decay=lambda t: 0.1 * t, step=3)
    assert " at step 3: " in shown.title
    assert table(shown)["blocks"]["LR"] == "0.02187"  # .35 / 16
    assert table(shown)["in"]["LR x decay"] == "0.105"  # .35 x .3
    with pytest.raises(ValueError, match="parameters and specs are of different models"):
        dm.explain(p, specs, "adam", params={**params, "more": params["in"]})


def test_coupled_decay_is_shown(x64):
    p = dm.parameterization("mup", base_width=4)
    shown = table(
        dm.explain(p, dm.infer_specs(init, layout="in_out", **BIG), "adamw", weight_decay=0.4, decay="coupled")
    )
    assert (shown["in"]["decay"], shown["blocks"]["decay"]) == ("0.4", "0.4")
    assert (shown["in"]["LR x decay"], shown["blocks"]["LR x decay"]) == ("0.4", "0.1")


@pytest.mark.parametrize(
    "mask", [{"in": True, "blocks": True, "out": False}, lambda tree: {**dict.fromkeys(tree, True), "out": False}]
)
def test_what_a_mask_leaves_out_has_no_decay(mask):
    p, specs = dm.parameterization("mup", base_width=4), dm.infer_specs(init, layout="in_out", **BIG)
    explained = dm.explain(p, specs, "adamw", 0.1, weight_decay=0.4, mask=mask)
    shown = table(explained)
    assert (shown["out"]["decay"], shown["out"]["LR x decay"]) == ("0", "0")
    assert (shown["blocks"]["decay"], shown["blocks"]["LR x decay"]) == ("1.6", "0.04")
    assert explained.notes == []
    with pytest.raises(ValueError, match="mask must be a tree of bools"):
        dm.explain(p, specs, "adamw", mask={"in": True})


def test_a_decay_that_is_not_given_is_called_a_factor():
    shown = dm.explain(
        dm.parameterization("mup", base_width=4), dm.infer_specs(init, layout="in_out", **BIG), "adamw", 1e-3
    )
    assert shown.notes == ["decay: factors on the base's weight decay; weight_decay= shows its values"]


def test_rows_are_data():
    p = dm.parameterization("depth_mup", base_width=4, base_depth=2)
    shown = dm.explain(p, dm.infer_specs(init, layout="in_out", **BIG), "sgd", 0.1)
    frame = pandas.DataFrame(shown.rows).set_index("parameter")
    assert frame.loc["blocks", ["number", "role", "fan_in", "lr"]].tolist() == [1, "branch/hidden", 16, 0.1]
    assert frame.loc["out", "forward"] == 0.25
    read = json.loads(shown.to_json())
    assert read["title"] == shown.title
    assert [row["parameter"] for row in read["rows"]] == ["blocks", "in", "out"]
    assert read["rows"][0]["eps"] is None
    assert read["rows"][0]["shape"] == [8, 16, 16]


def test_difference():
    """Ratios of width and of depth, a line for each role, without the noise of a measured init std."""
    p = dm.parameterization("depth_mup", base_width=4, base_depth=8)

    def explained(width, depth, seed):
        params = jax.tree.map(lambda w: np.random.default_rng(seed).normal(size=w.shape), init(width, depth))
        specs = dm.infer_specs(init, layout="in_out", width=width, depth=depth)
        return dm.explain(p, specs, "adam", 0.1, params=params)

    small, large = explained(4, 8, 0), explained(32, 16, 1)
    assert small.difference(large).splitlines() == [
        small.title,
        f"-> {large.title}",
        "branch/hidden (blocks): init std x 1/2.83; forward 1 -> 0.7071 (x 1/1.41); "
        "LR 0.1 -> 0.008839 (x 1/8 x 1/1.41); decay 1 -> 11.31 (x 11.3); eps 1e-08 -> 8.84e-10 (x 1/11.3)",
        "input (in): eps 1e-08 -> 1.25e-09 (x 1/8)",
        "readout (out): forward 1 -> 0.125 (x 1/8); eps 1e-08 -> 1.25e-09 (x 1/8)",
    ]
    assert small.difference(explained(4, 8, 1)).endswith("all parameters alike")
    less = dataclasses.replace(small, rows=small.rows[1:])
    assert less.difference(small).endswith("blocks: only in the second")
    assert small.difference(less).endswith("blocks: only in the first")


def test_a_row_for_each_role():
    specs = dm.infer_specs(lambda w, d: {**init(w, d), "more": np.zeros((d, w, 2 * w))}, layout="in_out", **BIG)
    rows = dm.explain(dm.parameterization("mup"), specs, "adam").by_role().rows
    assert [(row.parameter, row.number, row.fan_in, row.fan_out) for row in rows] == [
        ("blocks, more", 2, 16, None), ("in", 1, 5, 16), ("out", 1, 16, 3)
    ]  # fmt: skip


def test_equal_blocks_share_a_row():
    """Only the numbers that differ become stars, and blocks of another shape keep their own row."""

    def init(width, depth):
        one = {"l_0": np.ones((width, width)), "l_1": np.ones((width, 2 * width)), "l_2": np.ones((2 * width, width))}
        blocks = {f"block_{i}": {**one, "b": np.full(width, float(i))} for i in range(depth)}
        return {"in": np.zeros((5, width)), **blocks, "out": np.zeros((width, 3))}

    specs = dm.infer_specs(init, layout="in_out", width=4, depth=2)
    shown = table(dm.explain(dm.parameterization("mup"), specs, "adam", params=init(4, 2)))
    assert {path: row["#"] for path, row in shown.items()} == {
        "block_*/b": "2", "block_*/l_0": "2", "block_*/l_1": "2", "block_*/l_2": "2", "in": "1", "out": "1"
    }  # fmt: skip
    params = init(4, 2)
    params["block_1"]["l_0"] = np.array([[1.0, -1.0] * 2] * 4)
    shown = table(dm.explain(dm.parameterization("mup"), specs, "adam", params=params))
    assert float(shown["block_*/l_0"]["init std"]) == pytest.approx(0.5**0.5, rel=1e-2)


def test_a_leaf_of_two_parts():
    """Of a kernel for queries, keys and values, only the queries are stored times the attention factor."""
    specs, apply_with, params, x = network("fused")
    p = dm.parameterization("mup").in_form("absorbed")
    shown = table(dm.explain(p, dm.absorb(specs, apply_with((1, 1, 1)), params, x), "adam"))
    assert shown["qkv_*/kernel"]["LR"] == "0.0625|0.125"  # the head size is 4: queries are stored over 2
