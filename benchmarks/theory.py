"""Times of the theory's solvers: lazy kernels, linear and Monte Carlo DMFT; and of the NTK of a network.

    python -m benchmarks.theory            # 5 minutes on 2 cores

The first call of a shape also compiles; the later time is the median of three calls.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import depthmup as dm
from depthmup.backend import prepare_cpu
from depthmup.models import ResidualMLP
from depthmup.theory import dmft, lazy_conv_kernels, lazy_kernels, linear_dmft


def timed(run: Callable[[], Any], calls: int = 3) -> tuple[float, float, Any]:
    """(seconds of the first call, median seconds of the following calls, the returned value)."""
    seconds = []
    for _ in range(1 + calls):
        start = time.perf_counter()
        result = run()
        seconds.append(time.perf_counter() - start)
    return seconds[0], float(np.median(seconds[1:])), result


def kernel(samples: int) -> np.ndarray:
    x = np.random.default_rng(0).normal(size=(samples, samples + 50))
    x *= np.random.default_rng(1).uniform(0.7, 1.3, (samples, 1))
    return x @ x.T / x.shape[1]


def problem(samples: int) -> tuple[np.ndarray, np.ndarray]:
    return 0.7 * np.eye(samples) + 0.3, np.random.default_rng(0).normal(size=samples)


def lazy(samples: int = 2000, depth: int = 1000) -> None:
    print(f"lazy NTK, {samples} samples\n| | first call, s | s | off the limit, relative |\n|---|---|---|---|")
    Kx = kernel(samples)
    limits = {}
    for activation in ("relu", "erf", "tanh"):
        first, later, kernels = timed(lambda activation=activation: lazy_kernels(Kx, None, activation, times=()))  # type: ignore[misc]
        limits[activation] = kernels.ntk
        print(f"| {activation}, infinite depth | {first:.2f} | {later:.2f} | |")
    # The limit extrapolated from the recursion, 2 F_2L - F_L, has an error that falls as 1 / L^2.
    first, later, kernels = timed(lambda: lazy_kernels(Kx, depth, "relu", times=()), 1)
    part = slice(0, 50)
    deep = [lazy_kernels(Kx[part, part], d, "relu", times=()).ntk for d in (8 * depth, 16 * depth)]
    size = np.abs(limits["relu"]).max()
    off = np.abs(kernels.ntk - limits["relu"]).max() / size
    print(f"| relu, recursion of depth {depth} | {first:.2f} | {later:.2f} | {off:.1e} |")
    exact = np.abs(2 * deep[1] - deep[0] - limits["relu"][part, part]).max() / size
    print(f"infinite depth against the recursion extrapolated from depths {8 * depth} and {16 * depth}: {exact:.1e}")


def row(name: str, run: Callable[[], Any], calls: int = 3) -> float:
    first, later, _ = timed(run, calls)
    print(f"| {name} | {first:.2f} | {later:.3f} |", flush=True)
    return later


def training() -> None:
    def linear(L: int, P: int, T: int, calls: int = 3) -> float:
        Kx, y = problem(P)
        run = lambda: linear_dmft(Kx, y, depth=L, steps=T, eta0=0.15, gamma0=0.8, memory_limit=8)  # noqa: E731
        return row(f"linear_dmft, L = {L}, P = {P}, T = {T}", run, calls)

    def sampled(L: int, P: int, T: int, S: int) -> float:
        Kx, y = problem(P)
        run = lambda: dmft(Kx, y, depth=L, steps=T, eta0=0.15, samples=S, replicates=1)  # noqa: E731
        return row(f"dmft, tanh, L = {L}, P = {P}, T = {T}, S = {S}", run)

    print("\n| | first call, s | s |\n|---|---|---|")
    for P, T in ((5, 10), (10, 10), (5, 20), (1, 100), (10, 20)):
        linear(16, P, T)
    linear(16, 20, 20, calls=1)
    for L in (4, 8, 32):
        linear(L, 10, 10)
    for L, P, T, S in (
        (4, 10, 10, 20000),
        (4, 5, 20, 20000),
        (4, 10, 5, 20000),
        (4, 10, 20, 20000),
        (2, 10, 10, 20000),
        (8, 10, 10, 20000),
        (4, 10, 10, 10000),
        (4, 10, 10, 40000),
    ):
        sampled(L, P, T, S)


def convolutions() -> None:
    print("\n| lazy_conv_kernels, ReLU | first call, s | s |\n|---|---|---|")
    for samples, size, depth in ((4, 8, None), (4, 8, 8), (2, 32, 8)):
        x = np.random.default_rng(0).normal(size=(samples, size, size, 3))
        name = f"{samples} images of {size}x{size}, {'infinite depth' if depth is None else f'L = {depth}'}"
        row(name, lambda x=x, depth=depth: lazy_conv_kernels(x, depth, times=()))  # type: ignore[misc]


def networks(width: int = 256, depth: int = 16, samples: int = 32) -> None:
    print(f"\n| empirical_ntk, residual MLP, N = {width}, L = {depth}, {samples} examples | s | MiB |\n|---|---|---|")
    model, x = ResidualMLP(width, depth, 1), jnp.asarray(np.random.default_rng(0).normal(size=(samples, 64)))
    factors = dm.parameterization("depth_mup").forward_factors(width=width, depth=depth)
    params, run = model.init(jax.random.key(0), x, factors)["params"], model.forward(factors)
    for name, dense in (("linen_dense", dm.linen_dense(model, factors)), ("whole Jacobians", None)):

        def ntk(params: Any, dense: Any = dense) -> Any:
            return dm.empirical_ntk(lambda w, x: run(w, x, None)[0], params, x, dense=dense)

        program = jax.jit(ntk).lower(params).compile()
        _, later, _ = timed(lambda program=program: jax.block_until_ready(program(params)), 9)  # type: ignore[misc]
        needed = program.memory_analysis().temp_size_in_bytes / 2**20  # type: ignore[union-attr]
        print(f"| {name} | {later:.4f} | {needed:.1f} |", flush=True)


if __name__ == "__main__":
    prepare_cpu(1)
    lazy()
    training()
    convolutions()
    networks()
