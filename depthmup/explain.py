"""A table of what is really applied to each parameter."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from depthmup.optim import OPTIONS, families_of
from depthmup.parameterization import Parameterization
from depthmup.specs import ParamSpec, is_spec, starred

PyTree = Any
COLUMNS = ("parameter", "#", "role", "shape", "fan in", "fan out", "init std", "forward", "LR", "decay", "eps")


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

    Leaves whose paths differ in numbers alone, as those of equal blocks do, share a row if nothing but their measured
    init std differs: "block_*/kernel". The column # counts them; its init std is the root mean square.

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
    groups: dict[tuple[str, ...], list[tuple[str, float]]] = {}
    for spec, value, family in zip(leaves, values, families, strict=True):
        cells = _row(p, spec, family, lr, weight_decay, shown, decay)
        std = spec.path, _std(p, spec, value, family)
        groups.setdefault((starred(spec.path), *cells), []).append(std)
    rows = [_shown(cells, members) for (_, *cells), members in groups.items()]
    first: ParamSpec = leaves[0]
    forward = p.forward_factors(width=first.width, depth=first.depth)
    widths = [max(map(len, column)) for column in zip(COLUMNS, *rows, strict=True)]
    aligns = [str.ljust, str.rjust, str.ljust, str.ljust] + [str.rjust] * (len(COLUMNS) - 4)
    lines = []
    for row in (COLUMNS, *rows):
        lines.append("  ".join(align(cell, w) for align, cell, w in zip(aligns, row, widths, strict=True)))
    blocks = f"{p.count_blocks(first.depth)} blocks (base {p.count_blocks(p.base_depth)}), " if p.blocks else ""
    title = (
        f"{p.name} at width {first.width} (base {p.base_width}), depth {first.depth} (base {p.base_depth}), {blocks}"
        f"{optimizer}: branch factor {forward.branch:.4g}, output factor {forward.output:.4g}"
    )
    return "\n".join([title, *(line.rstrip() for line in lines)])


def _shown(cells: Sequence[str], members: Sequence[tuple[str, float]]) -> tuple[str, ...]:
    """The row of leaves that share it."""
    paths, stds = zip(*members, strict=True)
    std = math.sqrt(np.mean(np.square(stds)))
    return (pattern(paths), str(len(members)), *cells[:4], "-" if math.isnan(std) else f"{std:.3g}", *cells[4:])


def pattern(paths: Sequence[str]) -> str:
    """The paths of which only numbers differ as one, with '*' for these numbers."""
    parts = zip(*(re.split(r"(\d+)", path) for path in paths), strict=True)
    return "".join(own[0] if len(set(own)) == 1 else "*" for own in parts)


def _std(p: Parameterization, spec: ParamSpec, value: Any, family: str) -> float:
    """The standard deviation of a leaf: measured, or what the parameterization wants, or NaN where it says nothing."""
    if value is not None:
        return float(np.std(value))
    if spec.role in ("vector", "scalar"):
        return math.nan
    return math.sqrt(np.mean(np.square(spec.factors(p, family).init)) / spec.fan_in)


def _row(
    p: Parameterization, spec: ParamSpec, family: str, lr: float, weight_decay: float, eps: float | None, decay: str
) -> tuple[str, ...]:
    """All cells of a leaf but its path, its number and its init std."""
    factors = spec.factors(p, family)
    forward_factors = p.forward_factors(width=spec.width, depth=spec.depth)
    forward = factors.multiplier
    if spec.in_branch:
        forward *= forward_factors.branch
    elif spec.role == "readout":
        forward *= forward_factors.output
    return (
        ("branch/" if spec.in_branch else "") + spec.role,
        "x".join(map(str, spec.shape)) or "()",
        str(spec.fan_in) if spec.role not in ("vector", "scalar") else "-",
        str(spec.fan_out),
        _numbers(forward),
        _numbers(lr * factors.lr),
        _numbers(factors.lr * (1.0 if decay == "coupled" else factors.decay) * weight_decay),
        "-" if eps is None else _numbers(eps * factors.eps, 3),
    )


def _numbers(value: Any, digits: int = 4) -> str:
    """A number; of a leaf of which only a part is stored times a factor, both numbers: "0.5|1"."""
    return "|".join(f"{number:.{digits}g}" for number in np.unique(value))
