"""Theorem 1: the best learning rate of plain networks does not depend on the width.

    python -m experiments.paper_b width --data=DIR

Claim (3.3): eta*(L) = kappa L^-3/2 with a kappa that does not depend on the channels; "a learning rate tuned at one
width transfers to any other width without retuning". The proof has as many outputs as units and averages the loss over
them; the paper's networks have 10 to 1,000 outputs.

Two heads: am_mup has the paper's readout, weights of variance 1 / N and one learning rate; it alone is judged. Beside
it mup, which the paper does not have: the mean-field readout, a factor 1 / N, and a read-in whose learning rate grows
with the width, so that it keeps moving. Judged by validation accuracy as the paper's figures; all widths count.

            paper                                here
widths      arbitrary                            8 to 64 channels, 4 layers, 8x8 pixels
training    experiments/paper_b/networks.py      the same

Cost: about 170 trainings of 351 steps, 70 minutes on two cores.
Expect: under mup it stays, under am_mup it falls about as width^-1/2, as Sbar = 1 does at initialization
(docs/theory.md, section 6).
"""

from __future__ import annotations

from typing import Any

from experiments.figures.figure import CurveName, Experiment, loss_pictures
from experiments.paper_b import networks

HEADS = ("am_mup", "mup")
WIDTHS = {"demo": (8, 16, 32, 64), "paper": (64, 128, 256, 512)}


def plain_width(scale: str) -> Any:
    config = networks.plain(scale, {}, {"sweep.log2_learning_rates.sgd": networks.RATES})
    config.model.update(depth=4, width=WIDTHS[scale][0])
    config.parameterization.base_width = WIDTHS[scale][0]
    config.sweep.update(parameterizations=HEADS, depths=(), widths=WIDTHS[scale])
    return config


EXPERIMENT = Experiment.transfers(
    figure="Theorem 1",
    claim="plain CNNs, as many outputs as units: the width does not matter",
    sweeps={"plain_width": plain_width},
    expected={CurveName("plain_width", "am_mup", "width"): True, CurveName("plain_width", "mup", "width"): None},
    pictures=lambda sweeps: loss_pictures({"theorem1": sweeps["plain_width"].curves}),
)
