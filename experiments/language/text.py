"""Text that is on every machine where depthmup runs: the docstrings of NumPy, 1.5 million bytes."""

from __future__ import annotations

import functools
import hashlib
from types import ModuleType

import numpy as np


@functools.cache
def corpus() -> np.ndarray:
    """The docstrings of NumPy's public functions and classes, each once, sorted by name; (bytes,), uint8."""
    found: dict[str, None] = {}
    modules: tuple[ModuleType, ...] = (np, np.linalg, np.fft, np.random, np.ma, np.polynomial.polynomial)
    for module in modules:
        for name in sorted(dir(module)):
            text = getattr(getattr(module, name), "__doc__", None) if not name.startswith("_") else None
            if isinstance(text, str) and len(text) > 200:
                found[text] = None
    return np.frombuffer("\n".join(found).encode(), np.uint8)


def digest() -> str:
    return f"NumPy {np.__version__}, {hashlib.sha256(corpus().tobytes()).hexdigest()[:12]}"
