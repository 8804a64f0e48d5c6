"""Do the rules hold with my kind of layer? A small transformer with a switch for each kind, checked and trained.

    python -m experiments.layer_kinds                  # about 4 minutes of one core for each; goes on where it stopped
    python -m experiments.layer_kinds qk_norm plain    # these kinds
    python -m experiments.documents                    # the table of docs/language.md, from the committed rows

The transformer knows nothing of depthmup; `dm.setup` finds the roles of its parameters. Each kind gets

- a coordinate check under `depth_mup`, whose learning rates in branches have a power of depth (at depth exponent 1
  Adam's have none, and a parameter taken to be in a branch by mistake would not show);
- trainings with AdamW under `completep`, the rule for branches of two layers, over width and over depth, on bytes of
  the docstrings of NumPy as in experiments/language/; `dm.fit.transfer` judges them.

Prediction, written before the first training. All kinds follow the rules as the plain transformer does: no slope of
the check is "not ok", and the best learning rate transfers along both axes. There was one exception. The embedding that
adaLN is conditioned by stands outside the blocks and needs the trunk's rule, but `setup` took it only as a part of the
branches: its slope over depth was -.49 [-.53, -.45]. It is outside the branches since (docs/theory.md section 1.4).

A kind holds if its check is not "not ok" and both verdicts are "transfers"; it fails if one is "not ok" or "does not
transfer"; all else is undecided.

The number of experts is the same at every size: what is tested is width and depth. How rates go with the number of
experts, at a fixed share of active ones, is in Jiang et al. (arXiv 2601.20205).
"""

from __future__ import annotations

import argparse
import functools
import json
import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas

import depthmup as dm
from depthmup.backend import prepare_cpu
from depthmup.files import write_atomically
from depthmup.fit import transfer
from depthmup.parameterization import Name
from depthmup.specs import group, is_spec, starred
from experiments.language.study import Scale, of_shape, trained
from experiments.language.text import corpus, digest
from experiments.published import RESULTS

VOCABULARY, HEADS, GROUPS, EXPERTS, ACTIVE = 256, 4, 2, 4, 2
CONTROL = "plain under sp"  # which has to fail
# Each kind is the plain transformer with these switches.
KINDS: dict[str, tuple[str, ...]] = {
    "plain": (),
    "mixture_of_experts": ("mixture_of_experts",),
    "grouped_query": ("grouped_query",),
    "tied_embedding": ("tied_embedding",),
    "qk_norm": ("qk_norm",),
    "sandwich_norm": ("sandwich_norm",),
    "layer_scale": ("layer_scale",),
    "adaln_zero": ("adaln_zero",),
    "all but adaln_zero": (
        "mixture_of_experts", "grouped_query", "tied_embedding", "qk_norm", "sandwich_norm", "layer_scale",
    ),
    CONTROL: (),
}  # fmt: skip
# What `setup` says when it is not told; right at depth exponent 1 only.
REACH = 3
SCALE = Scale((32, 2), (32, 64, 128), (2, 4, 8), tuple(np.arange(-9, -1.9, 0.5)), 4, 100, 8, 32, REACH)
CHECK: dict[str, Any] = {"widths": (32, 64, 128), "depths": (2, 4, 8, 16), "steps": (4,), "seeds": 16, "max_seeds": 64}
CHECK_BATCH = (4, 8)  # sequences, bytes of each
ROWS = RESULTS / "layer_kinds.parquet"
SECTION = """
## Kinds of layers

    python -m experiments.layer_kinds

Does it hold with your kind of layer? The command takes a transformer that has a switch for each kind (Linen, pre-norm,
RMSNorm, no biases; each kind alone, and all but one together), and gives each about 4 minutes of one core:

- `dm.setup` finds the roles of its parameters. The column "its own parameters" has those that the plain one lacks.
- A coordinate check (`m.check`, Adam, `depth_mup`; widths {check_widths}, depths {check_depths}). The columns show
  the judged slope that is farthest from 0 along each axis, what was trained, and its answer.
- Trainings on NumPy's docstrings (AdamW, `completep`; base width {width} and depth {depth}, widths {widths}, depths
  {depths}; {steps} steps of {batch} sequences of {context} bytes; {seeds} seeds, {rates} learning rates half an octave
  apart around the best): the drift of the best learning rate in octaves per doubling, and the verdict of
  `dm.fit.transfer`.

A kind *holds* if the check is not "not ok" and both verdicts are "transfers". The prediction, written before the first
training: all hold but adaLN-zero, whose check says "not ok" (experiments/layer_kinds.py). The last row, `sp`, is a
control that was added afterwards. All checks were made again after three mends, for two of which these rows were the
reason: `setup` takes adaLN's condition for a part of the trunk (its slope over depth had been -.49), features of tied
embeddings lack the output factor (-1.07 over width), and scales of norms over depth are judged by the change of the
loss where that of the logits is not ok (-.15 in the plain transformer, -.30 with LayerScale).

Mixture of experts: {active} of {experts} experts for each token and a shared one, no loss that balances them. Grouped
queries: {groups} keys and values for {heads} queries. LayerScale starts at .1. adaLN-zero is conditioned by the first
byte; in the check its gates do not start at 0.
"""
# What the rows say, for a reader; to be read again when they change.
REMARKS = """
What these rows say, of networks of width 32 to 128 with 2 to 8 blocks (16 in the check) in 100 steps:

- **Roles.** `setup` finds them all without an override.
- **Learning rates.** No verdict of a kind says that its rate does not transfer. Undecided ones are of flat curves, on
  which four seeds do not tell: LayerScale's rate falls by half an octave per doubling of the width, and costs .6%.
  The control, `sp`, fails over width. Over depth it passes as well: 2 to 8 blocks in 100 steps do not tell rules apart,
  and the evidence along depth is that of the check.
- **Checks.** Of the kinds alone, all are ok but two: the router of the experts, and over width the scales of norms
  beside QK-norm, are undecided. The control is not ok along both axes.
- **Mixture of experts.** The slopes of the router are undecided. How many experts there are is not covered: no rule
  here changes with it, and nothing was trained. Jiang et al. (arXiv 2601.20205) derive rates and initial variances for
  more and wider experts at a fixed share of active ones.
"""


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
    def __call__(self, h: jax.Array, condition: jax.Array | None) -> tuple[jax.Array, None]:
        if condition is not None:
            init = nn.initializers.zeros if self.zero else nn.initializers.lecun_normal()
            modulation = nn.Dense(6 * self.width, kernel_init=init, name="modulation")(nn.silu(condition))
            modulations = jnp.split(modulation[:, None], 6, axis=-1)
        attention = Attention(self.width, self.kinds, name="attention")
        mlp = (Experts if "mixture_of_experts" in self.kinds else MLP)(self.width, name="mlp")
        for i, layer in enumerate((attention, mlp)):
            y = nn.RMSNorm(use_scale=condition is None, name=f"norm_{i}")(h)
            if condition is not None:
                shift, scale, gate = modulations[3 * i : 3 * i + 3]
                y = y * (1 + scale) + shift
            y = layer(y)
            if "sandwich_norm" in self.kinds:
                y = nn.RMSNorm(name=f"norm_after_{i}")(y)
            if "layer_scale" in self.kinds:
                y = y * self.param(f"layer_scale_{i}", nn.initializers.constant(0.1), (self.width,))
            h = h + (y if condition is None else gate * y)
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
        positions = embedding(tokens.shape[1], name="positions")(jnp.arange(tokens.shape[1]))
        h = 5.0 * (embed(tokens) + positions)  # about as large as what a block adds
        condition = None
        if "adaln_zero" in self.kinds:
            condition = 5.0 * embedding(VOCABULARY, name="condition")(tokens[:, 0])
        stack = nn.scan(
            Block, variable_axes={"params": 0}, split_rngs={"params": True}, in_axes=nn.broadcast, length=self.depth
        )
        h, _ = stack(self.width, self.kinds, self.zero, name="blocks")(h, condition)
        h = nn.RMSNorm(name="norm")(h)
        if "tied_embedding" in self.kinds:
            return embed.attend(h)
        return nn.Dense(VOCABULARY, use_bias=False, name="head")(h)


def setup(kind: str, parameterization: Name, tokens: jax.Array, zero: bool = True) -> dm.Setup:
    """The transformer of a kind at the base shape."""
    width, depth = SCALE.base
    parameterization = "sp" if kind == CONTROL else parameterization
    factory = functools.partial(Transformer, kinds=KINDS[kind], zero=zero)
    return dm.setup(
        parameterization, factory, tokens, width=width, depth=depth, base=SCALE.base,
        fan_in_init=False,
    )  # fmt: skip


def checked(kind: str) -> dict[str, Any]:
    """The coordinate check of a kind: the roles of its parameters, the verdict, and the judged slopes.

    The modulation of adaLN-zero does not start at 0 here: parts of the model are trained alone, and nothing moves
    behind a gate that stays shut.
    """
    sequences, size = CHECK_BATCH
    text = corpus()
    starts = np.random.default_rng(0).integers(0, len(text) - size - 1, (sequences, 1))
    window = jnp.asarray(text[starts + np.arange(size + 1)], jnp.int32)
    tokens, targets = window[:, :-1], window[:, 1:]
    m = setup(kind, "depth_mup", tokens, zero=False)

    def loss(logits: jax.Array, targets: jax.Array) -> jax.Array:
        return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()

    report = m.check(loss, (tokens, targets), **CHECK)
    slopes = [
        {"axis": s.axis, "group": s.group, "seeds": s.changes.shape[1], "answer": s.answer,
         "slope": [round(x, 3) for x in s.plain], "limit": s.limit and [round(x, 3) for x in s.limit]}
        for s in report.slopes if s.judged
    ]  # fmt: skip
    roles = {starred(spec.path): group(spec) for spec in jax.tree.leaves(m.specs, is_leaf=is_spec)}
    return {"roles": roles, "verdict": report.verdict, "slopes": slopes}


def identity() -> dict[str, Any]:
    """What decides the rows, compared before they are used again."""
    return json.loads(json.dumps({"scale": SCALE._asdict(), "check": CHECK, "check batch": CHECK_BATCH}))


def read() -> tuple[pandas.DataFrame, dict[str, Any]]:
    """(rows of the trainings, {kind: what `checked` returned}) that are there. Raises ValueError if settings differ."""
    if not ROWS.with_suffix(".json").exists():
        return pandas.DataFrame({"kind": [], "width": [], "depth": []}), {}
    about = json.loads(ROWS.with_suffix(".json").read_text())
    for key, value in identity().items():
        if about[key] != value:
            raise ValueError(f"{ROWS} comes from another {key}, {about[key]} instead of {value}: delete it")
    return pandas.read_parquet(ROWS), about["checks"]


def write(rows: pandas.DataFrame, checks: dict[str, Any]) -> None:
    rows = rows.astype({"width": "int32", "depth": "int32", "seed": "int32", "loss": "float32"})
    ROWS.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(ROWS, rows.to_parquet(index=False, compression="zstd"))
    about = {**identity(), "text": digest(), "checks": checks}
    write_atomically(ROWS.with_suffix(".json"), (json.dumps(about) + "\n").encode())


def run(kind: str) -> None:
    """Train and check what is missing of a kind; all is written after each shape."""
    rows, checks = read()
    m = None
    for width, depth in SCALE.shapes:
        if len(of_shape(rows[rows["kind"] == kind], width, depth)):
            continue
        print(f"{kind}: width {width}, depth {depth}", flush=True)
        m = m or setup(kind, "completep", jnp.zeros((1, SCALE.context), jnp.int32))
        more = pandas.DataFrame(trained(m.at(width, depth), "adamw", SCALE))
        rows = pandas.concat([rows, more.assign(kind=kind, width=width, depth=depth)], ignore_index=True)
        write(rows, checks)
    if kind not in checks:
        print(f"{kind}: coordinate check", flush=True)
        write(rows, {**checks, kind: checked(kind)})


def answer(rows: pandas.DataFrame, axis: str) -> str:
    """Drift and verdict of one kind along an axis, "" unless all sizes are there."""
    sizes, other, fixed = (
        (SCALE.widths, "depth", SCALE.base[1]) if axis == "width" else (SCALE.depths, "width", SCALE.base[0])
    )
    trials = rows[(rows[other] == fixed) & rows[axis].isin(sizes)]
    if set(trials[axis]) != set(sizes):
        return ""
    table = trials[[axis, "learning_rate", "seed", "loss", "diverged"]].astype({"loss": float})
    result = transfer(table, axis, math.log(VOCABULARY))
    drift = result.drift
    interval = f"{drift.octaves_per_doubling:+.2f} [{drift.low:+.2f}, {drift.high:+.2f}], " if drift else ""
    cost = f", costs at most {result.cost}" if result.cost else ""
    return f"{interval}{result.verdict}{cost}"


def slopes(check: dict[str, Any], axis: str) -> str:
    """The judged slope that is farthest from 0 along an axis, and what was trained."""
    worst = max((s for s in check["slopes"] if s["axis"] == axis), key=lambda s: abs(s["slope"][0]))
    middle, low, high = worst["slope"]
    return f"{middle:+.2f} [{low:+.2f}, {high:+.2f}] {worst['group']}, {worst['answer']}"


def holds(check: dict[str, Any] | None, rows: pandas.DataFrame) -> str:
    """The rule of decision of the module's docstring."""
    verdicts = [answer(rows, axis) for axis in ("width", "depth")]
    if check is None or not all(verdicts):
        return "not finished"
    if check["verdict"] == "not ok" or any("does not transfer" in verdict for verdict in verdicts):
        return "fails"
    return "holds" if all(" transfers" in verdict for verdict in verdicts) else "undecided"


def table() -> str:
    """The kinds that are there, as a Markdown table. Roles: of the parameters that the plain transformer lacks."""
    rows, checks = read()
    plain = checks.get("plain", {"roles": {}})["roles"]
    columns = (
        "kind", "", "its own parameters", "check", "slope over width", "slope over depth", "learning rate over width",
        "learning rate over depth",
    )  # fmt: skip
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    for kind in KINDS:
        check, trials = checks.get(kind), rows[rows["kind"] == kind]
        new = {} if check is None or kind == "plain" else check["roles"].items() - plain.items()
        roles = ", ".join(f"{path.removeprefix('blocks/')}: {role.split()[0]}" for path, role in sorted(new))
        found = ["", "", ""] if check is None else [check["verdict"], slopes(check, "width"), slopes(check, "depth")]
        cells = [
            kind.replace("_", " "),
            holds(check, trials),
            roles,
            *found,
            answer(trials, "width"),
            answer(trials, "depth"),
        ]
        if any(cells[3:]):
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def section() -> str:
    """The section of docs/language.md."""
    width, depth = SCALE.base
    text = SECTION.format(
        width=width, depth=depth, widths=SCALE.widths, depths=SCALE.depths, steps=SCALE.steps, batch=SCALE.batch,
        context=SCALE.context, seeds=SCALE.seeds, rates=2 * REACH + 1, experts=EXPERTS, active=ACTIVE,
        groups=GROUPS, heads=HEADS, check_widths=CHECK["widths"], check_depths=CHECK["depths"],
    )  # fmt: skip
    return f"{text.strip()}\n\n{table()}\n\n{REMARKS.strip()}\n"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments.layer_kinds", description=__doc__.splitlines()[0])
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"of {', '.join(KINDS)}; all by default")
    given = parser.parse_args()
    if unknown := set(given.kinds) - set(KINDS):
        parser.error(f"no such kind: {', '.join(sorted(unknown))}; there are {', '.join(KINDS)}")
    prepare_cpu()
    for kind in given.kinds or KINDS:
        run(kind)
    print(table())


if __name__ == "__main__":
    main()
