"""The role and the fans of a parameter, from the axes that grow with width, its neighbours and its name."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from depthmup.infer import names
from depthmup.infer.overrides import Override, Unclear
from depthmup.infer.paths import parent_and_name
from depthmup.parameterization import Role
from depthmup.specs import Layout, Shape, SpecError

# role -> number of axes that grow
NEEDED: dict[Role, int] = {"input": 1, "hidden": 2, "output": 1, "readout": 1, "vector": 1, "scalar": 0, "fixed": 0}
Roled = dict[str, tuple[str, str]]  # {path: (role, axes)}


class Leaf(NamedTuple):
    """A parameter without its stack axis: all axes below are its own.

    sizes: the size of each axis at this width and at twice the width, so that equal axes also grow alike.
    grow: the axes that grow with width.
    """

    path: str
    sizes: tuple[tuple[int, int], ...]
    grow: tuple[int, ...]

    @property
    def shape(self) -> Shape:
        return tuple(size for size, _ in self.sizes)

    @property
    def is_kernel(self) -> bool:
        """Whether it may be the kernel of one input and one output channel, such as (1, N, 1)."""
        return len(self.sizes) > 1 and not names.is_vector(self.path)


class Roles:
    """Roles in a model of these leaves, in a layout."""

    def __init__(self, leaves: Mapping[str, Leaf], layout: Layout) -> None:
        self.leaves, self.layout = leaves, layout
        self.library = any(names.is_library_kernel(path) for path in leaves)
        inputs, outputs = (0, 1) if layout == "in_out" else (1, 0)
        self.routed = {of.shape[outputs] for of in leaves.values() if of.grow == (inputs,) and len(of.shape) == 2}

    def role(self, leaf: Leaf, in_branch: bool) -> Role:
        """Raises Unclear where a leaf fits several roles, or none."""
        sizes, grow, path = leaf.shape, leaf.grow, leaf.path
        wide = [a for a, size in enumerate(sizes) if size > 1]  # axes that are not there for broadcasting only
        if not grow:
            matrix = len(wide) > 1 and not names.is_vector(path)
            return "fixed" if matrix or not (in_branch or self.is_readout_bias(leaf)) else "scalar"
        if len(grow) > 2:
            raise Unclear(f"{path} {sizes}: three axes grow with width, which fits no role", "hidden")
        if len(grow) == 2:
            return "hidden"
        if names.is_vector(path) or self._is_diagonal(leaf) or self._is_scale(leaf):
            return "vector"
        single = len(wide) <= 1
        if single and (len(sizes) != 2 or grow[0] == (1 if self.layout == "in_out" else 0)):  # (N,), (1, N), (N, 1, 1)
            return "vector"
        if single and in_branch and not names.biases_of(path):
            raise Unclear(f"{path} {sizes}: a matrix with one output, or a vector kept in two axes?", "vector")
        try:
            side = self.axes(leaf)[grow[0]]
        except Unclear as error:
            raise Unclear(error.why, error.guess if in_branch else "readout iio") from None
        if side == "-":  # the blocks of a block-diagonal matrix: more of them as the width grows, all of one size
            return "vector"
        if side == "o":
            return "input"
        if self.layout == "out_in" and not in_branch and len(sizes) == 2 and names.is_embedding(path):
            return "input"  # (vocabulary, width) in every library
        if in_branch and self.layout == "in_out" and self.library and not names.is_matrix(path):
            raise Unclear(
                f"{path} {sizes}: one axis grows, and its name does not tell whether it is a matrix with {sizes[-1]} "
                "outputs or numbers of each neuron",
                "vector",
            )
        return "output" if in_branch else "readout"

    def is_readout_bias(self, leaf: Leaf) -> bool:
        """Whether a leaf outside the branches, none of whose axes grows, is added after the output factor: it stands
        beside the readout, or has its number of outputs; or it is a single number."""
        parent, _ = parent_and_name(leaf.path)
        matrices = [m for m in self.leaves.values() if len(m.sizes) > 1]
        beside = [m for m in matrices if parent_and_name(m.path)[0] == parent and m.path != leaf.path]
        bias = names.is_bias(leaf.path)
        if beside and parent:
            outputs = -1 if self.layout == "in_out" else 0
            return bias and all(len(o.grow) == 1 and o.grow[0] != range(len(o.sizes))[outputs] for o in beside)
        ends = [m for m in matrices if len(m.grow) == 1]
        sizes = {m.shape[a] for m in ends for a in range(len(m.shape)) if a not in m.grow}
        alone = not parent or not self._siblings(leaf)
        wide = [size for size in leaf.shape if size > 1]
        return not leaf.shape or (len(wide) == 1 and wide[0] in sizes and bias and alone)

    def axes(self, leaf: Leaf) -> str:
        """One letter per axis: i (inputs), o (outputs), - (neither)."""
        sizes, grow, count = leaf.shape, leaf.grow, len(leaf.sizes)
        if self._maps_state(leaf):
            return "oi" + "-" * (count - 2)
        letters = self.axes_from_bias(leaf)
        if letters is not None and (
            len(grow) != 1 or (letters[0] == "i") == (self.layout == "in_out") or "-" in letters
        ):
            return letters
        growing = grow[0] if grow else count - 1
        copies = 1 if growing > 0 and count > 2 and len(grow) == 2 and self._has_copies(leaf) else 0
        if self.layout == "out_in":
            return "-" * copies + _reordered(sizes[copies:], [a - copies for a in grow])
        if names.is_einsum(leaf.path) and count > 2 and len(grow) == 2 and 0 not in grow and letters is None:
            return _einsum(sizes, grow)
        if names.is_einsum(leaf.path) and count == 3 and grow == (0, 1):
            return "oio"  # (heads, width, head_dim)
        if len(grow) == 1 and 0 < growing < count - 1:  # one growing axis between others: (inputs, heads, head_dim)?
            convolved = names.is_convolution(leaf.path) or math.prod(sizes[:growing]) == 1
            side = "i" if convolved else names.head_side(leaf.path) or ("i" if count > 3 else None)
            if side is None:
                raise Unclear(
                    f"{leaf.path} {sizes}: the axis that grows stands between two others: outputs (such as heads, "
                    f"after {sizes[0]} inputs: 'input ioo') or inputs ('output iio')?",
                    "input ioo",
                )
            if side == "o":
                return "i" * growing + "o" * (count - growing)
        return "-" * copies + _in_out(sizes[copies:], [a - copies for a in grow])

    def axes_from_bias(self, leaf: Leaf) -> str | None:
        """One letter per axis of a kernel: the axes that its bias has are outputs. None where sizes and growth do not
        identify them."""
        sizes = leaf.sizes
        bias = next((self.leaves[path] for path in names.biases_of(leaf.path) if path in self.leaves), None)
        if bias is None or len(sizes) < 2:
            return None
        bias_sizes = tuple(size for size in bias.sizes if size != (1, 1))
        if not bias_sizes:
            return None
        ends = [k for k in range(1, len(sizes)) if sizes[k:] == bias_sizes]
        front = sizes[:1] == bias_sizes
        if ends and not front:
            return "i" * ends[0] + "o" * (len(sizes) - ends[0])
        if front and not ends:
            return "o" + "i" * (len(sizes) - 1)
        copies = [k for k in range(2, len(sizes)) if sizes[:1] + sizes[k:] == bias_sizes]
        if copies and not front:
            return "-" + "i" * (copies[0] - 1) + "o" * (len(sizes) - copies[0])
        return None

    def misplaced(self, leaf: Leaf) -> bool:
        """Whether the bias of a kernel with one growing axis has the size of the axis that the layout makes inputs."""
        letters = self.axes_from_bias(leaf)
        ends = ("i", "o") if self.layout == "in_out" else ("o", "i")
        return (
            letters is not None
            and len(leaf.grow) == 1
            and "-" not in letters
            and (letters[0], letters[-1]) == ends[::-1]
        )

    def _siblings(self, leaf: Leaf) -> list[Leaf]:
        parent = parent_and_name(leaf.path)[0]
        children = (child for path, child in self.leaves.items() if parent_and_name(path)[0] == parent)
        return [child for child in children if child != leaf]

    def _is_scale(self, leaf: Leaf) -> bool:
        """Whether the bias beside the leaf has the leaf's shape, as in a norm over several axes."""
        biases = (self.leaves[path] for path in names.biases_of(leaf.path) if path in self.leaves)
        return len(leaf.sizes) > 1 and any(bias.sizes == leaf.sizes for bias in biases)

    def _is_diagonal(self, leaf: Leaf) -> bool:
        """Whether a parameter of a state-space layer belongs to each channel: the state matrix of Mamba and S4D is
        diagonal, (channels, states), and so are B and C of the same shape."""
        siblings = self._siblings(leaf)
        if names.is_state(leaf.path):
            # A alone may be the first factor of a low-rank matrix, beside B.
            return names.last(leaf.path) != "A" or any(names.last(sibling.path)[0] == "C" for sibling in siblings)
        states = [o for o in siblings if names.is_state(o.path) and len(o.sizes) > 1 and self._is_diagonal(o)]
        return names.is_to_state(leaf.path) and any(leaf.sizes[: len(o.sizes)] == o.sizes for o in states)

    def _maps_state(self, leaf: Leaf) -> bool:
        """Whether it is B (states, inputs) or C (outputs, states), with the real and imaginary parts behind or not."""
        states = [o for o in self._siblings(leaf) if names.is_state(o.path) and names.last(o.path) != "A"]
        return bool(names.is_to_state(leaf.path) and states) and len(leaf.sizes) in (2, 3)

    def without_experts(self, leaf: Leaf, letters: str) -> str:
        """The letters of a product, in which experts that all see each input, and whose outputs are added, look like
        heads: their name alone tells them."""
        among_matrices = len(letters) > 2 and 0 not in leaf.grow and set(letters[1:]) == {"i", "o"}
        return "-" + letters[1:] if among_matrices and names.is_expert(leaf.path) else letters

    def _has_copies(self, leaf: Leaf) -> bool:
        """Whether the first axis counts experts: by a name, or because a router beside it has as many outputs."""
        return names.is_expert(leaf.path) or (leaf.shape[0] > 1 and leaf.shape[0] in self.routed)


def overridden_role(
    name: str, shape: Shape, rule: Override, leaf: Leaf, roles: Roles, in_branch: bool
) -> tuple[Role, str]:
    """(role, axes) of a parameter whose role or axes an override gives. The override wins over the axes that grow,
    since a plateau may hide growth. Raises SpecError if the parameter has fewer axes than the role needs."""
    axes = _leaf_axes(name, rule.axes, shape, len(leaf.sizes)) if rule.axes else None
    if rule.role is None:
        assert axes is not None
        return _role_of_axes(axes, leaf, in_branch), axes
    growing, needed = len(leaf.grow), NEEDED[rule.role]
    message = f"overrides: {name} {shape} has {growing} axes that grow with width, {rule.role!r} has {needed}"
    if len(leaf.sizes) < needed:
        raise SpecError(message)
    if growing != needed and growing <= 2:
        warnings.warn(message, UserWarning, stacklevel=4)
    return rule.role, axes or axes_for(rule.role, leaf, roles)


def readouts(
    roles: Roles,
    roled: Roled,
    settled: set[str],
    branch: Mapping[str, bool],
    ends: Callable[[], Mapping[str, Role]] | None,
) -> tuple[list[str], str]:
    """Decide in `roled` which parameters store the output factor: several heads, or a kernel with one input and one
    output channel. Without a forward pass only one may look like a readout: (those that do, the question), if several
    do; else ([], "")."""
    lookalikes = [name for name, (role, _) in roled.items() if role == "readout" and name not in settled]
    kernels = [name for name, (role, _) in roled.items() if role == "vector" and roles.leaves[name].is_kernel
               and not branch[name] and name not in settled]  # fmt: skip
    forward_ends = ends() if ends is not None and (lookalikes or kernels) else {}
    for name in (*lookalikes, *kernels):
        role = forward_ends.get(name)
        if name in kernels and role != "readout":
            # A product applies the kernel of one input channel; it does not apply a vector, such as a scale (1, N, 1).
            role = "input" if role in (None, "output") and "readout" in forward_ends.values() else None
        if role is not None:
            roled[name] = (role, axes_for(role, roles.leaves[name], roles))
    heads = [name for name, (role, _) in roled.items() if role == "readout" and forward_ends.get(name) == "readout"]
    lookalikes = [name for name in lookalikes if name not in forward_ends]
    if heads:  # what products apply without being a part of the logits projects to a fixed size
        roled |= {name: ("output", axes_for("output", roles.leaves[name], roles)) for name in lookalikes}
        return [], ""
    if len(lookalikes) < 2:
        return [], ""
    last = max(lookalikes, key=lambda name: (names.is_last(name), not names.is_first(name)))
    for name in lookalikes:
        roled[name] = ("readout" if name == last else "output", "")
    return lookalikes, (
        f"{' and '.join(lookalikes)} all look like readouts: 'readout' is followed by the output factor, 'output' is "
        "not, 'input' is an embedding"
    )


def fans(role: Role, axes: str, shape: Sequence[int]) -> tuple[int, int]:
    """(fan_in, fan_out) of one weight; a vector has no inputs, so its fan_in is 1."""
    if role in ("vector", "scalar"):
        return 1, math.prod(size for size, letter in zip(shape, axes, strict=True) if letter != "-")
    fan_in, fan_out = (math.prod(s for s, letter in zip(shape, axes, strict=True) if letter == side) for side in "io")
    return fan_in, fan_out


def _in_out(sizes: Sequence[int], grow: Collection[int]) -> str:
    """Inputs, then outputs. The boundary is right after the first growing axis; where two growing axes leave a choice,
    as in (width, heads, head_dim) and (heads, head_dim, width), where the fans are most alike."""
    last = len(sizes) - 1
    growing = sorted(grow) or [last]
    boundaries = range(growing[0] + 1, growing[1] + 1) if len(growing) > 1 else [min(growing[0] + 1, last)]
    if not grow:
        boundaries = [last]

    def unlike(b: int) -> float:
        return abs(math.log(math.prod(sizes[:b]) / math.prod(sizes[b:])))

    boundary = max(1, min(boundaries, key=unlike)) if last else 1
    return "i" * boundary + "o" * (len(sizes) - boundary)


def _reordered(sizes: Sequence[int], grow: Collection[int]) -> str:
    """(out, in, *receptive field), by way of (*receptive field, in, out)."""
    if len(sizes) < 2:
        return "o" * len(sizes)
    order = [*range(2, len(sizes)), 1, 0]
    letters = _in_out([sizes[a] for a in order], [i for i, a in enumerate(order) if a in grow])
    return "".join(letters[order.index(a)] for a in range(len(sizes)))


def _einsum(sizes: Sequence[int], grow: Sequence[int]) -> str:
    """(fixed axes, a, b): heads before (width, head_dim) are outputs, those before (head_dim, width) inputs, whichever
    makes the fans more alike; two or three fused matrices are outputs."""
    start, last = grow[0], len(sizes) - 1
    front, a, b = math.prod(sizes[:start]), math.prod(sizes[start:last]), sizes[last]
    inputs = sizes[0] not in (2, 3) and abs(math.log(front * a / b)) < abs(math.log(a / (front * b)))
    return ("i" if inputs else "o") * start + "i" * (last - start) + "o"


def _leaf_axes(name: str, axes: str, shape: Shape, count: int) -> str:
    """The letters of an override for the leaf's own axes. Those of the whole shape have a '-' for the stack axis."""
    letters = axes.replace("-", "", 1) if len(axes) == len(shape) > count else axes
    if len(letters) != count:
        raise SpecError(f"overrides: {name} {shape} has {len(shape)} axes, {axes!r} has {len(axes)} letters")
    return letters


def axes_for(role: Role, leaf: Leaf, roles: Roles) -> str:
    """The axes of a leaf of this role: as shapes have them, or the other way round if the role says so."""
    try:
        axes = roles.axes(leaf)
    except Unclear:
        axes = "i" * leaf.grow[0] + "o" * (len(leaf.sizes) - leaf.grow[0]) if role == "input" else ""
        axes = axes or "i" * (len(leaf.sizes) - 1) + "o"
    side = {"input": "o", "output": "i", "readout": "i"}.get(role)
    if side is not None and len(leaf.grow) == 1 and len(axes) > 1 and axes[leaf.grow[0]] != side:
        return axes.translate(str.maketrans("io", "oi"))
    return axes


def _role_of_axes(axes: str, leaf: Leaf, in_branch: bool) -> Role:
    sides = {axes[a] for a in leaf.grow}
    if {"i", "o"} <= sides:
        return "hidden"
    if "i" in sides:
        return "output" if in_branch else "readout"
    if "o" in sides:
        return "input" if "i" in axes else "vector"
    return "vector" if "-" in sides else "fixed"  # more blocks of a block-diagonal matrix, all of one size
