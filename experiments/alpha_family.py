"""Branches with the multiplier L^-alpha, alpha = 1/2, 3/4 and 1 (paper A, Appendix M; docs/theory.md section 1.1).

    python -m experiments.alpha_family        (docs/images/alpha_family.png; three minutes on two cores)

The learning rates of branches are proportional to L^(2 alpha - 1). The panels of the picture:

1. What the random branches add to the kernel at initialization, |H^L - H^0| / |H^0|: theory (`lazy_kernels`) and
   networks.
2. Distance between the predictions at depth L and at infinite depth, rms over steps and samples: for linear networks
   exactly, for tanh by Monte Carlo, as differences between runs with the same draws.
3. Learning curves.
4. Movement of the last feature kernel in training, |H(T-1) - H(0)| / |H(0)|: theory and networks.

Networks are tanh; each is averaged with its mirror image (the same weights with the opposite readout). Result: every
alpha has a limit of infinite depth, and moves features equally far at every depth. All alpha above 1/2 have the same
limit, in which random branches play no part. Networks of alpha = 3/4 approach it only as L^-1/2; those of alpha = 1/2
and 1 approach their limits as 1/L.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from depthmup.backend import prepare_cpu
from depthmup.measure import distance, feature_kernels
from depthmup.theory import Dynamics, Problem, dmft, lazy_kernels, linear_dmft
from experiments.networks import KX, Observe, Y, network, train
from experiments.results import interval, ticks, write
from experiments.richness import Law, Measured, X, exponent, mean, movement, of_draws, rms

COLORS = {0.5: "C0", 0.75: "C1", 1.0: "C2"}  # {alpha: color}
ETA0 = {"linear": 0.15, "tanh": 1.0}
DEEPEST = 4  # number of the largest depths in the fits of exact lines, and in all fits of panel 4
Trained = dict[float, dict[int, tuple[np.ndarray, np.ndarray]]]
Solved = dict[float, dict[int | None, tuple[np.ndarray, float]]]
Exact = dict[float, dict[int | None, Dynamics]]


@functools.cache
def end_kernels(width: int, depth: int) -> Observe:
    """The argument `observe` of `train` on `X` that measures H^0 and H^L, (2, P, P)."""
    model = network(width, depth)

    def observe(params: Any, factors: Any) -> jax.Array:
        states = jax.tree.leaves(model.forward(factors)(params, jnp.asarray(X), None)[1])
        return feature_kernels([states[0], states[-1]])

    return observe


def problem(activation: str, alpha: float, depth: int | None, steps: int) -> Problem:
    return Problem(KX, Y, depth=depth, alpha=alpha, steps=steps, eta0=ETA0[activation], activation=activation)


def networks(alphas: Sequence[float], depths: Sequence[int], width: int, seeds: int, steps: int) -> Trained:
    """Of each alpha and depth: predictions (seeds, T, P); H^0 and H^L before and after, (seeds, 2, 2, P, P)."""
    options: dict[str, Any] = dict(width=width, seeds=seeds, mirrored=True)
    found: Trained = {}
    for alpha in alphas:
        problems = {depth: problem("tanh", alpha, depth, steps) for depth in depths}
        found[alpha] = {n: train(of, observe=end_kernels(width, n), **options) for n, of in problems.items()}
    return found


def solutions(alphas: Sequence[float], depths: Sequence[int], draws: int, samples: int, steps: int) -> Solved:
    """tanh, of each alpha and depth (None: infinite): predictions (draws, T, P), and the movement of H^L."""
    found: Solved = {alpha: {} for alpha in alphas}
    for alpha in alphas:
        for depth in (*depths, None):
            given = problem("tanh", alpha, depth, steps)
            runs = [dmft(given, samples=samples, replicates=1, seed=seed) for seed in range(draws)]
            last = sum(run.H[-1] for run in runs) / draws
            found[alpha][depth] = np.stack([run.predictions for run in runs]), movement(last)
    return found


def deep_law(depths: Sequence[int], values: np.ndarray) -> Law:
    """The power law of exact values at the DEEPEST largest depths."""
    return exponent(depths[-DEEPEST:], values[-DEEPEST:], 0 * values[-DEEPEST:])


def at_initialization(axis: Axes, depths: Sequence[int], trained: Trained) -> dict[str, Any]:
    """Draw the first panel. Kernels are averaged over networks first, since the fluctuations of one network's kernel,
    of order N^-1/2, do not vanish with L."""
    numbers: dict[str, Any] = {"depths": depths}
    print("|H^L - H^0| / |H^0| at initialization, tanh: networks (s.e.) and theory")
    for alpha, runs in trained.items():
        kernels = (lazy_kernels(KX, depth, "tanh", alpha=alpha).H[-1] for depth in depths)
        line = np.array([np.linalg.norm(kernel - KX) for kernel in kernels]) / np.linalg.norm(KX)
        added = np.stack([kernels[:, 0, 1] - kernels[:, 0, 0] for _, kernels in runs.values()], axis=1)
        found = of_draws(added / np.linalg.norm(KX), lambda k: np.linalg.norm(k, axis=(-2, -1)), list(runs))
        law = deep_law(depths, line)
        numbers[f"{alpha:g}"] = {"theory": line, "slope of theory": law, **found._asdict()}
        at = dict(zip(depths, line, strict=True))
        report(f"alpha = {alpha:<4g}", runs, found, at, f"slopes {interval(found.law)} {interval(law)}")
        axis.plot(depths, line, color=COLORS[alpha], label=f"alpha = {alpha:g}, theory: slope {interval(law)}")
        axis.errorbar(list(runs), found.value, 2 * found.stderr, fmt="o", ms=4, color=COLORS[alpha])
    axis.set(xscale="log", yscale="log", xlabel="L", ylabel="|H^L - H^0| / |H^0|")
    axis.set_title("1. What random branches add at initialization, tanh", fontsize=10)
    axis.legend(fontsize=8, loc="lower left")
    return numbers


def report(name: str, depths: Any, found: Measured, theory: dict[int, float], more: str) -> None:
    rows = zip(depths, found.value, found.stderr, strict=True)
    texts = (f"{n}: {v:.4f} ({e:.4f})" + (f" {theory[n]:.4f}" if n in theory else "") for n, v, e in rows)
    print(f"  {name}", *texts, more, sep="  ")


def to_infinite_depth(axis: Axes, linear: Exact, solved: Solved) -> dict[str, Any]:
    """Draw the second panel."""
    numbers: dict[str, Any] = {}
    print(f"\nrms of F_L - F_inf (s.e.); slopes: linear at the {DEEPEST} largest L, tanh above twice the noise")
    for alpha, runs in linear.items():
        depths = [depth for depth in runs if depth]
        away = np.array([rms(runs[depth].predictions - runs[None].predictions) for depth in depths])
        exact = Measured(away, np.full_like(away, rms(runs[None].error)), deep_law(depths, away))
        lines = {"linear": (depths, exact)}
        tanh = np.array([depth for depth in solved[alpha] if depth])
        differences = np.stack([solved[alpha][depth][0] - solved[alpha][None][0] for depth in tanh], axis=1)
        noise = rms(mean(differences)[1])
        seen = rms(differences.mean(0)) > 2 * noise
        if seen.sum() > 2:
            far = of_draws(differences[:, seen], rms, tanh[seen].tolist())
            lines["tanh"] = tanh[seen].tolist(), far
        else:
            print(f"  tanh   alpha = {alpha:<4g}  {seen.sum()} depths above twice the noise, {noise.max():.4f}")
        for name, (at, found) in lines.items():
            numbers[f"{name}, {alpha:g}"] = {"depths": at, **found._asdict()}
            report(f"{name:6} alpha = {alpha:<4g}", at, found, {}, f"slope {interval(found.law)}")
            label = f"{name}, alpha = {alpha:g}: slope {interval(found.law)}"
            style = dict(fmt=".-") if name == "linear" else dict(fmt="s", ms=4, mfc="white", lw=1)
            bars = 2 * found.stderr if name == "tanh" else None
            axis.errorbar(at, found.value, bars, color=COLORS[alpha], label=label, **style)
    axis.set(xscale="log", yscale="log", xlabel="L", ylabel="rms of F_L - F_inf", ylim=(1e-4, None))
    axis.set_title("2. Distance from infinite depth (above twice the noise)", fontsize=10)
    axis.legend(fontsize=7, loc="lower left")
    return numbers


def curves(axis: Axes, solved: Solved, trained: Trained) -> dict[str, Any]:
    """Draw the third panel, at the largest depth of the theory."""
    numbers: dict[str, Any] = {}
    depth = max(n for n in next(iter(solved.values())) if n)
    print(f"\nlast predictions at L = {depth}, tanh: networks (s.e.) and theory; largest difference of all (s.e.)")
    for alpha in solved:
        theory, noise = mean(solved[alpha][depth][0])
        infinite = solved[alpha][None][0].mean(0)
        value, error = mean(trained[alpha][depth][0])
        at = np.unravel_index(np.abs(value - theory).argmax(), value.shape)
        gap = float(np.abs(value - theory)[at]), float(np.hypot(error, noise)[at])
        numbers[f"{alpha:g}"] = dict(theory=theory, infinite=infinite, networks=value, stderr=error, largest=gap)
        triples = zip(value[-1], error[-1], theory[-1], strict=True)
        texts = (f"{v:+.3f} ({e:.3f}) {t:+.3f}" for v, e, t in triples)
        print(f"  alpha = {alpha:<4g}", *texts, f"{gap[0]:.3f} ({gap[1]:.3f})", sep="  ")
        axis.plot(theory[:, 1], color=COLORS[alpha], label=f"alpha = {alpha:g}, theory")
        axis.plot(infinite[:, 1], ":", color=COLORS[alpha], label="the same, L = inf")
        axis.errorbar(range(len(value)), value[:, 1], 2 * error[:, 1], fmt="o", ms=4, color=COLORS[alpha])
    axis.axhline(Y[1], color="black", lw=1, label="target")
    axis.set(xlabel="steps", ylabel="F of one sample")
    axis.set_title(f"3. Learning curves at L = {depth}, tanh", fontsize=10)
    axis.legend(fontsize=8)
    return numbers


def moves(axis: Axes, linear: Exact, solved: Solved, trained: Trained) -> dict[str, Any]:
    """Draw the last panel."""
    numbers: dict[str, Any] = {}
    print(f"\n|H(T-1) - H(0)| / |H(0)| of the last layer: networks (s.e.) and theory, slope at the {DEEPEST} largest L")
    for alpha, runs in trained.items():
        moved = [distance(jnp.asarray(k[:, 1, 1]), jnp.asarray(k[:, 0, 1])) for _, k in runs.values()]
        networks = np.stack(moved, axis=1).astype(float)  # (seeds, depths); one seed shares weights at all depths
        deep = of_draws(networks[:, -DEEPEST:], np.asarray, list(runs)[-DEEPEST:])
        found = of_draws(networks, np.asarray, list(runs))._replace(law=deep.law)
        sampled = {depth: moved for depth, (_, moved) in solved[alpha].items() if depth}
        exact = {depth: movement(run.H[-1]) for depth, run in linear[alpha].items() if depth}
        linear_law = deep_law(list(exact), np.array(list(exact.values())))
        infinite = {"tanh": solved[alpha][None][1], "linear": movement(linear[alpha][None].H[-1])}
        numbers[f"{alpha:g}"] = dict(
            found._asdict(), depths=list(runs), tanh=sampled, linear=exact, linear_law=linear_law, infinite=infinite
        )
        slope = f"inf: {infinite['tanh']:.4f}  slope {interval(found.law)}"
        report(f"tanh   alpha = {alpha:<4g}", runs, found, sampled, slope)
        texts = (f"{depth}: {moved:.4f}" for depth, moved in exact.items())
        print(f"  linear alpha = {alpha:<4g}", *texts, f"inf: {infinite['linear']:.4f}", interval(linear_law), sep="  ")
        axis.plot(list(exact), list(exact.values()), "--", lw=1, color=COLORS[alpha])
        axis.plot(list(sampled), list(sampled.values()), color=COLORS[alpha])
        label = f"alpha = {alpha:g}: slope {interval(found.law)}"
        axis.errorbar(list(runs), found.value, 2 * found.stderr, fmt="o", ms=4, color=COLORS[alpha], label=label)
    axis.set(xscale="log", xlabel="L", ylabel="|H(T-1) - H(0)| / |H(0)|", ylim=(0, None))
    axis.set_title("4. Movement of the last feature kernel: tanh; linear (dashed)", fontsize=10)
    axis.legend(fontsize=8, loc="lower right")
    return numbers


def main(
    alphas: Sequence[float] = tuple(COLORS),
    steps: int = 6,
    shallow: Sequence[int] = (2, 4, 8, 16),
    depths: Sequence[int] = (2, 4, 8, 16, 32, 64),
    draws: int = 8,
    samples: int = 4000,
    width: int = 256,
    wired: Sequence[int] = (2, 4, 8, 16, 32),
    seeds: int = 48,
) -> dict[str, Any]:
    """Draw the picture and return its numbers. shallow: depths of the tanh theory. depths: depths of the linear theory.
    wired: depths of the networks."""
    figure = Figure(figsize=(11.5, 7.8), layout="constrained")
    (first, second), (third, fourth) = figure.subplots(2, 2)
    trained = networks(alphas, wired, width, seeds, steps)
    solved = solutions(alphas, shallow, draws, samples, steps)
    linear: Exact = {a: {n: linear_dmft(problem("linear", a, n, steps)) for n in (*depths, None)} for a in alphas}
    settings = dict(steps=steps, draws=draws, samples=samples, width=width, seeds=seeds, eta0=ETA0, Kx=KX, y=Y)
    numbers = {
        "settings": settings,
        "initialization": at_initialization(first, depths, trained),
        "distance": to_infinite_depth(second, linear, solved),
        "curves": curves(third, solved, trained),
        "movement": moves(fourth, linear, solved, trained),
    }
    for axis in (first, second, fourth):
        ticks(axis.xaxis, depths)
    figure.suptitle(f"Branch multiplier L^-alpha: networks of N = {width}; error bars: 2 s.e.", fontsize=10)
    write(figure, numbers, "docs/images/alpha_family.png")
    return numbers


if __name__ == "__main__":
    prepare_cpu(1)
    main()
