"""How often would other seeds have given the same verdicts?

    python experiments/verdict_redraws.py runs/digits_transfer

The command redraws the seeds of a finished sweep with replacement, 40 times, and prints how often each verdict comes
out.
"""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from pathlib import Path

import numpy as np

from depthmup import fit
from depthmup.sweep import load

REDRAWS = 40


def main(workdir: Path) -> None:
    settings = json.loads((workdir / "settings.json").read_text())
    rows = load(workdir).to_dict("records")
    columns = {"width": settings["sweep"]["width"], "depth": settings["sweep"]["depth"]}
    seeds = sorted({row["seed"] for row in rows})
    rng = np.random.default_rng(0)
    for axis, other in (("depth", "width"), ("width", "depth")):
        for optimizer in settings["sweep"]["optimizers"]:
            for name in settings["sweep"]["parameterizations"]:
                key = (optimizer, name, columns[other])
                own = [row for row in rows if (row["optimizer"], row["parameterization"], row[other]) == key]
                verdicts: Counter[str] = Counter()
                for _ in range(REDRAWS):
                    draw = enumerate(rng.choice(seeds, size=len(seeds)))
                    table = [{**row, "seed": i} for i, seed in draw for row in own if row["seed"] == seed]
                    verdicts[fit.transfer(table, axis, cap=math.log(10)).verdict] += 1
                print(f"{axis:6} {optimizer:6} {name:10} {dict(verdicts.most_common())}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
