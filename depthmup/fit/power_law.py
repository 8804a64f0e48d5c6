"""The best learning rate as a power of depth, and the two-anchor prediction within segments of depth."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from depthmup.fit.curve import half_width
from depthmup.names import NOT_NEGATIVE, POSITIVE, short

if TYPE_CHECKING:
    from numpy.typing import ArrayLike  # importing it loads more of NumPy than `import depthmup` needs

ROUNDING = 1e-9  # octaves
# Paper B, section 4.2: {name: (two anchor depths, the depths that the line through the anchors predicts)}.
SEGMENTS: dict[str, tuple[tuple[int, int], Sequence[int]]] = {
    "A": ((3, 4), range(5, 10)),
    "B": ((10, 11), range(12, 17)),
    "C": ((18, 20), range(22, 31)),
}


class PowerLaw(NamedTuple):
    """The fitted law lr = coefficient * depth^exponent. Calling it with depths returns their learning rates.

    low, high: 95% interval of the exponent (t distribution with points - 2 degrees of freedom).
    r2: share of the (weighted) variance of log lr that the line explains; NaN if all learning rates are equal.
    weighted: whether the fit used standard errors.
    depths, learning_rates: (points,), the points of the fit.
    covariance: (2, 2), of exponent and log2 coefficient, from the scatter about the line.
    """

    exponent: float
    low: float
    high: float
    coefficient: float
    r2: float
    weighted: bool
    depths: np.ndarray
    learning_rates: np.ndarray
    covariance: np.ndarray

    def __call__(self, depths: ArrayLike) -> np.ndarray:
        return self.coefficient * POSITIVE.array("depths", depths) ** self.exponent

    def band(self, depths: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
        """(low, high): the 95% band of the line at each depth. It says where the line may be, not where a new optimum
        may be, which scatters about the line."""
        x = np.log2(POSITIVE.array("depths", depths))
        design = np.stack([x, np.ones_like(x)], axis=-1)
        variance = np.maximum(((design @ self.covariance) * design).sum(axis=-1), 0)  # Rounding may make it negative.
        factor = np.exp2(half_width(len(self.depths) - 2) * np.sqrt(variance))
        return self(depths) / factor, self(depths) * factor


class Segment(NamedTuple):
    """The line through two anchors in log-log, and its predictions at other depths."""

    name: str
    anchors: tuple[int, int]  # depths
    exponent: float
    depths: list[int]  # the predicted depths
    predicted: list[float]  # learning rate at each of `depths`
    relative_error: list[float]  # predicted / measured - 1 at each of `depths`


def power_law(depths: ArrayLike, lrs: Sequence[float | None], stderr: ArrayLike | None = None) -> PowerLaw:
    """Least squares of log2 learning rate over log2 depth (paper B, section 4.1).

    Args:
      depths: (points,), positive, in any order; a depth may occur more than once.
      lrs: (points,), positive; None and NaN (no optimum inside the grid) are left out.
      stderr: (points,), standard errors of log2 lr in octaves, such as `Optimum.stderr`. The fit is ordinary least
        squares if stderr is None, NaN at a point that is used (one seed), or 0 at all points.

    Returns:
      A `PowerLaw`: the exponent with its 95% interval; called with depths, it gives their learning rates.

    A point has weight 1 / (stderr^2 + mean stderr^2). The usual weight 1 / stderr^2 would be worse: few seeds determine
    a standard error only roughly, and a standard error that is small by chance draws the line to its point. In
    simulations (4 to 12 depths of equal noise) 95% intervals with weights 1 / stderr^2 held the exponent in only 92 to
    94 of 100 cases with 6 seeds and 79 to 92 with 3; with our weights, in 94 to 95. Where the true noise grows 3-fold
    over the depths, ours held the exponent in 93 to 95 and the band in 91 to 93 cases, no worse than the ordinary fit.

    Raises ValueError for depths or learning rates that are not positive, lengths that differ, negative standard
    errors, fewer than three points with an optimum, or depths that are all equal.
    """
    sizes, rates, used = _points(depths, lrs)
    x, y = np.log2(sizes), np.log2(rates)
    if len(x) < 3:
        left_out = f" (no optimum at depth {_words(depths, ~used)})" if not used.all() else ""
        raise ValueError(f"a power law with an interval needs three optima, got {len(x)} of {len(used)}{left_out}")
    if np.ptp(x) < ROUNDING:
        raise ValueError(f"a power law needs different depths, all are {sizes[0]:g}")
    variance = np.zeros_like(x) if stderr is None else _variance(stderr, used)
    weighted = bool(variance.mean() > 0)  # NaN is not
    weights = 1 / (variance + variance.mean()) if weighted else np.ones_like(x)
    (exponent, intercept), covariance = np.polyfit(x, y, 1, w=np.sqrt(weights), cov=True)
    half = half_width(len(x) - 2) * math.sqrt(covariance[0, 0])
    misses, centred = y - exponent * x - intercept, y - np.average(y, weights=weights)
    r2 = 1 - float(weights @ misses**2 / (weights @ centred**2)) if np.ptp(y) else math.nan
    return PowerLaw(
        exponent=float(exponent),
        low=float(exponent - half),
        high=float(exponent + half),
        coefficient=float(np.exp2(intercept)),
        r2=r2,
        weighted=weighted,
        depths=sizes,
        learning_rates=rates,
        covariance=covariance,
    )


def segmented(
    depths: ArrayLike,
    lrs: Sequence[float | None],
    segments: Mapping[str, tuple[tuple[int, int], Sequence[int]]] = SEGMENTS,
) -> list[Segment]:
    """Zero-shot prediction within segments: a line through two anchors only (paper B, section 4.2).

    Args:
      depths, lrs: as in `power_law`, but every depth once.
      segments: name -> (two anchors, depths to predict).

    Returns:
      A `Segment` for each of `segments`, with the relative error of each prediction.

    A depth that was not measured or has no optimum is left out, and so is a segment that lacks an anchor or has no
    depth left to predict. Raises ValueError as `power_law` does, and for a depth that occurs twice.
    """
    sizes, rates, _ = _points(depths, lrs)
    measured = dict(zip(sizes.tolist(), rates.tolist(), strict=True))
    if len(measured) != len(sizes):
        raise ValueError(f"every depth may occur once, got {sizes.tolist()}")
    if not isinstance(segments, Mapping):
        raise ValueError(f"segments must be {{name: (two anchors, depths)}}, got {short(segments)}")
    result = []
    for name, segment in segments.items():
        anchors, candidates = _segment(name, segment)
        targets = [depth for depth in candidates if depth in measured]
        if targets and all(depth in measured for depth in anchors):
            near, far = anchors
            exponent = math.log(measured[far] / measured[near]) / math.log(far / near)
            predicted = [measured[near] * (depth / near) ** exponent for depth in targets]
            errors = [p / measured[depth] - 1 for p, depth in zip(predicted, targets, strict=True)]
            result.append(Segment(name, anchors, exponent, targets, predicted, errors))
    return result


def _points(depths: ArrayLike, lrs: Sequence[float | None]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(depths, learning rates, used): the points with an optimum, and for every given point whether it is one."""
    sizes, rates = POSITIVE.array("depths", depths), POSITIVE.array("learning rates", lrs, missing=True)
    if sizes.ndim != 1 or sizes.shape != rates.shape:
        raise ValueError(f"depths and learning rates must be as many of each: {sizes.shape} and {rates.shape}")
    used = ~np.isnan(rates)
    return sizes[used], rates[used], used


def _segment(name: str, segment: tuple[tuple[int, int], Sequence[int]]) -> tuple[tuple[int, int], Sequence[int]]:
    """The anchors of a segment and the depths that they predict. Raises ValueError for anchors that are no two."""
    try:
        (near, far), candidates = segment
        ratio = far / near
    except (TypeError, ValueError, ZeroDivisionError):
        ratio = 0.0
    if not ratio > 0 or ratio == 1:
        raise ValueError(f"segment {name!r} must be ((anchor, another anchor), depths), got {short(segment)}")
    return (near, far), candidates


def _variance(stderr: ArrayLike, used: np.ndarray) -> np.ndarray:
    """Squared standard errors of the points that are used."""
    errors = NOT_NEGATIVE.array("standard errors", stderr, missing=True)
    if errors.shape != used.shape:
        raise ValueError(f"depths and standard errors differ in length: {used.shape} and {errors.shape}")
    return errors[used] ** 2


def _words(depths: ArrayLike, mask: np.ndarray) -> str:
    return ", ".join(f"{depth:g}" for depth in np.asarray(depths, np.float64)[mask])
