"""The user's overrides for parameters, and the error that asks for overrides."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple, cast, get_args

import jax

from depthmup.names import unknown
from depthmup.rules.parameterization import ROLES, Role
from depthmup.rules.specs import Overrides, Place, SpecError, globs, starred

PLACES: tuple[Place, ...] = get_args(Place)
AXES = "io-"  # an axis of inputs, of outputs, of neither (experts, stacked blocks)


class Override(NamedTuple):
    """The place, the role and the axes that the user gives to a parameter; None for each that is left open."""

    place: Place | None = None
    role: Role | None = None
    axes: str | None = None  # one letter of AXES per axis


class Unclear(Exception):
    """Shapes and names do not tell the place or the role of a parameter; `guess` is a plausible one."""

    def __init__(self, why: str, guess: str) -> None:
        super().__init__(why)
        self.why, self.guess = why, guess


def overrides_by_path(overrides: Overrides, models: Iterable[Any]) -> dict[str, str]:
    """The overrides with globs alone: paths in the place of functions that select parameters.

        overrides_by_path({lambda m: m.blocks[0].up: "trunk"}, [model])  # {"blocks/0/up/bias": "trunk", ...}

    models: at one depth or at several, of which one may lack what is selected, with paths for arrays (`named`). Raises
    SpecError for a function that selects no parameter of any of them.
    """
    result: dict[str, str] = {}
    models = [] if not any(map(callable, overrides)) else list(models)
    for key, value in overrides.items():
        patterns, why = _selected(key, models) if callable(key) else ([key], "")
        if not patterns:
            raise SpecError(f"overrides: the function for {value!r} selects no parameter of the model{why}")
        for pattern in patterns:
            result.pop(pattern, None)  # the last one counts
            result[pattern] = value
    return result


def _selected(select: Callable[[Any], Any], models: Iterable[Any]) -> tuple[list[str], str]:
    """(the paths of what a function selects, as globs, its error if it raises one)"""
    paths, why = dict[str, None](), ""
    for model in models:
        try:
            leaves = jax.tree.leaves(select(model))
        except (AttributeError, IndexError, KeyError, TypeError) as error:
            why = f": {type(error).__name__}: {error}"
            continue
        paths |= {leaf.replace("[", "[[]"): None for leaf in leaves if isinstance(leaf, str)}
    return list(paths), why


def match(overrides: Mapping[str, str], names: Collection[str]) -> dict[str, Override]:
    """{path: the override of the last pattern that matches it}. Raises SpecError for a pattern that matches none."""
    rules: dict[str, Override] = {}
    for pattern, value in overrides.items():
        rule = _parse(pattern, value)
        matched = [name for name in names if fnmatch.fnmatchcase(name, pattern)]
        if not matched:
            near = difflib.get_close_matches(pattern, names, n=1, cutoff=0)
            raise SpecError(f"overrides: {pattern!r} matches no parameter; the nearest is {near[0]!r}")
        rules.update(dict.fromkeys(matched, rule))
    return rules


def placed_by(overrides: Mapping[str, str], names: Iterable[str]) -> set[str]:
    """The parameters whose place an override says, the last that matches them."""
    rules = [(pattern, _parse(pattern, value)) for pattern, value in reversed(list(overrides.items()))]
    last = {name: next((rule for pattern, rule in rules if fnmatch.fnmatchcase(name, pattern)), None) for name in names}
    return {name for name, rule in last.items() if rule and rule.place}


def _parse(pattern: str, value: str) -> Override:
    words, _, axes = value.partition(" ")
    if value and set(value) <= set(AXES):
        words, axes = "", value
    place, _, role = (words, "", "") if words in PLACES else words.rpartition("/")
    if role and role not in ROLES:
        raise unknown(f"role in overrides[{pattern!r}]", role, ROLES)
    if place and place not in PLACES:
        raise unknown(f"place in overrides[{pattern!r}]", place, PLACES)
    if set(axes) - set(AXES):
        raise ValueError(
            f"axes in overrides[{pattern!r}] must be one letter per axis, i (inputs), o (outputs) or - (neither), "
            f"got {axes!r}"
        )
    return Override(cast(Place | None, place or None), cast(Role | None, role or None), axes or None)


def question(unclear: Mapping[str, str], reasons: Iterable[str], names: Collection[str]) -> SpecError:
    """One error for all unclear parameters; `unclear` has a plausible override for each, which it prints to paste."""
    kinds: dict[str, list[str]] = {}  # reasons that differ in numbers only are those of other blocks
    for reason in reasons:
        kinds.setdefault(starred(reason), []).append(reason)
    lines = [group[0] + (f" (and {len(group) - 1} more alike)" if len(group) > 1 else "") for group in kinds.values()]
    pasted = "\n".join(f"    {glob!r}: {value!r}," for glob, value in globs(unclear, names).items())
    return SpecError(
        "\n".join(lines)
        + f"\nSay what they are; where a value below is wrong, correct it:\n  overrides={{\n{pasted}\n  }}"
    )
