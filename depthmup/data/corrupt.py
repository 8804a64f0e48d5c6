"""Images that cannot be read: the first one is an error, or with data.skip_corrupt they are left out and counted."""

from __future__ import annotations

import sys

HINT = "data.skip_corrupt=True goes on without it"


class CorruptRecord(ValueError):
    """A record cannot be read, or is no image of a known class."""


def note_left_out(split: str, count: int, of: str) -> None:
    """Print how many examples of a split are left out, if any. of: what they are part of, such as "of 100 files"."""
    if count:
        print(f"{split}: left out {count} {of}", file=sys.stderr)
