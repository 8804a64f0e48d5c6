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
    "hundred": fig5.EXPERIMENT,
}
PAPER = Paper("paper_b", 'B, "Arithmetic-mean muP"', FIGURES)
