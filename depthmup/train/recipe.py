"""How a network is trained, apart from the network and its hyperparameters: loss, schedule, clipping, averaging."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

# Each schedule takes the share, in [0, 1], of the steps after the warm-up that are done. It is a share and not a step
# because the number of steps is traced, and Optax's schedules need a Python number.
SCHEDULES: dict[str, Callable[[jax.Array], jax.Array]] = {
    "constant": optax.constant_schedule(1.0),
    "linear": optax.linear_schedule(1.0, 0.0, 1),
    "cosine": optax.cosine_decay_schedule(1.0, 1),
}


@dataclasses.dataclass(frozen=True)
class Recipe:
    """The settings of training that a step is compiled for.

    Numbers that may differ between the trials of one program are not here: they are traced (`task.Hyper`).

    schedule: schedule of the learning rate after the warm-up, a name in SCHEDULES.
    loss: "cross_entropy"; "mse", |f - y|^2 / 2 with y the one-hot label or a real target; "centered_mse", |f - f_0 -
      y|^2 / 2 with f_0 the output of the initial parameters (1/gamma0 is in the network's output factor).
    label_noise: whether the step replaces labels by random ones, with the probability `Hyper.label_noise`.
    label_smoothing: smoothing of the cross-entropy labels (Szegedy et al. 2016), in training only.
    clip: the largest global norm of the gradient; a larger gradient is scaled down before the optimizer sees it.
    accumulate: number of parts of a batch whose gradients are computed one after another, to use less memory.
    ema: decay of an exponential moving average of the weights; evaluation then uses the average. At step t the decay
      is min(ema, (1 + t) / (10 + t)), so that the average forgets the initial weights.
    log_updates: whether the metrics have the root mean square update of every group of parameters.
    """

    schedule: str = "constant"
    loss: str = "cross_entropy"
    label_noise: bool = False
    label_smoothing: float = 0.0
    clip: float | None = None
    accumulate: int = 1
    ema: float | None = None
    log_updates: bool = False

    def multiplier(self, step: jax.Array, steps: jax.Array, warmup: jax.Array) -> jax.Array:
        """The factor in [0, 1] that multiplies the learning rates of all leaves at a step.

        It is min(1, (step + 1) / warmup) times the schedule's value, which is 1 during the warm-up.

        steps: number of steps of the whole training.
        """
        done = jnp.maximum(step - warmup, 0) / jnp.maximum(steps - warmup, 1)
        rising = jnp.where(step < warmup, (step + 1) / jnp.maximum(warmup, 1), 1.0)
        return rising * SCHEDULES[self.schedule](done)

    def example_losses(self, logits: jax.Array, labels: jax.Array, train: bool) -> jax.Array:
        """The loss of each example: logits (batch, classes), labels (batch,) -> (batch,). Of tokens, logits (batch,
        context, classes) and labels (batch, context), the mean over the context.

        For "mse" and "centered_mse" labels may also be real targets: floating, (batch, classes). train: whether the
        labels are smoothed. Raises ValueError for labels of another type or shape.
        """
        real = self.loss != "cross_entropy" and jnp.issubdtype(labels.dtype, jnp.floating)
        shape = logits.shape if real else logits.shape[:-1]
        if labels.shape != shape or not (real or jnp.issubdtype(labels.dtype, jnp.integer)):
            raise ValueError(
                f"labels must be integers {logits.shape[:-1]} or, for an mse, real targets {logits.shape}: "
                f"{self.loss} got {labels.dtype} {labels.shape}"
            )
        if self.loss == "cross_entropy" and not (train and self.label_smoothing):
            return of_examples(optax.softmax_cross_entropy_with_integer_labels(logits, labels))
        targets = labels if real else jax.nn.one_hot(labels, logits.shape[-1], dtype=logits.dtype)
        if self.loss == "cross_entropy":
            return of_examples(optax.softmax_cross_entropy(logits, optax.smooth_labels(targets, self.label_smoothing)))
        return of_examples(0.5 * jnp.square(logits - targets).sum(-1))


def of_examples(values: jax.Array) -> jax.Array:
    """The mean of each example: (batch, ...) -> (batch,)."""
    return values.mean(tuple(range(1, values.ndim)))


def chance(loss: str, classes: int) -> float:
    """The loss of a network that has learned nothing: it says equal probabilities, or its output is 0."""
    return math.log(classes) if loss == "cross_entropy" else 0.5
