"""A learning rate sweep of a small convolutional network, side by side with PyTorch.

    python -m benchmarks.image_sweep_against_torch        # needs pip install -e '.[bench]'

It trains the SimpleResNet of configs/patches16_simple_resnet.py (depth 3, 78 SGD steps of batch 64, under depth_mup) at
16 learning rates half an octave apart, with one seed, and evaluates all three splits at the end.

Ours runs as in `main.py sweep`, with the trials split over one device per core. PyTorch runs the same trainings from
the same weights on the same batches, one after another, on all threads and on one, with channels last. The losses on
the training split must agree. It prints seconds, and PyTorch's seconds over ours. It takes about two minutes.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.sweep_against_torch import timed
from configs import patches16_simple_resnet
from depthmup.backend import prepare_cpu
from depthmup.data import Batches
from depthmup.data.dataset import Split
from depthmup.settings import from_config
from depthmup.trials.config_study import ConfigStudy
from depthmup.trials.group import Runner
from depthmup.trials.plan import Group, grid_trials
from depthmup.trials.study import Trial

CORES = os.cpu_count() or 1


def plan() -> Group:
    """All trials, in one group."""
    config = patches16_simple_resnet.get_config()
    config.sweep.update(parameterizations=("depth_mup",), depths=(3,), seeds=1, per_octave=2)
    config.sweep.log2_learning_rates.sgd = (-8.5, -1.0)
    study = ConfigStudy(from_config(config))
    every = tuple(grid_trials(study))
    return Group(every, len(every), study)


def depthmup_sweep(group: Group) -> tuple[float, float, list[float]]:
    """(seconds of the first sweep, which also builds and compiles; smallest seconds of 3 more sweeps; final losses)."""
    runner = Runner()
    cold, finished = timed(lambda: runner.train(group))
    again = min(timed(lambda: runner.train(group))[0] for _ in range(3))
    return cold, again, [trial.row["loss"] for trial in finished]


def torch_trainer(group: Group) -> Callable[[Trial], float]:
    """A function: trial -> final loss of its training in PyTorch."""
    import torch
    from torch.nn import functional

    depth, batches, steps = group.point.depth, group.point.feed, group.point.steps
    assert isinstance(batches, Batches)
    pools = [round(stage * depth / 4) for stage in (1, 2, 3)]
    assert isinstance(batches.dataset.train, Split)

    def on_torch(split: Any) -> tuple[Any, Any]:
        images = np.array(batches.prepare(jnp.asarray(split.inputs))).transpose(0, 3, 1, 2)
        images = torch.from_numpy(images).contiguous(memory_format=torch.channels_last)
        return images, torch.tensor(split.labels).long()

    splits = [on_torch(split) for split in batches.dataset[:3]]
    indices = torch.from_numpy(batches.indices(0, steps)).long()
    init = jax.jit(group.point.task.init)
    weights = jax.device_get(init(group.trials[0].hyper.arrays()).params)
    unrolled = _unrolled(weights)

    def logits(p: dict[str, Any], images: Any, branch: float, output: float) -> Any:
        h = functional.conv2d(images, p["read_in/kernel"], padding=1)
        for i in range(depth):
            if i in pools:
                for stage in [s + 1 for s, pool in enumerate(pools) if pool == i]:
                    h = functional.conv2d(functional.avg_pool2d(h, 2), p[f"double_{stage}/kernel"], padding=1)
            h = torch.add(
                h, functional.conv2d(functional.relu(h), p[f"block_{i}/conv/kernel"], padding=1), alpha=branch
            )
        flat = functional.relu(h).permute(0, 2, 3, 1).flatten(1)
        return output * functional.linear(flat, p["readout/kernel"])

    def train(trial: Trial) -> float:
        hyper = trial.hyper
        factors = _unrolled(jax.tree.map(lambda w, f: np.broadcast_to(f, w.shape), weights, hyper.factors.lr))
        p = {}
        for name, array in unrolled.items():
            axes = (3, 2, 0, 1) if array.ndim == 4 else (1, 0)
            p[name] = torch.tensor(array.transpose(axes))
            if array.ndim == 4:
                p[name] = p[name].contiguous(memory_format=torch.channels_last)
            p[name].requires_grad_()
        optimizer = torch.optim.SGD([{"params": [p[n]], "factor": factors[n].flat[0].item()} for n in p], lr=0.0)
        branch, output = float(hyper.forward.branch), float(hyper.forward.output)
        images, labels = splits[0]
        for step, index in enumerate(indices):
            for part in optimizer.param_groups:
                part["lr"] = trial.learning_rate * part["factor"] * (1 - step / len(indices))
            optimizer.zero_grad()
            functional.cross_entropy(logits(p, images[index], branch, output), labels[index]).backward()
            optimizer.step()
        with torch.inference_mode():
            losses = [
                sum(
                    functional.cross_entropy(logits(p, x, branch, output), y, reduction="sum").item()
                    for x, y in zip(images.split(256), labels.split(256), strict=True)
                )
                / len(labels)
                for images, labels in splits
            ]
        return losses[0]

    return train


def _unrolled(tree: Any) -> dict[str, Any]:
    """{path: leaf} of a scanned model's tree after unrolling, with paths like "block_0/conv/kernel"."""
    leaves: dict[str, Any] = {}
    block = 0
    paths = jax.tree.leaves_with_path(tree)
    for path, leaf in sorted(paths, key=lambda item: "/".join(key.key for key in item[0])):
        first, *rest = (key.key for key in path)
        if not first.startswith("blocks"):
            leaves["/".join([first, *rest])] = np.asarray(leaf)
            continue
        for one in np.asarray(leaf):
            leaves["/".join([f"block_{block}", *rest])] = one
            block += 1
    return leaves


def main() -> None:
    try:
        import torch
    except ImportError:
        sys.exit("no torch: pip install -e '.[bench]'")
    prepare_cpu()
    jax.config.update("jax_enable_compilation_cache", False)
    group = plan()
    every, steps = group.trials, group.point.steps
    print(
        f"{len(every)} learning rates, SimpleResNet of width 64 and depth 3, 16x16 pixels, {steps} steps, {CORES} cores"
    )
    cold, steady, losses = depthmup_sweep(group)
    train, rows = torch_trainer(group), {}
    for threads in sorted({1, CORES}):
        torch.set_num_threads(threads)
        train(every[0])  # a warm-up
        start = time.perf_counter()
        torch_losses = [train(trial) for trial in every]
        rows[f"PyTorch, {threads} thread(s)"] = time.perf_counter() - start
    print(f"\n{'':30}{'seconds':>9}{'/ ours, run':>13}{'/ ours, total':>15}")
    for name, seconds in {"ours, run alone": steady, "ours, total": cold, **rows}.items():
        ratios = f"{seconds / steady:13.2f}{seconds / cold:15.2f}" if name.startswith("PyTorch") else ""
        print(f"{name:30}{seconds:9.2f}{ratios}")
    trained = [(a, b) for a, b in zip(losses, torch_losses, strict=True) if np.isfinite(a) and b < 2]
    print(f"\nlargest relative difference of the final losses: {max(abs(a - b) / b for a, b in trained):.1e}")


if __name__ == "__main__":
    main()
