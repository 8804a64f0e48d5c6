"""Section 5: tune at a small depth L0, use eta*(L0) (L / L0)^-3/2 at any other, against other rules.

    python -m experiments.paper_b rules --data=DIR              (`experiments.paper_b.initial` adds two rules)

Claim (section 5): "one-time calibration at L0 and drop-in transfer to arbitrary depths". The paper has no experiment;
PathSum is in figure 2b.

Networks: residual (figure 2b, 2 to 24 blocks) and plain (figure 2a, 3 to 30 layers). Rules: constant, L^-1, L^-3/2,
PathSum, a line through smaller depths, Sbar at initialization, the same relative to each layer's size; and depth-muP,
the same learning rate with branches scaled by 1/sqrt(depth). Judged by validation accuracy at the deepest network that
learned, the farthest from the tuned one: in units of the rule's, is the learning rate that is best at the smallest
depth as good there (docs/laws.md)? Points of accuracy lost against the best one that was trained have the 95% interval
of the paired seeds.

Cost: about 140 trainings of 351 steps besides figures 2a and 2b, two hours on one core.
Expect: for residual networks whose branches start with 1/K, one learning rate for all depths is best and L^-3/2 five
octaves too low. Under depth-muP the best rate should not move.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from depthmup.fit import Rule, Transfer, learning_rate_rules
from depthmup.fit.verdict import UNLEARNED
from depthmup.measure.maximal_update import rates_by_rule
from experiments.figures.figure import Experiment, Outcome, Sweeps, agreement, best_losses, panels
from experiments.output import UNDECIDED, markdown, paired
from experiments.paper_b import at_start, exponents, fig2a, ingredients, networks
from experiments.paper_b.exponents import along_depth
from experiments.published import Sweep

OURS = "L^-3/2"  # the paper's rule
PARAMETERIZATIONS = {"full_baseline": "am_mup", "full_depth_mup": "depth_mup"}  # of residual networks


# The same residual networks under depth-muP, whose rule is a constant learning rate.
DEPTH_MUP = networks.full(
    networks.residual,
    networks.SCREEN_DEPTHS,
    {
        "sweep.parameterizations": ("depth_mup",), "parameterization.name": "depth_mup",
        "parameterization.lr_depth": None, "parameterization.base_depth": 2, "parameterization.base_width": 8,
    },
)  # fmt: skip
# Learning rates far below the best, which the adaptive search of figure 2b does not train and L^-1 and L^-3/2 predict.
LOW = networks.full(
    networks.residual,
    (2, 24),
    {"sweep.log2_learning_rates.sgd": (-7.0, -3.0), "sweep.per_octave": 1, "sweep.adaptive": False},
)
SWEEPS = {
    "full_baseline": ingredients.FULL["full_baseline"],
    "full_depth_mup": DEPTH_MUP,
    **fig2a.SWEEPS,
    "low_baseline": LOW,
}


def rules(sweeps: Sweeps, name: str) -> tuple[Transfer, list[Rule]]:
    """The optima over depth of a sweep, and what each rule makes of the smallest depth's."""
    result = along_depth(sweeps[name], more=_more(sweeps, name))
    if name == "full_depth_mup":
        return result, [rule for rule in learning_rate_rules(result) if rule.name == "constant"]
    start = at_start.read(ingredients.name_of(name))
    updates = {depth: at_start.update(start, depth) for depth in result.values if depth in start}
    calibrated = {}
    if len(updates) == len(result.values):
        rates = rates_by_rule(updates)
        calibrated = {"Sbar": rates["calibrated"], "Sbar, relative": rates["relative"]}
    sums = exponents.path_sums(ingredients.settings_of(name), result.values)
    return result, learning_rate_rules(result, path_sums=sums, calibrated=calibrated)


def _more(sweeps: Sweeps, name: str) -> Sweep | None:
    return sweeps.get("low_baseline") if name == "full_baseline" else None


def deepest(result: Transfer) -> int:
    """The index of the deepest network that learned; of the deepest one if none did."""
    learned = [i for i, answer in enumerate(result.answers) if answer != UNLEARNED]
    return max(learned, default=len(result.answers) - 1)


def carried(sweeps: Sweeps, name: str, result: Transfer, rule: Rule) -> Transfer | None:
    """The verdict on a rule at the deepest network that learned: of learning rates in units of the rule's the best one
    of the smallest depth is carried there. None if the rule has no prediction."""
    start, rate = result.optimal_lr[rule.tuned], rule.predicted[deepest(result)]
    if start is None or rate is None or rule.tuned == deepest(result):
        return None
    factors = {result.values[rule.tuned]: 1.0, result.values[deepest(result)]: rate / start}
    return along_depth(sweeps[name], depths=tuple(factors), more=_more(sweeps, name), factors=factors)


def words(result: Transfer, rule: Rule, judged: Transfer | None) -> str:
    """What a rule does at the deepest network that learned: octaves off, and the points of accuracy that it loses."""
    off, rate = rule.octaves_off[deepest(result)], rule.predicted[deepest(result)]
    if judged is None or off is None or rate is None:
        return "no optimum or no prediction"
    lost, cost, edge = judged.regret_accuracy[-1], judged.costs[-1], result.optima[deepest(result)].edge
    if lost is not None:
        interval = f" [{100 * lost.low:.1f}, {100 * lost.high:.1f}]" if lost.share else ""
        return f"{off:+.1f}; {100 * lost.share:.1f}{interval}"
    if edge and edge.learning_rate and rate > edge.learning_rate:
        return f"{off:+.1f}; beyond the edge"
    return f"{off:+.1f}; " + (f"costs {cost} of the lowest error" if cost else "not trained")


def outcome(sweeps: Sweeps) -> Outcome:
    """The paper's rule must transfer, for plain and for residual networks."""
    parts, shown, lines = [], dict[str, dict[str, str]](), []
    for name in (name for name in SWEEPS if name in sweeps and name != "low_baseline"):
        result, chosen = rules(sweeps, name)
        title = f"{ingredients.label(name)}, depth {result.values[deepest(result)]:g}"
        judged = {rule.name: carried(sweeps, name, result, rule) for rule in chosen}
        cells = {rule.name: words(result, rule, judged[rule.name]) for rule in chosen}
        if name == "full_depth_mup":  # whose only rule is a constant learning rate
            lines.append(f"ResNets under depth_mup: exponent {exponents.bare(result)}; constant: {cells['constant']}.")
            continue
        shown[title] = cells
        if paper := judged.get(OURS):
            parts.append((f"{title}: octaves off {shown[title][OURS]}", agreement(paper)))
        else:
            parts.append((f"{title}: no prediction of {OURS}", UNDECIDED))
    names = dict.fromkeys(rule for column in shown.values() for rule in column)
    rows = [[rule, *(column.get(rule, "") for column in shown.values())] for rule in names]
    lines = [markdown(("octaves off; points of accuracy lost", *shown), rows), *lines]
    if PARAMETERIZATIONS.keys() <= sweeps.keys():
        best = {
            parameterization: best_losses(along_depth(sweeps[name]), -1)
            for name, parameterization in PARAMETERIZATIONS.items()
        }
        difference = paired(-100 * np.subtract(*best.values())).text("+.1f")
        accuracies = ", ".join(
            f"{100 * (1 - errors.mean()):.1f}% ({parameterization})" for parameterization, errors in best.items()
        )
        lines.append(f"Best accuracy at the deepest ResNet: {accuracies}, difference {difference}.")
    return Outcome.of(parts, "\n\n".join(lines))


def pictures(sweeps: Sweeps) -> Mapping[str, Figure]:
    """The octaves between each rule's learning rate and the best one, over depth."""

    def draw(name: str, panel: Axes) -> None:
        result, chosen = rules(sweeps, name)
        for rule in chosen:
            pairs = zip(rule.octaves_off, result.answers, strict=True)
            off = [math.nan if value is None or answer == UNLEARNED else value for value, answer in pairs]
            panel.plot(result.values, off, "-o", ms=3, label=rule.name)
        panel.axhline(0, color="gray", lw=0.8, ls=":")
        panel.set_xscale("log", base=2)

    drawn = {ingredients.name_of(name): functools.partial(draw, name) for name in ("full_baseline", "plain")}
    return {"rules": panels(drawn, "depth", "octaves off the best learning rate", size=(9.5, 4))}


EXPERIMENT = Experiment(
    figure="Section 5",
    claim="tuned at a small depth, L^-3/2 gives the learning rate of any depth",
    question="Does one tuning with L^-3/2 serve all depths?",
    sweeps=SWEEPS,
    outcome=outcome,
    pictures=pictures,
    needs=("full_baseline", "plain"),
)
