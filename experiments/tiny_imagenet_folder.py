"""Some classes of Tiny ImageNet as a folder of images, DIR/train/CLASS/*.png; validation and test are cut off train.

    python -m experiments.tiny_imagenet_folder SOURCE DIR [--classes=100] [--images=50]

SOURCE is the unpacked tiny-imagenet-200. It takes the first classes in alphabetical order and the first images of each,
50 of 500. All are written in colour: a folder of grey and colour images is refused.
"""

from __future__ import annotations

import sys
from pathlib import Path

from PIL import Image

from experiments import command_line


def write(source: Path, folder: Path, classes: int = 100, images: int = 50) -> None:
    """Raises ValueError if SOURCE has fewer classes, or a class fewer images."""
    names = sorted(path.name for path in (source / "train").iterdir() if path.is_dir())
    if len(names) < classes:
        raise ValueError(f"{source / 'train'} has {len(names)} classes, fewer than {classes}: unpack it anew")
    for name in names[:classes]:
        found = sorted((source / "train" / name / "images").glob("*.JPEG"))
        if len(found) < images:
            raise ValueError(
                f"the class {name} of {source} has {len(found)} images, fewer than {images}: take --images"
            )
        (folder / "train" / name).mkdir(parents=True, exist_ok=True)
        for path in found[:images]:
            with Image.open(path) as image:
                image.convert("RGB").save(folder / "train" / name / f"{path.stem}.png")
    print(f"{folder}: {classes} classes of {images} images")


def main() -> None:
    parser = command_line.parser("experiments.tiny_imagenet_folder", __doc__)
    parser.add_argument("source", type=Path, metavar="SOURCE")
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--images", type=int, default=50)
    options = parser.parse_args()
    try:
        write(options.source, options.folder, options.classes, options.images)
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
