"""What is minimized: the measure that sweep.judge_by chooses."""

from __future__ import annotations

import math

from depthmup.settings import Settings
from depthmup.train.build import batches_of
from depthmup.train.recipe import chance
from depthmup.train.workdir import Row


def score(row: Row, settings: Settings) -> float:
    """A loss, or the error 1 - accuracy; infinite where the trial diverged."""
    measure = settings.sweep.judge_by
    if row[measure] is None or row["diverged"]:
        return math.inf
    return 1 - row[measure] if measure.endswith("accuracy") else row[measure]


def cap(settings: Settings, measure: str) -> float:
    """The score of knowing nothing."""
    classes = batches_of(settings).dataset.classes
    return 1 - 1 / classes if measure.endswith("accuracy") else chance(settings.loss, classes)
