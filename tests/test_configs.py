"""Every config starts and takes two steps on data of the right shape; what its header says can be run."""

import importlib
import io
import re
from pathlib import Path

import numpy as np
import pytest
import tensorflow_datasets as tfds
from PIL import Image

from configs import default, gpt
from depthmup import cli_flags, data, fit
from depthmup.data.tfds_images import TFDS
from depthmup.models import MODELS
from depthmup.settings import LEARNING_RATE, from_config
from depthmup.train import TrialLoop, TrialsOverDevices
from depthmup.train.build import batches_of, hyper_of, steps_of, task_of
from depthmup.train.task import Task
from depthmup.trials.config_study import ConfigStudy
from depthmup.trials.plan import trial_count
from depthmup.trials.study import Axis

ROOT = Path(__file__).parent.parent
SMALLEST = {
    "simple_resnet": dict(width=8, depth=3),
    "resnet": dict(width=2, depth=1, stages=(1, 1, 1, 1)),
    "vit": dict(width=12, depth=1),
    "gpt": dict(width=24, depth=1),
    "cnn": dict(width=4, depth=2),
    "residual_cnn": dict(width=4, depth=1),
}
EXAMPLES = 20
# {config: (blocks at the base depth, blocks, branch factor, width over base width)}
SHAPES = {
    "default": (2, 8, 0.5, 4.0),
    "digits": (2, 2, 1.0, 4.0),
    "transfer": (2, 2, 1.0, 4.0),
    "patches16_simple_resnet": (3, 3, 1.0, 2.0),
    "patches16_vit": (2, 2, 1.0, 2.0),
    "patches:resnet": (6, 3, 1.4142, 0.5),
    "patches:simple_resnet": (2, 6, 0.5774, 4.0),
    "patches:vit": (2, 4, 0.7071, 2.0),
    "text_gpt": (2, 2, 1.0, 1.0),
    "gpt": (2, 2, 1.0, 1.0),
    "gpt:llama": (2, 2, 1.0, 1.0),
    "cifar10_simple_resnet": (3, 4, 0.8660, 4.0),
    "papers:simple_resnet,tiny_imagenet": (3, 4, 0.8660, 4.0),
    "cifar10_resnet": (6, 9, 0.8165, 0.5),
    "papers:resnet,cifar100": (6, 9, 0.8165, 0.5),
    "papers:resnet,tiny_imagenet": (6, 9, 0.8165, 0.5),
    "imagenet_resnet": (8, 8, 1.0, 1.0),  # ResNet-18 at ResNet-18's shape
    "papers:vit,cifar10": (2, 8, 0.5, 4.0),
    "tiny_imagenet_vit": (2, 8, 0.5, 4.0),
    "imagenet_vit": (2, 12, 0.4082, 12.0),
    # Plain networks have no branches.
    "cifar10_cnn": (3, 3, 1.0, 1.0),
    "papers:cnn,cifar100": (3, 3, 1.0, 1.0),
    "papers:cnn,imagenet2012": (3, 3, 1.0, 1.0),
    # Not 1/sqrt(4): AM-muP has 1/sqrt(K) in the init of branch weights, not in the forward pass.
    "cifar10_residual_cnn": (1, 4, 1.0, 1.0),
    "papers:residual_cnn,cifar100": (1, 4, 1.0, 1.0),
    "papers:residual_cnn,imagenet2012": (1, 4, 1.0, 1.0),
}
NOT_PAPER_A = {"default", "digits", "transfer", "patches16_vit", "text_gpt", "gpt", "gpt:llama"}
TWO, THREE = ["A", "B"], ["A", "B", "C"]
PAPER_B = {  # the segments of which the sweep has both anchors and all depths to predict, C's odd ones excepted
    "cifar10_cnn": THREE,
    "papers:cnn,cifar100": THREE,
    "papers:cnn,imagenet2012": TWO,
    "cifar10_residual_cnn": TWO,
    "papers:residual_cnn,cifar100": TWO,
    "papers:residual_cnn,imagenet2012": TWO,
}
TOKENS = {"text": 256, "tokens": 64}  # {data set: its number of tokens}
CONFIGS = sorted(SHAPES.keys() - {"default", "digits", "transfer"})
FILES = {name.partition(":")[0]: name for name in SHAPES}  # {file: one of its configs}


def config_of(name):
    """name: as in --config=name."""
    file, colon, argument = name.partition(":")
    return importlib.import_module(f"configs.{file}").get_config(*[argument] * bool(colon))


def settings_of(name):
    return from_config(config_of(name))


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
    monkeypatch.setattr("depthmup.data.pipeline.EVALUATION_BATCH", 16)
    data.load.cache_clear()
    with tfds.testing.mock_data(as_data_source_fn=fake_records):
        yield
    data.load.cache_clear()


@pytest.mark.parametrize("name", CONFIGS)
def test_two_steps(name, mocked, tmp_path):
    config = config_of(name)
    if config.data.name == "tokens":
        for split in ("train", "val"):
            (np.arange(2**12) % 64).astype(np.uint16).tofile(tmp_path / f"{split}.bin")
        config.data.data_dir = str(tmp_path)
    assert_trains(config)


def assert_trains(config):
    """Two steps at a small width and depth: all losses are finite, and the classes are those of the data set."""
    for key, value in SMALLEST[config.model.name].items():
        if key in config.model and (key != "stages" or config.model.stem == "imagenet"):
            config.model[key] = value
    if config.data.name == "imagenet2012":
        config.data.image_size = 32 if config.model.name == "resnet" else 16
    config.data.update(batch_size=8, workers=0)
    if config.data.name == "patches":
        config.epochs = 1e-3
    if config.data.name in TOKENS:
        config.data.context = 16
    settings = from_config(config)
    batches = batches_of(settings)
    assert settings.epochs * batches.steps_per_epoch <= steps_of(settings) + 1
    loop, losses = TrialLoop(task_of(settings), batches, TrialsOverDevices(1)), []
    metrics = loop.run([hyper_of(settings)], 2, report=lambda _, metrics: losses.append(metrics["loss"]))
    assert np.isfinite(losses).all()
    classes = TFDS[settings.data.name].classes if settings.data.name in TFDS else TOKENS.get(settings.data.name, 10)
    assert batches.dataset.classes == classes
    assert np.isfinite(metrics["test_loss"]).all()
    assert 0 <= metrics["test_accuracy"][0] <= 1


@pytest.mark.parametrize("file", sorted(FILES.keys() - {"default"}))
def test_header(file):
    """A headline, commands, what they cost and gave, if they were run; they name this file and a data set there is."""
    text = (ROOT / "configs" / f"{file}.py").read_text().split('"""')[1]
    assert len(cli_flags.headline(file)) <= 73  # a line of --help
    assert re.search(rf"\n    python main\.py (sweep )?--config=configs/{file}\.py[ :].*--workdir=", text)
    assert "\nCost: " in text
    assert re.search(r"\n(Result.*:|Not run[:;]) ", text)
    for name in re.findall(r"depthmup\.data\.prepare (\w+)\n", text):
        assert name in TFDS
    assert ("depthmup.data.prepare" in text) == (settings_of(FILES[file]).data.name in TFDS)


def test_every_config_is_in_the_table():
    assert {p.stem for p in (ROOT / "configs").glob("*.py")} == FILES.keys()


@pytest.mark.parametrize("choice", ["", "vit", "vit,imagenet2012", "cnn,tiny_imagenet", "cnn,cifar10,"])
def test_a_model_or_data_that_the_papers_lack(choice):
    with pytest.raises(
        ValueError, match=r"behind the colon of --config=papers:MODEL,DATA \(known: simple_resnet, resnet"
    ):
        config_of(f"papers:{choice}")


def test_main_figures_are_those_of_papers():
    for name, model in (("cifar10_cnn", "cnn"), ("cifar10_residual_cnn", "residual_cnn"), ("cifar10_resnet", "resnet")):
        assert settings_of(name) == settings_of(f"papers:{model},cifar10")


@pytest.mark.parametrize(("name", "shape"), SHAPES.items())
def test_branch_factor(name, shape):
    """The base shape has the units of the model's: a base depth in blocks where depth counts n would show here."""
    settings = settings_of(name)
    s, at_base, blocks, branch, width = settings.model, *shape
    task = Task(MODELS[s.name](width=s.width, depth=s.depth, **s.options), (), "sgd")
    p = task.counting_blocks(settings.parameterization.build())
    assert (p.count_blocks(p.base_depth), p.count_blocks(s.depth)) == (at_base, blocks)
    assert p.forward_factors(width=s.width, depth=s.depth).branch == pytest.approx(branch, abs=1e-4)
    assert s.width / p.base_width == width


@pytest.mark.parametrize(("name", "segments"), PAPER_B.items())
def test_the_protocol_of_paper_b(name, segments):
    """Sections 4.1 to 4.3; the figures show how the best learning rate falls, so it has no power of depth."""
    settings = settings_of(name)
    sweep, model, p = settings.sweep, settings.model, settings.parameterization
    assert (p.name, p.lr_depth, sweep.parameterizations) == ("am_mup", 0.0, ("am_mup",))
    assert (settings.optimizer.name, settings.optimizer.weight_decay, sweep.optimizers) == ("sgd", 0.0, ("sgd",))
    assert (settings.epochs, settings.schedule, settings.warmup_epochs) == (1.0, "constant", 0.0)
    assert settings.data.batch_size == (256 if settings.data.name == "imagenet2012" else 128)
    assert sweep.judge_by == "validation_accuracy"
    study = ConfigStudy(settings)
    (rates,) = (np.array(axis.values) for axis in study.axes if axis.key == LEARNING_RATE)
    np.testing.assert_allclose(np.log10(rates), np.linspace(-4, 1, 40), atol=1e-12)
    laws = fit.segmented(sweep.depths, [depth**-1.5 for depth in sweep.depths])
    assert [law.name for law in laws] == segments
    assert [len(law.depths) for law in laws] == [5] * len(segments)
    assert trial_count(study) == len(sweep.depths) * 40 * sweep.seeds
    assert 64 <= model.width <= 512
    assert model.options["padding"] == "circular"
    if model.name == "residual_cnn":
        assert (model.width, model.options["kernels"], model.options["norm"]) == (64, (3, 3), "none")
        assert model.options["dropout"] == 0.0
    else:
        assert model.options["activation"] == "relu"


@pytest.mark.parametrize("name", sorted(SHAPES.keys() - PAPER_B.keys() - NOT_PAPER_A))
def test_the_protocol_of_paper_a(name):
    """A.4: batches of 64. ViTs as in Fig 3: Adam without a power of depth, linear warm-up, layer norm or none."""
    settings = settings_of(name)
    assert settings.data.batch_size == 64
    assert settings.data.augment.flip or name.startswith("patches16")
    if settings.model.name == "vit" and not name.startswith("patches"):
        assert (settings.optimizer.name, settings.parameterization.lr_depth) == ("adam", 0.0)
        assert (settings.schedule, settings.warmup_epochs) == ("constant", 1.0)
    if name == "tiny_imagenet_vit":
        assert settings.epochs == 20
        assert ConfigStudy(settings).axes == (Axis("model.norm", ("layer", "none"), traced=False),)
        assert settings.sweep.parameterizations == ("mup", "depth_mup")
    if name == "imagenet_vit":
        assert (settings.model.options["norm"], settings.sweep.parameterizations) == ("none", ("depth_mup",))


def test_a_config_leaves_others_alone():
    """What one sets is not what the next one of the process begins with."""
    assert gpt.get_config("llama").model.kv_heads == 4
    assert default.get_config("gpt").model.kv_heads is None
