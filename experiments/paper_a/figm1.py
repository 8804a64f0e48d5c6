"""Figure M.1: branches of two layers whose readouts start at zero, scaled by depth^-1/2 and by depth^-1.

    python -m experiments.paper_a M.1 --data=DIR

Claim (appendix M): both transfer approximately; with depth^-1 deeper networks are better at all times, with depth^-1/2
they are worse early in the training.

The paper has ResNets with some layers per branch and the learning rate as depth^(2 alpha - 1); sizes are lost. Here:
figure 2's networks and training without a norm; 3 seeds, and 12 for the first tenth of an epoch, at five learning
rates. Early: from 5% to 20% of the training; at the end: its last tenth; both with the learning rate that is best for
n = 1. Of depth^-1 the claim is about all times: it is refuted where the loss rises with depth early or at the end, by
the rule of the first rows (a later one asked for both). Transfer is judged by the loss of the last step. All depths
count.

Cost: 438 trainings of 352 steps, 40 minutes on two cores, and 480 of 70 steps, 20 minutes.
Expect: early losses that fall with depth under depth_ode and rise under depth_mup.

More seeds: three left both undecided (1.0% [.0, 3.2] and .4% [.0, 1.0]); they get seeds until decided, up to 24.
Prediction, written before them: both transfer. Outcome: both do, at .5% [.0, 1.9] and .2% [.0, .8].
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas
from matplotlib.figure import Figure

from depthmup.fit.transfer import nearest_point
from experiments.figures.figure import Experiment, Outcome, Sweeps, curve, curve_table, loss_pictures, says
from experiments.output import Interval, decided, markdown, paired
from experiments.paper_a import fig2
from experiments.paper_a.fig4 import dynamics
from experiments.published import STRETCHES

NAMES = ("depth_mup", "depth_ode")
EARLY = slice(STRETCHES // 4, None)  # of the first fifth of the training: all losses are equal at its start
LATE = slice(-STRETCHES // 10, None)


def zero_init() -> Any:
    config = fig2.resnet()
    config.model.norm = "none"
    config.model.zero_init_branch = True
    config.sweep.update(parameterizations=NAMES, axes="", log2_learning_rates={"sgd": (-9.0, 1.0)}, until="decided")
    return config


def early() -> Any:
    config = zero_init()
    config.epochs /= 5
    config.sweep.update(until="planned", adaptive=False, seeds=12, log2_learning_rates={"sgd": (-2.5, -0.5)})
    return config


def growth(rows: pandas.DataFrame, part: slice = EARLY) -> Interval:
    """By how much the loss in a part of the training grows with every doubling of depth, as a share, with its 95%
    interval.

    rows: of one learning rate. All seeds have the same images in the same order at every depth, so that each gives a
    slope; their scatter gives the interval. NaN if a training diverges.
    """
    if rows["diverged"].any():
        return Interval(*[math.nan] * 3)
    losses = rows.assign(loss=[np.asarray(curve)[part].mean() for curve in rows["curve"]])
    table = losses.pivot(index="depth", columns="seed", values="loss").dropna(axis="columns")
    return paired(np.polyfit(np.log2(table.index), np.log(table.to_numpy()), 1)[0])


def of_time(sweeps: Sweeps, name: str) -> dict[str, tuple[str, str]]:
    """{when: (growth of the loss in words, "rises", "falls" or "undecided")} at the best learning rate of n = 1."""
    best, growths = curve(sweeps, "zero_init", name).result.optimal_lr[0], {}
    for when, sweep, part in (("early", "zero_init_early", EARLY), ("at the end", "zero_init", LATE)):
        rows = curve(sweeps, sweep, name).trials
        rates = np.unique(rows["learning_rate"])
        change = growth(rows[rows["learning_rate"] == rates[nearest_point(rates, best or np.median(rates))]], part)
        way = "rises" if change.low > 0 else "falls" if change.high < 0 else "undecided"
        growths[when] = f"{change.text('+.2%')}, {way}", way
    return growths


def between(sweeps: Sweeps) -> str:
    """By how much the last tenth's loss of the deepest network is higher under depth_ode, at rates that train both."""
    curves = (curve(sweeps, "zero_init", name) for name in NAMES)
    deepest = (c.at(max(c.result.values)) for c in curves)
    mup, ode = (rows.pivot(index="learning_rate", columns="seed", values="last_loss") for rows in deepest)
    ratios = np.log(ode / mup).dropna()
    pairs = zip(ratios.index, ratios.to_numpy(), strict=True)
    words = ", ".join(f"{paired(row).text('+.1%')} at 2^{math.log2(rate):g}" for rate, row in pairs)
    return f"Loss of depth_ode against depth_mup at n = 8 in the last tenth: {words}."


def outcome(sweeps: Sweeps) -> Outcome:
    curves = {name: curve(sweeps, "zero_init", name) for name in NAMES}
    growths = {name: of_time(sweeps, name) for name in NAMES}
    (early, _), ode = growths["depth_mup"].values(), {way for _, way in growths["depth_ode"].values()}
    answers = decided(early[1] == "rises", early[1] == "falls"), decided(ode == {"falls"}, "rises" in ode)
    parts = [says(c) for c in curves.values()]
    parts += [(f"{name}: loss {growths[name]['early'][0]} for every doubling of the depth", answer)
              for name, answer in zip(NAMES, answers, strict=True)]  # fmt: skip
    rows = [(name, *(text for text, _ in by_time.values())) for name, by_time in growths.items()]
    growth_table = markdown(("loss for a doubling of depth", "early", "at the end"), rows)
    return Outcome.of(parts, f"{curve_table(curves)}\n\n{growth_table}")


def pictures(sweeps: Sweeps) -> Mapping[str, Figure]:
    curves = sweeps["zero_init"].curves
    return loss_pictures({"figm1": curves}) | dynamics(curves, "figm1_dynamics")


EXPERIMENT = Experiment(
    figure="M.1",
    claim="zero-initialized branches: alpha 1/2 and 1 transfer; deeper is better with 1, early worse with 1/2",
    sweeps={"zero_init": zero_init, "zero_init_early": early},
    outcome=outcome,
    pictures=pictures,
    printed=between,
)
