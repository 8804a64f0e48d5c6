"""Figures 8, 9 and 10: ImageNet.

    python -m experiments.tiny_imagenet_folder SOURCE DIR100
    python -m experiments.paper_b 8 9 10 --data=DIR100
    python main.py sweep --config=configs/imagenet_cnn.py               (the paper's scale; imagenet_residual_cnn.py)

Claim (D.3): on ImageNet the slopes are -1.329 (plain networks), -1.663 (residual ones with dropout) and -1.567
(residual ones without batch norm and dropout).

            paper                                 here
images      ImageNet, 64x64                       100 classes of Tiny ImageNet, 50 images of each: 4,000 at 32x32
training    an epoch                              100 steps of batch 128, two seeds
networks    experiments/paper_b/networks.py       the same, 8 channels; 3 to 13 layers, 2 to 12 blocks

At the paper's scale a CPU of 1e11 operations a second needs 5 years for figure 8 and 12 for each other (`--dry_run` of
the configs): a machine with accelerators is what would decide.

Cost: 3 sweeps of about 100 trainings of 100 steps, an hour and a half on two cores.
Expect: as with 10 classes after 100 steps: steep for plain networks, flat for residual ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure

from configs import imagenet_cnn, imagenet_residual_cnn
from experiments.figures.figure import Experiment, Outcome, Sweeps
from experiments.paper_b import exponents, ingredients, networks
from experiments.paper_b.exponents import against, along_depth, by_both
from experiments.paper_b.fig5 import CLASSES

EPOCH = 4000 // 128  # steps
DEMO = {"epochs": 100 / EPOCH, "model__width": 8, "data__image_size": 32, "sweep__seeds": 2}
PLAIN = networks.full(networks.plain, networks.SHORT, {}, **DEMO)
RESIDUAL = {
    name: networks.full(ingredients.base(name), (2, 4, 6, 8, 12), {}, **DEMO) for name in ("dropout", "baseline")
}


def plain(scale: str) -> Any:
    return imagenet_cnn.get_config() if scale == "paper" else PLAIN(scale)


def dropout(scale: str) -> Any:
    return imagenet_residual_cnn.get_config() if scale == "paper" else RESIDUAL["dropout"](scale)


def residual(scale: str) -> Any:
    config = imagenet_residual_cnn.get_config() if scale == "paper" else RESIDUAL["baseline"](scale)
    config.model.dropout = 0.0
    return config


def outcome(sweeps: Sweeps) -> Outcome:
    (sweep,) = sweeps.values()
    return Outcome([by_both(sweep)], against(along_depth(sweep)))


def pictures(sweeps: Sweeps) -> Mapping[str, Figure]:
    ((name, sweep),) = sweeps.items()
    return {name: exponents.pictures({name.replace("_", " "): along_depth(sweep)}, "100 classes, by accuracy")}


EXPERIMENTS = {
    figure: Experiment(
        figure=figure,
        claim=f"{words} on ImageNet: the best learning rate falls as depth^-3/2",
        paper=slope,
        sweeps={name: config},
        outcome=outcome,
        pictures=pictures,
        classes=CLASSES,
    )
    for figure, words, slope, name, config in (
        ("8", "plain CNN", "-1.329", "imagenet_plain", plain),
        ("9", "ResNet with dropout", "-1.663", "imagenet_dropout", dropout),
        ("10", "ResNet without batch norm and dropout", "-1.567", "imagenet_residual", residual),
    )
}
