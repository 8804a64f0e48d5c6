"""Kinds of layers: roles by hand, one kind trained, the table from planted rows."""

import functools
import json

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pandas
import pytest

import depthmup as dm
from depthmup.rules.specs import group, is_spec, starred
from experiments import language, layer_kinds

PLAIN = {
    "blocks/attention/key/kernel": "branch/hidden",
    "blocks/attention/out/kernel": "branch/hidden",
    "blocks/attention/query/kernel": "branch/hidden",
    "blocks/attention/value/kernel": "branch/hidden",
    "blocks/mlp/down/kernel": "branch/hidden",
    "blocks/mlp/up/kernel": "branch/hidden",
    "blocks/norm_*/scale": "branch/vector",
    "head/kernel": "readout",
    "norm/scale": "vector",
    "positions/embedding": "input",
    "tokens/embedding": "input",
}
EXPERTS = {
    "blocks/mlp/experts/down/kernel": "branch/hidden",
    "blocks/mlp/experts/up/kernel": "branch/hidden",
    "blocks/mlp/router/kernel": "branch/output",
    "blocks/mlp/shared/down/kernel": "branch/hidden",
    "blocks/mlp/shared/up/kernel": "branch/hidden",
}
# By hand: {kind: (what it has in addition, what it lacks)}.
DIFFERENCES = {
    "plain": ({}, []),
    "mixture_of_experts": (EXPERTS, ["blocks/mlp/down/kernel", "blocks/mlp/up/kernel"]),
    "grouped_query": ({}, []),
    "tied_embedding": ({}, ["head/kernel"]),
    "qk_norm": (
        dict.fromkeys(("blocks/attention/query_norm/scale", "blocks/attention/key_norm/scale"), "branch/vector"),
        [],
    ),
    "sandwich_norm": ({"blocks/norm_after_*/scale": "branch/vector"}, []),
    "layer_scale": ({"blocks/layer_scale_*": "branch/vector"}, []),
    "norm_after_sum": ({"blocks/norm_*/scale": "stream/vector"}, []),
    "stream_lambdas": (dict.fromkeys(("blocks/times", "blocks/times_first"), "stream/scalar"), []),
}


set_up = functools.cache(layer_kinds.setup)


@pytest.fixture
def rows(tmp_path, monkeypatch):
    monkeypatch.setattr(layer_kinds, "ROWS", tmp_path / "layer_kinds.parquet")
    return tmp_path / "layer_kinds.parquet"


def test_a_check_takes_shorter_sequences_than_training():
    m, tokens = set_up("plain", "depth_mup"), jnp.zeros(layer_kinds.CHECK_BATCH, jnp.int32)
    assert m.apply(m.init(jax.random.key(0)), tokens).shape == (*tokens.shape, layer_kinds.VOCABULARY)


@pytest.mark.parametrize("kind", DIFFERENCES)
def test_setup_finds_the_roles_without_an_override(kind):
    specs = set_up(kind, "depth_mup").specs
    roles = {starred(spec.path): group(spec).split()[0] for spec in jax.tree.leaves(specs, is_leaf=is_spec)}
    more, less = DIFFERENCES[kind]
    assert roles == {path: role for path, role in (PLAIN | more).items() if path not in less}


def test_initializers_scale_as_assumed(recwarn):
    """So that fan_in_init is not needed: the standard deviations at twice the width."""
    m = layer_kinds.setup("all but adaln_zero", "sp")
    small, large = (
        jax.tree.map(lambda leaf: float(leaf.std()), m.at(width, 2).fresh(jax.random.key(0))[0]) for width in (32, 128)
    )
    for path in (("mlp", "experts", "up"), ("mlp", "router"), ("attention", "query")):
        a, b = small["blocks"], large["blocks"]
        for name in path:
            a, b = a[name], b[name]
        np.testing.assert_allclose(b["kernel"] / a["kernel"], 0.5, rtol=0.2)
    np.testing.assert_allclose(large["tokens"]["embedding"] / small["tokens"]["embedding"], 1, rtol=0.05)


def test_each_token_goes_to_the_experts_of_the_largest_scores():
    """Against all experts called one by one."""
    module = layer_kinds.Experts(8)
    y = jax.random.normal(jax.random.key(0), (2, 3, 8))
    variables = module.init(jax.random.key(1), y)
    params = variables["params"]
    scores = np.asarray(jax.nn.softmax(y @ params["router"]["kernel"]))
    mlp = layer_kinds.MLP(8)
    each = [
        np.asarray(mlp.apply({"params": jax.tree.map(lambda leaf, i=i: leaf[i], params["experts"])}, y))
        for i in range(layer_kinds.EXPERTS)
    ]
    expected = np.asarray(mlp.apply({"params": params["shared"]}, y)).copy()
    for at in np.ndindex(2, 3):
        chosen = np.argsort(scores[at])[-layer_kinds.ACTIVE :]
        expected[at] += sum(scores[at][i] * each[i][at] for i in chosen) / scores[at][chosen].sum()
    np.testing.assert_allclose(module.apply(variables, y), expected, rtol=1e-4, atol=1e-5)


def test_adaln_zero_starts_with_shut_branches():
    tokens = jnp.arange(8)[None]
    plain, deep = (layer_kinds.Transformer(16, depth, ("adaln_zero",)) for depth in (1, 3))
    variables = deep.init(jax.random.key(0), tokens)["params"]
    shallow = variables | {"blocks": jax.tree.map(lambda leaf: leaf[:1], variables["blocks"])}
    np.testing.assert_allclose(deep.apply({"params": variables}, tokens), plain.apply({"params": shallow}, tokens))


def write(path, rows, checks):
    pandas.DataFrame(rows).to_parquet(path)
    path.with_suffix(".json").write_text(json.dumps({"checks": checks}))


@pytest.mark.slow
def test_a_kind_takes_the_place_of_its_rows(rows, tmp_path, monkeypatch):
    check = {"roles": {}, "verdict": "ok", "slopes": []}
    row = {"kind": "old", "width": 8, "depth": 1, "learning_rate": 1.0, "seed": 0, "loss": 5.0, "diverged": False}
    write(rows, [row, row | {"kind": "plain"}], {"old": check, "plain": check | {"verdict": "not ok"}})
    monkeypatch.setattr(layer_kinds, "RUNS", tmp_path / "runs")
    monkeypatch.setattr(language, "BASE", (8, 1))
    rates = {"learning_rates": 2.0 ** np.arange(-8, -3), "per_octave": 1}
    monkeypatch.setattr(layer_kinds, "SWEEP", {"widths": (8,), "depths": (), **rates, "seeds": 1, "steps": 12})
    monkeypatch.setattr(layer_kinds, "checked", lambda kind: check)
    layer_kinds.run("plain")
    table, checks = layer_kinds.read()
    assert table["kind"].tolist() == ["old"] + ["plain"] * 5
    assert table["loss"][1:].between(2, 6).all()
    assert checks == {"old": check, "plain": check}


def plant(path, drift, verdict="ok"):
    """Rows of the plain kind with parabolas whose centre moves by `drift` octaves a doubling of the depth."""
    rng = np.random.default_rng(0)
    table = [
        {"kind": "plain", "width": w, "depth": d, "learning_rate": 2.0**x, "seed": seed, "diverged": False,
         "loss": 2.0 + 0.05 * (x + 5.5 - drift * np.log2(d)) ** 2 + 0.001 * rng.standard_normal()}
        for w, d in ((32, 2), (64, 2), (128, 2), (32, 4), (32, 8))
        for x in np.arange(-9, -1.9, 0.5) for seed in range(4)
    ]  # fmt: skip
    slopes = [
        {"axis": axis, "group": name, "seeds": 4, "answer": verdict, "slope": [s, s - 0.1, s + 0.1], "limit": None}
        for axis in ("width", "depth")
        for name, s in (("input", 0.02), ("readout", -0.05))
    ]
    write(path, table, {"plain": {"roles": PLAIN, "verdict": verdict, "slopes": slopes}})


@pytest.mark.parametrize(
    ("drift", "verdict", "answer"), [(0.0, "ok", "holds"), (0.0, "not ok", "fails"), (1.0, "ok", "fails")]
)
def test_the_table(rows, drift, verdict, answer):
    plant(rows, drift, verdict)
    line = layer_kinds.table().splitlines()[-1]
    cells = line.strip("| ").split(" | ")
    assert cells[:2] == ["plain", answer]
    assert cells[2] == f"{verdict}: -0.05 [-0.15, +0.05] readout, width"
    assert cells[-1].startswith("transfers, 0.") if drift == 0 else cells[-1].startswith("does not transfer, ")


class GroupedQueries(nn.Module):
    """A transformer whose numbers of heads are given."""

    width: int
    depth: int
    heads: int
    kv_heads: int

    @nn.compact
    def __call__(self, tokens):
        embedding = functools.partial(nn.Embed, 256, self.width, embedding_init=nn.initializers.normal(1.0))
        h = embedding(name="tokens")(tokens) + embedding(name="positions")(jnp.arange(tokens.shape[1]))
        project = functools.partial(nn.DenseGeneral, use_bias=False)
        mask = nn.make_causal_mask(tokens)
        for i in range(self.depth):
            y, size = nn.RMSNorm()(h), self.width // self.heads
            q = project((self.heads, size), name=f"query_{i}")(y)
            k, v = (project((self.kv_heads, size), name=f"{name}_{i}")(y) for name in ("key", "value"))
            k, v = (jnp.repeat(x, self.heads // self.kv_heads, axis=-2) for x in (k, v))
            h = h + project(self.width, axis=(-2, -1), name=f"out_{i}")(nn.dot_product_attention(q, k, v, mask=mask))
            h = h + layer_kinds.MLP(self.width, name=f"mlp_{i}")(nn.RMSNorm()(h))
        return nn.Dense(256, use_bias=False, name="head")(nn.RMSNorm()(h))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("heads", "role", "verdict"),
    [
        (lambda width: (width // 8, width // 16), "branch/hidden", "ok"),
        (lambda width: (width // 8, 2), "branch/output", "not ok"),  # docs/guide/questions.md, GQA
    ],
)
def test_heads_that_grow_in_number_want_kv_heads_that_do(heads, role, verdict):
    tokens = jax.random.randint(jax.random.key(3), (4, 9), 0, 256)
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    m = dm.setup("completep", lambda w, d: GroupedQueries(w, d, *heads(w)), inputs, width=128, depth=2, base=(32, 2))
    assert {group(m.specs[f"{name}_0"]["kernel"]) for name in ("key", "value")} == {role}
    report = m.check(language.loss, (inputs, targets), depths=(), steps=(4,), seeds=8, progress=lambda line: None)
    print(report)
    assert report.verdict == verdict
