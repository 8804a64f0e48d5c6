"""The sweep over time of the Monte Carlo solver: samples of the fields of one neuron."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.lax.linalg import triangular_solve

from depthmup.theory.activations import TINY, Function, derivative_of, function_of
from depthmup.theory.checks import GROUPS
from depthmup.theory.problem import Dynamics, Problem, Shape, branch_scales, kept

FLOOR = 1e-12  # of the eigenvalues of what a source has of its own, over their mean diagonal


class Weights(NamedTuple):
    """Of the L weight matrices in one place of the branches, the fields on both sides, filled up to the present.

    n = T P rows (t, mu), m = T P C rows (t, mu, c), S samples.
    inputs: (L, n, S), what they multiply.  gradients: (L, m, S), with respect to what they give.
    Phi, G: the kernels of these, (L, n, n) and (L, m, m), s <= t.  roots_u, roots_r: their Cholesky factors, with the
    identity for times to come.
    """

    inputs: jax.Array
    gradients: jax.Array
    Phi: jax.Array
    G: jax.Array
    roots_u: jax.Array
    roots_r: jax.Array


class Draws(NamedTuple):
    """Sources u and r, whitened and of such weights (L, n, S) and (L, m, S)."""

    u: jax.Array
    r: jax.Array


class Now(NamedTuple):
    """Time t, what is left of the initial weights, and gamma0 k_{t,s} m_{s,nu} Delta_{nu c}(s), (T, P, C)."""

    t: jax.Array
    kept: jax.Array
    moved: jax.Array


@functools.partial(jax.jit, static_argnums=(2, 3, 4))
def sweep(problem: Problem, normal: Draws, shape: Shape, activation: str | Function, branch_weights: int) -> Dynamics:
    """One sweep over t, each time forward through the layers, then backward; docs/theory.md sections 4 and 4.2, 4.5.

    A field is a row of S samples, four for each of `normal_draws`. branch_weights: 1 or 2.
    """
    phi = function_of(activation)
    slope = derivative_of(phi)
    through_phi = shape.readout == "phi"
    gamma0 = problem.gamma0
    L, T = shape.depth, shape.steps
    P, C = problem.y.shape
    n, m, now, S = T * P, T * P * C, P * C, 4 * normal.u.shape[1]
    b, drift = branch_scales(problem, shape)
    inner = b if branch_weights == 2 else drift  # of what training adds to the weights inside a branch
    if "branch" not in shape.trained:
        drift, inner = 0.0 * drift, 0.0 * inner
    a_in, a_branch, a_out = (kept(problem, shape, group) for group in GROUPS)

    z = _matched(normal.u, (1, 1, -1, -1))
    xi, z_u = _extended(jnp.eye(P), problem.Kx, 0) @ z[:P], z[P:].reshape(branch_weights, L, n, S)
    z = _matched(normal.r, (1, -1, 1, -1))
    w0, z_r = z[:C], z[C:].reshape(branch_weights, L, m, S)
    draws = [Draws(*both) for both in zip(z_u, z_r, strict=True)]

    def time(t: jax.Array, carry: Any) -> Any:
        weights, h, last, g0, F = carry
        moved = gamma0 * problem.rates[t][:, :, None] * (problem.y - F)  # rates are 0 from t on
        at = Now(t, a_branch[t], moved)

        x = a_in[t] * xi
        if "readin" in shape.trained:
            x += jnp.einsum("pq,tqc->ptqc", problem.Kx, moved).reshape(P, m) @ g0

        def forward(carry: Any, layer: jax.Array) -> Any:
            x, h, weights = carry
            h = _put(h, x, layer, t * P)
            first, random, learnt = _forward(weights[0], draws[0], at, layer, phi(x))
            if branch_weights == 1:
                return (x + b * random + drift * learnt, h, [first]), x
            v = random + inner * learnt
            second, random, learnt = _forward(weights[1], draws[1], at, layer, phi(v))
            return (x + b * random + drift * learnt, h, [first, second]), (x, v)

        (x, h, weights), states = jax.lax.scan(forward, (x, h, weights), jnp.arange(L))
        h = _put(h, x, L, t * P)
        last = jax.lax.dynamic_update_slice(last, phi(x), (t * P, 0))

        w = a_out[t] * w0
        if "readout" in shape.trained:
            w += moved.reshape(n, C).T @ (last if through_phi else h[L])
        F = F.at[t].set((phi(x) if through_phi else x) @ w.T / (S * gamma0))

        def backward(carry: Any, layer_states: Any) -> Any:
            z, weights = carry
            if branch_weights == 1:
                layer, x = layer_states
                first, random, learnt = _backward(weights[0], draws[0], at, layer, z)
                changed = [first]
            else:
                layer, (x, v) = layer_states
                second, random, learnt = _backward(weights[1], draws[1], at, layer, z)
                k = jnp.repeat(slope(v), C, axis=0) * (random + inner * learnt)
                first, random, learnt = _backward(weights[0], draws[0], at, layer, k)
                changed = [first, second]
            return (z + jnp.repeat(slope(x), C, axis=0) * (b * random + drift * learnt), changed), None

        top = slope(x) if through_phi else jnp.ones_like(x)
        z = (top[:, None] * w).reshape(now, S)
        (z, weights), _ = jax.lax.scan(backward, (z, weights), (jnp.arange(L), states), reverse=True)
        return weights, h, last, jax.lax.dynamic_update_slice(g0, z, (t * now, 0)), F

    sides = [(L, n, S), (L, m, S), (L, n, n), (L, m, m)]
    roots = [jnp.tile(jnp.eye(size), (L, 1, 1)) for size in (n, m)]
    weights = [Weights(*map(jnp.zeros, sides), *roots) for _ in range(branch_weights)]
    start = weights, jnp.zeros((L + 1, n, S)), jnp.zeros((n, S)), jnp.zeros((m, S)), jnp.zeros((T, P, C))
    weights, h, last, g0, F = jax.lax.fori_loop(0, T, time, start)
    H = jnp.einsum("lns,lks->lnk", h, h) / S
    Phi = jnp.concatenate([_symmetric(weights[0].Phi), (last @ last.T / S)[None]])
    G = jnp.concatenate([(g0 @ g0.T / S)[None], _symmetric(weights[-1].G)])
    H, Phi = (of.reshape(L + 1, T, P, T, P) for of in (H, Phi))
    return Dynamics(F, jnp.arange(L + 1) / L, H, Phi, G.reshape(L + 1, T, P, C, T, P, C))


def _forward(
    weights: Weights, draws: Draws, now: Now, layer: jax.Array, inputs: jax.Array
) -> tuple[Weights, jax.Array, jax.Array]:
    """Adds time t's inputs (P, S) of a layer's weights; what they give from their initial values, and from training.

    a_t (u + A g) and Phi Dw g, both (P, S), where A = <inputs zeta_r> C_r^-1, strictly causal (Stein's lemma).
    """
    P, S = inputs.shape
    start = now.t * P
    every = _put(weights.inputs, inputs, layer, start)
    gradients = weights.gradients[layer]
    rows = inputs @ every[layer].T / S  # of Phi, s <= t: later times are 0
    root = _extended(weights.roots_u[layer], rows, start)
    past = jnp.arange(len(gradients)) < start * now.moved.shape[-1]
    A = _response(inputs @ draws.r[layer].T / S, weights.roots_r[layer], past)
    learnt = (rows.reshape(P, -1, P, 1) * now.moved).reshape(P, -1)
    changed = weights._replace(
        inputs=every, Phi=_put(weights.Phi, rows, layer, start), roots_u=_put(weights.roots_u, root, layer, start)
    )
    return changed, now.kept * (root @ draws.u[layer] + A @ gradients), learnt @ gradients


def _backward(
    weights: Weights, draws: Draws, now: Now, layer: jax.Array, gradients: jax.Array
) -> tuple[Weights, jax.Array, jax.Array]:
    """The same for gradients (P C, S): a_t (r + B inputs) and G Dw inputs, where B includes s = t."""
    PC, S = gradients.shape
    _, P, C = now.moved.shape
    start = now.t * PC
    every = _put(weights.gradients, gradients, layer, start)
    inputs = weights.inputs[layer]
    rows = gradients @ every[layer].T / S
    root = _extended(weights.roots_r[layer], rows, start)
    present = jnp.arange(len(inputs)) < (now.t + 1) * P
    B = _response(gradients @ draws.u[layer].T / S, weights.roots_u[layer], present)
    learnt = (rows.reshape(PC, -1, P, C) * now.moved).sum(-1).reshape(PC, -1)
    changed = weights._replace(
        gradients=every, G=_put(weights.G, rows, layer, start), roots_r=_put(weights.roots_r, root, layer, start)
    )
    return changed, now.kept * (root @ draws.r[layer] + B @ inputs), learnt @ inputs


def _response(with_draws: jax.Array, root: jax.Array, known: jax.Array) -> jax.Array:
    """<field zeta> C^-1 for the columns of the times that are known, 0 for the others."""
    return triangular_solve(root, jnp.where(known, with_draws, 0), lower=True)


def _put(into: jax.Array, rows: jax.Array, layer: jax.Array | int, start: jax.Array) -> jax.Array:
    return jax.lax.dynamic_update_slice(into, rows[None], (layer, start, 0))


def normal_draws(shape: Shape, samples: int, outputs: int, branch_weights: int, quarter: int, seed: Any) -> Draws:
    """Of all sources, (sources, quarter): below xi and u^l, above w and r^l. From NumPy: JAX's own in 64 bits cannot be
    traced by a caller who has 32."""
    rng = np.random.default_rng(seed)
    rows = branch_weights * shape.depth * shape.steps * samples
    return Draws(*(jnp.asarray(rng.normal(size=(n, quarter))) for n in (samples + rows, outputs + rows * outputs)))


def _matched(draws: jax.Array, signs: Sequence[int]) -> jax.Array:
    """Draws whose second moments are exactly 1, in four copies with these signs: (sources, 4 quarter)."""
    root = jnp.linalg.cholesky(draws @ draws.T / draws.shape[1])
    z = triangular_solve(root, draws, lower=True, left_side=True)
    return jnp.concatenate([sign * z for sign in signs], axis=1)


def _extended(root: jax.Array, rows: jax.Array, start: jax.Array | int) -> jax.Array:
    """New rows of a Cholesky factor (k, k), whose rows from `start` on are the identity, for these of the kernel."""
    before = jnp.arange(len(root)) < start
    mixed = triangular_solve(root, jnp.where(before, rows, 0), lower=True, transpose_a=True)
    new = jax.lax.dynamic_slice(rows, (0, start), (len(rows), len(rows))) - mixed @ mixed.T
    values, vectors = jnp.linalg.eigh(new)
    floor = FLOOR * jnp.diagonal(jax.lax.dynamic_slice(rows, (0, start), (len(rows), len(rows)))).mean() + TINY
    # A constant for derivatives: those of the eigenvectors do not exist where eigenvalues are equal.
    lift = jax.lax.stop_gradient((vectors * jnp.maximum(floor - values, 0)) @ vectors.T)
    floored = new + lift
    return jax.lax.dynamic_update_slice(mixed, jnp.linalg.cholesky(floored), (0, start))


def _symmetric(lower: jax.Array) -> jax.Array:
    """The kernel of which only s <= t is filled."""
    strict = jnp.tril(lower, -1)
    return strict + jnp.swapaxes(strict, -1, -2) + lower * jnp.eye(lower.shape[-1])
