"""What the small experiments on CIFAR-10 (JPEG) have in common."""

from __future__ import annotations

from typing import Any

from configs import default


def small(
    family: str, optimizer: str, rates: tuple[float, float], *, depths: tuple[int, ...], base: tuple[int, int]
) -> Any:
    """A config at 16x16 pixels: one epoch at a constant learning rate, three seeds, the adaptive search over depths.

    rates: log2 of the lowest and the highest learning rate. base: (width, depth), which is also the network's shape.
    """
    config = default.get_config(family)
    config.model.width, config.model.depth = base
    config.parameterization.base_width, config.parameterization.base_depth = base
    config.data.name = "folder"
    config.data.image_size = 16
    config.epochs = 1.0
    config.schedule = "constant"
    config.sweep.depths = depths
    config.sweep.widths = ()
    config.sweep.optimizers = (optimizer,)
    config.sweep.log2_learning_rates[optimizer] = rates
    config.sweep.seeds = 3
    config.sweep.adaptive = True
    config.sweep.calibrate = False
    return config
