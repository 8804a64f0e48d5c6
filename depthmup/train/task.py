"""A training task of one of our models: the model, its optimizer and recipe, and the hyperparameters of its trials."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import optax

from depthmup.losses import of_examples
from depthmup.models import GPT, Model, model_specs, states
from depthmup.models.specs import UNIT
from depthmup.rules.optim import OPTIMIZERS, after_clipping, families_of, from_factors
from depthmup.rules.parameterization import ForwardFactors, Parameterization
from depthmup.rules.specs import factors as leaf_factors
from depthmup.train.step import FOREVER, Average, Batch, Evaluation, Hyper, Trainable, TrainState
from depthmup.training_settings import Recipe

if TYPE_CHECKING:
    from jax.typing import ArrayLike
    from jaxtyping import Array, Float, PyTree

    Scalar = Float[Array, ""]

_specs = functools.lru_cache(model_specs)
LOGITS = 2**24  # numbers up to which the logits of a batch are computed at once: 64 MiB
MOST_PARTS = 16  # in which they are computed else
LABEL_NOISE = 1  # folded into the key of a step or of a part, which is that of its dropout


@dataclasses.dataclass(frozen=True)
class Task(Trainable):
    """One model on inputs of one shape, one optimizer and one recipe: everything that a program is compiled for.

    input_shape: shape of one example.
    optimizer: a name of `optim.OPTIMIZERS`.
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
        optimizer: values of `Hyper.optimizer` that differ from the defaults of its row (`optim.OPTIMIZERS`).
        """
        p = self.counting_blocks(p)
        return Hyper(
            seed=seed,
            learning_rate=learning_rate,
            optimizer={**OPTIMIZERS[self.optimizer].numbers, **optimizer},
            steps=steps,
            warmup=warmup,
            label_noise=label_noise,
            forward=p.forward_factors(width=self.model.width, depth=self.model.depth, head_dim=self.model.head_dim),
            factors=leaf_factors(p, self.specs, families_of(self.optimizer, self.specs)),
        )

    def counting_blocks(self, p: Parameterization) -> Parameterization:
        """The parameterization whose depth ratio is that of the model's numbers of blocks."""
        return dataclasses.replace(p, blocks=self.model.block_count)

    def transformation(self, hyper: Hyper, learning_rate: Any) -> optax.GradientTransformation:
        used = (*OPTIMIZERS[self.optimizer].options, "weight_decay")
        options = {key: value for key, value in hyper.optimizer.items() if key in used}
        chain = from_factors(hyper.factors, self.optimizer, learning_rate, specs=self.specs, **options)
        return after_clipping(self.recipe.clip, chain)

    def loss(
        self, params: PyTree, state: TrainState, statistics: PyTree, batch: Batch, hyper: Hyper, key: jax.Array
    ) -> tuple[Scalar, PyTree]:
        labels = batch[1]
        if self.recipe.label_noise:
            labels = _noisy(jax.random.fold_in(key, LABEL_NOISE), labels, hyper.label_noise, self.model.outputs)

        def losses(logits: jax.Array, labels: jax.Array) -> jax.Array:
            return self.recipe.losses(logits, labels, train=True)

        values, statistics = self._of_logits(losses, params, state, statistics, batch[0], labels, hyper, key)
        return of_examples(values).mean(), statistics

    def evaluation(self, params: PyTree, state: TrainState, batch: Batch, hyper: Hyper) -> Evaluation:
        """Loss and accuracy. Labels below 0 mark examples that only fill up the last batch and do not count."""
        inputs, labels = batch

        def measured(logits: jax.Array, labels: jax.Array) -> dict[str, jax.Array]:
            losses = self.recipe.losses(logits, jnp.maximum(labels, 0), train=False)
            return {"loss": losses, "accuracy": logits.argmax(-1) == labels}

        values, _ = self._of_logits(measured, params, state, state.statistics, inputs, labels, hyper, None)
        counted = labels.reshape(len(labels), -1)[:, 0] >= 0
        return {
            name: Average(jnp.where(counted, of_examples(v), 0.0).sum(), counted.sum()) for name, v in values.items()
        }

    def all_derivatives(self) -> Task:
        model = self.model
        return dataclasses.replace(self, model=model.clone(kernels=False)) if isinstance(model, GPT) else self

    def batch_shapes(self, examples: int) -> Batch:
        return self.model.batch_shapes(examples, self.input_shape)

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
        variables = dict(self.model.init(key, jnp.ones_like(self.batch_shapes(1)[0]), UNIT))
        params = variables.pop("params")
        return params, {k: v for k, v in variables.items() if k == "batch_stats"}

    def apply(
        self,
        params: PyTree,
        statistics: PyTree,
        inputs: jax.Array,
        forward: ForwardFactors,
        key: jax.Array | None,
        **options: Any,
    ) -> tuple[jax.Array, PyTree]:
        """(logits, new statistics).

        key: random key of dropout, in training. None: evaluate without dropout and without new statistics. options: of
        the model's call.
        """
        variables = {"params": params, **statistics}
        if key is None:
            return self.model.apply(variables, inputs, forward, **options), statistics  # type: ignore[return-value]
        rngs, mutable = {"dropout": key}, list(statistics)
        return self.model.apply(variables, inputs, forward, train=True, mutable=mutable, rngs=rngs, **options)

    def _of_logits(
        self,
        measure: Callable[[jax.Array, jax.Array], PyTree],
        params: PyTree,
        state: TrainState,
        statistics: PyTree,
        inputs: jax.Array,
        labels: jax.Array,
        hyper: Hyper,
        key: Any,
    ) -> tuple[PyTree, PyTree]:
        """(measure(logits, labels), new statistics), where a measure has a number for each label.

        Where the logits of all tokens are more than `LOGITS` numbers, those of one part of the context after another
        are computed, in gradients again, so that they are never there as a whole.
        """

        def outputs(params: PyTree, statistics: PyTree, **options: Any) -> tuple[jax.Array, PyTree]:
            return self.apply(params, statistics, inputs, hyper.forward, key, **options)

        centered, model = self.recipe.loss == "centered_mse", self.model
        parts = min(MOST_PARTS, -(-inputs.size * model.outputs // LOGITS)) if isinstance(model, GPT) else 1
        if parts == 1:
            logits, statistics = outputs(params, statistics)
            if centered:
                logits -= outputs(state.initial, statistics)[0]
            return measure(logits, labels), statistics
        h, statistics = outputs(params, statistics, readout=False)
        start = outputs(state.initial, statistics, readout=False)[0] if centered else None
        context = labels.shape[1]
        each = -(-context // parts)

        def split(array: jax.Array) -> jax.Array:
            """(batch, context, ...) -> (parts, batch, each, ...), filled up by zeros"""
            padded = jnp.pad(array, ((0, 0), (0, parts * each - context)) + ((0, 0),) * (array.ndim - 2))
            return padded.reshape(len(array), parts, each, *array.shape[2:]).swapaxes(0, 1)

        @functools.partial(jax.checkpoint, prevent_cse=False)  # a loop's body is not merged with its repetition
        def of_part(part: tuple[jax.Array, jax.Array | None, jax.Array]) -> PyTree:
            h, start, labels = part
            logits = model.logits(params, h, hyper.forward)
            if start is not None:
                logits -= model.logits(state.initial, start, hyper.forward)
            return measure(logits, labels)

        values = jax.lax.map(of_part, jax.tree.map(split, (h, start, labels)))
        return jax.tree.map(lambda v: v.swapaxes(0, 1).reshape(len(labels), -1)[:, :context], values), statistics


def _noisy(key: jax.Array, labels: jax.Array, probability: jax.Array, classes: int) -> jax.Array:
    """Labels, each replaced with this probability by a uniformly random class, which may be the same class."""
    chosen, other = jax.random.split(key)
    replaced = jax.random.uniform(chosen, labels.shape) < probability
    return jnp.where(replaced, jax.random.randint(other, labels.shape, 0, classes, labels.dtype), labels)
