"""How often would other seeds have given the same verdicts?

    python -m experiments.verdict_redraws digits_transfer          a published sweep (experiments/documents.py)

The command redraws the seeds of a sweep with replacement, 40 times, and prints how often each verdict comes out: on the
drift of the optimum, and by regret.
"""

from __future__ import annotations

import sys
from collections import Counter

import numpy as np
import pandas

from depthmup.fit import transfer
from depthmup.report.curves import variants
from depthmup.settings import Settings
from depthmup.sweep.plan import axes, cap

REDRAWS = 40
ORDER = ("transfers", "undecided", "does not transfer")


def table(rows: pandas.DataFrame, settings: Settings) -> str:
    """A line for each axis, optimizer, parameterization and variant."""
    measure, rng = settings.sweep.judge_by, np.random.default_rng(0)
    titles = "".join(f"{title:>22}" for title in (*ORDER, *(f"by regret: {ORDER[0]}", *ORDER[1:])))
    lines = [f"{f'of {REDRAWS} redraws':43}{titles}"]
    for axis, sizes in axes(settings):
        other = "width" if axis == "depth" else "depth"
        for names, trials in variants(rows, settings):
            own = trials[(trials[other] == getattr(settings.model, other)) & trials[axis].isin(sizes)]
            counts = Counter[tuple[str, str]]()
            of_seed = {seed: found.to_dict("records") for seed, found in own.groupby("seed")}
            for _ in range(REDRAWS):
                drawn = rng.choice(list(of_seed), size=len(of_seed))
                redrawn = [{**row, "seed": i} for i, seed in enumerate(drawn) for row in of_seed[seed]]
                found = transfer(redrawn, axis, cap(settings, measure), measure=measure)
                counts.update([("drift", found.verdict), ("regret", found.by_regret.verdict)])
            cells = [counts[kind, verdict] for kind in ("drift", "regret") for verdict in ORDER]
            lines.append(f"{axis:6} {' '.join(names):36}" + "".join(f"{cell:>22}" for cell in cells))
    return "\n".join(lines)


if __name__ == "__main__":
    from experiments import documents

    sweep = documents.read(sys.argv[1])
    print(table(sweep.rows, sweep.settings))
