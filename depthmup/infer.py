"""Specs from shapes alone: which axes grow when width or depth doubles (docs/design.md, "Specs from shapes")."""

from __future__ import annotations

import difflib
import fnmatch
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax

from depthmup.parameterization import ROLES, unknown
from depthmup.specs import ParamSpec, PyTree, Shape, SpecError, flatten_shapes

Tokens = tuple[str | int, ...]  # a path as names and indices; '*' stands for any index
NEVER_MATRICES = ("bias", "b", "scale", "offset")  # vectors of any shape: an attention bias is (heads, head_dim)
GROWING = {"input": 1, "hidden": 2, "output": 1, "readout": 1, "vector": 1, "scalar": 0}  # axes that grow, per role


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
        blocks; a family whose number of layers cannot double (6n + 2) takes n as its depth.
      residual: whether the blocks are residual; a parameter that repeats with depth is then inside a branch.
      layout: "in_out" for weights (..., in, out) (Flax, Haiku), "out_in" for (out, in, ...) (Equinox, PyTorch); with
        "out_in", embeddings (vocab, width) need an override to "input".
      overrides: {glob of parameter paths: what these parameters are}, where shapes cannot tell: a role, "branch" or
        "trunk" (inside or outside a residual branch), or both as "branch/ROLE".

    A scalar outside the branches is taken for a readout bias that is added after the output factor. Only one parameter
    may look like a readout (which the output factor multiplies); where several do, overrides must say what each is.

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
        odd = sorted(base.keys() ^ wide.keys())[0]
        raise SpecError(f"the parameter tree changes with width: {odd} is there at only one of {width} and {2 * width}")
    rules = _match_overrides(overrides or {}, base)
    stack = _Stack(base, deep)

    def spec(name: str, shape: Shape) -> ParamSpec:
        place, role = rules.get(name, (None, None))
        grow = _growing_axes(name, shape, wide[name], strict=role is None)
        stack_axis = stack.axis(name, grow)
        if place is None:
            in_branch = residual and (stack_axis is not None or stack.contains(name))
        else:
            in_branch = place == "branch"
            stack.explained.update(_stars(stack.tokens[name]))
        axes = [a for a in range(len(shape)) if a != stack_axis]
        if layout == "out_in" and len(axes) > 1:  # (out, in, *receptive field) -> (*receptive field, in, out)
            axes = [*axes[2:], axes[1], axes[0]]
        if role is None:
            role = _role(name, shape, axes, grow, in_branch)
        elif len(grow) <= 2 and len(grow) != GROWING[role]:
            raise SpecError(
                f"overrides: {name} {shape} has {len(grow)} axes that grow with width, {role!r} has {GROWING[role]}"
            )
        fan_in, fan_out = _fans(role, [shape[a] for a in axes], [i for i, a in enumerate(axes) if a in grow])
        return ParamSpec(name, role, in_branch, shape, fan_in, fan_out, width, depth, stack_axis)

    leaves = [spec(name, shape) for name, shape in base.items()]
    if residual:
        stack.check_all_explained()
    readouts = [s.path for s in leaves if s.role == "readout" and rules.get(s.path, (None, None))[1] is None]
    if len(readouts) > 1:
        raise SpecError(
            f"{' and '.join(readouts)} all look like readouts: pass overrides={{path: 'readout'}} for those followed "
            "by the output factor, 'output' for those that are not, 'input' for embeddings"
        )
    return jax.tree.unflatten(treedef, leaves)


class _Stack:
    """Which leaves repeat with depth, from the trees at depth d and 2d (docs/design.md, "Specs from shapes")."""

    def __init__(self, base: Mapping[str, Shape], deep: Mapping[str, Shape]) -> None:
        self.base, self.deep = base, deep
        self.tokens = _tokens({**base, **deep})
        self.explained: set[Tokens] = set()  # paths whose '*' is known to run over blocks
        trees = [[(self.tokens[name], shape) for name, shape in tree.items()] for tree in (base, deep)]
        self.counts = [Counter(star for path, _ in tree for star in _stars(path)) for tree in trees]
        self.shaped = [Counter((star, shape) for path, shape in tree for star in _stars(path)) for tree in trees]

    def axis(self, name: str, grow: set[int]) -> int | None:
        """The axis along which blocks are stacked, or None: the only axis that changes with depth, which doubles and
        does not grow with width."""
        before, after = self.base[name], self.deep.get(name, self.base[name])
        if before == after:
            return None
        changed = [a for a, (x, y) in enumerate(zip(before, after, strict=False)) if x != y]
        one = changed[0] if len(before) == len(after) and len(changed) == 1 else None
        if one is not None and one not in grow and after[one] == 2 * before[one]:
            return one
        shifted = any(self.counts[1][s] > self.counts[0][s] for s in _stars(self.tokens[name]))
        if not shifted:  # Automatic names shift with depth, so that one name may mean another parameter; not this one.
            raise SpecError(f"{name}: its shape goes from {before} to {after} at twice the depth; one axis must double")
        return None

    def contains(self, name: str) -> bool:
        """Whether the leaf is in a list of blocks: the paths that differ from its path in one index are twice as many
        at depth 2d as at depth d."""
        ambiguous = []
        for star in _stars(self.tokens[name]):
            a, b = (count[star] for count in self.counts)
            if b <= a:
                continue
            a_shape, b_shape = (count[star, self.base[name]] for count in self.shaped)
            if b == 2 * a or b_shape == 2 * a_shape:
                self.explained.add(star)
                return True
            if b_shape > a_shape:
                ambiguous.append((star, a, b))
        if ambiguous:
            star, a, b = ambiguous[0]
            raise SpecError(
                f"{name} {self.base[name]}: cannot tell whether it is one of the blocks: {'/'.join(map(str, star))} "
                f"matches {a} parameters and {b} at twice the depth (twice as many were expected). Put the blocks into "
                f"a submodule or list of their own, or pass overrides={{'{name}': 'branch'}} or 'trunk'"
            )
        return False

    def check_all_explained(self) -> None:
        """Every parameter that more depth adds must be one of the blocks found."""
        for name in self.deep.keys() - self.base.keys():
            if not self.explained.intersection(_stars(self.tokens[name])):
                raise SpecError(
                    f"{name} appears at twice the depth, but none of the blocks repeats it: number the blocks' names "
                    "(block_0, block_1, ...), stack them, or pass overrides={path: 'branch'}"
                )


def _shapes(init_fn: Callable[[int, int], PyTree], width: int, depth: int) -> tuple[dict[str, Shape], Any]:
    return flatten_shapes(jax.eval_shape(lambda: init_fn(width, depth)))


def _tokens(names: Iterable[str]) -> dict[str, Tokens]:
    """Paths as names and indices: 'block_3/w', 'block3.w' and 'block/3/w' are all ('block', 3, 'w').

    A name without a number gets the number 0 where the same name also occurs with numbers, but not with 0 (Haiku:
    block, block_1, ...).
    """
    split: dict[str, Tokens] = {}
    for name in names:
        tokens: list[str | int] = []
        for part in re.split(r"[/.]", name):
            stem, digits = re.fullmatch(r"(.*?)_?(\d*)", part).groups()  # type: ignore[union-attr]
            tokens += [stem] if stem else []
            tokens += [int(digits)] if digits else []
        split[name] = tuple(tokens)
    numbers: dict[Tokens, set[int]] = {}
    for path in split.values():
        for i, token in enumerate(path[1:], 1):
            if isinstance(token, int):
                numbers.setdefault(path[:i], set()).add(token)
    from_one = {prefix for prefix, found in numbers.items() if 0 not in found}

    def numbered(path: Tokens) -> Tokens:
        ends = [(path[: i + 1], path[i + 1 : i + 2]) for i in range(len(path))]
        first = [prefix in from_one and not isinstance((*after, "")[0], int) for prefix, after in ends]
        return tuple(x for token, zero in zip(path, first, strict=True) for x in ((token, 0) if zero else (token,)))

    return {name: numbered(path) for name, path in split.items()}


def _stars(path: Tokens) -> list[Tokens]:
    return [(*path[:i], "*", *path[i + 1 :]) for i, token in enumerate(path) if isinstance(token, int)]


def _growing_axes(name: str, narrow: Shape, wide: Shape, strict: bool) -> set[int]:
    if len(narrow) != len(wide):
        raise SpecError(f"{name}: its number of axes changes with width, {narrow} -> {wide}")
    grow = {a for a, (x, y) in enumerate(zip(narrow, wide, strict=True)) if x != y}
    for a in grow:
        if strict and wide[a] != 2 * narrow[a]:
            raise SpecError(
                f"{name}: axis {a} grows from {narrow[a]} to {wide[a]} where width doubles; it must double or stay, so "
                f"that fan ratios are ratios of width, or pass overrides={{'{name}': ROLE}}"
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
    if re.split(r"[/.]", name)[-1] in NEVER_MATRICES:
        return "vector"
    if last:
        return "input"
    return "output" if in_branch else "readout"


def _fans(role: str, sizes: list[int], growing: list[int]) -> tuple[int, int]:
    """(fan_in, fan_out): products of the sizes before and after the boundary between input and output axes; a vector
    has no inputs, so its fan_in is 1."""
    if role in ("vector", "scalar") or not growing:
        return 1, math.prod(sizes)
    last = len(sizes) - 1
    boundaries = range(growing[0] + 1, growing[1] + 1) if len(growing) > 1 else [min(growing[0] + 1, last)]
    fans = [(math.prod(sizes[:b]), math.prod(sizes[b:])) for b in boundaries]
    # Shapes like (width, heads, head_dim) and (heads, head_dim, width) leave a choice: the fans should be alike.
    return min(fans, key=lambda pair: abs(math.log(pair[0] / pair[1])))


def _match_overrides(
    overrides: Mapping[str, str], base: Mapping[str, Shape]
) -> dict[str, tuple[str | None, str | None]]:
    """{path: (place, role)} of the overridden parameters; None for a place or role that an override leaves open."""
    rules: dict[str, tuple[str | None, str | None]] = {}
    for pattern, value in overrides.items():
        place, _, role = (value, "", "") if value in ("branch", "trunk") else value.rpartition("/")
        if role and role not in ROLES:
            raise unknown(f"role in overrides[{pattern!r}]", role, ROLES)
        if place not in ("", "branch", "trunk"):
            raise unknown(f"place in overrides[{pattern!r}]", place, ("branch", "trunk"))
        matched = [name for name in base if fnmatch.fnmatchcase(name, pattern)]
        if not matched:
            near = difflib.get_close_matches(pattern, base, n=1, cutoff=0)
            raise SpecError(f"overrides: {pattern!r} matches no parameter; the nearest is {near[0]!r}")
        rules.update(dict.fromkeys(matched, (place or None, role or None)))
    return rules
