"""One command for a GPU or TPU that is lent for minutes: does it compute what a CPU does, and how fast?

    python -m benchmarks.accelerator [--seconds=480] [--only=checks|speeds] [--out=accelerator.json]
    python -m benchmarks.accelerator --smoke     # tiny, on any machine: that it runs; no figure

It needs jax with the accelerator, flax, optax and NumPy, no data set and no network. PyTorch is timed too where it is
installed: channels last, autocast, fused AdamW, torch.compile. Ours is the training loop as main.py runs it, on random
images in the device's memory. MFU is the share of the chip's peak that the products and convolutions of our step take
(depthmup/train/flops.py). Parts for which the seconds do not suffice are left out and named. Every part is written to
the JSON as soon as it is done; the exit status is 1 if a check fails.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import jax
import numpy as np


class Missing(types.ModuleType):
    """In the place of a module that is not installed: any of its names is an empty class."""

    __path__: list[str] = []  # noqa: RUF012

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


try:  # flax imports rich when it is imported itself, for tables that nothing here prints
    import rich  # noqa: F401
except ImportError:
    for part in ("rich", "rich.console", "rich.table", "rich.text"):
        sys.modules[part] = Missing(part)

import depthmup as dm  # noqa: E402
from depthmup.backend import prepare_cpu  # noqa: E402
from depthmup.data import Batches  # noqa: E402
from depthmup.data.dataset import Dataset, Split  # noqa: E402
from depthmup.models import MODELS  # noqa: E402
from depthmup.train import BatchOverDevices, Task, TrialLoop, TrialsOverDevices, flops  # noqa: E402
from depthmup.train.chips import chip_of  # noqa: E402
from depthmup.train.devices import Layout  # noqa: E402
from depthmup.training_settings import Recipe  # noqa: E402

FAMILIES: dict[str, dict[str, Any]] = {
    "mlp": dict(width=32, depth=4),
    "residual_mlp": dict(width=32, depth=4, norm="layer"),
    "cnn": dict(width=8, depth=3),
    "residual_cnn": dict(width=8, depth=2, norm="batch", dropout=0.1),
    "simple_resnet": dict(width=32, depth=4, norm="batch"),
    "resnet": dict(width=4, depth=1),
    "vit": dict(width=32, depth=3, heads=2, patch=4),
}
RESNET = dict(depth=1, stem="imagenet", norm="batch")
TRAINED: dict[str, tuple[str, int, int, dict[str, Any]]] = {  # {name: (family, side, batch, sizes)}
    "ResNet-18": ("resnet", 224, 256, {**RESNET, "width": 64, "stages": (2, 2, 2, 2), "bottleneck": False}),
    "ResNet-50": ("resnet", 224, 256, {**RESNET, "width": 64, "stages": (3, 4, 6, 3), "bottleneck": True}),
    "ViT-S/16": ("vit", 224, 256, dict(width=384, depth=12, heads=6, patch=16)),
}
TINY: dict[str, tuple[str, int, int, dict[str, Any]]] = {
    "ResNet": ("resnet", 32, 4, {**RESNET, "width": 4, "stages": (1, 1, 1, 1), "bottleneck": False}),
    "ViT": ("vit", 16, 4, dict(width=16, depth=2, heads=2, patch=8)),
}
PATCHES: dict[str, Any] = dict(width=64, depth=3)  # the SimpleResNet of configs/patches16_simple_resnet.py
STEPS = 78  # of its training
Report = dict[str, Any]


def case(
    family: str, side: int, batch: int, examples: int, classes: int = 10, optimizer: str = "adamw", **attributes: Any
) -> tuple[Task, Batches, dm.Parameterization]:
    """A task on random images (side, side, 3), and a parameterization for it."""
    rng, shape = np.random.default_rng(0), (side, side, 3)
    images = rng.integers(0, 256, (examples, *shape), dtype=np.uint8)
    split = Split(images, rng.integers(0, classes, examples).astype(np.int32))
    few = Split(*(leaf[:256] for leaf in split))
    dataset = Dataset(split, few, few, np.array(127.0), np.array(60.0), shape, tuple(map(str, range(classes))))
    model = MODELS[family](outputs=classes, **attributes)
    task = Task(model, shape, optimizer, Recipe(schedule="constant"))
    p = dm.parameterization("depth_mup", base_width=model.width, base_depth=model.depth)
    return task, Batches(dataset, batch), p


def losses(loop: TrialLoop, hypers: list[Any], steps: int) -> np.ndarray:
    """The loss of every step, (trials, steps)."""
    state, hyper = loop.start(hypers)
    (stretch,) = loop.stretches(state, hyper, 0, [steps])
    return stretch.read()["loss"]


def off(values: Any, wanted: Any) -> float:
    """The largest difference, relative to the largest wanted number."""
    return float(np.abs(np.asarray(values) - np.asarray(wanted)).max() / np.abs(np.asarray(wanted)).max())


def check_family(family: str, steps: int) -> Report:
    """A few steps of Adam: as on a CPU in float32 with full products; bfloat16 near it."""
    device, cpu = jax.devices()[0], jax.devices("cpu")[0]

    def run(on: jax.Device, dtype: str) -> np.ndarray:
        task, batches, p = case(family, 8, 16, 256, optimizer="adam", dtype=dtype, **FAMILIES[family])
        with jax.default_matmul_precision("highest"), jax.default_device(on):
            return losses(TrialLoop(task, batches, BatchOverDevices([on])), [task.hyper(p, 1e-3)], steps)

    wanted = run(cpu, "float32")
    errors = {"float32": off(run(device, "float32"), wanted), "bfloat16": off(run(device, "bfloat16"), wanted)}
    return {**errors, "ok": errors["float32"] < 1e-3 and errors["bfloat16"] < 0.05}


def check_resume(steps: int) -> Report:
    """Half of a training, its state to the host and back, and the rest: the same bits."""
    task, batches, p = case("residual_mlp", 8, 16, 256, **FAMILIES["residual_mlp"])
    loop, hypers = TrialLoop(task, batches, BatchOverDevices(jax.devices()[:1])), [task.hyper(p, 1e-3)]

    def trained(begin: int, end: int, restored: Any = None) -> Any:
        state, hyper = loop.start(hypers, restored)
        (stretch,) = loop.stretches(state, hyper, begin, [end])
        return loop.placement.get(stretch.state)

    whole, parts = trained(0, 2 * steps), trained(steps, 2 * steps, trained(0, steps))
    same = jax.tree.map(np.array_equal, whole, parts)
    return {"ok": all(jax.tree.leaves(same))}


def check_sweep(steps: int) -> Report:
    """Trials under vmap, one of them diverging, against each alone."""
    task, batches, p = case("simple_resnet", 16, 16, 256, optimizer="sgd", **FAMILIES["simple_resnet"])
    rates = [0.01, 0.03, 1e30, 0.02]
    hypers = [task.hyper(p, rate, seed=seed) for seed, rate in enumerate(rates)]
    devices = jax.devices()[:1]
    with jax.default_matmul_precision("highest"):
        together = losses(TrialLoop(task, batches, TrialsOverDevices(4, devices, layout="vmap")), hypers, steps)
        alone = TrialLoop(task, batches, TrialsOverDevices(1, devices))
        each = np.concatenate([losses(alone, [hyper], steps) for hyper in hypers])
    healthy = [0, 1, 3]
    error = off(together[healthy], each[healthy])
    return {"off": error, "ok": error < 1e-3 and bool(np.isnan(together[2, -1]) and np.isnan(each[2, -1]))}


def problem(size: int) -> tuple[np.ndarray, np.ndarray]:
    return 0.7 * np.eye(size) + 0.3, np.random.default_rng(0).normal(size=size)


def check_theory(samples: int) -> Report:
    """Lazy kernels and exact linear DMFT as on a CPU; the sampled DMFT within its errors of the exact one."""
    Kx, y = problem(4)
    options: dict[str, Any] = dict(depth=2, steps=4, activation="linear", eta0=0.2, gamma0=1.0)

    def solved() -> tuple[np.ndarray, np.ndarray]:
        kernels = dm.theory.lazy_kernels(Kx, 8, "relu").ntk
        return np.asarray(kernels), np.asarray(dm.theory.linear_dmft(Kx, y, **options).predictions)

    on_device = solved()
    with jax.default_device(jax.devices("cpu")[0]):
        on_cpu = solved()
    sampled = dm.theory.dmft(Kx, y, samples=samples, replicates=4, **options)
    errors = np.abs(sampled.predictions - on_device[1]).max()
    difference = max(off(a, b) for a, b in zip(on_device, on_cpu, strict=True))
    return {"off": difference, "sampled off": float(errors), "ok": bool(difference < 1e-9 and errors < 0.2)}


def train_speed(name: str, of: dict[str, Any], steps: int) -> Report:
    family, side, batch, sizes = of[name]
    classes, report = 1000, {"batch": batch}
    task, batches, p = case(family, side, batch, 4 * batch, classes, dtype="bfloat16", **sizes)
    hyper, times = task.hyper(p, 1e-3), []
    loop = TrialLoop(task, batches, BatchOverDevices(jax.devices()[:1]))
    begin = time.perf_counter()
    state, hypers = loop.start([hyper])
    for stretch in loop.stretches(state, hypers, 0, [steps, 2 * steps]):
        stretch.read()
        times.append(time.perf_counter())
    seconds, operations = (times[1] - times[0]) / steps, flops.of_step(task, hyper, batch)
    report |= {"images/s": batch / seconds, "compiled in": times[0] - begin}
    other = torch_seconds(family, side, classes, batch, sizes, "bfloat16", steps)
    if other:
        report |= {"PyTorch images/s": batch / other, "PyTorch / ours": other / seconds}
    if chip := chip_of(jax.devices()[0].device_kind):
        report |= {"MFU": operations / seconds / chip.peak}
        report |= {"PyTorch MFU": operations / other / chip.peak} if other else {}
    return report


def torch_seconds(*of: Any) -> float | None:
    if importlib.util.find_spec("torch") is None:
        return None
    from benchmarks import torch_models

    try:
        return torch_models.seconds_a_step(*of)
    except Exception as error:  # our own numbers must still be kept
        print(f"PyTorch: {type(error).__name__}: {error}")
        return None


def sweep_speed(rates: int, seeds: int, steps: int) -> Report:
    """A whole sweep in one program on one device, all trainings at once ("vmap") and one after another ("map");
    PyTorch's trainings one after another, of which one is timed."""
    task, batches, p = case("simple_resnet", 16, 64, 20_000, **PATCHES)
    hypers = [
        task.hyper(p, rate, seed=s, steps=steps) for rate in np.geomspace(1e-4, 1e-1, rates) for s in range(seeds)
    ]
    report: Report = {"trials": len(hypers), "steps": steps}
    for layout in get_args(Layout):
        loop = TrialLoop(task, batches, TrialsOverDevices(len(hypers), jax.devices()[:1], layout=layout))
        begin = time.perf_counter()
        losses(loop, hypers, steps)
        first = time.perf_counter() - begin
        losses(loop, hypers, steps)
        report |= {f"{layout} seconds": time.perf_counter() - begin - first, f"{layout}, first call": first}
    other = torch_seconds("simple_resnet", 16, 10, 64, PATCHES, "float32", steps)
    if other:
        report |= {"PyTorch seconds": other * steps * len(hypers)}
    return report


def theory_speed(examples: int, samples: int) -> Report:
    """An NTK of a residual MLP, and a sampled DMFT; seconds of the second call."""
    task, _, p = case("residual_mlp", 8, 16, 256, width=256, depth=8)
    hyper = task.hyper(p, 0.1).arrays()
    params, x = task.init(hyper).params, np.random.default_rng(0).normal(size=(examples, 8, 8, 3)).astype(np.float32)
    ntk = jax.jit(
        lambda params, x: dm.empirical_ntk(lambda w, x: task.apply(w, {}, x, hyper.forward, None)[0], params, x)
    )
    Kx, y = problem(8)
    runs: dict[str, Callable[[], Any]] = {
        f"NTK of {examples} examples": lambda: jax.block_until_ready(ntk(params, x)),
        f"DMFT of {samples} samples": lambda: dm.theory.dmft(
            Kx, y, depth=4, steps=10, activation="tanh", eta0=0.1, gamma0=1.0, samples=samples
        ),
    }
    report = {}
    for name, run in runs.items():
        run()
        begin = time.perf_counter()
        run()
        report[name] = time.perf_counter() - begin
    return report


def checks(smoke: bool) -> Iterator[tuple[str, Callable[[], Report]]]:
    for family in ("residual_mlp", "vit") if smoke else FAMILIES:
        yield f"check {family}", lambda family=family: check_family(family, 2 if smoke else 10)  # type: ignore[misc]
    yield "check resume", lambda: check_resume(2 if smoke else 20)
    yield "check sweep", lambda: check_sweep(3 if smoke else 10)
    yield "check theory", lambda: check_theory(500 if smoke else 4000)


def speeds(smoke: bool) -> Iterator[tuple[str, Callable[[], Report]]]:
    """The most telling first."""
    if smoke:
        yield "sweep", lambda: sweep_speed(2, 1, 3)
    else:
        yield "sweep", lambda: sweep_speed(40, 3, STEPS)
    of = TINY if smoke else TRAINED
    for name in of:
        yield f"train {name}", lambda name=name: train_speed(name, of, 2 if smoke else 30)  # type: ignore[misc]
    yield "theory", lambda: theory_speed(8 if smoke else 256, 3000 if smoke else 16_000)


PARTS = {"checks": checks, "speeds": speeds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--seconds", type=float, default=480.0, help="no part begins later")
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--out", type=Path, default=Path("accelerator.json"))
    options = parser.parse_args()
    prepare_cpu(1)
    kinds = [PARTS[options.only]] if options.only else PARTS.values()
    begin, device = time.perf_counter(), jax.devices()[0]
    if device.platform == "cpu" and not options.smoke:
        sys.exit("no accelerator: JAX has only a CPU here; --smoke tries the script")
    report: Report = {"device": device.device_kind, "jax": jax.__version__, "smoke": options.smoke}
    print(f"{device.device_kind}, jax {jax.__version__}")
    for name, part in (part for kind in kinds for part in kind(options.smoke)):
        if time.perf_counter() - begin > options.seconds:
            report[name] = {"left out": f"{options.seconds:g} s were over"}
        else:
            try:
                report[name] = part()
            except Exception as error:  # what else there is must still be measured
                report[name] = {"ok": False, "error": f"{type(error).__name__}: {error}"}
        options.out.write_text(json.dumps(report, indent=1))
        cells = (
            f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}"
            for key, value in report[name].items()
        )
        print(f"{time.perf_counter() - begin:6.0f} s  {name:22}{', '.join(cells)}", flush=True)
    sys.exit(any(isinstance(value, dict) and value.get("ok") is False for value in report.values()))


if __name__ == "__main__":
    main()
