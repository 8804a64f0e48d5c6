"""Sweeps from Python: train many trials, read their rows and learning curves, and report what they say."""

from depthmup.report.calibration import calibrate, path_sum
from depthmup.report.compare import compare
from depthmup.report.grow import Grown, grow
from depthmup.report.result import SweepResult
from depthmup.report.result import of_table as judge
from depthmup.report.run import Result, run
from depthmup.settings import put
from depthmup.trials.engine import cost, train
from depthmup.trials.store import curves, load, measured

__all__ = [
    "Grown",
    "Result",
    "SweepResult",
    "calibrate",
    "compare",
    "cost",
    "curves",
    "grow",
    "judge",
    "load",
    "measured",
    "path_sum",
    "put",
    "run",
    "train",
]
