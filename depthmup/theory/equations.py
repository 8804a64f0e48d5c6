"""The equations, the evolution of weights, and the result, which all solvers of training dynamics share."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from depthmup.activations import Activation, ActivationName
from depthmup.names import at_least_one, listed
from depthmup.theory.checks import ReadoutName, check_number, warn_unstable
from depthmup.theory.precision import Array, concrete
from depthmup.theory.problem import NUMBERS, Problem

if TYPE_CHECKING:
    from jaxtyping import Float

STATIC = {"static": True}  # marks a field that JAX compiles for, and does not trace


class Dynamics(NamedTuple):
    """Training in the limit of infinite width; t = 0..T-1 counts updates, layers go from the read-in to the readout.

    predictions: F, (T, P), or (T, P, C) if y has several outputs.
    times: layer times of the kernels, (layers,).
    H, Phi: feature kernels <h h>, <phi(h) phi(h)>, (layers, T, P, T, P).
    G: gradient kernel <g g>, (layers, T, P, T, P), or (layers, T, P, C, T, P, C).
    stderr: standard error of `predictions` from replicates, of the same shape; None where there is no noise.
    error: estimate of the error of `predictions` from the extrapolation to infinite depth; None at finite depth.
    """

    predictions: Array
    times: Array
    H: Array
    Phi: Array
    G: Array
    stderr: Array = None
    error: Array = None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Equations:
    """The quantities in the equations of docs/theory.md section 4: a `Problem` at one finite depth, in float64.

    The weights at time t are a_t W(0) + sum_{s<t} k_{t,s} step(s), where step(s) weighs sample nu by m_{s,nu}.

    decay: a_t.
    rates: k_{t,s} m_{s,nu}, the learning rates included; indices t, s, nu. 0 for s >= t.
    weights: m_{s,nu}.
    random: whether the branches' initial random weights count. At infinite depth with alpha > 1/2 they do not.
    The other fields are those of `Problem`; a program is compiled for each value of the static ones.
    """

    Kx: Float[jax.Array, "P P"]
    y: Float[jax.Array, "P C"]
    gamma0: Float[jax.Array, ""]
    beta: Float[jax.Array, ""]
    decay: Float[jax.Array, " T"]
    rates: Float[jax.Array, "T T P"]
    weights: Float[jax.Array, "T P"]
    depth: int = dataclasses.field(metadata=STATIC)
    steps: int = dataclasses.field(metadata=STATIC)
    activation: ActivationName | Activation = dataclasses.field(metadata=STATIC)
    readout: ReadoutName = dataclasses.field(metadata=STATIC)
    branch_weights: int = dataclasses.field(metadata=STATIC)
    trained: tuple[str, ...] = dataclasses.field(metadata=STATIC)
    alpha: float = dataclasses.field(metadata=STATIC)
    random: bool = dataclasses.field(metadata=STATIC)

    def branch_scales(self) -> tuple[jax.Array, jax.Array]:
        """(b, c): b = beta L^-alpha multiplies the random weights of a branch, c = beta^2 / L what training adds."""
        random = self.beta * self.depth**-self.alpha if self.random else 0.0 * self.beta
        return random, self.beta**2 / self.depth

    def kept(self, group: str) -> Float[jax.Array, " T"]:
        """The share of a group's initial weights that is left at each time: 1 for a frozen group."""
        return self.decay if group in self.trained else jnp.ones_like(self.decay)


def equations_of(problem: Problem) -> Equations:
    """The equations at the problem's depth, or at depth 1 if that is None. Call it with 64-bit JAX.

    Raises ValueError for an array in the place of a number.
    """
    for name in NUMBERS:
        check_number(name, getattr(problem, name))
    P, T = np.shape(problem.Kx)[0], problem.steps
    Kx, y, eta0, gamma0, beta = (
        jnp.asarray(v, jnp.float64) for v in (problem.Kx, problem.y, problem.eta0, problem.gamma0, problem.beta)
    )
    sample_weights = problem.sample_weights
    weights = jnp.full((T, P), 1 / P) if sample_weights is None else jnp.asarray(sample_weights, jnp.float64)
    weights = jnp.broadcast_to(weights, (T, P))
    decay, memory = weight_evolution(jnp.broadcast_to(eta0, (T,)), problem.momentum, problem.weight_decay)
    return Equations(
        Kx,
        y.reshape(P, -1),
        gamma0,
        beta,
        decay,
        memory[:, :, None] * weights,
        weights,
        depth=problem.depth or 1,
        steps=T,
        activation=problem.activation,
        readout=problem.readout,
        branch_weights=problem.branch_weights,
        trained=tuple(problem.trained),
        alpha=problem.alpha,
        random=problem.depth is not None or problem.alpha == 0.5,
    )


def warn_of_divergence(problem: Problem, equations: Equations, parts: Mapping[str, ArrayLike]) -> None:
    """`warn_unstable` for the NTK at initialization, of which `parts` are the groups' shares, {group: (P, P)}.

    Call it from a function that `float64` wraps, so that the warning names the line of that function's caller.
    """
    if equations.steps == 1 or not concrete(problem, equations):
        return
    Theta = sum((jnp.asarray(parts[group]) for group in equations.trained), jnp.zeros_like(equations.Kx))
    updates = slice(equations.steps - 1)  # after the last time there is none
    weights, which = np.unique(np.sqrt(equations.weights[updates]), axis=0, return_inverse=True)
    largest = np.linalg.eigvalsh(weights[:, :, None] * np.asarray(Theta) * weights[:, None])[:, -1]
    rates = np.broadcast_to(problem.eta0, equations.steps)[updates]
    warn_unstable(rates, largest[which.ravel()], problem.momentum, stacklevel=6)


@jax.jit
def weight_evolution(
    eta0: Float[jax.Array, " T"], momentum: float | jax.Array, weight_decay: float | jax.Array
) -> tuple[Float[jax.Array, " T"], Float[jax.Array, "T T"]]:
    """(a, k) of W(t) = a_t W(0) + sum_{s<t} k_{t,s} step(s), where step(s) is that of learning rate 1.

    The updates are v <- momentum v + step - weight_decay W, W <- W + eta0 v, as by `optax.add_decayed_weights` followed
    by `optax.trace`. At a constant learning rate they are those of docs/theory.md section 4.3 with lambda_0 =
    weight_decay.
    """
    T = len(eta0)

    def update(carry: tuple[jax.Array, jax.Array], now: tuple[jax.Array, jax.Array]) -> tuple[Any, jax.Array]:
        W, v = carry  # their coefficients of W(0) and of each step, (1 + T,)
        unit, eta = now
        v = momentum * v + unit - weight_decay * W
        return (W + eta * v, v), W

    start = jnp.zeros(1 + T).at[0].set(1.0), jnp.zeros(1 + T)
    _, responses = jax.lax.scan(update, start, (jnp.eye(T, 1 + T, 1), eta0))
    return responses[:, 0], responses[:, 1:]


def deepest_of(problem: Problem, depths: Sequence[int]) -> int:
    """The problem's depth; or, if that is infinite, the largest of the `depths` from which it is extrapolated.

    Raises ValueError for other depths than L, 2L and 4L.
    """
    if problem.depth is not None:
        return problem.depth
    smallest, *_ = listed("depths", depths) or [0]
    at_least_one("depths", smallest)
    if list(depths) != [smallest, 2 * smallest, 4 * smallest]:
        raise ValueError(f"depths must be L, 2L and 4L, got {tuple(depths)}")
    return 4 * smallest


def solve_at_depth(
    problem: Problem, equations: Equations, solve: Callable[[Equations], Dynamics], depths: Sequence[int]
) -> Dynamics:
    """`solve` at the problem's depth; or, if that is infinite, extrapolated from the three `depths` L, 2L and 4L.

    F_inf = (8 F_4L - 6 F_2L + F_L) / 3 has no error of order 1/L or 1/L^2 (docs/theory.md section 4.1). Its distance
    from 2 F_4L - F_2L, with its sign, is the estimate `error`. The kernels are given at the layer times of depth L.
    """
    if problem.depth is not None:
        result = solve(equations)
    else:
        coarse, middle, fine = (solve(dataclasses.replace(equations, depth=depth)) for depth in depths)

        def limit(a: Array, b: Array, c: Array) -> Array:
            return (8 * c - 6 * b + a) / 3

        kernels = {
            name: limit(*(getattr(run, name)[::stride] for run, stride in ((coarse, 1), (middle, 2), (fine, 4))))
            for name in ("H", "Phi", "G")
        }
        predictions = limit(coarse.predictions, middle.predictions, fine.predictions)
        error = predictions - (2 * fine.predictions - middle.predictions)
        result = Dynamics(predictions, coarse.times, **kernels, error=error)
    if problem.outputs:
        return result
    drop = {"predictions": result.predictions[..., 0], "G": result.G[:, :, :, 0, :, :, 0]}
    return result._replace(**drop, error=None if result.error is None else result.error[..., 0])
