"""Appendix F: cross-entropy against mean squared error.

    python -m experiments.paper_b losses --data=DIR

Claim: with cross-entropy, which the experiments have, and with the squared error, which the proofs have, the best
learning rate has the same exponent; the two fits are shifted against each other.

Settings, the paper's beside those used here, and how it is judged: experiments/paper_b/networks.py.
Plain networks have an epoch, residual ones 100 steps with the trials of ingredients.py.

Cost: 150 trainings of 351 steps besides figure 2a's and the ingredients, 11 minutes on one core.
Expect: equal exponents, as at initialization (docs/theory.md, section 6).
"""

from __future__ import annotations

from experiments.paper_b import fig2a, ingredients, networks
from experiments.paper_b.exponents import Law, experiment

PLAIN = {"plain_mse": networks.full(networks.plain, networks.SHORT, {"loss": "mse"})}
RESIDUAL = {name: ingredients.SCREEN[name] for name in ("screen_baseline", "screen_mse")}

EXPERIMENT = experiment(
    figure="Appendix F",
    claim="cross-entropy and squared error have nearly parallel laws",
    sweeps={**PLAIN, **fig2a.SWEEPS, **RESIDUAL},
    laws={
        "plain, cross-entropy": Law("plain", networks.SHORT),
        "plain, squared error": Law("plain_mse"),
        "residual, cross-entropy": Law("screen_baseline"),
        "residual, squared error": Law("screen_mse"),
    },
    compared={f"{kind}, squared error": f"{kind}, cross-entropy" for kind in ("plain", "residual")},
    picture="losses",
    title="By accuracy",
)
