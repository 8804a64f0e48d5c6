"""Measurements on networks; never imports `train`: it takes step functions."""

from depthmup.measure.coordinate_check import CoordinateReport, Slope, coordinate_check
from depthmup.measure.kernels import feature_kernels, kernel_movement
from depthmup.measure.maximal_update import MaximalUpdate, maximal_update, update_sizes
from depthmup.measure.probe import Probe, groups_of, probe, train_only
from depthmup.measure.sharpness import sharpness

__all__ = [
    "CoordinateReport",
    "MaximalUpdate",
    "Probe",
    "Slope",
    "coordinate_check",
    "feature_kernels",
    "groups_of",
    "kernel_movement",
    "maximal_update",
    "probe",
    "sharpness",
    "train_only",
    "update_sizes",
]
