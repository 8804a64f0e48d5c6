"""Tune hyperparameters once on a small, shallow network; train the wide, deep one with the same values.

The public names (docs/design.md). Importing this needs jax, flax, optax and numpy only.
"""

from depthmup import fit, theory
from depthmup.explain import explain
from depthmup.infer import infer_specs
from depthmup.measure import CoordinateReport, MaximalUpdate, Probe, coordinate_check, maximal_update, probe, sharpness
from depthmup.optim import optimizer, scale_by_eps_factors, scale_by_parameterization
from depthmup.parameterization import ForwardFactors, LeafFactors, Parameterization, parameterization
from depthmup.specs import (
    ParamSpec,
    SpecError,
    factors,
    forward_params,
    rescale,
    specs_from_json,
    specs_to_json,
)

__version__ = "0.1.0"

__all__ = [
    "CoordinateReport",
    "ForwardFactors",
    "LeafFactors",
    "MaximalUpdate",
    "ParamSpec",
    "Parameterization",
    "Probe",
    "SpecError",
    "coordinate_check",
    "explain",
    "factors",
    "fit",
    "forward_params",
    "infer_specs",
    "maximal_update",
    "optimizer",
    "parameterization",
    "probe",
    "rescale",
    "scale_by_eps_factors",
    "scale_by_parameterization",
    "sharpness",
    "specs_from_json",
    "specs_to_json",
    "theory",
]
