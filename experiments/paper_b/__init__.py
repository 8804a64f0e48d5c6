"""The figures of the AM-muP paper (B), one module each; `python -m experiments.paper_b` trains and draws.

Figures share trials: each module names the sweeps that it needs, and each sweep is trained once, in this order.
"""

from __future__ import annotations

from experiments.figures.figure import Experiment, Paper
from experiments.paper_b import (
    averages,
    branches,
    channels,
    dispute,
    fig2a,
    fig3,
    fig4,
    fig5,
    fig6,
    losses,
    theorem1,
    theorem2,
    zero_shot,
)
from experiments.paper_b.elsewhere import ELSEWHERE

FIGURES: dict[str, Experiment] = {
    "ingredients": dispute.SCREENED,
    "6": fig6.EXPERIMENT,
    "branches": branches.EXPERIMENT,
    "2a": fig2a.EXPERIMENT,
    "anchors": fig2a.ANCHORS,
    "2b": dispute.EXPERIMENT,
    "channels": channels.EXPERIMENT,
    "averages": averages.EXPERIMENT,
    "rules": zero_shot.EXPERIMENT,
    "3": fig3.EXPERIMENT,
    "E": fig3.STEEPER,
    "4": fig4.EXPERIMENT,
    "losses": losses.EXPERIMENT,
    "corrections": theorem2.EXPERIMENT,
    "width": theorem1.EXPERIMENT,
    "5": fig5.EXPERIMENT,
    "hundred": fig5.HUNDRED,
    **fig5.IMAGENET,
}
PAPER = Paper(
    name="paper_b",
    title='B, "Arithmetic-mean muP"',
    reading="""
*ours* has the exponent of the best learning rate over depth with its 95% interval, once by validation accuracy as in
the paper and once by the training loss, never from fewer than five depths, and only from those at which a network is
surely better than chance ([laws.md](laws.md)); the interval comes from the scatter about the line. "At the edge": the
best learning rate is within a grid step of the *edge*, above which training is not possible. An octave is a factor of
2. A claim about an exponent *agrees* if the interval holds it and nothing as far as .5 from it, *disagrees* if the
interval excludes it, and is *undecided* otherwise. A row of several claims disagrees if one of them does: of 18 true
ones at least one is excluded by chance in three cases of five. The drifts below a figure are fitted without weights and
at all depths, learned or not, and differ from the exponents; verdicts there are about the same learning rate at all
depths.

K is the number of residual blocks, which the paper and this page call the depth of a residual network; a layer of a
branch *carries the 1/K* if its weights start with variance c / (K fan_in). Sbar is the mean over layers of the squared
change of their outputs after one step; AM-muP's criterion is Sbar = 1. Sharpness is the largest eigenvalue of the
loss's Hessian, and gradient descent is unstable at learning rates above 2 / sharpness. PathSum is the sum of length^3
over all paths from input to output; an earlier rule is eta ~ PathSum^-1/2 ([rules.md](rules.md), section 5).

Images are those of CIFAR-10 (as JPEGs) unless the row says otherwise; residual networks have 8 channels on 16x16
pixels, plain ones 16 channels on 8x8. Sweeps named `screen_`, those of [theorem 2](#theorem-2) and those of 100 classes
train for 100 steps with two seeds, others for an epoch with three. The sweeps of 100 classes (`hundred_`) have 8
channels on 32x32 pixels.
""",
    figures=FIGURES,
    elsewhere=ELSEWHERE,
)
