"""What is trained (`Task`), and the loop that trains it: one loop serves a lone run and a group of a sweep's trials."""

from depthmup.train.devices import BatchOverDevices, StateOverDevices, TrialsOverDevices
from depthmup.train.loop import TrialLoop
from depthmup.train.step import Hyper, TrainState
from depthmup.train.task import Task

__all__ = ["BatchOverDevices", "Hyper", "StateOverDevices", "Task", "TrainState", "TrialLoop", "TrialsOverDevices"]
