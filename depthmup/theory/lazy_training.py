"""The limit gamma0 -> 0 of the training dynamics: kernels do not move, but weight decay shrinks them."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from depthmup.theory.checks import GROUPS, check_memory
from depthmup.theory.equations import Dynamics, Equations, solve_at_depth
from depthmup.theory.moments import moments
from depthmup.theory.problem import Problem


def check_lazy_memory(problem: Problem, deepest: int, memory_limit: float) -> None:
    """Raises ValueError if `lazy_dynamics` would take more memory at the depth `deepest`."""
    P, C = problem.samples_and_outputs
    size = 8.0 * (problem.steps * P) ** 2 * (deepest + 1) * (5 + C**2)
    check_memory(size, memory_limit, "the lazy limit", "take fewer steps or samples, or a smaller depth")


def lazy_dynamics(problem: Problem, equations: Equations, depths: Sequence[int]) -> Dynamics:
    """The dynamics for gamma0 = 0, for all solvers."""
    result = solve_at_depth(problem, equations, _sweep, depths)
    return result if problem.depth is not None else result._replace(error=jnp.abs(result.error))


@jax.jit
def _sweep(equations: Equations) -> Dynamics:
    """F_mu(t) = sum_{s<t, nu} Theta(t mu, s nu) k_{t,s} m_{s,nu} Delta_nu(s), with the kernels of the initial weights.

    Theta is the NTK of docs/theory.md section 2, between sample mu at time t and sample nu at time s: each pair (t, mu)
    counts as a sample of its own, since at time t the network has the weights a_t W(0).
    """
    average = moments(equations.activation)
    T, (P, C) = equations.steps, equations.y.shape
    b, drift = equations.branch_scales()
    a_in, a_branch, a_out = (
        jnp.outer(left, left) for left in (jnp.repeat(equations.kept(group), P) for group in GROUPS)
    )
    square = b**2 * a_branch
    k = jnp.arange(T * P)

    def moment(H: jax.Array) -> tuple[jax.Array, jax.Array]:
        norms = jnp.diag(H)
        pairs = zip(average.pair(norms[:, None], norms[None], H), average.same(norms), strict=True)
        return tuple(matrix.at[k, k].set(diagonal) for matrix, diagonal in pairs)  # type: ignore[return-value]

    def forward(H: jax.Array, _: None) -> tuple[jax.Array, tuple[jax.Array, ...]]:
        Phi, Phidot = moment(H)
        return H + square * Phi, (H, Phi, Phidot)

    Kx = jnp.tile(equations.Kx, (T, T)) * a_in
    last, (H, Phi, Phidot) = jax.lax.scan(forward, Kx, length=equations.depth)
    last_Phi, top = moment(last)
    if equations.readout == "linear":
        last_readout, top = last, jnp.ones_like(top)
    else:
        last_readout = last_Phi

    def backward(G: jax.Array, Phidot: jax.Array) -> tuple[jax.Array, jax.Array]:
        return G * (1 + square * Phidot), G

    G0, above = jax.lax.scan(backward, a_out * top, Phidot, reverse=True)
    parts = {
        "readin": jnp.tile(equations.Kx, (T, T)) * G0,
        "branch": drift * (Phi * above).sum(0),
        "readout": last_readout,
    }
    Theta = sum((parts[group] for group in equations.trained), jnp.zeros_like(Kx)).reshape(T, P, T, P)

    def time(t: jax.Array, F: jax.Array) -> jax.Array:
        return F.at[t].set(jnp.einsum("ptq,tq,tqc->pc", Theta[t], equations.rates[t], equations.y - F))

    F = jax.lax.fori_loop(0, T, time, jnp.zeros((T, P, C)))
    G = jnp.concatenate([G0[None], above])
    identity = jnp.eye(C)[:, None, None, :]  # the gradients of different outputs are independent
    G = G.reshape(-1, T, P, 1, T, P, 1) * identity
    H, Phi = (jnp.concatenate([K, end[None]]).reshape(-1, T, P, T, P) for K, end in ((H, last), (Phi, last_Phi)))
    return Dynamics(F, jnp.arange(equations.depth + 1) / equations.depth, H, Phi, G)
