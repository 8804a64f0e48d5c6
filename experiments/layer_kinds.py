"""Do the rules hold with my kind of layer? A small transformer with a switch for each kind, checked and trained.

    python -m experiments.layer_kinds                  # about 4 minutes of one core for each; goes on where it stopped
    python -m experiments.layer_kinds qk_norm plain    # these kinds
    python -m experiments.documents                    # the table of docs/language.md, from the committed rows

The transformer knows nothing of depthmup; `dm.setup` finds the roles of its parameters. Each kind gets

- a coordinate check under `depth_mup`, whose learning rates in branches have a power of depth (at depth exponent 1
  Adam's have none, and a parameter taken to be in a branch by mistake would not show);
- trainings with AdamW under `completep`, the rule for branches of two layers, over width and over depth, on bytes of
  the docstrings of NumPy as in experiments/language.py; `dm.fit.transfer` judges them.

Prediction, written before the first training. All kinds follow the rules as the plain transformer does: no slope of
the check is "not ok", and the best learning rate transfers along both axes. There was one exception. The embedding that
adaLN is conditioned by stands outside the blocks and needs the trunk's rule, but `setup` took it only as a part of the
branches: its slope over depth was -.49 [-.53, -.45]. It is outside the branches since (docs/theory.md section 1.4).

Two kinds on the stream came later, with the rule for them (docs/rules.md, `stream`): norms after the sum instead of
before the layers, and numbers by which a block multiplies the stream and the first state that it adds (nanochat; they
start at 1 and 0). Prediction: both hold, and no slope of theirs is "not ok". Outcome: so it is.

A kind holds if its check is not "not ok" and both verdicts are "transfers"; it fails if one is "not ok" or "does not
transfer"; all else is undecided.

The number of experts is the same at every size: what is tested is width and depth. How rates go with the number of
experts, at a fixed share of active ones, is in Jiang et al. (arXiv 2601.20205).
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pandas

import depthmup as dm
from depthmup.backend import prepare_cpu
from depthmup.data.text import docstrings
from depthmup.files import write_atomically
from depthmup.measure.slope import SlopeEstimate
from depthmup.rules.parameterization import Name
from depthmup.rules.specs import group, is_spec, starred
from depthmup.sweep import judge
from experiments import command_line, language
from experiments.figures.figure import cells
from experiments.gpt_linen import VOCABULARY
from experiments.language import CHANCE, loss
from experiments.output import markdown
from experiments.published import RESULTS, ROOT, replace

HEADS, GROUPS, EXPERTS, ACTIVE = 4, 2, 4, 2
CONTROL = "plain under sp"  # which has to fail
SWITCHES = ("mixture_of_experts", "grouped_query", "tied_embedding", "qk_norm", "sandwich_norm", "layer_scale")
# Each kind is the plain transformer with these switches.
KINDS: dict[str, tuple[str, ...]] = {
    "plain": (),
    **{switch: (switch,) for switch in (*SWITCHES, "adaln_zero", "norm_after_sum", "stream_lambdas")},
    "all but adaln_zero": SWITCHES,
    CONTROL: (),
}
SWEEP: dict[str, Any] = {
    "widths": (32, 64, 128), "depths": (2, 4, 8), "learning_rates": 2.0 ** np.arange(-9, -1.9, 0.5), "adaptive": True,
    "seeds": 4, "steps": 100, "batch": 8,
}  # fmt: skip
CHECK: dict[str, Any] = {"widths": (32, 64, 128), "depths": (2, 4, 8, 16), "steps": (4,), "seeds": 16, "max_seeds": 64}
CHECK_BATCH = (4, 8)  # sequences, bytes of each
COLUMNS = ["kind", "width", "depth", "learning_rate", "seed", "loss", "diverged"]
TYPES = {"width": "int32", "depth": "int32", "seed": "int32", "loss": "float32"}
ROWS = RESULTS / "layer_kinds.parquet"
RUNS = ROOT / "runs" / "layer_kinds"


class MLP(nn.Module):
    width: int

    @nn.compact
    def __call__(self, y: jax.Array) -> jax.Array:
        y = nn.gelu(nn.Dense(2 * self.width, use_bias=False, name="up")(y))
        return nn.Dense(self.width, use_bias=False, name="down")(y)


class Experts(nn.Module):
    """Each token goes to ACTIVE of EXPERTS networks, weighted by the router, and to the one that all tokens share."""

    width: int

    @nn.compact
    def __call__(self, y: jax.Array) -> jax.Array:
        scores = nn.softmax(nn.Dense(EXPERTS, use_bias=False, name="router")(y))
        least = jax.lax.top_k(scores, ACTIVE)[0][..., -1:]
        gates = jnp.where(scores >= least, scores, 0)
        gates = gates / gates.sum(-1, keepdims=True)
        stacked = nn.vmap(
            MLP, in_axes=None, out_axes=-2, variable_axes={"params": 0}, split_rngs={"params": True}, axis_size=EXPERTS
        )
        outputs = stacked(self.width, name="experts")(y)  # of all experts: they are small
        return jnp.einsum("...e,...ew->...w", gates, outputs) + MLP(self.width, name="shared")(y)


class Attention(nn.Module):
    width: int
    kinds: tuple[str, ...]

    @nn.compact
    def __call__(self, y: jax.Array) -> jax.Array:
        groups = GROUPS if "grouped_query" in self.kinds else HEADS
        project = functools.partial(nn.DenseGeneral, use_bias=False)
        q = project((HEADS, self.width // HEADS), name="query")(y)
        k, v = (project((groups, self.width // HEADS), name=name)(y) for name in ("key", "value"))
        if "qk_norm" in self.kinds:
            q, k = nn.RMSNorm(name="query_norm")(q), nn.RMSNorm(name="key_norm")(k)
        k, v = (jnp.repeat(x, HEADS // groups, axis=-2) for x in (k, v))
        mixed = nn.dot_product_attention(q, k, v, mask=nn.make_causal_mask(jnp.ones(y.shape[:2])))
        return project(self.width, axis=(-2, -1), name="out")(mixed)


class Block(nn.Module):
    width: int
    kinds: tuple[str, ...]
    zero: bool

    @nn.compact
    def __call__(self, h: jax.Array, condition: jax.Array | None, first: jax.Array) -> tuple[jax.Array, None]:
        if "stream_lambdas" in self.kinds:
            h = h * self.param("times", nn.initializers.ones, ())
            h = h + first * self.param("times_first", nn.initializers.zeros, ())
        if condition is not None:
            init = nn.initializers.zeros if self.zero else nn.initializers.lecun_normal()
            modulation = nn.Dense(6 * self.width, kernel_init=init, name="modulation")(nn.silu(condition))
            modulations = jnp.split(modulation[:, None], 6, axis=-1)
        attention = Attention(self.width, self.kinds, name="attention")
        mlp = (Experts if "mixture_of_experts" in self.kinds else MLP)(self.width, name="mlp")
        for i, layer in enumerate((attention, mlp)):
            norm, after = nn.RMSNorm(use_scale=condition is None, name=f"norm_{i}"), "norm_after_sum" in self.kinds
            y = h if after else norm(h)
            if condition is not None:
                shift, scale, gate = modulations[3 * i : 3 * i + 3]
                y = y * (1 + scale) + shift
            y = layer(y)
            if "sandwich_norm" in self.kinds:
                y = nn.RMSNorm(name=f"norm_after_{i}")(y)
            if "layer_scale" in self.kinds:
                y = y * self.param(f"layer_scale_{i}", nn.initializers.constant(0.1), (self.width,))
            h = h + (y if condition is None else gate * y)
            h = norm(h) if after else h
        return h, None


class Transformer(nn.Module):
    """zero: whether adaLN's modulation starts at 0."""

    width: int
    depth: int
    kinds: tuple[str, ...] = ()
    zero: bool = True

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        embedding = functools.partial(nn.Embed, features=self.width, embedding_init=nn.initializers.normal(0.2))
        embed = embedding(VOCABULARY, name="tokens")
        positions = embedding(language.CONTEXT, name="positions")(jnp.arange(tokens.shape[1]))
        h = 5.0 * (embed(tokens) + positions)  # about as large as what a block adds
        condition = None
        if "adaln_zero" in self.kinds:
            condition = 5.0 * embedding(VOCABULARY, name="condition")(tokens[:, 0])
        stack = nn.scan(
            Block, variable_axes={"params": 0}, split_rngs={"params": True}, in_axes=nn.broadcast, length=self.depth
        )
        h, _ = stack(self.width, self.kinds, self.zero, name="blocks")(h, condition, h)
        h = nn.RMSNorm(name="norm")(h)
        if "tied_embedding" in self.kinds:
            return embed.attend(h)
        return nn.Dense(VOCABULARY, use_bias=False, name="head")(h)


def setup(kind: str, parameterization: Name, zero: bool = True) -> dm.Setup:
    """The transformer of a kind at the base shape."""
    factory = functools.partial(Transformer, kinds=KINDS[kind], zero=zero)
    return language.setup("sp" if kind == CONTROL else parameterization, factory, fan_in_init=False)


def checked(kind: str) -> dict[str, Any]:
    """The coordinate check of a kind: the roles of its parameters, the verdict, and the judged slopes.

    The modulation of adaLN-zero does not start at 0 here: parts of the model are trained alone, and nothing moves
    behind a gate that stays shut.
    """
    sequences, size = CHECK_BATCH
    text = docstrings()
    starts = np.random.default_rng(0).integers(0, len(text) - size - 1, (sequences, 1))
    window = jnp.asarray(text[starts + np.arange(size + 1)], jnp.int32)
    m = setup(kind, "depth_mup", zero=False)
    report = m.check(loss, (window[:, :-1], window[:, 1:]), **CHECK)
    slopes = [
        {"axis": s.axis, "group": s.group, "seeds": s.changes.shape[1], "answer": s.answer,
         "slope": [round(x, 3) for x in s.plain], "limit": s.limit and [round(x, 3) for x in s.limit]}
        for s in report.slopes if s.judged
    ]  # fmt: skip
    roles = {starred(spec.path): group(spec) for spec in jax.tree.leaves(m.specs, is_leaf=is_spec)}
    return {"roles": roles, "verdict": report.verdict, "slopes": slopes}


def read() -> tuple[pandas.DataFrame, dict[str, Any]]:
    """(committed rows of the trainings, {kind: what `checked` returned})"""
    return pandas.read_parquet(ROWS), json.loads(ROWS.with_suffix(".json").read_text())["checks"]


def run(kind: str) -> None:
    """Train and check a kind, and put what came out in the place of its committed rows."""
    rows = language.sweep(setup(kind, "completep"), RUNS / kind.replace(" ", "_"), **SWEEP)
    check = checked(kind)
    replace(ROWS, rows.assign(kind=kind).astype(TYPES)[COLUMNS], ["kind"])
    checks = {**read()[1], kind: check}
    write_atomically(ROWS.with_suffix(".json"), json.dumps({"checks": checks}) + "\n")


def answers(rows: pandas.DataFrame) -> dict[str, str]:
    """{axis: verdict and largest cost, or else the drift} of the trainings of one kind."""
    curves = {c.axis: cells(c) for c in judge(rows.drop(columns="kind").astype({"loss": float}), chance=CHANCE).curves}
    return {axis: f"{verdict}, {cost or drift}" for axis, (drift, cost, verdict) in curves.items()}


def worst(check: dict[str, Any]) -> str:
    """The answer of a check; of the slopes that have it the one farthest from 0, what was trained, and the axis."""
    slopes = [s for s in check["slopes"] if s["answer"] == check["verdict"]]
    farthest = max(slopes, key=lambda s: abs(s["slope"][0]))
    return f"{check['verdict']}: {SlopeEstimate(*farthest['slope'])} {farthest['group']}, {farthest['axis']}"


def holds(check: dict[str, Any], verdicts: Iterable[str]) -> str:
    """The rule of decision of the module's docstring."""
    if check["verdict"] == "not ok" or any("does not transfer" in verdict for verdict in verdicts):
        return "fails"
    return "holds" if all("transfers" in verdict for verdict in verdicts) else "undecided"


def table() -> str:
    """The kinds as a Markdown table."""
    rows, checks = read()
    lines = []
    for kind, check in ((kind, checks[kind]) for kind in KINDS if kind in checks):
        answer = answers(rows[rows["kind"] == kind])
        verdicts = [answer["width"], answer["depth"]]
        lines.append((kind.replace("_", " "), holds(check, verdicts), worst(check), *verdicts))
    return markdown(("kind", "", "check", "over width", "over depth"), lines)


def main() -> None:
    parser = command_line.parser("experiments.layer_kinds", __doc__, "kind", KINDS)
    arguments = parser.parse_args()
    prepare_cpu()
    for kind in arguments.kinds:
        run(kind)
    print(table())


if __name__ == "__main__":
    main()
