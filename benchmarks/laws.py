"""The cost of a calibration in training steps, for each family; and the time to report a sweep of 10,000 trials.

    python -m benchmarks.laws

A training step is a step of the family's compiled program with SGD at batch 64, on 32x32 images (for MLPs on the
digits). Times of steps and calibrations are medians of repeated calls after compilation.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas

from configs import default
from depthmup.backend import prepare_cpu
from depthmup.report import page
from depthmup.report.curves import judge
from depthmup.settings import column, from_config, put
from depthmup.sweep.plan import SCHEMA, identity, trials
from depthmup.sweep.store import Finished, Store
from depthmup.train.build import batches_of, examples, hyper_of, task_of
from depthmup.train.quantities import update_profile

REPEATS = 15
STEPS = 100  # number of points of a learning curve


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


def reporting() -> None:
    """Time the report of made-up rows, as many as a sweep of this size has."""
    config = default.get_config()
    config.sweep.update(seeds=10, depths=(2, 4, 8, 16, 32, 64))
    settings = put(from_config(config), {"model.width": 128, "model.depth": 2})
    plan, rng, rows = trials(settings), np.random.default_rng(0), []
    for trial in plan:
        x = np.log2(trial.learning_rate) + 4
        losses = {"loss": float(np.exp(0.05 * x * x + 0.02 * rng.normal()) / 10), "diverged": False}
        columns = {column(key): value for key, value in trial.leaves.items()}
        rows.append({"key": trial.key, "schema": SCHEMA, **columns, "steps": STEPS, **losses})
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder), identity(settings))
        step = np.arange(1, STEPS + 1, dtype=np.int32)
        values = rng.uniform(0.1, 1, (len(rows), STEPS)).astype(np.float32)
        store.add(
            [
                Finished(row, {"step": step, "loss": value, "grad_norm": value})
                for row, value in zip(rows, values, strict=True)
            ]
        )
        store.close()
        start = time.perf_counter()
        table = pandas.DataFrame(rows)
        curves = judge(table, settings)
        judged = time.perf_counter()
        path = page.write(curves, table, settings, Path(folder), "")
        written = time.perf_counter()
        print(f"{len(rows):,} trials, {len(curves)} curves: verdicts and laws {judged - start:.1f} s, "
              f"pictures and page {written - judged:.1f} s, {path.stat().st_size / 1e6:.2f} MB")  # fmt: skip


if __name__ == "__main__":
    prepare_cpu(1)
    calibration()
    reporting()
