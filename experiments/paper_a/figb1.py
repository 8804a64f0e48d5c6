"""Figure B.1 and footnote 2: loss against parameters, the best depth, and whether larger is always better.

    python -m experiments.paper_a B.1 --data=DIR

Claim (B.1): at a fixed number of epochs the Pareto front of loss against parameters is that of one depth; power laws
fitted at constant depth predict depth 30 as the best one at very large widths. Claim (footnote 2): with the scaling,
larger width and depth improve the performance monotonically.

The paper has SimpleResNets of up to 1e9 parameters, 20 augmented epochs and one learning rate. Here: the training of
figure 1, 32 to 128 channels and 3 to 24 blocks (1.3e6 parameters), scaled by 1/sqrt(depth). Judged by the mean training
loss of the last tenth of the steps at the best of five learning rates; all sizes count. This measure entered with the
first rows; before, it was the loss of the last step, which is shown, too.

Cost: 120 trainings of 703 steps besides figure 1's, 17 minutes on two cores.
Expect: wider is better; in a single epoch depth helps less than width.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from depthmup.models import SimpleResNet
from depthmup.rules.parameterization import ForwardFactors, Name
from depthmup.settings import Judged
from experiments.figures.figure import WORDS, Experiment, Outcome, Sweeps, panels
from experiments.output import NOT_RUN, decided, markdown, percent, ticks
from experiments.paper_a import fig1

WIDTHS = (32, 64, 128)
DEPTHS = (3, 6, 12, 24)
NAME: Name = "depth_mup"
FIRST: Judged = "loss"  # the measure before the first rows


def at_width(width: int) -> Any:
    config = fig1.simple_resnet()
    config.model.width = width
    axes = f"optimizer.learning_rate = {', '.join(str(2.0**k) for k in (-4.0, -3.5, -3.0, -2.5, -2.0))}"
    config.sweep.update(parameterizations=(NAME,), widths=(), adaptive=False, axes=axes)
    return config


OWN = {f"simple_resnet_{width}": functools.partial(at_width, width) for width in WIDTHS if width != 64}
SWEEPS: dict[str, Callable[[], Any]] = {**OWN, **fig1.EXPERIMENT.sweeps}


class Best(NamedTuple):
    """A network's number of parameters, and its training losses at its best learning rate, by seed."""

    parameters: int
    losses: pandas.Series

    def over(self, other: Best) -> np.ndarray:
        """Ratios of the losses at the seeds that both have."""
        return (self.losses / other.losses).dropna().to_numpy(float)


@functools.cache
def parameters(width: int, depth: int) -> int:
    """The number of parameters of the experiment's network."""
    model, image = SimpleResNet(width=width, depth=depth, outputs=10), jnp.zeros((1, 16, 16, 3))
    shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), image, ForwardFactors(1.0, 1.0, 1.0))["params"])
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))


def bests(sweeps: Sweeps, measure: Judged = "last_loss") -> dict[tuple[int, int], Best]:
    """{(width, depth): the network}"""
    rows = pandas.concat([sweep.rows for sweep in sweeps.values()])
    rows = rows[(rows["parameterization"] == NAME) & rows["depth"].isin(DEPTHS) & rows["width"].isin(WIDTHS)]
    rows = rows.assign(score=rows[measure].where(~rows["diverged"], math.inf)).drop_duplicates("key")
    result = {}
    for (width, depth), trials in rows.groupby(["width", "depth"]):
        scores = trials.pivot(index="learning_rate", columns="seed", values="score")
        losses = scores.loc[scores.mean(axis=1).idxmin()].dropna()
        result[int(width), int(depth)] = Best(parameters(int(width), int(depth)), losses)
    return result


def larger_is_better(sweeps: Sweeps) -> Outcome:
    """Every doubling of the width and of the depth: all must fall; one that surely rises disagrees."""
    by_size, before, parts, rows = bests(sweeps), bests(sweeps, FIRST), [], []
    for along, steps in (
        ("width", [((w, d), (2 * w, d)) for d in DEPTHS for w in WIDTHS[:-1]]),
        ("depth", [((w, d), (w, 2 * d)) for w in WIDTHS for d in DEPTHS[:-1]]),
    ):
        changes = [percent(by_size[b].over(by_size[a])) for a, b in steps]
        falls, rises = sum(high < 0 for _, _, high in changes), sum(low > 0 for _, low, _ in changes)
        answer = decided(falls == len(changes), rises > 0)
        parts.append((f"{falls} of {len(changes)} doublings of the {along} surely lower the loss", answer))
        first = sum(percent(before[b].over(before[a])).high < 0 for a, b in steps)
        rows.append(
            [along, *map(str, (len(changes), falls, rises)), max(changes).text("+.1f", "%"), str(first), answer]
        )
    lower = f"lower it by the {WORDS[FIRST]}"
    columns = ("doublings of", "all", "lower the loss", "raise it", "worst change", lower, "verdict")
    return Outcome.of(parts, markdown(columns, rows))


def best_depth(sweeps: Sweeps) -> Outcome:
    """At each width the depth of the lowest loss; the paper's prediction for large widths is nearest to the deepest."""
    by_size = bests(sweeps)
    best, first = (
        ", ".join(str(min(DEPTHS, key=lambda depth: of[width, depth].losses.mean())) for width in WIDTHS)
        for of in (by_size, bests(sweeps, FIRST))
    )
    *others, deepest = [by_size[WIDTHS[-1], depth] for depth in DEPTHS]
    changes = [percent(deepest.over(other)) for other in others]
    answer = decided(all(high < 0 for _, _, high in changes), any(low > 0 for _, low, _ in changes))
    number = f"best depth at widths {', '.join(map(str, WIDTHS))}: {best}; by the {WORDS[FIRST]} {first}"
    return Outcome(answer, number)


def pictures(sweeps: Sweeps) -> Mapping[str, Figure]:
    """The paper's axes: loss against parameters, lines of equal width and lines of equal depth with power laws."""
    by_size = bests(sweeps)

    def draw(along: Mapping[str, list[tuple[int, int]]], laws: bool, panel: Axes) -> None:
        panel.set(xscale="log", yscale="log")
        for label, line in along.items():
            sizes, means = np.array([(by_size[at].parameters, by_size[at].losses.mean()) for at in line]).T
            (drawn,) = panel.plot(sizes, means, "o" if laws else "-o", label=label)
            if laws:
                slope, start = np.polyfit(np.log(sizes), np.log(means), 1)
                panel.plot(sizes, np.exp(start) * sizes**slope, "--", lw=0.9, color=drawn.get_color())

    of_width = {f"width {width}": [(width, depth) for depth in DEPTHS] for width in WIDTHS}
    of_depth = {f"depth {depth}": [(width, depth) for width in WIDTHS] for depth in DEPTHS}
    titles = {"equal widths": (of_width, False), "equal depths (dashed: power laws)": (of_depth, True)}
    contents = {title: functools.partial(draw, *lines) for title, lines in titles.items()}
    figure = panels(contents, "parameters", "training loss", size=(9.5, 4.2))
    ticks(figure.axes[0].yaxis, (1.2, 1.3, 1.4, 1.5, 1.6))
    return {"figb1": figure}


EXPERIMENT = Experiment(
    figure="B.1",
    claim="by power laws depth 30 is the best at very large widths",
    sweeps=SWEEPS,
    outcome=lambda sweeps: best_depth(sweeps)._replace(verdict=NOT_RUN),  # nor was depth 30
    pictures=pictures,
)
FOOTNOTE = Experiment(
    figure="footnote 2",
    claim="with 1/sqrt(depth) larger is monotonically better, empirically",
    question="Is larger always better?",
    sweeps=SWEEPS,
    outcome=larger_is_better,
)
