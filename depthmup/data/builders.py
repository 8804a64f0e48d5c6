"""Tiny ImageNet as a TFDS builder. Preparing it needs no TensorFlow, since TFDS gets the images as encoded files."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tensorflow_datasets as tfds

Files = list[tuple[Path, int]]  # image files and their labels
UNPACK = "unpack tiny-imagenet-200.zip anew"


class TinyImagenet(tfds.core.GeneratorBasedBuilder):
    """Tiny ImageNet: 200 classes of ImageNet, 500 training and 50 validation images of 64x64 pixels each.

    The label is the place of the class's WordNet id in alphabetical order. The published test images have no labels
    and are left out.
    """

    VERSION = tfds.core.Version("1.0.0")
    CLASSES = 200
    MANUAL_DOWNLOAD_INSTRUCTIONS = (
        "Unpack http://cs231n.stanford.edu/tiny-imagenet-200.zip here, which makes the folder tiny-imagenet-200."
    )

    def _info(self) -> tfds.core.DatasetInfo:
        return tfds.core.DatasetInfo(
            builder=self,
            description="Tiny ImageNet, the training and validation images as published.",
            features=tfds.features.FeaturesDict(
                {
                    "file_name": tfds.features.Text(),
                    "image": tfds.features.Image(shape=(64, 64, 3), encoding_format="jpeg"),
                    "label": tfds.features.ClassLabel(num_classes=self.CLASSES),
                }
            ),
            supervised_keys=("image", "label"),
            homepage="http://cs231n.stanford.edu/",
        )

    def _split_generators(self, dl_manager: tfds.download.DownloadManager) -> dict[str, Any]:
        folder = dl_manager.manual_dir / "tiny-imagenet-200"
        labels = labels_of(folder, self.CLASSES)
        if len(labels) == self.CLASSES:
            self.info.features["label"].names = list(labels)  # TFDS writes the names beside the data
        # The files of both splits are listed before any image is written, so that a bad folder fails at once.
        files = {"train": train_files(folder, labels), "validation": validation_files(folder, labels)}
        return {split: self._generate_examples(listed) for split, listed in files.items()}

    def _generate_examples(self, files: Files) -> Iterator[tuple[str, dict[str, Any]]]:
        for path, label in files:
            # TFDS gets the file's bytes and does not look inside, so that grey JPEGs stay grey until they are decoded.
            yield path.name, {"file_name": path.name, "image": io.BytesIO(path.read_bytes()), "label": label}


def labels_of(folder: Path, classes: int) -> dict[str, int]:
    """{WordNet id: label} from wnids.txt. Raises FileNotFoundError if the file is missing, ValueError if it is not a
    list of at most `classes` different ids."""
    wnids = sorted(_lines(folder / "wnids.txt"))
    if not 0 < len(set(wnids)) == len(wnids) <= classes:
        raise ValueError(f"{folder / 'wnids.txt'} must list 1 to {classes} different ids, one a line: {UNPACK}")
    return {wnid: label for label, wnid in enumerate(wnids)}


def train_files(folder: Path, labels: dict[str, int]) -> Files:
    """The training images train/<wnid>/images/<wnid>_<i>.JPEG. Raises ValueError if a class has no image."""
    files = []
    for wnid, label in labels.items():
        images = folder / "train" / wnid / "images"
        paths = sorted(images.glob("*.JPEG"))
        if not paths:
            raise ValueError(f"{images} has no .JPEG files, but wnids.txt lists {wnid}: {UNPACK}")
        files += [(path, label) for path in paths]
    return files


def validation_files(folder: Path, labels: dict[str, int]) -> Files:
    """The validation images val/images/<name>: one for every line of val/val_annotations.txt, whose fields are name,
    WordNet id and box, separated by tabs.

    Raises ValueError if a line has no known id, FileNotFoundError if an image is missing.
    """
    annotations, files = folder / "val" / "val_annotations.txt", []
    for line in _lines(annotations):
        name, wnid, *_ = [*line.split("\t"), ""]
        path = folder / "val" / "images" / name
        if wnid not in labels:
            raise ValueError(f"{annotations} gives {name} the class {wnid!r}, which is not in wnids.txt: {UNPACK}")
        if not path.is_file():
            raise FileNotFoundError(f"{path} is missing, but val_annotations.txt lists it: {UNPACK}")
        files.append((path, labels[wnid]))
    return files


def _lines(path: Path) -> list[str]:
    """The lines of a text file that are not empty."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: {UNPACK}")
    return [line.strip() for line in path.read_text().splitlines() if line.strip()]
