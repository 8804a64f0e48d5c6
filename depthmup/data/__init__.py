"""Data sets by name, and their batches."""

from depthmup.data.augment import NONE, Augment
from depthmup.data.batches import batch_indices, steps_per_epoch
from depthmup.data.catalog import dataset_names, load
from depthmup.data.dataset import Dataset, Records, Split, checked_dataset
from depthmup.data.pipeline import Batches

__all__ = ["NONE", "Augment", "Batches", "Dataset", "Records", "Split", "batch_indices", "checked_dataset", "load"]
__all__ += ["dataset_names", "steps_per_epoch"]
