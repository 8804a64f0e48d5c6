"""Figure M.1: branches of two layers whose readouts start at zero, scaled by depth^-1/2 and by depth^-1.

    python -m experiments.paper_a M.1 --data=DIR

Claim (appendix M): both transfer approximately; with depth^-1 deeper networks are better at all times, with depth^-1/2
they are worse early in the training.

            paper (appendix M)                    here
model       ResNets, some layers per branch;      ResNet without norm, branches of two convolutions, 8 channels in the
            sizes lost                            first stage, 6n + 2 layers, n = 1, 2, 4, 8
training    learning rate as depth^(2 alpha - 1)  the same; SGD, batch 64, half an epoch of CIFAR-10 (JPEG), 16x16
seeds       lost                                  3

Cost: about 300 trainings of 352 steps, 20 minutes on two cores.
Expect: early losses that fall with depth under depth_ode and rise under depth_mup.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from depthmup.report import figures
from experiments.figures.figure import AGREES, DISAGREES, Experiment, Outcome, Sweeps, combined, curve_of, judged
from experiments.paper_a import fig2
from experiments.paper_a.fig4 import losses_over_time
from experiments.published import STRETCHES

EARLY = slice(2, STRETCHES // 5)  # the parts of the training that count as early: all losses are equal at its start


def zero_init(scale: str) -> Any:
    config = fig2.resnet(scale)
    config.model.norm = "none"
    config.model.zero_init_branch = True
    config.sweep.parameterizations = ("depth_mup", "depth_ode")
    config.sweep.log2_learning_rates.sgd = (-9.0, 1.0)
    config.sweep.axes = ""
    return config


def outcome(sweeps: Sweeps) -> Outcome:
    curves = sweeps["zero_init"].curves
    transfers = judged(curves, {("depth_mup", "depth"): True, ("depth_ode", "depth"): True})
    ours, agreed = [*transfers.ours], [transfers.verdict]
    for name, claimed in (("depth_mup", "rises"), ("depth_ode", "falls")):
        c = curve_of(curves, "depth", name)
        early = [losses[EARLY].mean() for losses in losses_over_time(c).values()]
        changes = np.diff(early)
        said = "rises" if (changes > 0).all() else "falls" if (changes < 0).all() else "does not go one way"
        if len(early) < len(c.result.values):
            said = "is not known, since some diverge"
        ours.append(f"{name}, early loss over depth {said}: {', '.join(f'{loss:.3f}' for loss in early)}")
        agreed.append(AGREES if said == claimed else DISAGREES)
    return Outcome(ours, combined(agreed))


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
    sweeps={"zero_init": zero_init},
    outcome=outcome,
    pictures=pictures,
)
