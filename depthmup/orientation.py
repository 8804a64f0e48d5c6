"""Which axes of a matrix are inputs and outputs, as the products of a forward pass show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from depthmup.graph import Site, last_matrices
from depthmup.infer import names
from depthmup.specs import Layout, Shape


class Matrix(NamedTuple):
    """A matrix, or the kernel of a convolution. outputs, inputs: its axes. grow: the axes that grow with width. axes:
    their number. stacked: whether the first axis runs over blocks or members of an ensemble. one_channel: whether no
    axis is longer than 1 but one, so that the shape does not tell inputs from outputs."""

    outputs: int
    inputs: int
    grow: tuple[int, ...]
    axes: int = 2
    stacked: bool = False
    one_channel: bool = False

    @property
    def layout(self) -> Layout | None:
        return "out_in" if self.outputs == self.stacked else "in_out" if self.outputs == self.axes - 1 else None

    @property
    def role(self) -> str:
        """An override for `infer_specs`."""
        if len(self.grow) == 1 and not (self.stacked or self.one_channel):
            return "output" if self.grow == (self.inputs,) else "input"
        letters = ["o" if axis == self.outputs else "i" for axis in range(self.axes)]
        return "-" * self.stacked + "".join(letters[self.stacked :])


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
    """{path: the matrix} where a convolution or sizes tell its axes. terms: the number of terms of each product;
    terms_at_twice: at twice the width."""
    result: dict[str, Matrix] = {}
    for site in applied(sites):
        (path,) = site.inside
        axes, count = grow.get(path, ()), len(shapes[path])
        if site.kernel:
            outputs, inputs = site.kernel
            if axes and set(axes) <= {outputs, inputs}:
                one_channel = sum(size > 1 for size in shapes[path]) == 1
                result[path] = Matrix(outputs, inputs, axes, count, one_channel=one_channel)
            continue
        both = (count - 2, count - 1)
        if not set(axes) <= set(both):
            continue
        few, many = terms[site.product], terms_at_twice[site.product]
        if len(axes) == 1:
            summed = [axis for axis in both if (axis in axes) == (many != few) and shapes[path][axis] == few]
        else:
            summed = [axis for axis in both if axes == both and shapes[path][axis] == few]
        if len(summed) == 1:
            result[path] = Matrix(sum(both) - summed[0], summed[0], axes, count, stacked=count > 2)
    return result


def applied(sites: Sequence[Site]) -> list[Site]:
    """What products apply to activations."""
    return [site for site in sites if site.kind == "applied"]


def layout_of(matrices: Mapping[str, Matrix]) -> Layout | None:
    """The layout of most matrices."""
    layouts = [matrix.layout for matrix in matrices.values() if matrix.layout]
    return None if not layouts else "out_in" if 2 * layouts.count("out_in") > len(layouts) else "in_out"


def mistaken(
    sites: Sequence[Site],
    matrices: Mapping[str, Matrix],
    shapes: Mapping[str, Shape],
    grow: Mapping[str, tuple[int, ...]],
    layout: Layout | None,
) -> dict[str, str]:
    """{path: an override} of what shapes and names mistake in a layout: matrices stored the other way round, heads with
    the name of an embedding or of no matrix, stacked matrices with one axis that grows, kernels of one channel, vectors
    that a sum runs over, and arrays with two growing axes that no product applies."""
    roles = {
        path: matrix.role
        for path, matrix in matrices.items()
        if matrix.layout != (layout or "in_out")
        or (len(matrix.grow) == 1 and (names.is_embedding(path) or not names.is_matrix(path)))
        or (len(matrix.grow) == 1 and (matrix.stacked or matrix.one_channel))
    }
    alone = (path for site in sites if site.kind == "elementwise" for path in site.inside)
    for path in alone:
        if len(grow.get(path, ())) == 2:
            roles[path] = "".join("o" if axis in grow[path] else "-" for axis in range(len(shapes[path])))
    contracted = ((path, site.axis) for site in sites if site.kind == "contracted" for path in site.inside)
    roles |= {path: "output" for path, axis in contracted if grow.get(path) == (axis,)}
    heads = {path for site in sites if site.kind == "output" for path in site.parts or ()}
    heads |= last_matrices(sites, [path for path, axes in grow.items() if axes])
    return {path: "readout" if path in heads and role == "output" else role for path, role in sorted(roles.items())}
