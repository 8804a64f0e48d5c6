"""The time from which on the best learning rate does not move: training longer is not needed to find it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from depthmup.fit.optimum import optimum

if TYPE_CHECKING:
    from numpy.typing import ArrayLike  # importing it loads more of NumPy than `import depthmup` needs


def settled(lrs: ArrayLike, losses: ArrayLike, cap: float | None = None, band: float = 0.25) -> int | None:
    """Index of the first time from which on the optimum stays within `band` octaves of the optimum at the last time.

    Args:
      lrs: (points,) learning rates, as in `optimum`.
      losses: (times, points, seeds); NaN and infinity mean divergence.
      cap: larger losses are cut to it (see `optimum`).

    None if the last time has no optimum. A time without an optimum counts as outside the band.
    Paper A asks this in appendix B.2 and figure B.3. Raises ValueError as `optimum` does.
    """
    rates, of_times = np.asarray(lrs, np.float64), np.asarray(losses, np.float64)
    if of_times.ndim != 3 or not len(of_times):
        raise ValueError(f"losses must be (times, points, seeds), got {of_times.shape}")
    found = [optimum(rates, curve, cap).learning_rate for curve in of_times]
    last = found[-1]
    if last is None:
        return None
    time = len(found) - 1
    while time and (before := found[time - 1]) is not None and abs(math.log2(before / last)) <= band:
        time -= 1
    return time
