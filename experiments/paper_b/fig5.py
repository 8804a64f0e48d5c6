"""Figures 5, 6b, 6d, 7b, 7c and 8 to 10: CIFAR-100 and ImageNet, for both of which 100 classes stand in.

    python -m experiments.tiny_imagenet_folder SOURCE DIR100
    python -m experiments.paper_b 5 hundred 8 9 10 --data=DIR100
    python main.py sweep --config=configs/imagenet_cnn.py               (figure 8 at the paper's scale; 9 and 10:
                                                                         imagenet_residual_cnn.py)

Claim (D.1, D.2): on CIFAR-100 the slopes are -1.392 (plain networks), -1.543 (residual ones with dropout), -1.399
(batch norm), -1.320 (both) and -1.793 (neither). Claim (D.3): on ImageNet -1.329 (plain), -1.663 (with dropout) and
-1.567 (neither).

            paper                                 here
images      CIFAR-100, 32x32; ImageNet, 64x64     100 classes of Tiny ImageNet, 50 images of each: 4,000 at 32x32
training    one epoch, 351 or 4,504 steps         100 steps, two seeds
networks    experiments/paper_b/networks.py       the same, 8 channels; 3 to 13 layers, 2 to 12 blocks

Any folder of 100 classes will do: python -m experiments.paper_b takes what DIR100/train/ has. At 1e11 operations a
second ImageNet would take 5 years for figure 8 and 12 for each of 9 and 10 (`--dry_run` of the configs).

Judged by validation accuracy at the depths at which a network learned, for the reasons in
experiments/paper_b/networks.py.

Cost: 5 sweeps of 150 trainings of 100 steps, five hours of one core.
Expect: nothing is decided. The best accuracy is 1.1% to 2.5%, where guessing has 1% and the nearest of the mean images
has 5%: the bowls are noise. 351 steps were no better (four blocks at 16x16 pixels: 2.2%). CIFAR-100 and 64 channels
would decide.
"""

from __future__ import annotations

import numpy as np

from experiments.figures.figure import NOTHING, Experiment, Outcome, Sweeps, combined, verdicts
from experiments.paper_b import ingredients, networks
from experiments.paper_b.exponents import against, along_depth, by_both

CLASSES = 100
EPOCH = 4000 // 128  # steps
DEMO = {"epochs": 100 / EPOCH, "model__width": 8, "data__image_size": 32, "sweep__seeds": 2}
PLAIN = {"hundred_plain": networks.full(networks.plain, networks.SHORT, {}, **DEMO)}
VARIANTS = {"none": "baseline", "dropout": "dropout", "batch_norm": "batch_norm", "both": "batch_norm_dropout"}
RESIDUAL = {
    f"hundred_{name}": networks.full(ingredients.base(ingredient), (2, 4, 6, 8, 12), {}, **DEMO)
    for name, ingredient in VARIANTS.items()
}
PAPER = {"none": "-1.793", "dropout": "-1.543", "batch_norm": "-1.399", "both": "-1.320"}


def of_hundred(config: networks.Config) -> networks.Config:
    """The same with CIFAR-100 at the paper's scale."""

    def changed(scale: str) -> object:
        own = config(scale)
        if scale == "paper":
            own.data.name = "cifar100"
        return own

    return changed


def outcome(sweeps: Sweeps) -> Outcome:
    """Each law on its own."""
    lines, answers = [], []
    for name, sweep in sweeps.items():
        result = along_depth(sweep)
        trained = [errors[~gone.any(axis=1)] for errors, gone in zip(result.losses, result.diverged, strict=True)]
        best = [1 - np.min(errors.mean(axis=1), initial=1.0) for errors in trained]  # by depth
        accuracy = f"best accuracy {100 * min(best):.1f}% to {100 * max(best):.1f}% (chance {100 / CLASSES:.0f}%)"
        lines.append(f"{name.removeprefix('hundred_').replace('_', ' ')}, {by_both(sweep)}; {accuracy}")
        answers.append(against(result))
    return Outcome(lines, combined(answers))


def table(sweeps: Sweeps) -> str:
    """The verdicts; of what learned nothing the reason alone."""
    parts = []
    for name, sweep in sweeps.items():
        (result,) = (c.result for c in sweep.curves)
        parts.append(f"`{name}`: {result.reason}." if result.verdict == NOTHING else f"`{name}`:\n\n{verdicts(sweep)}")
    return "\n\n".join(parts)


EXPERIMENT = Experiment(
    figure="5",
    claim="plain CNN, 100 classes: the best learning rate falls as depth^-3/2",
    paper="-1.392",
    sweeps={name: of_hundred(config) for name, config in PLAIN.items()},
    outcome=outcome,
    pictures=lambda sweeps: {},
    table=table,
    classes=CLASSES,
)
HUNDRED = Experiment(
    figure="6b, 6d, 7b, 7c",
    claim="ResNet, 100 classes: the exponent stays about -3/2 with dropout, batch norm, both and neither",
    paper=", ".join(f"{slope} ({name.replace('_', ' ')})" for name, slope in PAPER.items()),
    sweeps={name: of_hundred(config) for name, config in RESIDUAL.items()},
    outcome=outcome,
    pictures=lambda sweeps: {},
    table=table,
    classes=CLASSES,
)
IMAGENET = {
    figure: Experiment(
        figure=figure,
        claim=f"{words} on ImageNet: the best learning rate falls as depth^-3/2 (the rows of 100 classes stand in)",
        paper=slope,
        sweeps={name: HUNDRED.sweeps[name] if name in HUNDRED.sweeps else EXPERIMENT.sweeps[name]},
        outcome=outcome,
        pictures=lambda sweeps: {},
        table=table,
        classes=CLASSES,
    )
    for figure, words, slope, name in (
        ("8", "plain CNN", "-1.329", "hundred_plain"),
        ("9", "ResNet with dropout", "-1.663", "hundred_dropout"),
        ("10", "ResNet without batch norm and dropout", "-1.567", "hundred_none"),
    )
}
