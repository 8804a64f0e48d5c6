"""The shapes of a model's parameters at four shapes of the model; nothing is computed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection
from typing import Any

import jax

from depthmup.reading.overrides import Unclear
from depthmup.rules.specs import PyTree, Shape, SpecError, flatten_shapes, parameters_only

InitFn = Callable[[int, int], PyTree]
ROUNDING = 1 / 4  # the most by which the growth of a rounded size differs from 2


@dataclasses.dataclass(frozen=True)
class Trees:
    """Shapes by path: base at (w, d), wide at (2w, d), wider at (4w, d), deep at (w, 2d); the structure of base."""

    base: dict[str, Shape]
    wide: dict[str, Shape]
    wider: dict[str, Shape]
    deep: dict[str, Shape]
    structure: Any

    def widths(self, name: str) -> list[Shape]:
        """The shapes of one parameter at w, 2w and 4w."""
        return [tree.get(name, self.base[name]) for tree in (self.base, self.wide, self.wider)]

    def growing(self, name: str) -> tuple[int, ...]:
        """The axes that differ between any of the widths."""
        shapes = self.widths(name)
        if len({len(shape) for shape in shapes}) > 1:
            return ()
        return tuple(a for a, sizes in enumerate(zip(*shapes, strict=True)) if len(set(sizes)) > 1)

    def check_width(self, width: int, overridden: Collection[str], settled: Collection[str]) -> None:
        """Raises SpecError if the tree changes with width, or nothing grows. settled: parameters of known role."""
        for tree, size in ((self.wide, 2 * width), (self.wider, 4 * width)):
            odd = sorted((self.base.keys() ^ tree.keys()) - set(overridden))
            if odd:
                raise SpecError(
                    f"the parameter tree changes with width: {odd[0]} is there at only one of {width} and {size}. "
                    "Where names contain the width, hold the parameters in a list, or under names without it"
                )
        if not any(self.growing(name) for name in self.base) and not self.base.keys() <= set(settled):
            raise SpecError(
                f"no parameter grows with width: all shapes at width {width} are those at {2 * width}. init_fn(width, "
                "depth) must build the model at the width that it is given"
            )


def trees(init_fn: InitFn, width: int, depth: int) -> Trees:
    base, structure = _shapes(init_fn, width, depth)
    wide, wider, deep = (_shapes(init_fn, k * width, m * depth, (width, depth))[0] for k, m in ((2, 1), (4, 1), (1, 2)))
    return Trees(base, wide, wider, deep, structure)


def irregular(name: str, shapes: list[Shape], width: int) -> Unclear | None:
    """The error of an axis that neither stays nor doubles each time that width does; None if there is none."""
    if len({len(shape) for shape in shapes}) > 1:
        return Unclear(f"{name}: its number of axes changes with width, {' -> '.join(map(str, shapes))}", "hidden")
    for a, (x, y, z) in enumerate(zip(*shapes, strict=True)):
        if not (x == y == z or _doubles(x, y, z) or fixed_part(x, y, z)):
            return Unclear(
                f"{name}: axis {a} grows from {x} to {y} to {z} at widths {width}, {2 * width}, {4 * width}; it must "
                "double each time or stay, so that fan ratios are ratios of width",
                "hidden",
            )
    return None


def _doubles(x: int, y: int, z: int) -> bool:
    """Whether a size doubles each time, maybe rounded to a multiple, as 8/3 of the width is in Llama."""
    return all(abs(large / small - 2) <= ROUNDING for small, large in ((x, y), (y, z)))


def fixed_part(x: int, y: int, z: int) -> int:
    """The size of the part that is the same at all widths, on an axis that joins it to one that doubles; else 0."""
    part = 2 * x - y
    return part if part == 2 * y - z and 0 < part < x else 0


def regular_width(init_fn: InitFn, width: int, depth: int, names: Collection[str]) -> int | None:
    """The smallest of 2, 4 and 8 times the width from which all these parameters grow regularly, if there is one."""
    if not names:
        return None
    try:
        shapes = {k: _shapes(init_fn, k * width, depth)[0] for k in (2, 4, 8, 16, 32)}
    except Exception:  # It would only add to an error that is raised in any case.
        return None
    for k in (2, 4, 8):
        if not any(irregular(name, [shapes[k * j][name] for j in (1, 2, 4)], k * width) for name in names):
            return k * width
    return None


def _shapes(
    init_fn: InitFn, width: int, depth: int, base: tuple[int, int] | None = None
) -> tuple[dict[str, Shape], Any]:
    """`flatten_shapes` of the parameters. base: the shape that the caller asked for, if this is another one."""
    structures: list[Any] = []

    def arrays() -> list[Any]:  # A list: the tree itself may hold what JAX cannot return, or cannot hash.
        leaves, treedef = jax.tree.flatten(parameters_only(init_fn(width, depth)))
        structures.append(treedef)
        return leaves

    try:
        leaves = jax.eval_shape(arrays)
    except Exception as error:
        if base is None:
            raise
        raise SpecError(
            f"init_fn(width={width}, depth={depth}) raises {type(error).__name__}: {error}\n"
            f"For the specs at width={base[0]}, depth={base[1]} it is also called at 2 and 4 times this width and "
            "twice this depth: count width and depth in a unit that can double (n for 6n + 2 layers)"
        ) from error
    return flatten_shapes(jax.tree.unflatten(structures[-1], leaves))
