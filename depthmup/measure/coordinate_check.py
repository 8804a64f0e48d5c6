"""Coordinate check: does the change of the features in a few training steps depend on width or depth?"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from depthmup.backend import cores, free_programs
from depthmup.measure.probe import ALL, Ahead, Probe, compile_ahead, feature_changes
from depthmup.measure.slope import NOT_OK, OK, UNDECIDED, Slope, answer, estimate, fits, overall, reachable, stages
from depthmup.names import POSITIVE, at_least_one, listed, short

Shape = tuple[int, int]  # width and depth
Key = tuple[int, int, str, int, int, int]  # of trainings: width, depth, group, first seed, number of seeds, steps
Changes = dict[str, np.ndarray]  # {quantity: RMS changes}; of trainings with a key, (seeds, steps)
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
        """The verdict and a row for every slope, also of those that are not judged.

        Returns:
          The table as text.
        """
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
            order = (OK, UNDECIDED, NOT_OK).index
            worst = max(along, key=lambda s: (order(s.answer), np.nan_to_num(abs(s.plain.slope), nan=-1.0)))
            sizes = ", ".join(map(str, worst.sizes))
            lines.append(f"over {axis} {sizes}, the farthest: {worst.group} {worst.plain} {worst.answer}")
        return [*lines, *self._advice()]

    @property
    def undecided(self) -> list[Slope]:
        """The undecided slopes along axes on which nothing is not ok."""
        wrong = {s.axis for s in self.slopes if s.answer == NOT_OK}
        moving = [s for s in self.slopes if s.changes.any()]
        return [s for s in moving if s.answer == UNDECIDED and s.axis not in wrong]

    def _advice(self) -> list[str]:
        """Lines that say what could not be measured, and how undecided slopes could be decided."""
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
        still = dict.fromkeys(s.group for s in self.slopes if s.judged and not s.changes.any())
        if still:
            lines.append(f"not measured, since nothing moves where they alone are trained: {', '.join(still)}")
        odd = next((s for s in self.slopes if s.judged and not np.isfinite(s.changes).all()), None)
        if odd:
            place, seed = np.argwhere(~np.isfinite(odd.changes))[0]
            where = f"{odd.axis} {odd.sizes[place]}, seed {seed}, by step {odd.step}"
            lines.append(f"{odd.quantity} is not finite at {where}, where {odd.group} is trained: a training blew up")
        return lines

    def plot(self, path: str | Path) -> None:
        """Draw RMS changes against width and depth, one line per judged group.

        Args:
          path: of the PNG.
        """
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
    kept: MutableMapping[Key, Changes] | None = None,
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
        trained by the compiled programs of the first ones. A group is given up where `max_seeds` would not decide its
        slopes (`slope.reachable`); and where that is so of one along the axis, only those go on that may be not ok.
      tolerance: a slope is to be within +-tolerance.
      title: of the report. progress: is told first about how long it takes, and then what is trained.
      kept: trainings of an earlier check of the same probes, which are not made again; new ones are added.

    Returns:
      A `CoordinateReport` with a slope for each group, quantity, axis and step.

    Every judged slope gets one of three answers, from its interval: "ok", "not ok" or "undecided". `slope.answer` has
    the rule. Along depth a slope that falls like 1/depth is no fault, so from three depths on the slope is also fitted
    beside a term 1/depth; two depths cannot tell.

    For most groups the slope of "hidden" is judged. The slope of "logits" is judged instead for groups that do not move
    "hidden" (the readout, a norm before it, scalars). Along depth, vectors in branches are judged by the "logits", and
    where these are not ok by the change of the "loss", if the probe has it: norms act on the features mainly through
    random weights, whose sum over blocks has a slope of its own, and to first order the loss sees none of it. So are,
    along width, vectors that do not move "hidden": with more classes than units the noise of the readout's random
    weights is what the logits see. Steps after which a group has not moved are not judged, such as the first where the
    readout starts at 0; a group that never moves is undecided.

    The other slopes are only shown. Slopes of logits along width are below 0 as long as noise of order 1/width adds to
    the logits. Trained with all others, hidden weights without their depth factor change a slope by less than .1. With
    a base depth above 1 small depths have a real slope, which fades.

    Raises ValueError if no axis has two values, a value is no whole number of at least 1, the tolerance is not
    positive, "hidden" or "logits" is missing, or where training all parameters of the smallest shape moves nothing or
    gives what is not finite.
    """
    if not callable(probe_at):
        raise ValueError(f"probe_at must be a function (width, depth) -> Probe, got {short(probe_at)}")
    axes, steps = _axes(widths, depths, width, depth), listed("steps", steps)
    if not axes or not steps:
        raise ValueError("a coordinate check needs at least two widths or two depths, and a number of steps")
    for name, values in (("seeds", (seeds, max_seeds)), ("steps", steps)):
        for value in values:
            at_least_one(name, value)
    POSITIVE.check("tolerance", tolerance)
    free_programs()
    looks = stages(seeds, max_seeds)
    trainings = _Trainings(probe_at, max(steps), seeds, progress, {} if kept is None else kept, looks[-1])
    open_groups = [(axis, group) for axis, shapes in axes.items() for group in trainings.groups(shapes)]
    counts: dict[tuple[str, str], int] = {}
    for count in looks:
        counts |= dict.fromkeys(open_groups, count)
        trainings.train(axes, open_groups, count)
        slopes = _slopes(trainings, axes, counts, steps, tolerance, len(looks))
        report = CoordinateReport(title, slopes, tolerance)
        open_groups = _open(report, tolerance, len(looks), looks[-1])
        if not open_groups:
            break
    return report


def _open(report: CoordinateReport, tolerance: float, looks: int, seeds: int) -> list[tuple[str, str]]:
    """(axis, group) of the undecided slopes for which more seeds, `seeds` in all, may matter. Along an axis where one
    slope will stay undecided, these are those that may yet be not ok."""
    tests, slopes = sum(s.judged for s in report.slopes), report.undecided
    answers = [reachable(fits(s.axis, s.sizes, s.changes), tolerance, looks, tests, seeds) for s in slopes]
    never = {s.axis for s, answer in zip(slopes, answers, strict=True) if answer == {UNDECIDED}}
    pairs = zip(slopes, answers, strict=True)
    matter = [(s.axis, s.group) for s, reached in pairs if reached & ({NOT_OK} if s.axis in never else {OK, NOT_OK})]
    return list(dict.fromkeys(matter))


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
        self,
        probe_at: Callable[[int, int], Probe],
        steps: int,
        block: int,
        progress: Callable[[str], None],
        kept: MutableMapping[Key, Changes],
        most: int,
    ) -> None:
        self._most = most
        self._probe_at = functools.cache(probe_at)  # one probe for each shape, so that its program is compiled once
        self._steps, self._block, self._progress, self._kept = steps, block, progress, kept
        self._starts: dict[Shape, Any] = {}  # of the first seed
        self._of_first: dict[Shape, dict[int, Any]] = {}  # those of all seeds that trained before all groups did

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
        missing: dict[Shape, dict[int, list[str]]] = {}  # {shape: {first seed: groups}}
        for axis, group in pairs:
            for shape in axes[axis]:
                for first_seed in range(0, seeds, self._block):
                    groups = missing.setdefault(shape, {}).setdefault(first_seed, [])
                    if self._key(shape, group, first_seed) not in self._kept and group not in groups:
                        groups.append(group)
        missing = {shape: blocks for shape, blocks in missing.items() if any(blocks.values())}
        self._compile(missing)
        for shape, blocks in missing.items():
            for first_seed, groups in blocks.items():
                groups = [group for group in groups if self._key(shape, group, first_seed) not in self._kept]
                if groups:
                    self._train(shape, groups, first_seed)

    def _train(self, shape: Shape, groups: Sequence[str], first_seed: int) -> dict[int, Any]:
        """Train `block` seeds of groups; {seed: initial state}."""
        self._progress(f"width {shape[0]} depth {shape[1]}: {', '.join(groups)}, seed {first_seed}")
        more = range(first_seed, first_seed + self._block)
        starts = self._of_first.pop(shape, {0: self._starts[shape]})
        changes = feature_changes(self._probe_at(*shape), groups, self._steps, more, starts)
        for group in groups:
            self._kept[self._key(shape, group, first_seed)] = changes[group]
        return starts

    def _compile(self, missing: Mapping[Shape, Mapping[int, Sequence[str]]]) -> None:
        """The programs of shapes that are new. The smallest is compiled first of all, and trained with all parameters:
        whether anything can be measured, and about how long it takes, is known before the others are traced."""
        new = sorted((shape for shape in missing if shape not in self._starts), key=math.prod)
        if not new:
            return
        if not self._starts:
            self._progress(f"compiling width {new[0][0]} depth {new[0][1]}: how long the check takes is told then")
            begin, (first, *new) = time.perf_counter(), new
            self._ahead([first])
            compiled = time.perf_counter()
            if ALL in missing[first].get(0, ()):
                self._of_first[first] = self._train(first, [ALL], 0)
                _check_measured(self._kept[self._key(first, ALL, 0)], first)
                self._estimate(first, new, missing, compiled - begin, time.perf_counter() - compiled)
        self._ahead(new)

    def _ahead(self, shapes: Sequence[Shape]) -> None:
        """Compile the programs of shapes, the largest first: the others are traced meanwhile."""

        def ahead(shape: Shape) -> Ahead:
            program = Ahead.of(self._probe_at(*shape), self._steps, seed=0)
            self._starts[shape] = program.start
            return program

        compile_ahead(map(ahead, reversed(shapes)))

    def _estimate(
        self,
        first: Shape,
        others: Sequence[Shape],
        missing: Mapping[Shape, Mapping[int, Sequence[str]]],
        compiling: float,
        training: float,
    ) -> None:
        """Tell about how long all takes, from the seconds of one shape. Compiling goes as the number of arrays, one
        program beside the next, and training as the entries of all weights, of which small ones take longer for their
        size."""
        arrays = [len(jax.tree.leaves(self._probe_at(*shape).hyper(ALL, 0))) for shape in (first, *others)]
        compiling *= sum(arrays[1:]) / arrays[0] / min(2, cores())
        times = {shape: max(1.0, (shape[0] / first[0]) ** 2 * shape[1] / first[1]) for shape in (first, *others)}
        training *= sum(len(groups) * times[shape] for shape, of in missing.items() for groups in of.values())
        most = compiling + training * self._most / self._block
        more = f"; {_duration(most)} at most, with {self._most} seeds, where slopes stay undecided"
        what = f"{self._block} seeds of each group at {1 + len(others)} shapes"
        self._progress(f"about {_duration(compiling + training)}: {what}{more if self._most > self._block else ''}")

    def _key(self, shape: Shape, group: str, first_seed: int) -> Key:
        return (*shape, group, first_seed, self._block, self._steps)

    def changes(self, shapes: Sequence[Shape], group: str, seeds: int) -> Changes:
        """{quantity: RMS changes, (shapes, seeds, steps)} of the trainings that `train` has made."""
        rows = [
            [self._kept[self._key(shape, group, first_seed)] for first_seed in range(0, seeds, self._block)]
            for shape in shapes
        ]
        return {q: np.stack([np.concatenate([b[q] for b in blocks]) for blocks in rows]) for q in rows[0][0]}


def _check_measured(changes: Changes, shape: Shape) -> None:
    """Raises ValueError if training all parameters, in no seed, gives changes that a slope could be fitted to."""
    where = f"width {shape[0]}, depth {shape[1]}"
    for quantity, table in changes.items():
        if not np.isfinite(table[:, 0]).any():
            raise ValueError(
                f"nothing can be measured: at {where} the {quantity} are not finite at the start or after one step of "
                "all parameters, in every seed: look at the batch, the loss and the learning rate"
            )
    if not any(table.any() for table in changes.values()):
        raise ValueError(
            f"nothing can be measured: at {where} training all parameters changes nothing: the gradients or the "
            "optimizer's updates are 0"
        )


def _duration(seconds: float) -> str:
    return f"{math.ceil(seconds)} s" if seconds < 100 else f"{math.ceil(seconds / 60)} min"


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
            moving = [step for step in steps if table[..., step - 1].any()]
            shown = moving or (list(steps)[-1:] if quantity == by else [])
            measured += [(axis, group, quantity, step, quantity == by, table[..., step - 1]) for step in shown]
    tests = sum(judged for *_, judged, _ in measured)
    slopes = []
    for axis, group, quantity, step, judged, changes in measured:
        sizes = tuple(shape[axis == "depth"] for shape in axes[axis])
        fitted = fits(axis, sizes, changes)
        plain, *limit = (estimate(fit, looks) for fit in fitted)
        verdict = "" if not judged else answer(fitted, tolerance, looks, tests) if changes.any() else UNDECIDED
        slopes.append(Slope(axis, group, quantity, step, verdict, plain, limit[0] if limit else None, sizes, changes))
    return slopes
