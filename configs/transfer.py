"""Residual MLPs on handwritten digits, until decided: a sweep of 4 minutes.

    python main.py sweep --config=configs/transfer.py --workdir=runs/digits_transfer      (make transfer)
    python main.py sweep --config=configs/transfer.py:whole --workdir=runs/digits_whole   (every rate of its grid)

Cost: 4,362 trainings of 88 steps, of the whole grid 7,020: from the second size on only the rates around the best one
of the size before are trained. Four minutes on two CPU cores, of the whole grid nine.
Result (docs/laws.md): the best learning rates of sp and mup do not transfer over depth, and that of sp with Adam not
over width; those of depth_mup transfer.
One label in twenty is drawn anew at every step: so the losses of the best networks are no noise, and the best
rate of SGD does not lie right below divergence. The rate decays linearly to 0.
"""

from ml_collections import config_dict

from configs import digits


def get_config(grid: str = "around") -> config_dict.ConfigDict:
    if grid not in ("around", "whole"):
        raise ValueError(f"unknown grid {grid!r} behind the colon of --config=transfer: (known: around, whole)")
    config = digits.get_config()
    config.label_noise = 0.05
    config.epochs = 4.0
    config.sweep.depths = (2, 4, 8, 16)
    config.sweep.per_octave = 3
    config.sweep.log2_learning_rates.adam = (-9.5, -3.5)
    config.sweep.adaptive = grid == "around"
    config.sweep.until = "decided"
    return config
