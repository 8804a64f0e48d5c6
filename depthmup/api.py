"""The public names of depthmup (docs/api/), which `import depthmup` gives when one of them is first used."""

from depthmup import fit, testing, theory
from depthmup.measure import (
    CoordinateReport,
    MaximalUpdate,
    Probe,
    alignment,
    coordinate_check,
    distance,
    empirical_ntk,
    feature_kernels,
    linen_dense,
    maximal_update,
    network_fields,
    network_kernels,
    probe,
    sharpness,
)
from depthmup.own_model import Setup, SetupWarning, setup
from depthmup.reading import infer_specs
from depthmup.reading.audit import Init, InitAudit, audit_init
from depthmup.reading.forward import absorb
from depthmup.reading.gain import Gain, GainAudit, audit_gain
from depthmup.reading.graph import ForwardError
from depthmup.rules.convert import convert
from depthmup.rules.explain import Explanation, explain
from depthmup.rules.optim import clip_by_global_norm, optimizer, scale_by_eps_factors, scale_by_parameterization
from depthmup.rules.parameterization import ForwardFactors, LeafFactors, Parameterization, parameterization
from depthmup.rules.specs import (
    ParamSpec,
    SpecError,
    factors,
    forward_factors,
    forward_params,
    rescale,
    specs_from_json,
    specs_to_json,
)
from depthmup.rules.wrap_optimizer import wrap

__all__ = [
    "CoordinateReport",
    "Explanation",
    "ForwardError",
    "ForwardFactors",
    "Gain",
    "GainAudit",
    "Init",
    "InitAudit",
    "LeafFactors",
    "MaximalUpdate",
    "ParamSpec",
    "Parameterization",
    "Probe",
    "Setup",
    "SetupWarning",
    "SpecError",
    "absorb",
    "alignment",
    "audit_gain",
    "audit_init",
    "clip_by_global_norm",
    "convert",
    "coordinate_check",
    "distance",
    "empirical_ntk",
    "explain",
    "factors",
    "feature_kernels",
    "fit",
    "forward_factors",
    "forward_params",
    "infer_specs",
    "linen_dense",
    "maximal_update",
    "network_fields",
    "network_kernels",
    "optimizer",
    "parameterization",
    "probe",
    "rescale",
    "scale_by_eps_factors",
    "scale_by_parameterization",
    "setup",
    "sharpness",
    "specs_from_json",
    "specs_to_json",
    "testing",
    "theory",
    "wrap",
]
