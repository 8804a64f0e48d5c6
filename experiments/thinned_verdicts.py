"""What do three of a sweep's seeds say, against all of them?

    python -m experiments.thinned_verdicts digits_transfer          a published sweep (experiments/demos.py)

The command judges every choice of three of the seeds that all trainings of the plan have, at most 40 of them, and
prints how often each verdict comes out, for each curve and in all. A choice that decides against the decided verdict of
all rows is wrong.
"""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from collections.abc import Iterable

import numpy as np
import pandas

from depthmup.fit import VERDICTS, transfer
from depthmup.report.curves import TransferCurve
from depthmup.settings import Settings

SEEDS, CHOICES = 3, 40


def table(curves: list[TransferCurve], settings: Settings) -> str:
    """A line for each curve over the learning rate, then the sums."""
    measure, rng = settings.sweep.judge_by, np.random.default_rng(0)
    titles = "".join(f"{title:>19}" for title in (*VERDICTS, "wrong", "of"))
    lines, sums = [f"{f'{SEEDS} of the seeds':36}{titles}   all rows"], np.zeros(len(VERDICTS) + 2, int)
    for curve in curves:
        if curve.hyperparameter != "learning_rate":
            continue
        planned = _planned(curve.trials, settings)
        choices = list(itertools.combinations(sorted(planned["seed"].unique()), SEEDS))
        chosen = rng.permutation(len(choices))[:CHOICES]
        counts = Counter[str]()
        for seeds in (choices[i] for i in chosen):
            rows = planned[planned["seed"].isin(seeds)]
            counts.update([transfer(rows, curve.axis, curve.chance, measure=measure).verdict])
        decided = [verdict for verdict in VERDICTS[:2] if verdict != curve.result.verdict in VERDICTS[:2]]
        cells = [*(counts[verdict] for verdict in VERDICTS), sum(counts[verdict] for verdict in decided), len(chosen)]
        sums += cells
        lines.append(_line(f"{curve.axis:6} {curve.optimizer} {curve.name}", cells) + f"   {curve.result.verdict}")
    return "\n".join([*lines, _line("all", sums)])


def _line(words: str, cells: Iterable[int]) -> str:
    return f"{words:36}" + "".join(f"{cell:>19}" for cell in cells)


def _planned(trials: pandas.DataFrame, settings: Settings) -> pandas.DataFrame:
    """The trials of the seeds and learning rates of the plan, without what was added where a verdict needed it."""
    seeds = range(settings.seed, settings.seed + settings.sweep.seeds)
    planned = trials[trials["seed"].isin(seeds)]
    of_rate = planned.groupby("learning_rate").size()
    return planned[planned["learning_rate"].isin(of_rate[of_rate == of_rate.max()].index)]


if __name__ == "__main__":
    from experiments import demos

    sweep = demos.read(sys.argv[1])
    print(table(sweep.curves, sweep.settings))
