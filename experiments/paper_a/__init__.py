"""The figures of the depthwise-transfer paper (A), one module each; `python -m experiments.paper_a` trains and draws.

Figures share trials: each module names the sweeps that it needs, and each sweep is trained once.
"""

from __future__ import annotations

from experiments.figures.figure import Experiment, Paper
from experiments.paper_a import fig1, fig2, fig3, fig4, figb1, figb2, figb3, figm1
from experiments.paper_a.elsewhere import ELSEWHERE

FIGURES: dict[str, Experiment] = {
    "1": fig1.EXPERIMENT,
    "2": fig2.EXPERIMENT,
    "3": fig3.EXPERIMENT,
    "3rule": fig3.RULE,
    "3d": fig3.COSINE,
    "4": fig4.EXPERIMENT,
    "B.1": figb1.EXPERIMENT,
    "footnote2": figb1.FOOTNOTE,
    "B.2": figb2.EXPERIMENT,
    "B.3": figb3.EXPERIMENT,
    "M.1": figm1.EXPERIMENT,
}
PAPER = Paper(
    name="paper_a",
    title='A, "Depthwise hyperparameter transfer"',
    reading="""
*ours* has three things: the drift of the best learning rate, in octaves (factors of 2) a doubling of depth or width,
with its 95% interval, as a description; the verdict; and the cost, by how much the smallest size's best learning rate
raises the loss at the worst of the other sizes, with the 95% interval of that largest cost. The learning rate
*transfers* if at every size it surely costs less than an octave below the optimum would; it *does not transfer* if at
some size it surely costs more, or diverges there; else it is *undecided* ([laws.md](laws.md)). The claims are the
paper's: a row of several is undecided where one of them is, and disagrees where one of them does.
""",
    figures=FIGURES,
    elsewhere=ELSEWHERE,
)
