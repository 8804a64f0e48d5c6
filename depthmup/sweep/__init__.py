"""Sweeps from Python: train many trials, read their rows and learning curves, and report what they say.

The names below are loaded when they are first used, so that reading a finished sweep does not load the engine.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from depthmup.report.calibration import calibrate, path_sum
    from depthmup.report.compare import compare
    from depthmup.report.grow import Grown, grow
    from depthmup.report.run import Result, run
    from depthmup.settings import put
    from depthmup.sweep.engine import cost, train
    from depthmup.sweep.store import curves, load, measured

__all__ = [
    "Grown",
    "Result",
    "calibrate",
    "compare",
    "cost",
    "curves",
    "grow",
    "load",
    "measured",
    "path_sum",
    "put",
    "run",
    "train",
]

_MODULES = {
    "Grown": "depthmup.report.grow",
    "Result": "depthmup.report.run",
    "calibrate": "depthmup.report.calibration",
    "compare": "depthmup.report.compare",
    "cost": "depthmup.sweep.engine",
    "curves": "depthmup.sweep.store",
    "grow": "depthmup.report.grow",
    "load": "depthmup.sweep.store",
    "measured": "depthmup.sweep.store",
    "path_sum": "depthmup.report.calibration",
    "put": "depthmup.settings",
    "run": "depthmup.report.run",
    "train": "depthmup.sweep.engine",
}

if not TYPE_CHECKING:  # with __getattr__ a type checker would believe that every name exists

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return __all__
