"""Appendix A: the arithmetic mean over layers against other means, and layers split into parts.

    python -m experiments.paper_b averages --data=DIR           (after `python -m experiments.paper_b.initial`)

Claim (A1 to A7): of the means of S_l over layers the arithmetic one is right: splitting the layers of a block so that
the block's energy, their sum, stays, leaves the mean over blocks as it is (A6), and geometric and harmonic means do
not; so the arithmetic mean = 1 gives the law of the best learning rate.

            paper                          here
networks    any; no experiment             plain and residual networks of figures 2a and 2b
measured    -                              the trained optima over depth, against what each mean = 1 at initialization
                                           allows: the exponents; and by how many octaves the prediction moves where
                                           the earlier half of the blocks is split into two layers each

Cost: none besides figures 2a and 2b and the measurement at initialization.
Expect: all means have about the same exponent, since S_l is a power of l; the split moves all but the arithmetic one
over blocks.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from depthmup.measure import MaximalUpdate
from experiments.figures.figure import AGREES, DISAGREES, UNDECIDED, Experiment, Outcome, Sweeps, combined
from experiments.paper_b import at_start, dispute, fig2a
from experiments.paper_b.exponents import Exponent, along_depth, fitted, of_optima

MEANS = ("arithmetic", "geometric", "harmonic")
SWEEPS = {**fig2a.SWEEPS, "full_baseline": dispute.FULL["full_baseline"]}
SAME = 0.01  # octaves


def parts_of(layers: int) -> list[int]:
    """The earlier half of the layers is split into two each."""
    return [2 if layer < layers // 2 else 1 for layer in range(layers)]


def shift(own: MaximalUpdate, mean: str) -> float:
    """By how many octaves the split moves the learning rate of mean = 1.

    The arithmetic mean is one over blocks, whose energy is the sum over their layers (A6); the others are over layers.
    """
    own = own._replace(average=mean)
    parts = parts_of(own.per_seed.shape[1])
    split = own.split(parts)
    split = split.merged(parts) if mean == "arithmetic" else split
    return float(np.log2(split.learning_rate / own.learning_rate))


def of_mean(found: at_start.Found, mean: str) -> Exponent | None:
    rates = {depth: at_start.update(found, depth)._replace(average=mean).learning_rate for depth in sorted(found)}
    return fitted(list(rates), list(rates.values()))


def outcome(sweeps: Sweeps) -> Outcome:
    """The split must leave the arithmetic mean alone, and its exponent must be the one of the trained optima."""
    ours, said = [], []
    for sweep, rows in sweeps.items():
        name = dispute.name_of(sweep)
        found, trained = at_start.read(name), of_optima(along_depth(rows))
        if not found:
            ours.append(f"{name}: not measured at initialization")
            said.append(UNDECIDED)
            continue
        deepest = at_start.update(found, max(found))
        predicted = {mean: of_mean(found, mean) for mean in MEANS}
        ours.append(f"{name}, exponents: trained {trained or 'none'}, "
                    + ", ".join(f"{mean} {exponent or 'none'}" for mean, exponent in predicted.items()))  # fmt: skip
        moved = {mean: shift(deepest, mean) for mean in MEANS}
        ours.append(f"{name}, the split moves the prediction by " + _octaves(moved))
        ours.append(f"{name}, over layers instead of blocks the arithmetic one by {_layers(deepest):+.2f}")
        said.append(AGREES if abs(moved["arithmetic"]) < SAME < min(map(abs, list(moved.values())[1:])) else DISAGREES)
        own = predicted["arithmetic"]
        apart = own is None or trained is None
        said.append(UNDECIDED if apart or not own or not trained else _meet(own, trained))
    return Outcome(ours, combined(said))


def _layers(own: MaximalUpdate) -> float:
    """The same shift for the arithmetic mean over layers, which counts the parts of a block as layers."""
    split = own.split(parts_of(own.per_seed.shape[1]))
    return float(np.log2(split.learning_rate / own.learning_rate))


def _octaves(moved: Mapping[str, float]) -> str:
    return ", ".join(f"{octaves:+.2f} octaves ({mean})" for mean, octaves in moved.items())


def _meet(first: Exponent, second: Exponent) -> str:
    return AGREES if first.low <= second.high and second.low <= first.high else DISAGREES


EXPERIMENT = Experiment(
    figure="Appendix A",
    claim="the arithmetic mean of S_l over blocks does not change where layers are split, and gives the law",
    paper="argued",
    sweeps=SWEEPS,
    outcome=outcome,
    pictures=lambda sweeps: dict[str, Figure](),
)
