"""Which parameters are in residual blocks, from the shapes at depth d and 2d alone."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping

from depthmup.reading.overrides import Unclear
from depthmup.rules.specs import Shape


def stack_axis(name: str, before: Shape, after: Shape, grow: Collection[int]) -> int:
    """The axis along which blocks are stacked in a parameter whose shape changes with depth: the only one that does,
    which doubles and does not grow with width. Raises Unclear if there is none.

        (4, 32, 64) -> (8, 32, 64)      # 0
        (3, 32, 64) -> (7, 32, 64)      # Unclear, with the guess "branch": depth - 1 blocks, or such
    """
    changed = [a for a, (x, y) in enumerate(zip(before, after, strict=False)) if x != y]
    in_both = [a for a in changed if a in grow]
    axis = changed[0] if len(before) == len(after) and len(changed) == 1 and not in_both else None
    if axis is not None and after[axis] == 2 * before[axis]:
        return axis
    why = f"axis {in_both[0]} changes with width and with depth" if in_both else "one axis must double"
    guess = "branch" if axis is not None and after[axis] > 2 * before[axis] else "trunk"
    raise Unclear(f"{name}: its shape goes from {before} to {after} at twice the depth; {why}", guess)


class Lists:
    """Lists of blocks: paths that differ in one number, of which twice the depth has twice as many of each shape."""

    def __init__(self, few: Mapping[str, Shape], many: Mapping[str, Shape]) -> None:
        self.few, self.many = few, many
        self._counts = [Counter(star for path in of for star in _stars(path)) for of in (few, many)]
        self._shaped = [Counter((star, of[path]) for path in of for star in _stars(path)) for of in (few, many)]

    def contain(self, path: str) -> bool:
        """Raises Unclear for a list that gains members, but not twice as many of this shape."""
        shape, unclear, guess = self.few[path], "", "trunk"
        for star in _stars(path):
            (a, b), (a_shape, b_shape) = ([of[star] for of in self._counts], [of[star, shape] for of in self._shaped])
            if b_shape == 2 * a_shape:
                return True
            if b > a and not unclear:
                guess = "branch" if b_shape > a_shape else "trunk"
                unclear = f"{star} matches {a} parameters, {a_shape} of them of this shape, and {b} and {b_shape}"
        if unclear:
            raise Unclear(
                f"{path} {shape}: cannot tell whether it is one of the blocks: {unclear} at twice the depth", guess
            )
        return False

    def gains(self, path: str) -> bool:
        """Whether a parameter stands in a list that gains members."""
        return any(self._counts[1][star] > self._counts[0][star] for star in _stars(path))

    def unexplained(self, known: Collection[str]) -> list[str]:
        """The parameters that more depth adds, but that are in no list of the shallow model."""
        added = self.many.keys() - self.few.keys() - set(known)
        return sorted(path for path in added if not any(self._counts[0][star] for star in _stars(path)))


def _stars(path: str) -> list[str]:
    """The path with '*' for one of its numbers."""
    return [f"{path[: number.start()]}*{path[number.end() :]}" for number in re.finditer(r"\d+", path)]
