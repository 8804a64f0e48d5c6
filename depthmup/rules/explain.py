"""A table of the factors, learning rates and decays that apply to each parameter."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, get_args

import jax
import numpy as np

from depthmup.names import unknown, whole
from depthmup.rules.optim import DEFAULTS, OPTIONS, Decay, check_numbers, families_of, keeps_norm, of_each
from depthmup.rules.parameterization import FamilyName, Parameterization, check_parameterization
from depthmup.rules.specs import ParamSpec, PyTree, check_shapes, is_spec, leaves_of, starred

Schedule = Callable[[int], Any]
COLUMNS = ("parameter", "#", "role", "shape", "fan in", "fan out", "init std", "forward", "LR", "decay", "LR x decay",
           "eps")  # fmt: skip
COMPARED = ("forward", "LR", "decay", "LR x decay", "eps")  # columns that a difference shows, with their ratios


class Row(NamedTuple):
    """The numbers of one parameter, or of `number` parameters of equal blocks; None for a number that they lack.

    A field is a list of numbers where its number differs within the parameter, since a part of it is stored times a
    factor. init_scale: a number that init_std is proportional to at any width and depth. lr_width: the part of the LR
    factor that is a power of width.
    """

    parameter: str
    number: int
    role: str
    shape: list[int] | None
    fan_in: int | None
    fan_out: int | None
    init_std: float | None
    forward: float | list[float]
    lr: float | list[float]
    decay: float | list[float]
    lr_decay: float | list[float]
    eps: float | list[float] | None
    init_scale: float = 1.0
    lr_width: float = 1.0

    @property
    def cells(self) -> tuple[str, ...]:
        """The row as text, a cell for each of COLUMNS."""
        shape = "-" if self.shape is None else "x".join(map(str, self.shape)) or "()"
        digits = (3, 4, 4, 4, 4, 3)
        numbers = (_shown(value, n) for value, n in zip(self[6:12], digits, strict=True))
        fans = ("-" if fan is None else str(fan) for fan in (self.fan_in, self.fan_out))
        return (self.parameter, str(self.number), self.role, shape, *fans, *numbers)


@dataclasses.dataclass(frozen=True)
class Explanation:
    """What `explain` returns; it prints as a table.

    rows: `pandas.DataFrame(explanation.rows)` is the table with numbers.
    notes: lines below the table.
    by_role: the same with a row for each role, of all parameters that are scaled alike.
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
        """title, rows and notes as JSON.

        Returns:
          The text of an object with these three keys.
        """
        content = {"title": self.title, "rows": [row._asdict() for row in self.rows], "notes": list(self.notes)}
        return json.dumps(content, indent=1)

    def by_role(self) -> Explanation:
        """A shorter table: a row for each role and place, not for each kind of parameter.

        Returns:
          An `Explanation`.
        """
        groups: dict[str, list[Row]] = {}
        for row in self.rows:
            groups.setdefault(str((row.role, row.forward, row.lr, row.decay, row.lr_decay, row.eps)), []).append(row)
        return dataclasses.replace(self, rows=[_of_role(rows) for rows in groups.values()])

    def difference(self, other: Explanation) -> str:
        """What differs from another table, as of another parameterization or shape.

          branch/hidden (block_*/up/kernel): init std x 1/2.83; LR 0.001 -> 4.42e-05 (x 1/8 x 1/2.83); eps x 1/22.6

        An LR has two ratios, that of its power of width and that of depth. The ratio of the init std is that of the
        parameterization and does not depend on the numbers that the init has drawn.

        Args:
          other: the `Explanation` of a model with parameters of the same roles.

        Returns:
          A line for each role with other numbers in the other table, and its parameters.
        """
        second = {row.parameter: row for row in other.rows}
        changed: dict[tuple[str, str], list[str]] = {}
        unmatched: list[str] = []
        for row in self.rows:
            match = second.pop(row.parameter, None)
            if match is None:
                unmatched.append(f"{row.parameter}: only in the first")
            elif change := _change(row, match):
                changed.setdefault((row.role, change), []).append(row.parameter)
        lines = [f"{role} ({_some(names)}): {change}" for (role, change), names in changed.items()]
        lines += [*unmatched, *(f"{name}: only in the second" for name in second)]
        return "\n".join([self.title, f"-> {other.title}", *(lines or ["all parameters alike"])])


def _change(row: Row, other: Row) -> str:
    """The differences between two rows of a parameter, in words: of the role, the scale of the init, and the columns
    COMPARED."""
    changes = [f"role {row.role} -> {other.role}"] if row.role != other.role else []
    init = _ratio(row.init_scale, other.init_scale)
    changes += [f"init std {init}"] if init else []
    before, after = (dict(zip(COLUMNS, r.cells, strict=True)) for r in (row, other))
    small, large = (dict(zip(COLUMNS, r, strict=False)) for r in (row, other))
    for name in COMPARED:
        if before[name] != after[name]:
            ratio = _ratio(small[name], large[name])
            if name == "LR":
                depth_parts = [_over(r.lr, r.lr_width) for r in (row, other)]
                ratio = " ".join(filter(None, (_ratio(row.lr_width, other.lr_width), _ratio(*depth_parts))))
            changes.append(f"{name} {before[name]} -> {after[name]}" + (f" ({ratio})" if ratio else ""))
    return "; ".join(changes)


def _over(value: float | list[float], by: float) -> float | list[float]:
    return [number / by for number in value] if isinstance(value, list) else value / by


def _ratio(before: Any, after: Any) -> str:
    """The ratio of two numbers, "x 2" or "x 1/2.83"; nothing where it is 1, or not one number."""
    if not (isinstance(before, float | int) and isinstance(after, float | int) and before and after):
        return ""
    ratio = after / before
    if abs(ratio - 1) < 1e-9:
        return ""
    return f"x {ratio:.3g}" if ratio > 1 else f"x 1/{1 / ratio:.3g}"


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _of_role(rows: Sequence[Row]) -> Row:
    head = rows[0]
    common = {name: getattr(head, name) for name in ("shape", "fan_in", "fan_out", "init_std")
             if len({str(getattr(row, name)) for row in rows}) == 1}  # fmt: skip
    return head._replace(
        parameter=_some([row.parameter for row in rows]),
        number=sum(row.number for row in rows),
        **{"shape": None, "fan_in": None, "fan_out": None, "init_std": None, **common},
    )


def explain(
    p: Parameterization,
    specs: PyTree,
    optimizer: str,
    learning_rate: float | Schedule = 1.0,
    *,
    weight_decay: float | Schedule = 1.0,
    eps: float = DEFAULTS["eps"],
    decay: Decay = "uncoupled",
    mask: PyTree | Callable[[PyTree], PyTree] | None = None,
    step: int | None = None,
    params: PyTree | None = None,
    stds: Mapping[str, float | None] | None = None,
) -> Explanation:
    """A table of role, fans, init std, forward factor, effective LR, decay and eps of every leaf.

    Leaves whose paths differ in numbers alone, as those of equal blocks do, share a row if nothing but their measured
    init std differs: "block_*/kernel". The column # counts them; its init std is the root mean square.

    Args:
      optimizer: a name of `dm.optimizer`; for another transformation one with the same LR rule.
      learning_rate: learning rate at the base shape, or a schedule of it.
      weight_decay: base decay, or a schedule of it; 1 shows each leaf's factor on it, as a note says. The column decay
        is what an optimizer such as optax.adamw is given, which multiplies it by the LR: decay x the leaf's factor.
        The column LR x decay is the product of both; with uncoupled decay it is one number for all leaves.
      decay, mask: as in `dm.optimizer`; what the mask leaves out has the decay 0.
      step: at which schedules are looked at; without it their columns show each leaf's factor on them.
      params: initial parameters after `rescale`, whose standard deviation the column init std then shows. Without
        params the column is computed for models whose weights start with 1/sqrt(fan_in); vectors and scalars show "-".
      stds: {path: standard deviation after `rescale`} for the same column, where no parameters are made.

    Returns:
      An `Explanation`: a row for each kind of parameter, and notes; print it.

    The column forward is the factor that the model multiplies the leaf's output by: the branch factor in branches, the
    output factor at the readout, times the storage form's multiplier. The title has the numbers of residual blocks if
    the parameterization says how many a depth has (`blocks`).

    Raises ValueError for an unknown name or a number out of range, SpecError for parameters of other specs.
    """
    check_parameterization(p)
    leaves, families = leaves_of(specs), jax.tree.leaves(families_of(optimizer, specs))
    if decay not in get_args(Decay):
        raise unknown("decay", decay, get_args(Decay))
    if step is not None:
        whole("step", step)
    check_numbers({"learning_rate": learning_rate, "weight_decay": weight_decay, "eps": eps})
    lr, weight_decay = (_at(value, step) for value in (learning_rate, weight_decay))
    if params is not None:
        check_shapes(specs, params)
    values = jax.tree.leaves(params) if params is not None else [None] * len(leaves)
    shown_eps = eps if "eps" in OPTIONS[optimizer] else None
    shapes = jax.tree.map(lambda spec: jax.ShapeDtypeStruct(spec.shape, np.float32), specs, is_leaf=is_spec)
    decays = [True] * len(leaves) if mask is None else jax.tree.leaves(of_each(mask, shapes))
    groups: dict[str, list[Row]] = {}
    for spec, value, family, decayed in zip(leaves, values, families, decays, strict=True):
        std = stds.get(spec.path) if stds is not None else _std(p, spec, value, family)
        on_sphere = keeps_norm(optimizer) and spec.role == "hidden"  # without decay, its rate relative to the weight
        row = _row(p, spec, family, lr, weight_decay if decayed and not on_sphere else 0.0, shown_eps, decay)
        if on_sphere:
            row = row._replace(lr=_numbers(lr * spec.factors(p.in_form("mup"), family).lr))
        row = row._replace(init_std=std)
        key = str((starred(spec.path), *row._replace(parameter="", init_std=None)))
        groups.setdefault(key, []).append(row)
    width, depth = leaves[0].width, leaves[0].depth
    forward = p.in_form("mup").forward_factors(width=width, depth=depth)
    blocks = f"{p.count_blocks(depth)} blocks (base {p.count_blocks(p.base_depth)}), " if p.blocks else ""
    title = (
        f"{p.name} at width {width} (base {p.base_width}), depth {depth} (base {p.base_depth}), {blocks}"
        f"{optimizer}{'' if step is None else f' at step {step}'}: branch factor {forward.branch:.4g}, "
        f"output factor {forward.output:.4g}"
    )
    relative = (
        ["decay: factors on the base's weight decay; weight_decay= shows its values"] if weight_decay == 1 else []
    )
    return Explanation(title, [_merged(rows) for rows in groups.values()], relative)


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
    return "".join(words[0] if len(set(words)) == 1 else "*" for words in parts)


def _std(p: Parameterization, spec: ParamSpec, value: Any, family: FamilyName) -> float | None:
    """The standard deviation of a leaf: measured, or the parameterization's, or None where it has none."""
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
    decay: Decay,
) -> Row:
    """The row of a leaf, without its init std."""
    factors = spec.factors(p, family)
    at_base_depth = dataclasses.replace(spec, depth=p.base_depth).factors(p, family)
    decay_factor = 1.0 if decay == "coupled" else factors.decay
    forward_factors = p.forward_factors(width=spec.width, depth=spec.depth)
    forward = factors.multiplier
    if spec.in_branch:
        forward *= forward_factors.branch
    elif spec.role == "readout":
        forward *= forward_factors.output
    return Row(
        parameter=spec.path,
        number=1,
        role=spec.placed_role,
        shape=list(spec.shape),
        fan_in=spec.fan_in if spec.role not in ("vector", "scalar") else None,
        fan_out=spec.fan_out,
        init_std=None,
        forward=_numbers(forward),
        lr=_numbers(lr * factors.lr),
        decay=_numbers(weight_decay * decay_factor),
        lr_decay=_numbers(weight_decay * decay_factor * lr * factors.lr),
        eps=None if eps is None else _numbers(eps * factors.eps),
        init_scale=float(np.max(factors.init)) / math.sqrt(spec.fan_in),
        lr_width=float(np.max(at_base_depth.lr)),
    )


def _numbers(value: Any) -> float | list[float]:
    """The factor as a number; as several numbers where only a part of the leaf is stored times a factor."""
    numbers = [float(number) for number in np.unique(value)]
    return numbers[0] if len(numbers) == 1 else numbers


def _shown(value: float | list[float] | None, digits: int) -> str:
    """As text: "0.5", "0.5|1", or "-"."""
    if value is None:
        return "-"
    return "|".join(f"{number:.{digits}g}" for number in (value if isinstance(value, list) else [value]))
