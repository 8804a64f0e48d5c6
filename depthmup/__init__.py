"""Tune hyperparameters once on a small, shallow network; train the wide, deep one with the same values.

The public names are those of api.py (docs/design.md). They need jax, flax, optax and numpy only.
"""

import importlib
import importlib.util
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from depthmup.api import *  # noqa: F403

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """A name is imported when it is first used, so that the command answers --help without JAX."""
    if name.startswith("__") and name != "__all__":
        raise AttributeError(f"module 'depthmup' has no attribute {name!r}")
    if importlib.util.find_spec(f"depthmup.{name}"):
        globals()[name] = importlib.import_module(f"depthmup.{name}")
    else:
        globals()[name] = getattr(importlib.import_module("depthmup.api"), name)
    return globals()[name]


def __dir__() -> Iterable[str]:
    return {*globals(), *__getattr__("__all__")}
