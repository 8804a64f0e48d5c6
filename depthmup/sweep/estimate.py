"""What a sweep costs, before it starts: operations, memory, minutes by a measured step."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from depthmup.data.pipeline import TRAIN_EVALUATED
from depthmup.measure.sharpness import ITERATIONS
from depthmup.settings import Settings
from depthmup.sweep.group import LOG_EVERY, Runner, hypers_of
from depthmup.sweep.plan import Group, Trial
from depthmup.train import flops
from depthmup.train.build import batches_of, hyper_of, steps_of, task_of
from depthmup.train.devices import trial_layout
from depthmup.train.task import FOREVER, Hyper, Task

AT_ONCE = 128  # trials of a group at most, so that results come in steadily
STRETCH = 3e11  # operations of a CPU between two reports, some ten seconds: until then nobody can stop the sweep
SHARE = 0.6  # of the memory that is free
MEASURING = {"updates": 1.5, "sharpness": 40.0, "kernels": 2.0}  # steps that a measurement counts as
NOMINAL = 1e-10  # seconds that an operation counts where none is measured
MEASURED = 2, 60  # steps whose time is taken: so many, and then more of them, as many as take half a second


class Estimate(NamedTuple):
    """seconds: None if nothing was measured. memory: bytes that the measured programs needed, data and JAX included."""

    trials: int
    programs: int
    flops: float
    seconds: float | None = None
    compiling: float = 0.0
    memory: float = 0.0

    def __str__(self) -> str:
        text = f"{self.trials:,} trials, {self.programs:,} programs, {self.flops:.1e} floating point operations"
        if self.seconds is None:
            return text
        text += f", about {duration(self.seconds)} (compilation {duration(self.compiling)})"
        return f"{text}, {self.memory / 2**30:.1f} GiB of memory"


class Expected(NamedTuple):
    """Seconds that a group takes for training, and for its program if it is the first to need it.

    Where nothing was measured, each of the two is right in proportion alone.
    """

    training: float
    compiling: float = 0.0


def duration(seconds: float) -> str:
    """ "45 s", "3 min 20 s", "5 h 10 min"."""
    minutes, rest = divmod(round(seconds), 60)
    if not minutes:
        return f"{rest} s"
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def at_once(trial: Trial, devices: int | None = None) -> int:
    """How many trials like this one run together: as the config says, or as many as fit in memory.

    devices: of whoever will train them; None: those of this process.
    """
    settings = trial.settings
    if settings.sweep.at_once:
        return settings.sweep.at_once
    task, hyper, local = task_of(settings), hyper_of(settings), jax.local_devices()
    devices, layout, most = devices or len(local), trial_layout(), AT_ONCE
    if layout == "map":
        stretch = LOG_EVERY * flops.of_step(task, hyper, settings.data.batch_size)
        most = min(most, max(1, int(STRETCH // stretch)) * devices)
    free = SHARE * _free(local[0]) / (len(local) if jax.default_backend() == "cpu" else 1)
    sharpness = "sharpness" in settings.sweep.measure
    fit = int(free // memory(task, hyper, settings.data.batch_size, layout, sharpness)) * devices
    return max(1, min(most, fit))


def memory(task: Task, hyper: Hyper, batch_size: int, layout: str, sharpness: bool = False) -> float:
    """Bytes that each trial of a group takes on its device: its state, which a checkpoint holds twice more, and, where
    all trials are computed at the same time, what the compiled step works with. sharpness: it is measured too."""
    arrays = hyper.arrays()
    state = jax.eval_shape(task.init, arrays)
    held = 3.0 * sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
    if sharpness:  # its basis
        held += ITERATIONS * sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state.params))
    if layout != "vmap":
        return held
    inputs = jax.ShapeDtypeStruct((batch_size, *task.input_shape), np.float32)
    labels = jax.ShapeDtypeStruct((batch_size,), np.int32)
    step = jax.jit(task.step).lower(state, (inputs, labels), arrays).compile()
    analysis: Any = step.memory_analysis()
    return held + (analysis.temp_size_in_bytes if analysis else 0.0)


class Estimator:
    """What groups of trials take: operations, and seconds once some programs are measured."""

    def __init__(self) -> None:
        self._work: dict[Any, float] = {}  # operations of a step, by program
        self._points: list[tuple[float, float]] = [(1.0, NOMINAL)]  # (operations, seconds) of a step of one trial
        self._compiling: float | None = None  # seconds for one program
        self._memory = 0.0  # bytes

    @property
    def measured(self) -> bool:
        return self._compiling is not None

    def measure(self, groups: Sequence[Group], runner: Runner) -> None:
        """Time the cheapest and the dearest program of these groups, which are compiled for it; others lie between."""
        first = {group.program: group for group in reversed(groups)}
        ends = sorted(first.values(), key=self.work)
        self._points = []
        for group in ends if len(ends) < 2 else (ends[0], ends[-1]):
            self._compiling, seconds = _measure(runner, group)  # the first one's has JAX's own start in it
            self._points.append((self.work(group), seconds))
        self._memory = _used(jax.local_devices()[0])

    def work(self, group: Group) -> float:
        """Operations of one step of one trial."""
        if group.program not in self._work:
            s = group.settings
            self._work[group.program] = flops.of_step(task_of(s), hyper_of(s), s.data.batch_size)
        return self._work[group.program]

    def seconds(self, group: Group) -> float:
        """Without compilation; if nothing was measured, right in proportion alone."""
        x, y = zip(*self._points, strict=True)
        step = float(np.interp(self.work(group), x, y)) if len(x) > 1 else y[0] * self.work(group) / x[0]
        return self._steps(group) * step

    def expected(self, groups: Sequence[Group]) -> dict[str, Expected]:
        """What each group takes, by its name, if they are trained in this order."""
        once = 1.0 if self._compiling is None else self._compiling
        first = {group.program: group.name for group in reversed(groups)}
        return {g.name: Expected(self.seconds(g), once * (first[g.program] == g.name)) for g in groups}

    def total(self, groups: Sequence[Group]) -> Estimate:
        trials, programs = sum(len(group.trials) for group in groups), len({group.program for group in groups})
        operations = sum(self.work(group) * self._steps(group) for group in groups)
        if self._compiling is None:
            return Estimate(trials, programs, operations)
        compiling = self._compiling * programs
        seconds = compiling + sum(map(self.seconds, groups))
        return Estimate(trials, programs, operations, seconds, compiling, self._memory)

    def _steps(self, group: Group) -> float:
        """Of all its trials; the evaluation at the end as many as take as long (forwards only, a third of a step), and
        measurements likewise."""
        sweep = group.settings.sweep
        measuring = sweep.measure_points * sum(MEASURING[name] for name in sweep.measure)
        dataset, per_step = batches_of(group.settings).dataset, 3 * group.settings.data.batch_size
        train = min(dataset.train.examples, TRAIN_EVALUATED)
        evaluated = (train + dataset.validation.examples + dataset.test.examples) / per_step
        return sum(steps_of(t.settings) for t in group.trials) + (evaluated + measuring) * len(group.trials)


def _measure(runner: Runner, group: Group) -> tuple[float, float]:
    """(seconds to compile, seconds of one step of one trial)."""
    start = time.perf_counter()
    loop = runner.loop(group)
    # None of them may diverge or end: what is frozen takes no time.
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
    step = max(longer - again, 0.1 * longer) / more  # without what a call costs, however many its steps
    return max(0.0, until_first - again), step / group.size


def _free(device: jax.Device) -> float:
    """Bytes of memory that a device, or for a CPU the machine, has free."""
    statistics = device.memory_stats() or {}
    if "bytes_limit" in statistics:
        return statistics["bytes_limit"] - statistics.get("bytes_in_use", 0)
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(1024.0 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    except OSError:
        return 0.5 * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _used(device: jax.Device) -> float:
    """Bytes of memory that were in use at most so far: of the device, or for a CPU of this process."""
    peak = (device.memory_stats() or {}).get("peak_bytes_in_use")
    return float(peak) if peak is not None else 1024.0 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def too_large(settings: Settings, trials: int) -> str:
    """What to say of a plan that is larger than the config wants without asking, or ""."""
    limit = settings.sweep.max_trials
    if trials <= limit:
        return ""
    return (
        f"the plan has {trials:,} trials, more than sweep.max_trials = {limit:,}: look at it with --dry_run, then give "
        "--yes, or narrow an axis, or set sweep.adaptive"
    )
