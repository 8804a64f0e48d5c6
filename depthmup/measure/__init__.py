"""Measurements on networks; never imports `train`: it takes step functions."""

from depthmup.measure.coordinate_check import CoordinateReport, Slope, coordinate_check
from depthmup.measure.probe import Probe, groups_of, probe, train_only

__all__ = ["CoordinateReport", "Probe", "Slope", "coordinate_check", "groups_of", "probe", "train_only"]
