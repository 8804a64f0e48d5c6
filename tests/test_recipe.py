"""Losses, schedules, clipping, accumulation, averaging and freezing, each against its formula written out."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from depthmup.losses import LOSSES
from depthmup.schedules import SCHEDULES, schedule_multiplier
from depthmup.train import Task
from depthmup.train.build import batches_of, examples, hyper_of, task_of
from depthmup.train.divergence import NEVER
from depthmup.training_settings import Recipe
from experiments.gradient_norm import norms
from tests import tiny
from tests.test_model_training import settings
from tests.test_parallel import assert_same, double

STEPS = 40


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules(name):
    recipe = Recipe(schedule=name)
    values = np.array(
        [
            schedule_multiplier(recipe.schedule, jnp.int32(step), jnp.int32(STEPS), jnp.int32(10))
            for step in range(STEPS + 1)
        ]
    )
    np.testing.assert_allclose(values[:10], np.arange(1, 11) / 10, rtol=1e-6)
    progress = np.arange(31) / 30
    cosine = (1 + np.cos(np.pi * progress)) / 2
    after = {"constant": np.ones(31), "linear": 1 - progress, "cosine": cosine, "cosine_to_tenth": 0.1 + 0.9 * cosine,
             "wsd": np.minimum(1, 5 * (1 - progress))}  # fmt: skip
    np.testing.assert_allclose(values[10:], after[name], atol=1e-6)


def test_a_warm_up_of_one_step_and_of_the_whole_training():
    one, whole = (
        [schedule_multiplier("linear", jnp.int32(step), jnp.int32(STEPS), jnp.int32(warmup)) for step in range(STEPS)]
        for warmup in (1, STEPS)
    )
    assert one[:2] == [1.0, 1.0]
    np.testing.assert_allclose(whole, (1 + np.arange(STEPS)) / STEPS, rtol=1e-6)


def test_losses():
    logits, labels = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32), np.array([0, 3, 1, 1, 2])
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    onehot = np.eye(4)[labels]
    smooth = Recipe(label_smoothing=0.2)
    expected = -(log_p * (0.8 * onehot + 0.2 / 4)).sum(-1)
    np.testing.assert_allclose(smooth.example_losses(logits, labels, train=True), expected, rtol=1e-5)
    np.testing.assert_allclose(smooth.example_losses(logits, labels, train=False), -(log_p * onehot).sum(-1), rtol=1e-5)
    for name in ("mse", "centered_mse"):
        values = Recipe(loss=name).example_losses(logits, labels, train=True)
        np.testing.assert_allclose(values, ((logits - onehot) ** 2).sum(-1) / 2, rtol=1e-5)
    zeros = np.zeros((5, 4), np.float32)
    for name in ("cross_entropy", "mse"):
        at_chance = Recipe(loss=name).example_losses(zeros, labels, train=True)
        np.testing.assert_allclose(at_chance, LOSSES[name].chance(4), rtol=1e-6)


@pytest.fixture
def setup(x64):
    """A function: recipe -> (task, state in float64, batch, hyper), for the residual MLP; the schedule is constant."""

    def of(optimizer="adam", warmup=0, steps=STEPS, **recipe):
        s = settings("residual_mlp", optimizer)
        recipe = Recipe(**{"schedule": "constant", **recipe})
        task, (inputs, labels) = task_of(s, recipe), examples(batches_of(s), 32)
        hyper = hyper_of(s)._replace(warmup=warmup, steps=steps).arrays()
        return task, double(jax.jit(task.init)(hyper)), (double(inputs), labels), hyper

    return of


@functools.partial(jax.jit, static_argnums=0)  # equal tasks share a program
def step(task, state, batch, hyper):
    return task.step(state, batch, hyper)


@functools.partial(jax.jit, static_argnums=0)
def evaluated(task, state, batch, hyper):
    return task.evaluate(state, batch, hyper)["loss"].compute()


def steps(task, state, batch, hyper, count=1):
    for _ in range(count):
        state, metrics = step(task, state, batch, hyper)
    return state, metrics


def change(after, before):
    return jax.tree.map(lambda a, b: a - b, after.params, before.params)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_schedules_keep_the_factors(setup, schedule):
    """The update of every leaf at step 7 is that of a constant learning rate, times one number."""
    changes = []
    for options in ({}, dict(schedule=schedule, warmup=10)):
        task, state, batch, hyper = setup("sgd", **options)
        after, _ = steps(task, state._replace(step=jnp.int32(7)), batch, hyper)
        changes.append(change(after, state))
    constant, scheduled = changes
    assert_same(jax.tree.map(lambda u: 0.8 * u, constant), scheduled, rtol=1e-6)


def test_accumulation_is_one_batch(setup):
    """k parts of a batch make the step of the whole, three times in a row."""
    task, *rest = setup()
    expected = steps(task, *rest, count=3)
    for parts in (2, 8):
        assert_same(expected, steps(setup(accumulate=parts)[0], *rest, count=3))


def test_clip(setup):
    """The gradient is shortened to the norm, before the optimizer, and the norm that is reported is that before."""
    task, state, batch, hyper = setup("sgd")
    after, metrics = steps(task, state, batch, hyper)
    norm = metrics["grad_norm"]
    clipped, other = steps(*setup("sgd", clip=float(norm) / 4))
    assert_same(jax.tree.map(lambda u: u / 4, change(after, state)), change(clipped, state), rtol=1e-6)
    assert other["grad_norm"] == norm
    same, _ = steps(*setup("sgd", clip=float(norm) * 4))
    assert_same(same.params, after.params)


def test_average_is_evaluated(setup):
    task, state, batch, hyper = setup(ema=0.5)
    expected = state.params
    plain = setup()[0]
    for number in range(12):
        state, _ = steps(task, state, batch, hyper)
        decay = min(0.5, (1 + number) / (10 + number))
        expected = jax.tree.map(lambda a, w, d=decay: d * a + (1 - d) * w, expected, state.params)
    assert_same(state.average, expected, rtol=1e-6)
    of_average = evaluated(task, state, batch, hyper)
    assert of_average == evaluated(plain, state._replace(params=state.average), batch, hyper)
    assert abs(of_average - evaluated(plain, state, batch, hyper)) > 1e-4


def test_centered_loss(setup):
    """At the start the output counts as 0, and the loss's gradient is that of MSE on f - f_0."""
    task, state, batch, hyper = setup("sgd", loss="centered_mse")
    after, metrics = steps(task, state, batch, hyper)
    np.testing.assert_allclose(metrics["loss"], 0.5, rtol=1e-12)

    def f(params):
        return task.model.apply({"params": params}, batch[0], hyper.forward)

    def loss(params):
        return 0.5 * jnp.square(f(params) - f(state.params) - jax.nn.one_hot(batch[1], 10)).sum(-1).mean()

    rate = jax.tree.map(lambda r: -float(r) * float(hyper.learning_rate), hyper.factors.lr)
    expected = jax.tree.map(lambda r, g: r * g, rate, jax.jit(jax.grad(loss))(state.params))
    assert_same(change(after, state), expected, rtol=1e-8)
    np.testing.assert_allclose(steps(task, after, batch, hyper)[1]["loss"], loss(after.params), rtol=1e-10)
    np.testing.assert_allclose(evaluated(task, after, batch, hyper), loss(after.params), rtol=1e-6)
    assert_same(after.initial, state.params)


class InfiniteGradient(Task):
    """A task whose loss is finite where its gradient is not."""

    def apply(self, params, statistics, inputs, forward, key):
        logits, statistics = super().apply(params, statistics, inputs, forward, key)
        return logits + jnp.sqrt(jnp.sum(0 * logits)), statistics


def test_label_noise(setup):
    """A label is replaced by any class alike, with the given probability, anew in every step."""
    plain, state, (inputs, labels), hyper = setup("sgd")
    noisy = setup("sgd", label_noise=0.4)[0]
    hyper = hyper._replace(label_noise=np.float32(0.4))
    one = inputs[:1]
    losses = [float(plain.objective(state.params, state, (one, np.full(1, label)), hyper)) for label in range(10)]
    many = jnp.repeat(one, 20_000, axis=0), np.repeat(labels[:1], 20_000)
    noisy_losses = [
        float(noisy.objective(state.params, state._replace(step=jnp.int32(step)), many, hyper)) for step in range(2)
    ]
    expected = 0.6 * losses[labels[0]] + 0.4 * np.mean(losses)
    assert noisy_losses == pytest.approx([expected] * 2, abs=5 * np.ptp(losses) / 20_000**0.5)
    assert noisy_losses[0] != noisy_losses[1]


def test_the_first_loss_stays(setup):
    """What a loss at the end is compared with."""
    task, state, batch, hyper = setup()
    after, metrics = steps(task, state, batch, hyper)
    later, _ = steps(task, after, batch, hyper, count=2)
    assert after.first_loss == later.first_loss == metrics["loss"]


def test_epochs_are_counted_in_steps():
    hyper = hyper_of(tiny.settings(epochs=2.0, warmup_epochs=0.25))
    assert (hyper.steps, hyper.warmup) == (44, 6)


@pytest.mark.parametrize("broken", ["loss", "gradient"])
def test_a_trial_freezes(setup, broken):
    """At the step whose loss or gradient is not finite nothing moves, then or later, but the count of steps."""
    task, state, batch, hyper = setup()
    state, _ = steps(task, state, batch, hyper)
    bad = batch
    if broken == "loss":
        bad = (batch[0].at[0, 0, 0].set(jnp.nan), batch[1])
    else:
        task = InfiniteGradient(task.model, task.input_shape, task.optimizer, task.recipe)
    frozen, metrics = steps(task, state, bad, hyper)
    assert frozen.halted == 1
    assert bool(jnp.isfinite(metrics["loss"])) == (broken == "gradient")
    assert_same(frozen._replace(halted=jnp.int32(NEVER), step=jnp.int32(1)), state, rtol=0)
    later, metrics = steps(task, frozen, batch, hyper, count=2)
    assert jnp.isnan(metrics["loss"])
    assert later.step == 4
    assert_same(later._replace(step=frozen.step), frozen, rtol=0)


def test_a_trial_ends_after_its_steps(setup):
    """A frozen trial's state does not move, but it has not diverged."""
    task, state, batch, hyper = setup(steps=2)
    after, _ = steps(task, state, batch, hyper, count=2)
    later, metrics = steps(task, after, batch, hyper)
    assert_same(later._replace(step=after.step), after, rtol=0)
    assert jnp.isnan(metrics["loss"])
    assert later.halted == NEVER


def test_what_a_step_is_compiled_for():
    """Trials share a task whatever their traced numbers are; label noise is compiled in or left out."""
    base = tiny.settings(label_noise=0.1, clip=0.5, log_updates=True)
    other = dataclasses.replace(base, epochs=7.0, warmup_epochs=1.0, label_noise=0.2, seed=5)
    assert task_of(base) is task_of(other)
    assert base.compiled == Recipe(schedule=base.schedule, clip=0.5, log_updates=True, label_noise=1.0)
    for change in (dict(label_noise=0.0), dict(schedule="cosine"), dict(clip=None), dict(ema=0.5), dict(accumulate=2)):
        assert task_of(dataclasses.replace(base, **change)) is not task_of(base)
    assert other.traced(10) == {"steps": 70, "warmup": 10, "label_noise": 0.2}
    assert hyper_of(other).label_noise == 0.2


def test_update_rms(setup):
    """Of every group of parameters: what the step of SGD moved."""
    task, state, batch, hyper = setup("sgd", log_updates=True)
    after, metrics = steps(task, state, batch, hyper)
    moved = jax.tree.map(lambda u: np.sqrt(np.mean(u**2)), change(after, state))
    names = {"read_in": "input", "blocks": "branch/hidden", "readout": "readout"}
    logged = {name: value for name, value in metrics.items() if name.startswith("update_rms/")}
    assert set(logged) == {f"update_rms/{name}" for name in names.values()}
    for layer, name in names.items():
        np.testing.assert_allclose(logged[f"update_rms/{name}"], jax.tree.leaves(moved[layer])[0], rtol=1e-6)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"loss": "mae"}, "unknown loss 'mae'; did you mean 'mse'"),
        ({"loss": "mse", "label_smoothing": 0.1}, "label_smoothing is for the loss cross_entropy, not for mse"),
        ({"accumulate": 5}, "data.batch_size 64 is not a multiple of accumulate = 5"),
        ({"accumulate": 0}, "accumulate must be at least 1"),
        ({"warmup_epochs": 0.5}, "warmup_epochs must be at least 0 and less than 0.5"),
        ({"clip": -1.0}, "clip must be positive"),
        ({"ema": 1.0}, "ema must be at least 0 and less than 1"),
        (
            {"evaluate_every": "10"},
            "config.evaluate_every must be like '100 steps', '1 epoch', '10 minutes' or 'never'",
        ),
        ({"evaluate_every": "0 steps"}, "config.evaluate_every must be like"),
        ({"evaluate_every": "3 minutes"}, "evaluate_every must be in steps or epochs, or never"),
        ({"checkpoint__every": "often"}, "config.checkpoint.every must be like"),
        ({"checkpoint__keep": 0}, "checkpoint.keep must be at least 1"),
        ({"parallel__devices": 0}, "parallel.devices must be at least 1"),
    ],
)
def test_settings(overrides, message):
    with pytest.raises(ValueError, match=message):
        task_of(tiny.settings(**overrides))


def test_centered_loss_needs_one_function():
    with pytest.raises(ValueError, match="centered_mse needs a model without batch norm and dropout"):
        task_of(dataclasses.replace(settings("resnet"), loss="centered_mse"))


def test_the_norm_that_clip_limits():
    """The gradient's global norm at the start: flat in depth under depth_mup, falling to a limit in width."""
    depth, width = norms("depth", (4, 32)), norms("width", (128, 512), ("sp", "depth_mup"))
    growth = {name: row[1] / row[0] for name, row in depth.items()}
    assert 0.8 < growth["depth_mup"] < 1.25
    assert min(growth["sp"], growth["mup"]) > 100
    assert 0.7 < width["depth_mup"][1] / width["depth_mup"][0] < 1.0
    assert width["sp"][1] / width["sp"][0] > 1.5
