"""The picture of docs/reading.md: what the program of a small network says of each of its weights.

    python -m experiments.reading_picture docs/images/reading.png       (half a minute)

Letters, sizes and roles are those that `infer_specs` and the walk over the program give.
"""

from __future__ import annotations

import sys

import jax
import jax.numpy as jnp
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle

import depthmup as dm
from depthmup.reading.graph import traced_program, uses_of
from depthmup.rules.specs import PyTree, leaves_of

WIDTH, DEPTH = 16, 1
COLORS = {"i": "C0", "o": "C1"}  # axes of inputs, of outputs
PLACES = {"embed": (0.0, 0.0), "up": (2.3, 1.5), "down": (4.1, 1.5), "head": (6.4, 0.0)}  # left ends; heights
UNIT = 0.55  # the length of an axis that grows; others are half as long


def init(width: int, depth: int) -> PyTree:
    blocks = {"up": jnp.ones((depth, width, 2 * width)), "down": jnp.ones((depth, 2 * width, width))}
    return {"embed": jnp.ones((5, width)), "blocks": blocks, "head": jnp.ones((width, 3))}


def apply(width: int, depth: int, params: PyTree, x: jax.Array) -> jax.Array:
    del width, depth
    h = x @ params["embed"]
    step = lambda h, block: (h + jnp.tanh(h @ block["up"]) @ block["down"], None)  # noqa: E731
    return jax.lax.scan(step, h, params["blocks"])[0] @ params["head"]


def draw(axes: Axes, name: str, letters: str, grows: list[bool], role: str) -> None:
    """A weight as a rectangle: inputs downwards, outputs to the right; what grows with width is long and thick."""
    left, middle = PLACES[name]
    height, length = (UNIT * (1 + grows[letters.index(letter)]) for letter in "io")
    bottom = middle - height / 2
    axes.add_patch(Rectangle((left, bottom), length, height, facecolor="0.93", edgecolor="none"))
    sides = {"i": ([left, left], [bottom, bottom + height]), "o": ([left, left + length], [bottom, bottom])}
    for axis, letter in enumerate(letters):
        axes.plot(*sides[letter], color=COLORS[letter], linewidth=5 if grows[axis] else 2, solid_capstyle="butt")
    axes.text(left + length / 2, middle, name, ha="center", va="center")
    axes.text(left + length / 2, bottom - 0.12, role, ha="center", va="top", fontsize=9, color="0.35")


def main() -> None:
    x, paths = jnp.ones((2, 5)), {"blocks/up": "up", "blocks/down": "down"}
    specs, wide = (leaves_of(dm.infer_specs(init, apply, x, width=k * WIDTH, depth=DEPTH)) for k in (1, 2))
    params = init(WIDTH, DEPTH)
    letters = uses_of(traced_program(lambda params, x: apply(WIDTH, DEPTH, params, x), params, (x,)), params).axes
    figure = Figure(figsize=(8.4, 3.1), layout="constrained")
    axes = figure.subplots()
    for spec, at_twice in zip(specs, wide, strict=True):
        grows = [size != twice for size, twice in zip(spec.shape, at_twice.shape, strict=True)]
        drawn = [axis for axis, letter in enumerate(letters[spec.path]) if letter != "-"]
        text = "".join(letters[spec.path][axis] for axis in drawn)
        draw(axes, paths.get(spec.path, spec.path), text, [grows[axis] for axis in drawn], spec.placed_role)
    for start, end, curve in (
        ((1.2, 0), (6.3, 0), 0.0), ((1.6, 0), (2.2, 1.5), -0.3),
        ((3.45, 1.5), (4.0, 1.5), 0.0), ((5.3, 1.5), (5.8, 0), -0.3),
    ):  # fmt: skip
        style = f"arc3,rad={curve}"
        axes.add_patch(
            FancyArrowPatch(start, end, connectionstyle=style, arrowstyle="->", mutation_scale=14, color="0.4")
        )
    axes.text(
        5.8, 0, "+", ha="center", va="center", fontsize=14, bbox={"boxstyle": "circle", "fc": "white", "ec": "0.4"}
    )
    axes.text(3.75, -0.2, "stream", ha="center", va="top", fontsize=9, color="0.35")
    axes.text(3.75, 2.35, "branch: twice the depth has two", ha="center", fontsize=9, color="0.35")
    for row, (letter, text) in enumerate((("i", "summed over: inputs"), ("o", "kept: outputs"))):
        axes.plot([-0.1, 0.25], [2.3 - 0.35 * row] * 2, color=COLORS[letter], linewidth=3)
        axes.text(0.4, 2.3 - 0.35 * row, text, va="center", fontsize=9)
    axes.text(-0.1, 1.45, "thick: longer\nat more width", va="center", fontsize=9)
    axes.set(xlim=(-0.3, 7.6), ylim=(-1.1, 2.7), aspect="equal")
    axes.axis("off")
    figure.savefig(sys.argv[1], dpi=150)


if __name__ == "__main__":
    main()
