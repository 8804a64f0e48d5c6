"""Figure B.2: standard parameterization, with branches scaled by 1/sqrt(depth) and without.

    python -m experiments.paper_a B.2 --data=DIR

Claim (B.3): the best learning rate does not transfer under SP, neither with the scaling nor without it. The paper's
settings and ours are those of figure 1; `depth_sp` is SP with the scaling.

Cost: 228 trainings of 703 steps besides figure 1's, 49 minutes on two cores.
Expect: the best learning rate of sp falls with width and depth, that of depth_sp with width.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure

from experiments.figures.figure import Experiment, Outcome, Sweeps, along, combined, judged, loss_pictures
from experiments.paper_a import fig1


def scaled(scale: str) -> Any:
    config = fig1.simple_resnet(scale)
    config.sweep.parameterizations = ("depth_sp",)
    return config


def outcome(sweeps: Sweeps) -> Outcome:
    plain = judged(sweeps["simple_resnet"].curves, {("sp", "width"): False, ("sp", "depth"): False})
    ours = judged(sweeps["depth_sp"].curves, {("depth_sp", "width"): False, ("depth_sp", "depth"): False})
    return Outcome([*plain.ours, *ours.ours], combined([plain.verdict, ours.verdict]))


def pictures(sweeps: Sweeps) -> Mapping[str, Figure]:
    curves = [c for c in sweeps["simple_resnet"].curves if c.parameterization == "sp"] + sweeps["depth_sp"].curves
    return loss_pictures(along(curves, "figb2"))


EXPERIMENT = Experiment(
    figure="B.2",
    claim="SP transfers over neither width nor depth, with 1/sqrt(depth) or without",
    paper="so it is",
    sweeps={**fig1.EXPERIMENT.sweeps, "depth_sp": scaled},
    outcome=outcome,
    pictures=pictures,
    remarks="""It is the scaled half that disagrees. With 1/sqrt(depth) the best learning rate of SP does transfer over
depth here: keeping it costs at most .6% [.4, .8], and the edge stays within half an octave. This is to be expected:
at a fixed width depth_sp and depth_mup differ by constants only. Over width the optima of depth_sp do not drift
either, +.01 [-.27, .29] octaves a doubling from 32 to 256. Its edge does fall, by an octave in all, but the optima
are still .75 to 1.7 octaves below it. Without the factor SP transfers over neither: at width 256 and at depths 12 and
24 the edge has come down to the optimum and takes it along.""",
)
