"""The figures of the depthwise-transfer paper (A), one module each; `python -m experiments.paper_a` trains and draws.

Figures share trials: each module names the sweeps that it needs, and each sweep is trained once.
"""

from __future__ import annotations

from experiments.figures.figure import Experiment, Paper
from experiments.paper_a import fig1, fig2, fig3, fig4, figb1, figb3, figm1, more

FIGURES: dict[str, Experiment] = {
    "1": fig1.EXPERIMENT,
    "2": fig2.EXPERIMENT,
    "3": fig3.EXPERIMENT,
    "3rule": fig3.RULE,
    "3d": fig3.COSINE,
    "4": fig4.EXPERIMENT,
    "B.1": figb1.EXPERIMENT,
    "footnote2": figb1.FOOTNOTE,
    "B.2": fig1.SP,
    "B.3": figb3.EXPERIMENT,
    "M.1": figm1.EXPERIMENT,
}
PAPER = Paper("paper_a", 'A, "Depthwise hyperparameter transfer"', FIGURES, more.MORE)
