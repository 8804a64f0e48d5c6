"""From lazy to rich: training at infinite width as gamma0 grows, and networks.

    python -m experiments.theory_checks richness        (three minutes on two cores)

1. The distance of predictions from the lazy limit. It grows as gamma0^2 for smooth activations, but as gamma0 for ReLU,
   where a share of order gamma0 of the neurons changes sign in training. Noise is far larger than these distances, but
   nearly the same for all gamma0; so the distances are taken between runs with the same draws or initial weights.
2. The movement of the last feature kernels, tanh.

Networks are averaged with their mirror images (opposite readout weights), which cancels terms that are odd in the
labels.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from depthmup.activations import ActivationName
from depthmup.fit.curve import half_width
from depthmup.measure import distance, feature_kernels
from depthmup.theory import Problem, dmft, linear_dmft
from experiments.networks import KX, Observe, Y, inputs, network, noisy_law, train
from experiments.output import Row, about, of_law

X = inputs(KX)
SMALL = 1e-3  # stands for gamma0 = 0 where runs must have the same draws
ETA0 = {"linear": 0.15, "tanh": 0.5, "relu": 0.5}  # at 0.5 linear networks are close to unstable
FITTED = {"linear": 0.2, "tanh": 0.2, "relu": 0.05}  # largest gamma0 of the fits: above it, higher powers count too
DRAWS = {"tanh": 80, "relu": 20}  # number of DMFT solutions of part 1; tanh needs more, its distances are far smaller
# Of the exponents of part 1; those of networks and of tanh are the least sure.
BANDS = {"linear": about(2, 0.05), "tanh": about(2, 0.4), "relu": about(1, 0.4)}
Law = tuple[float, float, float]
NONE = (math.nan, math.nan, math.nan)


class Measured(NamedTuple):
    """Measured values at several points, and their power law."""

    value: np.ndarray  # (points,)
    stderr: np.ndarray  # (points,)
    law: Law  # (exponent, low, high), the exponent with its 95% interval


def exponent(x: Sequence[float], value: np.ndarray, stderr: np.ndarray, largest: float = math.inf) -> Law:
    """The exponent of the points up to x = `largest` whose values are more than two standard errors above 0, with its
    95% interval from the scatter about the line; NaN if fewer than three points are left."""
    used = (np.asarray(x) <= largest) & (value > 2 * stderr)
    return noisy_law(np.asarray(x)[used], value[used], stderr[used])[:3] if used.sum() > 2 else NONE


def of_draws(
    differences: np.ndarray, size: Callable[[np.ndarray], np.ndarray], x: Sequence[float], largest: float = math.inf
) -> Measured:
    """The size of the mean over draws, and its power law.

    differences: (draws, points, ...). size: (points, ...) -> (points,). The fit uses the same points as `exponent`. All
    points share the draws and so their errors. Therefore the standard errors and the interval of the exponent come from
    the jackknife over draws.
    """
    n, average = len(differences), differences.mean(0)
    value, without = size(average), size((n * average - differences) / (n - 1))
    stderr = np.sqrt(n - 1) * without.std(0)
    used = (np.asarray(x) <= largest) & (value > 2 * stderr)
    if used.sum() < 3:
        return Measured(value, stderr, NONE)
    slope, *others = (noisy_law(np.asarray(x)[used], sizes[used], stderr[used]).exponent for sizes in (value, *without))
    half = half_width(n - 1) * np.sqrt(n - 1) * np.std(others)
    return Measured(value, stderr, (slope, slope - half, slope + half))


def most(values: np.ndarray) -> np.ndarray:
    """The largest magnitude over times and samples: (..., T, P) -> (...)."""
    return np.abs(values).max((-2, -1))


@functools.cache
def last_kernels(width: int, depth: int, activation: ActivationName) -> Observe:
    """The argument `observe` of `train` on `X` that measures H^L and Phi^L, (2, P, P)."""
    model = network(width, depth, 1, activation)

    def observe(params: Any, factors: Any) -> jax.Array:
        h = jax.tree.leaves(model.forward(factors)(params, jnp.asarray(X), None)[1])[-1]
        return feature_kernels([h, model.phi(h)])

    return observe


def movement(kernel: np.ndarray) -> float:
    """|K(T-1) - K(0)| / |K(0)| for one layer's kernel K at all times, (T, P, T, P)."""
    return float(distance(jnp.asarray(kernel[-1, :, -1]), jnp.asarray(kernel[0, :, 0])))


def problems(activation: ActivationName, gammas: Sequence[float], shape: Any) -> list[Problem]:
    """Of each gamma0. shape: depth and steps."""
    rich = Problem(KX, Y, activation=activation, eta0=ETA0[activation], **shape)
    return [dataclasses.replace(rich, gamma0=gamma0) for gamma0 in gammas]


def approach(
    activation: ActivationName, gammas: Sequence[float], samples: int, shape: Any, nets: Any
) -> Iterator[tuple[str, Measured]]:
    """The distance from the lazy limit: (of theory or networks, its values). shape: depth and steps. nets: width and
    seeds of the networks."""
    limit, small, *rich = problems(activation, (0.0, SMALL, *gammas), shape)
    largest = FITTED[activation]
    if activation == "linear":
        lazy, *exact = (linear_dmft(problem).predictions for problem in (limit, *rich))
        sizes = np.array([np.abs(predictions - lazy).max() for predictions in exact])
        yield "theory", Measured(sizes, 0 * sizes, exponent(gammas, sizes, 0 * sizes, largest))
        return
    with jax.enable_x64(True):  # F(0), which is subtracted, goes as 1 / gamma0
        trained = [train(problem, mirrored=True, **nets) for problem in (small, *rich)]
    draw = functools.partial(dmft, samples=samples, replicates=1)
    seeds = range(DRAWS[activation])
    sampled = [[draw(problem, seed=seed).predictions for seed in seeds] for problem in (small, *rich)]
    for name, runs in (("theory", np.array(sampled)), ("networks", np.array(trained))):
        yield name, of_draws((runs[1:] - runs[0]).swapaxes(0, 1), most, gammas, largest)


def moves(gammas: Sequence[float], samples: int, shape: Any, nets: Any) -> dict[str, tuple[np.ndarray, Measured]]:
    """{kernel of the last layer: its movement by theory, and in networks at every other gamma0}, tanh."""
    given = problems("tanh", gammas, shape)
    solved = [dmft(problem, samples=samples) for problem in given]
    theory = {
        "H": [movement(solution.H[-1]) for solution in solved],
        "Phi": [movement(solution.Phi[-1]) for solution in solved],
    }
    observe, moved = last_kernels(nets["width"], shape["depth"], "tanh"), []
    for problem in given[::2]:  # the same initial weights at each
        kernels = train(problem, mirrored=True, observe=observe, **nets)[1]
        moved.append(np.asarray(distance(kernels[:, 1], kernels[:, 0]), float))
    by_kernel = np.stack(moved, axis=1)
    return {
        name: (np.array(line), of_draws(by_kernel[..., i], np.asarray, gammas[::2], FITTED["tanh"]))
        for i, (name, line) in enumerate(theory.items())
    }


def rows(
    depth: int = 3,
    steps: int = 10,
    samples: int = 16000,
    width: int = 256,
    seeds: int = 64,
    activations: Sequence[ActivationName] = ("linear", "tanh", "relu"),
    gammas: Sequence[float] = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0),
    moved: Sequence[float] = (0.05, 0.07, 0.1, 0.14, 0.2, 0.3, 0.5, 0.7, 1.0, 1.4, 2.0),
) -> list[Row]:
    """gammas, moved: values of gamma0 of parts 1 and 2. A DMFT solution of part 1 has a quarter of the samples."""
    shape, nets, result = dict(depth=depth, steps=steps), dict(width=width, seeds=seeds), []
    for activation in activations:
        for name, measured in approach(activation, gammas, samples // 4, shape, nets):
            statement = f"{activation}, {name}: max |F - F(gamma0 = 0)|, slope in gamma0"
            result.append(Row("2.1", statement, BANDS[activation], *of_law(measured.law)))
    for kernel, (theory, networks) in moves(moved, samples, shape, nets).items():
        laws = {"theory": exponent(moved, theory, 0 * theory, FITTED["tanh"]), "networks": networks.law}
        for name, law in laws.items():
            statement = f"tanh, {name}: movement of {kernel} of the last layer, slope in gamma0"
            result.append(Row("2.1", statement, about(2, 0.2), *of_law(law)))
    return result
