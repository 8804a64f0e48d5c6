"""The problem that the solvers of training dynamics take, the equations they make of it, and their result."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from depthmup.activations import Activation
from depthmup.parameterization import unknown
from depthmup.theory.checks import GROUPS, check_alpha, check_kernel, check_readout, warn_unstable, whole
from depthmup.theory.moments import known
from depthmup.theory.precision import Array, concrete

if TYPE_CHECKING:
    from jaxtyping import Float

ARRAYS = ("Kx", "y", "beta", "gamma0", "eta0", "momentum", "weight_decay", "sample_weights")  # leaves of a `Problem`
STATIC = {"static": True}  # marks a field that JAX compiles for, and does not trace


@jax.tree_util.register_pytree_node_class
@dataclasses.dataclass(frozen=True, eq=False)
class Problem:
    """Samples, a residual network of infinite width that learns them, and the gradient descent by which it does.

    The network is h^0 = D^-1/2 W_in x, h^{l+1} = h^l + beta L^-alpha N^-1/2 W^l phi(h^l), F = w . psi(h^L) / (gamma0
    N), whose weights start as N(0, 1). The loss at step t is (1/2) sum_mu m_{t,mu} |F_mu - y_mu|^2, and the learning
    rate of all weights is eta0 gamma0^2 N, times L^(2 alpha - 1) for those of the branches. Source: docs/theory.md
    sections 0, 1.1 and 4.3.

    The samples:
      Kx: (P, P), the kernel of the inputs, x.x'/D.
      y: the targets, (P,), or (P, C) for C outputs.
    The network:
      depth: L, the number of residual branches; None for infinite depth.
      activation: phi, a name in `depthmup.activations` or any function of arrays; it need not be differentiable
        everywhere. Give the same function object again: each new one, such as a lambda in a loop, is compiled anew.
      readout: psi, "phi" for the activation before the readout or "linear" for none.
      branch_weights: 1, or 2 for branches W_2 phi(W_1 phi(h)); docs/theory.md section 4.5.
      beta, alpha: of the branch multiplier beta L^-alpha; alpha is from 1/2 to 1.
    The descent:
      steps: T, the number of times t = 0..T-1 at which predictions are given; there are T - 1 updates.
      eta0: the learning rate, a number, or (T,) for one of each step.
      gamma0: the richness: how far features move. 0, as a plain number only, is the lazy limit, where they do not move;
        small values approach it with an error of order gamma0^2, or gamma0 for activations with a kink. A traced one
        must be positive.
      momentum: mu of the heavy ball, from 0 to below 1.
      weight_decay: lambda_0: each step subtracts eta0 lambda_0 W from the weights, by way of the momentum.
      sample_weights: m, (P,), or (T, P) for those of each step; by default 1/P. A sample of weight 0 is a test sample.
        `minibatches` makes those of stochastic gradient descent.
      trained: the groups of weights that are trained, of "readin", "branch" and "readout"; the others stay.

    A JAX pytree: the numbers and arrays are its leaves, so that a problem can be an argument of `jax.jit`, `jax.grad`
    and `jax.vmap`. `dataclasses.replace` changes fields.

    Raises ValueError for a kernel that is not square, symmetric or positive semi-definite, for targets, learning rates
    or weights whose shapes do not fit, for a number out of range, and for an unknown name.
    """

    Kx: ArrayLike
    y: ArrayLike
    _: dataclasses.KW_ONLY
    depth: int | None = None
    activation: str | Activation = "tanh"
    readout: str = "phi"
    branch_weights: int = 1
    beta: float | jax.Array = 1.0
    alpha: float = 0.5
    steps: int
    eta0: ArrayLike
    gamma0: float | jax.Array = 1.0
    momentum: float | jax.Array = 0.0
    weight_decay: float | jax.Array = 0.0
    sample_weights: ArrayLike | None = None
    trained: Sequence[str] = GROUPS

    def __post_init__(self) -> None:
        check_kernel(self.Kx)
        check_alpha(self.alpha)
        check_readout(self.readout)
        if self.branch_weights not in (1, 2):
            raise ValueError(f"branch_weights must be 1 or 2, got {self.branch_weights}")
        for group in self.trained:
            if group not in GROUPS:
                raise unknown("group of weights", group, GROUPS)
        plain = dict(  # the fields that a program is compiled for, in one form, so that equal problems share a program
            depth=None if self.depth is None else whole("depth", self.depth),
            steps=whole("steps", self.steps),
            activation=known(self.activation),
            alpha=float(self.alpha),
            trained=tuple(group for group in GROUPS if group in self.trained),
        )
        for name, value in plain.items():
            object.__setattr__(self, name, value)
        self._check_arrays()

    def _check_arrays(self) -> None:
        P, y = np.shape(self.Kx)[0], np.shape(self.y)
        if len(y) not in (1, 2) or y[0] != P or 0 in y:
            raise ValueError(f"y has shape {y}; Kx of {P} samples needs ({P},) or ({P}, outputs)")
        for name in ("momentum", "gamma0", "weight_decay", "eta0", "sample_weights"):
            value = getattr(self, name)
            if value is not None and concrete(value) and not np.min(value) >= 0:
                raise ValueError(f"{name} must not be negative, got {value}")
        if concrete(self.momentum) and not self.momentum < 1:
            raise ValueError(f"momentum must be below 1, got {self.momentum}")
        T, weights = self.steps, self.sample_weights
        if weights is not None and np.shape(weights) not in ((P,), (T, P)):
            raise ValueError(f"sample_weights must be ({P},) or ({T}, {P}), got {np.shape(weights)}")
        if np.shape(self.eta0) not in ((), (T,)):
            raise ValueError(f"eta0 must be a number, or ({T},) for one a step, got shape {np.shape(self.eta0)}")

    @property
    def outputs(self) -> tuple[int, ...]:
        """(C,), or () if y is (P,)."""
        return np.shape(self.y)[1:]

    @property
    def lazy(self) -> bool:
        """Whether gamma0 is the plain number 0."""
        return concrete(self.gamma0) and float(self.gamma0) == 0

    def tree_flatten(self) -> tuple[list[Any], tuple[tuple[str, Any], ...]]:
        fields = [field.name for field in dataclasses.fields(self)]
        static = tuple((name, getattr(self, name)) for name in fields if name not in ARRAYS)
        return [getattr(self, name) for name in ARRAYS], static

    @classmethod
    def tree_unflatten(cls, static: tuple[tuple[str, Any], ...], arrays: Sequence[Any]) -> Problem:
        problem = object.__new__(cls)  # unchecked: JAX also puts in placeholders, and derivatives, which are no kernels
        problem.__dict__.update(static, **dict(zip(ARRAYS, arrays, strict=True)))
        return problem


def as_problem(
    problem: Problem | ArrayLike, y: ArrayLike | None, options: Mapping[str, Any], **defaults: Any
) -> Problem:
    """The `Problem` that a solver was given, or that of the kernel, targets and other fields that it was given.

    Raises TypeError for a `Problem` together with fields, and ValueError as `Problem`.
    """
    if not isinstance(problem, Problem):
        return Problem(problem, y, **{**defaults, **options})  # type: ignore[arg-type]
    if y is not None or options:
        more = [*(["y"] if y is not None else []), *options]
        raise TypeError(f"a problem comes alone, got {', '.join(more)} with it: see dataclasses.replace")
    return problem


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
    activation: str | Activation = dataclasses.field(metadata=STATIC)
    readout: str = dataclasses.field(metadata=STATIC)
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
    """The equations at the problem's depth, or at depth 1 if that is None. Call it with 64-bit JAX."""
    P, T = np.shape(problem.Kx)[0], problem.steps
    Kx, y, eta0, gamma0, beta = (
        jnp.asarray(of, jnp.float64) for of in (problem.Kx, problem.y, problem.eta0, problem.gamma0, problem.beta)
    )
    given = problem.sample_weights
    weights = jnp.full((T, P), 1 / P) if given is None else jnp.asarray(given, jnp.float64)
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

    To be called by what `float64` wraps, so that the warning names the line of the caller.
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


def minibatches(batches: Sequence[Sequence[int]], samples: int) -> np.ndarray:
    """`sample_weights` of stochastic gradient descent, (steps, samples), from the indices of each step's samples.

    Give as many batches as `Problem.steps`. The last one moves nothing: T predictions are T - 1 updates apart.

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


def solve_at_depth(
    problem: Problem, equations: Equations, solve: Callable[[Equations], Dynamics], depths: Sequence[int]
) -> Dynamics:
    """`solve` at the problem's depth; or, if that is infinite, extrapolated from the three `depths` L, 2L and 4L.

    F_inf = (8 F_4L - 6 F_2L + F_L) / 3 has no error of order 1/L or 1/L^2 (docs/theory.md section 4.1). Its distance
    from 2 F_4L - F_2L, with its sign, is the estimate `error`. The kernels are given at the layer times of depth L.

    Raises ValueError for other depths.
    """
    if problem.depth is not None:
        result = solve(equations)
    else:
        if len(depths) != 3 or tuple(depths) != tuple(factor * whole("depths", depths[0]) for factor in (1, 2, 4)):
            raise ValueError(f"depths must be L, 2L and 4L, got {tuple(depths)}")
        coarse, middle, fine = (solve(dataclasses.replace(equations, depth=depth)) for depth in depths)

        def limit(a: Array, b: Array, c: Array) -> Array:
            return (8 * c - 6 * b + a) / 3

        kernels = {
            name: limit(*(getattr(of, name)[::stride] for of, stride in ((coarse, 1), (middle, 2), (fine, 4))))
            for name in ("H", "Phi", "G")
        }
        predictions = limit(coarse.predictions, middle.predictions, fine.predictions)
        error = predictions - (2 * fine.predictions - middle.predictions)
        result = Dynamics(predictions, coarse.times, **kernels, error=error)
    if problem.outputs:
        return result
    drop = {"predictions": result.predictions[..., 0], "G": result.G[:, :, :, 0, :, :, 0]}
    return result._replace(**drop, error=None if result.error is None else result.error[..., 0])
