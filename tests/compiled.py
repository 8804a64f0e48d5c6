"""The folder of compiled programs that the tests keep from one run to the next.

A run works in a folder of its own, which begins as a copy of the kept one (links: nothing is copied). What it has
compiled joins the kept folder at its end, whole: programs that a killed process left half-written stay behind. So any
number of runs may work at once, and a kept program is never written to.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
import zlib
from collections.abc import Mapping
from pathlib import Path

import jaxlib.version

KEPT = Path(__file__).parents[1] / ".pytest_cache" / "programs"
A_DAY = 24 * 60 * 60  # seconds
LARGEST = 2**30  # bytes of the kept programs of all versions; beyond, those that were not used for longest go


def key(environment: Mapping[str, str]) -> str:
    """A name that runs share if they can use each other's programs: jaxlib, its flags, the instructions of the CPU."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    processor = [line for line in lines if line.startswith(("flags", "Features", "model name"))][:2]
    flags = sorted((name, value) for name, value in environment.items() if name == "XLA_FLAGS" or name[:4] == "JAX_")
    return hashlib.sha256(repr((jaxlib.version.__version__, flags, processor)).encode()).hexdigest()[:16]


def begin(kept: Path) -> Path:
    """A folder for this run, with the programs that are kept."""
    kept.mkdir(parents=True, exist_ok=True)
    runs = kept.parent.parent
    for killed in runs.glob("run-*"):
        if time.time() - killed.stat().st_mtime > A_DAY:
            shutil.rmtree(killed, ignore_errors=True)
    shrink(kept.parent)
    folder = Path(tempfile.mkdtemp(prefix="run-", dir=runs))
    for program in kept.iterdir():
        os.link(program, folder / program.name)
    return folder


def end(folder: Path, kept: Path) -> None:
    """Keep the programs of a run, and remove its folder."""
    names = {program.name for program in kept.iterdir()}
    for program in folder.glob("*-cache"):
        if program.name not in names and _whole(program):
            os.replace(program, kept / program.name)
    shutil.rmtree(folder, ignore_errors=True)


def _whole(program: Path) -> bool:
    """Whether JAX has written all of a program. A JAX that compresses in another way has its programs kept unread."""
    content = program.read_bytes()
    try:
        return content[:1] != b"x" or bool(zlib.decompress(content))
    except zlib.error:
        return False


def shrink(folder: Path, largest: int = LARGEST) -> None:
    """Remove the programs that were not used for longest, until what is left has at most so many bytes."""
    programs = [(program, program.stat()) for program in folder.glob("*/*-cache")]
    for program, status in sorted(programs, key=lambda pair: max(pair[1].st_atime, pair[1].st_mtime), reverse=True):
        largest -= status.st_size
        if largest < 0:
            program.unlink(missing_ok=True)
