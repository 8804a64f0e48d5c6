"""A trial among others in one mapped program is the same trial alone, for every family and optimizer."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from depthmup.models import MODELS
from depthmup.rules.optim import OPTIMIZERS
from depthmup.settings import put
from depthmup.train import TrialLoop, TrialsOverDevices
from depthmup.train.build import batches_of, examples, hyper_of, task_of
from tests.conftest import OPTIMIZED
from tests.test_model_training import settings
from tests.test_parallel import assert_same, double

ROOT = Path(__file__).parent.parent
SMALL = {
    "mlp": dict(width=8, depth=2),
    "residual_mlp": dict(width=8, depth=2, norm="layer"),
    "cnn": dict(width=4, depth=2),
    "residual_cnn": dict(width=4, depth=1, norm="batch", dropout=0.1),
    "simple_resnet": dict(width=16, depth=3, norm="batch"),
    "resnet": dict(width=2, depth=1),
    "vit": dict(width=8, depth=1, heads=2, patch=4),
    "gpt": dict(width=8, depth=1, heads=2),
}
STEPS = 3


def trials_of(s):
    """Three trials that differ in everything that is traced."""
    hyper = hyper_of(s)
    first = hyper._replace(learning_rate=0.01, optimizer={**hyper.optimizer, "weight_decay": 0.1}, steps=STEPS)
    numbers = {**hyper.optimizer, "momentum": 0.5, "b1": 0.8, "eps": 1e-6}
    second = hyper._replace(seed=1, learning_rate=0.03, optimizer=numbers, warmup=2, steps=2)
    halved = hyper.forward._replace(branch=0.5 * hyper.forward.branch)
    third = hyper._replace(seed=2, learning_rate=0.002, steps=STEPS, forward=halved)
    return [hyper.arrays() for hyper in (first, second, third)]


# sgd is momentum without its trace, adamw is adam (docs/rules.md): with convolutions and attention one of each kind.
CASES = [(f, o) for f in MODELS for o in OPTIMIZERS if o in ("momentum", "adam") or f == "residual_mlp"]


@pytest.mark.parametrize(("family", "optimizer"), CASES)
def test_a_mapped_trial_is_the_trial_alone(family, optimizer, x64):
    """Also where the mapped program computes its blocks again for gradients, as it may have to on an accelerator."""
    s = settings(family, optimizer, **SMALL[family])
    task = task_of(s)
    inputs, labels = examples(batches_of(s), 8)
    batch, hypers = (double(inputs), labels), double(trials_of(s))
    start = jax.jit(task.init)
    states = [double(start(hyper)) for hyper in hypers]
    together = jax.tree.map(lambda *leaves: np.stack(leaves), *states)
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *hypers)
    again = task_of(put(s, {"model.remat": True}))
    assert (again.model.remat, task.model.remat) == (True, False)
    mapped = jax.jit(jax.vmap(again.step, in_axes=(0, None, 0)))
    alone = jax.jit(task.step)
    for _ in range(STEPS):
        together, losses = mapped(together, batch, stacked)
        each = [alone(state, batch, hyper) for state, hyper in zip(states, hypers, strict=True)]
        states = [state for state, _ in each]
    atol = 1e-12 if jax.__version_info__ < (0, 12) else 1e-11  # of the keys' biases, whose gradients are rounding
    for i, (state, metrics) in enumerate(each):
        assert_same(jax.tree.map(lambda leaf, i=i: leaf[i], together), state, atol=atol)
        assert_same(losses["loss"][i], metrics["loss"])
    assert np.isnan(losses["loss"][1])  # its two steps are done
    changed = jax.tree.map(lambda leaf: not np.allclose(leaf[0], leaf[2]), together.params)
    assert any(jax.tree.leaves(changed))


@pytest.mark.parametrize("family", ["residual_mlp", "cnn"])
def test_a_divergence_changes_no_bit_of_the_others(family):
    s, results = settings(family, "sgd", **SMALL[family]), {}
    hypers = [hyper_of(s)._replace(seed=seed) for seed in range(4)]
    loop = TrialLoop(task_of(s), batches_of(s), TrialsOverDevices(4, jax.devices()[:2], layout="vmap"))
    for name, rate in (("healthy", 0.1), ("diverging", 1e30)):
        results[name] = loop.run([*hypers[:1], hypers[1]._replace(learning_rate=rate), *hypers[2:]], 6)
    assert results["diverging"]["diverged"].tolist() == [False, True, False, False]
    for name, values in results["healthy"].items():
        np.testing.assert_array_equal(np.delete(values, 1), np.delete(results["diverging"][name], 1), err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("family", MODELS)
def test_the_number_of_trials_in_a_program_changes_no_bit(family):
    """On a CPU: a trial alone, among three on one device and on two, in stretches of any length; one ends early."""
    s = settings(family, "momentum", **SMALL[family])
    hypers = [hyper_of(s)._replace(seed=seed, learning_rate=rate) for seed, rate in enumerate((0.01, 1e30, 0.01))]

    def run(hypers, devices, every):
        placement = TrialsOverDevices(len(hypers), jax.devices()[:devices], layout="map")
        return TrialLoop(task_of(s), batches_of(s), placement).run(hypers, 5, every)

    alone = run(hypers[:1], 1, 5)
    for devices, every in ((1, 5), (2, 2)):
        together = run(hypers, devices, every)
        assert together["diverged"].tolist() == [False, True, False]
        for name, values in alone.items():
            np.testing.assert_array_equal(together[name][:1], values, err_msg=name)


@pytest.mark.slow
def test_the_bits_of_programs_that_are_compiled_for_speed(tmp_path):
    """The test above in a process without the flags of conftest.py, which make programs compile cheaply."""
    names = [name for name in os.environ if not name.startswith(("JAX_", "XLA_", "PYTEST_"))]
    overrides = {OPTIMIZED: "1", "JAX_COMPILATION_CACHE_DIR": str(tmp_path)}
    environment = {name: os.environ[name] for name in names} | overrides
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-o",
        "addopts=",
        __file__,
        "-k",
        "changes_no_bit and (residual_mlp or simple_resnet)",
    ]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_convolutions_in_a_program_have_one_layout():
    """Also in the gradients, in the loop over trials and steps: what else XLA computes on a CPU is far slower there."""
    s = settings("resnet", "sgd", **SMALL["resnet"], scan=True)
    task, hyper, batch = task_of(s), hyper_of(s).arrays(), examples(batches_of(s), 8)
    state = jax.eval_shape(task.init, hyper)

    def steps(state, hyper):
        return jax.lax.fori_loop(0, 3, lambda i, state: task.step(state, batch, hyper)[0], state)

    text = jax.jit(steps).lower(state, hyper).as_text()
    layouts = {
        line.split("dim_numbers = ")[1].split(", window")[0] for line in text.splitlines() if "convolution(" in line
    }
    assert layouts == {"[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]"}
