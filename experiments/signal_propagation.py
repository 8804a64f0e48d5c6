"""Signal propagation at initialization, against closed forms: `python -m experiments.theory_checks signal_propagation`.

1. Plain ReLU CNN with He init and circular padding: the mean squares of z^l, and of its derivative along any parameter
   of an earlier layer (T_l), are the same in all layers (AM-muP paper, Lemma 1). A residual block of one convolution
   multiplies both by 1 + c / 2K (Lemma 3). A block of two convolutions, both with variance c / (K fan_in), multiplies
   them by 1 + c^2 / 4K^2.
2. GELU: with the paper's init the variance grows from layer to layer, to 16 after ten layers. A layer multiplies the
   mean square of gradients by gain <phi'^2>. With the init `stationary` the variance 1 is a fixed point, but one that
   repels (tests/test_signal_propagation.py).
3. Zero padding: the variance follows a random walk that dies at the boundary, so the lost part grows with depth; the
   paper's correction O(kernel / side) does not grow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import depthmup as dm
from depthmup.activations import ActivationName
from depthmup.models import CNN, Model, ResidualCNN, states
from depthmup.theory.moments import moments
from experiments.output import Row, about, mean

SEEDS = 64
PAPER = 2 * 2**0.5  # GELU's gain in the AM-muP paper


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


def variance_map(activation: ActivationName, gain: float, layers: int, start: float = 1.0) -> np.ndarray:
    """q_1 = start, q_{l+1} = gain <phi(sqrt(q_l) z)^2>, z ~ N(0, 1): variances of z^1 .. z^layers at infinite width."""
    q = [start]
    for _ in range(layers - 1):
        (square,), _ = moments(activation).same(jnp.array(q[-1:]))
        q.append(gain * float(square))
    return np.array(q)


def slope_moment(activation: ActivationName, variance: float = 1.0) -> float:
    """<phi'(sqrt(variance) z)^2>, z ~ N(0, 1). Times the gain: the factor of a gradient's mean square in each layer."""
    return float(moments(activation).same(jnp.array([variance]))[1][0])


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


def ratios(moments: np.ndarray) -> np.ndarray:
    """(seeds,), the mean over layers of the ratio of a layer's moment to that of the layer before."""
    return (moments[:, 1:] / moments[:, :-1]).mean(axis=1)


def rows(depth: int = 16, sides: Sequence[int] = (8, 16, 32, 64), layers: int = 32, seeds: int = SEEDS) -> list[Row]:
    """Row by row: the ratio of a layer to the one before, GELU, and what zero padding leaves."""
    # (name, network, power of its input, branch factor, ratio by the closed form)
    cases: list[tuple[str, Model, float, float, float]] = [
        ("CNN, layers", CNN(128, depth + 1, scan=False), 0.5, 1.0, 1.0)
    ]
    for kernels, ratio in (((3,), 1 + 2 / (2 * depth)), ((3, 3), 1 + 4 / (4 * depth**2))):
        # Two layers of variance c / (K fan_in) each: gain c / sqrt(K) and the branch factor b = 1 / sqrt(K) multiply.
        gain = 2.0 if len(kernels) == 1 else 2.0 / np.sqrt(depth)
        model: Model = ResidualCNN(128, depth, kernels=kernels, gain=gain, scan=False)
        cases.append((f"ResidualCNN, {len(kernels)} in a branch, c = 2, K", model, 1.0, depth**-0.5, ratio))
    result = []
    for name, model, power, branch, ratio in cases:
        for symbol, squares in zip("zT", second_moments(model, white((16,), 16, power), seeds, branch), strict=True):
            statement = f"{name} = {depth}: {symbol} of a layer over the one before"
            result.append(Row("6a", statement, about(ratio, 0.02), *mean(ratios(squares))))
    grown = float(variance_map("gelu", PAPER, 11)[10])
    result.append(Row("6a", "GELU, paper's init: variance after ten layers", about(16.1, 0.1), grown))
    for name, gain, factor in (("paper's init", PAPER, 1.29), ("He's gain 2", 2.0, 0.912)):
        statement = f"GELU, {name}: gradients, factor of a layer"
        result.append(Row("6a", statement, about(factor, 0.005), gain * slope_moment("gelu")))
    for side in sides:
        left = float(zero_padded_variance(side, layers)[-1])
        networks, error = (float(losses[-1]) for losses in padding_loss(side, layers, seeds))
        name = f"zero padding, side {side}: share of the variance left after {layers} layers"
        result.append(Row("6a", name, about(left, 0.08), networks, 1.96 * error))
    return result
