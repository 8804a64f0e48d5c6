"""What `experiments.paper_b.initial` has measured of networks before any training: exponents over depth."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from depthmup.fit import PowerLaw
from depthmup.measure import MaximalUpdate
from depthmup.measure.maximal_update import Average
from experiments.paper_b.exponents import fitted
from experiments.published import RESULTS

FILE = RESULTS / "paper_b" / "initial.json"
# {depth: {"changes", "squares": (seeds, layers), "log2_edges": (seeds,)}}
Measured = Mapping[float, Mapping[str, Any]]


def read(name: str) -> Measured:
    """What was measured of a network; {} if nothing was."""
    content = json.loads(FILE.read_text()) if FILE.exists() else {}
    return {float(depth): at_depth for depth, at_depth in content.get(name, {}).items()}


def update(measured: Measured, depth: float) -> MaximalUpdate:
    return MaximalUpdate(np.array(measured[depth]["changes"]), np.array(measured[depth]["squares"]))


def of_update(measured: Measured, depths: Sequence[float], average: Average = "arithmetic") -> PowerLaw | None:
    """The law of the maximal-update learning rate over those of these depths that were measured.

    average: over layers, a name in `measure.AVERAGES`.
    """
    updates = {depth: update(measured, depth)._replace(average=average) for depth in depths if depth in measured}
    return fitted([*updates], [at.learning_rate for at in updates.values()], [at.stderr for at in updates.values()])


def of_sharpness(measured: Measured, depths: Sequence[float]) -> PowerLaw | None:
    """The law of 2 / sharpness over those of these depths that were measured."""
    edges = {depth: np.array(measured[depth]["log2_edges"]) for depth in depths if depth in measured}
    stderr = [float(at.std(ddof=1)) / len(at) ** 0.5 for at in edges.values()]
    return fitted([*edges], [float(2 ** at.mean()) for at in edges.values()], stderr)
