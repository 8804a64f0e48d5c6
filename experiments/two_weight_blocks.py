"""Residual branches of two weight matrices, W_2 phi(W_1 phi(h)): limits and networks (paper A, Appendix K.2).

    python -m experiments.theory_checks two_weight_blocks        (seven minutes on one core)

The networks are written out below in the canonical form (docs/theory.md sections 0 and 1.2).

1. The mean of networks of depth 3 approaches the DMFT of branches with two matrices as 1/N; the DMFT of branches with
   one matrix is elsewhere.
2. The paper says that at infinite depth the inner matrices act as if they were static. One step of ReLU networks in
   which only the inner, or only the outer matrices are trained: the updates of the inner ones move their own
   pre-activations as L^-1/2, but change h^L as much as those of the outer ones.
3. At infinite width the distance between F_2L and F_L should fall as 1/L, for branches of one and two matrices. For two
   it is too noisy to tell: -.74 [-1.27, -.21].
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from depthmup.activations import ActivationName
from depthmup.theory import Problem
from experiments.convergence import bias, blocks, of_doubling, slope
from experiments.networks import KX, Y, inputs
from experiments.output import Row, about, mean, of_law

DEPTH, STEPS, ETA0 = 3, 8, 0.3  # gamma_0 = 1
DEPTH_STEPS = 6  # number of steps of part 3
PHI: dict[str, Callable[[jax.Array], jax.Array]] = {"relu": jax.nn.relu, "tanh": jnp.tanh}
# {width: number of networks}; tanh has more networks, since its bias is small and noise would hide it
WIDTHS: dict[ActivationName, dict[int, int]] = {
    "relu": {32: 8192, 64: 8192, 128: 4096, 256: 4096},
    "tanh": {32: 24576, 48: 16384, 64: 12288, 96: 8192, 128: 4096, 256: 1024},
}
REPLICATES = {"relu": 3, "tanh": 10}  # replicates of the DMFT in each block
BRANCHES = {"one matrix": 1, "two matrices": 2}
TOGETHER = 2**19  # how many weights are trained side by side, over all networks: as many as fit into a cache
Weights = dict[str, jax.Array]


def problem(activation: ActivationName, matrices: int) -> Problem:
    """The problem of part 1, with this many matrices in each branch."""
    return Problem(KX, Y, depth=DEPTH, activation=activation, branch_weights=matrices, steps=STEPS, eta0=ETA0)


def initial(key: jax.Array, width: int, depth: int, inputs: int) -> Weights:
    """Initial weights, all N(0, 1). The blocks' matrices are stacked, (depth, width, width)."""
    shapes = {"in": (width, inputs), "inner": (depth, width, width), "outer": (depth, width, width), "out": (width,)}
    keys = jax.random.split(key, len(shapes))
    return {name: jax.random.normal(k, shape) for k, (name, shape) in zip(keys, shapes.items(), strict=True)}


def states(weights: Weights, x: jax.Array, activation: ActivationName) -> tuple[jax.Array, jax.Array]:
    """h^L, (P, N), of inputs x, (P, D), and h^l before each block, (depth, P, N)."""
    phi, (depth, width, _) = PHI[activation], weights["inner"].shape

    def block(h: jax.Array, matrices: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        inner, outer = matrices
        return h + phi(phi(h) @ inner.T / width**0.5) @ outer.T / (width * depth) ** 0.5, h

    return jax.lax.scan(block, x @ weights["in"].T / x.shape[1] ** 0.5, (weights["inner"], weights["outer"]))


def predict(weights: Weights, x: jax.Array, activation: ActivationName) -> jax.Array:
    return PHI[activation](states(weights, x, activation)[0]) @ weights["out"] / len(weights["out"])


def networks(activation: ActivationName, width: int, seeds: int) -> np.ndarray:
    """Centred predictions without t = 0, (seeds, STEPS - 1, P)."""
    x, y = (jnp.asarray(array, jnp.float32) for array in (inputs(KX), Y))

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

    keys = jax.random.split(jax.random.key(2 * width + list(PHI).index(activation)), seeds)
    # A power of 2 divides the number of seeds: a smaller last chunk would be another program to compile.
    chunk = 2 ** max(0, int(math.log2(TOGETHER / (2 * DEPTH * width**2))))
    return np.asarray(jax.jit(lambda keys: jax.lax.map(one, keys, batch_size=chunk))(keys), float)[:, 1:]


def changes(width: int, depth: int, seeds: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Changes of ReLU networks in one step on one sample with x.x = y = 1, per unit of eta_0 as eta_0 -> 0.

    Returns the RMS change of h^L if only the inner and if only the outer matrices are trained, (seeds, 2), the cosine
    between these two changes, (seeds,), and the RMS change of inner pre-activations by the update of their own
    matrices, (seeds,).
    """

    def one(key: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        weights, x = initial(key, width, depth, 1), jnp.ones((1, 1))
        gradient = jax.grad(lambda weights: predict(weights, x, "relu")[0])(weights)

        def change(group: str) -> jax.Array:
            step = {name: width * g if name == group else jnp.zeros_like(g) for name, g in gradient.items()}
            return jax.jvp(lambda weights: states(weights, x, "relu")[0][0], (weights,), (step,))[1]

        inner, outer = change("inner"), change("outer")
        rms = jnp.sqrt(jnp.array([jnp.mean(inner**2), jnp.mean(outer**2)]))
        features = PHI["relu"](states(weights, x, "relu")[1][:, 0])
        pre_activations = jnp.einsum("lij,lj->li", width * gradient["inner"], features) / width**0.5
        return rms, inner @ outer / width / rms.prod(), jnp.sqrt(jnp.mean(pre_activations**2))

    measured = jax.jit(lambda keys: jax.lax.map(one, keys))(jax.random.split(jax.random.key(depth), seeds))
    rms, cosine, pre_activations = (np.asarray(values, float) for values in measured)
    return rms, cosine, pre_activations


def rows(
    depths: Sequence[int] = (8, 16, 32, 64, 128),
    width: int = 192,
    seeds: int = 48,
    limit_depths: Sequence[int] = (2, 3, 4, 6, 8, 12, 16),
    samples: int = 16000,
) -> list[Row]:
    """depths, width, seeds: of part 2. limit_depths: of part 3, with their doubles."""
    result = []
    for activation, of_width in WIDTHS.items():
        limit = blocks(problem(activation, 2), samples, REPLICATES[activation])
        trained = [networks(activation, n, count) for n, count in of_width.items()]
        law = slope([*of_width], lambda blocks: [bias(runs, blocks) for runs in trained], limit)  # noqa: B023
        name = f"{activation}, two matrices: distance of networks from the DMFT, slope in N"
        result.append(Row("4.5", name, about(-1, 0.8), *of_law(law)))
        if activation == "relu":
            apart = limit.mean(axis=0) - blocks(problem("relu", 1), samples, 1).mean(axis=0)
            name = "relu: rms distance between the DMFT of one and of two matrices"
            result.append(Row("4.5", name, about(0.065, 0.005), float(np.sqrt((apart**2).mean()))))
    moved = [changes(width, depth, seeds) for depth in depths]
    rms, cosine, _ = moved[-1]
    quantity = f"relu, L = {depths[-1]}: change of h^L by inner over outer matrices"
    result.append(Row("1.2", quantity, about(1, 0.05), *mean(rms[:, 0] / rms[:, 1])))
    result.append(Row("1.2", f"{quantity}, cosine", about(1, 0.02), *mean(cosine)))
    pre_activations = np.log2([values for _, _, values in moved])
    name = "relu: change of inner pre-activations by their own matrices, slope in L"
    result.append(Row("1.2", name, about(-0.5, 0.1), *mean(np.polyfit(np.log2(depths), pre_activations, 1)[0])))
    for name, matrices in BRANCHES.items():
        at = {L: dataclasses.replace(problem("relu", matrices), depth=L, steps=DEPTH_STEPS) for L in limit_depths}
        _, law = of_doubling({L: blocks(one, samples, 1) for L, one in at.items()})
        result.append(Row("4.1", f"relu, {name}: |F_2L - F_L|, slope in L", about(-1, 0.5), *of_law(law)))
    return result
