"""The image files of a folder: DIR/train/CLASS/*.jpg, and DIR/validation/ and DIR/test/ where there are any.

Links are followed. Two paths to one file or folder are an error, since its images would be repeated, in two splits
perhaps: so a loop of links ends the walk. A link that leads out of the folder repeats nothing.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import hashlib
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from depthmup.data.dataset import HELD_OUT

SUFFIXES = (".jpg", ".jpeg", ".png")
LAYOUT = "a folder of images has train/CLASS/*.jpg (or .jpeg, .png), and validation/ and test/ likewise, if any"


class FileState(NamedTuple):
    """What tells without reading a file that its bytes are as they were.

    name: path below the folder; size: in bytes; modified, changed: times in ns of the last change of the bytes, and of
    anything; inode: of the file that a link leads to, as are size and times.
    """

    name: str
    size: int
    modified: int
    changed: int  # `cp -p` and `tar` set the time `modified`; nobody can set this one
    inode: int


@dataclasses.dataclass(frozen=True)
class Files:
    """The records of some image files, by their number."""

    root: Path
    names: Sequence[str]  # paths below the root
    labels: np.ndarray  # (files,) int32

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, number: int) -> dict[str, Any]:
        name = self.names[number]
        return {"image": (self.root / name).read_bytes(), "label": self.labels[number], "file_name": name}

    def part(self, places: np.ndarray) -> Files:
        return Files(self.root, [self.names[place] for place in places], self.labels[places])


def listed_images(root: Path) -> tuple[tuple[str, ...], dict[str, Files], list[FileState]]:
    """(names of the classes, {split: its files}, the state of every file), all sorted. root: a real path.

    Missing splits are cut off the end of a fixed shuffle of the training files.
    Raises ValueError as `folder.load_image_folder` does.
    """
    folders = {"train": root / "train", "validation": root / "validation", "test": root / "test"}
    for folder in (*folders.values(), root / "val"):
        if folder.is_symlink() and not folder.exists():
            raise ValueError(f"the link {folder} leads to nothing: repair or remove it")
    if (root / "val").is_dir():
        if folders["validation"].is_dir():
            raise ValueError(f"{root} has both validation/ and val/: remove one")
        folders["validation"] = root / "val"
    if not folders["train"].is_dir():
        raise ValueError(f"{root} has no folder train/: {LAYOUT}")
    walk = _Walk(root)
    by_class = {name: walk.classes(folder) for name, folder in folders.items() if folder.is_dir()}
    classes = tuple(sorted(set[str]().union(*by_class.values())))
    for name, members in by_class.items():
        if missing := sorted(set(classes) - set(members)):
            owner = next(split for split, members in by_class.items() if missing[0] in members)
            raise ValueError(
                f"{root}: the class {missing[0]!r} is in {folders[owner].name}/ and not in {folders[name].name}/: "
                "every split needs every class"
            )
    if len(classes) < 2:
        raise ValueError(f"{folders['train']} has {len(classes)} class: {LAYOUT}")
    files, states = {}, []
    for name, members in by_class.items():
        paths = [(path, label) for label, class_name in enumerate(classes) for path in members[class_name]]
        names = [str(path.relative_to(root)) for path, _ in paths]
        files[name] = Files(root, names, np.array([label for _, label in paths], np.int32))
        for (path, _), file_name in zip(paths, names, strict=True):
            stat = path.stat()
            states.append(FileState(file_name, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino))
    train, tenth = files["train"], round(len(files["train"]) * HELD_OUT)
    order = np.random.default_rng(0).permutation(len(train))
    for name in ("validation", "test"):
        if name not in files:
            order, taken = order[:-tenth], order[-tenth:]
            if not tenth:
                raise ValueError(f"{folders['train']} has {len(train)} images, too few to take {name} images from them")
            files[name] = train.part(taken)
    return classes, files | {"train": train.part(order)}, states


def hashed(root: Path, states: Sequence[FileState], known: Mapping[FileState, str]) -> dict[FileState, str]:
    """{state of a file: hash of its bytes}, in the order of `states`. Files whose state is in `known` are not read.

    The hash of a file that cannot be read is "": decoding says why, or leaves the file out.
    """
    unknown = [state for state in states if not known.get(state)]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:  # hashing releases the GIL
        fresh = dict(zip(unknown, pool.map(_hash_of, (root / state.name for state in unknown)), strict=True))
    return {state: fresh[state] if state in fresh else known[state] for state in states}


def note_repeated(root: Path, splits: Mapping[str, Files], hashes: Mapping[FileState, str]) -> None:
    """Print how many pictures, files of equal bytes, are in more than one split, and two files of one of them."""
    split_of = {name: split for split, files in splits.items() for name in files.names}
    first, repeated = dict[str, str](), dict[str, tuple[str, str]]()
    for state, content in hashes.items():
        other = first.setdefault(content, state.name)
        if content and split_of[other] != split_of[state.name]:
            repeated.setdefault(content, (other, state.name))
    if repeated:
        one, other = next(iter(repeated.values()))
        print(
            f"note: {root}: pictures in more than one split: {len(repeated)}, such as {one} ({split_of[one]}) and "
            f"{other} ({split_of[other]}), equal byte for byte: they flatter validation and test, remove all but one",
            file=sys.stderr,
        )


def _hash_of(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()[:32]
    except OSError:
        return ""


class _Walk:
    """The image files below some folders of one root, each by one path. Hidden entries do not count."""

    def __init__(self, root: Path) -> None:
        self._paths = {str(path): path for path in (root, *root.parents)}  # {real path: the path that led there}

    def classes(self, split: Path) -> dict[str, list[Path]]:
        """{name of a class: its image files}, also those in folders below. Raises ValueError as `listed` does."""
        classes = {}
        for path, is_folder in self._entries(split):
            if not is_folder:
                raise ValueError(f"{path} is in no class: {LAYOUT}")
            classes[path.name] = self._images(path)
        return classes

    def _images(self, class_folder: Path) -> list[Path]:
        images, folders = list[Path](), [class_folder]
        while folders:
            for path, is_folder in self._entries(folders.pop()):
                (folders if is_folder else images).append(path)
        if not images:
            raise ValueError(
                f"the class {class_folder} has no image, no file {', '.join(SUFFIXES)}: add some, or remove it"
            )
        return sorted(images)

    def _entries(self, folder: Path) -> list[tuple[Path, bool]]:
        """(path, whether it is a folder) of each folder and each image file in a folder, sorted."""
        real = os.path.realpath(folder)
        self._visit(folder, real)
        try:
            with os.scandir(folder) as scan:
                entries = sorted((entry for entry in scan if entry.name[0] != "."), key=lambda entry: entry.name)
        except OSError as error:
            raise ValueError(f"{folder} cannot be listed: {error.strerror}: make it readable, or remove it") from error
        result = []
        for entry in entries:
            path, is_link = folder / entry.name, entry.is_symlink()
            if is_link and not path.exists():
                raise ValueError(f"the link {path} leads to nothing: repair or remove it")
            if entry.is_dir():
                result.append((path, True))
            elif path.suffix.lower() in SUFFIXES:
                if not entry.is_file():  # reading a pipe would wait without end
                    raise ValueError(f"{path} is no regular file (a pipe, a socket or a device): remove it")
                self._visit(path, os.path.realpath(path) if is_link else os.path.join(real, entry.name))
                result.append((path, False))
        return result

    def _visit(self, path: Path, real: str) -> None:
        """Raises ValueError if another path has led to the same file or folder."""
        other = self._paths.setdefault(real, path)
        if other != path:
            steps = (path, *path.parents, other, *other.parents)
            link = next((step for step in steps if step.is_symlink()), path)
            raise ValueError(
                f"{path} is {other} once more, by the link {link}: its images would be repeated, in two splits or "
                "classes perhaps: remove the link"
            )
