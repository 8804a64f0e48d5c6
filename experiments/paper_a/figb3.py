"""Figure B.3: how long must one train to know the best learning rate? From the learning curves of figures 1 and 3.

    python -m experiments.paper_a B.3 --data=DIR

Claim (B.2): "after the first few epochs it is already possible to decide the optimal learning rate". The paper has 20
epochs, two depths and four learning rates; here it is one epoch, in tenths. The first few of 20 epochs are at most
three tenths of the training, so the learning rate that is best in the third tenth is judged in the last one, as one
that is carried from depth to depth is (docs/laws.md). Beside it: the share of the training after which the optimum
stays within a quarter of an octave of the last tenth's. All depths count.

Cost: nothing besides the trainings of figures 1 and 3.
Expect: small costs for SimpleResNets, and optima that still move by parts of an octave.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from depthmup.fit import Transfer, optimum, settled, transfer
from depthmup.trials.verdicts import TransferCurve
from experiments.figures.figure import Experiment, Outcome, Sweeps, agreement, curve, panels
from experiments.output import NOT_RUN, combined, markdown
from experiments.paper_a import fig1, fig3
from experiments.paper_a.fig3 import claimed, label
from experiments.published import SCALE, STRETCHES

TIMES = 10  # equal parts of the training
EARLY = 3  # the tenth by whose loss the learning rate is chosen


def by_tenth(curve: Sequence[int]) -> np.ndarray:
    """(TIMES,) mean training losses of one trial; NaN after divergence."""
    losses = np.full(STRETCHES, np.nan)
    losses[: len(curve)] = np.asarray(curve) / SCALE
    return losses.reshape(TIMES, -1).mean(axis=-1)


def over_time(c: TransferCurve, size: float) -> tuple[np.ndarray, np.ndarray]:
    """(learning rates, losses (TIMES, rates, seeds)) of one size, by the seeds that every learning rate has."""
    by_rate = c.at(size).sort_values("seed").groupby("learning_rate")["curve"]
    curves = {rate: [*map(by_tenth, curves)] for rate, curves in by_rate}
    seeds = min(map(len, curves.values()))
    losses = np.array([of_rate[:seeds] for of_rate in curves.values()])
    return np.array([*curves]), np.moveaxis(losses, -1, 0)


def choice(c: TransferCurve, size: float) -> Transfer:
    """Is the learning rate that is best in the tenth EARLY as good in the last one as the best there?"""
    rows = []
    for rate, seed, losses in c.at(size)[["learning_rate", "seed", "curve"]].itertuples(index=False):
        tenths = by_tenth(losses)
        for tenth in (EARLY, TIMES):
            loss = tenths[tenth - 1]
            row = {"tenth": tenth, "learning_rate": rate, "seed": seed, "loss": loss, "diverged": np.isnan(loss)}
            rows.append(row)
    return transfer(rows, "tenth", c.chance_loss)


def outcome(sweeps: Sweeps) -> Outcome:
    """The choice must be as good at every depth of every network of the paper's figure. 20 epochs were not trained."""
    parts = []
    for name, c in networks(sweeps).items():
        chosen = [choice(c, size) for size in c.result.values]
        costs = [result.cost for result in chosen]
        most = "not known" if None in costs else str(max(cost for cost in costs if cost))
        parts.append((f"{name}: costs at most {most}", combined([agreement(result) for result in chosen])))
    stand_in = Outcome.of(parts)
    return Outcome(NOT_RUN, f"a stand-in, an epoch in tenths, {stand_in.verdict}: {stand_in.number}")


def networks(sweeps: Sweeps) -> dict[str, TransferCurve]:
    simple = (curve(sweeps, "simple_resnet", name) for name in ("depth_mup", "mup"))
    vit = {f"ViT{'' if 'lr_depth' in c.variant else ' with cosine'}, {label(c)}": c for c in claimed(sweeps)}
    return {f"SimpleResNet, {c.name}": c for c in simple} | vit


def by_depth(sweeps: Sweeps) -> str:
    """What the choice costs at each depth, and from which share of the training on the optimum stays."""
    rows = []
    for name, c in networks(sweeps).items():
        costs = (choice(c, size) for size in c.result.values)
        times = (settled(*over_time(c, size), c.chance_loss) for size in c.result.values)
        late = ("never" if time is None else f"{100 * (time + 1) / TIMES:.0f}%" for time in times)
        rows.append([name, "; ".join(str(result.cost or result.verdict) for result in costs), ", ".join(late)])
    return markdown(("network, by depth", "the choice costs", "the optimum stays from"), rows)


def draw(c: TransferCurve, panel: Axes) -> None:
    """The optimum over the training, at every depth."""
    for size in c.result.values:
        rates, losses = over_time(c, size)
        best = [optimum(rates, at, c.chance_loss).learning_rate for at in losses]
        logs = [np.nan if rate is None else np.log2(rate) for rate in best]
        panel.plot((np.arange(TIMES) + 1) / TIMES, logs, "-o", ms=3, label=f"depth {size:g}")


def pictures(sweeps: Sweeps) -> Mapping[str, Figure]:
    contents = {name: functools.partial(draw, curve(sweeps, "simple_resnet", name)) for name in ("mup", "depth_mup")}
    ylabel, title = "log2 best learning rate of this tenth", "The best learning rate while training"
    return {"figb3": panels(contents, "epochs", ylabel, title)}


EXPERIMENT = Experiment(
    figure="B.3",
    claim="the first few of 20 epochs show the best learning rate",
    sweeps={**fig1.EXPERIMENT.sweeps, **fig3.EXPERIMENT.sweeps, **fig3.COSINE.sweeps},
    outcome=outcome,
    pictures=pictures,
    needs=("simple_resnet",),
    printed=by_depth,
)
