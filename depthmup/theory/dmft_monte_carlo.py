"""Training of residual networks with any activation at infinite width: Monte Carlo, by one causal sweep over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from depthmup.names import at_least_one, whole
from depthmup.theory.checks import GROUPS, check_memory
from depthmup.theory.dmft_sweep import normal_draws, sweep_times
from depthmup.theory.equations import Dynamics, Equations, deepest_of, equations_of, solve_at_depth, warn_of_divergence
from depthmup.theory.lazy import lazy_kernels
from depthmup.theory.lazy_training import check_lazy_memory, lazy_dynamics
from depthmup.theory.precision import concrete, float64
from depthmup.theory.problem import Problem, as_problem

DEPTHS = (2, 4, 8)  # that infinite depth is extrapolated from


@float64
def dmft(
    problem: Problem | ArrayLike,
    y: ArrayLike | None = None,
    *,
    samples: int = 16000,
    replicates: int = 4,
    seed: int = 0,
    depths: Sequence[int] = DEPTHS,
    memory_limit: float = 4.0,
    **options: Any,
) -> Dynamics:
    """Training at infinite width, by Monte Carlo; docs/theory.md section 4.2 (paper A, Proposition 1 and K).

    Kernels and responses are averages over samples of the fields of one neuron. The random draws have exact second
    moments and come in sets of four of opposite signs, so that the result is exact for a linear activation.

    Args:
      problem: a `Problem`; or, in short, give its kernel Kx, y, and its other fields by name (options): dmft(Kx, y,
        depth=3, steps=10, eta0=0.5). With branch_weights=2 the kernels are those of the stream h, and there is no
        warning of an unstable learning rate.
      samples: S of each replicate, rounded up to a multiple of 4; at least 8 (P + branch_weights L T P C).
      replicates: the number of independent runs. The result is their mean, and `stderr` its standard error. A further
        error of order 1 / samples is common to all of them.
      seed: of the draws; the same at every depth.
      depths: L, 2L and 4L, from which infinite depth is extrapolated.
      memory_limit: GiB that the fields of a replicate may take.

    Returns:
      `Dynamics`: predictions, (T, P) or (T, P, C), their standard error, and kernels, (layers, T, P, T, P).

    Time goes as S L (P T)^2 + L (P T)^3, memory as S L P T. gamma0 = 0 is the lazy limit, which has no noise. Warns,
    with the bound, of a learning rate that is unstable at the start. Raises ValueError as `Problem` does, and for too
    few samples to match their moments, other `depths`, too much memory, or branches of two weights at gamma0 = 0 or at
    an alpha other than 1/2.
    """
    problem = as_problem(problem, y, options)
    samples, replicates = at_least_one("samples", samples), at_least_one("replicates", replicates)
    whole("seed", seed)
    if problem.branch_weights == 2 and (problem.lazy or problem.alpha != 0.5):
        raise ValueError("branches of two weights are solved for alpha = 1/2 and gamma0 > 0 only")
    if problem.lazy:
        check_lazy_memory(problem, deepest_of(problem, depths), memory_limit)
    else:
        _check_samples(problem, samples, deepest_of(problem, depths), memory_limit)
    equations = equations_of(problem)
    if problem.branch_weights == 1 and concrete(problem):
        network = problem.depth, problem.activation, equations.beta, problem.readout
        start = lazy_kernels(problem.Kx, *network, alpha=problem.alpha, times=())
        warn_of_divergence(problem, equations, {group: getattr(start, f"ntk_{group}") for group in GROUPS})
    if problem.lazy:
        return lazy_dynamics(problem, equations, depths)
    runs = []
    for replicate in range(replicates):

        def solve(at_depth: Equations, seeds: tuple[int, int] = (seed, replicate)) -> Dynamics:
            return sweep_times(at_depth, normal_draws(at_depth, samples, seeds))

        runs.append(solve_at_depth(problem, equations, solve, depths))
    mean = jax.tree.map(lambda *leaves: sum(leaves) / replicates, *runs)
    if problem.depth is None:
        mean = mean._replace(error=jnp.abs(mean.error))
    if replicates == 1:
        return mean
    spread = jnp.std(jnp.stack([run.predictions for run in runs]), axis=0, ddof=1)
    return mean._replace(stderr=spread / np.sqrt(replicates))


def _check_samples(problem: Problem, samples: int, deepest: int, memory_limit: float) -> None:
    """Raises ValueError if the samples are too few at the largest depth, or take too much memory."""
    (P, C), T, quarter = problem.samples_and_outputs, problem.steps, -(-samples // 4)
    weights = problem.branch_weights * deepest
    sources = max(P, C) + weights * T * P * C
    if quarter < 2 * sources:
        raise ValueError(
            f"samples={samples} are too few to match the moments of {sources} sources at depth {deepest}: take at "
            f"least {8 * sources}"
        )
    size = 32.0 * quarter * T * P * ((deepest + 1) + 2 * weights * (1 + C))
    check_memory(size, memory_limit, "dmft", "take fewer samples, steps or a smaller depth")
