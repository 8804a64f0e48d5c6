"""The sweep over time of the Monte Carlo solver: samples of the fields of one neuron; docs/theory.md section 4."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.lax.linalg import triangular_solve

from depthmup.theory.checks import GROUPS
from depthmup.theory.equations import Dynamics, Equations
from depthmup.theory.moments import TINY, derivative_of, function_of

if TYPE_CHECKING:
    from jaxtyping import Float

# The covariance of a source at time t, given its past, has eigenvalues of at least FLOOR times its mean diagonal.
FLOOR = 1e-12


class MatrixSide(NamedTuple):
    """What one side of a matrix of each of the L branches receives, filled up to the time of the sweep; later rows are
    still 0.

    There are S samples of each of n values. A kernel is filled for s <= t.

    roots: the Cholesky factors of the kernel; rows of later times are those of the identity.
    """

    values: Float[jax.Array, "L n S"]
    kernel: Float[jax.Array, "L n n"]
    roots: Float[jax.Array, "L n n"]


class Weights(NamedTuple):
    """One matrix of each branch. It multiplies `inputs` on its way forward, for T P pairs (t, mu), and receives
    `gradients` with respect to its products, for T P C triples (t, mu, c). Their kernels are Phi and G."""

    inputs: MatrixSide
    gradients: MatrixSide


class Draws(NamedTuple):
    """White noise for the forward sources u and the backward sources r: independent N(0, 1).

    `normal_draws` has one row for each source of the network; `sweep` cuts out those of one matrix of each branch,
    (L, n, S) and (L, m, S).
    """

    u: jax.Array
    r: jax.Array


class Now(NamedTuple):
    """The time t of the sweep, and the state of the weights at that time.

    kept: a_t, the share of the branches' initial weights that is left.
    moved: gamma0 k_{t,s} m_{s,nu} Delta_{nu c}(s), by which sample nu at time s has moved the weights; 0 for s >= t.
    """

    t: jax.Array
    kept: jax.Array
    moved: Float[jax.Array, "T P C"]


@jax.jit
def sweep_times(equations: Equations, normal: Draws) -> Dynamics:
    """One sweep over t, at each time forward through the layers, then backward; docs/theory.md sections 4, 4.2, 4.5.

    A field is a row of S samples, four for each number of a row of `normal`.
    """
    phi, through_phi = function_of(equations.activation), equations.readout == "phi"
    slope = derivative_of(phi)
    gamma0, trained, branch_weights = equations.gamma0, equations.trained, equations.branch_weights
    L, T = equations.depth, equations.steps
    P, C = equations.y.shape
    n, m, now, S = T * P, T * P * C, P * C, 4 * normal.u.shape[1]
    b, drift = equations.branch_scales()
    inner = b if branch_weights == 2 else drift  # multiplies what training adds to the first matrix of a branch
    if "branch" not in trained:
        drift, inner = 0.0 * drift, 0.0 * inner
    a_in, a_branch, a_out = (equations.kept(group) for group in GROUPS)

    u, r = _matched(normal.u, (1, 1, -1, -1)), _matched(normal.r, (1, -1, 1, -1))
    xi, w0 = _extended(jnp.eye(P), equations.Kx, 0) @ u[:P], r[:C]
    u, r = u[P:].reshape(branch_weights, L, n, S), r[C:].reshape(branch_weights, L, m, S)
    draws = [Draws(*pair) for pair in zip(u, r, strict=True)]

    def time(t: jax.Array, carry: Any) -> Any:
        weights, h, last, g0, F = carry
        moved = gamma0 * equations.rates[t][:, :, None] * (equations.y - F)  # 0 for s >= t
        step = Now(t, a_branch[t], moved)

        x = a_in[t] * xi
        if "readin" in trained:
            x += jnp.einsum("pq,tqc->ptqc", equations.Kx, moved).reshape(P, m) @ g0

        def forward(carry: Any, layer: jax.Array) -> Any:
            x, h, weights = carry
            h = _put(h, x, layer, t * P)
            first_weights, random, learnt = _forward(weights[0], draws[0], step, layer, phi(x))
            if branch_weights == 1:
                return (x + b * random + drift * learnt, h, [first_weights]), (x,)
            v = random + inner * learnt
            second_weights, random, learnt = _forward(weights[1], draws[1], step, layer, phi(v))
            return (x + b * random + drift * learnt, h, [first_weights, second_weights]), (x, v)

        (x, h, weights), states = jax.lax.scan(forward, (x, h, weights), jnp.arange(L))
        h = _put(h, x, L, t * P)
        last = jax.lax.dynamic_update_slice(last, phi(x), (t * P, 0))

        w = a_out[t] * w0
        if "readout" in trained:
            w += moved.reshape(n, C).T @ (last if through_phi else h[L])
        F = F.at[t].set((phi(x) if through_phi else x) @ w.T / (S * gamma0))

        def backward(carry: Any, layer_states: Any) -> Any:
            z, weights = carry
            layer, (x, *v) = layer_states
            last_weights, random, learnt = _backward(weights[-1], draws[-1], step, layer, z)
            new_weights = [last_weights]
            if v:
                k = jnp.repeat(slope(v[0]), C, axis=0) * (random + inner * learnt)
                first_weights, random, learnt = _backward(weights[0], draws[0], step, layer, k)
                new_weights = [first_weights, last_weights]
            return (z + jnp.repeat(slope(x), C, axis=0) * (b * random + drift * learnt), new_weights), None

        top = slope(x) if through_phi else jnp.ones_like(x)
        z = (top[:, None] * w).reshape(now, S)
        (z, weights), _ = jax.lax.scan(backward, (z, weights), (jnp.arange(L), states), reverse=True)
        return weights, h, last, jax.lax.dynamic_update_slice(g0, z, (t * now, 0)), F

    weights = [Weights(_empty(L, n, S), _empty(L, m, S)) for _ in range(branch_weights)]
    start = weights, jnp.zeros((L + 1, n, S)), jnp.zeros((n, S)), jnp.zeros((m, S)), jnp.zeros((T, P, C))
    return _dynamics(*jax.lax.fori_loop(0, T, time, start))


def _empty(L: int, n: int, S: int) -> MatrixSide:
    return MatrixSide(jnp.zeros((L, n, S)), jnp.zeros((L, n, n)), jnp.tile(jnp.eye(n), (L, 1, 1)))


def _dynamics(weights: Sequence[Weights], h: jax.Array, last: jax.Array, g0: jax.Array, F: jax.Array) -> Dynamics:
    """The kernels of a sweep's fields: h (L + 1, n, S), phi(h^L) (n, S), g^0 (m, S)."""
    (T, P, C), (layers, _, S) = F.shape, h.shape
    H = jnp.einsum("lns,lks->lnk", h, h) / S
    Phi = jnp.concatenate([_symmetric(weights[0].inputs.kernel), (last @ last.T / S)[None]])
    G = jnp.concatenate([(g0 @ g0.T / S)[None], _symmetric(weights[-1].gradients.kernel)])
    H, Phi = (kernel.reshape(layers, T, P, T, P) for kernel in (H, Phi))
    return Dynamics(F, jnp.arange(layers) / (layers - 1), H, Phi, G.reshape(layers, T, P, C, T, P, C))


def _forward(
    weights: Weights, draws: Draws, now: Now, layer: jax.Array, inputs: jax.Array
) -> tuple[Weights, jax.Array, jax.Array]:
    """Puts in the inputs (P, S) of one branch's matrix at time t, and multiplies them by it.

    Returns the filled-in `Weights`, and the two parts of the product, (P, S) each: that of the initial matrix,
    a_t (u + A g), and that of what training has added to it, Phi Dw g. The response A = <inputs zeta_r> C_r^-1 follows
    from Stein's lemma (docs/theory.md section 4.2) and involves times s < t only.
    """
    P, (_, _, C) = len(inputs), now.moved.shape
    side, rows, of_sources = _put_in(weights.inputs, draws.u, layer, inputs, now.t * P)
    response = _response(inputs, weights.gradients, draws.r, layer, now.t * P * C)
    gradients = weights.gradients.values[layer]
    learnt = (rows.reshape(P, -1, P, 1) * now.moved).reshape(P, -1)
    return weights._replace(inputs=side), now.kept * (of_sources + response @ gradients), learnt @ gradients


def _backward(
    weights: Weights, draws: Draws, now: Now, layer: jax.Array, gradients: jax.Array
) -> tuple[Weights, jax.Array, jax.Array]:
    """`_forward` for gradients (P C, S), which the transposed matrix multiplies: a_t (r + B inputs) and G Dw inputs.

    The response B involves times s <= t.
    """
    PC, (_, P, C) = len(gradients), now.moved.shape
    side, rows, of_sources = _put_in(weights.gradients, draws.r, layer, gradients, now.t * PC)
    response = _response(gradients, weights.inputs, draws.u, layer, (now.t + 1) * P)
    inputs = weights.inputs.values[layer]
    learnt = (rows.reshape(PC, -1, P, C) * now.moved).sum(-1).reshape(PC, -1)
    return weights._replace(gradients=side), now.kept * (of_sources + response @ inputs), learnt @ inputs


def _put_in(
    side: MatrixSide, draws: jax.Array, layer: jax.Array, values: jax.Array, start: jax.Array
) -> tuple[MatrixSide, jax.Array, jax.Array]:
    """The `Side` with the values of time t, their rows of its kernel, and the sources of this covariance at time t."""
    stored = _put(side.values, values, layer, start)
    rows = values @ stored[layer].T / values.shape[1]  # the kernel at (t, s); for s > t it is 0
    root = _extended(side.roots[layer], rows, start)
    kernel, roots = _put(side.kernel, rows, layer, start), _put(side.roots, root, layer, start)
    return MatrixSide(stored, kernel, roots), rows, root @ draws[layer]


def _response(field: jax.Array, other: MatrixSide, draws: jax.Array, layer: jax.Array, count: jax.Array) -> jax.Array:
    """<field zeta> C^-1 for the other side's white noise zeta and Cholesky factor C, with 0 in place of <field zeta>
    where it is not computed yet: beyond the first `count` columns."""
    with_draws = field @ draws[layer].T / field.shape[1]
    computed = jnp.arange(with_draws.shape[1]) < count
    return triangular_solve(other.roots[layer], jnp.where(computed, with_draws, 0), lower=True)


def _put(array: jax.Array, rows: jax.Array, layer: jax.Array | int, start: jax.Array) -> jax.Array:
    """`array`, (layers, rows, columns), with these rows of one layer from row `start` on."""
    return jax.lax.dynamic_update_slice(array, rows[None], (layer, start, 0))


def normal_draws(equations: Equations, samples: int, seed: Any) -> Draws:
    """A quarter of the samples of every source: below the rows of xi those of all u^l, below those of w all r^l.

    From NumPy: a caller who traces with 32 bits cannot trace JAX's own draws in 64 bits.
    """
    (P, C), quarter = equations.y.shape, -(-samples // 4)
    rng = np.random.default_rng(seed)
    rows = equations.branch_weights * equations.depth * equations.steps * P
    return Draws(*(jnp.asarray(rng.normal(size=(n, quarter))) for n in (P + rows, C + rows * C)))


def _matched(draws: jax.Array, signs: Sequence[int]) -> jax.Array:
    """Draws (sources, quarter), turned so that their second moments are exactly 1; four copies with these signs."""
    root = jnp.linalg.cholesky(draws @ draws.T / draws.shape[1])
    z = triangular_solve(root, draws, lower=True, left_side=True)
    return jnp.concatenate([sign * z for sign in signs], axis=1)


def _extended(root: jax.Array, rows: jax.Array, start: jax.Array | int) -> jax.Array:
    """The next rows of the Cholesky factor of a kernel, from `start` on, where these are the kernel's rows.

    root: the factor, (k, k), of which the rows from `start` on are still those of the identity.
    """
    before = jnp.arange(len(root)) < start
    mixed = triangular_solve(root, jnp.where(before, rows, 0), lower=True, transpose_a=True)
    new = jax.lax.dynamic_slice(rows, (0, start), (len(rows), len(rows))) - mixed @ mixed.T
    values, vectors = jnp.linalg.eigh(new)
    floor = FLOOR * jnp.diagonal(jax.lax.dynamic_slice(rows, (0, start), (len(rows), len(rows)))).mean() + TINY
    # Not differentiated: where eigenvalues are equal, eigenvectors have no derivatives.
    lift = jax.lax.stop_gradient((vectors * jnp.maximum(floor - values, 0)) @ vectors.T)
    floored = new + lift
    return jax.lax.dynamic_update_slice(mixed, jnp.linalg.cholesky(floored), (0, start))


def _symmetric(lower: jax.Array) -> jax.Array:
    """The symmetric kernel of a kernel that is filled for s <= t only."""
    strict = jnp.tril(lower, -1)
    return strict + jnp.swapaxes(strict, -1, -2) + lower * jnp.eye(lower.shape[-1])
