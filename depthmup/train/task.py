"""A training task of one of our models: the model, its optimizer and recipe, and the hyperparameters of its trials."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import optax

from depthmup.models import Model, model_specs, states
from depthmup.models.specs import UNIT
from depthmup.optim import DEFAULTS, OPTIONS, after_clipping, family_of, from_factors
from depthmup.parameterization import ForwardFactors, Parameterization
from depthmup.recipe import Recipe, of_examples
from depthmup.specs import factors as leaf_factors
from depthmup.train.trainable import FOREVER, Average, Batch, Evaluation, Hyper, Trainable, TrainState

if TYPE_CHECKING:
    from jax.typing import ArrayLike
    from jaxtyping import Array, Float, PyTree

    Scalar = Float[Array, ""]

_specs = functools.lru_cache(model_specs)
LABEL_NOISE = 1  # folded into the key of a step or of a part, which is that of its dropout


@dataclasses.dataclass(frozen=True)
class Task(Trainable):
    """One model on inputs of one shape, one optimizer and one recipe: everything that a program is compiled for.

    input_shape: shape of one example.
    optimizer: "sgd", "momentum", "adam" or "adamw".
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

    def transformation(self, hyper: Hyper, learning_rate: Any) -> optax.GradientTransformation:
        used = (*OPTIONS[self.optimizer], "weight_decay")
        options = {key: value for key, value in hyper.optimizer.items() if key in used}
        chain = from_factors(hyper.factors, self.optimizer, learning_rate, **options)
        return after_clipping(self.recipe.clip, chain)

    def loss(
        self, params: PyTree, state: TrainState, statistics: PyTree, batch: Batch, hyper: Hyper, key: jax.Array
    ) -> tuple[Scalar, PyTree]:
        logits, statistics = self._outputs(params, state, statistics, batch[0], hyper, key)
        labels = batch[1]
        if self.recipe.label_noise:
            labels = _noisy(jax.random.fold_in(key, LABEL_NOISE), labels, hyper.label_noise, logits.shape[-1])
        return self.recipe.example_losses(logits, labels, train=True).mean(), statistics

    def evaluation(self, params: PyTree, state: TrainState, batch: Batch, hyper: Hyper) -> Evaluation:
        """Loss and accuracy. Labels below 0 mark examples that only fill up the last batch and do not count."""
        inputs, labels = batch
        logits, _ = self._outputs(params, state, state.statistics, inputs, hyper, None)
        losses = self.recipe.example_losses(logits, jnp.maximum(labels, 0), train=False)
        values = {"loss": losses, "accuracy": of_examples(logits.argmax(-1) == labels)}
        counted = labels.reshape(len(labels), -1)[:, 0] >= 0
        return {name: Average(jnp.where(counted, v, 0.0).sum(), counted.sum()) for name, v in values.items()}

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

    def _outputs(
        self, params: PyTree, state: TrainState, statistics: PyTree, inputs: jax.Array, hyper: Hyper, key: Any
    ) -> tuple[jax.Array, PyTree]:
        logits, statistics = self.apply(params, statistics, inputs, hyper.forward, key)
        if self.recipe.loss == "centered_mse":
            logits -= self.apply(state.initial, statistics, inputs, hyper.forward, key)[0]
        return logits, statistics


def _noisy(key: jax.Array, labels: jax.Array, probability: jax.Array, classes: int) -> jax.Array:
    """Labels, each replaced with this probability by a uniformly random class, which may be the same class."""
    chosen, other = jax.random.split(key)
    replaced = jax.random.uniform(chosen, labels.shape) < probability
    return jnp.where(replaced, jax.random.randint(other, labels.shape, 0, classes, labels.dtype), labels)
