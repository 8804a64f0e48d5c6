"""A trial among others in one mapped program is the same trial alone, for every family and optimizer."""

import jax
import numpy as np
import pytest

from depthmup.models import MODELS
from depthmup.optim import OPTIMIZERS
from depthmup.train import TrialLoop
from depthmup.train.assemble import problem_of
from tests.families import QUICK
from tests.test_model_training import hyper_of, settings
from tests.test_parallel import assert_same, double

SMALL = {
    "mlp": dict(width=8, depth=2),
    "residual_mlp": dict(width=8, depth=2, norm="layer"),
    "cnn": dict(width=4, depth=2),
    "residual_cnn": dict(width=4, depth=1, norm="batch", dropout=0.1),
    "simple_resnet": dict(width=16, depth=3, norm="batch"),
    "resnet": dict(width=2, depth=1),
    "vit": dict(width=8, depth=1, heads=2, patch=4),
}
STEPS = 3


def trials_of(problem, s, optimizer):
    """Three trials that differ in everything that is traced."""
    first = hyper_of(problem, s)._replace(learning_rate=0.01, weight_decay=0.1, steps=STEPS)
    second = hyper_of(problem, s, 1)._replace(learning_rate=0.03, momentum=0.5, b1=0.8, eps=1e-6, warmup=2, steps=2)
    third = hyper_of(problem, s, 2)._replace(learning_rate=0.002, steps=STEPS)
    halved = third.forward._replace(branch=0.5 * third.forward.branch)
    return [hyper.arrays() for hyper in (first, second, third._replace(forward=halved))]


# sgd is momentum without its trace, adamw is adam (docs/rules.md): with convolutions and attention one of each kind.
CASES = [(f, o) for f in MODELS for o in OPTIMIZERS if o in ("momentum", "adam") or f == "residual_mlp"]


@pytest.mark.parametrize(("family", "optimizer"), CASES)
def test_a_mapped_trial_is_the_trial_alone(family, optimizer, x64):
    s = settings(family, **SMALL[family])
    problem = problem_of(s)
    trainer = problem.trainer(s.model, optimizer)
    inputs, labels = problem.examples(8)
    batch, hypers = (double(inputs), labels), double(trials_of(problem, s, optimizer))
    start = jax.jit(trainer.init, compiler_options=QUICK)
    states = [double(start(hyper)) for hyper in hypers]
    together = jax.tree.map(lambda *leaves: np.stack(leaves), *states)
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *hypers)
    mapped = jax.jit(jax.vmap(trainer.train_step, in_axes=(0, None, 0)), compiler_options=QUICK)
    alone = jax.jit(trainer.train_step, compiler_options=QUICK)
    for _ in range(STEPS):
        together, losses = mapped(together, batch, stacked)
        each = [alone(state, batch, hyper) for state, hyper in zip(states, hypers, strict=True)]
        states = [state for state, _ in each]
    for i, (state, metrics) in enumerate(each):
        assert_same(jax.tree.map(lambda leaf, i=i: leaf[i], together), state)
        assert_same(losses["loss"][i], metrics["loss"])
    assert np.isnan(losses["loss"][1])  # its two steps are done
    changed = jax.tree.map(lambda leaf: not np.allclose(leaf[0], leaf[2]), together.params)
    assert any(jax.tree.leaves(changed))


@pytest.mark.parametrize("family", ["residual_mlp", "cnn"])
def test_a_divergence_changes_no_bit_of_the_others(family):
    s = settings(family, **SMALL[family])
    problem = problem_of(s)
    hypers = [hyper_of(problem, s, seed) for seed in range(4)]
    trainer, results = problem.trainer(s.model, "sgd"), {}
    loop = TrialLoop(trainer, problem.batches, trials=4, layout="vmap", devices=jax.devices()[:2])
    for name, rate in (("healthy", 0.1), ("diverging", 1e30)):
        results[name] = loop.run([*hypers[:1], hypers[1]._replace(learning_rate=rate), *hypers[2:]], 6)
    assert results["diverging"]["diverged"].tolist() == [False, True, False, False]
    for name, values in results["healthy"].items():
        np.testing.assert_array_equal(np.delete(values, 1), np.delete(results["diverging"][name], 1), err_msg=name)


def test_frozen_trials_take_no_turns():
    """Convolutions on a CPU run in turn: one that has diverged is passed over, and a group of such ends early."""
    s = settings("cnn", **SMALL["cnn"])
    problem, calls = problem_of(s), []
    trainer = problem.trainer(s.model, "sgd")
    hypers = [hyper_of(problem, s, seed) for seed in range(3)]
    loop = TrialLoop(trainer, problem.batches, trials=3, layout="turn", devices=jax.devices()[:1])
    step = loop.programs._step
    loop.programs._step = lambda states, *rest: calls.append(len(states)) or step(states, *rest)
    seen = []
    bad = [hypers[0], *(hyper._replace(learning_rate=1e30) for hyper in hypers[1:])]
    metrics = loop.run(bad, 8, 2, lambda at, metrics: seen.append(metrics["loss"]))
    assert calls == [3, 3, 3, 3, 1, 1, 1, 1]  # known two steps late: the host does not wait for the devices
    assert np.isnan(np.concatenate(seen, axis=1)[1:, 4:]).all()
    assert metrics["diverged"].tolist() == [False, True, True]
    alone = TrialLoop(trainer, problem.batches, trials=1, layout="turn").run(hypers[:1], 8)
    np.testing.assert_array_equal(metrics["loss"][:1], alone["loss"])
    calls.clear()
    assert loop.run([bad[1]] * 3, 8, 2)["diverged"].all()
    assert calls == [3, 3, 3, 3]
