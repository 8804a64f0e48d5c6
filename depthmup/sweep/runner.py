"""Train one group of trials: a pure function of their settings, whoever calls it."""

from __future__ import annotations

import contextlib
import gc
import re
import shutil
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental.compilation_cache import compilation_cache

from depthmup.settings import SettingsError, column
from depthmup.sweep.history import Columns, History, measured_after
from depthmup.sweep.plan import AXES, SCHEMA, Group, Trial
from depthmup.train.assemble import Problem, problem_of, recipe_of
from depthmup.train.checkpoint import Checkpoints, Every
from depthmup.train.loop import TrialLoop
from depthmup.train.quantities import measurement
from depthmup.train.step import Hyper
from depthmup.train.stop import Stop
from depthmup.train.workdir import Row, WorkdirError, digest, write_atomically

LOG_EVERY = 64  # steps between two reports, after which a group can be checkpointed or stopped
UNFINISHED = "unfinished"  # folder of the checkpoints of the trials that the sweep is at
CACHE = "compiled"  # folder of compiled programs
FIRST = ("optimizer", "parameterization", *AXES, "learning_rate", "seed")  # columns of a row


class Outcome(NamedTuple):
    """rows: one per trial. curves, measured: columns as of `History`, "trial" the number of the row."""

    rows: list[Row]
    curves: Columns
    measured: Columns


class Runner:
    """Trains groups; the compiled program of the last one is kept for others of its shape."""

    def __init__(self, wrapper: str = "pmap") -> None:
        self._wrapper = wrapper
        self._loop: TrialLoop | None = None
        self._program: Any = None

    def loop(self, group: Group) -> tuple[Problem, TrialLoop]:
        """Data and programs of a group."""
        problem = problem_of(group.settings)
        program = group.program, group.size, group.settings.sweep.measure
        if self._loop is None or self._program != program:
            self._loop = None
            gc.collect()  # a program is many memory maps, of which Linux gives a process 65,530
            settings = group.settings
            trainer = problem.trainer(settings.model, settings.optimizer.name)
            measure = None
            if settings.sweep.measure:
                quantities = measurement(trainer, settings.optimizer.name, settings.sweep.measure)
                measure = quantities, problem.examples(settings.data.batch_size)
            self._loop = TrialLoop(
                trainer, problem.batches, trials=group.size, wrapper=self._wrapper, measurement=measure
            )
            self._program = program
        return problem, self._loop

    def train(
        self,
        group: Group,
        progress: Callable[[float], None] = lambda share: None,
        checkpoints: GroupCheckpoints | None = None,
        stop: Stop | None = None,
    ) -> Outcome:
        """Raises Stopped when asked to stop (what is done is in the checkpoints), SettingsError if memory is short."""
        problem, loop = self.loop(group)
        hypers = hypers_of(problem, group)
        steps = max(int(hyper.steps) for hyper in hypers)
        history = History(len(group.trials), steps)
        sweep = group.settings.sweep
        points = sweep.measure_points if sweep.measure else 0
        at = {step for hyper in hypers for step in measured_after(int(hyper.steps), points)}

        def report(step: int, metrics: Mapping[str, np.ndarray]) -> None:
            history.add(step - metrics["loss"].shape[1], metrics)
            progress(step / steps)

        if checkpoints:
            checkpoints.of = history
        try:
            result = loop.run(
                hypers,
                steps,
                LOG_EVERY,
                report,
                checkpoints=checkpoints,
                stop=stop,
                measure_at=sorted(at),
                measured=history.measure,
            )
        except jax.errors.JaxRuntimeError as error:
            if not re.search("RESOURCE_EXHAUSTED|[Oo]ut of memory", str(error)):
                raise
            raise SettingsError(f"{group}: out of memory; set sweep.at_once below {group.size}") from error
        rows = []
        for i, trial in enumerate(group.trials):
            row = {"key": trial.key, "schema": SCHEMA, **_columns(trial), "steps": int(hypers[i].steps)}
            losses = history.losses(i, row["steps"])
            rows.append(row | {name: value[i].item() for name, value in result.items()} | losses)
        counts = [row["steps"] for row in rows]
        return Outcome(rows, history.curves(counts), history.measurements(counts, points))


def hypers_of(problem: Problem, group: Group) -> list[Hyper]:
    """The hyperparameters of all trials, and for what its program has room besides: trials of no step."""
    hypers = [hyper_of(problem, trial) for trial in group.trials]
    return hypers + [hypers[-1]._replace(steps=0)] * (group.size - len(hypers))


def hyper_of(problem: Problem, trial: Trial) -> Hyper:
    """problem: of the group."""
    s = trial.settings
    own = problem._replace(recipe=recipe_of(s, problem.batches.steps_per_epoch))
    return own.hyper(s.model, s.parameterization, s.optimizer, s.seed)


class GroupCheckpoints(Checkpoints):
    """Checkpoints of a group of trials, with their history so far beside them."""

    of: History

    def __init__(self, folder: Path, group: Group, per_epoch: int, say: Callable[[str], None]) -> None:
        """folder: of all groups. per_epoch: steps of an epoch. say: takes messages."""
        self._dir = folder / f"{group.name}-{group.size}"
        trials = {"trials": [trial.key for trial in group.trials], "size": group.size}
        every = Every.of(group.settings.checkpoint.every, per_epoch)
        super().__init__(self._dir, trials, every=every, keep=1, best=0, say=say)

    def restore(self, like: Any) -> tuple[int, Any] | None:
        """As of `Checkpoints`, but what is of another program or has no history is removed: the group starts anew."""
        try:
            found = super().restore(like)
            if found:
                self.of.restore((self._dir / f"history-{found[0]}.npz").read_bytes(), found[0])
            return found
        except (WorkdirError, OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile) as error:
            self._say(f"a group of trials starts anew: {error}")
            self.remove()
            self.of.measured.clear()
            return None

    def remove(self) -> None:
        """The group is done, or cannot go on from here."""
        self.close()
        shutil.rmtree(self._dir, ignore_errors=True)

    def save(self, step: int, state: Any, metrics: Mapping[str, float] | None = None) -> None:
        try:
            self._dir.mkdir(parents=True, exist_ok=True)
            write_atomically(self._dir / f"history-{step}.npz", self.of.content(step), sync=True)
        except OSError as error:  # a full disk: a checkpoint without its history would be of no use
            self._say(f"a group of trials could not be checkpointed, and goes on: {error}")
            return
        super().save(step, state, metrics)
        # By what is on the disk: the checkpoint before stays until this one is whole, though Orbax no longer counts it.
        for path in self._dir.glob("history-*.npz"):
            number = path.stem.removeprefix("history-")
            if int(number) != step and not (self.path / number).exists():
                path.unlink()


@contextlib.contextmanager
def compiled_in(folder: Path | None) -> Iterator[None]:
    """Compiled programs are kept in this folder, and found there; one that the caller has chosen for JAX stays."""
    if folder is None or getattr(jax.config, "jax_compilation_cache_dir"):  # noqa: B009 - jax declares it at run time
        yield
        return
    wanted = {
        "jax_compilation_cache_dir": str(folder / _machine()),
        "jax_persistent_cache_min_compile_time_secs": 0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    if jax.default_backend() == "cpu":  # else the folder's name is part of each program's, and it cannot be moved
        wanted["jax_persistent_cache_enable_xla_caches"] = "none"
    before = {name: getattr(jax.config, name) for name in wanted}
    for name, value in wanted.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()  # it may have been asked for before there was a folder
    try:
        yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()


def _machine() -> str:
    """A name for machines that can run each other's programs: those for a CPU use the instructions it has."""
    if jax.default_backend() != "cpu":
        return jax.default_backend()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return "cpu-" + digest([line for line in lines if line.startswith(("flags", "Features", "model name"))][:2])


def _columns(trial: Trial) -> Row:
    named = {column(key): value for key, value in trial.leaves.items()}
    return {name: named[name] for name in FIRST} | named
