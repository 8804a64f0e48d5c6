"""Signal propagation at initialization, simulated and in closed form; writes a picture and prints its numbers.

    python experiments/signal_propagation.py docs/images/signal_propagation.png        (a minute on two cores)

1. Plain ReLU CNN with He init and circular padding: the mean squares of z^l, and of its derivative along any parameter
   of an earlier layer (T_l), are the same in all layers (AM-muP paper, Lemma 1). A residual block of one convolution
   multiplies both by 1 + c / 2K (Lemma 3). A block of two convolutions, both with variance c / (K fan_in), multiplies
   them by 1 + c^2 / 4K^2.
2. GELU: with the paper's init the variance grows from layer to layer (16 at layer 10). With the init `stationary` the
   variance 1 is a fixed point, but a repelling one. A layer multiplies the mean square of gradients by gain <phi'^2>.
3. Zero padding: the variance follows a random walk that dies at the boundary, so the lost part grows with depth; the
   paper's correction O(kernel / side) does not grow.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

import depthmup as dm
from depthmup.backend import prepare_cpu
from depthmup.models import ACTIVATIONS, CNN, Model, ResidualCNN, states, stationary_gain

SEEDS = 64


def second_moments(model: Model, x: np.ndarray, seeds: int, branch: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """(mean squares of z^l, mean squares of its derivative along a random direction of the read-in), (seeds, states)
    each, over space and channels. x: (1, *space, C).
    """
    forward = dm.ForwardFactors(branch, 1.0, 1.0)

    def one(key: Any) -> tuple[jax.Array, jax.Array]:
        params = model.init(key, x, forward)["params"]
        noise = jax.tree.map(lambda w: jax.random.normal(jax.random.fold_in(key, 1), w.shape), params["read_in"])
        tangent = {**jax.tree.map(jnp.zeros_like, params), "read_in": noise}

        def stream(params: Any) -> list[jax.Array]:
            return states(model.apply({"params": params}, x, forward, mutable=["stream"])[1]["stream"])

        z, dz = jax.jvp(stream, (params,), (tangent,))
        mean_square = [jnp.stack([jnp.mean(h**2) for h in values]) for values in (z, dz)]
        return mean_square[0], mean_square[1]

    run = jax.jit(one)
    results = [run(jax.random.key(seed)) for seed in range(seeds)]
    return np.stack([z for z, _ in results]), np.stack([dz for _, dz in results])


def variance_map(activation: str, gain: float, layers: int, start: float = 1.0) -> np.ndarray:
    """q_1 = start, q_{l+1} = gain <phi(sqrt(q_l) z)^2>, z ~ N(0, 1): variances of z^1 .. z^layers at infinite width."""
    z, weights = np.polynomial.hermite_e.hermegauss(128)
    weights = weights / weights.sum()
    q = [start]
    for _ in range(layers - 1):
        phi = np.asarray(ACTIVATIONS[activation](jnp.asarray(np.sqrt(q[-1]) * z)), np.float64)
        q.append(gain * float(weights @ phi**2))
    return np.array(q)


def slope_moment(activation: str, variance: float = 1.0) -> float:
    """<phi'(sqrt(variance) z)^2>, z ~ N(0, 1). Times the gain: the factor of a gradient's mean square in each layer."""
    z, weights = np.polynomial.hermite_e.hermegauss(128)
    slopes = jax.vmap(jax.grad(ACTIVATIONS[activation]))(jnp.asarray(np.sqrt(variance) * z, jnp.float32))
    return float(weights @ np.asarray(slopes, np.float64) ** 2 / weights.sum())


def zero_padded_variance(side: int, layers: int, kernel: int = 3) -> np.ndarray:
    """Mean squares of z^1 .. z^layers over the mean square of z^1, (layers,), for a one-dimensional ReLU CNN with He
    init and zero padding on a white input.

    At position p, q_{l+1}(p) is the mean over the kernel's offsets of q_l(p + offset), which is 0 outside the image.
    This is exact in expectation at any width, since ReLU halves the mean square of a pre-activation whose sign is
    random. q_l is the chance that a random walk is still inside the image.
    """
    window = np.ones(kernel) / kernel
    q = np.ones(side)
    profile = []
    for _ in range(layers):
        q = np.convolve(q, window, mode="same")
        profile.append(q.mean())
    return np.array(profile) / profile[0]


def padding_loss(side: int, layers: int, seeds: int, width: int = 256) -> tuple[np.ndarray, np.ndarray]:
    """(ratio, its standard error) of the mean squares of z^1 .. z^layers with zero padding to those with circular
    padding, relative to layer 1.

    With circular padding the expected mean square is the same in all layers. Both networks have the same weights, so
    most of the scatter cancels.
    """
    x = white((side,), 16, 0.5)
    zero, circular = (
        second_moments(CNN(width, layers, padding=padding, scan=False), x, seeds)[0] for padding in ("zero", "circular")
    )
    first = zero[:, 0].mean() / circular[:, 0].mean()
    mean = zero.mean(0) / circular.mean(0)
    error = (zero - mean * circular).std(0, ddof=1) / np.sqrt(seeds) / circular.mean(0)
    return mean / first, error / first


def white(space: Sequence[int], channels: int, power: float, seed: int = 0) -> np.ndarray:
    """A random input, (1, *space, channels), with the same power (mean square) at every position."""
    x = np.random.default_rng(seed).normal(size=(1, *space, channels))
    return (x * np.sqrt(power / np.mean(x**2, axis=-1, keepdims=True))).astype(np.float32)


def draw(path: str) -> None:
    figure = Figure(figsize=(14, 4.2), layout="constrained")
    left, middle, right = figure.subplots(1, 3)

    depth = 16
    cnn: Model = CNN(128, depth + 1, scan=False)
    plain, derivative = second_moments(cnn, white((16,), 16, 0.5), SEEDS)
    print("mean of z_l^2 and of T_l over those of the layer before, all layers and seeds, and the closed form")
    ratio(f"CNN, width 128, {depth} layers", plain, derivative, 1.0)
    left.plot(plain.mean(0) / plain[:, 0].mean(), "o", ms=4, color="C0", label="CNN, He")
    left.axhline(1, color="C0", lw=1)
    for color, kernels, growth in (("C1", (3,), 1 + 2 / (2 * depth)), ("C2", (3, 3), 1 + 4 / (4 * depth**2))):
        # Two layers of variance c / (K fan_in) each: gain c / sqrt(K) and the branch factor b = 1 / sqrt(K) multiply.
        gain = 2.0 if len(kernels) == 1 else 2.0 / np.sqrt(depth)
        module = ResidualCNN(128, depth, kernels=kernels, gain=gain, scan=False)
        z, dz = second_moments(module, white((16,), 16, 1.0), SEEDS, branch=depth**-0.5)
        ratio(f"ResidualCNN, {len(kernels)} convolutions, c = 2, K = {depth}", z, dz, growth)
        name = f"ResidualCNN, {len(kernels)} conv., c = 2, K = {depth}"
        left.plot(z.mean(0) / z[:, 0].mean(), "o", ms=4, color=color, label=name)
        left.plot(growth ** np.arange(depth + 1), color=color, lw=1)
    left.set(title="1. ReLU, circular padding", xlabel="layer", ylabel="mean square of z^l over the first")
    left.legend(fontsize=8)

    layers = 16
    print("\nGELU: variance at layers 1, 5, 10, 16, variance map and CNN of width 256 (median of seeds)")
    for color, rule, gain in (("C3", "paper", 2 * 2**0.5), ("C0", "stationary", stationary_gain("gelu"))):
        for start, style in ((1.0, "-"), (0.8, "--"), (1.25, ":")):
            if rule == "paper" and start != 1:
                continue
            theory = variance_map("gelu", gain, layers, start)
            model = CNN(256, layers, activation="gelu", gelu_variance=rule, scan=False)
            z, _ = second_moments(model, white((16,), 16, start / gain), SEEDS // 4)
            measured = np.median(z, axis=0)
            middle.plot(range(1, layers + 1), theory, style, color=color, label=f"{rule}, from {start}")
            middle.plot(range(1, layers + 1), measured, "o", ms=3, color=color)
            pairs = "  ".join(f"{theory[i - 1]:6.2f} {measured[i - 1]:6.2f}" for i in (1, 5, 10, 16))
            print(f"  {rule:10} from {start:4}: {pairs}")
    print("GELU: <phi'^2>, and times the gain, the factor of a gradient's mean square in each layer (ReLU: .5, 1)")
    for rule, gain, layer in (("He", 2.0, 1), ("paper", 2 * 2**0.5, 1), ("paper", 2 * 2**0.5, 10),
                              ("stationary", stationary_gain("gelu"), 1)):  # fmt: skip
        moment = slope_moment("gelu", 1.0 if layer == 1 else float(variance_map("gelu", gain, layer)[-1]))
        print(f"  {rule:10} at layer {layer:2}: {moment:.3f} {gain * moment:.3f}")
    middle.set(title="2. GELU: variance map and CNN", xlabel="layer", ylabel="variance of z^l", yscale="log")
    middle.legend(fontsize=8)

    layers = 32
    print(
        f"\nzero padding, 1-D, kernel 3: mean square at layer {layers} over that of layer 1, closed form and CNN (s.e.)"
    )
    for i, side in enumerate((8, 16, 32, 64)):
        theory = zero_padded_variance(side, layers)
        mean, error = padding_loss(side, layers, SEEDS)
        right.plot(range(1, layers + 1), theory, color=f"C{i}", label=f"side {side}")
        right.errorbar(range(1, layers + 1, 3), mean[::3], 2 * error[::3], fmt="o", ms=3, color=f"C{i}", lw=1)
        print(f"  side {side:3}: {theory[-1]:.3f} {mean[-1]:.3f} ({error[-1]:.3f})")
    right.axhline(1, color="black", lw=1, label="circular")
    right.set(title="3. ReLU, zero padding", xlabel="layer", ylim=(0, 1.3))
    right.set_ylabel("mean square of z^l over z^1, and over circular")
    right.legend(fontsize=8)
    figure.savefig(path, dpi=120)


def ratio(name: str, z: np.ndarray, dz: np.ndarray, closed_form: float) -> None:
    (a, a_error), (b, b_error) = mean_ratio(z), mean_ratio(dz)
    print(f"  {name:45} {a:.4f} ({a_error:.4f})  {b:.4f} ({b_error:.4f})  {closed_form:.4f}")


def mean_ratio(moments: np.ndarray) -> tuple[float, float]:
    """(mean over layers and seeds, its standard error) of the ratio of a layer's moment to the layer before."""
    ratios = (moments[:, 1:] / moments[:, :-1]).mean(axis=1)
    return float(ratios.mean()), float(ratios.std(ddof=1) / np.sqrt(len(ratios)))


if __name__ == "__main__":
    prepare_cpu(1)
    draw(sys.argv[1] if len(sys.argv) > 1 else "docs/images/signal_propagation.png")
