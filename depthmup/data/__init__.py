"""Data sources by name."""

from __future__ import annotations

from collections.abc import Callable

from depthmup.data import digits
from depthmup.data.batches import batch_indices, steps_per_epoch
from depthmup.data.digits import Dataset, Split

SOURCES: dict[str, Callable[[], Dataset]] = {"digits": digits.load}

__all__ = ["SOURCES", "Dataset", "Split", "batch_indices", "steps_per_epoch"]
