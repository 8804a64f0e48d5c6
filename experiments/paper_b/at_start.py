"""What `experiments.paper_b.initial` has measured of networks before any training: exponents over depth."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from depthmup.measure import MaximalUpdate
from experiments.paper_b.exponents import Exponent, fitted
from experiments.published import RESULTS

FILE = RESULTS / "paper_b" / "initial.json"
Found = Mapping[float, Mapping[str, Any]]  # {depth: {"changes", "squares": (seeds, layers), "log2_edges": (seeds,)}}


def read(name: str) -> Found:
    """What was measured of a network; {} if nothing was."""
    found = json.loads(FILE.read_text()) if FILE.exists() else {}
    return {float(depth): of_depth for depth, of_depth in found.get(name, {}).items()}


def update(found: Found, depth: float) -> MaximalUpdate:
    return MaximalUpdate(np.array(found[depth]["changes"]), np.array(found[depth]["squares"]))


def of_update(found: Found, depths: Sequence[float], average: str = "arithmetic") -> Exponent | None:
    """The exponent of the maximal-update learning rate over those of these depths that were measured.

    average: over layers, a name in `measure.AVERAGES`.
    """
    there = [depth for depth in depths if depth in found]
    updates = [update(found, depth)._replace(average=average) for depth in there]
    return fitted(there, [own.learning_rate for own in updates], [own.stderr for own in updates])


def of_sharpness(found: Found, depths: Sequence[float]) -> Exponent | None:
    """The exponent of 2 / sharpness over those of these depths that were measured."""
    there = [depth for depth in depths if depth in found]
    edges = [np.array(found[depth]["log2_edges"]) for depth in there]
    stderr = [float(own.std(ddof=1)) / len(own) ** 0.5 for own in edges]
    return fitted(there, [float(2 ** own.mean()) for own in edges], stderr)
