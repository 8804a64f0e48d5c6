"""Theorems 1 and 2: the width changes nothing in plain networks; kernels, images and batches change a factor alone.

    python -m experiments.paper_b width corrections --data=DIR

Claim (3.3): eta*(L) = kappa L^-3/2 (1 + O(1/C + kernel/side + 1/B)). Theorem 1: kappa does not depend on the channels;
"a learning rate tuned at one width transfers to any other width without retuning". The proof has as many outputs as
units and averages the loss over them; the paper's networks have 10 to 1,000 outputs. Theorem 2: no correction alters
the exponent. Judged by validation accuracy as the paper's figures: all widths count, and the depths at which a network
learned.

            paper                      here
widths      arbitrary                  8 to 64 channels, 4 layers, 8x8 pixels, an epoch: experiments/paper_b/networks.py
heads       weights of variance 1/N,   am_mup, the same, is judged. Beside it mup: the mean-field readout, a factor 1/N,
            one learning rate          and a read-in whose learning rate grows with the width, so that it keeps moving
changed     "when specified"; no       16 channels, kernel 3, 8x8 pixels, batch 128, 100 steps; each alone: 32 channels;
            figure                     kernel 5; 16x16 pixels; batch 32. Zero padding is figure 4

Cost: about 170 trainings of 351 steps, 70 minutes on two cores; 5 sweeps of 100 trainings of 100 steps, an hour on one.
Expect: under mup the optimum stays over width, under am_mup it falls about as width^-1/2, as Sbar = 1 does at
initialization (docs/theory.md, section 6). Exponents do not move by more than their intervals; a smaller batch allows
smaller learning rates.

More seeds: three left both heads undecided (0% [0, .6] and 1.4% [0, 4.1]); they got seeds until decided, up to 24.
Prediction: the learning rate of am_mup transfers over width, from drifts of -.26 to .12. Outcome, after 846 more
trainings in an hour and a half: still undecided, 0% [0, .8], with a drift of .04 [-.15, .24].
"""

from __future__ import annotations

import math

import numpy as np

from depthmup.fit import Transfer
from experiments.figures.figure import CurveName, Experiment, Part, loss_pictures
from experiments.output import paired
from experiments.paper_b import networks
from experiments.paper_b.exponents import Law, best_rates, equal, experiment

HEADS = ("am_mup", "mup")
WIDTHS = (8, 16, 32, 64)
BATCH = 32
CHANGES: dict[str, networks.Changes] = {
    "base": {},
    "channels": {"model.width": 32},
    "kernel": {"model.kernels": (5,)},
    "size": {"data.image_size": 16},
    "batch": {"data.batch_size": BATCH, "epochs": 100 * BATCH / (128 * networks.STEPS)},
}
LAWS = {name: Law(f"plain_{name}") for name in CHANGES}
SWEEPS = {law.sweep: networks.screen(networks.plain, networks.SHORT, CHANGES[name]) for name, law in LAWS.items()}
PLAIN_WIDTH = networks.full(
    networks.plain,
    (),
    {
        "model.depth": 4, "model.width": WIDTHS[0], "parameterization.base_width": WIDTHS[0],
        "sweep.parameterizations": HEADS, "sweep.widths": WIDTHS, "sweep.until": "decided",
    },
)  # fmt: skip


def changed(base: Transfer, other: Transfer) -> Part:
    """Of the claim that the exponents are equal; and by how many octaves the best learning rates of `other` are higher,
    the mean over depths with its 95% interval."""
    octaves = [math.log2(b / a) for a, b in zip(best_rates(base), best_rates(other), strict=True) if a and b]
    difference, answer = equal(base, other)
    if len(octaves) < 2:
        return difference, answer
    return f"{difference}; {paired(np.array(octaves)).text()} octaves", answer


WIDTH = Experiment.transfers(
    figure="Theorem 1",
    claim="plain CNNs: the width does not matter (assumed: as many outputs as units; here ten)",
    sweeps={"plain_width": PLAIN_WIDTH},
    expected={CurveName("plain_width", "am_mup", "width"): True, CurveName("plain_width", "mup", "width"): None},
    pictures=lambda sweeps: loss_pictures({"theorem1": sweeps["plain_width"].curves}),
)
CORRECTIONS = experiment(
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
