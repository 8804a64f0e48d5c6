"""A folder of images as a data set: what is read, what is kept beside it, and every error in words."""

import hashlib
import io
import itertools
import json
import os
import shutil
import zipfile

import numpy as np
import pytest
import tensorflow_datasets as tfds
from PIL import Image

from configs import default
from depthmup import data
from depthmup.data import Batches, folder, image_files
from depthmup.settings import from_config
from depthmup.train.run import train_network as run_train
from depthmup.train.workdir import WorkdirError
from depthmup.trials.engine import train as sweep_train
from experiments import cifar10_folder
from tests.test_configs import fake_records


@pytest.fixture(autouse=True)
def fresh():
    data.load.cache_clear()
    yield
    data.load.cache_clear()


def load(root, *arguments):
    data.load.cache_clear()
    return data.load("folder", str(root), *arguments)


def picture(path, size=(12, 12), mode="RGB", seed=0):
    """A file of random pixels; its mean goes with its class, the first letter of its name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    shape = (size[1], size[0], 3) if mode == "RGB" else (size[1], size[0])
    pixels = np.random.default_rng((seed, ord(path.parent.name[0]))).integers(0, 256, shape, dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return pixels


def images(root, train=20, mode="RGB", suffix="png", **splits):
    """A folder of two classes. {path below the root: its pixels}."""
    drawn = {}
    for split, count in {"train": train, **splits}.items():
        for name, i in itertools.product(("cat", "dog"), range(count)):
            path = root / split / name / f"{i:03d}.{suffix}"
            drawn[str(path.relative_to(root))] = picture(path, mode=mode, seed=hash((split, i)) % 2**31)
    return drawn


def test_pixels_labels_and_normalization(tmp_path):
    """Every file is in its split once, whole; a missing validation split is a tenth of train, as for cifar10."""
    root = tmp_path / "pets"
    drawn = images(root, test=3)
    dataset = load(root)
    assert dataset.names == ("cat", "dog")
    assert dataset.shape == (12, 12, 3)
    assert [split.examples for split in dataset[:3]] == [36, 4, 6]
    for splits, name in ((dataset[:2], "train"), (dataset[2:3], "test")):
        loaded = sorted((image.tobytes(), label) for split in splits for image, label in zip(*split, strict=True))
        paths = [path for path in drawn if path.startswith(f"{name}/")]
        assert loaded == sorted((drawn[path].tobytes(), int("dog" in path)) for path in paths)
    pixels = dataset.train.inputs.reshape(-1, 3).astype(float)
    np.testing.assert_allclose((dataset.mean, dataset.std), (pixels.mean(0), pixels.std(0)), rtol=1e-12)
    assert list(dataset.train.labels) != sorted(dataset.train.labels)  # shuffled: the first examples are evaluated


def test_missing_splits_are_disjoint_tenths_of_train(tmp_path):
    root = tmp_path / "pets"
    drawn = images(root)
    dataset = load(root)
    assert [split.examples for split in dataset[:3]] == [32, 4, 4]
    assert sorted(image.tobytes() for split in dataset[:3] for image in split.inputs) == sorted(
        pixels.tobytes() for pixels in drawn.values()
    )


@pytest.mark.parametrize("name", ["validation", "val"])
def test_a_validation_split_of_its_own(tmp_path, name):
    root = tmp_path / "pets"
    images(root, **{name: 2}, test=3)
    assert [split.examples for split in load(root)[:3]] == [40, 4, 6]


def test_image_size_resizes_the_whole_central_square(tmp_path):
    """The left part is black, the middle white, the right black: of a 36x12 image the central 12x12 stays."""
    root = tmp_path / "pets"
    images(root)
    wide = np.zeros((12, 36, 3), np.uint8)
    wide[:, 12:24] = 255
    Image.fromarray(wide).save(root / "train" / "cat" / "wide.png")
    with pytest.raises(ValueError, match=r"has images of .*36x12 \(train/cat/wide.png\).*data.image_size=SIDE resizes"):
        load(root)
    dataset = load(root, 6)
    assert dataset.shape == (6, 6, 3)
    whites = [i for split in dataset[:3] for i in split.inputs if (i[:, 1:-1] == 255).all() and i.min() > 200]
    assert len(whites) == 1  # at the sides a little of the black


def test_margins_are_kept(tmp_path):
    """ImageNet's evaluation cuts off 1/16 at each side; a folder's images keep their margins."""
    root = tmp_path / "pets"
    framed = np.full((48, 48, 3), 255, np.uint8)
    framed[3:-3, 3:-3] = 0
    for name, i in itertools.product(("cat", "dog"), range(10)):
        (root / "train" / name).mkdir(parents=True, exist_ok=True)
        Image.fromarray(framed).save(root / "train" / name / f"{i}.png")
    image = load(root, 16).train.inputs[0]
    assert image[0].min() > 200
    assert image[2:-2, 2:-2].max() < 50


def test_oblong_images_of_one_size_need_an_image_size(tmp_path):
    root = tmp_path / "pets"
    for name, i in itertools.product(("cat", "dog"), range(10)):
        picture(root / "train" / name / f"{i}.png", size=(14, 12))
    with pytest.raises(ValueError, match=r"has images of 14x12 .*image_size"):
        load(root)
    assert load(root, 12).shape == (12, 12, 3)


def test_grey_images(tmp_path):
    """All grey: one channel. Grey among colour ones: an error that names one of each."""
    root = tmp_path / "pets"
    drawn = images(root, mode="L")
    dataset = load(root)
    assert dataset.shape == (12, 12, 1)
    assert {i.tobytes() for split in dataset[:3] for i in split.inputs} == {p.tobytes() for p in drawn.values()}
    picture(root / "train" / "cat" / "colour.png")
    with pytest.raises(ValueError, match=r"grey images \(train/.*\) among colour ones \(train/cat/colour.png\)"):
        load(root)


def test_files_that_cannot_be_read(tmp_path, capsys):
    root = tmp_path / "pets"
    images(root, suffix="jpg")
    bad = root / "train" / "cat" / "notes.jpg"
    bad.write_text("not an image")
    with pytest.raises(ValueError, match=r"notes.jpg cannot be read as an image: .*skip_corrupt=True goes on"):
        load(root)
    assert sum(split.examples for split in load(root, None, True)[:3]) == 40
    assert "left out 1 of" in capsys.readouterr().err
    with pytest.raises(ValueError, match=r"notes\.jpg"):  # what was kept while skipping is not used without it
        load(root)
    bad.unlink()
    cut = root / "train" / "dog" / "003.jpg"  # its head can be read, its pixels cannot
    cut.write_bytes(cut.read_bytes()[:-40])
    with pytest.raises(ValueError, match=r"train/dog/003.jpg\) cannot be used: .*truncated"):
        load(root)
    assert sum(split.examples for split in load(root, None, True)[:3]) == 39
    Image.fromarray(np.zeros((12, 12), np.uint16)).save(root / "train" / "cat" / "deep.png")
    with pytest.raises(ValueError, match=r"deep.png cannot be read as an image: its pixels are of mode I;16"):
        load(root)


def test_layouts_that_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"data.name=folder needs data.data_dir: a folder of images has train/CLASS"):
        load_without_dir()
    with pytest.raises(ValueError, match=r"has no folder train/: a folder of images has train/CLASS/\*.jpg"):
        load(tmp_path)
    root = tmp_path / "pets"
    images(root, test=2)
    (root / "train" / "empty").mkdir()
    with pytest.raises(ValueError, match=r"the class .*train/empty has no image, no file .jpg, .jpeg, .png"):
        load(root)
    (root / "train" / "empty").rmdir()
    shutil.rmtree(root / "test" / "dog")
    with pytest.raises(ValueError, match="the class 'dog' is in train/ and not in test/"):
        load(root)
    shutil.rmtree(root / "test")
    picture(root / "train" / "loose.png")
    with pytest.raises(ValueError, match=r"train/loose.png is in no class"):
        load(root)
    (root / "train" / "loose.png").unlink()
    images(root, validation=1, val=1)
    with pytest.raises(ValueError, match=r"both validation/ and val/"):
        load(root)
    shutil.rmtree(root / "validation")
    shutil.rmtree(root / "val")
    shutil.rmtree(root / "train" / "dog")
    with pytest.raises(ValueError, match="has 1 class"):
        load(root)
    shutil.rmtree(root / "train")
    images(root, train=2)
    with pytest.raises(ValueError, match="has 4 images, too few to take validation images"):
        load(root)


def load_without_dir():
    data.load.cache_clear()
    return data.load("folder")


def test_hidden_files_do_not_count_and_folders_below_a_class_do(tmp_path):
    root = tmp_path / "pets"
    images(root)
    for hidden in ("train/.DS_Store", "train/cat/._000.png", "train/.cache/x.png", "train/cat/.cache/x.png"):
        (root / hidden).parent.mkdir(exist_ok=True)
        (root / hidden).write_bytes(b"no image")
    picture(root / "train" / "cat" / "images" / "more.PNG")
    assert sum(split.examples for split in load(root)[:3]) == 41


def test_what_is_kept_beside_the_folder(tmp_path, monkeypatch, capsys):
    """It is used while the files are the same and made anew when one changes; no file of ours is left half-written."""
    root = tmp_path / "pets"
    images(root)
    first = load(root)
    with monkeypatch.context() as patched:
        patched.setattr(folder, "_read", lambda *_: pytest.fail("decoded again"))
        patched.setattr(image_files, "_hash_of", lambda path: pytest.fail(f"{path} was read again"))
        again = load(root)
    for a, b in zip(first[:3], again[:3], strict=True):
        np.testing.assert_array_equal(a.inputs, b.inputs)
        np.testing.assert_array_equal(a.labels, b.labels)
    np.testing.assert_array_equal(first.mean, again.mean)
    other = picture(root / "train" / "cat" / "000.png", seed=99)
    changed = load(root)
    assert other.tobytes() in {i.tobytes() for split in changed[:3] for i in split.inputs}
    monkeypatch.setattr(np, "savez", lambda *_, **__: (_ for _ in ()).throw(OSError("read-only")))
    picture(root / "train" / "cat" / "000.png", seed=100)
    load(root)
    assert "cannot be kept, and will be decoded again: read-only" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pets", "pets.own-size.depthmup.npz"]


def replaced(path, seed):
    """Put another picture into a file: its size and the time of its last change stay. The new pixels."""
    before = path.stat()
    pixels = np.random.default_rng(seed).integers(0, 256, (12, 12, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path, compress_level=0)
    assert path.stat().st_size == before.st_size
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    return pixels


@pytest.fixture
def uncompressed(tmp_path):
    """A folder of 40 pictures whose files are all of one size."""
    root = tmp_path / "pets"
    for path, pixels in images(root).items():
        Image.fromarray(pixels).save(root / path, compress_level=0)
    return root


def test_another_picture_of_equal_size_and_time_is_another_data_set(uncompressed):
    """In place (`cp -p`), and as another file (`rsync`, `tar`)."""
    first, path = load(uncompressed), uncompressed / "train" / "cat" / "000.png"
    for seed, unlink in ((1, False), (2, True)):
        content, stat = path.read_bytes(), path.stat()
        if unlink:
            path.rename(uncompressed.parent / f"{seed}.png")  # so that its inode is not taken again
            path.write_bytes(content)
            os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        pixels = replaced(path, seed)
        changed = load(uncompressed)
        assert pixels.tobytes() in {i.tobytes() for split in changed[:3] for i in split.inputs}
        assert changed.digest != first.digest
        assert changed.digest.partition(", contents ")[0] == first.digest.partition(", contents ")[0]
        first = changed


def test_the_digest_begins_with_names_and_sizes(uncompressed):
    """In the form that settings.json of earlier versions has."""
    sizes = [(str(path.relative_to(uncompressed)), path.stat().st_size) for path in sorted(uncompressed.rglob("*.png"))]
    before = f"40 files, {hashlib.sha256(json.dumps(sizes).encode()).hexdigest()[:16]}"
    assert load(uncompressed).digest.partition(", contents ")[0] == before


def test_equal_files_with_other_times_are_read_and_not_decoded(uncompressed, monkeypatch):
    """Once: then their new times are kept. A copy elsewhere is the same data set."""
    first = load(uncompressed)
    monkeypatch.setattr(folder, "_read", lambda *_: pytest.fail("decoded again"))
    os.utime(uncompressed / "train" / "dog" / "007.png", ns=(1, 1))
    read, hash_of = [], image_files._hash_of
    monkeypatch.setattr(image_files, "_hash_of", lambda path: read.append(path.name) or hash_of(path))
    assert load(uncompressed).digest == load(uncompressed).digest == first.digest
    assert read == ["007.png"]
    monkeypatch.undo()
    shutil.copytree(uncompressed, uncompressed.parent / "copy")
    assert load(uncompressed.parent / "copy").digest == first.digest


def test_verify_reads_files_that_look_unchanged(uncompressed, monkeypatch):
    first, states = load(uncompressed), image_files.listed_images(uncompressed)
    monkeypatch.setattr(folder, "listed_images", lambda root: states)  # as if nothing of any file had changed
    pixels = replaced(uncompressed / "train" / "cat" / "000.png", seed=1)
    assert load(uncompressed).digest == first.digest
    verified = load(uncompressed, None, False, None, True)
    assert verified.digest != first.digest
    assert pixels.tobytes() in {i.tobytes() for split in verified[:3] for i in split.inputs}
    assert load(uncompressed).digest == verified.digest
    with pytest.raises(ValueError, match=r"data.verify is for folder, not for digits"):
        data.load("digits", verify=True)


def flipped(cache):
    content = bytearray(cache.read_bytes())
    content[len(content) // 2] ^= 255
    cache.write_bytes(content)


def of_an_unknown_compression(cache):
    content = cache.read_bytes()
    place = content.rindex(b"PK\x01\x02") + 10
    cache.write_bytes(content[:place] + b"\x63" + content[place + 1 :])
    with pytest.raises(NotImplementedError), zipfile.ZipFile(cache) as file:
        [file.read(name) for name in file.namelist()]


def with_a_header_that_is_no_python(cache):
    with np.load(cache) as file:
        arrays = dict(file)
    np.savez(cache, **arrays)
    with zipfile.ZipFile(cache) as file:
        members = {name: file.read(name) for name in file.namelist()}
    members["mean.npy"] = members["mean.npy"].replace(b"{'descr'", b"((('descr'")
    with zipfile.ZipFile(cache, "w") as file:
        for name, content in members.items():
            file.writestr(name, content)


def with_its_key_alone(cache):
    with np.load(cache) as file:
        np.savez(cache, depthmup=file["depthmup"])


def without_labels(cache):
    with np.load(cache) as file:
        np.savez(cache, **{name: file[name] for name in file.files if name != "test_labels"})


DAMAGES = {
    "one byte": flipped,
    "cut off": lambda cache: cache.write_bytes(cache.read_bytes()[:200]),
    "empty": lambda cache: cache.write_bytes(b""),
    "compression": of_an_unknown_compression,
    "header": with_a_header_that_is_no_python,
    "key alone": with_its_key_alone,
    "no labels": without_labels,
    "key of another shape": lambda cache: np.savez(cache, depthmup=np.frombuffer(b"[5]", np.uint8)),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_cache_is_made_anew(tmp_path, capsys, damage):
    """With one line that names it; the next start reads it."""
    root = tmp_path / "pets"
    images(root)
    first = load(root)
    damage(tmp_path / "pets.own-size.depthmup.npz")
    capsys.readouterr()
    for split, expected in zip(load(root)[:3], first[:3], strict=True):
        np.testing.assert_array_equal(split.inputs, expected.inputs)
        np.testing.assert_array_equal(split.labels, expected.labels)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{tmp_path / 'pets.own-size.depthmup.npz'} is damaged and made anew: ")
    load(root)
    assert not capsys.readouterr().err


@pytest.mark.parametrize("place", ["pets.8.npz", "pets.8.depthmup.npz"])
def test_a_file_of_somebody_else_is_not_overwritten(tmp_path, place):
    """Nobody has a file of the second name but by intent; it is refused, not read."""
    root, path = tmp_path / "pets", tmp_path / place
    images(root)
    np.savez(path, key=np.array("mine"), x=np.arange(5))
    before = path.read_bytes()
    if place == "pets.8.npz":
        assert load(root, 8).shape == (8, 8, 3)
    else:
        with pytest.raises(
            ValueError, match=r"pets.8.depthmup.npz is no file of decoded images, .*: move it elsewhere"
        ):
            load(root, 8)
    assert path.read_bytes() == before


def test_a_pipe_in_the_place_of_the_cache_is_not_opened(tmp_path):
    root = tmp_path / "pets"
    images(root)
    os.mkfifo(tmp_path / "pets.8.depthmup.npz")
    with pytest.raises(ValueError, match=r"pets.8.depthmup.npz is no file of decoded images"):
        load(root, 8)


LINKS = {  # {what the link is called: where it leads to}, from train/cat
    "a loop": {"loop": "."},
    "the folder itself": {"up": "../.."},
    "everything": {"up": "/"},
    "another class": {"again": "../dog"},
    "two to one folder": {"one": "../../../more", "two": "../../../more"},
    "two to each other": {"one/there": "../../dog", "../dog/back": "../cat/one"},
    "a file of the class": {"again.png": "000.png"},
    "a file of another split": {"again.png": "../../test/cat/000.png"},
    "two to one file": {"one.png": "../../../more/cat/0.png", "two.png": "../../../more/cat/0.png"},
}


@pytest.mark.parametrize("links", LINKS.values(), ids=LINKS)
def test_links_that_repeat_images_are_refused(tmp_path, links):
    """Each as an error that names the link; two splits would share images else, or the walk would not end."""
    root = tmp_path / "pets"
    images(root, test=2)
    picture(tmp_path / "more" / "cat" / "0.png")
    for name, target in links.items():
        (root / "train" / "cat" / name).parent.mkdir(exist_ok=True)
        (root / "train" / "cat" / name).symlink_to(target)
    with pytest.raises(ValueError, match=r"is .* once more, by the link (\S+): its images would be repeated") as error:
        load(root)
    assert os.path.basename(str(error.value).partition("by the link ")[2].partition(":")[0]) in {
        os.path.basename(name) for name in links
    }


def test_a_split_that_is_a_link_to_another(tmp_path):
    root = tmp_path / "pets"
    images(root, test=2)
    (root / "validation").symlink_to("test")
    with pytest.raises(ValueError, match=r"pets/test is .*pets/validation once more, by the link .*pets/validation:"):
        load(root)


def test_links_out_of_the_folder_are_followed(tmp_path):
    """A class, a folder below one and a file may lie elsewhere; what they have decides the digest."""
    root = tmp_path / "pets"
    images(root)
    expected = load(root)
    (root / "train" / "cat").rename(tmp_path / "cats")
    (root / "train" / "cat").symlink_to(tmp_path / "cats")
    (root / "train" / "dog" / "007.png").rename(tmp_path / "a dog.png")
    (root / "train" / "dog" / "007.png").symlink_to("../../../a dog.png")
    linked = load(root)
    assert linked.digest == expected.digest
    np.testing.assert_array_equal(linked.train.inputs, expected.train.inputs)
    picture(tmp_path / "a dog.png", seed=99)
    assert load(root).digest != linked.digest


def test_links_to_nothing_and_files_that_are_not_regular(tmp_path):
    """They are neither read, which would wait at a pipe, nor passed over, which would lose images."""
    root = tmp_path / "pets"
    images(root)
    for name in ("train/cat/x.png", "train/cat/more", "train/mouse", "test", "val", "train/dog/round"):
        (root / name).symlink_to("round" if name.endswith("round") else "nowhere")
        with pytest.raises(ValueError, match=f"the link .*{name} leads to nothing: repair or remove it"):
            load(root)
        (root / name).unlink()
    os.mkfifo(root / "train" / "cat" / "x.png")
    with pytest.raises(ValueError, match=r"train/cat/x.png is no regular file .*: remove it"):
        load(root)
    (root / "train" / "cat" / "x.png").unlink()
    os.mkfifo(root / "train" / "cat" / "notes")  # no image
    (root / "train" / "cat" / ".hidden.png").symlink_to("nowhere")
    assert sum(split.examples for split in load(root)[:3]) == 40


def test_a_folder_that_cannot_be_listed(tmp_path, monkeypatch):
    root, scandir = tmp_path / "pets", os.scandir

    def refusing(path):
        if str(path).endswith("cat"):
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    images(root)
    monkeypatch.setattr(os, "scandir", refusing)
    with pytest.raises(ValueError, match=r"train/cat cannot be listed: Permission denied: make it readable"):
        load(root)


def test_one_picture_in_two_splits_is_noted(tmp_path, capsys):
    """With the count; within one split it is not. The splits that are cut off train count too."""
    root = tmp_path / "pets"
    images(root, validation=2, test=2)
    shutil.copy(root / "train" / "cat" / "000.png", root / "train" / "cat" / "more.png")
    load(root)
    assert not capsys.readouterr().err
    shutil.copy(root / "train" / "cat" / "000.png", root / "test" / "dog" / "more.png")
    shutil.copy(root / "validation" / "dog" / "001.png", root / "test" / "dog" / "again.png")
    for _ in range(2):  # decoded, and from what is kept
        load(root)
        assert capsys.readouterr().err.startswith(
            f"note: {root}: pictures in more than one split: 2, such as validation/dog/001.png (validation) and "
            "test/dog/again.png (test), equal byte for byte: "
        )
    shutil.rmtree(root / "validation")
    shutil.rmtree(root / "test")
    for i in range(20):
        shutil.copy(root / "train" / "cat" / "000.png", root / "train" / "dog" / f"{i:03d}.png")
    load(root)
    assert f"note: {root}: pictures in more than one split: 1, such as train/" in capsys.readouterr().err


def test_a_file_that_nobody_may_read(tmp_path, monkeypatch):
    """It is an error that names it, or left out with skip_corrupt, as a damaged one."""
    root, opened = tmp_path / "pets", io.open

    def refusing(file, *arguments, **options):
        if str(file).endswith("cat/000.png"):
            raise PermissionError(13, "Permission denied")
        return opened(file, *arguments, **options)

    images(root)
    monkeypatch.setattr(io, "open", refusing)
    monkeypatch.setattr("builtins.open", refusing)
    with pytest.raises(ValueError, match=r"cat/000.png cannot be read as an image: .*Permission denied"):
        load(root)
    assert sum(split.examples for split in load(root, None, True)[:3]) == 39


def test_a_large_folder_stays_on_disk(tmp_path, monkeypatch):
    """With the same splits, the same pixels and, here, the same normalization as in memory."""
    root = tmp_path / "pets"
    images(root, test=3)
    memory = load(root)
    monkeypatch.setattr(folder, "IN_MEMORY", 100)
    (tmp_path / "pets.own-size.depthmup.npz").unlink()
    for _ in range(2):  # decoded, and from what is kept
        disk = load(root)
        assert not disk.in_memory
        np.testing.assert_allclose((disk.mean, disk.std), (memory.mean, memory.std), rtol=1e-12)
        for from_disk, from_memory in ((Batches(disk, 8), Batches(memory, 8)),):
            for a, b in zip(from_disk.train(0, 6), from_memory.train(0, 6), strict=True):
                np.testing.assert_array_equal(a[0], b[0])
                np.testing.assert_array_equal(a[1], b[1])


@pytest.mark.parametrize("train", [run_train, sweep_train])
def test_a_workdir_belongs_to_the_files_it_was_trained_on(tmp_path, uncompressed, train):
    """That of a run and that of a sweep: names, sizes and bytes of the files, not their place."""
    root = uncompressed
    config = default.get_config()
    config.data.name, config.data.data_dir, config.data.batch_size = "folder", str(root), 8
    config.model.width, config.epochs = 4, 1.0
    config.sweep.update(depths=(2,), widths=(), optimizers=("sgd",), parameterizations=("mup",), seeds=1, per_octave=1)
    settings = from_config(config)
    train(settings, tmp_path / "run")
    shutil.copytree(root, tmp_path / "elsewhere")
    data.load.cache_clear()
    config.data.data_dir = str(tmp_path / "elsewhere")
    train(from_config(config), tmp_path / "run")  # the same files in another place
    replaced(tmp_path / "elsewhere" / "train" / "cat" / "000.png", seed=1)
    data.load.cache_clear()
    message = r"files of data.data_dir was '(40 files, \w+), contents \w+', now it is '\1, contents \w+'"
    with pytest.raises(WorkdirError, match=message):
        train(from_config(config), tmp_path / "run")
    picture(tmp_path / "elsewhere" / "train" / "cat" / "new.png")
    data.load.cache_clear()
    with pytest.raises(WorkdirError, match=r"files of data.data_dir was '40 files, .*', now it is '41 files"):
        train(from_config(config), tmp_path / "run")


def test_cifar10_as_a_folder(tmp_path, monkeypatch):
    """In the published order of each class, which TFDS's names of examples have."""

    builder = tfds.builder("cifar10")
    order = np.random.default_rng(1).permutation(20)
    records = [{**r, "id": f"train_{n}"} for r, n in zip(fake_records(builder, "train"), order, strict=True)]
    monkeypatch.setattr(cifar10_folder, "builder_of", lambda name, data_dir: builder)
    monkeypatch.setattr(cifar10_folder, "opened", lambda builder, name, data_dir, split: records)
    cifar10_folder.write(tmp_path)
    by_class, names = {}, builder.info.features["label"].names
    for _, record in sorted(zip(order, records, strict=True), key=lambda pair: pair[0]):
        by_class.setdefault(int(record["label"]), []).append(record)
    for label, class_records in by_class.items():
        files = sorted(path.name for path in (tmp_path / "train" / names[label]).iterdir())
        assert files == [f"{i:04d}.jpg" for i in range(len(class_records))]
        with Image.open(tmp_path / "train" / names[label] / "0000.jpg") as image:
            assert image.size == (32, 32)
            decoded = np.asarray(Image.open(io.BytesIO(class_records[0]["image"])), float)
            assert abs(np.asarray(image, float) - decoded).mean() < 30
