"""ParamSpec trees: what each parameter is (role, place, fans), and the factors that a parameterization gives it.

A spec tree has the structure of the parameter tree with a `ParamSpec` at each leaf. It is plain data beside the
parameters, never inside them, so checkpoints and tree definitions are untouched.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import itertools
import json
import math
import re
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.core.meta import AxisMetadata
from flax.linen.spmd import LogicallyPartitioned

from depthmup.names import at_least_one, short, unknown
from depthmup.rules.parameterization import (
    KINDS,
    ROLES,
    FamilyName,
    ForwardFactors,
    Kind,
    LeafFactors,
    Parameterization,
    Role,
    check_parameterization,
)

PyTree = Any
Shape = tuple[int, ...]
Layout = Literal["in_out", "out_in"]  # of stored matrices
Place = Literal["branch", "trunk", "stream"]  # in a residual branch, outside, on the stream in every block
Overrides = Mapping[Any, str]  # {glob of paths, or a function that selects parameters of a model: what they are}


class SpecError(ValueError):
    """A parameter's role cannot be told from shapes; the message names the leaf, its shapes and the way out."""


class Absorbed(NamedTuple):
    """A factor of the forward pass that the form "absorbed" stores inside a parameter.

    head_dim: of an attention, else 0. Where attentions have heads of several sizes at the base, it is base_head_dim
      times the ratio of this attention's head size to its size at the base.
    axis, ranges: the entries that are stored times the factor, as half-open ranges along an axis; without ranges all.
    """

    kind: Kind
    head_dim: float = 0
    axis: int = 0
    ranges: tuple[tuple[int, int], ...] = ()


@dataclasses.dataclass(frozen=True)
class ParamSpec:
    """The role, the place and the fans of one parameter at (width, depth).

    role: "input" (only its fan-out grows with width), "hidden" (both fans grow), "output" (only its fan-in grows),
      "readout" (an output outside the branches, which the output factor multiplies), "vector" (a bias or a norm's
      scale: one axis grows, and there is no fan-in), "fixed" (a matrix of fixed size, or outside the branches a vector
      of fixed size before the readout), "scalar" (a vector of fixed size inside a branch, or a readout's bias).
    in_branch: whether the parameter is inside a residual branch. in_stream: whether it acts on the residual stream in
      every block instead, as a norm after the sum does.
    fan_in, fan_out: numbers of inputs and outputs of one block's weight, without the stack axis; a parameter without
      inputs has fan_in 1.
    stack_axis: the axis along which blocks are stacked (nn.scan, vmap), or None.
    absorbs: the factors that the form "absorbed" stores inside it; None if `absorb` was not called.
    offset: what the forward pass adds to it before anything else: 1 for a norm's scale in 1 + scale (Gemma), else 0.
      A factor c then multiplies offset + w: c (offset + w) - offset is stored.
    """

    path: str
    role: Role
    in_branch: bool
    shape: Shape
    fan_in: int
    fan_out: int
    width: int
    depth: int
    stack_axis: int | None = None
    absorbs: tuple[Absorbed, ...] | None = None
    in_stream: bool = False
    offset: float = 0.0

    @property
    def placed_role(self) -> str:
        """Its role with its place, such as "branch/hidden" or "stream/vector"; outside both the role alone."""
        return ("branch/" if self.in_branch else "stream/" if self.in_stream else "") + self.role

    @property
    def matrix_axes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """(axes of the inputs, axes of the outputs); in neither is the stack axis, nor a first axis of experts.

        Raises SpecError if no division of the axes has the fans.
        """
        axes = [axis for axis in range(len(self.shape)) if axis != self.stack_axis]
        for matrix in (axes, axes[1:]):
            halves = [(tuple(matrix[:i]), tuple(matrix[i:])) for i in range(1, len(matrix))]
            for inputs, outputs in (*halves, *((b, a) for a, b in halves)):
                fans = [math.prod(self.shape[axis] for axis in half) for half in (inputs, outputs)]
                if fans == [self.fan_in, self.fan_out]:
                    return inputs, outputs
        raise SpecError(
            f"{self.path} {self.shape}: no first axes have its {self.fan_in} inputs, and the others its {self.fan_out} "
            "outputs, or the other way round, so that it is no stack of matrices"
        )

    def factors(self, p: Parameterization, family: FamilyName) -> LeafFactors:
        """The factors of the parameter: numbers, or arrays where only some entries are stored times a factor."""

        def leaf(kinds: Sequence[Absorbed] | None) -> LeafFactors:
            return p.leaf(
                role=self.role,
                in_branch=self.in_branch,
                in_stream=self.in_stream,
                width=self.width,
                depth=self.depth,
                fan_in=self.fan_in,
                family=family,
                path=self.path,
                absorbs=None if kinds is None else {absorbed.kind: absorbed.head_dim for absorbed in kinds},
            )

        if self.absorbs is None or p.form != "absorbed":
            return leaf(None)
        whole = [absorbed for absorbed in self.absorbs if not absorbed.ranges]
        result = leaf(whole)
        for absorbed in [absorbed for absorbed in self.absorbs if absorbed.ranges]:
            shape = np.ones(len(self.shape), int)
            shape[absorbed.axis] = self.shape[absorbed.axis]
            index = np.arange(self.shape[absorbed.axis])
            mask = np.any([(low <= index) & (index < high) for low, high in absorbed.ranges], axis=0).reshape(shape)
            leaf_factors = leaf([*whole, absorbed])
            result = LeafFactors(*(np.where(mask, a, b) for a, b in zip(leaf_factors, result, strict=True)))  # type: ignore[arg-type]
        return result


def factors(p: Parameterization, specs: PyTree, family: PyTree = "sgd") -> LeafFactors:
    """The init, multiplier, lr, eps and decay factors of every leaf.

    Args:
      p: the parameterization. specs: what `infer_specs` returns.
      family: that of all leaves, or a tree of names in the structure of `specs`.

    Returns:
      `LeafFactors` of five trees in the structure of `specs`, of Python floats.

    Raises SpecError for what is no tree of specs, ValueError for a family of another structure or an unknown name.
    """
    check_parameterization(p)
    leaves, treedef = leaves_of(specs), jax.tree.structure(specs, is_leaf=is_spec)
    families = [family] * len(leaves) if isinstance(family, str) else jax.tree.leaves(family)
    if len(families) != len(leaves):
        raise ValueError(f"family must have a name for each of {len(leaves)} parameters, got {len(families)} names")
    rows = [leaf.factors(p, name) for leaf, name in zip(leaves, families, strict=True)]
    if p.form == "absorbed" and any(leaf.absorbs is None for leaf in leaves):
        _check_absorbable(leaves)
    return LeafFactors(*(jax.tree.unflatten(treedef, column) for column in zip(*rows, strict=True)))


def rescale(p: Parameterization, specs: PyTree, params: PyTree) -> PyTree:
    """Multiply freshly initialized parameters so that they have the parameterization's init (docs/rules.md section 0).

    Vectors, scalars, position embeddings and tied embeddings stay as they are. `dm.audit_init` tells whether the
    initializers have this scale, and whether `rescale` was called twice: the numbers alone cannot tell a factor from
    another sigma.

    Args:
      p: the parameterization. specs: what `infer_specs` returns.
      params: the parameters from the model's own initializers, weights with standard deviation sigma / sqrt(fan_in).

    Returns:
      The parameters in the same structure and dtypes.

    Raises SpecError, naming the first leaf, if the parameters are not those of the specs.
    """
    return multiplied(specs, params, rescaling(p, specs))


def rescaling(p: Parameterization, specs: PyTree) -> PyTree:
    """The factors of `rescale`, in the structure of `specs`."""
    check_parameterization(p)
    return factors(p, specs, p.init_family).init


def forward_params(p: Parameterization, specs: PyTree, params: PyTree) -> PyTree:
    """The weights in the model's equation, from the stored parameters; both are equal in the default form "mup".

    Args:
      p: the parameterization. specs: what `infer_specs` returns.
      params: as they are stored.

    Returns:
      The weights in the same structure.

    Raises SpecError if the parameters are not those of the specs.
    """
    check_parameterization(p)
    return multiplied(specs, params, factors(p, specs, p.init_family).multiplier)


def named(params: PyTree) -> PyTree:
    """Parameters with their paths in the place of arrays."""
    paths, structure = flatten_shapes(params)
    return jax.tree.unflatten(structure, list(paths))


def forward_factors(p: Parameterization, specs: PyTree, *, head_dim: float | None = None) -> ForwardFactors:
    """`p.forward_factors` at the specs' width and depth.

    Args:
      p: the parameterization. specs: what `infer_specs` returns.
      head_dim: of an attention's heads, None without any.

    Returns:
      `ForwardFactors`.

    Raises SpecError for what is no tree of specs.
    """
    check_parameterization(p)
    spec = leaves_of(specs)[0]
    return p.forward_factors(width=spec.width, depth=spec.depth, head_dim=head_dim)


def group(spec: ParamSpec) -> str:
    """A name for parameters that scale alike, such as "branch/hidden" or "branch/vector scale"."""
    last = re.split(r"[/.]", spec.path)[-1].rstrip("_0123456789")
    return spec.placed_role + (f" {last}" if spec.role == "vector" else "")


def starred(path: str) -> str:
    """The path with '*' for each number, which paths of equal blocks share."""
    return re.sub(r"\d+", "*", path)


def globs(overrides: Mapping[str, str], names: Collection[str]) -> dict[str, str]:
    """Overrides with one glob for parameters whose paths differ in numbers only, if all of these are meant."""
    result: dict[str, str] = {}
    for name, value in overrides.items():
        escaped = name.replace("[", "[[]")
        for glob in (starred(escaped), *_of_one_number(escaped)):
            matched = [path for path in names if fnmatch.fnmatchcase(path, glob)]
            if len(matched) > 1 and all(overrides.get(path) == value for path in matched):
                break
        else:
            glob = escaped
        result[glob] = value
    return result


def _of_one_number(path: str) -> Iterator[str]:
    """The path with one of its numbers starred."""
    for number in re.finditer(r"\d+", path):
        yield f"{path[: number.start()]}*{path[number.end() :]}"


def one_glob(paths: Collection[str], names: Collection[str]) -> str | None:
    """A glob that matches these paths and no other of the names, or None: the beginning and the end that all paths
    share, with numbers starred, so that it matches at every depth."""
    stars = sorted({starred(p) for p in paths})
    start = _common(stars)
    end = _common([star[len(start) :][::-1] for star in stars])[::-1]
    glob = (start if len(stars) == 1 else f"{start}*{end}").replace("[", "[[]")
    return glob if {name for name in names if fnmatch.fnmatchcase(name, glob)} == set(paths) else None


def _common(words: Sequence[str]) -> str:
    """The beginning that all words share."""
    letters = itertools.takewhile(lambda letters: len(set(letters)) == 1, zip(*words, strict=False))
    return "".join(column[0] for column in letters)


def is_spec(leaf: object) -> bool:
    return isinstance(leaf, ParamSpec)


def leaves_of(specs: PyTree) -> list[ParamSpec]:
    """The specs of a tree, in its order. Raises SpecError for what is no tree of specs."""
    leaves = jax.tree.leaves(specs, is_leaf=is_spec)
    odd = next((leaf for leaf in leaves if not is_spec(leaf)), None if leaves else specs)
    if not leaves or odd is not None:
        raise SpecError(f"specs must be a tree of ParamSpec, such as infer_specs gives, got {short(odd)}")
    return leaves


def specs_to_json(specs: PyTree) -> str:
    """The spec tree as JSON.

    Args:
      specs: what `infer_specs` returns.

    Returns:
      A list of leaves in tree order, as text.

    Raises SpecError for what is no tree of specs.
    """
    return json.dumps([dataclasses.asdict(s) for s in leaves_of(specs)], indent=1)


def specs_from_json(text: str, params: PyTree) -> PyTree:
    """The spec tree that `specs_to_json` wrote.

    Args:
      text: the JSON.
      params: arrays or shapes in the structure of the result.

    Returns:
      A tree of `ParamSpec`.

    Raises SpecError for another text, and, naming the first difference, if a path or a shape differs from `params`.
    """
    try:
        saved = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise SpecError(f"specs must be the JSON that specs_to_json writes: {error}") from None
    if not isinstance(saved, list):
        raise SpecError(f"specs must be the JSON list that specs_to_json writes, got {short(saved)}")
    rows = [_from_json(row) for row in saved]
    shapes, treedef = flatten_shapes(params)
    for left, right in zip(shapes.items(), rows, strict=False):
        if left != (right.path, right.shape):
            raise SpecError(
                f"specs are of another model: it has {left[0]} {left[1]}, they have {right.path} {right.shape}"
            )
    if len(shapes) != len(rows):
        raise SpecError(f"specs are of another model: it has {len(shapes)} parameters, they have {len(rows)}")
    return jax.tree.unflatten(treedef, rows)


def _from_json(row: Any) -> ParamSpec:
    names = [field.name for field in dataclasses.fields(ParamSpec)]
    if not isinstance(row, dict) or not set(names[:-4]) <= row.keys() <= set(names):  # the last four have defaults
        raise SpecError(f"specs must have leaves with {', '.join(names)}, got {short(row)}")
    try:
        parts = row.get("absorbs")
        if parts is not None:
            parts = tuple(Absorbed(kind, size, axis, tuple(map(tuple, ranges))) for kind, size, axis, ranges in parts)
        spec = ParamSpec(**{**row, "shape": tuple(row["shape"]), "absorbs": parts})
        for what, name, known in (("role", spec.role, ROLES), *(("factor", part.kind, KINDS) for part in parts or ())):
            if name not in known:
                raise unknown(what, name, known)
        for what in ("width", "depth", "fan_in", "fan_out"):
            at_least_one(what, getattr(spec, what))
        for what, value, known in (
            ("in_branch", spec.in_branch, (True, False)),
            ("in_stream", spec.in_stream, (False,) if spec.in_branch else (True, False)),
            ("stack_axis", spec.stack_axis, (None, *range(len(spec.shape)))),
        ):
            if value not in known:
                raise ValueError(f"{what} is out of range: {value}")
    except (TypeError, ValueError) as error:
        raise SpecError(f"specs of {short(row['path'])}: {error}") from error
    return spec


def parameters_only(tree: PyTree) -> PyTree:
    """The tree with None for leaves that are not arrays of real or complex numbers: functions, integers, keys."""
    return jax.tree.map(lambda leaf: leaf if is_parameter(leaf) else None, tree)


def matched(specs: PyTree, tree: PyTree) -> PyTree:
    """The specs of the parameters that a tree has, in the tree's structure; `specs` where that is theirs, or where the
    tree has other parameters.

    Paths match, whatever holds the parameters: some of them, {"params": ...}, plain or frozen dicts, a flat one with
    keys "a/b" or ("a", "b"), arrays without their boxes, what Orbax restores without a target, parts that
    `optax.masked` hides.
    """
    if is_hidden(tree) or not jax.tree.leaves(tree):
        return specs
    tree = parameters_only(tree)
    leaves, structure = jax.tree.flatten(tree, is_leaf=is_hidden)
    if not leaves or _equal(structure, jax.tree.structure(specs, is_leaf=is_spec)):
        return specs
    by_path, leaves = {spec.path: spec for spec in leaves_of(specs)}, []
    for path, leaf in _named_leaves(tree):
        name = _known(path, by_path)
        if name in by_path:
            leaves.append(by_path[name])
        elif is_hidden(leaf):
            leaves.append({other: spec for other, spec in by_path.items() if other.startswith(f"{name}/")})
        else:
            return specs
    return jax.tree.unflatten(structure, leaves)


def named_as(specs: PyTree, tree: PyTree) -> PyTree:
    """{path: leaf} of a tree by the paths of the specs that `matched` gave for it; the tree where they do not fit."""
    named: dict[str, Any] = {}

    def name(leaf: Any, spec: Any) -> None:
        named[spec.path if is_spec(spec) else f"hidden {len(named)}"] = leaf

    try:
        jax.tree.map(name, parameters_only(tree), specs, is_leaf=is_hidden)
    except ValueError:
        return tree
    return named


def _equal(structure: Any, other: Any) -> bool:
    try:
        return structure == other
    except Exception:  # of what a module keeps beside its arrays, such as an array of NumPy
        return False


def _known(path: str, known: Collection[str]) -> str:
    """The name that a path has among those that are known: without {"params": ...} around all, and without the name of
    a box's array, which remains where the box is lost."""
    inner = path.removeprefix("params/")
    names = (path, inner, path.removesuffix("/value"), inner.removesuffix("/value"))
    return next((name for name in names if name in known), inner)


def check_shapes(specs: PyTree, params: PyTree) -> None:
    """Raises SpecError, naming the first leaf, if the parameters (arrays or shapes) are not those of the specs. Leaves
    that `optax.masked` hides are passed over."""
    by_path = {spec.path: spec for spec in leaves_of(specs)}
    shapes = flatten_shapes(params)[0] if jax.tree.leaves(params) else {}
    for path, shape in shapes.items():
        if path not in by_path:
            raise SpecError(f"parameters and specs are of different models: the specs have no {path} {shape}")
        spec = by_path[path]
        if shape != spec.shape:
            raise SpecError(
                f"parameters and specs are of different shapes: {path} is {shape}, and {spec.shape} in the specs, "
                f"which are those of width {spec.width} and depth {spec.depth}"
            )
    missing = by_path.keys() - shapes.keys()
    hidden = any(is_hidden(leaf) for leaf in jax.tree.leaves(params, is_leaf=is_hidden))
    if missing and not hidden:
        raise SpecError(f"parameters and specs are of different models: there is no parameter {min(missing)}")


def flatten_shapes(params: PyTree) -> tuple[dict[str, Shape], Any]:
    """({path: shape} of the parameters in tree order, the tree's structure); a path joins the tree's keys by '/':
    'blocks/3/kernel'. A '/' inside a key becomes '|' where two paths would be equal otherwise."""
    params = parameters_only(params)
    leaves = [(path, leaf) for path, leaf in _named_leaves(params) if not is_hidden(leaf)]
    if not leaves:
        raise SpecError("the model has no parameters")
    return {path: tuple(leaf.shape) for path, leaf in leaves}, jax.tree.structure(params)


def _named_leaves(params: PyTree) -> list[tuple[str, Any]]:
    """(path, leaf) of the parameters and of what `optax.masked` hides, in tree order."""
    leaves: list[tuple[Any, Any]] = []
    for path, box in jax.tree_util.tree_flatten_with_path(params, is_leaf=lambda x: _is_box(x) or is_hidden(x))[0]:
        inner = jax.tree_util.tree_flatten_with_path(box, is_leaf=is_hidden)[0]
        # The array of an NNX variable or a Linen box goes by the name of the box.
        leaves += [(path if len(inner) == 1 and _is_box(box) else (*path, *end), leaf) for end, leaf in inner]
    keys = [[_key(entry) for entry in path] for path, _ in leaves]
    often = Counter("/".join(parts) for parts in keys)
    paths = ["/".join(k if often["/".join(k)] == 1 else [key.replace("/", "|") for key in k]) for k in keys]
    if len(set(paths)) < len(paths):
        raise SpecError(f"two parameters have the path {Counter(paths).most_common(1)[0][0]}: rename one")
    return list(zip(paths, (leaf for _, leaf in leaves), strict=True))


def axis_names(params: PyTree) -> dict[str, tuple[Any, ...]]:
    """{path: the names of its axes that the model declares, by nn.with_logical_partitioning or as a NamedArray of
    Haliax; () without any}

    Those of nn.with_partitioning and NNX's shardings are axes of a mesh, which several axes of a model may share.
    """
    boxes = jax.tree.leaves(parameters_only(params), is_leaf=lambda node: _is_box(node) or _is_named(node))
    names = [_names(box) for box in boxes]
    repeated = (of for box, of in zip(boxes, names, strict=True) for _ in jax.tree.leaves(box))
    return dict(zip(flatten_shapes(params)[0], repeated, strict=True))


def _names(box: Any) -> tuple[Any, ...]:
    if _is_named(box):
        return tuple(axis.name for axis in box.axes)
    return tuple(box.names) if isinstance(box, LogicallyPartitioned) else ()


def _is_named(node: object) -> bool:
    return isinstance(node, getattr(sys.modules.get("haliax"), "NamedArray", ()))


def _key(entry: Any) -> str:
    key = next(getattr(entry, f) for f in ("key", "idx", "name") if hasattr(entry, f))
    return "/".join(map(str, key)) if isinstance(key, tuple) else str(key)


def _is_box(node: object) -> bool:
    variable = getattr(sys.modules.get("flax.nnx"), "Variable", AxisMetadata)  # NNX is slow to load
    return isinstance(node, (AxisMetadata, variable))


def is_parameter(leaf: Any) -> bool:
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.inexact)


def is_hidden(leaf: object) -> bool:
    """Whether `optax.masked` hides the leaf, or `optax.tree_map_params` all of them."""
    return isinstance(leaf, optax.MaskedNode) or type(leaf).__name__ == "_ParamsPlaceholder"


def _check_absorbable(leaves: list[ParamSpec]) -> None:
    extra = [s for s in leaves if s.in_branch and s.role != "hidden"]
    stacked = [s for s in leaves if s.in_branch and s.stack_axis is not None]
    kinds = {starred(s.path) for s in leaves if s.in_branch}
    if extra or len(stacked) > 1 or len(kinds) > 1:
        odd = (extra or stacked[1:] or [s for s in leaves if s.in_branch])[0]
        raise ValueError(
            f"the absorbed form needs exactly one weight layer and nothing else per branch; {odd.path} is more. Let "
            "dm.absorb(specs, apply, params, x) find where the factors go"
        )


def multiplied(specs: PyTree, params: PyTree, scale: PyTree) -> PyTree:
    """The parameters, with their offsets, times a tree of factors; leaves that are no parameters stay as they are."""
    check_shapes(specs, params)
    pairs = zip(leaves_of(specs), jax.tree.leaves(scale), strict=True)

    def product(leaf: Any) -> Any:
        if not is_parameter(leaf):
            return leaf
        spec, factor = next(pairs)
        if np.all(factor == 1):
            return leaf
        times = leaf * jnp.asarray(factor, leaf.dtype)
        return times + jnp.asarray((factor - 1) * spec.offset, leaf.dtype) if spec.offset else times

    return jax.tree.map(product, params)


def shift(specs: PyTree, scale: PyTree) -> PyTree | None:
    """What `multiplied` adds to each parameter times its factor, so that the factor multiplies the offset too; None if
    no parameter has an offset. The factors may be traced."""
    if not any(spec.offset for spec in leaves_of(specs)):
        return None
    return jax.tree.map(lambda spec, factor: (factor - 1) * spec.offset, specs, scale, is_leaf=is_spec)
