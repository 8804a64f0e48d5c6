"""Image data sets of TFDS, read with random access and without TensorFlow; and blank images in their place."""

from __future__ import annotations

import concurrent.futures
import io
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from depthmup.data.dataset import CorruptRecord, Dataset, Records, Split, held_out, note_left_out


class TfdsSource(NamedTuple):
    """One data set of TFDS, or of our builders."""

    classes: int
    size: int  # side in pixels of the images that the network sees
    mean: tuple[float, float, float]  # per channel, of pixels in 0..1
    std: tuple[float, float, float]  # per channel, of pixels in 0..1
    test: str  # name of our test split in TFDS; our validation split is a tenth of "train"
    in_memory: bool  # whether the decoded images fit in memory
    examples: tuple[int, int]  # numbers of examples of "train" and of `test`
    manual: str = ""  # the files that somebody must download by hand


IMAGENET: dict[str, Any] = dict(
    mean=(0.485, 0.456, 0.406),
    std=(0.229, 0.224, 0.225),
    test="validation",
    in_memory=False,
    examples=(1_281_167, 50_000),
)
TFDS: dict[str, TfdsSource] = {
    "cifar10": TfdsSource(10, 32, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616), "test", True, (50_000, 10_000)),
    "cifar100": TfdsSource(100, 32, (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762), "test", True, (50_000, 10_000)),
    "tiny_imagenet": TfdsSource(
        200,
        64,
        (0.4802, 0.4481, 0.3975),
        (0.2770, 0.2691, 0.2821),
        "validation",
        True,
        (100_000, 10_000),
        manual="the folder tiny-imagenet-200 of the unpacked tiny-imagenet-200.zip",
    ),
    "imagenet_resized/64x64": TfdsSource(1000, 64, **IMAGENET),
    "imagenet2012": TfdsSource(
        1000,
        224,
        **IMAGENET,
        manual="ILSVRC2012_img_train.tar and ILSVRC2012_img_val.tar of image-net.org",
    ),
}


BLANK = "blank:"  # before the name of a data set: blank images in its place


def builder_of(name: str, data_dir: str | None, **options: Any) -> Any:
    """The TFDS builder of a data set. data_dir: its folder; None: TFDS's default, ~/tensorflow_datasets or
    $TFDS_DATA_DIR."""
    import tensorflow_datasets as tfds

    if name == "tiny_imagenet":
        from depthmup.data.builders import TinyImagenet

        return TinyImagenet(data_dir=data_dir, **options)
    return tfds.builder(name, data_dir=data_dir, **options)


def manual_folder(data_dir: str | os.PathLike[str]) -> Path:
    """The folder for the files that somebody must download by hand."""
    return Path(data_dir) / "downloads" / "manual"


def load_tfds(
    name: str, data_dir: str | None = None, image_size: int | None = None, skip_corrupt: bool = False
) -> Dataset:
    """A data set of TFDS. Raises ValueError, with the command that prepares it, if it cannot be read from disk.

    image_size: side of the images, for a data set that does not fit in memory; None: the size of its `Source`.
    """
    source = TFDS[name]
    builder, side = builder_of(name, data_dir), image_size or source.size
    records = {split: opened(builder, name, data_dir, split) for split in ("train", source.test)}

    def read(split: str, order: np.ndarray) -> Split | Records:
        ordered = Records(records[split], order, source.classes, side, f"{name}, split {split}")
        return in_memory(ordered, skip_corrupt) if source.in_memory else ordered

    examples = len(records["train"]), len(records[source.test])
    return _dataset(source, side, examples, read, builder.info.features["label"].names)


def _dataset(
    source: TfdsSource,
    side: int,
    examples: tuple[int, int],
    read: Callable[[str, np.ndarray], Split | Records],
    names: Iterable[str],
) -> Dataset:
    """examples: of the splits "train", a part of which is held out, and `source.test`. read: (split, order) -> its
    examples in this order."""
    train, validation = held_out(examples[0])
    return Dataset(
        train=read("train", train),
        validation=read("train", validation),
        test=read(source.test, np.arange(examples[1], dtype=np.int32)),
        mean=255 * np.array(source.mean),
        std=255 * np.array(source.std),
        shape=(side, side, 3),
        names=tuple(names),
    )


class Blanks:
    """`examples` equal grey images as encoded records. Their labels run through all classes in turn."""

    def __init__(self, examples: int, source: TfdsSource) -> None:
        from PIL import Image

        file = io.BytesIO()
        Image.new("RGB", (source.size, source.size), (128, 128, 128)).save(file, "JPEG")
        self._examples, self._classes, self._image = examples, source.classes, file.getvalue()

    def __len__(self) -> int:
        return self._examples

    def __getitem__(self, number: int) -> dict[str, Any]:
        return {"image": self._image, "label": number % self._classes}


def blank(name: str, image_size: int | None = None) -> Dataset:
    """Blank images in the place of a data set of TFDS: its shapes, numbers and classes, and nothing to prepare.

    Nothing can be learned from them. They are for plans, and for trying a machine that has no data yet.
    """
    source = TFDS[name]
    side, examples = image_size or source.size, dict(zip(("train", source.test), source.examples, strict=True))

    def read(split: str, order: np.ndarray) -> Split | Records:
        if source.in_memory:  # zeros take no memory until they are written to
            labels = np.arange(len(order), dtype=np.int32) % source.classes
            return Split(np.zeros((len(order), side, side, 3), np.uint8), labels)
        return Records(Blanks(examples[split], source), order, source.classes, side, f"{BLANK}{name}, split {split}")

    return _dataset(source, side, source.examples, read, map(str, range(source.classes)))


def in_memory(records: Records, skip_corrupt: bool = False) -> Split:
    """All records, decoded, in their order. skip_corrupt: leave out corrupt records and print how many they are,
    instead of raising CorruptRecord."""
    from depthmup.data.stream import Examples

    examples = Examples(records, records.examples, 0, 1, skip_corrupt=skip_corrupt)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:  # decoding releases the GIL
        elements = list(pool.map(examples.__getitem__, range(records.examples)))
    good = [e for e in elements if not e["corrupt"]]
    note_left_out(records.name, len(elements) - len(good), f"corrupt of {len(elements)}")
    if not good:
        raise CorruptRecord(f"{records.name}: no record can be read: prepare it anew")
    return Split(np.stack([e["image"] for e in good]), np.stack([e["label"] for e in good]))


def opened(builder: Any, name: str, data_dir: str | None, split: str) -> Any:
    """The records of a split, with their images as encoded bytes. Raises ValueError as `load` does."""
    import tensorflow_datasets as tfds

    try:
        return builder.as_data_source(split=split, decoders={"image": tfds.decode.SkipDecoding()})
    except Exception as error:  # TFDS raises several types; the message says what to do about each cause
        command = f"python -m depthmup.data.prepare {name}"
        if not builder.is_prepared():
            option = f" --data_dir={data_dir}" if data_dir else ""
            text = f"{name} is not prepared in {builder.data_dir}: {command}{option}"
            if TFDS[name].manual:
                text += f" (first put {TFDS[name].manual} into {manual_folder(builder.data_dir_root)})"
        elif builder.info.file_format.value != "array_record":
            folder = f"{Path(builder.data_dir_root)}_array_record"
            text = (
                f"{builder.data_dir} is prepared as {builder.info.file_format.value}, which cannot be read in any "
                f"order: {command} --data_dir={folder}, and then data.data_dir={folder}"
            )
        else:
            text = f"{name}, split {split}, cannot be read from {builder.data_dir}: {error}"
        raise ValueError(text) from error
