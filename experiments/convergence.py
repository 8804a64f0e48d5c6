"""How fast networks of finite width, and of finite depth, approach their limit (paper A, Figures 5 and B.7).

    python -m experiments.convergence        (docs/images/convergence.png; three minutes on two cores)

Three samples, full-batch gradient descent, eta_0 = .5, gamma_0 = 1. The panels of the picture:

1. Predictions of networks of depth 3 over training, against the DMFT (the infinite-width limit) of the same depth.
2. Bias: distance between the mean network and the DMFT, which falls as 1/N (docs/theory.md section 5).
3. Ensembles: squared error of the mean of E networks, against v/(E N) + m^2/N^2 with v and m from the fits.
4. Depth, at infinite width: distance between F_L and F_inf, which falls as 1/L. For the Monte Carlo solutions it is the
   distance between F_2L and F_L, which falls in the same way and needs no extrapolated F_inf.

Panels 1 to 3 show the same networks. Networks are not mirrored (`networks.train`): mirroring does not change the mean
network, and reduces its variance by a third only, at twice the cost.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from depthmup.activations import ActivationName
from depthmup.backend import prepare_cpu
from depthmup.fit import FiniteSize, PowerLaw, ensemble_errors, finite_size, power_law
from depthmup.fit.curve import half_width
from depthmup.theory import Problem, dmft, linear_dmft
from experiments.figures.figure import IMAGES, save
from experiments.networks import KX, Y, noisy_law, train
from experiments.output import interval, ticks

DEPTH, STEPS, ETA0 = 3, 10, 0.5
DEPTH_STEPS, LINEAR_ETA0 = 6, 0.15  # for panel 4. A linear network's NTK is larger: at eta_0 = .5 it would overshoot.
ENSEMBLES = (1, 4, 16, 64)
BLOCKS = 8
WIDTHS = {32: 32768, 64: 16384, 128: 8192, 256: 3072, 512: 768}  # {width: number of networks}
# {activation: replicates of the DMFT in each block for (panels 1 to 3, panel 4)}. tanh needs more: its distances are
# smaller and noisier.
REPLICATES: dict[ActivationName, tuple[int, int]] = {"relu": (4, 1), "tanh": (14, 4)}
COLORS = {"relu": "C0", "tanh": "C1"}


def blocks(problem: Problem, samples: int, replicates: int) -> np.ndarray:
    """Independent solutions of the DMFT without t = 0, where F is 0: (BLOCKS, steps - 1, P)."""
    runs = (dmft(problem, samples=samples, replicates=replicates, seed=block) for block in range(BLOCKS))
    return np.stack([run.predictions[1:] for run in runs])


def problem(activation: ActivationName, depth: int = DEPTH, steps: int = STEPS) -> Problem:
    return Problem(KX, Y, depth=depth, steps=steps, eta0=ETA0, activation=activation)


def networks(activation: ActivationName, width: int, seeds: int) -> np.ndarray:
    """Predictions of networks, (seeds, STEPS - 1, P). Different widths or activations have no seed in common."""
    first = 2**20 * width + 2**30 * list(COLORS).index(activation)
    return train(problem(activation), width=width, seeds=seeds, first_seed=first)[:, 1:].astype(float)


class Square(NamedTuple):
    """The mean square of a mean over noisy draws."""

    value: float  # the noise's part is subtracted, so that it may be negative
    stderr: float
    noise: float  # rms of the noise of the mean

    @property
    def root(self) -> tuple[float, float]:
        """(root mean square, its standard error); NaN where the mean square is below its standard error."""
        value = math.sqrt(self.value) if self.value > self.stderr else math.nan
        return value, self.stderr / (2 * value)


def mean_square(draws: np.ndarray) -> Square:
    """`Square` of the mean of draws, (draws, ...). The standard error assumes that all noise is along the mean."""
    noise = math.sqrt((draws.var(axis=0, ddof=1) / len(draws)).mean())
    value = float((draws.mean(axis=0) ** 2).mean()) - noise**2
    return Square(value, math.hypot(2 * math.sqrt(max(value, 0)) * noise, noise**2), noise)


def bias(predictions: np.ndarray, limit: np.ndarray) -> Square:
    """The squared distance between the mean of networks (seeds, ...) and solutions (BLOCKS, ...), with both noises."""
    squared = ensemble_errors(predictions, limit.mean(axis=0)).squared_bias
    of_limit = mean_square(limit).noise
    value = squared.value - of_limit**2
    stderr = math.hypot(squared.stderr, 2 * math.sqrt(max(value, 0)) * of_limit)
    return Square(value, stderr, math.hypot(mean_square(predictions).noise, of_limit))


def slope(sizes: Sequence[int], squares: Callable[[np.ndarray], list[Square]], limit: np.ndarray) -> PowerLaw:
    """The power law of root mean squares over sizes. squares: solutions (BLOCKS, ...) -> a `Square` for each size.

    The error of the solutions is common to all sizes, so the scatter about the line does not show it. Therefore the
    interval is widened by the jackknife's interval, from leaving out each block in turn.
    """

    def law(blocks: np.ndarray) -> PowerLaw:
        value, error = np.array([square.root for square in squares(blocks)]).T
        return noisy_law(sizes, value, error)

    whole, others = law(limit), [law(np.delete(limit, i, axis=0)).exponent for i in range(len(limit))]
    jackknife = half_width(len(others) - 1) * math.sqrt(len(others) - 1) * float(np.std(others))
    low, high = (math.hypot(whole.exponent - end, jackknife) for end in (whole.low, whole.high))
    return whole._replace(low=whole.exponent - low, high=whole.exponent + high)


def draw_curves(axes: Axes, title: str, ensembles: Mapping[int, np.ndarray], limit: np.ndarray) -> None:
    """Draw learning curves. Points are means of 64 networks: with more, the error bars would be too small to see."""
    times = np.arange(1, limit.shape[1] + 1)
    for mu, target in enumerate(Y):
        axes.plot(times, limit.mean(axis=0)[:, mu], color=f"C{mu}", label=f"DMFT, y = {target:g}")
    for width, mark, shift in ((64, "s", -0.1), (128, "D", 0), (256, "^", 0.1)):
        for mu in range(len(Y) if width in ensembles else 0):
            few = ensembles[width][:64, :, mu]
            bars: dict[str, Any] = dict(yerr=2 * few.std(axis=0, ddof=1) / math.sqrt(len(few)), lw=0.8, capsize=1.5)
            bars |= dict(color=f"C{mu}", label=f"64 networks, N = {width}" if mu == 0 else None)
            axes.errorbar(times + shift, few.mean(axis=0), **bars, fmt=mark, ms=3, mfc="white")
    axes.set(title=f"{title} (bars: 2 s.e.; points shifted)", xlabel="step t", ylabel="F(t)")
    axes.legend(fontsize=8, ncols=2)


def draw_bias(
    axes: Axes, name: str, color: str, ensembles: Mapping[int, np.ndarray], limit: np.ndarray
) -> dict[str, Any]:
    """Draw the bias: the distance of networks, {width: (seeds, T - 1, P)}, from solutions, (BLOCKS, T - 1, P)."""
    widths = list(ensembles)
    law = slope(widths, lambda blocks: [bias(predictions, blocks) for predictions in ensembles.values()], limit)
    squares = [bias(predictions, limit) for predictions in ensembles.values()]
    value, error, floor = np.array([(*square.root, square.noise) for square in squares]).T
    print(f"  {name:5}" + "".join(f"  {a:.4f} ({b:.4f}; {c:.4f})" for a, b, c in zip(value, error, floor, strict=True)))
    axes.errorbar(widths, value, 2 * error, fmt="o", ms=4, capsize=2, color=color)
    axes.plot(widths, law(widths), color=color, lw=1, label=f"{name}: {interval(law)}")
    axes.plot(widths, floor, ":", color=color, lw=1, label=f"{name}: noise floor (1 s.e.)")
    squared, stderr = ([getattr(square, name) for square in squares] for name in ("value", "stderr"))
    m2 = finite_size(widths, None, squared, stderr, ("m2",)).m2
    assert m2 is not None
    print(f"    bias: slope, claimed -1, {interval(law)}; its square times N^2 {interval(m2, '.3g')}")
    return {"F(T-1)": limit.mean(axis=0)[-1], "slope of the bias": law[:3], "m2": m2}


def variances(ensembles: Mapping[int, np.ndarray], limit: np.ndarray) -> dict[str, Any]:
    """The variance between the networks of each width, and its power law."""
    widths = list(ensembles)
    variance, error = np.array(
        [ensemble_errors(predictions, limit.mean(axis=0)).variance for predictions in ensembles.values()]
    ).T
    law = noisy_law(widths, variance, error)
    v = finite_size(widths, None, variance, error, terms=("v",)).v
    assert v is not None
    print(f"    variance: slope, claimed -1, {interval(law)}; times N {interval(v, '.3f')}")
    return {"slope of the variance": law[:3], "v": v}


def draw_ensembles(axes: Axes, ensembles: Mapping[int, np.ndarray], limit: np.ndarray, fitted: FiniteSize) -> None:
    """Draw the squared errors of the means of disjoint groups of E networks."""
    print("    squared error of the mean of E networks over v/(E N) + m^2/N^2 (s.e.)")
    lines = np.geomspace(min(ensembles), max(ensembles), 50)
    for color, members in enumerate(E for E in ENSEMBLES if 4 * E <= min(map(len, ensembles.values()))):
        rows = []
        for values in ensembles.values():
            groups = values[: len(values) // members * members].reshape(-1, members, *values.shape[1:])
            rows.append(ensemble_errors(groups.mean(axis=1), limit.mean(axis=0)).squared_error)
        mean, error = np.array(rows).T
        ratios = np.array(rows) / fitted.predict(list(ensembles), ensemble=members)[:, None]
        print(f"    E = {members:2}" + "".join(f"  {ratio:.2f} ({of_ratio:.2f})" for ratio, of_ratio in ratios))
        axes.errorbar(list(ensembles), mean, 2 * error, fmt="o", ms=3.5, capsize=2, color=f"C{color}")
        axes.plot(lines, fitted.predict(lines, ensemble=members), color=f"C{color}", lw=1, label=f"E = {members}")
    axes.plot(lines, FiniteSize(m2=fitted.m2).predict(lines), color="black", lw=1, ls="--", label="E = ∞")


def draw_linear_depth(axes: Axes, depths: Sequence[int]) -> dict[str, Any]:
    """Exact; depths: powers of 2, from the last three of which F_inf is extrapolated (docs/theory.md section 4.1)."""
    descent: dict[str, Any] = dict(steps=DEPTH_STEPS, eta0=LINEAR_ETA0)
    lines = [linear_dmft(KX, Y, depth=depth, **descent).predictions[1:] for depth in depths]
    limit = (8 * lines[-1] - 6 * lines[-2] + lines[-3]) / 3
    distance = np.sqrt([((line - limit) ** 2).mean() for line in lines])
    law = power_law(depths, distance.tolist())
    local = np.diff(np.log2(distance)) / np.diff(np.log2(depths))
    print(f"  linear, exact: |F_L - F_inf| at L = {list(depths)}: " + " ".join(f"{value:.4f}" for value in distance))
    print(f"    slope {interval(law)}; between neighbours " + " ".join(f"{value:+.3f}" for value in local))
    axes.plot(depths, distance, "o-", ms=4, lw=1, color="C2", label=f"linear, |F_L - F_∞|: {interval(law)}")
    axes.plot(depths, distance[-1] * depths[-1] / np.array(depths), "--", color="black", lw=0.8, label="slope -1")
    return {"between neighbours": local}


def of_doubling(solutions: Mapping[int, np.ndarray]) -> tuple[dict[int, Square], PowerLaw]:
    """{L: the squared distance between depths L and 2L} of Monte Carlo solutions, {depth: (BLOCKS, T - 1, P)}, and the
    power law of its root."""
    depths = [depth for depth in solutions if 2 * depth in solutions]
    steps = np.stack([solutions[2 * depth] - solutions[depth] for depth in depths], axis=1)

    def squares(blocks: np.ndarray) -> list[Square]:
        return [mean_square(pair) for pair in np.moveaxis(blocks, 1, 0)]

    return dict(zip(depths, squares(steps), strict=True)), slope(depths, squares, steps)


def draw_depth(axes: Axes, name: str, color: str, solutions: Mapping[int, np.ndarray]) -> dict[str, Any]:
    """Draw the distance between depths L and 2L of Monte Carlo solutions, {depth: (BLOCKS, T - 1, P)}."""
    squares, law = of_doubling(solutions)
    depths, (value, error) = list(squares), np.array([square.root for square in squares.values()]).T
    table = " ".join(f"{a:.4f} ({b:.4f})" for a, b in zip(value, error, strict=True))
    print(f"  {name}: |F_2L - F_L| (s.e.) at L = {depths}: {table}\n    slope {interval(law)}")
    axes.errorbar(depths, value, 2 * error, fmt="o", ms=4, capsize=2, color=color)
    axes.plot(depths, law(depths), color=color, lw=1, label=f"{name}, |F_2L - F_L|: {interval(law)}")
    return {"slope": law[:3]}


def finish(axes: Axes, title: str, size: str, quantity: str, sizes: Sequence[int]) -> None:
    axes.set(title=title, xlabel=size, ylabel=f"{quantity} (bars: 2 s.e.)", xscale="log", yscale="log")
    ticks(axes.xaxis, sizes)
    axes.legend(fontsize=8)


def main(
    widths: Mapping[int, int] = WIDTHS,
    replicates: Mapping[ActivationName, tuple[int, int]] = REPLICATES,
    depths: Sequence[int] = (2, 3, 4, 6, 8, 12, 16),
    linear_depths: Sequence[int] = (2, 4, 8, 16, 32, 64),
    samples: int = 16000,
) -> dict[str, Any]:
    """Draw the picture and return its slopes and fits. widths: as WIDTHS. replicates: as REPLICATES."""
    figure = Figure(figsize=(12, 8), layout="constrained")
    layout: list[Any] = [["relu"] * 3 + ["tanh"] * 3, ["bias"] * 2 + ["ensembles"] * 2 + ["depth"] * 2]
    axes = figure.subplot_mosaic(layout)
    limits, trained, deep = {}, {}, {}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for activation, (many, few) in replicates.items():
            limits[activation] = pool.submit(blocks, problem(activation), samples, many)
            for width, seeds in widths.items():
                trained[activation, width] = pool.submit(networks, activation, width, seeds)
            for depth in depths:
                deep[activation, depth] = pool.submit(
                    blocks, problem(activation, depth=depth, steps=DEPTH_STEPS), samples, few
                )
    numbers: dict[str, Any] = {}
    print(f"depth {DEPTH}, T = {STEPS}: rms of mean network - DMFT (s.e.; noise floor; nan: within 1 s.e.)")
    print(f"  at N = {list(widths)}")
    for activation in replicates:
        limit, ensembles = limits[activation].result(), {width: trained[activation, width].result() for width in widths}
        draw_curves(axes[activation], f"1. {activation}, L = {DEPTH}", ensembles, limit)
        terms = draw_bias(axes["bias"], activation, COLORS[activation], ensembles, limit) | variances(ensembles, limit)
        numbers[activation] = terms
        if activation == "relu":
            draw_ensembles(axes["ensembles"], ensembles, limit, FiniteSize(terms["v"], terms["m2"]))
    print(f"\ninfinite width, T = {DEPTH_STEPS}, rms over samples and steps; slopes claimed -1")
    numbers["depth"] = {"linear": draw_linear_depth(axes["depth"], linear_depths)}
    for activation in replicates if depths else ():
        solutions = {depth: deep[activation, depth].result() for depth in depths}
        numbers["depth"][activation] = draw_depth(axes["depth"], activation, COLORS[activation], solutions)
    finish(axes["bias"], "2. Bias: slope in N [95%]", "width N", "rms of mean network - DMFT", list(widths))
    finish(axes["ensembles"], "3. ReLU; lines: v/(E N) + m²/N²", "width N", "squared error", list(widths))
    finish(axes["depth"], "4. Infinite width: slope in L [95%]", "depth L", "rms difference", linear_depths)
    save(IMAGES, {"convergence": figure})
    return numbers


if __name__ == "__main__":
    prepare_cpu(1)
    main()
