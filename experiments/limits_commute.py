"""Do the limits of infinite width and of infinite depth commute? (paper A, Appendix F)

    python -m experiments.limits_commute        (docs/images/limits_commute.png; three minutes on two cores)

The experiment compares predictions after five steps on three samples, for linear and for ReLU networks.

N first: predictions of the DMFT (infinite width) at depths 2 to 32 are extrapolated to L = inf. The DMFT is exact for
linear networks and Monte Carlo for ReLU.
L first: for each seed, predictions of networks of one width at the same depths are extrapolated to L = inf; then the
means over seeds are extrapolated to N = inf.

All extrapolations are polynomials of second order in 1/L or 1/N, so both ways have the same error at infinite depth
(.001 for the exact linear limit). Networks of the same seed share weights at all depths, so much of their noise cancels
in the extrapolation to infinite depth. These extrapolations would not show a term L/N, which networks without skip
connections have. Therefore L/N is fitted separately, together with the same powers of 1/L.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.special import chdtrc

from depthmup.backend import prepare_cpu
from depthmup.theory import Problem, dmft, linear_dmft
from experiments.networks import KX, Y, train
from experiments.results import write

STEPS = 6
ETA0 = {"linear": 0.15, "relu": 0.5}
DEPTHS = (2, 4, 8, 16, 32)
POWERS = 2  # order of the polynomials in 1/L and in 1/N
WIDTHS = {32: 6144, 64: 4096, 128: 1024, 256: 512}  # {width: number of networks}
NORMAL = 1.96  # half a 95% interval in standard errors; of hundreds of networks these are known well


class Estimate(NamedTuple):
    """Estimated predictions with their noise."""

    value: np.ndarray  # (P,)
    covariance: np.ndarray  # covariance of the noise, (P, P); 0 if the value is exact

    @property
    def stderr(self) -> np.ndarray:
        return np.sqrt(np.diagonal(self.covariance))


def mean(draws: np.ndarray) -> Estimate:
    """The mean of draws, (draws, P), as an estimate; a single draw counts as exact."""
    noise = np.cov(draws.T) / len(draws) if len(draws) > 1 else np.zeros((draws.shape[1],) * 2)
    return Estimate(draws.mean(axis=0), noise)


def coefficients(sizes: Sequence[int], at: np.ndarray, stderr: np.ndarray | None = None) -> np.ndarray:
    """The matrix (at, sizes) from values at `sizes` to values of the fitted polynomial at the inverse sizes `at`."""
    weights = np.ones(len(sizes)) if stderr is None else 1 / stderr
    powers = np.arange(POWERS + 1)
    design = (1 / np.array(sizes))[:, None] ** powers
    return at[:, None] ** powers @ np.linalg.pinv(design * weights[:, None]) * weights


def ratio_term(rows: Mapping[int, np.ndarray], depths: Sequence[int]) -> Estimate:
    """The coefficient of L/N in predictions, {width: (seeds, depths, P)}; the weighted mean over widths."""
    sizes = np.array(depths, float)[:, None]
    share = np.linalg.pinv(np.hstack([sizes ** -np.arange(POWERS + 1), sizes]))[-1]
    found = [mean(np.einsum("l,slp->sp", width * share, draws)) for width, draws in rows.items()]
    weights = np.array([1 / np.mean(of.stderr**2) for of in found])
    weights /= weights.sum()
    noise = np.einsum("n,npq->pq", weights**2, np.stack([of.covariance for of in found]))
    return Estimate(weights @ np.stack([of.value for of in found]), noise)


def problem(activation: str, depth: int) -> Problem:
    return Problem(KX, Y, depth=depth, steps=STEPS, eta0=ETA0[activation], activation=activation)


def of_theory(activation: str, depth: int, draws: int) -> np.ndarray:
    """Infinite width, (draws, P): independent solutions, or one exact one."""
    given = problem(activation, depth)
    if activation == "linear":
        return linear_dmft(given).predictions[-1:]
    return np.stack([dmft(given, replicates=1, seed=draw).predictions[-1] for draw in range(draws)])


def of_networks(activation: str, width: int, depth: int, seeds: int) -> np.ndarray:
    """(seeds, P). Networks of two widths or activations have no seed in common, those of two depths have."""
    first = 2**20 * width + 2**30 * list(ETA0).index(activation)
    return train(problem(activation, depth), width=width, seeds=seeds, first_seed=first)[:, -1].astype(float)


def draw_depths(axes: Axes, activation: str, rows: Mapping[str, np.ndarray], depths: Sequence[int]) -> None:
    """Draw predictions of the first sample over 1/L, and the fitted curves. rows: {label: draws (draws, depths, P)}."""
    at = np.linspace(0, 1 / min(depths), 50)
    c = coefficients(depths, at)
    for i, (name, draws) in enumerate(rows.items()):
        found = mean(draws[..., 0] @ np.column_stack([np.eye(len(depths)), c[0]]))  # the last entry: infinite depth
        bars: dict[str, Any] = dict(fmt="o", ms=3.5, capsize=2, lw=1, color=f"C{i - 1}" if i else "black")
        axes.plot(at, c @ found.value[:-1], color=bars["color"], lw=1)
        axes.errorbar(1 / np.array(depths), found.value[:-1], 2 * found.stderr[:-1], **bars, label=name)
        axes.errorbar([0], found.value[-1:], 2 * found.stderr[-1:], **bars, mfc="white")
    axes.set(title=f"{activation}, y = {Y[0]:g}: to infinite depth (bars: 2 s.e.)", xlabel="1/L", ylabel="F")
    axes.legend(fontsize=8)


def draw_widths(axes: Axes, activation: str, found: Mapping[int, Estimate], first: Estimate) -> Estimate:
    """Draw the predictions at infinite depth over 1/N, minus the limit of "N first"; return their limit N -> inf."""
    widths, at = list(found), np.linspace(0, 1 / min(found), 50)
    values, errors = (np.array([getattr(of, name) for of in found.values()]) for name in ("value", "stderr"))
    c = coefficients(widths, at, errors.mean(axis=1))
    noise = np.einsum("n,npq->pq", c[0] ** 2, np.stack([of.covariance for of in found.values()]))
    last = Estimate(c[0] @ values, noise)
    for mu, target in enumerate(Y):
        shift, value = (mu - 1) * 0.01 * at[-1], values[:, mu] - first.value[mu]
        bars: dict[str, Any] = dict(fmt="o", ms=3.5, capsize=2, lw=1, color=f"C{mu}")
        axes.plot(at, c @ value, color=f"C{mu}", lw=1)
        axes.errorbar(1 / np.array(widths) + shift, value, 2 * errors[:, mu], **bars, label=f"y = {target:g}")
        both = 2 * np.hypot(last.stderr[mu], first.stderr[mu])
        axes.errorbar([shift], [last.value[mu] - first.value[mu]], [both], **bars, mfc="white")
    axes.axhline(0, color="black", lw=1, label="N first")
    axes.set(title=f"{activation}, L = ∞: to infinite width (points shifted)", xlabel="1/N", ylabel="F - F of N first")
    axes.legend(fontsize=8)
    return last


def main(widths: Mapping[int, int] = WIDTHS, depths: Sequence[int] = DEPTHS, draws: int = 8) -> dict[str, Any]:
    """Draw the picture and return its numbers. widths: {width: number of networks}. draws: number of DMFT solutions."""
    figure = Figure(figsize=(12, 8), layout="constrained")
    axes = figure.subplots(2, 2)
    sizes = [(width, depth) for width in sorted(widths, reverse=True) for depth in sorted(depths, reverse=True)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        theory = {(of, depth): pool.submit(of_theory, of, depth, draws) for of in ETA0 for depth in depths}
        nets = {(of, *size): pool.submit(of_networks, of, *size, widths[size[0]]) for of in ETA0 for size in sizes}
    numbers: dict[str, Any] = {"networks": dict(widths), "depths": depths}
    print(f"predictions after {STEPS - 1} steps at y = {', '.join(f'{y:g}' for y in Y)}, with 95% intervals")
    for row, activation in zip(axes, ETA0, strict=True):
        rows = {"N = ∞: DMFT": np.stack([theory[activation, depth].result() for depth in depths], axis=1)}
        for width in widths:
            rows[f"N = {width}"] = np.stack([nets[activation, width, depth].result() for depth in depths], axis=1)
        c = coefficients(depths, np.zeros(1))[0]
        first, *others = (mean(np.einsum("l,dlp->dp", c, of)) for of in rows.values())
        found = dict(zip(widths, others, strict=True))
        term = ratio_term(dict(zip(widths, list(rows.values())[1:], strict=True)), depths)
        draw_depths(row[0], activation, rows, depths)
        last = draw_widths(row[1], activation, found, first)
        difference = Estimate(last.value - first.value, last.covariance + first.covariance)
        table = {f"N = {width}, L = inf": of for width, of in found.items()}
        table |= {"L first": last, "N first": first, "difference": difference, "L/N": term}
        print(f"  {activation}")
        for name, of in table.items():
            cells = zip(of.value, NORMAL * of.stderr, strict=True)
            print(f"    {name:16}" + "".join(f"  {value:+.4f} +- {half:.4f}" for value, half in cells))
        square = float(difference.value @ np.linalg.solve(difference.covariance, difference.value))
        chance = float(chdtrc(len(Y), square))
        print(f"    chance of a difference as large, of all samples together, if the limits are the same: {chance:.2f}")
        numbers[activation] = {name: {"F": of.value, "95%": NORMAL * of.stderr} for name, of in table.items()}
        numbers[activation]["chance"] = chance
    write(figure, numbers, "docs/images/limits_commute.png")
    return numbers


if __name__ == "__main__":
    prepare_cpu(1)
    main()
