"""Everything at once: a GPT with four times the width, depth, batch and steps, at the learning rate of the small one.

    python -m experiments.jump          # trains what is missing, writes its rows: 75 minutes of two cores
    python -m experiments.documents     # the table of docs/batch.md and the picture of README, from these rows

The GPT of gpt_linen.py on bytes of NumPy's docstrings, AdamW with b2 = .95, a warm-up over a tenth of the steps
and a rate that falls to 0. Tuned at width 16, 2 blocks, batches of 8 sequences, 256 steps; used at width 64, 8 blocks,
batches of 32, 1,024 steps: 1,024 times the compute. 3 seeds, one learning rate an octave.

**Question.** What does the tuned learning rate cost in the large training, under "sp", under "mup" alone, under
"depth_mup" with no rule of batch and steps and with "completed_p", and under "completep"?

**Predictions**, written before the first training. docs/batch.md has, for this GPT at width 32, +.42 octaves a doubling
of the batch at fixed examples and -.23 a doubling of the steps. From 8 x 256 to 32 x 1,024 these cancel: +.84 - .92.

- "depth_mup" without a rule: the best rate moves by less than .75 octaves, and the tuned one costs less than 1%.
- "depth_mup" with "completed_p", which halves the rate: the best one moves by +.5 to +1.5 octaves; it costs below 3%.
- "mup": the best rate falls by .5 to 2 octaves for the depth, and costs 1% to 10%.
- "sp": it falls by 2 octaves for the width besides: 2.5 to 4 in all; the tuned rate costs more than 10% or diverges.
- "completep" was added when the other four were known, since docs/guide/choose.md recommends it for transformers.
  Predicted before its training: the best rate moves by -.5 to +.75 octaves, the tuned one costs less than 1%, and its
  loss is the lowest of all at the tuned rate.

**Rule of decision.** The cost is the loss at the tuned rate over the best one there, with the 95% interval of paired
seeds. A parameterization carries the jump if the interval ends below 2%, and does not if it begins above 2%; else the
rows decide nothing. Nothing is trained again after looking but by more seeds for all.
"""

from __future__ import annotations

import math

import jax.numpy as jnp
import pandas
from matplotlib.figure import Figure

import depthmup as dm
from depthmup.backend import prepare_cpu
from depthmup.batch_rules import RuleName
from depthmup.colors import size_colors
from depthmup.fit.picture import loss_marks, paint, plain_log
from depthmup.parameterization import Name
from depthmup.report import figures
from depthmup.sweep import judge
from depthmup.trials.verdicts import TransferCurve
from experiments import command_line, gpt_linen
from experiments.figures.figure import IMAGES, best_losses, save
from experiments.language import CHANCE, CONTEXT, batches, loss
from experiments.output import Interval, markdown
from experiments.published import RESULTS, ROOT, replace
from experiments.scaling import regret

RUNS, ROWS = ROOT / "runs" / "jump", RESULTS / "jump.parquet"
SMALL, LARGE = (16, 2, 8, 256), (64, 8, 32, 1024)  # width, depth, batch, steps
CASES: dict[str, tuple[Name, RuleName]] = {
    "sp": ("sp", "none"),
    "mup": ("mup", "none"),
    "depth_mup": ("depth_mup", "none"),
    "depth_mup + completed_p": ("depth_mup", "completed_p"),
    "completep": ("completep", "none"),
}
PICTURED = ("sp", "mup", "depth_mup", "completep")
LIMIT = 2.0  # percent
COLUMNS = [
    "parameterization", "width", "depth", "batch_size", "steps", "learning_rate", "seed", "loss", "diverged"
]  # fmt: skip


def train(case: str) -> pandas.DataFrame:
    """Train what is missing of a case in its workdir: rows with the columns `COLUMNS`."""
    parameterization, rule = CASES[case]
    width, depth, batch, steps = SMALL
    m = dm.setup(
        parameterization, gpt_linen.GPT, jnp.zeros((1, CONTEXT), jnp.int32), width=width, depth=depth,
        base=(width, depth), base_batch=batch, base_steps=steps, batch_rule=rule, fan_in_init=False,
    )  # fmt: skip
    result = m.sweep(
        loss, batches, steps=steps, batch_size=batch, sizes=[LARGE], widths=(), depths=(), optimizer="adamw", b2=0.95,
        learning_rates=[2.0**x for x in range(-10, -2)], per_octave=1, adaptive=True, seeds=3, schedule="linear",
        warmup=steps // 10, chance=CHANCE, workdir=RUNS / case.replace(" + ", "_"),
    )  # fmt: skip
    return result.rows.assign(parameterization=case, loss=result.rows["last_loss"])[COLUMNS]


def curves() -> list[TransferCurve]:
    """Of the committed rows, in the order of `CASES`."""
    return list(judge(pandas.read_parquet(ROWS), chance=CHANCE).curves)


def answer(cost: Interval | None) -> str:
    """The rule of decision, of a cost in percent."""
    if cost is None:
        return "does not: diverges"
    return "carries" if cost.high < LIMIT else "does not" if cost.low > LIMIT else "undecided"


def table() -> str:
    """Best rates of both sizes, the loss of the tuned one at the large size, and what it costs: a row for each case."""
    lines = []
    for c in curves():
        small, large = (math.log2(rate) if rate else math.nan for rate in c.result.optimal_lr)
        cost = regret(c.result, 0.0, 1, -1)
        loss = f"{best_losses(c.result, -1).mean() * (1 + cost.value / 100):.2f}" if cost else "-"
        words = cost.text("+.1f", "%") if cost else "diverges"
        lines.append((f"`{c.parameterization}`", f"{small:.2f}", f"{large - small:+.2f}", loss, words, answer(cost)))
    head = ("", "log2 of the tuned rate", "the best one moves by, octaves", "its loss", "it costs", "the jump")
    return markdown(head, lines)


def draw() -> None:
    """README's picture: for the cases that are `PICTURED` the loss against the learning rate, small and large."""
    committed = [c for c in curves() if c.parameterization in PICTURED]
    figure = Figure(figsize=(figures.WIDTH, 6.2), layout="constrained")
    panels = figure.subplots(2, 2, sharex=True, sharey=True, subplot_kw={"xscale": "log", "yscale": "log"})
    for panel, c in zip(panels.flat, committed, strict=True):
        lines = zip(("small", "1,024 times the compute"), c.result.learning_rates, c.result.optima, strict=True)
        for i, ((name, rates, best), color) in enumerate(zip(lines, size_colors(2), strict=True)):
            paint(panel, loss_marks(rates, c.result.log_losses(i), best), color, name)
        if tuned := c.result.optimal_lr[0]:
            panel.axvline(tuned, color="gray", ls="--", lw=1, label="tuned rate")
        cost = regret(c.result, 0.0, 1, -1)
        words = f"costs {cost.value:+.1f}%" if cost else "diverges"
        panel.set_title(f"{c.parameterization}\nthe tuned rate {words}", fontsize=10)
    plain_log(panels[0, 0].xaxis)
    plain_log(panels[0, 0].yaxis)
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=3, frameon=False)
    figure.supxlabel("learning rate")
    figure.supylabel("training loss")
    save(IMAGES, {"jump": figure})


def main() -> None:
    cases = command_line.parser("experiments.jump", __doc__, "case", CASES).parse_args().cases
    prepare_cpu()
    for case in cases:
        replace(ROWS, train(case), ["parameterization"])
    print(table())


if __name__ == "__main__":
    main()
