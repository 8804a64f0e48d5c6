"""Why muP transfers better than NTP (paper A, Appendix J): richness falls with the width N under NTP, not under muP.

    python -m experiments.ntp_against_mup        (docs/images/ntp_against_mup.png; three minutes on two cores)

NTP is muP with gamma0 = N^-1/2 (docs/theory.md section 1), so the infinite-width limit at this gamma0 describes NTP of
width N, up to errors of finite width. "NTP from 16" is as rich as muP at N = 16: gamma0 = (N / 16)^-1/2. The panels:

1. Movement of the last feature kernel. Networks are averaged with their mirror images (opposite readout weights).
2. Distances, rms over steps and samples: of one network, and of the mean network, from the limit at the same gamma0;
   and under NTP of this limit from the lazy limit, which is NTP's limit N = inf.
3. Loss over the learning rate eta0 at the smallest and the largest width.
4. The best eta0 over width.

ReLU, three samples, full-batch gradient descent, centred predictions. Result: NTP's richness falls as N^-1/2, so its
limit moves with N. But NTP is close to lazy at all of these widths, so its best eta0 drifts no more than muP's best
eta0. The best eta0 of "NTP from 16", which goes from rich to lazy, does drift.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from depthmup.backend import prepare_cpu
from depthmup.fit import capped, ensemble_errors, finite_size, log_losses, optimum, power_law
from depthmup.fit.drift import fitted_drift
from depthmup.fit.transfer import nearest
from depthmup.measure import distance
from depthmup.theory import Problem, dmft
from experiments.networks import KX, Y, train
from experiments.results import interval, ticks, write
from experiments.richness import SMALL, exponent, last_kernels, mean, movement, of_draws, rms

START = 16
RULES: dict[str, Callable[[int], float]] = {
    "muP": lambda width: 1.0,
    "NTP": lambda width: width**-0.5,
    f"NTP from {START}": lambda width: (width / START) ** -0.5,
}
COLORS = dict(zip(RULES, ("C0", "C1", "C2"), strict=True))
ETA0 = 0.5  # learning rate of panels 1 and 2
CAP = 0.5 * float(np.mean(Y**2))  # the loss of F = 0


@functools.cache
def limit(
    gamma0: float, eta0: float, depth: int, steps: int, draws: int, samples: int, activation: str = "relu"
) -> tuple[np.ndarray, float]:
    """Predictions (draws, T, P), their noise nearly the same for all gamma0, and the movement of H^L."""
    problem = Problem(KX, Y, depth=depth, steps=steps, eta0=eta0, gamma0=gamma0, activation=activation)
    runs = [dmft(problem, samples=samples, replicates=1, seed=seed) for seed in range(draws)]
    return np.stack([run.predictions for run in runs]), movement(sum(run.H[-1] for run in runs) / draws)


def seeded(width: int, seeds: int) -> dict[str, Any]:
    """Options of `train`. Different widths have no seed in common; different rules and learning rates share seeds."""
    return dict(width=width, seeds=seeds, first_seed=2**20 * width)


def moves(axis: Axes, seeds: dict[int, int], depth: int, theory: dict[str, int]) -> dict[str, Any]:
    """Draw the first panel. gamma_eff: the gamma0 at which the limit moves as much as the networks do."""
    widths = list(seeds)
    problem = Problem(KX, Y, depth=depth, steps=theory["steps"], eta0=ETA0, activation="relu")
    grid = sorted({1.5, *(rule(width) for rule in RULES.values() for width in widths)})
    moved = [limit(gamma0, ETA0, depth, **theory)[1] for gamma0 in grid]
    numbers: dict[str, Any] = {}
    print("|H(T-1) - H(0)| / |H(0)| of the last layer: networks (s.e.), theory, gamma_eff (s.e.), gamma0")
    for name, rule in RULES.items():
        rows = []
        for width, count in seeds.items():
            options = seeded(width, max(8, count // 4)) | dict(observe=last_kernels(width, depth, "relu"))
            own = dataclasses.replace(problem, gamma0=rule(width))
            kernels = train(own, mirrored=True, **options)[1][:, :, 0]
            rows.append(mean(np.asarray(distance(kernels[:, 1], kernels[:, 0]))))
        value, error = np.array(rows).T
        line = np.array([limit(rule(width), ETA0, depth, **theory)[1] for width in widths])
        low, effective, high = (
            np.exp(np.interp(np.log(of), np.log(moved), np.log(grid))) for of in (value - error, value, value + error)
        )
        effective_error = (high - low) / 2
        laws = {"movement": exponent(widths, value, error), "gamma_eff": exponent(widths, effective, effective_error)}
        numbers[name] = dict(value=value, stderr=error, theory=line, gamma_eff=effective, laws=laws)
        for n, *row in zip(widths, value, error, line, effective, effective_error, strict=True):
            texts = "{:.4f} ({:.4f}) {:.4f}  {:.3f} ({:.3f})".format(*row)
            print(f"  {name:11} N = {n:4}  {texts} {rule(n):.3f}")
        print(f"  {name:11} slopes:", ", ".join(f"{what} {interval(law)}" for what, law in laws.items()))
        axis.plot(widths, line, color=COLORS[name])
        label = f"{name}: slope {interval(laws['movement'])}"
        axis.errorbar(widths, value, 2 * error, fmt="o", ms=4, color=COLORS[name], label=label)
    axis.set(xscale="log", yscale="log", xlabel="N", ylabel="|H(T-1) - H(0)| / |H(0)|")
    axis.set_title("1. Movement of the last feature kernel; lines: theory at gamma0(N)", fontsize=10)
    axis.legend(fontsize=8, loc="lower left")
    return numbers


def errors(axis: Axes, seeds: dict[int, int], depth: int, theory: dict[str, int]) -> dict[str, Any]:
    """Draw the second panel, with networks of the first two rules."""
    widths = list(seeds)
    problem = Problem(KX, Y, depth=depth, steps=theory["steps"], eta0=ETA0, activation="relu")
    numbers: dict[str, Any] = {}
    print("\nrms errors: one network and the mean network from the limit at its gamma0, that limit from the lazy one")
    for name, rule in RULES.items():
        rows = []
        for width, count in seeds.items():
            found = train(dataclasses.replace(problem, gamma0=rule(width)), **seeded(width, count))
            goal, noise = mean(limit(rule(width), ETA0, depth, **theory)[0])
            variance, bias, _ = ensemble_errors(found, goal)
            rows.append((*variance, bias.value - np.mean(noise**2), bias.stderr))
        v, v_error, b, b_error = np.array(rows).T
        v_term = finite_size(widths, None, v, v_error, ("v",)).v
        b_term = finite_size(widths, None, b, b_error, ("m2",)).m2
        numbers[name] = dict(v=v_term, m2=b_term)
        for what, term, square, error, marker in (("one", v_term, v, v_error, "o"), ("mean", b_term, b, b_error, "s")):
            value = np.sqrt(np.maximum(square, 0))
            stderr = error / (2 * np.maximum(value, np.sqrt(error)))
            law = exponent(widths, value, stderr)
            numbers[name][what] = dict(value=value, stderr=stderr, law=law)
            row = " ".join(f"{one:.4f} ({se:.4f})" for one, se in zip(value, stderr, strict=True))
            fitted = f"{'v' if what == 'one' else 'm2'} {interval(term, '.2f') if term else ''}"
            print(f"  {name:11} {what:4} network: {row}, slope {interval(law)}, {fitted}")
            if name != list(RULES)[-1]:
                seen = value > 2 * stderr
                bars = np.array(widths)[seen], value[seen], 2 * stderr[seen]
                face, label = ("white" if what == "mean" else COLORS[name]), f"{name}, {what} network: {interval(law)}"
                axis.errorbar(*bars, fmt=marker, ms=4, mfc=face, color=COLORS[name], label=label)
        for activation, style in (("relu", "-"), ("tanh", "--")) if name != "muP" else ():
            small = limit(SMALL, ETA0, depth, **theory, activation=activation)[0]
            own = [limit(rule(width), ETA0, depth, **theory, activation=activation)[0] - small for width in widths]
            far = of_draws(np.stack(own, axis=1), rms, widths)
            numbers[name][f"to lazy, {activation}"] = far._asdict()
            row = " ".join(f"{one:.4f} ({se:.4f})" for one, se in zip(far.value, far.stderr, strict=True))
            print(f"  {name:11} limit to lazy, {activation}: {row}, slope {interval(far.law)}")
            label = f"{name}, limit to lazy, {activation}: {interval(far.law)}"
            axis.plot(widths, far.value, style, color=COLORS[name], label=label)
    axis.set(xscale="log", yscale="log", xlabel="N", ylabel="rms error", ylim=(4e-6, None))
    axis.set_title("2. Errors from the limit at gamma0(N), and of it from the lazy limit", fontsize=10)
    axis.legend(fontsize=6, loc="lower left", ncols=2, handlelength=1.5, columnspacing=0.6)
    return numbers


def tuned(
    middle: Axes, right: Axes, seeds: dict[int, int], rates: np.ndarray, depth: int, theory: dict[str, int]
) -> dict[str, Any]:
    """Draw the last two panels."""
    widths = list(seeds)
    problem = Problem(KX, Y, depth=depth, steps=theory["steps"], eta0=ETA0, activation="relu")
    numbers: dict[str, Any] = {"eta0": rates}
    print("\nbest eta0: networks [95%] and theory; its drift in octaves per doubling of N [95%]")
    for name, rule in RULES.items():
        losses, line = {}, {}
        for width, count in seeds.items():
            problems = (dataclasses.replace(problem, eta0=e, gamma0=rule(width)) for e in rates)
            runs = [train(of, **seeded(width, count)) for of in problems]
            losses[width] = np.array([[loss(one) for one in run] for run in runs])
            solved = [limit(rule(width), float(e), depth, **theory)[0].mean(0) for e in rates]
            line[width] = np.array([loss(one) for one in solved])
        # A few of hundreds of narrow networks diverge at any large rate: they count with the loss of chance.
        optima = [optimum(rates, capped(of, CAP)) for of in losses.values()]
        best = [optimum(rates, of, CAP).learning_rate or math.nan for of in line.values()]
        drift = fitted_drift(widths, optima, min(seeds.values()))
        law = power_law(widths, best)
        assert drift is not None
        last = losses[widths[-1]].clip(max=CAP).mean(1)
        transferred = last[nearest(rates, optima[0].learning_rate or math.nan)] / last.min()
        numbers[name] = dict(optima=[o._asdict() for o in optima], theory=best, drift=drift, transferred=transferred)
        for n, own, of_theory in zip(widths, optima, best, strict=True):
            rate_of = own.learning_rate or math.nan
            print(f"  {name:11} N = {n:4}  {rate_of:.3f} [{own.low:.3f}, {own.high:.3f}] {of_theory:.3f}")
        print(f"  {name:11} drift {interval(drift)}, theory {interval(law)}; ", end="")
        print(f"loss at the largest N with the eta0 of the smallest over the best {transferred:.3g}")
        for n, style, marker, face in ((widths[0], "--", "s", "white"), (widths[-1], "-", "o", COLORS[name])):
            logs = log_losses(losses[n], CAP)
            value, error = logs.mean(1), logs.std(1, ddof=1) / np.sqrt(logs.shape[1])
            bars = np.exp(value) * [1 - np.exp(-2 * error), np.exp(2 * error) - 1]
            label = f"{name}, N = {n}"
            middle.errorbar(rates, np.exp(value), bars, fmt=marker, ms=4, mfc=face, color=COLORS[name], label=label)
            middle.plot(rates, np.minimum(line[n], CAP), style, color=COLORS[name], lw=1)
        found = [(n, o.learning_rate, o.low, o.high) for n, o in zip(widths, optima, strict=True) if o.learning_rate]
        at, centre, low, high = np.array(found).T
        label = f"{name}: drift {interval(drift[:3])}, theory {law.exponent:+.2f}"
        right.errorbar(at, centre, (centre - low, high - centre), fmt="o", ms=4, color=COLORS[name], label=label)
        right.plot(widths, best, color=COLORS[name], lw=1)
    middle.set(xscale="log", yscale="log", xlabel="eta0", ylabel=f"loss after {theory['steps'] - 1} steps")
    middle.set_title("3. Loss, mean of logs; lines: theory, dashed for the smallest N", fontsize=10)
    middle.legend(fontsize=7, loc="lower left")
    right.set(xscale="log", yscale="log", xlabel="N", ylabel="best eta0", ylim=(0.6, 3))
    right.set_title("4. Best eta0 (95%); drift in octaves per doubling", fontsize=10)
    right.legend(fontsize=8)
    return numbers


def loss(predictions: np.ndarray) -> float:
    """The loss at the last step of predictions, (T, P); infinite if a prediction is off by 1,000 or more."""
    off = predictions[-1].astype(float) - Y
    return 0.5 * float(np.mean(off**2)) if np.abs(off).max() < 1e3 else math.inf


def main(
    depth: int = 3,
    steps: int = 6,
    widths: Sequence[int] = (16, 32, 64, 128, 256, 512),
    networks: int = 16384,
    draws: int = 16,
    samples: int = 4000,
    rates: Sequence[float] = tuple(2.0 ** np.arange(-1.5, 1.26, 0.25)),
) -> dict[str, Any]:
    """Draw the picture and return its numbers. networks: the number of seeds times width, for at most 256 seeds. draws:
    number of DMFT solutions, half as many for the last two panels."""
    figure = Figure(figsize=(11.5, 7.8), layout="constrained")
    (first, second), (third, fourth) = figure.subplots(2, 2)
    seeds = {width: min(256, networks // width) for width in widths}
    theory = dict(steps=steps, draws=draws, samples=samples)
    with warnings.catch_warnings():  # Learning rates above the edge of stability are part of the experiment.
        warnings.filterwarnings("ignore", "gradient descent diverges")
        numbers = {
            "settings": {"depth": depth, "seeds": seeds, **theory, "eta0": ETA0, "Kx": KX, "y": Y},
            "movement": moves(first, seeds, depth, theory),
            "errors": errors(second, seeds, depth, theory),
            "tuned": tuned(third, fourth, seeds, np.array(rates), depth, dict(theory, draws=draws // 2)),
        }
    for axis, values in ((first, widths), (second, widths), (fourth, widths), (third, (0.35, 0.5, 0.7, 1, 1.4, 2))):
        ticks(axis.xaxis, values)
    ticks(fourth.yaxis, (0.7, 1, 1.4, 2))
    figure.suptitle(f"NTP against muP: ReLU, L = {depth}, {steps - 1} steps; error bars: 2 s.e.", fontsize=10)
    write(figure, numbers, "docs/images/ntp_against_mup.png")
    return numbers


if __name__ == "__main__":
    prepare_cpu(1)
    main()
