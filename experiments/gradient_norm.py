"""The global norm of the gradient at initialization, which `config.clip` limits, against width and depth.

    python -m experiments.gradient_norm        # half a minute

The residual MLP on the digits, cross-entropy, mean of eight seeds.
"""

from __future__ import annotations

import dataclasses
import functools

import jax
import numpy as np

from configs import default
from depthmup.backend import prepare_cpu
from depthmup.settings import from_config
from depthmup.train import Hyper, Task
from depthmup.train.build import batches_of, examples, hyper_of, task_of
from depthmup.train.trainable import Batch

WIDTH, DEPTH, SEEDS, BATCH = 128, 4, 8, 64
AXES = {"width": (64, 128, 256, 512, 1024), "depth": (2, 4, 8, 16, 32, 64)}
NAMES = ("sp", "mup", "depth_mup")


def norms(axis: str, values: tuple[int, ...], names: tuple[str, ...] = NAMES) -> dict[str, list[float]]:
    """{parameterization: the norm at each value of `axis`}."""
    settings = from_config(default.get_config("residual_mlp"))
    batch = examples(batches_of(settings), BATCH)
    result: dict[str, list[float]] = {name: [] for name in names}
    for value in values:
        width, depth = (value, DEPTH) if axis == "width" else (WIDTH, value)
        model = dataclasses.replace(settings.model, width=width, depth=depth)
        for name in names:
            chosen = dataclasses.replace(settings.parameterization, name=name)
            changed = dataclasses.replace(settings, model=model, parameterization=chosen)
            task, hyper = task_of(changed), hyper_of(changed)
            norms = [norm(task, batch, hyper._replace(seed=seed).arrays()) for seed in range(SEEDS)]
            result[name].append(float(np.mean(norms)))
    return result


@functools.partial(jax.jit, static_argnums=0)
def norm(task: Task, batch: Batch, hyper: Hyper) -> jax.Array:
    """The gradient's global norm at the start."""
    return task.step(task.init(hyper), batch, hyper)[1]["grad_norm"]


if __name__ == "__main__":
    prepare_cpu(1)
    for axis, values in AXES.items():
        print(f"| {axis} | {' | '.join(map(str, values))} |\n|{'---|' * (len(values) + 1)}")
        for name, row in norms(axis, values).items():
            print(f"| {name} | {' | '.join(f'{value:.3g}' for value in row)} |")
        print()
