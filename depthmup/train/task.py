"""A training task: a network and how it is trained, as pure functions of one trial. This module knows no config."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from depthmup.models import Model, model_specs, states
from depthmup.models.layers import batch_axis
from depthmup.models.specs import UNIT
from depthmup.optim import DEFAULTS, OPTIONS, family_of, from_factors
from depthmup.parameterization import ForwardFactors, LeafFactors, Parameterization
from depthmup.recipe import Recipe
from depthmup.specs import factors as leaf_factors
from depthmup.specs import group, is_spec
from depthmup.train.divergence import NEVER, going
from depthmup.train.divergence import diverged as diverged

if TYPE_CHECKING:
    from jax.typing import ArrayLike
    from jaxtyping import Array, Float, Int, PyTree

    Scalar = Float[Array, ""]
    Whole = Int[Array, ""]

Batch = tuple[jax.Array, jax.Array]  # inputs (batch, *input_shape), labels (batch,)
Metrics = dict[str, jax.Array]


class Average(NamedTuple):
    """A mean that is summed part by part: add the fields of all parts, then `compute`."""

    total: Any
    count: Any

    def compute(self) -> Any:
        return self.total / self.count


# "loss" and "accuracy" as sums and counts over examples. Examples that only fill up the last batch do not count.
Evaluation = dict[str, Average]
FOREVER = 2**30  # number of steps of a training that has no end
LABEL_NOISE = 1  # this number folded into the random key of a step gives the key of its label noise


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


@dataclasses.dataclass(frozen=True)
class Task:
    """One model on inputs of one shape, one optimizer and one recipe: everything that a program is compiled for.

    input_shape: shape of one example.
    optimizer: "sgd", "momentum", "adam" or "adamw".

    Inside an axis of devices named "batch" (`models.layers.batch_axis`) each device sees a part of the batch. Then
    `step` averages gradients over this axis, and `evaluate` adds its sums and counts over this axis.
    """

    model: Model
    input_shape: tuple[int, ...]
    optimizer: str
    recipe: Recipe = dataclasses.field(default_factory=Recipe)

    @property
    def specs(self) -> PyTree:
        """The tree of ParamSpec of the model's parameters."""
        return _specs(self.model, self.input_shape)

    def hyper(
        self,
        p: Parameterization,
        learning_rate: ArrayLike,
        *,
        seed: int = 0,
        steps: int = FOREVER,
        warmup: int = 0,
        label_noise: float = 0.0,
        **optimizer: ArrayLike,
    ) -> Hyper:
        """The hyperparameters of one trial under a parameterization.

        p: its base_depth is in the unit of the model's depth.
        optimizer: values of `Hyper.optimizer` that differ from the defaults (`optim.DEFAULTS`).
        """
        p = self.counting_blocks(p)
        return Hyper(
            seed=seed,
            learning_rate=learning_rate,
            optimizer={**DEFAULTS, **optimizer},
            steps=steps,
            warmup=warmup,
            label_noise=label_noise,
            forward=p.forward_factors(width=self.model.width, depth=self.model.depth, head_dim=self.model.head_dim),
            factors=leaf_factors(p, self.specs, family_of(self.optimizer)),
        )

    def counting_blocks(self, p: Parameterization) -> Parameterization:
        """The parameterization whose depth ratio is that of the model's numbers of blocks."""
        return dataclasses.replace(p, blocks=self.model.block_count)

    def init(self, hyper: Hyper) -> TrainState:
        """The state before the first step."""
        params, statistics = self.init_model(jax.random.key(hyper.seed))
        params = jax.tree.map(lambda w, s: w * jnp.asarray(s, w.dtype), params, hyper.factors.init)
        step = jnp.int32(0)
        return TrainState(
            step=step,
            params=params,
            opt_state=self._transformation(hyper, self._learning_rate(hyper, step)).init(params),
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
        key, axis = self._step_key(state, hyper), batch_axis()
        if axis:
            key = jax.random.fold_in(key, jax.lax.axis_index(axis))
        loss, grads, statistics = self._gradient(state, batch, hyper, key)
        if axis:
            loss, grads, statistics = jax.lax.pmean((loss, grads, statistics), axis)
        norm = optax.tree.norm(grads)
        learning_rate = self._learning_rate(hyper, state.step)
        updates, opt_state = self._transformation(hyper, learning_rate).update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        first = jnp.where(state.step == 0, loss, state.first_loss)
        running = going(state, hyper)
        good = running & jnp.isfinite(loss) & jnp.isfinite(norm)
        halted = jnp.where(good | ~running, state.halted, state.step)
        new = state._replace(params=params, opt_state=opt_state, statistics=statistics)
        if self.recipe.ema:
            new = new._replace(average=self._averaged(state, params, self.recipe.ema))
        kept: TrainState = jax.tree.map(lambda a, b: jnp.where(good, a, b), new, state)
        kept = kept._replace(step=state.step + 1, first_loss=first, halted=halted)
        metrics = {"loss": loss, "grad_norm": norm, "learning_rate": learning_rate}
        if self.recipe.log_updates:
            metrics |= _update_rms(updates, jax.tree.map(group, self.specs, is_leaf=is_spec))
        return kept, {name: jnp.where(running, metric, jnp.nan) for name, metric in metrics.items()}

    def evaluate(self, state: TrainState, batch: Batch, hyper: Hyper) -> Evaluation:
        """Loss and accuracy over the examples of a batch. Labels below 0 mark examples that do not count."""
        inputs, labels = batch
        params = state.average if self.recipe.ema else state.params
        logits, _ = self._outputs(params, state, state.statistics, inputs, hyper, None)
        losses = self.recipe.example_losses(logits, jnp.maximum(labels, 0), train=False)
        values = {"loss": losses, "accuracy": logits.argmax(-1) == labels}
        counted = labels >= 0
        sums = {name: Average(jnp.where(counted, v, 0.0).sum(), counted.sum()) for name, v in values.items()}
        return jax.lax.psum(sums, batch_axis()) if batch_axis() else sums

    def objective(self, params: PyTree, state: TrainState, batch: Batch, hyper: Hyper) -> Scalar:
        """The loss that the next step from `state` would have, with `params` in place of the state's parameters."""
        return self._loss(params, state, state.statistics, batch, hyper, self._step_key(state, hyper))[0]

    def direction(self, state: TrainState, batch: Batch, hyper: Hyper) -> PyTree:
        """The update of the parameters that the next step would make with a learning rate of 1."""
        grads = jax.grad(self.objective)(state.params, state, batch, hyper)
        return self._transformation(hyper, 1.0).update(grads, state.opt_state, state.params)[0]

    def stream(self, params: PyTree, state: TrainState, batch: Batch, hyper: Hyper) -> list[jax.Array]:
        """The states h^0 .. h^L of the residual stream, (batch, ..., width) each."""
        return states(self.sown("stream", params, state, batch, hyper)[1])

    def sown(
        self, collection: str, params: PyTree, state: TrainState, batch: Batch, hyper: Hyper
    ) -> tuple[jax.Array, PyTree]:
        """(logits, what the model sows in `collection`), computed in the model's training mode.

        Batch norm uses the statistics of the batch, since its running statistics say little in the first steps. Dropout
        uses one fixed mask.
        """
        variables, rngs = {"params": params, **state.statistics}, {"dropout": jax.random.key(0)}
        mutable = [collection, *state.statistics]
        logits, sown = self.model.apply(variables, batch[0], hyper.forward, train=True, mutable=mutable, rngs=rngs)
        return logits, sown[collection]

    def init_model(self, key: jax.Array) -> tuple[PyTree, PyTree]:
        """(parameters with the standard fan-in init, statistics); `init` rescales the parameters."""
        variables = dict(self.model.init(key, jnp.ones((1, *self.input_shape)), UNIT))
        params = variables.pop("params")
        return params, {k: v for k, v in variables.items() if k == "batch_stats"}

    def apply(
        self, params: PyTree, statistics: PyTree, inputs: jax.Array, forward: ForwardFactors, key: jax.Array | None
    ) -> tuple[jax.Array, PyTree]:
        """(logits, new statistics).

        key: random key of dropout, in training. None: evaluate without dropout and without new statistics.
        """
        variables = {"params": params, **statistics}
        if key is None:
            return self.model.apply(variables, inputs, forward), statistics  # type: ignore[return-value]
        rngs = {"dropout": key}
        return self.model.apply(variables, inputs, forward, train=True, mutable=list(statistics), rngs=rngs)

    def _learning_rate(self, hyper: Hyper, step: jax.Array) -> Scalar:
        return hyper.learning_rate * self.recipe.multiplier(step, hyper.steps, hyper.warmup)

    def _transformation(self, hyper: Hyper, learning_rate: Any) -> optax.GradientTransformation:
        """The optimizer, built inside the step from traced hyperparameters, so that a grid over them is one program."""
        used = (*OPTIONS[self.optimizer], "weight_decay")
        options = {key: value for key, value in hyper.optimizer.items() if key in used}
        chain = from_factors(hyper.factors, self.optimizer, learning_rate, **options)
        return optax.chain(optax.clip_by_global_norm(self.recipe.clip), chain) if self.recipe.clip else chain

    def _step_key(self, state: TrainState, hyper: Hyper) -> jax.Array:
        return jax.random.fold_in(jax.random.key(hyper.seed), state.step)

    def _averaged(self, state: TrainState, params: PyTree, most: float) -> PyTree:
        """The exponential moving average after a step to the parameters `params`. most: the largest decay."""
        decay = jnp.minimum(most, (1 + state.step) / (10 + state.step))
        return jax.tree.map(lambda a, w: a + ((1 - decay) * (w - a)).astype(a.dtype), state.average, params)

    def _outputs(
        self, params: PyTree, state: TrainState, statistics: PyTree, inputs: jax.Array, hyper: Hyper, key: Any
    ) -> tuple[jax.Array, PyTree]:
        logits, statistics = self.apply(params, statistics, inputs, hyper.forward, key)
        if self.recipe.loss == "centered_mse":
            logits -= self.apply(state.initial, statistics, inputs, hyper.forward, key)[0]
        return logits, statistics

    def _loss(
        self, params: PyTree, state: TrainState, statistics: PyTree, batch: Batch, hyper: Hyper, key: jax.Array
    ) -> tuple[Scalar, PyTree]:
        logits, statistics = self._outputs(params, state, statistics, batch[0], hyper, key)
        labels = batch[1]
        if self.recipe.label_noise:
            labels = _noisy(jax.random.fold_in(key, LABEL_NOISE), labels, hyper.label_noise, logits.shape[-1])
        return self.recipe.example_losses(logits, labels, train=True).mean(), statistics

    def _gradient(self, state: TrainState, batch: Batch, hyper: Hyper, key: jax.Array) -> tuple[Scalar, PyTree, PyTree]:
        """(loss, gradient, new statistics) of `batch`, computed in `recipe.accumulate` parts one after another."""

        @functools.partial(jax.value_and_grad, has_aux=True)
        def of_part(params: PyTree, statistics: PyTree, part: Batch, key: jax.Array) -> tuple[Scalar, PyTree]:
            return self._loss(params, state, statistics, part, hyper, key)

        count = self.recipe.accumulate
        if count == 1:
            (loss, statistics), grads = of_part(state.params, state.statistics, batch, key)
            return loss, grads, statistics

        def add(carry: Any, numbered: Any) -> tuple[Any, None]:
            loss, grads, statistics = carry
            number, part = numbered
            (one, statistics), g = of_part(state.params, statistics, part, jax.random.fold_in(key, number))
            return (loss + one, jax.tree.map(jnp.add, grads, g), statistics), None

        # A part has every count-th example, so that it is spread over all devices that share the batch.
        parts = jax.tree.map(lambda leaf: leaf.reshape(-1, count, *leaf.shape[1:]).swapaxes(0, 1), batch)
        shapes = jax.eval_shape(of_part, state.params, state.statistics, jax.tree.map(lambda leaf: leaf[0], parts), key)
        nothing = (jnp.zeros((), shapes[0][0].dtype), jax.tree.map(jnp.zeros_like, state.params), state.statistics)
        (loss, grads, statistics), _ = jax.lax.scan(add, nothing, (jnp.arange(count), parts))
        return loss / count, jax.tree.map(lambda leaf: leaf / count, grads), statistics


@functools.lru_cache
def _specs(model: Model, input_shape: tuple[int, ...]) -> PyTree:
    return model_specs(model, input_shape)


def _noisy(key: jax.Array, labels: jax.Array, probability: jax.Array, classes: int) -> jax.Array:
    """Labels, each replaced with this probability by a uniformly random class, which may be the same class."""
    chosen, other = jax.random.split(key)
    replaced = jax.random.uniform(chosen, labels.shape) < probability
    return jnp.where(replaced, jax.random.randint(other, labels.shape, 0, classes, labels.dtype), labels)


def _update_rms(updates: PyTree, groups: PyTree) -> Metrics:
    """{"update_rms/GROUP": root mean square update over the entries of the group's parameters}."""
    sums: dict[str, Any] = {}
    for name, leaf in zip(jax.tree.leaves(groups), jax.tree.leaves(updates), strict=True):
        total, count = sums.get(name, (0.0, 0))
        sums[name] = total + jnp.square(leaf).sum(), count + leaf.size
    return {f"update_rms/{name}": jnp.sqrt(total / count) for name, (total, count) in sums.items()}
