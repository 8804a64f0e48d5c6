"""Figure 3 and appendix E: plain networks with GELU.

    python -m experiments.paper_b 3 --data=DIR

Claim (D.1): with GELU and He's variance times sqrt(2), which is meant to keep the variance over depth, the slope is
-1.38. Claim (appendix E): GELU's exponent is a little more negative than ReLU's (-1.40 against -1.35).

Settings, the paper's beside those used here, and how it is judged: experiments/paper_b/networks.py.
Both initial variances: 2 sqrt(2) / fan_in as in the paper ("paper"), under which the variance grows (docs/theory.md,
section 6a), and 2.352 / fan_in ("stationary").

Cost: two sweeps of about 150 trainings of 351 steps, 27 minutes on one core, besides figure 2a's.
Expect: with the paper's variance a steeper exponent, since features and gradients grow with depth.
"""

from __future__ import annotations

from experiments.paper_b import fig2a, networks
from experiments.paper_b.exponents import Law, experiment, steeper

VARIANCES = ("paper", "stationary")
GELU = {
    f"gelu_{variance}": networks.full(
        networks.plain, networks.SHORT, {"model.activation": "gelu", "model.gelu_variance": variance}
    )
    for variance in VARIANCES
}
LAWS = {f"{variance} variance": Law(f"gelu_{variance}") for variance in VARIANCES}

EXPERIMENT = experiment(
    figure="3",
    claim="plain CNNs with GELU: exponent -1.38",
    sweeps=GELU,
    laws=LAWS,
    claimed=["paper variance"],  # the other one stands beside it
    picture="fig3",
    title="Plain networks with GELU, by accuracy",
)
STEEPER = experiment(
    figure="Appendix E",
    claim="GELU's exponent (-1.40) is a little more negative than ReLU's (-1.35)",
    sweeps={**GELU, **fig2a.SWEEPS},
    laws={"ReLU": Law("plain", networks.SHORT), "GELU, paper variance": Law("gelu_paper")},
    compared={"GELU, paper variance": "ReLU"},
    compare=steeper,
)
