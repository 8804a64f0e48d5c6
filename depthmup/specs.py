"""ParamSpec trees: what each parameter is (role, place, fans), and the factors that a parameterization gives it.

A spec tree has the structure of the parameter tree with a `ParamSpec` at each leaf. It is plain data beside the
parameters, never inside them, so checkpoints and tree definitions are untouched.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from depthmup.parameterization import LeafFactors, Parameterization

PyTree = Any
Shape = tuple[int, ...]


class SpecError(ValueError):
    """A parameter's role cannot be told from shapes; the message names the leaf, its shapes and the way out."""


class Absorbed(NamedTuple):
    """A factor of the forward pass that the form "absorbed" stores inside a parameter.

    kind: "branch", "output" or "attention". head_dim: of an attention, else 0. axis, ranges: the entries that are
    stored times the factor, as half-open ranges along an axis; without ranges all of them.
    """

    kind: str
    head_dim: int = 0
    axis: int = 0
    ranges: tuple[tuple[int, int], ...] = ()


@dataclasses.dataclass(frozen=True)
class ParamSpec:
    """What one parameter is at (width, depth).

    role: "input" (only its fan-out grows with width), "hidden" (both fans grow), "output" (only its fan-in grows),
      "readout" (an output outside the branches, which the output factor multiplies), "vector" (a bias or a norm's
      scale: one axis grows, and there is no fan-in), "scalar" (no axis grows).
    in_branch: whether the parameter is inside a residual branch.
    fan_in, fan_out: numbers of inputs and outputs of one block's weight, without the stack axis; a parameter without
      inputs has fan_in 1.
    stack_axis: the axis along which blocks are stacked (nn.scan, vmap), or None.
    absorbs: the factors that the form "absorbed" stores inside it; None if `absorb` was not asked.
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
    absorbs: tuple[Absorbed, ...] | None = None

    def factors(self, p: Parameterization, family: str) -> LeafFactors:
        """The factors of the parameter: numbers, or arrays where only some entries are stored times a factor."""

        def leaf(kinds: Sequence[Absorbed] | None) -> LeafFactors:
            return p.leaf(
                role=self.role,
                in_branch=self.in_branch,
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
        for part in (absorbed for absorbed in self.absorbs if absorbed.ranges):
            shape = np.ones(len(self.shape), int)
            shape[part.axis] = self.shape[part.axis]
            places = np.arange(self.shape[part.axis])
            chosen = np.any([(low <= places) & (places < high) for low, high in part.ranges], axis=0).reshape(shape)
            own = leaf([*whole, part])
            result = LeafFactors(*(np.where(chosen, a, b) for a, b in zip(own, result, strict=True)))  # type: ignore[arg-type]
        return result


def factors(p: Parameterization, specs: PyTree, family: str = "sgd") -> LeafFactors:
    """Five trees in the structure of `specs`: the init, multiplier, lr, eps and decay factors as Python floats."""
    leaves, treedef = jax.tree.flatten(specs, is_leaf=is_spec)
    rows = [leaf.factors(p, family) for leaf in leaves]
    if p.form == "absorbed" and any(leaf.absorbs is None for leaf in leaves):
        _check_absorbable(leaves)
    return LeafFactors(*(jax.tree.unflatten(treedef, column) for column in zip(*rows, strict=True)))


def rescale(p: Parameterization, specs: PyTree, params: PyTree) -> PyTree:
    """Multiply freshly initialized parameters so that they have the parameterization's init (docs/rules.md section 0).

    params: what the model's own initializers return, weights with standard deviation sigma / sqrt(fan_in). Vectors,
    scalars, position embeddings and tied embeddings stay as they are.
    """
    return _times(params, factors(p, specs, p.table.families[0]).init)


def forward_params(p: Parameterization, specs: PyTree, params: PyTree) -> PyTree:
    """The weights in the model's equation, from the stored parameters; both are equal in the default form "mup"."""
    return _times(params, factors(p, specs, p.table.families[0]).multiplier)


def group(spec: ParamSpec) -> str:
    """A name for parameters that scale alike, such as "branch/hidden" or "branch/vector scale"."""
    last = re.split(r"[/.]", spec.path)[-1].rstrip("_0123456789")
    return ("branch/" if spec.in_branch else "") + spec.role + (f" {last}" if spec.role == "vector" else "")


def is_spec(leaf: object) -> bool:
    return isinstance(leaf, ParamSpec)


def specs_to_json(specs: PyTree) -> str:
    """The spec tree as JSON: a list of leaves in tree order."""
    return json.dumps([dataclasses.asdict(s) for s in jax.tree.leaves(specs, is_leaf=is_spec)], indent=1)


def specs_from_json(text: str, params: PyTree) -> PyTree:
    """The spec tree that `specs_to_json` wrote, in the structure of `params` (arrays or shapes).

    Raises SpecError, naming the first difference, if a path or a shape differs from `params`.
    """
    rows = [_from_json(row) for row in json.loads(text)]
    shapes, treedef = flatten_shapes(params)
    here = list(shapes.items())
    saved = [(s.path, s.shape) for s in rows]
    for left, right in zip(here, saved, strict=False):
        if left != right:
            raise SpecError(f"specs are of another model: it has {left[0]} {left[1]}, they have {right[0]} {right[1]}")
    if len(here) != len(saved):
        raise SpecError(f"specs are of another model: it has {len(here)} parameters, they have {len(saved)}")
    return jax.tree.unflatten(treedef, rows)


def _from_json(row: dict[str, Any]) -> ParamSpec:
    parts = row.get("absorbs")
    if parts is not None:
        parts = tuple(Absorbed(kind, size, axis, tuple(map(tuple, own))) for kind, size, axis, own in parts)
    return ParamSpec(**{**row, "shape": tuple(row["shape"]), "absorbs": parts})


def flatten_shapes(params: PyTree) -> tuple[dict[str, Shape], Any]:
    """({path: shape} in tree order, the tree's structure); a path joins the tree's keys by '/': 'blocks/3/kernel'."""
    leaves, treedef = jax.tree_util.tree_flatten_with_path(params)
    if not leaves:
        raise SpecError("the model has no parameters")
    return {_path_name(path): tuple(leaf.shape) for path, leaf in leaves}, treedef


def _path_name(path: tuple[Any, ...]) -> str:
    keys = [next(getattr(entry, f) for f in ("key", "idx", "name") if hasattr(entry, f)) for entry in path]
    if len(path) > 1 and isinstance(path[-1], jax.tree_util.GetAttrKey) and keys[-1] == "value":
        keys.pop()  # NNX holds each array in a variable, as its attribute `value`
    return "/".join(map(str, keys))


def _check_absorbable(leaves: list[ParamSpec]) -> None:
    extra = [s for s in leaves if s.in_branch and s.role != "hidden"]
    stacked = [s for s in leaves if s.in_branch and s.stack_axis is not None]
    kinds = {re.sub(r"\d+", "*", s.path) for s in leaves if s.in_branch}
    if extra or len(stacked) > 1 or len(kinds) > 1:
        odd = (extra or stacked[1:] or [s for s in leaves if s.in_branch])[0]
        raise ValueError(
            f"the absorbed form needs exactly one weight layer and nothing else per branch; {odd.path} is more. Let "
            "dm.absorb(specs, apply, params, x) find where the factors go"
        )


def _times(params: PyTree, scale: PyTree) -> PyTree:
    return jax.tree.map(lambda w, s: w if np.all(s == 1) else w * jnp.asarray(s, w.dtype), params, scale)
