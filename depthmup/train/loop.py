"""The loop: trials of one shape together, from their checkpoint to the end. A single run is a sweep of one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from depthmup.data import Batches
from depthmup.train.checkpoint import Checkpoints
from depthmup.train.parallel import TrialMap
from depthmup.train.programs import Measurement, Programs
from depthmup.train.saved import METRIC
from depthmup.train.step import Hyper, Trainer
from depthmup.train.stop import Stop, Stopped

Progress = Callable[[int, Mapping[str, np.ndarray]], None]
AHEAD = 1  # stretches of steps before what a process asked for in one is known to all
SAVE, STOP = 1, 2  # what a process may ask of all


class Diverged(Exception):
    """A lone run whose loss or gradient is not finite: `loss` and `grad_norm` of the step."""

    def __init__(self, step: int, loss: float, grad_norm: float) -> None:
        super().__init__(f"at step {step} the loss is {loss:.4g} and the norm of the gradient {grad_norm:.4g}")
        self.step = step


class TrialLoop:
    """Compiled once for a trainer, a data set and a number of trials; `run` it for as many groups as you like.

    split, wrapper, devices, layout: of train.parallel.TrialMap. measurement: of `Programs`.
    Raises ValueError if a batch cannot be split evenly.
    """

    def __init__(
        self,
        trainer: Trainer,
        batches: Batches,
        *,
        trials: int,
        layout: str | None = None,
        devices: Sequence[jax.Device] | None = None,
        split: str = "trials",
        wrapper: str = "pmap",
        measurement: Measurement | None = None,
    ) -> None:
        self.map = TrialMap(trials, layout, devices, split, wrapper)
        self.programs = Programs(trainer, batches, self.map, measurement)

    def run(
        self,
        hypers: Sequence[Hyper],
        steps: int,
        log_every: int | None = None,
        progress: Progress | None = None,
        *,
        evaluate_every: int | None = None,
        checkpoints: Checkpoints | None = None,
        stop: Stop | None = None,
        alone: bool = False,
        measure_at: Sequence[int] = (),
        measured: Callable[[int, dict[str, np.ndarray]], None] = lambda step, values: None,
    ) -> dict[str, np.ndarray]:
        """Train all trials for `steps` steps; metrics at the end, each (trials,), as `Programs.metrics`.

        A trial whose `Hyper.steps` are fewer is frozen after them.

        Args:
          log_every: steps between two reports of the metrics; None: one report at the end.
          progress: takes (steps done, metrics): of the steps since the last report, each (trials, steps); and of the
            validation split at that step, "validation_loss" and "validation_accuracy", each (trials,).
          evaluate_every: steps between two evaluations of the validation split.
          checkpoints: where the run goes on from, and what it writes.
          stop: a request that is met after a report: the state is saved and Stopped raised.
          alone: one trial that is a run of its own: its best state and its last are saved as well, and if it diverges
            Diverged is raised. In a sweep a trial that diverges is frozen and the rest go on.
          measure_at: numbers of steps after which the loop's measurement is taken; measured: takes it.

        Raises WorkdirError as `Checkpoints.restore`.
        """
        try:
            options = (evaluate_every, checkpoints, stop, alone, sorted(measure_at), measured)
            return self._run(hypers, steps, log_every or steps, progress, *options)
        finally:
            self.programs.close()

    def _run(
        self,
        hypers: Sequence[Hyper],
        steps: int,
        log_every: int,
        progress: Progress | None,
        evaluate_every: int | None,
        checkpoints: Checkpoints | None,
        stop: Stop | None,
        alone: bool,
        measure_at: Sequence[int],
        measured: Callable[[int, dict[str, np.ndarray]], None],
    ) -> dict[str, np.ndarray]:
        programs, several = self.programs, jax.process_count() > 1
        state, hyper = programs.start(hypers)
        step = 0
        if checkpoints:
            found = checkpoints.restore(self.map.join(state))
            if found:
                step, saved = found
                state = self.map.split([jax.tree.map(lambda leaf, i=i: leaf[i], saved) for i in range(len(hypers))])
        idle = np.array([hyper.steps <= step for hyper in hypers])  # trials known to be frozen
        agree = self._agreement() if several and self.map.by_batch else None
        saving = checkpoints.every.steps if checkpoints else None
        waiting: list[tuple[int, Any]] = []  # at most one
        votes: deque[Any] = deque()

        def wish() -> int:
            if stop and stop.requested:
                return STOP
            return SAVE if checkpoints and checkpoints.overdue() else 0

        def asked() -> int:
            """What some process wishes. Of several, the wishes of an earlier stretch: the same answer for all, at the
            same step, without waiting."""
            if agree is None:
                return wish()
            votes.append(agree(wish()))
            return int(votes.popleft()) if len(votes) > AHEAD else 0

        def settle() -> None:
            """Report the stretch of steps that was trained last."""
            nonlocal idle
            while waiting:
                at, parts = waiting.pop()
                metrics = programs.read(parts)
                idle = np.isnan(metrics["loss"][:, -1])
                if progress:
                    progress(at, metrics)
                if alone:
                    _check(at, metrics)

        def save(metrics: Mapping[str, float] | None = None) -> None:
            settle()
            if checkpoints and not (alone and programs.halted(state)[0] >= 0):
                checkpoints.save(step, self.map.join(state), metrics)

        if step == 0 and 0 in measure_at:
            measured(0, programs.measure(state, hyper))
        while step < steps and (agree or not idle.all()):
            ends = [(step // every + 1) * every for every in (log_every, evaluate_every, saving, steps) if every]
            until = min([steps, *ends, *(at for at in measure_at if at > step)])
            state, parts = programs.advance(state, hyper, step, until, settle)
            step = until
            waiting.append((step, parts))
            if step in measure_at:
                settle()
                measured(step, programs.measure(state, hyper))
            answer = asked()
            validation = None
            if evaluate_every and step % evaluate_every == 0 and step < steps:
                settle()
                validation = programs.evaluate(state, hyper, programs.batches.dataset.validation)
                validation = {f"validation_{name}": value for name, value in validation.items()}
                if progress:
                    progress(step, validation)
            scores = {name: float(value[0]) for name, value in (validation or {}).items()} if alone else None
            if checkpoints and step < steps:
                best = bool(scores) and checkpoints.improves(scores[METRIC])  # type: ignore[index]
                if best or answer or (saving and step % saving == 0):
                    save(scores or None)
            if answer == STOP and step < steps:
                settle()
                if checkpoints:
                    checkpoints.wait()
                saved = checkpoints is not None and step in checkpoints.steps()
                kept = "saved, the same command goes on from there" if saved else "these steps are not saved"
                raise Stopped(stop.requested if stop else None, f"at step {step}: {kept}")
        settle()
        metrics = programs.metrics(state, hyper)
        if checkpoints and alone:
            save({METRIC: float(metrics[METRIC][0])})
        return metrics

    def _agreement(self) -> Callable[[int], Any]:
        """A wish of this process -> the greatest of all processes, on its way: it is read with the metrics."""
        devices = len(self.map.local)
        greatest = jax.pmap(lambda wish: jax.lax.pmax(wish, "batch"), axis_name="batch", out_axes=None)
        return lambda wish: greatest(np.full(devices, wish, np.int32))


def _check(stop_step: int, metrics: Mapping[str, np.ndarray]) -> None:
    loss, norm = metrics["loss"][0], metrics["grad_norm"][0]
    bad = np.flatnonzero(~(np.isfinite(loss) & np.isfinite(norm)))
    if bad.size:
        raise Diverged(stop_step - len(loss) + int(bad[0]), float(loss[bad[0]]), float(norm[bad[0]]))
