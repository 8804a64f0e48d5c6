"""The feature kernel of deep linear networks after one step: closed form, finite depth, networks (paper A, Figure 7).

    python -m experiments.one_step_kernels        (docs/images/one_step_kernels.png; a minute on two cores)

One sample, |x|^2 / D = 1, y = 1, beta = 1, c = eta0 gamma0, read-in frozen or trained; docs/theory.md section 3.

1, 2. H_1 over layer time: at infinite depth, by the exact recursion at three depths, and of networks at one of these
   depths. Each network is averaged with its mirror image (opposite readout weights), which cancels what is odd in y.
   All four settings have the same initial weights, so their deviations look alike.
3. Distance between H_1(1) of the recursion and of infinite depth: slope -1.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import depthmup as dm
from depthmup.backend import prepare_cpu
from depthmup.measure import feature_kernels
from depthmup.theory import Problem, one_step_linear
from experiments.networks import GROUPS, mean_error, network, train
from experiments.ntk_depth import DEPTHS, draw_depths
from experiments.output import ticks, write

CS = (0.5, 1.0)
READINS = {"frozen": ("branch", "readout"), "trained": tuple(GROUPS)}  # {read-in: the groups that are trained}
X = np.ones((1, 2))  # one sample


@functools.cache
def feature_kernel(width: int, depth: int) -> Callable[[Any, dm.ForwardFactors], jax.Array]:
    """The argument `observe` of `train` that measures H of every layer, (L+1,). Cached, since `train` compiles each
    function object anew."""
    model = network(width, depth, 1, "linear")

    def observe(params: Any, forward: dm.ForwardFactors) -> jax.Array:
        states = model.forward(forward)(params, jnp.asarray(X), None)[1]
        return feature_kernels(jax.tree.leaves(states))[:, 0, 0]

    return observe


def networks(c: float, readin: str, width: int, depth: int, seeds: int) -> tuple[np.ndarray, np.ndarray]:
    """H_1 of every layer, mean over seeds and standard error: (L+1,) each."""
    Kx, y, groups = np.ones((1, 1)), np.ones(1), READINS[readin]
    problem = Problem(Kx, y, depth=depth, activation="linear", steps=2, eta0=c, trained=groups)
    _, kernels = train(problem, X, width=width, seeds=seeds, mirrored=True, observe=feature_kernel(width, depth))
    return mean_error(kernels[:, 1].astype(float))


def draw_kernels(
    axes: Axes, readin: str, depths: Sequence[int], width: int, depth: int, seeds: int
) -> dict[str, dict[str, Any]]:
    """Draw the panel and print the table of one read-in. depths: of the recursion."""
    numbers = {}
    solution = functools.partial(one_step_linear, train_readin=readin == "trained")
    for color, c in enumerate(CS):
        labelled = c == CS[-1]
        limit, same_depth = solution(c), solution(c, depth)
        mean, error = networks(c, readin, width, depth, seeds)
        z = (mean - same_depth.H1) / error
        axes.plot(limit.times, limit.H1, color=f"C{color}", label=f"c = {c:g}, L = ∞, closed form")
        for style, L in zip((":", "--", "-."), depths, strict=False):
            finite, label = solution(c, L), f"L = {L}" if labelled else None
            axes.plot(finite.times, finite.H1, style, color=f"C{color}", lw=1, label=label)
        shown = slice(None, None, max(1, depth // 8))
        bars: dict[str, Any] = dict(yerr=2 * error[shown], fmt="o", ms=4, capsize=2, color=f"C{color}", lw=1)
        label = f"networks, N = {width}, L = {depth}" if labelled else None
        axes.errorbar(same_depth.times[shown], mean[shown], **bars, label=label)
        print(f"  {c:3g} {readin:8} {np.abs(z).max():.1f}")
        numbers[f"c = {c:g}"] = {"limit": limit.H1, "networks": mean, "s.e.": error, "largest z": np.abs(z).max()}
    axes.set(xlabel="layer time", ylabel="H_1 (bars: 2 s.e.)", yscale="log", ylim=(0.9, 120))
    ticks(axes.yaxis, (1, 2, 5, 10, 20, 50, 100))
    return numbers


def draw_convergence(axes: Axes, depths: Sequence[int]) -> dict[str, Any]:
    lines: dict[str, tuple[np.ndarray, dict[str, Any]]] = {}
    for readin, mark in zip(READINS, ("o", "s"), strict=True):
        for color, c in enumerate(CS):
            limit, *finite = (one_step_linear(c, L, train_readin=readin == "trained").H1[-1] for L in (None, *depths))
            look = dict(marker=mark, ms=4, lw=1.5, color=f"C{color}", label=f"c = {c:g}, read-in {readin}")
            lines[f"c = {c:g}, {readin}"] = np.abs(np.array(finite) - limit), look
    axes.set(title="3. Distance to infinite depth")
    return draw_depths(axes, depths, lines, "|H_1(1) - its limit|", 5)


def main(
    width: int = 512,
    depth: int = 32,
    seeds: int = 96,
    depths: Sequence[int] = (8, 32, 100),
    convergence: Sequence[int] = DEPTHS,
) -> dict[str, Any]:
    """Draw the picture and return its numbers."""
    figure = Figure(figsize=(13, 4.6), layout="constrained")
    axes = figure.subplots(1, 3)
    numbers: dict[str, Any] = {}
    print(f"H_1 of networks of width {width} and depth {depth}, {seeds} mirrored pairs: the largest")
    print("|mean - recursion at that depth| / s.e. of all layers\n    c read-in")
    for number, (panel, readin) in enumerate(zip(axes, READINS, strict=False), 1):
        numbers[readin] = draw_kernels(panel, readin, depths, width, depth, seeds)
        panel.set(title=f"{number}. After one step, read-in {readin}")
    numbers["convergence"] = draw_convergence(axes[2], convergence)
    for panel in axes:
        panel.legend(fontsize=8)
    write(figure, "docs/images/one_step_kernels.png")
    return numbers


if __name__ == "__main__":
    prepare_cpu(1)
    main()
