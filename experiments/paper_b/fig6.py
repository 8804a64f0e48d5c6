"""Figures 6a, 6c and 7a: residual networks with dropout, batch norm, both and neither, on 10 classes.

    python -m experiments.paper_b 6 --data=DIR

Claim (D.2): the exponent stays: -1.568 with dropout, -1.869 with batch norm, -1.803 with both; "the depth-learning-rate
rule is robust to these regularizers".

Settings, the paper's beside those used here, and how it is judged: experiments/paper_b/networks.py;
100 steps, with the trials of ingredients.py. The rate of dropout is .1; the paper does not give it.

Cost: none besides those of ingredients.py.
Expect: by Sbar at initialization dropout changes nothing; batch norm makes branches independent of the initial variance
c / (K fan_in), so that the exponent moves.
"""

from __future__ import annotations

from experiments.paper_b import ingredients
from experiments.paper_b.exponents import Law, experiment

VARIANTS = ("baseline", "dropout", "batch_norm", "batch_norm_dropout")
LAWS = {name.replace("_", " "): Law(f"screen_{name}") for name in VARIANTS}

EXPERIMENT = experiment(
    figure="6a, 6c, 7a",
    claim="ResNets with dropout, batch norm, both: exponents -1.568, -1.869, -1.803",
    sweeps={law.sweep: ingredients.SCREEN[law.sweep] for law in LAWS.values()},
    laws=LAWS,
    claimed=list(LAWS),
    compared={name: "baseline" for name in LAWS if name != "baseline"},
    picture="fig6",
    title="Residual networks, 100 steps, by accuracy",
)
