"""Figure B.2: standard parameterization, with branches scaled by 1/sqrt(depth) and without.

    python -m experiments.paper_a B.2 --data=DIR

Claim (B.3): the best learning rate does not transfer under SP, neither with the scaling nor without it. At a fixed
width SP with the scaling (`depth_sp`) and `depth_mup` differ by constants alone, so that over depth the paper's own
theory has it transfer: the claim about it is one over width. The paper's settings and ours are those of figure 1;
judged as figure 1, all sizes count.

Cost: 228 trainings of 703 steps besides figure 1's, 49 minutes on two cores.
Expect: the best learning rate of sp falls with width and depth, that of depth_sp with width.
"""

from __future__ import annotations

from typing import Any

from experiments.figures.figure import CurveName, Experiment, Sweeps, along, loss_pictures
from experiments.paper_a import fig1


def scaled(scale: str) -> Any:
    config = fig1.simple_resnet(scale)
    config.sweep.parameterizations = ("depth_sp",)
    return config


def pictures(sweeps: Sweeps) -> dict[str, Any]:
    plain = [c for c in sweeps["simple_resnet"].curves if c.parameterization == "sp"]
    return loss_pictures(along(plain + sweeps["depth_sp"].curves, "figb2"))


EXPERIMENT = Experiment.transfers(
    figure="B.2",
    claim="SP transfers over neither width nor depth, with 1/sqrt(depth) not over width",
    sweeps={**fig1.EXPERIMENT.sweeps, "depth_sp": scaled},
    expected={
        CurveName("simple_resnet", "sp", "width"): False,
        CurveName("simple_resnet", "sp"): False,
        CurveName("depth_sp", "depth_sp", "width"): False,
        CurveName("depth_sp", "depth_sp"): None,
    },
    pictures=pictures,
)
