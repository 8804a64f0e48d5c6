"""Training of deep linear residual networks at infinite width: exact, by one causal sweep over time."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from depthmup.theory.checks import GROUPS, check_memory
from depthmup.theory.lazy_training import lazy_dynamics
from depthmup.theory.precision import concrete, float64
from depthmup.theory.problem import Dynamics, Problem, Shape, branch_scales, dynamics, kept, prepare, warn_of_divergence

DEPTHS = (8, 16, 32)  # that infinite depth is extrapolated from


@float64
def linear_dmft(
    Kx: ArrayLike,
    y: ArrayLike,
    *,
    depth: int | None = None,
    steps: int,
    eta0: ArrayLike,
    gamma0: float | jax.Array = 1.0,
    beta: float | jax.Array = 1.0,
    alpha: float = 0.5,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    sample_weights: ArrayLike | None = None,
    trained: Sequence[str] = GROUPS,
    depths: Sequence[int] = DEPTHS,
    memory_limit: float = 4.0,
) -> Dynamics:
    """Gradient descent on (1/2) sum_mu m_mu |F_mu - y_mu|^2, exactly; docs/theory.md section 4.1 (paper A, G.2).

    Every field is a sum over the Gaussian sources with known coefficients; a response is one of them.

    Args:
      Kx: (P, P) input kernel x.x'/D.
      y: (P,) or (P, C) targets.
      depth: L, the number of residual branches; None for infinite depth, extrapolated from `depths`.
      steps: T, the number of times t = 0..T-1; there are T-1 updates.
      eta0: learning rate, or (T,) of each step: SGD's is eta0 gamma0^2 width in the canonical form.
      gamma0: richness. 0, as a plain number only, is the lazy limit: reached with an error of order gamma0^2, gamma0
        for activations with a kink. A traced one must be positive.
      beta, alpha: the branch multiplier is beta L^-alpha, the branches' learning rate goes as L^(2 alpha - 1).
      momentum: of the heavy ball.
      weight_decay: lambda_0: each step takes W <- W - eta0 lambda_0 W, before momentum.
      sample_weights: m, (P,) or (T, P) at each step, by default 1/P; see `minibatches`. 0 makes a test sample.
      trained: groups of weights that are, of "readin", "branch" and "readout".
      memory_limit: GiB that the coefficients may take.

    Time goes as L^2 (P T)^3, memory as L^2 (P T)^2. F(0) = 0. Differentiable with respect to all arrays, which takes
    about T L / 3 times the memory.
    Warns, with the bound, of a learning rate that is unstable at the start. Raises ValueError for a kernel that is
    none, labels or options that do not fit, or too much memory.
    """
    options: dict[str, Any] = dict(
        beta=beta, readout="linear", alpha=alpha, momentum=momentum, weight_decay=weight_decay
    )
    options |= dict(sample_weights=sample_weights, trained=trained)
    problem, shape = prepare(Kx, y, depth=depth, steps=steps, eta0=eta0, gamma0=gamma0, **options)
    b, drift = branch_scales(problem, shape)
    grown = (1 + b**2) ** shape.depth  # H^L / Kx = G^0; the NTK is Kx times sums of these
    parts = {"readin": grown, "branch": drift * shape.depth * grown / (1 + b**2), "readout": grown}
    warn_of_divergence(problem, shape, {group: problem.Kx * part for group, part in parts.items()}, eta0, momentum)
    if concrete(gamma0) and float(gamma0) == 0:
        return lazy_dynamics(problem, shape, "linear", depth, depths, np.shape(y)[1:], memory_limit)
    P, C = problem.y.shape
    deepest = shape.depth if depth is not None else max(depths)
    needed = 8.0 * deepest * steps * P * (1 + C) * (P + C + deepest * steps * P * (1 + C))
    check_memory(needed, memory_limit, "linear_dmft", "take fewer steps or samples, or a smaller depth")
    result = dynamics(lambda one: _sweep(problem, one), shape, depth, depths, np.shape(y)[1:])
    return result if depth is not None else result._replace(error=jnp.abs(result.error))


@functools.partial(jax.jit, static_argnums=1)
def _sweep(problem: Problem, shape: Shape) -> Dynamics:
    """One sweep over t: forward through the layers, then backward.

    A field is a row of coefficients of the sources xi (P), w (C), u^l(t, mu) (L, n) and r^l(t, mu, c) (L, m), with
    n = T P and m = T P C. The covariances of the sources are Kx, 1, H^l and G^{l+1}.
    """
    Kx, gamma0 = problem.Kx, problem.gamma0
    L, T = shape.depth, shape.steps
    P, C = problem.y.shape
    n, m, now = T * P, T * P * C, P * C
    first_u = P + C
    first_r = first_u + L * n
    width = first_r + L * m
    b, drift = branch_scales(problem, shape)
    if "branch" not in shape.trained:
        drift = 0.0 * drift
    a_in, a_branch, a_out = (kept(problem, shape, group) for group in GROUPS)

    def dual(x: jax.Array, H: jax.Array, G: jax.Array) -> jax.Array:
        """Coefficients times the covariance of the sources: its product with a field is their covariance."""
        parts = [x[:, :P] @ Kx, x[:, P:first_u]]
        for of, K in ((x[:, first_u:first_r], H), (x[:, first_r:], G)):
            by_layer = jnp.swapaxes(of.reshape(len(x), L, -1), 0, 1)  # twice as fast as an einsum of (x, L, n)
            parts.append(jnp.swapaxes(by_layer @ K, 0, 1).reshape(len(x), -1))
        return jnp.concatenate(parts, axis=1)

    def put(rows: jax.Array, into: jax.Array, layer: jax.Array, start: jax.Array) -> jax.Array:
        """Rows of a symmetric kernel, and its columns."""
        into = jax.lax.dynamic_update_slice(into, rows[None], (layer, start, 0))
        return jax.lax.dynamic_update_slice(into, rows.T[None], (layer, 0, start))

    def add_source(x: jax.Array, amount: jax.Array, start: jax.Array) -> jax.Array:
        """x plus `amount` times as many sources as it has rows."""
        block = jax.lax.dynamic_slice(x, (0, start), (len(x), len(x)))
        return jax.lax.dynamic_update_slice(x, block + amount * jnp.eye(len(x)), (0, start))

    def time(t: jax.Array, carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        h, g, H, G, F = carry
        # What moves the weights: gamma0 k m Delta of all samples so far, (T, P, C); rates are 0 from t on.
        moved = gamma0 * problem.rates[t][:, :, None] * (problem.y - F)
        a = a_branch[t]

        x = jnp.zeros((P, width)).at[:, :P].set(a_in[t] * jnp.eye(P))
        if "readin" in shape.trained:
            x += jnp.einsum("pq,tqc->ptqc", Kx, moved).reshape(P, m) @ g[0]

        def forward(carry: Any, layer: jax.Array) -> Any:
            x, h, H = carry
            h = jax.lax.dynamic_update_slice(h, x[None], (layer, t * P, 0))
            rows = dual(x, H, G) @ h[layer].T  # H^l(t, <= t); later times are 0
            H = put(rows, H, layer, t * P)
            A = jax.lax.dynamic_slice(x, (0, first_r + layer * m), (P, m))
            learnt = (rows.reshape(P, T, P, 1) * moved).reshape(P, m)
            x = x + (b * a * A + drift * learnt) @ g[layer + 1]
            return (add_source(x, b * a, first_u + layer * n + t * P), h, H), None

        (x, h, H), _ = jax.lax.scan(forward, (x, h, H), jnp.arange(L))
        h = jax.lax.dynamic_update_slice(h, x[None], (L, t * P, 0))

        w = jnp.zeros((C, width)).at[:, P:first_u].set(a_out[t] * jnp.eye(C))
        if "readout" in shape.trained:
            w += moved.reshape(n, C).T @ h[L]
        F = F.at[t].set(dual(x, H, G) @ w.T / gamma0)

        def backward(carry: Any, layer: jax.Array) -> Any:
            z, g, G = carry
            g = jax.lax.dynamic_update_slice(g, z[None], (layer + 1, t * now, 0))
            rows = dual(z, H, G) @ g[layer + 1].T  # G^{l+1}(t, <= t)
            G = put(rows, G, layer, t * now)
            B = jax.lax.dynamic_slice(z, (0, first_u + layer * n), (now, n))
            learnt = (rows.reshape(now, T, P, C) * moved).sum(-1).reshape(now, n)
            z = z + (b * a * B + drift * learnt) @ h[layer]
            return (add_source(z, b * a, first_r + layer * m + t * now), g, G), None

        z = jnp.tile(w, (P, 1))  # g^L of (mu, c) is w_c
        (z, g, G), _ = jax.lax.scan(backward, (z, g, G), jnp.arange(L - 1, -1, -1))
        g = jax.lax.dynamic_update_slice(g, z[None], (0, t * now, 0))
        return h, g, H, G, F

    h, g = jnp.zeros((L + 1, n, width)), jnp.zeros((L + 1, m, width))
    H, G = jnp.zeros((L, n, n)), jnp.zeros((L, m, m))
    h, g, H, G, F = jax.lax.fori_loop(0, T, time, (h, g, H, G, jnp.zeros((T, P, C))))
    last, first = dual(h[L], H, G) @ h[L].T, dual(g[0], H, G) @ g[0].T
    H = jnp.concatenate([H, last[None]]).reshape(L + 1, T, P, T, P)
    G = jnp.concatenate([first[None], G]).reshape(L + 1, T, P, C, T, P, C)
    return Dynamics(F, jnp.arange(L + 1) / L, H, H, G)
