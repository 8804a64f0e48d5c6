"""From measured changes to slopes, their intervals over seeds, and one of three answers."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np

from depthmup.fit.curve import half_width
from depthmup.fit.thresholds import CONFIDENCE

OK, NOT_OK, UNDECIDED = "ok", "not ok", "undecided"
LIKELY = 0.02  # an answer that is less likely to come is not waited for
DRAWS = 2000


class SlopeEstimate(NamedTuple):
    """A slope of log2 change over log2 size, and its 95% interval over seeds."""

    slope: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.slope:+.2f} [{self.low:+.2f}, {self.high:+.2f}]"


class Slope(NamedTuple):
    """How the change of one quantity depends on width or depth when one group of parameters is trained."""

    axis: str  # "width" or "depth"
    group: str  # the group of parameters that was trained, or "all"
    quantity: str  # the quantity that changed: "hidden", "logits" or another key of `Probe.features`
    step: int  # number of training steps
    answer: str  # OK, NOT_OK or UNDECIDED; "" for a slope that is only shown
    plain: SlopeEstimate  # of the line
    limit: SlopeEstimate | None  # the slope at large depth, of the line with a term 1/depth; None below three depths
    sizes: tuple[int, ...]  # widths or depths
    changes: np.ndarray  # (sizes, seeds), RMS changes since initialization

    @property
    def judged(self) -> bool:
        """Does the verdict use this slope?"""
        return bool(self.answer)


def fits(axis: str, sizes: Sequence[int], changes: np.ndarray) -> list[np.ndarray]:
    """The slopes of each seed, (seeds,), of a line and, along depth, of a line with a term 1/depth; by least squares.

    The line is log2 change = a + slope log2 size. From three depths on, log2 change = a + slope log2 depth + c / depth
    is fitted as well. changes: (sizes, seeds). A slope is not finite where a change is 0 or is not finite.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        y, x = np.log2(changes), np.log2(sizes) - np.mean(np.log2(sizes))
        slopes = [x @ y / (x @ x)]
        if axis == "depth" and len(set(sizes)) > 2:
            term = 1 / np.array(sizes) - np.mean(1 / np.array(sizes))
            residual = x - term * (x @ term) / (term @ term)  # the part of log2 depth that the term does not explain
            slopes.append(residual @ y / (residual @ residual))
    return slopes


def estimate(slopes: np.ndarray, looks: int = 1, tests: int = 1) -> SlopeEstimate:
    """The mean of the slopes of all seeds, (seeds,), and its interval by Student's t.

    The interval holds the slope with 95% confidence at all `looks` and for all `tests` together, by Bonferroni's
    correction. With one seed it is infinite.
    """
    mean, seeds = float(slopes.mean()), len(slopes)
    if seeds == 1:
        return SlopeEstimate(mean, -math.inf, math.inf)
    with np.errstate(invalid="ignore"):
        stderr = float(slopes.std(ddof=1)) / math.sqrt(seeds)
    half = half_width(seeds - 1, 1 - (1 - CONFIDENCE) / (looks * tests)) * stderr
    return SlopeEstimate(mean, mean - half, mean + half)


def answer(fitted: Sequence[np.ndarray], tolerance: float, looks: int = 1, tests: int = 1) -> str:
    """Is the slope within +-tolerance? OK, NOT_OK or UNDECIDED.

    fitted: the slopes of `fits`. looks: how often the question is asked while seeds are added. tests: the number of
    slopes of the report.

    A report is ok if all of its slopes are ok, and not ok if one slope is not. So a wrong report is called ok only if
    its wrong slope is called ok (an intersection-union test): the 95% interval of a slope within the tolerance is
    enough for "ok", however many slopes there are. But a right report is called not ok if any slope is called so: for
    "not ok" the interval must lie beyond the tolerance with 95% confidence for all slopes together. Both answers are
    corrected for the number of looks.

    Where the term 1/depth is fitted, "ok" needs the interval of either slope within the tolerance, and the slope at
    large depth not beyond it; "not ok" needs both slopes beyond, on the same side. The reason is that at small depth a
    right model has a slope that falls like 1/depth, while the term makes the interval several times wider: a slope that
    is flat at the measured depths is ok without the term (docs/rules.md section 0 has the errors of this rule and of
    others).

    A slope that is not finite is not ok: nothing moved, or a training blew up.
    """
    if not all(np.isfinite(slopes).all() for slopes in fitted):
        return NOT_OK
    within = [max(-e.low, e.high) <= tolerance for e in (estimate(slopes, looks) for slopes in fitted)]
    sides = [_side(estimate(slopes, looks, tests), tolerance) for slopes in fitted]
    if set(sides) in ({1}, {-1}):
        return NOT_OK
    return OK if within[-1] or (within[0] and not sides[-1]) else UNDECIDED


def reachable(fitted: Sequence[np.ndarray], tolerance: float, looks: int, tests: int, seeds: int) -> set[str]:
    """The answers that an undecided slope may still get with `seeds` seeds in all.

    fitted, tolerance, looks, tests: of `answer`. An answer is reachable where its probability is at least LIKELY, if
    all that is known of the mean and the standard deviation of one seed is what these seeds say (the predictive
    distribution of both under the prior 1/sigma). So few slopes that would be decided are given up, and no answer is
    made more likely.
    """
    count, rest = len(fitted[0]), seeds - len(fitted[0])
    if count < 2 or not all(np.isfinite(slopes).all() for slopes in fitted):
        return {OK, UNDECIDED, NOT_OK}
    if rest < 1:
        return {UNDECIDED}
    rng = np.random.default_rng(0)
    within, above, below = [], [], []
    for slopes in fitted:
        squares = float(slopes.var()) * count
        variance = squares / rng.chisquare(count - 1, DRAWS)
        further = np.sqrt(variance * (1 / count + 1 / rest)) * rng.standard_normal(DRAWS)  # their mean beside this one
        all_squares = squares + further**2 * count * rest / seeds
        all_squares += variance * rng.chisquare(rest - 1, DRAWS) if rest > 1 else 0.0
        mean, stderr = slopes.mean() + further * rest / seeds, np.sqrt(all_squares / (seeds - 1) / seeds)
        ok, not_ok = (half_width(seeds - 1, 1 - (1 - CONFIDENCE) / (looks * of)) * stderr for of in (1, tests))
        within.append(np.mean(abs(mean) + ok <= tolerance))
        above.append(np.mean(mean - not_ok > tolerance))
        below.append(np.mean(mean + not_ok < -tolerance))
    is_side = max(min(above), min(below)) >= LIKELY
    return {UNDECIDED, *([OK] if max(within) >= LIKELY else []), *([NOT_OK] if is_side else [])}


def overall(answers: Collection[str]) -> str:
    """NOT_OK if one answer is, else UNDECIDED if one is, else OK."""
    return next((worse for worse in (NOT_OK, UNDECIDED) if worse in answers), OK)


def _side(interval: SlopeEstimate, tolerance: float) -> int:
    """1 if the interval lies above +-tolerance, -1 if below, 0 otherwise."""
    return int(interval.low > tolerance) - int(interval.high < -tolerance)


def stages(seeds: int, max_seeds: int) -> list[int]:
    """The numbers of seeds at which slopes are judged: doubled up to max_seeds, in whole multiples of `seeds`."""
    counts, largest = [seeds], max(1, max_seeds // seeds) * seeds
    while counts[-1] < largest:
        counts.append(min(2 * counts[-1], largest))
    return counts
