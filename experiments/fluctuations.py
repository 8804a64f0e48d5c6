"""Fluctuations between seeds: O(1/N) at any depth with skip connections, O(L/N) without (paper A, Appendix H).

    python -m experiments.fluctuations        (docs/images/fluctuations.png; three minutes on two cores)

The picture shows N times the relative variance over seeds, variance / mean^2, for ReLU networks and one input: the
variance of H^L, G^0 and the NTK at initialization and after three steps, and of the prediction after the three steps.
Variances are relative because the means move with depth: in training the kernels of plain networks grow with depth.

The learning rate is such that each step would learn 30% of the remaining error in the lazy limit. (The NTK of plain
networks is (L + 2) / 2, so their learning rate falls with depth.) There are two values of gamma0, since three steps of
this size move the features of deep plain networks far more than the features of deep residual networks.

Before training, plain networks have an exact law. H^L is a product of independent factors, one for each layer; their
relative variances are 5/N, but 2/N for the last layer. So 1 + variance / mean^2 = (1 + 5/N)^(L-1) (1 + 2/N), which is
linear in L while L is far below N / 5.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import depthmup as dm
from depthmup.backend import prepare_cpu
from depthmup.fit import Estimate, ensemble_errors, power_law
from depthmup.measure import feature_kernels
from depthmup.theory import Problem, lazy_kernels
from experiments.networks import network, train
from experiments.ntk_depth import network_ntk
from experiments.results import interval, ticks, write

KINDS = {"residual": True, "plain": False}
PAPER = {"residual": 0, "plain": 1}  # the paper's slopes in L
GAMMAS = (0.25, 1.0)
STATES = ("initial", *(f"3 steps, gamma0 = {gamma0:g}" for gamma0 in GAMMAS))
STEPS = 4  # predictions are taken before each step, so there are 3 updates
LEARNT = 0.3
QUANTITIES = {"H": "C0", "G": "C1", "NTK": "C2", "F": "C3"}
# One input of norm 1. It has two entries: with one, the read-in would be (1, width), which is taken for a vector.
X = np.ones((1, 2))


def ensemble(kind: str, width: int, depth: int, seeds: int, first_seed: int) -> dict[str, dict[str, np.ndarray]]:
    """{state: {quantity: values, (seeds,)}} for STATES: H^L, G^0 and the NTK, each up to a factor that all seeds share,
    and after training also F."""
    residual = KINDS[kind]
    model = network(width, depth, 1, "relu", residual=residual)
    parts_of_ntk = network_ntk(model, X)

    def observe(params: Any, forward: dm.ForwardFactors) -> dict[str, Any]:
        parts = parts_of_ntk(params, forward)
        last = jax.tree.leaves(model.forward(forward)(params, jnp.asarray(X), None)[1])[-1]
        # The read-in's part of the NTK is Kx G^0, exactly and at any width, and here Kx = 1.
        ntk = sum(part[0, 0] for part in parts.values())
        return {"H": feature_kernels([last])[0, 0, 0], "G": parts["readin"][0, 0], "NTK": ntk}

    Kx, y = np.ones((1, 1)), np.ones(1)
    limit = lazy_kernels(Kx, depth).ntk[0, 0] if residual else (depth + 2) / 2
    options: dict[str, Any] = dict(width=width, residual=residual, seeds=seeds, first_seed=first_seed, observe=observe)
    found = {}
    for state, gamma0 in zip(STATES[1:], GAMMAS, strict=True):
        problem = Problem(Kx, y, depth=depth, activation="relu", steps=STEPS, eta0=LEARNT / limit, gamma0=gamma0)
        predictions, kernels = train(problem, X, **options)
        found[STATES[0]] = {name: kernel[:, 0] for name, kernel in kernels.items()}
        found[state] = {name: kernel[:, 1] for name, kernel in kernels.items()} | {"F": predictions[:, -1, 0]}
    return found


def relative_variance(values: np.ndarray) -> Estimate:
    """variance / mean^2 of values, (seeds,), with a standard error that ignores the error of the mean."""
    return ensemble_errors(values / values.mean(dtype=float), 1.0).variance


def plain_variance(width: int, depth: np.ndarray) -> np.ndarray:
    """N times the exact relative variance of H^L at initialization, for plain ReLU networks with He init."""
    return width * ((1 + 5 / width) ** (depth - 1) * (1 + 2 / width) - 1)


def draw(
    axes: Axes, kind: str, state: str, found: dict[int, dict[int, dict[str, dict[str, np.ndarray]]]]
) -> dict[str, dict[str, Any]]:
    """Draw one panel and print its lines of the table. found: {width: {depth: `ensemble`}}."""
    numbers = {}
    depths = np.array(list(next(iter(found.values()))))
    names = [name for name in QUANTITIES if name in next(iter(found.values()))[depths[0]][state]]
    for name in names:
        curves = []
        for (width, of_depth), mark, style in zip(found.items(), ("o", "s"), ("-", "--"), strict=True):
            values = [relative_variance(of_depth[depth][state][name]) for depth in depths]
            scaled, errors = width * np.array(values).T
            octaves = errors / scaled / math.log(2)
            curves.append((np.log2(scaled), octaves))
            law = power_law(depths, scaled.tolist(), octaves)
            late = np.log2(scaled[-1] / scaled[-3]) / np.log2(depths[-1] / depths[-3])
            half = 1.96 * math.hypot(octaves[-1], octaves[-3]) / np.log2(depths[-1] / depths[-3])
            row = "".join(f"{f'{v:.3g} ({e:.2g})':>15}" for v, e in zip(scaled, errors, strict=True))
            print(f"  {kind:9}{state:23}{name:4}{width:4}{row}   {interval(law, '+.3f')}   {late:+.2f} +- {half:.2f}")
            measured = {"value": scaled, "stderr": errors, "slope": law[:3], "late": (late, half)}
            numbers[f"{name}, N = {width}"] = measured
            color, label = QUANTITIES[name], f"{name}, N = {width}: {interval(law, '+.3f')}" if mark == "s" else None
            bars: dict[str, Any] = dict(fmt=mark, ms=4, capsize=2, lw=1, mfc="white" if mark == "s" else color)
            shifted = depths * (1.03 if mark == "s" else 0.97)
            axes.errorbar(shifted, scaled, 2 * errors, color=color, label=label, **bars)
            if (name, kind, state) == ("H", "plain", STATES[0]):
                exact, line = plain_variance(width, depths), np.geomspace(depths[0], depths[-1], 50)
                slope = power_law(depths, exact.tolist(), octaves)
                print(f"{'exact':>38}{width:4}{''.join(f'{v:15.3g}' for v in exact)}   {interval(slope, '+.3f')}")
                numbers[f"H, N = {width}"] |= {"exact": exact, "slope of exact": slope[:3]}
                axes.plot(line, plain_variance(width, line), style, color=color, lw=1, label=f"exact, N = {width}")
        (narrow, narrow_error), (wide, wide_error) = curves
        ratio, error = np.mean(wide - narrow), np.sqrt(np.sum(narrow_error**2 + wide_error**2)) / len(depths)
        numbers[f"{name}, log2 of the widths' ratio"] = {"mean": ratio, "stderr": error}
        print(f"{name:>38}    the wider over the narrower, mean over depths: {2**ratio:.2f}", end="")
        print(f" [{2 ** (ratio - 1.96 * error):.2f}, {2 ** (ratio + 1.96 * error):.2f}]")
    axes.set(title=f"{kind}, {state}", xlabel="depth L", xscale="log", yscale="log")
    ticks(axes.xaxis, depths.tolist())
    axes.legend(fontsize=8, title=f"slope in L [95%]; paper: {PAPER[kind]}", title_fontsize=8)
    return numbers


def main(
    depths: Sequence[int] = (2, 4, 8, 16, 32), widths: tuple[int, int] = (128, 256), seeds: int = 300
) -> dict[str, Any]:
    """Draw the picture and return its numbers."""
    figure = Figure(figsize=(13, 7.5), layout="constrained")
    panels = figure.subplots(2, len(STATES), sharey=True)
    panels[0, 0].set_ylim(1.5, 3000)  # room for the legends
    figure.supylabel(f"N x variance / mean² over seeds (bars: 2 s.e.; filled: N = {widths[0]})")
    numbers: dict[str, Any] = {"sizes": {"depths": depths, "widths": widths, "seeds": seeds}}
    print(f"N x variance / mean^2 over {seeds} seeds (s.e.), its slope over L = {depths[0]}..{depths[-1]} [95%], and")
    print(f"the slope from L = {depths[-3]} to {depths[-1]}; the paper's are 0 for residual and 1 for plain networks")
    print(f"{'':37} {'N':>4}" + "".join(f"{f'L={depth}':>15}" for depth in depths))
    for row, kind in zip(panels, KINDS, strict=True):
        found: dict[int, dict[int, Any]] = {width: {} for width in widths}
        for i, (width, depth) in enumerate(itertools.product(widths, depths)):
            # Every size has seeds of its own: with one seed, networks of two sizes would share random numbers, since
            # JAX draws them by the place in an array.
            found[width][depth] = ensemble(kind, width, depth, seeds, i * seeds)
        for axes, state in zip(row, STATES, strict=True):
            numbers[f"{kind}, {state}"] = draw(axes, kind, state, found)
    write(figure, numbers, "docs/images/fluctuations.png")
    return numbers


if __name__ == "__main__":
    prepare_cpu(1)
    main()
