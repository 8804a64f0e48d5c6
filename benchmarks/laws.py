"""The cost of a calibration in training steps, for each family.

    python -m benchmarks.laws

A training step is a step of the family's compiled program with SGD at batch 64, on 32x32 images (for MLPs on the
digits). Times of steps and calibrations are medians of repeated calls after compilation.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from configs import default
from depthmup.backend import prepare_cpu
from depthmup.settings import from_config
from depthmup.train.build import batches_of, examples, hyper_of, task_of
from depthmup.train.quantities import update_profile

REPEATS = 15


def seconds(function: Callable[..., Any], *arguments: Any) -> tuple[float, float]:
    """(seconds of the first call, median seconds of the next calls)."""
    times = []
    for _ in range(REPEATS + 1):
        start = time.perf_counter()
        jax.block_until_ready(function(*arguments))
        times.append(time.perf_counter() - start)
    return times[0], float(np.median(times[1:]))


def calibration() -> None:
    print(f"{'family':16}{'step, ms':>10}{'gradient + jvp, ms':>20}{'in steps':>10}{'compiling, s':>14}")
    for family in default.FAMILIES:
        config = default.get_config(family)
        config.optimizer.name = "sgd"
        if "mlp" not in family:
            config.data.name = "patches"
        settings = from_config(config)
        task, hyper = task_of(settings), hyper_of(settings).arrays()
        state, batch = jax.jit(task.init)(hyper), examples(batches_of(settings), 64)
        _, step = seconds(jax.jit(task.step), state, batch, hyper)
        compiling, update = seconds(jax.jit(update_profile(task)), state, batch, hyper)
        print(f"{family:16}{1e3 * step:10.2f}{1e3 * update:20.2f}{update / step:10.2f}{compiling - update:14.1f}")


if __name__ == "__main__":
    prepare_cpu(1)
    calibration()
