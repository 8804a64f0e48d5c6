"""Figure 4: circular against zero padding.

    python -m experiments.paper_b 4 --data=DIR

Claim (D.1): both paddings follow the same law; they differ by a factor, not by the exponent.

The paper's settings and ours: experiments/paper_b/networks.py.

Judged by validation accuracy at the depths at which a network learned, for the reasons in
experiments/paper_b/networks.py.

Cost: 150 trainings of 351 steps besides figure 2a's, 14 minutes on one core.
Expect: on 8x8 pixels zero padding loses a part of the variance that grows with depth (docs/theory.md, section 6a), and
with it a part of the slope.
"""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.figure import Figure

from depthmup.fit import Transfer
from experiments.figures.figure import Experiment, Outcome, Sweeps
from experiments.paper_b import exponents, fig2a, networks
from experiments.paper_b.exponents import along_depth, by_both, equal

ZERO = {"zero_padding": networks.full(networks.plain, networks.SHORT, {"model.padding": "zero"})}


def both(sweeps: Sweeps) -> dict[str, Transfer]:
    """The two paddings at the same depths."""
    circular = along_depth(sweeps["plain"], depths=networks.SHORT)
    return {"circular padding": circular, "zero padding": along_depth(sweeps["zero_padding"])}


def outcome(sweeps: Sweeps) -> Outcome:
    text, verdict = equal(*both(sweeps).values())
    lines = [
        f"circular padding, {by_both(sweeps['plain'], networks.SHORT)}",
        f"zero padding, {by_both(sweeps['zero_padding'])}",
    ]
    return Outcome([*lines, text], verdict)


def pictures(sweeps: Sweeps) -> Mapping[str, Figure]:
    return {"fig4": exponents.pictures(both(sweeps), "Plain networks, by accuracy")}


EXPERIMENT = Experiment(
    figure="4",
    claim="plain CNN: zero padding has the exponent of circular padding",
    paper="essentially the same power law",
    sweeps={**ZERO, **fig2a.SWEEPS},
    outcome=outcome,
    pictures=pictures,
)
