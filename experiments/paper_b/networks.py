"""The networks of paper B and their training, smaller than the paper's; every sweep changes one of them.

                paper (4.1 to 4.3)                       here
images          CIFAR-10, 32x32                          CIFAR-10 (JPEG), 16x16 (residual) and 8x8 (plain networks)
channels        64                                       8 (residual), 16 (plain)
depths          3 to 30, anchors in each segment         12 of them (plain); 2 to 24 blocks (residual)
training        SGD without momentum, batch 128,         the same; screens stop after 100 steps
                one epoch
learning rates  40 from 1e-4 to 10                       half octaves
best by         validation accuracy                      validation accuracy, and the training loss beside it
seeds           not given                                3; screens 2

All figures are judged by validation accuracy, as the paper's are; losses stand beside it. A depth counts by a measure
if a network there is surely better than chance by it (`Curve.learned` of depthmup.fit, the rule of every verdict): what
is best of networks that guess is noise. The loss of the first steps has no chance to compare with: there all depths
count.

Why: a circular convolution of 64 channels on 32x32 pixels takes 250 times the operations of one of 8 on 16x16. The
plain networks have more channels on fewer pixels: their features scatter between seeds as depth / width, and there is
no skip that keeps them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from configs import papers

STEPS = 351  # of batch 128 in an epoch of 45,000 images
SCREEN_DEPTHS = (2, 4, 8, 16, 24)
FULL_DEPTHS = (2, 3, 4, 6, 8, 12, 16, 24)
ANCHORED = (3, 4, 6, 9, 10, 11, 13, 16, 18, 20, 24, 30)  # both anchors of each segment, two or more depths to predict
SHORT = (3, 4, 6, 9, 13)
RATES = (-5.0, 2.0)  # log2, of the smallest depth; the adaptive search follows the optimum from there
Config = Callable[[], Any]
Changes = Mapping[str, Any]  # {key of a config, with dots: its value}


def residual(changes: Changes) -> Any:
    """A config of a residual network."""
    return _config("residual_cnn", {"model.width": 8, "data.image_size": 16, "model.depth": 2, **changes})


def plain(changes: Changes) -> Any:
    """A config of a plain network."""
    return _config("cnn", {"model.width": 16, "data.image_size": 8, "model.depth": 3, **changes})


def _config(model: str, changes: Changes) -> Any:
    config = papers.paper_b(model, "cifar10")
    config.data.name = "folder"
    config.sweep.update(axes="", adaptive=True, calibrate=False)
    config.update_from_flattened_dict(dict(changes))
    return config


def full(base: Callable[[Changes], Any], depths: tuple[int, ...], changes: Changes) -> Config:
    """One epoch of these networks at these depths."""
    return functools.partial(base, {"sweep.depths": depths, "sweep.log2_learning_rates.sgd": RATES, **changes})


def screen(base: Callable[[Changes], Any], depths: tuple[int, ...], changes: Changes) -> Config:
    """100 steps, two seeds."""
    return full(base, depths, {"epochs": 100 / STEPS, "sweep.seeds": 2, **changes})
