"""Data sets of TFDS: read without TensorFlow, split once and for all, and an error says how to prepare them."""

import io
import json
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow_datasets as tfds
from PIL import Image

from depthmup import data
from depthmup.data import tfds_images
from depthmup.data.dataset import held_out
from depthmup.data.prepare import main, prepare_tfds
from tests.test_configs import fake_records


@pytest.fixture(autouse=True)
def fresh():
    data.load.cache_clear()
    yield
    data.load.cache_clear()


def test_cifar_is_in_memory_with_a_fixed_tenth_held_out():
    with tfds.testing.mock_data(as_data_source_fn=fake_records):
        dataset = data.load("cifar10")
    assert dataset.in_memory
    assert (dataset.train.examples, dataset.validation.examples, dataset.test.examples) == (18, 2, 20)
    np.testing.assert_allclose((dataset.mean, dataset.std), ((125.3, 123.0, 113.9), (63.0, 62.1, 66.7)), atol=0.1)
    builder = tfds.builder("cifar10")
    source = fake_records(builder, "train")
    for split, places in zip((dataset.train, dataset.validation), held_out(20), strict=True):
        assert split.inputs.dtype == np.uint8
        for image, label, place in zip(*split, places, strict=True):
            with Image.open(io.BytesIO(source[place]["image"])) as file:
                np.testing.assert_array_equal(image, np.asarray(file))
            assert label == source[place]["label"]


def test_imagenet_stays_on_disk():
    with tfds.testing.mock_data(as_data_source_fn=fake_records):
        dataset = data.load("imagenet2012", image_size=24)
        assert not dataset.in_memory
        assert dataset.shape == (24, 24, 3)
        assert data.load("imagenet2012").shape == (224, 224, 3)
        assert "imagenet2012, split validation" in dataset.test.name
        with pytest.raises(ValueError, match=r"data.image_size is for patches, .*imagenet2012, not for cifar10: "):
            data.load("cifar10", image_size=24)


def test_corrupt_images_in_memory(capsys):
    def damaged(builder, split, **_):
        records = fake_records(builder, split)
        records[3]["image"] = records[3]["image"][:200]
        return records

    with tfds.testing.mock_data(as_data_source_fn=damaged):
        with pytest.raises(ValueError, match=r"cifar10, split train: record 3 cannot be used: .*skip_corrupt"):
            data.load("cifar10")
        dataset = data.load("cifar10", skip_corrupt=True)
    assert dataset.train.examples + dataset.validation.examples == 19
    assert "cifar10, split train: left out 1 corrupt of" in capsys.readouterr().err


def test_what_is_not_prepared_names_the_command(tmp_path):
    folder = str(tmp_path)
    command = f"python -m depthmup.data.prepare cifar100 --data_dir={folder}$"
    message = f"cifar100 is not prepared in {folder}/cifar100/.*: {command}"
    with pytest.raises(ValueError, match=message):
        data.load("cifar100", folder)
    with pytest.raises(ValueError, match=r"first put ILSVRC2012_img_train.tar and .* into .*/downloads/manual"):
        data.load("imagenet2012", folder)
    with pytest.raises(ValueError, match=r"tiny-imagenet-200.zip"):
        data.load("tiny_imagenet", folder)


@pytest.fixture
def tfrecord(tmp_path):
    """The description that TFDS leaves of a data set prepared as TFRecord."""
    folder = tmp_path / "cifar10" / "3.0.2"
    folder.mkdir(parents=True)
    template = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
    splits = [
        {"name": n, "shardLengths": ["1"], "numBytes": "9", "filepathTemplate": template} for n in ("train", "test")
    ]
    info = {"name": "cifar10", "version": "3.0.2", "fileFormat": "tfrecord", "splits": splits}
    (folder / "dataset_info.json").write_text(json.dumps(info))
    tfds.builder("cifar10").info.features.save_metadata(folder)
    return str(tmp_path)


def test_what_is_prepared_in_another_format_names_the_way_out(tfrecord):
    way_out = f"{tfrecord}_array_record, and then data.data_dir={tfrecord}_array_record"
    with pytest.raises(ValueError, match=f"is prepared as tfrecord, .*prepare cifar10 --data_dir={way_out}"):
        data.load("cifar10", tfrecord)
    with pytest.raises(ValueError, match=f"another format: give another folder, --data_dir={tfrecord}_array_record"):
        prepare_tfds("cifar10", tfrecord)


def test_the_command_that_prepares(tmp_path, monkeypatch, capsys):
    """What it needs that is not there, and a data set whose download fails, in one line; nothing is left prepared."""
    monkeypatch.setattr(sys, "argv", ["prepare", "tiny_imagenet", f"--data_dir={tmp_path}"])
    with pytest.raises(SystemExit, match=rf"tiny-imagenet-200.* must be in {tmp_path}/downloads/manual"):
        main()
    with pytest.raises(ValueError, match="tiny_imagenet is not prepared"):
        data.load("tiny_imagenet", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["prepare", "cifar11"])
    with pytest.raises(SystemExit):
        main()
    assert "invalid choice: 'cifar11'" in capsys.readouterr().err


def test_what_is_prepared_can_be_read_at_random(tmp_path, monkeypatch):
    """In the one format of TFDS that needs no TensorFlow to read any example."""
    formats = []

    def builder_of(name, data_dir, file_format=None):
        formats.append(file_format)
        done = SimpleNamespace(data_dir_root=tmp_path, data_dir=tmp_path / name)
        done.download_and_prepare = lambda download_dir: None
        return done

    monkeypatch.setattr("depthmup.data.prepare.builder_of", builder_of)
    assert prepare_tfds("cifar10", str(tmp_path)) == tmp_path / "cifar10"
    assert formats == ["array_record"]


def test_unknown_names():
    with pytest.raises(
        ValueError, match=r"data.name: unknown data set 'digit'; did you mean 'digits'\? \(known: [^)]*\)$"
    ):
        data.load("digit")
    with pytest.raises(ValueError, match="unknown data set 'cifr10'; did you mean 'cifar10'"):
        data.load("cifr10")
    with pytest.raises(ValueError, match=r"'mnist9000' \(known: cifar10, cifar100, digits, folder, "):
        data.load("mnist9000")


def test_every_source_is_a_builder():
    """Names, classes and splits are those of TFDS and of our builders."""
    for name, source in tfds_images.TFDS.items():
        builder = tfds_images.builder_of(name, None)
        assert builder.info.features["label"].num_classes == source.classes
        shape = builder.info.features["image"].shape
        assert shape in ((source.size, source.size, 3), (None, None, 3))


def test_tensorflow_is_not_needed():
    """Data in memory, its augmentation and a step of training; and records of TFDS."""
    program = """
import sys
class Refuse:  # whatever is installed, an import of TensorFlow fails
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "tensorflow":
            raise ModuleNotFoundError("No module named 'tensorflow'", name="tensorflow")
sys.meta_path.insert(0, Refuse())
import importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name == "tensorflow" else find(name, package)
import numpy as np, tensorflow_datasets as tfds
from depthmup import data
from tests.test_configs import fake_records
from tests import tiny
from depthmup.train.build import hyper_of
from depthmup.train.run import loop_of
settings = tiny.settings(data__augment=dict(tiny.config()["data"]["augment"], flip=True, rotate=5.0))
assert np.isfinite(loop_of(settings).run([hyper_of(settings)], 1)["loss"]).all()
with tfds.testing.mock_data(as_data_source_fn=fake_records):
    assert data.load("cifar10").train.examples == 18
    batches = data.Batches(data.load("imagenet2012", image_size=16), 4)
    assert next(batches.train(0, 1))[0].shape == (4, 16, 16, 3)
print("grain" in sys.modules, "tensorflow" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.split()[-2:] == ["True", "False"], done.stderr


def test_importing_data_is_light():
    """Neither TFDS nor Grain nor scikit-learn, which only some data sets need."""
    heavy = {"grain", "sklearn", "skimage", "tensorflow_datasets"}
    program = f"import sys, depthmup.data; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
