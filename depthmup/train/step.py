"""What the loop trains: the step, the evaluation and the state of one trial, as pure functions.

A `Trainable` is a model, an optimizer and a recipe. It knows no config: `Task` is a model of ours, `ModelTask` one of
anyone's. The loop, sweeps, calibration and checks take nothing else.
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
import optax

from depthmup.models.layers import batch_axis
from depthmup.rules.parameterization import ForwardFactors, LeafFactors
from depthmup.rules.specs import group, is_spec, shift
from depthmup.schedules import schedule_multiplier
from depthmup.train.devices import split_state
from depthmup.train.divergence import NEVER, finite, going
from depthmup.training_settings import Recipe

if TYPE_CHECKING:
    from jaxtyping import Array, Float, Int, PyTree

    Scalar = Float[Array, ""]
    Whole = Int[Array, ""]

Batch = tuple[Any, ...]  # inputs (batch, ...), one or several, and targets
Metrics = dict[str, jax.Array]


class Average(NamedTuple):
    """A mean that is summed part by part: add the fields of all parts, then `compute`."""

    total: Any
    count: Any

    def compute(self) -> Any:
        return self.total / self.count


Evaluation = dict[str, Average]  # sums and counts over examples, "loss" among them
FOREVER = 2**30  # number of steps of a training that has no end


class Hyper(NamedTuple):
    """The hyperparameters of a trial. They are a traced pytree: trials with different values share one program."""

    seed: Any  # uint32
    learning_rate: Any
    optimizer: Mapping[str, Any]  # the other numbers of the optimizer: momentum, b1, b2, eps, weight_decay
    steps: Any  # int32, number of steps of the whole training; after them the trial is frozen
    warmup: Any  # int32, number of steps at the start in which the learning rate rises
    label_noise: Any  # probability that a training label is replaced by a random one
    forward: ForwardFactors
    factors: LeafFactors  # init, LR, ... factors of every leaf of the parameters
    divisor: PyTree = None  # weights over what is stored, of optimizers that look at weights and store them otherwise

    def arrays(self) -> Hyper:
        """The same values as NumPy scalars. Python floats would be compiled in as constants."""
        whole = {"seed": np.uint32(self.seed), "steps": np.int32(self.steps), "warmup": np.int32(self.warmup)}
        return jax.tree.map(np.float32, self)._replace(**whole)


class TrainState(NamedTuple):
    """The state of one trial between two steps.

    step: number of steps done.
    statistics: collections that the forward pass updates (batch norm); {} for none.
    first_loss: loss of the first batch before any step.
    halted: the first step whose loss or gradient was not finite, NEVER if there is none. From this step on the trial is
      frozen.
    average: exponential moving average of the parameters, if the recipe has one.
    initial: initial parameters, if the loss needs them.
    """

    step: Whole
    params: PyTree
    opt_state: PyTree
    statistics: PyTree
    first_loss: Scalar
    halted: Whole
    average: PyTree = None
    initial: PyTree = None


class Trainable(abc.ABC):
    """A model of one shape, an optimizer and a recipe: everything that a program is compiled for.

    recipe: schedule, clipping, accumulation, averaging. specs: the tree of ParamSpec of the model's parameters.

    Inside an axis of devices named "batch" (`models.layers.batch_axis`) each device sees a part of the batch. Then
    `step` averages gradients over this axis, and `evaluate` adds its sums and counts over this axis.
    """

    recipe: Recipe
    specs: PyTree

    @abc.abstractmethod
    def init_model(self, key: jax.Array) -> tuple[PyTree, PyTree]:
        """(parameters with the model's own init, statistics); `init` rescales the parameters."""

    @abc.abstractmethod
    def transformation(self, hyper: Hyper, learning_rate: Any) -> optax.GradientTransformation:
        """The optimizer, built inside the step from traced hyperparameters, so that a grid over them is one program."""

    @abc.abstractmethod
    def loss(
        self, params: PyTree, state: TrainState, statistics: PyTree, batch: Batch, hyper: Hyper, key: jax.Array
    ) -> tuple[Scalar, PyTree]:
        """(loss of a batch in training, new statistics)"""

    @abc.abstractmethod
    def evaluation(self, params: PyTree, state: TrainState, batch: Batch, hyper: Hyper) -> Evaluation:
        """Sums over the examples of a batch, without dropout and without new statistics."""

    @abc.abstractmethod
    def batch_shapes(self, examples: int) -> Batch:
        """Shapes and dtypes of a batch as `step` takes it."""

    def init(self, hyper: Hyper) -> TrainState:
        """The state before the first step."""
        params, statistics = self.init_model(jax.random.key(hyper.seed))
        params = jax.tree.map(lambda w, s: w * jnp.asarray(s, w.dtype), params, hyper.factors.init)
        offsets = shift(self.specs, hyper.factors.init)
        if offsets is not None:
            params = optax.apply_updates(params, offsets)
        step = jnp.int32(0)
        return TrainState(
            step=step,
            params=params,
            opt_state=self.transformation(hyper, self.learning_rate(hyper, step)).init(params),
            statistics=statistics,
            first_loss=jnp.full_like(hyper.learning_rate, jnp.inf),
            halted=jnp.int32(NEVER),
            average=params if self.recipe.ema else None,
            initial=params if self.recipe.loss == "centered_mse" else None,
        )

    def step(self, state: TrainState, batch: Batch, hyper: Hyper) -> tuple[TrainState, Metrics]:
        """Take one step of training: (new state, metrics). Loss and gradient are taken at the state before the step.

        The metrics are "loss", "grad_norm", "learning_rate", and "update_rms/GROUP" if the recipe asks for updates.

        If the loss or the gradient is not finite, the trial is frozen: it keeps the state from before this step.
        A trial is also frozen once its `hyper.steps` are done. A frozen trial's metrics are NaN from the next step on.
        """
        axis = batch_axis()
        key = step_key(hyper.seed, state.step, axis)
        loss, grads, statistics = self._gradient(state, batch, hyper, key)
        if axis:
            loss, grads, statistics = jax.lax.pmean((loss, grads, statistics), axis)
        norm = optax.tree.norm(grads)
        learning_rate = self.learning_rate(hyper, state.step)
        updates, opt_state = self.transformation(hyper, learning_rate).update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        first = jnp.where(state.step == 0, loss, state.first_loss)
        running = going(state, hyper)
        good = finite(loss, norm, running)
        halted = jnp.where(good | ~running, state.halted, state.step)
        new = state._replace(params=params, opt_state=opt_state, statistics=statistics)
        if self.recipe.ema:
            new = new._replace(average=self._averaged(state, params, self.recipe.ema))
        kept: TrainState = split_state(jax.tree.map(lambda a, b: jnp.where(good, a, b), new, state))
        kept = kept._replace(step=state.step + 1, first_loss=first, halted=halted)
        metrics = {"loss": loss, "grad_norm": norm, "learning_rate": learning_rate}
        if self.recipe.log_updates:
            metrics |= _update_rms(updates, jax.tree.map(group, self.specs, is_leaf=is_spec))
        return kept, {name: jnp.where(running, metric, jnp.nan) for name, metric in metrics.items()}

    def evaluate(self, state: TrainState, batch: Batch, hyper: Hyper) -> Evaluation:
        """The `evaluation` of the state's parameters, or of their average if the recipe has one."""
        sums = self.evaluation(state.average if self.recipe.ema else state.params, state, batch, hyper)
        return jax.lax.psum(sums, batch_axis()) if batch_axis() else sums

    def all_derivatives(self) -> Self:
        """The same task without kernels of accelerators, which have gradients but no other derivatives."""
        return self

    def objective(self, params: PyTree, state: TrainState, batch: Batch, hyper: Hyper) -> Scalar:
        """The loss that the next step from `state` would have, with `params` in place of the state's parameters."""
        return self.loss(params, state, state.statistics, batch, hyper, step_key(hyper.seed, state.step))[0]

    def direction(self, state: TrainState, batch: Batch, hyper: Hyper) -> PyTree:
        """The update of the parameters that the next step would make with a learning rate of 1."""
        grads = jax.grad(self.objective)(state.params, state, batch, hyper)
        return self.transformation(hyper, 1.0).update(grads, state.opt_state, state.params)[0]

    def learning_rate(self, hyper: Hyper, step: jax.Array) -> Scalar:
        return hyper.learning_rate * schedule_multiplier(self.recipe.schedule, step, hyper.steps, hyper.warmup)

    def _averaged(self, state: TrainState, params: PyTree, most: float) -> PyTree:
        """The exponential moving average after a step to the parameters `params`. most: the largest decay."""
        decay = jnp.minimum(most, (1 + state.step) / (10 + state.step))
        return jax.tree.map(lambda a, w: a + ((1 - decay) * (w - a)).astype(a.dtype), state.average, params)

    def _gradient(self, state: TrainState, batch: Batch, hyper: Hyper, key: jax.Array) -> tuple[Scalar, PyTree, PyTree]:
        """(loss, gradient, new statistics) of `batch`, computed in `recipe.accumulate` parts one after another."""

        @functools.partial(jax.value_and_grad, has_aux=True)
        def of_part(params: PyTree, statistics: PyTree, part: Batch, key: jax.Array) -> tuple[Scalar, PyTree]:
            return self.loss(params, state, statistics, part, hyper, key)

        count = self.recipe.accumulate
        if count == 1:
            (loss, statistics), grads = of_part(state.params, state.statistics, batch, key)
            return loss, split_state(grads), statistics

        def add(carry: Any, numbered: Any) -> tuple[Any, None]:
            loss, grads, statistics = carry
            number, part = numbered
            (one, statistics), g = of_part(state.params, statistics, part, jax.random.fold_in(key, number))
            return (loss + one, jax.tree.map(jnp.add, grads, split_state(g)), statistics), None

        # A part has every count-th example, so that it is spread over all devices that share the batch.
        parts = jax.tree.map(lambda leaf: leaf.reshape(-1, count, *leaf.shape[1:]).swapaxes(0, 1), batch)
        shapes = jax.eval_shape(of_part, state.params, state.statistics, jax.tree.map(lambda leaf: leaf[0], parts), key)
        nothing = (jnp.zeros((), shapes[0][0].dtype), jax.tree.map(jnp.zeros_like, state.params), state.statistics)
        (loss, grads, statistics), _ = jax.lax.scan(add, nothing, (jnp.arange(count), parts))
        return loss / count, jax.tree.map(lambda leaf: leaf / count, grads), statistics


def step_key(seed: Any, step: Any, axis: str | None = None) -> jax.Array:
    """The random key of a step, into whose seed all is folded. axis: of the devices that share its batch, each of which
    has a key of its own."""
    key = jax.random.fold_in(jax.random.key(seed), step)
    return jax.random.fold_in(key, jax.lax.axis_index(axis)) if axis else key


def _update_rms(updates: PyTree, groups: PyTree) -> Metrics:
    """{"update_rms/GROUP": root mean square update over the entries of the group's parameters}."""
    sums: dict[str, Any] = {}
    for name, leaf in zip(jax.tree.leaves(groups), jax.tree.leaves(updates), strict=True):
        total, count = sums.get(name, (0.0, 0))
        sums[name] = total + jnp.square(leaf).sum(), count + leaf.size
    return {f"update_rms/{name}": jnp.sqrt(total / count) for name, (total, count) in sums.items()}
