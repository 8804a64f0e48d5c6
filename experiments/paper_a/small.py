"""What the small experiments on CIFAR-10 (JPEG) have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from configs import default
from depthmup.trials.verdicts import TransferCurve
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


def by_tenth(curve: Sequence[int]) -> np.ndarray:
    """(TIMES,) mean training losses of one trial; NaN after divergence."""
    losses = np.full(STRETCHES, np.nan)
    losses[: len(curve)] = np.asarray(curve) / SCALE
    return losses.reshape(TIMES, -1).mean(axis=-1)


def over_time(c: TransferCurve, size: float) -> tuple[np.ndarray, np.ndarray]:
    """(learning rates, losses (TIMES, rates, seeds)) of one size, by the seeds that every learning rate has."""
    by_rate = c.at(size).sort_values("seed").groupby("learning_rate")["curve"]
    curves = {rate: [*map(by_tenth, curves)] for rate, curves in by_rate}
    seeds = min(map(len, curves.values()))
    losses = np.array([of_rate[:seeds] for of_rate in curves.values()])
    return np.array([*curves]), np.moveaxis(losses, -1, 0)


def in_tenth(c: TransferCurve, size: float, tenth: int) -> list[dict[str, Any]]:
    """Rows of one size with the loss in one tenth of the training, the first being 1."""
    rows = []
    for rate, seed, curve in c.at(size)[["learning_rate", "seed", "curve"]].itertuples(index=False):
        loss = by_tenth(curve)[tenth - 1]
        row = {c.axis: size, "tenth": tenth, "learning_rate": rate, "seed": seed}
        rows.append({**row, "loss": loss, "diverged": np.isnan(loss)})
    return rows
