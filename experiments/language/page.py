"""docs/language.md: curves, verdicts and pictures from the rows that are there."""

from __future__ import annotations

import itertools
import math

import pandas

from depthmup.fit import transfer
from depthmup.report import figures
from depthmup.report.curves import DepthLaws, TransferCurve
from depthmup.report.page import verdict_table
from depthmup.train.workdir import write_atomically
from experiments.figures.figure import along, loss_pictures, markdown, verdict, words
from experiments.language.gpt_linen import VOCABULARY
from experiments.language.study import CASES, SCALES, read
from experiments.published import ROOT

PAGE = ROOT / "docs" / "language.md"
IMAGES = ROOT / "docs" / "images" / "language"
CHANCE = math.log(VOCABULARY)
HEADER = """# A language model

    python -m experiments.language                  # the demo; goes on where it stopped, draws this page
    python -m experiments.language --scale=study

The demo takes 15 minutes on two cores, the study two hours on one.

GPTs in Linen and in NNX, written as their users write them (experiments/language/), on bytes of NumPy's docstrings, set
up by `dm.setup(..., fan_in_init=True)`: nothing in the models knows of depthmup. AdamW with a linear warm-up over a
tenth of the steps, then a constant learning rate, no decay; Muon with AdamW for all but the hidden matrices. The loss
is the mean training loss over the last tenth of the steps. The number of heads is fixed, so that the head size grows.

CompleteP's claim (Dey et al. 2025): for transformers, whose branches have two layers, the depth exponent 1
(`completep`) transfers and trains better than 1/2 (`depth_mup`).
"""
# What the rows of a scale say, for a reader; to be read again when they change.
REMARKS = {
    "study": """
What these rows say, of small GPTs in the first 300 steps, up to 32 blocks:

- **CompleteP's claim holds here.** Under `completep` the best learning rate has no trend over depth, -.06 [-.27, .15]
  octaves (factors of 2) a doubling; under `depth_mup` it rises by .23 [.13, .32], under `sp` and `mup` it falls by .31
  [.16, .46]. And from depth 4 on the best loss of `completep` is 1.0 to 2.3% below that of `depth_mup`. Both transfer
  by regret: the learning rate that is best at depth 2 costs at most .6% and .8% of the best loss at every depth.
- **Depth.** At the best learning rate the loss rises with every doubling of the depth under `sp` and `mup`, and hardly
  moves from depth 4 on under the two others: models this narrow gain little from more blocks in 300 steps.
- **Width.** `sp` needs .95 octaves less for every doubling: a learning rate inverse to the width. Under the others the
  drift is -.20 [-.27, -.13], which costs at most 1.3%.
- **Linen and NNX** agree: the drifts of `depth_mup` are within each other's intervals along both axes.
- **Muon** trains to a lower loss than AdamW at every size, but does not transfer over depth under `depth_mup`: its best
  learning rate rises by .43 [.39, .48] octaves a doubling, about as much as the factor 1/sqrt(depth) of its rule takes
  away. The learning rate of depth 2 costs up to 3.6% [3.4, 3.9] of the best loss.
""",
    "demo": """
What these rows say, of small GPTs in the first 150 steps:

- **Depth.** The best learning rate hardly moves with depth under any parameterization, `sp` among them. What differs
  is the loss. At the best learning rate it rises with depth under `sp` and `mup`, stays under `depth_mup`, whose
  curves lie on each other, and falls under `completep`. That is one half of CompleteP's claim. The other half,
  transfer, holds for `completep` by regret, and for `depth_mup` as well.
- **Width.** `sp` needs .85 octaves less for every doubling. Under the others the drift is .2 to .3 octaves, which two
  seeds and three widths leave undecided.
- **Muon** trains to a lower loss than AdamW at every size. Under `depth_mup` its best learning rate rises with depth,
  by .3 octaves a doubling, which costs less than 1%.
""",
}


def curves(name: str, scale: str) -> list[TransferCurve]:
    """The curve of a case along each axis of which all sizes are there."""
    rows, own, case, found = read(name, scale), SCALES[scale], CASES[name], []
    for axis, sizes, other, fixed in (
        ("depth", own.depths, "width", own.base[0]),
        ("width", own.widths, "depth", own.base[1]),
    ):
        trials = rows[(rows[other] == fixed) & rows[axis].isin(sizes)]
        if set(trials[axis]) != set(sizes):
            continue
        trials = trials.sort_values([axis, "learning_rate", "seed"], ignore_index=True)
        table = trials[[axis, "learning_rate", "seed", "loss", "diverged"]].to_dict("records")
        result = transfer(table, axis, CHANCE)
        variant = "nnx" if name.endswith("nnx") else ""
        names = (case.optimizer, case.parameterization, variant, axis, "learning_rate", "loss")
        found.append(TransferCurve(*names, trials, result, CHANCE, CHANCE, DepthLaws()))
    return found


def best(c: TransferCurve) -> list[float]:
    """The lowest mean loss over seeds at each size."""
    means: pandas.Series = c.trials.groupby([c.axis, "learning_rate"])["loss"].agg(
        lambda losses: losses.mean(skipna=False)
    )
    return [float(means[size].min()) for size in c.result.values]


def write() -> str:
    """Draw the page and its pictures from the rows that are there, a section for each scale; the page's path."""
    sections = [section(scale) or f"The {scale} has not been run yet.\n" for scale in reversed(SCALES)]  # larger first
    write_atomically(PAGE, "\n".join([HEADER, *sections]))
    return str(PAGE)


def section(scale: str) -> str:
    """What the rows of a scale say, "" without a curve. Draws its pictures."""
    found = [c for name in CASES for c in curves(name, scale)]
    if not found:
        return ""
    left = [name.replace("_", " ") for name in CASES if len(curves(name, scale)) < 2]
    rows = [
        (
            f"{c.name}, {c.optimizer}",
            c.axis,
            words(c).split(": ", 1)[1],
            verdict(c),
            " ".join(f"{b:.3f}" for b in best(c)),
        )
        for c in found
    ]
    lines = [f"## The {scale}", "", describe(scale), ""]
    lines += [f"Not finished: {', '.join(left)}.", ""] if left else []
    lines += [
        markdown(("model", "along", "drift of the best learning rate", "verdict", "best loss at each size"), rows),
        "",
    ]
    IMAGES.mkdir(parents=True, exist_ok=True)
    for name, picture in loss_pictures(along(found, f"gpt_{scale}")).items():
        write_atomically(IMAGES / f"{name}.png", figures.png(picture))
        lines += [f"![{name}](images/language/{name}.png)", ""]
    depth = {c.name: best(c) for c in found if c.axis == "depth" and c.optimizer == "adamw"}
    if {"depth_mup", "completep"} <= depth.keys():
        lines += [compared(depth["completep"], depth["depth_mup"], SCALES[scale].depths), ""]
    lines += [REMARKS[scale].strip(), ""] if scale in REMARKS else []
    lines += [f"    {line}".rstrip() for line in verdict_table(found).splitlines()]
    return "\n".join(lines) + "\n"


def compared(completep: list[float], depth_mup: list[float], depths: tuple[int, ...]) -> str:
    """What the best losses say of CompleteP's claim, in a sentence."""
    changes = [f"{100 * (a / b - 1):+.1f}% at depth {d}" for a, b, d in zip(completep, depth_mup, depths, strict=True)]
    falls = {
        name: "falls" if all(b < a for a, b in itertools.pairwise(losses)) else "does not fall"
        for name, losses in (("completep", completep), ("depth_mup", depth_mup))
    }
    return (
        f"Best loss of `completep` against `depth_mup`: {', '.join(changes)}. At every doubling of the depth it "
        f"{falls['completep']} under `completep`, and {falls['depth_mup']} under `depth_mup`."
    )


def describe(scale: str) -> str:
    own = SCALES[scale]
    return (
        f"Base width {own.base[0]} and depth {own.base[1]}; depths {own.depths}, widths {own.widths}; {own.steps} "
        f"steps of {own.batch} sequences of {own.context} bytes; {own.seeds} seeds, "
        + (f"{len(own.octaves)} learning rates." if own.reach is None else
           f"{2 * own.reach + 1} learning rates around the best of one seed on a grid twice as coarse.")
    )  # fmt: skip
