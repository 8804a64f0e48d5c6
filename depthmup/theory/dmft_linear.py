"""Training of deep linear residual networks at infinite width: exact, by one causal sweep over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from depthmup.theory.checks import GROUPS, check_memory
from depthmup.theory.equations import Dynamics, Equations, deepest_of, equations_of, solve_at_depth, warn_of_divergence
from depthmup.theory.lazy_training import check_lazy_memory, lazy_dynamics
from depthmup.theory.precision import float64
from depthmup.theory.problem import Problem, as_problem

DEPTHS = (8, 16, 32)  # that infinite depth is extrapolated from


@float64
def linear_dmft(
    problem: Problem | ArrayLike,
    y: ArrayLike | None = None,
    *,
    depths: Sequence[int] = DEPTHS,
    memory_limit: float = 4.0,
    **options: Any,
) -> Dynamics:
    """Training of a linear network at infinite width, exactly; docs/theory.md section 4.1 (paper A, G.2).

    Every field of a neuron is a sum over Gaussian sources. The coefficients of these sums are computed, and the
    response of a field to a source is one of them.

    Args:
      problem: a `Problem` with activation="linear" and branch_weights=1. Or, in short, give its kernel Kx, y, and its
        other fields by name (options): linear_dmft(Kx, y, depth=8, steps=10, eta0=0.3).
      depths: L, 2L and 4L, from which infinite depth is extrapolated.
      memory_limit: GiB that the coefficients may take.

    Returns:
      `Dynamics`: predictions, (T, P) or (T, P, C), and kernels, (layers, T, P, T, P).

    Time goes as L^2 (P T)^3, memory as L^2 (P T)^2. F(0) = 0. The result can be differentiated with respect to all
    arrays of the problem, which takes about T L / 3 times the memory. Warns, with the bound, of a learning rate that is
    unstable at the start. Raises ValueError as `Problem` does, and for a network that is not linear, other `depths`, or
    too much memory.
    """
    problem = as_problem(problem, y, options, activation="linear")
    if problem.activation != "linear" or problem.branch_weights != 1:
        raise ValueError(
            "linear_dmft takes activation='linear' and branch_weights=1, got "
            f"{problem.activation!r} and {problem.branch_weights}: use dmft"
        )
    T, P, C, L = problem.steps, *problem.samples_and_outputs, deepest_of(problem, depths)
    if problem.lazy:
        check_lazy_memory(problem, L, memory_limit)
    else:
        size = 8.0 * L * T * P * (1 + C) * (P + C + L * T * P * (1 + C))
        check_memory(size, memory_limit, "linear_dmft", "take fewer steps or samples, or a smaller depth")
    equations = equations_of(problem)
    b, drift = equations.branch_scales()
    grown = (1 + b**2) ** equations.depth  # H^L / Kx = G^0; the parts of the NTK are Kx times these
    parts = {"readin": grown, "branch": drift * equations.depth * grown / (1 + b**2), "readout": grown}
    warn_of_divergence(problem, equations, {group: equations.Kx * share for group, share in parts.items()})
    if problem.lazy:
        return lazy_dynamics(problem, equations, depths)
    result = solve_at_depth(problem, equations, _sweep, depths)
    return result if problem.depth is not None else result._replace(error=jnp.abs(result.error))


@jax.jit
def _sweep(equations: Equations) -> Dynamics:
    """One sweep over the times t. At each the fields are computed forward through the layers, then backward.

    A field is a row of coefficients of the sources: P of xi, C of w, then n of each u^l, for pairs (t, mu), then m of
    each r^l, for triples (t, mu, c), with n = T P and m = T P C. The covariances of these four kinds of sources are Kx,
    1, H^l and G^{l+1}.
    """
    Kx, gamma0, trained = equations.Kx, equations.gamma0, equations.trained
    L, T = equations.depth, equations.steps
    P, C = equations.y.shape
    n, m, now = T * P, T * P * C, P * C
    first_u = P + C
    first_r = first_u + L * n
    width = first_r + L * m
    b, drift = equations.branch_scales()
    if "branch" not in trained:
        drift = 0.0 * drift
    a_in, a_branch, a_out = (equations.kept(group) for group in GROUPS)

    def time(t: jax.Array, carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        h, g, H, G, F = carry
        # gamma0 k_{t,s} m_{s,nu} Delta_{nu c}(s), (T, P, C), by which each sample has moved the weights; 0 for s >= t.
        moved = gamma0 * equations.rates[t][:, :, None] * (equations.y - F)
        a = a_branch[t]

        x = jnp.zeros((P, width)).at[:, :P].set(a_in[t] * jnp.eye(P))
        if "readin" in trained:
            x += jnp.einsum("pq,tqc->ptqc", Kx, moved).reshape(P, m) @ g[0]

        def forward(carry: Any, layer: jax.Array) -> Any:
            x, h, H = carry
            h = jax.lax.dynamic_update_slice(h, x[None], (layer, t * P, 0))
            rows = _dual(x, Kx, H, G) @ h[layer].T  # H^l(t, s); for s > t it is 0
            H = _put(rows, H, layer, t * P)
            A = jax.lax.dynamic_slice(x, (0, first_r + layer * m), (P, m))
            learnt = (rows.reshape(P, T, P, 1) * moved).reshape(P, m)
            x = x + (b * a * A + drift * learnt) @ g[layer + 1]
            return (_add_sources(x, b * a, first_u + layer * n + t * P), h, H), None

        (x, h, H), _ = jax.lax.scan(forward, (x, h, H), jnp.arange(L))
        h = jax.lax.dynamic_update_slice(h, x[None], (L, t * P, 0))

        w = jnp.zeros((C, width)).at[:, P:first_u].set(a_out[t] * jnp.eye(C))
        if "readout" in trained:
            w += moved.reshape(n, C).T @ h[L]
        F = F.at[t].set(_dual(x, Kx, H, G) @ w.T / gamma0)

        def backward(carry: Any, layer: jax.Array) -> Any:
            z, g, G = carry
            g = jax.lax.dynamic_update_slice(g, z[None], (layer + 1, t * now, 0))
            rows = _dual(z, Kx, H, G) @ g[layer + 1].T  # G^{l+1}(t, s)
            G = _put(rows, G, layer, t * now)
            B = jax.lax.dynamic_slice(z, (0, first_u + layer * n), (now, n))
            learnt = (rows.reshape(now, T, P, C) * moved).sum(-1).reshape(now, n)
            z = z + (b * a * B + drift * learnt) @ h[layer]
            return (_add_sources(z, b * a, first_r + layer * m + t * now), g, G), None

        z = jnp.tile(w, (P, 1))  # g^L of (mu, c) is w_c
        (z, g, G), _ = jax.lax.scan(backward, (z, g, G), jnp.arange(L - 1, -1, -1))
        g = jax.lax.dynamic_update_slice(g, z[None], (0, t * now, 0))
        return h, g, H, G, F

    h, g = jnp.zeros((L + 1, n, width)), jnp.zeros((L + 1, m, width))
    H, G = jnp.zeros((L, n, n)), jnp.zeros((L, m, m))
    h, g, H, G, F = jax.lax.fori_loop(0, T, time, (h, g, H, G, jnp.zeros((T, P, C))))
    last, G0 = _dual(h[L], Kx, H, G) @ h[L].T, _dual(g[0], Kx, H, G) @ g[0].T
    H = jnp.concatenate([H, last[None]]).reshape(L + 1, T, P, T, P)
    G = jnp.concatenate([G0[None], G]).reshape(L + 1, T, P, C, T, P, C)
    return Dynamics(F, jnp.arange(L + 1) / L, H, H, G)


def _dual(x: jax.Array, Kx: jax.Array, H: jax.Array, G: jax.Array) -> jax.Array:
    """Fields x, as rows of coefficients, times the covariance of the sources: _dual(x) @ z.T is <x z>."""
    L, columns_H, columns_G = len(H), H.shape[0] * H.shape[1], G.shape[0] * G.shape[1]
    xi, w, u, r = jnp.split(x, [len(Kx), x.shape[1] - columns_H - columns_G, x.shape[1] - columns_G], axis=1)
    parts = [xi @ Kx, w]
    for columns, K in ((u, H), (r, G)):
        by_layer = jnp.swapaxes(columns.reshape(len(x), L, -1), 0, 1)  # twice as fast as an einsum of (x, L, n)
        parts.append(jnp.swapaxes(by_layer @ K, 0, 1).reshape(len(x), -1))
    return jnp.concatenate(parts, axis=1)


def _put(rows: jax.Array, array: jax.Array, layer: jax.Array, start: jax.Array) -> jax.Array:
    """The symmetric kernels `array`, (L, n, n), with these rows of one layer from `start` on, and the same columns."""
    array = jax.lax.dynamic_update_slice(array, rows[None], (layer, start, 0))
    return jax.lax.dynamic_update_slice(array, rows.T[None], (layer, 0, start))


def _add_sources(x: jax.Array, amount: jax.Array, start: jax.Array) -> jax.Array:
    """Fields x plus `amount` times the sources from `start` on, one for each field."""
    block = jax.lax.dynamic_slice(x, (0, start), (len(x), len(x)))
    return jax.lax.dynamic_update_slice(x, block + amount * jnp.eye(len(x)), (0, start))
