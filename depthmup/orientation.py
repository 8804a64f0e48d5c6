"""Which axis of a matrix a product of the forward pass sums over: that of its inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from depthmup.graph import Site
from depthmup.infer import names
from depthmup.specs import Layout, Shape


class Matrix(NamedTuple):
    """summed: the axis that a product sums over. grow: the axes that grow with width."""

    summed: int
    grow: tuple[int, ...]

    @property
    def role(self) -> str:
        """An override for `infer_specs`."""
        if len(self.grow) == 1:
            return "output" if self.grow == (self.summed,) else "input"
        return "io" if self.summed == 0 else "oi"


def growing(narrow: Mapping[str, Shape], wide: Mapping[str, Shape]) -> dict[str, tuple[int, ...]]:
    """{path: the axes that grow from one width to the next} of the parameters that both models have."""
    return {
        path: tuple(axis for axis, (few, many) in enumerate(zip(narrow[path], wide[path], strict=False)) if few != many)
        for path in narrow.keys() & wide.keys()
    }


def matrices(
    sites: Sequence[Site],
    shapes: Mapping[str, Shape],
    grow: Mapping[str, tuple[int, ...]],
    terms: Sequence[int],
    terms_at_twice: Sequence[int],
) -> dict[str, Matrix]:
    """{path: the matrix} where sizes tell the axis. terms: the number of terms of each product; at_twice: at twice the
    width."""
    result = {}
    for path, product in applied(sites).items():
        axes = grow.get(path, ())
        if len(axes) == 1:
            summed = [axes[0] if terms_at_twice[product] != terms[product] else 1 - axes[0]]
        else:
            summed = [axis for axis, size in enumerate(shapes[path]) if len(axes) == 2 and size == terms[product]]
        if len(summed) == 1:
            result[path] = Matrix(summed[0], axes)
    return result


def applied(sites: Sequence[Site]) -> dict[str, int]:
    """{path of a matrix: the number of the product that applies it to activations}"""
    return {path: site.product for site in sites if site.kind == "applied" for path in site.inside}


def layout_of(matrices: Mapping[str, Matrix]) -> Layout | None:
    """The layout of most matrices."""
    outputs_first = sum(matrix.summed for matrix in matrices.values())
    return None if not matrices else "out_in" if 2 * outputs_first > len(matrices) else "in_out"


def mistaken(
    sites: Sequence[Site],
    matrices: Mapping[str, Matrix],
    grow: Mapping[str, tuple[int, ...]],
    layout: Layout | None,
) -> dict[str, str]:
    """{path: an override} of what shapes and names mistake in a layout: matrices stored the other way round, heads with
    the name of an embedding, and vectors that a sum runs over."""
    inputs = 1 if layout == "out_in" else 0
    roles = {
        path: matrix.role
        for path, matrix in matrices.items()
        if matrix.summed != inputs or (len(matrix.grow) == 1 and names.is_embedding(path))
    }
    contracted = ((path, site.axis) for site in sites if site.kind == "contracted" for path in site.inside)
    roles |= {path: "output" for path, axis in contracted if grow.get(path) == (axis,)}
    heads = {path for site in sites if site.kind == "output" for path in site.parts or ()}
    return {path: "readout" if path in heads and role == "output" else role for path, role in sorted(roles.items())}
