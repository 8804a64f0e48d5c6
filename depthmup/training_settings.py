"""How a network is trained, apart from network and hyperparameters: length, schedule, loss, clipping, averaging."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax

from depthmup.declare import declared, key
from depthmup.losses import LOSSES, LossName, of_examples
from depthmup.schedules import Schedule

MOST_STEPS = 2**30  # the number of steps is below it


@dataclasses.dataclass(frozen=True)
class Recipe:
    """The settings of training that concern neither the network nor the optimizer.

    The loss of an example with output f and one-hot label or real target y is |f - y|^2 / 2 for "mse", and
    |f - f_0 - y|^2 / 2 for "centered_mse", where f_0 is the output of the initial parameters (1/gamma0 is in the
    network's output factor). Label smoothing is that of Szegedy et al. 2016. At step t the average of the weights
    decays by min(ema, (1 + t) / (10 + t)), so that it forgets the initial weights.
    """

    epochs: float = key(2.0, "the length of a training", positive=True, traced=True, at_start=False)
    schedule: Schedule = key(
        "linear",
        "of the learning rate; linear and cosine end at 0, cosine_to_tenth at a tenth, wsd falls in the last fifth",
        at_start=False,
    )
    warmup_epochs: float = key(0.0, "the learning rate rises linearly first", low=0, traced=True, at_start=False)
    loss: LossName = key(
        "cross_entropy",
        "centered_mse: of the change of the output since the start",
        column="loss_function",
    )
    label_smoothing: float = key(0.0, "for cross_entropy, in training", low=0, high=1)
    label_noise: float = key(
        0.0,
        "probability that a training label is replaced by a random one, anew at every step",
        low=0,
        high=1,
        traced=True,
        at_start=False,
    )
    clip: float | None = key(None, "largest norm of the gradient; unset: none", positive=True, at_start=False)
    accumulate: int = key(1, "parts in which a batch is computed, one after another", low=1, at_start=False)
    ema: float | None = key(
        None,
        "decay of a moving average of the weights, which is evaluated; unset: no average",
        low=0,
        high=1,
        at_start=False,
    )
    log_updates: bool = key(
        False, "log the root mean square update of every group of parameters as well", decides=False
    )

    @property
    def compiled(self) -> Recipe:
        """What a step is compiled for: traced values have their defaults, and label noise is on (1) or off (0)."""
        values = {name: k.default if k.traced else getattr(self, name) for name, k in declared(Recipe).items()}
        return Recipe(**{**values, "label_noise": float(self.label_noise > 0)})

    def traced(self, steps_per_epoch: int) -> dict[str, Any]:
        """The numbers that a step takes as arguments, by their names in `train.Hyper`."""
        return {
            "steps": self.steps(steps_per_epoch),
            "warmup": round(self.warmup_epochs * steps_per_epoch),
            "label_noise": self.label_noise,
        }

    def steps(self, steps_per_epoch: int) -> int:
        """The number of steps of the whole training. Raises ValueError for more than a training can count."""
        steps = max(1, round(self.epochs * steps_per_epoch))
        if steps >= MOST_STEPS:
            raise ValueError(f"epochs = {self.epochs:g} are {steps:.3g} steps, of which a training has below 2^30")
        return steps

    def example_losses(self, logits: jax.Array, labels: jax.Array, train: bool) -> jax.Array:
        """The loss of each example: logits (batch, classes), labels (batch,) -> (batch,). Of tokens, logits (batch,
        context, classes) and labels (batch, context), the mean over the context.

        For "mse" and "centered_mse" labels may also be real targets: floating, (batch, classes). train: whether the
        labels are smoothed. Raises ValueError for labels of another type or shape.
        """
        return of_examples(self.losses(logits, labels, train))

    def losses(self, logits: jax.Array, labels: jax.Array, train: bool) -> jax.Array:
        """As `example_losses`, but of tokens the loss of each, (batch, context)."""
        loss = LOSSES[self.loss]
        real = loss.of_labels is None and jnp.issubdtype(labels.dtype, jnp.floating)
        shape = logits.shape if real else logits.shape[:-1]
        if labels.shape != shape or not (real or jnp.issubdtype(labels.dtype, jnp.integer)):
            raise ValueError(
                f"labels must be integers {logits.shape[:-1]} or, for an mse, real targets {logits.shape}: "
                f"{self.loss} got {labels.dtype} {labels.shape}"
            )
        if loss.of_labels and not (train and self.label_smoothing):
            return loss.of_labels(logits, labels)
        targets = labels if real else jax.nn.one_hot(labels, logits.shape[-1], dtype=logits.dtype)
        if loss.of_labels:
            targets = optax.smooth_labels(targets, self.label_smoothing)
        return loss.of_targets(logits, targets)
