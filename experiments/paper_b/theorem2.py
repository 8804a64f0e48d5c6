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

import functools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from depthmup.fit import Transfer
from experiments.figures.figure import Part, paired
from experiments.paper_b import networks
from experiments.paper_b.exponents import Law, best_rates, equal, experiment

BATCH = 32
# {name: (changes at either scale, at the laptop's alone)}
CHANGES: dict[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {
    "base": ({}, {}),
    "channels": ({}, {"model__width": 32}),
    "kernel": ({"model.kernels": (5,)}, {}),
    "size": ({}, {"data__image_size": 16}),
    "batch": ({"data.batch_size": BATCH}, {"epochs": 100 * BATCH / (128 * networks.STEPS)}),
}


def _at_scale(name: str, scale: str) -> Any:
    changes, demo = CHANGES[name]
    config = networks.screen(networks.plain, networks.SHORT, changes, **demo)(scale)
    if scale == "paper" and name == "channels":
        config.model.width *= 2
    if scale == "paper" and name == "size":
        config.data.update(name="folder", image_size=16)  # only a folder's images are resized
    return config


LAWS = {name: Law(f"plain_{name}") for name in CHANGES}
SWEEPS = {law.sweep: functools.partial(_at_scale, name) for name, law in LAWS.items()}


def changed(base: Transfer, other: Transfer) -> Part:
    """Of the claim that the exponents are equal; and by how many octaves the best learning rates of `other` are higher,
    the mean over depths with its 95% interval."""
    octaves = [math.log2(b / a) for a, b in zip(best_rates(base), best_rates(other), strict=True) if a and b]
    difference, answer = equal(base, other)
    if len(octaves) < 2:
        return difference, answer
    return f"{difference}; {paired(np.array(octaves)).text()} octaves", answer


EXPERIMENT = experiment(
    figure="Theorem 2",
    claim="plain CNNs: channels, kernel, image size, batch size leave the exponent",
    sweeps=SWEEPS,
    laws=LAWS,
    compared={name: "base" for name in LAWS if name != "base"},
    compare=changed,
    picture="theorem2",
    title="Plain networks, 100 steps, by accuracy",
    needs=("plain_base", "plain_kernel"),
)
