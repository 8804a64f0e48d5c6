"""Figures 3a-d: Vision Transformers with Adam, with layer norm and without, warm-up alone and with cosine decay.

    python -m experiments.paper_a 3 --data=DIR       # 3a-c: warm-up
    python -m experiments.paper_a 3d --data=DIR      # warm-up and cosine

Claim: the best learning rate transfers over depth in all settings: with layer norm, scaled by 1/sqrt(depth) or not, and
scaled without layer norm; the scaled networks improve more consistently with depth. Nothing is claimed of networks that
are neither scaled nor normalized, and depthmup's own rule for Adam is a row of its own.

            paper (section 3, A.3, A.4)           here
images      Tiny ImageNet, 64x64, crops, flips    CIFAR-10 (JPEG), 16x16, not augmented, patches of 4x4
training    Adam, batch 64, 20 epochs, linear     Adam, batch 64, 1 epoch, warm-up of a tenth, then constant (a-c) or
            warm-up (a-c), then cosine (d)        cosine to 0 (d)
Adam        no power of depth in any learning     that (lr_depth 0), and depthmup's own rule, L^-1/2 in branches
            rate                                  (lr_depth -0.5)
sizes       lost                                  width 32, 4 heads; 2 to 16 blocks
seeds       lost                                  3

Judged by the loss of the last step; all depths count.

Cost: about 800 trainings of 703 steps, 70 minutes on two cores; twice that beside other work.
Expect: muP without layer norm stops training at some depth; with layer norm its optimum falls with depth.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from configs import tiny_imagenet_vit
from depthmup.fit import Drift, transfer
from depthmup.report.curves import TransferCurve
from experiments.figures.figure import (
    AGREES,
    UNDECIDED,
    Experiment,
    Outcome,
    Sweeps,
    agreement,
    combined,
    loss_pictures,
    markdown,
    verdicts,
    words,
)
from experiments.paper_a.small import TIMES, in_tenth, small


def vit(scale: str) -> Any:
    if scale == "paper":
        config = tiny_imagenet_vit.get_config()
    else:
        config = small("vit", "adam", (-13.0, -4.0), depths=(2, 4, 8, 16), base=(32, 2))
        config.model.heads = 4
        config.model.patch = 4
        config.parameterization.base_head_dim = 8
        config.optimizer.name = "adam"
        config.warmup_epochs = 0.1
        config.sweep.per_octave = 1
    config.sweep.parameterizations = ("mup", "depth_mup")
    config.sweep.axes = "model.norm = layer, none; parameterization.lr_depth = 0.0, -0.5"
    return config


def cosine(scale: str) -> Any:
    config = vit(scale)
    config.schedule = "cosine"
    config.parameterization.lr_depth = 0.0
    config.sweep.axes = "model.norm = layer, none"
    return config


# The paper's settings: scaled or not with layer norm, scaled without; Adam's learning rates have no power of depth.
CLAIMED = {
    "vit": ("mup norm layer, lr_depth None", "depth_mup norm layer, lr_depth 0", "depth_mup norm none, lr_depth 0"),
    "vit_cosine": ("mup norm layer", "depth_mup norm layer", "depth_mup norm none"),
}
OURS = ("depth_mup norm layer, lr_depth -0.5", "depth_mup norm none, lr_depth -0.5")


def improves(c: TransferCurve) -> bool:
    """Whether the best loss falls with every doubling of the depth."""
    return all(after.loss < before.loss for before, after in itertools.pairwise(c.result.optima))


def drift_in(c: TransferCurve, tenth: int) -> Drift | None:
    """The drift of what is best by the loss in one tenth of the training, the first being 1."""
    rows = [row for size in c.result.values for row in in_tenth(c, size, tenth)]
    return transfer(rows, c.axis, c.chance_loss).drift


def named(sweeps: Sweeps, names: Mapping[str, Sequence[str]]) -> list[TransferCurve]:
    """The curves of these names. names: {sweep: its curves}."""
    return [c for sweep, chosen in names.items() if sweep in sweeps for c in sweeps[sweep].curves if c.name in chosen]


def outcome(sweeps: Sweeps) -> Outcome:
    """All of the paper's settings must transfer, and the best loss of the scaled ones fall with every doubling."""
    lines, answers = [], []
    for c in named(sweeps, CLAIMED):
        best, falls = [o.loss for o in c.result.optima], improves(c)
        lines.append(f"{words(c)}; best loss {best[0]:.2f} to {best[-1]:.2f}, {'falls' if falls else 'does not fall'} "
                    "with every doubling")  # fmt: skip
        answers += [
            agreement(c.result),
            *([AGREES if falls else UNDECIDED] if c.parameterization == "depth_mup" else []),
        ]
    return Outcome(lines, combined(answers))


def of_our_rule(sweeps: Sweeps) -> Outcome:
    curves = named(sweeps, {"vit": OURS})
    return Outcome([words(c) for c in curves], combined([agreement(c.result) for c in curves]))


def table(sweeps: Sweeps) -> str:
    """The verdicts, and the drift of the learning rate that is best by the loss early and late in the training."""
    parts = []
    for sweep in sweeps.values():
        rows = []
        for c in sweep.curves:
            drifts = [drift_in(c, tenth) for tenth in (2, TIMES)]
            rows.append((c.name, *(f"{drift.octaves_per_doubling:+.2f}" if drift else "-" for drift in drifts)))
        columns = (
            "drift of the best learning rate, by the loss of",
            "the second tenth of the training",
            "the last tenth",
        )
        parts += [verdicts(sweep), "", markdown(columns, rows), ""]
    return "\n".join(parts)


def pictures(sweeps: Sweeps) -> Mapping[str, Figure]:
    return loss_pictures({f"fig3_{name}": sweep.curves for name, sweep in sweeps.items()})


EXPERIMENT = Experiment(
    figure="3a-c",
    claim="ViT, Adam, warm-up: transfers with layer norm, scaled or not, and scaled without; scaled improve with depth",
    paper="so it is",
    sweeps={"vit": vit},
    outcome=outcome,
    pictures=pictures,
    table=table,
    remarks="""The scaled networks train at every depth without layer norm, where muP stops training at depth 8, and
their best loss falls with every doubling of the depth. What is undecided is how well the learning rate transfers to the
scaled networks without layer norm: what it costs is small, and so is what an octave costs there. With layer norm both
networks transfer. muP without layer norm, for which the paper claims nothing, is in the table below.""",
)
RULE = Experiment(
    figure="3a-c (our rule)",
    claim="depthmup's own rule for Adam, L^-1/2 in the learning rate of branches of L^-1/2, transfers, norm or none",
    paper="has no power of depth in any learning rate",
    sweeps={"vit": vit},
    outcome=of_our_rule,
    pictures=lambda sweeps: {},
    table=lambda sweeps: "Its numbers are at [Figure 3a-c](#figure-3a-c) (lr_depth -0.5).",
    remarks="""With lr_depth -0.5 one step changes the features alike at every depth ([theory.md](theory.md),
[checks.md](checks.md)). After an epoch the best rate of the deeper networks is higher than this rule says, with layer
norm as without: the best rate of a whole epoch is not the one that keeps a single step's change. The drift falls during
the epoch ([Figure 3a-c](#figure-3a-c)): with layer norm, a longer training may bring that of our rule nearer to 0 and
that of the paper's rule further below it. The paper's 20 epochs were not tried.""",
)
COSINE = Experiment(
    figure="3d",
    claim="ViT, Adam, warm-up and cosine: transfers with layer norm, scaled or not, and scaled without",
    paper="so it is",
    sweeps={"vit_cosine": cosine},
    outcome=outcome,
    pictures=pictures,
    table=table,
    remarks="""All networks of this figure follow the paper's rule for Adam. The scaled networks transfer, with layer
norm and without, and their best loss falls with every doubling of the depth; muP without layer norm stops training at
depth 8. With layer norm the optimum falls by a quarter of an octave a doubling, whether the branches are scaled or not;
from the second tenth of the training to the last this drift falls by .2, so that a longer training may show more of it.
Without layer norm the optimum of the scaled network of depth 2 is the last learning rate that trains: on this grid of
octaves that is all that its curve says of it. For muP with layer norm depth 16 is open.""",
)
