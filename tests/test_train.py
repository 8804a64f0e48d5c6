"""A trial is the same alone, among others, on any number of devices and in any chunks; programs are shared."""

import dataclasses

import jax
import numpy as np
import pytest
from depthmup.sweep.runner import hyper_of
from depthmup.train.assemble import problem_of
from depthmup.train.step import diverged

from depthmup.data import NONE
from depthmup.sweep.plan import trials
from depthmup.train import TrialLoop
from depthmup.train.recipe import Recipe
from tests import tiny

KEYS = ("loss", "accuracy", "validation_loss", "test_accuracy", "diverged")


@pytest.fixture(scope="module")
def sweep():
    settings = tiny.settings(sweep__log2_learning_rates={"sgd": (-4.0, 6.0), "adam": (-8.0, -3.0)})
    problem, hypers = problem_of(settings), {}
    for trial in trials(settings):
        s = trial.settings
        if s.model.depth == 4 and s.optimizer.name == "sgd":
            hypers.setdefault(s.parameterization.name, []).append(hyper_of(problem, trial))
            group = s
    return problem, group, hypers


def loop(sweep, trials, devices=None, layout=None):
    problem, group, _ = sweep
    trainer = problem.trainer(group.model, "sgd")
    chosen = devices and jax.local_devices()[:devices]
    return TrialLoop(trainer, problem.batches, trials=trials, devices=chosen, layout=layout)


@pytest.fixture(scope="module")
def together(sweep):
    """All 22 trials of depth_mup on four devices, in one chunk of 11 steps."""
    return loop(sweep, 22).run(sweep[2]["depth_mup"], 11)


@pytest.mark.parametrize("trial", [0, 9, 21])
def test_a_trial_alone_is_the_same_bit_for_bit(sweep, together, trial):
    """The last of them diverges."""
    alone = loop(sweep, 1).run([sweep[2]["depth_mup"][trial]], 11)
    for key in KEYS:
        np.testing.assert_array_equal(alone[key][0], together[key][trial], err_msg=key)


def test_one_divergence_touches_no_other(sweep, together):
    assert together["diverged"][-1]
    assert not together["diverged"][:10].any()
    healthy = loop(sweep, 10).run(sweep[2]["depth_mup"][:10], 11)
    for key in KEYS:
        np.testing.assert_array_equal(healthy[key], together[key][:10], err_msg=key)


def test_one_device_equals_four_and_chunks_are_the_whole(sweep, together):
    seen = []
    chunked = loop(sweep, 22, devices=1).run(
        sweep[2]["depth_mup"], 11, 4, lambda step, metrics: seen.append((step, metrics["loss"]))
    )
    assert [(step, losses.shape) for step, losses in seen] == [(4, (22, 4)), (8, (22, 4)), (11, (22, 3))]
    for key in KEYS:
        np.testing.assert_array_equal(chunked[key], together[key], err_msg=key)


def test_vmap_equals_map(sweep, together):
    mapped = loop(sweep, 22, layout="vmap").run(sweep[2]["depth_mup"], 11)
    np.testing.assert_allclose(mapped["loss"][:8], together["loss"][:8], rtol=1e-4)


COMPILED = []
jax.monitoring.register_event_duration_secs_listener(lambda event, duration, **_: COMPILED.append(event))


def compilations():
    return sum("backend_compile" in event for event in COMPILED)


def test_parameterizations_and_trials_share_a_program(sweep):
    """No trace and no compilation after the first group: other parameterizations, learning rates, decays."""
    problem, group, hypers = sweep
    trainer = problem.trainer(group.model, "sgd")
    traces = []

    def counted(state, batch, hyper):
        traces.append(1)
        return trainer.train_step(state, batch, hyper)

    shared = TrialLoop(trainer._replace(train_step=counted), problem.batches, trials=22)
    shared.run(hypers["sp"], 11)
    first, compiled = len(traces), compilations()
    assert compiled > 0
    for name in ("mup", "depth_mup"):
        shared.run(hypers[name], 11)
    shared.run([h._replace(learning_rate=0.123, weight_decay=0.1) for h in hypers["mup"]], 11)
    assert len(traces) == first
    assert compilations() == compiled


def test_seeds_differ_and_repeat(sweep, together):
    assert together["loss"][2] != together["loss"][3]  # one learning rate, two seeds
    again = loop(sweep, 22).run(sweep[2]["depth_mup"], 11)
    np.testing.assert_array_equal(again["loss"], together["loss"])


def test_linear_schedule_ends_at_zero(sweep):
    """The last of n steps has a learning rate of 1/n of the first: the loss after it barely moves."""
    problem, group, hypers = sweep
    constant, linear = (
        problem._replace(recipe=Recipe(2, schedule)).trainer(group.model, "sgd") for schedule in ("constant", "linear")
    )
    hyper = hypers["depth_mup"][0]._replace(steps=2).arrays()
    batch = problem.examples(64)
    after = {}
    for name, trainer in (("constant", constant), ("linear", linear)):
        step = jax.jit(trainer.train_step)
        one, _ = step(trainer.init(hyper), batch, hyper)
        two, _ = step(one, batch, hyper)
        change = jax.tree.map(lambda a, b: np.abs(np.asarray(a - b)).max(), two.params, one.params)
        after[name] = max(jax.tree.leaves(change))
    assert after["linear"] == pytest.approx(after["constant"] / 2, rel=1e-4)


def test_a_loss_that_ends_high_is_a_divergence():
    """Finite, but more than twice the first batch's."""
    losses = np.array([1.9, 2.1, np.inf, np.nan], np.float32)
    np.testing.assert_array_equal(diverged(losses, np.ones(4, np.float32)), [False, True, True, True])


def test_evaluation_counts_every_example_once(sweep):
    """Whole splits in batches, not augmented, the last filled up: as one forward pass of each split, written out."""
    problem, group, hypers = sweep
    trainer, hyper = problem.trainer(group.model, "sgd"), hypers["depth_mup"][0].arrays()
    batches = dataclasses.replace(problem.batches, augment=dataclasses.replace(NONE, rotate=90.0))
    one = TrialLoop(trainer, batches, trials=1)
    metrics = one.programs.metrics(*one.programs.start([hyper]))
    params = trainer.init(hyper).params
    for prefix, split in (("", "train"), ("validation_", "validation"), ("test_", "test")):
        inputs, labels = getattr(problem.batches.dataset, split)
        logits = problem.model(group.model).apply({"params": params}, problem.batches.prepare(inputs), hyper.forward)
        losses = problem.recipe.example_losses(logits, labels, train=False)
        np.testing.assert_allclose(metrics[f"{prefix}loss"][0], losses.mean(), rtol=1e-5)
        assert metrics[f"{prefix}accuracy"][0] == np.float32(np.mean(np.argmax(logits, -1) == labels))


def test_augmentation_is_one_draw_for_all_trials(sweep):
    """In every layout, in any chunks; and it is on."""
    problem, group, hypers = sweep
    how = dataclasses.replace(NONE, flip=True, rotate=20.0)
    batches, pair = dataclasses.replace(problem.batches, augment=how), [hypers["depth_mup"][0]] * 2
    losses = {}
    for layout, chunk in (("map", 6), ("vmap", 2)):
        seen = []
        trainer, devices = problem.trainer(group.model, "sgd"), jax.local_devices()[:1]
        run = TrialLoop(trainer, batches, trials=2, layout=layout, devices=devices).run
        run(pair, 6, chunk, lambda _, metrics, seen=seen: seen.append(metrics["loss"]))
        losses[layout] = np.concatenate(seen, axis=1)
        np.testing.assert_allclose(losses[layout][0], losses[layout][1], rtol=1e-6)
        np.testing.assert_allclose(losses[layout], losses["map"], rtol=1e-4)
    seen = []
    loop(sweep, 2, devices=1).run(pair, 6, progress=lambda _, metrics: seen.append(metrics["loss"]))
    assert abs(seen[0] - losses["map"]).min() > 1e-4


def test_a_frozen_trial_has_no_losses(sweep):
    """Not even where its weights, as they were before the step, would give one."""
    problem, group, hypers = sweep
    split = problem.batches.dataset.train
    inputs = split.inputs.astype(np.float32)
    inputs[problem.batches.indices(2, 3)[0, 5]] = np.nan
    dataset = problem.batches.dataset._replace(train=split._replace(inputs=inputs))
    batches = dataclasses.replace(problem.batches, dataset=dataset)
    loop = TrialLoop(problem.trainer(group.model, "sgd"), batches, trials=2)
    metrics = loop.run(hypers["depth_mup"][:2], 11)
    assert metrics["diverged"].all()
    for name in ("loss", "validation_loss", "test_loss"):
        assert np.isnan(metrics[name]).all()


def test_wrong_number_of_trials(sweep):
    with pytest.raises(ValueError, match="compiled for 2 trials, got 3"):
        loop(sweep, 2).run(sweep[2]["sp"][:3], 11)


def test_settings_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        tiny.settings().seed = 1
