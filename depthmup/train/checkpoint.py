"""Orbax checkpoints of a run: written in the background, the last and the best kept, each whole or not used."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils
from orbax.checkpoint import checkpoint_managers

from depthmup.settings import Interval
from depthmup.train.saved import (
    FOLDER,
    METRIC,
    CheckpointError,
    Flat,
    describe,
    first_line,
    flatten,
    read_meta,
    read_state,
)
from depthmup.train.workdir import WorkdirError, digest, first_difference

PyTree = Any
UNUSABLE = "unusable_checkpoints"  # where those that cannot be read are moved to
ATTEMPTS, PAUSE = 20, 0.05  # to remove what is half written, and seconds after each
PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")


class Every(NamedTuple):
    """How often: every so many steps, or after so many seconds."""

    steps: int | None = None
    seconds: float | None = None

    @classmethod
    def of(cls, interval: Interval, per_epoch: int) -> Every:
        """per_epoch: steps of an epoch."""
        return cls(interval.steps(per_epoch), interval.seconds)


@dataclasses.dataclass(frozen=True)
class _BestAndLast(checkpoint_managers.PreservationPolicy):
    """Keep the last and, by `losses`, the best."""

    keep: int
    best: int
    losses: Mapping[int, float]  # step -> validation loss

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
        steps = [checkpoint.step for checkpoint in checkpoints]
        best = sorted((step for step in steps if step in self.losses), key=lambda step: self.losses[step])
        kept = {*sorted(steps)[-self.keep :], *best[: self.best]}
        return [step in kept for step in steps]


class Checkpoints:
    """The checkpoints of one run, in `workdir/checkpoints`.

    A checkpoint holds the state of all trials, (trials, ...) and so independent of devices, and beside it as JSON its
    step (which is the position in the data and, with the seed, in all random numbers), the identity of the run with its
    hash, specs, package versions and a checksum of every array. Of several processes only the first reads and writes.

    Args:
      identity: what decides the run, as JSON: a checkpoint of another one is refused, naming the first difference.
      every: how often one is due; one that is the best so far is written at any evaluation.
      keep, best: how many of the last and of those with the lowest validation loss stay.
      say: takes messages.
    """

    def __init__(
        self,
        workdir: Path,
        identity: Mapping[str, Any],
        *,
        every: Every,
        keep: int = 2,
        best: int = 1,
        specs: Any = None,
        say: Callable[[str], None] = print,
    ) -> None:
        self.path, self.every, self._say = (workdir / FOLDER).resolve(), every, say
        self._identity, self._specs = json.loads(json.dumps([identity, specs]))
        self._keep, self._best = keep, best
        self._primary = jax.process_index() == 0
        self._manager: ocp.CheckpointManager | None = None
        self._losses: dict[int, float] = {}
        if self._primary and self.path.exists():
            self._open()
        self._saved_at = time.monotonic()
        self._saving: int | None = None  # the step whose checkpoint is being written

    def _open(self) -> None:
        """Open the folder, only when there is something to read or to write: it takes 10 ms."""
        options = ocp.CheckpointManagerOptions(
            create=False,
            cleanup_tmp_directories=True,
            preservation_policy=_BestAndLast(self._keep, self._best, self._losses),
            multiprocessing_options=ocp.options.MultiprocessingOptions(primary_host=0, active_processes={0}),
        )
        self.path.mkdir(parents=True, exist_ok=True)
        self._manager = ocp.CheckpointManager(self.path, item_names=("state", "meta"), options=options)
        for step in self.steps():
            with contextlib.suppress(CheckpointError):  # it is said when it is read
                loss = read_meta(self._manager, step)["metrics"].get(METRIC)
                self._losses |= {} if loss is None else {step: loss}

    def overdue(self) -> bool:
        """Whether `every.seconds` have passed since the last one."""
        return self.every.seconds is not None and time.monotonic() - self._saved_at >= self.every.seconds

    def improves(self, loss: float) -> bool:
        """Whether a validation loss is among the best that are kept."""
        if not self._best or not np.isfinite(loss) or not self._primary:
            return False
        losses = sorted(self._losses[step] for step in self.steps() if step in self._losses)
        return len(losses) < self._best or loss < losses[self._best - 1]

    def steps(self) -> list[int]:
        """Steps of the checkpoints there are, whole ones as far as their names tell; the last is the newest."""
        return sorted(self._manager.all_steps()) if self._manager else []

    def save(self, step: int, state: PyTree, metrics: Mapping[str, float] | None = None) -> None:
        """Write the state, a tree of (trials, ...) arrays, in the background; Orbax copies it first.

        A failure of this or of the one before (a full disk) is said, and training goes on: what was written stays.
        """
        self._saved_at = time.monotonic()
        if not self._primary or step in self.steps():
            return
        self.wait()
        flat = {path: np.asarray(leaf) for path, leaf in flatten(state).items()}
        meta = {
            "step": step,
            "identity": self._identity,
            "identity_hash": digest(self._identity),
            "specs": self._specs,
            "versions": {name: metadata.version(name) for name in PACKAGES},
            "arrays": {path: describe(leaf) for path, leaf in flat.items()},
            "metrics": dict(metrics or {}),
        }
        meta["digest"] = digest(meta)
        self._saving = step
        if metrics:
            self._losses[step] = metrics[METRIC]
        try:
            if self._manager is None:
                self._open()
            assert self._manager is not None
            self._manager.save(
                step,
                args=ocp.args.Composite(state=ocp.args.StandardSave(flat), meta=ocp.args.JsonSave(meta)),
            )
        except Exception as error:
            self._failed(error)

    def wait(self) -> None:
        """Until what is being written is on the disk, or has failed."""
        if self._manager is None or self._saving is None:
            return
        try:
            self._manager.wait_until_finished()
            self._saving = None
        except Exception as error:
            self._failed(error)

    def close(self) -> None:
        self.wait()
        if self._manager is not None:
            self._manager.close()
            self._manager = None

    def restore(self, like: PyTree) -> tuple[int, PyTree] | None:
        """(step, state) of the newest whole checkpoint as NumPy arrays, or None if there is none.

        One that cannot be read is moved aside, saying so. like: arrays or shapes of the state. Raises WorkdirError if
        the newest readable one is of another run or model, naming the first difference.
        """
        wanted = flatten(like)
        found: tuple[int, Flat] | None = None
        for step in reversed(self.steps()):
            try:
                found = step, self._read(step, wanted)
                break
            except CheckpointError as error:
                aside = self.path.parent / UNUSABLE / str(step)
                self._say(f"checkpoint {step} cannot be used, moved to {aside}: {error}")
                self._move(step, aside)
        found = _agree(found, wanted)
        if found is None:
            return None
        self._say(f"going on from step {found[0]}")
        leaves = [found[1][path] for path in wanted]
        return found[0], jax.tree.unflatten(jax.tree.structure(like), leaves)

    def _read(self, step: int, wanted: Mapping[str, Any]) -> Flat:
        assert self._manager is not None
        meta = read_meta(self._manager, step)
        difference = first_difference(meta["identity"], self._identity)
        if difference:
            raise WorkdirError(
                f"{self.path} holds a checkpoint of another run: {difference}. Give another --workdir, or delete this "
                "one to start over"
            )
        for path in [*wanted, *meta["arrays"]]:
            saved = meta["arrays"].get(path, {})
            here = {"shape": list(wanted[path].shape), "dtype": str(wanted[path].dtype)} if path in wanted else {}
            if {k: saved.get(k) for k in here} != here or bool(saved) != bool(here):
                raise WorkdirError(
                    f"{self.path} holds a checkpoint of another model: {path} was {_words(saved)}, now it is "
                    f"{_words(here)}. Give another --workdir, or delete this one to start over"
                )
        return read_state(self._manager, step, meta)

    def _failed(self, error: Exception) -> None:
        step, self._saving = self._saving, None
        with contextlib.suppress(Exception):  # the error again
            if self._manager is not None:
                self._manager.close()
        self._manager = None
        for _ in range(ATTEMPTS):  # Orbax's other threads may still write into it
            for folder in self.path.glob(f"{step}.*"):  # what is half written takes up room that the next one needs
                shutil.rmtree(folder, ignore_errors=True)
            time.sleep(PAUSE)
            if not any(self.path.glob(f"{step}.*")):
                break
        with contextlib.suppress(OSError):  # else the next one tries again
            self._open()
        newest = self.steps()
        left = f"the newest whole one is that of step {newest[-1]}" if newest else "there is none yet"
        self._say(f"checkpoint {step} could not be written; {left}, and training goes on. {first_line(error)}")

    def _move(self, step: int, aside: Path) -> None:
        assert self._manager is not None
        shutil.rmtree(aside, ignore_errors=True)
        aside.parent.mkdir(parents=True, exist_ok=True)
        (self.path / str(step)).rename(aside)
        self._manager.reload()


def _agree(found: tuple[int, Flat] | None, wanted: Mapping[str, Any]) -> tuple[int, Flat] | None:
    """What the first process found, on all of them: as bytes, so that nothing is rounded on the way."""
    if jax.process_count() == 1:
        return found
    step = int(multihost_utils.broadcast_one_to_all(np.int32(found[0] if found else -1)))
    if step < 0:
        return None
    result = {}
    for path, leaf in wanted.items():
        size = int(np.prod(leaf.shape)) * np.dtype(leaf.dtype).itemsize
        content = found[1][path].tobytes() if found else bytes(size)
        agreed = np.asarray(multihost_utils.broadcast_one_to_all(np.frombuffer(content, np.uint8)))
        result[path] = np.frombuffer(agreed.tobytes(), leaf.dtype).reshape(leaf.shape)
    return step, result


def _words(array: Mapping[str, Any]) -> str:
    return f"{array['dtype']} {tuple(array['shape'])}" if array else "not there"
