"""Data sets by name, and their batches."""

from __future__ import annotations

import functools

from depthmup.data import digits, folder, images, patches, text
from depthmup.data.augment import NONE, Augment
from depthmup.data.batches import batch_indices, steps_per_epoch
from depthmup.data.dataset import Dataset, Records, Split, checked
from depthmup.data.pipeline import Batches
from depthmup.names import unknown

# Data sets that come inside scikit-learn and scikit-image; the others (`images.TFDS`) are read from disk.
EMBEDDED = {"digits": digits.load, "patches": patches.load}

__all__ = ["NONE", "Augment", "Batches", "Dataset", "Records", "Split", "batch_indices", "checked", "load"]
__all__ += ["names", "steps_per_epoch"]


def names() -> tuple[str, ...]:
    """The names of all data sets."""
    return (*EMBEDDED, "folder", "text", *images.TFDS)


@functools.lru_cache(maxsize=2)
def load(
    name: str,
    data_dir: str | None = None,
    image_size: int | None = None,
    skip_corrupt: bool = False,
    context: int | None = None,
    verify: bool = False,
) -> Dataset:
    """The data set `name`; the same object for the same arguments.

    Args:
      name: digits, patches, folder, text, a data set of TFDS (images.TFDS), or blank: before one of those
        (images.blank).
      data_dir: the folder of images; the file or folder of text, None: NumPy's docstrings (text.load); or the folder of
        the TFDS data sets, None: ~/tensorflow_datasets.
      image_size: side of the images in pixels, for patches, folders and data sets that do not fit in memory; None: the
        usual side.
      skip_corrupt: leave out records that cannot be read instead of raising.
      context: number of bytes in an example of text; None: 64.
      verify: read every file of a folder of images, also those whose size, times and inode have not changed.

    Raises ValueError for an unknown name (the message has the nearest one and all), a data set that is not prepared
    (the message has the command that prepares it), or a bad split.
    """
    if context and name != "text":
        raise ValueError(f"data.context is for text, not for {name}: leave it unset")
    if verify and name != "folder":
        raise ValueError(f"data.verify is for a folder of images, not for {name}: leave it False")
    if name.startswith(images.BLANK) and name.removeprefix(images.BLANK) in images.TFDS:
        return checked(images.blank(name.removeprefix(images.BLANK), image_size))
    if name not in names():
        raise ValueError(f"data.name: {unknown('data set', name, names())}")
    if name == "patches":
        return checked(patches.load(image_size))
    if name in EMBEDDED or name == "text":
        if image_size:
            raise ValueError(f"data.image_size is for patches, folders and what does not fit in memory, not for {name}")
        return checked(EMBEDDED[name]() if name in EMBEDDED else text.load(data_dir, context))
    if name == "folder":
        return checked(folder.load(data_dir, image_size, skip_corrupt, verify))
    return checked(images.load(name, data_dir, image_size, skip_corrupt))
