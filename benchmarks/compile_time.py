"""Compile time of the training program, with the blocks scanned and unrolled.

    python benchmarks/compile_time.py

It prints the seconds to trace and compile the initialization, 10 steps and the evaluation of 2 trials of the residual
MLP (width 64) on the digits, as the time of a first run minus the time of a second run. Each number comes from a
process of its own, warmed up at another shape, without a compilation cache on disk. It takes a minute or two.
"""

from __future__ import annotations

import multiprocessing
import time

import jax

import depthmup as dm
from depthmup.backend import prepare_cpu
from depthmup.data import Batches, load
from depthmup.models import ResidualMLP
from depthmup.train import Task, TrialLoop, TrialsOverDevices
from depthmup.training_settings import Recipe

WIDTH, TRIALS, STEPS, BATCH = 64, 2, 10, 64
SHAPES = ((True, 8), (True, 256), (False, 8), (False, 64))  # (scan, depth)
LEARNING_RATES = {"sgd": 2.0**-4, "adam": 2.0**-10}


def first_and_second_run(width: int, depth: int, scan: bool, optimizer: str) -> tuple[float, float]:
    """Seconds of each."""
    batches = Batches(load("digits"), BATCH)
    model = ResidualMLP(width, depth, batches.dataset.classes, scan=scan)
    task = Task(model, batches.dataset.shape, optimizer, Recipe(schedule="constant"))
    p = dm.parameterization("depth_mup", base_width=32, base_depth=2)
    hypers = [task.hyper(p, LEARNING_RATES[optimizer], seed=seed, steps=STEPS) for seed in range(TRIALS)]
    loop = TrialLoop(task, batches, TrialsOverDevices(TRIALS))
    seconds = []
    for _ in range(2):
        start = time.perf_counter()
        loop.run(hypers, STEPS)
        seconds.append(time.perf_counter() - start)
    return seconds[0], seconds[1]


def compile_seconds(depth: int, scan: bool, optimizer: str) -> float:
    """Seconds to trace and compile. Call it in a new process."""
    prepare_cpu()  # as main.py does
    jax.config.update("jax_enable_compilation_cache", False)
    first_and_second_run(WIDTH // 4, 3, scan, optimizer)
    first, second = first_and_second_run(WIDTH, depth, scan, optimizer)
    return first - second


def main() -> None:
    print(f"seconds to compile {STEPS} steps of {TRIALS} trials, width {WIDTH}")
    print(f"{'blocks':10}{'depth':>6}" + "".join(f"{optimizer:>8}" for optimizer in LEARNING_RATES))
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for scan, depth in SHAPES:
            row = [pool.apply(compile_seconds, (depth, scan, optimizer)) for optimizer in LEARNING_RATES]
            print(f"{'scanned' if scan else 'unrolled':10}{depth:6}" + "".join(f"{s:8.2f}" for s in row), flush=True)


if __name__ == "__main__":
    main()
