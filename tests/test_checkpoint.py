"""Resumed is uninterrupted, bit for bit; what is corrupt is passed over, what is another run's refused."""

import dataclasses
import json
import os
import shutil
import signal
from pathlib import Path

import jax
import numpy as np
import pytest

from depthmup.train import TrialLoop
from depthmup.train.assemble import problem_of
from depthmup.train.checkpoint import Checkpoints, Every
from depthmup.train.loop import Diverged
from depthmup.train.saved import CheckpointError, load
from depthmup.train.stop import Stop, Stopped
from depthmup.train.workdir import WorkdirError
from tests import tiny
from tests.test_model_training import hyper_of, settings

STEPS, LOG_EVERY, PER_EPOCH = 60, 4, 44  # two epochs: the stop at step 52 is in the middle of the second


class StopAt(Stop):
    """A request that comes while the steps up to this one are reported."""

    def __init__(self, step):
        super().__init__()
        self.step = step

    def __call__(self, step, metrics):
        if step >= self.step:
            self.requested = signal.SIGTERM


def problem_and_loop(optimizer, trials, family="residual_mlp", **options):
    s = settings(family)
    s = dataclasses.replace(s, optimizer=dataclasses.replace(s.optimizer, name=optimizer))
    problem = problem_of(s)
    problem = problem._replace(recipe=dataclasses.replace(problem.recipe, steps=STEPS, schedule="cosine", ema=0.9))
    assert problem.batches.steps_per_epoch == PER_EPOCH
    loop = TrialLoop(problem.trainer(s.model, optimizer), problem.batches, trials=trials, **options)
    hypers = [hyper_of(problem, s, seed)._replace(learning_rate=0.01 * 4**seed) for seed in range(trials)]
    return loop, hypers


def checkpoints(path, identity=None, every=8, **options):
    return Checkpoints(path, identity or {"model": {"width": 16}}, every=Every(steps=every), **options)


def run(loop, hypers, path, stop=None, **options):
    """(metrics at the end or None, [(step, metrics)], what was said)."""
    seen, said = [], []

    def progress(step, metrics):
        seen.append((step, {name: np.array(values) for name, values in metrics.items()}))
        if stop:
            stop(step, metrics)

    options = {"say": said.append, **options}
    kept = checkpoints(path, **options)
    try:
        metrics = loop.run(hypers, STEPS, LOG_EVERY, progress, evaluate_every=16, checkpoints=kept, stop=stop)
    except Stopped:
        metrics = None
    finally:
        kept.close()
    return metrics, seen, said


def reports(seen):
    """{(step, what): values}; a step done twice must be the same twice."""
    result = {}
    for step, metrics in seen:
        for name, values in metrics.items():
            if (step, name) in result:
                np.testing.assert_array_equal(result[step, name], values)
            result[step, name] = values
    return result


@pytest.mark.parametrize(
    ("optimizer", "trials", "family", "options"),
    [
        ("momentum", 1, "residual_mlp", dict(split="batch")),
        ("adam", 1, "residual_mlp", dict(split="batch", wrapper="jit", devices=2)),
        ("adam", 5, "residual_mlp", dict(devices=4)),
        ("momentum", 3, "cnn", dict(devices=2)),
    ],
)
def test_resumed_is_uninterrupted(tmp_path, optimizer, trials, family, options):
    """Every metric of every step, and every array of the last checkpoint, with the same number of devices."""
    if isinstance(options.get("devices"), int):
        options = {**options, "devices": jax.devices()[: options["devices"]]}
    if options.get("split") == "batch":
        options = {"devices": jax.devices()[:4], **options}
    loop, hypers = problem_and_loop(optimizer, trials, family, **options)
    whole, seen, _ = run(loop, hypers, tmp_path / "whole")
    first = run(loop, hypers, tmp_path / "cut", StopAt(20))
    second = run(loop, hypers, tmp_path / "cut", StopAt(52))
    again, third, said = run(loop, hypers, tmp_path / "cut")
    assert (first[0], second[0]) == (None, None)
    resumed = [int(text.split()[-1]) for _, _, part in (first, second) for text in part] + [int(said[0].split()[-1])]
    assert len(resumed) == 2
    assert resumed[1] > PER_EPOCH
    for name in whole:
        np.testing.assert_array_equal(whole[name], again[name], err_msg=name)
    expected, found = reports(seen), reports(first[1] + second[1] + third)
    assert expected.keys() == found.keys()
    for key in expected:
        np.testing.assert_array_equal(expected[key], found[key], err_msg=str(key))
    states = [
        checkpoints(tmp_path / name).restore(loop.map.join(loop.programs.start(hypers)[0])) for name in ("whole", "cut")
    ]
    assert states[0][0] == states[1][0] == 56
    for a, b in zip(jax.tree.leaves(states[0][1]), jax.tree.leaves(states[1][1]), strict=True):
        np.testing.assert_array_equal(a, b)


def test_another_number_of_devices(tmp_path):
    """What four devices saved, eight and one go on from; sums are then taken in another order."""
    loop, hypers = problem_and_loop("adam", 1, split="batch", devices=jax.devices()[:4])
    run(loop, hypers, tmp_path / "4", StopAt(20))
    whole = loop.run(hypers, STEPS)["loss"]
    for devices in (8, 1):
        shutil.copytree(tmp_path / "4", tmp_path / str(devices))
        loop, hypers = problem_and_loop("adam", 1, split="batch", devices=jax.devices()[:devices])
        metrics, _, said = run(loop, hypers, tmp_path / str(devices))
        assert said == ["going on from step 24"]
        np.testing.assert_allclose(metrics["loss"], whole, rtol=1e-4)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """(a loop, its hyperparameters, a workdir with the last three checkpoints of a run: 40, 48 and 56)."""
    path = tmp_path_factory.mktemp("finished")
    loop, hypers = problem_and_loop("adam", 2, devices=jax.devices()[:1])
    run(loop, hypers, path, keep=3)
    return loop, hypers, path


@pytest.fixture
def copy(finished, tmp_path):
    shutil.copytree(finished[2], tmp_path / "copy")
    return tmp_path / "copy"


def restore(finished, path, identity=None, like=None):
    """((step, state) or None, what was said)."""
    loop, hypers, _ = finished
    said = []
    kept = checkpoints(path, identity, say=said.append)
    try:
        return kept.restore(loop.map.join(loop.programs.start(hypers)[0]) if like is None else like), said
    finally:
        kept.close()


def damage(path, how):
    """Each file of a checkpoint in turn is cut, changed, emptied or removed."""
    content = path.read_bytes()
    if how == "removed":
        path.unlink()
    elif how == "changed":
        middle = len(content) // 2
        path.write_bytes(content[:middle] + bytes([content[middle] ^ 0xFF]) + content[middle + 1 :])
    else:
        path.write_bytes(content[: len(content) // 2 if how == "cut" else 0])


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnhandledThreadExceptionWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
@pytest.mark.parametrize("how", ["cut", "changed", "emptied", "removed"])
def test_a_corrupt_checkpoint_is_never_used(finished, copy, how):
    """Whatever befalls any one file of the newest: either it reads as it was written, or the one before is taken."""
    (_, expected), _ = restore(finished, copy)
    backup = copy.parent / "backup"
    shutil.copytree(copy, backup)
    fell_back = 0
    for name in [f.relative_to(copy) for f in (copy / "checkpoints" / "56").rglob("*") if f.is_file()]:
        if not (copy / name).stat().st_size:
            continue
        damage(copy / name, how)
        (step, state), said = restore(finished, copy)
        if step == 56:
            for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(expected), strict=True):
                np.testing.assert_array_equal(a, b)
        else:
            assert step == 48
            assert "checkpoint 56 cannot be used, moved to" in said[0]
            assert said[1] == "going on from step 48"
            fell_back += 1
        shutil.rmtree(copy)
        shutil.copytree(backup, copy)
    assert fell_back >= 3


def test_what_was_changed_in_its_json_is_not_believed(finished, copy):
    """A checkpoint that has become one of another config, without being less readable, is no reason to refuse."""
    meta = copy / "checkpoints" / "56" / "meta" / "metadata"
    text = meta.read_text()
    assert '"width": 16' in text
    meta.write_text(text.replace('"width": 16', '"width": 61'))
    found, said = restore(finished, copy)
    assert found[0] == 48
    assert "its JSON is not what was written" in said[0]


def test_half_a_checkpoint_is_removed(finished, copy):
    half = copy / "checkpoints" / "60.orbax-checkpoint-tmp" / "state"
    half.mkdir(parents=True)
    assert restore(finished, copy)[0][0] == 56
    assert not half.parent.exists()


def test_a_run_goes_on_past_corrupt_checkpoints(finished, copy):
    """It falls back to the newest whole one, and ends as if nothing had been."""
    loop, hypers, _ = finished
    for step in (48, 56):
        biggest = max(
            (copy / "checkpoints" / str(step)).rglob("*"), key=lambda f: f.stat().st_size if f.is_file() else 0
        )
        damage(biggest, "changed")
    metrics, seen, said = run(loop, hypers, copy)
    assert seen[0][0] == 44
    assert [text.split(",")[0] for text in said] == [
        "checkpoint 56 cannot be used",
        "checkpoint 48 cannot be used",
        "going on from step 40",
    ]
    assert sorted(p.name for p in (copy / "unusable_checkpoints").iterdir()) == ["48", "56"]
    np.testing.assert_array_equal(metrics["loss"], loop.run(hypers, STEPS)["loss"])


def test_another_run_is_refused(finished, copy):
    with pytest.raises(
        WorkdirError, match=r"checkpoint of another run: model.width was 16, now it is 32. Give another"
    ):
        restore(finished, copy, {"model": {"width": 32}})
    loop, hypers = problem_and_loop("momentum", 2, devices=jax.devices()[:1])
    with pytest.raises(WorkdirError, match=r"another model: opt_state/\S+ was (not there|float32)"):
        restore(finished, copy, like=loop.map.join(loop.programs.start(hypers)[0]))
    state = finished[0].map.join(finished[0].programs.start(finished[1])[0])
    wider = state._replace(params=jax.tree.map(lambda w: np.concatenate([w, w], -1), state.params))
    with pytest.raises(
        WorkdirError, match=r"params/blocks/dense/kernel was float32 \(2, 2, 16, 16\), now it is float32"
    ):
        restore(finished, copy, like=wider)
    half = state._replace(params=jax.tree.map(lambda w: w.astype(np.float16), state.params))
    with pytest.raises(WorkdirError, match="now it is float16"):
        restore(finished, copy, like=half)
    assert sorted(os.listdir(copy / "checkpoints")) == ["40", "48", "56"]


def test_the_best_and_the_last_are_kept(tmp_path):
    kept = checkpoints(tmp_path, every=1, keep=2, best=1)
    assert not kept.improves(float("nan"))  # though there is no other yet
    for step, loss in ((1, 3.0), (2, 1.0), (3, 2.0), (4, None), (5, 2.5)):
        assert loss is None or kept.improves(loss) == (step < 3)
        kept.save(step, {"w": np.full((1, 3), step, np.float32)}, {"validation_loss": loss} if loss else None)
    kept.wait()
    assert kept.steps() == [2, 4, 5]
    kept.close()
    again = checkpoints(tmp_path, keep=2, best=1)
    assert not again.improves(1.5)
    assert again.improves(0.5)
    again.close()
    state, meta = load(tmp_path, best=True)
    assert (meta["step"], meta["metrics"]) == (2, {"validation_loss": 1.0})
    np.testing.assert_array_equal(state["w"], [2, 2, 2])
    assert load(tmp_path)[1]["step"] == 5
    (tmp_path / "empty" / "checkpoints").mkdir(parents=True)
    with pytest.raises(CheckpointError, match="holds no checkpoint"):
        load(tmp_path / "empty")
    with pytest.raises(CheckpointError, match="is not there"):
        load(tmp_path / "nowhere")


def test_saved_state_does_not_change_with_the_next_step(tmp_path):
    """What is written in the background is a copy: the arrays are overwritten at once."""
    kept, leaf = checkpoints(tmp_path), np.zeros((1, 4_000_000), np.float32)  # takes long enough to write
    kept.save(1, {"w": leaf})
    leaf += 1
    kept.close()
    assert not load(tmp_path)[0]["w"].any()


def test_a_folder_that_cannot_be_made(tmp_path):
    """Each failure is said; with room again the next one is written."""
    said = []
    (tmp_path / "checkpoints").write_text("in the way")
    kept = checkpoints(tmp_path / "x", say=said.append)
    kept.path = tmp_path / "checkpoints" / "below"
    kept.save(1, {"w": np.zeros((1,))})
    assert "checkpoint 1 could not be written; there is none yet, and training goes on. NotADirectoryError" in said[0]
    (tmp_path / "checkpoints").unlink()
    kept.save(2, {"w": np.zeros((1,))})
    kept.wait()
    assert kept.steps() == [2]
    kept.close()


def test_a_stop_without_checkpoints_says_so(finished):
    loop, hypers, _ = finished
    stop = StopAt(4)
    with pytest.raises(Stopped, match=r"stopped by SIGTERM at step \d+: these steps are not saved"):
        loop.run(hypers, STEPS, LOG_EVERY, stop, stop=stop)


def test_a_stop_saves(finished, tmp_path):
    """Though no checkpoint is due."""
    loop, hypers, _ = finished
    metrics, seen, _ = run(loop, hypers, tmp_path, StopAt(4), every=1000)
    assert metrics is None
    assert load(tmp_path)[1]["step"] == seen[-1][0] <= 8


def test_a_run_of_its_own_saves_its_best_state_and_its_last(tmp_path):
    """At evaluations, though no checkpoint is due; and it ends where it diverges, at that step."""
    loop, hypers = problem_and_loop("adam", 1, split="batch", devices=jax.devices()[:1])
    kept = checkpoints(tmp_path, every=1000)
    loop.run(hypers, 20, LOG_EVERY, evaluate_every=16, checkpoints=kept, alone=True)
    assert kept.steps() == [16, 20]
    kept.close()
    with pytest.raises(Diverged, match="at step 1 the loss is"):
        loop.run([hypers[0]._replace(learning_rate=1e30)], STEPS, LOG_EVERY, alone=True)


def test_minutes(tmp_path):
    kept = Checkpoints(tmp_path, {}, every=Every(seconds=60.0))
    assert not kept.overdue()
    kept._saved_at -= 60
    assert kept.overdue()
    kept.save(3, {"w": np.zeros((1,))})
    assert not kept.overdue()
    kept.close()


def test_meta_says_what_it_is(finished):
    meta = load(finished[2])[1]
    assert meta["step"] == 56
    assert meta["identity"] == {"model": {"width": 16}}
    assert {"jax", "flax", "optax", "orbax-checkpoint"} <= set(meta["versions"])
    assert meta["arrays"]["params/read_in/kernel"]["shape"] == [2, 64, 16]
    assert json.dumps(meta)
    assert not list(Path(finished[2]).glob("checkpoints/*tmp*"))


def test_sweep_settings_reach_the_checkpoints(tmp_path):
    assert tiny.settings(checkpoint__every="5 steps").checkpoint.every.steps(22) == 5
    assert tiny.settings(checkpoint__every="0.5 epochs").checkpoint.every.steps(22) == 11
    assert tiny.settings(checkpoint__every="2 minutes").checkpoint.every.seconds == 120
    assert tiny.settings(checkpoint__every="never").checkpoint.every.steps(22) is None
