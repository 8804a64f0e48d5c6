"""Orbax checkpoints: written in the background; the last and the best are kept; a damaged one is never used."""

from __future__ import annotations

import contextlib
import json
import shutil
import time
import zlib
from collections.abc import Callable, Collection, Mapping
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from depthmup import bucket
from depthmup.files import digest, first_difference, write_atomically
from depthmup.rules.specs import PyTree
from depthmup.train.workdir import NotSaved, WorkdirError

if TYPE_CHECKING:
    from orbax.checkpoint import CheckpointManager

    from depthmup.settings import CheckpointSettings

Arrays = dict[str, np.ndarray]
FOLDER = "checkpoints"
METRIC = "validation_loss"  # the metric that chooses the best checkpoints
NEXT = -1  # stands for the step of a checkpoint that is not there yet
UNUSABLE = "unusable_checkpoints"  # checkpoints that cannot be read are moved to this folder
# Attempts to remove a half-written checkpoint, since Orbax's threads may still write to it; seconds between two.
ATTEMPTS, PAUSE = 20, 0.05
PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")


def orbax_folder() -> ModuleType:
    """The module that knows Orbax, imported when it is first needed."""
    from depthmup.train import orbax_folder

    return orbax_folder


class CheckpointError(RuntimeError):
    """A checkpoint cannot be read. The message says what is wrong with it."""


class Checkpoints:
    """The checkpoints of one run, or of one group of trials, in `workdir/checkpoints`.

    A checkpoint is one Orbax commit of two items. The item "state" has arrays by path: the state of all trials, and
    further arrays that the caller wants back. Arrays of the state are (trials, ...), whatever the number of devices.
    The item "meta" is JSON: the step, the identity of the run with its hash, specs, package versions and a checksum of
    every array. The step is also the position in the data; together with the seed it decides all random numbers. If
    there are several processes, only the first one reads and writes.

    Args:
      identity: what decides the run, as JSON. A checkpoint with another identity is refused with a message that names
        the first difference.
      seconds: time after which the next checkpoint is `overdue`; None: it never is.
      keep, best: the number of last checkpoints that stay, and the number of checkpoints with the lowest validation
        loss that stay.
      failures: so many checkpoints in a row that cannot be written end the run; 0: none does.
      specs: the ParamSpec tree of the model as JSON.
      say: is called with each message to the user.
      before: is called before each checkpoint is written. What it raises ends the run.
    """

    def __init__(
        self,
        workdir: Path,
        identity: Mapping[str, Any],
        *,
        seconds: float | None = None,
        keep: int = 2,
        best: int = 1,
        failures: int = 0,
        specs: Any = None,
        say: Callable[[str], None] = print,
        before: Callable[[], None] = lambda: None,
    ) -> None:
        self.path, self._seconds, self._say = _folder(workdir), seconds, say
        self._most_failures, self._failures, self._before = failures, 0, before
        self._identity, self._specs = json.loads(json.dumps([identity, specs]))
        self._keep, self._best = keep, best
        self._primary = jax.process_index() == 0
        self._manager: CheckpointManager | None = None
        self._losses: dict[int, float] = {}
        self._whole: list[int] = []  # the steps of checkpoints that were there when one failed
        with bucket.errors(self.path):
            if self._primary and self.path.exists():
                self._open()
        self._saved_at = time.monotonic()
        self._saving: int | None = None  # the step whose checkpoint is being written

    def overdue(self) -> bool:
        """Whether `seconds` have passed since the last checkpoint."""
        return self._seconds is not None and time.monotonic() - self._saved_at >= self._seconds

    def improves(self, loss: float) -> bool:
        """Whether a checkpoint with this validation loss would be among the best ones that are kept."""
        if not np.isfinite(loss) or not self._primary:
            return False
        losses = {step: self._losses[step] for step in self.steps() if step in self._losses}
        return NEXT in lowest({**losses, NEXT: loss}, self._best)

    def steps(self) -> list[int]:
        """Steps of the checkpoints on the disk, oldest first. Only file names are read: a checkpoint may be damaged."""
        return sorted(self._manager.all_steps()) if self._manager else []

    def has(self, step: int) -> bool:
        """Whether the checkpoint of a step is on the disk. If one is being written, this waits for it."""
        self.wait()
        return step in self.steps()

    def save(
        self, step: int, state: PyTree, metrics: Mapping[str, float] | None = None, more: Arrays | None = None
    ) -> None:
        """Write the state, a tree of (trials, ...) arrays, and `more` arrays in the background, after a copy by Orbax.

        If this checkpoint or the one before cannot be written (a full disk), a message says so, training goes on, and
        earlier checkpoints stay. Raises NotSaved after `failures` of them in a row, WorkdirError if the folder was
        deleted.
        """
        self._saved_at = time.monotonic()
        if not self._primary or step in self.steps():
            return
        self.wait()
        self._before()
        is_gone = self._manager is not None and not bucket.in_bucket(self.path) and not self.path.exists()
        if is_gone:  # Orbax would make a folder without our other files
            raise WorkdirError(f"{self.path} is gone, and with it what was saved: the same command starts over")
        arrays = {path: np.asarray(leaf) for path, leaf in flatten(state).items()} | (more or {})
        meta = {
            "step": step,
            "identity": self._identity,
            "identity_hash": digest(self._identity),
            "specs": self._specs,
            "versions": {name: metadata.version(name) for name in PACKAGES},
            "arrays": {path: _described(leaf) for path, leaf in arrays.items()},
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
            orbax_folder().save(self._manager, step, arrays, meta)
        except Exception as error:
            self._failed(error)

    def wait(self) -> None:
        """Wait until the checkpoint that is being written is on the disk or has failed."""
        if self._manager is None or self._saving is None:
            return
        try:
            self._manager.wait_until_finished()
            self._saving, self._failures = None, 0
        except Exception as error:
            self._failed(error)

    def close(self) -> None:
        """Wait as `wait` does, but raise nothing, and close the folder."""
        with contextlib.suppress(NotSaved):
            self.wait()
        if self._manager is not None:
            self._manager.close()
            self._manager = None

    def restore(self, like: PyTree) -> tuple[int, PyTree, Arrays] | None:
        """(step, state, `more` arrays) of the newest checkpoint that can be read, in NumPy; None if there is none.

        A checkpoint that cannot be read is moved to the folder UNUSABLE, with a message.

        like: arrays or shapes of the state.

        Raises WorkdirError if the newest readable checkpoint belongs to another run or model; the message names the
        first difference.
        """
        wanted = flatten(like)
        newest: tuple[int, Arrays] | None = None
        for step in reversed(self.steps()):
            try:
                newest = step, self._read(step, wanted)
                break
            except CheckpointError as error:
                aside = self.path.parent / UNUSABLE / str(step)
                self._say(f"checkpoint {step} cannot be used, moved to {aside}: {error}")
                self._move(step, aside)
        newest = _agreed(newest, wanted)
        if newest is None:
            return None
        self._say(f"going on from step {newest[0]}")
        state = jax.tree.unflatten(jax.tree.structure(like), [newest[1].pop(path) for path in wanted])
        return newest[0], state, newest[1]

    def _open(self) -> None:
        """Open the folder. This takes 10 ms, so it is done only when there is something to read or to write."""
        self._manager = orbax_folder().writer(self.path, self._staying)
        for step in self.steps():
            with contextlib.suppress(CheckpointError):  # `restore` reports it
                loss = _read_meta(self._manager, step)["metrics"].get(METRIC)
                self._losses |= {} if loss is None else {step: loss}

    def _staying(self, steps: Collection[int]) -> set[int]:
        """The checkpoints that stay, of those at these steps: the last and the best ones."""
        losses = {step: self._losses[step] for step in steps if step in self._losses}
        return {*sorted(steps)[-self._keep :], *lowest(losses, self._best)}

    def _read(self, step: int, wanted: Mapping[str, Any]) -> Arrays:
        assert self._manager is not None
        meta = _read_meta(self._manager, step)
        difference = first_difference(meta["identity"], self._identity)
        if difference:
            raise WorkdirError(
                f"{self.path} holds a checkpoint of another run: {difference}. Give another --workdir, or delete this "
                "one to start over"
            )
        here = {path: {"shape": list(leaf.shape), "dtype": str(leaf.dtype)} for path, leaf in wanted.items()}
        saved = {path: {k: array[k] for k in ("shape", "dtype")} for path, array in meta["arrays"].items()}
        of_state = [path for path in saved if path.split("/")[0] in {other.split("/")[0] for other in here}]
        for path in [*here, *of_state]:
            if saved.get(path) != here.get(path):
                raise WorkdirError(
                    f"{self.path} holds a checkpoint of another model: {path} was {_words(saved.get(path))}, now it is "
                    f"{_words(here.get(path))}. Give another --workdir, or delete this one to start over"
                )
        return _read_arrays(self._manager, step, meta)

    def _failed(self, error: Exception) -> None:
        step, self._saving = self._saving, None
        self._whole = [other for other in self.steps() if other != step] or self._whole
        with contextlib.suppress(Exception):  # it may raise the same error again
            if self._manager is not None:
                self._manager.close()
        self._manager = None
        # In a bucket Orbax deletes what is not committed when it opens the folder.
        for _ in range(0 if bucket.in_bucket(self.path) else ATTEMPTS):
            for folder in self.path.glob(f"{step}.*"):  # half-written files take room that the next checkpoint needs
                shutil.rmtree(folder, ignore_errors=True)
            time.sleep(PAUSE)
            if not any(self.path.glob(f"{step}.*")):
                break
        with contextlib.suppress(OSError), bucket.errors(self.path):  # else the next one tries again
            self._open()
        newest = self.steps() or self._whole  # of a bucket that does not answer nothing else is known
        left = f"the newest whole one is that of step {newest[-1]}" if newest else "there is none yet"
        self._failures += 1
        if self._failures == self._most_failures:
            raise NotSaved(
                f"{self._failures} checkpoints in a row could not be written to {self.path}; {left}. When they can be, "
                "the same command goes on from there; --config.checkpoint.failures=0 trains without them. "
                f"{_first_line(error)}"
            ) from error
        self._say(f"checkpoint {step} could not be written; {left}, and training goes on. {_first_line(error)}")

    def _move(self, step: int, aside: Path) -> None:
        assert self._manager is not None
        bucket.remove(aside)
        bucket.make(aside.parent)
        if bucket.in_bucket(aside):  # where a folder is there if something is in it
            write_atomically(aside.parent / "about.txt", "checkpoints that could not be used\n")
        with bucket.errors(aside):
            (self.path / str(step)).rename(aside)
        self._manager.reload()


def load(workdir: str | Path, best: bool = False) -> tuple[Arrays, dict[str, Any]]:
    """({path: array}, meta) of a run's newest checkpoint, or of the one that is best on the validation split.

    Paths are paths in `TrainState`, for example "params/blocks/dense/kernel". meta has "step", "identity" (the
    settings), "specs" and "metrics". Raises CheckpointError if there is no checkpoint, or if it is damaged.
    """
    path = _folder(workdir)
    if not path.is_dir():
        raise CheckpointError(f"{path} is not there: the run has no checkpoint yet, or its workdir is another")
    with orbax_folder().reader(path) as manager:
        metas = {step: _read_meta(manager, step) for step in sorted(manager.all_steps())}
        losses = {step: meta["metrics"][METRIC] for step, meta in metas.items() if METRIC in meta["metrics"]}
        if not (losses if best else metas):
            raise CheckpointError(f"{path} holds no checkpoint{' with a validation loss' if best else ''}")
        step = lowest(losses, 1)[0] if best else max(metas)
        state = _read_arrays(manager, step, metas[step])
    return {name: leaf[0] for name, leaf in state.items()}, metas[step]


def check_place(workdir: Path, checkpoint: CheckpointSettings) -> None:
    """Raises WorkdirError if Orbax cannot write checkpoints there."""
    if str(workdir).startswith("s3://") and checkpoint.every.unit != "never":
        raise WorkdirError(
            f"{workdir}: Orbax {metadata.version('orbax-checkpoint')} writes no checkpoints to s3://: mount the bucket "
            "and give its folder, or go without them by --config.checkpoint.every=never"
        )


def _folder(workdir: str | Path) -> Path:
    path = bucket.folder(workdir) / FOLDER
    return path if bucket.in_bucket(path) else path.resolve()


def lowest(losses: Mapping[int, float], count: int) -> list[int]:
    """The `count` best steps of {step: validation loss}, the best one first."""
    return sorted(losses, key=lambda step: losses[step])[:count]


def flatten(tree: PyTree) -> dict[str, Any]:
    """The leaves of a tree by path, such as "params/blocks/kernel", in tree order."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def _read_meta(manager: CheckpointManager, step: int) -> dict[str, Any]:
    """The JSON of a checkpoint. Raises CheckpointError if it cannot be read or is not what was written."""
    try:
        meta = orbax_folder().meta(manager, step)
        written = meta.pop("digest")
    except Exception as error:  # damaged bytes make the reader raise many kinds of errors
        raise CheckpointError(f"its JSON cannot be read ({_first_line(error)})") from error
    if written != digest(meta):
        raise CheckpointError("its JSON is not what was written")
    return meta


def _read_arrays(manager: CheckpointManager, step: int, meta: Mapping[str, Any]) -> Arrays:
    """The arrays of a checkpoint. Raises CheckpointError if one cannot be read or is not what was written."""
    try:
        arrays = orbax_folder().arrays(manager, step)
    except Exception as error:
        raise CheckpointError(f"its arrays cannot be read ({_first_line(error)})") from error
    # Orbax notices a missing or shortened file, but not a changed byte in an array.
    for path, written in meta["arrays"].items():
        if path not in arrays or _described(arrays[path]) != written:
            raise CheckpointError(f"{path} is not what was written")
    return arrays


def _agreed(newest: tuple[int, Arrays] | None, wanted: Mapping[str, Any]) -> tuple[int, Arrays] | None:
    """Send the newest checkpoint of the first process to all. Arrays travel as bytes, so nothing is rounded."""
    if jax.process_count() == 1:
        return newest
    step = int(multihost_utils.broadcast_one_to_all(np.int32(newest[0] if newest else -1)))
    if step < 0:
        return None
    result = {}
    for path, leaf in wanted.items():
        size = int(np.prod(leaf.shape)) * np.dtype(leaf.dtype).itemsize
        content = newest[1][path].tobytes() if newest else bytes(size)
        agreed = np.asarray(multihost_utils.broadcast_one_to_all(np.frombuffer(content, np.uint8)))
        result[path] = np.frombuffer(agreed.tobytes(), leaf.dtype).reshape(leaf.shape)
    return step, result


def _described(leaf: np.ndarray) -> dict[str, Any]:
    """Shape, dtype and checksum of an array, as JSON."""
    content = np.ascontiguousarray(leaf).reshape(-1).view(np.uint8)
    return {"shape": list(leaf.shape), "dtype": str(leaf.dtype), "crc32": zlib.crc32(content.data)}


def _words(array: Mapping[str, Any] | None) -> str:
    return f"{array['dtype']} {tuple(array['shape'])}" if array else "not there"


def _first_line(error: Exception) -> str:
    """The type of an error and the first line of its message."""
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"[:500]
