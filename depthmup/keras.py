"""Keras 3 models on JAX's backend; docs/guide/codebases.md has the lines that a program changes."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax

from depthmup import own_model
from depthmup.own_model import Setup
from depthmup.rules.specs import factors

FAMILIES = {"SGD": "sgd", "Adam": "adam", "AdamW": "adam", "Nadam": "adam", "Lion": "adam"}  # Keras' own optimizers


@dataclasses.dataclass(frozen=True)
class Forward:
    """(values of the trainable variables, *inputs) -> outputs in evaluation mode."""

    model: Any

    def __call__(self, values: list[jax.Array], *inputs: Any) -> Any:
        fixed = [variable.value for variable in self.model.non_trainable_variables]
        return self.model.stateless_call(values, fixed, *inputs)[0]


def setup(name: Any, build: Callable[[int, int], Any], *inputs: Any, **options: Any) -> Setup:
    """`depthmup.setup` of a Keras model. Its parameters are the values of the trainable variables.

        m = depthmup.keras.setup("completep", build, x[:2], width=512, depth=16, base=(64, 4), fan_in_init=True)
        model = depthmup.keras.initialized(m, build(512, 16), jax.random.key(0))
        model.compile(depthmup.keras.scaled(m, model, keras.optimizers.AdamW)(1e-3, weight_decay=0.1), loss)

    Args:
      build: (width, depth) -> a Keras model.
      name, inputs, options: of `depthmup.setup`.

    Keras' initializers take no key. So `m.init(key)` has the initial values of one model, each array with its entries
    in a random order, which is another draw where entries are independent (not of an orthogonal initializer).
    """
    at = functools.cache(build)

    def factory(width: int, depth: int, key: jax.Array) -> Any:
        with jax.ensure_compile_time_eval():
            model = at(width, depth)
        values = [variable.value for variable in model.trainable_variables]
        keys = jax.random.split(key, len(values))
        drawn = [jax.random.permutation(k, v.ravel()).reshape(v.shape) for k, v in zip(keys, values, strict=True)]
        return jax.tree_util.Partial(Forward(model), drawn)

    return own_model.setup(name, factory, *inputs, call=lambda net, *inputs: net(*inputs), **options)


def initialized(m: Setup, model: Any, key: jax.Array) -> Any:
    """The Keras model of `m`'s width and depth, with the initial values that `m.init` gives."""
    for variable, value in zip(model.trainable_variables, jax.tree.leaves(m.init(key)), strict=True):
        variable.assign(value)
    return model


def scaled(m: Setup, model: Any, optimizer: type) -> type:
    """A Keras optimizer whose steps have the factors of each variable of the model; its rate is that of the base.

    Keras lets decay act at the rate of the base, so that learning rate x decay is the same at every size, as here.

    Raises ValueError for an optimizer of which it is not known what its update does.
    """
    family = next((FAMILIES[cls.__name__] for cls in optimizer.__mro__ if cls.__name__ in FAMILIES), None)
    if family is None:
        raise ValueError(f"no rule for keras.optimizers.{optimizer.__name__}; known: {', '.join(FAMILIES)}")
    trees = factors(m.parameterization, m.specs, family)
    rows = zip(model.trainable_variables, jax.tree.leaves(trees.lr), jax.tree.leaves(trees.eps), strict=True)
    of_variable = {id(variable): (lr, 1.0 if family == "sgd" else eps) for variable, lr, eps in rows}

    class Scaled(optimizer):
        def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
            lr, eps = of_variable[id(variable)]
            super().update_step(gradient / eps, variable, lr * learning_rate)

    Scaled.__name__ = optimizer.__name__
    return Scaled
