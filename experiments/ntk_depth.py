"""The NTK of residual networks: as depth grows, and at finite width (paper A, Figure 6).

    python -m experiments.theory_checks ntk_depth        (two minutes on two cores)

1. Distance of H(1), G(0) and the NTK between depth L and infinite depth, for three activations, between the two largest
   depths: at small ones terms that fall faster than 1/L count too. The paper's squared error ~ L^-2 is a slope of -1.
2. The mean squared error of ReLU networks at initialization against the infinite-width limit at the same depth, for the
   NTK and its parts of the branches, the read-in and the readout: it falls as 1/N.
3. The mean of these networks has a bias m/N, far below their scatter, but not 0.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import depthmup as dm
from depthmup.activations import ActivationName
from depthmup.fit import ensemble_errors
from depthmup.measure import empirical_ntk, linen_dense
from depthmup.models import Model, model_specs
from depthmup.rules.specs import is_spec
from depthmup.theory import Problem, lazy_kernels
from experiments.networks import GROUPS, inputs, mean_error, network, noisy_law, train
from experiments.output import Row, about, of_law

PARTS = ("total", *GROUPS)
DEPTHS = (4, 8, 16, 32, 64, 128, 256, 512, 1024)
GRID, EVERY = np.arange(0, 181, 4), 9  # degrees
ANGLES = GRID[::EVERY]  # the networks' angles; 90 is left out, since the read-in's part is 0 there in all networks
BIASED = (72, 108)  # degrees at which the bias of the branches' part is measured


@functools.cache
def over_angles(depth: int | None, activation: ActivationName = "relu") -> dict[str, np.ndarray]:
    """{name: values at the angles of GRID, (angles,)} at infinite width: PARTS of the NTK, H(1) and G(0), between two
    inputs of norm 1."""
    norms = np.ones(1), np.ones(len(GRID))
    kernels = lazy_kernels(np.cos(np.radians(GRID))[None], depth, activation, norms=norms, times=(0, 1))
    ntk = {"total": kernels.ntk} | {name: getattr(kernels, f"ntk_{name}") for name in GROUPS}
    return {name: kernel[0] for name, kernel in (ntk | {"H(1)": kernels.H[1], "G(0)": kernels.G[0]}).items()}


def network_ntk(model: Model, x: np.ndarray) -> Callable[[Any, dm.ForwardFactors], dict[str, jax.Array]]:
    """The argument `observe` of `train`, for gamma0 = 1, that measures the NTK of docs/theory.md section 2: {group:
    (P, P)} for GROUPS."""
    specs = model_specs(model, x.shape[1:])
    names = {role: name for name, roles in GROUPS.items() for role in roles}
    groups = jax.tree.map(lambda spec: names[spec.role], specs, is_leaf=is_spec)
    rates: Any = dm.factors(dm.parameterization("depth_mup"), specs).lr
    rates = {**rates, "read_in": jax.tree.map(lambda rate: rate / x.shape[1], rates["read_in"])}

    def observe(params: Any, forward: dm.ForwardFactors) -> dict[str, jax.Array]:
        run = model.forward(forward)
        examples = jnp.asarray(x, jnp.result_type(float))
        f = lambda weights, inputs: run(weights, inputs, None)[0]  # noqa: E731
        return empirical_ntk(f, params, examples, rates=rates, groups=groups, dense=linen_dense(model, forward))

    return observe


def networks(width: int, depth: int, seeds: int, first_seed: int) -> dict[str, np.ndarray]:
    """PARTS of ReLU networks at initialization for inputs of norm 1 at ANGLES: (seeds, P, P) each."""
    Kx = np.cos(np.radians(ANGLES[:, None] - ANGLES))
    problem = Problem(Kx, np.zeros(len(Kx)), depth=depth, activation="relu", steps=1, eta0=0.0)
    observe = network_ntk(network(width, depth, 1, "relu"), inputs(Kx))
    _, ntk = train(problem, width=width, seeds=seeds, first_seed=first_seed, observe=observe)
    parts = {name: kernel[:, 0].astype(float) for name, kernel in ntk.items()}
    return {"total": np.sum(list(parts.values()), axis=0), **parts}


def by_angle(kernels: np.ndarray) -> np.ndarray:
    """(seeds, P, P) -> (seeds, angles): the mean over the pairs of inputs with the same angle, for ANGLES."""
    pairs = [np.diagonal(kernels, i, -2, -1).mean(axis=-1) for i in range(len(ANGLES))]
    return np.stack(pairs, axis=-1)


def last_slope(depths: Sequence[int], distances: Sequence[float]) -> float:
    """The slope of log distances in log depth between the two largest depths."""
    return math.log(distances[-1] / distances[-2]) / math.log(depths[-1] / depths[-2])


def rows(
    widths: Sequence[int] = (64, 96, 128, 192, 256, 384, 512),
    depth: int = 8,
    seeds: int = 1000,
    depths: Sequence[int] = DEPTHS,
    activations: Sequence[ActivationName] = ("relu", "erf", "tanh"),
) -> list[Row]:
    """widths, depth, seeds: of networks. depths: of the limits of infinite width."""
    result = []
    for activation in activations:
        limit, *finite = (over_angles(at, activation) for at in (None, *depths))
        for name, label in (("H(1)", "H(1)"), ("G(0)", "G(0)"), ("total", "NTK")):
            distances = [np.sqrt(np.mean((kernels[name] - limit[name]) ** 2)) for kernels in finite]
            statement = f"{activation}, {label}: rms distance to L = inf, slope in L"
            result.append(Row("2", statement, about(-1, 0.005), last_slope(depths, distances)))
    # Every width has seeds of its own: with one seed, networks of two widths would share random numbers, since JAX
    # draws them by the place in an array.
    measured = [networks(width, depth, seeds, i * seeds) for i, width in enumerate(widths)]
    n, apart = np.array(widths)[:, None], np.abs(np.subtract.outer(range(len(ANGLES)), range(len(ANGLES))))
    for name in PARTS:
        limits, kernels = over_angles(depth)[name][::EVERY], [at_width[name] for at_width in measured]
        mse, error = np.array([ensemble_errors(kernel, limits[apart]).squared_error for kernel in kernels]).T
        statement = f"relu, L = {depth}, NTK, {name}: squared error of networks, slope in N"
        result.append(Row("5", statement, about(-1, 0.1), *of_law(noisy_law(widths, mse, error))))
        if name == "branch":
            means, stderr = np.stack([mean_error(by_angle(kernel)) for kernel in kernels], axis=1)
            weights = (n * stderr) ** -2
            m = (weights * n * (means - limits)).sum(axis=0) / weights.sum(axis=0)
            m_error = weights.sum(axis=0) ** -0.5
            for at, bias, of_bias in zip(ANGLES, m, m_error, strict=True):
                if at in BIASED:
                    statement = f"relu, L = {depth}, NTK, branch: N times the bias of networks at {at} degrees"
                    result.append(Row("5", statement, (0, 0.5), float(bias), 1.96 * float(of_bias)))
    return result
