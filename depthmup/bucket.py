"""Folders in buckets, gs://BUCKET/FOLDER and s3://BUCKET/FOLDER, by etils.epath, as Orbax has them.

An object is written whole or not at all. A bucket has no folders that could be made, no locks, and nothing is appended.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import logging
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import cast

PACKAGES = {"gs": "gcsfs", "s3": "s3fs"}  # what epath reads and writes them by; the extras are called gs and s3
NAME = 255  # bytes of a name that file systems take


def folder(path: str | os.PathLike[str]) -> Path:
    """A local folder, or one in a bucket, which has the methods of a `Path` (epath.Path). `Path(path)` of a bucket
    would be a local folder of nearly that name.

    Raises ValueError, in one line, for a bucket without a folder, where its package is not installed, and for what a
    `Path` or another kind of bucket is.
    """
    check_path(path)
    text = os.fspath(path)
    if not in_bucket(path):
        if re.match("(gs|gcs|s3|az|hf):/", text):
            raise ValueError(f"{text} is no workdir: a bucket is gs://BUCKET/FOLDER or s3://BUCKET/FOLDER, as text")
        return Path(path)
    scheme, _, inside = text.partition("://")
    if not re.fullmatch("[^/]+/+[^/].*", inside):
        raise ValueError(f"{text} is no folder in a bucket: give {scheme}://BUCKET/FOLDER")
    if importlib.util.find_spec(PACKAGES[scheme]) is None:
        from depthmup.names import install  # loads NumPy, which help does without

        raise ValueError(f"{text} needs the package {PACKAGES[scheme]}: {install(scheme)}")
    _prepare()
    from etils import epath

    return cast(Path, epath.Path(path))


def in_bucket(path: str | os.PathLike[str]) -> bool:
    return os.fspath(path).startswith(tuple(f"{scheme}://" for scheme in PACKAGES))


def check(path: str | os.PathLike[str]) -> None:
    """Raises ValueError, in one line, if nothing can be written into this folder of a bucket, and as `folder` does.

    An object is written there, and deleted.
    """
    probe = folder(path) / f".probe-{uuid.uuid4().hex[:8]}"
    root = "/".join(os.fspath(path).split("/")[:3])
    try:
        with errors(path):
            probe.write_bytes(b"probe")
            probe.unlink()
    except FileNotFoundError as error:
        raise ValueError(f"the bucket {root} is not there: make it, or give another") from error
    except OSError as error:
        raise ValueError(
            f"{error}: the bucket {root} cannot be written; check its name, your credentials and their roles"
        ) from error


@contextlib.contextmanager
def errors(path: str | os.PathLike[str]) -> Iterator[None]:
    """Make one OSError with one line of whatever the package of a bucket raises. Local errors stay as they are, and so
    do our own."""
    try:
        yield
    except Exception as error:
        is_worded = isinstance(error, FileNotFoundError) or type(error).__module__.split(".")[0] == __package__
        if is_worded or not in_bucket(path):
            raise
        words = " ".join(str(error).split())
        raise OSError(f"{os.fspath(path)}: {type(error).__name__}: {words[:300]}") from error


def check_path(path: object) -> None:
    """Raises ValueError for what is no path of a folder."""
    if not isinstance(path, str | os.PathLike) or not str(path) or "\0" in str(path):
        raise ValueError(f"workdir must be the path of a folder, got {path!r}")
    name = max(Path(path).parts, key=len, default="")
    if len(os.fsencode(name)) > NAME:
        raise ValueError(f"workdir has a name of {len(name)} letters, {name[:20]}...: a file system takes {NAME} bytes")


def make(path: Path) -> None:
    """Make a folder, where folders must be made."""
    if not in_bucket(path):
        path.mkdir(parents=True, exist_ok=True)


def remove(path: Path) -> None:
    """Remove a folder with all in it, as far as that is possible."""
    if in_bucket(path):
        with contextlib.suppress(Exception):
            path.rmtree()  # type: ignore[attr-defined]
    else:
        shutil.rmtree(path, ignore_errors=True)


def file_size(path: Path) -> int:
    """The size of a file in bytes."""
    return path.stat().length if in_bucket(path) else path.stat().st_size  # type: ignore[attr-defined]


@functools.cache
def _prepare() -> None:
    """Set what epath and the packages below it read when they are first used."""
    os.environ.setdefault("EPATH_USE_TF", "false")  # one way to read and write, with TensorFlow and without
    with contextlib.suppress(ImportError):
        from fsspec.config import conf

        for scheme, package in PACKAGES.items():
            # Other processes write into the same folder: what a listing says must not be remembered.
            conf.setdefault(scheme, {}).setdefault("use_listings_cache", False)
            logging.getLogger(package).setLevel(logging.CRITICAL)  # they log what they raise, with its traceback
