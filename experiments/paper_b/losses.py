"""Appendix F: cross-entropy against mean squared error.

    python -m experiments.paper_b losses --data=DIR

Claim: with cross-entropy, which the experiments have, and with the squared error, which the proofs have, the best
learning rate has the same exponent; the two fits are shifted against each other.

The paper's settings and ours: experiments/paper_b/networks.py; plain networks for an epoch, residual ones for 100 steps
with the trials of ingredients.py.

Judged by validation accuracy at the depths at which a network learned, for the reasons in
experiments/paper_b/networks.py.

Cost: 150 trainings of 351 steps besides figure 2a's and the ingredients, 11 minutes on one core.
Expect: equal exponents, as at initialization (docs/theory.md, section 6).
"""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.figure import Figure

from depthmup.fit import Transfer
from experiments.figures.figure import Experiment, Outcome, Sweeps, combined
from experiments.paper_b import exponents, fig2a, ingredients, networks
from experiments.paper_b.exponents import along_depth, by_both, equal

PLAIN = {"plain_mse": networks.full(networks.plain, networks.SHORT, {"loss": "mse"})}
RESIDUAL = {name: ingredients.SCREEN[name] for name in ("screen_baseline", "screen_mse")}
# {networks: (sweep with cross-entropy, sweep with the squared error, the depths of both)}
NAMES = {
    "plain": ("plain", "plain_mse", networks.SHORT),
    "residual": ("screen_baseline", "screen_mse", networks.SCREEN_DEPTHS),
}


def pairs(sweeps: Sweeps) -> dict[str, tuple[Transfer, Transfer]]:
    """{networks: (cross-entropy, squared error)} at the same depths."""
    return {
        name: (along_depth(sweeps[first], depths=depths), along_depth(sweeps[second]))
        for name, (first, second, depths) in NAMES.items()
    }


def outcome(sweeps: Sweeps) -> Outcome:
    lines, answers = [], []
    for name, (cross_entropy, squared) in pairs(sweeps).items():
        difference, verdict = equal(cross_entropy, squared)
        first, second, depths = NAMES[name]
        lines.append(f"{name}, cross-entropy, {by_both(sweeps[first], depths)}")
        lines.append(f"{name}, squared error, {by_both(sweeps[second])}")
        lines.append(f"{name}: {difference}")
        answers.append(verdict)
    return Outcome(lines, combined(answers))


def pictures(sweeps: Sweeps) -> Mapping[str, Figure]:
    of = {f"{name}, {loss}": result for name, both in pairs(sweeps).items()
          for loss, result in zip(("cross-entropy", "squared error"), both, strict=True)}  # fmt: skip
    return {"losses": exponents.pictures(of, "By accuracy")}


EXPERIMENT = Experiment(
    figure="Appendix F",
    claim="cross-entropy and squared error have the same exponent",
    paper="nearly parallel",
    sweeps={**PLAIN, **fig2a.SWEEPS, **RESIDUAL},
    outcome=outcome,
    pictures=pictures,
)
