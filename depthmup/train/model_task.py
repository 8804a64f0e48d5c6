"""A model of one's own as what the training loop trains."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from depthmup.data.batch_checks import NOT_COMPILED, UNTRACED, no_loss, shapes_of
from depthmup.reading.audit import InitAudit
from depthmup.reading.frameworks import FrameworkModel
from depthmup.rules.optim import (
    after_clipping,
    divisor,
    families_of,
    from_factors,
    looks_at_weights,
    shifted,
    stored_divided,
)
from depthmup.rules.parameterization import LeafFactors, Parameterization
from depthmup.rules.specs import PyTree, leaves_of, rescaling, shift
from depthmup.rules.specs import factors as leaf_factors
from depthmup.settings import SettingsError
from depthmup.train.step import Average, Batch, Evaluation, Hyper, Trainable, TrainState
from depthmup.training_settings import Recipe

Loss = Callable[[Any, Any], jax.Array]


@dataclasses.dataclass(frozen=True, eq=False)
class ModelTask(Trainable):
    """A model at one width and depth, an optimizer, and a loss.

    criterion: (outputs, targets) -> scalar.
    optimizer: a name of `dm.optimizer`, or a transformation with learning rate 1.
    shapes: examples -> shapes of a batch. options: of a named optimizer, the same for all trials (mask, nesterov).
    """

    model: FrameworkModel
    specs: PyTree
    correction: InitAudit | None
    criterion: Loss
    optimizer: str | optax.GradientTransformation
    shapes: Callable[[int], Batch]
    recipe: Recipe
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def init_model(self, key: jax.Array) -> tuple[PyTree, PyTree]:
        params, state = self.model.init(key)
        return params if self.correction is None else self.correction.correct(params), _packed(state)

    def transformation(self, hyper: Hyper, learning_rate: Any) -> optax.GradientTransformation:
        if isinstance(self.optimizer, str):
            tx = from_factors(
                hyper.factors, self.optimizer, learning_rate, specs=self.specs, **{**hyper.optimizer, **self.options}
            )
            if hyper.divisor is not None and looks_at_weights(self.optimizer):
                tx = stored_divided(hyper.divisor, tx)
            tx = shifted(shift(self.specs, hyper.factors.init), tx)
        else:
            tx = optax.chain(self.optimizer, optax.scale(learning_rate))
        return after_clipping(self.recipe.clip, tx, hyper.divisor)

    def loss(
        self, params: PyTree, state: TrainState, statistics: PyTree, batch: Batch, hyper: Hyper, key: jax.Array
    ) -> tuple[jax.Array, PyTree]:
        *inputs, targets = batch
        outputs, after = self.outputs(params, statistics, inputs, hyper, key)
        return self.criterion(outputs, targets), _packed(after)

    def outputs(
        self, params: PyTree, statistics: PyTree, inputs: Sequence[Any], hyper: Hyper, key: jax.Array
    ) -> tuple[Any, PyTree]:
        """(outputs of the model in training, its other arrays after the call)"""
        model = self.model.with_factors(hyper.forward)
        return model.run(params, self._unpacked(statistics), *inputs, key=key)

    def evaluation(self, params: PyTree, state: TrainState, batch: Batch, hyper: Hyper) -> Evaluation:
        *inputs, targets = batch
        model = self.model.with_factors(hyper.forward).in_evaluation()
        outputs, _ = model.run(params, self._unpacked(state.statistics), *inputs)
        count = jnp.float32(jax.tree.leaves(batch)[0].shape[0])
        return {"loss": Average(self.criterion(outputs, targets) * count, count)}

    def output_shapes(self, inputs: Sequence[Any], hyper: Hyper) -> Any:
        """The outputs that the loss takes, of shapes."""

        def outputs(params: PyTree, state: PyTree, inputs: Sequence[Any], hyper: Hyper) -> Any:
            return self.outputs(params, _packed(state), inputs, hyper, jax.random.key(0))[0]

        return jax.eval_shape(outputs, *self.model.shapes, tuple(inputs), hyper)

    def batch_shapes(self, examples: int) -> Batch:
        return self.shapes(examples)

    def _unpacked(self, statistics: PyTree) -> PyTree:
        """The model's own arrays: random keys are keys again."""
        return jax.tree.map(
            lambda leaf, shape: jax.random.wrap_key_data(leaf) if _is_key(shape) else leaf,
            statistics,
            self.model.shapes[1],
        )


def trial_hyper(
    p: Parameterization,
    specs: PyTree,
    optimizer: str | None,
    learning_rate: float,
    *,
    seed: int,
    steps: int,
    warmup: int,
    head_dim: float | None,
    numbers: Mapping[str, float],
    clips: bool = False,
) -> Hyper:
    """The hyperparameters of one trial of a `ModelTask`. optimizer: its name; None for a transformation, which has the
    factors of a parameterization already. numbers: those of the optimizer. clips: whether gradients are clipped."""
    init = rescaling(p, specs)
    if optimizer is None:
        factors = LeafFactors(init, (), (), (), ())  # type: ignore[arg-type]
    else:
        # As in `dm.optimizer`: these look at whole weights, of which a form may store some entries times a factor.
        form = p.in_form("mup") if looks_at_weights(optimizer) else p
        factors = leaf_factors(form, specs, families_of(optimizer, specs))._replace(init=init)
    spec = leaves_of(specs)[0]
    return Hyper(
        seed=seed,
        learning_rate=learning_rate,
        optimizer=dict(numbers) if optimizer else {},
        steps=steps,
        warmup=warmup,
        label_noise=0.0,
        forward=p.forward_factors(width=spec.width, depth=spec.depth, head_dim=head_dim),
        factors=factors,
        divisor=divisor(p, specs) if (clips or looks_at_weights(optimizer)) and p.form != "mup" else None,
    )


class TaskPrograms(NamedTuple):
    """The jaxprs of a task's init and step. state: the state before the first step, of shapes."""

    init: Any
    step: Any
    state: Any


def task_programs(task: ModelTask, arrays: Hyper, batch: Batch) -> TaskPrograms:
    """The jaxprs at the shapes of a batch. Raises SettingsError for a loss that is no scalar, and for an optimizer that
    needs more than gradients."""
    init, state = jax.make_jaxpr(task.init, return_shape=True)(arrays)
    shapes = shapes_of(batch)
    try:
        loss = jax.eval_shape(task.objective, state.params, state, shapes, arrays)
    except UNTRACED as error:
        raise SettingsError(NOT_COMPILED) from error
    if problem := no_loss(loss):
        raise SettingsError(problem)
    try:
        return TaskPrograms(init, jax.make_jaxpr(task.step)(state, shapes, arrays), state)
    except TypeError as error:
        if "missing" not in str(error) or "keyword-only argument" not in str(error):
            raise
        raise SettingsError(
            f"the optimizer needs more than gradients and parameters ({error}), which a sweep cannot hand over: leave "
            "out the part that needs it, such as reduce_on_plateau or a line search"
        ) from error


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _packed(state: PyTree) -> PyTree:
    """A model's other arrays, with random keys as plain numbers, which can be stored."""
    return jax.tree.map(lambda leaf: jax.random.key_data(leaf) if _is_key(leaf) else leaf, state)
