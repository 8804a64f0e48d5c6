"""`wrap`: any complete Optax transformation under a parameterization.

The LR rule of a leaf depends on how its update depends on its gradient and weight (docs/rules.md section 0).
`probe_updates` measures that by running the transformation on small random weights and gradients.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
import math
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import optax

from depthmup.names import unknown
from depthmup.rules.optim import around_offsets, in_form_mup, of_parameters, scaled_leaves
from depthmup.rules.parameterization import FAMILIES, FamilyName, Parameterization
from depthmup.rules.specs import ParamSpec, PyTree, is_spec, leaves_of
from depthmup.rules.specs import factors as leaf_factors

Leaves = list[np.ndarray]
LARGEST = 32  # axes of the probed weights are at most so long
STEPS = (16, 256)  # the steps of a probe, and the steps where a leaf has not moved by then
WEIGHT = 2.0**8  # root mean square of the probed weights: large, so that weight decay shows; and 1
MATRICES = ("input", "hidden", "output", "readout")  # roles of parameters with fans that grow
SMALL = 2.0**-20  # a gradient so small that nothing clips it
NEAR = 0.05  # relative distance up to which two updates are the same


class Update(NamedTuple):
    """How a transformation's update of one leaf depends on the leaf's gradient and weight.

    family: one of FAMILIES, or None with the reason in `why`.
    decays: whether the weight acts on the update only by adding a multiple of itself, which may be 0.
    scale_free: whether the update depends on the size of all gradients together only by the family's power; False where
      gradients are clipped.
    size: (fan_in, fan_out) -> the factor of the matrix' shape that the update has beyond its family's.
    turns: the axes along which the update turns with the gradient.
    """

    family: FamilyName | None
    why: str = ""
    decays: bool = False
    scale_free: bool = False
    size: Callable[[float, float], float] = lambda fan_in, fan_out: 1.0
    turns: frozenset[int] = frozenset()


def _powers(in_power: float, out_power: float) -> Callable[[float, float], float]:
    return lambda fan_in, fan_out: fan_in**in_power * fan_out**out_power


# The factors of a matrix' shape that updates may have: of Muon's versions (in a layout (out, in) Optax takes one fan
# for the other), of the norms of Scion, and of updates that are normalised along one axis only.
HALVES = (0.0, -0.5, 0.5, -1.0, 1.0)
SIZES: tuple[Callable[[float, float], float], ...] = (
    Update._field_defaults["size"],
    lambda fan_in, fan_out: max(1, fan_out / fan_in) ** 0.5,
    lambda fan_in, fan_out: max(1, fan_in / fan_out) ** 0.5,
    lambda fan_in, fan_out: max(fan_in, fan_out) ** 0.5,
    *(_powers(in_power, out_power) for in_power in HALVES for out_power in HALVES),
)
FANS = ((8, 8), (8, 16), (16, 8), (16, 16))  # SIZES differ from each other at these fans


class Rules(NamedTuple):
    """A transformation, and for each path of a parameter its family and the probed update."""

    tx: optax.GradientTransformation
    families: dict[str, FamilyName]
    updates: dict[str, Update]


def wrap(
    p: Parameterization, specs: PyTree, tx: optax.GradientTransformation, *, family: PyTree | None = None
) -> optax.GradientTransformationExtraArgs:
    """`tx` with the LR, eps and weight decay that `p` gives to every leaf.

      tx = optax.chain(dm.clip_by_global_norm(p, specs, 1.0), dm.wrap(p, specs, optax.lion(schedule, weight_decay=0.1)))

    Args:
      tx: a complete transformation, its learning rate inside, such as optax.lion(1e-3), or one without a learning
        rate, to be chained with it; with schedules, multi_transform, masked, MultiSteps, inject_hyperparams.
      family: overrides the probed family: a name of the families of docs/rules.md section 0 ("sgd", "adam", "muon",
        "adafactor", "shampoo2") for all leaves, a tree of names with the structure of `specs` or a prefix, or {glob of
        a path: name}. Where it differs from the probed one, a warning names the leaf, and eps and decay are not
        corrected.

    Returns:
      An Optax transformation of gradients and parameters in the structure of `specs`.

    `tx` runs on small random trees of the structure of `specs`, which tells the family of each leaf's update. Then
    - each update is multiplied by the leaf's LR factor;
    - where the weights act through decay alone, `tx` sees them times the decay factor, so that learning rate x decay
      is that of `dm.optimizer`;
    - where the size of gradients does not matter, `tx` sees them over the eps factor, unless it clips them first:
      then a warning says to put clipping in front;
    - `tx` sees weights and gradients of the form "mup", so that training is the same in every storage form.

    The LR factors allow for an update's own factor of a matrix' shape: Muon's sqrt(max(1, fan_out / fan_in)) and
    .2 sqrt(max(fan_in, fan_out)), the norms of Scion. Where an update is normalised along one axis only
    (a column's norm, SOAP with one basis), eps has no factor. Call `wrap` outside of jit if `tx` holds traced numbers.

    Raises ValueError for a leaf whose family cannot be told (Adagrad, an elementwise clip, a frozen leaf, Muon times
    the weight's norm), for weight decay inside an Adafactor that multiplies updates by the weight's size, for a step
    that ends on the sphere of the weight's norm, for a transformation that fails on small trees, and for a
    parameterization that is not defined for a family.
    """
    return wrapped(p, specs, rules_of(specs, tx, family))


def rules_of(specs: PyTree, tx: optax.GradientTransformation, family: PyTree | None = None) -> Rules:
    """The families and updates that `wrap` uses; arguments and errors are those of `wrap`."""
    if isinstance(tx, optax.MultiSteps):
        tx = tx.gradient_transformation()
    leaves = leaves_of(specs)
    names = _family_names(specs, family)
    updates = _probed(specs, tx, names)
    families = [_resolved(*row) for row in zip(leaves, names, updates, strict=True)]
    _warn_of_contradictions(leaves, names, updates)
    updates = [u if u.family == name else Update(None) for u, name in zip(updates, families, strict=True)]
    paths = [spec.path for spec in leaves]
    return Rules(tx, dict(zip(paths, families, strict=True)), dict(zip(paths, updates, strict=True)))


def wrapped(
    p: Parameterization, specs: PyTree, rules: Rules, some: bool = False
) -> optax.GradientTransformationExtraArgs:
    """`wrap` with the rules that `rules_of` returned. some: of `of_parameters`."""
    return of_parameters(specs, lambda specs: _with_factors(p, specs, rules), some)


def _with_factors(p: Parameterization, specs: PyTree, rules: Rules) -> optax.GradientTransformation:
    leaves, treedef = jax.tree.flatten(specs, is_leaf=is_spec)
    tx = rules.tx
    families, updates = [rules.families[s.path] for s in leaves], [rules.updates[s.path] for s in leaves]
    mup = p.in_form("mup")
    factors = leaf_factors(mup, specs, jax.tree.unflatten(treedef, families))
    lr, eps, decay = map(jax.tree.leaves, factors[2:])
    eps = _eps(leaves, families, updates, eps)
    if p.table.width:
        lr = [f * _size_at_base(mup, s, u) for f, s, u in zip(lr, leaves, updates, strict=True)]
    # An update of degree d in the gradient is eps^-d times as large for gradients over eps.
    lr = [f * e ** FAMILIES[name].gradient for f, e, name in zip(lr, eps, families, strict=True)]
    decays = [u.decays and not FAMILIES[name].weight for u, name in zip(updates, families, strict=True)]
    decay = [f if is_decayed else 1.0 for f, is_decayed in zip(decay, decays, strict=True)]
    scale, shrink, weigh = (jax.tree.unflatten(treedef, column) for column in (lr, [1 / e for e in eps], decay))
    inner = optax.with_extra_args_support(tx)

    def init(params: PyTree) -> PyTree:
        try:
            return inner.init(params)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"dm.wrap: the transformation fails on these parameters ({type(error).__name__}: "
                f"{str(error).partition(chr(10))[0]}): does its mask have their structure, such as {{'params': ...}}?"
            ) from error

    def update(updates: PyTree, state: PyTree, params: PyTree | None = None, **extra: Any) -> tuple[PyTree, PyTree]:
        weights = None if params is None else scaled_leaves(params, weigh)
        updates, state = inner.update(scaled_leaves(updates, shrink), state, weights, **extra)
        return scaled_leaves(updates, scale), state

    of_weights = optax.GradientTransformationExtraArgs(init, update)
    return around_offsets(p, specs, in_form_mup(p, specs, of_weights))


def _size_at_base(p: Parameterization, spec: ParamSpec, update: Update) -> float:
    """The update's own factor at the base width, over the one at this width."""
    m = p.ratios(spec.width, spec.depth)[0]
    grows = (spec.role in ("hidden", "output", "readout"), spec.role in ("hidden", "input", "vector"))
    fans = (spec.fan_in, spec.fan_out)
    base = [fan / m if yes else fan for fan, yes in zip(fans, grows, strict=True)]
    return update.size(*base) / update.size(*fans)


def _family_names(specs: PyTree, family: PyTree | None) -> list[FamilyName | None]:
    """The family that the user gives to each leaf, or None."""
    leaves = leaves_of(specs)
    if family is None:
        return [None] * len(leaves)
    try:
        tree = jax.tree.map(lambda name, subtree: jax.tree.map(lambda _: name, subtree, is_leaf=is_spec), family, specs)
        names = jax.tree.leaves(tree)
    except ValueError:
        names = _by_glob(leaves, family)
    for name in names:
        if name is not None and name not in FAMILIES:
            raise unknown("optimizer family", name, FAMILIES)
    return names


def _by_glob(leaves: Sequence[ParamSpec], family: PyTree) -> list[FamilyName | None]:
    if not isinstance(family, Mapping) or not all(isinstance(name, str) for name in family.values()):
        raise ValueError(
            "family must be a name, a tree of names with the structure of the specs or a prefix, or {glob of a path: "
            "name}"
        )
    for glob in family:
        if not any(fnmatch.fnmatchcase(spec.path, glob) for spec in leaves):
            raise ValueError(f"family: no parameter matches {glob!r}; the first one is {leaves[0].path!r}")
    return [next((name for glob, name in family.items() if fnmatch.fnmatchcase(s.path, glob)), None) for s in leaves]


def _probed(specs: PyTree, tx: optax.GradientTransformation, names: Sequence[FamilyName | None]) -> list[Update]:
    try:
        return probe_updates(specs, tx)
    except Exception as error:
        with contextlib.suppress(Exception):  # its mask may be one of Linen's variables
            return probe_updates({"params": specs}, tx)
        if all(name is not None for name in names):
            return [Update(None)] * len(names)
        raise ValueError(
            f"the transformation fails on small trees of the structure of the specs ({type(error).__name__}: "
            f"{str(error).splitlines()[0]}), so that nothing tells what its updates do: pass family=, one of "
            f"{', '.join(FAMILIES)} (if it holds traced numbers, call dm.wrap outside of the jitted function)"
        ) from error


def _resolved(spec: ParamSpec, name: FamilyName | None, update: Update) -> FamilyName:
    if name is not None:
        return name
    way_out = f"pass family={{{spec.path!r}: one of {', '.join(FAMILIES)}}} if you know its rule"
    if update.family is None:
        raise ValueError(f"dm.wrap: nothing tells the rule of {spec.path}: {update.why}; {way_out}")
    if _of_matrices(update.family) and spec.role == "vector" and spec.stack_axis is not None:
        raise ValueError(
            f"dm.wrap: {spec.path} {spec.shape} holds a vector of each block, one matrix for this update; let Adam "
            "train all but the hidden weights (muon_weight_dimension_numbers=), as dm.optimizer(p, specs, 'muon', lr) "
            f"does; {way_out}"
        )
    return update.family


def _of_matrices(family: FamilyName | None) -> bool:
    """Whether the family's update is one of whole matrices and their singular values."""
    return family is not None and FAMILIES[family].eps == "norm"


def _may_have_size(family: FamilyName | None) -> bool:
    """Whether the optimizer sets the update's size, so that it may depend on the shape of the matrix."""
    return family is not None and not FAMILIES[family].linear and not FAMILIES[family].weight


def _warn_of_contradictions(
    leaves: Sequence[ParamSpec], names: Sequence[FamilyName | None], updates: Sequence[Update]
) -> None:
    """One warning for all leaves that are given one family and have the update of another."""
    paths: dict[tuple[FamilyName | None, FamilyName | None], list[str]] = {}
    for spec, name, update in zip(leaves, names, updates, strict=True):
        if name is not None and update.family not in (None, name):
            paths.setdefault((name, update.family), []).append(spec.path)
    for (name, probed_name), matching in paths.items():
        more = f" (and {len(matching) - 1} more)" if len(matching) > 1 else ""
        warnings.warn(
            f"dm.wrap: {matching[0]}{more} has family={name!r}, but its update is that of {probed_name!r}", stacklevel=4
        )


def _eps(
    leaves: Sequence[ParamSpec], families: Sequence[FamilyName], updates: Sequence[Update], eps: list[Any]
) -> list[Any]:
    """The number by which each leaf's gradient is divided."""
    pairs = [(s, u) for s, u in zip(leaves, updates, strict=True)]
    nonlinear = [u.family is not None and not FAMILIES[u.family].linear for u in updates]
    corrected = [ok and not _one_sided(s, u) for (s, u), ok in zip(pairs, nonlinear, strict=True)]
    eps = [e if ok else 1.0 for e, ok in zip(eps, corrected, strict=True)]
    clipped = [s.path for (s, u), ok in zip(pairs, nonlinear, strict=True) if ok and not u.scale_free]
    if not clipped:
        return eps
    if any(np.any(abs(np.asarray(e) - 1) > 1e-9) for e in eps):
        warnings.warn(
            f"dm.wrap: the size of gradients acts on the update of {clipped[0]}, as if the transformation clipped "
            "them: eps has no factors; put clipping in front, "
            "optax.chain(m.clip_by_global_norm(c), m.wrap(...)), or dm.clip_by_global_norm and dm.wrap",
            stacklevel=4,
        )
    return [1.0] * len(eps)


def probe_updates(specs: PyTree, tx: optax.GradientTransformation) -> list[Update]:
    """The update of `tx` for each leaf of the specs, in tree order. Raises whatever `tx` raises on small trees."""
    with jax.ensure_compile_time_eval(), jax.default_matmul_precision("highest"):
        return _Probe(specs, tx).updates()


@dataclasses.dataclass
class _Probe:
    """Runs of a transformation on constant weights, with the gradients of a function of the step."""

    specs: PyTree
    tx: optax.GradientTransformation

    def __post_init__(self) -> None:
        self.leaves, self.treedef = jax.tree.flatten(self.specs, is_leaf=is_spec)
        self.shapes = [_probed_shape(spec) for spec in self.leaves]
        rng = np.random.default_rng(0)
        self.weights = [WEIGHT * _spread(rng, shape) for shape in self.shapes]
        self.gradient, self.other = ([_spread(rng, shape) for shape in self.shapes] for _ in range(2))
        update = optax.with_extra_args_support(self.tx).update
        self.step = jax.jit(lambda grads, state, params: update(grads, state, params))

    def run(
        self, gradient: Callable[[int], Leaves], weights: Leaves, start: Leaves | None = None
    ) -> Iterator[tuple[int, Leaves]]:
        """(step, updates) of the first 256 steps. start: the weights that `tx.init` is given, if others."""
        params = jax.tree.unflatten(self.treedef, weights)
        state = self.tx.init(params if start is None else jax.tree.unflatten(self.treedef, start))
        for step in range(STEPS[-1]):
            grads = jax.tree.unflatten(self.treedef, gradient(step))
            updates, state = self.step(grads, state, params)
            yield step, jax.tree.leaves(updates)

    def at(self, steps: Sequence[int], gradient: Callable[[int], Leaves], weights: Leaves, **start: Any) -> Leaves:
        """The update of leaf i after the step steps[i]."""
        result: dict[int, np.ndarray] = {}
        for step, updates in self.run(gradient, weights, **start):
            result |= {i: np.asarray(updates[i], np.float64) for i, last_step in enumerate(steps) if last_step == step}
            if step == max(steps):
                break
        return [result[i] for i in range(len(steps))]

    def last_moves(self) -> list[int]:
        """For each leaf the last step at which it moved, of the first 16 steps or else of the first 256; or -1."""
        last = [-1] * len(self.leaves)
        for step, updates in self.run(lambda _: self.gradient, self.weights):
            early = step < STEPS[0]
            last = [step if (early or b < 0) and np.asarray(u).any() else b for u, b in zip(updates, last, strict=True)]
            if step + 1 >= STEPS[0] and min(last) >= 0:
                break
        return last

    def updates(self) -> list[Update]:
        g, h, w = self.gradient, self.other, self.weights
        last = self.last_moves()
        steps = [max(step, 0) for step in last]

        def constant(gradient: Leaves, weights: Leaves, **start: Any) -> Leaves:
            gradient, weights = jax.device_put((gradient, weights))
            return self.at(steps, lambda _: gradient, weights, **start)

        def times(leaves: Leaves, by: float) -> Leaves:
            return [by * leaf for leaf in leaves]

        plus, minus = constant(g, w), constant(times(g, -1), w)
        # Updates are odd in the gradient: what is even is weight decay.
        even = [(a + b) / 2 for a, b in zip(plus, minus, strict=True)]
        odd = [(a - b) / 2 for a, b in zip(plus, minus, strict=True)]
        doubled = [u - e for u, e in zip(constant(times(g, 2), w), even, strict=True)]
        small = [u - e for u, e in zip(constant(times(g, SMALL), w), even, strict=True)]
        light = constant(g, times(w, 1 / WEIGHT))
        moved = constant(g, times(w, 1 / WEIGHT), start=w)
        aside = [u + v for u, v in zip(constant(h, w), w, strict=True)]

        # Gradients of many sizes, so that clipping at any size changes their order; and a constant times them.
        def uneven(step: int) -> Leaves:
            a, b = (2.0 ** ((7 * step) % 16 - 12) * f(step) for f in (math.cos, math.sin))
            return [np.float32(a) * x + np.float32(b) * y for x, y in zip(g, h, strict=True)]

        single = self.at(steps, uneven, w)
        double = self.at(steps, lambda step: times(uneven(step), 2), w)
        turned = self._turned(steps, uneven, [u - e for u, e in zip(single, even, strict=True)], even)
        alternating = self.at(steps, lambda step: [8.0 ** (1 - i % 2) * x for i, x in enumerate(uneven(step))], w)

        updates = []
        for i in range(len(self.leaves)):
            share = float(np.vdot(even[i], w[i]) / np.vdot(w[i], w[i]))
            decays = _distance(even[i], share * w[i]) <= 1e-2 * _size(even[i]) + 1e-5 * _size(odd[i])
            weight = _power(light[i] - even[i] / WEIGHT, odd[i], 1 / WEIGHT)
            why, family = "", None
            if last[i] < 0:
                why = f"it did not move in {STEPS[-1]} steps"
            elif not all(np.isfinite(u[i]).all() for u in (odd, doubled, light, moved)):
                why = "its update is not finite"
            elif _distance(moved[i], light[i]) > NEAR * _size(light[i]):
                why = "its state holds the weights (schedule-free, averaged or look-ahead weights)"
            elif not decays:
                why = "the weights act on it by more than decay"
            else:
                power = _power(doubled[i], odd[i], 2)
                if power is None and turned[i]:
                    # Off its own singular vectors a constant gradient is nothing but noise, where eps acts (SOAP).
                    uneven_power = _power(double[i] - even[i], single[i] - even[i], 2)
                    power = None if uneven_power == 1 else uneven_power  # (linear: a clip of large entries)
                family, why = _family(power, weight, odd[i], g[i], small[i], bool(turned[i]))
            if family is not None and FAMILIES[family].weight and _size(even[i]) > 1e-5 * _size(odd[i]):
                family = None
                why = (
                    "weight decay beside an update that is proportional to the weight has no correction; use "
                    "dm.optimizer(p, specs, 'adafactor', lr, weight_decay=)"
                )
            if family is None and last[i] >= 0 and all(_keeps_norm(w[i], end) for end in (w[i] + plus[i], aside[i])):
                why = (
                    "its step ends on the sphere of the weight's norm (AdamH, MuonH); wrap the step without that "
                    "projection, optax.chain(dm.wrap(p, specs, step), projection)"
                )
            expected = single[i] * 8.0 ** ((FAMILIES[family].gradient if family else 0) * (1 - i % 2))
            free = _distance(expected, alternating[i]) <= NEAR * _size(expected)
            updates.append(Update(family, why, decays, free, turns=frozenset(turned[i])))
        return self._sized(steps, updates)

    def _turned(
        self, steps: Sequence[int], gradient: Callable[[int], Leaves], update: Leaves, even: Leaves
    ) -> list[set[int]]:
        """For each leaf the axes along which turning its gradients turns its update alike, weight decay apart."""
        axes: list[set[int]] = [set() for _ in self.leaves]
        rng = np.random.default_rng(1)
        for axis in range(max(len(shape) for shape in self.shapes)):
            turns = [
                _rotation(rng, shape[axis]) if axis < len(shape) and shape[axis] > 1 else None for shape in self.shapes
            ]

            def turn(leaves: Leaves, turns: list[Any] = turns, axis: int = axis) -> Leaves:
                pairs = zip(leaves, turns, strict=True)
                return [
                    u if q is None else np.moveaxis(np.tensordot(u, q, (axis, 0)), -1, axis).astype(u.dtype)
                    for u, q in pairs
                ]

            updates = self.at(steps, lambda step, turn=turn: turn(gradient(step)), self.weights)  # type: ignore[misc]
            for i, expected in enumerate(turn(update)):
                if turns[i] is not None and _distance(updates[i] - even[i], expected) <= NEAR * _size(expected):
                    axes[i].add(axis)
        return axes

    def _sized(self, steps: Sequence[int], updates: list[Update]) -> list[Update]:
        """The updates with the factors that they have for the shapes of matrices, where these grow.

        They are measured along gradients of rank one: a single entry along axes along which the update turns with the
        gradient, and ones along all others, so that the update has rank one at any shape (or fills the null space).
        """
        sized = [
            _may_have_size(update.family) and spec.role in MATRICES
            for update, spec in zip(updates, self.leaves, strict=True)
        ]
        if not any(sized):
            return updates
        sizes = []
        for fans in FANS:
            gradient, matrices = [], []
            for spec, update, shape, is_sized in zip(self.leaves, updates, self.shapes, sized, strict=True):
                g, matrix = _rank_one(spec, update.turns, fans) if is_sized else (np.zeros(shape, np.float32), ())
                gradient.append(g)
                matrices.append(matrix)
            zeros = [np.zeros_like(g) for g in gradient]
            measured = self.at(steps, lambda _, gradient=gradient: gradient, zeros)  # type: ignore[misc]
            pairs = [(u[matrix], g[matrix]) for u, g, matrix in zip(measured, gradient, matrices, strict=True)]
            sizes.append([abs(np.vdot(u, g)) / _size(g) if g.any() else 0.0 for u, g in pairs])
        columns = np.array(sizes).T
        return [
            _with_size(update, column) if is_sized else update
            for update, column, is_sized in zip(updates, columns, sized, strict=True)
        ]


def _one_sided(spec: ParamSpec, update: Update) -> bool:
    """Whether the update turns with the gradient along the inputs alone or along the outputs alone."""
    if not _of_matrices(update.family) or spec.role not in MATRICES:
        return False
    sides = [any(axis in update.turns for axis in half) for half in spec.matrix_axes if _size_of(spec, half) > 1]
    return any(sides) and not all(sides)


def _size_of(spec: ParamSpec, axes: Iterable[int]) -> int:
    return math.prod(spec.shape[axis] for axis in axes)


def _probed_shape(spec: ParamSpec) -> tuple[int, ...]:
    """A small shape, of matrices about square: in the eigenvectors of a tall one the gradient is noise (SOAP)."""
    shape = [min(n, LARGEST) for n in spec.shape]
    if spec.role in MATRICES:
        halves = [(math.prod(shape[axis] for axis in half), half) for half in spec.matrix_axes]
        (small, _), (large, half) = sorted(halves)
        longest = max(half, key=lambda axis: shape[axis])
        if small > 1:
            shape[longest] = max(1, small * shape[longest] // large)
    return tuple(shape)


def _rank_one(spec: ParamSpec, turns: Collection[int], fans: Sequence[int]) -> tuple[np.ndarray, tuple[Any, ...]]:
    """(a gradient of these fans, the index of one matrix in it)"""
    shape = [min(n, LARGEST) for n in spec.shape]
    entries: list[Any] = [0] * len(shape)
    matrix: list[Any] = [0] * len(shape)
    for half, fan in zip(spec.matrix_axes, fans, strict=True):
        single = any(axis in turns for axis in half)
        for axis in half:
            shape[axis] = 1
        shape[max(half, key=lambda axis: spec.shape[axis])] = fan
        for axis in half:
            matrix[axis] = slice(None)
            entries[axis] = 0 if single else slice(None)
    g = np.zeros(shape, np.float32)
    g[tuple(entries)] = 1
    return g, tuple(matrix)


def _with_size(update: Update, norms: np.ndarray) -> Update:
    """The update with the one of SIZES that its norms at FANS show, beside sqrt(fan_in fan_out) where its entries, and
    not its singular values, are of order 1."""
    entries = np.array([math.prod(fans) for fans in FANS]) ** (0.0 if _of_matrices(update.family) else 0.5)
    for size in SIZES:
        expected = entries * [size(*fans) for fans in FANS]
        if np.allclose(norms / norms[0], expected / expected[0], rtol=0.1):
            return update._replace(size=size)
    return Update(
        None, f"it is an update of {update.family!r}, times a factor of its shape that is none of those known"
    )


def _keeps_norm(weight: np.ndarray, end: np.ndarray) -> bool:
    return abs(_size(end) - _size(weight)) <= 1e-3 * _distance(end, weight)


def _family(
    power: int | None, weight: int | None, update: np.ndarray, g: np.ndarray, small: np.ndarray, turned: bool
) -> tuple[FamilyName | None, str]:
    """(family, or None and why) of an update. power, weight: its degree in the gradient and in the weight."""
    share = float(np.vdot(update, g) / np.vdot(g, g))
    along = update.size > 1 and _distance(update, share * g) <= NEAR * _size(update)
    line = update.ndim > 1 and update.size == max(update.shape)  # a matrix with one row or column
    if power == 1 and weight == 0:
        return "sgd", ""
    if power == 0 and weight == 0:
        if along and _size(small) < _size(update) / 32:
            return "sgd", ""  # clipped
        if along and not line:  # (Of a line that is what Muon does.)
            return None, "it is the gradient over its norm"
        return ("muon" if turned else "adam"), ""
    if power == 0 and weight == 1 and (along or not turned):
        return "adafactor", ""
    if power == 0 and weight == 1:
        return None, (
            "it is orthogonalised, times the weight's norm over its own (MuonH), so that its singular values depend on "
            "the rank of the gradient: of hidden weights it is 'muon' where batches have more examples than the width, "
            "'adafactor' where they have far fewer"
        )
    if power == -1 and weight == 0 and turned and not along:
        return "shampoo2", ""
    names = {
        -1: "is inverse to",
        0: "does not depend on",
        1: "is linear in",
        None: "is neither linear in nor free of",
    }
    return None, f"its size {names[power]} the gradient's and {names[weight]} the weight's"


def _power(changed: np.ndarray, update: np.ndarray, by: float) -> int | None:
    """-1, 0 or 1: `changed` is the update times `by` to this power; None: it is none of them."""
    return next((n for n in (0, 1, -1) if _distance(changed, by**n * update) <= NEAR * by**n * _size(update)), None)


def _spread(rng: np.random.Generator, shape: Sequence[int]) -> np.ndarray:
    """Numbers of root mean square 1 and of very different sizes, far from their signs and from an orthogonal matrix."""

    def sizes(n: int) -> np.ndarray:
        return rng.permutation(2.0 ** np.linspace(-2, 2, n))

    numbers = sizes(math.prod(shape)).reshape(shape) * rng.choice([-1.0, 1.0], shape)
    for axis, n in enumerate(shape):
        if 1 < n < numbers.size:
            numbers = np.moveaxis(np.moveaxis(numbers, axis, -1) * sizes(n), -1, axis)
    return np.asarray(numbers / np.sqrt(np.mean(numbers**2)), np.float32)


def _rotation(rng: np.random.Generator, n: int) -> np.ndarray:
    """An orthogonal matrix far from those of zeros and signs, with which Adam's update turns as Muon's does."""
    q = np.eye(n)
    while abs(q).max() > 0.9:
        q = np.linalg.qr(rng.normal(size=(n, n)))[0]
    return q


def _size(u: np.ndarray) -> float:
    return float(np.linalg.norm(u))


def _distance(a: np.ndarray, b: np.ndarray) -> float:
    return _size(a - b)
