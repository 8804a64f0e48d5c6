"""The problem that the solvers of training dynamics take: samples, network and descent."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.typing import ArrayLike

from depthmup.activations import Activation, ActivationName
from depthmup.names import FINITE, NOT_NEGATIVE, Range, at_least_one, listed, short, unknown
from depthmup.theory.checks import ALPHA, GROUPS, ReadoutName, check_array, check_kernel, check_readout_name
from depthmup.theory.moments import known
from depthmup.theory.precision import concrete

NUMBERS = {"beta": FINITE, "gamma0": NOT_NEGATIVE, "momentum": Range(low=0, high=1), "weight_decay": NOT_NEGATIVE}
ARRAYS = ("Kx", "y", "beta", "gamma0", "eta0", "momentum", "weight_decay", "sample_weights")  # leaves of a `Problem`


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
    activation: ActivationName | Activation = "tanh"
    readout: ReadoutName = "phi"
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
        ALPHA.check("alpha", self.alpha)
        check_readout_name(self.readout)
        if self.branch_weights not in (1, 2):
            raise ValueError(f"branch_weights must be 1 or 2, got {self.branch_weights}")
        for group in listed("trained", self.trained):
            if group not in GROUPS:
                raise unknown("group of weights", group, GROUPS)
        plain = dict(  # the fields that a program is compiled for, in one form, so that equal problems share a program
            depth=None if self.depth is None else at_least_one("depth", self.depth),
            steps=at_least_one("steps", self.steps),
            activation=known(self.activation),
            alpha=float(self.alpha),
            trained=tuple(group for group in GROUPS if group in self.trained),
        )
        for name, value in plain.items():
            object.__setattr__(self, name, value)
        self._check_arrays()

    def _check_arrays(self) -> None:
        check_array("y", self.y)
        P, y = np.shape(self.Kx)[0], np.shape(self.y)
        if len(y) not in (1, 2) or y[0] != P or 0 in y:
            raise ValueError(f"y has shape {y}; Kx of {P} samples needs ({P},) or ({P}, outputs)")
        for name, within in NUMBERS.items():
            check_array(name, getattr(self, name), within)
        T, weights = self.steps, self.sample_weights
        if weights is not None:
            check_array("sample_weights", weights, NOT_NEGATIVE)
            if np.shape(weights) not in ((P,), (T, P)):
                raise ValueError(f"sample_weights must be ({P},) or ({T}, {P}), got {np.shape(weights)}")
        check_array("eta0", self.eta0, NOT_NEGATIVE)
        if np.shape(self.eta0) not in ((), (T,)):
            raise ValueError(f"eta0 must be a number, or ({T},) for one a step, got shape {np.shape(self.eta0)}")

    @property
    def outputs(self) -> tuple[int, ...]:
        """(C,), or () if y is (P,)."""
        return np.shape(self.y)[1:]

    @property
    def samples_and_outputs(self) -> tuple[int, int]:
        """(P, C); C is 1 if y is (P,)."""
        return np.shape(self.y)[0], int(np.prod(self.outputs))

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
    """`problem` itself, if it is a `Problem`; or else the `Problem` of the kernel `problem`, the targets y and options.

    Raises TypeError for a `Problem` together with fields, and ValueError as `Problem`.
    """
    if not isinstance(problem, Problem):
        return Problem(problem, y, **{**defaults, **options})  # type: ignore[arg-type]
    if y is not None or options:
        more = [*(["y"] if y is not None else []), *options]
        raise TypeError(f"a problem comes alone, got {', '.join(more)} with it: see dataclasses.replace")
    return problem


def minibatches(batches: Sequence[Sequence[int]], samples: int) -> np.ndarray:
    """`sample_weights` of stochastic gradient descent.

    Args:
      batches: the indices of each step's samples. Give as many as `Problem.steps`. The last one moves nothing: T
        predictions are T - 1 updates apart.
      samples: P, their number.

    Returns:
      (steps, samples).

    Raises ValueError for an empty batch or a sample that does not exist.
    """
    weights = np.zeros((len(listed("batches", batches)), at_least_one("samples", samples)))
    for step, batch in enumerate(batches):
        if not listed("a batch", batch) or not np.isin(batch, np.arange(samples)).all():
            raise ValueError(
                f"the batch of step {step} must name some of the samples 0..{samples - 1}, got {short(list(batch))}"
            )
        np.add.at(weights[step], np.asarray(batch), 1 / len(batch))
    return weights
