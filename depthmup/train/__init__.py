"""One pure step, one loop for a single run and for a sweep of one shape."""

from depthmup.train.loop import TrialLoop
from depthmup.train.step import Hyper, Trainer, TrainState, make_trainer

__all__ = ["Hyper", "TrainState", "Trainer", "TrialLoop", "make_trainer"]
