"""experiments/planted_targets.py: what is trained has the planted loss, and its truth is that of the formula."""

import functools
import math

import jax.numpy as jnp
import numpy as np
import pytest

import depthmup as dm
from experiments import planted_targets as planted


def test_a_training_has_the_planted_loss():
    truth, rates = planted.Truth.draw(1), 2.0 ** np.arange(-9, -4)
    m = dm.setup("sp", planted.Perceptron, jnp.zeros((1, 16)), width=16, depth=1, residual=False)
    rows = m.sweep(
        functools.partial(planted.planted_loss, truth),
        functools.partial(planted.batches, batch_size=8),
        optimizer=planted.updates,
        steps=40,
        widths=(16, 32),
        depths=(),
        learning_rates=rates,
        seeds=2,
        progress=False,
    ).rows
    for row in rows.to_dict("records"):
        steps = range(36, 40)  # the last tenth
        losses = [truth.loss(row["width"], 8, step, math.log2(row["learning_rate"])) for step in steps]
        assert abs(row["last_loss"] / float(np.mean(losses)) - 1) < 5 * truth.noise
    assert rows.groupby(["width", "learning_rate"])["last_loss"].nunique().eq(2).all()  # seeds differ


@pytest.mark.parametrize("number", [0, 1])
def test_the_planted_optimum_is_the_best_rate(number):
    truth, sizes = planted.Truth.draw(number), list(planted.TARGET.values())
    best = float(truth.optimum(*sizes))
    at_best, *beside = (float(truth.loss(*sizes, best + off)) for off in (0.0, -0.2, 0.2, -2.0, 2.0))
    assert all(at_best < loss for loss in beside)
    assert truth.cost(2 ** (best + 3)) > truth.cost(2 ** (best - 1)) > 0


def test_an_answer_is_confirmed_by_interval_and_cost():
    result = {"low": 0.1, "best": 0.2, "high": 0.3, "cost": 0.01, "worst_cost": 0.02}
    assert planted.is_confirmed(result)
    assert not planted.is_confirmed({**result, "best": 0.4})
    assert not planted.is_confirmed({**result, "cost": 0.03})
