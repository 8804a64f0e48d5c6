"""`infer_specs`: which axes grow when width or depth doubles (docs/design.md, "Specs from shapes")."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import jax

from depthmup.infer import names
from depthmup.infer.blocks import Blocks
from depthmup.infer.overrides import Override, Unclear, match, question
from depthmup.infer.roles import NEEDED, Leaf, Roles, fans, side_of
from depthmup.parameterization import unknown
from depthmup.specs import ParamSpec, PyTree, Shape, SpecError, flatten_shapes, parameters_only

Shapes = Mapping[str, Shape]


def infer_specs(
    init_fn: Callable[[int, int], PyTree],
    *,
    width: int,
    depth: int,
    residual: bool = True,
    layout: str | None = None,
    overrides: Mapping[str, str] | None = None,
) -> PyTree:
    """The spec tree of `init_fn(width, depth)`, from its shapes at (w, d), (2w, d), (4w, d) and (w, 2d); nothing is
    computed.

    Args:
      init_fn: (width, depth) -> parameters, any pytree (Linen, NNX, Equinox, Haiku, dicts). Depth counts residual
        blocks; a family whose number of layers cannot double (6n + 2) takes n as its depth. Leaves that are not arrays
        of real or complex numbers are passed over: the spec tree has None there, as `eqx.filter(model,
        eqx.is_inexact_array)` has.
      residual: whether the blocks are residual; a parameter that repeats with depth is then inside a branch.
      layout: "in_out" for weights (..., in, out) (Flax, Haiku), "out_in" for (out, in, ...) (Equinox, PyTorch). None:
        "in_out", and an error if names or biases say otherwise.
      overrides: {glob of parameter paths: what these parameters are}, where shapes cannot tell; an override wins over
        all that shapes say. A role, "branch" or "trunk" (inside or outside a residual branch), or both as
        "branch/ROLE"; axes may follow, one letter each: i (inputs), o (outputs), - (neither), as "hidden oi" for a
        kernel (out, in), "hidden -io" for (experts, in, out), or "oi" alone.

    Only one parameter may look like a readout (which the output factor multiplies); where several do, overrides must
    say what each is.

    Raises SpecError, naming all leaves that fit no role, or several, with an `overrides=` to paste; ValueError for bad
    arguments. Warns of an override whose role needs other axes to grow than those that do.
    """
    if layout not in (None, "in_out", "out_in"):
        raise unknown("layout", layout, ("in_out", "out_in"))
    if width < 1 or depth < 1:
        raise ValueError(f"width and depth must be at least 1, got width={width}, depth={depth}")
    base, treedef = _shapes(init_fn, width, depth)
    wide, wider = (_shapes(init_fn, k * width, depth, (width, depth))[0] for k in (2, 4))
    deep = _shapes(init_fn, width, 2 * depth, (width, depth))[0]
    rules = match(overrides or {}, {**base, **wide, **deep})
    for tree, at in ((wide, 2 * width), (wider, 4 * width)):
        odd = sorted((base.keys() ^ tree.keys()) - rules.keys())
        if odd:
            raise SpecError(f"the parameter tree changes with width: {odd[0]} is there at only one of {width} and {at}")
    roles_given = {name for name, rule in rules.items() if rule.role}
    widths = {name: [tree.get(name, shape) for tree in (base, wide, wider)] for name, shape in base.items()}
    if all(len(set(shapes)) == 1 for shapes in widths.values()) and not base.keys() <= roles_given:
        raise SpecError(
            f"no parameter grows with width: all shapes at width {width} are those at {2 * width}. init_fn(width, "
            "depth) must build the model at the width that it is given"
        )

    reasons: list[str] = []
    guesses: dict[str, str] = {}

    def ask(unclear: Unclear) -> str:
        reasons.append(unclear.why)
        return unclear.guess

    grow = {name: _growing_axes(shapes) for name, shapes in widths.items()}
    blocks = Blocks(base, deep, grow, rules)
    places, stacked, unclear = {}, {}, set()
    for name in base:
        rule = rules.get(name, Override())
        try:
            stacked[name] = blocks.axis(name)
            found = residual and (stacked[name] is not None and not names.is_shortcut(name) or blocks.contain(name))
            places[name] = "branch" if found else "trunk"
        except Unclear as error:
            stacked.setdefault(name, None)
            if rule.place is None and residual:
                places[name] = ask(error)
                unclear.add(name)
        places[name] = rule.place or places.get(name, "trunk")

    leaves = {name: _leaf(name, shapes, grow[name], stacked[name]) for name, shapes in widths.items()}
    roles = Roles(leaves, _layout(layout, leaves, rules))

    def role_and_axes(name: str) -> tuple[str, str]:
        rule, leaf = rules.get(name, Override()), leaves[name]
        axes = _own_axes(name, rule.axes, base[name], stacked[name])
        if rule.role is not None:
            _check_role(name, base[name], rule.role, leaf)
            return rule.role, axes or _axes_for(rule.role, leaf, roles)
        irregular = _irregular(name, widths[name], width)
        if axes is None:
            try:
                role = roles.role(leaf, places[name] == "branch")
                axes = roles.axes(leaf) if role not in ("vector", "scalar") else "o" * len(leaf.sizes)
            except Unclear as error:
                raise irregular or error from None
        else:
            role = _role_of_axes(axes, leaf, places[name] == "branch")
        if irregular is not None:
            raise Unclear(irregular.why, role)
        return role, axes

    found = {}
    for name in base:
        try:
            found[name] = role_and_axes(name)
        except Unclear as error:
            found[name] = (ask(error), "")
            unclear.add(name)
    readouts = [name for name in base if found[name][0] == "readout" and name not in roles_given]
    if len(readouts) > 1:
        reasons.append(
            f"{' and '.join(readouts)} all look like readouts: 'readout' is followed by the output factor, 'output' is "
            "not, 'input' is an embedding"
        )
        last = max(readouts, key=lambda name: (names.is_last(name), not names.is_first(name)))
        found |= {name: ("readout" if name == last else "output", "") for name in readouts}
        unclear.update(readouts)
    extra = blocks.unexplained(rules) if residual else []
    if extra:
        reasons.append(
            f"{extra[0]} appears at twice the depth, but none of the blocks repeats it: number the blocks' names "
            "(block_0, block_1, ...), stack them, pass residual=False if they are not residual, or say which parameters "
            "are in branches"
        )
        shapes = {deep[name] for name in extra}
        alike = [name for name, shape in base.items() if shape in shapes and rules.get(name, Override()).place is None]
        guesses |= {name: f"branch/{found[name][0]}" for name in alike if found[name][0] != "readout"}
        guesses |= {name: "branch" for name in extra if deep[name] not in set(base.values())}
    guesses |= {name: f"{places[name]}/{found[name][0]}" for name in base if name in unclear}
    if reasons:
        width_to_take = _regular_width(init_fn, width, depth, [n for n in unclear if _irregular(n, widths[n], width)])
        reasons += [f"(From width {width_to_take} on, all of these axes double.)"] if width_to_take else []
        raise question(guesses, reasons, base.keys() | guesses.keys())

    def spec(name: str) -> ParamSpec:
        (role, axes), leaf = found[name], leaves[name]
        fan_in, fan_out = fans(role, axes, leaf.shape)
        return ParamSpec(
            name, role, places[name] == "branch", base[name], fan_in, fan_out, width, depth, stacked[name]
        )

    specs = [spec(name) for name in base]
    _check_whole(specs, roles_given, rules, residual and base == deep, roles.layout)
    return jax.tree.unflatten(treedef, specs)


def _shapes(
    init_fn: Callable[[int, int], PyTree], width: int, depth: int, asked: tuple[int, int] | None = None
) -> tuple[dict[str, Shape], Any]:
    """`flatten_shapes` of the parameters. asked: the shape that the caller asked for, if this is another one."""
    held: list[Any] = []

    def arrays() -> list[Any]:  # A list: the tree itself may hold what JAX cannot return, or cannot hash.
        leaves, treedef = jax.tree.flatten(parameters_only(init_fn(width, depth)))
        held.append(treedef)
        return leaves

    try:
        leaves = jax.eval_shape(arrays)
    except Exception as error:
        if asked is None:
            raise
        raise SpecError(
            f"init_fn(width={width}, depth={depth}) raises {type(error).__name__}: {error}\n"
            f"For the specs at width={asked[0]}, depth={asked[1]} it is also called at 2 and 4 times this width and twice "
            "this depth: count width and depth in a unit that can double (n for 6n + 2 layers)"
        ) from error
    return flatten_shapes(jax.tree.unflatten(held[-1], leaves))


def _growing_axes(shapes: list[Shape]) -> tuple[int, ...]:
    """The axes that differ between any of the widths."""
    if len({len(shape) for shape in shapes}) > 1:
        return ()
    return tuple(a for a in range(len(shapes[0])) if len({shape[a] for shape in shapes}) > 1)


def _irregular(name: str, shapes: list[Shape], width: int) -> Unclear | None:
    """What is wrong with an axis that neither stays nor doubles each time that width does."""
    if len({len(shape) for shape in shapes}) > 1:
        return Unclear(f"{name}: its number of axes changes with width, {' -> '.join(map(str, shapes))}", "hidden")
    for a, (x, y, z) in enumerate(zip(*shapes, strict=True)):
        if (y, z) not in ((x, x), (2 * x, 4 * x)):
            return Unclear(
                f"{name}: axis {a} grows from {x} to {y} to {z} at widths {width}, {2 * width}, {4 * width}; it must "
                "double each time or stay, so that fan ratios are ratios of width",
                "hidden",
            )
    return None


def _regular_width(init_fn: Callable[[int, int], PyTree], width: int, depth: int, irregular: list[str]) -> int | None:
    """The smallest of 2, 4 and 8 times the width from which all these leaves grow regularly, if there is one."""
    try:
        trees = {k: _shapes(init_fn, k * width, depth)[0] for k in (2, 4, 8, 16, 32) if irregular}
        for k in (2, 4, 8) if irregular else ():
            if not any(_irregular(name, [trees[k * j][name] for j in (1, 2, 4)], k * width) for name in irregular):
                return k * width
    except Exception:  # It only adds to an error that is raised in any case.
        return None
    return None


def _leaf(name: str, shapes: list[Shape], grow: tuple[int, ...], stacked: int | None) -> Leaf:
    axes = [a for a in range(len(shapes[0])) if a != stacked]
    wide = shapes[1] if len(shapes[1]) == len(shapes[0]) else shapes[0]
    sizes = tuple((shapes[0][a], wide[a]) for a in axes)
    return Leaf(name, sizes, tuple(i for i, a in enumerate(axes) if a in grow))


def _own_axes(name: str, axes: str | None, shape: Shape, stacked: int | None) -> str | None:
    """The letters of an override for the leaf's own axes; the stack axis may be left out of it."""
    if axes is None:
        return None
    if stacked is not None and len(axes) == len(shape):
        axes = axes[:stacked] + axes[stacked + 1 :]
    if len(axes) != len(shape) - (stacked is not None):
        raise SpecError(f"overrides: {name} {shape} has {len(shape)} axes, {axes!r} has {len(axes)} letters")
    return axes


def _check_role(name: str, shape: Shape, role: str, leaf: Leaf) -> None:
    """An override wins over growth, which may be hidden by a plateau; but a matrix needs its axes."""
    growing = len(leaf.grow)
    said = f"overrides: {name} {shape} has {growing} axes that grow with width, {role!r} has {NEEDED[role]}"
    if len(leaf.sizes) < NEEDED[role]:
        raise SpecError(said)
    if growing != NEEDED[role] and growing <= 2 and not (role == "vector" and growing == 0):
        warnings.warn(said, UserWarning, stacklevel=4)


def _axes_for(role: str, leaf: Leaf, roles: Roles) -> str:
    """The axes of a leaf of this role: as shapes have them, or the other way round if the role says so."""
    try:
        axes = roles.axes(leaf)
    except Unclear:
        axes = "i" * leaf.grow[0] + "o" * (len(leaf.sizes) - leaf.grow[0]) if role == "input" else ""
        axes = axes or "i" * (len(leaf.sizes) - 1) + "o"
    side = side_of(role)
    if side is not None and len(leaf.grow) == 1 and len(axes) > 1 and axes[leaf.grow[0]] != side:
        return axes.translate(str.maketrans("io", "oi"))
    return axes


def _role_of_axes(axes: str, leaf: Leaf, in_branch: bool) -> str:
    sides = {axes[a] for a in leaf.grow}
    if {"i", "o"} <= sides:
        return "hidden"
    if "i" in sides:
        return "output" if in_branch else "readout"
    return ("input" if "i" in axes else "vector") if "o" in sides else "fixed"


def _layout(layout: str | None, leaves: Mapping[str, Leaf], rules: Mapping[str, Override]) -> str:
    """The layout, if biases and names do not contradict it."""
    given = layout or "in_out"
    roles, other = Roles(leaves, given), {"in_out": "out_in", "out_in": "in_out"}[given]
    asked = {name: leaf for name, leaf in leaves.items() if name not in rules}
    for name, leaf in asked.items():
        if roles.misplaced(leaf):
            letters = roles.told_by_bias(leaf)
            raise SpecError(
                f"{name} {leaf.shape}: its bias has the size of what is its input in the layout {given!r}. Pass "
                f"layout={other!r} (\"out_in\" is that of Equinox and PyTorch), or overrides={{{name!r}: {letters!r}}} if "
                "it is this parameter alone"
            )
    if layout is not None:
        return layout
    matrices = [leaf for leaf in asked.values() if leaf.grow and sum(size > 1 for size in leaf.shape) > 1]
    weights = [leaf for leaf in matrices if names.is_weight(leaf.path)]
    if weights and not any((roles.told_by_bias(leaf) or "").startswith("i") for leaf in weights):
        raise SpecError(
            f"{weights[0].path} {weights[0].shape}: weights of this name are (out, in) in Equinox and PyTorch. Pass "
            "layout='out_in', or layout='in_out' if they are (in, out) here"
        )
    single = [leaf for leaf in matrices if len(leaf.grow) == 1 and len(leaf.sizes) == 2]
    first = [leaf for leaf in single if leaf.grow == (0,) and names.is_first(leaf.path)]
    last = [leaf for leaf in single if leaf.grow == (1,) and names.is_last(leaf.path)]
    if first and last:
        raise SpecError(
            f"{first[0].path} {first[0].shape} looks like a readout and {last[0].path} {last[0].shape} like a read-in: "
            "pass layout='out_in' for weights (out, in), or layout='in_out' if they are (in, out)"
        )
    return given


def _check_whole(
    specs: list[ParamSpec], settled: set[str], rules: Mapping[str, Override], flat: bool, layout: str
) -> None:
    """What is wrong with the network as a whole. flat: it should be residual, but nothing changes with depth."""
    of_role = {role: [s for s in specs if s.role == role] for role in NEEDED}
    if flat and of_role["hidden"] and not any(s.in_branch for s in specs):
        raise SpecError(
            "no parameter changes with depth, so no parameter is in a residual branch: init_fn(width, depth) must build "
            "the model at the depth that it is given. If it does, pass residual=False if the network has no residual "
            "branches, or, if its blocks share their weights, overrides={'GLOB OF THESE WEIGHTS': 'branch'}"
        )
    inputs, readouts = of_role["input"], of_role["readout"]
    body = of_role["hidden"] or of_role["output"]
    outside = [s for s in inputs if not s.in_branch]
    if body and outside and not readouts:
        tied = any(names.is_embedding(s.path) or s.path in settled for s in outside)
        if not tied and not any(rule.role == "output" and rule.place != "branch" for rule in rules.values()):
            raise SpecError(
                f"no parameter looks like a readout. If {outside[0].path} is a tied embedding, or the network has no "
                f"readout, say so: overrides={{{outside[0].path!r}: 'input'}}; else say which one it is: "
                "overrides={PATH: 'readout'}"
            )
    if layout == "out_in" and body and not inputs and readouts and readouts[0].path not in settled:
        path = readouts[0].path
        raise SpecError(
            f"no parameter looks like a read-in. If {path} {readouts[0].shape} is an embedding (vocabulary, width), "
            f"pass overrides={{{path!r}: 'input'}}; if it is the readout, overrides={{{path!r}: 'readout'}}"
        )
