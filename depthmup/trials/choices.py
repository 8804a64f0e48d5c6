"""The choices of a search that goes by measured seconds: logged before they are trained, and replayed by a later call.

Rows are the same each time, seconds are not. So a call that goes on takes over the choices of the calls before it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from depthmup.files import digest, write_atomically
from depthmup.train.workdir import CHECKSUM, WorkdirError, one_at_a_time
from depthmup.trials.study import Size

CHOICES = "choices.jsonl"  # in the workdir, a line for each choice
OF, SEARCH = "of", "search"  # entries of a line: a hash of what the search is of, and that in words
Measured = Mapping[str, tuple[float, float, float]]  # {shape: what `Seconds` measured}


class Answer(NamedTuple):
    """What a law says of the large run. Costs are shares of the loss."""

    learning_rate: float
    low: float
    high: float
    cost: float
    worst_cost: float


class Choice(NamedTuple):
    """What to train next. An empty choice tells of the seconds that were spent, or of what does not fit.

    trials: (size, learning rate, seed) of each training. seconds: that they are expected to take.
    spent: seconds of all trainings before. measured: what both depend on. left_out: sizes that do not fit into memory.
    dropped: sizes of the choice before that were not trained, since it took longer than expected.
    answer: of the rows before; None where they allow no law.
    """

    trials: tuple[tuple[Size, float, int], ...]
    seconds: float
    spent: float
    measured: Measured
    left_out: tuple[Size, ...] = ()
    dropped: tuple[Size, ...] = ()
    answer: Answer | None = None


class Choices:
    """The log of one search in a workdir, which may hold those of others.

    made: the choices, in their order. Raises WorkdirError for a file that is damaged.
    """

    def __init__(self, workdir: Path, search: Mapping[str, Any]) -> None:
        """search: all that the choices depend on besides rows and seconds, as JSON."""
        self._path, self._search, self._of = workdir / CHOICES, dict(search), digest(search)
        self.made = [_choice(entry) for entry in self._lines() if entry[OF] == self._of]

    def add(self, choice: Choice) -> None:
        """Add a choice; it is on the disk when this returns. Raises WorkdirError if another process has added one."""
        with one_at_a_time(self._path.with_name(f".{CHOICES}.lock")):
            lines = self._lines()
            if sum(entry[OF] == self._of for entry in lines) != len(self.made):
                raise WorkdirError(f"another process makes choices in {self._path}: wait for it, then call again")
            self.made.append(choice)
            new = {OF: self._of, SEARCH: self._search, **choice._asdict()}
            entries = (*lines, json.loads(json.dumps(new)))
            text = "".join(json.dumps({**entry, CHECKSUM: digest(entry)}) + "\n" for entry in entries)
            write_atomically(self._path, text, sync=True)

    def _lines(self) -> list[dict[str, Any]]:
        if not self._path.exists():
            return []
        try:
            content = self._path.read_bytes()
        except OSError as error:
            raise WorkdirError(f"{self._path} cannot be read ({error.strerror}): delete it") from error
        result = list[dict[str, Any]]()
        for number, line in enumerate(content.splitlines(), 1):
            try:
                entry = json.loads(line)
                checksum = entry.pop(CHECKSUM, None)  # earlier lines have none
                _choice(entry)
            except (ValueError, KeyError, TypeError, AttributeError):
                checksum, entry = "", {}
            if checksum not in (None, digest(entry)):
                raise WorkdirError(f"{self._path} line {number} is damaged: delete it and those after it")
            result.append(entry)
        return result


def _choice(entry: Mapping[str, Any]) -> Choice:
    str(entry[OF])
    return Choice(
        tuple((Size(*size), float(rate), int(seed)) for size, rate, seed in entry["trials"]),
        float(entry["seconds"]),
        float(entry["spent"]),
        {shape: (float(a), float(b), float(c)) for shape, (a, b, c) in entry["measured"].items()},
        tuple(Size(*size) for size in entry["left_out"]),
        tuple(Size(*size) for size in entry["dropped"]),
        Answer(*map(float, entry["answer"])) if entry["answer"] else None,
    )
