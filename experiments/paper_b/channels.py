"""Figure 2b at more channels and pixels: do they turn the exponent 0 of the residual network into -3/2?

    python -m experiments.paper_b channels --data=DIR

Figure 2b is trained here with 8 channels on 16x16 pixels, where the paper has 64 on 32x32. If the paper's -3/2 is a
law of large networks, the best learning rate must fall faster from 2 to 24 blocks the more channels there are.

            paper (4.1 to 4.3)            here
channels    64                            8 (the trials of figure 2b), 16, 32
pixels      32x32                         16x16; 32x32 with 8 channels
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

Cost: 16 channels, an hour and a half for each network on two cores; 32 channels, about five; 32x32 pixels, two.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from experiments.figures.figure import AGREES, DISAGREES, UNDECIDED, Experiment, Outcome, Sweeps, markdown
from experiments.paper_b import ingredients, networks
from experiments.paper_b.exponents import CLAIMED, CLOSE, MEASURES, along_depth

ENDS = (2, 24)
DOUBLINGS = math.log2(ENDS[1] / ENDS[0])
NETWORKS = {"baseline": 0.0, "last": -1.0}  # {network: its exponent by theory}
SIZES = {"channels16": {"model__width": 16}, "pixels32": {"data__image_size": 32}, "channels32": {"model__width": 32}}
SWEEPS = {
    **{f"full_{name}": ingredients.FULL[f"full_{name}"] for name in NETWORKS},
    **{
        f"{size}_{name}": networks.full(ingredients.base(name), ENDS, {}, sweep__per_octave=1, **changes)
        for size, changes in SIZES.items()
        for name in NETWORKS
    },
}


class Fall(NamedTuple):
    """Octaves by which the best learning rate falls between the `ENDS`, with its 95% interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.1f} [{self.low:.1f}, {self.high:.1f}]"


def fall(sweeps: Sweeps, name: str, measure: str = "validation_accuracy") -> Fall | None:
    """The fall in a sweep; None where an end has no optimum."""
    drift = along_depth(sweeps[name], measure, ENDS).drift
    if drift is None:
        return None
    return Fall(*(-DOUBLINGS * slope for slope in (drift.octaves_per_doubling, drift.high, drift.low)))


def answer(of: Fall | None) -> str:
    """The rule of decision on -3/2."""
    claimed = -CLAIMED * DOUBLINGS
    if of is None:
        return UNDECIDED
    if not of.low <= claimed <= of.high:
        return DISAGREES
    return AGREES if max(of.high - claimed, claimed - of.low) < CLOSE * DOUBLINGS else UNDECIDED


def difference(large: Fall | None, small: Fall | None) -> str:
    """The fall of the larger network minus that of the smaller one, in words."""
    if large is None or small is None:
        return "not known"
    value = large.value - small.value
    half = math.hypot(large.high - large.low, small.high - small.low) / 2
    return str(Fall(value, value - half, value + half))


def _size(sweep: str) -> str:
    """Channels and pixels of a sweep in words."""
    channels, pixels = {"channels16": (16, 16), "channels32": (32, 16), "pixels32": (8, 32)}.get(
        sweep.rsplit("_", 1)[0], (8, 16)
    )
    return f"{channels} channels, {pixels}x{pixels}"


def _by_network(sweeps: Sweeps) -> dict[str, list[str]]:
    """{network: its sweeps}, that of figure 2b first."""
    return {name: [s for s in SWEEPS if s in sweeps and s.endswith(f"_{name}")] for name in NETWORKS}


def outcome(sweeps: Sweeps) -> Outcome:
    falls = {f"{name}, {_size(s)}": fall(sweeps, s) for name, own in _by_network(sweeps).items() for s in own}
    parts = [(f"{name}: {of or 'not known'} octaves from depth {ENDS[0]} to {ENDS[1]}", answer(of))
             for name, of in falls.items()]  # fmt: skip
    return Outcome.of(parts, table(sweeps))


def table(sweeps: Sweeps) -> str:
    rows = []
    for name, exponent in NETWORKS.items():
        first, *_ = of_network = _by_network(sweeps)[name]
        for s in of_network:
            falls = [fall(sweeps, s, measure) for measure in ("validation_accuracy", "loss")]
            apart = difference(falls[0], fall(sweeps, first)) if s != first else "-"
            rows.append([name, _size(s), *(str(f or "not known") for f in falls), apart,
                         f"{-CLAIMED * DOUBLINGS:.1f}", f"{-exponent * DOUBLINGS:.1f}", answer(falls[0])])  # fmt: skip
    columns = ("network", "size", *(f"octaves by {MEASURES[m]}" for m in ("validation_accuracy", "loss")),
               "more than at 8 channels", "by the paper", "by theory", "-3/2")  # fmt: skip
    return markdown(columns, rows)


def pictures(sweeps: Sweeps) -> Mapping[str, Figure]:
    """The fall at each size, beside both predictions."""
    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    panels = np.atleast_1d(figure.subplots(1, len(NETWORKS), sharey=True))
    for panel, (name, exponent) in zip(panels, NETWORKS.items(), strict=True):
        kept = [(_size(s), f) for s in _by_network(sweeps)[name] if (f := fall(sweeps, s))]
        for place, (_, f) in enumerate(kept):
            panel.errorbar(place, f.value, [[f.value - f.low], [f.high - f.value]], fmt="o", capsize=4, color="C0")
        panel.axhline(-CLAIMED * DOUBLINGS, color="gray", ls="-.", label="paper: depth^-3/2")
        panel.axhline(-exponent * DOUBLINGS, color="C1", ls="--", label="theory")
        panel.set_xticks(range(len(kept)), [size.replace(", ", "\n") for size, _ in kept])
        panel.set_xlim(-0.5, len(kept) - 0.5)
        panel.set_title("all layers carry 1/K" if name == "baseline" else "the last layer of a branch does")
    panels[0].set_ylabel(f"octaves, depth {ENDS[0]} to {ENDS[1]}")
    panels[0].legend()
    return {"channels": figure}


EXPERIMENT = Experiment(
    figure="2b, wider",
    claim="-3/2 at 64 channels on 32x32 pixels; the exponent does not depend on channels or pixels",
    sweeps=SWEEPS,
    outcome=outcome,
    pictures=pictures,
    needs=("full_baseline", "channels16_baseline"),
)
