"""Figure 4: circular against zero padding.

    python -m experiments.paper_b 4 --data=DIR

Claim (D.1): both paddings follow the same law; they differ by a factor, not by the exponent.

Settings, the paper's beside those used here, and how it is judged: experiments/paper_b/networks.py.

Cost: 150 trainings of 351 steps besides figure 2a's, 14 minutes on one core.
Expect: on 8x8 pixels zero padding loses a part of the variance that grows with depth (docs/theory.md, section 6a), and
with it a part of the slope.
"""

from __future__ import annotations

from experiments.paper_b import fig2a, networks
from experiments.paper_b.exponents import Law, experiment

ZERO = {"zero_padding": networks.full(networks.plain, networks.SHORT, {"model.padding": "zero"})}

EXPERIMENT = experiment(
    figure="4",
    claim="plain CNNs: zero and circular padding have essentially one power law",
    sweeps={**ZERO, **fig2a.SWEEPS},
    laws={"circular padding": Law("plain", networks.SHORT), "zero padding": Law("zero_padding")},
    compared={"zero padding": "circular padding"},
    picture="fig4",
    title="Plain networks, by accuracy",
)
