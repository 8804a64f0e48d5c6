"""Kernels as flows over layer time at infinite depth."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from depthmup.theory.activations import TINY, angle, overlap, relu_pair

State = TypeVar("State")
NODES = 64  # of the interpolation in the angle
TOLERANCE = 1e-12


class Flow(NamedTuple):
    """What one sweep from the first layer to the last carries, elementwise.

    H: feature kernel.  growth: G(0) / G(tau).  until: the branch NTK of the layers below, over G(tau).
    """

    H: jax.Array
    growth: jax.Array
    until: jax.Array


def integrate(
    slope: Callable[[State], State],
    start: State,
    stops: tuple[float, ...],
    depth: int | None,
    save: Callable[[State], Any] = lambda state: state,
) -> Any:
    """`save` of the state at each of `stops`; leaves (..., ) -> (stops, ...).

    At infinite depth y' = slope(y) from tau = 0 to 1, which is the last of the stops; else y += slope(y) in each of
    `depth` layers, the stops being layers.
    """
    return _solve(slope, start, stops, save) if depth is None else _layer_by_layer(slope, start, stops, save)


def _solve(
    slope: Callable[[State], State], start: State, stops: tuple[float, ...], save: Callable[[State], Any]
) -> Any:
    import diffrax  # needed at infinite depth only

    times = jnp.array(stops)
    adaptive = diffrax.PIDController(rtol=TOLERANCE, atol=TOLERANCE)
    return diffrax.diffeqsolve(
        diffrax.ODETerm(lambda _, state, __: slope(state)),
        diffrax.Dopri8(),
        t0=0.0,
        t1=1.0,
        dt0=None,
        y0=start,
        saveat=diffrax.SaveAt(ts=times, fn=lambda _, state, __: save(state)),
        # Steps end at the stops: what lies between two is interpolated, to fewer digits.
        stepsize_controller=diffrax.ClipStepSizeController(adaptive, step_ts=times),
    ).ys


def _layer_by_layer(
    slope: Callable[[State], State], start: State, stops: tuple[float, ...], save: Callable[[State], Any]
) -> Any:
    def advance(state: State, layers: int) -> State:
        return jax.lax.fori_loop(0, layers, lambda _, s: jax.tree.map(jnp.add, s, slope(s)), state)

    parts, state = [], start
    # One loop for stops that are equally far apart, such as all layers.
    for layers, group in itertools.groupby(np.diff((0, *stops)).astype(int).tolist()):

        def to_next(state: State, _: None, layers: int = layers) -> tuple[State, Any]:
            state = advance(state, layers)
            return state, save(state)

        state, part = jax.lax.scan(to_next, state, length=len(list(group)))
        parts.append(part)
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *parts)


def relu_flow(
    a: jax.Array, b: jax.Array, c: jax.Array, beta: jax.Array, stops: tuple[float, ...]
) -> tuple[Flow, jax.Array, jax.Array]:
    """The flow of ReLU for norms (P, 1) and (1, Q) and kernel (P, Q); docs/theory.md section 2.

    The angle between two samples obeys an equation of its own, rho' = (beta^2 / 2 pi)(sin theta - theta cos theta), and
    norms only multiply the kernels. So the equation is solved from the Chebyshev nodes of the angle at the input, and
    the solution is interpolated: as exact, and no slower for thousands of samples.
    """
    x = np.cos(np.pi * (np.arange(NODES) + 0.5) / NODES)
    times = jnp.array(stops)

    def slope(state: Any) -> Any:
        u, _, until, size = state  # u = 1 - rho, smooth near both ends; size e^{beta^2 tau / 2}
        theta = 2 * jnp.arcsin(jnp.sqrt(jnp.clip(u / 2, 0, 1)))
        Phi, Phidot = relu_pair(theta)
        du = -(jnp.sin(theta) - theta * jnp.cos(theta)) / (2 * jnp.pi)
        return tuple(beta**2 * d for d in (du, Phidot, Phidot * until + size * Phi, size / 2))

    zero = jnp.zeros(NODES)
    start = (jnp.array(1 - np.cos(np.pi * (x + 1) / 2)), zero, zero, zero + 1)
    u, log_growth, until, _ = integrate(slope, start, stops, None)
    # Sums of Chebyshev polynomials through the values at the nodes.
    weights = 2 / NODES * np.cos(np.outer(np.arange(NODES), np.arccos(x)))
    weights[0] /= 2
    theta = 2 * jnp.arcsin(jnp.sqrt(jnp.clip(u / 2, 0, 1)))
    coefficients = jnp.einsum("kn,ftn->kft", weights, jnp.stack([theta, log_growth, until]))
    position = 2 * angle(overlap(a, b, c)) / jnp.pi - 1

    def clenshaw(
        carry: tuple[jax.Array, jax.Array], coefficient: jax.Array
    ) -> tuple[tuple[jax.Array, jax.Array], None]:
        last, before = carry
        return (coefficient[..., None, None] + 2 * position * last - before, last), None

    nothing = jnp.zeros((3, len(stops), *c.shape))
    (first, second), _ = jax.lax.scan(clenshaw, (nothing, nothing), coefficients[1:], reverse=True, unroll=16)
    theta, log_growth, until = coefficients[0][..., None, None] + position * first - second
    grown = jnp.exp(beta**2 * times / 2)[:, None, None]
    scale = jnp.sqrt(a * b + TINY)
    flow = Flow(scale * grown * jnp.cos(theta), jnp.exp(log_growth), scale * until)
    return flow, a * grown, b * grown
