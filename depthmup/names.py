"""Errors about what a caller gave: a name that is not known, a number out of range; how to install what is missing."""

from __future__ import annotations

import dataclasses
import difflib
import math
import numbers
from collections.abc import Iterable
from typing import Any

import numpy as np

SMALLEST, LARGEST = 2.0**-126, (2 - 2.0**-23) * 2.0**127  # in size, of the normal numbers of float32


def unknown(kind: str, name: object, known: Iterable[str], hint: str = "") -> ValueError:
    """The error for an unknown name; its message has the name, the nearest known name and all known names."""
    known = sorted(known)
    near = nearest(name, known)
    suggestion = f"; did you mean {near!r}?" if near else ""
    return ValueError(f"unknown {kind} {short(name)}{suggestion} (known: {', '.join(known)}){hint}")


def unknown_key(group: str, name: str, near: str | None) -> ValueError:
    """The error for a key `name` that a group of a config lacks. near: the nearest key that it has, if there is one."""
    suggestion = f"; did you mean {f'{group}.{near}'!r}?" if near else " (configs/default.py has all)"
    return ValueError(f"unknown key {f'{group}.{name}'!r}{suggestion}")


def nearest(name: object, known: Iterable[str]) -> str | None:
    """The known name that is nearest to a name, if one is near."""
    names = {other.lower(): other for other in known}
    near = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.5) if isinstance(name, str) else []
    return names[near[0]] if near else None


def short(value: object) -> str:
    """A value as one short line of a message."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:77]}..."


@dataclasses.dataclass(frozen=True, kw_only=True)
class Range:
    """The numbers that an argument or a setting may be.

    low: the smallest. high: numbers are below it. most: the largest. positive: numbers are above 0. infinite: infinity
    is one of them.
    """

    low: float | None = None
    high: float | None = None
    most: float | None = None
    positive: bool = False
    infinite: bool = False

    @property
    def bounds(self) -> str:
        """The bounds in words, which follow "must be"; "" for none."""
        if self.positive:
            return "positive" if self.infinite else "positive and finite"
        if self.low is None:
            return ""
        if self.most is not None:
            return f"in [{self.low:,}, {self.most:,}]"
        return f"at least {self.low:,}" + (f" and less than {self.high:,}" if self.high is not None else "")

    def check(self, what: str, number: Any) -> None:
        """Raises ValueError for what is no real number, or out of the range. what: its name in the message."""
        number = number.item() if getattr(number, "shape", None) == () else number
        if not isinstance(number, numbers.Real):
            raise ValueError(f"{what} must be a number, got {short(number)}")
        number = number if isinstance(number, int) else float(number)  # a whole number may be too large for a float
        if not self._inside(number):
            unsaid = (self.high, self.most, self.positive, self.infinite) == (None, None, False, False)
            finite = "finite" if unsaid and not -math.inf < number < math.inf else ""
            raise ValueError(f"{what} must be {' and '.join(filter(None, (self.bounds, finite)))}, got {short(number)}")

    def array(self, what: str, values: Any, missing: bool = False) -> np.ndarray:
        """The values as an array of float64. missing: NaN and None pass: values that are not known.

        Raises ValueError, with the first value that is out of the range, or that is no real number.
        """
        array = floats(what, values)
        outside = np.logical_not(self._inside(array)) & ~(missing & np.isnan(array))
        if outside.any():
            self.check(what, float(array[outside][0]))
        return array

    def _inside(self, number: Any) -> Any:
        """Whether a number is in the range; of an array, entry by entry."""
        above = number > (0 if self.positive else -math.inf) if self.low is None else number >= self.low
        if self.most is not None or self.infinite:
            return above & (number <= (math.inf if self.most is None else self.most))
        return above & (number < (math.inf if self.high is None else self.high))


FINITE, POSITIVE, NOT_NEGATIVE = Range(), Range(positive=True), Range(low=0)


def floats(what: str, values: Any) -> np.ndarray:
    """The values as an array of float64, None as NaN. Raises ValueError for what is no array of real numbers."""
    try:
        array = np.asarray(values)
        if array.dtype.kind not in "cSU":
            return np.asarray(array, np.float64)
    except (TypeError, ValueError, OverflowError):
        pass
    raise ValueError(f"{what} must be numbers, got {short(values)}")


def listed(what: str, values: Any) -> list[Any]:
    """The values as a list. Raises ValueError for what has none, such as a number or a word."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise ValueError(f"{what} must be several values, got {short(values)}")
    return list(values)


def whole(what: str, number: Any, least: int = 0) -> int:
    """The number as an int. Raises ValueError unless it is a whole number of at least `least`."""
    try:
        result = int(number)
    except (TypeError, ValueError, OverflowError):
        result = None
    if result is None or result != number:
        raise ValueError(f"{what} must be a whole number, got {short(number)}")
    if result < least:
        raise ValueError(f"{what} must be at least {least}, got {number}")
    return result


def at_least_one(what: str, number: Any) -> int:
    """`whole` of at least 1."""
    return whole(what, number, 1)


def check_32_bits(what: str, number: float) -> None:
    """Raises ValueError for a number that devices would round to 0 or to infinity, or an integer that they lack."""
    size = abs(number)
    fits = size < 2**31 if isinstance(number, int) else size == 0 or SMALLEST <= size <= LARGEST
    if not fits:
        raise ValueError(f"{what} = {short(number)} does not fit into 32 bits, with which devices compute")


def install(extra: str) -> str:
    """The command that installs an extra of pyproject.toml: depthmup is on no index, its clone has it."""
    return f"pip install -e '.[{extra}]' in a clone of depthmup"


def percent(share: float) -> str:
    """Such as 0.27%, 12% or 120%."""
    return f"{100 * share:.2g}%" if share < 1 else f"{100 * share:.0f}%"


def plain(text: str) -> str:
    """The text as matplotlib draws it letter for letter: between two dollar signs it reads a formula."""
    return text.replace("$", r"\$")
