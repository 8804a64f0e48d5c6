"""Figures 3a-d: Vision Transformers with Adam, with layer norm and without, warm-up alone and with cosine decay.

    python -m experiments.paper_a 3 --data=DIR       # 3a-c: warm-up
    python -m experiments.paper_a 3d --data=DIR      # warm-up and cosine

Claim: the best learning rate transfers over depth with layer norm, scaled by 1/sqrt(depth) or not, and scaled without
layer norm; the scaled networks improve more consistently with depth. Nothing is claimed of networks that are neither
scaled nor normalized, and depthmup's own rule for Adam is a row of its own.

            paper (section 3, A.3, A.4)           here
images      Tiny ImageNet, 64x64, crops, flips    CIFAR-10 (JPEG), 16x16, not augmented, patches of 4x4
training    Adam, batch 64, 20 epochs, linear     Adam, batch 64, 1 epoch, warm-up of a tenth, then constant (a-c) or
            warm-up (a-c), then cosine (d)        cosine to 0 (d); 3 seeds
Adam        no power of depth in any rate         that (lr_depth 0), and depthmup's rule, L^-1/2 in branches
sizes       lost                                  width 32, 4 heads; 2 to 16 blocks

Judged by the loss of the last step; all depths count.

Cost: about 800 trainings of 703 steps, 70 minutes on two cores; twice that beside other work.
Expect: muP without layer norm stops training at some depth; with layer norm its optimum falls with depth.

More seeds: three left 3d's muP with layer norm undecided (1.4% [.1, 2.5]); 3d gets seeds until decided, up to 24.
Prediction: it transfers, because -.29 octaves a doubling add up to less than one at depth 16.
Outcome: it does, after 234 more trainings (1.5% [1.0, 4.0]).
"""

from __future__ import annotations

import itertools
import math
from typing import Any

from depthmup.trials.verdicts import TransferCurve
from experiments.figures.figure import Experiment, Outcome, Sweeps, curve, curve_table, loss_pictures, says
from experiments.output import decided
from experiments.paper_a.small import small


def vit() -> Any:
    config = small("vit", "adam", (-13.0, -4.0), depths=(2, 4, 8, 16), base=(32, 2))
    config.model.update(heads=4, patch=4)
    config.parameterization.base_head_dim = 8
    config.optimizer.name = "adam"
    config.warmup_epochs = 0.1
    config.sweep.per_octave = 1
    config.sweep.parameterizations = ("mup", "depth_mup")
    config.sweep.axes = "model.norm = layer, none; parameterization.lr_depth = 0.0, -0.5"
    return config


def cosine() -> Any:
    config = vit()
    config.schedule = "cosine"
    config.parameterization.lr_depth = 0.0
    config.sweep.update(axes="model.norm = layer, none", until="decided")
    return config


# The paper's settings: scaled or not with layer norm, scaled without; Adam's learning rates have no power of depth.
CLAIMED = {
    "vit": ("depth_mup norm layer, lr_depth 0", "depth_mup norm none, lr_depth 0", "mup norm layer, lr_depth None"),
    "vit_cosine": ("depth_mup norm layer", "depth_mup norm none", "mup norm layer"),
}
OURS = ("depth_mup norm layer, lr_depth -0.5", "depth_mup norm none, lr_depth -0.5")


def claimed(sweeps: Sweeps) -> list[TransferCurve]:
    """The curves of the paper's settings."""
    return [curve(sweeps, sweep, name) for sweep in sweeps if sweep in CLAIMED for name in CLAIMED[sweep]]


def outcome(sweeps: Sweeps) -> Outcome:
    """All of the paper's settings must transfer, and the best loss of the scaled ones fall with every doubling."""
    parts = [says(c, label=label(c)) for c in claimed(sweeps)]
    for c in (c for c in claimed(sweeps) if c.parameterization == "depth_mup"):
        falls = all(after.loss < before.loss for before, after in itertools.pairwise(c.result.optima))
        parts.append((f"{label(c)}: best loss {best_loss(c)}", decided(falls, False)))
    shown = {label(c): c for sweep in sweeps.values() for c in sweep.curves}
    return Outcome.of(parts, curve_table(shown, {"best loss by depth": best_loss}))


def label(c: TransferCurve) -> str:
    scaled = "scaled" if c.parameterization == "depth_mup" else "unscaled"
    norm = "layer norm" if "norm layer" in c.variant else "no norm"
    return f"{scaled}, {norm}{', own rule' if 'lr_depth -0.5' in c.variant else ''}"


def best_loss(c: TransferCurve) -> str:
    """At the smallest and the largest depth."""
    ends = c.result.optima[0], c.result.optima[-1]
    return " to ".join("no training" if math.isnan(end.loss) else f"{end.loss:.2f}" for end in ends)


EXPERIMENT = Experiment(
    figure="3a-c",
    claim="with layer norm it transfers, scaled or not, without if scaled; scaled ViTs improve with depth",
    question="Of Vision Transformers, with Adam?",
    sweeps={"vit": vit},
    outcome=outcome,
    pictures=lambda sweeps: loss_pictures({"fig3_vit": sweeps["vit"].curves}),
)
RULE = Experiment(
    figure="3a-c (our rule)",
    claim="not in the paper: L^-1/2 in branches' learning rates",
    sweeps={"vit": vit},
    outcome=lambda sweeps: Outcome.of([says(c, label=label(c)) for c in (curve(sweeps, "vit", n) for n in OURS)]),
)
COSINE = Experiment(
    figure="3d",
    claim="the same with a cosine schedule",
    sweeps={"vit_cosine": cosine},
    outcome=outcome,
    pictures=lambda sweeps: loss_pictures({"fig3_vit_cosine": sweeps["vit_cosine"].curves}),
)
