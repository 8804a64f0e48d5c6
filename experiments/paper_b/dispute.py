"""Figure 2b and theorem 3: how the best learning rate of residual networks falls with depth, and what decides it.

    python -m experiments.paper_b ingredients --data=DIR        first: every ingredient, 100 steps
    python -m experiments.paper_b.initial --data=DIR            then: Sbar and sharpness at initialization
    python -m experiments.paper_b 2b --data=DIR                 last: an epoch, the baseline and the STRONGEST

Claim (4.3, theorem 3): with branches whose weights all start with variance c / (K fan_in), the best learning rate falls
as depth^-3/2 (-1.435 in figure 2b), whatever the branch is made of, and PathSum's law does not hold. Against it
(docs/theory.md, section 6b): Sbar = 1 at initialization gives -1 where a branch has one layer, 0 where it has two that
both carry 1/K, -1 where the last one alone does, and -3/2 without skips.

The paper's settings and ours: experiments/paper_b/networks.py. Each ingredient is changed alone, against the paper's
own network ("baseline"). Head: the paper's readout has weights of variance 1 / N, a factor 1/sqrt(N); "mean_field_head"
has 1/N, by parameterization.gamma0 = sqrt(N), which at a single width is the same but for a constant factor in all
learning rates. Time: the full sweeps are judged after the first 100 steps, too.

Judged by validation accuracy at the depths at which a network learned, for the reasons in
experiments/paper_b/networks.py.

Cost: ingredients, 18 sweeps of about 100 trainings of 100 steps, 10 h on one core; initial, an hour; full sweeps, about
640 trainings of 351 steps, 7 h.
Expect: by theory -1 for "last", "one_layer" and all with batch norm, 0 for the others; by the paper about -3/2 for all.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from experiments.figures.figure import AGREES, DISAGREES, UNDECIDED, Experiment, Outcome, Sweeps, combined
from experiments.paper_b import exponents, fig2a
from experiments.paper_b.answer import table
from experiments.paper_b.exponents import MEASURES, against, along_depth, by_both, equal, of_optima, words
from experiments.paper_b.ingredients import FULL, SCREEN, STRONGEST, name_of, settings_of


def ingredients(sweeps: Sweeps) -> Outcome:
    """Theorem 3 says that no ingredient of the branch moves the exponent from -3/2: one that does refutes it."""
    results = {name_of(sweep): along_depth(rows) for sweep, rows in sweeps.items()}
    baseline, answers = results["baseline"], [against(result) for result in results.values()]
    known = {name: exponent.value for name, result in results.items() if (exponent := of_optima(result))}
    base = known.pop("baseline", None)
    moves = {} if base is None else {name: abs(value - base) for name, value in known.items()}
    lines = [f"baseline, {by_both(sweeps['screen_baseline'])}"]
    for name in sorted(moves, key=lambda name: -moves[name])[: len(STRONGEST)]:
        lines.append(f"{name.replace('_', ' ')}: {equal(baseline, results[name])[0]}")
    counts = ", ".join(f"{answers.count(word)} {word}" for word in (AGREES, DISAGREES, UNDECIDED))
    return Outcome([*lines, f"of {len(answers)} networks, on -3/2: {counts}"], combined(answers))


def outcome(sweeps: Sweeps) -> Outcome:
    """Figure 2b is about the baseline, by accuracy."""
    lines = []
    for name in (name for name in FULL if name in sweeps):
        for measure in MEASURES if name == "full_baseline" else ("validation_accuracy", "loss"):
            lines.append(f"{name_of(name).replace('_', ' ')}, {words(along_depth(sweeps[name], measure), measure)}")
    depths = along_depth(sweeps["full_baseline"]).values
    lines.append(f"PathSum's law: {exponents.by_path_sum(settings_of('full_baseline'), depths):+.2f}")
    lines.append("not tested: the paper's 64 channels on 32x32 pixels")
    return Outcome(lines, against(along_depth(sweeps["full_baseline"])))


def pictures(sweeps: Sweeps) -> Mapping[str, Figure]:
    results = {name_of(name).replace("_", " "): along_depth(sweeps[name]) for name in sweeps}
    return {"fig2b": exponents.pictures(results, "Residual and plain networks, one epoch, by accuracy")}


def ingredient_pictures(sweeps: Sweeps) -> Mapping[str, Figure]:
    """The exponent of every ingredient with its interval, by accuracy and by loss."""
    figure = Figure(figsize=(7.2, 0.3 * len(sweeps) + 1.4), layout="constrained")
    panel = figure.subplots()
    for shift, measure in ((-0.12, "validation_accuracy"), (0.12, "loss")):
        fits = [of_optima(along_depth(sweep, measure)) for sweep in sweeps.values()]
        kept = [(place, e.value, e.low, e.high) for place, e in enumerate(fits) if e]
        places, values, low, high = np.array(kept, float).reshape(-1, 4).T
        panel.errorbar(
            values,
            places + shift,
            xerr=[values - low, high - values],
            fmt="o",
            ms=4,
            capsize=3,
            label=MEASURES[measure],
        )
    for at, label in ((exponents.CLAIMED, "theorem 3"), (-1.0, "Sbar,\none scaled layer"), (0.0, "Sbar,\ntwo")):
        panel.axvline(at, color="gray", lw=0.8, ls=":")
        panel.text(at, 1.02, label, fontsize=7, ha="center", color="gray", transform=panel.get_xaxis_transform())
    panel.set_yticks(range(len(sweeps)), [name_of(name).replace("_", " ") for name in sweeps])
    panel.set_ylim(len(sweeps) - 0.5, -0.5)
    panel.set_xlabel("exponent of the best learning rate over depth")
    panel.legend(fontsize=8)
    return {"ingredients": figure}


# What theorem 3 assumes: all layers of a branch carry the 1/K, and there is neither norm nor dropout.
CONVOLUTIONS = ("baseline", "one_layer", "three_layers", "zero_padding", "mean_field_head", "mse")
ASSUMED = (*CONVOLUTIONS, "dense", "conv_dense", "bottleneck")


def excluded(sweeps: Sweeps, measure: str) -> str:
    """In how many of the networks that have an exponent by a measure -3/2 is excluded."""
    answers = [against(result) for sweep in sweeps.values() if of_optima(result := along_depth(sweep, measure))]
    return f"{answers.count(DISAGREES)} of {len(answers)}"


def screened(sweeps: Sweeps) -> str:
    theorem = {name: sweep for name, sweep in sweeps.items() if name_of(name) in ASSUMED}
    both = (f"{excluded(of, 'validation_accuracy')} by accuracy and {excluded(of, 'loss')} by loss"
            for of in (sweeps, theorem))  # fmt: skip
    return """
The answer after an epoch is at [figure 2b](#figure-2b). The table has {} networks after 100 steps, which differ from
the paper's in one ingredient or two. Of those that have an exponent -3/2 is excluded in {}. Nine networks satisfy the
theorem's own assumptions: all layers of a branch carry the 1/K, and there is neither norm nor dropout (*{}*). Of these
it is excluded in {}. In 100 steps not all depths of all networks learn, and those that do not have no say.

**What predicts the exponents.** Our theory of Sbar says -1 where one layer of a branch carries the 1/K, or where a
batch norm undoes that of the other layers, and 0 where two or three carry it ([theory.md](theory.md), section 6b). The
second table says in how many networks it is excluded, beside Sbar = 1 computed at the initialization of each network
and 2 / sharpness at initialization, which knows nothing of mean updates. These screens do not tell which of them is the
reason. After an epoch none predicts plain networks ([appendix A](#appendix-a)).

**What moves the exponent.** By accuracy *one layer* and *last over depth* fall surely faster than the paper's network,
and *dense* surely rises against it. All four networks with batch norm have exponents below 0 by accuracy, but none of
their differences from the baseline is resolved. Weights with 1/K instead of 1/sqrt(K) leave the exponent where it was.

**Is it the method?** The same estimator, on plain networks of five depths after the same 100 steps, holds -3/2 by the
loss of these steps, where all depths count ([theorem 2](#theorem-2) has their sweep, `plain_base`); and so it does on
the plain networks of [figure 2a](#figure-2a) after an epoch. So it does see laws as steep as -3/2. Intervals are from
the scatter of the depths about the line, which is why those of five depths are wide; of made-up sweeps with two seeds
and five depths 93 to 96% hold the truth ([laws.md](laws.md)).

**What is open.** The paper's slopes for residual networks, -1.3 to -1.9, are of 64 channels on 32x32 pixels, which
nobody here has trained. Whether width or resolution turns 0 into -3/2, only that can tell (`python -m
experiments.paper_b 2b --scale=paper`: 1,680 trainings for each network, 4.4e17 operations, half a day at 1e13 a
second).""".format(len(sweeps), next(both), ", ".join(ASSUMED).replace("_", " "), next(both))


def remarks(sweeps: Sweeps) -> str:
    results = {name_of(name): along_depth(sweep) for name, sweep in sweeps.items()}
    exponents_of = {name: of_optima(result) for name, result in results.items()}
    more = """ Where the last layer of every
branch alone carries the 1/K (*last*), it falls: {}, an interval that holds our -1 as well as theorem 3's -3/2 and the
paper's -1.435; {}. So the exponent depends on which layers are scaled; by the paper (4.3) that changes the prefactor
alone. *one layer* is not resolved: {}.""".format(
        exponents_of["last"], equal(results["baseline"], results["last"])[0], exponents_of["one_layer"]
    ) if {"last", "one_layer"} <= results.keys() else ""  # fmt: skip
    return f"""
In the paper's own residual network, all of whose branch weights start with variance c / (K fan_in), where K is the
number of blocks, the best learning rate after an epoch does not fall with depth: {exponents_of["baseline"]} by
accuracy, from 2 to 24 blocks with three seeds, at 8 channels and 16x16 pixels; by each of four measures the interval
holds 0 and excludes -1/2. Its edge of divergence has no trend either, and scatters by 1.5 octaves (factors of 2).{more}

The best accuracy, 29 to 30%, is the same at every depth: how much the blocks do at all was not measured, and a network
in which they do more may answer otherwise. [Theorem 3](#theorem-3) has which ingredients move the exponent after 100
steps."""


EXPERIMENT = Experiment(
    figure="2b",
    claim="ResNet with branches of variance c/(K fan_in): the best learning rate falls as depth^-3/2",
    paper="-1.435",
    sweeps={**FULL, **fig2a.SWEEPS},
    outcome=outcome,
    pictures=pictures,
    table=table,
    needs=("full_baseline",),
    remarks=remarks,
)
SCREENED = Experiment(
    figure="Theorem 3",
    claim="whatever a branch is made of, the exponent is -3/2 (100 steps, one ingredient changed at a time)",
    paper="-3/2, proved",
    sweeps=SCREEN,
    outcome=ingredients,
    pictures=ingredient_pictures,
    table=table,
    needs=("screen_baseline",),
    remarks=screened,
)
