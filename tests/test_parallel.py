"""A batch on eight devices is a batch on one, by pmap and by jit, gradients and statistics included."""

import dataclasses

import jax
import numpy as np
import pytest

from depthmup.data import NONE
from depthmup.train import TrialLoop
from depthmup.train.assemble import problem_of
from depthmup.train.single import loop_of
from tests import tiny
from tests.test_model_training import hyper_of, settings
from tests.test_train import compilations

STEPS = 10
SMALL = {"residual_cnn": dict(width=4, depth=1, dropout=0.0)}
RECIPES = {
    "plain": {},
    "everything": dict(clip=0.5, accumulate=2, ema=0.9, label_smoothing=0.1, schedule="cosine", warmup=3),
}


def double(tree):
    return jax.tree.map(lambda x: x.astype(np.float64) if x.dtype == np.float32 else x, tree)


def problem_and_hyper(family, recipe, trials=1, **model):
    s = settings(family, **model)
    problem = problem_of(s)
    augment = dataclasses.replace(NONE, flip=True, rotate=20.0)
    batches = dataclasses.replace(problem.batches, augment=augment)
    problem = problem._replace(batches=batches, recipe=dataclasses.replace(problem.recipe, **RECIPES[recipe]))
    return problem, problem.trainer(s.model, "adam"), [hyper_of(problem, s, seed) for seed in range(trials)]


def trained(problem, trainer, hypers, devices, steps=STEPS, **options):
    """(state, metrics, evaluation) after some steps in float64."""
    options = {"split": "batch", "devices": jax.devices()[:devices], **options}
    loop = TrialLoop(trainer, problem.batches, trials=len(hypers), **options)
    state, hyper = loop.programs.start(hypers)
    state, parts = loop.programs.advance(double(state), hyper, 0, steps)
    evaluation = loop.programs.evaluate(state, hyper, problem.batches.dataset.validation)
    return loop.map.join(state), loop.programs.read(parts), evaluation


def assert_same(one, other, rtol=1e-10):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=1e-12)


@pytest.mark.parametrize(
    ("family", "trials", "recipe", "norm"),
    [
        ("residual_mlp", 2, "everything", "none"),
        ("residual_cnn", 1, "plain", "batch"),
        ("residual_cnn", 1, "everything", "none"),
    ],
)
def test_eight_devices_are_one(x64, family, trials, recipe, norm):
    """Ten steps in float64, augmented."""
    problem, trainer, hypers = problem_and_hyper(family, recipe, trials, norm=norm, **SMALL.get(family, {}))
    one = trained(problem, trainer, hypers, 1)
    assert np.ptp(one[1]["loss"][0]) > 0.02
    for wrapper in ("pmap", "jit"):
        state, metrics, evaluation = trained(problem, trainer, hypers, 8, wrapper=wrapper)
        assert_same(one[:2], (state, metrics))
        assert_same(one[2], evaluation, rtol=1e-6)


def test_evaluation_over_three_devices():
    """Evaluation's batches are filled up to a multiple of the devices, and what fills them does not count."""
    problem, trainer, hypers = problem_and_hyper("residual_mlp", "plain")
    batches = dataclasses.replace(problem.batches, batch_size=30)
    results = []
    for devices in (1, 3):
        loop = TrialLoop(trainer, batches, trials=1, split="batch", devices=jax.devices()[:devices])
        results.append(loop.programs.metrics(*loop.programs.start(hypers)))
    for name, value in results[0].items():
        np.testing.assert_allclose(results[1][name], value, rtol=1e-6, err_msg=name)


@pytest.mark.parametrize("wrapper", ["pmap", "jit"])
def test_gradients(x64, wrapper):
    """One step of SGD on eight devices, batch norm among the layers, is the gradient of the whole batch's loss."""
    s = settings("residual_cnn", norm="batch", **SMALL["residual_cnn"])
    problem = problem_of(s)
    trainer, hyper = problem.trainer(s.model, "sgd"), hyper_of(problem, s)
    loop = TrialLoop(trainer, problem.batches, trials=1, split="batch", wrapper=wrapper)
    states, hypers = loop.programs.start([hyper])
    before = double(jax.tree.map(lambda leaf: np.asarray(leaf[0]), states))  # of the one trial
    states, parts = loop.programs.advance(double(states), hypers, 0, 1)
    after = jax.tree.map(lambda leaf: leaf[0], states)
    model, split = problem.model(s.model), problem.batches.dataset.train
    chosen = problem.batches.indices(0, 1)[0]
    inputs, labels = problem.batches.prepare(split.inputs[chosen]), split.labels[chosen]

    def loss(params):
        variables = {"params": params, **before.statistics}
        logits, _ = model.apply(variables, inputs, hyper.arrays().forward, train=True, mutable=["batch_stats"])
        return problem.recipe.example_losses(logits, labels, train=True).mean()

    value, grads = jax.jit(jax.value_and_grad(loss))(before.params)
    np.testing.assert_allclose(loop.programs.read(parts)["loss"][0, 0], value, rtol=1e-10)
    rates = jax.tree.map(lambda f: float(np.float32(f)) * float(np.float32(hyper.learning_rate)), hyper.factors.lr)
    step = jax.tree.map(lambda old, new: old - np.asarray(new), before.params, after.params)
    assert_same(step, jax.tree.map(lambda rate, g: rate * g, rates, grads), rtol=1e-8)


def test_trials_over_devices_by_jit_are_those_by_pmap(x64):
    problem, trainer, hypers = problem_and_hyper("residual_mlp", "plain", 3)
    results = {
        wrapper: trained(problem, trainer, hypers, 2, split="trials", wrapper=wrapper) for wrapper in ("pmap", "jit")
    }
    assert_same(results["pmap"], results["jit"])


@pytest.mark.parametrize("wrapper", ["pmap", "jit"])
@pytest.mark.parametrize("family", ["residual_mlp", "cnn"])
def test_no_compilation_after_the_second_step(family, wrapper):
    """Nor for a shorter stretch, a second evaluation or another learning rate."""
    problem, trainer, (hyper,) = problem_and_hyper(family, "plain")
    loop = TrialLoop(trainer, problem.batches, trials=1, split="batch", wrapper=wrapper)

    def stretch(state, hyper, start, stop):
        state, parts = loop.programs.advance(state, hyper, start, stop)
        loop.programs.read(parts)
        loop.programs.evaluate(state, hyper, problem.batches.dataset.validation)
        return state

    state, hypers = loop.programs.start([hyper])
    state = stretch(state, hypers, 0, 2)
    before = compilations()
    assert before
    state = stretch(state, hypers, 2, 9)
    stretch(state, hypers, 9, 10)
    state, hypers = loop.programs.start([hyper._replace(learning_rate=0.01)])
    stretch(state, hypers, 0, 3)
    assert compilations() == before


def test_a_batch_that_cannot_be_split():
    problem, trainer, _ = problem_and_hyper("residual_mlp", "plain")
    with pytest.raises(ValueError, match="a batch of 32 cannot be split evenly over 5 devices"):
        TrialLoop(trainer, problem.batches, trials=1, split="batch", devices=jax.devices()[:5])
    s = tiny.settings(parallel__devices=2, accumulate=64)
    with pytest.raises(
        ValueError, match="64 cannot be split evenly over 2 devices in 64 parts each: choose a multiple of"
    ):
        loop_of(problem_of(s), s)
    with pytest.raises(ValueError, match="unknown wrapper 'pjit'; did you mean"):
        TrialLoop(trainer, problem.batches, trials=1, wrapper="pjit")
