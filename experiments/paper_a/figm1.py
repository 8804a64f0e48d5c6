"""Figure M.1: branches of two layers whose readouts start at zero, scaled by depth^-1/2 and by depth^-1.

    python -m experiments.paper_a M.1 --data=DIR

Claim (appendix M): both transfer approximately; with depth^-1 deeper networks are better at all times, with depth^-1/2
they are worse early in the training.

            paper (appendix M)                    here
model       ResNets, some layers per branch;      ResNet without norm, branches of two convolutions, 8 channels in the
            sizes lost                            first stage, 6n + 2 layers, n = 1, 2, 4, 8
training    learning rate as depth^(2 alpha - 1)  the same; SGD, batch 64, half an epoch of CIFAR-10 (JPEG), 16x16
seeds       lost                                  3; 12 for the first tenth of an epoch, at five learning rates

Early: from 5% to 20% of the training, with the learning rate that is best for n = 1.

Cost: 270 trainings of 352 steps, 25 minutes on two cores, and 480 of 70 steps, 20 minutes.
Expect: early losses that fall with depth under depth_ode and rise under depth_mup.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas
from matplotlib.figure import Figure

from depthmup.fit.curve import half_width
from depthmup.fit.transfer import nearest
from depthmup.report import figures
from experiments.figures.figure import (
    AGREES,
    DISAGREES,
    UNDECIDED,
    Experiment,
    Outcome,
    Sweeps,
    combined,
    curve_of,
    judged,
    verdicts,
)
from experiments.paper_a import fig2
from experiments.paper_a.fig4 import losses_over_time
from experiments.published import STRETCHES

EARLY = slice(STRETCHES // 4, None)  # of the first fifth of the training: all losses are equal at its start


def zero_init(scale: str) -> Any:
    config = fig2.resnet(scale)
    config.model.norm = "none"
    config.model.zero_init_branch = True
    config.sweep.parameterizations = ("depth_mup", "depth_ode")
    config.sweep.log2_learning_rates.sgd = (-9.0, 1.0)
    config.sweep.axes = ""
    return config


def early(scale: str) -> Any:
    config = zero_init(scale)
    if scale != "paper":
        config.epochs /= 5
    config.sweep.log2_learning_rates.sgd = (-2.5, -0.5)
    config.sweep.adaptive = False
    config.sweep.seeds = 12
    return config


def growth(rows: pandas.DataFrame) -> tuple[float, float, float]:
    """By how much the early loss grows with every doubling of depth, as a share of it, with its 95% interval.

    rows: of one learning rate. All seeds have the same images in the same order at every depth, so that each gives a
    slope; their scatter gives the interval. NaN if a training diverges.
    """
    if rows["diverged"].any():
        return math.nan, math.nan, math.nan
    losses = rows.assign(loss=[np.asarray(curve)[EARLY].mean() for curve in rows["curve"]])
    table = losses.pivot(index="depth", columns="seed", values="loss").dropna(axis="columns")
    slopes = np.polyfit(np.log2(table.index), np.log(table.to_numpy()), 1)[0]
    half = half_width(len(slopes) - 1) * slopes.std(ddof=1) / math.sqrt(len(slopes))
    return float(slopes.mean()), float(slopes.mean() - half), float(slopes.mean() + half)


def outcome(sweeps: Sweeps) -> Outcome:
    curves = sweeps["zero_init"].curves
    transfers = judged(curves, {("depth_mup", "depth"): True, ("depth_ode", "depth"): True})
    ours, agreed = [*transfers.ours], [transfers.verdict]
    for name, claimed in (("depth_mup", "rises"), ("depth_ode", "falls")):
        best = curve_of(curves, "depth", name).result.optimal_lr[0]
        rows = curve_of(sweeps["zero_init_early"].curves, "depth", name).trials
        rates = np.unique(rows["learning_rate"])
        change, low, high = growth(rows[rows["learning_rate"] == rates[nearest(rates, best or np.median(rates))]])
        said = "rises" if low > 0 else "falls" if high < 0 else "is undecided"
        ours.append(f"{name}, early loss: {change:+.2%} [{low:+.2%}, {high:+.2%}] for every doubling of depth, {said}")
        agreed.append(UNDECIDED if said == "is undecided" else AGREES if said == claimed else DISAGREES)
    return Outcome(ours, combined(agreed))


def table(sweeps: Sweeps) -> str:
    """Of the whole trainings alone: five learning rates of a tenth of an epoch say nothing of the best one."""
    return verdicts(sweeps["zero_init"])


def pictures(sweeps: Sweeps) -> Mapping[str, Figure]:
    curves = sweeps["zero_init"].curves
    over_rate = figures.loss_curves(curves)
    assert over_rate
    figure = Figure(figsize=(8, 3.8), layout="constrained")
    for panel, c in zip(figure.subplots(1, 2, sharey=True), curves, strict=True):
        for size, losses in losses_over_time(c).items():
            panel.plot((np.arange(STRETCHES) + 0.5) / STRETCHES, losses, label=f"n = {size:g}", lw=1.4)
        panel.set_title(c.parameterization)
        panel.set_xlabel("share of the training")
        panel.set_ylabel("training loss")
        panel.legend(fontsize=8)
    figure.suptitle("Training loss at every depth with the best learning rate of n = 1")
    return {"figm1": over_rate, "figm1_dynamics": figure}


EXPERIMENT = Experiment(
    figure="M.1",
    claim="zero-initialized branches: alpha 1/2 and 1 both transfer; deeper is better with 1, worse early with 1/2",
    paper="so it is",
    sweeps={"zero_init": zero_init, "zero_init_early": early},
    outcome=outcome,
    pictures=pictures,
    table=table,
    remarks="""What disagrees is the early loss. It rises with depth under both, by .3 to .5% a doubling at four of five
learning rates (undecided at the largest), under depth_ode no less than under depth_mup. As long as the last layers of
the branches are near zero, the two can hardly differ: the first layers have almost no gradient, and a step of the last
ones moves the stream by the number of branches times the square of their factor times the learning rate, which is
depth x depth^(-2 alpha) x depth^(2 alpha - 1) = 1 for both. A difference needs first layers that move, and so a longer
training than half an epoch, or learning rates with another power of depth; the paper's settings are lost.""",
)
