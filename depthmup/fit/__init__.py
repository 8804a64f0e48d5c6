"""Optima, drifts, verdicts, power laws, learning-rate rules, errors of finite size; with NumPy and SciPy only.

Paper A is the depthwise-transfer paper, paper B the AM-muP paper (docs/theory.md).
"""

from depthmup.fit.curve import capped, log_losses
from depthmup.fit.design import Design, design
from depthmup.fit.drift import Drift
from depthmup.fit.finite_size import Coefficient, EnsembleErrors, Estimate, FiniteSize, ensemble_errors, finite_size
from depthmup.fit.law_rows import Prior
from depthmup.fit.optimum import Edge, Optimum, optimum, settled
from depthmup.fit.path_sum import chain_path_sum, minimal_depth, path_sum
from depthmup.fit.power_law import SEGMENTS, PowerLaw, Segment, power_law, segmented
from depthmup.fit.rules import Rule, learning_rate_rules, predictions
from depthmup.fit.scaling_law import Prediction, Rates, RuleCheck, ScalingLaw, TransferQuality, scaling_law
from depthmup.fit.thresholds import MARGIN
from depthmup.fit.transfer import Transfer, regret_at, transfer, worth
from depthmup.fit.verdict import VERDICTS, Cost, Need, Risk, Verdict

__all__ = [
    "MARGIN",
    "SEGMENTS",
    "VERDICTS",
    "Coefficient",
    "Cost",
    "Design",
    "Drift",
    "Edge",
    "EnsembleErrors",
    "Estimate",
    "FiniteSize",
    "Need",
    "Optimum",
    "PowerLaw",
    "Prediction",
    "Prior",
    "Rates",
    "Risk",
    "Rule",
    "RuleCheck",
    "ScalingLaw",
    "Segment",
    "Transfer",
    "TransferQuality",
    "Verdict",
    "capped",
    "chain_path_sum",
    "design",
    "ensemble_errors",
    "finite_size",
    "learning_rate_rules",
    "log_losses",
    "minimal_depth",
    "optimum",
    "path_sum",
    "power_law",
    "predictions",
    "regret_at",
    "scaling_law",
    "segmented",
    "settled",
    "transfer",
    "worth",
]
