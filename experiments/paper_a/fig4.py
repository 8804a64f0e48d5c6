"""Figures 4 and B.8: other hyperparameters over depth, and the dynamics at several depths on top of each other.

    python -m experiments.paper_a 4 --data=DIR

Claim: with branches scaled by 1/sqrt(depth), momentum, weight decay and the feature-learning rate gamma0 transfer over
depth as well, and learning curves with the same hyperparameter and different depths are remarkably similar, especially
at the beginning. beta0, the branch multiplier at the base depth, is ours, and stands beside the claim.

The paper (section 3, B.3) has SimpleResNets on CIFAR-10 and 20 epochs; values and learning rates are lost. Here: figure
1's networks of 64 channels and training; 1 - momentum in octaves, gamma0, beta0 and decay in factors of 2 or 4, and the
learning rate 2^-3 for SGD, 2^-6 for momentum. Judged as figure 1, the learning curves at the learning rate that is best
at depth 3; all depths count.

More seeds: three left momentum undecided, at a cost of .5% [.0, 1.8]. It gets seeds until it is decided, up to 24.
Prediction, written before them: it transfers, because its optimum drifts by -.15 octaves a doubling, .5 at most.
Outcome: undecided at .4% [.0, 1.4] after 318 trainings; it transfers after twelve more (`more`).

Cost: 4 sweeps of 84 trainings of 703 steps and 234 more of momentum, 80 minutes on two cores beside other work.
Expect: optima of momentum, gamma0 and beta0 that stay. The best weight decay of a single epoch is the smallest, so its
optimum cannot be followed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from depthmup.fit.marks import Mark
from depthmup.fit.picture import draw
from depthmup.report.panels import over_training
from depthmup.trials.verdicts import TransferCurve
from experiments.figures.figure import Experiment, Outcome, Sweeps, curve, curve_table, loss_pictures, says
from experiments.output import decided
from experiments.paper_a import fig1
from experiments.published import SCALE, STRETCHES

# key: (its values, optimizer, learning rate)
SWEPT = {
    "momentum": ("optimizer.momentum = 0, 0.5, 0.75, 0.875, 0.9375, 0.96875, 0.984375", "momentum", 2.0**-6),
    "weight_decay": ("optimizer.weight_decay = log(0.0001, 0.4096, 7)", "sgd", 2.0**-3),
    "gamma0": ("parameterization.gamma0 = log(0.125, 8, 7)", "sgd", 2.0**-3),
    "beta0": ("parameterization.beta0 = log(0.125, 8, 7)", "sgd", 2.0**-3),
}
ALIKE = 0.05  # learning curves are "remarkably similar" if their losses differ by less at all depths


def config_of(name: str) -> Any:
    values, optimizer, rate = SWEPT[name]
    config = fig1.simple_resnet()
    axes = f"optimizer.learning_rate = {rate}; {values}"
    config.sweep.update(axes=axes, optimizers=(optimizer,), parameterizations=("depth_mup",), widths=(), adaptive=False)
    if name == "momentum":
        config.sweep.until = "decided"
    return config


SWEEPS: dict[str, Callable[[], Any]] = {
    **{name: functools.partial(config_of, name) for name in SWEPT},
    **fig1.EXPERIMENT.sweeps,
}


def losses_over_time(c: TransferCurve) -> dict[float, np.ndarray]:
    """{depth: mean over seeds of the training loss in each of STRETCHES equal parts} at the smallest depth's best."""
    carried = {size: c.carried(size) for size in c.result.values}
    return {
        size: np.mean([np.asarray(curve) / SCALE for curve in trials["curve"]], axis=0)
        for size, trials in carried.items()
        if len(trials) and not trials["diverged"].any() and all(len(curve) == STRETCHES for curve in trials["curve"])
    }


def spread(c: TransferCurve, part: slice) -> float:
    """The largest ratio of losses between depths minus 1, over a part of the training; infinite if a depth diverges."""
    of_depth = losses_over_time(c)
    if len(of_depth) < len(c.result.values):
        return np.inf
    table = np.array(list(of_depth.values()))[:, part]
    return float((table.max(axis=0) / table.min(axis=0)).max() - 1)


def outcome(sweeps: Sweeps) -> Outcome:
    """All hyperparameters but beta0, and the learning curves of the scaled networks."""
    curves = {name.replace("_", " "): sweeps[name].curves[0] for name in SWEPT}
    parts = [says(c, label=name) for name, c in curves.items() if name != "beta0"]
    lines = []
    for name in ("mup", "depth_mup"):
        c = curve(sweeps, "simple_resnet", name)
        first, last = spread(c, slice(0, STRETCHES // 4)), spread(c, slice(STRETCHES // 4, None))
        apart = f"losses differ by at most {100 * first:.0f}% in the first quarter, {100 * last:.0f}% later"
        lines.append(f"{name}, all depths with one learning rate: {apart if last < np.inf else 'some diverge'}.")
    parts.append((lines[-1], decided(first < ALIKE, first >= ALIKE)))
    labels = {c.hyperparameter.replace("_", " "): c for c in curves.values()}
    return Outcome.of(parts, "\n".join([curve_table(labels), "", *lines]))


def dynamics(curves: Sequence[TransferCurve], name: str) -> dict[str, Figure]:
    """{name: the training loss over time at every size, with the smallest one's best learning rate}."""
    losses, times = {c: losses_over_time(c) for c in curves}, (np.arange(STRETCHES) + 0.5) / STRETCHES

    def mark(c: TransferCurve, size: float) -> Mark | None:
        return Mark("line", times, losses[c][size]) if size in losses[c] else None

    title = "Training loss at each depth, with the smallest one's best learning rate"
    drawn = over_training(curves, name, title, "training loss", mark, x="share of the training")
    return {picture.name: draw(picture) for picture in drawn}


def pictures(sweeps: Sweeps) -> Mapping[str, Figure]:
    curves = [curve(sweeps, "simple_resnet", name) for name in ("sp", "mup", "depth_mup")]
    return loss_pictures({f"fig4_{name}": sweeps[name].curves for name in SWEPT}) | dynamics(curves, "fig4_dynamics")


EXPERIMENT = Experiment(
    figure="4, B.8",
    claim="momentum, weight decay, gamma0 transfer over depth; the learning curves of all depths coincide",
    question="Do other hyperparameters transfer?",
    sweeps=SWEEPS,
    outcome=outcome,
    pictures=pictures,
)
