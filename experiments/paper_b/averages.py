"""Appendix A: the arithmetic mean over layers against other means.

    python -m experiments.paper_b averages --data=DIR           (after `python -m experiments.paper_b.initial`)

Claim (A1 to A7): of the means of S_l over layers the arithmetic one is right. If the layers of a block are split so
that the block's energy, the sum of its S_l, stays, then the mean over blocks stays (A6); and the arithmetic mean = 1
gives the law of the best learning rate. The paper has no experiment.

Here: the exponent of the trained optima of figures 2a and 2b against those of each mean = 1 at initialization. A mean
over blocks of the blocks' sums stays whatever the mean: that part of the claim is true by definition, and says nothing
for the arithmetic mean. What decides is which mean the law of the trained optima excludes. That Sbar = 1 at
initialization is the law after an epoch is more than the paper argues. Judged by validation accuracy, at the depths at
which a network learned.

Cost: none besides figures 2a and 2b and the measurement at initialization.
Expect: all means have about the same exponent, since S_l is a power of l.
"""

from __future__ import annotations

from depthmup.measure.maximal_update import Average
from experiments.figures.figure import Experiment, Outcome, Sweeps
from experiments.output import AGREES, DISAGREES, UNDECIDED, markdown
from experiments.paper_b import at_start, fig2a, ingredients
from experiments.paper_b.exponents import along_depth, of_optima, same, text

MEANS: tuple[Average, ...] = ("arithmetic", "geometric", "harmonic")
SWEEPS = {**fig2a.SWEEPS, "full_baseline": ingredients.FULL["full_baseline"]}


def outcome(sweeps: Sweeps) -> Outcome:
    """The claim compares means: it agrees where the trained exponent excludes another mean and not the arithmetic one,
    and disagrees where it excludes the arithmetic one and not all others."""
    parts, rows = [], []
    for sweep, trials in sweeps.items():
        name, result = ingredients.name_of(sweep), along_depth(trials)
        start, trained = at_start.read(name), of_optima(result)
        if not start or trained is None:
            parts.append((f"{name}: {'not measured at initialization' if trained else 'no exponent'}", UNDECIDED))
            continue
        predicted = {mean: at_start.of_update(start, trained.depths.tolist(), mean) for mean in MEANS}
        excluded = {mean for mean, law in predicted.items() if same(law, trained)[1] == DISAGREES}
        answer = UNDECIDED
        if excluded not in (set(), set(MEANS)):
            answer = DISAGREES if "arithmetic" in excluded else AGREES
        apart = same(predicted["arithmetic"], trained)[0]
        names = ", ".join(sorted(excluded)) or "none"
        parts.append((f"{name}, trained minus arithmetic: {apart}; excluded: {names}", answer))
        rows.append([name, *map(text, (trained, *predicted.values()))])
    return Outcome.of(parts, markdown(("exponent", "trained", *MEANS), rows))


EXPERIMENT = Experiment(
    figure="Appendix A",
    claim="of the means over layers the arithmetic one gives the law",
    sweeps=SWEEPS,
    outcome=outcome,
)
