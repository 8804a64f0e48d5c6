"""Specs from shapes alone: which axes grow when width or depth doubles (docs/design.md, "Specs from shapes")."""

from __future__ import annotations

import difflib
import fnmatch
import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import jax

from depthmup.parameterization import ROLES, unknown
from depthmup.specs import ParamSpec, Path, PyTree, Shape, SpecError, Suffix, flatten_shapes, path_name


def infer_specs(
    init_fn: Callable[[int, int], PyTree],
    *,
    width: int,
    depth: int,
    residual: bool = True,
    layout: str = "in_out",
    overrides: Mapping[str, str] | None = None,
) -> PyTree:
    """The spec tree of `init_fn(width, depth)`, from its shapes at (w, d), (2w, d) and (w, 2d); nothing is computed.

    Args:
      init_fn: (width, depth) -> parameters, any pytree (Linen, NNX, Equinox, Haiku, dicts). Depth counts residual
        blocks; a family whose depth cannot double (6n + 2) takes n.
      residual: blocks are residual, so that a leaf in the stack is in a branch.
      layout: "in_out" for weights (..., in, out) (Flax, Haiku), "out_in" for (out, in, ...) (Equinox, PyTorch).
      overrides: {glob of a path: role}, for what shapes cannot tell. The role may be preceded by "branch/" or "trunk/"
        to say also whether the leaf is in a branch.

    Raises SpecError, naming the leaf with its shapes, if a leaf fits no role; ValueError for bad arguments.
    """
    if layout not in ("in_out", "out_in"):
        raise unknown("layout", layout, ("in_out", "out_in"))
    if width < 1 or depth < 1:
        raise ValueError(f"width and depth must be at least 1, got width={width}, depth={depth}")
    base, treedef = _shapes(init_fn, width, depth)
    wide, _ = _shapes(init_fn, 2 * width, depth)
    deep, _ = _shapes(init_fn, width, 2 * depth)
    if base.keys() != wide.keys():
        odd = path_name(sorted(base.keys() ^ wide.keys(), key=str)[0])
        raise SpecError(f"the parameter tree changes with width: {odd} is there at only one of {width} and {2 * width}")
    rules = _match_overrides(overrides or {}, base)
    stack = _Stack(base, deep)

    def spec(path: Path, shape: Shape) -> ParamSpec:
        name = path_name(path)
        role, place = rules.get(path, (None, None))
        grow = _growing_axes(name, shape, wide[path])
        stack_axis = stack.axis(path, grow)
        if place is None:
            in_branch = residual and (stack_axis is not None or stack.contains(path))
        else:
            in_branch = place == "branch"
        axes = [a for a in range(len(shape)) if a != stack_axis]
        if layout == "out_in" and len(axes) > 1:  # (out, in, *receptive field) -> (*receptive field, in, out)
            axes = [*axes[2:], axes[1], axes[0]]
        if role is None:
            role = _role(name, shape, axes, grow, in_branch)
        fan_in, fan_out = _fans(role, [shape[a] for a in axes], [i for i, a in enumerate(axes) if a in grow])
        return ParamSpec(name, role, in_branch, shape, fan_in, fan_out, width, depth, stack_axis)

    return jax.tree.unflatten(treedef, [spec(path, shape) for path, shape in base.items()])


class _Stack:
    """Which leaves repeat with depth, from the trees at depth d and 2d (docs/design.md, "Specs from shapes")."""

    def __init__(self, base: Mapping[Path, Shape], deep: Mapping[Path, Shape]) -> None:
        self.base, self.deep = base, deep
        self.flat = base == deep  # a model without a stack is legal
        self.counts = [Counter(_stars(paths)) for paths in (base, deep)]
        self.shaped = [Counter((star, s) for p, s in tree.items() for star in _stars([p])) for tree in (base, deep)]

    def axis(self, path: Path, grow: set[int]) -> int | None:
        before, after = self.base[path], self.deep.get(path)
        if after is None or len(before) != len(after):
            return None
        axes = [a for a, (x, y) in enumerate(zip(before, after, strict=True)) if y == 2 * x and a not in grow]
        return (
            axes[0] if len(axes) == 1 and len([1 for x, y in zip(before, after, strict=True) if x != y]) == 1 else None
        )

    def contains(self, path: Path) -> bool:
        """Is it one of a list of blocks? One index at a time is replaced by '*' and its matches counted at d and 2d."""
        if self.flat:
            return False
        ambiguous = []
        for star in _stars([path]):
            a, b = (count[star] for count in self.counts)
            if b <= a:
                continue
            if b == 2 * a:
                return True
            a_shape, b_shape = (count[star, self.base[path]] for count in self.shaped)
            if b_shape == 2 * a_shape:
                return True
            if b_shape > a_shape:
                ambiguous.append((star, a, b))
        if ambiguous:
            star, a, b = ambiguous[0]
            raise SpecError(
                f"{path_name(path)} {self.base[path]}: cannot tell whether it is one of the blocks: {path_name(star)} "
                f"matches {a} parameters and {b} at twice the depth (twice as many were expected). Put the blocks into "
                f"a submodule or list of their own, or pass overrides={{'{path_name(path)}': 'branch/ROLE'}} or "
                "'trunk/ROLE'"
            )
        return False


def _shapes(init_fn: Callable[[int, int], PyTree], width: int, depth: int) -> tuple[dict[Path, Shape], Any]:
    return flatten_shapes(jax.eval_shape(lambda: init_fn(width, depth)))


def _stars(paths: Any) -> list[Path]:
    """Each path with one index at a time replaced by '*' ('_*' for that of a name such as 'block_3')."""
    indices = [(p, i) for p in paths for i, token in enumerate(p) if isinstance(token, int)]
    return [(*p[:i], "_*" if isinstance(p[i], Suffix) else "*", *p[i + 1 :]) for p, i in indices]


def _growing_axes(name: str, narrow: Shape, wide: Shape) -> set[int]:
    if len(narrow) != len(wide):
        raise SpecError(f"{name}: its number of axes changes with width, {narrow} -> {wide}")
    grow = {a for a, (x, y) in enumerate(zip(narrow, wide, strict=True)) if x != y}
    for a in grow:
        if wide[a] != 2 * narrow[a]:
            raise SpecError(
                f"{name}: axis {a} grows from {narrow[a]} to {wide[a]} where width doubles; it must double or stay, so "
                "that fan ratios are ratios of width"
            )
    return grow


def _role(name: str, shape: Shape, axes: list[int], grow: set[int], in_branch: bool) -> str:
    growing = [a for a in axes if a in grow]
    if not growing:
        return "scalar"
    if len(growing) > 2:
        raise SpecError(
            f"{name} {shape}: three axes grow with width, which fits no role; pass overrides={{'{name}': ROLE}}"
        )
    if len(growing) == 2:
        return "hidden"
    alone = all(shape[a] == 1 for a in axes if a not in grow)
    last, first = growing[0] == axes[-1], growing[0] == axes[0]
    if alone and (last or (first and len(axes) > 2)):  # (N,), (1, 1, N), (N, 1, 1); but (N, 1) is a readout
        return "vector"
    if last:
        return "input"
    return "output" if in_branch else "readout"


def _fans(role: str, sizes: list[int], growing: list[int]) -> tuple[int, int]:
    """Products of the axes up to and after the boundary between inputs and outputs (None of them: 1)."""
    if role in ("vector", "scalar"):
        return 1, math.prod(sizes)
    boundary = growing[0] + 1 if growing and growing[0] < len(sizes) - 1 else len(sizes) - 1
    return math.prod(sizes[:boundary]), math.prod(sizes[boundary:])


def _match_overrides(
    overrides: Mapping[str, str], base: Mapping[Path, Shape]
) -> dict[Path, tuple[str | None, str | None]]:
    rules: dict[Path, tuple[str | None, str | None]] = {}
    names = {path: path_name(path) for path in base}
    for pattern, value in overrides.items():
        place, _, role = value.rpartition("/")
        if role not in ROLES:
            raise unknown(f"role in overrides[{pattern!r}]", role, ROLES)
        if place not in ("", "branch", "trunk"):
            raise unknown(f"place in overrides[{pattern!r}]", place, ("branch", "trunk"))
        matched = [path for path, name in names.items() if fnmatch.fnmatchcase(name, pattern)]
        if not matched:
            near = difflib.get_close_matches(pattern, names.values(), n=1, cutoff=0)
            raise SpecError(f"overrides: {pattern!r} matches no parameter; the nearest is {near[0]!r}")
        rules.update(dict.fromkeys(matched, (role, place or None)))
    return rules
