"""The decoded images of a folder, in one file beside it."""

from __future__ import annotations

import json
import os
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from depthmup.data.image_files import FileState

KEY = "depthmup"  # name of the first array, which says what the others were decoded from
FIRST_NAME = 30  # place in a zip file of the name of its first member


class Decoded(NamedTuple):
    """key: what was decoded how, as JSON; hashes: {state of a file: hash of its bytes}; arrays: {name: array}."""

    key: list[Any]
    hashes: Mapping[FileState, str]
    arrays: Mapping[str, np.ndarray]


def beside(root: Path, image_size: int | None) -> Path:
    """Where the decoded images of a folder are kept."""
    return root.with_name(f"{root.name}.{image_size or 'own-size'}.depthmup.npz")


def read_images(path: Path, splits: tuple[str, ...]) -> Decoded:
    """What `write` has kept; `Decoded([], {}, {})` if there is no file, or a damaged one (zip files have checksums).

    Raises ValueError for a file that `write` did not write, since it would be overwritten.
    """
    nothing = Decoded([], {}, {})
    if not path.exists():
        return nothing
    if not _written_here(path):
        raise ValueError(f"{path} is no file of decoded images, and one is kept at this place: move it elsewhere")
    try:
        with path.open("rb") as stream, np.load(stream) as file:  # of a path, NumPy leaves a damaged file open
            arrays = {name: file[name] for name in file.files}
        about = json.loads(arrays.pop(KEY).tobytes())
        hashes = {FileState(*state): content for *state, content in about["files"]}
        for split in splits:
            parts = ("good",) if f"{split}_good" in arrays else ("inputs", "labels")
            if missing := {"channels", "size", "mean", "std", *(f"{split}_{part}" for part in parts)} - arrays.keys():
                raise ValueError(f"it lacks {', '.join(sorted(missing))}")
        return Decoded(about["key"], hashes, arrays)
    except Exception as error:  # NumPy, zipfile and zlib raise many types for bad bytes
        print(f"{path} is damaged and made anew: {' '.join(repr(error).split())}", file=sys.stderr)
        return nothing


def write_images(path: Path, decoded: Decoded) -> None:
    """Keep the images: whole, or not at all, with a message."""
    about = {"key": decoded.key, "files": [[*state, content] for state, content in decoded.hashes.items()]}
    key = {KEY: np.frombuffer(json.dumps(about).encode(), np.uint8)}
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.npz")
    try:
        np.savez(temporary, **key, allow_pickle=False, **decoded.arrays)
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        print(f"the decoded images cannot be kept, and will be decoded again: {error}", file=sys.stderr)


def _written_here(path: Path) -> bool:
    """Whether the first array is ours, which its head tells of a file that is damaged further on; or it is empty."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        head = file.read(FIRST_NAME + len(KEY) + 4)
    return not head or head[FIRST_NAME:] == f"{KEY}.npy".encode()
