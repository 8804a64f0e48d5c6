"""A batch on eight devices is a batch on one, by pmap and by jit, gradients and statistics included."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from depthmup.data import NONE
from depthmup.train import BatchOverDevices, TrialLoop, TrialsOverDevices
from depthmup.train.build import batches_of, hyper_of, task_of
from depthmup.train.run import loop_of
from depthmup.training_settings import Recipe
from depthmup.trials.group import Runner
from tests import tiny
from tests.test_model_training import settings
from tests.test_train import compilations

STEPS = 10
SMALL = {"residual_cnn": dict(width=4, depth=1, dropout=0.0)}
EVERYTHING = Recipe(clip=0.5, accumulate=2, ema=0.9, label_smoothing=0.1, schedule="cosine")
RECIPES = {"plain": (Recipe(schedule="constant"), 0), "everything": (EVERYTHING, 3)}  # (recipe, steps of warm-up)


def double(tree):
    return jax.tree.map(lambda x: x.astype(np.float64) if x.dtype == np.float32 else x, tree)


def made(family, recipe="plain", **model):
    """(task, batches that are augmented, hyper)"""
    s = settings(family, **SMALL.get(family, {}), **model)
    recipe, warmup = RECIPES[recipe]
    batches = dataclasses.replace(batches_of(s), augment=dataclasses.replace(NONE, flip=True, rotate=20.0))
    return task_of(s, recipe), batches, hyper_of(s)._replace(warmup=warmup)


def trained(task, batches, hypers, placement):
    """(state, metrics, evaluation) after some steps in float64."""
    loop = TrialLoop(task, batches, placement)
    state, hyper = loop.start(hypers)
    (stretch,) = loop.stretches(double(state), hyper, 0, [STEPS])
    metrics = stretch.read()
    return placement.get(stretch.state), metrics, loop.evaluate(stretch.state, hyper, batches.dataset.validation)


def assert_same(one, other, rtol=1e-10, atol=1e-12):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=atol)


FAMILIES = [
    ("residual_mlp", "everything", "none"),
    ("residual_cnn", "plain", "batch"),
    ("residual_cnn", "everything", "none"),
]


@pytest.mark.parametrize(("family", "recipe", "norm"), FAMILIES)
def test_eight_devices_are_one(x64, family, recipe, norm):
    """Ten steps in float64, augmented."""
    task, batches, hyper = made(family, recipe, norm=norm)
    one = trained(task, batches, [hyper], BatchOverDevices(jax.devices()[:1]))
    assert np.ptp(one[1]["loss"][0]) > 0.02
    for wrapper in ("pmap", "jit"):
        state, metrics, evaluation = trained(task, batches, [hyper], BatchOverDevices(wrapper=wrapper))
        assert_same(one[:2], (state, metrics))
        assert_same(one[2], evaluation, rtol=1e-6)


def test_evaluation_over_three_devices():
    """Evaluation's batches are filled up to a multiple of the devices, and what fills them does not count."""
    task, batches, hyper = made("residual_mlp")
    batches, results = dataclasses.replace(batches, batch_size=30), []
    for devices in (1, 3):
        loop = TrialLoop(task, batches, BatchOverDevices(jax.devices()[:devices]))
        results.append(loop.results(*loop.start([hyper])))
    for name, value in results[0].items():
        np.testing.assert_allclose(results[1][name], value, rtol=1e-6, err_msg=name)


@pytest.mark.parametrize("wrapper", ["pmap", "jit"])
def test_gradients(x64, wrapper):
    """One step of SGD on eight devices, batch norm among the layers, is the gradient of the whole batch's loss."""
    s = settings("residual_cnn", "sgd", norm="batch", **SMALL["residual_cnn"])
    task, batches, hyper = task_of(s), batches_of(s), hyper_of(s)
    loop = TrialLoop(task, batches, BatchOverDevices(wrapper=wrapper))
    state, hypers = loop.start([hyper])
    before = double(jax.tree.map(np.asarray, state))
    (stretch,) = loop.stretches(double(state), hypers, 0, [1])
    split, chosen = batches.dataset.train, batches.indices(0, 1)[0]
    inputs, labels = batches.prepare(split.inputs[chosen]), split.labels[chosen]

    def loss(params):
        variables = {"params": params, **before.statistics}
        logits, _ = task.model.apply(variables, inputs, hyper.arrays().forward, train=True, mutable=["batch_stats"])
        return task.recipe.example_losses(logits, labels, train=True).mean()

    value, grads = jax.jit(jax.value_and_grad(loss))(before.params)
    np.testing.assert_allclose(stretch.read()["loss"][0, 0], value, rtol=1e-10)
    rates = jax.tree.map(lambda f: float(np.float32(f)) * float(np.float32(hyper.learning_rate)), hyper.factors.lr)
    moved = jax.tree.map(lambda old, new: old - np.asarray(new), before.params, stretch.state.params)
    assert_same(moved, jax.tree.map(lambda rate, g: rate * g, rates, grads), rtol=1e-8)


def test_trials_over_devices_by_jit_are_those_by_pmap(x64):
    task, batches, hyper = made("residual_mlp")
    hypers = [hyper._replace(seed=seed) for seed in range(3)]
    by_pmap, by_jit = (
        trained(task, batches, hypers, TrialsOverDevices(3, jax.devices()[:2], wrapper)) for wrapper in ("pmap", "jit")
    )
    assert_same(by_pmap, by_jit)


@functools.cache
def five_trials(family, recipe, norm):
    """(task, batches, five trials, what `trained` gives of them on one device), of which two are frozen before the
    others. Float64 must be switched on."""
    task, batches, hyper = made(family, recipe, norm=norm)
    hypers = [hyper._replace(seed=i, learning_rate=0.01 / 2**i, steps=4 if i in (1, 2) else STEPS) for i in range(5)]
    return task, batches, hypers, trained(task, batches, hypers, TrialsOverDevices(5, jax.devices()[:1], layout="map"))


@pytest.mark.parametrize(("share", "layout"), [(2, "vmap"), (4, "map")])
@pytest.mark.parametrize(("family", "recipe", "norm"), [FAMILIES[0], FAMILIES[1]])
def test_trials_that_devices_share_are_lone_trials(x64, family, recipe, norm, share, layout):
    """On 4 x 2 and 2 x 4 devices, several trials for each set of devices."""
    task, batches, hypers, one = five_trials(family, recipe, norm)
    shared = TrialsOverDevices(5, wrapper="jit", layout=layout, share=share)
    assert dict(shared.mesh.shape) == {"trials": 8 // share, "batch": share}
    state, metrics, evaluation = trained(task, batches, hypers, shared)
    assert np.isnan(metrics["loss"]).sum(1).tolist() == [0, STEPS - 4, STEPS - 4, 0, 0]
    assert len(np.unique(metrics["loss"][:, 0])) == 5
    assert_same(one[:2], (state, metrics))
    assert_same(one[2], evaluation, rtol=1e-6)


def test_trials_that_devices_share_are_measured_on_whole_batches():
    """And their rows are those of lone trials."""
    rows = []
    for parallel in ({}, {"parallel__devices_per_trial": 4, "parallel__wrapper": "jit"}):
        groups = tiny.groups(
            3, **parallel, sweep__optimizers=("sgd",), sweep__measure=("updates", "sharpness", "kernels")
        )
        rows.append(Runner().train(groups[0]))
    for one, shared in zip(*rows, strict=True):
        assert one.row["key"] == shared.row["key"]
        for name in ("loss", "test_loss", "mean_loss"):
            np.testing.assert_allclose(shared.row[name], one.row[name], rtol=1e-4)
        assert {*one.measured["quantity"]} == {"updates", "sharpness", "kernels"}
        np.testing.assert_allclose(shared.measured["value"], one.measured["value"], rtol=1e-2, atol=1e-5)


@pytest.mark.parametrize("wrapper", ["pmap", "jit"])
@pytest.mark.parametrize("family", ["residual_mlp", "cnn"])
def test_no_compilation_after_the_second_step(family, wrapper):
    """Nor for a shorter stretch, a second evaluation or another learning rate."""
    task, batches, hyper = made(family)
    loop, counts = TrialLoop(task, batches, BatchOverDevices(wrapper=wrapper)), [compilations()]

    def train(hyper, ends):
        state, hypers = loop.start([hyper])
        for stretch in loop.stretches(state, hypers, 0, ends):
            stretch.read()
            loop.evaluate(stretch.state, hypers, batches.dataset.validation)
            counts.append(compilations())

    train(hyper, [2, 9, 10])
    train(hyper._replace(learning_rate=0.01), [3])
    assert counts[1] > counts[0]
    assert set(counts[1:]) == {counts[1]}


def test_a_batch_that_cannot_be_split():
    task, batches, _ = made("residual_mlp")
    with pytest.raises(ValueError, match="a batch of 32 cannot be split evenly over 5 devices"):
        TrialLoop(task, batches, BatchOverDevices(jax.devices()[:5]))
    with pytest.raises(
        ValueError, match="64 cannot be split evenly over 2 devices in 64 parts each: choose a multiple of"
    ):
        loop_of(tiny.settings(parallel__devices=2, accumulate=64))
    with pytest.raises(ValueError, match="unknown wrapper 'pjit'; did you mean"):
        BatchOverDevices(wrapper="pjit")
    with pytest.raises(ValueError, match="a batch of 30 cannot be split evenly over 4 devices"):
        TrialLoop(task, dataclasses.replace(batches, batch_size=30), TrialsOverDevices(2, wrapper="jit", share=4))
    for share in (1, 2):  # an accelerator would sum in loops that its sets of devices leave at different steps
        one_each = TrialsOverDevices(8 // share, wrapper="jit", layout="vmap", share=share)
        assert (one_each.per_set, one_each.skips_frozen) == (1, share == 1)
    with pytest.raises(ValueError, match="8 devices cannot be split into sets of 3"):
        TrialsOverDevices(2, wrapper="jit", share=3)
    with pytest.raises(ValueError, match="a trial on 2 devices needs the wrapper 'jit', got 'pmap'"):
        TrialsOverDevices(2, share=2)
