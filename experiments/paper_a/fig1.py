"""Figure 1 (and B.2, first half): the best learning rate of SimpleResNets on CIFAR-10 over width and over depth.

    python -m experiments.paper_a 1 --data=DIR

Claim: under muP the best learning rate transfers over width and not over depth; with branches scaled by 1/sqrt(depth)
it transfers over both. SP (B.2) transfers over neither.

            paper (section 3, A.1, A.4)           here
images      CIFAR-10, 32x32, flips, rotations,    CIFAR-10 (JPEG), 16x16, none: one pass needs none
            affine maps, colours
training    SGD, batch 64, constant learning      SGD, batch 64, constant learning rate, 1 epoch: of a CPU
            rate, 20 epochs
sizes       lost                                  32 to 256 channels in the last stage, 3 to 24 blocks
branches    factor 1/sqrt(layers)                 factor sqrt(3 / blocks); --scale=paper counts layers
loss        "train loss after ... epochs"         mean over the last tenth of the steps: at a constant learning rate
                                                  a single step's loss scatters more than the learning rates differ
seeds       lost                                  3

Judged by the mean training loss of the last tenth of the steps, for the reason in the table; footnote 2 and B.1 too.
All depths and widths count.

Cost: 795 trainings of 703 steps, 70 minutes on two cores beside other work.
Expect: the best learning rates of sp and mup fall with depth; depth_mup's costs at most a few percent everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure

from configs import cifar10_simple_resnet
from experiments.figures.figure import (
    Experiment,
    Outcome,
    Sweeps,
    along,
    by_measures,
    curve_of,
    judged,
    loss_pictures,
)
from experiments.paper_a.small import small


def simple_resnet(scale: str) -> Any:
    if scale == "paper":
        config = cifar10_simple_resnet.get_config()
        config.model.count = "weight_layers"
        return config
    config = small("simple_resnet", "sgd", (-8.0, 1.0), depths=(3, 6, 12, 24), base=(32, 3))
    config.model.width = 64
    config.model.depth = 6
    config.sweep.widths = (32, 64, 128, 256)
    config.sweep.judge_by = "last_loss"
    return config


EXPECTED = {("mup", "width"): True, ("mup", "depth"): False, ("depth_mup", "width"): True, ("depth_mup", "depth"): True}
OTHERS = {"loss": "loss of the last step", "validation_loss": "validation loss", "validation_accuracy": "accuracy"}


def outcome(sweeps: Sweeps) -> Outcome:
    result = judged(sweeps["simple_resnet"].curves, EXPECTED)
    return Outcome(["by the mean loss of the last tenth of the steps:", *result.ours], result.verdict)


def pictures(sweeps: Sweeps) -> Mapping[str, Figure]:
    """The paper's axes: the training loss against the learning rate, a line for each width or depth."""
    return loss_pictures(along(sweeps["simple_resnet"].curves, "fig1"))


def remarks(sweeps: Sweeps) -> str:
    curves = sweeps["simple_resnet"].curves
    return REMARKS + by_measures([curve_of(curves, axis, name) for name, axis in EXPECTED], OTHERS)


REMARKS = """
Over depth the edge of sp and mup falls by 5 octaves or more from depth 3 to 24, and the optimum with it; since it falls
faster and faster, no line fits, and the interval of the drift is wide. Under depth_mup the edge is the same at all four
depths. Its drifts are above 0 over depth and over width, and cost little. Over width sp is undecided: at width 256 the
best learning rate of width 32 lies between one that trains and one that does not. The search trained 795 of the 1,197
trainings of the full grid, some of them below it. What other measures say of the same trainings, of which the loss of
a single step scatters by 2% at a constant learning rate:

"""

EXPERIMENT = Experiment(
    figure="1",
    claim="SimpleResNet, SGD: muP transfers over width and not over depth; 1/sqrt(depth) transfers over both",
    paper="so it is (1a, 1b)",
    sweeps={"simple_resnet": simple_resnet},
    outcome=outcome,
    pictures=pictures,
    remarks=remarks,
)
