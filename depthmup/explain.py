"""A table of what is really applied to each parameter."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from depthmup.optim import OPTIONS, families_of
from depthmup.parameterization import FamilyName, Parameterization
from depthmup.specs import ParamSpec, is_spec, starred

PyTree = Any
Schedule = Callable[[int], Any]
COLUMNS = ("parameter", "#", "role", "shape", "fan in", "fan out", "init std", "forward", "LR", "decay", "eps")


class Row(NamedTuple):
    """What is applied to a parameter, or to `number` parameters of equal blocks; None where nothing is.

    A number that differs within the parameter, of which a part is stored times a factor, is a list of numbers.
    """

    parameter: str
    number: int
    role: str
    shape: list[int]
    fan_in: int | None
    fan_out: int
    init_std: float | None
    forward: float | list[float]
    lr: float | list[float]
    decay: float | list[float]
    eps: float | list[float] | None

    @property
    def cells(self) -> tuple[str, ...]:
        """The row as text, a cell for each of COLUMNS."""
        shape = "x".join(map(str, self.shape)) or "()"
        digits = (3, 4, 4, 4, 3)
        numbers = (_shown(value, n) for value, n in zip(self[6:], digits, strict=True))
        fan_in = "-" if self.fan_in is None else str(self.fan_in)
        return (self.parameter, str(self.number), self.role, shape, fan_in, str(self.fan_out), *numbers)


@dataclasses.dataclass(frozen=True)
class Explanation:
    """What `explain` returns; it prints as a table.

    rows: `pandas.DataFrame(explanation.rows)` is the table with numbers.
    notes: lines below the table.
    """

    title: str
    rows: list[Row]
    notes: Sequence[str] = ()

    def __str__(self) -> str:
        table = [COLUMNS, *(row.cells for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        aligns = [str.ljust, str.rjust, str.ljust, str.ljust] + [str.rjust] * (len(COLUMNS) - 4)
        lines = ["  ".join(a(cell, w) for a, cell, w in zip(aligns, row, widths, strict=True)) for row in table]
        return "\n".join([self.title, *(line.rstrip() for line in lines), *self.notes])

    def to_json(self) -> str:
        """title, rows and notes as JSON."""
        content = {"title": self.title, "rows": [row._asdict() for row in self.rows], "notes": list(self.notes)}
        return json.dumps(content, indent=1)

    def difference(self, other: Explanation) -> str:
        """A line for each parameter with another cell in the other table: parameter: LR 0.001 -> 0.0005; ..."""
        lines, theirs = [self.title, f"-> {other.title}"], {row.parameter: row.cells for row in other.rows}
        for row in self.rows:
            cells = theirs.pop(row.parameter, None)
            if cells is None:
                lines.append(f"{row.parameter}: only in the first")
            elif cells != row.cells:
                of = zip(COLUMNS, row.cells, cells, strict=True)
                lines.append(f"{row.parameter}: {'; '.join(f'{name} {a} -> {b}' for name, a, b in of if a != b)}")
        lines += [f"{name}: only in the second" for name in theirs]
        return "\n".join([*lines, *([] if lines[2:] else ["all parameters alike"])])


def explain(
    p: Parameterization,
    specs: PyTree,
    optimizer: str,
    learning_rate: float | Schedule = 1.0,
    *,
    weight_decay: float | Schedule = 0.0,
    eps: float = 1e-8,
    decay: str = "uncoupled",
    step: int | None = None,
    params: PyTree | None = None,
) -> Explanation:
    """A table of role, fans, init std, forward factor, effective LR, decay and eps of every leaf.

    Leaves whose paths differ in numbers alone, as those of equal blocks do, share a row if nothing but their measured
    init std differs: "block_*/kernel". The column # counts them; its init std is the root mean square.

    Args:
      optimizer: a name of `dm.optimizer`; for another transformation one with the same LR rule.
      learning_rate: learning rate at the base shape, or a schedule of it.
      weight_decay: base decay, or a schedule of it. The column decay is the rate per unit of base LR (LR factor x decay
        factor x decay), so that uncoupled decay shows one number for all leaves.
      decay: "uncoupled" or "coupled", as in `dm.optimizer`.
      step: at which schedules are looked at; without it their columns show each leaf's factor on them.
      params: initial parameters after `rescale`, whose standard deviation the column init std then shows. Without
        params the column is computed for models whose weights start with 1/sqrt(fan_in); vectors and scalars show "-".

    The column forward is the factor that the model multiplies the leaf's output by: the branch factor in branches, the
    output factor at the readout, times the storage form's multiplier. The title has the numbers of residual blocks if
    the parameterization says how many a depth has (`blocks`).
    """
    families = jax.tree.leaves(families_of(optimizer, specs))
    lr, weight_decay = (_at(value, step) for value in (learning_rate, weight_decay))
    leaves = jax.tree.leaves(specs, is_leaf=is_spec)
    values = jax.tree.leaves(params) if params is not None else [None] * len(leaves)
    if [v.shape for v in values if v is not None] not in ([], [s.shape for s in leaves]):
        raise ValueError("params are not those of the specs: their shapes differ")
    shown = eps if "eps" in OPTIONS[optimizer] else None
    groups: dict[str, list[Row]] = {}
    for spec, value, family in zip(leaves, values, families, strict=True):
        row = _row(p, spec, family, lr, weight_decay, shown, decay)._replace(init_std=_std(p, spec, value, family))
        alike = str((starred(spec.path), *row._replace(parameter="", init_std=None)))
        groups.setdefault(alike, []).append(row)
    first: ParamSpec = leaves[0]
    forward = p.forward_factors(width=first.width, depth=first.depth)
    blocks = f"{p.count_blocks(first.depth)} blocks (base {p.count_blocks(p.base_depth)}), " if p.blocks else ""
    title = (
        f"{p.name} at width {first.width} (base {p.base_width}), depth {first.depth} (base {p.base_depth}), {blocks}"
        f"{optimizer}{'' if step is None else f' at step {step}'}: branch factor {forward.branch:.4g}, "
        f"output factor {forward.output:.4g}"
    )
    return Explanation(title, [_merged(rows) for rows in groups.values()])


def _at(value: float | Schedule, step: int | None) -> float:
    """A number, or a schedule's at the step; without a step 1, so that factors on the schedule remain."""
    if not callable(value):
        return value
    return 1.0 if step is None else float(value(step))


def _merged(rows: Sequence[Row]) -> Row:
    """The row of leaves that share it."""
    stds = [row.init_std for row in rows if row.init_std is not None]
    std = math.sqrt(np.mean(np.square(stds))) if stds else None
    return rows[0]._replace(parameter=pattern([row.parameter for row in rows]), number=len(rows), init_std=std)


def pattern(paths: Sequence[str]) -> str:
    """The paths of which only numbers differ as one, with '*' for these numbers."""
    parts = zip(*(re.split(r"(\d+)", path) for path in paths), strict=True)
    return "".join(own[0] if len(set(own)) == 1 else "*" for own in parts)


def _std(p: Parameterization, spec: ParamSpec, value: Any, family: FamilyName) -> float | None:
    """The standard deviation of a leaf: measured, or what the parameterization wants, or None where it says nothing."""
    if value is not None:
        return float(np.std(value))
    if spec.role in ("vector", "scalar"):
        return None
    return math.sqrt(np.mean(np.square(spec.factors(p, family).init)) / spec.fan_in)


def _row(
    p: Parameterization,
    spec: ParamSpec,
    family: FamilyName,
    lr: float,
    weight_decay: float,
    eps: float | None,
    decay: str,
) -> Row:
    """The row of a leaf, without its init std."""
    factors = spec.factors(p, family)
    forward_factors = p.forward_factors(width=spec.width, depth=spec.depth)
    forward = factors.multiplier
    if spec.in_branch:
        forward *= forward_factors.branch
    elif spec.role == "readout":
        forward *= forward_factors.output
    return Row(
        parameter=spec.path,
        number=1,
        role=("branch/" if spec.in_branch else "") + spec.role,
        shape=list(spec.shape),
        fan_in=spec.fan_in if spec.role not in ("vector", "scalar") else None,
        fan_out=spec.fan_out,
        init_std=None,
        forward=_numbers(forward),
        lr=_numbers(lr * factors.lr),
        decay=_numbers(factors.lr * (1.0 if decay == "coupled" else factors.decay) * weight_decay),
        eps=None if eps is None else _numbers(eps * factors.eps),
    )


def _numbers(value: Any) -> float | list[float]:
    """A number, or those of which a part of the leaf is stored times a factor."""
    numbers = [float(number) for number in np.unique(value)]
    return numbers[0] if len(numbers) == 1 else numbers


def _shown(value: float | list[float] | None, digits: int) -> str:
    """As text: "0.5", "0.5|1", or "-"."""
    if value is None:
        return "-"
    return "|".join(f"{number:.{digits}g}" for number in (value if isinstance(value, list) else [value]))
