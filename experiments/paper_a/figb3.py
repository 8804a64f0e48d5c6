"""Figure B.3: how long must one train to know the best learning rate? From the learning curves of figure 1.

    python -m experiments.paper_a B.3 --data=DIR

Claim (B.2): "after the first few epochs it is already possible to decide the optimal learning rate". The paper has 20
epochs, two depths and four learning rates; here it is one epoch of figure 1's networks, in tenths. Two answers: what it
costs at the end to choose the learning rate that is best in the third tenth, and the share of the training after which
the optimum stays within a quarter of an octave of the last tenth's.

Cost: nothing besides figure 1's trainings.
Expect: costs far below 5%, and optima that still move by parts of an octave.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from depthmup.fit import log_losses, optimum, settled
from depthmup.report.curves import TransferCurve
from experiments.figures.figure import AGREES, DISAGREES, Experiment, Outcome, Sweeps, curve_of
from experiments.paper_a import fig1
from experiments.published import SCALE, STRETCHES

TIMES = 10  # equal parts of the training
EARLY = 3  # the learning rate is chosen by the loss in this tenth
CHEAP = 0.05  # what the choice may cost, as in a verdict by regret


def over_time(c: TransferCurve, size: float) -> tuple[np.ndarray, np.ndarray]:
    """(learning rates, mean training losses (TIMES, rates, seeds)) of one size; NaN after divergence."""
    trials = c.at(size)
    losses = np.full((len(trials), STRETCHES), np.nan)
    for row, curve in zip(losses, trials["curve"], strict=True):
        row[: len(curve)] = np.asarray(curve) / SCALE
    rates = trials["learning_rate"].unique()
    of_time = losses.reshape(len(rates), -1, TIMES, STRETCHES // TIMES).mean(axis=-1)
    return rates, np.moveaxis(of_time, -1, 0)


def shares(c: TransferCurve) -> dict[float, float | None]:
    """{size: share of the training after which the optimum stays}; None where the end has no optimum."""
    found = {size: settled(*over_time(c, size), c.chance_loss) for size in c.result.values}
    return {size: None if time is None else (time + 1) / TIMES for size, time in found.items()}


def cost_of_choosing_early(c: TransferCurve) -> float:
    """The largest share, over sizes, by which the loss at the end is above the best one, with the choice of EARLY."""
    worst = 0.0
    for size in c.result.values:
        losses = np.exp(log_losses(over_time(c, size)[1], c.chance_loss).mean(axis=-1))  # (TIMES, rates)
        worst = max(worst, losses[-1, losses[EARLY - 1].argmin()] / losses[-1].min() - 1)
    return float(worst)


def outcome(sweeps: Sweeps) -> Outcome:
    ours, worst = [], 0.0
    for name in ("mup", "depth_mup"):
        c = curve_of(sweeps["simple_resnet"].curves, "depth", name)
        found = shares(c)
        said = (f"{size:g}: {'none' if share is None else f'{100 * share:.0f}%'}" for size, share in found.items())
        worst = max(worst, cost := cost_of_choosing_early(c))
        ours.append(
            f"{name}, the learning rate that is best after {10 * EARLY}% of the epoch costs at most {100 * cost:.1f}% "
            f"at its end; the optimum stays within a quarter octave from this share on, at depth {', '.join(said)}"
        )
    return Outcome(ours, AGREES if worst <= CHEAP else DISAGREES)


def pictures(sweeps: Sweeps) -> Mapping[str, Figure]:
    """The optimum over the training, at every depth."""
    figure = Figure(figsize=(8, 3.8), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for panel, name in zip(panels, ("mup", "depth_mup"), strict=True):
        c = curve_of(sweeps["simple_resnet"].curves, "depth", name)
        for size in c.result.values:
            rates, losses = over_time(c, size)
            best = [optimum(rates, at, c.chance_loss).learning_rate for at in losses]
            times = (np.arange(TIMES) + 1) / TIMES
            panel.plot(times, [np.nan if b is None else np.log2(b) for b in best], "-o", ms=3, label=f"depth {size:g}")
        panel.set_title(name)
        panel.set_xlabel("epochs")
        panel.legend(fontsize=8)
    panels[0].set_ylabel("log2 best learning rate of this tenth")
    figure.suptitle("The best learning rate while training")
    return {"figb3": figure}


EXPERIMENT = Experiment(
    figure="B.3",
    claim="the best learning rate is known early in the training",
    paper="after the first few of 20 epochs",
    sweeps=fig1.EXPERIMENT.sweeps,
    outcome=outcome,
    pictures=pictures,
)
