"""The limit gamma0 -> 0 of the training dynamics: kernels do not move, but weight decay shrinks them."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from depthmup.theory.activations import Function, moments
from depthmup.theory.checks import GROUPS, check_memory
from depthmup.theory.problem import Dynamics, Problem, Shape, branch_scales, dynamics, kept


def lazy_dynamics(
    problem: Problem,
    shape: Shape,
    activation: str | Function,
    depth: int | None,
    depths: Sequence[int],
    outputs: tuple[int, ...],
    memory_limit: float,
) -> Dynamics:
    """What the solvers return for gamma0 = 0. Raises ValueError above the memory limit."""
    (P, C), deepest = problem.y.shape, shape.depth if depth is not None else max(depths)
    needed = 8.0 * (shape.steps * P) ** 2 * (deepest + 1) * (5 + C**2)
    check_memory(needed, memory_limit, "the lazy limit", "take fewer steps or samples, or a smaller depth")
    result = dynamics(lambda one: _sweep(problem, one, activation), shape, depth, depths, outputs)
    return result if depth is not None else result._replace(error=jnp.abs(result.error))


@functools.partial(jax.jit, static_argnums=(1, 2))
def _sweep(problem: Problem, shape: Shape, activation: str | Function) -> Dynamics:
    """F_mu(t) = sum_{s<t, nu} Theta(t mu, s nu) k_{t,s} m_{s,nu} Delta_nu(s) with the kernels of the initial weights.

    Theta is that of docs/theory.md section 2 between the samples (t, mu), whose initial weights enter as a_t W(0).
    """
    average = moments(activation)
    T, (P, C) = shape.steps, problem.y.shape
    b, drift = branch_scales(problem, shape)
    a_in, a_branch, a_out = (
        jnp.outer(left, left) for left in (jnp.repeat(kept(problem, shape, group), P) for group in GROUPS)
    )
    square = b**2 * a_branch
    own = jnp.arange(T * P)

    def moment(H: jax.Array) -> tuple[jax.Array, jax.Array]:
        norms = jnp.diag(H)
        pairs = zip(average.pair(norms[:, None], norms[None], H), average.same(norms), strict=True)
        return tuple(of.at[own, own].set(diagonal) for of, diagonal in pairs)  # type: ignore[return-value]

    def forward(H: jax.Array, _: None) -> tuple[jax.Array, tuple[jax.Array, ...]]:
        Phi, Phidot = moment(H)
        return H + square * Phi, (H, Phi, Phidot)

    Kx = jnp.tile(problem.Kx, (T, T)) * a_in
    last, (H, Phi, Phidot) = jax.lax.scan(forward, Kx, length=shape.depth)
    last_Phi, top = moment(last)
    if shape.readout == "linear":
        last_readout, top = last, jnp.ones_like(top)
    else:
        last_readout = last_Phi

    def backward(G: jax.Array, Phidot: jax.Array) -> tuple[jax.Array, jax.Array]:
        return G * (1 + square * Phidot), G

    first, above = jax.lax.scan(backward, a_out * top, Phidot, reverse=True)
    parts = {
        "readin": jnp.tile(problem.Kx, (T, T)) * first,
        "branch": drift * (Phi * above).sum(0),
        "readout": last_readout,
    }
    Theta = sum((parts[group] for group in shape.trained), jnp.zeros_like(Kx)).reshape(T, P, T, P)

    def time(t: jax.Array, F: jax.Array) -> jax.Array:
        return F.at[t].set(jnp.einsum("ptq,tq,tqc->pc", Theta[t], problem.rates[t], problem.y - F))

    F = jax.lax.fori_loop(0, T, time, jnp.zeros((T, P, C)))
    G = jnp.concatenate([first[None], above])
    every = jnp.eye(C)[:, None, None, :]  # the gradients of different outputs are independent
    G = G.reshape(-1, T, P, 1, T, P, 1) * every
    H, Phi = (jnp.concatenate([of, end[None]]).reshape(-1, T, P, T, P) for of, end in ((H, last), (Phi, last_Phi)))
    return Dynamics(F, jnp.arange(shape.depth + 1) / shape.depth, H, Phi, G)
