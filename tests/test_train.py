"""A trial is the same alone, among others, on any number of devices and in any stretches; programs are shared."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from depthmup.data import NONE
from depthmup.train import Task, TrialLoop, TrialsOverDevices
from depthmup.train.build import examples
from depthmup.train.divergence import diverged
from depthmup.training_settings import Recipe
from depthmup.trials.plan import grid_trials
from tests import tiny

KEYS = ("loss", "accuracy", "validation_loss", "test_accuracy", "diverged")
STEPS = 11


@pytest.fixture(scope="module")
def groups():
    """{parameterization: its trials of one shape}: 22 each, two seeds of eleven learning rates."""
    study = tiny.study(sweep__log2_learning_rates={"sgd": (-4.0, 6.0), "adam": (-8.0, -3.0)})
    result = {}
    for trial in grid_trials(study):
        if trial.point.depth == 4 and trial.point.optimizer == "sgd":
            result.setdefault(trial.point.parameterization, []).append(trial)
    return result


@pytest.fixture(scope="module")
def hypers(groups):
    return {name: [trial.hyper for trial in group] for name, group in groups.items()}


@pytest.fixture(scope="module")
def task(groups):
    return groups["depth_mup"][0].point.task


@pytest.fixture(scope="module")
def batches(groups):
    return groups["depth_mup"][0].point.feed


@pytest.fixture(scope="module")
def loop(task, batches):
    """A function: trials, devices, layout -> their loop; the same for the same arguments."""

    @functools.cache
    def of(trials, devices=None, layout=None):
        return TrialLoop(task, batches, TrialsOverDevices(trials, jax.local_devices()[:devices], layout=layout))

    return of


@pytest.fixture(scope="module")
def together(loop, hypers):
    """All trials of depth_mup on all devices, in one stretch."""
    return loop(22).run(hypers["depth_mup"], STEPS)


@pytest.mark.parametrize("trial", [0, 9, 21])
def test_a_trial_alone_is_the_same_bit_for_bit(loop, hypers, together, trial):
    """The last of them diverges."""
    alone = loop(1).run([hypers["depth_mup"][trial]], STEPS)
    for key in KEYS:
        np.testing.assert_array_equal(alone[key][0], together[key][trial], err_msg=key)


def test_one_divergence_touches_no_other(loop, hypers, together):
    assert together["diverged"][-1]
    assert not together["diverged"][:10].any()
    healthy = loop(10).run(hypers["depth_mup"][:10], STEPS)
    for key in KEYS:
        np.testing.assert_array_equal(healthy[key], together[key][:10], err_msg=key)


def test_one_device_equals_all_and_stretches_are_the_whole(loop, hypers, together):
    seen = []
    stretched = loop(22, devices=1).run(
        hypers["depth_mup"], STEPS, 4, lambda step, metrics: seen.append((step, metrics["loss"].shape))
    )
    assert seen == [(4, (22, 4)), (8, (22, 4)), (11, (22, 3))]
    for key in KEYS:
        np.testing.assert_array_equal(stretched[key], together[key], err_msg=key)


def test_vmap_equals_map(loop, hypers, together):
    mapped = loop(22, layout="vmap").run(hypers["depth_mup"], STEPS)
    np.testing.assert_allclose(mapped["loss"][:8], together["loss"][:8], rtol=1e-4)


COMPILED = []
jax.monitoring.register_event_duration_secs_listener(lambda event, duration, **_: COMPILED.append(event))


def compilations():
    """How many programs this process has compiled."""
    return sum("backend_compile" in event for event in COMPILED)


def test_parameterizations_and_trials_share_a_program(task, batches, hypers):
    """No trace and no compilation after the first group: other parameterizations, learning rates, decays."""
    traces = []

    class Counted(Task):
        def step(self, state, batch, hyper):
            traces.append(1)
            return super().step(state, batch, hyper)

    counted = Counted(task.model, task.input_shape, task.optimizer, task.recipe)
    shared, before = TrialLoop(counted, batches, TrialsOverDevices(22)), compilations()
    shared.run(hypers["sp"], STEPS)
    first, compiled = len(traces), compilations()
    assert compiled > before
    for name in ("mup", "depth_mup"):
        shared.run(hypers[name], STEPS)
    decayed = [h._replace(learning_rate=0.123, optimizer={**h.optimizer, "weight_decay": 0.1}) for h in hypers["mup"]]
    shared.run(decayed, STEPS)
    assert len(traces) == first
    assert compilations() == compiled


def test_seeds_differ_and_repeat(loop, hypers, together):
    assert together["loss"][2] != together["loss"][3]  # one learning rate, two seeds
    again = loop(22).run(hypers["depth_mup"], STEPS)
    np.testing.assert_array_equal(again["loss"], together["loss"])


def test_linear_schedule_ends_at_zero(task, batches, hypers):
    """The last of n steps has a learning rate of 1/n of the first: the loss after it barely moves."""
    hyper, batch = hypers["depth_mup"][0]._replace(steps=2).arrays(), examples(batches, 64)
    start, after = jax.jit(task.init)(hyper), {}
    for schedule in ("constant", "linear"):
        step = jax.jit(dataclasses.replace(task, recipe=Recipe(schedule=schedule)).step)
        one, _ = step(start, batch, hyper)
        two, _ = step(one, batch, hyper)
        change = jax.tree.map(lambda a, b: np.abs(np.asarray(a - b)).max(), two.params, one.params)
        after[schedule] = max(jax.tree.leaves(change))
    assert after["linear"] == pytest.approx(after["constant"] / 2, rel=1e-4)


def test_a_loss_that_ends_high_is_a_divergence():
    """Finite, but more than twice the first batch's."""
    losses = np.array([1.9, 2.1, np.inf, np.nan], np.float32)
    np.testing.assert_array_equal(diverged(False, losses, np.ones(4, np.float32)), [False, True, True, True])
    assert diverged(True, np.float32(1.9), np.float32(1.0))  # frozen by a gradient after its last finite loss


def test_evaluation_counts_every_example_once(task, batches, hypers):
    """Whole splits in batches, not augmented, the last filled up: as one forward pass of each split, written out."""
    hyper = hypers["depth_mup"][0].arrays()
    rotated = dataclasses.replace(batches, augment=dataclasses.replace(NONE, rotate=90.0))
    one = TrialLoop(task, rotated, TrialsOverDevices(1))
    metrics = one.results(*one.start([hyper]))
    params, apply = jax.jit(task.init)(hyper).params, jax.jit(task.model.apply)
    for prefix, split in (("", "train"), ("validation_", "validation"), ("test_", "test")):
        inputs, labels = getattr(batches.dataset, split)
        logits = apply({"params": params}, batches.prepare(inputs), hyper.forward)
        losses = task.recipe.example_losses(logits, labels, train=False)
        np.testing.assert_allclose(metrics[f"{prefix}loss"][0], losses.mean(), rtol=1e-5)
        assert metrics[f"{prefix}accuracy"][0] == np.float32(np.mean(np.argmax(logits, -1) == labels))


def test_augmentation_is_one_draw_for_all_trials(task, batches, loop, hypers):
    """In every layout, in any stretches; and it is on."""
    how = dataclasses.replace(NONE, flip=True, rotate=20.0)
    augmented, pair = dataclasses.replace(batches, augment=how), [hypers["depth_mup"][0]] * 2

    def losses(trial_loop, every=6):
        seen = []
        trial_loop.run(pair, 6, every, lambda _, metrics: seen.append(metrics["loss"]))
        return np.concatenate(seen, axis=1)

    device = jax.local_devices()[:1]
    mapped, vmapped = (
        losses(TrialLoop(task, augmented, TrialsOverDevices(2, device, layout=layout)), every)
        for layout, every in (("map", 6), ("vmap", 2))
    )
    for curves in (mapped, vmapped):
        np.testing.assert_allclose(curves[0], curves[1], rtol=1e-6)
    np.testing.assert_allclose(vmapped, mapped, rtol=1e-4)
    assert abs(losses(loop(2, devices=1)) - mapped).min() > 1e-4


def test_a_frozen_trial_has_no_losses(task, batches, hypers):
    """Not even where its weights, as they were before the step, would give one."""
    split = batches.dataset.train
    inputs = split.inputs.astype(np.float32)
    inputs[batches.indices(2, 3)[0, 5]] = np.nan
    dataset = batches.dataset._replace(train=split._replace(inputs=inputs))
    damaged = TrialLoop(task, dataclasses.replace(batches, dataset=dataset), TrialsOverDevices(2))
    metrics = damaged.run(hypers["depth_mup"][:2], STEPS)
    assert metrics["diverged"].all()
    for name in ("loss", "validation_loss", "test_loss"):
        assert np.isnan(metrics[name]).all()


def test_wrong_number_of_trials(loop, hypers):
    with pytest.raises(ValueError, match="compiled for 2 trials, got 3"):
        loop(2).run(hypers["sp"][:3], STEPS)


def test_settings_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        tiny.settings().seed = 1
