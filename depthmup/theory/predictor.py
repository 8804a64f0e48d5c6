"""Predictions of a network in the lazy limit: gradient flow and gradient descent with a constant kernel."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from depthmup.names import NOT_NEGATIVE, Range, at_least_one
from depthmup.theory.checks import check_array, check_kernel, check_memory, warn_unstable
from depthmup.theory.precision import Array, float64


class LazyPrediction(NamedTuple):
    """Predictions over time.

    train: of the P training samples, (times, P), or (times, P, C) if the targets have C outputs.
    test: of the Q test samples, (times, Q) or (times, Q, C); None if no test kernel was given.
    """

    train: Array
    test: Array


@float64
def lazy_predictor(
    ntk: ArrayLike,
    y: ArrayLike,
    eta0: float | jax.Array,
    *,
    steps: int | None = None,
    times: ArrayLike | None = None,
    test_ntk: ArrayLike | None = None,
    initial: ArrayLike | None = None,
    test_initial: ArrayLike | None = None,
    memory_limit: float = 4.0,
) -> LazyPrediction:
    """Predictions in training on (1/2P) sum (F - y)^2 at a constant NTK; docs/theory.md section 2.1 (paper A, eq. 89).

    With `times`, gradient flow: dF/dt = (eta0 / P) Theta (y - F), where a step of gradient descent takes time 1. With
    `steps`, gradient descent: F_{t+1} = F_t + (eta0 / P) Theta (y - F_t). Both are computed from the eigenvalues of
    Theta, without a loop.

    Args:
      ntk: Theta, (P, P), the NTK between the training samples, such as `lazy_kernels(...).ntk`.
      y: the targets, (P,) or (P, C).
      eta0: learning rate; that of SGD is eta0 gamma0^2 width in the canonical form (docs/theory.md section 0).
      steps: T, for gradient descent: predictions at t = 0..T-1.
      times: (T,), for gradient flow. Give either `steps` or `times`.
      test_ntk: (P, Q), the NTK between training and test samples, from `lazy_kernels(..., norms=...)`.
      initial: predictions of the training samples at the start, in the shape of y; by default 0.
      test_initial: predictions of the test samples at the start, (Q,) or (Q, C); by default 0.
      memory_limit: GiB that the predictions of the training samples may take.

    Returns:
      A `LazyPrediction`: train (T, P) or (T, P, C), and test (T, Q) or (T, Q, C).

    Warns, with the bound, if gradient descent is unstable: eta0 lambda_max(Theta) / P above 2.
    Raises ValueError for a kernel that is not positive semi-definite, shapes that do not fit, numbers that are not
    finite, too much memory, or unless exactly one of steps and times is given.
    """
    check_kernel(ntk, "ntk")
    Theta = jnp.asarray(ntk, jnp.float64)
    P = len(Theta)
    _check(P, y, eta0, test_ntk, initial, test_initial)
    target, t = jnp.asarray(y, jnp.float64), _times(steps, times)
    check_memory(8.0 * len(t) * (P + target.size), memory_limit, "lazy_predictor", "give fewer times")
    values, vectors = jnp.linalg.eigh(Theta)
    values = jnp.maximum(values, 0)  # rounding makes some of them negative
    rates = eta0 * values / P
    if steps is not None:
        warn_unstable(eta0, values[-1] / P)
    t = jnp.arange(len(t)) if isinstance(t, range) else t
    # The share of each eigenvector that is not learnt yet, (T, P).
    left = (1 - rates) ** t[:, None] if times is None else jnp.exp(-rates * t[:, None])
    start = jnp.zeros_like(target) if initial is None else jnp.asarray(initial, jnp.float64)
    modes = jnp.einsum("pk,p...->k...", vectors, target - start)
    train = start + jnp.einsum("pk,tk,k...->tp...", vectors, 1 - left, modes)
    if test_ntk is None:
        return LazyPrediction(train, None)
    across = jnp.asarray(test_ntk, jnp.float64)
    # (1 - left) / rate; where the rate is 0, its limit t
    small = rates < 1e-12 * jnp.maximum(rates[-1], 1e-300)
    learnt = jnp.where(small, t[:, None], (1 - left) / jnp.where(small, 1.0, rates)) * eta0 / P
    test = jnp.einsum("pq,pk,tk,k...->tq...", across, vectors, learnt, modes)
    return LazyPrediction(train, test if test_initial is None else test + jnp.asarray(test_initial, jnp.float64))


def _check(
    P: int,
    y: ArrayLike,
    eta0: float | jax.Array,
    test_ntk: ArrayLike | None,
    initial: ArrayLike | None,
    test_initial: ArrayLike | None,
) -> None:
    """Raises ValueError for values or shapes that `lazy_predictor` does not take with P training samples."""
    if np.ndim(eta0):
        raise ValueError("eta0 must be one number; for one a step use linear_dmft or dmft with gamma0=0")
    check_array("eta0", eta0, NOT_NEGATIVE)
    for name, values in {"y": y, "test_ntk": test_ntk, "initial": initial, "test_initial": test_initial}.items():
        if values is not None:
            check_array(name, values)
    target, across = np.shape(y), None if test_ntk is None else np.shape(test_ntk)
    if len(target) not in (1, 2) or target[0] != P:
        raise ValueError(f"y has shape {target}; the kernel of {P} samples needs ({P},) or ({P}, outputs)")
    if initial is not None and np.shape(initial) != target:
        raise ValueError(f"initial must have the shape of y, {target}, got {np.shape(initial)}")
    if across is not None and (len(across) != 2 or across[0] != P):
        raise ValueError(f"test_ntk must be (training samples, test samples) = ({P}, ...), got {across}")
    if test_initial is not None and (across is None or np.shape(test_initial) != (across[1], *target[1:])):
        needs = "test_ntk too" if across is None else f"the shape ({across[1]}, ...) as y"
        raise ValueError(f"test_initial needs {needs}, got shape {np.shape(test_initial)}")


def _times(steps: int | None, times: ArrayLike | None) -> range | jax.Array:
    """The times of the predictions, (T,), as `lazy_predictor` explains them."""
    if (steps is None) == (times is None):
        raise ValueError("give either steps, of gradient descent, or times, of gradient flow")
    if steps is not None:
        return range(at_least_one("steps", steps))
    check_array("times", times, Range(low=0, infinite=True))
    array = jnp.asarray(times, jnp.float64)
    if array.ndim != 1:
        raise ValueError(f"times must be (times,), got shape {array.shape}")
    return array
