"""How a setting is declared: a dataclass field whose default, bounds and meaning stand in one place."""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Collection, Mapping
from typing import Any, TypeVar

from depthmup.names import Range, check_32_bits, unknown

T = TypeVar("T")
SIZE: dict[str, Any] = {"low": 1, "high": 2**20}  # the range of a width and of a depth


@dataclasses.dataclass(frozen=True, kw_only=True)
class Key(Range):
    """What is known of one setting, and the range of its numbers, which must also fit into 32 bits.

    A list or a table is checked value by value; None, the value of an optional setting that is not set, passes.

    meaning: one sentence or phrase; configs/default.py and docs/settings.md print it.
    choices: all names that the setting takes, those of its type if this is a `Literal`; () for any.
    nonempty: a list must have at least one value.
    traced: the compiled program takes the value as an argument, so trials that differ in it alone share the program.
    decides: a change of the setting changes the result of a training.
    newer: there are published results older than the setting: where it is None, the identity of a result leaves it out.
    at_start: the update of the first step at learning rate 1, which a calibration measures, depends on the setting.
    column: the name of the setting in the rows of a sweep; "" for the usual one (`settings.column`).
    kind, default: the type of the field, as annotated, and its default.
    """

    meaning: str
    choices: tuple[str, ...] = ()
    nonempty: bool = False
    traced: bool = False
    decides: bool = True
    newer: bool = False
    at_start: bool = True
    column: str = ""
    kind: Any = None
    default: Any = None

    @property
    def words(self) -> str:
        """The choices and the meaning."""
        return "; ".join(filter(None, (" | ".join(self.choices), self.meaning)))

    def check(self, name: str, value: Any) -> None:
        """Raises ValueError for a value out of bounds; `name` is the setting's name in the message."""
        if isinstance(value, tuple):
            if self.nonempty and not value:
                raise ValueError(f"{name} is empty: give at least one value")
            for i, part in enumerate(value):
                self.check(name if self.choices else f"{name}[{i}]", part)
        elif isinstance(value, Mapping):
            for entry, part in value.items():
                self.check(f"{name}.{entry}", part)
        elif self.choices and value is not None and value not in self.choices:
            raise unknown(name, value, self.choices)
        elif isinstance(value, int | float):
            super().check(name, value)
            check_32_bits(name, value)


def key(default: T, meaning: str, *, choices: Collection[str] = (), within: Range | None = None, **about: Any) -> T:
    """A dataclass field that is a setting, of numbers in the range `within`; `about` are fields of `Key`. Works in
    Linen modules too."""
    about = (dataclasses.asdict(within) if within else {}) | about
    metadata = {"key": Key(meaning=meaning, default=default, choices=tuple(choices), **about)}
    if isinstance(default, Mapping):
        return dataclasses.field(default_factory=lambda: dict(default), metadata=metadata)  # type: ignore[return-value]
    return dataclasses.field(default=default, metadata=metadata)


def declared(kind: type) -> Mapping[str, Key]:
    """{name: declaration} of the fields of a dataclass that are settings."""
    return _declared(kind)


@functools.cache
def _declared(kind: type) -> Mapping[str, Key]:
    hints, fields = typing.get_type_hints(kind), dataclasses.fields(kind)
    return {f.name: _typed(f.metadata["key"], hints[f.name]) for f in fields if "key" in f.metadata}


def _typed(k: Key, hint: Any) -> Key:
    """The key with the type of its field. The names of a `Literal`, of a tuple of them or of an optional one are its
    choices."""
    for names in (hint, *typing.get_args(hint)):
        if typing.get_origin(names) is typing.Literal:
            plain: dict[Any, Any] = {names: str, tuple[names, ...]: tuple[str, ...]}  # type: ignore[valid-type]
            return dataclasses.replace(k, kind=plain.get(hint, str | None), choices=typing.get_args(names))
    return dataclasses.replace(k, kind=hint)
