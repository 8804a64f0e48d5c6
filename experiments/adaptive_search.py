"""Does the adaptive search find the optima of a full sweep, and with how many of its trials?

    python -m experiments.adaptive_search runs/digits_transfer

The command replays the search on the rows of a finished sweep, without training: it looks up each trial that the search
asks for. A trial beyond the grid's learning rates counts as diverged.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import pandas

from configs import transfer
from depthmup.backend import prepare_cpu
from depthmup.report.curves import judge
from depthmup.settings import column, from_config
from depthmup.sweep import load
from depthmup.train.workdir import read_settings
from depthmup.trials.adaptive import Search
from depthmup.trials.config_study import ConfigStudy
from depthmup.trials.plan import trials
from depthmup.trials.study import Trial


def main(workdir: Path) -> None:
    saved = read_settings(workdir)
    config = transfer.get_config()
    config.sweep.update({key: value for key, value in saved["sweep"].items() if key in config.sweep})
    config.model.update({"width": saved["sweep"]["width"], "depth": saved["sweep"]["depth"]})
    study = ConfigStudy(from_config(config))
    rows: dict[str, Any] = {row["key"]: row for row in load(workdir).to_dict("records")}
    plan, search, found = trials(study), Search(study), dict[str, Any]()
    if not all(trial.key in rows for trial in plan):
        sys.exit(f"{workdir} is not a finished sweep of configs/transfer.py")
    beyond = rounds = 0
    while more := search.next_trials(found):
        rounds += 1
        beyond += sum(trial.key not in rows for trial in more)
        found |= {trial.key: rows.get(trial.key) or _diverged(trial) for trial in more}
    print(f"{len(found)} trials in {rounds} rounds, {beyond} of them beyond the grid, instead of {len(plan)}")
    full = judge(pandas.DataFrame([rows[trial.key] for trial in plan]), study)
    adaptive = judge(pandas.DataFrame([found[trial.key] for trial in search.evaluated(found)]), study)
    print(f"{'':32}trials          optima alike   farthest, octaves   verdicts")
    for one, other in zip(full, adaptive, strict=True):
        pairs = list(zip(one.result.optimal_lr, other.result.optimal_lr, strict=True))
        off = [abs(math.log2(a / b)) for a, b in pairs if a and b]
        alike = sum((a is None) == (b is None) for a, b in pairs)
        counts = [sum(losses.size for losses in curve.result.losses) for curve in (other, one)]
        print(
            f"{one.axis:6} {one.optimizer:6} {one.name:16} {counts[0]:5} of {counts[1]:5}   {alike:3} of {len(pairs)}"
            f"{max(off):16.3f}             {'the same' if one.result.verdict == other.result.verdict else 'other'}"
        )


def _diverged(trial: Trial) -> dict[str, Any]:
    return {
        "key": trial.key,
        **{column(key): value for key, value in trial.leaves.items()},
        "loss": math.nan,
        "diverged": True,
    }


if __name__ == "__main__":
    prepare_cpu(1)
    main(Path(sys.argv[1]))
