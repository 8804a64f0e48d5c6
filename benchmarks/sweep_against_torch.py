"""A learning rate sweep, side by side with PyTorch and the `mup` package.

    python benchmarks/sweep_against_torch.py        # needs pip install -e '.[bench]'

It trains the residual MLP of docs/theory.md (width 128, depth 8, no biases) for 100 SGD steps of batch 64 on the
digits, at 16 learning rates half an octave apart, with one seed; each run ends with the loss over the whole training
split.

Ours runs all learning rates in one compiled program, as `main.py sweep` does. PyTorch runs the same network with
`mup.MuReadout`, `mup.set_base_shapes` and `mup.MuSGD`: first one learning rate after another, on the fastest of 1, 2
and all threads; then in one process per core, of 1 thread each, which share the learning rates.

It prints seconds, PyTorch's seconds over ours, GFLOP/s and the final losses at the best learning rates. The times
include building models, but no imports, no data and no start of processes. It takes about a minute.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import depthmup as dm
from depthmup.backend import prepare_cpu
from depthmup.data import Batches, Split, load
from depthmup.models import ResidualMLP
from depthmup.train import Task, TrialLoop, TrialsOverDevices
from depthmup.training_settings import Recipe

WIDTH, DEPTH, BASE_WIDTH, BASE_DEPTH = 128, 8, 32, 2
STEPS, BATCH, SEED, DATA_SEED = 100, 64, 0, 0
RATES = [float(lr) for lr in np.exp2(np.arange(-13, 3) / 2)]
CORES = os.cpu_count() or 1


def timed(function: Callable[[], Any]) -> tuple[float, Any]:  # (seconds, result)
    start = time.perf_counter()
    result = function()
    return time.perf_counter() - start, result


def depthmup_sweep(batches: Batches) -> tuple[float, float, list[float]]:
    """(seconds of the first sweep with all that it builds and compiles, of the best of 3 more, final losses)."""
    p = dm.parameterization("depth_mup", base_width=BASE_WIDTH, base_depth=BASE_DEPTH)
    start = time.perf_counter()
    model = ResidualMLP(WIDTH, DEPTH, batches.dataset.classes)
    task = Task(model, batches.dataset.shape, "sgd", Recipe(schedule="constant"))
    loop = TrialLoop(task, batches, TrialsOverDevices(len(RATES)))
    hypers = [task.hyper(p, rate, seed=SEED, steps=STEPS) for rate in RATES]
    losses = loop.run(hypers, STEPS)["loss"].tolist()
    cold = time.perf_counter() - start
    return cold, min(timed(lambda: loop.run(hypers, STEPS))[0] for _ in range(3)), losses


def peak() -> float:
    """GFLOP/s of products of 3000 x 3000 matrices on all devices at once, the best of 6 measurements."""
    count = jax.local_device_count()
    matrices, product = jax.numpy.ones((count, 3000, 3000)), jax.pmap(lambda m: m @ m)
    return count * 2 * 3000**3 / min(timed(lambda: product(matrices).block_until_ready())[0] for _ in range(6)) / 1e9


def torch_trainer(batches: Batches) -> Callable[[float], float]:
    """A function: learning rate -> final loss of one run in PyTorch."""
    import mup
    import torch

    dataset = batches.dataset
    features = math.prod(dataset.shape)

    class ResidualMLP(torch.nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.read_in = torch.nn.Linear(features, width, bias=False)
            self.blocks = torch.nn.ModuleList(torch.nn.Linear(width, width, bias=False) for _ in range(DEPTH))
            self.readout = mup.MuReadout(width, dataset.classes, bias=False)
            for weight in self.parameters():
                torch.nn.init.normal_(weight, std=weight.shape[1] ** -0.5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.read_in(x)
            for block in self.blocks:
                h = h + (DEPTH / BASE_DEPTH) ** -0.5 * block(torch.relu(h))
            return self.readout(torch.relu(h))

    base_shapes = mup.make_base_shapes(ResidualMLP(BASE_WIDTH), ResidualMLP(2 * BASE_WIDTH))
    assert isinstance(dataset.train, Split)
    inputs = torch.from_numpy(np.array(batches.prepare(jnp.asarray(dataset.train.inputs)))).flatten(1)
    labels, indices = torch.from_numpy(dataset.train.labels).long(), torch.from_numpy(batches.indices(0, STEPS)).long()

    def train(learning_rate: float) -> float:
        torch.manual_seed(SEED)
        model = mup.set_base_shapes(ResidualMLP(WIDTH), base_shapes)
        optimizer = mup.MuSGD(model.parameters(), lr=learning_rate)
        for index in indices:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(inputs[index]), labels[index]).backward()
            optimizer.step()
        with torch.no_grad():
            return torch.nn.functional.cross_entropy(model(inputs), labels).item()

    return train


def torch_worker(rates: list[float], barrier: Any) -> None:
    """The work of one process: a warm-up, then 2 passes over its learning rates, each between two barriers."""
    import torch

    torch.set_num_threads(1)
    train = torch_trainer(Batches(load("digits"), BATCH, DATA_SEED))
    train(rates[0])
    for _ in range(2):
        barrier.wait()
        for lr in rates:
            train(lr)
        barrier.wait()


def torch_processes(count: int) -> float:
    """Seconds from when all processes are ready until the last one is done, the best of 2 passes."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(count + 1, timeout=600)
    for i in range(count):
        context.Process(target=torch_worker, args=(RATES[i::count], barrier), daemon=True).start()
    return min([timed(barrier.wait)[0] for _ in range(4)][1::2])  # The waits alternate: start, end, start, end.


def main() -> None:
    try:
        import mup  # noqa: F401
        import torch
    except ImportError as error:
        install = "pip install -e '.[bench]'; without torchvision: pip install torch pyyaml; pip install --no-deps mup"
        sys.exit(f"no {error.name}: {install}")
    prepare_cpu(CORES)  # The sweep splits its trials over the devices.
    batches, runs, count = Batches(load("digits"), BATCH, DATA_SEED), len(RATES), min(CORES, len(RATES))
    dataset = batches.dataset
    print(f"{runs} learning rates, width {WIDTH}, depth {DEPTH}, batch {BATCH}, {STEPS} SGD steps, {CORES} CPU cores")
    cold, steady, losses = depthmup_sweep(batches)
    train, passes = torch_trainer(batches), []
    for n in sorted({1, min(2, CORES), CORES}):
        torch.set_num_threads(n)
        passes += [(*timed(lambda: [train(lr) for lr in RATES]), n) for _ in range(2)]
    one_by_one, torch_losses, threads = min(passes)
    rows = {"ours, run alone": steady, "ours, building and compiling": cold - steady, "ours, total": cold}
    rows |= {f"PyTorch, {threads} thread(s)": one_by_one, f"PyTorch, {count} processes": torch_processes(count)}
    print(f"\n{'':30}{'seconds':>9}{'per run':>9}{'/ ours, run':>13}{'/ ours, total':>15}")
    for name, seconds in rows.items():
        ratios = f"{seconds / steady:13.2f}{seconds / cold:15.2f}" if name.startswith("PyTorch") else ""
        print(f"{name:30}{seconds:9.2f}{seconds / runs:9.3f}{ratios}")
    weights = WIDTH * (WIDTH * DEPTH + math.prod(dataset.shape) + dataset.classes)
    examples = 3 * STEPS * BATCH + sum(split.examples for split in dataset[:3])  # backward: 2 forward passes
    print(f"\nours: {2 * weights * examples * runs / steady / 1e9:.0f} GFLOP/s; large matrix products: {peak():.0f}")
    print("\nfinal loss at the best learning rate (other initial weights)")
    for name, values in (("ours", losses), ("PyTorch", torch_losses)):
        i = int(np.nanargmin(values))
        print(f"  {name:9}{values[i]:.4f} at 2^{np.log2(RATES[i]):.1f}")


if __name__ == "__main__":
    main()
