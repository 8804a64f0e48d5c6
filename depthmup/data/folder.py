"""A folder of images as a data set: DIR/train/CLASS/*.jpg, and DIR/validation/ and DIR/test/ where there are any.

A split that is missing is a tenth of the training images. Decoded images are kept in one file beside the folder, with
the hashes of the files' bytes, which say which images a result belongs to.
"""

from __future__ import annotations

import concurrent.futures
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from depthmup.data import image_cache
from depthmup.data.dataset import HINT, Dataset, Records, Split, note_left_out, pixel_moments
from depthmup.data.image_cache import Decoded
from depthmup.data.image_files import LAYOUT, Files, FileState, hashed, listed_images, note_repeated
from depthmup.data.tfds_images import in_memory
from depthmup.files import CONTENTS, digest

IN_MEMORY = 2**31  # largest number of bytes of all decoded images for which they are held in memory
MOMENTS = 10_000  # number of images on disk for the mean and the standard deviation
VERSION = 2  # of what is kept: raise it when the same files give other pixels
GREY = ("1", "L", "LA", "La")  # Pillow's modes of grey images of at most 8 bits
COLOUR = ("P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "HSV", "LAB")


def load_image_folder(
    data_dir: str | None, image_size: int | None = None, skip_corrupt: bool = False, verify: bool = False
) -> Dataset:
    """The data set of the folder `data_dir`.

    A picture that is in two splits is printed.

    Args:
      image_size: side of the images: the shorter side is resized to it and the central square is cut out. None: the
        images are square and all of one size, which stays.
      skip_corrupt: leave out files that cannot be read, and print how many they are, instead of raising.
      verify: read every file, also those of the size, times and inode that they had when their bytes were hashed.

    Raises ValueError for a folder of another layout, a class without images or in some splits alone, two paths that
    lead to one file or folder, a link to nothing, an image file that is no regular file or cannot be read, grey images
    among colour ones, images of several sizes without image_size, and a file of somebody else in the place of ours.
    """
    if data_dir is None:
        raise ValueError(f"data.name=folder needs data.data_dir: {LAYOUT}")
    root = Path(data_dir).expanduser().resolve()
    classes, splits, states = listed_images(root)
    path = image_cache.beside(root, image_size)
    kept = image_cache.read_images(path, tuple(splits))
    hashes = hashed(root, states, {} if verify else kept.hashes)
    note_repeated(root, splits, hashes)
    key = [VERSION, image_size, skip_corrupt]
    same = kept.key == key and _contents(kept.hashes) == _contents(hashes)
    arrays = kept.arrays if same else _read(splits, image_size, skip_corrupt)
    if not same or kept.hashes != hashes:
        image_cache.write_images(path, Decoded(key, hashes, arrays))
    channels, size = (int(arrays[name]) for name in ("channels", "size"))

    def split(name: str) -> Split | Records:
        if f"{name}_inputs" in arrays:
            return Split(arrays[f"{name}_inputs"], arrays[f"{name}_labels"])
        return _records(splits[name], name, arrays[f"{name}_good"], size, channels, len(classes))

    sizes = [(state.name, state.size) for state in states]  # all that results of before contents were hashed can tell
    return Dataset(
        split("train"),
        split("validation"),
        split("test"),
        mean=arrays["mean"],
        std=arrays["std"],
        shape=(size, size, channels),
        names=classes,
        digest=f"{len(states)} files, {digest(sizes)}{CONTENTS}{digest(_contents(hashes))}",
    )


def _contents(hashes: Mapping[FileState, str]) -> list[tuple[str, str]]:
    """(path below the folder, hash of the bytes) of every file: what the decoded images follow from."""
    return [(state.name, content) for state, content in hashes.items()]


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
                            f"{files.root / file} cannot be read as an image: {head} (repair or remove it; {HINT})"
                        )
                    continue
                readable.append(number)
                modes.setdefault("grey" if head[0] in GREY else "colour", file)
                sizes.setdefault(head[1], file)
            note_left_out(f"{files.root}, {name}", len(files) - len(readable), f"of {len(files)} files")
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
    result["mean"], result["std"] = pixel_moments(result["train_inputs"] if fits_memory else sample)
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
