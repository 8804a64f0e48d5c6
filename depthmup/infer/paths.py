"""Paths as names and indices."""

from __future__ import annotations

import re
from collections.abc import Iterable

Tokens = tuple[str | int, ...]  # a path as names and indices; '*' stands for any index


def tokenize(names: Iterable[str]) -> dict[str, Tokens]:
    """Paths as names and indices: 'block_3/w', 'block3.w' and 'block/3/w' are all ('block', 3, 'w'), 'layer_3_attn' is
    ('layer', 3, 'attn').

    A name without a number gets the number 0 where the same name also occurs with numbers, but not with 0 (Haiku:
    block, block_1, ...).
    """
    split: dict[str, Tokens] = {}
    for name in names:
        parts = [part.strip("_") for part in re.split(r"[/.]|(\d+)", name) if part]
        split[name] = tuple(int(part) if part.isdigit() else part for part in parts if part)
    numbers: dict[Tokens, set[int]] = {}
    for path in split.values():
        for i, token in enumerate(path[1:], 1):
            if isinstance(token, int):
                numbers.setdefault(path[:i], set()).add(token)
    from_one = {prefix for prefix, found in numbers.items() if 0 not in found}

    def numbered(path: Tokens) -> Tokens:
        ends = [(path[: i + 1], path[i + 1 : i + 2]) for i in range(len(path))]
        first = [prefix in from_one and not isinstance((*after, "")[0], int) for prefix, after in ends]
        return tuple(x for token, zero in zip(path, first, strict=True) for x in ((token, 0) if zero else (token,)))

    return {name: numbered(path) for name, path in split.items()}


def starred(path: Tokens, position: int) -> Tokens:
    return (*path[:position], "*", *path[position + 1 :])


def indices(path: Tokens) -> list[int]:
    """The positions of a path's indices."""
    return [i for i, token in enumerate(path) if isinstance(token, int)]


def parent_and_name(name: str) -> tuple[str, str]:
    cut = max(name.rfind("/"), name.rfind("."))
    return name[: max(cut, 0)], name[cut + 1 :]
