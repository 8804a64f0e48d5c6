"""The colors of pictures: of sizes, of other curves, of verdicts. report/style.css has those of verdicts on a page."""

from __future__ import annotations

from typing import Literal

import numpy as np

VERDICT_COLORS = {
    "transfers": "#1a7f37",
    "does not transfer": "#b42318",
    "undecided": "#8a6d00",
    "nothing learned": "#5f5f5f",
}
ENDS = {"white": (0.0, 0.9), "black": (0.3, 1.0)}  # of the map viridis, where it stands out from this background


def size_colors(count: int, background: Literal["white", "black"] = "white") -> np.ndarray:
    """A color for each size, from dark to light, (count, 4): red, green, blue, opacity."""
    import matplotlib

    return matplotlib.colormaps["viridis"](np.linspace(*ENDS[background], count))


def curve_color(place: int) -> str:
    """The color of a curve that stands for no size, by its place among the curves, as Matplotlib calls it."""
    return f"C{place % 10}"
