"""Patches of photographs, and the TFDS builders of patches and of Tiny ImageNet."""

import hashlib
import io
import subprocess
import sys

import numpy as np
import pytest
import tensorflow_datasets as tfds
from PIL import Image

from depthmup.data import builders, patches
from depthmup.data.dataset import checked_dataset

ENCODED = {"image": tfds.decode.SkipDecoding()}


def digest():
    bits = hashlib.sha256()
    for arrays in patches.generate().values():
        for array in arrays:
            bits.update(array.tobytes())
    return bits.hexdigest()


def test_sizes_and_balance():
    splits = patches.generate()
    assert {split: len(labels) for split, (_, labels) in splits.items()} == {
        "train": 20_000,
        "validation": 2_000,
        "test": 2_000,
    }
    assert len(patches.NAMES) == 10
    for images, labels in splits.values():
        assert images.shape == (len(labels), 32, 32, 3)
        assert images.dtype == np.uint8
        assert labels.dtype == np.int32
        np.testing.assert_array_equal(np.bincount(labels), np.full(10, len(labels) // 10))
        assert np.bincount(labels[:200], minlength=10).min() > 5  # the classes are mixed
        assert not images.flags.writeable
        assert not labels.flags.writeable


def test_load():
    dataset = patches.load_patches()
    for split, (images, labels) in patches.generate().items():
        assert getattr(dataset, split).inputs is images
        assert getattr(dataset, split).labels is labels
    for channel in range(3):
        values = patches.generate()["train"][0][..., channel]
        np.testing.assert_allclose(dataset.mean[channel], values.mean(), rtol=1e-9)
        np.testing.assert_allclose(dataset.std[channel], values.std(), rtol=1e-9)
    assert checked_dataset(dataset).names == patches.NAMES


def covered(where):
    """For each photograph: which pixels are in a box, (height, width) bool."""
    masks = [np.zeros(photo.shape[:2], bool) for photo in patches.photographs()]
    for photo, top, left, side in zip(*where[:4], strict=True):
        assert 0 <= top <= top + side <= masks[photo].shape[0]
        assert 0 <= left <= left + side <= masks[photo].shape[1]
        masks[photo][top : top + side, left : left + side] = True
    return masks


def test_no_pixel_is_in_two_splits():
    masks = {split: covered(where) for split, where in patches.boxes().items()}
    for photo in range(10):
        assert sum(masks[split][photo].astype(int) for split in masks).max() == 1


def test_every_split_sees_all_of_the_picture():
    for where in patches.boxes().values():
        for photo, pixels in enumerate(patches.photographs()):
            of_photo = where.photo == photo
            low = (where.top + where.side / 2)[of_photo] > pixels.shape[0] / 2
            right = (where.left + where.side / 2)[of_photo] > pixels.shape[1] / 2
            assert np.bincount(2 * low + right, minlength=4).min() > 0.08 * of_photo.sum()  # patches in each quarter


def test_images_depend_on_nothing_outside_their_boxes():
    """With every pixel outside a split's boxes replaced, its images are the same, and the others are not."""
    boxes, splits = patches.boxes(), patches.generate()
    masks = covered(boxes["test"])
    kept = tuple(np.where(m[..., None], p, 255 - p) for m, p in zip(masks, patches.photographs(), strict=True))
    np.testing.assert_array_equal(patches.cut(kept, boxes["test"]), splits["test"][0])
    some = patches.Boxes(*(field[:500] for field in boxes["train"]))
    changed = patches.cut(kept, some) != splits["train"][0][:500]
    assert changed.reshape(500, -1).any(axis=1).all()


def test_a_box_says_how_its_patch_was_cut():
    """A patch of 32 pixels is not scaled, so that its pixels are those of the photograph."""
    where, (images, labels) = patches.boxes()["validation"], patches.generate()["validation"]
    np.testing.assert_array_equal(where.photo, labels)
    assert (where.side.min(), where.side.max()) == (16, 32)
    unscaled = np.flatnonzero(where.side == 32)
    assert len(unscaled) > 50
    for i in unscaled:
        photo, top, left, _, turns, mirrored, channels = (field[i] for field in where)
        patch = np.zeros((32, 32, 3), np.uint8)
        for place, channel in enumerate(channels):
            patch[..., place] = patches.photographs()[photo][top : top + 32, left : left + 32, channel]
        for _ in range(turns):
            patch = patch.transpose(1, 0, 2)[::-1]  # a quarter turn to the left
        np.testing.assert_array_equal(images[i], np.fliplr(patch) if mirrored else patch)


def test_same_bits_in_another_process():
    code = "from tests.test_patches import digest; print(digest())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == digest()


def test_missing_photographs_are_named(monkeypatch):
    patches.photographs.cache_clear()
    try:
        monkeypatch.setattr(patches, "FILES", {"skimage": ("data/none.png",)})
        with pytest.raises(FileNotFoundError, match=r"skimage/data/none\.png is missing.*pip install scikit-image"):
            patches.photographs()
        monkeypatch.setattr(patches, "FILES", {"no_such_package": ("data/none.png",)})
        with pytest.raises(FileNotFoundError, match=r"no_such_package/data/none\.png is missing"):
            patches.photographs()
    finally:
        patches.photographs.cache_clear()


def prepare(builder, manual_dir=None):
    config = tfds.download.DownloadConfig(manual_dir=manual_dir)
    builder.download_and_prepare(download_config=config)


def tiny_imagenet(folder, wnids=("n03", "n01", "n02"), per_class=2):
    """A small Tiny ImageNet as published; the first training image is grey. Bytes of each file by name."""
    root = folder / "tiny-imagenet-200"
    written: dict[str, bytes] = {}
    rng = np.random.default_rng(0)

    def write(path):
        pixels = rng.integers(256, size=(64, 64) if not written else (64, 64, 3), dtype=np.uint8)
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path, format="JPEG")
        written[path.name] = path.read_bytes()

    lines = []
    for c, wnid in enumerate(wnids):
        for i in range(per_class):
            write(root / "train" / wnid / "images" / f"{wnid}_{i}.JPEG")
        write(root / "val" / "images" / f"val_{c}.JPEG")
        lines.append(f"val_{c}.JPEG\t{wnid}\t0\t32\t44\t62\n")
    (root / "wnids.txt").write_text("\n".join(wnids) + "\n")
    (root / "words.txt").write_text("n01\tgoldfish\n")
    (root / "val" / "val_annotations.txt").write_text("".join(lines))
    return root, written


def test_tiny_imagenet(tmp_path):
    _, written = tiny_imagenet(tmp_path / "manual")
    options = dict(data_dir=tmp_path / "data", file_format="array_record")
    prepare(builders.TinyImagenet(**options), tmp_path / "manual")
    builder = builders.TinyImagenet(**options)
    assert builder.info.features["label"].num_classes == 200
    rows = {split: list(builder.as_data_source(split=split, decoders=ENCODED)) for split in ("train", "validation")}
    labels = {split: {row["file_name"].decode(): row["label"] for row in rows[split]} for split in rows}
    assert labels["train"] == {f"n0{c + 1}_{i}.JPEG": c for c in range(3) for i in range(2)}
    assert labels["validation"] == {"val_0.JPEG": 2, "val_1.JPEG": 0, "val_2.JPEG": 1}
    for row in rows["train"] + rows["validation"]:
        assert row["image"] == written[row["file_name"].decode()]
    modes = {row["file_name"]: Image.open(io.BytesIO(row["image"])).mode for row in rows["train"]}
    assert modes.pop(b"n03_0.JPEG") == "L"
    assert set(modes.values()) == {"RGB"}


def test_all_classes_have_their_names(tmp_path):
    wnids = [f"n{i:08d}" for i in range(200)]
    tiny_imagenet(tmp_path / "manual", wnids[::-1], per_class=1)
    options = dict(data_dir=tmp_path / "data", file_format="array_record")
    prepare(builders.TinyImagenet(**options), tmp_path / "manual")
    assert builders.TinyImagenet(**options).info.features["label"].names == wnids


def unknown(root):
    with (root / "val" / "val_annotations.txt").open("a") as file:
        file.write("val_9.JPEG\tn09\t0\t0\t9\t9\n")


def empty(root):
    for path in (root / "train" / "n02" / "images").iterdir():
        path.unlink()


BAD = {
    "no folder": (lambda root: root.rename(root.with_name("other")), FileNotFoundError, r"wnids\.txt is missing"),
    "no wnids": (lambda root: (root / "wnids.txt").unlink(), FileNotFoundError, r"wnids\.txt is missing"),
    "twice": (lambda root: (root / "wnids.txt").write_text("n01\nn01\n"), ValueError, r"wnids\.txt must list 1 to 200"),
    "too many": (
        lambda root: (root / "wnids.txt").write_text("\n".join(f"n{i}" for i in range(201))),
        ValueError,
        r"wnids\.txt must list 1 to 200",
    ),
    "no ids": (lambda root: (root / "wnids.txt").write_text("\n"), ValueError, r"wnids\.txt must list 1 to 200"),
    "empty class": (empty, ValueError, r"train/n02/images has no \.JPEG files, but wnids\.txt lists n02"),
    "no annotations": (
        lambda root: (root / "val" / "val_annotations.txt").unlink(),
        FileNotFoundError,
        r"val/val_annotations\.txt is missing",
    ),
    "unknown wnid": (unknown, ValueError, r"val_annotations\.txt gives val_9\.JPEG the class 'n09', which is not in"),
    "not a line": (
        lambda root: (root / "val" / "val_annotations.txt").write_text("val_0.JPEG n01\n"),
        ValueError,
        r"gives val_0\.JPEG n01 the class '', which is not in wnids\.txt",
    ),
    "no image": (
        lambda root: (root / "val" / "images" / "val_1.JPEG").unlink(),
        FileNotFoundError,
        r"val/images/val_1\.JPEG is missing, but val_annotations\.txt lists it",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_tiny_imagenet_is_refused(name, tmp_path):
    spoil, kind, message = BAD[name]
    root, _ = tiny_imagenet(tmp_path / "manual")
    spoil(root)
    builder = builders.TinyImagenet(data_dir=tmp_path / "data", file_format="array_record")
    with pytest.raises(kind, match=message + ".*unpack tiny-imagenet-200.zip anew") as raised:
        prepare(builder, tmp_path / "manual")
    assert "\n" not in str(raised.value)
    assert not builder.is_prepared()


def test_smaller_images_are_means_of_squares():
    whole, half = patches.load_patches(), patches.load_patches(16)
    assert half.shape == (16, 16, 3)
    assert half.train.inputs.dtype == np.uint8
    squares = whole.validation.inputs[:5].astype(float).reshape(5, 16, 2, 16, 2, 3).mean(axis=(2, 4))
    assert np.abs(half.validation.inputs[:5] - squares).max() <= 0.5
    np.testing.assert_array_equal(half.train.labels, whole.train.labels)
    np.testing.assert_allclose(half.mean, whole.mean, atol=0.5)
    assert (half.std < whole.std).all()
    with pytest.raises(ValueError, match="patches are 32x32, of which 12 is no divisor"):
        patches.load_patches(12)
