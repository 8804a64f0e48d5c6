"""What the solvers of training dynamics have in common: the problem, how weights evolve, and the result."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from depthmup.parameterization import unknown
from depthmup.theory.checks import GROUPS, check_alpha, check_kernel, check_readout, warn_unstable, whole
from depthmup.theory.precision import Array, concrete


class Dynamics(NamedTuple):
    """Training in the limit of infinite width; t = 0..T-1 counts updates, layers go from the read-in to the readout.

    predictions: F, (T, P), or (T, P, C) if y has several outputs.
    times: layer times of the kernels, (layers,).
    H, Phi: feature kernels <h h>, <phi(h) phi(h)>, (layers, T, P, T, P).
    G: gradient kernel <g g>, (layers, T, P, T, P), or (layers, T, P, C, T, P, C).
    stderr: standard error of `predictions` from replicates, of its shape; None where there is no noise.
    error: estimate of the error of the extrapolation to infinite depth, of its shape; None at finite depth.
    """

    predictions: Array
    times: Array
    H: Array
    Phi: Array
    G: Array
    stderr: Array = None
    error: Array = None


@dataclasses.dataclass(frozen=True)
class Shape:
    """What a solver is compiled for. noise: whether random weights survive; above alpha = 1/2 at depth None not."""

    depth: int
    steps: int
    readout: str
    trained: tuple[str, ...]
    alpha: float
    noise: bool = True


class Problem(NamedTuple):
    """Arrays that may be traced.

    Kx: (P, P).  y: (P, C).  gamma0, beta: scalars.
    decay: a_t, what is left of the initial weights, (T,).
    rates: k_{t,s} m_{s,nu}, the share of sample nu's step at s that is in the weights at t, eta0 included, (T, T, P).
    weights: m, (T, P).
    """

    Kx: jax.Array
    y: jax.Array
    gamma0: jax.Array
    beta: jax.Array
    decay: jax.Array
    rates: jax.Array
    weights: jax.Array


def branch_scales(problem: Problem, shape: Shape) -> tuple[jax.Array, jax.Array]:
    """(b, beta^2 / L): of the random weights, and of what training adds to them, for any alpha."""
    noise = problem.beta * shape.depth**-shape.alpha if shape.noise else 0.0 * problem.beta
    return noise, problem.beta**2 / shape.depth


def kept(problem: Problem, shape: Shape, group: str) -> jax.Array:
    """a_t of a group of weights: 1 for one that is frozen."""
    return problem.decay if group in shape.trained else jnp.ones_like(problem.decay)


def prepare(
    Kx: ArrayLike,
    y: ArrayLike,
    *,
    depth: int | None,
    steps: int,
    eta0: ArrayLike,
    gamma0: float | jax.Array,
    beta: float | jax.Array,
    readout: str,
    alpha: float,
    momentum: float,
    weight_decay: float,
    sample_weights: ArrayLike | None,
    trained: Sequence[str],
) -> tuple[Problem, Shape]:
    """Checked and as arrays; the depth is 1 for None. Raises ValueError for what cannot be solved."""
    check_kernel(Kx)
    check_alpha(alpha)
    check_readout(readout)
    steps = whole("steps", steps)
    for group in trained:
        if group not in GROUPS:
            raise unknown("group of weights", group, GROUPS)
    kernel, target = (jnp.asarray(of, jnp.float64) for of in (Kx, y))
    P = len(kernel)
    if target.ndim not in (1, 2) or len(target) != P or not target.size:
        raise ValueError(f"y has shape {target.shape}; Kx of {P} samples needs ({P},) or ({P}, outputs)")
    signs = dict(momentum=momentum, gamma0=gamma0, weight_decay=weight_decay, eta0=eta0, sample_weights=sample_weights)
    for name, value in signs.items():
        if value is not None and concrete(value) and not np.min(value) >= 0:
            raise ValueError(f"{name} must not be negative, got {value}")
    if concrete(momentum) and not momentum < 1:
        raise ValueError(f"momentum must be below 1, got {momentum}")
    weights = jnp.full((steps, P), 1 / P) if sample_weights is None else jnp.asarray(sample_weights, jnp.float64)
    if weights.shape not in ((P,), (steps, P)):
        raise ValueError(f"sample_weights must be ({P},) or ({steps}, {P}), got {weights.shape}")
    eta = jnp.asarray(eta0, jnp.float64)
    if eta.shape not in ((), (steps,)):
        raise ValueError(f"eta0 must be a number, or ({steps},) for one a step, got shape {eta.shape}")
    decay, memory = weight_evolution(jnp.broadcast_to(eta, (steps,)), momentum, weight_decay)
    weights = jnp.broadcast_to(weights, (steps, P))
    rates = memory[:, :, None] * weights
    richness, multiplier = (jnp.asarray(of, jnp.float64) for of in (gamma0, beta))
    noise = depth is not None or alpha == 0.5
    branches = 1 if depth is None else whole("depth", depth)
    shape = Shape(branches, steps, readout, tuple(g for g in GROUPS if g in trained), float(alpha), noise)
    return Problem(kernel, target.reshape(P, -1), richness, multiplier, decay, rates, weights), shape


def warn_of_divergence(
    problem: Problem, shape: Shape, parts: Mapping[str, ArrayLike], eta0: ArrayLike, momentum: ArrayLike
) -> None:
    """`warn_unstable` with the parts of the NTK of the initial weights, {group: (P, P)}."""
    Theta = sum((jnp.asarray(parts[group]) for group in shape.trained), jnp.zeros_like(problem.Kx))
    if shape.steps == 1 or not concrete(problem, eta0, momentum):
        return
    made = slice(shape.steps - 1)  # the last of the steps is not
    weights, which = np.unique(np.sqrt(problem.weights[made]), axis=0, return_inverse=True)
    largest = np.linalg.eigvalsh(weights[:, :, None] * np.asarray(Theta) * weights[:, None])[:, -1]
    warn_unstable(np.broadcast_to(eta0, shape.steps)[made], largest[which.ravel()], momentum, stacklevel=6)


@jax.jit
def weight_evolution(
    eta0: jax.Array, momentum: float | jax.Array, weight_decay: float | jax.Array
) -> tuple[jax.Array, jax.Array]:
    """W(t) = a_t W(0) + sum_{s<t} k_{t,s} step(s), for steps of unit learning rate: (a (T,), k (T, T)).

    v <- momentum v + step - weight_decay W, W <- W + eta0 v: what `optax.trace` after `add_decayed_weights` does, and
    that of docs/theory.md section 4.3 at a constant learning rate. Its decay here is lambda_0.
    """
    T = len(eta0)

    def update(carry: tuple[jax.Array, jax.Array], now: tuple[jax.Array, jax.Array]) -> tuple[Any, jax.Array]:
        W, v = carry  # responses to W(0) and to each step
        unit, eta = now
        v = momentum * v + unit - weight_decay * W
        return (W + eta * v, v), W

    start = jnp.zeros(1 + T).at[0].set(1.0), jnp.zeros(1 + T)
    _, responses = jax.lax.scan(update, start, (jnp.eye(T, 1 + T, 1), eta0))
    return responses[:, 0], responses[:, 1:]


def minibatches(batches: Sequence[Sequence[int]], samples: int) -> np.ndarray:
    """`sample_weights` of stochastic gradient descent, (steps, samples), from the samples of each step's batch.

    As many batches as steps, although the last one moves nothing: T predictions are T-1 updates apart.

    Raises ValueError for an empty batch or a sample that does not exist.
    """
    weights = np.zeros((len(batches), samples))
    for step, batch in enumerate(batches):
        if not len(batch) or min(batch) < 0 or max(batch) >= samples:
            raise ValueError(
                f"the batch of step {step} must name some of the samples 0..{samples - 1}, got {list(batch)}"
            )
        np.add.at(weights[step], np.asarray(batch), 1 / len(batch))
    return weights


def dynamics(
    solve: Callable[[Shape], Dynamics], shape: Shape, depth: int | None, depths: Sequence[int], outputs: tuple[int, ...]
) -> Dynamics:
    """At finite depth what `solve` returns, at infinite depth its extrapolation; outputs: () or (C,).

    From L, 2L and 4L, (8 F_4L - 6 F_2L + F_L) / 3 is without errors of order 1/L and 1/L^2; the error, still with its
    sign, is estimated by its difference from 2 F_4L - F_2L. docs/theory.md section 4.1.
    """
    if depth is not None:
        result = solve(shape)
    else:
        if len(depths) != 3 or tuple(depths) != tuple(factor * whole("depths", depths[0]) for factor in (1, 2, 4)):
            raise ValueError(f"depths must be L, 2L and 4L, got {tuple(depths)}")
        coarse, middle, fine = (solve(dataclasses.replace(shape, depth=d)) for d in depths)
        fields = {}
        for name in ("predictions", "H", "Phi", "G"):
            # The kernels at the layer times of the shallowest.
            layers = [slice(None, None, 1 if name == "predictions" else stride) for stride in (1, 2, 4)]
            a, b, c = (getattr(of, name)[s] for of, s in zip((coarse, middle, fine), layers, strict=True))
            fields[name] = (8 * c - 6 * b + a) / 3
            if name == "predictions":
                fields["error"] = fields[name] - (2 * c - b)
        result = Dynamics(times=coarse.times, **fields)
    if outputs:
        return result
    drop = {"predictions": result.predictions[..., 0], "G": result.G[:, :, :, 0, :, :, 0]}
    return result._replace(**drop, error=None if result.error is None else result.error[..., 0])
