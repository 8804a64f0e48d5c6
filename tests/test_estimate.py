"""What a sweep is said to cost, and how many trials it runs together."""

import dataclasses
import io

import jax
import numpy as np
import pytest
from rich.console import Console

from depthmup import verbs
from depthmup.settings import SettingsError
from depthmup.sweep import cost, estimate
from depthmup.sweep.estimate import AT_ONCE, STRETCH, Estimator, at_once, duration, memory
from depthmup.sweep.plan import grouped, trials
from depthmup.sweep.progress import Progress
from depthmup.sweep.runner import LOG_EVERY, Runner, compiled_in, hyper_of
from depthmup.train import flops
from depthmup.train.assemble import problem_of
from tests import tiny
from tests.test_model_training import settings
from tests.test_train import compilations

HITS = []
jax.monitoring.register_event_listener(lambda event, **_: HITS.append(event) if "cache_hits" in event else None)


def test_cost_is_said():
    text = cost(tiny.config(sweep__optimizers=("sgd",)))
    assert text.startswith("108 trials, 3 programs, ")
    assert "about" in text
    assert "(compilation" in text
    assert cost(tiny.settings(sweep__optimizers=("sgd",), sweep__adaptive=True)).endswith(
        "; adaptive: about half of that"
    )


def test_dry_run_writes_nothing(tmp_path, capsys):
    """And finds mistakes."""
    chosen = tiny.settings(sweep__optimizers=("sgd",), sweep__depths=(2,), sweep__widths=(), sweep__max_trials=10)
    assert verbs.sweep(chosen, tmp_path / "x", "", dry_run=True, shard="1/2") == 0
    assert capsys.readouterr().out.startswith("18 trials, 1 programs, ")
    assert not (tmp_path / "x").exists()
    with pytest.raises(SettingsError, match="--shard=1 must be i/n"):
        verbs.sweep(chosen, None, "", dry_run=True, shard="1")
    with pytest.raises(SettingsError, match="sweep needs --workdir"):
        verbs.sweep(chosen, None, "")


def test_programs_are_kept(tmp_path):
    """In the folder, from which another process (here: without what is in memory) gets them, wherever it lies then."""
    assert not jax.config.jax_compilation_cache_dir
    for folder in ("first", "second"):
        before, compiled = len(HITS), compilations()
        with compiled_in(tmp_path / folder):
            jax.jit(lambda x: jax.numpy.sin(x) * 3.21)(1.0)
        if folder == "first":
            assert len(HITS) == before
            assert compilations() > compiled
            (tmp_path / "first").rename(tmp_path / "second")
            jax.clear_caches()
    assert len(HITS) == before + 1
    assert not jax.config.jax_compilation_cache_dir


def test_operations(monkeypatch):
    """Those of a step, for all steps and the evaluation (a third of a step's, forwards only), over all trials."""
    chosen = tiny.settings(sweep__optimizers=("sgd",), sweep__depths=(2,), sweep__widths=())
    plan = trials(chosen)
    problem = problem_of(chosen)
    trainer = problem.trainer(plan[0].settings.model, "sgd")
    step = flops.of_step(trainer, hyper_of(problem, plan[0]), problem.input_shape, 64)
    groups, estimator = grouped(plan, lambda program: 20), Estimator()
    found = estimator.total(groups)
    assert found.flops == pytest.approx(36 * step * (11 + 1797 / (3 * 64)))
    assert found.seconds is None
    assert estimator.seconds(groups[0]) / estimator.seconds(groups[1]) == pytest.approx(20 / 16)
    monkeypatch.setattr(estimate, "TRAIN_EVALUATED", 1000)
    assert estimator.total(groups).flops == pytest.approx(36 * step * (11 + 1360 / (3 * 64)))


def test_minutes_are_those_of_measured_steps():
    """Between the cheapest and the dearest program in proportion to their operations."""
    chosen = tiny.settings(
        sweep__optimizers=("sgd",), sweep__depths=(2, 8, 32), sweep__widths=(), sweep__parameterizations=("sp",)
    )
    groups = grouped(trials(chosen), lambda program: 12)
    estimator = Estimator()
    estimator.measure(groups, Runner())
    times, found = [estimator.seconds(group) for group in groups], estimator.total(groups)
    assert 0 < times[0] < times[1] < times[2]
    assert found.seconds == pytest.approx(sum(times) + found.compiling)


@pytest.mark.parametrize(("seconds", "text"), [(4.4, "4 s"), (200, "3 min 20 s"), (3600 * 5 + 600, "5 h 10 min")])
def test_duration(seconds, text):
    assert duration(seconds) == text


def test_as_many_at_once_as_fit(monkeypatch):
    trial = trials(tiny.settings())[0]
    problem = problem_of(trial.settings)
    trainer = problem.trainer(trial.settings.model, "sgd")
    assert at_once(trial) == AT_ONCE
    assert at_once(trials(tiny.settings(sweep__at_once=7))[0]) == 7
    each = memory(trainer, problem, hyper_of(problem, trial), "map")
    state = jax.eval_shape(trainer.init, hyper_of(problem, trial).arrays())
    assert each == 3 * sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
    devices = len(jax.local_devices())
    monkeypatch.setattr(estimate, "_free", lambda device: 2.5 * each * devices / estimate.SHARE)
    assert at_once(trial) == 2 * devices
    monkeypatch.setattr(estimate, "_free", lambda device: 0.0)
    assert at_once(trial) == 1


def test_out_of_memory_says_what_to_set(monkeypatch):
    group = grouped(trials(tiny.settings()), lambda program: 6)[0]

    def full(*_, **__):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes")

    monkeypatch.setattr("depthmup.train.loop.TrialLoop.run", full)
    with pytest.raises(SettingsError, match="sgd sp width 8 depth 2: out of memory; set sweep"):
        Runner().train(group)


def test_what_a_mapped_step_works_with_is_measured():
    """It grows with the batch; the state does not."""
    bytes_of = {}
    for batch_size in (64, 256):
        trial = trials(tiny.settings(data__batch_size=batch_size))[0]
        problem = problem_of(trial.settings)
        trainer, hyper = problem.trainer(trial.settings.model, "sgd"), hyper_of(problem, trial)
        bytes_of[batch_size] = memory(trainer, problem, hyper, "vmap") - memory(trainer, problem, hyper, "map")
    activations = np.dtype(np.float32).itemsize * 8 * (256 - 64)  # one layer's, at width 8
    assert bytes_of[256] - bytes_of[64] > activations
    assert bytes_of[64] > 0


def test_dear_trials_run_a_few_at_a_time(monkeypatch):
    """On a CPU: between two reports nobody can stop a sweep, so that a stretch has a bounded number of operations."""
    s = dataclasses.replace(settings("cnn"), sweep=tiny.settings().sweep)
    s = dataclasses.replace(s, sweep=dataclasses.replace(s.sweep, depths=(2,), widths=()))
    trial = trials(s)[0]
    problem = problem_of(trial.settings)
    trainer = problem.trainer(trial.settings.model, trial.settings.optimizer.name)
    step = flops.of_step(trainer, hyper_of(problem, trial), problem.input_shape, 32)
    for count in (1, 3):
        monkeypatch.setattr(estimate, "STRETCH", (count + 0.5) * LOG_EVERY * step)
        assert at_once(trial, devices=1) == count
        assert at_once(trial, devices=2) == 2 * count
    monkeypatch.setattr(estimate, "STRETCH", 0.1 * step)
    assert at_once(trial, devices=2) == 2
    assert STRETCH > 0.1 * step


def row(depth, rate, loss, diverged=False):
    of = {"optimizer": "sgd", "parameterization": "mup", "width": 8, "depth": depth}
    return {**of, "learning_rate": rate, "loss": loss, "diverged": diverged}


def test_progress():
    """Groups, trials a minute, time left in proportion to what is expected, and the best so far at every size."""
    out = Console(file=io.StringIO(), width=120)
    shown = Progress([row(2, 0.5, 0.3), row(2, 0.5, 0.4)], console=out)
    shown.expect({"a": 1.0, "b": 3.0})
    shown._start -= 10.0
    assert shown.line().startswith("groups: 0 done, 0 running, 2 to go; 0 trials, 0 a minute; time left not known yet")
    shown.running("b", "sgd mup width 8 depth 4", 0.5)
    shown.finished("a", [row(4, 0.25, 0.2), row(4, 1.0, 0.1, diverged=True), row(2, 0.25, 0.45)])
    assert shown.line() == "groups: 1 done, 1 running, 0 to go; 3 trials, 18 a minute; 6 s left"
    out.print(shown.table())
    text = out.file.getvalue()
    assert "sgd mup width 8 depth 4 50%" in text
    assert "8 x 2" in text
    assert "-1.0 0.350" in text  # the mean over seeds
    assert "-2.0 0.200" in text
    silent = Progress([], silent=True, console=Console(file=io.StringIO(), quiet=True))
    silent.say("nothing")
    assert silent._console.file.getvalue() == ""
