"""Do a model's own initializers scale as every parameterization here assumes?"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import jax
import numpy as np

from depthmup.parameterization import Parameterization
from depthmup.specs import ParamSpec, PyTree, check_shapes, flatten_shapes, is_spec, parameters_only, starred

FAN_IN = ("hidden", "output", "readout")  # roles whose standard deviation must be sigma / sqrt(fan_in)
TOLERANCE = 0.05  # of log2(std) per doubling, beside the error of sampling
# The initializers run once: compiling them for a CPU with all optimizations takes longer than they run.
QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
ERRORS = 5.0  # standard errors of sampling that a slope may be off


@dataclasses.dataclass(frozen=True)
class Init:
    """The init of one parameter. width, depth: slopes of log2(standard deviation) per doubling; needed: the slope over
    width that its role needs (over depth it is 0). factor: what it must be multiplied by."""

    path: str
    role: str
    std: float
    width: float
    needed: float
    depth: float
    ok: bool
    factor: float


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
        leaves, treedef = jax.tree.flatten(parameters_only(params))
        paths, _ = flatten_shapes(params)
        scaled = [leaf * np.asarray(self.factors.get(path, 1.0), leaf.dtype)
                  for path, leaf in zip(paths, leaves, strict=True)]  # fmt: skip
        return jax.tree.unflatten(treedef, scaled)

    def __str__(self) -> str:
        off = [row for row in self.rows if not row.ok]
        if not off:
            return "the init scales with width and depth as it should"
        wide = max(len("parameter"), *(len(row.path) for row in off))
        lines = [f"{'parameter':{wide}}  {'role':9}{'init std':>10}{'std ~ width^':>14}{'needed':>9}"
                 f"{'std ~ depth^':>14}{'needed':>9}{'factor':>10}"]  # fmt: skip
        for row in off:
            lines.append(f"{row.path:{wide}}  {row.role:9}{row.std:10.4g}{row.width:14.2f}{row.needed:9.1f}"
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
    jit: bool = True,
) -> InitAudit:
    """Measure the standard deviation of each parameter at the specs' shape (w, d), at (2w, d) and at (w, 2d).

    `rescale` takes for granted that weights start with sigma / sqrt(fan_in) for a sigma that no size changes, and all
    else (read-ins, embeddings, biases, norms, parameters of fixed size) with a constant (docs/rules.md section 0). So
    the standard deviation of hidden weights, outputs and readouts must fall by sqrt(2) where width doubles, all others
    must stay, and none may change with depth. An init of .02 at every width fails, and so does one that `rescale` has
    scaled already, or that is divided by sqrt(depth) while the parameterization has a branch factor too. Parameters
    that start constant (zeros, ones) pass.

    Args:
      init_fn: (width, depth) -> parameters, as for `infer_specs`, but computed; what `rescale` is given.
      anchor: (width, depth) at which the init is right as it is; by default the base shape where hyperparameters were
        tuned, or the specs' shape if the base width is 1 (the absolute form).
      jit: whether to compile init_fn. That pays where it runs a forward pass, which compilation drops, as Linen's and
        Haiku's do. Compiling the initializers of a long list of blocks takes minutes: computed one by one, which False
        asks for, those of the first block are compiled for all.

    The factor of a parameter that is off is what it needs at the specs' shape, relative to the init at the anchor. A
    parameter of n numbers has slopes with the error 1 / (sqrt(n) ln 2), so that small ones pass with large errors.
    Raises SpecError if init_fn(w, d) is not what the specs describe.
    """
    leaves: list[ParamSpec] = jax.tree.leaves(specs, is_leaf=is_spec)
    w, d = leaves[0].width, leaves[0].depth
    start = anchor or ((p.base_width, p.base_depth) if p.base_width > 1 else (w, d))
    check_shapes(specs, jax.eval_shape(lambda: parameters_only(init_fn(w, d))))
    here, wide, deep = (_measured(init_fn, *shape, jit) for shape in ((w, d), (2 * w, d), (w, 2 * d)))
    there = here if start == (w, d) else _measured(init_fn, *start, jit)
    alike = {starred(path): at for path, at in there.items()}  # a shallower anchor lacks the last blocks
    rows = []
    for spec in leaves:
        std, count = here[spec.path]
        needed = -0.5 if spec.role in FAN_IN else 0.0
        deeper, blocks = deep.get(spec.path, here[spec.path]), 1 if spec.stack_axis is None else 2
        # Automatic names shift with depth: then the same path is another parameter there.
        slopes = (_slope(std, wide[spec.path][0]), _slope(std, deeper[0]) if deeper[1] == blocks * count else 0.0)
        at_start = there.get(spec.path, alike.get(starred(spec.path), (std, count)))[0]
        allowed = TOLERANCE + ERRORS / math.sqrt(count) / math.log(2)
        ok = abs(slopes[0] - needed) <= allowed and abs(slopes[1]) <= allowed
        factor = 1.0 if ok or not std else at_start / std * (w / start[0]) ** needed
        rows.append(Init(spec.path, spec.role, std, slopes[0], needed, slopes[1], ok, factor))
    return InitAudit(tuple(rows), start)


def _measured(init_fn: Callable[[int, int], PyTree], width: int, depth: int, jit: bool) -> dict[str, tuple[float, int]]:
    """{path: (standard deviation, number of elements)}"""
    treedef = []

    def init() -> list[jax.Array]:
        leaves, structure = jax.tree.flatten(parameters_only(init_fn(width, depth)))
        treedef.append(structure)
        return leaves

    options = QUICK if jax.default_backend() == "cpu" else None
    leaves = jax.jit(init, compiler_options=options)() if jit else init()
    params = jax.tree.unflatten(treedef[0], leaves)
    result = {}
    for path, leaf in zip(flatten_shapes(params)[0], jax.tree.leaves(params), strict=True):
        values = np.asarray(leaf)
        exact = values.astype(np.complex128 if np.iscomplexobj(values) else np.float64)
        result[path] = (float(exact.std()), values.size)
    return result


def _slope(small: float, large: float) -> float:
    """log2 of the ratio; 0 where both are constant, infinite where one is."""
    if small == large:
        return 0.0
    return math.log2(large / small) if small and large else math.copysign(math.inf, large - small)
