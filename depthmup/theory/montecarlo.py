"""Training of residual networks with any activation at infinite width: Monte Carlo, by one causal sweep over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from depthmup.theory.activations import Function, known
from depthmup.theory.checks import GROUPS, check_memory, whole
from depthmup.theory.lazy import lazy_kernels
from depthmup.theory.lazy_training import lazy_dynamics
from depthmup.theory.precision import concrete, float64
from depthmup.theory.problem import Dynamics, Shape, dynamics, prepare, warn_of_divergence
from depthmup.theory.sampled import normal_draws, sweep

DEPTHS = (2, 4, 8)  # that infinite depth is extrapolated from


@float64
def dmft(
    Kx: ArrayLike,
    y: ArrayLike,
    *,
    depth: int | None = None,
    steps: int,
    activation: str | Function = "tanh",
    eta0: ArrayLike,
    gamma0: float | jax.Array = 1.0,
    beta: float | jax.Array = 1.0,
    readout: str = "phi",
    alpha: float = 0.5,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    sample_weights: ArrayLike | None = None,
    trained: Sequence[str] = GROUPS,
    branch_weights: int = 1,
    samples: int = 16000,
    replicates: int = 4,
    seed: int = 0,
    depths: Sequence[int] = DEPTHS,
    memory_limit: float = 4.0,
) -> Dynamics:
    """Gradient descent on (1/2) sum_mu m_mu |F_mu - y_mu|^2; docs/theory.md section 4.2 (paper A, Proposition 1, K).

    Samples of one neuron's fields, of which kernels and responses are averages. The draws are moment-matched and come
    in sets of four of opposite signs: for a linear activation the result is exact.

    Args:
      Kx, y, steps, eta0, gamma0, beta, alpha, momentum, weight_decay, sample_weights, trained: as `linear_dmft`.
      depth: L, the number of residual branches; None for infinite depth, extrapolated from `depths`.
      activation: a name, or any function of arrays; it need not be differentiable everywhere. Give the same function
        object again: each new one, such as a lambda in a loop, is compiled anew.
      readout: "phi", the activation before the readout, or "linear", none.
      branch_weights: 1, or 2 for branches W_2 phi(W_1 phi(h)); docs/theory.md section 4.5. Kernels are those of the
        stream; no warning of an unstable learning rate.
      samples: S in each replicate, rounded up to a multiple of 4; at least 8 (P + branch_weights L T P C).
      replicates: independent runs, the mean of which is returned, and its standard error as `stderr`. A further error
        of order 1 / samples is common to all.
      seed: of the draws; the same at every depth.
      memory_limit: GiB that the fields of a replicate may take.

    Time goes as S L (P T)^2 + L (P T)^3, memory as S L P T. gamma0 = 0 is the lazy limit, which has no noise.
    Warns, with the bound, of a learning rate that is unstable at the start. Raises ValueError for a kernel that is
    none, labels or options that do not fit, fewer samples than matching the moments takes, or too much memory.
    """
    options: dict[str, Any] = dict(
        beta=beta, readout=readout, alpha=alpha, momentum=momentum, weight_decay=weight_decay
    )
    options |= dict(sample_weights=sample_weights, trained=trained)
    problem, shape = prepare(Kx, y, depth=depth, steps=steps, eta0=eta0, gamma0=gamma0, **options)
    activation = known(activation)
    samples, replicates = whole("samples", samples), whole("replicates", replicates)
    lazy = concrete(gamma0) and float(gamma0) == 0
    if branch_weights not in (1, 2):
        raise ValueError(f"branch_weights must be 1 or 2, got {branch_weights}")
    if branch_weights == 2 and (lazy or alpha != 0.5):
        raise ValueError("branches of two weights are solved for alpha = 1/2 and gamma0 > 0 only")
    outputs = np.shape(y)[1:]
    if branch_weights == 1 and concrete(problem, eta0, momentum):
        start = lazy_kernels(problem.Kx, depth, activation, problem.beta, readout, alpha=alpha, times=())
        parts = {group: getattr(start, f"ntk_{group}") for group in GROUPS}
        warn_of_divergence(problem, shape, parts, eta0, momentum)
    if lazy:
        return lazy_dynamics(problem, shape, activation, depth, depths, outputs, memory_limit)
    P, C = problem.y.shape
    deepest = shape.depth if depth is not None else max(depths)
    weights = branch_weights * deepest
    quarter = -(-samples // 4)
    sources = max(P, C) + weights * steps * P * C
    if quarter < 2 * sources:
        raise ValueError(
            f"samples={samples} are too few to match the moments of {sources} sources at depth {deepest}: take at "
            f"least {8 * sources}"
        )
    needed = 32.0 * quarter * steps * P * ((deepest + 1) + 2 * weights * (1 + C))
    check_memory(needed, memory_limit, "dmft", "take fewer samples, steps or a smaller depth")
    runs = []
    for replicate in range(replicates):

        def solve(one: Shape, seeds: tuple[int, int] = (seed, replicate)) -> Dynamics:
            draws = normal_draws(one, P, C, branch_weights, quarter, seeds)
            return sweep(problem, draws, one, activation, branch_weights)

        runs.append(dynamics(solve, shape, depth, depths, outputs))
    mean = jax.tree.map(lambda *leaves: sum(leaves) / replicates, *runs)
    if depth is None:
        mean = mean._replace(error=jnp.abs(mean.error))
    if replicates == 1:
        return mean
    spread = jnp.std(jnp.stack([run.predictions for run in runs]), axis=0, ddof=1)
    return mean._replace(stderr=spread / np.sqrt(replicates))
