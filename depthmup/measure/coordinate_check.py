"""Coordinate check: does the change of the features in a few training steps depend on width or depth?"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from depthmup.backend import free_programs
from depthmup.measure.probe import ALL, Probe, compile_ahead, feature_changes
from depthmup.measure.slope import NOT_OK, OK, UNDECIDED, Slope, answer, estimate, fits, overall, stages
from depthmup.names import POSITIVE, at_least_one, listed, short

Shape = tuple[int, int]  # width and depth
LINES = 15  # of a printed report


class CoordinateReport(NamedTuple):
    """The result of a coordinate check. `print` shows the verdict, what is farthest from it and what to do.

    title: of the parameterization. slopes: all of them, judged or not. tolerance: largest slope that is ok.
    """

    title: str
    slopes: list[Slope]
    tolerance: float

    @property
    def verdict(self) -> str:
        """ "ok" if all judged slopes are ok, "not ok" if one is not, "undecided" otherwise."""
        return overall([s.answer for s in self.slopes])

    @property
    def ok(self) -> bool:
        """Is the verdict "ok"?"""
        return self.verdict == OK

    def table(self) -> str:
        """The verdict and a row for every slope, also of those that are not judged."""
        return "\n".join([*self._lines(), "", *_rows(self.slopes)])

    def __str__(self) -> str:
        """At most LINES lines: the verdict, the slopes farthest from 0, the advice, and the farthest one of each group
        that is not ok or undecided. `table()` has all."""
        lines = self._lines()
        worst: dict[tuple[str, str], Slope] = {}
        for s in sorted(self.slopes, key=lambda s: (s.answer != NOT_OK, -abs(s.plain.slope))):
            if s.answer in (NOT_OK, UNDECIDED):
                worst.setdefault((s.axis, s.group), s)
        shown = list(worst.values())[: LINES - len(lines) - 2]
        rows = _rows(shown) if shown else []
        return "\n".join([*lines, *rows, f"report.table() has all {len(self.slopes)} slopes"])

    def _lines(self) -> list[str]:
        """The verdict, the farthest slope along each axis, and advice."""
        judged = [s for s in self.slopes if s.judged]
        groups = len({s.group for s in judged})
        rule = f"within +-{self.tolerance:g} is ok, beyond it for {len(judged)} slopes together is not"
        lines = [f"{self.title}: {self.verdict} ({len(judged)} slopes of {groups} groups of parameters; {rule})"]
        for axis in dict.fromkeys(s.axis for s in judged):
            along = [s for s in judged if s.axis == axis]
            worst = max(along, key=lambda s: ((OK, UNDECIDED, NOT_OK).index(s.answer), abs(s.plain.slope)))
            sizes = ", ".join(map(str, worst.sizes))
            lines.append(f"over {axis} {sizes}, the farthest: {worst.group} {worst.plain} {worst.answer}")
        return [*lines, *self._advice()]

    @property
    def undecided(self) -> list[Slope]:
        """The undecided slopes along axes on which nothing is not ok."""
        wrong = {s.axis for s in self.slopes if s.answer == NOT_OK}
        return [s for s in self.slopes if s.answer == UNDECIDED and s.axis not in wrong]

    def _advice(self) -> list[str]:
        """Lines that say how undecided slopes could be decided."""
        small = [
            s for s in self.undecided if s.limit and (s.plain.low > self.tolerance or s.plain.high < -self.tolerance)
        ]
        seeds, lines = len(self.undecided) - len(small), []
        if seeds:
            lines.append(f"undecided: {seeds} slopes; take more seeds (max_seeds)")
        if small:
            lines.append(f"undecided: {len(small)} slopes that may fall like 1/depth; take larger depths or more seeds")
        if any(s.axis == "depth" and s.answer == NOT_OK and not s.limit for s in self.slopes):
            lines.append("two depths cannot tell a slope that falls like 1/depth from one that stays: give a third")
        return lines

    def plot(self, path: str | Path) -> None:
        """Draw RMS changes against width and depth, one line per judged group, to a PNG."""
        from depthmup.measure.plot import plot_coordinates

        plot_coordinates(self.title, self.slopes, path)


def _rows(slopes: Sequence[Slope]) -> list[str]:
    """A table of slopes, with its head."""
    columns = "{:6} {:22} {:9} {:>4} {:>5}  {:22} {:22} {}"
    head = ("axis", "trained", "quantity", "step", "seeds", "slope, 95% interval", "with a term 1/depth", "")
    rows = [
        (s.axis, s.group, s.quantity, s.step, s.changes.shape[1], str(s.plain), str(s.limit or ""),
         s.answer or "(not judged)")
        for s in slopes
    ]  # fmt: skip
    return [columns.format(*row).rstrip() for row in (head, *rows)]


def coordinate_check(
    probe_at: Callable[[int, int], Probe],
    *,
    widths: Sequence[int] = (),
    depths: Sequence[int] = (),
    width: int = 256,
    depth: int = 8,
    steps: Sequence[int] = (1, 10),
    seeds: int = 8,
    max_seeds: int = 64,
    tolerance: float = 0.1,
    title: str = "coordinate check",
    progress: Callable[[str], None] = lambda message: None,
) -> CoordinateReport:
    """Train each group of parameters alone, and all together, for a few steps, at several widths and depths; report the
    slopes of the features' RMS change over width and depth. In a correct parameterization the slopes are near 0.

    Args:
      probe_at: (width, depth) -> Probe; see `probe`. Take small learning rates: saturation hides slopes.
      widths: the widths to compare, at depth `depth`. depths: the depths to compare, at width `width`. An axis with
        fewer than two values is not checked.
      steps: numbers of training steps after which the change is measured.
      seeds: trainings of each group at each shape. Along an axis on which nothing is not ok, the number is doubled for
        the groups with an undecided slope, up to `max_seeds`; equal arguments give equal results. Further seeds are
        trained by the compiled programs of the first ones.
      tolerance: a slope is to be within +-tolerance.
      title: of the report. progress: is called with a line for each shape and seed that is trained.

    Every judged slope gets one of three answers, from its interval: "ok", "not ok" or "undecided". `slope.answer` has
    the rule. Along depth a slope that falls like 1/depth is no fault, so from three depths on the slope is also fitted
    beside a term 1/depth; two depths cannot tell.

    For most groups the slope of "hidden" is judged. The slope of "logits" is judged instead for groups that do not move
    "hidden" (the readout, a norm before it, scalars). Along depth, vectors in branches are judged by the "logits", and
    where these are not ok by the change of the "loss", if the probe has it: norms act on the features mainly through
    random weights, whose sum over blocks has a slope of its own, and to first order the loss sees none of it. So are,
    along width, vectors that do not move "hidden": with more classes than units the noise of the readout's random
    weights is what the logits see. A judged group that did not move is not ok. If the readout starts at 0 nothing else
    moves in the first step, so take steps=(2, 10) then.

    The other slopes are only shown. Slopes of logits along width are below 0 as long as noise of order 1/width adds to
    the logits. Trained with all others, hidden weights without their depth factor change a slope by less than .1. With
    a base depth above 1 small depths have a real slope, which fades.

    Raises ValueError if no axis has two values, a value is no whole number of at least 1, the tolerance is not
    positive, or "hidden" or "logits" is missing.
    """
    if not callable(probe_at):
        raise ValueError(f"probe_at must be a function (width, depth) -> Probe, got {short(probe_at)}")
    axes = _axes(widths, depths, width, depth)
    if not axes or not steps:
        raise ValueError("a coordinate check needs at least two widths or two depths, and a number of steps")
    for name, values in (("seeds", (seeds, max_seeds)), ("steps", steps)):
        for value in values:
            at_least_one(name, value)
    POSITIVE.check("tolerance", tolerance)
    free_programs()
    trainings, looks = _Trainings(probe_at, max(steps), seeds, progress), stages(seeds, max_seeds)
    open_groups = [(axis, group) for axis, shapes in axes.items() for group in trainings.groups(shapes)]
    counts: dict[tuple[str, str], int] = {}
    for count in looks:
        counts |= dict.fromkeys(open_groups, count)
        trainings.train(axes, open_groups, count)
        slopes = _slopes(trainings, axes, counts, steps, tolerance, len(looks))
        report = CoordinateReport(title, slopes, tolerance)
        open_groups = [(s.axis, s.group) for s in report.undecided]
        if not open_groups:
            break
    return report


def _axes(widths: Sequence[int], depths: Sequence[int], width: int, depth: int) -> dict[str, list[tuple[int, int]]]:
    """{axis: its shapes} of the axes with two shapes or more. Raises ValueError for a wrong width or depth."""
    axes = {
        "width": [(w, depth) for w in listed("widths", widths)],
        "depth": [(width, d) for d in listed("depths", depths)],
    }
    for name, values in (("width", [*widths, width]), ("depth", [*depths, depth])):
        for value in values:
            at_least_one(name, value)
    return {axis: shapes for axis, shapes in axes.items() if len(set(shapes)) > 1}


class _Trainings:
    """The changes measured so far. `train` adds the missing trainings, `block` seeds at a time."""

    def __init__(
        self, probe_at: Callable[[int, int], Probe], steps: int, block: int, progress: Callable[[str], None]
    ) -> None:
        self._probe_at = functools.cache(probe_at)  # one probe for each shape, so that its program is compiled once
        self._steps, self._block, self._progress = steps, block, progress
        self._blocks: dict[tuple[Shape, str], list[dict[str, np.ndarray]]] = {}
        self._starts: dict[Shape, Any] = {}  # of the first seed

    def groups(self, shapes: Sequence[Shape]) -> list[str]:
        """The groups to train. Raises ValueError for a group that not all shapes have."""
        groups = [(*self._probe_at(*shape).groups, ALL) for shape in shapes]
        for shape, names in zip(shapes, groups, strict=True):
            if set(names) != set(groups[0]):
                differ = sorted(set(names) ^ set(groups[0]))
                raise ValueError(
                    f"groups of parameters that (width, depth) = {shape} and {shapes[0]} do not share: {differ}"
                )
        return list(groups[0])

    def train(self, axes: Mapping[str, Sequence[Shape]], pairs: Sequence[tuple[str, str]], seeds: int) -> None:
        """Train each of these (axis, group) with `seeds` seeds, but for those that are trained already. All groups of a
        shape share its initial states."""
        groups_of_shape: dict[Shape, list[str]] = {}
        for axis, group in pairs:
            for shape in axes[axis]:
                groups_of_shape.setdefault(shape, []).append(group)
        new = [shape for shape in groups_of_shape if not any(done == shape for done, _ in self._blocks)]
        if new:
            self._progress(f"compiling {len(new)} shapes")
            starts = compile_ahead([self._probe_at(*shape) for shape in new], self._steps, seed=0)
            self._starts |= dict(zip(new, starts, strict=True))
        for shape, groups in groups_of_shape.items():
            trained = {group: self._blocks.setdefault((shape, group), []) for group in groups}
            for block in range(seeds // self._block):
                missing = [group for group, blocks in trained.items() if len(blocks) == block]
                if missing:
                    first_seed = block * self._block
                    self._progress(f"width {shape[0]} depth {shape[1]}: {', '.join(missing)}, seed {first_seed}")
                    more = range(first_seed, first_seed + self._block)
                    start = {0: self._starts[shape]}
                    changes = feature_changes(self._probe_at(*shape), missing, self._steps, more, start)
                    for group in missing:
                        trained[group].append(changes[group])

    def changes(self, shapes: Sequence[Shape], group: str, seeds: int) -> dict[str, np.ndarray]:
        """{quantity: RMS changes, (shapes, seeds, steps)} of the trainings that `train` has made."""
        rows = [self._blocks[shape, group][: seeds // self._block] for shape in shapes]
        return {q: np.stack([np.concatenate([b[q] for b in blocks]) for blocks in rows]) for q in rows[0][0]}


def _slopes(
    trainings: _Trainings,
    axes: Mapping[str, Sequence[Shape]],
    counts: Mapping[tuple[str, str], int],
    steps: Sequence[int],
    tolerance: float,
    looks: int,
) -> list[Slope]:
    """All slopes, by counts[axis, group] seeds, with their answers."""
    measured = []
    for (axis, group), count in counts.items():
        tables = trainings.changes(axes[axis], group, count)
        still = not tables["hidden"].any()
        by = "logits" if still else "hidden"
        if group.startswith("branch/vector") if axis == "depth" else still and group.startswith("vector"):
            sizes = tuple(shape[axis == "depth"] for shape in axes[axis])
            answers = [answer(fits(axis, sizes, tables["logits"][..., step - 1]), tolerance, looks) for step in steps]
            by = "loss" if "loss" in tables and set(answers) != {OK} else "logits"
        for quantity, table in tables.items():
            judged = quantity == by
            measured += [
                (axis, group, quantity, step, judged, table[..., step - 1])
                for step in steps
                if judged or table[..., step - 1].any()
            ]
    tests = sum(judged for *_, judged, _ in measured)
    slopes = []
    for axis, group, quantity, step, judged, changes in measured:
        sizes = tuple(shape[axis == "depth"] for shape in axes[axis])
        fitted = fits(axis, sizes, changes)
        plain, *limit = (estimate(fit, looks) for fit in fitted)
        verdict = answer(fitted, tolerance, looks, tests) if judged else ""
        slopes.append(Slope(axis, group, quantity, step, verdict, plain, limit[0] if limit else None, sizes, changes))
    return slopes
