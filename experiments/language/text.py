"""Text that is on every machine where depthmup runs: the docstrings of NumPy, 1.5 million bytes."""

from __future__ import annotations

from depthmup.data import load
from depthmup.data.text import docstrings as corpus

__all__ = ["corpus", "digest"]


def digest() -> str:
    return load("text").digest
