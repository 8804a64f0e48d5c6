"""A table of what is really applied to each parameter."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from depthmup.optim import OPTIONS, families_of
from depthmup.parameterization import Parameterization
from depthmup.specs import ParamSpec, is_spec

PyTree = Any
COLUMNS = ("parameter", "role", "shape", "fan in", "fan out", "init std", "forward", "LR", "decay", "eps")


def explain(
    p: Parameterization,
    specs: PyTree,
    optimizer: str,
    learning_rate: float | Callable[[int], Any] = 1.0,
    *,
    weight_decay: float = 0.0,
    eps: float = 1e-8,
    decay: str = "uncoupled",
    params: PyTree | None = None,
) -> str:
    """A table of role, fans, init std, forward factor, effective LR, decay and eps of every leaf.

    Args:
      optimizer: a name of `dm.optimizer`; for another transformation one with the same LR rule.
      learning_rate: learning rate at the base shape; for a schedule the column LR shows each leaf's factor on it.
      weight_decay: base decay. The column decay is the rate per unit of base LR (LR factor x decay factor x decay), so
        that uncoupled decay shows one number for all leaves.
      decay: "uncoupled" or "coupled", as in `dm.optimizer`.
      params: initial parameters after `rescale`, whose standard deviation the column init std then shows. Without
        params the column is computed for models whose weights start with 1/sqrt(fan_in); vectors and scalars show "-".

    The column forward is the factor that the model multiplies the leaf's output by: the branch factor in branches, the
    output factor at the readout, times the storage form's multiplier. The title has the numbers of residual blocks if
    the parameterization says how many a depth has (`blocks`).
    """
    families = jax.tree.leaves(families_of(optimizer, specs))
    lr = 1.0 if callable(learning_rate) else learning_rate
    leaves = jax.tree.leaves(specs, is_leaf=is_spec)
    values = jax.tree.leaves(params) if params is not None else [None] * len(leaves)
    if [v.shape for v in values if v is not None] not in ([], [s.shape for s in leaves]):
        raise ValueError("params are not those of the specs: their shapes differ")
    shown = eps if "eps" in OPTIONS[optimizer] else None
    rows = [
        _row(p, s, v, family, lr, weight_decay, shown, decay)
        for s, v, family in zip(leaves, values, families, strict=True)
    ]
    first: ParamSpec = leaves[0]
    forward = p.forward_factors(width=first.width, depth=first.depth)
    widths = [max(map(len, column)) for column in zip(COLUMNS, *rows, strict=True)]
    aligns = [str.ljust] * 3 + [str.rjust] * (len(COLUMNS) - 3)
    lines = []
    for row in (COLUMNS, *rows):
        lines.append("  ".join(align(cell, w) for align, cell, w in zip(aligns, row, widths, strict=True)))
    blocks = f"{p.count_blocks(first.depth)} blocks (base {p.count_blocks(p.base_depth)}), " if p.blocks else ""
    title = (
        f"{p.name} at width {first.width} (base {p.base_width}), depth {first.depth} (base {p.base_depth}), {blocks}"
        f"{optimizer}: branch factor {forward.branch:.4g}, output factor {forward.output:.4g}"
    )
    return "\n".join([title, *(line.rstrip() for line in lines)])


def _row(
    p: Parameterization,
    spec: ParamSpec,
    value: Any,
    family: str,
    lr: float,
    weight_decay: float,
    eps: float | None,
    decay: str,
) -> tuple[str, ...]:
    factors = spec.factors(p, family)
    forward_factors = p.forward_factors(width=spec.width, depth=spec.depth)
    forward = factors.multiplier
    if spec.in_branch:
        forward *= forward_factors.branch
    elif spec.role == "readout":
        forward *= forward_factors.output
    if value is not None:
        std = f"{float(np.std(value)):.3g}"
    elif spec.role in ("vector", "scalar"):
        std = "-"
    else:
        std = f"{factors.init / math.sqrt(spec.fan_in):.3g}"
    return (
        spec.path,
        ("branch/" if spec.in_branch else "") + spec.role,
        "x".join(map(str, spec.shape)) or "()",
        str(spec.fan_in) if spec.role not in ("vector", "scalar") else "-",
        str(spec.fan_out),
        std,
        f"{forward:.4g}",
        f"{lr * factors.lr:.4g}",
        f"{factors.lr * (1.0 if decay == 'coupled' else factors.decay) * weight_decay:.4g}",
        "-" if eps is None else f"{eps * factors.eps:.3g}",
    )
