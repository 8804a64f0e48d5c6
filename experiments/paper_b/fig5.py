"""Figures 5, 6b, 6d, 7b, 7c and 8 to 10: CIFAR-100 and ImageNet, for both of which 100 kinds of patches stand in.

    python -m experiments.patches_folder DIR100
    python -m experiments.paper_b hundred --data=DIR100
    python main.py sweep --config=configs/papers.py:cnn,imagenet2012    (figure 8 at the paper's scale; 9 and 10:
                                                                         papers.py:residual_cnn,imagenet2012)

Claim (D.1, D.2): on CIFAR-100 the slopes are -1.392 (plain networks), -1.543 (residual ones with dropout), -1.399
(batch norm), -1.320 (both) and -1.793 (neither). Claim (D.3): on ImageNet -1.329 (plain), -1.663 (with dropout) and
-1.567 (neither).

The paper has an epoch, 351 or 4,504 steps, at 32x32 or 64x64. Here: 100 regions of ten photographs, 220 images of each;
plain networks as in figure 2a, but 3 to 13 layers; residual ones with 8 channels on 16x16 pixels, 2 to 12 blocks and
200 steps; two seeds; judged as experiments/paper_b/networks.py has it. At 1e11 operations a second ImageNet would take
5 years for figure 8 and 12 for each of 9 and 10 (`--dry_run` of the configs).

Until November 2026 100 classes of Tiny ImageNet stood here, 50 images of each, and nothing was learned.

Cost: 5 sweeps of some 170 trainings, 10 minutes on two cores for the plain networks, 45 for each of the others.
Expect: the number of classes does not matter. Plain networks hold -3/2; residual ones exclude it, and hold theory's 0
with neither or with dropout, -1 with a batch norm. This was written before the first training of the sweeps; single
trainings at two depths had shown that the networks learn (10% of the images at 2 and 8 blocks, where guessing has 1%).
Outcome: with dropout 0 holds and -3/2 does not. Plain networks (four depths count) are undecided, since the best rate
of depths 6, 10 and 13 is the lowest of the grid; so are those with neither (two), since at four depths two seeds do not
beat chance surely. With a batch norm the exponent is -1.21 [-1.78, -0.63], with both -1.41 [-1.99, -0.82]: 0 is
excluded, and -1 and -3/2 hold.
"""

from __future__ import annotations

import numpy as np

from experiments.figures.figure import Experiment, Outcome, Part, Sweeps
from experiments.output import NOT_RUN
from experiments.paper_b import ingredients, networks
from experiments.paper_b.exponents import against, along_depth, words
from experiments.published import Sweep

CLASSES = 100
EPOCH = 22_000 // 128  # steps
PLAIN = {"epochs": networks.STEPS / EPOCH, "sweep.seeds": 2}
RESIDUAL = {"epochs": 200 / EPOCH, "sweep.seeds": 2}
VARIANTS = {"none": "baseline", "dropout": "dropout", "batch_norm": "batch_norm", "both": "batch_norm_dropout"}
SWEEPS = {
    "hundred_plain": networks.full(networks.plain, (3, 4, 5, 6, 8, 10, 13), PLAIN),
    **{
        f"hundred_{name}": networks.full(
            networks.residual, (2, 3, 4, 6, 8, 12), {**ingredients.INGREDIENTS[ingredient], **RESIDUAL}
        )
        for name, ingredient in VARIANTS.items()
    },
}


def best(sweep: Sweep) -> str:
    """The lowest and the highest of the best accuracies over depth."""
    result = along_depth(sweep)
    trained = [errors[~gone.any(axis=1)] for errors, gone in zip(result.losses, result.diverged, strict=True)]
    accuracies = [1 - np.min(errors.mean(axis=1), initial=1.0) for errors in trained]  # by depth
    return f"best accuracy {100 * min(accuracies):.1f}% to {100 * max(accuracies):.1f}% (chance {100 / CLASSES:.0f}%)"


def parts(sweeps: Sweeps) -> list[Part]:
    """Each law on its own."""
    judged = {name: along_depth(sweep) for name, sweep in sweeps.items()}
    return [(f"{name.removeprefix('hundred_').replace('_', ' ')}: {words(result)}; {best(sweeps[name])}",
             against(result)) for name, result in judged.items()]  # fmt: skip


def outcome(sweeps: Sweeps) -> Outcome:
    """Neither data set was trained on; beside it what the stand-in says of the claim."""
    stand_in = Outcome.of(parts(sweeps))
    return Outcome(NOT_RUN, f"a stand-in {stand_in.verdict}: {stand_in.number}")


EXPERIMENT = Experiment(
    figure="5, 6b, 6d, 7b, 7c, 8, 9, 10",
    claim="CIFAR-100, ImageNet: exponents -1.320 to -1.793",
    sweeps=SWEEPS,
    outcome=outcome,
    classes=CLASSES,
    needs=("hundred_plain", "hundred_none"),
    printed=lambda sweeps: "\n".join(number for number, _ in parts(sweeps)),
)
