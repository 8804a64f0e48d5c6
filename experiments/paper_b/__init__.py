"""The figures of the AM-muP paper (B), one module each; `python -m experiments.paper_b` trains and draws.

Figures share trials: each module names the sweeps that it needs, and each sweep is trained once, in this order.
"""

from __future__ import annotations

from experiments.figures.figure import Experiment, Paper
from experiments.paper_b import averages, channels, dispute, fig2a, fig5, theorems, variants, zero_shot

FIGURES: dict[str, Experiment] = {
    "ingredients": dispute.SCREENED,
    "6": variants.FIGURE_6,
    "branches": variants.BRANCHES,
    "2a": fig2a.EXPERIMENT,
    "anchors": fig2a.ANCHORS,
    "2b": dispute.EXPERIMENT,
    "channels": channels.EXPERIMENT,
    "channels_last": channels.LAST,
    "channels_theory": channels.THEORY,
    "averages": averages.EXPERIMENT,
    "rules": zero_shot.EXPERIMENT,
    "3": variants.FIGURE_3,
    "E": variants.STEEPER,
    "4": variants.FIGURE_4,
    "losses": variants.LOSSES,
    "corrections": theorems.CORRECTIONS,
    "width": theorems.WIDTH,
    "hundred": fig5.EXPERIMENT,
}
PAPER = Paper("paper_b", 'B, "Arithmetic-mean muP"', FIGURES)
