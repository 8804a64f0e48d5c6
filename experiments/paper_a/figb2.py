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

from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure

from experiments.figures.figure import (
    Experiment,
    Outcome,
    Sweeps,
    along,
    combined,
    curve_of,
    judged,
    loss_pictures,
    words,
)
from experiments.paper_a import fig1


def scaled(scale: str) -> Any:
    config = fig1.simple_resnet(scale)
    config.sweep.parameterizations = ("depth_sp",)
    return config


def outcome(sweeps: Sweeps) -> Outcome:
    """Over depth the scaled networks are shown and not judged."""
    plain = judged(sweeps["simple_resnet"].curves, {("sp", "width"): False, ("sp", "depth"): False})
    over_width = judged(sweeps["depth_sp"].curves, {("depth_sp", "width"): False})
    over_depth = f"not claimed: {words(curve_of(sweeps['depth_sp'].curves, 'depth', 'depth_sp'))}"
    return Outcome([*plain.ours, *over_width.ours, over_depth], combined([plain.verdict, over_width.verdict]))


def pictures(sweeps: Sweeps) -> Mapping[str, Figure]:
    curves = [c for c in sweeps["simple_resnet"].curves if c.parameterization == "sp"] + sweeps["depth_sp"].curves
    return loss_pictures(along(curves, "figb2"))


EXPERIMENT = Experiment(
    figure="B.2",
    claim="SP transfers over neither width nor depth; with 1/sqrt(depth) it does not transfer over width",
    paper="so it is",
    sweeps={**fig1.EXPERIMENT.sweeps, "depth_sp": scaled},
    outcome=outcome,
    pictures=pictures,
    remarks="""Without the factor the optimum of SP falls with the depth: at 12 and 24 blocks the edge has come down to
it and takes it along. At width 256 the best learning rate of width 32 lies between one that trains and one that does
not. With the factor the optima do not drift over width from 32 to 256; the edge does fall, by an octave in all, and at
width 256 the best learning rate is the last one that trains. Wider networks would decide.""",
)
