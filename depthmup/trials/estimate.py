"""What a sweep will cost: its operations, its memory, and its time, which is estimated from a few measured steps."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from depthmup.backend import proc_lines
from depthmup.measure.sharpness import ITERATIONS
from depthmup.train import flops
from depthmup.train.devices import Layout, trial_layout
from depthmup.train.quantities import cost_of_measuring
from depthmup.train.step import FOREVER, Hyper, Trainable
from depthmup.trials.group import LOG_EVERY, Runner, hypers_of
from depthmup.trials.plan import Group
from depthmup.trials.study import Study, Trial

AT_ONCE = 128  # largest number of trials in a group, so that results come in steadily
STRETCH = 3e11  # operations of a CPU between two chances to stop a sweep, at most: some ten seconds
SHARE = 0.6  # share of the free memory that a group may take
NOMINAL = 1e-10  # seconds of an operation if nothing was measured; only proportions are right then
MEASURED = 2, 60  # few and most: a call of `few` steps is timed, then a call of up to `most` more, about half a second


class CostEstimate(NamedTuple):
    """The cost of a sweep, or of the rest of a sweep.

    trials, programs: how many of them there are. flops: operations of all trials.
    seconds: time of everything; None if nothing was measured. compiling: seconds of it that are compilation.
    """

    trials: int
    programs: int
    flops: float
    seconds: float | None = None
    compiling: float = 0.0

    def __str__(self) -> str:
        text = f"{self.trials:,} trials, {self.programs:,} programs, {self.flops:.1e} floating point operations"
        if self.seconds is None:
            return text
        return f"{text}, about {duration(self.seconds)} (compilation {duration(self.compiling)})"


def duration(seconds: float) -> str:
    """Seconds in words: "45 s", "3 min 20 s", "5 h 10 min"."""
    minutes, rest = divmod(round(seconds), 60)
    if not minutes:
        return f"{rest} s"
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def at_once(study: Study, trial: Trial) -> int:
    """The largest number of trials like this one in a group: 1 over a mesh, `sweep.at_once`, or as many as fit in
    memory."""
    if study.parallel.axes:
        return 1
    if study.sweep.at_once:
        return study.sweep.at_once
    task, hyper, local = trial.point.task, trial.hyper, jax.local_devices()
    share, layout, most = study.parallel.devices_per_trial, trial_layout(), AT_ONCE
    sets, part = len(local) // share, trial.point.feed.batch_size // share
    if layout == "map":
        stretch = LOG_EVERY * flops.of_step(task, hyper, part)
        most = min(most, max(1, int(STRETCH // stretch)) * sets)
    free = SHARE * free_memory(local[0]) / (len(local) if jax.default_backend() == "cpu" else 1)
    sharpness = "sharpness" in study.sweep.measure
    fit = int(free // memory(task, hyper, part, layout, sharpness)) * sets
    return max(1, min(most, fit))


def memory(task: Trainable, hyper: Hyper, batch_size: int, layout: Layout, sharpness: bool = False) -> float:
    """Bytes that each trial of a group takes on a device.

    A trial takes the memory of its state three times, since a checkpoint holds two more copies. If the trials of a
    device are computed at the same time ("vmap"), each also takes the temporary arrays of the compiled step.

    batch_size: number of examples that this device has of a batch.
    sharpness: whether the sharpness is measured, which takes memory for its basis of vectors.
    """
    arrays = hyper.arrays()
    state = jax.eval_shape(task.init, arrays)
    held = 3.0 * sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
    if sharpness:  # the basis of vectors
        held += ITERATIONS * sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state.params))
    if layout != "vmap":
        return held
    step = jax.jit(task.step).lower(state, task.batch_shapes(batch_size), arrays).compile()
    analysis: Any = step.memory_analysis()
    return held + (analysis.temp_size_in_bytes if analysis else 0.0)


class Estimator:
    """Estimates the operations of groups of trials, and their seconds once `measure` has timed some programs."""

    def __init__(self) -> None:
        self._work: dict[Any, float] = {}  # operations of a step, by program
        self._points: list[tuple[float, float]] = [(1.0, NOMINAL)]  # (operations, seconds) of a step of one trial
        self._compiling: float | None = None  # seconds for one program

    @property
    def measured(self) -> bool:
        return self._compiling is not None

    def measure(self, groups: Sequence[Group], runner: Runner) -> None:
        """Compile and time the cheapest and the most expensive program of these groups.

        The time of other programs is interpolated by their operations.
        """
        first = {group.program: group for group in reversed(groups)}
        ends = sorted(first.values(), key=self.work)
        self._points = []
        for group in ends if len(ends) < 2 else (ends[0], ends[-1]):
            self._compiling, seconds = _measure(runner, group)  # the first value contains JAX's own start
            self._points.append((self.work(group), seconds))

    def work(self, group: Group) -> float:
        """Operations of one step of one trial."""
        if group.program not in self._work:
            trial, point = group.trials[0], group.point
            self._work[group.program] = flops.of_step(point.task, trial.hyper, point.feed.batch_size)
        return self._work[group.program]

    def seconds(self, group: Group) -> float:
        """Seconds that a group trains, without compilation. Only proportional to the time if nothing was measured."""
        x, y = zip(*self._points, strict=True)
        step = float(np.interp(self.work(group), x, y)) if len(x) > 1 else y[0] * self.work(group) / x[0]
        return self.steps(group) * step

    def expected(self, groups: Sequence[Group]) -> dict[str, float]:
        """{name of a group: its expected seconds}, if the groups are trained in this order, the first of a program with
        the compilation. Only proportional to the time, and without compilation, if nothing was measured."""
        once = self._compiling or 0.0
        first = {group.program: group.name for group in reversed(groups)}
        return {g.name: self.seconds(g) + once * (first[g.program] == g.name) for g in groups}

    def total(self, groups: Sequence[Group]) -> CostEstimate:
        trials, programs = sum(len(group.trials) for group in groups), len({group.program for group in groups})
        operations = sum(self.work(group) * self.steps(group) for group in groups)
        if self._compiling is None:
            return CostEstimate(trials, programs, operations)
        compiling = self._compiling * programs
        seconds = compiling + sum(map(self.seconds, groups))
        return CostEstimate(trials, programs, operations, seconds, compiling)

    def steps(self, group: Group) -> float:
        """The number of steps of all trials of a group, with evaluation and measurements as steps that take as long.

        An evaluation only runs forwards, so an example of it takes a third of the time of an example in a step.
        """
        sweep, feed = group.study.sweep, group.point.feed
        measuring = sweep.measure_points * sum(cost_of_measuring(name, feed.batch_size) for name in sweep.measure)
        evaluated = feed.evaluated_examples / (3 * feed.batch_size)
        return sum(trial.point.steps for trial in group.trials) + (evaluated + measuring) * len(group.trials)


def _measure(runner: Runner, group: Group) -> tuple[float, float]:
    """(seconds to compile, seconds of one step of one trial)."""
    start = time.perf_counter()
    loop = runner.loop(group)
    # No trial may diverge or end while it is timed, since a frozen trial may take no time.
    calm = [hyper._replace(learning_rate=1e-9, steps=FOREVER) for hyper in hypers_of(group)]
    state, hyper = loop.start(calm)

    def seconds(first: int, count: int) -> float:
        nonlocal state
        before = time.perf_counter()
        for stretch in loop.stretches(state, hyper, first, [first + count]):
            state = stretch.state
            stretch.read()
        return time.perf_counter() - before

    few, most = MEASURED
    seconds(0, few)
    until_first = time.perf_counter() - start
    again = min(seconds(few, few), seconds(2 * few, few))
    more = max(2 * few, min(most, round(0.5 * few / again)))
    longer = seconds(3 * few, few + more)
    step = max(longer - again, 0.1 * longer) / more  # the difference leaves out the fixed cost of a call
    return max(0.0, until_first - again), step / group.size


def free_memory(device: jax.Device) -> float:
    """Bytes of free memory: of the device, or of the machine if the device is a CPU."""
    statistics = device.memory_stats() or {}
    if "bytes_limit" in statistics:
        return statistics["bytes_limit"] - statistics.get("bytes_in_use", 0)
    available = [line for line in proc_lines("meminfo") if line.startswith("MemAvailable")]
    if available:
        return 1024.0 * int(available[0].split()[1])
    return 0.5 * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
