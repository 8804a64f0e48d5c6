"""Figure 2a: the best learning rate of plain convolutional networks falls as depth^-3/2; two depths predict others.

    python -m experiments.paper_b 2a --data=DIR

Claim (4.2, theorem 1): a line in log-log with slope -1.337, close to -3/2; in each segment of depths the line through
two anchors, {3, 4}, {10, 11} and {18, 20}, predicts the best learning rate at the other depths.

The paper's settings and ours: experiments/paper_b/networks.py. Ours: 16 channels on 8x8 pixels, and of each segment
the depths {6, 9}, {13, 16} and {24, 30} to predict.

Cost: 369 trainings of 351 steps, 96 minutes on one core.
Expect: -1.3 to -1.5 by either criterion; large errors of the anchors, which lie so close together that a grid of half
octaves hardly tells them apart.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from matplotlib.figure import Figure

from depthmup.fit import segmented
from depthmup.fit.curve import half_width
from experiments.figures.figure import Experiment, Outcome, Sweeps
from experiments.paper_b import exponents, networks
from experiments.paper_b.exponents import FEWEST, MEASURES, against, along_depth, by_both, words

SHALLOW, DEEP = networks.ANCHORED[:7], networks.ANCHORED[3:]  # 3 to 13, 9 to 30 layers
SWEEPS = {"plain": networks.full(networks.plain, networks.ANCHORED, {})}


def segments(sweeps: Sweeps) -> list[str]:
    """What the two anchors of each segment predict, in words: octaves above the best learning rate, with the 95%
    interval that the errors of the three optima give.
    """
    found, said = along_depth(sweeps["plain"]), []
    stderr = {depth: own.stderr for depth, own in zip(found.values, found.optima, strict=True)}
    for segment in segmented(found.values, found.optimal_lr):
        (first, second), errors = segment.anchors, []
        for depth, error in zip(segment.depths, segment.relative_error, strict=True):
            along = math.log(depth / first) / math.log(second / first)  # 0 at the first anchor, 1 at the second
            parts = ((1 - along) * stderr[first], along * stderr[second], stderr[depth])
            half, off = half_width(2 * len(parts)) * math.hypot(*parts), math.log2(1 + error)  # 3 seeds each
            errors.append(f"{off:+.1f} [{off - half:+.1f}, {off + half:+.1f}] at depth {depth:g}")
        said.append(f"anchors {first}, {second} are off, in octaves: {', '.join(errors)}")
    return said or ["no segment has optima at both of its anchors"]


def outcome(sweeps: Sweeps) -> Outcome:
    """The law by accuracy over all depths decides; beside it other measures, halves of the depths, and anchors."""
    judged = {measure: along_depth(sweeps["plain"], measure) for measure in MEASURES}
    ours = [words(found, measure) for measure, found in judged.items()]
    own = judged["validation_accuracy"]
    halves = [half for half in (SHALLOW, DEEP) if len(set(half) & set(own.values)) >= FEWEST]
    ours += [f"depths {half[0]} to {half[-1]}, {by_both(sweeps['plain'], half)}" for half in halves]
    best = {depth: f"{1 - o.loss:.0%} (depth {depth:g})" for depth, o in zip(own.values, own.optima, strict=True)
            if o.learning_rate}  # fmt: skip
    ours.append("best accuracy: " + ", ".join(best.values()))
    return Outcome(ours + segments(sweeps), against(own))


def pictures(sweeps: Sweeps) -> Mapping[str, Figure]:
    both = {MEASURES[measure]: along_depth(sweeps["plain"], measure) for measure in ("validation_accuracy", "loss")}
    return {"fig2a": exponents.pictures(both, "Plain networks")}


REMARKS = """
These optima are on no single power law. Up to 13 layers the best learning rate falls as depth^-3/2 or faster (-1.83
[-2.31, -1.35] by accuracy, -1.73 [-1.96, -1.51] by loss), from 9 to 30 layers more slowly (-.93 [-1.92, +.06], -1.07
[-1.47, -.68]); -1.35 is a mean of the two. The deep networks hardly train in an epoch: the best accuracy falls from
30% at depth 3 to 12% at depth 30, where guessing has 10%.

Sbar = 1 at initialization does not predict it: up to 13 layers it has -.25 [-.86, +.36], over all depths +.52 [-.03,
+1.06]; nor does 2 / sharpness, -.59 [-1.09, -.09] and -.02 [-.42, +.38] (`python -m experiments.paper_b.initial`).
Theorem 1's -3/2 needs many more channels than layers ([theory.md](theory.md), section 6a); these have 16, and seeds
differ by several octaves.

Of the six predictions from two anchors one is off by more than its error. The errors are large since the anchors lie
close together: between depths 3 and 4 a law of -3/2 falls by .6 octaves."""

EXPERIMENT = Experiment(
    figure="2a",
    claim="plain CNN: the best learning rate falls as depth^-3/2; two anchors predict the other depths of a segment",
    paper="-1.337",
    sweeps=SWEEPS,
    outcome=outcome,
    pictures=pictures,
    remarks=REMARKS,
)
