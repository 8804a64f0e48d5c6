"""Kernels as functions of layer time: differential equations at infinite depth, recursions at finite depth."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from depthmup.names import install
from depthmup.theory.moments import TINY, angle, overlap, relu_pair

State = TypeVar("State")
NODES = 64  # the number of Chebyshev nodes at which ReLU's equation is solved
TOLERANCE = 1e-12  # relative and absolute, of the integrator


class Flow(NamedTuple):
    """The quantities that are integrated from the first layer to the last, elementwise in pairs of samples;
    docs/theory.md section 2.

    H: the feature kernel.
    growth: G(0) / G(tau), where G is the gradient kernel. G itself is known at the last layer only.
    until: the branches' part of the NTK from the layers up to tau, over G(tau).
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
    """Solves for the state y, and returns `save(y)` at each of `stops`, stacked along a new first axis.

    At infinite depth the equation is y' = slope(y), the stops are layer times, and the last of them is 1. At finite
    depth y grows by slope(y) in each of `depth` layers, the stops are numbers of layers, and the last of them is
    `depth`.
    """
    return _solve(slope, start, stops, save) if depth is None else _layer_by_layer(slope, start, stops, save)


def _solve(
    slope: Callable[[State], State], start: State, stops: tuple[float, ...], save: Callable[[State], Any]
) -> Any:
    try:
        import diffrax  # needed at infinite depth only
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"infinite depth needs {error.name}: {install('theory')}") from error

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
        # Steps end at the stops: between the ends of a step diffrax interpolates, to fewer digits.
        stepsize_controller=diffrax.ClipStepSizeController(adaptive, step_ts=times),
    ).ys


def _layer_by_layer(
    slope: Callable[[State], State], start: State, stops: tuple[float, ...], save: Callable[[State], Any]
) -> Any:
    def advance(state: State, layers: int) -> State:
        return jax.lax.fori_loop(0, layers, lambda _, s: jax.tree.map(jnp.add, s, slope(s)), state)

    parts, state = [], start
    # Neighbouring stops that are equally far apart, such as all layers, share one loop.
    for layers, group in itertools.groupby(np.diff((0, *stops)).astype(int).tolist()):

        def to_next(state: State, _: None, layers: int = layers) -> tuple[State, Any]:
            state = advance(state, layers)
            return state, save(state)

        state, values = jax.lax.scan(to_next, state, length=len(list(group)))
        parts.append(values)
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *parts)


def relu_flow(
    a: jax.Array, b: jax.Array, c: jax.Array, beta: jax.Array, stops: tuple[float, ...]
) -> tuple[Flow, jax.Array, jax.Array]:
    """The flow of ReLU at infinite depth, and the norms of rows and columns, at each of `stops`.

    a (P, 1), b (1, Q): norms of the samples of rows and columns. c: the input kernel (P, Q).

    The angle theta between two samples obeys an equation of its own, rho' = (beta^2 / 2 pi)(sin theta - theta cos
    theta) with rho = cos theta, and norms only multiply the kernels (docs/theory.md section 2). So the equation is
    solved from `NODES` Chebyshev nodes of the initial angle, and interpolated between them. That is as exact as solving
    it for each pair of samples, and takes no longer for thousands of samples.
    """
    x = np.cos(np.pi * (np.arange(NODES) + 0.5) / NODES)
    times = jnp.array(stops)

    def slope(state: Any) -> Any:
        u, _, until, size = state  # u = 1 - rho, smooth near both ends; size = e^{beta^2 tau / 2}
        theta = 2 * jnp.arcsin(jnp.sqrt(jnp.clip(u / 2, 0, 1)))
        Phi, Phidot = relu_pair(theta)
        du = -(jnp.sin(theta) - theta * jnp.cos(theta)) / (2 * jnp.pi)
        return tuple(beta**2 * d for d in (du, Phidot, Phidot * until + size * Phi, size / 2))

    zero = jnp.zeros(NODES)
    start = (jnp.array(1 - np.cos(np.pi * (x + 1) / 2)), zero, zero, zero + 1)
    u, log_growth, until, _ = integrate(slope, start, stops, None)
    # Coefficients of the Chebyshev polynomials that go through the values at the nodes; Clenshaw's rule sums them.
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
    (b1, b2), _ = jax.lax.scan(clenshaw, (nothing, nothing), coefficients[1:], reverse=True, unroll=16)
    theta, log_growth, until = coefficients[0][..., None, None] + position * b1 - b2
    grown = jnp.exp(beta**2 * times / 2)[:, None, None]
    scale = jnp.sqrt(a * b + TINY)
    flow = Flow(scale * grown * jnp.cos(theta), jnp.exp(log_growth), scale * until)
    return flow, a * grown, b * grown
