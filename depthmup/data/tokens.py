"""Tokens on disk as a data set: files in nanoGPT's format, whose windows are the examples.

A file NAME.bin is the tokens of a text as uint16 or uint32, one after another. Its name says its split: train*.bin,
val*.bin and, if there are any, test*.bin; without those the second half of each val*.bin is for test. `tokens.json`
beside them, which `prepare_tokens` writes, says the type of the tokens and the size of the vocabulary; a folder without
it has uint16.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from depthmup.data.dataset import Dataset
from depthmup.data.windows import Shard, Windows, beyond_vocabulary
from depthmup.files import digest

CONTEXT = 64  # tokens that a model sees, where data.context is unset
HELD_OUT = 2**17  # tokens of windows in validation and in test, at most: an evaluation of more tells little more
SIDECAR = "tokens.json"
DTYPES = ("uint16", "uint32")
MOST = 2**20  # tokens of a vocabulary
SCANNED = 2**30  # bytes of a folder without a sidecar up to which all are read for the largest token
MULTIPLE = 64  # of which the vocabulary is then, as nanoGPT takes 50,304 for the 50,257 tokens of GPT-2
MAGIC = np.array([20240520, 1], np.int32).tobytes()  # the head of the files of llm.c, which are uint16 behind it
HEADER = 1024  # bytes
SAMPLES, SAMPLE = 256, 4096  # parts of a file that its digest reads, and their bytes
MAKE = "python -m depthmup.data.prepare_tokens FILES --out=DIR makes such a folder"


def load_tokens(data_dir: str, context: int | None = None, vocabulary: int | None = None) -> Dataset:
    """The data set of a folder of tokens; inputs and labels as `Windows.read` has them.

    Args:
      context: None: CONTEXT.
      vocabulary: number of different tokens, which are the outputs of a model. None: that of the sidecar; without one
        the largest token decides, up to a multiple of MULTIPLE.

    Raises ValueError for a folder without tokens, for a file that is empty, cut off or shorter than a window, for a
    sidecar that does not fit the files, and for tokens that the vocabulary does not have.
    """
    folder = Path(data_dir).expanduser()
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise ValueError(f"data.data_dir: {folder} {what}: give a folder of train*.bin and val*.bin; {MAKE}")
    names = sorted(path.name for path in folder.glob("*.bin"))
    by_split: dict[str, list[str]] = {"train": [], "val": [], "test": []}
    for name in names:
        if match := re.search(r"(?:^|[._-])(train|val|test)", name):
            by_split[match[1]].append(name)
    for kind in ("train", "val"):
        if not by_split[kind]:
            has = f"it has {', '.join(names[:3])}{' ...' * (len(names) > 3)}" if names else "it has no .bin"
            raise ValueError(f"data.data_dir: {folder} has no {kind}*.bin ({has}): {MAKE}")
    about = _sidecar(folder)
    dtype, size = about.get("dtype", "uint16"), context or CONTEXT
    counts = {name: _tokens(folder / name, dtype) for kind in by_split.values() for name in kind}
    digests = {name: file_digest(folder / name) for name in counts}
    _compare(folder, about, counts, digests)
    outputs = vocabulary or about.get("vocabulary") or 0
    largest = about.get("largest")
    if largest is None and (not outputs or sum(counts.values()) * np.dtype(dtype).itemsize <= SCANNED):
        largest = _largest(folder, list(counts), dtype, counts)
    if largest is not None and outputs and largest >= outputs:
        raise ValueError(beyond_vocabulary(str(folder), largest, outputs))
    outputs = outputs or -(-(1 + (largest or 0)) // MULTIPLE) * MULTIPLE
    if outputs > MOST:
        raise ValueError(
            f"{folder} has a vocabulary of {outputs}, more than {MOST}: are its tokens {dtype}? {SIDECAR} says it, as "
            'in {"dtype": "uint32"}'
        )

    def split(names: list[str], part: tuple[float, float], what: str, limit: int | None) -> Windows:
        shards = []
        for name in names:
            windows = (counts[name] - 1) // size
            low, high = (int(share * windows) for share in part)
            shards.append(Shard(str(folder / name), dtype, _offset(folder / name), low, high - low))
        result = Windows(tuple(shards), size, outputs, limit)
        if not result.all:
            tokens, needed = max(counts[name] for name in names), (size if part == (0, 1) else 2 * size) + 1
            raise ValueError(
                f"{what}: {folder / names[0]} has {tokens} tokens, and data.context = {size} needs {needed} or more: "
                "lower data.context, or give more tokens"
            )
        return result

    held_out = max(1, HELD_OUT // size)
    halves = ((0.0, 0.5), (0.5, 1.0)) if not by_split["test"] else ((0, 1), (0, 1))
    return Dataset(
        split(by_split["train"], (0, 1), "train split", None),
        split(by_split["val"], halves[0], "validation split", held_out),
        split(by_split["test"] or by_split["val"], halves[1], "test split", held_out),
        mean=None,
        std=None,
        shape=(size,),
        names=tuple(map(str, range(outputs))),
        digest=f"{sum(counts.values())} tokens of {outputs}, {digest(digests)}",
    )


def file_digest(path: Path) -> str:
    """Hash of a file's size and of SAMPLES parts of it at equal distances: of all bytes up to 1 MiB."""
    size = path.stat().st_size
    result = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        for place in range(SAMPLES):
            file.seek(place * max(SAMPLE, (size - SAMPLE) // (SAMPLES - 1)))
            result.update(file.read(SAMPLE))
    return result.hexdigest()[:16]


def _offset(path: Path) -> int:
    with path.open("rb") as file:
        return HEADER if file.read(len(MAGIC)) == MAGIC else 0


def _tokens(path: Path, dtype: str) -> int:
    """The number of tokens of a file."""
    size, each = path.stat().st_size - _offset(path), np.dtype(dtype).itemsize
    if size <= 0:
        raise ValueError(f"{path} is empty: make it anew or remove it")
    if size % each:
        raise ValueError(f"{path} is cut off: its {size} bytes are no whole number of {dtype}: make it anew")
    return size // each


def _sidecar(folder: Path) -> Mapping[str, Any]:
    """What the sidecar says; {} without one."""
    path = folder / SIDECAR
    if not path.exists():
        return {}
    try:
        about = json.loads(path.read_text())
        numbers = all(isinstance(about.get(name, 0), int) for name in ("vocabulary", "largest"))
        if about["dtype"] not in DTYPES or not numbers or not isinstance(about.get("files", {}), dict):
            raise ValueError(f"dtype is one of {', '.join(DTYPES)}, vocabulary a number of tokens")
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        words = " ".join(str(error).split())
        raise ValueError(f"{path} is no description of tokens ({words}): make the folder anew, or remove it") from error
    return about


def _compare(folder: Path, about: Mapping[str, Any], counts: Mapping[str, int], digests: Mapping[str, str]) -> None:
    """Raises ValueError if the files are not those that the sidecar describes."""
    described = about.get("files")
    if described is None:
        return
    for name in sorted({*described, *counts}):
        if name not in counts:
            what = f"lists {name}, which is not there"
        elif name not in described:
            what = f"does not list {name}"
        elif described[name] != {"tokens": counts[name], "digest": digests[name]}:
            before = described[name].get("tokens") if isinstance(described[name], dict) else None
            what = f"describes another {name}, of {before} tokens; the file has {counts[name]}"
        else:
            continue
        raise ValueError(f"{folder / SIDECAR} {what}: make the folder anew, or remove {SIDECAR}")


def _largest(folder: Path, names: list[str], dtype: str, counts: Mapping[str, int]) -> int:
    """The largest token of all files, which are read for it."""
    if sum(counts.values()) * np.dtype(dtype).itemsize > SCANNED:
        raise ValueError(
            f"{folder} has no {SIDECAR} and too many tokens to look for the largest: set data.vocabulary to their "
            "number (50304 for GPT-2's)"
        )
    each, part, largest = np.dtype(dtype).itemsize, 2**24, 0
    for name in names:
        for first in range(0, counts[name], part):
            offset = _offset(folder / name) + first * each
            largest = max(largest, int(np.fromfile(folder / name, dtype, part, offset=offset).max()))
    return largest
