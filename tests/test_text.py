"""Text: its windows, its way through training, and what a user sees of it."""

import dataclasses
import json
import math

import jax
import numpy as np
import pytest

from configs import default, text_gpt
from depthmup.data import NONE, Batches, Split, checked_dataset, load, text
from depthmup.models import GPT
from depthmup.settings import SettingsError, flat, from_config, put
from depthmup.train import Task, TrialLoop, TrialsOverDevices
from depthmup.train.build import identity_of_data, task_of
from depthmup.train.task import LABEL_NOISE
from depthmup.training_settings import Recipe
from tests.test_main import assert_one_line, call  # noqa: F401 - call is a fixture

pytestmark = pytest.mark.filterwarnings("ignore:.*load_module:DeprecationWarning")

CONTEXT, SIZE = 9, 10
SMALL = ("--config.model.width=16", "--config.data.context=8", "--config.data.batch_size=4")


@pytest.fixture
def corpus(tmp_path):
    """A file in which every ten bytes say where they are: a hundred windows."""
    path = tmp_path / "corpus.txt"
    path.write_text("".join(f"{place:09d}\n" for place in range(100)))
    return path


def windows(split):
    assert split.inputs.dtype == np.uint8
    assert split.labels.dtype == np.int32
    np.testing.assert_array_equal(split.inputs[:, 1:], split.labels[:, :-1])  # a label is the next byte
    return np.concatenate([split.inputs, split.labels[:, -1:]], axis=1)


def test_windows(corpus):
    """Each window once, whole; the splits are contiguous parts of the text, the last two tenths held out."""
    dataset = load("text", str(corpus), context=CONTEXT)
    assert dataset.shape == (CONTEXT,)
    assert dataset.classes == 256
    assert dataset.tokens
    places = {}
    for name in ("train", "validation", "test"):
        texts = [bytes(window.astype(np.uint8)).decode() for window in windows(getattr(dataset, name))]
        assert all(window.endswith("\n") and len(window) == SIZE for window in texts)
        places[name] = [int(window) for window in texts]
    assert sorted(places["train"]) == list(range(80))
    assert places["train"] != list(range(80))  # shuffled: the first ones, which are evaluated, are of all the text
    assert sorted(places["validation"]) == list(range(80, 90))
    assert sorted(places["test"]) == list(range(90, 100))


def test_an_evaluation_is_of_so_many_bytes(corpus, monkeypatch):
    monkeypatch.setattr(text, "HELD_OUT", 45)
    held_out = text.load_text(str(corpus), CONTEXT).validation
    assert held_out.inputs.shape == (4, CONTEXT)
    batches = Batches(text.load_text(str(corpus), CONTEXT), 8)
    assert batches.train_evaluated == 80
    monkeypatch.setattr("depthmup.data.pipeline.TRAIN_EVALUATED", 100)
    assert batches.train_evaluated == 100 // CONTEXT


def test_a_folder_is_its_files_in_the_order_of_their_paths(tmp_path):
    (tmp_path / "b").mkdir()
    for name, content in {"c.txt": "ccc", "b/a.md": "bbb", "a.txt": "aaa" * 30, ".hidden": "no", "b/.x": "no"}.items():
        (tmp_path / name).write_text(content)
    assert text._read(tmp_path) == b"aaa" * 30 + b"\nbbb\nccc"
    assert load("text", str(tmp_path), context=4).digest.startswith("98 bytes, ")


def test_the_digest_changes_with_a_byte(corpus, tmp_path):
    before = text.load_text(str(corpus)).digest
    copy = tmp_path / "elsewhere.txt"
    copy.write_bytes(corpus.read_bytes())
    assert text.load_text(str(copy)).digest == before
    copy.write_bytes(corpus.read_bytes()[:-1] + b"!")
    assert text.load_text(str(copy)).digest != before
    settings = put(from_config(text_gpt.get_config()), {"data.data_dir": str(corpus), "data.batch_size": 2})
    assert identity_of_data(settings) == {"files of data.data_dir": before}


def test_text_that_is_on_every_machine():
    dataset = load("text")
    assert dataset.shape == (64,)
    assert dataset.digest.startswith(f"NumPy {np.__version__}, ")
    assert len(text.docstrings()) > 10**6
    assert dataset.train.examples == len(text.docstrings()) // 65 * 8 // 10


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(data_dir="no/such"), "data.data_dir: no/such does not exist: give a file of text or a folder of files"),
        (dict(data_dir="{tmp}/empty"), "empty has no file: give a file"),
        (dict(data_dir="{tmp}/binary"), "picture.png is no text, it has a zero byte: move it out of data.data_dir"),
        (dict(data_dir="{tmp}/short.txt", context=9), "has 99 bytes, and needs 100 or more, ten windows of"),
        (dict(image_size=32), "data.image_size is for patches, .*, not for text"),
        (dict(name="digits", context=9), "data.context is for text, tokens, not for digits: leave it unset"),
        (dict(name="blank:cifar10", context=9), "data.context is for text, tokens, not for blank:cifar10"),
    ],
)
def test_what_is_no_text(options, message, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "binary").mkdir()
    (tmp_path / "binary" / "picture.png").write_bytes(b"P\0NG")
    (tmp_path / "short.txt").write_bytes(b"x" * 99)
    options = {k: v.format(tmp=tmp_path) if isinstance(v, str) else v for k, v in options.items()}
    with pytest.raises(ValueError, match=message):
        load(**{"name": "text", **options})


def test_tokens_and_images_are_not_exchanged(corpus):
    dataset = load("text", str(corpus), context=CONTEXT)
    with pytest.raises(ValueError, match=r"data.augment changes images, and these examples are tokens"):
        Batches(dataset, 8, augment=dataclasses.replace(NONE, flip=True))
    with pytest.raises(ValueError, match=r"train split: labels of an example must be \(9,\), got \(\)"):
        checked_dataset(dataset._replace(train=Split(dataset.train.inputs, dataset.train.labels[:, 0])))
    settings = from_config(text_gpt.get_config())
    with pytest.raises(SettingsError, match=r"model.name=gpt takes tokens, and data.name=digits has images"):
        task_of(put(settings, {"data.name": "digits", "data.context": None}))
    config = default.get_config()
    config.data.name = "text"
    with pytest.raises(SettingsError, match=r"model.name=residual_mlp takes images, and data.name=text has tokens"):
        task_of(from_config(config))


def test_an_unset_context_is_in_no_identity():
    """Results that are older than the setting keep their keys."""
    assert "data.context" not in flat(from_config(default.get_config()))
    assert flat(from_config(text_gpt.get_config()))["data.context"] == 32


def test_batches(corpus):
    """Tokens as they are, int32; rows that fill up the last batch have no label."""
    batches = Batches(load("text", str(corpus), context=CONTEXT), 8)
    prepared = batches.prepare(batches.dataset.train.inputs, step=3)
    assert prepared.dtype == np.int32
    np.testing.assert_array_equal(prepared, batches.dataset.train.inputs)
    ((_, labels),) = batches.evaluation(batches.dataset.test, batch_size=16)
    np.testing.assert_array_equal(labels[:10], batches.dataset.test.labels)
    np.testing.assert_array_equal(labels[10:], np.full((6, CONTEXT), -1))


def test_losses_are_means_over_positions():
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(5, 3, 4)).astype(np.float32), rng.integers(0, 4, (5, 3))
    for recipe in (Recipe(), Recipe(loss="mse"), Recipe(label_smoothing=0.2)):
        each = [recipe.example_losses(logits[:, t], labels[:, t], train=True) for t in range(3)]
        np.testing.assert_allclose(recipe.example_losses(logits, labels, train=True), np.mean(each, axis=0), rtol=1e-6)
    with pytest.raises(ValueError, match=r"labels must be integers \(5, 3\) .* got int64 \(5,\)"):
        Recipe().example_losses(logits, labels[:, 0], train=True)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """(loop of two trials, their hypers): twenty windows of a small model."""
    path = tmp_path_factory.mktemp("text") / "corpus.txt"
    path.write_text("".join(f"{place:09d}\n" for place in range(100)))
    batches = Batches(load("text", str(path), context=CONTEXT), 8)
    task = Task(GPT(8, 2, 256, heads=2), (CONTEXT,), "adam", Recipe(label_noise=True))
    settings = from_config(text_gpt.get_config())
    hypers = [task.hyper(settings.parameterization.build(), 0.01, seed=seed, steps=30) for seed in (0, 1)]
    return TrialLoop(task, batches, TrialsOverDevices(2)), hypers


def test_evaluation_counts_examples(trained):
    """As one forward pass of each split, written out."""
    loop, hypers = trained
    metrics = loop.results(*loop.start(hypers))
    for i, hyper in enumerate(hypers):
        params = jax.jit(loop.task.init)(hyper.arrays()).params
        for prefix, name in (("", "train"), ("validation_", "validation"), ("test_", "test")):
            split = getattr(loop.batches.dataset, name)
            logits = np.asarray(
                loop.task.model.apply({"params": params}, split.inputs.astype(np.int32), hyper.forward), np.float64
            )
            log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
            expected = -np.take_along_axis(log_p, split.labels[..., None], -1).mean()
            np.testing.assert_allclose(metrics[f"{prefix}loss"][i], expected, rtol=1e-5)
            right = np.mean(logits.argmax(-1) == split.labels)
            np.testing.assert_allclose(metrics[f"{prefix}accuracy"][i], right, rtol=1e-5)


def test_trials_learn(trained):
    loop, hypers = trained
    seen = []
    metrics = loop.run(hypers, 30, report=lambda _, metrics: seen.append(metrics["loss"]))
    losses = np.concatenate(seen, axis=1)
    assert losses.shape == (2, 30)
    assert (metrics["loss"] < losses[:, 0] - 1).all()


def test_label_noise_is_drawn_for_each_position(trained):
    loop, hypers = trained
    task, hyper = loop.task, hypers[0]._replace(label_noise=0.5).arrays()
    state, split = jax.jit(task.init)(hyper), loop.batches.dataset.train
    inputs, labels = split.inputs[:8].astype(np.int32), split.labels[:8]
    noisy = task.objective(state.params, state, (inputs, labels), hyper)
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(hyper.seed), 0), LABEL_NOISE)
    chosen, other = jax.random.split(key)
    drawn = jax.random.randint(other, labels.shape, 0, 256, labels.dtype)
    labels = np.where(jax.random.uniform(chosen, labels.shape) < 0.5, drawn, labels)
    clean = task.objective(state.params, state, (inputs, labels), hyper._replace(label_noise=np.float32(0)))
    np.testing.assert_allclose(noisy, clean, rtol=1e-6)


def test_train(call, corpus, tmp_path):  # noqa: F811
    """A few steps of the config on a text of one's own: below the loss of guessing among 256 bytes."""
    options = (f"--config.data.data_dir={corpus}", "--config.epochs=4.0", f"--workdir={tmp_path / 'run'}")
    done = call("train", "--config=configs/text_gpt.py", *SMALL, *options)
    assert done.returncode == 0, done.stderr
    assert "completep, adamw, width 16, depth 2: 88 steps of 4 examples on 1 x cpu" in done.stdout
    assert "examples/s" in done.stdout
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())["metrics"]
    assert metrics["loss"] < math.log(256) - 2
    assert metrics["validation_loss"] < math.log(256) - 1
    assert metrics["accuracy"] > 0.5
    corpus.write_text(corpus.read_text()[:-1] + "!")
    load.cache_clear()
    done = call("train", "--config=configs/text_gpt.py", *SMALL, *options)
    assert_one_line(done, "files of data.data_dir was '1000 bytes, ")


@pytest.mark.slow
def test_what_main_does_with_text(call, corpus, tmp_path):  # noqa: F811
    """The verbs besides train, as the header of the config has them."""
    small = ("--config.model.depth=1", "--config.epochs=1.0", "--config.check.optimizers=('adam',)")
    config = ("--config=configs/text_gpt.py", *SMALL, *small, f"--config.data.data_dir={corpus}")
    sizes = ("--config.check.widths=(16,32)", "--config.check.depths=()", "--config.check.depth=1")
    few = ("--config.check.seeds=2", "--config.check.max_seeds=2", "--config.check.steps=(1,)")
    done = call("check", *config, *sizes, *few)
    assert done.returncode in (0, 3), done.stdout
    assert "loss" in done.stdout.split("axis")[1]
    done = call("grow", *config, "--width=256", "--depth=8")
    assert "--config.model.width=256 --config.model.depth=8" in done.stdout
    done = call("plan", *config)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("train: gpt, width 16, depth 1, float32, adamw, batch 4, 22 steps, by pmap\n")
    one = ("--config.sweep.depths=(1,)", "--config.sweep.widths=()", "--config.sweep.seeds=1")
    some = ("--config.sweep.log2_learning_rates.adamw=(-9.0,-5.0)", "--config.sweep.parameterizations=('depth_mup',)")
    sweep = ("sweep", *config, *one, *some, "--config.sweep.measure=('updates','kernels')")
    done = call(*sweep, "--dry_run")
    assert done.stdout.startswith("5 trials, 1 programs, "), done.stderr
    done = call(*sweep, f"--workdir={tmp_path / 'sweep'}")
    assert done.returncode == 0, done.stderr
    assert "5 trials in" in done.stdout
