"""The global norm of the gradient at initialization, which `config.clip` limits, against width and depth.

    python -m experiments.gradient_norm        # half a minute

The residual MLP on the digits, cross-entropy, mean of eight seeds.
"""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
from depthmup.train.assemble import problem_of

from configs import default
from depthmup.backend import prepare_cpu
from depthmup.settings import from_config

WIDTH, DEPTH, SEEDS, BATCH = 128, 4, 8, 64
AXES = {"width": (64, 128, 256, 512, 1024), "depth": (2, 4, 8, 16, 32, 64)}
NAMES = ("sp", "mup", "depth_mup")


def norms(axis: str, values: tuple[int, ...], names: tuple[str, ...] = NAMES) -> dict[str, list[float]]:
    """{parameterization: the norm at each value of `axis`}."""
    settings = from_config(default.get_config("residual_mlp"))
    problem = problem_of(settings)
    result: dict[str, list[float]] = {name: [] for name in names}
    batch = problem.examples(BATCH)
    for value in values:
        width, depth = (value, DEPTH) if axis == "width" else (WIDTH, value)
        model = dataclasses.replace(settings.model, width=width, depth=depth)
        trainer = problem.trainer(model, "sgd")

        @jax.jit
        def norm(hyper, trainer=trainer):
            return trainer.train_step(trainer.init(hyper), batch, hyper)[1]["grad_norm"]

        for name in names:
            chosen = dataclasses.replace(settings.parameterization, name=name)
            hypers = [problem.hyper(model, chosen, settings.optimizer, seed).arrays() for seed in range(SEEDS)]
            result[name].append(float(np.mean([norm(hyper) for hyper in hypers])))
    return result


if __name__ == "__main__":
    prepare_cpu(1)
    for axis, values in AXES.items():
        print(f"| {axis} | {' | '.join(map(str, values))} |\n|{'---|' * (len(values) + 1)}")
        for name, row in norms(axis, values).items():
            print(f"| {name} | {' | '.join(f'{value:.3g}' for value in row)} |")
        print()
