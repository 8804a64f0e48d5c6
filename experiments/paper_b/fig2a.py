"""Figure 2a: the best learning rate of plain convolutional networks falls as depth^-3/2; two depths predict others.

    python -m experiments.paper_b 2a --data=DIR

Claim (4.2, theorem 1): a line in log-log with slope -1.337, close to -3/2; in each segment of depths the line through
two anchors, {3, 4}, {10, 11} and {18, 20}, predicts the best learning rate at the other depths.

The paper's settings and ours: experiments/paper_b/networks.py. Ours: 16 channels on 8x8 pixels, and of each segment
the depths {6, 9}, {13, 16} and {24, 30} to predict.

Cost: about 290 trainings of 351 steps, an hour on two cores.
Expect: -1.3 to -1.5 by either criterion, as Sbar at initialization; large errors of the anchors, which lie so close
together that a grid of half octaves hardly tells them apart.
"""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.figure import Figure

from depthmup.fit import segmented
from experiments.figures.figure import Experiment, Outcome, Sweeps
from experiments.paper_b import exponents, networks
from experiments.paper_b.exponents import MEASURES, against, along_depth, words

SWEEPS = {"plain": networks.full(networks.plain, networks.ANCHORED, {})}


def segments(sweeps: Sweeps) -> list[str]:
    """What the two anchors of each segment predict, in words."""
    found, said = along_depth(sweeps["plain"]), []
    for segment in segmented(found.values, found.optimal_lr):
        pairs = zip(segment.depths, segment.relative_error, strict=True)
        errors = ", ".join(f"{100 * error:+.0f}% at depth {depth:g}" for depth, error in pairs)
        said.append(f"anchors {segment.anchors[0]}, {segment.anchors[1]} predict with the error {errors}")
    return said or ["no segment has optima at both of its anchors"]


def outcome(sweeps: Sweeps) -> Outcome:
    judged = {measure: along_depth(sweeps["plain"], measure) for measure in MEASURES}
    ours = [words(found, measure) for measure, found in judged.items()] + segments(sweeps)
    return Outcome(ours, against(judged["validation_accuracy"]))


def pictures(sweeps: Sweeps) -> Mapping[str, Figure]:
    both = {MEASURES[measure]: along_depth(sweeps["plain"], measure) for measure in ("validation_accuracy", "loss")}
    return {"fig2a": exponents.pictures(both, "Plain networks")}


REMARKS = """
The law of the trained optima is not the one of Sbar = 1 at initialization: over the same depths the same networks
have +.52 [-.03, +1.06] there, and 2 / sharpness -.02 [-.42, +.38] (`python -m experiments.paper_b.initial`). Theorem
1's -3/2 needs many more channels than layers ([theory.md](theory.md), section 6a); these have 16, and the features of
most seeds shrink with depth at initialization. So -1.39 agrees with the paper's -1.337 and with -3/2, but not for the
reason that theorem 1 gives.

The anchors fail because they lie close together: between depths 3 and 4 the law falls by .6 octaves, about the error
of one optimum."""

EXPERIMENT = Experiment(
    figure="2a",
    claim="plain CNN: the best learning rate falls as depth^-3/2; two anchors predict the other depths of a segment",
    paper="-1.337",
    sweeps=SWEEPS,
    outcome=outcome,
    pictures=pictures,
    remarks=REMARKS,
)
