"""Which parameters are in residual blocks: what repeats with depth, from the shapes at depth d and 2d."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from depthmup.infer import names
from depthmup.infer.overrides import Override, Unclear
from depthmup.infer.paths import Tokens, indices, starred, tied, tokenize
from depthmup.specs import Shape


class Blocks:
    """The lists of blocks of a model.

    A path with one index replaced by '*' is a *star*; if no single index repeats, all equal indices are replaced. The
    base tree has a star's leaves at depth d, the deep tree at 2d: twice as many leaves are a list of blocks. An
    *element* of a list has all leaves with the same index there.

    grow: the axes of each leaf that grow with width.
    """

    def __init__(
        self,
        base: Mapping[str, Shape],
        deep: Mapping[str, Shape],
        grow: Mapping[str, Collection[int]],
        rules: Mapping[str, Override],
    ) -> None:
        self.base, self.deep, self.grow = base, deep, grow
        self.tokens = tokenize({**base, **deep})
        trees = [[(self.tokens[name], shape) for name, shape in tree.items()] for tree in (base, deep)]
        self.counts = [Counter(star for path, _ in tree for star in _stars(path)) for tree in trees]
        self.shaped = [Counter((star, s) for path, s in tree for star in _stars(path)) for tree in trees]
        members = [{path[: i + 1] for path, _ in tree for i in indices(path)} for tree in trees]
        self.shifting = {path[:-1] for path in members[1] - members[0]}  # lists that gain members
        self.added: dict[Tokens, list[Tokens]] = {}  # paths that more depth adds, by their stars of equal indices
        for path in (self.tokens[name] for name in deep.keys() - base.keys()):
            for i in tied(path):
                self.added.setdefault(starred(path, i), []).append(path)
        self.explained: set[Tokens] = set()  # stars that are known to run over blocks
        self.settled: set[Shape] = set()  # shapes of leaves whose place an override gives
        self.named = self._named_lists()
        for name in base:
            if name in rules and rules[name].place is not None:
                self.settled.add(base[name])
                self.explained.update(starred(self.tokens[name], i) for i in self._positions(name))
        self.elements = self._elements()

    def axis(self, name: str) -> int | None:
        """The axis along which blocks are stacked, or None: the only axis that changes with depth, which doubles and
        does not grow with width. Raises Unclear if the shape changes with depth otherwise."""
        before, after = self.base[name], self.deep.get(name, self.base[name])
        changed = [a for a, (x, y) in enumerate(zip(before, after, strict=False)) if x != y]
        axis = changed[0] if len(before) == len(after) and len(changed) == 1 else None
        if axis is not None and axis not in self.grow[name] and after[axis] == 2 * before[axis]:
            return axis
        path = self.tokens[name]
        if before != after and not any(path[:i] in self.shifting for i in indices(path)):
            # (In a list that gains members, the same name may mean another parameter.)
            in_both = [a for a in changed if a in self.grow[name]]
            why = f"axis {in_both[0]} changes with width and with depth" if in_both else "one axis must double"
            raise Unclear(f"{name}: its shape goes from {before} to {after} at twice the depth; {why}", "trunk")
        return None

    def contain(self, name: str, is_shortcut: bool) -> bool:
        """Whether the leaf is in a block of a list and does not project its skip. Raises Unclear if it may or may not
        be."""
        path, shape = self.tokens[name], self.base[name]
        if is_shortcut:
            self.explained.update(starred(path, i) for i in self._positions(name))
            return False
        ambiguous = list[tuple[Tokens, int, int]]()
        positions = self._positions(name)
        for i in [*positions, *tied(path)]:
            star = starred(path, i)
            a, b, a_shape, b_shape = self._count(star, shape)
            if i < 0 and self._doubles_otherwise(star):
                continue  # equal indices are chance where one index alone repeats (stages/2/layers/2)
            # Where one index alone repeats, though not twice as often, equal indices are chance (layers/1/w1).
            if (b == 2 * a or b_shape == 2 * a_shape) and (i in positions or not ambiguous):
                self.explained.add(star)
                return self._is_block(name, i % len(path))
            if b > a and b_shape > a_shape:
                ambiguous.append((star, a, b))
        if ambiguous:
            self.explained.update(star for star, *_ in ambiguous)  # the answer to this question decides for all
            star, a, b = ambiguous[0]
            raise Unclear(
                f"{name} {shape}: cannot tell whether it is one of the blocks: {'/'.join(map(str, star))} "
                f"matches {a} parameters and {b} at twice the depth (twice as many were expected). Put the blocks into "
                "a submodule or list of their own, or say what it is",
                "branch",
            )
        return False

    def _doubles_otherwise(self, star: Tokens) -> bool:
        """Whether each leaf that more depth adds to a star of equal indices is in a list by one index alone."""
        few, many = self.counts
        added = self.added.get(star, [])
        stars = ([starred(path, i) for i in indices(path)] for path in added)
        return bool(added) and all(any(many[one] == 2 * few[one] for one in of_path) for of_path in stars)

    def repeats_otherwise(self, name: str) -> bool:
        """Whether a list that gains members has the leaf, but not in this shape in its new members: a block at the
        border of two stages, or a readout at the end of the list."""
        counts = [self._count(starred(self.tokens[name], i), self.base[name]) for i in self._positions(name)]
        return any(b > a and b != 2 * a for a, b, *_ in counts)

    def unexplained(self, rules: Mapping[str, Override]) -> list[str]:
        """The parameters that more depth adds, but that repeat none of the blocks found."""
        result = []
        for name in self.deep.keys() - self.base.keys() - rules.keys():
            path = self.tokens[name]
            stars = [starred(path, i) for i in [*self._positions(name), *tied(path)]]
            # In a list that gains members, a leaf of only some members may move to other indices: none is added.
            moved = any(path[:i] in self.shifting and self._gains_nothing(starred(path, i)) for i in indices(path))
            if not (moved or self.explained.intersection(stars) or self.deep[name] in self.settled):
                result.append(name)
        return sorted(result)

    def _positions(self, name: str) -> list[int]:
        """The positions of a path that may run over blocks."""
        path = self.tokens[name]
        words = [i for i in range(len(path)) if starred(path, i) in self.named]
        return indices(path) + [i for i in words if isinstance(path[i], str)]

    def _count(self, star: Tokens, shape: Shape) -> tuple[int, int, int, int]:
        a, b = (count[star] for count in self.counts)
        a_shape, b_shape = (count[star, shape] for count in self.shaped)
        return a, b, a_shape, b_shape

    def _gains_nothing(self, star: Tokens) -> bool:
        return self.counts[0][star] >= self.counts[1][star]

    def _named_lists(self) -> set[Tokens]:
        """Stars of names that are no numbers: {"blocks": {"a": ..., "b": ...}}, twice as many names at twice the depth.
        The names must be in a container: at the top, other parameters stand beside them."""
        lists: set[Tokens] = set()
        for name in self.deep.keys() - self.base.keys():
            path = self.tokens[name]
            if any(not self._gains_nothing(starred(path, i)) and self.counts[0][starred(path, i)]
                   for i in indices(path)):  # fmt: skip
                continue
            stars = [starred(path, i) for i in range(1, len(path)) if isinstance(path[i], str)]
            lists.update(star for star in stars if 0 < 2 * self.counts[0][star] == self.counts[1][star])
        return lists

    def _elements(self) -> dict[Tokens, list[str]]:
        """{path up to an index: the leaves below} of the base tree."""
        result: dict[Tokens, list[str]] = {}
        for name in self.base:
            for i in self._positions(name):
                result.setdefault(self.tokens[name][: i + 1], []).append(name)
        return result

    def _is_block(self, name: str, position: int) -> bool:
        """Whether the element of a list that doubles is a residual block.

        A matrix that all elements have, but whose shape no other element repeats, is odd. One with a single growing
        axis is a read-in or readout that stands in the list. One whose two growing axes differ changes the width:
        without a parameter that projects the shortcut, the block may have no skip connection.
        """
        element = self.elements[self.tokens[name][: position + 1]]
        odd = []
        for member in element:
            a, b, a_shape, b_shape = self._count(starred(self.tokens[member], position), self.base[member])
            if b == 2 * a and b_shape <= a_shape and not names.is_vector(member):
                odd.append(member)
        growing = {member: sorted(self.grow[member]) for member in odd}
        resizing = [member for member, axes in growing.items() if len(axes) == 2]
        ends = [m for m, axes in growing.items() if len(axes) == 1 and max(self._without(m, axes), default=1) > 1]
        if ends and not resizing:  # (A depthwise kernel has one growing axis too, beside matrices.)
            return False
        resized = [member for member in resizing if len({self.base[member][a] for a in growing[member]}) > 1]
        if resized and not self._projects(element, position):
            raise Unclear(
                f"{name}: cannot tell whether its block is residual: {resized[0]} {self.base[resized[0]]} changes the "
                "width, and no parameter projects a shortcut ('trunk' without a skip connection, 'branch' with one)",
                "trunk",
            )
        side = [member for member in element if self._is_pointwise_beside(member, element)]
        if name in side:
            raise Unclear(
                f"{name} {self.base[name]}: cannot tell whether it projects the shortcut ('trunk') or is a layer of "
                "the branch: a larger kernel of the same block has the same inputs and outputs",
                "trunk",
            )
        return True

    def _without(self, name: str, axes: Collection[int]) -> list[int]:
        return [size for a, size in enumerate(self.base[name]) if a not in axes]

    def _projects(self, element: list[str], position: int) -> bool:
        """Whether a matrix of the element projects the shortcut: by its name, or because not all elements have it."""
        matrices = [name for name in element if len(self.grow[name]) == 2]
        stars = {name: starred(self.tokens[name], position) for name in matrices}
        return any(names.is_shortcut(n) or self.counts[1][stars[n]] < 2 * self.counts[0][stars[n]] for n in matrices)

    def _is_pointwise_beside(self, name: str, element: list[str]) -> bool:
        """Whether it is a 1x1 convolution that changes the width beside a larger one between the same widths."""
        axes, shape = sorted(self.grow[name]), self.base[name]
        sizes = [shape[a] for a in axes]
        if len(shape) < 3 or len(sizes) != 2 or sizes[0] == sizes[1] or max(self._without(name, axes)) > 1:
            return False
        return any(
            len(self.base[kernel]) == len(shape)
            and sorted(self.grow[kernel]) == axes
            and [self.base[kernel][a] for a in axes] == sizes
            and max(self._without(kernel, axes)) > 1
            for kernel in element
        )


def _stars(path: Tokens) -> list[Tokens]:
    return [starred(path, i) for i in [*range(len(path)), *tied(path)]]
