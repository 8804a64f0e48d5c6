"""Figure M.1: branches of two layers whose readouts start at zero, scaled by depth^-1/2 and by depth^-1.

    python -m experiments.paper_a M.1 --data=DIR

Claim (appendix M): both transfer approximately; with depth^-1 deeper networks are better at all times, with depth^-1/2
they are worse early in the training.

            paper (appendix M)                    here
model       ResNets, some layers per branch;      ResNet without norm, branches of two convolutions, 8 channels in the
            sizes lost                            first stage, 6n + 2 layers, n = 1, 2, 4, 8
training    learning rate as depth^(2 alpha - 1)  the same; SGD, batch 64, half an epoch of CIFAR-10 (JPEG), 16x16
seeds       lost                                  3; 12 for the first tenth of an epoch, at five learning rates

Early: from 5% to 20% of the training; at the end: its last tenth; both with the learning rate that is best for n = 1.
Of depth^-1 the claim is about all times: it is refuted where the loss rises with depth both early and at the end, since
early alone the two exponents can hardly differ. Transfer is judged by the loss of the last step. All depths count.

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

from depthmup.fit.transfer import nearest
from depthmup.report import figures
from experiments.figures.figure import (
    AGREES,
    DISAGREES,
    UNDECIDED,
    Experiment,
    Interval,
    Outcome,
    Sweeps,
    curve_of,
    curve_table,
    markdown,
    paired,
    says,
)
from experiments.paper_a import fig2
from experiments.paper_a.fig4 import draw_losses
from experiments.published import STRETCHES

EARLY = slice(STRETCHES // 4, None)  # of the first fifth of the training: all losses are equal at its start
LATE = slice(-STRETCHES // 10, None)


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


def growth(rows: pandas.DataFrame, part: slice = EARLY) -> Interval:
    """By how much the loss in a part of the training grows with every doubling of depth, as a share, with its 95%
    interval.

    rows: of one learning rate. All seeds have the same images in the same order at every depth, so that each gives a
    slope; their scatter gives the interval. NaN if a training diverges.
    """
    if rows["diverged"].any():
        return Interval(math.nan, math.nan, math.nan)
    losses = rows.assign(loss=[np.asarray(curve)[part].mean() for curve in rows["curve"]])
    table = losses.pivot(index="depth", columns="seed", values="loss").dropna(axis="columns")
    return paired(np.polyfit(np.log2(table.index), np.log(table.to_numpy()), 1)[0])


def of_time(sweeps: Sweeps, name: str) -> dict[str, tuple[str, str]]:
    """{when: (growth of the loss in words, "rises", "falls" or "undecided")} at the best learning rate of n = 1."""
    best, growths = curve_of(sweeps["zero_init"].curves, "depth", name).result.optimal_lr[0], {}
    for when, sweep, part in (("early", "zero_init_early", EARLY), ("at the end", "zero_init", LATE)):
        rows = curve_of(sweeps[sweep].curves, "depth", name).trials
        rates = np.unique(rows["learning_rate"])
        change = growth(rows[rows["learning_rate"] == rates[nearest(rates, best or np.median(rates))]], part)
        way = "rises" if change.low > 0 else "falls" if change.high < 0 else "undecided"
        growths[when] = f"{change.text('+.2%')}, {way}", way
    return growths


def between(sweeps: Sweeps) -> str:
    """By how much the last tenth's loss of the deepest network is higher under depth_ode, at rates that train both."""
    mup, ode = (curve_of(sweeps["zero_init"].curves, "depth", name) for name in ("depth_mup", "depth_ode"))
    tables = [
        c.at(max(c.result.values)).pivot(index="learning_rate", columns="seed", values="last_loss") for c in (mup, ode)
    ]
    ratios = np.log(tables[1] / tables[0]).dropna()
    words = ", ".join(f"{paired(row).text('+.1%')} at 2^{math.log2(rate):g}"
                      for rate, row in zip(ratios.index, ratios.to_numpy(), strict=True))  # fmt: skip
    return f"Loss of depth_ode against depth_mup at n = 8 in the last tenth: {words}."


def outcome(sweeps: Sweeps) -> Outcome:
    curves = [curve_of(sweeps["zero_init"].curves, "depth", name) for name in ("depth_mup", "depth_ode")]
    parts, rows = [says(c) for c in curves], []
    for name in ("depth_mup", "depth_ode"):
        growths = of_time(sweeps, name)
        ways = [way for _, way in growths.values()]
        rows.append((name, *(text for text, _ in growths.values())))
        if name == "depth_mup":
            answer = {"rises": AGREES, "falls": DISAGREES}.get(ways[0], UNDECIDED)
        else:
            answer = AGREES if set(ways) == {"falls"} else DISAGREES if set(ways) == {"rises"} else UNDECIDED
        parts.append((f"{name}: loss {growths['early'][0]} for every doubling of the depth", answer))
    growth_table = markdown(("loss for a doubling of depth", "early", "at the end"), rows)
    return Outcome.of(parts, f"{curve_table({c.name: c for c in curves})}\n\n{growth_table}")


def pictures(sweeps: Sweeps) -> Mapping[str, Figure]:
    curves = sweeps["zero_init"].curves
    over_rate = figures.loss_curves(curves)
    assert over_rate
    figure = Figure(figsize=(8, 3.8), layout="constrained")
    for panel, c in zip(figure.subplots(1, 2, sharey=True), curves, strict=True):
        draw_losses(panel, c, "n =", "share of the training")
        panel.set_ylabel("training loss")
    figure.suptitle("Training loss at every depth with the best learning rate of n = 1")
    return {"figm1": over_rate, "figm1_dynamics": figure}


EXPERIMENT = Experiment(
    figure="M.1",
    claim="zero-initialized branches: alpha 1/2 and 1 transfer; deeper is better with 1, early worse with 1/2",
    sweeps={"zero_init": zero_init, "zero_init_early": early},
    outcome=outcome,
    pictures=pictures,
    printed=between,
)
