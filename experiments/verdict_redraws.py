"""How often would other seeds have given the same verdicts?

    python -m experiments.verdict_redraws digits_transfer          a published sweep (experiments/documents.py)

The command redraws the seeds of a sweep with replacement, 40 times, and prints how often each verdict comes out.
"""

from __future__ import annotations

import sys
from collections import Counter

import numpy as np
import pandas

from depthmup.fit import VERDICTS, transfer
from depthmup.report.curves import variants
from depthmup.settings import Settings
from depthmup.sweep.plan import axes, cap

REDRAWS = 40


def table(rows: pandas.DataFrame, settings: Settings) -> str:
    """A line for each axis, optimizer, parameterization and variant."""
    measure, rng = settings.sweep.judge_by, np.random.default_rng(0)
    titles = "".join(f"{title:>22}" for title in VERDICTS)
    lines = [f"{f'of {REDRAWS} redraws':43}{titles}"]
    for axis, sizes in axes(settings):
        other = "width" if axis == "depth" else "depth"
        for names, trials in variants(rows, settings):
            chosen = trials[(trials[other] == getattr(settings.model, other)) & trials[axis].isin(sizes)]
            counts = Counter[str]()
            of_seed = {seed: of_one.to_dict("records") for seed, of_one in chosen.groupby("seed")}
            for _ in range(REDRAWS):
                drawn = rng.choice(list(of_seed), size=len(of_seed))
                redrawn = [{**row, "seed": i} for i, seed in enumerate(drawn) for row in of_seed[seed]]
                counts.update([transfer(redrawn, axis, cap(settings, measure), measure=measure).verdict])
            cells = "".join(f"{counts[verdict]:>22}" for verdict in VERDICTS)
            lines.append(f"{axis:6} {' '.join(names):36}{cells}")
    return "\n".join(lines)


if __name__ == "__main__":
    from experiments import documents

    sweep = documents.read(sys.argv[1])
    print(table(sweep.rows, sweep.settings))
