"""One pure step, one loop for a single run and for a sweep of one shape.

The loop is loaded when it is first used, for it loads Orbax.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from depthmup.train.step import Hyper, Trainer, TrainState, make_trainer

if TYPE_CHECKING:
    from depthmup.train.loop import TrialLoop

__all__ = ["Hyper", "TrainState", "Trainer", "TrialLoop", "make_trainer"]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name != "TrialLoop":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from depthmup.train.loop import TrialLoop

        return TrialLoop
