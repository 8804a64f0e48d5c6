"""Figure 2b at more channels and pixels: do they turn the exponent 0 of the residual network into -3/2?

    python -m experiments.paper_b channels --data=DIR

Figure 2b is trained here with 8 channels on 16x16 pixels, where the paper has 64 on 32x32. If the paper's -3/2 is a
law of large networks, the best learning rate must fall faster from 2 to 24 blocks the more channels there are.

            paper (4.1 to 4.3)            here
channels    64                            8 (the trials of figure 2b), 16, 32; 64
pixels      32x32                         16x16; 32x32 with 8 and with 64 channels
blocks      3 to 30                       2 and 24, the ends of figure 2b here
rates       40 from 1e-4 to 10            octaves, by the adaptive search
networks    all weights carry 1/K         the same ("baseline"), and 1/K in the last layer of a branch alone ("last")

**Question.** By how many octaves does the best learning rate fall from 2 to 24 blocks, a factor of 12 in depth?

**Predictions**, written before the first training: the paper's -3/2 says 5.4 octaves for both networks, at the paper's
64 channels; by our theory (docs/theory.md, section 6b) it is 0 for the baseline and 3.6 for "last" at every size. At 8
channels it is 0.0 [-1.6, 1.5] and 4.2 [3.3, 5.1]. We expect the same at 16 and 32, within an octave and a half.

**Rule of decision.** By validation accuracy, three seeds. A network disagrees with -3/2 at a size where the 95%
interval of the fall excludes 5.4 octaves, agrees where the interval holds 5.4 and lies within 1.8 of it, and is
undecided else. The size matters where the interval of the difference to 8 channels excludes 0.

**At the paper's own size**, 64 channels on 32x32 pixels, the same question, rule and predictions: the paper's -3/2 is
5.4 octaves; we expect 0 for the baseline and 3.6 for "last", within an octave and a half. These trainings run on a GPU,
one at a time; by JAX's default its products of float32 round to TF32.

Outcome at the paper's own size: the baseline as predicted and against -3/2, .8 [-.1, 1.6] octaves after 40 trainings.
"last" is undecided after 54, 5.3 [3.3, 7.4], of which we expected 3.6 within 1.5. Five more trainings, at rates below
every optimum, take a minute of an H100: the outcome does not wait for them (`so_far`).

Outcome at 16 channels: the baseline as predicted, .6 [-1.9, 3.2]; "last" is undecided after 54 trainings, 4.8 [3.3,
6.4] octaves, of which we expected 3.6 within 1.5.

Cost: 16 channels, an hour for each network on two cores; 32 channels, about five; 32x32 pixels, two; 64 channels, days
there and seven minutes for both networks on an H100.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from experiments.figures.figure import Experiment, Outcome, Sweeps
from experiments.output import UNDECIDED, Interval, markdown
from experiments.paper_b import ingredients, networks
from experiments.paper_b.exponents import BOTH, CLAIMED, CLOSE, MEASURES, UNKNOWN, along_depth
from experiments.published import Sweep

ENDS = (2, 24)
DOUBLINGS = math.log2(ENDS[1] / ENDS[0])
PAPER = -CLAIMED * DOUBLINGS  # octaves
NETWORKS = {"baseline": 0.0, "last": 1.0}  # {network: the power of depth with which the rate falls by theory}
SIZES = {
    "channels16": {"model.width": 16},
    "pixels32": {"data.image_size": 32},
    "channels32": {"model.width": 32},
    "channels64": {"model.width": 64, "data.image_size": 32},  # the paper's own
}
SWEEPS = {
    **{f"full_{name}": ingredients.FULL[f"full_{name}"] for name in NETWORKS},
    **{
        f"{size}_{name}": networks.full(
            networks.residual, ENDS, {**ingredients.INGREDIENTS[name], "sweep.per_octave": 1, **changes}
        )
        for size, changes in SIZES.items()
        for name in NETWORKS
    },
}


def fall(sweep: Sweep, measure: str) -> Interval | None:
    """Octaves by which the best learning rate falls between the `ENDS`; None where one of them has no optimum."""
    drift = along_depth(sweep, measure, ENDS).drift
    if drift is None:
        return None
    return Interval(*(-DOUBLINGS * slope for slope in (drift.octaves_per_doubling, drift.high, drift.low)))


def falls(sweeps: Sweeps, network: str, measure: str = BOTH[0]) -> dict[str, Interval | None]:
    """{channels and pixels: the fall} of a network, that of figure 2b first."""
    chosen = [sweeps[name] for name in SWEEPS if name in sweeps and name.endswith(f"_{network}")]
    return {_size(sweep): fall(sweep, measure) for sweep in chosen}


def _size(sweep: Sweep) -> str:
    side = sweep.settings.data.image_size
    return f"{sweep.settings.model.width} channels, {side}x{side}"


def answer(octaves: Interval | None) -> str:
    """The rule of decision on -3/2."""
    return octaves.against(PAPER, CLOSE * DOUBLINGS) if octaves else UNDECIDED


def _words(octaves: Interval | None) -> str:
    return octaves.text(".1f") if octaves else UNKNOWN


def outcome(sweeps: Sweeps) -> Outcome:
    parts = [(f"{network}, {size}: {_words(octaves)} octaves from depth {ENDS[0]} to {ENDS[1]}", answer(octaves))
             for network in NETWORKS for size, octaves in reversed(falls(sweeps, network).items())]  # fmt: skip
    return Outcome.of(parts, table(sweeps))


def table(sweeps: Sweeps) -> str:
    rows = []
    for network, power in NETWORKS.items():
        by_accuracy, by_loss = (falls(sweeps, network, measure) for measure in BOTH)
        smallest = next(iter(by_accuracy.values()), None)
        for place, (size, octaves) in enumerate(by_accuracy.items()):
            more = octaves.minus(smallest) if octaves and smallest else None
            rows.append([network, size, _words(octaves), _words(by_loss[size]), _words(more) if place else "-",
                         f"{PAPER:.1f}", f"{power * DOUBLINGS:.1f}", answer(octaves)])  # fmt: skip
    columns = ("network", "size", *(f"octaves by {MEASURES[measure]}" for measure in BOTH), "more than at 8 channels",
               "by the paper", "by theory", "-3/2")  # fmt: skip
    return markdown(columns, rows)


def pictures(sweeps: Sweeps) -> Mapping[str, Figure]:
    """The fall at each size, beside both predictions."""
    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    panels = np.atleast_1d(figure.subplots(1, len(NETWORKS), sharey=True))
    for panel, (network, power) in zip(panels, NETWORKS.items(), strict=True):
        measured = falls(sweeps, network)
        for place, octaves in enumerate(measured.values()):
            if octaves:
                value, low, high = octaves
                panel.errorbar(place, value, [[value - low], [high - value]], fmt="o", capsize=4, color="C0")
        panel.axhline(PAPER, color="gray", ls="-.", label="paper: depth^-3/2")
        panel.axhline(power * DOUBLINGS, color="C1", ls="--", label="theory")
        panel.set_xticks(range(len(measured)), [size.replace(", ", "\n") for size in measured])
        panel.set_xlim(-0.5, len(measured) - 0.5)
        panel.set_title("all layers carry 1/K" if network == "baseline" else "the last layer of a branch does")
    panels[0].set_ylabel(f"octaves, depth {ENDS[0]} to {ENDS[1]}")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return {"channels": figure}


EXPERIMENT = Experiment(
    figure="2b, wider",
    claim="-3/2 at 64 channels on 32x32 pixels; the exponent does not depend on channels or pixels",
    sweeps=SWEEPS,
    outcome=outcome,
    pictures=pictures,
    needs=("full_baseline", "channels16_baseline"),
    so_far=("channels64_baseline", "channels64_last"),
)
