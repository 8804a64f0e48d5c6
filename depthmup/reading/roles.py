"""The role and the fans of a parameter: from the axes that grow with width, and what the program does with them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from depthmup.reading.overrides import Override, Unclear
from depthmup.rules.parameterization import Role
from depthmup.rules.specs import Layout, Shape, SpecError

# {role: a letter for each axis that grows: i (inputs), o (outputs)}
GROWING: dict[Role, str] = {
    **{"input": "o", "hidden": "io", "output": "i", "readout": "i", "vector": "o", "scalar": "", "fixed": ""},
}


class Leaf(NamedTuple):
    """A parameter without its stack axis: all axes below are its own.

    grow: the axes that grow with width.
    """

    path: str
    shape: Shape
    grow: tuple[int, ...]


class Roled(NamedTuple):
    """A role, and what each axis is: i (inputs), o (outputs), - (neither)."""

    role: Role
    axes: str


def role_of_axes(axes: str, leaf: Leaf, in_branch: bool) -> Role:
    """The role of a parameter whose axes are known: a weight with growing inputs is an output in a branch, and outside
    a readout until the forward pass says which one it is."""
    sides = {axes[a] for a in leaf.grow}
    if {"i", "o"} <= sides:
        return "hidden"
    if "i" in sides:
        return "output" if in_branch else "readout"
    if "o" in sides:
        return "input" if "i" in axes else "vector"
    return "vector" if "-" in sides else "fixed"  # more blocks of a block-diagonal matrix, all of one size


def of_entries(leaf: Leaf, in_branch: bool, is_scalar: bool, neurons: Collection[int]) -> Roled:
    """The role of a parameter whose entries act each on its own.

        bias (width,)                   # Roled("vector", "o")
        positions (length, width)       # Roled("input", "io"), in a branch Roled("vector", "oo")

    is_scalar: whether one of fixed size is in every block, or behind the readout. neurons: the axes along which lie the
    outputs of a layer."""
    others = math.prod(size for axis, size in enumerate(leaf.shape) if axis not in (*leaf.grow, *neurons))
    if not leaf.grow:
        matrix = not is_scalar and len(leaf.shape) > 1
        return Roled("scalar" if is_scalar else "fixed", _in_out(leaf.shape, ()) if matrix else "o" * len(leaf.shape))

    def outputs_and(letter: str) -> str:
        return "".join("o" if axis in leaf.grow else letter for axis in range(len(leaf.shape)))

    if len(leaf.grow) == 1 and others > 1 and not in_branch:  # rows of positions, of learned queries
        return Roled("input", outputs_and("i"))
    return Roled("vector", outputs_and("-" if len(leaf.grow) > 1 else "o"))


def of_shape(leaf: Leaf, in_branch: bool, layout: Layout) -> Roled:
    """The role of a parameter of which nothing but its shape is known. Raises Unclear where it fits several."""
    (_, sizes, grow), count = leaf, len(leaf.shape)
    wide = [axis for axis, size in enumerate(sizes) if size > 1]  # axes that are not there for broadcasting only
    if not grow:
        matrix = len(wide) > 1
        return Roled("fixed" if matrix else "scalar", _in_layout(leaf, layout) if matrix else "o" * count)
    if len(grow) > 2:
        raise Unclear(f"{leaf.path} {sizes}: three axes grow with width, which fits no role", "hidden")
    if len(grow) == 2:
        return Roled("hidden", _in_layout(leaf, layout))
    if count == 1 or (len(wide) <= 1 and (count != 2 or grow[0] == (layout == "in_out"))):  # (N,), (1, N), (N, 1, 1)
        return Roled("vector", "o" * count)
    axes = _in_layout(leaf, layout)
    if axes[grow[0]] == "o" and grow[0] in (0, count - 1):
        return Roled("input", axes)
    if in_branch:
        raise Unclear(
            f"{leaf.path} {sizes}: one axis grows, and its shape does not tell whether it is a matrix with "
            f"{math.prod(sizes) // sizes[grow[0]]} outputs or numbers of each neuron",
            "vector",
        )
    if 0 < grow[0] < count - 1 and max(sizes[: grow[0]]) > 1:
        raise Unclear(
            f"{leaf.path} {sizes}: the axis that grows stands between two others: outputs (such as heads, after "
            f"{sizes[0]} inputs: 'input ioo') or inputs ('output iio')?",
            "input ioo",
        )
    return Roled("readout", axes)


def overridden(name: str, shape: Shape, rule: Override, leaf: Leaf, layout: Layout, in_branch: bool) -> Roled:
    """What an override says of a parameter's role or axes. It wins over the axes that grow, since a plateau may hide
    growth. Raises SpecError if the parameter has fewer axes than the role needs."""
    axes = _leaf_axes(name, rule.axes, shape, len(leaf.shape)) if rule.axes else None
    if rule.role is None:
        assert axes is not None
        return Roled(role_of_axes(axes, leaf, in_branch), axes)
    growing, needed = len(leaf.grow), len(GROWING[rule.role])
    message = f"overrides: {name} {shape} has {growing} axes that grow with width, {rule.role!r} has {needed}"
    if len(leaf.shape) < needed:
        raise SpecError(message)
    if growing != needed and growing <= 2:
        warnings.warn(message, UserWarning, stacklevel=4)
    return Roled(rule.role, axes or axes_for(rule.role, leaf, layout))


def decide_readouts(
    roled: dict[str, Roled],
    leaves: Mapping[str, Leaf],
    settled: Collection[str],
    layout: Layout,
    forward_ends: Mapping[str, Role],
    unused: Collection[str],
) -> tuple[list[str], str]:
    """Decide in `roled` which of the parameters that look like readouts store the output factor. Of those that the
    forward pass says nothing of only one may: (these parameters, the question) if several do; else ([], "").

    forward_ends: `reading.ends`. unused: the parameters on which the logits do not depend: several are no question."""
    lookalikes = [path for path, (role, _) in roled.items() if role == "readout" and path not in settled]

    def decide(path: str, role: Role) -> None:
        axes = roled[path].axes
        matrix = role in ("input", "output", "readout")
        roled[path] = Roled(role, axes_for(role, leaves[path], layout, axes) if matrix else "o" * len(axes))

    for path in lookalikes:
        if path in forward_ends:
            decide(path, forward_ends[path])
    has_head = any(role == "readout" == forward_ends.get(path) for path, (role, _) in roled.items())
    unclear = [path for path in lookalikes if path not in forward_ends]
    # Beside a head, what products apply without being a part of the logits projects to a fixed size.
    outputs = {path for path in unclear if has_head or (path in unused and len(unclear) > 1)}
    unclear = [path for path in unclear if path not in outputs]
    for path in (*outputs, *unclear[:-1]):
        decide(path, "output")
    if len(unclear) < 2:
        return [], ""
    return unclear, (
        f"{' and '.join(unclear)} all look like readouts: 'readout' is followed by the output factor, 'output' is "
        "not, 'input' is an embedding"
    )


def fans(role: Role, axes: str, shape: Sequence[int]) -> tuple[int, int]:
    """(fan_in, fan_out) of one weight; a vector has no inputs, so its fan_in is 1."""
    if role in ("vector", "scalar"):
        return 1, math.prod(size for size, letter in zip(shape, axes, strict=True) if letter != "-")
    fan_in, fan_out = (math.prod(s for s, letter in zip(shape, axes, strict=True) if letter == side) for side in "io")
    return fan_in, fan_out


def axes_for(role: Role, leaf: Leaf, layout: Layout, axes: str = "") -> str:
    """The axes of a leaf of this role: as they are known or as the layout has them, or the other way round if the role
    says so."""
    if role in ("vector", "scalar"):
        return axes or "o" * len(leaf.shape)
    axes = axes or _in_layout(leaf, layout)
    side = GROWING[role]
    if len(side) == len(leaf.grow) == 1 and len(axes) > 1 and axes[leaf.grow[0]] != side:
        return axes.translate(str.maketrans("io", "oi"))
    return axes


def _in_layout(leaf: Leaf, layout: Layout) -> str:
    return (_reordered if layout == "out_in" else _in_out)(leaf.shape, leaf.grow)


def _in_out(sizes: Sequence[int], grow: Collection[int]) -> str:
    """Inputs, then outputs. The boundary is right after the first growing axis, or before the last axis where none
    grows; where two growing axes leave a choice, where the fans are most alike.

        (width, heads, head_dim), the first two grow    # "ioo"
        (heads, head_dim, width), the first and the last grow   # "iio"
    """
    last, growing = len(sizes) - 1, sorted(grow)
    if last < 1:
        return "i" * len(sizes)
    first = min(growing[0] + 1, last) if growing else last

    def unlike(b: int) -> float:
        return abs(math.log(math.prod(sizes[:b]) / math.prod(sizes[b:])))

    boundary = min(range(first, (growing[1] if len(growing) > 1 else first) + 1), key=unlike)
    return "i" * boundary + "o" * (len(sizes) - boundary)


def _reordered(sizes: Sequence[int], grow: Collection[int]) -> str:
    """(out, in, *receptive field), by way of (*receptive field, in, out)."""
    if len(sizes) < 2:
        return "o" * len(sizes)
    order = [*range(2, len(sizes)), 1, 0]
    letters = _in_out([sizes[a] for a in order], [i for i, a in enumerate(order) if a in grow])
    return "".join(letters[order.index(a)] for a in range(len(sizes)))


def _leaf_axes(name: str, axes: str, shape: Shape, count: int) -> str:
    """The letters of an override for the leaf's own axes. Those of the whole shape have a '-' for the stack axis."""
    letters = axes.replace("-", "", 1) if len(axes) == len(shape) > count else axes
    if len(letters) != count:
        raise SpecError(f"overrides: {name} {shape} has {len(shape)} axes, {axes!r} has {len(axes)} letters")
    return letters
