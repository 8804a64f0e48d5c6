"""The global norm of the gradient at initialization, which `config.clip` limits, against width and depth.

    python -m experiments.gradient_norm        # a minute

The residual MLP on the digits, cross-entropy, mean of eight seeds. Then a model of `dm.setup`, which stores its
factors: the norm of the gradient of what is stored, and that which `clip_by_global_norm` limits.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import depthmup as dm
from configs import default
from depthmup.backend import prepare_cpu
from depthmup.rules.parameterization import Name
from depthmup.settings import from_config
from depthmup.train import Hyper, Task
from depthmup.train.build import batches_of, examples, hyper_of, task_of
from depthmup.train.step import Batch
from experiments.check_pictures import Net

WIDTH, DEPTH, SEEDS, BATCH = 128, 4, 8, 64
AXES = {"width": (64, 128, 256, 512, 1024), "depth": (2, 4, 8, 16, 32, 64)}
NAMES: tuple[Name, ...] = ("sp", "mup", "depth_mup")


def norms(axis: str, values: tuple[int, ...], names: tuple[Name, ...] = NAMES) -> dict[str, list[float]]:
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


def stored_norms(shapes: Sequence[tuple[int, int]], base: tuple[int, int] = (64, 4)) -> list[tuple[float, float]]:
    """(norm of the gradient of stored weights, that which is clipped) at each (width, depth) under depth_mup."""
    x, labels = jax.random.normal(jax.random.key(1), (256, 64)), jnp.arange(256) % 10
    m = dm.setup("depth_mup", Net, x, width=base[0], depth=base[1], base=base, fan_in_init=False)
    result = []
    for width, depth in shapes:
        at = m.at(width, depth)

        def loss(params: Any, at: dm.Setup = at) -> jax.Array:
            return optax.softmax_cross_entropy_with_integer_labels(at.apply(params, x), labels).mean()

        params = at.init(jax.random.key(0))
        gradient = jax.jit(jax.grad(loss))(params)
        raw, limit = float(optax.tree.norm(gradient)), 1e-3
        tx = at.clip_by_global_norm(limit)
        clipped = float(optax.tree.norm(tx.update(gradient, tx.init(params))[0]))
        result.append((raw, raw * limit / clipped))
    return result


if __name__ == "__main__":
    prepare_cpu(1)
    for axis, values in AXES.items():
        print(f"| {axis} | {' | '.join(map(str, values))} |\n|{'---|' * (len(values) + 1)}")
        for name, row in norms(axis, values).items():
            print(f"| {name} | {' | '.join(f'{value:.3g}' for value in row)} |")
        print()
    shapes = [(64, 4), (64, 16), (64, 64), (256, 4), (1024, 4)]
    print("| width, depth | stored weights | clipped |\n|---|---|---|")
    for (width, depth), (raw, measured) in zip(shapes, stored_norms(shapes), strict=True):
        print(f"| {width}, {depth} | {raw:.3g} | {measured:.3g} |")
