"""What an executor's worker is sent, and what it does with it: it trains a group and returns the rows.

A worker writes nothing but compiled programs. What it raises itself comes back as a `Failure`, so that an error of a
future is always one of the executor: the worker was lost.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import socket
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax

from depthmup import bucket
from depthmup.backend import cores, described
from depthmup.files import first_difference, write_atomically
from depthmup.settings import SettingsError
from depthmup.train.devices import check_sets
from depthmup.trials.estimate import at_once
from depthmup.trials.group import CACHE, OutOfMemory, Runner, compiled_in
from depthmup.trials.identity import settings
from depthmup.trials.plan import Group
from depthmup.trials.seconds import Timing, timing_of
from depthmup.trials.store import Finished
from depthmup.trials.study import Point, Study, Trial

INLINE = 2**16  # bytes of a study that go along with each group; a larger one, with its arrays, is a file
SENT = "sent"  # folder of that file, in the workdir
XLA_FLAGS = "xla_flags"  # entry of `described`
LOCAL_RANK = "DEPTHMUP_LOCAL_RANK"  # environment variable: the number of this worker on its machine, if it has several
VISIBLE = "CUDA_VISIBLE_DEVICES"
GPUS = Path("/proc/driver/nvidia/gpus")
_alone = threading.Lock()  # a worker of several threads trains one group at a time
Words = tuple[Point, float, int]  # of a trial: point, learning rate, seed


class Parcel(NamedTuple):
    """A study on its way to workers. content: its pickle, or the path of the file that has it. digest: of the pickle.

    environment, jax_settings: of the caller, which decide the last digits of rows. data: what each machine reads by
    name. workdir: of the sweep, as the caller sees it.
    """

    content: bytes | str
    digest: str
    environment: tuple[tuple[str, str], ...]
    jax_settings: tuple[tuple[str, Any], ...]
    data: tuple[tuple[str, Any], ...]
    workdir: str


class Failure(NamedTuple):
    """An error in a worker: of the input, of memory that is too small, or of code, whose words have its traceback."""

    words: str
    kind: Literal["input", "memory", "code"]


class Opened(NamedTuple):
    """A study in a worker. cache: folder of compiled programs, if the worker sees the workdir."""

    study: Study
    runner: Runner
    cache: Path | None


def pack(study: Study, workdir: Path) -> Parcel:
    """The study with its functions by value. Arrays that it holds are written once, into the workdir."""
    import cloudpickle

    try:
        pickled: bytes = cloudpickle.dumps(study)
    except Exception as error:  # of any kind: what a user's object raises
        raise SettingsError(f"the model, loss or batches cannot be sent to workers: {error}") from error
    content: bytes | str = pickled
    digest = hashlib.sha256(pickled).hexdigest()
    if len(pickled) > INLINE:
        path = workdir / SENT / digest[:16]
        bucket.make(path.parent)
        write_atomically(path, pickled)
        content = str(path if bucket.in_bucket(path) else path.absolute())
    place = str(workdir if bucket.in_bucket(workdir) else workdir.absolute())
    environment, jax_settings, data = (tuple(entries.items()) for entries in (described(), settings(), study.data))
    return Parcel(content, digest, environment, jax_settings, data, place)


def words_of(trial: Trial) -> Words:
    return trial.point, trial.learning_rate, trial.seed


def work(number: str, parcel: Parcel, task: Callable[..., Any], *arguments: Any) -> Any:
    """What a worker is called with: task(the opened study, *arguments), or a `Failure`.

    number: another for each call, since Dask takes equal calls for one, which fails once for all.
    """
    with _alone:
        try:
            return task(_opened(parcel), *arguments)
        except ValueError as error:
            return Failure(
                f"on {socket.gethostname()}: {error}", "memory" if isinstance(error, OutOfMemory) else "input"
            )
        except Exception:  # a traceback can be sent, not every exception
            return Failure(f"on {socket.gethostname()}: {traceback.format_exc()}", "code")


def most_at_once(opened: Opened, words: Words) -> int:
    """The largest number of trials like this one in a group of this worker."""
    check_sets(opened.study.parallel, len(jax.local_devices()))
    return at_once(opened.study, _trial(opened.study, words))


def time_group(opened: Opened, trials: Sequence[Words], size: int) -> Timing:
    """What a group of such trials takes here."""
    with compiled_in(opened.cache):
        return timing_of(
            Group(tuple(_trial(opened.study, words) for words in trials), size, opened.study), opened.runner
        )


def train_group(opened: Opened, trials: Sequence[Words], size: int, keys: Sequence[str]) -> list[Finished]:
    group = Group(tuple(_trial(opened.study, words) for words in trials), size, opened.study)
    assert [trial.key for trial in group.trials] == list(keys)
    with compiled_in(opened.cache):
        return opened.runner.train_in_memory(group)


def _trial(study: Study, words: Words) -> Trial:
    point, learning_rate, seed = words
    return Trial(study.received(point), learning_rate, seed)


@functools.lru_cache(maxsize=1)
def _opened(parcel: Parcel) -> Opened:
    """Raises SettingsError where this worker would train something else than the caller."""
    import cloudpickle

    _prepare(dict(parcel.environment)[XLA_FLAGS])
    if other := first_difference(dict(parcel.environment), described()):
        raise SettingsError(f"{other}: give every worker the packages and XLA_FLAGS of the caller")
    for name, value in parcel.jax_settings:
        jax.config.update(f"jax_{name}", value)
    content = parcel.content
    if isinstance(content, str):
        try:
            content = bucket.folder(content).read_bytes()
        except OSError as error:
            raise SettingsError(f"{error}: give a workdir on a file system that all workers see") from error
    if hashlib.sha256(content).hexdigest() != parcel.digest:
        raise SettingsError(f"{parcel.content!r} has changed: start the sweep again")
    study: Study = cloudpickle.loads(content)
    if other := first_difference(dict(parcel.data), study.data):
        raise SettingsError(f"{other}: give every worker the same data")
    workdir = bucket.folder(parcel.workdir)
    sees = study.sweep.cache and not bucket.in_bucket(workdir) and workdir.is_dir()
    return Opened(study, Runner(), workdir / CACHE if sees else None)


@functools.cache
def _prepare(xla_flags: str) -> None:
    """What must be set before JAX starts: the caller's flags, a CPU device for each core, and a GPU of its own for each
    of several workers on one machine."""
    if xla_flags:
        os.environ["XLA_FLAGS"] = xla_flags
    else:
        os.environ.pop("XLA_FLAGS", None)
    if rank := os.environ.get(LOCAL_RANK):
        os.environ.update(one_device(int(rank), os.environ))
    with contextlib.suppress(RuntimeError):  # JAX has started, in a worker that is a thread of the caller
        jax.config.update("jax_num_cpu_devices", cores())


def one_device(rank: int, environment: Mapping[str, str]) -> dict[str, str]:
    """The variable that shows the worker of this number one GPU of those that the machine shows; {} without GPUs."""
    present = sorted(path.name for path in GPUS.iterdir()) if GPUS.is_dir() else []
    visible = environment.get(VISIBLE, ",".join(map(str, range(len(present)))))
    devices = list(filter(None, visible.split(",")))
    return {VISIBLE: devices[rank % len(devices)]} if devices else {}
