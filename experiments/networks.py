"""Ensembles of small networks on small regression problems: what the infinite-width limits are compared with.

A network is the canonical one of docs/theory.md section 0, with its learning rates. The package's own step
(`train.Task`) trains it, and all seeds are one compiled program.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import depthmup as dm
from depthmup.activations import ActivationName
from depthmup.fit import PowerLaw, power_law
from depthmup.models import MLP, Model, ResidualMLP
from depthmup.names import at_least_one
from depthmup.rules.parameterization import ForwardFactors, LeafFactors, Name
from depthmup.rules.specs import PyTree, is_spec
from depthmup.theory import Problem
from depthmup.theory.checks import ReadoutName
from depthmup.train import Hyper, Task, TrainState
from depthmup.train.devices import trial_layout
from depthmup.train.step import FOREVER
from depthmup.training_settings import Recipe

# A problem of three samples.
KX, Y = np.array([[1, 0.3, -0.2], [0.3, 1, 0.1], [-0.2, 0.1, 1]]), np.array([1, -0.5, 0.8])
Observe = Callable[[PyTree, ForwardFactors], PyTree]
# The parameters' roles in each group of weights of a `Problem`. A read-in of one input is a "vector".
GROUPS = {"readin": ("input", "vector"), "branch": ("hidden",), "readout": ("readout",)}
RECIPE = Recipe(schedule="constant", loss="centered_mse")
# How many weights the networks that are trained side by side may have in all. On a CPU they should fit into its cache:
# of 1, 4, 16 and 64 networks this chooses the fastest at widths 32 to 256 and depth 8; 16 of width 256 take 2.5 times
# longer side by side than one by one. Elsewhere a gigabyte holds their weights, gradients and initial weights.
TOGETHER = {"map": 2**19, "vmap": 2**26}


def train(
    problem: Problem,
    x: np.ndarray | None = None,
    *,
    width: int,
    residual: bool = True,
    parameterization: Name = "depth_mup",
    batches: Sequence[Sequence[int] | np.ndarray] | None = None,
    seeds: int = 64,
    first_seed: int = 0,
    mirrored: bool = False,
    observe: Observe | None = None,
    chunk: int | None = None,
) -> Any:
    """Centred predictions F_t - F_0 of an ensemble, before each of `problem.steps` steps: (seeds, steps, *y.shape).

    Loss (1/2P) sum |F - F_0 - y|^2 over a batch of P samples, learning rate eta0 gamma0^2 N on all weights of the
    canonical form (docs/theory.md sections 0 and 1), momentum and decay coupled (4.3). Float64 where it is switched on.
    A network whose loss is not finite stays as it was before that step. Raises ValueError for what does not fit.

    Args:
      problem: what the limit is computed of, too.
      x: inputs (P, D) whose kernel x x^T / D is `problem.Kx`; None for `inputs(problem.Kx)`.
      batches: indices of the samples of each step, all of one size; None for full batches.
      mirrored: average each network with that of the opposite readout weights: cancels what is odd in y.
      observe: (parameters of `network`, forward factors) -> pytree, measured at the first and the last step. Then the
        result is (predictions, that pytree with leading axes (seeds, 2)). One function object is one program.
      chunk: networks trained side by side by `vmap`; by default as many as are fast.
    """
    dtype = jnp.result_type(float)
    depth, activation = _checked(problem)
    at_least_one("seeds", seeds)
    x, y, steps = _inputs_of(problem, x), np.asarray(problem.y), problem.steps
    targets = jnp.asarray(y.reshape(len(y), -1), dtype)
    model = network(width, depth, targets.shape[1], activation, problem.readout, residual)
    model.check(x.shape)
    task = RegressionTask(model, x.shape[1:], "momentum" if problem.momentum else "sgd", RECIPE)
    chunk = chunk or max(1, TOGETHER[trial_layout()] // (depth * width**2))
    predictions, observed = _ensemble(
        _hyper(problem, task, parameterization),
        np.arange(first_seed, first_seed + seeds, dtype=np.uint32),
        np.array([1, -1] if mirrored else [1], dtype),
        jnp.asarray(x, dtype),
        targets,
        None if batches is None else np.asarray(batches, np.int32)[: steps - 1],  # the last step is not made
        task=task,
        steps=steps,
        observe=observe,
        chunk=chunk,
    )
    predictions = np.asarray(predictions).reshape(seeds, steps, *y.shape)
    return predictions if observe is None else (predictions, jax.tree.map(np.asarray, observed))


def network(
    width: int,
    depth: int,
    outputs: int = 1,
    activation: ActivationName = "tanh",
    readout: ReadoutName = "phi",
    residual: bool = True,
) -> Model:
    """The module that `train` trains, its blocks unrolled: 1.6 times faster than scanned, but slower to compile.

    depth: number of residual branches, or without residual that of hidden layers of `MLP`, the read-in among them.
    """
    if residual:
        return ResidualMLP(width, depth, outputs, activation, readout=readout, scan=False)
    if readout != "phi":
        raise ValueError(f"a network without skips has the readout 'phi', not {readout!r}")
    return MLP(width, depth, outputs, activation, scan=False)


def inputs(Kx: np.ndarray) -> np.ndarray:
    """x (P, P) with x x^T / P = Kx, which is symmetric and positive semidefinite."""
    values, vectors = np.linalg.eigh(np.asarray(Kx, float))
    return vectors * np.sqrt(len(Kx) * np.maximum(values, 0))


def mean_error(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean over the first axis, and its standard error."""
    return values.mean(0), values.std(0, ddof=1) / np.sqrt(len(values))


def noisy_law(sizes: Sequence[float] | np.ndarray, value: np.ndarray, stderr: np.ndarray) -> PowerLaw:
    """The power law of positive values with these standard errors, (sizes,)."""
    return power_law(sizes, value.tolist(), stderr / value / math.log(2))


class RegressionTask(Task):
    """A task whose parameters are float64 where that is switched on."""

    def init_model(self, key: jax.Array) -> tuple[PyTree, PyTree]:
        params, statistics = super().init_model(key)
        return jax.tree.map(lambda w: w.astype(jnp.result_type(float)), params), statistics


def _checked(problem: Problem) -> tuple[int, ActivationName]:
    """(depth, activation). Raises ValueError for a problem that has a limit, but that `train` has no network for."""
    for missing, needed in (
        (problem.depth is None, "a finite depth"),
        (problem.lazy, "gamma0 above 0"),
        (np.ndim(problem.eta0) > 0, "one eta0 for all steps"),
        (problem.branch_weights != 1, "branches of one weight"),
        (problem.sample_weights is not None, "batches, and not sample_weights"),
        (not isinstance(problem.activation, str), "an activation that has a name"),
    ):
        if missing:
            raise ValueError(f"networks need {needed}")
    assert problem.depth is not None
    assert isinstance(problem.activation, str)
    return problem.depth, problem.activation


def _inputs_of(problem: Problem, x: np.ndarray | None) -> np.ndarray:
    """x, or inputs of the problem's kernel. Raises ValueError if x has another kernel."""
    Kx = np.asarray(problem.Kx)
    if x is None:
        return inputs(Kx)
    x = np.asarray(x)
    if x.ndim != 2 or len(x) != len(Kx) or not np.allclose(x @ x.T / x.shape[1], Kx, rtol=0, atol=1e-6 * Kx.max()):
        raise ValueError(f"x must be ({len(Kx)}, D) with x x^T / D = Kx, got shape {x.shape}")
    return x


def _hyper(problem: Problem, task: Task, parameterization: Name) -> Hyper:
    gamma0, beta = float(problem.gamma0), float(problem.beta)
    p = dm.parameterization(parameterization, alpha=problem.alpha, gamma0=gamma0, beta0=beta)
    numbers = task.hyper(p, problem.eta0, momentum=problem.momentum, weight_decay=problem.weight_decay)
    numbers = numbers._replace(factors=_factors(p, task.specs, problem.trained))
    dtype = jnp.result_type(float)
    hyper = jax.tree.map(lambda number: np.asarray(number, dtype), numbers)  # `arrays` would round to float32
    return hyper._replace(seed=np.uint32(0), steps=np.int32(FOREVER), warmup=np.int32(0))


def _factors(p: dm.Parameterization, specs: PyTree, trained: Sequence[str]) -> LeafFactors:
    """The package's, but with 1/D of its learning rate for the read-in, and 0 for groups that are not trained."""
    roles = [role for name in trained for role in GROUPS[name]]
    factors = dm.factors(p, specs)

    def over_inputs(spec: dm.ParamSpec) -> int:
        return spec.fan_in if spec.role == "input" else 1

    def lr(spec: dm.ParamSpec, factor: float) -> float:
        return factor / over_inputs(spec) if spec.role in roles else 0.0

    def decay(spec: dm.ParamSpec, factor: float) -> float:
        return factor * over_inputs(spec)

    return factors._replace(
        lr=jax.tree.map(lr, specs, factors.lr, is_leaf=is_spec),
        decay=jax.tree.map(decay, specs, factors.decay, is_leaf=is_spec),
    )


@functools.partial(jax.jit, static_argnames=("task", "steps", "observe", "chunk"))
def _ensemble(
    hyper: Hyper,
    seeds: jax.Array,
    signs: jax.Array,
    x: jax.Array,
    y: jax.Array,
    batches: jax.Array | None,
    *,
    task: Task,
    steps: int,
    observe: Observe | None,
    chunk: int,
) -> tuple[jax.Array, PyTree]:
    """(predictions (seeds, steps, P, outputs), observed (seeds, 2, ...)), the mean over `signs` of the readout."""

    def predict(state: TrainState) -> jax.Array:
        return task.apply(state.params, {}, x, hyper.forward, None)[0]

    def step(state: TrainState, batch: jax.Array | None) -> tuple[TrainState, jax.Array]:
        samples = (x, y) if batch is None else (x[batch], y[batch])
        after, _ = task.step(state, samples, hyper)
        return (_coupled(state, after, hyper) if task.optimizer == "momentum" else after), predict(state)

    def one(run: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, PyTree]:
        seed, sign = run
        init: PyTree = hyper.factors.init
        init = {**init, "readout": jax.tree.map(lambda factor: sign * factor, init["readout"])}
        first = task.init(hyper._replace(seed=seed, factors=hyper.factors._replace(init=init)))
        last, before = jax.lax.scan(step, first, batches, length=steps - 1)
        predictions = jnp.concatenate([before, predict(last)[None]])
        predictions -= predictions[0]
        if observe is None:
            return predictions, None
        ends = (observe(state.params, hyper.forward) for state in (first, last))
        return predictions, jax.tree.map(lambda *values: jnp.stack(values), *ends)

    runs = jnp.repeat(seeds, len(signs)), jnp.tile(signs, len(seeds))
    results = jax.lax.map(one, runs, batch_size=chunk if chunk > 1 else None)
    return jax.tree.map(lambda a: a.reshape(len(seeds), len(signs), *a.shape[1:]).mean(1), results)


def _coupled(before: TrainState, after: TrainState, hyper: Hyper) -> TrainState:
    """The decay of the last step also enters the momentum, as in docs/theory.md section 4.3; the package's does not."""
    trace = jax.tree.map(
        lambda v, w, decay: v + hyper.optimizer["weight_decay"] * decay * w,
        optax.tree.get(after.opt_state, "trace"),
        before.params,
        hyper.factors.decay,
    )
    return after._replace(opt_state=optax.tree.set(after.opt_state, trace=trace))
