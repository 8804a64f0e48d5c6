"""Figure 3 and appendix E: plain networks with GELU.

    python -m experiments.paper_b 3 --data=DIR

Claim (D.1): with GELU and He's variance times sqrt(2), which is meant to keep the variance over depth, the slope is
-1.38. Claim (appendix E): GELU's exponent is a little more negative than ReLU's (-1.40 against -1.35).

The paper's settings and ours: experiments/paper_b/networks.py; both initial variances, 2 sqrt(2) / fan_in as in the
paper ("paper"), under which the variance grows (docs/theory.md, section 6a), and 2.352 / fan_in ("stationary").

Judged by validation accuracy at the depths at which a network learned, for the reasons in
experiments/paper_b/networks.py.

Cost: two sweeps of about 150 trainings of 351 steps, 27 minutes on one core, besides figure 2a's.
Expect: with the paper's variance a steeper exponent, since features and gradients grow with depth.
"""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.figure import Figure

from experiments.figures.figure import Experiment, Outcome, Sweeps
from experiments.paper_b import exponents, fig2a, networks
from experiments.paper_b.exponents import against, along_depth, by_both, steeper

VARIANCES = ("paper", "stationary")
GELU = {
    f"gelu_{variance}": networks.full(
        networks.plain, networks.SHORT, {"model.activation": "gelu", "model.gelu_variance": variance}
    )
    for variance in VARIANCES
}


def outcome(sweeps: Sweeps) -> Outcome:
    """The paper's network decides; the stationary variance stands beside it."""
    lines = [f"{variance} variance, {by_both(sweeps[f'gelu_{variance}'])}" for variance in VARIANCES]
    return Outcome(lines, against(along_depth(sweeps["gelu_paper"])))


def than_relu(sweeps: Sweeps) -> Outcome:
    """Against ReLU at the same depths. The paper's variance decides, the stationary one stands beside it."""
    relu = along_depth(sweeps["plain"], depths=networks.SHORT)
    differences = {variance: steeper(relu, along_depth(sweeps[f"gelu_{variance}"])) for variance in VARIANCES}
    lines = [f"ReLU, {by_both(sweeps['plain'], networks.SHORT)}"]
    lines += [f"{variance} variance: {text}" for variance, (text, _) in differences.items()]
    return Outcome(lines, differences["paper"][1])


def pictures(sweeps: Sweeps) -> Mapping[str, Figure]:
    results = {f"{variance} variance": along_depth(sweeps[f"gelu_{variance}"]) for variance in VARIANCES}
    return {"fig3": exponents.pictures(results, "Plain networks with GELU, by accuracy")}


EXPERIMENT = Experiment(
    figure="3",
    claim="plain CNN with GELU: the best learning rate falls as depth^-3/2",
    paper="-1.38",
    sweeps=GELU,
    outcome=outcome,
    pictures=pictures,
)
STEEPER = Experiment(
    figure="Appendix E",
    claim="GELU's exponent is a little more negative than ReLU's",
    paper="-1.40 against -1.35",
    sweeps={**GELU, **fig2a.SWEEPS},
    outcome=than_relu,
    pictures=lambda sweeps: {},
    remarks="""
Appendix E gives two reasons, and neither holds for its own initial variance. The first is that GELU shrinks gradients,
by chi = .912 a layer: <phi'^2> is .456 as it says, but times its own gain 2 sqrt(2), not He's 2, that is 1.29 a layer,
and 1.45 at the tenth. The second is small drifts of the variance around 1: it grows to 16 in ten layers
([theory.md](theory.md), section 6a). ReLU is compared over the depths of GELU, 3 to 13; figure 2a has more.""",
)
