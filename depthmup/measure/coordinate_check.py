"""Coordinate check: does the change of the features in a few training steps depend on width or depth?"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from depthmup.measure.probe import Probe, feature_changes
from depthmup.parameterization import at_least_one


class Slope(NamedTuple):
    """The slope of log2 RMS change of a quantity over log2 size, with its 95% interval over seeds."""

    axis: str  # "width" or "depth"
    group: str  # the group of parameters that was trained, or "all"
    quantity: str  # what changed: "hidden", "logits" or another key of `Probe.features`
    step: int  # number of training steps
    slope: float
    low: float
    high: float
    judged: bool  # whether the verdict uses this slope
    ok: bool  # whether the slope is within the tolerance
    sizes: tuple[int, ...]  # widths or depths
    changes: np.ndarray  # (sizes, seeds), RMS changes since initialization


class CoordinateReport(NamedTuple):
    """The result of a coordinate check: all slopes, `ok`, `str(report)` (a table) and `plot(path)`."""

    title: str
    slopes: list[Slope]
    tolerance: float

    @property
    def ok(self) -> bool:
        """Are all judged slopes within the tolerance?"""
        return all(s.ok for s in self.slopes if s.judged)

    def __str__(self) -> str:
        lines = [f"{'axis':6} {'trained':22} {'quantity':9} {'step':>4}  {'slope':>6}  95% interval"]
        for s in self.slopes:
            verdict = ("ok" if s.ok else "NOT OK") if s.judged else ""
            interval = f"[{s.low:+.2f}, {s.high:+.2f}]"
            lines.append(
                f"{s.axis:6} {s.group:22} {s.quantity:9} {s.step:4d}  {s.slope:+6.2f}  {interval:15} {verdict}"
            )
        summary = f"{self.title}: {'ok' if self.ok else 'NOT OK'} (judged slopes within {self.tolerance} of 0)"
        return "\n".join([*lines, summary])

    def plot(self, path: str | Path) -> None:
        """Draw RMS changes against width and depth, one line per judged group, to a PNG."""
        from depthmup.measure.plot import plot_coordinates

        plot_coordinates(self, path)


def coordinate_check(
    probe_at: Callable[[int, int], Probe],
    *,
    widths: Sequence[int] = (),
    depths: Sequence[int] = (),
    width: int = 256,
    depth: int = 8,
    steps: Sequence[int] = (1, 10),
    seeds: int = 4,
    tolerance: float = 0.1,
    title: str = "coordinate check",
    progress: Callable[[str], None] = lambda message: None,
) -> CoordinateReport:
    """Train each group of parameters alone, and all together, for a few steps, at several widths and depths; report the
    slopes of the features' RMS change over width and depth. In a correct parameterization the slopes are near 0.

    Args:
      probe_at: (width, depth) -> Probe; see `probe`. Take small learning rates: saturation hides slopes.
      widths: the widths to compare, at depth `depth`. depths: the depths to compare, at width `width`. An axis with
        fewer than two values is not checked.
      steps: numbers of training steps after which the change is measured.
      tolerance: a judged slope is ok if its absolute value is at most this.

    For most groups the slope of "hidden" is judged. The slope of "logits" is judged instead for groups that do not move
    "hidden" (the readout, a norm before it, scalars), and along depth for vectors in branches: norms act on the
    features mainly through random weights, whose sum over blocks has a slope of its own. A judged group that did not
    move is not ok. If the readout starts at 0 nothing else moves in the first step, so take steps=(2, 10) then.

    The other slopes are only shown. Slopes of logits along width are below 0 as long as noise of order 1/width adds to
    the logits. Source: docs/rules.md section 0, "How to make a coordinate check".

    Raises ValueError if no axis has two values, a value is below 1, or "hidden" or "logits" is missing.
    """
    axes = {"width": [(w, depth) for w in widths], "depth": [(width, d) for d in depths]}
    axes = {axis: shapes for axis, shapes in axes.items() if len(set(shapes)) > 1}
    if not axes or not steps:
        raise ValueError("a coordinate check needs at least two widths or two depths, and a number of steps")
    for name, values in (
        ("width", [*widths, width]),
        ("depth", [*depths, depth]),
        ("seeds", [seeds]),
        ("steps", steps),
    ):
        for value in values:
            at_least_one(name, value)
    changes: dict[tuple[int, int], dict[tuple[str, str], np.ndarray]] = {}
    for shape in sorted({s for shapes in axes.values() for s in shapes}):
        progress(f"width {shape[0]} depth {shape[1]}")
        changes[shape] = feature_changes(probe_at(*shape), max(steps), seeds)
    slopes = []
    for axis, shapes in axes.items():
        sizes = tuple(s[0] if axis == "width" else s[1] for s in shapes)
        for group, quantity in dict.fromkeys(key for s in shapes for key in changes[s]):
            missing = [s for s in shapes if (group, quantity) not in changes[s]]
            if missing:
                raise ValueError(f"no {quantity!r} of the group {group!r} at (width, depth) = {missing[0]}")
            still = not any(changes[s][group, "hidden"].any() for s in shapes)
            by_logits = still or (group.startswith("branch/vector") and axis == "depth")
            for step in steps:
                table = np.stack([changes[s][group, quantity][:, step - 1] for s in shapes])  # (sizes, seeds)
                slope = _slope(axis, group, quantity, step, sizes, table, tolerance, by_logits)
                if slope.judged or table.any():
                    slopes.append(slope)
    return CoordinateReport(title, slopes, tolerance)


def _slope(
    axis: str,
    group: str,
    quantity: str,
    step: int,
    sizes: tuple[int, ...],
    changes: np.ndarray,
    tolerance: float,
    by_logits: bool,
) -> Slope:
    from scipy import stats  # here, so that `import depthmup` stays light

    x = np.log2(sizes) - np.mean(np.log2(sizes))
    with np.errstate(divide="ignore", invalid="ignore"):
        per_seed = x @ np.log2(changes) / (x @ x)  # NaN or infinite where a change is 0
        slope, seeds = float(per_seed.mean()), len(per_seed)
        half = math.inf
        if seeds > 1:
            half = float(stats.t.ppf(0.975, seeds - 1) * per_seed.std(ddof=1) / math.sqrt(seeds))
    judged = quantity == ("logits" if by_logits else "hidden")
    ok = bool(abs(slope) <= tolerance)  # NaN (nothing moved, or a run blew up) is not ok
    return Slope(axis, group, quantity, step, slope, slope - half, slope + half, judged, ok, sizes, changes)
