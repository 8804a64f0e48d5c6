"""Every config starts and takes two steps on data of the right shape; what its header says can be run."""

import importlib
import io
from pathlib import Path

import numpy as np
import pytest
import tensorflow_datasets as tfds
from PIL import Image

from depthmup import data
from depthmup.data.images import TFDS
from depthmup.settings import from_config
from depthmup.train import TrialLoop, TrialsOverDevices
from depthmup.train.build import batches_of, hyper_of, steps_of, task_of

ROOT = Path(__file__).parent.parent
CONFIGS = sorted(p.stem for p in (ROOT / "configs").glob("*_*.py"))
SMALLEST = {
    "simple_resnet": dict(width=8, depth=3),
    "resnet": dict(width=2, depth=1, stages=(1, 1, 1, 1)),
    "vit": dict(width=12, depth=1),
    "cnn": dict(width=4, depth=2),
    "residual_cnn": dict(width=4, depth=1),
}
EXAMPLES = 20


def fake_records(builder, split, **_):
    """What TFDS's own mock gives without TensorFlow: encoded images of the features' shape, random labels."""
    height, width, _ = builder.info.features["image"].shape
    rng = np.random.default_rng(0)
    records = []
    for _ in range(EXAMPLES):
        file = io.BytesIO()
        Image.fromarray(rng.integers(0, 256, (height or 90, width or 120, 3), dtype=np.uint8)).save(file, "JPEG")
        label = rng.integers(builder.info.features["label"].num_classes)
        records.append({"image": file.getvalue(), "label": label})
    return records


@pytest.fixture
def mocked(monkeypatch):
    monkeypatch.setattr("depthmup.train.loop.EVALUATION_BATCH", 16)
    data.load.cache_clear()
    with tfds.testing.mock_data(as_data_source_fn=fake_records):
        yield
    data.load.cache_clear()


@pytest.mark.parametrize("name", CONFIGS)
def test_two_steps(name, mocked):
    config = importlib.import_module(f"configs.{name}").get_config()
    for key, value in SMALLEST[config.model.name].items():
        if key in config.model and (key != "stages" or config.model.stem == "imagenet"):
            config.model[key] = value
    if config.data.name == "imagenet2012":
        config.data.image_size = 32 if config.model.name == "resnet" else 16
    config.data.update(batch_size=8, workers=0)
    if config.data.name == "patches":
        config.epochs = 1e-3
    settings = from_config(config)
    batches = batches_of(settings)
    assert settings.epochs * batches.steps_per_epoch <= steps_of(settings) + 1
    loop, losses = TrialLoop(task_of(settings), batches, TrialsOverDevices(1)), []
    metrics = loop.run([hyper_of(settings)], 2, report=lambda _, metrics: losses.append(metrics["loss"]))
    assert np.isfinite(losses).all()
    classes = TFDS[settings.data.name].classes if settings.data.name in TFDS else 10
    assert batches.dataset.classes == classes
    assert np.isfinite(metrics["test_loss"]).all()
    assert 0 <= metrics["test_accuracy"][0] <= 1


@pytest.mark.parametrize("name", CONFIGS)
def test_header(name):
    """Command, cost and expectation, all filled in; the commands name this file and a data set there is."""
    text = (ROOT / "configs" / f"{name}.py").read_text().split('"""')[1]
    assert f"python main.py --config=configs/{name}.py --workdir=" in text
    assert "\nCost: " in text
    assert "\nExpect" in text
    assert "COST_" not in text
    config = importlib.import_module(f"configs.{name}").get_config()
    if config.data.name in TFDS:
        assert f"python -m depthmup.data.prepare {config.data.name}\n" in text
