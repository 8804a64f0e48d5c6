"""The row of a trial: every column of a sweep's table. `History.columns` makes those of its steps, an evaluation
(train/loop.py) those of its last state, the config those of its settings."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from depthmup.backend import environment
from depthmup.settings import column
from depthmup.train.divergence import diverged
from depthmup.trials.study import SCHEMA, Row, Trial

FIRST = ("optimizer", "parameterization", "depth", "width", "learning_rate", "seed")  # the first settings in a row


def row_of(trial: Trial, steps: int, results: Mapping[str, float], of_steps: Mapping[str, float]) -> Row:
    """The row of a trial of so many steps.

    results: what its last state gave, by column. of_steps: what its steps gave, by column, such as "last_loss".
    """
    settings = {column(key): value for key, value in trial.leaves.items()}
    row = {"key": trial.key, "schema": SCHEMA, **{name: settings[name] for name in FIRST}, **settings}
    row |= {"steps": steps, "environment": environment(), **results, **of_steps}
    if "loss" not in row:  # the feed has no training split to evaluate: the last losses stand for it
        last, first = (np.array(row[name]) for name in ("last_loss", "first_loss"))
        row |= {"loss": row["last_loss"], "diverged": bool(diverged(row["diverged"], last, first))}
    return row
