"""The speed of input: CIFAR-shaped data in memory, and JPEGs of ImageNet's size decoded by worker processes.

    python benchmarks/input_pipeline.py

In memory: 45,000 images of 32x32x3 in batches of 64, with the depthwise-transfer paper's augmentation for CIFAR inside
the compiled step. Measured are the augmentation alone, and the training of a SimpleResNet (width 128, depth 6) with and
without it. On disk: 600 JPEGs of 500x375 (about 100 kB each, as in ImageNet; cropped from the photographs of `patches`)
with random crops to 224, in batches of 32. Measured are the input alone for several numbers of workers, and the
training of a ResNet-18 of width 16, with the time that the loop waits for a batch. It takes some minutes.
"""

from __future__ import annotations

import io
import os
import time
from typing import Any

import jax
import numpy as np
import psutil
from PIL import Image

from configs import papers
from depthmup.backend import prepare_cpu
from depthmup.data import Augment, Batches, Dataset, Records, Split
from depthmup.data.patches import photographs
from depthmup.models import MODELS
from depthmup.settings import from_config
from depthmup.train import Hyper, Task, TrialLoop, TrialsOverDevices
from depthmup.train.loop import Reader, stretch_ends
from depthmup.training_settings import Recipe

CORES = os.cpu_count() or 1
JPEGS, SHAPE = 600, (375, 500)
CHANNELS = (np.full(3, 127.5), np.full(3, 60.0))


def cifar_shaped() -> Dataset:
    rng = np.random.default_rng(0)
    train, rest = (
        Split(rng.integers(0, 256, (n, 32, 32, 3), dtype=np.uint8), rng.integers(0, 10, n, dtype=np.int32))
        for n in (45_000, 500)
    )
    return Dataset(train, rest, rest, *CHANNELS, (32, 32, 3), tuple("0123456789"))


def jpegs() -> list[dict[str, Any]]:
    """Records as TFDS returns them: random parts of the photographs at ImageNet's usual size, as JPEGs."""
    rng, records = np.random.default_rng(0), []
    photos = [Image.fromarray(photo) for photo in photographs()]
    for i in range(JPEGS):
        photo = photos[i % len(photos)]
        side = rng.uniform(0.6, 1.0)
        width, height = side * photo.width, side * photo.height
        left, top = rng.uniform(0, photo.width - width), rng.uniform(0, photo.height - height)
        file = io.BytesIO()
        part = photo.resize(SHAPE[::-1], box=(left, top, left + width, top + height))
        noise = rng.normal(0, 6, (*SHAPE, 3))  # makes the enlarged part as sharp as a photograph of this size
        Image.fromarray(np.clip(np.asarray(part) + noise, 0, 255).astype(np.uint8)).save(file, "JPEG", quality=92)
        records.append({"image": file.getvalue(), "label": i % 10})
    return records


def imagenet_shaped(size: int = 224) -> Dataset:
    records = Records(jpegs(), np.arange(JPEGS, dtype=np.int32), 10, size, "made JPEGs")
    few = records._replace(order=records.order[:32])
    return Dataset(records, few, few, *CHANNELS, (size, size, 3), tuple("0123456789"))


def loop_of(config: Any, batches: Batches) -> tuple[TrialLoop, Hyper]:
    """A loop of one trial, and its hyperparameters."""
    settings, dataset = from_config(config), batches.dataset
    how = settings.model
    model = MODELS[how.name](width=how.width, depth=how.depth, outputs=dataset.classes, **how.options)
    task = Task(model, dataset.shape, settings.optimizer.name, Recipe(schedule="constant"))
    hyper = task.hyper(settings.parameterization.build(), settings.optimizer.learning_rate)
    return TrialLoop(task, batches, TrialsOverDevices(1)), hyper


def seconds_per_step(loop: TrialLoop, hyper: Hyper, steps: int) -> tuple[float, float]:
    """(Seconds of a training step, once compiled; seconds of it that the loop waits for input.)"""
    times, waited = [], []

    def mark(step: int, metrics: Any) -> None:
        times.append(time.perf_counter())
        waited.append(loop.waited)

    reader = Reader(mark)
    for stretch in loop.stretches(*loop.start([hyper]), 0, stretch_ends(steps + 4, 2)):
        reader.follow(stretch)
    reader.catch_up()
    return (times[-1] - times[1]) / steps, (waited[-1] - waited[1]) / steps


def in_memory() -> None:
    config = papers.paper_a("simple_resnet", "digits", {}, 1.0)
    config.model.width, config.model.depth = 128, 6
    dataset, augment = cifar_shaped(), Augment(**{**config.data.augment.to_dict(), **papers.CIFAR})
    batches = Batches(dataset, 64, augment=augment)
    raw, _ = next(batches.train(0, 1))
    prepare = jax.jit(batches.prepare)
    prepare(raw, 0).block_until_ready()
    begin = time.perf_counter()
    for step in range(100):
        prepare(raw, step).block_until_ready()
    alone = (time.perf_counter() - begin) / 100
    print(f"in memory, 32x32x3, batch 64: augmentation alone {1e3 * alone:.1f} ms a batch, {64 / alone:,.0f} images/s")
    with_it, without = (seconds_per_step(*loop_of(config, b), 20)[0] for b in (batches, Batches(dataset, 64)))
    print(f"  SimpleResNet step: {1e3 * without:.0f} ms without, {1e3 * with_it:.0f} ms with augmentation")
    pixels = sum(split.inputs.nbytes for split in dataset[:3] if isinstance(split, Split))
    print(f"  memory: {pixels / 1e6:.0f} MB of pixels on the device")


def on_disk() -> None:
    dataset = imagenet_shaped()
    size = np.mean([len(record["image"]) for record in dataset.train.source])  # type: ignore[union-attr]
    print(f"on disk: {JPEGS} JPEGs of {SHAPE[1]}x{SHAPE[0]}, {size / 1e3:.0f} kB each, cropped to 224x224, batch 32")
    config = papers.paper_a("resnet", "imagenet2012", papers.IMAGENET, 1.0)
    augment = Augment(**config.data.augment.to_dict())
    rates = {}

    for workers in sorted({0, 1, CORES}):
        batches = Batches(dataset, 32, augment=augment, workers=workers)
        feed = batches.train(0, 45)
        for _ in range(5):
            next(feed)
        sizes = [f"{p.memory_info().rss / 1e6:.0f} MB" for p in psutil.Process().children()[-workers:] if workers]
        begin = time.perf_counter()
        count = sum(len(labels) for _, labels in feed)
        rates[workers] = count / (time.perf_counter() - begin)
        name = f"{workers} worker process(es) of {', '.join(sizes)}" if workers else "2 threads"
        print(f"  input alone, {name}: {rates[workers]:,.0f} images/s")
    print(f"  memory of this process: {psutil.Process().memory_info().rss / 1e6:.0f} MB")
    config.model.update(width=16, depth=2, stages=(1, 1, 1, 1), stem="imagenet")
    step, waited = seconds_per_step(*loop_of(config, Batches(dataset, 32, augment=augment, workers=1)), 24)
    print(f"  ResNet-18 of width 16, 1 worker: {1e3 * step:.0f} ms a step, {32 / step:.0f} images/s; ", end="")
    print(f"waiting for input {100 * waited / step:.1f}% of the time")
    print(f"  an accelerator that trains R images/s needs R / {rates[0] / CORES:.0f} cores to decode in threads")


def main() -> None:
    prepare_cpu(CORES)
    print(f"{CORES} CPU cores")
    in_memory()
    on_disk()


if __name__ == "__main__":
    main()
