"""Figure 2a: the best learning rate of plain convolutional networks falls as depth^-3/2; two depths predict others.

    python -m experiments.paper_b 2a --data=DIR

Claim (4.2, theorem 1): a line in log-log with slope -1.337, close to -3/2; in each segment of depths the line through
two anchors, {3, 4}, {10, 11} and {18, 20}, predicts the best learning rate at the other depths.

Settings, the paper's beside those used here, and how it is judged: experiments/paper_b/networks.py.
Of each segment the depths {6, 9}, {13, 16} and {24, 30} are predicted.

Cost: 369 trainings of 351 steps, 96 minutes on one core.
Expect: about -3/2 by either criterion; large errors of the anchors, which lie so close together that a grid of half
octaves hardly tells them apart.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from matplotlib.figure import Figure

from depthmup.fit import Transfer, segmented
from depthmup.fit.curve import half_width
from depthmup.fit.thresholds import CONFIDENCE
from experiments.figures.figure import Experiment, Outcome, Sweeps
from experiments.output import AGREES, UNDECIDED, Interval, decided, markdown
from experiments.paper_b import exponents, networks
from experiments.paper_b.exponents import (
    BOTH,
    CLAIMED,
    CLOSE,
    MEASURES,
    against,
    along_depth,
    best_rates,
    fitted,
    law_against,
    of_optima,
    text,
)

SHALLOW, DEEP = networks.ANCHORED[:7], networks.ANCHORED[3:]  # 3 to 13, 9 to 30 layers
SWEEPS = {"plain": networks.full(networks.plain, networks.ANCHORED, {})}
STEP = 0.5  # octaves: a step of the grid


class Prediction(NamedTuple):
    """Of two anchors at a depth: octaves above the best learning rate, with an interval from the errors of the three
    optima; those of all predictions hold together in 95 of 100 cases."""

    anchors: tuple[int, int]
    depth: int
    off: Interval


def predictions(sweeps: Sweeps) -> list[Prediction]:
    """What the anchors of each segment predict; anchors and depths that do not count are left out."""
    judged, parts = along_depth(sweeps["plain"]), []
    stderr = {depth: optimum.stderr for depth, optimum in zip(judged.values, judged.optima, strict=True)}
    for segment in segmented(judged.values, best_rates(judged)):
        first, second = segment.anchors
        for depth, error in zip(segment.depths, segment.relative_error, strict=True):
            along = math.log(depth / first) / math.log(second / first)  # 0 at the first anchor, 1 at the second
            errors = math.hypot((1 - along) * stderr[first], along * stderr[second], stderr[depth])
            parts.append((segment.anchors, depth, math.log2(1 + error), errors))
    wide = half_width(2 * 3, 1 - (1 - CONFIDENCE) / max(1, len(parts)))  # 3 optima of 3 seeds each
    return [Prediction(anchors, depth, Interval(off, off - wide * errors, off + wide * errors))
            for anchors, depth, off, errors in parts]  # fmt: skip


def outcome(sweeps: Sweeps) -> Outcome:
    """The law by accuracy over the depths that count decides; beside it that by loss at other depths."""
    judged = [along_depth(sweeps["plain"], measure) for measure in BOTH]
    laws = {
        "that count": [of_optima(r) for r in judged],
        "that count, up to 13": [of_optima(along_depth(sweeps["plain"], measure, SHALLOW)) for measure in BOTH],
        "all": [fitted(r.values, r.optimal_lr, [o.stderr for o in r.optima]) for r in judged],
    }
    rows = [[depths, *(f"{text(law)}, {law_against(law)}" for law in of_depths)] for depths, of_depths in laws.items()]
    table = markdown(("exponent over depths", "by accuracy", "by loss"), rows)
    others = "; ".join(f"{depths}: {law_against(laws[depths][0])}" for depths in [*laws][1:])
    number = ", ".join(filter(None, (exponents.words(judged[0]), slack(judged[0]))))
    return Outcome.of([(f"{number}; {others}", against(judged[0]))], table)


def slack(result: Transfer) -> str:
    """By how much an exponent that agrees lies within CLOSE of the claim, in words; "" for one that does not agree."""
    law = of_optima(result)
    if law is None or against(result) != AGREES:
        return ""
    return f"within {CLOSE:g} by {CLOSE - max(law.high - CLAIMED, CLAIMED - law.low):.2f}"


def of_anchors(sweeps: Sweeps) -> Outcome:
    """Every prediction must be within a step of the grid of the best rate; one that is surely beyond disagrees."""
    parts, rows = [], []
    for (first, second), depth, off in predictions(sweeps):
        answer = decided(max(-off.low, off.high) < STEP, off.low > STEP or off.high < -STEP)
        words = off.text("+.1f")
        parts.append((f"anchors {first}, {second} are {words} octaves off at depth {depth:g}", answer))
        rows.append([f"{first}, {second}", f"{depth:g}", words])
    parts = parts or [("no segment has optima at both of its anchors", UNDECIDED)]
    return Outcome.of(parts, markdown(("anchors", "predicted depth", "octaves off"), rows))


def pictures(sweeps: Sweeps) -> Mapping[str, Figure]:
    both = {MEASURES[measure]: along_depth(sweeps["plain"], measure) for measure in BOTH}
    return {"fig2a": exponents.pictures(both, "Plain networks")}


EXPERIMENT = Experiment(
    figure="2a",
    claim="plain CNNs: exponent -1.337, by theorem 1 -3/2",
    question="In plain networks, does the best learning rate fall as depth^-3/2?",
    sweeps=SWEEPS,
    outcome=outcome,
    pictures=pictures,
)
ANCHORS = Experiment(
    figure="2a, anchors",
    claim="plain CNNs: two anchors predict the other depths of a segment",
    sweeps=SWEEPS,
    outcome=of_anchors,
)
