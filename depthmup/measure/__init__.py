"""Measurements on networks. This package never imports `train`: it takes the functions to measure as arguments.

Paper A is the depthwise-transfer paper, paper B the AM-muP paper (docs/theory.md).
"""

from depthmup.measure.coordinate_check import CoordinateReport, coordinate_check
from depthmup.measure.kernels import (
    NetworkFields,
    NetworkKernels,
    alignment,
    distance,
    feature_kernels,
    kernel_movement,
    network_fields,
    network_kernels,
)
from depthmup.measure.maximal_update import MaximalUpdate, maximal_update, update_sizes
from depthmup.measure.noise_scale import NoiseScale, noise_scale
from depthmup.measure.ntk import Outer, empirical_ntk, linen_dense
from depthmup.measure.probe import Probe, groups_of, probe, train_only
from depthmup.measure.sharpness import sharpness
from depthmup.measure.slope import Slope, SlopeEstimate

__all__ = [
    "CoordinateReport",
    "MaximalUpdate",
    "NetworkFields",
    "NetworkKernels",
    "NoiseScale",
    "Outer",
    "Probe",
    "Slope",
    "SlopeEstimate",
    "alignment",
    "coordinate_check",
    "distance",
    "empirical_ntk",
    "feature_kernels",
    "groups_of",
    "kernel_movement",
    "linen_dense",
    "maximal_update",
    "network_fields",
    "network_kernels",
    "noise_scale",
    "probe",
    "sharpness",
    "train_only",
    "update_sizes",
]
