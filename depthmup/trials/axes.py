"""The setting `sweep.axes`: further keys of the config that a sweep varies, each with its values."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from depthmup.names import LARGEST, short, unknown
from depthmup.settings import OWN, TRACED, Settings, SettingsError, converted, flat, keys
from depthmup.trials.study import Axis

GRIDS: Mapping[str, Callable[[float, float, int], np.ndarray]] = {"grid": np.linspace, "log": np.geomspace}
MOST_POINTS = 1_000_000
CONSTANTS = {"True": True, "False": False, "None": None}


def parse_axes(settings: Settings) -> tuple[Axis, ...]:
    """The axes of `sweep.axes`, each with its values.

    The syntax is "key = value, value; key = grid(low, high, points); key = log(low, high, points)".

    Raises SettingsError for a key that does not exist, that does not change the result of a training, that is given
    twice, or that has a setting of its own in `sweep` (model.depth has `sweep.depths`), and for values that are
    missing, given twice or not of the key's type.
    """
    declarations, known = keys(settings.model.name), flat(settings)
    result: dict[str, tuple[Any, ...]] = {}
    for text in filter(str.strip, settings.sweep.axes.split(";")):
        key, equals, values = (part.strip() for part in text.partition("="))
        if not equals:
            raise SettingsError(f"sweep.axes: {short(text.strip())} must be 'key = values'")
        if key in OWN:
            raise SettingsError(f"sweep.axes: {key} is an axis already, that of {OWN[key]}: give its values there")
        if key == "model.name":
            raise SettingsError("sweep.axes: families of models have other settings: run a sweep for each")
        if key in declarations and not declarations[key].decides:
            raise SettingsError(f"sweep.axes: {key} decides nothing that a training results in")
        if key not in known:
            words = [k for k in known if k.rpartition(".")[2] == key]
            if not words:
                raise SettingsError(f"sweep.axes: {unknown('axis', key, known)}")
            raise SettingsError(f"sweep.axes: unknown axis {key!r}; did you mean {' or '.join(map(repr, words))}?")
        if key in result:
            raise SettingsError(f"sweep.axes: {key} is given twice")
        try:
            result[key] = tuple(converted(declarations[key].kind, value, key) for value in _values(values))
        except SettingsError as error:
            raise SettingsError(f"sweep.axes: {error}") from error
        except ValueError as error:
            raise SettingsError(
                f"sweep.axes: {key} has values that cannot be read, {short(values)}: quote a word"
            ) from error
        if not result[key] or len(set(result[key])) != len(result[key]):
            raise SettingsError(
                f"sweep.axes: {key} has {'a value twice' if result[key] else 'no value'}: {short(values)}"
            )
    return tuple(Axis(key, values, key in TRACED) for key, values in result.items())


def _values(text: str) -> list[Any]:
    """The values of one axis. Raises ValueError if the text cannot be read as values."""
    match = re.fullmatch(r"(grid|log)\((.*)\)", text)
    return _grid(match[1], match[2]) if match else _list(text)


def _grid(name: str, text: str) -> list[float]:
    """Values with equal distances or, for log, equal ratios; integers if low, high and all values are whole."""
    arguments = _list(text)
    numbers = all(isinstance(a, int | float) for a in arguments)
    if len(arguments) != 3 or not numbers or arguments[2] % 1 != 0:
        raise SettingsError(f"'{name}({text})' must be {name}(low, high, points)")
    low, high, points = arguments
    small = all(abs(end) <= LARGEST for end in (low, high))  # of NaN and infinity it is false
    if not 2 <= points <= MOST_POINTS or not small or not low < high or (name == "log" and low <= 0):
        raise SettingsError(
            f"'{name}({text})' needs low < high, both finite, 2 to {MOST_POINTS:,} points, and for log a low above 0"
        )
    values = [float(value) for value in GRIDS[name](low, high, int(points))]
    whole = isinstance(low, int) and isinstance(high, int) and all(math.isclose(v, round(v)) for v in values)
    return [round(value) for value in values] if whole else values


def _list(text: str) -> list[Any]:
    """The values between commas. Commas inside parentheses do not count, and a comma may end the list."""
    return [
        tuple(map(_value, _parts(part[1:-1]))) if part.startswith("(") and part.endswith(")") else _value(part)
        for part in _parts(text)
    ]


def _parts(text: str) -> list[str]:
    parts = [part.strip() for part in re.split(r",(?![^(]*\))", text)]
    return parts if parts[-1] else parts[:-1]


def _value(text: str) -> Any:
    """True, False, None, a number, or a word, with quotes or without."""
    if text in CONSTANTS:
        return CONSTANTS[text]
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            pass
    if re.fullmatch(r"[A-Za-z_][\w./]*", text):
        return text
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    raise ValueError(text)
