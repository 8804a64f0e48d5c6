"""Errors about what a caller gave: a name that is not known, a number that is too small."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def unknown(kind: str, name: object, known: Iterable[str], hint: str = "") -> ValueError:
    """The error for an unknown name; its message has the name, the nearest known name and all known names."""
    known = sorted(known)
    names = {other.lower(): other for other in known}
    near = difflib.get_close_matches(str(name).lower(), names, n=1, cutoff=0.5)
    suggestion = f"; did you mean {names[near[0]]!r}?" if near else ""
    return ValueError(f"unknown {kind} {name!r}{suggestion} (known: {', '.join(known)}){hint}")


def at_least_one(what: str, value: float) -> None:
    if not value >= 1:
        raise ValueError(f"{what} must be at least 1, got {value}")


def plain(text: str) -> str:
    """The text as matplotlib draws it letter for letter: between two dollar signs it reads a formula."""
    return text.replace("$", r"\$")
