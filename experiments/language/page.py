"""docs/language.md: curves, verdicts and pictures from the rows that are there."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from depthmup.files import write_atomically
from depthmup.fit import transfer
from depthmup.report import figures
from depthmup.report.curves import DepthLaws, TransferCurve
from depthmup.report.page import verdict_table
from experiments import layer_kinds
from experiments.figures.figure import along, best_losses, loss_pictures, markdown, paired, words
from experiments.language.gpt_linen import VOCABULARY
from experiments.language.study import CASES, SCALES, read, twin
from experiments.published import ROOT

PAGE = ROOT / "docs" / "language.md"
IMAGES = ROOT / "docs" / "images" / "language"
CHANCE = math.log(VOCABULARY)
HEADER = """# A language model

    python -m experiments.language                  # the demo; goes on where it stopped, draws this page
    python -m experiments.language --scale=study
    python -m experiments.documents                 # this page and others, from the committed rows

The demo takes 15 minutes on two cores, the study two hours on one.

GPTs in Linen and in NNX, written as their users write them (experiments/language/), on bytes of NumPy's docstrings, set
up by `dm.setup(..., fan_in_init=True)`: nothing in the models knows of depthmup. AdamW with a linear warm-up over a
tenth of the steps, then a constant learning rate, no decay; Muon with AdamW for all but the hidden matrices. The loss
is the mean training loss over the last tenth of the steps. The number of heads is fixed, so that the head size grows.

CompleteP's claim (Dey et al. 2025): for transformers, whose branches have two layers, the depth exponent 1
(`completep`) transfers and trains better than 1/2 (`depth_mup`).
"""
# Parameterizations whose best losses over depth are compared, and the optimizer.
PAIRS = (("completep", "depth_mup", "adamw"), ("depth_ode", "depth_mup", "muon"))
# Written before the first training of depth_ode with Muon, and not changed after it.
MUON = """
## Muon over depth: question, prediction, rule of decision

Under `depth_mup` Muon's best learning rate rises by +.43 [.39, .48] octaves per doubling of the depth (below). Does it
transfer under `depth_ode`, whose branches are multiplied by 1/m_L and whose learning rates have no power of depth?

**Derivation.** m_L blocks h <- h + m_L^-a W2 phi(W1 h) have weights of spectral norm 1, to which training adds updates
of spectral norm eta m_L^-b: Muon's, whose size does not depend on the gradient's. To first order the updates of one
layer of all blocks move the stream by m_L m_L^-a eta m_L^-b, which stays for b = 1 - a: the rule of both
parameterizations. The second order, both layers of a block moved, has m_L m_L^-a (eta m_L^-b)^2 = eta^2 m_L^(a - 1):
it vanishes at a = 1/2 and stays at a = 1 alone. There each block's weights move by eta relative to their own size at
every depth; at a = 1/2 they move by eta m_L^-1/2, less in deeper networks. So if what decides the best rate is how far
a block's weights move, `depth_mup` drifts by +.5 and `depth_ode`, where b = 0, by 0. (Zheng et al., arXiv 2603.00541:
for branches of two or more layers the multiplier 1/L and no power of depth in Muon's learning rate.)

**Prediction.** Drift of `depth_ode` with Muon over depth 2 to 32: 0, within .15 octaves per doubling; verdict
"transfers"; at depth 8 and deeper its best loss is below that of `depth_mup`.

**Rule of decision.** Same text, model, seeds, grid of rates and sizes as the case `depth_mup` with Muon; at depth 2
both are the same trainings. Depths 2, 8 and 32 first, then 4 and 16; the last set that is complete decides. The
prediction holds if the 95% interval of the drift is inside (-.25, .25) and the verdict is "transfers"; it fails if the
verdict is "does not transfer" or the interval is outside (-.25, .25); otherwise it is undecided. `depth_ode` drifts
less than `depth_mup` if their intervals have nothing in common.
"""
# What the rows of a scale say, for a reader; to be read again when they change. The numbers are in the tables.
REMARKS = {
    "study": """
What these rows say, of small GPTs of width 32 with 32 bytes of context, in the first 300 steps (154 thousand bytes),
up to 32 blocks:

- **CompleteP's claim.** Under `completep` the best learning rate of depth 2 transfers over depth; its optimum has no
  trend, but wanders by .7 octaves (factors of 2). Under `depth_mup` the optimum rises with depth. What this costs is
  small, but so is what an octave costs, and the verdict is undecided. At depths 4, 16 and 32 the best loss of
  `completep` is surely below that of `depth_mup`.
- **Depth.** At the best learning rate the loss rises with every doubling of the depth under `sp`, which along depth
  is `mup`, and hardly moves from depth 4 on under the two others: models this narrow gain little from more blocks in
  300 steps.
- **Width.** `sp` needs about an octave less for every doubling: a learning rate inverse to the width. The others,
  which at depth 2 are one rule, transfer.
- **Linen and NNX** agree: the drifts of `depth_mup` are within each other's intervals along both axes.
- **Muon** trains to a loss that is 6 to 8% lower than AdamW's under `depth_mup` at every depth, but does not transfer
  over depth: its best learning rate rises by about as much as the factor 1/sqrt(depth) of its rule takes away. Under
  `depth_ode` it transfers from 2 to 32 blocks: the prediction above holds. The loss falls with every doubling of the
  depth, and is surely below that of `depth_mup` at depths 16 and 32; at depth 8 that is undecided.
""",
    "demo": """
What these rows say, of small GPTs in the first 150 steps, with two seeds:

- **Depth.** The best learning rate hardly moves with depth under any parameterization, `sp` among them. What differs
  is the loss. At the best learning rate it rises with depth under `sp`, stays under `depth_mup`, whose curves lie on
  each other, and falls under `completep`, at depth 16 surely below that of `depth_mup`.
- **Width.** `sp` needs .85 octaves less for every doubling. Under the others the drift is .2 to .3 octaves.
- **Muon** trains to a lower loss than AdamW at every size. Under `depth_mup` its best learning rate rises with depth,
  under `depth_ode` it stays.
""",
}


def curves(name: str, scale: str) -> list[TransferCurve]:
    """The curve of a case along each axis of which all sizes are there."""
    rows, settings, case, results = read(name, scale), SCALES[scale], CASES[name], []
    for axis, sizes, other, fixed in (
        ("depth", settings.depths, "width", settings.base[0]),
        ("width", settings.widths, "depth", settings.base[1]),
    ):
        trials = rows[(rows[other] == fixed) & rows[axis].isin(sizes)]
        if set(trials[axis]) != set(sizes):
            continue
        trials = trials.sort_values([axis, "learning_rate", "seed"], ignore_index=True)
        table = trials[[axis, "learning_rate", "seed", "loss", "diverged"]].to_dict("records")
        result = transfer(table, axis, CHANCE)
        variant = "nnx" if name.endswith("nnx") else ""
        names = (case.optimizer, case.parameterization, variant, axis, "learning_rate", "loss")
        results.append(TransferCurve(*names, trials, result, CHANCE, CHANCE, DepthLaws()))
    return results


def shown(scale: str) -> list[TransferCurve]:
    """The curves of all cases; those of the same trainings (`twin`) are one curve, which has all their names."""
    merged: dict[tuple[str, str], TransferCurve] = {}
    for name in CASES:
        for c in curves(name, scale):
            width, depth = SCALES[scale].base
            shapes = {(size, depth) if c.axis == "width" else (width, size) for size in c.result.values}
            twins = {twin(name, scale, *shape) for shape in shapes - {(width, depth)}}
            at = (twins.pop() if len(twins) == 1 else name, c.axis)
            if at in merged:
                other = merged[at]
                merged[at] = dataclasses.replace(other, parameterization=f"{other.parameterization} = {c.name}")
            else:
                merged[at] = c
    return list(merged.values())


def write() -> str:
    """Draw the page and its pictures from the rows that are there, a section for each scale; the page's path."""
    sections = [section(scale) or f"The {scale} has not been run yet.\n" for scale in reversed(SCALES)]  # larger first
    write_atomically(PAGE, "\n".join([HEADER, MUON.lstrip(), *sections, layer_kinds.section()]))
    return str(PAGE)


def section(scale: str) -> str:
    """What the rows of a scale say, "" without a curve. Draws its pictures."""
    chosen = shown(scale)
    if not chosen:
        return ""
    left = [name.replace("_", " ") for name in CASES if len(curves(name, scale)) < 2]
    best = {
        (c.name, c.optimizer, c.axis): [best_losses(c.result, i) for i in range(len(c.result.values))] for c in chosen
    }
    rows = [
        (
            f"{c.name}, {c.optimizer}",
            c.axis,
            words(c).split(": ", 1)[1],
            " ".join(f"{losses.mean():.3f}" for losses in best[c.name, c.optimizer, c.axis]),
        )
        for c in chosen
    ]
    lines = [f"## The {scale}", "", describe(scale), ""]
    lines += [f"Not finished: {', '.join(left)}.", ""] if left else []
    lines += [
        markdown(("model", "along", "drift of the best learning rate, verdict, cost", "best loss at each size"), rows),
        "",
    ]
    IMAGES.mkdir(parents=True, exist_ok=True)
    for name, picture in loss_pictures(along(chosen, f"gpt_{scale}")).items():
        write_atomically(IMAGES / f"{name}.png", figures.png(picture))
        lines += [f"![{name}](images/language/{name}.png)", ""]
    for name, other, optimizer in PAIRS:
        pair = [best.get((parameterization, optimizer, "depth")) for parameterization in (name, other)]
        if pair[0] and pair[1]:
            lines += [compared(name, pair[0], other, pair[1], optimizer, SCALES[scale].depths), ""]
    lines += [REMARKS[scale].strip(), ""] if scale in REMARKS else []
    lines += [f"    {line}".rstrip() for line in verdict_table(chosen).splitlines()]
    return "\n".join(lines) + "\n"


def compared(
    name: str, best: list[np.ndarray], other: str, against: list[np.ndarray], optimizer: str, depths: tuple[int, ...]
) -> str:
    """How the best losses of two parameterizations, (seeds,) at each depth, differ above the base depth."""
    changes = []
    for a, b, depth in zip(best[1:], against[1:], depths[1:], strict=True):
        mean, low, high = (100 * math.expm1(x) for x in paired(np.log(a / b)))
        changes.append(f"{mean:+.1f}% [{low:+.1f}, {high:+.1f}] at depth {depth}")
    return (
        f"Best loss of `{name}` against `{other}` with {optimizer}, with 95% intervals of paired seeds: "
        f"{', '.join(changes)}."
    )


def describe(scale: str) -> str:
    at = SCALES[scale]
    return (
        f"Base width {at.base[0]} and depth {at.base[1]}; depths {at.depths}, widths {at.widths}; {at.steps} "
        f"steps of {at.batch} sequences of {at.context} bytes; {at.seeds} seeds, "
        + (f"{len(at.octaves)} learning rates." if at.reach is None else
           f"{2 * at.reach + 1} learning rates around the best of one seed on a grid twice as coarse.")
    )  # fmt: skip
