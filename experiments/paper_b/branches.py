"""Appendix C.1: deeper branches, bottlenecks, dense layers in a branch.

    python -m experiments.paper_b branches --data=DIR

Claim (C.1.1, C.1.2): branches of m layers, m = o(L), dense or convolutional, leave eta* = Theta(L^-3/2).

            paper                       here
branches    any; no experiment          3x3, 3x3, 3x3; 1x3x1 with a bottleneck of 4; two dense layers; 3x3 and dense
trained     -                           100 steps, with the trials of ingredients.py; judged as in networks.py

A dense layer acts on the channels of each position (a kernel of 1). Out of reach: dense layers over all positions,
groups and dilation, which `ResidualCNN` does not have.

Cost: none besides those of ingredients.py.
Expect: by theory the changes of a branch of m >= 2 layers that all carry 1/sqrt(K) do not grow with the number of
branches, and the exponent is 0; Sbar of finite networks has small positive ones.
"""

from __future__ import annotations

from experiments.paper_b import ingredients
from experiments.paper_b.exponents import Law, experiment

LAWS = {name.replace("_", " "): Law(f"screen_{name}") for name in ("three_layers", "bottleneck", "dense", "conv_dense")}

EXPERIMENT = experiment(
    figure="Appendix C.1",
    claim="ResNets with deeper, bottleneck, dense, mixed branches: exponent -3/2",
    sweeps={law.sweep: ingredients.SCREEN[law.sweep] for law in LAWS.values()},
    laws=LAWS,
    claimed=list(LAWS),
    picture="branches",
    title="Residual networks, 100 steps, by accuracy",
)
