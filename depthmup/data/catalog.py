"""Data sets by name. One that needs no folder is added by a row of the table."""

from __future__ import annotations

import functools

from depthmup.data import digits, folder, images, patches, text, tokens
from depthmup.data.dataset import Dataset, checked
from depthmup.names import unknown

# Data sets that come inside scikit-learn and scikit-image; the others (`images.TFDS`) are read from disk.
EMBEDDED = {"digits": digits.load, "patches": patches.load}


def names() -> tuple[str, ...]:
    """The names of all data sets."""
    return (*EMBEDDED, "folder", "text", "tokens", *images.TFDS)


@functools.lru_cache(maxsize=2)
def load(
    name: str,
    data_dir: str | None = None,
    image_size: int | None = None,
    skip_corrupt: bool = False,
    context: int | None = None,
    verify: bool = False,
    vocabulary: int | None = None,
) -> Dataset:
    """The data set `name`; the same object for the same arguments.

    Args:
      name: digits, patches, folder, text, tokens, a data set of TFDS (images.TFDS), or blank: before one of those
        (images.blank).
      data_dir: the folder of images; the file or folder of text, None: NumPy's docstrings (text.load); the folder of
        tokens (tokens.load), None: the Python sources of the pinned packages (python_sources.folder), made if they are
        not there; or the folder of the TFDS data sets, None: ~/tensorflow_datasets.
      image_size: side of the images in pixels, for patches, folders and data sets that do not fit in memory; None: the
        usual side.
      skip_corrupt: leave out records that cannot be read instead of raising.
      context: number of bytes in an example of text, of tokens in one of tokens; None: 64.
      verify: read every file of a folder of images, also those whose size, times and inode have not changed.
      vocabulary: number of different tokens; None: what the folder says (tokens.load).

    Raises ValueError for an unknown name (the message has the nearest one and all), a data set that is not prepared
    (the message has the command that prepares it), or a bad split.
    """
    if context and name not in ("text", "tokens"):
        raise ValueError(f"data.context is for text and tokens, not for {name}: leave it unset")
    if vocabulary and name != "tokens":
        raise ValueError(f"data.vocabulary is for tokens, not for {name}: leave it unset")
    if verify and name != "folder":
        raise ValueError(f"data.verify is for a folder of images, not for {name}: leave it False")
    if name.startswith(images.BLANK) and name.removeprefix(images.BLANK) in images.TFDS:
        return checked(images.blank(name.removeprefix(images.BLANK), image_size))
    if name not in names():
        raise ValueError(f"data.name: {unknown('data set', name, names())}")
    if name == "patches":
        return checked(patches.load(image_size))
    if name in (*EMBEDDED, "text", "tokens"):
        if image_size:
            raise ValueError(f"data.image_size is for patches, folders and what does not fit in memory, not for {name}")
        if name == "tokens":
            from depthmup.data.python_sources import folder as python_sources

            return checked(tokens.load(data_dir or str(python_sources()), context, vocabulary))
        return checked(EMBEDDED[name]() if name in EMBEDDED else text.load(data_dir, context))
    if name == "folder":
        return checked(folder.load(data_dir, image_size, skip_corrupt, verify))
    return checked(images.load(name, data_dir, image_size, skip_corrupt))
