"""A folder of images as a data set: DIR/train/CLASS/*.jpg, and DIR/validation/ and DIR/test/ where there are any.

A split that is missing is a tenth of the training images. Decoded images are kept in one file beside the folder.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import hashlib
import json
import os
import sys
import uuid
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from depthmup.data.dataset import HELD_OUT, Dataset, Records, Split, moments
from depthmup.data.images import in_memory

SUFFIXES = (".jpg", ".jpeg", ".png")
IN_MEMORY = 2**31  # largest number of bytes of all decoded images for which they are held in memory
MOMENTS = 10_000  # number of images on disk for the mean and the standard deviation
VERSION = 1  # of the cache: raise it when the same files give other pixels
LAYOUT = "a folder of images has train/CLASS/*.jpg (or .jpeg, .png), and validation/ and test/ likewise, if any"
GREY = ("1", "L", "LA", "La")  # Pillow's modes of grey images of at most 8 bits
COLOUR = ("P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "HSV", "LAB")


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


def load(data_dir: str | None, image_size: int | None = None, skip_corrupt: bool = False) -> Dataset:
    """The data set of the folder `data_dir`.

    Args:
      image_size: side of the images: the shorter side is resized to it and the central square is cut out. None: the
        images are square and all of one size, which stays.
      skip_corrupt: leave out files that cannot be read, and print how many they are, instead of raising.

    Raises ValueError for a folder of another layout, a class without images or in some splits alone, a file that cannot
    be read, grey images among colour ones, and images of several sizes without image_size.
    """
    if data_dir is None:
        raise ValueError(f"data.name=folder needs data.data_dir: {LAYOUT}")
    root = Path(data_dir).expanduser().resolve()
    classes, splits, facts = listed(root)
    cache = root.with_name(f"{root.name}.{image_size or 'own-size'}.npz")
    key = json.dumps([VERSION, image_size, skip_corrupt, _hash(facts)])
    arrays = _cached(cache, key)
    if arrays is None:
        arrays = _read(splits, image_size, skip_corrupt)
        _keep(cache, {"key": np.array(key), **arrays})
    channels, size = (int(arrays[name]) for name in ("channels", "size"))

    def split(name: str) -> Split | Records:
        if f"{name}_inputs" in arrays:
            return Split(arrays[f"{name}_inputs"], arrays[f"{name}_labels"])
        return _records(splits[name], name, arrays[f"{name}_good"], size, channels, len(classes))

    return Dataset(
        split("train"),
        split("validation"),
        split("test"),
        mean=arrays["mean"],
        std=arrays["std"],
        shape=(size, size, channels),
        names=classes,
        digest=f"{len(facts)} files, {_hash([fact[:2] for fact in facts])}",
    )


def listed(root: Path) -> tuple[tuple[str, ...], dict[str, Files], list[tuple[str, int, int]]]:
    """(names of the classes, {split: its files}, (path, bytes, time of the last change) of every file), all sorted.

    Missing splits are cut off the end of a fixed shuffle of the training files. Raises ValueError as `load` does.
    """
    folders = {"train": root / "train", "validation": root / "validation", "test": root / "test"}
    if (root / "val").is_dir():
        if folders["validation"].is_dir():
            raise ValueError(f"{root} has both validation/ and val/: remove one")
        folders["validation"] = root / "val"
    if not folders["train"].is_dir():
        raise ValueError(f"{root} has no folder train/: {LAYOUT}")
    by_class = {name: _classes(folder) for name, folder in folders.items() if folder.is_dir()}
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
    files, stats = {}, []
    for name, members in by_class.items():
        paths = [(path, label) for label, class_name in enumerate(classes) for path in members[class_name]]
        names = [str(path.relative_to(root)) for path, _ in paths]
        files[name] = Files(root, names, np.array([label for _, label in paths], np.int32))
        for (path, _), file_name in zip(paths, names, strict=True):
            stat = path.stat()
            stats.append((file_name, stat.st_size, stat.st_mtime_ns))
    train, tenth = files["train"], round(len(files["train"]) * HELD_OUT)
    order = np.random.default_rng(0).permutation(len(train))
    for name in ("validation", "test"):
        if name not in files:
            order, taken = order[:-tenth], order[-tenth:]
            if not tenth:
                raise ValueError(f"{folders['train']} has {len(train)} images, too few to take {name} images from them")
            files[name] = train.part(taken)
    return classes, files | {"train": train.part(order)}, stats


def _classes(folder: Path) -> dict[str, list[Path]]:
    """{name of a class: its image files}, also those in folders below. Hidden files do not count."""
    classes = {}
    for entry in sorted(path for path in folder.iterdir() if not path.name.startswith(".")):
        if entry.suffix.lower() in SUFFIXES and entry.is_file():
            raise ValueError(f"{entry} is in no class: {LAYOUT}")
        if entry.is_dir():
            walk = (Path(parent) / name for parent, _, names in os.walk(entry, followlinks=True) for name in names)
            classes[entry.name] = sorted(p for p in walk if p.suffix.lower() in SUFFIXES and p.name[0] != ".")
            if not classes[entry.name]:
                raise ValueError(
                    f"the class {entry} has no image, no file {', '.join(SUFFIXES)}: add some, or remove it"
                )
    return classes


def _read(splits: Mapping[str, Files], image_size: int | None, skip_corrupt: bool) -> dict[str, np.ndarray]:
    """The arrays of the cache, from the files. Raises ValueError as `load` does."""
    good, modes, sizes = dict[str, np.ndarray](), dict[str, str](), dict[tuple[int, int], str]()
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for name, files in splits.items():
            readable = []
            heads = pool.map(_head, (files.root / file for file in files.names))
            for number, (file, head) in enumerate(zip(files.names, heads, strict=True)):
                if isinstance(head, str):
                    if not skip_corrupt:
                        raise ValueError(
                            f"{files.root / file} cannot be read as an image: {head} (repair or remove it; "
                            "data.skip_corrupt=True goes on without it)"
                        )
                    continue
                readable.append(number)
                modes.setdefault("grey" if head[0] in GREY else "colour", file)
                sizes.setdefault(head[1], file)
            if lost := len(files) - len(readable):
                print(f"{files.root}, {name}: left out {lost} of {len(files)} files", file=sys.stderr)
            good[name] = np.array(readable, np.int32)
    root = splits["train"].root
    if len(modes) > 1:
        raise ValueError(
            f"{root} has grey images ({modes['grey']}) among colour ones ({modes['colour']}): convert all of them to "
            "one kind, for instance with Pillow: Image.open(FILE).convert('RGB').save(FILE)"
        )
    if image_size is None:
        (width, height), *other_sizes = sizes
        if other_sizes or width != height:
            words = f"{width}x{height} ({sizes[width, height]})"
            words += f" and {other_sizes[0][0]}x{other_sizes[0][1]} ({sizes[other_sizes[0]]})" if other_sizes else ""
            raise ValueError(f"{root} has images of {words}: --config.data.image_size=SIDE resizes all to squares")
        image_size = width
    channels = 1 if "grey" in modes else 3
    classes = int(splits["train"].labels.max()) + 1
    result = {"channels": np.array(channels), "size": np.array(image_size)}
    records = {n: _records(files, n, good[n], image_size, channels, classes) for n, files in splits.items()}
    examples = sum(split_records.examples for split_records in records.values())
    fits_memory = examples * image_size**2 * channels <= IN_MEMORY
    for name, split_records in records.items():
        if fits_memory:
            result[f"{name}_inputs"], result[f"{name}_labels"] = in_memory(split_records, skip_corrupt)
        else:
            result[f"{name}_good"] = good[name]
    if not fits_memory:  # the first of a random order
        train = records["train"]
        order = np.random.default_rng(0).permutation(train.order)[:MOMENTS]
        sample = in_memory(train._replace(order=order), skip_corrupt).inputs
    result["mean"], result["std"] = moments(result["train_inputs"] if fits_memory else sample)
    return result


def _records(files: Files, split: str, order: np.ndarray, size: int, channels: int, classes: int) -> Records:
    # The image keeps its full shorter side (centre=1): only the longer side is cut, to a square.
    return Records(files, order, classes, size, f"{files.root}, {split}", channels=channels, centre=1.0)


def _head(path: Path) -> tuple[str, tuple[int, int]] | str:
    """(mode, (width, height)) of an image file, or the error of reading it in words."""
    from PIL import Image

    try:
        with Image.open(path) as image:
            if image.mode not in (*GREY, *COLOUR):
                return f"its pixels are of mode {image.mode}, not of 8 bits"
            return image.mode, image.size
    except Exception as error:  # Pillow raises many types for bad bytes
        return str(error)


def _cached(path: Path, key: str) -> dict[str, np.ndarray] | None:
    """The arrays of a cache with this key; None if there is none, or if it is damaged (zip files have checksums)."""
    try:
        with np.load(path) as file:
            return {name: file[name] for name in file.files} if str(file["key"]) == key else None
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        print(f"{path} is damaged and made anew: {error}", file=sys.stderr)
        return None


def _keep(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write the cache: whole, or not at all."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.npz")
    try:
        np.savez(temporary, allow_pickle=False, **arrays)
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        print(f"the decoded images cannot be kept, and will be decoded again: {error}", file=sys.stderr)


def _hash(tree: Any) -> str:
    return hashlib.sha256(json.dumps(tree).encode()).hexdigest()[:16]
