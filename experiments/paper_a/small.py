"""What the small experiments on CIFAR-10 (JPEG) have in common."""

from __future__ import annotations

from typing import Any

import numpy as np

from configs import default
from depthmup.report.curves import TransferCurve
from experiments.published import SCALE, STRETCHES

TIMES = 10  # equal parts of the training


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


def over_time(c: TransferCurve, size: float) -> tuple[np.ndarray, np.ndarray]:
    """(learning rates, mean training losses (TIMES, rates, seeds)) of one size; NaN after divergence."""
    trials = c.at(size)
    losses = np.full((len(trials), STRETCHES), np.nan)
    for row, curve in zip(losses, trials["curve"], strict=True):
        row[: len(curve)] = np.asarray(curve) / SCALE
    rates = trials["learning_rate"].unique()
    of_time = losses.reshape(len(rates), -1, TIMES, STRETCHES // TIMES).mean(axis=-1)
    return rates, np.moveaxis(of_time, -1, 0)


def in_tenth(c: TransferCurve, size: float, tenth: int) -> list[dict[str, Any]]:
    """Rows of one size with the loss in one tenth of the training, the first being 1."""
    rates, of_time = over_time(c, size)
    return [
        {c.axis: size, "tenth": tenth, "learning_rate": rate, "seed": seed, "loss": loss, "diverged": np.isnan(loss)}
        for rate, losses in zip(rates, of_time[tenth - 1], strict=True)
        for seed, loss in enumerate(losses)
    ]
