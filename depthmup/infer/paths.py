"""Paths as names and indices."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import groupby

Tokens = tuple[str | int, ...]  # a path as names and indices; '*' stands for any index


def tokenize(names: Iterable[str]) -> dict[str, Tokens]:
    """Paths as names and indices: 'block_3/w', 'block3.w' and 'block/3/w' are all ('block', 3, 'w'), 'layer_3_attn' is
    ('layer', 3, 'attn').

    A name without a number gets the number 0 where the same name also occurs with numbers, but not with 0 (Haiku:
    block, block_1, ...). Names that differ in a last letter, which runs from a on, are numbered by it: blocka, blockb.
    """
    names = list(names)
    letters = _lettered(names)
    split: dict[str, Tokens] = {}
    for name in names:
        parts = [part.strip("_") for part in re.split(r"[/.]|(\d+)", name) if part]
        split[name] = tuple(x for part in parts if part for x in letters.get(part, (part,)))
        split[name] = tuple(int(x) if isinstance(x, str) and x.isdigit() else x for x in split[name])
    numbers: dict[Tokens, set[int]] = {}
    for path in split.values():
        for i, token in enumerate(path[1:], 1):
            if isinstance(token, int):
                numbers.setdefault(path[:i], set()).add(token)
    from_one = {prefix for prefix, indices in numbers.items() if 0 not in indices}

    def numbered(path: Tokens) -> Tokens:
        ends = [(path[: i + 1], path[i + 1 : i + 2]) for i in range(len(path))]
        lacks_zero = [prefix in from_one and not isinstance((*after, "")[0], int) for prefix, after in ends]
        return tuple(
            x for token, lacks in zip(path, lacks_zero, strict=True) for x in ((token, 0) if lacks else (token,))
        )

    return {name: numbered(path) for name, path in split.items()}


def _lettered(names: Iterable[str]) -> dict[str, Tokens]:
    """{part of a path: (its stem, its number)} of parts that consist of a stem and a letter, for series of at least
    three letters from a on."""
    parts = sorted({part for name in names for part in re.split(r"[/.]", name) if re.fullmatch(r"\w*[a-z]{2}", part)})
    series = {stem: list(members) for stem, members in groupby(parts, key=lambda part: part[:-1])}
    return {
        part: (stem.strip("_"), ord(part[-1]) - ord("a"))
        for stem, members in series.items()
        if len(members) > 2 and "".join(part[-1] for part in members) == "abcdefghijklmnopqrstuvwxyz"[: len(members)]
        for part in members
    }


def starred(path: Tokens, position: int) -> Tokens:
    """The path with '*' for an index; at a negative position for all indices that are equal to this one, as in
    ("norm", "*", "up", "*", "scale") for a wrapper and the module inside it, which have one number."""
    if position >= 0:
        return (*path[:position], "*", *path[position + 1 :])
    return tuple("*" if token == path[position] else token for token in path)


def tied(path: Tokens) -> list[int]:
    """The negative position of an index that a path has several times."""
    repeated = [i - len(path) for i in indices(path) if path.count(path[i]) > 1]
    return repeated[:1]


def indices(path: Tokens) -> list[int]:
    """The positions of a path's indices."""
    return [i for i, token in enumerate(path) if isinstance(token, int)]


def parent_and_name(name: str) -> tuple[str, str]:
    cut = max(name.rfind("/"), name.rfind("."))
    return name[: max(cut, 0)], name[cut + 1 :]
