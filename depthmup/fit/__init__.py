"""Optima, drifts and verdicts; needs numpy and scipy only."""

from depthmup.fit.optimum import Optimum, capped, optimum
from depthmup.fit.transfer import Drift, Transfer, transfer

__all__ = ["Drift", "Optimum", "Transfer", "capped", "optimum", "transfer"]
