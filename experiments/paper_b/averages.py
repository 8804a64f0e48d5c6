"""Appendix A: the arithmetic mean over layers against other means, and layers split into parts.

    python -m experiments.paper_b averages --data=DIR           (after `python -m experiments.paper_b.initial`)

Claim (A1 to A7): of the means of S_l over layers the arithmetic one is right. If the layers of a block are split so
that the block's energy, the sum of its S_l, stays, then the mean over blocks stays (A6); and the arithmetic mean = 1
gives the law of the best learning rate.

            paper                          here
networks    any; no experiment             plain and residual networks of figures 2a and 2b
measured    -                              the exponent of the trained optima against those of each mean = 1 at
                                           initialization; each mean at the trained optima; by how many octaves the
                                           prediction moves where the earlier half of the layers is split in two

A mean over blocks of the blocks' sums stays whatever the mean: that part of the claim is true by definition, and says
nothing for the arithmetic mean. So the split is shown of means over layers, and what decides is which mean the law of
the trained optima excludes. That Sbar = 1 at initialization is the law after an epoch is more than the paper argues;
the difference is shown. Judged by validation accuracy, at the depths at which a network learned.

Cost: none besides figures 2a and 2b and the measurement at initialization.
Expect: all means have about the same exponent, since S_l is a power of l.
"""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from depthmup.fit import Transfer
from depthmup.measure import MaximalUpdate
from experiments.figures.figure import AGREES, DISAGREES, UNDECIDED, Experiment, Outcome, Sweeps, combined
from experiments.paper_b import at_start, fig2a, ingredients
from experiments.paper_b.exponents import along_depth, best_rates, of_optima, same

MEANS = ("arithmetic", "geometric", "harmonic")
SWEEPS = {**fig2a.SWEEPS, "full_baseline": ingredients.FULL["full_baseline"]}


def shift(measured: MaximalUpdate, mean: str) -> float:
    """By how many octaves the learning rate of mean = 1 over layers moves if the earlier half are split in two."""
    measured = measured._replace(average=mean)
    layers = measured.per_seed.shape[1]
    split = measured.split([2 if layer < layers // 2 else 1 for layer in range(layers)])
    return float(np.log2(split.learning_rate / measured.learning_rate))


def at_optimum(start: at_start.Found, result: Transfer, mean: str) -> dict[float, float]:
    """{depth: log2 of the mean of S_l, linearised, at the best learning rate}; where both are known."""
    return {
        depth: 2 * float(np.log2(rate / at_start.update(start, depth)._replace(average=mean).learning_rate))
        for depth, rate in zip(result.values, best_rates(result), strict=True)
        if rate and depth in start
    }


def outcome(sweeps: Sweeps) -> Outcome:
    """The claim compares means: it agrees where the trained exponent excludes another mean and not the arithmetic one,
    and disagrees where it excludes the arithmetic one and not all others."""
    lines, answers = [], []
    for sweep, rows in sweeps.items():
        name, result = ingredients.name_of(sweep), along_depth(rows)
        start, trained = at_start.read(name), of_optima(result)
        if not start or trained is None:
            lines.append(f"{name}: {'not measured at initialization' if trained else 'no exponent'}")
            answers.append(UNDECIDED)
            continue
        predicted = {mean: at_start.of_update(start, trained.used, mean) for mean in MEANS}
        lines.append(f"{name}, exponents: trained {trained}, "
                    + ", ".join(f"{mean} {exponent or 'none'}" for mean, exponent in predicted.items()))  # fmt: skip
        logs = at_optimum(start, result, "arithmetic")
        if logs:
            shallow, deep = min(logs), max(logs)
            lines.append(f"{name}, Sbar at the best learning rate: 2^{logs[shallow]:+.1f} at depth {shallow:g}, "
                        f"2^{logs[deep]:+.1f} at depth {deep:g}")  # fmt: skip
        moved = ", ".join(f"{shift(at_start.update(start, max(start)), mean):+.2f} ({mean})" for mean in MEANS)
        lines.append(f"{name}, octaves by which the split moves the prediction: {moved}")
        differences = {mean: same(exponent, trained) for mean, exponent in predicted.items()}
        excluded = {mean for mean, (_, verdict) in differences.items() if verdict == DISAGREES}
        if excluded in (set(), set(MEANS)):
            answers.append(UNDECIDED)
        else:
            answers.append(DISAGREES if "arithmetic" in excluded else AGREES)
        lines.append(f"{name}, trained minus arithmetic: {differences['arithmetic'][0]}; excluded are "
                    f"{', '.join(sorted(excluded)) or 'none'}")  # fmt: skip
    return Outcome(lines, combined(answers))


EXPERIMENT = Experiment(
    figure="Appendix A",
    claim="of the means of S_l over layers the arithmetic one gives the law of the best learning rate",
    paper="argued",
    sweeps=SWEEPS,
    outcome=outcome,
    pictures=lambda sweeps: dict[str, Figure](),
)
