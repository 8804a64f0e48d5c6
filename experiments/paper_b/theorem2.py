"""Theorem 2: channels, kernels, image sizes and batch sizes change a factor, not the exponent.

    python -m experiments.paper_b corrections --data=DIR

Claim (3.3): eta*(L) = kappa L^-3/2 (1 + O(1/C + kernel/side + 1/B)), where kappa does not depend on channels, kernel
and image (theorem 1), and no correction alters the exponent.

            paper                                here
base        experiments/paper_b/networks.py      16 channels, kernel 3, 8x8 pixels, batch 128; 100 steps
changed     "when specified"; no figure          each alone: 32 channels; kernel 5; 16x16 pixels; batch 32

Zero padding, the other boundary, is figure 4. Judged by validation accuracy at the depths at which a network learned,
for the reasons in experiments/paper_b/networks.py.

Cost: 5 sweeps of about 100 trainings of 100 steps, an hour on one core.
Expect: exponents that do not move by more than their intervals; a smaller batch allows smaller learning rates.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from depthmup.fit import Transfer
from experiments.figures.figure import Experiment, Outcome, Sweeps, combined, paired
from experiments.paper_b import exponents, networks
from experiments.paper_b.exponents import along_depth, best_rates, by_both, equal

BATCH = 32
CHANGES: dict[str, Mapping[str, Any]] = {
    "base": {},
    "channels": {"model__width": 32},
    "kernel": {},
    "size": {"data__image_size": 16},
    "batch": {"epochs": 100 * BATCH / (128 * networks.STEPS)},
}
# At the paper's scale, too.
BOTH: dict[str, Mapping[str, Any]] = {"kernel": {"model.kernels": (5,)}, "batch": {"data.batch_size": BATCH}}


def _at_scale(name: str) -> networks.Config:
    own = networks.screen(networks.plain, networks.SHORT, BOTH.get(name, {}), **CHANGES[name])

    def config(scale: str) -> Any:
        result = own(scale)
        if scale == "paper" and name == "channels":
            result.model.width *= 2
        if scale == "paper" and name == "size":
            result.data.update(name="folder", image_size=16)  # only a folder's images are resized
        return result

    return config


SWEEPS = {f"plain_{name}": _at_scale(name) for name in CHANGES}


def laws(sweeps: Sweeps) -> dict[str, Transfer]:
    return {name.removeprefix("plain_"): along_depth(sweep) for name, sweep in sweeps.items()}


def factor(base: Transfer, other: Transfer) -> str:
    """By how many octaves the best learning rates of `other` are higher: the mean over depths, its 95% interval."""
    octaves = [math.log2(b / a) for a, b in zip(best_rates(base), best_rates(other), strict=True) if a and b]
    if len(octaves) < 2:
        return ""
    mean, low, high = paired(np.array(octaves))
    return f"; best learning rates {mean:+.2f} [{low:+.2f}, {high:+.2f}] octaves higher"


def outcome(sweeps: Sweeps) -> Outcome:
    results = laws(sweeps)
    base = results["base"]
    lines, answers = [f"base, {by_both(sweeps['plain_base'])}"], []
    for name, result in results.items():
        if name != "base":
            difference, verdict = equal(base, result)
            lines.append(f"{name}: {difference}{factor(base, result)}")
            answers.append(verdict)
    return Outcome(lines, combined(answers))


def pictures(sweeps: Sweeps) -> Mapping[str, Figure]:
    return {"theorem2": exponents.pictures(laws(sweeps), "Plain networks, 100 steps, by accuracy")}


EXPERIMENT = Experiment(
    figure="Theorem 2",
    claim="plain CNN: channels, kernel, image size and batch size leave the exponent",
    paper="proved",
    sweeps=SWEEPS,
    outcome=outcome,
    pictures=pictures,
    needs=("plain_base", "plain_kernel"),
    remarks="""
In 100 steps none of these networks learns at 13 layers, and some not at 9: fewer than five depths are left, so that
there is no exponent and nothing is decided. Factors between the best learning rates are of the depths that both have.
Longer trainings would decide.""",
)
