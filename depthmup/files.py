"""Files that are written whole or not at all, and trees of JSON: their hash, their first difference."""

from __future__ import annotations

import hashlib
import json
import math
import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from depthmup import bucket

CONTENTS = ", contents "  # before the hash of bytes in the digest of a folder's files (data/folder.py)


def first_difference(saved: Any, here: Any) -> str:
    """ "key was 1, now it is 2" for the first leaf in which two trees of JSON differ; "" if none.

    Results older than hashes of contents have the names and sizes of a folder's files alone: these are compared.
    """
    before, now = flattened(saved), flattened(here)
    for key in [*now, *before]:
        one, other = before.get(key, "nothing"), now.get(key, "nothing")
        if one != other and not str(other).startswith(f"{one}{CONTENTS}"):
            return f"{key} was {one!r}, now it is {other!r}"
    return ""


def flattened(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one mapping: {"a": {"b": leaf}} -> {"a.b": leaf}."""
    if not isinstance(tree, dict):
        return {prefix: tree}
    parts = (flattened(sub, f"{prefix}.{name}".strip(".")) for name, sub in tree.items())
    return {key: value for part in parts for key, value in part.items()}


def digest(tree: Any) -> str:
    """Hash of a tree of JSON. The order of keys does not change it."""
    return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()[:16]


def without_nan(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row with None for NaN and infinity, which JSON does not have."""
    return {k: (None if isinstance(v, float) and not math.isfinite(v) else v) for k, v in row.items()}


def write_atomically(path: Path, content: str | bytes, sync: bool = False) -> None:
    """Write a file in one step: a reader, also after a kill, finds the old content or the new, never a part of it.

    sync: the same holds after a power cut.
    """
    if bucket.in_bucket(path):
        with bucket.errors(path):
            path.write_bytes(content.encode() if isinstance(content, str) else content)
        return
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")  # two machines may have the same process number
    try:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)
        if sync:
            _sync(temporary)
        os.replace(temporary, path)
        if sync:
            _sync(path.parent)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def _sync(path: Path) -> None:
    """Wait until a file, or the entries of a folder, are on the disk."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
