"""The NTK of residual networks: over the angle of two inputs, as depth grows, and at finite width (paper A, Figure 6).

    python -m experiments.ntk_depth        (docs/images/ntk_depth.png; two minutes on two cores)

1. The NTK over the angle between two inputs of norm 1, for ReLU: its parts of the branches, the read-in and the readout
   at infinite width, at infinite depth and at finite depths; and networks at initialization.
2. Distance of H(1), G(0) and the NTK between depth L and infinite depth, for three activations. The paper's squared
   error ~ L^-2 is a slope of -1.
3. Means of networks against the infinite-width limit at the same depth: there is a bias m/N, far below the scatter of
   the networks, but not 0.
4. The networks' mean squared error falls as 1/N.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import depthmup as dm
from depthmup.backend import prepare_cpu
from depthmup.fit import ensemble_errors, finite_size, power_law
from depthmup.measure import empirical_ntk, linen_dense
from depthmup.models import Model, model_specs
from depthmup.specs import is_spec
from depthmup.theory import Problem, lazy_kernels
from experiments.networks import GROUPS, inputs, mean_error, network, noisy_law, train
from experiments.output import interval, ticks, write

PARTS = {"total": "C3", **dict(zip(GROUPS, ("C0", "C1", "C2"), strict=True))}
DEPTHS = (4, 8, 16, 32, 64, 128, 256, 512, 1024)  # depths of panel 2
GRID, EVERY = np.arange(0, 181, 4), 9  # degrees
ANGLES = GRID[::EVERY]  # the networks' angles; 90 is left out, since the read-in's part is 0 there in all networks


@functools.cache
def over_angles(depth: int | None, activation: str = "relu") -> dict[str, np.ndarray]:
    """{name: values at the angles of GRID, (angles,)} at infinite width: PARTS of the NTK, H(1) and G(0), between two
    inputs of norm 1."""
    norms = np.ones(1), np.ones(len(GRID))
    kernels = lazy_kernels(np.cos(np.radians(GRID))[None], depth, activation, norms=norms, times=(0, 1))
    found = {"total": kernels.ntk} | {name: getattr(kernels, f"ntk_{name}") for name in GROUPS}
    return {name: kernel[0] for name, kernel in (found | {"H(1)": kernels.H[1], "G(0)": kernels.G[0]}).items()}


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
    found = {name: kernel[:, 0].astype(float) for name, kernel in ntk.items()}
    return {"total": np.sum(list(found.values()), axis=0), **found}


def by_angle(kernels: np.ndarray) -> np.ndarray:
    """(seeds, P, P) -> (seeds, angles): the mean over the pairs of inputs with the same angle, for ANGLES."""
    pairs = [np.diagonal(kernels, i, -2, -1).mean(axis=-1) for i in range(len(ANGLES))]
    return np.stack(pairs, axis=-1)


def draw_depths(
    axes: Axes, depths: Sequence[int], lines: dict[str, tuple[np.ndarray, dict[str, Any]]], what: str, level: float = 1
) -> dict[str, Any]:
    """Draw a panel of distances to infinite depth, {name: (distances without noise, style)}, and print their slopes.

    The intervals show the curvature of the line (terms that fall faster than the leading power), not noise. level: of
    the line of slope -1 at depth 1.
    """
    half, numbers = len(depths) // 2, {}
    print(f"\n{what}: slope over L = {depths[0]}..{depths[-1]}, over its upper half, and between the last two")
    for name, (distances, style) in lines.items():
        whole, upper = power_law(depths, distances.tolist()), power_law(depths[half:], distances[half:].tolist())
        last = math.log(distances[-1] / distances[-2]) / math.log(depths[-1] / depths[-2])
        print(f"  {name:22} {interval(whole, '+.3f')}  {interval(upper, '+.3f')}  {last:+.4f}")
        numbers[name] = {"slope": whole[:3], "slope of the upper half": upper[:3], "last slope": last}
        axes.plot(depths, distances, **{"label": name, "lw": 1, **style})
    axes.plot(depths, level / np.array(depths), color="black", lw=0.8, label="slope -1")
    axes.set(xlabel="depth L", ylabel=what, xscale="log", yscale="log")
    axes.legend(fontsize=7)
    return numbers


def draw_angles(axes: Axes, depths: Sequence[int | None]) -> None:
    for depth, style in zip(depths, (":", "--", "-"), strict=True):
        for name, color in PARTS.items():
            finite = f"L = {depth}" if name == "total" else None
            label, lw = (finite, 1.0) if depth else (f"{name}, L = ∞", 1.5)
            axes.plot(GRID, over_angles(depth)[name], style, color=color, lw=lw, label=label)
    axes.set(title="1. Limit and networks (bars: 2 s.e.)")
    axes.set(xlabel="angle of the inputs (degrees)", ylabel="NTK and its parts, ReLU")


def draw_convergence(axes: Axes, activations: Sequence[str], depths: Sequence[int]) -> dict[str, Any]:
    lines: dict[str, tuple[np.ndarray, dict[str, Any]]] = {}
    for color, activation in enumerate(activations):
        limit, finite = over_angles(None, activation), [over_angles(depth, activation) for depth in depths]
        for name, label, style in (("H(1)", "H(1)", "-"), ("G(0)", "G(0)", "--"), ("total", "NTK", ":")):
            distances = np.array([np.sqrt(np.mean((one[name] - limit[name]) ** 2)) for one in finite])
            # One label for every colour and for every style of line is enough.
            named = f"{activation}, {label}" if color == 0 or name == "H(1)" else None
            lines[f"{activation}, {label}"] = distances, dict(ls=style, color=f"C{color}", label=named)
    axes.set(title="2. Distance to infinite depth")
    return draw_depths(axes, depths, lines, "rms over angles of K_L - K_∞")


def draw_networks(
    at_angles: Axes, biases: Axes, over_width: Axes, widths: Sequence[int], depth: int, seeds: int
) -> dict[str, dict[str, Any]]:
    """Draw the networks of panel 1, and panels 3 and 4."""
    # Every width has seeds of its own: with one seed, networks of two widths would share random numbers, since JAX
    # draws them by the place in an array.
    measured = [networks(width, depth, seeds, i * seeds) for i, width in enumerate(widths)]
    numbers: dict[str, dict[str, Any]] = {}
    n, apart = np.array(widths), np.abs(np.subtract.outer(range(len(ANGLES)), range(len(ANGLES))))
    print(f"\nReLU networks of depth {depth} at N = {', '.join(map(str, widths))}, {seeds} seeds, against N = inf")
    print("N x MSE of an entry at each N; slope of the MSE in N; v and b of the fit v/N + b/N^2 [95%];")
    angles = ", ".join(map(str, ANGLES))
    print(f"m of the bias m/N at {angles} degrees (s.e.), all N together, and the largest |m| / s.e.")
    for place, (name, color) in enumerate(PARTS.items()):
        limit, kernels = over_angles(depth)[name][::EVERY], [at_width[name] for at_width in measured]
        mse, mse_error = np.array([ensemble_errors(kernel, limit[apart]).squared_error for kernel in kernels]).T
        law, terms = noisy_law(widths, mse, mse_error), finite_size(widths, None, mse, mse_error)
        means, stderr = np.stack([mean_error(by_angle(kernel)) for kernel in kernels], axis=1)
        weights = (n[:, None] * stderr) ** -2
        m = (weights * n[:, None] * (means - limit)).sum(axis=0) / weights.sum(axis=0)
        m_error = weights.sum(axis=0) ** -0.5
        fitted = "  ".join(interval(term, ".3g") for term in terms if term)
        print(f"  {name:8}{' '.join(f'{value:6.2f}' for value in n * mse)}   {interval(law, '+.3f')}   {fitted}")
        by_angles = " ".join(f"{value:+.2f} ({e:.2f})" for value, e in zip(m, m_error, strict=True))
        print(f"  {'':8}m {by_angles}   {np.abs(m / m_error).max():.1f}")
        numbers[name] = {"slope": law[:3], "v": terms.v, "m": m, "m stderr": m_error}
        bars: dict[str, Any] = dict(ms=3.5, capsize=2, color=color, lw=1)
        for shift, mark, i in ((-2, "s", 0), (2, "o", -1)):
            label = f"N = {widths[i]}, L = {depth}" if name == "total" else None
            at_angles.errorbar(ANGLES + shift, means[i], 2 * stderr[i], fmt=mark, label=label, **bars)
        if name != "total":
            biases.errorbar(ANGLES + 2 * (place - 2), m, 2 * m_error, fmt="o-", **bars, label=name)
        over_width.errorbar(widths, mse, 2 * mse_error, fmt="o", **bars)
        over_width.plot(widths, law(widths), color=color, lw=1, label=f"{name}: {interval(law, '+.3f')}")
    farthest = max(np.abs(row["m"] / row["m stderr"]).max() for row in numbers.values())
    biases.axhline(0, color="black", lw=0.8)
    biases.set(title=f"3. Bias (bars: 2 s.e.), up to {farthest:.1f} s.e. from 0")
    biases.set(xlabel="angle of the inputs (degrees)", ylabel="N x (mean - limit), all N together")
    over_width.set(title=f"4. Error, L = {depth}: slope in N [95%]", xlabel="width N")
    over_width.set(ylabel="mean squared error (bars: 2 s.e.)", xscale="log", yscale="log")
    over_width.set_ylim(top=3 * over_width.get_ylim()[1])  # room for the legend
    ticks(over_width.xaxis, widths)
    for axes in (at_angles, biases, over_width):
        axes.legend(fontsize=7)
    return numbers


def main(
    widths: Sequence[int] = (64, 96, 128, 192, 256, 384, 512),
    depth: int = 8,
    seeds: int = 1000,
    depths: Sequence[int] = DEPTHS,
    activations: Sequence[str] = ("relu", "erf", "tanh"),
) -> dict[str, Any]:
    """Draw the picture and return its slopes. depths: of panel 2."""
    figure = Figure(figsize=(8.4, 6.3), layout="constrained")
    first, second, third, fourth = figure.subplots(2, 2).ravel()
    draw_angles(first, (2, depth, None))
    numbers = {"depth": draw_convergence(second, activations, depths)}
    numbers["networks"] = draw_networks(first, third, fourth, widths, depth, seeds)
    write(figure, "docs/images/ntk_depth.png")
    return numbers


if __name__ == "__main__":
    prepare_cpu(1)
    main()
