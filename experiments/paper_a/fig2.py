"""Figures 2 and B.4: ResNets with batch norm and with layer norm, with branches scaled by 1/sqrt(depth) and without.

    python -m experiments.paper_a 2 --data=DIR

Claim: with normalization layers too, the scaled networks transfer more consistently.

            paper (section 3, A.2, B.3)           here
images      CIFAR-10, 32x32, augmented            CIFAR-10 (JPEG), 16x16, not augmented
model       ResNets of He et al.; sizes lost      8 channels in the first stage; 6n + 2 layers, n = 1, 2, 4, 8
training    SGD, batch 64; epochs lost            SGD, batch 64, constant learning rate, half an epoch; 3 seeds
branches    factor 1/sqrt(depth)                  factor beta0 / sqrt(n), over depth alone; beta0 1, and 1/16 with batch
                                                  norm, where the check over depth is ok (docs/checks.md)

Judged by the loss of the last step, as the paper's "train loss after ... epochs" reads; all depths count. "More
consistently" is a comparison: the scaled networks transfer, or their drift is surely nearer to 0.

Cost: about 800 trainings of 352 steps, an hour on two cores.
Expect: behind norms muP drifts less than without them (figure 1); the scaled networks drift least.
"""

from __future__ import annotations

from typing import Any

from depthmup.trials.verdicts import TransferCurve
from experiments.figures.figure import TRANSFERS, Experiment, Outcome, Sweeps, curve, curve_table, loss_pictures
from experiments.output import decided
from experiments.paper_a.small import small

# {label: (sweep, variant)}
VARIANTS = {
    "batch norm": ("resnet", " norm batch"),
    "layer norm": ("resnet", " norm layer"),
    "batch norm, beta0 1/16": ("resnet_beta0", ""),
}


def resnet() -> Any:
    config = small("resnet", "sgd", (-9.0, 1.0), depths=(1, 2, 4, 8), base=(8, 1))
    config.epochs = 0.5
    config.sweep.update(parameterizations=("mup", "depth_mup"), axes="model.norm = batch, layer")
    return config


def small_branches() -> Any:
    config = resnet()
    config.parameterization.beta0 = 1 / 16
    config.sweep.axes = ""
    return config


def consistent(plain: TransferCurve, scaled: TransferCurve) -> str:
    """On the claim of a comparison: with the scaling it transfers, or it drifts less than without."""
    before, after = plain.result.drift, scaled.result.drift
    apart = bool(before and after and (after.low > before.high or after.high < before.low))
    less = bool(before and after and abs(after.octaves_per_doubling) < abs(before.octaves_per_doubling))
    agrees = scaled.result.verdict == TRANSFERS or (apart and less)
    return decided(agrees, apart and not agrees)


def outcome(sweeps: Sweeps) -> Outcome:
    """Behind each norm, and with small branches."""
    shown, parts = dict[str, TransferCurve](), []
    for label, (sweep, variant) in VARIANTS.items():
        if sweep in sweeps:
            plain, scaled = (curve(sweeps, sweep, f"{name}{variant}") for name in ("mup", "depth_mup"))
            shown |= {f"mup, {label}": plain, f"depth_mup, {label}": scaled}
            costs = " and ".join(f"{c.result.cost} ({c.parameterization})" for c in (scaled, plain))
            parts.append((f"{label}: costs at most {costs}", consistent(plain, scaled)))
    return Outcome.of(parts, curve_table(shown))


EXPERIMENT = Experiment(
    figure="2, B.4",
    claim="with batch or layer norm 1/sqrt(depth) transfers more consistently",
    question="Also of ResNets with norms?",
    sweeps={"resnet": resnet, "resnet_beta0": small_branches},
    outcome=outcome,
    pictures=lambda sweeps: loss_pictures({f"fig2_{name}": sweep.curves for name, sweep in sweeps.items()}),
    needs=("resnet",),
)
