"""A hundred kinds of patches as a folder of images, DIR/train/CLASS/0000.png; also DIR/validation/ and DIR/test/.

    python -m experiments.patches_folder DIR

The kinds are the regions of the ten photographs of data set `patches` (depthmup/data/patches.py): five regions along
the longer side of a photograph, two along the other. Each cell of a region belongs to one split, so that no pixel is in
two; a patch is cut from one cell, turned and mirrored at random. Nothing is downloaded. Cost: 15 seconds.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from depthmup.data import patches
from experiments import command_line

IMAGES = {"train": 220, "validation": 20, "test": 20}  # of each kind
REGIONS = (2, 5)  # along the shorter and the longer side


def write(folder: Path, photos: tuple[np.ndarray, ...]) -> None:
    """Write all splits of the regions of these photographs, (height, width, 3) uint8 each."""
    for photo, pixels in enumerate(photos):
        for region, cells in enumerate(regions(pixels)):
            rng = np.random.default_rng((photo, region))
            fifth = max(1, len(cells) // 5)  # of the cells for each of validation and test
            of_splits = np.split(rng.permutation(cells), (-2 * fifth, -fifth))
            for split, owned in zip(IMAGES, of_splits, strict=True):
                images = patches.cut((pixels,), boxes(rng, owned, IMAGES[split]))
                to = folder / split / f"{patches.NAMES[photo]}{region}"
                to.mkdir(parents=True, exist_ok=True)
                for number, image in enumerate(images):
                    Image.fromarray(image).save(to / f"{number:04d}.png")


def regions(pixels: np.ndarray) -> list[np.ndarray]:
    """For each region of a photograph the (row, column) of its cells, (cells, 2) int64."""
    sides = np.array(pixels.shape[:2]) // patches.CELL
    parts = REGIONS if sides[1] >= sides[0] else REGIONS[::-1]
    rows, columns = (np.array_split(np.arange(side), part) for side, part in zip(sides, parts, strict=True))
    return [np.array([(row, column) for row in some for column in others]) for some in rows for others in columns]


def boxes(rng: np.random.Generator, cells: np.ndarray, count: int) -> patches.Boxes:
    """The places of `count` patches in these cells of one photograph."""
    row, column = rng.choice(cells, count).T
    side = rng.integers(*patches.CROPS, count, endpoint=True)
    top, left = (patches.CELL * cell + rng.integers(0, patches.CELL - side, endpoint=True) for cell in (row, column))
    turns, mirrored = rng.integers(4, size=count), rng.integers(2, size=count)
    channels = np.tile(np.arange(3), (count, 1))  # as they are: colours tell a region
    return patches.Boxes(np.zeros(count, np.int64), top, left, side, turns, mirrored, channels)


def main() -> None:
    parser = command_line.parser("experiments.patches_folder", __doc__)
    parser.add_argument("folder", type=Path, metavar="DIR")
    folder = parser.parse_args().folder
    write(folder, patches.photographs())
    print(f"{folder}: {len(patches.NAMES) * REGIONS[0] * REGIONS[1]} classes")


if __name__ == "__main__":
    main()
