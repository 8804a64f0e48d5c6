"""The folder of a run or a sweep and its files.

A file is written whole or not at all. A folder is used only with the settings that it belongs to, and by one process at
a time unless it is shared.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from depthmup.backend import described
from depthmup.files import first_difference, write_atomically

Row = dict[str, Any]
LOCK = ".lock"
SETTINGS = "settings.json"
ENVIRONMENT = "environment.json"


class WorkdirError(RuntimeError):
    """A workdir cannot be used. The message says why and how to go on."""


class Workdir:
    """A folder of results. Its `settings.json` has the settings that decide the results.

    Its `environment.json` has the versions of jaxlib and the XLA flags that the results were computed with. If this
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
        differs: Callable[[Any, Any], str] | None = None,
    ) -> None:
        """
        settings: the settings that decide the results, as JSON.
        results: name of the file or folder of results. Settings are needed only where results exist.
        shared: whether other processes that also say `shared` may use the workdir at the same time.
        differs: (saved settings, settings of this process) -> a difference that is not allowed, in words, or "".
        """
        self.path = path
        settings = json.loads(json.dumps(settings))
        self._check_settings(settings, path / results, differs or first_difference)
        path.mkdir(parents=True, exist_ok=True)
        self._lock = _locked(path, shared)
        try:
            write_atomically(path / SETTINGS, json.dumps(settings, indent=1))
            self.messages = self._note_environment()
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
        if here in earlier:
            return []
        write_atomically(path, json.dumps([*earlier, here], indent=1))
        if not earlier:
            return []
        difference = first_difference(earlier[-1], here)
        return [f"note: {self.path} was computed in another environment ({difference}): last digits may differ"]

    def _check_settings(self, settings: Any, results: Path, differs: Callable[[Any, Any], str]) -> None:
        saved_at = self.path / SETTINGS
        if not saved_at.exists():
            if results.exists() and (results.is_dir() or results.stat().st_size):
                raise WorkdirError(f"{self.path} holds {results.name} but no {SETTINGS}: give another --workdir")
            return
        try:
            saved = json.loads(saved_at.read_text())
        except ValueError as error:
            raise WorkdirError(
                f"{saved_at} is not JSON: give another --workdir, or delete this one to start over"
            ) from error
        difference = differs(saved, settings)
        if difference:
            raise WorkdirError(
                f"{self.path} holds results of another config: {difference}. Give another --workdir, or delete this "
                "one to start over"
            )


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
