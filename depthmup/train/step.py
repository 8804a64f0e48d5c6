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
    first_loss: jax.Array  # of the first batch before any step


class Trainer(NamedTuple):
    """The pure functions of one model, shape and optimizer name.

    init: hyper -> TrainState
    train_step: (state, batch, hyper) -> (state, {"loss"}), the loss before the step
    evaluate: (state, split, hyper) -> {"loss", "accuracy", "diverged"}
    """

    init: Callable[[Hyper], TrainState]
    train_step: Callable[[TrainState, Batch, Hyper], tuple[TrainState, Metrics]]
    evaluate: Callable[[TrainState, Batch, Hyper], Metrics]


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def make_trainer(
    init_params: Callable[[jax.Array], PyTree],
    apply: Callable[[PyTree, jax.Array, ForwardFactors], jax.Array],
    optimizer: str,
    schedule: Callable[[jax.Array], Any] = lambda step: 1.0,
    loss: Callable[[jax.Array, jax.Array], jax.Array] = cross_entropy,
) -> Trainer:
    """The training functions of a model.

    Args:
      init_params: PRNG key -> parameters with the standard fan-in init; `Hyper.factors.init` rescales them.
      apply: (parameters, inputs, forward factors) -> logits.
      optimizer: "sgd", "momentum", "adam" or "adamw".
      schedule: step -> number that multiplies the learning rate and so keeps every leaf's factor.
      loss: (logits, labels) -> scalar.
    """

    def transformation(hyper: Hyper, step: jax.Array) -> optax.GradientTransformation:
        """Built inside the step, from traced hyperparameters: a grid over them is one program."""
        learning_rate = hyper.learning_rate * schedule(step)
        options = {key: getattr(hyper, key) for key in OPTIONS[optimizer] if key in hyper._fields}
        return from_factors(hyper.factors, optimizer, learning_rate, weight_decay=hyper.weight_decay, **options)

    def init(hyper: Hyper) -> TrainState:
        params = init_params(jax.random.key(hyper.seed))
        params = jax.tree.map(lambda w, s: w * jnp.asarray(s, w.dtype), params, hyper.factors.init)
        step, first_loss = jnp.int32(0), jnp.full_like(hyper.learning_rate, jnp.inf)
        return TrainState(step, params, transformation(hyper, step).init(params), first_loss)

    def train_step(state: TrainState, batch: Batch, hyper: Hyper) -> tuple[TrainState, Metrics]:
        inputs, labels = batch
        value, grads = jax.value_and_grad(lambda p: loss(apply(p, inputs, hyper.forward), labels))(state.params)
        updates, opt_state = transformation(hyper, state.step).update(grads, state.opt_state, state.params)
        first = jnp.where(state.step == 0, value, state.first_loss)
        params = optax.apply_updates(state.params, updates)
        return TrainState(state.step + 1, params, opt_state, first), {"loss": value}

    def evaluate(state: TrainState, split: Batch, hyper: Hyper) -> Metrics:
        inputs, labels = split
        logits = apply(state.params, inputs, hyper.forward)
        value = loss(logits, labels)
        diverged = ~jnp.isfinite(value) | (value > DIVERGED_ABOVE * state.first_loss)
        return {"loss": value, "accuracy": jnp.mean(logits.argmax(-1) == labels), "diverged": diverged}

    return Trainer(init, train_step, evaluate)
