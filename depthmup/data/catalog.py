"""Data sets by name. One is added by a row of the table."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from depthmup.data import digits, folder, patches, text, tfds_images, tokens
from depthmup.data.dataset import Dataset, checked_dataset
from depthmup.names import unknown


def _tokens(data_dir: str | None = None, context: int | None = None, vocabulary: int | None = None) -> Dataset:
    """`tokens.load_tokens`; without a folder those of the Python sources, which are made if they are not there."""
    from depthmup.data.python_sources import tokens_folder as python_sources

    return tokens.load_tokens(data_dir or str(python_sources()), context, vocabulary)


def _in_memory(name: str, data_dir: str | None = None, skip_corrupt: bool = False) -> Dataset:
    """A data set of TFDS whose images keep their size."""
    return tfds_images.load_tfds(name, data_dir, skip_corrupt=skip_corrupt)


# The arguments of a function are the keys of config.data that its data set takes.
CATALOG: dict[str, Callable[..., Dataset]] = {
    "digits": digits.load_digits,
    "patches": patches.load_patches,
    "folder": folder.load_image_folder,
    "text": text.load_text,
    "tokens": _tokens,
    **{
        name: functools.partial(_in_memory if source.in_memory else tfds_images.load_tfds, name)
        for name, source in tfds_images.TFDS.items()
    },
}


def dataset_names() -> tuple[str, ...]:
    """The names of all data sets."""
    return tuple(CATALOG)


def _takes(loader: Callable[..., Dataset]) -> tuple[str, ...]:
    return tuple(inspect.signature(loader).parameters)


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
      name: one of CATALOG, or blank: before a data set of TFDS (tfds_images.blank).
      data_dir: the folder of images; the file or folder of text, None: NumPy's docstrings (text.load_text); the folder
        of tokens (tokens.load_tokens), None: the Python sources of the pinned packages (python_sources.tokens_folder),
        made if they are not there; or the folder of the TFDS data sets, None: ~/tensorflow_datasets.
      image_size: side of the images in pixels, for patches, folders and data sets that do not fit in memory; None: the
        usual side.
      skip_corrupt: leave out records that cannot be read instead of raising.
      context: number of bytes in an example of text, of tokens in one of tokens; None: 64.
      verify: read every file of a folder of images, also those whose size, times and inode have not changed.
      vocabulary: number of different tokens; None: what the folder says (tokens.load_tokens).

    Raises ValueError for an unknown name (the message has the nearest one and all), a data set that is not prepared
    (the message has the command that prepares it), or a bad split.
    """
    blank = name.removeprefix(tfds_images.BLANK)
    if blank != name and blank in tfds_images.TFDS:
        loader: Callable[..., Dataset] = functools.partial(tfds_images.blank, blank)
    elif name in CATALOG:
        loader = CATALOG[name]
    else:
        raise ValueError(f"data.name: {unknown('data set', name, CATALOG)}")
    values: dict[str, Any] = {"image_size": image_size, "context": context, "verify": verify, "vocabulary": vocabulary}
    for key, value in values.items():
        if value and key not in _takes(loader):
            others = [other for other, of_other in CATALOG.items() if key in _takes(of_other)]
            raise ValueError(f"data.{key} is for {', '.join(others)}, not for {name}: leave it unset")
    if "://" in (data_dir or "") and "data_dir" in _takes(loader) and blank not in tfds_images.TFDS:
        raise ValueError(f"data.data_dir={data_dir}: {name} is read from a local or mounted folder")
    # A sweep over data sets has one folder for all: one that takes none leaves it.
    values |= {"data_dir": data_dir, "skip_corrupt": skip_corrupt}
    return checked_dataset(loader(**{key: values[key] for key in _takes(loader)}))
