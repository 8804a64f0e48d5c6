"""Patches of the ten colour photographs inside scikit-image and scikit-learn; the class of a patch is its photograph.

No download is needed. A photograph is divided into cells, and every cell belongs to one split; a patch lies inside one
cell, so no pixel is in two splits. Size, orientation and order of the colour channels of a patch are random, so that
colours tell little: a linear model learns little, and a convolutional network learns the texture.
"""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path
from typing import NamedTuple

import numpy as np

from depthmup.data.dataset import Dataset, Split, pixel_moments

FILES = {
    "skimage": (
        "data/astronaut.png",
        "data/chelsea.png",
        "data/coffee.png",
        "data/hubble_deep_field.jpg",
        "data/ihc.png",
        "data/motorcycle_left.png",
        "data/retina.jpg",
        "data/rocket.jpg",
    ),
    "sklearn": ("datasets/images/china.jpg", "datasets/images/flower.jpg"),
}
NAMES = tuple(Path(file).stem for files in FILES.values() for file in files)  # names of the classes
SPLIT_SIZES = {"train": 20_000, "validation": 2_000, "test": 2_000}
SIDE = 32  # side of an image, in pixels
CROPS = (16, 32)  # smallest and largest side of a patch, in pixels of the photograph
CELL = 48  # side of a cell, in pixels of the photograph
OWNERS = (0, 0, 0, 1, 2)  # numbers of the splits of five neighbouring cells; each five are shuffled anew


class Boxes(NamedTuple):
    """The places, turns and channels of patches; each field is (patches,) int64 unless its comment says otherwise."""

    photo: np.ndarray  # number of the photograph, which is the label
    top: np.ndarray  # in pixels of the photograph, as left and side are
    left: np.ndarray
    side: np.ndarray
    turns: np.ndarray  # number of quarter turns
    mirrored: np.ndarray  # 1: mirrored left-right after the turns; 0: not
    channels: np.ndarray  # (patches, 3): the number of the photograph's channel that becomes each channel


def load_patches(image_size: int | None = None) -> Dataset:
    """Images of 32x32x3 pixels with values 0..255, to be normalized by each channel's mean and standard deviation.

    image_size: side of the images, a divisor of 32; each pixel is then the mean of a square of pixels. None: 32.
    Raises ValueError for another image_size.
    """
    size = image_size or SIDE
    if SIDE % size:
        raise ValueError(f"data.image_size: patches are {SIDE}x{SIDE}, of which {size} is no divisor")
    splits = {name: Split(_smaller(images, size), labels) for name, (images, labels) in generate().items()}
    inputs = splits["train"].inputs
    mean, std = pixel_moments(inputs)
    train, validation, test = splits.values()
    return Dataset(train, validation, test, mean=mean, std=std, shape=inputs.shape[1:], names=NAMES)


def _smaller(images: np.ndarray, size: int) -> np.ndarray:
    if size == SIDE:
        return images
    squares = images.reshape(len(images), size, SIDE // size, size, SIDE // size, 3)
    return squares.mean(axis=(2, 4), dtype=np.float32).round().astype(np.uint8)


@functools.cache
def generate() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """{split: (images (N, 32, 32, 3) uint8, labels (N,) int32)}, read-only, for train, validation and test.

    Every process gets the same bits. Raises FileNotFoundError if a photograph is missing.
    """
    splits = {}
    for split, places in boxes().items():
        images, labels = cut(photographs(), places), places.photo.astype(np.int32)
        images.setflags(write=False)
        labels.setflags(write=False)
        splits[split] = images, labels
    return splits


def boxes() -> dict[str, Boxes]:
    """{split: the boxes of its patches, in the order of its images} for train, validation and test."""
    parts_of_split: dict[str, list[Boxes]] = {split: [] for split in SPLIT_SIZES}
    for photo, pixels in enumerate(photographs()):
        rng = np.random.default_rng((0, photo))
        rows, columns = pixels.shape[0] // CELL, pixels.shape[1] // CELL
        fives = -(-rows * columns // len(OWNERS))
        owners = rng.permuted(np.tile(OWNERS, (fives, 1)), axis=1).ravel()[: rows * columns]
        for number, (split, size) in enumerate(SPLIT_SIZES.items()):
            n = size // len(NAMES)
            cell = rng.choice(np.flatnonzero(owners == number), n)
            side = rng.integers(*CROPS, n, endpoint=True)
            top = cell // columns * CELL + rng.integers(0, CELL - side, endpoint=True)
            left = cell % columns * CELL + rng.integers(0, CELL - side, endpoint=True)
            turns, mirrored = rng.integers(4, size=n), rng.integers(2, size=n)
            channels = rng.permuted(np.tile(np.arange(3), (n, 1)), axis=1)
            parts_of_split[split].append(Boxes(np.full(n, photo), top, left, side, turns, mirrored, channels))
    shuffled = {}
    for number, (split, parts) in enumerate(parts_of_split.items()):
        order = np.random.default_rng((1, number)).permutation(SPLIT_SIZES[split])
        shuffled[split] = Boxes(*(np.concatenate(field)[order] for field in zip(*parts, strict=True)))
    return shuffled


def cut(photos: tuple[np.ndarray, ...], boxes: Boxes) -> np.ndarray:
    """(N, 32, 32, 3) uint8: the patches, scaled up to 32 pixels, turned, mirrored, their channels reordered."""
    from PIL import Image

    images = np.empty((len(boxes.photo), SIDE, SIDE, 3), np.uint8)
    for i, (photo, top, left, side) in enumerate(zip(*boxes[:4], strict=True)):
        patch = Image.fromarray(photos[photo][top : top + side, left : left + side])
        images[i] = np.asarray(patch.resize((SIDE, SIDE), Image.Resampling.BILINEAR))
    for turns in range(1, 4):
        images[boxes.turns == turns] = np.rot90(images[boxes.turns == turns], turns, axes=(1, 2))
    images[boxes.mirrored == 1] = images[boxes.mirrored == 1, :, ::-1]
    return np.take_along_axis(images, boxes.channels[:, None, None, :], axis=3)


@functools.cache
def photographs() -> tuple[np.ndarray, ...]:
    """The photographs in the order of NAMES, (height, width, 3) uint8 each, read-only."""
    from PIL import Image

    photos = []
    for package, files in FILES.items():
        spec = importlib.util.find_spec(package)  # does not import the package, which could start a download
        roots = spec.submodule_search_locations if spec else None
        for file in files:
            path = Path(roots[0] if roots else package) / file
            if not path.is_file():
                raise FileNotFoundError(
                    f"{path} is missing: the photographs of data set patches come with scikit-image and scikit-learn: "
                    "pip install scikit-image scikit-learn"
                )
            with Image.open(path) as image:
                photos.append(np.array(image.convert("RGB")))
            photos[-1].setflags(write=False)
    return tuple(photos)
