"""Logits and losses in parts of the context equal the whole ones, and the whole logits are never there."""

import jax
import numpy as np
import pytest

import depthmup as dm
from depthmup.models import GPT
from depthmup.train import task as module
from depthmup.train.task import Task
from depthmup.training_settings import Recipe
from tests.test_attend import shapes

BATCH, CONTEXT, VOCABULARY = 2, 11, 13
CASES = {
    "cross-entropy": (Recipe(), {}),
    "bfloat16": (Recipe(), {"dtype": "bfloat16"}),
    "tied, smooth, noisy": (Recipe(label_smoothing=0.1, label_noise=0.5), {"tied": True}),
    "centered": (Recipe(loss="centered_mse"), {}),
}


def case(name):
    """(task, state, batch, hyper); the last label only fills up the batch."""
    recipe, options = CASES[name]
    task = Task(GPT(8, 1, VOCABULARY, heads=2, **options), (CONTEXT,), "adamw", recipe)
    hyper = task.hyper(dm.parameterization("mup", base_width=8), 0.1, label_noise=recipe.label_noise).arrays()
    state = task.init(hyper)
    rng = np.random.default_rng(0)
    state = state._replace(params=jax.tree.map(lambda w: w + rng.normal(0, 0.3, w.shape).astype("f"), state.params))
    tokens = rng.integers(0, VOCABULARY, (2, BATCH, CONTEXT)).astype(np.int32)
    return task, state, tuple(tokens), hyper


def programs(task):
    def step(state, batch, hyper):
        return jax.value_and_grad(task.objective)(state.params, state, batch, hyper)

    return jax.jit(step), jax.jit(lambda state, batch, hyper: task.evaluate(state, batch, hyper))


@pytest.mark.parametrize("name", CASES)
def test_parts_equal_the_whole(name, monkeypatch):
    """Loss, gradients, evaluation, in three parts of a context of 11."""
    task, state, batch, hyper = case(name)
    filled = batch[0], np.where(np.arange(BATCH)[:, None] < 1, batch[1], -1)
    results = {}
    for numbers in (module.LOGITS, BATCH * CONTEXT * VOCABULARY // 3 + 1):
        monkeypatch.setattr(module, "LOGITS", numbers)
        step, evaluate = programs(task)
        results[numbers] = step(state, batch, hyper), evaluate(state, filled, hyper)
    whole, parts = results.values()
    accuracy = 1e-5 if name != "bfloat16" else 0.02
    near = lambda a, b: np.testing.assert_allclose(a, b, rtol=accuracy, atol=accuracy * np.abs(b).max())  # noqa: E731
    jax.tree.map(near, parts, whole)
    assert whole[1]["loss"].count == 1


@pytest.mark.parametrize("name", ["cross-entropy", "centered"])
def test_whole_logits_are_never_there(name, monkeypatch):
    task, *arguments = case(name)
    logits = lambda: [  # noqa: E731
        shape
        for program in programs(task)
        for shape in shapes(program.lower(*arguments).compile().as_text())
        if np.prod(shape) >= BATCH * CONTEXT * VOCABULARY and shape[-1] == VOCABULARY
    ]
    assert logits()
    monkeypatch.setattr(module, "LOGITS", BATCH * CONTEXT * VOCABULARY // 3 + 1)
    assert not logits()


def test_the_number_of_parts(monkeypatch):
    """As few as keep the limit, but not more than MOST_PARTS."""
    task, *arguments = case("cross-entropy")
    for numbers, size in ((BATCH * VOCABULARY * 6, 6), (1, 1)):
        monkeypatch.setattr(module, "LOGITS", numbers)
        text = str(jax.make_jaxpr(programs(task)[0])(*arguments))
        assert f"f32[{BATCH},{size},{VOCABULARY}]" in text
    monkeypatch.setattr(module, "MOST_PARTS", 2)
    assert f"f32[{BATCH},6,{VOCABULARY}]" in str(jax.make_jaxpr(programs(task)[0])(*arguments))


def test_derivatives_of_gradients_use_no_kernel():
    task = case("cross-entropy")[0]
    assert task.model.kernels
    assert not task.all_derivatives().model.kernels
