"""Figures 2 and B.4: ResNets with batch norm and with layer norm, with branches scaled by 1/sqrt(depth) and without.

    python -m experiments.paper_a 2 --data=DIR

Claim: with normalization layers too, the scaled networks transfer more consistently.

            paper (section 3, A.2, B.3)           here
images      CIFAR-10, 32x32, augmented            CIFAR-10 (JPEG), 16x16, not augmented
model       ResNets of He et al.; sizes lost      8 channels in the first stage; 6n + 2 layers, n = 1, 2, 4, 8
training    SGD, batch 64; epochs lost            SGD, batch 64, constant learning rate, half an epoch
branches    factor 1/sqrt(depth)                  factor beta0 / sqrt(n), over depth alone; beta0 1, and 1/16 with batch
                                                  norm, where the check over depth is ok (docs/checks.md)
seeds       lost                                  3

Judged by the loss of the last step, as the paper's "train loss after ... epochs" reads; all depths count. "More
consistently" is a comparison: the scaled networks transfer, or their drift is surely nearer to 0.

Cost: about 800 trainings of 352 steps, an hour on two cores.
Expect: behind norms muP drifts less than without them (figure 1); the scaled networks drift least.
"""

from __future__ import annotations

from typing import Any

from configs import cifar10_resnet
from depthmup.report.curves import TransferCurve
from experiments.figures.figure import (
    AGREES,
    DISAGREES,
    TRANSFERS,
    UNDECIDED,
    CurveName,
    Experiment,
    Outcome,
    Sweeps,
    curve_table,
    loss_pictures,
    named,
)
from experiments.paper_a.small import small

# {(sweep, variant): its label}
VARIANTS = {
    ("resnet", "norm batch"): "batch norm",
    ("resnet", "norm layer"): "layer norm",
    ("resnet_beta0", ""): "batch norm, beta0 1/16",
}


def resnet(scale: str) -> Any:
    if scale == "paper":
        config = cifar10_resnet.get_config()
    else:
        config = small("resnet", "sgd", (-9.0, 1.0), depths=(1, 2, 4, 8), base=(8, 1))
        config.epochs = 0.5
    config.sweep.parameterizations = ("mup", "depth_mup")
    config.sweep.axes = "model.norm = batch, layer"
    return config


def small_branches(scale: str) -> Any:
    config = resnet(scale)
    config.parameterization.beta0 = 1 / 16
    config.sweep.axes = ""
    return config


def consistent(plain: TransferCurve, scaled: TransferCurve) -> str:
    """On the claim of a comparison: with the scaling it transfers, or it drifts less than without."""
    drifts, answer = [c.result.drift for c in (plain, scaled)], UNDECIDED
    if scaled.result.verdict == TRANSFERS:
        answer = AGREES
    elif drifts[0] and drifts[1]:
        less = abs(drifts[1].octaves_per_doubling) < abs(drifts[0].octaves_per_doubling)
        if drifts[1].low > drifts[0].high or drifts[1].high < drifts[0].low:
            answer = AGREES if less else DISAGREES
    return answer


def outcome(sweeps: Sweeps) -> Outcome:
    """Behind each norm, and with small branches."""
    shown, parts = dict[str, TransferCurve](), []
    for (sweep, variant), label in VARIANTS.items():
        if sweep in sweeps:
            names = (f"{name} {variant}".strip() for name in ("mup", "depth_mup"))
            plain, scaled = (named(sweeps, CurveName(sweep, name)) for name in names)
            shown |= {f"mup, {label}": plain, f"depth_mup, {label}": scaled}
            costs = " and ".join(f"{c.result.cost} ({c.parameterization})" for c in (scaled, plain))
            parts.append((f"{label}: costs at most {costs}", consistent(plain, scaled)))
    return Outcome.of(parts, curve_table(shown))


EXPERIMENT = Experiment(
    figure="2, B.4",
    claim="ResNets with batch or layer norm: 1/sqrt(depth) transfers more consistently",
    question="Also of ResNets with norms?",
    sweeps={"resnet": resnet, "resnet_beta0": small_branches},
    outcome=outcome,
    pictures=lambda sweeps: loss_pictures({f"fig2_{name}": sweep.curves for name, sweep in sweeps.items()}),
    needs=("resnet",),
)
