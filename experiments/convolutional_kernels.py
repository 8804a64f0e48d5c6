"""Lazy kernels of convolutional residual networks: convergence in depth and in width (paper A, Appendix K.1).

    python -m experiments.convolutional_kernels        (docs/images/convolutional_kernels.png; a minute)

Four handwritten digits of 8x8 pixels, 3x3 filters, ReLU, beta^2 = 2 (He's gain); docs/theory.md section 2.2.

1. Entries of the last layer's feature kernel and of the NTK: `ResidualCNN` at initialization against the limit.
2. Mean squared error of the NTK and its parts over width, relative to the limit's mean square: slope -1.
3. Distance between the limits at depth L and at infinite depth: slope -1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import depthmup as dm
from depthmup.backend import prepare_cpu
from depthmup.data import digits
from depthmup.data.dataset import Split
from depthmup.fit import ensemble_errors
from depthmup.models import ResidualCNN, model_specs
from depthmup.specs import is_spec
from depthmup.theory import ConvKernels, lazy_conv_kernels
from experiments.networks import mean_error, noisy_law
from experiments.ntk_depth import draw_depths
from experiments.results import interval, ticks, write

GAIN, TAPS = 2.0, 9
PARTS = {"H": "C4", "ntk_branch": "C0", "ntk_readin": "C1", "ntk_readout": "C2", "ntk": "C3"}
LABELS = dict(zip(PARTS, ("H of the last layer", "branches", "read-in", "readout", "NTK"), strict=True))


def images(samples: int) -> np.ndarray:
    """Normalized digits, (samples, 8, 8, 1): the mean image subtracted, then divided by the standard deviation."""
    data = digits.load()
    assert isinstance(data.train, Split)  # in memory
    return ((data.train.inputs[:samples] - data.mean) / data.std).astype(np.float32)


def limit(x: np.ndarray, depth: int | None, padding: str) -> dict[str, np.ndarray]:
    found: ConvKernels = lazy_conv_kernels(x, depth, "relu", GAIN**0.5, padding=padding, times=(1,))
    return {name: found.H[0] if name == "H" else getattr(found, name) for name in PARTS}


def networks(x: np.ndarray, width: int, depth: int, seeds: int, padding: str, first_seed: int) -> dict[str, np.ndarray]:
    """{part: kernels (seeds, P, P)} for PARTS of networks at initialization, with the learning rates of docs/theory.md
    section 0."""
    model = ResidualCNN(width, depth, 1, "relu", kernels=(3,), gain=GAIN, padding=padding, scan=False)
    specs, p = model_specs(model, x.shape[1:]), dm.parameterization("depth_mup")
    forward = p.forward_factors(width=width, depth=depth)
    groups = jax.tree.map(lambda spec: spec.role, specs, is_leaf=is_spec)
    # The canonical form's learning rates over the package's, by role.
    canonical = {"hidden": GAIN / TAPS, "input": 1 / (TAPS * x.shape[-1]), "readout": 1.0}
    rates = jax.tree.map(
        lambda spec, rate: rate * canonical[spec.role], specs, dm.factors(p, specs).lr, is_leaf=is_spec
    )
    run, examples = model.forward(forward), jnp.asarray(x)

    @jax.jit
    def one(seed: jax.Array) -> dict[str, jax.Array]:
        params = dm.rescale(p, specs, model.init(jax.random.key(seed), examples, forward)["params"])
        ntk = dm.empirical_ntk(lambda w, inputs: run(w, inputs, None)[0], params, examples, rates=rates, groups=groups)
        H = dm.network_kernels(run, params, examples, phi=model.phi).H[-1]
        parts = {"ntk_branch": ntk["hidden"], "ntk_readin": ntk["input"], "ntk_readout": ntk["readout"]}
        return {"H": H, **parts, "ntk": sum(parts.values(), jnp.zeros_like(H))}

    # One seed at a time is faster than a vmap over seeds.
    found = [jax.tree.map(np.asarray, one(np.uint32(first_seed + i))) for i in range(seeds)]
    return {name: np.stack([of[name] for of in found]).astype(float) for name in PARTS}


def draw_entries(axes: Axes, found: dict[str, np.ndarray], exact: dict[str, np.ndarray], label: str) -> dict[str, Any]:
    numbers, pairs = {}, np.triu_indices(len(exact["ntk"]))
    print(f"{label}: largest |mean - limit| of an entry, in standard errors, and over the largest entry")
    for name, color in PARTS.items():
        values, at = (of[..., pairs[0], pairs[1]] for of in (found[name], exact[name]))
        mean, error = mean_error(values)
        off = np.abs(mean - at)
        print(f"  {LABELS[name]:20} {(off / error).max():4.1f} {off.max() / at.max():7.4f}")
        axes.errorbar(at, mean / at, 2 * error / at, fmt="o", ms=3, capsize=2, color=color, label=LABELS[name])
        numbers[name] = {"limit": at, "mean": mean, "stderr": error}
    axes.axhline(1, color="black", lw=0.8)
    axes.set(title=f"1. {label}", xlabel="limit, entry by entry", ylabel="mean network / limit (bars: 2 s.e.)")
    axes.set(xscale="log", ylim=(0.8, 1.2))
    axes.legend(fontsize=8)
    return numbers


def draw_width(axes: Axes, found: dict[int, dict[str, np.ndarray]], exact: dict[str, np.ndarray]) -> dict[str, Any]:
    numbers, widths = {}, list(found)
    print(f"N x relative MSE at N = {widths}; slope of the MSE in N")
    for name, color in PARTS.items():
        size = float(np.mean(exact[name] ** 2))
        mse, error = np.array([ensemble_errors(of[name], exact[name]).squared_error for of in found.values()]).T / size
        law = noisy_law(widths, mse, error)
        print(f"  {LABELS[name]:20}{' '.join(f'{v:6.2f}' for v in widths * mse)}   {interval(law, '+.3f')}")
        axes.errorbar(widths, mse, 2 * error, fmt="o", ms=3.5, capsize=2, color=color)
        axes.plot(widths, law(widths), color=color, lw=1, label=f"{LABELS[name]}: {interval(law, '+.3f')}")
        numbers[name] = {"mse": mse, "stderr": error, "slope": law[:3]}
    axes.set(title="2. Error: slope in N [95%]", xlabel="channels N", xscale="log", yscale="log")
    axes.set(ylabel="relative mean squared error (bars: 2 s.e.)")
    ticks(axes.xaxis, widths)
    axes.legend(fontsize=8)
    return numbers


def draw_depth(axes: Axes, x: np.ndarray, depths: Sequence[int]) -> dict[str, Any]:
    lines: dict[str, tuple[np.ndarray, dict[str, Any]]] = {}
    for padding, style in (("circular", "-"), ("zero", "--")):
        exact, finite = limit(x, None, padding), [limit(x, depth, padding) for depth in depths]
        for name in ("H", "ntk"):
            distances = np.array([np.linalg.norm(of[name] - exact[name]) for of in finite])
            look = dict(ls=style, marker="o", ms=3, color=PARTS[name], label=f"{LABELS[name]}, {padding} padding")
            lines[f"{name}, {padding}"] = distances / np.linalg.norm(exact[name]), look
    axes.set(title="3. Distance to infinite depth")
    numbers = draw_depths(axes, depths, lines, "|K_L - K_∞| / |K_∞|", 0.5)
    ticks(axes.xaxis, depths)
    return numbers


def main(
    samples: int = 4,
    widths: Sequence[int] = (16, 32, 64, 128, 256),
    depth: int = 4,
    seeds: int = 300,
    depths: Sequence[int] = (2, 4, 8, 16, 32, 64, 128, 256),
    padding: str = "circular",
) -> dict[str, Any]:
    """Draw the picture and return its numbers. depth, padding: depth and padding of the networks."""
    figure = Figure(figsize=(13, 4.4), layout="constrained")
    first, second, third = figure.subplots(1, 3)
    x = images(samples)
    found = {N: networks(x, N, depth, seeds, padding, i * seeds) for i, N in enumerate(widths)}
    exact = limit(x, depth, padding)
    shown = widths[len(widths) // 2]
    numbers = {
        "sizes": {"widths": widths, "depth": depth, "seeds": seeds, "shown": shown},
        "entries": draw_entries(first, found[shown], exact, f"{seeds} networks, N = {shown}, L = {depth}"),
        "width": draw_width(second, found, exact),
        "depth": draw_depth(third, x, depths),
    }
    write(figure, numbers, "docs/images/convolutional_kernels.png")
    return numbers


if __name__ == "__main__":
    prepare_cpu(1)
    main()
