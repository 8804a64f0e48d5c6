"""From lazy to rich: training at infinite width as gamma0 grows. Theory is drawn as lines, networks as points.

    python -m experiments.richness        (docs/images/richness.png; three minutes on two cores)

1. The distance of predictions from the lazy limit. It grows as gamma0^2 for smooth activations, but as gamma0 for ReLU,
   where a share of order gamma0 of the neurons changes sign in training. Noise is far larger than these distances, but
   nearly the same for all gamma0; so the distances are taken between runs with the same draws or initial weights.
2. The movement of the last feature kernels.
3. Learning curves.

Networks are averaged with their mirror images (opposite readout weights), which cancels terms that are odd in the
labels.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from depthmup.backend import prepare_cpu
from depthmup.fit.curve import half_width
from depthmup.measure import distance, feature_kernels
from depthmup.theory import Problem, dmft, linear_dmft
from experiments.networks import KX, Observe, Y, inputs, mean_error, network, noisy_law, train
from experiments.output import interval, write

X = inputs(KX)
SMALL = 1e-3  # stands for gamma0 = 0 where runs must have the same draws
ETA0 = {"linear": 0.15, "tanh": 0.5, "relu": 0.5}  # at 0.5 linear networks are close to unstable
FITTED = {"linear": 0.2, "tanh": 0.2, "relu": 0.05}  # largest gamma0 of the fits: above it, higher powers count too
COLORS = {"linear": "C2", "tanh": "C0", "relu": "C1"}
DRAWS = {"tanh": 80, "relu": 20}  # number of DMFT solutions in panel 1; tanh needs more, its distances are far smaller
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


def rms(values: np.ndarray) -> np.ndarray:
    return np.sqrt(np.mean(values**2, (-2, -1)))


@functools.cache
def last_kernels(width: int, depth: int, activation: str) -> Observe:
    """The argument `observe` of `train` on `X` that measures H^L and Phi^L, (2, P, P)."""
    model = network(width, depth, 1, activation)

    def observe(params: Any, factors: Any) -> jax.Array:
        h = jax.tree.leaves(model.forward(factors)(params, jnp.asarray(X), None)[1])[-1]
        return feature_kernels([h, model.phi(h)])

    return observe


def movement(kernel: np.ndarray) -> float:
    """|K(T-1) - K(0)| / |K(0)| for one layer's kernel K at all times, (T, P, T, P)."""
    return float(distance(jnp.asarray(kernel[-1, :, -1]), jnp.asarray(kernel[0, :, 0])))


def problems(activation: str, gammas: Sequence[float], shape: Any) -> list[Problem]:
    """Of each gamma0. shape: depth and steps."""
    rich = Problem(KX, Y, activation=activation, eta0=ETA0[activation], **shape)
    return [dataclasses.replace(rich, gamma0=gamma0) for gamma0 in gammas]


def approach(
    axis: Axes, activations: Sequence[str], gammas: Sequence[float], samples: int, shape: Any, nets: Any
) -> dict[str, Any]:
    """Draw the first panel. shape: depth and steps. nets: width and seeds of the networks."""
    numbers: dict[str, Any] = {}
    print("max |F_gamma0 - F_0| (s.e.); slope over small gamma0 with 95% interval")
    print(f"{'gamma0':15}", *(f"{gamma0:<16g}" for gamma0 in gammas))
    for activation in activations:
        limit, small, *rich = problems(activation, (0.0, SMALL, *gammas), shape)
        if activation == "linear":
            lazy, *exact = (linear_dmft(problem).predictions for problem in (limit, *rich))
            sizes = np.array([np.abs(predictions - lazy).max() for predictions in exact])
            lines = {"linear, exact": Measured(sizes, 0 * sizes, exponent(gammas, sizes, 0 * sizes, FITTED["linear"]))}
        else:
            with jax.enable_x64(True):  # F(0), which is subtracted, goes as 1 / gamma0
                trained = [train(problem, mirrored=True, **nets) for problem in (small, *rich)]
            lazy = dmft(limit).predictions
            seeds = range(DRAWS[activation])
            draw = functools.partial(dmft, samples=samples, replicates=1)
            sampled = np.array([[draw(problem, seed=seed).predictions for seed in seeds] for problem in (small, *rich)])
            lines = {
                f"{activation}, {name}": of_draws((runs[1:] - runs[0]).swapaxes(0, 1), most, gammas, FITTED[activation])
                for name, runs in (("theory", sampled), ("networks", np.array(trained)))
            }
            offset, error = map(rms, mean_error(sampled[0] - lazy))
            print(f"{activation}: rms of F_{SMALL:g} - F_0 {offset:.1e}, its standard error {error:.1e}")
        for name, (value, stderr, law) in lines.items():
            numbers[name] = {"law": law}
            row = (f"{v:.2e} ({e:.0e})" for v, e in zip(value, stderr, strict=True))
            print(f"{name:15}", *row, interval(law))
            style = dict(fmt="s", ms=4, mfc="white", lw=1) if "networks" in name else dict(fmt=".-")
            seen = value > 2 * stderr
            points, label = np.stack([gammas, value, 2 * stderr])[:, seen], f"{name}: slope {interval(law)}"
            axis.errorbar(*points, color=COLORS[activation], label=label, **style)
    axis.set(xscale="log", yscale="log", xlabel="gamma0", ylabel="max |F - F(gamma0 = 0)|")
    axis.set_title("1. Distance to the lazy limit (above 2 s.e.)", fontsize=10)
    axis.legend(fontsize=7, loc="lower right")
    return numbers


def moves(axis: Axes, gammas: Sequence[float], samples: int, shape: Any, nets: Any) -> dict[str, Any]:
    """The second panel, tanh; networks at every other gamma0."""
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
    numbers: dict[str, Any] = {}
    print("\n|K(T-1) - K(0)| / |K(0)| of the last layer, tanh: gamma0, networks (s.e.) and theory; slopes of both")
    for i, (name, line) in enumerate(theory.items()):
        exact = np.array(line)
        values, errors, law = of_draws(np.stack(moved, axis=1)[..., i], np.asarray, gammas[::2], FITTED["tanh"])
        laws = [exponent(gammas, exact, 0 * exact, FITTED["tanh"]), law]
        numbers[name] = {"theory": exact, "networks": values, "stderr": errors, "laws": laws}
        triples = zip(gammas[::2], values, errors, exact[::2], strict=True)
        print(f"{name:3}", *(f"{g:g}: {v:.4g} ({e:.1g}) {t:.4g}" for g, v, e, t in triples), sep="  ", end="  ")
        print(interval(laws[1]), interval(laws[0]))
        axis.plot(gammas, exact, color=f"C{i}", label=f"{name}, theory: slope {interval(laws[0])}")
        label = f"{name}, N = {nets['width']}: slope {interval(laws[1])}"
        axis.errorbar(gammas[::2], values, 2 * errors, fmt="o", ms=4, color=f"C{i}", label=label)
    axis.set(xscale="log", yscale="log", xlabel="gamma0", ylabel="|K(T-1) - K(0)| / |K(0)|")
    axis.set_title(f"2. Movement of the last kernels, tanh (slopes: gamma0 <= {FITTED['tanh']})", fontsize=10)
    axis.legend(fontsize=7, loc="lower right")
    return numbers


def curves(axis: Axes, gammas: Sequence[float], samples: int, shape: Any, nets: Any) -> dict[str, Any]:
    """The third panel, tanh: predictions of the second sample, where they differ most; SMALL is 0 for networks."""
    # Not needed, but then the programs are those of `moves`.
    observe = last_kernels(nets["width"], shape["depth"], "tanh")
    numbers: dict[str, Any] = {}
    for i, gamma0 in enumerate(gammas):
        limit, rich = problems("tanh", (gamma0, gamma0 or SMALL), shape)
        theory = dmft(limit, samples=samples).predictions
        value, error = mean_error(train(rich, mirrored=True, observe=observe, **nets)[0])
        numbers[f"{gamma0:g}"] = {"theory": theory, "networks": value, "stderr": error}
        axis.plot(theory[:, 1], color=f"C{i}", label=f"gamma0 = {gamma0:g}")
        axis.errorbar(range(len(value)), value[:, 1], 2 * error[:, 1], fmt="o", ms=4, color=f"C{i}")
    axis.axhline(Y[1], color="black", lw=1, ls=":", label="target")
    axis.set(xlabel="steps", ylabel="F of one sample")
    axis.set_title(f"3. Learning curves, tanh: theory, and N = {nets['width']}", fontsize=10)
    axis.legend(fontsize=8)
    return numbers


def main(
    depth: int = 3,
    steps: int = 10,
    samples: int = 16000,
    width: int = 256,
    seeds: int = 64,
    activations: Sequence[str] = ("linear", "tanh", "relu"),
    gammas: Sequence[float] = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0),
    moved: Sequence[float] = (0.05, 0.07, 0.1, 0.14, 0.2, 0.3, 0.5, 0.7, 1.0, 1.4, 2.0),
    shown: Sequence[float] = (0.0, 0.3, 1.0, 2.0),
) -> dict[str, Any]:
    """Draw the picture and return its numbers. gammas, moved, shown: values of gamma0 for panels 1, 2 and 3. A DMFT
    solution of panel 1 has a quarter of the samples."""
    figure = Figure(figsize=(15, 4.8), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    shape, nets = dict(depth=depth, steps=steps), dict(width=width, seeds=seeds)
    numbers = {
        "distance": approach(left, activations, gammas, samples // 4, shape, nets),
        "movement": moves(middle, moved, samples, shape, nets),
        "curves": curves(right, shown, samples, shape, nets),
    }
    figure.suptitle(f"L = {depth}, N = {width}, {len(Y)} samples, {steps - 1} steps; error bars: 2 s.e.", fontsize=10)
    write(figure, "docs/images/richness.png")
    return numbers


if __name__ == "__main__":
    prepare_cpu(1)
    main()
