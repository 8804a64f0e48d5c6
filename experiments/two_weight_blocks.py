"""Residual branches of two weight matrices, W_2 phi(W_1 phi(h)): limits and networks (paper A, Appendix K.2).

    python -m experiments.two_weight_blocks        (docs/images/two_weight_blocks.png; three minutes on two cores)

The networks are written out below in the canonical form (docs/theory.md sections 0 and 1.2).

1. Predictions of ReLU networks of depth 3 over training, against the DMFT of branches with two matrices, and the DMFT
   of branches with one matrix.
2. Bias: distance between the mean network and the DMFT of two matrices, which falls as 1/N.
3. Change of h^L in one step of ReLU networks in which only the inner, or only the outer matrices are trained. The paper
   says that at infinite depth the inner matrices act as if they were static.
4. Depth, at infinite width: distance between F_2L and F_L, which falls as 1/L, for branches of one and two matrices.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from depthmup.backend import prepare_cpu
from depthmup.theory import Problem
from experiments.convergence import blocks, draw_bias, draw_curves, draw_depth, finish
from experiments.networks import KX, Y, inputs, mean_error, noisy_law
from experiments.results import interval, write

DEPTH, STEPS, ETA0 = 3, 8, 0.3  # gamma_0 = 1
DEPTH_STEPS = 6  # number of steps in panel 4
PHI: dict[str, Callable[[jax.Array], jax.Array]] = {"relu": jax.nn.relu, "tanh": jnp.tanh}
WIDTHS = {  # {width: number of networks}; tanh has more networks, since its bias is small and noise would hide it
    "relu": {32: 8192, 64: 8192, 128: 4096, 256: 4096},
    "tanh": {32: 24576, 48: 16384, 64: 12288, 96: 8192, 128: 4096, 256: 1024},
}
REPLICATES = {"relu": 3, "tanh": 10}  # replicates of the DMFT in each block
BRANCHES = {"one matrix": 1, "two matrices": 2}
TOGETHER = 2**19  # how many weights are trained side by side, over all networks: as many as fit into a cache
Weights = dict[str, jax.Array]


def problem(activation: str, matrices: int) -> Problem:
    """The problem of the first two panels, with this many matrices in each branch."""
    return Problem(KX, Y, depth=DEPTH, activation=activation, branch_weights=matrices, steps=STEPS, eta0=ETA0)


def initial(key: jax.Array, width: int, depth: int, inputs: int) -> Weights:
    """Initial weights, all N(0, 1). The blocks' matrices are stacked, (depth, width, width)."""
    shapes = {"in": (width, inputs), "inner": (depth, width, width), "outer": (depth, width, width), "out": (width,)}
    keys = jax.random.split(key, len(shapes))
    return {name: jax.random.normal(k, shape) for k, (name, shape) in zip(keys, shapes.items(), strict=True)}


def last_state(weights: Weights, x: jax.Array, activation: str) -> jax.Array:
    """h^L, (P, N), of inputs x, (P, D)."""
    phi, (depth, width, _) = PHI[activation], weights["inner"].shape

    def block(h: jax.Array, matrices: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        inner, outer = matrices
        return h + phi(phi(h) @ inner.T / width**0.5) @ outer.T / (width * depth) ** 0.5, None

    return jax.lax.scan(block, x @ weights["in"].T / x.shape[1] ** 0.5, (weights["inner"], weights["outer"]))[0]


def predict(weights: Weights, x: jax.Array, activation: str) -> jax.Array:
    return PHI[activation](last_state(weights, x, activation)) @ weights["out"] / len(weights["out"])


@functools.partial(jax.jit, static_argnames=("width", "activation", "chunk"))
def _train(keys: jax.Array, x: jax.Array, y: jax.Array, *, width: int, activation: str, chunk: int) -> jax.Array:
    def one(key: jax.Array) -> jax.Array:
        weights = initial(key, width, DEPTH, x.shape[1])
        start = predict(weights, x, activation)

        def loss(weights: Weights) -> tuple[jax.Array, jax.Array]:
            centred = predict(weights, x, activation) - start
            return jnp.mean((centred - y) ** 2) / 2, centred

        def step(weights: Weights, _: None) -> tuple[Weights, jax.Array]:
            gradient, centred = jax.grad(loss, has_aux=True)(weights)
            return jax.tree.map(lambda w, g: w - ETA0 * width * g, weights, gradient), centred

        return jax.lax.scan(step, weights, length=STEPS)[1]

    return jax.lax.map(one, keys, batch_size=chunk)


def networks(activation: str, width: int, seeds: int) -> np.ndarray:
    """Centred predictions without t = 0, (seeds, STEPS - 1, P)."""
    keys = jax.random.split(jax.random.key(2 * width + list(PHI).index(activation)), seeds)
    # A power of 2 divides the number of seeds: a smaller last chunk would be another program to compile.
    chunk = 2 ** max(0, int(math.log2(TOGETHER / (2 * DEPTH * width**2))))
    x, y = (jnp.asarray(of, jnp.float32) for of in (inputs(KX), Y))
    return np.asarray(_train(keys, x, y, width=width, activation=activation, chunk=chunk), float)[:, 1:]


@functools.partial(jax.jit, static_argnames=("width", "depth"))
def _changes(keys: jax.Array, *, width: int, depth: int) -> tuple[jax.Array, jax.Array]:
    def one(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        weights, x = initial(key, width, depth, 1), jnp.ones((1, 1))
        gradient = jax.grad(lambda weights: predict(weights, x, "relu")[0])(weights)

        def change(group: str) -> jax.Array:
            step = {name: width * g if name == group else jnp.zeros_like(g) for name, g in gradient.items()}
            return jax.jvp(lambda weights: last_state(weights, x, "relu")[0], (weights,), (step,))[1]

        inner, outer = change("inner"), change("outer")
        rms = jnp.sqrt(jnp.array([jnp.mean(inner**2), jnp.mean(outer**2)]))
        return rms, inner @ outer / width / rms.prod()

    return jax.lax.map(one, keys)


def changes(width: int, depth: int, seeds: int) -> tuple[np.ndarray, np.ndarray]:
    """Changes of h^L of ReLU networks in one step on one sample with x.x = y = 1, per unit of eta_0 as eta_0 -> 0.

    Returns the RMS change if only the inner and if only the outer matrices are trained, (seeds, 2), and the cosine
    between these two changes, (seeds,).
    """
    rms, cosine = _changes(jax.random.split(jax.random.key(depth), seeds), width=width, depth=depth)
    return np.asarray(rms, float), np.asarray(cosine, float)


def draw_other(axes: Axes, one: np.ndarray, two: np.ndarray) -> None:
    """Draw the solution for branches of one matrix, (T - 1, P), and print its distance from the solution of two."""
    print(f"    rms distance of the DMFT of branches of one matrix: {np.sqrt(((two - one) ** 2).mean()):.4f}")
    for mu in range(len(Y)):
        label = "DMFT, one matrix" if mu == 0 else None
        axes.plot(range(1, STEPS), one[:, mu], "--", lw=1, color=f"C{mu}", label=label)


def draw_changes(axes: Axes, found: Mapping[int, tuple[np.ndarray, np.ndarray]]) -> dict[str, Any]:
    depths = list(found)
    rms = np.stack([of for of, _ in found.values()])  # (depths, seeds, 2)
    ratio, cosine = rms[..., 0] / rms[..., 1], np.stack([of for _, of in found.values()])
    columns = {"inner": rms[..., 0], "outer": rms[..., 1], "inner / outer": ratio, "cosine": cosine}
    means = {name: mean_error(of.T) for name, of in columns.items()}
    for i, depth in enumerate(depths):
        print(f"  L = {depth:3}" + "".join(f"  {of[i]:.3f} ({error[i]:.3f})" for of, error in means.values()))
    numbers: dict[str, Any] = {"depths": depths, **means}
    for color, name in (("C0", "inner"), ("C1", "outer")):
        value, error = means[name]
        law = noisy_law(depths, value, error)
        print(f"    only the {name} matrices: slope in L {interval(law)}")
        axes.errorbar(depths, value, 2 * error, fmt="o", ms=4, capsize=2, color=color)
        axes.plot(depths, law(depths), color=color, lw=1, label=f"only {name} matrices trained: {interval(law)}")
        numbers[f"slope, {name}"] = law[:3]
    return numbers


def main(
    widths: Mapping[str, Mapping[int, int]] = WIDTHS,
    replicates: Mapping[str, int] = REPLICATES,
    depths: Sequence[int] = (4, 8, 16, 32, 64, 128),
    width: int = 192,
    seeds: int = 48,
    limit_depths: Sequence[int] = (2, 3, 4, 6, 8, 12, 16),
    samples: int = 16000,
) -> dict[str, Any]:
    """Draw the picture and return its numbers. depths, width, seeds: for panel 3. limit_depths: for panel 4."""
    figure = Figure(figsize=(12, 8), layout="constrained")
    first, second, third, fourth = figure.subplots(2, 2).ravel()
    limits, trained, deep = {}, {}, {}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for of, many in replicates.items():
            limits[of] = pool.submit(blocks, problem(of, BRANCHES["two matrices"]), samples, many)
            for n, count in widths[of].items():
                trained[of, n] = pool.submit(networks, of, n, count)
        other = pool.submit(blocks, problem("relu", BRANCHES["one matrix"]), samples, 1)
        for name, matrices in BRANCHES.items():
            for depth in limit_depths:
                at = dataclasses.replace(problem("relu", matrices), depth=depth, steps=DEPTH_STEPS)
                deep[name, depth] = pool.submit(blocks, at, samples, 1)
        moved = {depth: pool.submit(changes, width, depth, seeds) for depth in depths}
    numbers: dict[str, Any] = {"networks": widths}
    print(f"depth {DEPTH}, T = {STEPS}: rms of mean network - DMFT (s.e.; noise floor), nan: within 1 s.e.")
    for color, of in zip(("C0", "C1"), replicates, strict=False):
        limit, found = limits[of].result(), {n: trained[of, n].result() for n in widths[of]}
        print(f"    N = {list(found)}")
        numbers[of] = draw_bias(second, of, color, found, limit)
        if of == "relu":
            draw_other(first, other.result().mean(axis=0), limit.mean(axis=0))
            draw_curves(first, f"1. ReLU, L = {DEPTH}", found, limit)
    print(
        f"\none step of {seeds} ReLU networks, N = {width}: RMS change of h^L over eta_0 (s.e.) if only the inner and"
    )
    print("if only the outer matrices are trained, their ratio, and the cosine of the two changes")
    numbers["changes"] = draw_changes(third, {depth: of.result() for depth, of in moved.items()})
    print(f"\ninfinite width, ReLU, T = {DEPTH_STEPS}, rms over samples and steps; slopes claimed -1")
    for color, name in zip(("C2", "C0"), BRANCHES, strict=True):
        found = {depth: deep[name, depth].result() for depth in limit_depths}
        numbers[name] = draw_depth(fourth, name, color, found)
    finish(
        second, f"2. Bias, L = {DEPTH}: slope in N [95%]", "width N", "rms of mean network - DMFT", (32, 64, 128, 256)
    )
    finish(third, f"3. One step, ReLU, N = {width}: slope in L [95%]", "depth L", "RMS change of h^L / η₀", depths)
    third.set_ylim(0.1, 1)
    finish(fourth, "4. Infinite width, ReLU: slope in L [95%]", "depth L", "rms difference", (2, 3, 4, 6, 8))
    write(figure, numbers, "docs/images/two_weight_blocks.png")
    return numbers


if __name__ == "__main__":
    prepare_cpu(1)
    main()
