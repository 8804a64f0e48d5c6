"""ParamSpec trees, inferred from shapes alone: what each parameter is, apart from any parameterization.

A spec tree has the structure of the parameter tree with a `ParamSpec` at each leaf. It is plain data beside the
parameters, never inside them, so checkpoints and tree definitions are untouched.
"""

from __future__ import annotations

import dataclasses
import difflib
import fnmatch
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from depthmup.parameterization import ROLES, LeafFactors, Parameterization, unknown

PyTree = Any
Path = tuple[Any, ...]
Shape = tuple[int, ...]
STAR = "*"


class SpecError(ValueError):
    """A parameter's role cannot be told from shapes; the message names the leaf, its shapes and the way out."""


@dataclasses.dataclass(frozen=True)
class ParamSpec:
    """What one parameter is at (width, depth).

    role: "input" (only its fan-out grows with width), "hidden" (both), "output" (only its fan-in), "readout" (an output
      outside the branches, followed by the explicit output factor), "vector" (one axis, no fan-in), "scalar" (none).
    in_branch: inside a residual branch.
    fan_in, fan_out: numbers of inputs and outputs of one block's weight, the stack axis left out; 1 without one.
    stack_axis: the axis along which blocks are stacked (nn.scan, vmap), or None.
    """

    path: str
    role: str
    in_branch: bool
    shape: Shape
    fan_in: int
    fan_out: int
    width: int
    depth: int
    stack_axis: int | None = None

    def factors(self, p: Parameterization, family: str) -> LeafFactors:
        return p.leaf(
            role=self.role,
            in_branch=self.in_branch,
            width=self.width,
            depth=self.depth,
            fan_in=self.fan_in,
            family=family,
        )


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
        odd = _name(sorted(base.keys() ^ wide.keys(), key=str)[0])
        raise SpecError(f"the parameter tree changes with width: {odd} is there at only one of {width} and {2 * width}")
    rules = _match_overrides(overrides or {}, base)
    stack = _Stack(base, deep)

    def spec(path: Path, shape: Shape) -> ParamSpec:
        name, role, place = _name(path), *rules.get(path, (None, None))
        grow = _growing_axes(name, shape, wide[path])
        stack_axis = stack.axis(path, grow)
        if place is None:
            in_branch = residual and (stack_axis is not None or stack.contains(path))
        else:
            in_branch = place == "branch"
        axes = [a for a in range(len(shape)) if a != stack_axis]
        if layout == "out_in" and len(axes) > 1:  # (out, in, *receptive field) -> (*receptive field, in, out)
            axes = [*axes[2:], axes[1], axes[0]]
        axes = [a for a in axes if shape[a] != 1 or a in grow]
        if role is None:
            role = _role(name, shape, axes, grow, in_branch)
        fan_in, fan_out = _fans(role, [shape[a] for a in axes], [i for i, a in enumerate(axes) if a in grow])
        return ParamSpec(name, role, in_branch, shape, fan_in, fan_out, width, depth, stack_axis)

    return jax.tree.unflatten(treedef, [spec(path, shape) for path, shape in base.items()])


def factors(p: Parameterization, specs: PyTree, family: str = "sgd") -> LeafFactors:
    """Five trees in the structure of `specs`: init, multiplier, lr, eps, decay of every leaf, as Python floats."""
    leaves, treedef = jax.tree.flatten(specs, is_leaf=is_spec)
    rows = [leaf.factors(p, family) for leaf in leaves]
    if p.form == "absorbed":
        _check_absorbable(leaves)
    return LeafFactors(*(jax.tree.unflatten(treedef, column) for column in zip(*rows, strict=True)))


def rescale(p: Parameterization, specs: PyTree, params: PyTree) -> PyTree:
    """Standard fan-in init -> the parameterization's init (docs/rules.md section 0).

    `params` as the model's own initializers made them, with standard deviation sigma / sqrt(fan_in); vectors, scalars,
    position embeddings and tied embeddings stay as they are.
    """
    return _times(params, factors(p, specs, p.table.families[0]).init)


def forward_params(p: Parameterization, specs: PyTree, params: PyTree) -> PyTree:
    """Stored parameters -> the weights in the model's equation; the identity in the default storage form "mup"."""
    return _times(params, factors(p, specs, p.table.families[0]).multiplier)


def group(spec: ParamSpec) -> str:
    """A name for parameters that scale alike, such as "branch/hidden" or "branch/vector scale"."""
    last = spec.path.rsplit("/", 1)[-1]
    return ("branch/" if spec.in_branch else "") + spec.role + (f" {last}" if spec.role == "vector" else "")


def is_spec(leaf: object) -> bool:
    return isinstance(leaf, ParamSpec)


def specs_to_json(specs: PyTree) -> str:
    """The spec tree as JSON: a list of leaves in tree order."""
    return json.dumps([dataclasses.asdict(s) for s in jax.tree.leaves(specs, is_leaf=is_spec)], indent=1)


def specs_from_json(text: str, params: PyTree) -> PyTree:
    """The spec tree that `specs_to_json` wrote, in the structure of `params` (arrays or shapes).

    Raises SpecError, naming the first difference, if paths or shapes are not those of `params`.
    """
    rows = [ParamSpec(**{**row, "shape": tuple(row["shape"])}) for row in json.loads(text)]
    shapes, treedef = _flatten(params)
    here = [(_name(path), shape) for path, shape in shapes.items()]
    saved = [(s.path, s.shape) for s in rows]
    for left, right in zip(here, saved, strict=False):
        if left != right:
            raise SpecError(f"specs are of another model: it has {left[0]} {left[1]}, they have {right[0]} {right[1]}")
    if len(here) != len(saved):
        raise SpecError(f"specs are of another model: it has {len(here)} parameters, they have {len(saved)}")
    return jax.tree.unflatten(treedef, rows)


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
        return axes[0] if len(axes) == 1 and len([1 for x, y in zip(before, after, strict=True) if x != y]) == 1 else None

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
                f"{_name(path)} {self.base[path]}: cannot tell whether it is one of the blocks: {_name(star)} matches {a} "
                f"parameters and {b} at twice the depth (twice as many were expected). Put the blocks into a submodule or "
                f"list of their own, or pass overrides={{'{_name(path)}': 'branch/ROLE' or 'trunk/ROLE'}}"
            )
        return False


def _shapes(init_fn: Callable[[int, int], PyTree], width: int, depth: int) -> tuple[dict[Path, Shape], Any]:
    return _flatten(jax.eval_shape(lambda: init_fn(width, depth)))


def _flatten(params: PyTree) -> tuple[dict[Path, Shape], Any]:
    leaves, treedef = jax.tree_util.tree_flatten_with_path(params)
    if not leaves:
        raise SpecError("the model has no parameters")
    return {_tokens(path): tuple(leaf.shape) for path, leaf in leaves}, treedef


def _tokens(path: Path) -> Path:
    """Key path -> names and indices: 'block_3' is ('block', 3); Haiku's slashes split; NNX's last 'value' goes."""
    tokens: list[Any] = []
    for entry in path:
        key = next(getattr(entry, f) for f in ("key", "idx", "name") if hasattr(entry, f))
        for part in str(key).split("/") if isinstance(key, str) else [key]:
            numbered = re.fullmatch(r"(.+)_(\d+)", part) if isinstance(part, str) else None
            tokens += [numbered[1], int(numbered[2])] if numbered else [part]
    return tuple(tokens[:-1] if len(tokens) > 1 and tokens[-1] == "value" else tokens)


def _name(path: Path) -> str:
    return "/".join(map(str, path))


def _stars(paths: Any) -> list[Path]:
    return [(*p[:i], STAR, *p[i + 1 :]) for p in paths for i, token in enumerate(p) if isinstance(token, int)]


def _growing_axes(name: str, narrow: Shape, wide: Shape) -> set[int]:
    if len(narrow) != len(wide):
        raise SpecError(f"{name}: its number of axes changes with width, {narrow} -> {wide}")
    grow = {a for a, (x, y) in enumerate(zip(narrow, wide, strict=True)) if x != y}
    for a in grow:
        if wide[a] != 2 * narrow[a]:
            raise SpecError(
                f"{name}: axis {a} grows from {narrow[a]} to {wide[a]} where width doubles; it must double or stay, so that "
                "fan ratios are ratios of width"
            )
    return grow


def _role(name: str, shape: Shape, axes: list[int], grow: set[int], in_branch: bool) -> str:
    growing = [a for a in axes if a in grow]
    if not growing:
        return "scalar"
    if len(growing) > 2:
        raise SpecError(f"{name} {shape}: three axes grow with width, which fits no role; pass overrides={{'{name}': ROLE}}")
    if len(axes) == 1:
        return "vector"
    if len(growing) == 2:
        return "hidden"
    if growing[0] == axes[-1]:
        return "input"
    return "output" if in_branch else "readout"


def _fans(role: str, sizes: list[int], growing: list[int]) -> tuple[int, int]:
    """Products of the axes up to and after the boundary between inputs and outputs (None of them: 1)."""
    if role in ("vector", "scalar"):
        return 1, math.prod(sizes)
    boundary = growing[0] + 1 if growing and growing[0] < len(sizes) - 1 else len(sizes) - 1
    return math.prod(sizes[:boundary]), math.prod(sizes[boundary:])


def _match_overrides(overrides: Mapping[str, str], base: Mapping[Path, Shape]) -> dict[Path, tuple[str, str | None]]:
    rules: dict[Path, tuple[str, str | None]] = {}
    names = {path: _name(path) for path in base}
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
        rules.update({path: (role, place or None) for path in matched})
    return rules


def _check_absorbable(leaves: list[ParamSpec]) -> None:
    extra = [s for s in leaves if s.in_branch and s.role != "hidden"]
    stacked = [s for s in leaves if s.in_branch and s.stack_axis is not None]
    kinds = {re.sub(r"\d+", STAR, s.path) for s in leaves if s.in_branch}
    if extra or len(stacked) > 1 or len(kinds) > 1:
        odd = (extra or stacked[1:] or [s for s in leaves if s.in_branch])[0]
        raise ValueError(f"the absorbed form needs exactly one weight layer and nothing else per branch; {odd.path} is more")


def _times(params: PyTree, scale: PyTree) -> PyTree:
    return jax.tree.map(lambda w, s: w if s == 1 else w * jnp.asarray(s, w.dtype), params, scale)
