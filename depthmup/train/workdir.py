"""The folder of a run or a sweep and its files.

A file is written whole or not at all. A folder is used only with the settings that it belongs to, and by one process at
a time unless it is shared.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from depthmup.backend import described
from depthmup.files import digest, first_difference, write_atomically

Row = dict[str, Any]
LOCK = ".lock"
OPENING = ".opening"  # locked by a process while it compares and writes settings.json
SETTINGS = "settings.json"
ENVIRONMENT = "environment.json"
CHECKSUM = "checksum"  # entry of settings.json: a hash of the others; earlier workdirs have none


class WorkdirError(RuntimeError):
    """A workdir cannot be used. The message says why and how to go on."""


class Workdir:
    """A folder of results. Its `settings.json` has the settings that decide the results.

    Its `environment.json` has the versions of packages and the XLA flags that the results were computed with. If this
    process has another environment, `messages` says so, since the last digits of results may differ.

    Opening a workdir locks it until `close` or the end of the process. Raises WorkdirError if the workdir belongs to
    other settings (the message names the first that differs) or if another process uses it.
    """

    def __init__(
        self,
        path: Path,
        settings: Mapping[str, Any],
        results: str,
        shared: bool = False,
        differs: Callable[[Any, Any], str] = first_difference,
        remembered: Callable[[], Any] = lambda: None,
    ) -> None:
        """
        settings: the settings that decide the results, as JSON.
        results: name of the file or folder of results. Settings are needed only where results exist.
        shared: whether other processes that also say `shared` may use the workdir at the same time.
        differs: (saved settings, settings of this process) -> a difference that is not allowed, in words, or "".
        remembered: the settings as the results themselves tell them, where settings.json is lost; None if they do not.
        """
        self.path, self.messages = path, list[str]()
        settings = json.loads(json.dumps(settings))
        path.mkdir(parents=True, exist_ok=True)
        # Of two that open a new workdir at once, the second sees the settings of the first.
        with one_at_a_time(path / OPENING):
            saved = self._saved(path / results, remembered)
            difference = "" if saved is None else differs(saved, settings)
            if difference:
                raise WorkdirError(
                    f"{path} holds results of another config: {difference}. Give another --workdir, or delete this one "
                    "to start over"
                )
            self._lock = _locked(path, shared)
            try:
                if saved != settings or self.messages:
                    content = {**settings, CHECKSUM: digest(settings)}
                    write_atomically(path / SETTINGS, json.dumps(content, indent=1), sync=True)
                self.messages += self._note_environment()
            except BaseException:
                self.close()
                raise

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
        if not results.exists() or not (results.is_dir() or results.stat().st_size):
            return None
        saved = remembered()
        if saved is None:
            raise WorkdirError(f"{self.path} holds {results.name} {reason}: give another --workdir, or bring it back")
        self.messages.append(f"{path} is written anew, from {results.name}")
        return saved


def read_settings(workdir: Path) -> dict[str, Any]:
    """The content of a workdir's settings.json. Raises WorkdirError where it is missing or damaged."""
    path = workdir / SETTINGS
    if not path.exists():
        raise WorkdirError(f"{workdir} holds no {SETTINGS}")
    try:
        saved = json.loads(path.read_text())
    except ValueError as error:
        raise WorkdirError(f"{path} is damaged: {error}") from error
    if not isinstance(saved, dict) or not saved:
        raise WorkdirError(f"{path} is damaged: it is no object of settings")
    checksum = saved.pop(CHECKSUM, None)
    if checksum not in (None, digest(saved)):
        raise WorkdirError(f"{path} is damaged, or edited: its checksum is another")
    return saved


@contextlib.contextmanager
def one_at_a_time(path: Path) -> Iterator[None]:
    """One process at a time, by a lock of the system on this file."""
    with open(path, "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _locked(path: Path, shared: bool) -> BinaryIO:
    file = open(path / LOCK, "ab")  # noqa: SIM115 - held open: the lock lives as long as the file
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise WorkdirError(
            f"{path} is in use by another process: wait for it or give another --workdir (the processes of one run "
            "over several hosts need --distributed)"
        ) from error
    return file
