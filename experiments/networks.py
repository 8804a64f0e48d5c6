"""Ensembles of small networks on small regression problems, to compare with the infinite-width limits.

They are the canonical network of docs/theory.md section 0 with its learning rates, trained by the package's own step
(`train.step`), with all seeds in one compiled program.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from depthmup.train.parallel import trial_layout
from depthmup.train.step import Hyper, TrainState, make_trainer

import depthmup as dm
from depthmup.models import MLP, Model, ResidualMLP, model_specs
from depthmup.parameterization import ForwardFactors, LeafFactors, at_least_one, unknown
from depthmup.specs import is_spec
from depthmup.train.recipe import Recipe

PyTree = Any
Observe = Callable[[PyTree, ForwardFactors], PyTree]
# {group of parameters that can be trained: their roles}. The read-in of a single input is a "vector".
GROUPS = {"readin": ("input", "vector"), "branch": ("hidden",), "readout": ("readout",)}
RECIPE = Recipe(2**30, loss="centered_mse")
# How many weights are trained side by side, over all networks of a chunk. On a CPU ("map") they should fit into the
# cache: for widths 32 to 256 at depth 8 this number gives the fastest chunk among 1, 4, 16 and 64 networks; 16 networks
# of width 256 side by side take 2.5 times longer than one by one. Elsewhere ("vmap") their weights, gradients and
# initial weights take about a gigabyte.
TOGETHER = {"map": 2**19, "vmap": 2**26}


def train(
    x: np.ndarray,
    y: np.ndarray,
    *,
    width: int,
    depth: int,
    steps: int,
    eta0: float,
    gamma0: float = 1.0,
    beta: float = 1.0,
    activation: str = "tanh",
    readout: str = "phi",
    residual: bool = True,
    alpha: float | None = None,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    batches: Sequence[Sequence[int] | np.ndarray] | None = None,
    trained: Sequence[str] = tuple(GROUPS),
    parameterization: str = "depth_mup",
    seeds: int = 64,
    first_seed: int = 0,
    mirrored: bool = False,
    observe: Observe | None = None,
    chunk: int | None = None,
) -> Any:
    """Centred predictions F_t - F_0 of an ensemble, before each of `steps` steps: (seeds, steps, *y.shape).

    The loss is (1/2P) sum |F - F_0 - y|^2 over a batch of P samples. The learning rate is eta0 gamma0^2 N for all
    weights of the canonical form (docs/theory.md sections 0 and 1). The weights are stored in the package's own form,
    which gives the same function and trajectory. Numbers are float64 if JAX has it switched on. A network whose loss
    becomes infinite or NaN stays as it was before that step.

    Args:
      x: (P, D), see `inputs`.
      y: (P,) or (P, outputs), real numbers.
      width, depth, activation, readout, residual: see `network`.
      alpha: branch exponent; None: the parameterization's own, 1/2 for "depth_mup".
      momentum, weight_decay: mu and lambda_0 of docs/theory.md section 4.3. Together they are coupled: v <- mu v + step
        - eta0 lambda_0 W, W <- W + v, for all weights that are trained.
      batches: the indices of each step's samples, the same number for every step; None: full batches.
      trained: names in GROUPS; the other groups keep their initial weights.
      parameterization: see `dm.parameterization`. The read-in's learning rate follows the table in docs/theory.md
        section 1, which is 1/D times the package's.
      mirrored: average each network with its mirror image, the network with the opposite readout weights. (The mirror
        image is the network trained on -y, with the sign of its predictions changed.) The average cancels terms that
        are odd in y (docs/theory.md section 3).
      observe: (parameters of `network`, forward factors) -> pytree, measured at the first and at the last step. The
        result is then (predictions, this pytree with leading axes (seeds, 2)). Each function object is compiled anew.
      chunk: number of networks that `vmap` trains side by side; by default as many as are fast.

    Raises ValueError for unknown names, values out of range and shapes that do not fit.
    """
    dtype = jnp.result_type(float)
    x, y = np.asarray(x), np.asarray(y)
    if x.ndim != 2 or y.ndim not in (1, 2) or len(x) != len(y):
        raise ValueError(f"x must be (P, D) and y (P,) or (P, outputs), got shapes {x.shape} and {y.shape}")
    at_least_one("steps", steps)
    at_least_one("seeds", seeds)
    targets = jnp.asarray(y.reshape(len(y), -1), dtype)
    model = network(width, depth, targets.shape[1], activation, readout, residual)
    model.check(x.shape)
    p = dm.parameterization(parameterization, alpha=alpha, gamma0=gamma0, beta0=beta)
    numbers = Hyper(
        seed=0,
        learning_rate=eta0,
        momentum=momentum,
        b1=0.0,
        b2=0.0,
        eps=0.0,
        weight_decay=weight_decay,
        steps=0,
        warmup=0,
        label_noise=0.0,
        forward=p.forward_factors(width=width, depth=depth),
        factors=_factors(p, _specs(model, x.shape[1:]), trained),
    )
    # Not by `arrays` of the package, which would round to float32.
    hyper = jax.tree.map(lambda number: np.asarray(number, dtype), numbers)
    hyper = hyper._replace(seed=np.uint32(0), steps=np.int32(RECIPE.steps), warmup=np.int32(RECIPE.warmup))
    chunk = chunk or max(1, TOGETHER[trial_layout()] // (depth * width**2))
    predictions, observed = _ensemble(
        hyper,
        np.arange(first_seed, first_seed + seeds, dtype=np.uint32),
        np.array([1, -1] if mirrored else [1], dtype),
        jnp.asarray(x, dtype),
        targets,
        None if batches is None else _indices(batches, steps, len(x)),
        model=model,
        optimizer="momentum" if momentum else "sgd",
        steps=steps,
        observe=observe,
        chunk=chunk,
    )
    predictions = np.asarray(predictions).reshape(seeds, steps, *y.shape)
    return predictions if observe is None else (predictions, jax.tree.map(np.asarray, observed))


def network(
    width: int, depth: int, outputs: int = 1, activation: str = "tanh", readout: str = "phi", residual: bool = True
) -> Model:
    """The module that `train` trains. Its blocks are unrolled, which is 1.6 times faster than scanned blocks but takes
    longer to compile.

    depth: number of residual branches; if not residual, number of hidden layers of `MLP`, including the read-in.
    Raises ValueError for a readout that the plain network does not have.
    """
    if residual:
        return ResidualMLP(width, depth, outputs, activation, readout=readout, scan=False)
    if readout != "phi":
        raise ValueError(f"a network without skips has the readout 'phi', not {readout!r}")
    return MLP(width, depth, outputs, activation, scan=False)


def inputs(Kx: np.ndarray) -> np.ndarray:
    """Inputs x, (P, P), with x x^T / P = Kx.

    Raises ValueError if Kx is not symmetric and positive semidefinite.
    """
    Kx = np.asarray(Kx, float)
    if Kx.ndim != 2 or Kx.shape != Kx.T.shape or not np.allclose(Kx, Kx.T, rtol=0, atol=1e-12):
        raise ValueError(f"Kx must be symmetric, got\n{Kx}")
    values, vectors = np.linalg.eigh(Kx)
    if values[0] < -1e-12 * values[-1]:
        raise ValueError(f"Kx must be positive semidefinite, its smallest eigenvalue is {values[0]:.3g}")
    return vectors * np.sqrt(len(Kx) * np.maximum(values, 0))


@functools.cache
def _specs(model: Model, input_shape: tuple[int, ...]) -> PyTree:
    return model_specs(model, input_shape)


def _factors(p: dm.Parameterization, specs: PyTree, trained: Sequence[str]) -> LeafFactors:
    """The package's factors, but with the read-in's learning rate divided by D and frozen weights' learning rate 0."""
    for name in trained:
        if name not in GROUPS:
            raise unknown("group of parameters", name, GROUPS)
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


def _indices(batches: Sequence[Sequence[int] | np.ndarray], steps: int, samples: int) -> np.ndarray:
    """The sample indices of each update, (steps - 1, batch size); the last step only predicts."""
    sizes = sorted({len(batch) for batch in batches})
    if len(batches) not in (steps - 1, steps) or len(sizes) != 1:
        raise ValueError(f"batches must be {steps} of one size, one for each step, got {len(batches)} of sizes {sizes}")
    indices = np.asarray(batches, np.int32)
    if indices.min() < 0 or indices.max() >= samples:
        raise ValueError(f"batches must be of indices from 0 to {samples - 1}, got {indices.min()} to {indices.max()}")
    return indices[: steps - 1]


@functools.partial(jax.jit, static_argnames=("model", "optimizer", "steps", "observe", "chunk"))
def _ensemble(
    hyper: Hyper,
    seeds: jax.Array,
    signs: jax.Array,
    x: jax.Array,
    y: jax.Array,
    batches: jax.Array | None,
    *,
    model: Model,
    optimizer: str,
    steps: int,
    observe: Observe | None,
    chunk: int,
) -> tuple[jax.Array, PyTree]:
    """(predictions (seeds, steps, P, outputs), observed (seeds, 2, ...)), averaged over the `signs` of the readout."""

    def init_model(key: jax.Array) -> tuple[PyTree, PyTree]:
        params = model.init(key, x, hyper.forward)["params"]
        return jax.tree.map(lambda w: w.astype(x.dtype), params), {}

    def apply(
        params: PyTree, statistics: PyTree, inputs: jax.Array, forward: ForwardFactors, key: Any
    ) -> tuple[jax.Array, PyTree]:
        return model.apply({"params": params}, inputs, forward), statistics  # type: ignore[return-value]

    trainer = make_trainer(init_model, apply, optimizer, RECIPE)

    def predict(state: TrainState) -> jax.Array:
        return apply(state.params, {}, x, hyper.forward, None)[0]

    def step(state: TrainState, batch: jax.Array | None) -> tuple[TrainState, jax.Array]:
        samples = (x, y) if batch is None else (x[batch], y[batch])
        after, _ = trainer.train_step(state, samples, hyper)
        return (_coupled(state, after, hyper) if optimizer == "momentum" else after), predict(state)

    def one(run: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, PyTree]:
        seed, sign = run
        init: PyTree = hyper.factors.init
        init = {**init, "readout": jax.tree.map(lambda factor: sign * factor, init["readout"])}
        first = trainer.init(hyper._replace(seed=seed, factors=hyper.factors._replace(init=init)))
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
    """`after`, with the last step's weight decay also added to the momentum, as in docs/theory.md section 4.3; the
    package keeps decay out of the momentum."""
    trace = jax.tree.map(
        lambda v, w, decay: v + hyper.weight_decay * decay * w,
        optax.tree.get(after.opt_state, "trace"),
        before.params,
        hyper.factors.decay,
    )
    return after._replace(opt_state=optax.tree.set(after.opt_state, trace=trace))
