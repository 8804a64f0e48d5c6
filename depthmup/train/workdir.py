"""The folder of a run or a sweep and its files.

A file is written whole or not at all. A folder is used only with the settings that it belongs to, and by one process at
a time unless it is shared. In a bucket, which has no locks, the process that came last is the one.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from depthmup import bucket
from depthmup.backend import described
from depthmup.files import digest, first_difference, write_atomically

Row = dict[str, Any]
LOCK = ".lock"
OPENING = ".opening"  # locked by a process while it compares and writes settings.json
SETTINGS = "settings.json"
ENVIRONMENT = "environment.json"
CHECKSUM = "checksum"  # entry of settings.json: a hash of the others
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # what a file system without locks answers


OWNER = ".owner"  # in a bucket: an object that names the process that writes; of a part of a sweep .owner-I-of-N


class WorkdirError(RuntimeError):
    """A workdir cannot be used. The message says why and how to go on."""


class NotSaved(RuntimeError):
    """A run has ended, since what it trains is no longer saved. The message says why and how to go on."""


class Workdir:
    """A folder of results. Its `settings.json` has the settings that decide the results.

    Its `environment.json` has the versions of packages and the XLA flags that the results were computed with. If this
    process has another environment, `messages` says so, since the last digits of results may differ.

    Opening a workdir locks it until `close` or the end of the process. Raises WorkdirError if the workdir belongs to
    other settings (the message names the first that differs) or if another process uses it. In a bucket the process
    that used it before stops at its next `check`.
    """

    def __init__(
        self,
        path: Path,
        settings: Mapping[str, Any],
        results: str,
        shared: bool = False,
        differs: Callable[[Any, Any], str] = first_difference,
        remembered: Callable[[], Any] = lambda: None,
        part: str = "",
        join: str = "the processes of one run over several hosts need --distributed",
    ) -> None:
        """
        settings: the settings that decide the results, as JSON.
        results: name of the file or folder of results. Settings are needed only where results exist.
        shared: whether other processes that also say `shared` may use the workdir at the same time.
        differs: (saved settings, settings of this process) -> a difference that is not allowed, in words, or "".
        remembered: the settings as the results themselves tell them, where settings.json is lost; None if they do not.
        join: how processes may use the workdir together, for those that find it in use.
        part: of the results, which has a process of its own in a bucket, "-I-of-N".
        """
        self.path, self.messages = path, list[str]()
        settings = json.loads(json.dumps(settings))
        if bucket.in_bucket(path):
            try:
                bucket.check(path)
            except ValueError as error:
                raise WorkdirError(str(error)) from error
        try:
            bucket.make(path)
        except OSError as error:
            raise WorkdirError(f"{path} cannot be made a folder ({error.strerror}): give another --workdir") from error
        # Of two that open a new workdir at once, the second sees the settings of the first.
        with bucket.errors(path), one_at_a_time(path / OPENING):
            saved = self._saved(path / results, remembered)
            difference = "" if saved is None else differs(saved, settings)
            if difference:
                raise WorkdirError(
                    f"{path} holds results of another config: {difference}. Give another --workdir, or delete this one "
                    "to start over"
                )
            self._lock: BinaryIO | Owner = Owner(path, part) if bucket.in_bucket(path) else _locked(path, shared, join)
            try:
                if saved != settings or self.messages:
                    content = {**settings, CHECKSUM: digest(settings)}
                    write_atomically(path / SETTINGS, json.dumps(content, indent=1), sync=True)
                self.messages += self._note_environment()
                if isinstance(self._lock, Owner):
                    self.messages += self._lock.messages
                elif not _locks_hold(path / LOCK):
                    self.messages.append(
                        f"note: locks of files do nothing where {path} lies: let one process at a time use it, since a "
                        "second one would not be noticed"
                    )
            except BaseException:
                self.close()
                raise

    def check(self) -> None:
        """Raises NotSaved if another process has taken over this folder of a bucket, or deleted it."""
        if isinstance(self._lock, Owner):
            self._lock.check()

    def alone(self) -> bool:
        """Whether no process of another part of the results has this folder of a bucket."""
        return not (isinstance(self._lock, Owner) and self._lock.others())

    def close(self) -> None:
        self._lock.close()

    def _note_environment(self) -> list[str]:
        """Add this process's environment to the file. The messages to the user, if the environment is a new one."""
        path, here = self.path / ENVIRONMENT, described()
        try:
            earlier = json.loads(path.read_text()) if path.exists() else []
        except ValueError:
            earlier = []
        if not (isinstance(earlier, list) and all(isinstance(entry, dict) for entry in earlier)):
            earlier = []
        if here in earlier:
            return []
        write_atomically(path, json.dumps([*earlier, here], indent=1))
        if not earlier:
            return []
        difference = first_difference(earlier[-1], here)
        return [f"note: {self.path} was computed in another environment ({difference}): last digits may differ"]

    def _saved(self, results: Path, remembered: Callable[[], Any]) -> Any:
        """The settings that the results belong to; None without results. Raises WorkdirError if nothing tells them."""
        path = self.path / SETTINGS
        try:
            saved = read_settings(self.path) if path.exists() else None
            reason = f"but no {SETTINGS}"
        except WorkdirError as error:
            saved, reason = None, f"and {error}"
        if saved is not None:
            return saved
        if not results.exists() or not (results.is_dir() or bucket.file_size(results)):
            return None
        saved = remembered()
        if saved is None:
            raise WorkdirError(f"{self.path} holds {results.name} {reason}: give another --workdir, or bring it back")
        self.messages.append(f"{path} is written anew, from {results.name}")
        return saved


def read_settings(workdir: Path) -> dict[str, Any]:
    """The content of a workdir's settings.json. Raises WorkdirError where it is missing or damaged."""
    path = workdir / SETTINGS
    try:
        with bucket.errors(workdir):
            saved = json.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError) as error:
        raise WorkdirError(f"{workdir} holds no {SETTINGS}") from error
    except ValueError as error:
        raise WorkdirError(f"{path} is damaged: {error}") from error
    if not isinstance(saved, dict) or not saved:
        raise WorkdirError(f"{path} is damaged: it is no object of settings")
    if saved.pop(CHECKSUM, None) != digest(saved):
        raise WorkdirError(f"{path} is damaged, or edited: its checksum is another")
    return saved


@contextlib.contextmanager
def one_at_a_time(path: Path) -> Iterator[None]:
    """One process at a time, by a lock of the system on this file; of a bucket there are no locks."""
    if bucket.in_bucket(path):
        yield
        return
    with open(path, "ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            raise WorkdirError(
                f"{path.parent} lies on a file system without locks ({error.strerror}): give a --workdir on another, "
                "such as a local disk, or have it mounted with flock"
            ) from error
        yield


def _locked(path: Path, shared: bool, join: str) -> BinaryIO:
    file = open(path / LOCK, "ab")  # noqa: SIM115 - held open: the lock lives as long as the file
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise WorkdirError(
            f"{path} is in use by another process: wait for it or give another --workdir ({join})"
        ) from error
    return file


def _locks_hold(path: Path) -> bool:
    """Whether a lock that this process has on a file keeps others out: some network mounts grant every lock."""
    with open(path, "ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
        return False


class Owner:
    """The process that writes into a folder of a bucket: the last one that came. Nothing is waited for, so that a run
    goes on at once after a kill; a process that still runs stops before it writes again.

    messages: of the process before, if it has not closed the folder.
    """

    def __init__(self, path: Path, part: str = "") -> None:
        self._folder, self._path = path, path / f"{OWNER}{part}"
        self._words = f"process {os.getpid()} on {socket.gethostname()}, {uuid.uuid4().hex[:8]}"
        before = self._path.read_text() if self._path.exists() else ""
        self.messages = (
            [f"note: {before} has not left {path}: if it still runs, it ends before it saves again"] if before else []
        )
        write_atomically(self._path, self._words)

    def check(self) -> None:
        """Raises NotSaved if another process has taken over, or if the folder was deleted."""
        try:
            words = self._path.read_text()
        except FileNotFoundError as error:
            raise NotSaved(
                f"{self._folder} is gone, and with it what was saved: the same command starts over"
            ) from error
        except Exception:  # the bucket does not answer: what is written next tells
            return
        if words != self._words:
            raise NotSaved(
                f"{self._folder} was taken over by {words}: this process stops; one process at a time writes into a "
                "folder of a bucket"
            )

    def others(self) -> bool:
        """Whether other processes have this folder too, for other parts of its results."""
        with bucket.errors(self._folder):
            return any(path.name != self._path.name for path in self._folder.glob(f"{OWNER}*"))

    def close(self) -> None:
        with contextlib.suppress(Exception):
            if self._path.read_text() == self._words:
                self._path.unlink()
