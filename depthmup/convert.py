"""Values of a config file -> typed settings, with an error that names the key and the way out."""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

from depthmup.parameterization import unknown

Special = Mapping[type, Callable[[Any, str], Any]]  # type -> (value, key) -> value of that type


class SettingsError(ValueError):
    """A config that cannot be run; the message names the key and the way out."""


@dataclasses.dataclass(frozen=True)
class Interval:
    """How often: "never", "100 steps", "0.5 epochs" or "10 minutes"."""

    number: float
    unit: str  # step | epoch | minute | never

    def steps(self, per_epoch: int) -> int | None:
        """In steps, at least 1; None for minutes and never."""
        if self.unit not in ("step", "epoch"):
            return None
        return max(1, round(self.number * (per_epoch if self.unit == "epoch" else 1)))

    @property
    def seconds(self) -> float | None:
        return 60 * self.number if self.unit == "minute" else None

    def __str__(self) -> str:
        return "never" if self.unit == "never" else f"{self.number:g} {self.unit}{'s' * (self.number != 1)}"


def interval(text: Any, key: str) -> Interval:
    """Raises SettingsError for what is none."""
    if text == "never":
        return Interval(0, "never")
    found = re.fullmatch(r"(\d+(?:\.\d+)?) (step|epoch|minute)s?", text) if isinstance(text, str) else None
    if not found or not float(found[1]) > 0:
        raise SettingsError(f"{key} must be like '100 steps', '1 epoch', '10 minutes' or 'never', got {text!r}")
    return Interval(float(found[1]), found[2])


def convert(kind: Any, value: Any, key: str, special: Special) -> Any:
    """`value` as `kind`: a dataclass from a mapping, tuples and mappings element by element, scalars checked."""
    if kind in special:
        return special[kind](value, key)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        if not hasattr(value, "keys"):
            raise SettingsError(f"{key} must have keys of its own, got {value!r}")
        fields = typing.get_type_hints(kind)
        for name in value:
            if name not in fields:
                raise named(key, unknown("key", f"{key}.{name}", [f"{key}.{f}" for f in fields]))
        missing = sorted(fields.keys() - set(value))
        if missing:
            raise SettingsError(f"{key}.{missing[0]} is missing: override configs/default.py instead of starting anew")
        return kind(**{name: convert(hint, value[name], f"{key}.{name}", special) for name, hint in fields.items()})
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is types.UnionType:
        return None if value is None else convert(arguments[0], value, key, special)
    if origin is tuple:
        if isinstance(value, str) or not hasattr(value, "__iter__"):
            raise SettingsError(f"{key} must be a list of values, got {value!r}")
        kinds = [arguments[0]] * len(value) if arguments[-1] is Ellipsis else list(arguments)
        if len(kinds) != len(value):
            raise SettingsError(f"{key} must have {len(kinds)} values, got {len(value)}: {value!r}")
        return tuple(convert(k, v, f"{key}[{i}]", special) for i, (k, v) in enumerate(zip(kinds, value, strict=True)))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        if not hasattr(value, "keys"):
            raise SettingsError(f"{key} must have one entry per optimizer, got {value!r}")
        return {name: convert(arguments[1], value[name], f"{key}.{name}", special) for name in value}
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise SettingsError(f"{key} must be {kind.__name__}, got {type(value).__name__} {value!r}")
    return value


def named(key: str, error: ValueError) -> SettingsError:
    """The error of something that does not know its key."""
    return SettingsError(f"{key}: {error}")
