"""CIFAR-10 (JPEG): CIFAR-10 of TFDS as a folder of images, DIR/train/CLASS/0000.jpg and DIR/test/CLASS/0000.jpg.

    python -m depthmup.data.prepare cifar10            (once; needs the internet and TensorFlow)
    python -m experiments.cifar10_folder DIR [--data_dir=TFDS]

The images of a class are numbered in the published order. JPEG of quality 75 changes pixels a little, as much as in the
images that docs/results.md was made with.
"""

from __future__ import annotations

import io
import itertools
import sys
from pathlib import Path
from typing import Any

from PIL import Image

from depthmup.data.tfds_images import builder_of, opened
from experiments import command_line

QUALITY = 75


def write(folder: Path, data_dir: str | None = None) -> None:
    """Write both splits. Raises ValueError if cifar10 is not prepared (the message has the command)."""
    builder = builder_of("cifar10", data_dir)
    names = builder.info.features["label"].names
    for split in ("train", "test"):
        records = list(opened(builder, "cifar10", data_dir, split))
        counts = [itertools.count() for _ in names]
        for record in sorted(records, key=_number):
            path = folder / split / names[record["label"]] / f"{next(counts[record['label']]):04d}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            with Image.open(io.BytesIO(record["image"])) as image:
                image.convert("RGB").save(path, quality=QUALITY)
        print(f"{folder / split}: {len(records)} images")


def _number(record: Any) -> int:
    """TFDS names an example by its place in the published files, such as train_16399."""
    name = record["id"]
    return int((name.decode() if isinstance(name, bytes) else name).rpartition("_")[2])


def main() -> None:
    parser = command_line.parser("experiments.cifar10_folder", __doc__)
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--data_dir", help="where TFDS's cifar10 is; default ~/tensorflow_datasets")
    options = parser.parse_args()
    try:
        write(options.folder, options.data_dir)
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
