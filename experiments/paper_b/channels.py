"""Figure 2b at more channels and pixels: do they turn the exponent 0 of the residual network into -3/2?

    python -m experiments.paper_b channels channels_last channels_theory --data=DIR

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
undecided else. Since the loss was found to exclude our theory, the largest size is judged by both, for the paper and
for our theory, and one that disagrees decides. The size matters where the interval of the difference to 8 channels
excludes 0.

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
from collections.abc import Callable, Mapping

import numpy as np
from matplotlib.figure import Figure

from experiments.figures.figure import Experiment, Outcome, Part, Sweeps
from experiments.output import UNDECIDED, Interval, combined, markdown
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


def answer(octaves: Interval | None, claimed: float = PAPER) -> str:
    """The rule of decision on the claim that the rate falls by so many octaves."""
    return octaves.against(claimed, CLOSE * DOUBLINGS) if octaves else UNDECIDED


def _words(octaves: Interval | None) -> str:
    return octaves.text(".1f") if octaves else UNKNOWN


def _largest(sweeps: Sweeps, network: str, octaves: float) -> Part:
    """(its falls in words, verdict) of the largest network that was trained, on a fall by so many octaves: by both
    measures, of which one that disagrees decides."""
    both = {MEASURES[measure]: falls(sweeps, network, measure) for measure in BOTH}
    size = [*next(iter(both.values()))][-1]
    answers = {measure: answer(of[size], octaves) for measure, of in both.items()}
    numbers = ", ".join(f"{_words(both[measure][size])} by {measure} ({text})" for measure, text in answers.items())
    return f"{network}, {size}: {numbers}", combined([*answers.values()])


def outcome(network: str) -> Callable[[Sweeps], Outcome]:
    """The paper's octaves, of one of the `NETWORKS`."""
    return lambda sweeps: Outcome.of(
        [_largest(sweeps, network, PAPER)], f"{table(sweeps, network)}\n\n{trained(sweeps)}"
    )


def of_theory(sweeps: Sweeps) -> Outcome:
    """Our own theory's octaves, of both networks."""
    return Outcome.of([_largest(sweeps, network, power * DOUBLINGS) for network, power in NETWORKS.items()])


def table(sweeps: Sweeps, network: str) -> str:
    theory, rows = NETWORKS[network] * DOUBLINGS, []
    by_accuracy, by_loss = (falls(sweeps, network, measure) for measure in BOTH)
    smallest = next(iter(by_accuracy.values()), None)
    for place, (size, octaves) in enumerate(by_accuracy.items()):
        more = octaves.minus(smallest) if octaves and smallest else None
        answers = (f"{answer(octaves, claimed)}, {answer(by_loss[size], claimed)}" for claimed in (PAPER, theory))
        rows.append([size, _words(octaves), _words(by_loss[size]), _words(more) if place else "-", *answers])
    by = (f"octaves by {MEASURES[measure]}" for measure in BOTH)
    claims = (f"{name} ({octaves:.1f}), by both" for name, octaves in (("paper", PAPER), ("theory", theory)))
    return markdown(("size", *by, "more than at 8 channels", *claims), rows)


def trained(sweeps: Sweeps) -> str:
    """How much the sweeps of the largest networks have."""
    lines = []
    for name in (name for name in sweeps if name.startswith([*SIZES][-1])):
        rows, whole = sweeps[name].rows, sweeps[name].about["complete"]
        seeds = rows.groupby(["depth", "learning_rate"])["seed"].nunique()
        fewer = f", {(seeds == 1).sum()} of {len(seeds)} rates with one seed" if (seeds == 1).any() else ""
        spacing = {1: "octaves", 2: "half octaves"}[sweeps[name].settings.sweep.per_octave]
        unfinished = "" if whole else ", search not complete"
        lines.append(f"The largest: two depths, {len(rows)} trainings in {spacing}{fewer}{unfinished}.")
    return " ".join(lines)


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


def _of(network: str, figure: str, claim: str, question: str) -> Experiment:
    """The paper's claim on one network."""
    return Experiment(
        figure=figure,
        claim=claim,
        question=question,
        sweeps={name: config for name, config in SWEEPS.items() if name.endswith(f"_{network}")},
        outcome=outcome(network),
        needs=(f"full_{network}", f"channels16_{network}"),
        so_far=(f"channels64_{network}",),
    )


ALL_LAYERS = f"all branch weights carry 1/K: {PAPER:.1f} octaves from depth 2 to 24"
LAST_ALONE = f"a branch's last layer alone carries 1/K: {PAPER:.1f} octaves"
EXPERIMENT = _of("baseline", "2b, wider", ALL_LAYERS, "At the paper's 64 channels?")
LAST = _of("last", "2b, wider, last layer", LAST_ALONE, "And with 1/K in the last layer alone?")
THEORY = Experiment(
    figure="2b, wider, our theory",
    claim=f"not in the paper, our theory: 0 octaves; last layer alone {DOUBLINGS:.1f}",
    question="Is our own theory right there?",
    sweeps=SWEEPS,
    outcome=of_theory,
    pictures=pictures,
    needs=("full_baseline", "channels16_baseline", "full_last", "channels16_last"),
    so_far=("channels64_baseline", "channels64_last"),
)
