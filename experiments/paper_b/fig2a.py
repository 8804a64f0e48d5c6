"""Figure 2a: the best learning rate of plain convolutional networks falls as depth^-3/2; two depths predict others.

    python -m experiments.paper_b 2a --data=DIR

Claim (4.2, theorem 1): a line in log-log with slope -1.337, close to -3/2; in each segment of depths the line through
two anchors, {3, 4}, {10, 11} and {18, 20}, predicts the best learning rate at the other depths.

The paper's settings and ours: experiments/paper_b/networks.py. Ours: 16 channels on 8x8 pixels, and of each segment
the depths {6, 9}, {13, 16} and {24, 30} to predict.

Judged by validation accuracy at the depths at which a network learned, for the reasons in
experiments/paper_b/networks.py.

Cost: 369 trainings of 351 steps, 96 minutes on one core.
Expect: about -3/2 by either criterion; large errors of the anchors, which lie so close together that a grid of half
octaves hardly tells them apart.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from depthmup.fit import segmented
from depthmup.fit.curve import CONFIDENCE, half_width
from experiments.figures.figure import AGREES, DISAGREES, UNDECIDED, Experiment, Outcome, Sweeps, combined
from experiments.paper_b import exponents, networks
from experiments.paper_b.exponents import BOTH, MEASURES, against, along_depth, best_rates, by_both, fitted, words

SHALLOW, DEEP = networks.ANCHORED[:7], networks.ANCHORED[3:]  # 3 to 13, 9 to 30 layers
SWEEPS = {"plain": networks.full(networks.plain, networks.ANCHORED, {})}
STEP = 0.5  # octaves: a step of the grid


class Prediction(NamedTuple):
    """Of two anchors at a depth: octaves above the best learning rate, with an interval from the errors of the three
    optima; those of all predictions hold together in 95 of 100 cases."""

    anchors: tuple[int, int]
    depth: int
    off: float
    low: float
    high: float


def predictions(sweeps: Sweeps) -> list[Prediction]:
    """What the anchors of each segment predict; anchors and depths that do not count are left out."""
    judged, parts = along_depth(sweeps["plain"]), []
    stderr = {depth: optimum.stderr for depth, optimum in zip(judged.values, judged.optima, strict=True)}
    for segment in segmented(judged.values, best_rates(judged)):
        first, second = segment.anchors
        for depth, error in zip(segment.depths, segment.relative_error, strict=True):
            along = math.log(depth / first) / math.log(second / first)  # 0 at the first anchor, 1 at the second
            errors = math.hypot((1 - along) * stderr[first], along * stderr[second], stderr[depth])
            parts.append(Prediction(segment.anchors, depth, math.log2(1 + error), -errors, errors))
    together = half_width(2 * 3, 1 - (1 - CONFIDENCE) / max(1, len(parts)))  # 3 optima of 3 seeds each
    return [p._replace(low=p.off + together * p.low, high=p.off + together * p.high) for p in parts]


def outcome(sweeps: Sweeps) -> Outcome:
    """The law by accuracy over the depths that count decides; beside it other measures, other depths."""
    judged = {measure: along_depth(sweeps["plain"], measure) for measure in MEASURES}
    lines = [words(result, measure) for measure, result in judged.items()]
    accuracy = judged["validation_accuracy"]
    lines.append(f"up to 13 layers, {by_both(sweeps['plain'], SHALLOW)}")
    whole = (fitted(one.values, one.optimal_lr, [o.stderr for o in one.optima]) for one in map(judged.get, BOTH) if one)
    lines.append(f"all depths, learned or not: {', '.join(map(str, whole))}")
    best = [
        f"{1 - loss:.0%} (depth {depth:g})"
        for depth, loss in zip(accuracy.values, map(_lowest, accuracy.losses), strict=True)
    ]
    lines.append("best accuracy: " + ", ".join(best))
    return Outcome(lines, against(accuracy))


def _lowest(losses: np.ndarray) -> float:
    """The lowest mean over seeds among the learning rates that train all seeds."""
    return float(np.nanmin(losses.mean(axis=1)))


def of_anchors(sweeps: Sweeps) -> Outcome:
    """Every prediction must be within a step of the grid of the best rate; one that is surely beyond disagrees."""
    predicted, answers, lines = predictions(sweeps), [], []
    for anchors, group in itertools.groupby(predicted, lambda one: one.anchors):
        errors = ", ".join(f"{p.off:+.1f} [{p.low:+.1f}, {p.high:+.1f}] at depth {p.depth:g}" for p in group)
        lines.append(f"anchors {anchors[0]}, {anchors[1]} are off, in octaves: {errors}")
    for one in predicted:
        beyond = one.low > STEP or one.high < -STEP
        answers.append(DISAGREES if beyond else AGREES if max(-one.low, one.high) < STEP else UNDECIDED)
    return Outcome(
        lines or ["no segment has optima at both of its anchors"], combined(answers) if answers else UNDECIDED
    )


def pictures(sweeps: Sweeps) -> Mapping[str, Figure]:
    both = {MEASURES[measure]: along_depth(sweeps["plain"], measure) for measure in ("validation_accuracy", "loss")}
    return {"fig2a": exponents.pictures(both, "Plain networks")}


REMARKS = """
Which depths count decides here. The rule is that of all verdicts and was not made for this row, though what other rules
give had been seen before. With it the interval holds -3/2 by either measure. That rests on depth 24, the only one above
13 at which a network is surely better than chance, with 17%: up to 13 layers the law is steeper, and over all depths,
learned or not, flatter. The deep networks hardly train in an epoch: the best accuracy falls from 30% at depth 3 to 12%
at depth 30, where guessing has 10%. Theorem 1's -3/2 needs many more channels than layers ([theory.md](theory.md),
section 6a); these have 16, and seeds differ by several octaves.

Sbar = 1 at initialization does not predict it, nor does 2 / sharpness ([appendix A](#appendix-a); `python -m
experiments.paper_b.initial`)."""

EXPERIMENT = Experiment(
    figure="2a",
    claim="plain CNN: the best learning rate falls as depth^-3/2",
    paper="-1.337",
    sweeps=SWEEPS,
    outcome=outcome,
    pictures=pictures,
    remarks=REMARKS,
)
ANCHORS = Experiment(
    figure="2a, anchors",
    claim="plain CNN: in a segment of depths two anchors predict the best learning rate at the others",
    paper="within errors that it does not give",
    sweeps=SWEEPS,
    outcome=of_anchors,
    pictures=lambda sweeps: {},
    remarks="""
The intervals are wide since the anchors lie close together: between depths 3 and 4 a law of -3/2 falls by .6 octaves,
about a step of the grid. The third segment, from 18 layers on, has no anchors that learned.""",
)
