"""Section 5: tune at a small depth L0, use eta*(L0) (L / L0)^-3/2 at any other, against other rules.

    python -m experiments.paper_b rules --data=DIR              (`experiments.paper_b.initial` adds two rules)

Claim (section 5): "one-time calibration at L0 and drop-in transfer to arbitrary depths".

            paper                     here
networks    no experiment             residual (figure 2b, 2 to 24 blocks) and plain (figure 2a, 3 to 30 layers)
judged      -                         validation accuracy at the deepest network, against the best rate that was trained
rules       L^-3/2; PathSum in        constant, L^-1, L^-3/2, PathSum, a line through smaller depths, Sbar at
            figure 2b                 initialization, the same relative to each layer's size; and depth-muP: the same
                                      learning rate with branches scaled by 1/sqrt(depth)

Cost: about 140 trainings of 351 steps besides figures 2a and 2b, two hours on one core.
Expect: for residual networks whose branches start with 1/K, one learning rate for all depths is best and L^-3/2 five
octaves too low. Under depth-muP the best rate should not move, but it falls by a factor of 6 from 2 to 24 blocks, with
an interval that holds 0, and the rate of 2 blocks loses 4 points of accuracy at 24.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from depthmup.fit import Rule, Transfer, learning_rate_rules
COST = 0.05  # TODO
from experiments.figures.figure import AGREES, DISAGREES, UNDECIDED, Experiment, Outcome, Sweeps, combined
from experiments.paper_b import at_start, exponents, fig2a, ingredients, networks
from experiments.paper_b.exponents import along_depth

OURS = "L^-3/2"  # the paper's rule
PARAMETERIZATIONS = {"full_baseline": "am_mup", "full_depth_mup": "depth_mup"}  # of residual networks


def depth_mup(scale: str) -> Any:
    """The same residual networks under depth-muP, whose rule is a constant learning rate."""
    config = networks.residual(scale, {}, {"sweep.depths": networks.SCREEN_DEPTHS})
    config.sweep.parameterizations = ("depth_mup",)
    config.sweep.log2_learning_rates.sgd = networks.RATES
    config.parameterization.name = "depth_mup"
    config.parameterization.lr_depth = None
    config.parameterization.base_depth = 2
    config.parameterization.base_width = config.model.width
    return config


# Learning rates far below the best, which the adaptive search of figure 2b does not train and L^-1 and L^-3/2 predict.
LOW = networks.full(
    ingredients.base("baseline"),
    (2, 24),
    {},
    sweep__log2_learning_rates__sgd=(-7.0, -3.0),
    sweep__per_octave=1,
    sweep__adaptive=False,
)
SWEEPS = {
    "full_baseline": ingredients.FULL["full_baseline"],
    "full_depth_mup": depth_mup,
    **fig2a.SWEEPS,
    "low_baseline": LOW,
}


def rules(sweeps: Sweeps, name: str) -> tuple[Transfer, list[Rule]]:
    """The optima over depth of a sweep, and what each rule makes of the smallest depth's."""
    found = along_depth(sweeps[name], more=sweeps.get("low_baseline") if name == "full_baseline" else None)
    if name == "full_depth_mup":
        return found, [rule for rule in learning_rate_rules(found) if rule.name == "constant"]
    start = at_start.read(ingredients.name_of(name))
    calibrated = {}
    if set(found.values) <= set(start):
        updates = {depth: at_start.update(start, depth) for depth in found.values}
        calibrated = {
            "Sbar": {depth: own.learning_rate for depth, own in updates.items()},
            "Sbar, relative": {depth: own.relative.learning_rate for depth, own in updates.items()},
        }
    sums = exponents.path_sums(ingredients.settings_of(name), found.values)
    return found, learning_rate_rules(found, path_sums=sums, calibrated=calibrated)


def deepest(found: Transfer, rule: Rule) -> tuple[str, float | None]:
    """(a rule at the deepest network in words, the share that its error is above the best); None: not known.

    Below the lowest learning rate that was trained the error only grows, so the lowest one's share is a lower bound:
    it is the answer where it is above COST.
    """
    off, regret = rule.octaves_off[-1], rule.regret[-1]
    if off is None:
        return "no optimum or no prediction", None
    errors = np.where(found.diverged[-1].any(axis=1), np.inf, found.losses[-1].mean(axis=1))  # by learning rate
    best = errors.min()
    if regret is None and _diverges(found, rule):
        return f"{off:+.1f} octaves off, beyond the edge", math.inf
    if regret is None and off < 0:
        lost = errors[0] - best
        words = f"{off:+.1f} octaves off, loses more than the {100 * lost:.1f} points of the lowest that was trained"
        return words, lost / best if lost > COST * best else None
    if regret is None:
        return f"{off:+.1f} octaves off, not trained", None
    return f"{off:+.1f} octaves off, loses {100 * regret:.1f} points of accuracy", regret / best


def _diverges(found: Transfer, rule: Rule) -> bool:
    """Whether the rule's learning rate is beyond one that does not train at the deepest network."""
    rate, edge = rule.predicted[-1], found.optima[-1].edge
    return bool(rate and edge and edge.learning_rate and rate > edge.learning_rate)


def outcome(sweeps: Sweeps) -> Outcome:
    """The paper's rule must cost at most COST of the best error, for plain and for residual networks."""
    ours, said = [], []
    for name in (name for name in SWEEPS if name in sweeps and name != "low_baseline"):
        found, own = rules(sweeps, name)
        title = f"{ingredients.name_of(name).replace('_', ' ')}, depth {found.values[-1]:g}"
        ours.append(f"{title}: " + "; ".join(f"{rule.name} {deepest(found, rule)[0]}" for rule in own))
        for rule in own:
            if rule.name == OURS:
                share = deepest(found, rule)[1]
                said.append(UNDECIDED if share is None else AGREES if share <= COST else DISAGREES)
        said += [UNDECIDED] if not own else []
    best = {name: _accuracy(along_depth(sweeps[name])) for name in PARAMETERIZATIONS if name in sweeps}
    said_of = ", ".join(f"{accuracy} ({PARAMETERIZATIONS[name]})" for name, accuracy in best.items())
    ours.append(f"best accuracy at the deepest residual network: {said_of}")
    if "full_depth_mup" in sweeps:
        ours.append(f"best learning rate under depth_mup, {exponents.by_both(sweeps['full_depth_mup'])}")
    return Outcome(ours, combined(said))


def _accuracy(found: Transfer) -> str:
    optimum = found.optima[-1]
    return "none" if optimum.learning_rate is None else f"{100 * (1 - optimum.loss):.1f}%"


def pictures(sweeps: Sweeps) -> Mapping[str, Figure]:
    """The octaves between each rule's learning rate and the best one, over depth."""
    figure = Figure(figsize=(9.5, 4), layout="constrained")
    for panel, name in zip(figure.subplots(1, 2, sharey=True), ("full_baseline", "plain"), strict=True):
        found, own = rules(sweeps, name)
        for rule in own:
            off = [math.nan if value is None else value for value in rule.octaves_off]
            panel.plot(found.values, off, "-o", ms=3, label=rule.name)
        panel.axhline(0, color="gray", lw=0.8, ls=":")
        panel.set_xscale("log", base=2)
        panel.set_xlabel("depth")
        panel.set_title(ingredients.name_of(name))
        if own:
            panel.legend(fontsize=7)
    figure.axes[0].set_ylabel("octaves off the best learning rate")
    return {"rules": figure}


EXPERIMENT = Experiment(
    figure="Section 5",
    claim="tuned at a small depth, the rule L^-3/2 gives the learning rate of any depth",
    paper="stated",
    sweeps=SWEEPS,
    outcome=outcome,
    pictures=pictures,
    needs=("full_baseline", "plain"),
)
