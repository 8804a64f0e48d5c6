"""Do a model's own initializers scale as every parameterization here assumes?"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from depthmup.names import at_least_one, short
from depthmup.reading.init_std import SAMPLE, InitProgram, Std, evaluate, traced_init
from depthmup.reading.roles import GROWING
from depthmup.rules.parameterization import Parameterization, Role, check_parameterization
from depthmup.rules.specs import (
    ParamSpec,
    PyTree,
    Shape,
    check_shapes,
    flatten_shapes,
    leaves_of,
    parameters_only,
    starred,
)

TOLERANCE = 0.05  # of log2(std) per doubling, beside the error of sampling
# Initializers that are run are run once: compiling them for a CPU with all optimizations takes longer.
QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
LARGEST = 2**24  # entries of an initializer that is run
ERRORS = 5.0  # standard errors of sampling that a slope may be off


@dataclasses.dataclass(frozen=True)
class Init:
    """The init of one parameter. std: its standard deviation at the shape of the specs. width, depth: slopes of
    log2(std) per doubling, at the anchor; needed: the slope over width that its role needs (over depth it is 0).
    factor: the number that must multiply the parameter. values: of a parameter that starts at one number, that number
    at the anchor, at twice its width and at twice its depth, which must be the same."""

    path: str
    role: Role
    std: float
    width: float
    needed: float
    depth: float
    ok: bool
    factor: float
    values: tuple[float, ...] = ()


@dataclasses.dataclass(frozen=True)
class InitAudit:
    """What `audit_init` found. factors: {path: factor} of the parameters that are off.

    correct: multiplies freshly initialized parameters by these factors, before `rescale`.
    """

    rows: tuple[Init, ...]
    anchor: tuple[int, int]

    @property
    def ok(self) -> bool:
        return all(row.ok for row in self.rows)

    @property
    def factors(self) -> dict[str, float]:
        return {row.path: row.factor for row in self.rows if not row.ok}

    def correct(self, params: PyTree) -> PyTree:
        """Parameters with the standard deviations that the parameterization assumes.

        Args:
          params: from the audited initializers, at the specs' shape.

        Returns:
          The parameters, each times its `factors`.
        """
        leaves, treedef = jax.tree.flatten(parameters_only(params))
        paths, _ = flatten_shapes(params)
        factors = self.factors
        scaled = [leaf * np.asarray(factors[path], leaf.dtype) if path in factors else leaf
                  for path, leaf in zip(paths, leaves, strict=True)]  # fmt: skip
        return jax.tree.unflatten(treedef, scaled)

    def __str__(self) -> str:
        off = [row for row in self.rows if not row.ok]
        if not off:
            return "the init scales with width and depth as it should"
        longest = max(len("parameter"), *(len(row.path) for row in off))
        lines = [f"{'parameter':{longest}}  {'role':9}{'init std':>10}{'std ~ width^':>14}{'needed':>9}"
                 f"{'std ~ depth^':>14}{'needed':>9}{'factor':>10}"]  # fmt: skip
        for row in off:
            if row.values:
                at, wide, deep = (f"{value:.4g}" for value in row.values)
                values = f"starts at {at}, at twice the width at {wide}, at twice the depth at {deep}"
                lines.append(f"{row.path:{longest}}  {row.role:9} {values}, needed one number; factor {row.factor:.4g}")
                continue
            lines.append(f"{row.path:{longest}}  {row.role:9}{row.std:10.4g}{row.width:14.2f}{row.needed:9.1f}"
                         f"{row.depth:14.2f}{0.0:9.1f}{row.factor:10.4g}")  # fmt: skip
        return "\n".join(
            [*lines, f"The factors keep the init at width {self.anchor[0]}, depth {self.anchor[1]} as it is."]
        )


def audit_init(
    p: Parameterization,
    specs: PyTree,
    init_fn: Callable[[int, int], PyTree],
    *,
    anchor: tuple[int, int] | None = None,
) -> InitAudit:
    """How the standard deviation of each parameter goes with width and depth: at the anchor (w, d), (2w, d), (w, 2d).

    `rescale` assumes that weights start with sigma / sqrt(fan_in) for a sigma that no size changes, and all
    else (read-ins, embeddings, biases, norms, parameters of fixed size) with a constant (docs/rules.md section 0). So
    the standard deviation of hidden weights, outputs and readouts must fall by sqrt(2) where width doubles, all others
    must stay, and none may change with depth. An init of .02 at every width fails, and so does one that `rescale` has
    scaled already, or that is divided by sqrt(depth) while the parameterization has a branch factor too. Parameters
    that start at one number pass if it is the same at all sizes: a temperature of 1/sqrt(head_dim), a gain of
    depth^-1/2 and a norm's scale of width^-1/2 fail.

    The program of init_fn is traced and evaluated on a sample of each parameter (`InitProgram.stds`): nothing of the
    size of the parameters is made. An initializer that is no elementwise function of random numbers, such as an
    orthogonal one, is run at the anchor, and goes on to the shape of the specs as its slopes say.

    Args:
      init_fn: (width, depth) -> parameters, as for `infer_specs`; what `rescale` is given.
      anchor: (width, depth) at which the init is right as it is; by default the base shape where hyperparameters were
        tuned, or the specs' shape if the base width is 1 (the absolute form).

    Returns:
      An `InitAudit`: the slopes of each parameter's standard deviation, and whether all are `ok`.

    The factor of a parameter that is off corrects its init at the specs' shape, relative to the init at the anchor. An
    initializer that was run has slopes with the error 1 / (sqrt(n) ln 2) of its n numbers, so that small ones pass with
    large errors. Raises SpecError if init_fn(w, d) is not what the specs describe, ValueError for an anchor that is no
    shape.
    """
    leaves = leaves_of(specs)
    if not callable(init_fn):
        raise ValueError(f"init_fn must be a function (width, depth) -> parameters, got {short(init_fn)}")
    check_shapes(specs, jax.eval_shape(lambda: parameters_only(init_fn(leaves[0].width, leaves[0].depth))))
    return Initializers(lambda width, depth: traced_init(lambda: init_fn(width, depth))).audit(p, specs, anchor)


class _Stds(NamedTuple):
    """{path: `Std`} at the anchor, at twice its width, at twice its depth, and at the specs' shape, which is so many
    times as wide and as deep as the anchor."""

    start: Mapping[str, Std]
    wide: Mapping[str, Std]
    deep: Mapping[str, Std]
    target: Mapping[str, Std]
    wider: float
    deeper: float

    def judged(self, spec: ParamSpec) -> Init:
        """The row of a parameter."""
        path = _at_anchor(spec, self.start, self.wider, self.deeper)
        std, number = self.target[spec.path].value, self.target[spec.path].constant
        power = -0.5 if "i" in GROWING[spec.role] else 0.0  # the standard deviation must be sigma / sqrt(fan_in)
        value = None if path is None else self.start[path].value
        if path is None or value is None:  # the anchor has no such parameter, or it is too large to run
            return Init(spec.path, spec.role, std or 0.0, power, power, 0.0, True, 1.0)
        entries, shape = self.start[path].entries, self.start[path].shape
        needed = power * math.log2(_growth(spec, shape, self.wide[path].shape, 2))
        blocks = 1 if spec.stack_axis is None else 2
        # Automatic names shift with depth: then the same path is another parameter there.
        comparable = path in self.deep and math.prod(self.deep[path].shape) == blocks * math.prod(shape)
        deep = self.deep if comparable else self.start
        slopes = _slope(value, self.wide[path].value), _slope(value, deep[path].value)
        numbers = [of[path].constant for of in (self.start, self.wide, deep)]
        values = tuple(one for one in numbers if one is not None)
        if len(values) == len(numbers):
            ok = bool(np.ptp(values) <= 1e-5 * np.abs(values).max())
            factor = 1.0 if ok or not number else values[0] / number
            return Init(spec.path, spec.role, 0.0, 0.0, 0.0, 0.0, ok, factor, values)
        if std is None:
            std = value * self.wider ** slopes[0] * self.deeper ** slopes[1]
        allowed = TOLERANCE + (ERRORS / math.sqrt(entries) / math.log(2) if entries else 0.0)
        ok = abs(slopes[0] - needed) <= allowed and abs(slopes[1]) <= allowed
        factor = 1.0 if ok or not std else value / std * _growth(spec, shape, spec.shape, self.wider) ** power
        return Init(spec.path, spec.role, std, slopes[0], needed, slopes[1], ok, factor)


@dataclasses.dataclass(eq=False)
class Initializers:
    """A model's initializers at any shape. program: (width, depth) -> the traced init."""

    program: Callable[[int, int], InitProgram]

    def __post_init__(self) -> None:
        self.stds = functools.cache(lambda width, depth: self.program(width, depth).stds())
        self.measured = functools.cache(self._measured)

    def audit(self, p: Parameterization, specs: PyTree, anchor: tuple[int, int] | None = None) -> InitAudit:
        """`audit_init` of the models that these initializers make; `anchor` is its argument."""
        check_parameterization(p)
        leaves = leaves_of(specs)
        width, depth = leaves[0].width, leaves[0].depth
        w, d = p.base_or(width, depth) if anchor is None else _shape(anchor)
        start, wide, deep = (self.measured(*shape) for shape in ((w, d), (2 * w, d), (w, 2 * d)))
        target = start if (w, d) == (width, depth) else self.stds(width, depth)
        stds = _Stds(start, wide, deep, target, width / w, depth / d)
        return InitAudit(tuple(map(stds.judged, leaves)), (w, d))

    def _measured(self, width: int, depth: int) -> dict[str, Std]:
        """`stds`; where the program does not tell them, one initializer of each kind of parameter is run, if it has at
        most LARGEST entries: so often that SAMPLE are drawn, where the key is an argument."""
        stds = self.stds(width, depth)
        kinds = {
            (starred(path), std.shape): path
            for path, std in stds.items()
            if std.value is None and math.prod(std.shape) <= LARGEST
        }
        if not kinds:
            return stds
        paths, closed = sorted(kinds.values()), self.program(width, depth).closed

        entries = {path: math.prod(stds[path].shape) for path in paths}
        small = [path for path in paths if 0 < entries[path] < SAMPLE and closed.jaxpr.invars]
        draws = math.ceil(SAMPLE / min((entries[path] for path in small), default=SAMPLE))

        def drawn(key: Any, paths: Sequence[str]) -> dict[str, jax.Array]:
            arrays = dict(zip(stds, evaluate(closed, *[key] * len(closed.jaxpr.invars)), strict=False))
            return {path: arrays[path] for path in paths}

        def run() -> dict[str, jax.Array]:
            one, many = jax.random.key(0), jax.random.split(jax.random.key(0), draws)
            return drawn(one, paths) | (jax.vmap(lambda key: drawn(key, small))(many) if small else {})

        values = jax.jit(run, compiler_options=QUICK if jax.default_backend() == "cpu" else None)()
        ran = {path: Std.of(np.asarray(value), value.size, stds[path].shape) for path, value in values.items()}
        measured = {kind: ran[path] for kind, path in kinds.items()}
        return {path: measured.get((starred(path), std.shape), std) for path, std in stds.items()}


def _shape(anchor: tuple[int, int]) -> tuple[int, int]:
    try:
        width, depth = anchor
    except (TypeError, ValueError):
        raise ValueError(f"anchor must be (width, depth), got {short(anchor)}") from None
    return at_least_one("the anchor's width", width), at_least_one("the anchor's depth", depth)


def _at_anchor(spec: ParamSpec, start: Mapping[str, Std], wider: float, deeper: float) -> str | None:
    """The path of a parameter at the anchor, where a shallower model lacks the last blocks: one of the same kind, whose
    axes have sizes that differ by these ratios, or by less where a part of them does not grow or sizes are rounded."""
    low, high = sorted((1, wider))

    def fits(path: str, exactly: bool) -> bool:
        shape = start[path].shape
        return len(shape) == len(spec.shape) and all(
            ratio in (1, wider, deeper) or (not exactly and low <= ratio <= high * 9 / 8)
            for ratio in (a / b for a, b in zip(spec.shape, shape, strict=True))
        )

    candidates = [path for path in start if path == spec.path]
    candidates += [path for path in start if starred(path) == starred(spec.path)]
    return next((path for exactly in (True, False) for path in candidates if fits(path, exactly)), None)


def _growth(spec: ParamSpec, narrow: Shape, wide: Shape, ratio: float) -> float:
    """The ratio of the fan-in in two shapes of a parameter: that of the widths, but for sizes that are rounded, or
    joined from a part that grows and one that does not."""
    axes = [axis for axis, size in enumerate(spec.shape) if size == spec.fan_in]
    return wide[axes[0]] / narrow[axes[0]] if len(axes) == 1 else ratio


def _slope(small: float | None, large: float | None) -> float:
    """log2 of the ratio; 0 where both are constant, infinite where one is."""
    if not small and not large:
        return 0.0
    return math.log2(large / small) if small and large else math.copysign(math.inf, (large or 0) - (small or 0))
