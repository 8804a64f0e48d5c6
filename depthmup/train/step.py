"""State, hyperparameters and the pure training step. No config enters here: what a trial is, its `Hyper` says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from clu.metrics import Average

from depthmup.models.layers import batch_axis
from depthmup.optim import OPTIONS, from_factors
from depthmup.parameterization import ForwardFactors, LeafFactors
from depthmup.train.recipe import Recipe

PyTree = Any
Batch = tuple[jax.Array, jax.Array]  # inputs (batch, ...), labels (batch,)
Metrics = dict[str, jax.Array]
Evaluation = dict[
    str, Average
]  # "loss" and "accuracy", sums and counts over examples; what fills up a batch not among them
DIVERGED_ABOVE = 2.0  # times the loss of the first batch
NEVER = -1  # of `halted`
NOISE = 1  # of the key of a step: that of label noise


class Hyper(NamedTuple):
    """Everything that differs between trials of one shape: a traced pytree, the parameterization's factors among it."""

    seed: Any  # uint32
    learning_rate: Any
    momentum: Any
    b1: Any
    b2: Any
    eps: Any
    weight_decay: Any
    steps: Any  # int32, of the training: the trial is frozen after them
    warmup: Any  # int32, of the steps at the start
    label_noise: Any  # probability that a label is replaced by a random one
    forward: ForwardFactors
    factors: LeafFactors  # trees of scalars

    def arrays(self) -> Hyper:
        """As NumPy scalars (Python floats would be compiled in, and a new value would compile anew)."""
        whole = {"seed": np.uint32(self.seed), "steps": np.int32(self.steps), "warmup": np.int32(self.warmup)}
        return jax.tree.map(np.float32, self)._replace(**whole)


class TrainState(NamedTuple):
    step: jax.Array  # int32, number of steps done
    params: PyTree
    opt_state: PyTree
    statistics: PyTree  # what the forward pass itself updates (batch norm); {} for none
    first_loss: jax.Array  # of the first batch before any step
    halted: jax.Array  # int32, the step whose loss or gradient was not finite: the trial is frozen since; NEVER if none
    average: PyTree = None  # exponential moving average of the parameters, if the recipe has one
    initial: PyTree = None  # initial parameters, if the loss needs them


class Trainer(NamedTuple):
    """The pure functions of one model, shape and optimizer name.

    init: hyper -> TrainState
    train_step: (state, batch, hyper) -> (state, {"loss", "grad_norm", "learning_rate"}), loss and norm before the step.
      Inside an axis of devices named "batch" (models.layers.BATCH_AXIS), gradients are averaged over it.
    evaluate: (state, batch, hyper) -> Evaluation, over examples of labels >= 0; over the axis as well
    objective: (params, state, batch, hyper) -> the loss of a training step at other parameters
    direction: (state, batch, hyper) -> the updates of a step with learning rate 1
    states: (params, state, batch, hyper) -> the model's h^0 .. h^L, None if `make_trainer` was not told how
    """

    init: Callable[[Hyper], TrainState]
    train_step: Callable[[TrainState, Batch, Hyper], tuple[TrainState, Metrics]]
    evaluate: Callable[[TrainState, Batch, Hyper], Evaluation]
    objective: Callable[[PyTree, TrainState, Batch, Hyper], jax.Array]
    direction: Callable[[TrainState, Batch, Hyper], PyTree]
    states: Callable[[PyTree, TrainState, Batch, Hyper], Any] | None = None


def diverged(loss: np.ndarray, first_loss: np.ndarray) -> np.ndarray:
    """Whether a loss at the end is not finite or above twice that of the first batch."""
    return ~np.isfinite(loss) | (loss > DIVERGED_ABOVE * first_loss)


def make_trainer(
    init_model: Callable[[jax.Array], tuple[PyTree, PyTree]],
    apply: Callable[[PyTree, PyTree, jax.Array, ForwardFactors, jax.Array | None], tuple[jax.Array, PyTree]],
    optimizer: str,
    recipe: Recipe,
    groups: PyTree = None,
    stream: Callable[[PyTree, PyTree, jax.Array, ForwardFactors], Any] | None = None,
) -> Trainer:
    """The training functions of a model.

    Args:
      init_model: PRNG key -> (parameters with the standard fan-in init, statistics); `Hyper.factors.init` rescales.
      apply: (parameters, statistics, inputs, forward factors, key) -> (logits, new statistics). In training, key is a
        PRNG key for dropout, a function of (Hyper.seed, step) and of the device where devices share a batch by `pmap`;
        in evaluation it is None and statistics stay.
      optimizer: "sgd", "momentum", "adam" or "adamw".
      recipe: all else.
      groups: tree of names, one per parameter, for `recipe.log_updates`: "update_rms/NAME" among the metrics.
      stream: (parameters, statistics, inputs, forward factors) -> h^0 .. h^L, for measurements.

    A trial whose loss or gradient is not finite is frozen as it was before that step, one whose `Hyper.steps` are done
    as it is then; its metrics are NaN from the next step on.
    """
    centered = recipe.loss == "centered_mse"

    def rate(hyper: Hyper, step: jax.Array) -> jax.Array:
        return hyper.learning_rate * recipe.multiplier(step, hyper.steps, hyper.warmup)

    def transformation(hyper: Hyper, learning_rate: Any) -> optax.GradientTransformation:
        """Built inside the step, from traced hyperparameters: a grid over them is one program."""
        options = {key: getattr(hyper, key) for key in OPTIONS[optimizer] if key in hyper._fields}
        chain = from_factors(hyper.factors, optimizer, learning_rate, weight_decay=hyper.weight_decay, **options)
        return optax.chain(optax.clip_by_global_norm(recipe.clip), chain) if recipe.clip else chain

    def init(hyper: Hyper) -> TrainState:
        params, statistics = init_model(jax.random.key(hyper.seed))
        params = jax.tree.map(lambda w, s: w * jnp.asarray(s, w.dtype), params, hyper.factors.init)
        step, first_loss = jnp.int32(0), jnp.full_like(hyper.learning_rate, jnp.inf)
        opt_state = transformation(hyper, rate(hyper, step)).init(params)
        average, initial = (params if wanted else None for wanted in (recipe.ema, centered))
        return TrainState(step, params, opt_state, statistics, first_loss, jnp.int32(NEVER), average, initial)

    def outputs(
        params: PyTree, state: TrainState, statistics: PyTree, inputs: jax.Array, hyper: Hyper, key: jax.Array | None
    ) -> tuple[jax.Array, PyTree]:
        logits, statistics = apply(params, statistics, inputs, hyper.forward, key)
        if centered:
            logits -= apply(state.initial, statistics, inputs, hyper.forward, key)[0]
        return logits, statistics

    def loss_of(
        params: PyTree, state: TrainState, statistics: PyTree, batch: Batch, hyper: Hyper, key: jax.Array
    ) -> tuple[jax.Array, PyTree]:
        logits, statistics = outputs(params, state, statistics, batch[0], hyper, key)
        labels = batch[1]
        if recipe.label_noise:
            labels = _noisy(jax.random.fold_in(key, NOISE), labels, hyper.label_noise, logits.shape[-1])
        return recipe.example_losses(logits, labels, train=True).mean(), statistics

    def gradient(state: TrainState, batch: Batch, hyper: Hyper, key: jax.Array) -> tuple[jax.Array, PyTree, PyTree]:
        """(loss, gradient, new statistics) of this device's part of the batch."""

        def of_params(params: PyTree, statistics: PyTree, part: Batch, key: jax.Array) -> tuple[jax.Array, PyTree]:
            return loss_of(params, state, statistics, part, hyper, key)

        of_part = jax.value_and_grad(of_params, has_aux=True)
        if recipe.accumulate == 1:
            (value, statistics), grads = of_part(state.params, state.statistics, batch, key)
            return value, grads, statistics

        def add(carry: Any, numbered: Any) -> tuple[Any, None]:
            value, grads, statistics = carry
            number, part = numbered
            (v, statistics), g = of_part(state.params, statistics, part, jax.random.fold_in(key, number))
            return (value + v, jax.tree.map(jnp.add, grads, g), statistics), None

        count = recipe.accumulate
        # Every count-th example, so that each part lies on all the devices that share the batch.
        parts = jax.tree.map(lambda leaf: leaf.reshape(-1, count, *leaf.shape[1:]).swapaxes(0, 1), batch)
        shapes = jax.eval_shape(of_part, state.params, state.statistics, jax.tree.map(lambda leaf: leaf[0], parts), key)
        nothing = (jnp.zeros((), shapes[0][0].dtype), jax.tree.map(jnp.zeros_like, state.params), state.statistics)
        (value, grads, statistics), _ = jax.lax.scan(add, nothing, (jnp.arange(count), parts))
        value, grads = jax.tree.map(lambda leaf: leaf / count, (value, grads))
        return value, grads, statistics

    def step_key(state: TrainState, hyper: Hyper) -> jax.Array:
        return jax.random.fold_in(jax.random.key(hyper.seed), state.step)

    def objective(params: PyTree, state: TrainState, batch: Batch, hyper: Hyper) -> jax.Array:
        return loss_of(params, state, state.statistics, batch, hyper, step_key(state, hyper))[0]

    def direction(state: TrainState, batch: Batch, hyper: Hyper) -> PyTree:
        grads = jax.grad(objective)(state.params, state, batch, hyper)
        return transformation(hyper, 1.0).update(grads, state.opt_state, state.params)[0]

    def states(params: PyTree, state: TrainState, batch: Batch, hyper: Hyper) -> Any:
        assert stream is not None
        return stream(params, state.statistics, batch[0], hyper.forward)

    def train_step(state: TrainState, batch: Batch, hyper: Hyper) -> tuple[TrainState, Metrics]:
        key = step_key(state, hyper)
        axis = batch_axis()
        if axis:
            key = jax.random.fold_in(key, jax.lax.axis_index(axis))
        value, grads, statistics = gradient(state, batch, hyper, key)
        if axis:
            value, grads, statistics = jax.lax.pmean((value, grads, statistics), axis)
        norm = optax.tree.norm(grads)
        learning_rate = rate(hyper, state.step)
        updates, opt_state = transformation(hyper, learning_rate).update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        average = state.average
        if recipe.ema:
            decay = jnp.minimum(recipe.ema, (1 + state.step) / (10 + state.step))
            average = jax.tree.map(lambda a, w: a + ((1 - decay) * (w - a)).astype(a.dtype), average, params)
        first = jnp.where(state.step == 0, value, state.first_loss)
        running = going(state, hyper)
        good = running & jnp.isfinite(value) & jnp.isfinite(norm)
        halted = jnp.where(good | ~running, state.halted, state.step)
        new = TrainState(state.step, params, opt_state, statistics, first, halted, average, state.initial)
        kept = jax.tree.map(lambda a, b: jnp.where(good, a, b), new, state)
        kept = kept._replace(step=state.step + 1, first_loss=first, halted=halted)
        metrics = {"loss": value, "grad_norm": norm, "learning_rate": learning_rate}
        metrics |= _update_rms(updates, groups) if recipe.log_updates else {}
        return kept, {name: jnp.where(running, metric, jnp.nan) for name, metric in metrics.items()}

    def evaluate(state: TrainState, batch: Batch, hyper: Hyper) -> Evaluation:
        inputs, labels = batch
        params = state.average if recipe.ema else state.params
        logits, _ = outputs(params, state, state.statistics, inputs, hyper, None)
        each = recipe.example_losses(logits, jnp.maximum(labels, 0), train=False)
        values = {"loss": each, "accuracy": logits.argmax(-1) == labels}
        sums = {name: Average.from_model_output(value, labels >= 0) for name, value in values.items()}
        return jax.lax.psum(sums, batch_axis()) if batch_axis() else sums

    return Trainer(init, train_step, evaluate, objective, direction, states if stream else None)


def going(state: TrainState, hyper: Hyper) -> jax.Array:
    """Whether a trial still trains: it has not diverged, and its steps are not done."""
    return (state.halted == NEVER) & (state.step < hyper.steps)


def _noisy(key: jax.Array, labels: jax.Array, probability: jax.Array, classes: int) -> jax.Array:
    """Each label replaced by a uniformly random class (perhaps itself) with this probability."""
    chosen, other = jax.random.split(key)
    replaced = jax.random.uniform(chosen, labels.shape) < probability
    return jnp.where(replaced, jax.random.randint(other, labels.shape, 0, classes, labels.dtype), labels)


def _update_rms(updates: PyTree, groups: PyTree) -> Metrics:
    """Root mean square over the entries of each group's parameters."""
    sums: dict[str, Any] = {}
    for name, leaf in zip(jax.tree.leaves(groups), jax.tree.leaves(updates), strict=True):
        total, count = sums.get(name, (0.0, 0))
        sums[name] = total + jnp.square(leaf).sum(), count + leaf.size
    return {f"update_rms/{name}": jnp.sqrt(total / count) for name, (total, count) in sums.items()}
