"""State, hyperparameters and the pure training step. No config enters here: what a trial is, its `Hyper` says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from depthmup.optim import OPTIONS, from_factors
from depthmup.parameterization import ForwardFactors, LeafFactors

PyTree = Any
Batch = tuple[jax.Array, jax.Array]  # inputs (batch, ...), labels (batch,)
Metrics = dict[str, jax.Array]
DIVERGED_ABOVE = 2.0  # times the loss of the first batch


class Hyper(NamedTuple):
    """Everything that differs between trials of one shape: a traced pytree, the parameterization's factors among it."""

    seed: Any  # uint32
    learning_rate: Any
    momentum: Any
    b1: Any
    b2: Any
    eps: Any
    weight_decay: Any
    forward: ForwardFactors
    factors: LeafFactors  # trees of scalars

    def arrays(self) -> Hyper:
        """As NumPy scalars (Python floats would be compiled in, and a new value would compile anew)."""
        return jax.tree.map(np.float32, self)._replace(seed=np.uint32(self.seed))


class TrainState(NamedTuple):
    step: jax.Array  # int32, number of steps done
    params: PyTree
    opt_state: PyTree
    statistics: PyTree  # what the forward pass itself updates (batch norm); {} for none
    first_loss: jax.Array  # of the first batch before any step


class Trainer(NamedTuple):
    """The pure functions of one model, shape and optimizer name, and how trials of it share a device.

    init: hyper -> TrainState
    train_step: (state, batch, hyper) -> (state, {"loss"}), the loss before the step
    evaluate: (state, batch, hyper) -> {"loss", "correct", "examples"}, sums over examples of labels >= 0
    """

    init: Callable[[Hyper], TrainState]
    train_step: Callable[[TrainState, Batch, Hyper], tuple[TrainState, Metrics]]
    evaluate: Callable[[TrainState, Batch, Hyper], Metrics]
    layout: str | None = None  # of train.parallel; None: that of dense models


def diverged(loss: np.ndarray, first_loss: np.ndarray) -> np.ndarray:
    """Whether a loss at the end is not finite or above twice that of the first batch."""
    return ~np.isfinite(loss) | (loss > DIVERGED_ABOVE * first_loss)


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def make_trainer(
    init_model: Callable[[jax.Array], tuple[PyTree, PyTree]],
    apply: Callable[[PyTree, PyTree, jax.Array, ForwardFactors, jax.Array | None], tuple[jax.Array, PyTree]],
    optimizer: str,
    schedule: Callable[[jax.Array], Any] = lambda step: 1.0,
    loss: Callable[[jax.Array, jax.Array], jax.Array] = cross_entropy,
    layout: str | None = None,
) -> Trainer:
    """The training functions of a model.

    Args:
      init_model: PRNG key -> (parameters with the standard fan-in init, statistics); `Hyper.factors.init` rescales.
      apply: (parameters, statistics, inputs, forward factors, key) -> (logits, new statistics). In training, key is a
        PRNG key for dropout, a function of (Hyper.seed, step); in evaluation it is None and statistics stay.
      optimizer: "sgd", "momentum", "adam" or "adamw".
      schedule: step -> number that multiplies the learning rate and so keeps every leaf's factor.
      loss: (logits, labels) -> scalar, the mean over the batch.
      layout: how trials share a device (train.parallel).
    """

    def transformation(hyper: Hyper, step: jax.Array) -> optax.GradientTransformation:
        """Built inside the step, from traced hyperparameters: a grid over them is one program."""
        learning_rate = hyper.learning_rate * schedule(step)
        options = {key: getattr(hyper, key) for key in OPTIONS[optimizer] if key in hyper._fields}
        return from_factors(hyper.factors, optimizer, learning_rate, weight_decay=hyper.weight_decay, **options)

    def init(hyper: Hyper) -> TrainState:
        params, statistics = init_model(jax.random.key(hyper.seed))
        params = jax.tree.map(lambda w, s: w * jnp.asarray(s, w.dtype), params, hyper.factors.init)
        step, first_loss = jnp.int32(0), jnp.full_like(hyper.learning_rate, jnp.inf)
        return TrainState(step, params, transformation(hyper, step).init(params), statistics, first_loss)

    def train_step(state: TrainState, batch: Batch, hyper: Hyper) -> tuple[TrainState, Metrics]:
        inputs, labels = batch
        key = jax.random.fold_in(jax.random.key(hyper.seed), state.step)

        def objective(params: PyTree) -> tuple[jax.Array, PyTree]:
            logits, statistics = apply(params, state.statistics, inputs, hyper.forward, key)
            return loss(logits, labels), statistics

        (value, statistics), grads = jax.value_and_grad(objective, has_aux=True)(state.params)
        updates, opt_state = transformation(hyper, state.step).update(grads, state.opt_state, state.params)
        first = jnp.where(state.step == 0, value, state.first_loss)
        params = optax.apply_updates(state.params, updates)
        return TrainState(state.step + 1, params, opt_state, statistics, first), {"loss": value}

    def evaluate(state: TrainState, batch: Batch, hyper: Hyper) -> Metrics:
        inputs, labels = batch
        logits, _ = apply(state.params, state.statistics, inputs, hyper.forward, None)
        counted = labels >= 0  # others fill up the last batch
        each = jax.vmap(lambda y, label: loss(y[None], label[None]))(logits, jnp.maximum(labels, 0))
        sums = {"loss": jnp.where(counted, each, 0), "correct": logits.argmax(-1) == labels, "examples": counted}
        return {name: values.sum(dtype=jnp.float32) for name, values in sums.items()}

    return Trainer(init, train_step, evaluate, layout)
