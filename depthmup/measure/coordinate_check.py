"""Coordinate check: does one training step move the features by an amount that depends on width or depth?"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from depthmup.optim import family_of, from_factors
from depthmup.parameterization import ForwardFactors, LeafFactors, Parameterization, at_least_one
from depthmup.specs import factors as leaf_factors
from depthmup.specs import group as group_of
from depthmup.specs import is_spec

PyTree = Any
ALL = "all"


class Probe(NamedTuple):
    """A model at one shape, ready to be trained a few steps.

    init: hyper -> state.   step: (state, batch, hyper) -> (state, anything).
    features: (state, batch, hyper) -> {quantity: array}; "hidden" (..., width) and "logits" are what verdicts look at.
    hyper: (group, seed) -> hyper, any pytree of arrays, under which only that group of parameters is trained.
    groups: groups of parameters, trained one at a time; "all" is added.
    batch: what each step trains on and the features are taken from.
    in_turn: one program per step instead of one for all (for convolutions on a CPU, docs/design.md section 3).

    Give the same `init`, `step` and `features` for the same shape, and several checks share one compiled program.
    """

    init: Callable[..., Any]
    step: Callable[..., Any]
    features: Callable[..., Mapping[str, jax.Array]]
    hyper: Callable[[str, int], PyTree]
    groups: tuple[str, ...]
    batch: PyTree
    in_turn: bool = False


class Slope(NamedTuple):
    """Slope of log2 RMS change of a quantity over log2 of the axis, with its 95% interval over seeds.

    sizes: along the axis; changes: (sizes, seeds) RMS changes since initialization. judged: does the verdict use it?
    """

    axis: str
    group: str
    quantity: str
    step: int
    slope: float
    low: float
    high: float
    judged: bool
    ok: bool
    sizes: tuple[int, ...]
    changes: np.ndarray


class CoordinateReport(NamedTuple):
    """`ok`, `str(report)` (a table) and `plot(path)`; `slopes` holds everything."""

    title: str
    slopes: list[Slope]
    tolerance: float

    @property
    def ok(self) -> bool:
        """Are all judged slopes within the tolerance?"""
        return all(s.ok for s in self.slopes if s.judged)

    def __str__(self) -> str:
        lines = [f"{'axis':6} {'trained':22} {'quantity':9} {'step':>4}  {'slope':>6}  95% interval"]
        for s in self.slopes:
            verdict = ("ok" if s.ok else "NOT OK") if s.judged else ""
            interval = f"[{s.low:+.2f}, {s.high:+.2f}]"
            lines.append(
                f"{s.axis:6} {s.group:22} {s.quantity:9} {s.step:4d}  {s.slope:+6.2f}  {interval:15} {verdict}"
            )
        summary = f"{self.title}: {'ok' if self.ok else 'NOT OK'} (judged slopes within {self.tolerance} of 0)"
        return "\n".join([*lines, summary])

    def plot(self, path: str | Path) -> None:
        """Draw RMS changes against width and depth, one line per judged group, to a PNG."""
        from depthmup.measure.plot import plot_coordinates

        plot_coordinates(self, path)


def probe(
    p: Parameterization,
    specs: PyTree,
    *,
    init: Callable[[jax.Array], PyTree],
    loss: Callable[[PyTree, PyTree, ForwardFactors], jax.Array],
    features: Callable[[PyTree, PyTree, ForwardFactors], Mapping[str, jax.Array]],
    optimizer: str,
    learning_rate: float,
    batch: PyTree,
    head_dim: float | None = None,
    **options: Any,
) -> Probe:
    """A `Probe` of your own model from plain functions, trained by `dm.optimizer`.

    Args:
      init: PRNG key -> parameters with the standard fan-in init (rescaled here).
      loss: (parameters, batch, forward factors) -> scalar.
      features: (parameters, batch, forward factors) -> {"hidden": (..., width), "logits": ...}.
      head_dim: of the attention at this width, for its factor.
      **options: of `dm.optimizer`, such as eps.
    """
    first = jax.tree.leaves(specs, is_leaf=is_spec)[0]
    forward = p.forward_factors(width=first.width, depth=first.depth, head_dim=head_dim)
    factors = leaf_factors(p, specs, family_of(optimizer))

    def transformation(hyper: Any) -> optax.GradientTransformation:
        return from_factors(hyper["factors"], optimizer, learning_rate, **options)

    def weights(stored: PyTree) -> PyTree:
        return jax.tree.map(lambda w, s: w * s, stored, factors.multiplier)

    def start(hyper: Any) -> Any:
        params = jax.tree.map(lambda w, s: w * s, init(jax.random.key(hyper["seed"])), factors.init)
        return params, transformation(hyper).init(params)

    def step(state: Any, batch: PyTree, hyper: Any) -> Any:
        params, opt_state = state
        grads = jax.grad(lambda stored: loss(weights(stored), batch, forward))(params)
        updates, opt_state = transformation(hyper).update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), None

    return Probe(
        start,
        step,
        lambda state, batch, hyper: features(weights(state[0]), batch, forward),
        lambda group, seed: {"seed": np.uint32(seed), "factors": train_only(factors, specs, group)},
        groups_of(specs),
        batch,
    )


def groups_of(specs: PyTree) -> tuple[str, ...]:
    """Names of the groups of parameters that scale alike, in tree order."""
    return tuple(dict.fromkeys(group_of(s) for s in jax.tree.leaves(specs, is_leaf=is_spec)))


def train_only(factors: LeafFactors, specs: PyTree, group: str) -> LeafFactors:
    """`factors` with the LR factor of every leaf outside `group` set to 0 ("all": unchanged)."""
    masked = jax.tree.map(lambda lr, s: lr * float(group in (ALL, group_of(s))), factors.lr, specs)
    return jax.tree.map(np.float32, factors._replace(lr=masked))


def coordinate_check(
    probe_at: Callable[[int, int], Probe],
    *,
    widths: Sequence[int] = (),
    depths: Sequence[int] = (),
    width: int = 256,
    depth: int = 8,
    steps: Sequence[int] = (1, 10),
    seeds: int = 4,
    tolerance: float = 0.1,
    title: str = "coordinate check",
    progress: Callable[[str], None] = lambda message: None,
) -> CoordinateReport:
    """Train each group of parameters alone, and all together, for a few steps; slopes of the features' RMS change.

    Args:
      probe_at: (width, depth) -> Probe; see `probe`. Take small learning rates: saturation hides slopes.
      widths: checked at `depth`; depths: checked at `width`. An axis needs at least two values.
      steps: numbers of steps after which the change is measured.
      tolerance: a judged slope beyond this is not ok.

    What is judged: the change of "hidden", except that of "logits" for the readout and scalars, and along depth for a
    branch norm's scale (it acts on the features mainly through random weights, whose sum over blocks has a slope of its
    own). A judged group that did not move is not ok: behind a readout that starts at 0 nothing moves in the first step,
    so take steps=(2, 10) there. The other slopes are shown: those of logits along width are below 0 while 1/width noise
    still adds to them. Source: docs/rules.md section 0, last paragraph.

    Raises ValueError if no axis has two values, a value is below 1, or "hidden" or "logits" is missing.
    """
    axes = {"width": [(w, depth) for w in widths], "depth": [(width, d) for d in depths]}
    axes = {axis: shapes for axis, shapes in axes.items() if len(set(shapes)) > 1}
    if not axes or not steps:
        raise ValueError("a coordinate check needs at least two widths or two depths, and a number of steps")
    for name, values in (
        ("width", [*widths, width]),
        ("depth", [*depths, depth]),
        ("seeds", [seeds]),
        ("steps", steps),
    ):
        for value in values:
            at_least_one(name, value)
    changes: dict[tuple[int, int], dict[tuple[str, str], np.ndarray]] = {}
    for shape in sorted({s for shapes in axes.values() for s in shapes}):
        progress(f"width {shape[0]} depth {shape[1]}")
        changes[shape] = _changes(probe_at(*shape), max(steps), seeds)
    slopes = []
    for axis, shapes in axes.items():
        sizes = tuple(s[0] if axis == "width" else s[1] for s in shapes)
        for group, quantity in dict.fromkeys(key for s in shapes for key in changes[s]):
            for step in steps:
                missing = [s for s in shapes if (group, quantity) not in changes[s]]
                if missing:
                    raise ValueError(f"no {quantity!r} of the group {group!r} at (width, depth) = {missing[0]}")
                table = np.stack([changes[s][group, quantity][:, step - 1] for s in shapes])  # (sizes, seeds)
                slope = _slope(axis, group, quantity, step, sizes, table, tolerance)
                if slope.judged or table.any():  # the readout alone does not move the features
                    slopes.append(slope)
    return CoordinateReport(title, slopes, tolerance)


def _changes(probe: Probe, steps: int, seeds: int) -> dict[tuple[str, str], np.ndarray]:
    """(group, quantity) -> (seeds, steps) RMS changes since initialization."""
    names = [(group, seed) for group in (*probe.groups, ALL) for seed in range(seeds)]
    hypers = [probe.hyper(*name) for name in names]
    if probe.in_turn:
        rms = _in_turn(probe, hypers, steps)
    else:
        stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *hypers)
        rms = _compiled(probe.init, probe.step, probe.features, steps)(stacked, probe.batch)
    return {
        (group, quantity): np.asarray(values)[[i for i, name in enumerate(names) if name[0] == group]]
        for group in (*probe.groups, ALL)
        for quantity, values in rms.items()
    }


@functools.lru_cache(maxsize=64)
def _programs(init: Callable, step: Callable, features: Callable) -> tuple[Callable, Callable]:
    """start: (hyper, batch) -> state, features; advance: (state, features at init, hyper, batch) -> state, changes."""

    def start(hyper: PyTree, batch: PyTree) -> tuple[Any, Mapping[str, jax.Array]]:
        state = init(hyper)
        before = features(state, batch, hyper)
        if not {"hidden", "logits"} <= before.keys():
            raise ValueError(f"features must have 'hidden' and 'logits', they have {sorted(before)}")
        return state, before

    def advance(state: Any, before: Any, hyper: PyTree, batch: PyTree) -> tuple[Any, dict[str, jax.Array]]:
        state, _ = step(state, batch, hyper)
        after = features(state, batch, hyper)
        return state, {k: jnp.sqrt(jnp.mean((after[k] - before[k]) ** 2)) for k in before}

    return jax.jit(start), jax.jit(advance)


@functools.lru_cache(maxsize=64)
def _compiled(init: Callable, step: Callable, features: Callable, steps: int) -> Callable:
    """All trainings as one program."""
    start, advance = _programs(init, step, features)

    def run(hyper: PyTree, batch: PyTree) -> dict[str, jax.Array]:
        state, before = start(hyper, batch)
        return jax.lax.scan(lambda state, _: advance(state, before, hyper, batch), state, length=steps)[1]

    return jax.jit(lambda hypers, batch: jax.lax.map(lambda hyper: run(hyper, batch), hypers))


def _in_turn(probe: Probe, hypers: Sequence[PyTree], steps: int) -> dict[str, np.ndarray]:
    """The same, one training after another and step by step."""
    start, advance = _programs(probe.init, probe.step, probe.features)
    trainings = []
    for hyper in jax.device_put(hypers):
        state, before = start(hyper, probe.batch)
        changes = []
        for _ in range(steps):
            state, change = advance(state, before, hyper, probe.batch)
            changes.append(jax.device_get(change))
        trainings.append(jax.tree.map(lambda *leaves: np.stack(leaves), *changes))
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trainings)


def _slope(
    axis: str, group: str, quantity: str, step: int, sizes: tuple[int, ...], changes: np.ndarray, tolerance: float
) -> Slope:
    from scipy import stats  # here, so that `import depthmup` stays light

    x = np.log2(sizes) - np.mean(np.log2(sizes))
    with np.errstate(divide="ignore", invalid="ignore"):
        per_seed = x @ np.log2(changes) / (x @ x)  # NaN or infinite where a change is 0
    slope, seeds = float(per_seed.mean()), len(per_seed)
    half = math.inf
    if seeds > 1:
        half = float(stats.t.ppf(0.975, seeds - 1) * per_seed.std(ddof=1) / math.sqrt(seeds))
    by_logits = group.startswith(("readout", "scalar")) or (group == "branch/vector scale" and axis == "depth")
    judged = quantity == ("logits" if by_logits else "hidden")
    ok = bool(abs(slope) <= tolerance)  # NaN (nothing moved, or a run blew up) is not ok
    return Slope(axis, group, quantity, step, slope, slope - half, slope + half, judged, ok, sizes, changes)
