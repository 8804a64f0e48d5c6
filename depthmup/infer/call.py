"""`infer_specs`: which axes grow when width or depth doubles (the algorithm: depthmup/infer/__init__.py)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, cast, get_args

import jax

from depthmup.infer import names
from depthmup.infer.blocks import Blocks
from depthmup.infer.checks import check_whole, checked_layout
from depthmup.infer.overrides import Override, Unclear, match, question
from depthmup.infer.roles import Leaf, Roled, Roles, axes_for, fans, overridden_role, readouts
from depthmup.infer.trees import InitFn, Trees, irregular, regular_width, trees
from depthmup.names import at_least_one, short, unknown
from depthmup.parameterization import Role
from depthmup.specs import Layout, ParamSpec, Place, PyTree, SpecError


def infer_specs(
    init_fn: InitFn,
    *,
    width: int,
    depth: int,
    residual: bool = True,
    layout: Layout | None = None,
    overrides: Mapping[str, str] | None = None,
    inside: Callable[[], Mapping[str, Place]] | None = None,
    ends: Callable[[Collection[str]], Mapping[str, Role]] | None = None,
    axes: Mapping[str, str] | None = None,
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
        all that shapes say. A role, a place, or both as "branch/ROLE". Places are "branch" (inside a residual branch),
        "stream" (outside, on the residual stream in every block) and "trunk" (all else). Axes may follow, one letter
        each: i (inputs), o (outputs), - (neither), as "hidden oi" for a kernel (out, in), "hidden -io" for (experts,
        in, out), or "oi" alone.
      inside: () -> {path: "branch", "stream" or "trunk"}, the places that the forward pass shows. It is called only
        where shapes do not tell.
      ends: (paths of the parameters that grow with width) -> {path: "readout", "output" or "input"}, for parameters
        whose role the forward pass shows: readouts store the output factor, outputs come before a cosine, inputs are
        no weights of a product. It is called only where shapes do not tell.
      axes: {path: a letter for each axis, as in overrides}, what the products of the forward pass do with parameters;
        shapes and names decide for the others alone.

    Without `ends` only one parameter may look like a readout (which the output factor multiplies); where several
    do, overrides must say what each is.

    Raises SpecError, naming all leaves that fit no role, or several, with an `overrides=` to paste; ValueError for bad
    arguments. Warns of an override whose role needs other axes to grow than those that do.
    """
    _check_arguments(init_fn, width, depth, layout, overrides)
    shapes = trees(init_fn, width, depth)
    rules = match(overrides or {}, {**shapes.base, **shapes.wide, **shapes.deep})
    settled = {name for name, rule in rules.items() if rule.role}
    shapes.check_width(width, rules, settled)
    unclear = _Unclear(shapes, width)
    blocks = Blocks(shapes.base, shapes.deep, {name: shapes.growing(name) for name in shapes.base}, rules)
    shown = axes or {}
    stacked, branch = _places(blocks, rules, residual, inside, shown, unclear)
    leaves = {name: _leaf(shapes, name, stacked[name]) for name in shapes.base}
    roles = Roles(leaves, checked_layout(layout, leaves, {**shown, **rules}))
    roled = _roles(roles, rules, shown, branch, unclear)
    growing = [name for name, leaf in leaves.items() if leaf.grow]
    heads = (lambda: ends(growing)) if ends else None
    lookalikes, why = readouts(roles, roled, settled, branch, heads)
    if why:
        unclear.names.update(lookalikes)
        unclear.reasons.append(why)
    if residual:
        _check_depth(blocks, rules, roled, unclear)
    if unclear.reasons:
        raise unclear.error(init_fn, depth, roled, branch)
    specs = [
        ParamSpec(name, role, branch[name], shapes.base[name], *fans(role, letters, leaves[name].shape), width, depth,
                  stacked[name], in_stream=rules.get(name, Override()).place == "stream")
        for name, (role, letters) in cast("dict[str, tuple[Role, str]]", roled).items()
    ]  # fmt: skip
    check_whole(specs, settled, rules, residual and shapes.base == shapes.deep, roles.layout, heads)
    return jax.tree.unflatten(shapes.structure, specs)


def _check_arguments(init_fn: Any, width: Any, depth: Any, layout: Any, overrides: Any) -> None:
    if layout not in (None, *get_args(Layout)):
        raise unknown("layout", layout, get_args(Layout))
    at_least_one("width", width)
    at_least_one("depth", depth)
    if not callable(init_fn):
        raise ValueError(f"init_fn must be a function (width, depth) -> parameters, got {short(init_fn)}")
    if overrides is not None and not isinstance(overrides, Mapping):
        raise ValueError(f"overrides must be {{glob of paths: what they are}}, got {short(overrides)}")


class _Unclear:
    """The questions to the user, for one error. names: the parameters that they are about; guesses: plausible overrides
    for other parameters."""

    def __init__(self, shapes: Trees, width: int) -> None:
        self.shapes, self.width = shapes, width
        self.reasons: list[str] = []
        self.names: set[str] = set()
        self.guesses: dict[str, str] = {}

    def irregular(self, name: str) -> Unclear | None:
        return irregular(name, self.shapes.widths(name), self.width)

    def ask(self, name: str, unclear: Unclear) -> str:
        self.names.add(name)
        self.reasons.append(unclear.why)
        return unclear.guess

    def error(self, init_fn: InitFn, depth: int, roled: Roled, branch: Mapping[str, bool]) -> SpecError:
        guesses = self.guesses | {n: _override(roled[n][0], branch[n]) for n in roled if n in self.names}
        regular = regular_width(init_fn, self.width, depth, [name for name in self.names if self.irregular(name)])
        more = [f"(From width {regular} on, all of these axes double.)"] if regular else []
        return question(guesses, [*self.reasons, *more], self.shapes.base.keys() | guesses.keys())


def _override(role: str, in_branch: bool) -> str:
    return f"{'branch' if in_branch else 'trunk'}/{role}"


def _places(
    blocks: Blocks,
    rules: Mapping[str, Override],
    residual: bool,
    inside: Callable[[], Mapping[str, Place]] | None,
    shown: Mapping[str, str],
    unclear: _Unclear,
) -> tuple[dict[str, int | None], dict[str, bool]]:
    """({path: stack axis}, {path: whether it is in a branch})"""
    stacked: dict[str, int | None] = {}
    branch: dict[str, bool] = {}
    for name in blocks.base:
        given_place = rules.get(name, Override()).place
        stacked[name], branch[name] = None, given_place == "branch"
        try:
            axis = blocks.axis(name)
            joined = axis is not None and shown.get(name, "-" * axis + "-")[axis] != "-"  # outputs for all blocks
            stacked[name] = None if joined else axis
        except Unclear as error:  # Its fans change with depth: no forward pass tells a rule for that.
            if given_place is None and residual:
                branch[name] = unclear.ask(name, error) == "branch"
            continue
        if given_place is None and residual:
            try:
                # A name says that it projects the skip; the forward pass knows better.
                is_shortcut = names.is_shortcut(name) and not (inside and inside().get(name) == "branch")
                in_stack = stacked[name] is not None and not is_shortcut
                branch[name] = in_stack or blocks.contain(name, is_shortcut)
                if not (branch[name] or is_shortcut) and inside and (joined or blocks.repeats_otherwise(name)):
                    branch[name] = inside().get(name) == "branch"
            except Unclear as error:
                place = inside().get(name) if inside else None
                if inside:  # a parameter that `inside` lacks acts behind the last branch
                    error = Unclear(error.why, "trunk")
                # The forward pass tells later which parameters act on the stream in every block.
                branch[name] = (place or unclear.ask(name, error)) in ("branch", "stream")
    return stacked, branch


def _leaf(shapes: Trees, name: str, stacked: int | None) -> Leaf:
    narrow, wide, _ = shapes.widths(name)
    axes = [a for a in range(len(narrow)) if a != stacked]
    grow = shapes.growing(name)
    doubled = wide if len(wide) == len(narrow) else narrow
    return Leaf(name, tuple((narrow[a], doubled[a]) for a in axes), tuple(i for i, a in enumerate(axes) if a in grow))


def _roles(
    roles: Roles,
    rules: Mapping[str, Override],
    shown: Mapping[str, str],
    branch: Mapping[str, bool],
    unclear: _Unclear,
) -> Roled:
    roled: Roled = {}
    for name, leaf in roles.leaves.items():
        rule, odd = rules.get(name, Override()), unclear.irregular(name)
        if rule.role or rule.axes:
            roled[name] = overridden_role(name, unclear.shapes.base[name], rule, leaf, roles, branch[name])
            continue
        try:
            if name in shown:
                shape, of_products = unclear.shapes.base[name], Override(axes=shown[name])
                role, letters = overridden_role(name, shape, of_products, leaf, roles, branch[name])
                roled[name] = role, roles.without_experts(leaf, letters)
            else:
                role = roles.role(leaf, branch[name])
                alone = role in ("vector", "scalar")
                roled[name] = role, "o" * len(leaf.sizes) if alone else axes_for(role, leaf, roles)
            if odd is not None:
                unclear.ask(name, odd)
        except Unclear as error:
            roled[name] = unclear.ask(name, odd or error), ""
    return roled


def _check_depth(blocks: Blocks, rules: Mapping[str, Override], roled: Roled, unclear: _Unclear) -> None:
    """Every parameter that more depth adds must be one of the blocks found."""
    extra = blocks.unexplained(rules)
    if extra:
        unclear.reasons.append(
            f"{extra[0]} appears at twice the depth, but none of the blocks repeats it: number the blocks' names "
            "(block_0, block_1, ...), stack them, pass residual=False if they are not residual, or say which "
            "parameters are in branches"
        )
        placed = {name for name, rule in rules.items() if rule.place}
        shapes = {blocks.deep[name] for name in extra}
        added = [name for name, shape in blocks.base.items() if shape in shapes and name not in placed]
        unclear.guesses |= {name: _override(roled[name][0], True) for name in added if roled[name][0] != "readout"}
        unclear.guesses |= {name: "branch" for name in extra if blocks.deep[name] not in blocks.base.values()}
