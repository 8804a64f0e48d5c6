"""Figures 1 and B.2: the best learning rate of SimpleResNets on CIFAR-10 over width and over depth.

    python -m experiments.paper_a 1 B.2 --data=DIR

Claim: under muP the best learning rate transfers over width and not over depth; with branches scaled by 1/sqrt(depth)
it transfers over both. Under SP it transfers neither with the scaling nor without (B.3): at a fixed width SP with the
scaling (`depth_sp`) and `depth_mup` differ by constants alone, so that over depth the paper's own theory has it
transfer, and the claim about it is one over width.

            paper (section 3, A.1, A.4)           here
images      CIFAR-10, 32x32, flips, rotations,    CIFAR-10 (JPEG), 16x16, none: one pass needs none
            affine maps, colours
training    SGD, batch 64, constant learning      SGD, batch 64, constant learning rate, 1 epoch: of a CPU
            rate, 20 epochs
sizes       lost                                  32 to 256 channels in the last stage, 3 to 24 blocks
branches    factor 1/sqrt(layers)                 factor sqrt(3 / blocks)
loss        "train loss after ... epochs"         mean over the last tenth of the steps: at a constant learning rate
                                                  a single step's loss scatters more than the learning rates differ
seeds       lost                                  3 to 24

Judged by the mean training loss of the last tenth of the steps; footnote 2 and B.1 too. This measure entered with the
first rows; before, it was the loss of the last step, by which figures 1 and B.2 are shown, too. All depths and widths
count.

Cost: 1,299 trainings of 703 steps, 3 h 10 min on two cores; 594 more and 1 h 45 min for `depth_sp`.
Expect: the best learning rates of sp and mup fall with depth, those of sp and depth_sp with width; depth_mup's costs at
most a few percent everywhere.

More seeds and rates: three seeds at half octaves left sp and depth_sp over width undecided, and depth_sp over depth
(.4% [.0, .9]); they got both until decided, up to 24 seeds. Prediction: depth_sp transfers over both, against the claim
over width, since at width 256 the edge only reaches the optimum; sp over width does too. Outcome: depth_sp transfers
over both; sp over width stays undecided after six looks and 543 trainings (drift -.33 [-.86, .20] octaves a doubling).
"""

from __future__ import annotations

from typing import Any

from depthmup.trials.verdicts import TransferCurve
from experiments.figures.figure import CurveName, Experiment, Sweeps, along, loss_pictures
from experiments.paper_a.small import small

EXPECTED = {
    CurveName("simple_resnet", "depth_mup"): True,
    CurveName("simple_resnet", "depth_mup", "width"): True,
    CurveName("simple_resnet", "mup"): False,
    CurveName("simple_resnet", "mup", "width"): True,
}


def simple_resnet() -> Any:
    config = small("simple_resnet", "sgd", (-8.0, 1.0), depths=(3, 6, 12, 24), base=(32, 3))
    config.model.update(width=64, depth=6)
    config.sweep.update(widths=(32, 64, 128, 256), judge_by="last_loss")
    return config


def until_decided() -> Any:
    config = simple_resnet()
    config.sweep.until = "decided"
    return config


def scaled_sp() -> Any:
    config = until_decided()
    config.sweep.parameterizations = ("depth_sp",)
    return config


def _of_sp(sweeps: Sweeps) -> list[TransferCurve]:
    return [c for sweep in sweeps.values() for c in sweep.curves if c.parameterization in ("sp", "depth_sp")]


EXPERIMENT = Experiment.transfers(
    figure="1",
    claim="muP transfers over width and not over depth, 1/sqrt(depth) over both",
    question="Does one learning rate serve all widths and depths?",
    sweeps={"simple_resnet": until_decided},
    expected=EXPECTED,
    first_measure="loss",
    pictures=lambda sweeps: loss_pictures(along(sweeps["simple_resnet"].curves, "fig1")),  # the paper's axes
)
SP = Experiment.transfers(
    figure="B.2",
    claim="SP transfers over neither width nor depth, with 1/sqrt(depth) not over width",
    sweeps={**EXPERIMENT.sweeps, "depth_sp": scaled_sp},
    expected={
        CurveName("simple_resnet", "sp", "width"): False,
        CurveName("simple_resnet", "sp"): False,
        CurveName("depth_sp", "depth_sp", "width"): False,
        CurveName("depth_sp", "depth_sp"): None,
    },
    first_measure="loss",
    pictures=lambda sweeps: loss_pictures(along(_of_sp(sweeps), "figb2")),
)
