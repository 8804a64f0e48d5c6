"""One training task, one loop for a lone run and for a sweep of one shape."""

from depthmup.train.devices import BatchOverDevices, TrialsOverDevices
from depthmup.train.loop import TrialLoop
from depthmup.train.recipe import Recipe
from depthmup.train.task import Hyper, Task, TrainState

__all__ = ["BatchOverDevices", "Hyper", "Recipe", "Task", "TrainState", "TrialLoop", "TrialsOverDevices"]
