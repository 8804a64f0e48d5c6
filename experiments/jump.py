"""A GPT several times as wide, deep and long, at the learning rate of the small one.

    python -m experiments.jump                # trains what is missing of "steps", writes its rows: 3 hours of a core
    python -m experiments.jump --jump=batch   # of "batch": 75 minutes of two cores
    python -m experiments.documents           # the tables and pictures of docs/batch.md, from these rows

The GPT of gpt_linen.py on bytes of NumPy's docstrings, AdamW with b2 = .95, a warm-up over a tenth of the steps and a
rate that falls to 0. Tuned at width 16 with 2 blocks, used at width 64 with 8 blocks; 3 seeds.

**Question.** What does the tuned learning rate cost in the large training, under "sp", "mup", "depth_mup" and
"completep"?

Jump "batch": batches of 8 sequences and 256 steps to 32 and 1,024, one learning rate an octave. docs/batch.md has, for
this GPT at width 32, +.42 octaves a doubling of the batch at fixed examples and -.23 a doubling of the steps. From
8 x 256 to 32 x 1,024 these cancel, +.84 - .92: this jump does not test the rules of batch and steps.

**Predictions** of "batch", written before the first training.

- "depth_mup" without a rule: the best rate moves by less than .75 octaves, and the tuned one costs less than 1%.
- "depth_mup" with "completed_p", which halves the rate: the best one moves by +.5 to +1.5 octaves; it costs below 3%.
- "mup": the best rate falls by .5 to 2 octaves for the depth, and costs 1% to 10%.
- "sp": it falls by 2 octaves for the width besides: 2.5 to 4 in all; the tuned rate costs more than 10% or diverges.
- "completep" was added when the other four were known, since docs/guide/choose.md recommends it for transformers.
  Predicted before its training: the best rate moves by -.5 to +.75 octaves, the tuned one costs less than 1%, and its
  loss is the lowest of all at the tuned rate.

Jump "steps": batches of 16 sequences in both, 256 to 1,024 steps, half-octave rates. Nothing cancels: 160 times the
multiplications. (A larger one, 64 x 3 to 384 x 12 with 256 bytes of context, needs a GPU and was not run.)

**Predictions** of "steps", written before its first training, with the rows of "batch" and docs/language.md known.

- "completep": two doublings of the steps move the best rate by -.46 [-.62, -.32] octaves, and width and depth by
  nothing. (docs/language.md has -.20 a doubling of the width besides, at fixed steps; that would make -.86. "batch" had
  none of it, so the prediction stands without.)
- "completep" with "token_horizon", 4^-.32 of the rate: it costs less than 1%. To keep the rate costs less than 1.5%.
- "mup": the depth takes -.31 a doubling besides: -1.1 [-1.6, -.6] octaves; to keep the rate costs 1% to 5%.
- "depth_mup": the depth gives +.23 a doubling: 0 [-.5, +.5] octaves; to keep the rate costs less than 1%.
- "sp": -2.5 [-3.2, -1.8] octaves; to keep the rate costs more than 5%, else this jump has no power.

**Rule of decision.** The cost is `fit.transfer`'s, which contains the error of the tuned rate: the loss at the rate
that is carried over the best one there, with its 95% interval. A rule carries "batch" if the interval ends below 2%,
and does not if it begins above 2%; of "steps" the limit is 1%. Else the rows decide nothing. Nothing is trained again
after looking but by more seeds for all. ("batch" was first judged with the interval of paired seeds alone.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import pandas
from matplotlib.figure import Figure

import depthmup as dm
from depthmup.backend import prepare_cpu
from depthmup.fit import Cost, Transfer
from depthmup.fit import picture as drawing
from depthmup.fit.marks import loss_marks
from depthmup.rules.batch_rules import RuleName, Run
from depthmup.rules.parameterization import Name
from depthmup.sweep import judge
from experiments import command_line, gpt_linen
from experiments.figures.figure import IMAGES, save
from experiments.language import CHANCE, CONTEXT, batches, loss
from experiments.output import Interval, markdown
from experiments.published import RESULTS, ROOT, replace

RUNS = ROOT / "runs" / "jump"
COLUMNS = [
    "parameterization", "width", "depth", "batch_size", "steps", "learning_rate", "seed", "loss", "diverged"
]  # fmt: skip


class Jump(NamedTuple):
    """small, large: width, depth, batch, steps. cases: {name of the rows: parameterization and rule of batch and
    steps}. rules: of batch and steps, by which the tuned rate of each case is carried. per_octave: learning rates.
    limit: percent that a rule may cost which carries. rows: name of the file."""

    small: tuple[int, int, int, int]
    large: tuple[int, int, int, int]
    cases: Mapping[str, tuple[Name, RuleName]]
    rules: tuple[RuleName, ...]
    per_octave: int
    limit: float
    rows: str

    @property
    def path(self) -> Path:
        return RESULTS / self.rows

    def factor(self, rule: RuleName) -> float:
        """By how much a rule of batch and steps multiplies the tuned learning rate."""
        return Run(*self.large[2:], *self.small[2:], rule).factors("adam")["learning_rate"]


CASES: dict[str, tuple[Name, RuleName]] = {
    "sp": ("sp", "none"),
    "mup": ("mup", "none"),
    "depth_mup": ("depth_mup", "none"),
    "completep": ("completep", "none"),
}
JUMPS = {
    "steps": Jump((16, 2, 16, 256), (64, 8, 16, 1024), CASES, ("none", "token_horizon"), 2, 1.0, "jump_steps.parquet"),
    "batch": Jump(
        (16, 2, 8, 256), (64, 8, 32, 1024), CASES | {"depth_mup + completed_p": ("depth_mup", "completed_p")},
        ("none",), 1, 2.0, "jump.parquet",
    ),
}  # fmt: skip


def train(jump: Jump, case: str) -> pandas.DataFrame:
    """Train what is missing of a case in its workdir: rows with the columns `COLUMNS`."""
    parameterization, rule = jump.cases[case]
    width, depth, batch, steps = jump.small
    m = dm.setup(
        parameterization, gpt_linen.GPT, jnp.zeros((1, CONTEXT), jnp.int32), width=width, depth=depth,
        base=(width, depth), base_batch=batch, base_steps=steps, batch_rule=rule, fan_in_init=False,
    )  # fmt: skip
    result = m.sweep(
        loss, batches, steps=steps, batch_size=batch, sizes=[jump.large], widths=(), depths=(), optimizer="adamw",
        b2=0.95, learning_rates=(2.0 ** np.arange(-10, -2.9, 1 / jump.per_octave)).tolist(), per_octave=jump.per_octave,
        adaptive=True, seeds=3, schedule="linear", warmup=steps // 10, chance=CHANCE,
        workdir=RUNS / jump.path.stem / case.replace(" + ", "_"),
    )  # fmt: skip
    return result.rows.assign(parameterization=case, loss=result.rows["last_loss"])[COLUMNS]


def curves(jump: Jump, rule: RuleName = "none") -> dict[str, Transfer]:
    """{case: what its committed rows say}, at the learning rates that this rule of batch and steps carries over."""
    rows = pandas.read_parquet(jump.path)
    carried = rows["learning_rate"] / np.where(rows["width"] == jump.large[0], jump.factor(rule), 1.0)
    judged = judge(rows.assign(learning_rate=carried), chance=CHANCE)
    return {c.parameterization: c.result for c in judged.curves}


def answer(cost: Cost | None, limit: float) -> str:
    """The rule of decision. limit: in percent."""
    if cost is None:
        return "does not: diverges"
    return "carries" if 100 * cost.high < limit else "does not" if 100 * cost.low > limit else "undecided"


def table(jump: Jump) -> str:
    """The tuned rate, by how much the best one moves, the loss at the rate that is carried, and what it costs: a row
    for each case and rule of batch and steps."""
    lines = []
    for rule in jump.rules:
        for case, result in curves(jump, rule).items():
            tuned = f"{math.log2(result.tuned):.2f}" if result.tuned else "-"
            doublings = math.log2(result.values[-1] / result.values[0])
            moved = Interval(*(doublings * end for end in result.drift[:3])).text() if result.drift else "-"
            cost, optimum = result.costs[-1], result.optima[-1]
            loss = f"{optimum.loss * (1 + cost.share):.2f}" if cost else "-"
            name = case if rule == "none" else f"{case} + {rule}"
            lines.append((f"`{name}`", tuned, moved, loss, str(cost or "diverges"), answer(cost, jump.limit)))
    head = ("", "log2 of the tuned rate", "the best one moves by, octaves", "its loss", "it costs", "the jump")
    return markdown(head, lines)


def draw() -> None:
    """The pictures of docs/batch.md: for each parameterization the loss against the learning rate, small and large."""
    save(IMAGES, {f"jump_{name}": picture(jump) for name, jump in JUMPS.items()})


def picture(jump: Jump) -> Figure:
    of_rule, panels = {rule: curves(jump, rule) for rule in jump.rules}, []
    for case in CASES:
        result, notes = of_rule["none"][case], list[drawing.Note]()
        pairs = enumerate(zip(result.learning_rates, result.optima, strict=True))
        marks = [loss_marks(rates, result.log_losses(i), best) for i, (rates, best) in pairs]
        lines = [drawing.Line(name, name, i, "", marks[i]) for i, name in enumerate(("small", "large"))]
        for rule in jump.rules:
            cost, label = of_rule[rule][case].costs[-1], "tuned rate" if rule == "none" else rule
            notes.append(("", "", f"{label} {f'costs {cost}' if cost else 'diverges'}"))
        panels.append(drawing.Panel({"parameterization": case}, notes, lines))
    caption = "; ".join(
        ["star: best rate", "dashed: the tuned one (fitted)", *(f"dotted: {r}" for r in jump.rules[1:])]
    )
    figure = drawing.draw(
        drawing.Picture("jump", "", caption, "learning rate", "training loss", "log", "", drawing.colors_of_sizes(2),
                drawing.framed(panels, "log"))
    )  # fmt: skip
    for axes, case in zip(figure.axes, CASES, strict=True):
        for rule, style in zip(jump.rules, ("--", ":"), strict=False):
            if tuned := of_rule["none"][case].tuned:
                axes.axvline(tuned * jump.factor(rule), color="gray", ls=style, lw=1)
    return figure


def main() -> None:
    parser = command_line.parser("experiments.jump", __doc__, "case", JUMPS["batch"].cases)
    parser.add_argument("--jump", choices=JUMPS, default="steps", help="default: steps")
    arguments = parser.parse_args()
    jump = JUMPS[arguments.jump]
    prepare_cpu()
    for case in [case for case in arguments.cases if case in jump.cases]:
        replace(jump.path, train(jump, case), ["parameterization"])
    print(table(jump))


if __name__ == "__main__":
    main()
