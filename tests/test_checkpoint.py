"""Resumed is uninterrupted, bit for bit; what is corrupt is passed over, what is another run's refused."""

import functools
import json
import os
import shutil
import signal
import time
import types

import jax
import numpy as np
import pytest

from configs import default
from depthmup.settings import from_config
from depthmup.train import BatchOverDevices, TrialLoop
from depthmup.train import run as run_module
from depthmup.train.build import batches_of, hyper_of, task_of
from depthmup.train.checkpoint import CheckpointError, Checkpoints, load
from depthmup.train.run import Diverged, train_loop
from depthmup.train.stop import Stop, Stopped
from depthmup.train.workdir import WorkdirError
from depthmup.trials.config_study import ConfigStudy
from depthmup.trials.group import GroupCheckpoints, Runner
from depthmup.trials.plan import grid_trials, grouped
from tests import tiny

STEPS, PER_EPOCH = 30, 22  # the second stop, at step 26, is in the second epoch


def settings(optimizer="momentum", **overrides):
    """A run of STEPS steps: a report every 2, a checkpoint every 4, an evaluation every 8."""
    every = {"log_every": 2, "checkpoint__every": "4 steps", "evaluate_every": "8 steps"}
    chosen = {"optimizer__name": optimizer, "optimizer__learning_rate": 0.01, "schedule": "cosine", "ema": 0.9}
    return tiny.settings(**{**every, **chosen, "epochs": STEPS / PER_EPOCH, **overrides})


@functools.cache
def loop_of(optimizer="momentum", devices=1, wrapper="pmap"):
    """The loop of a lone run, compiled once for all tests."""
    s = settings(optimizer)
    assert batches_of(s).steps_per_epoch == PER_EPOCH
    return TrialLoop(task_of(s), batches_of(s), BatchOverDevices(jax.devices()[:devices], wrapper))


def checkpoints(path, identity=None, **options):
    return Checkpoints(path, identity or {"model": {"width": 16}}, **options)


def run(s, loop, path, stop_at=None, **options):
    """(metrics at the end, None if it was stopped; reports {(step, name): values}; what was said).

    stop_at: the step in whose report a stop is asked for.
    """
    seen, messages, stop = {}, [], Stop()

    def report(step, metrics):
        seen.update({(step, name): np.array(values) for name, values in metrics.items()})
        if stop_at and step >= stop_at:
            stop.requested = signal.SIGTERM

    kept = checkpoints(path, **{"say": messages.append, **options})
    try:
        return train_loop(s, loop, hyper_of(s), report, kept, stop), seen, messages
    except Stopped:
        return None, seen, messages
    finally:
        kept.close()


@pytest.mark.parametrize(("optimizer", "devices", "wrapper"), [("momentum", 4, "pmap"), ("adam", 2, "jit")])
def test_resumed_is_uninterrupted(tmp_path, optimizer, devices, wrapper):
    """Every metric of every step, and every array of the last checkpoint, with the same number of devices."""
    s, loop = settings(optimizer), loop_of(optimizer, devices, wrapper)
    metrics, whole, _ = run(s, loop, tmp_path / "whole")
    parts = [run(s, loop, tmp_path / "cut", stop_at) for stop_at in (10, 24, None)]
    assert [part[0] for part in parts] == [None, None, metrics]
    assert [part[2] for part in parts] == [[], ["going on from step 12"], ["going on from step 26"]]
    resumed = {}
    for _, seen, _ in parts:
        for key in resumed.keys() & seen:  # a step done twice is the same twice
            np.testing.assert_array_equal(resumed[key], seen[key], err_msg=str(key))
        resumed |= seen
    assert resumed.keys() == whole.keys()
    for key in whole:
        np.testing.assert_array_equal(resumed[key], whole[key], err_msg=str(key))
    states = [load(tmp_path / name) for name in ("whole", "cut")]
    assert states[0][1]["step"] == states[1][1]["step"] == STEPS
    for a, b in zip(jax.tree.leaves(states[0][0]), jax.tree.leaves(states[1][0]), strict=True):
        np.testing.assert_array_equal(a, b)


def residual_cnn():
    """Running statistics and dropout, beside the optimizer's state."""
    config = default.get_config("residual_cnn")
    config.model.update(width=8, depth=2, norm="batch", dropout=0.1)
    config.parameterization.base_width, config.parameterization.base_depth = 8, 2
    config.sweep.update(depths=(2,), widths=(), optimizers=("sgd",), seeds=1)
    config.epochs, config.checkpoint.every = 0.5, "4 steps"
    return ConfigStudy(from_config(config))


@pytest.mark.parametrize(
    ("study_of", "count"),
    [
        (lambda: tiny.study(sweep__optimizers=("adam",), checkpoint__every="4 steps"), 10),  # two on a device
        (residual_cnn, 3),
    ],
)
def test_a_resumed_group_is_uninterrupted(tmp_path, study_of, count):
    """Rows, learning curves, to the last bit."""
    study = study_of()
    group = grouped(study, grid_trials(study), lambda program: count)[0]
    runner, stop, messages = Runner(), Stop(), []

    def ask(share):
        if share > 0.3:  # from step 4 of 11 on: the stop is met after step 8
            stop.requested = signal.SIGTERM

    whole = runner.train(group)
    kept = GroupCheckpoints(tmp_path, group, messages.append)
    with pytest.raises(Stopped, match="by SIGTERM at step 8: saved"):
        runner.train(group, ask, kept, stop)
    kept.close()
    kept = GroupCheckpoints(tmp_path, group, messages.append)
    again = runner.train(group, checkpoints=kept)
    kept.close()
    assert messages == ["going on from step 8"]
    assert [finished.row for finished in again] == [finished.row for finished in whole]
    for one, other in zip(again, whole, strict=True):
        assert one.curve.keys() == other.curve.keys()
        for name in one.curve:
            np.testing.assert_array_equal(one.curve[name], other.curve[name])


def test_another_number_of_devices(tmp_path):
    """What four devices saved, eight and one go on from; sums are then taken in another order."""
    s = settings()
    run(s, loop_of(devices=4), tmp_path / "4", 10)
    whole = run(s, loop_of(devices=4), tmp_path / "whole")[0]["loss"]
    for devices in (8, 1):
        shutil.copytree(tmp_path / "4", tmp_path / str(devices))
        metrics, _, messages = run(s, loop_of(devices=devices), tmp_path / str(devices))
        assert messages == ["going on from step 12"]
        np.testing.assert_allclose(metrics["loss"], whole, rtol=1e-4)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """(workdir with the last three checkpoints of a run, 24, 28 and 30; its metrics at the end)."""
    path = tmp_path_factory.mktemp("finished")
    return path, run(settings(), loop_of(), path, keep=3, best=0)[0]


@pytest.fixture
def copy(finished, tmp_path):
    shutil.copytree(finished[0], tmp_path / "copy")
    return tmp_path / "copy"


def shapes(optimizer="momentum"):
    return loop_of(optimizer).state_shapes([hyper_of(settings(optimizer))])


def restore(path, identity=None, like=None):
    """((step, state) or None, what was said)."""
    messages = []
    kept = checkpoints(path, identity, say=messages.append)
    try:
        restored = kept.restore(like or shapes())
        return restored and restored[:2], messages
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
def test_a_corrupt_checkpoint_is_never_used(copy, how):
    """Whatever befalls any one file of the newest: either it reads as it was written, or the one before is taken."""
    (_, expected), _ = restore(copy)
    backup = copy.parent / "backup"
    shutil.copytree(copy, backup)
    fell_back = 0
    for name in [f.relative_to(copy) for f in (copy / "checkpoints" / "30").rglob("*") if f.is_file()]:
        if not (copy / name).stat().st_size:
            continue
        damage(copy / name, how)
        (step, state), messages = restore(copy)
        if step == 30:
            for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(expected), strict=True):
                np.testing.assert_array_equal(a, b)
        else:
            assert step == 28
            assert "checkpoint 30 cannot be used, moved to" in messages[0]
            assert messages[1] == "going on from step 28"
            fell_back += 1
        shutil.rmtree(copy)
        shutil.copytree(backup, copy)
    assert fell_back >= 3


def test_what_was_changed_in_its_json_is_not_believed(copy):
    """A checkpoint that has become one of another config, without being less readable, is no reason to refuse."""
    meta = copy / "checkpoints" / "30" / "meta" / "metadata"
    text = meta.read_text()
    assert '"width": 16' in text
    meta.write_text(text.replace('"width": 16', '"width": 61'))
    restored, messages = restore(copy)
    assert restored[0] == 28
    assert "its JSON is not what was written" in messages[0]


def test_half_a_checkpoint_is_removed(copy):
    half = copy / "checkpoints" / "60.orbax-checkpoint-tmp" / "state"
    half.mkdir(parents=True)
    assert restore(copy)[0][0] == 30
    assert not half.parent.exists()


def test_a_run_goes_on_past_corrupt_checkpoints(finished, copy):
    """It falls back to the newest whole one, and ends as if nothing had been."""
    for step in ("28", "30"):
        files = [file for file in (copy / "checkpoints" / step).rglob("*") if file.is_file()]
        damage(max(files, key=lambda file: file.stat().st_size), "changed")
    metrics, seen, messages = run(settings(), loop_of(), copy)
    assert min(step for step, _ in seen) == 26
    assert [text.split(",")[0] for text in messages] == [
        "checkpoint 30 cannot be used",
        "checkpoint 28 cannot be used",
        "going on from step 24",
    ]
    assert sorted(path.name for path in (copy / "unusable_checkpoints").iterdir()) == ["28", "30"]
    assert metrics == finished[1]


def test_another_run_is_refused(copy):
    with pytest.raises(
        WorkdirError, match=r"checkpoint of another run: model.width was 16, now it is 32. Give another"
    ):
        restore(copy, {"model": {"width": 32}})
    with pytest.raises(WorkdirError, match=r"another model: opt_state/\S+ was (not there|float32)"):
        restore(copy, like=shapes("adam"))

    def other(params):
        state = shapes()
        return state._replace(params=jax.tree.map(params, state.params))

    wider = other(lambda leaf: jax.ShapeDtypeStruct((*leaf.shape[:-1], 2 * leaf.shape[-1]), leaf.dtype))
    with pytest.raises(
        WorkdirError, match=r"params/blocks/dense/kernel was float32 \(1, 2, 16, 16\), now it is float32"
    ):
        restore(copy, like=wider)
    with pytest.raises(WorkdirError, match="now it is float16"):
        restore(copy, like=other(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, np.float16)))
    assert sorted(os.listdir(copy / "checkpoints")) == ["24", "28", "30"]


def test_the_best_and_the_last_are_kept(tmp_path):
    kept = checkpoints(tmp_path, keep=2, best=1)
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
    messages = []
    (tmp_path / "run").write_text("in the way")
    kept = checkpoints(tmp_path / "run", say=messages.append)
    for step in (1, 2):
        kept.save(step, {"w": np.zeros((1,))})
        assert messages[-1].startswith(
            f"checkpoint {step} could not be written; there is none yet, and training goes on. NotADirectoryError"
        )
    (tmp_path / "run").unlink()
    kept.save(3, {"w": np.zeros((1,))})
    assert kept.has(3)
    assert kept.steps() == [3]
    assert len(messages) == 2
    kept.close()


def test_a_workdir_that_is_deleted(tmp_path):
    """The run ends at the next save."""
    kept = checkpoints(tmp_path / "run")
    kept.save(1, {"w": np.zeros((1,))})
    kept.wait()
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(WorkdirError, match=r"checkpoints is gone, and with it .* starts over"):
        kept.save(2, {"w": np.zeros((1,))})


@pytest.mark.parametrize("failures", [1, 2])
def test_the_last_metrics_are_tried_twice(tmp_path, monkeypatch, capsys, failures):
    """Then they are printed, so that nothing is lost; with room the same command saves them."""
    s, tries, write = settings(), [], run_module.write_atomically

    def full(path, content):
        tries.append(path)
        if len(tries) <= failures:
            raise OSError(28, "No space left on device")
        write(path, content)

    monkeypatch.setattr(run_module, "PAUSE", 0.0)
    monkeypatch.setattr(run_module, "write_atomically", full)
    if failures == 1:
        metrics = run_module.train_network(s, tmp_path)
    else:
        with pytest.raises(WorkdirError, match=r"the metrics above are not saved \(.*No space left on device\): with"):
            run_module.train_network(s, tmp_path)
        assert "test_loss " in capsys.readouterr().out
        metrics = run_module.train_network(s, tmp_path)
    assert json.loads((tmp_path / "metrics.json").read_text())["metrics"] == metrics
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["test_loss"] for row in rows if "test_loss" in row] == [metrics["test_loss"]]


def test_a_stop_without_checkpoints_says_so():
    s, stop = settings(), Stop()
    stop.requested = signal.SIGTERM
    with pytest.raises(Stopped, match="stopped by SIGTERM at step 2: these steps are not saved"):
        train_loop(s, loop_of(), hyper_of(s), lambda step, metrics: None, None, stop)


def test_a_stop_saves(tmp_path):
    """Though no checkpoint is due."""
    metrics, seen, _ = run(settings(checkpoint__every="1000 steps"), loop_of(), tmp_path, 4)
    assert metrics is None
    assert load(tmp_path)[1]["step"] == max(step for step, _ in seen) <= 8


def test_a_run_saves_its_best_state_and_its_last(tmp_path):
    """At evaluations, though no checkpoint is due; and it ends where it diverges, at that step."""
    s = settings(checkpoint__every="1000 steps", evaluate_every="16 steps")
    run(s, loop_of(), tmp_path / "run")
    assert sorted(os.listdir(tmp_path / "run" / "checkpoints")) == ["16", str(STEPS)]
    with pytest.raises(Diverged, match="at step 1 the loss is"):
        run(settings(optimizer__learning_rate=1e30), loop_of(), tmp_path / "diverges")


def test_an_evaluation_makes_no_later_state_the_best(tmp_path):
    """Room for two best states is filled at evaluations alone, though the loss of the last one would be among them."""
    s = settings(checkpoint__every="1000 steps", evaluate_every="16 steps")
    run(s, loop_of(), tmp_path, keep=20, best=2)
    assert sorted(os.listdir(tmp_path / "checkpoints")) == ["16", str(STEPS)]


def test_checkpoints_by_the_clock(tmp_path, monkeypatch):
    """One is due so many seconds after the last, whenever that was; a run writes it at its next report."""
    now = [0.0]
    clock = types.SimpleNamespace(monotonic=lambda: now[0], sleep=time.sleep)
    monkeypatch.setattr("depthmup.train.checkpoint.time", clock)
    kept = checkpoints(tmp_path / "one", seconds=60.0)
    for seconds, due in ((59.0, False), (1.0, True)):
        now[0] += seconds
        assert kept.overdue() == due
    kept.save(3, {"w": np.zeros((1,))})
    now[0] += 59.0
    assert not kept.overdue()
    kept.close()
    run(settings(checkpoint__every="1 minutes", evaluate_every="never"), loop_of(), tmp_path / "never", seconds=60.0)
    assert os.listdir(tmp_path / "never" / "checkpoints") == ["30"]
    run(settings(checkpoint__every="1 minutes"), loop_of(), tmp_path / "always", 10, seconds=0.0, best=0)
    assert sorted(os.listdir(tmp_path / "always" / "checkpoints")) == ["10", "12"]


def test_meta_says_what_it_is(finished):
    meta = load(finished[0])[1]
    assert meta["step"] == 30
    assert meta["identity"] == {"model": {"width": 16}}
    assert {"jax", "flax", "optax", "orbax-checkpoint"} <= set(meta["versions"])
    assert meta["arrays"]["params/read_in/kernel"]["shape"] == [1, 64, 16]
    assert json.dumps(meta)
    assert not list(finished[0].glob("checkpoints/*tmp*"))


def test_intervals():
    assert tiny.settings(checkpoint__every="5 steps").checkpoint.every.steps(22) == 5
    assert tiny.settings(checkpoint__every="0.5 epochs").checkpoint.every.steps(22) == 11
    assert tiny.settings(checkpoint__every="2 minutes").checkpoint.every.seconds == 120
    assert tiny.settings(checkpoint__every="never").checkpoint.every.steps(22) is None
