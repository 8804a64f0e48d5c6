"""How Matplotlib draws the pictures of a report, whatever they show."""

from __future__ import annotations

import io
from typing import Any

from matplotlib.figure import Figure

WIDTH = 6.4  # inches of a figure: its letters of 10 points are 8 pixels high where it is shown at 400 pixels
STYLE: Any = {"font.size": 10.5, "axes.titlesize": 9.5, "axes.spines.top": False, "axes.spines.right": False}


def png(figure: Figure, dpi: int = 120) -> bytes:
    """The figure as PNG bytes, the same for the same figure."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi, metadata={"Software": None})
    return buffer.getvalue()
