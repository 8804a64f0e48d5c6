"""Rows of metrics, files that are whole or not there, and the count of operations."""

import errno
import io
import json
import os
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from depthmup.files import first_difference, write_atomically
from depthmup.models.convolution import conv_general_dilated
from depthmup.train import flops
from depthmup.train.log import MetricsFile, RunLog
from depthmup.train.stop import Stop
from depthmup.train.workdir import Workdir, WorkdirError


@pytest.fixture
def log(tmp_path, monkeypatch):
    """A function: (first step) -> a log of a run of 40 steps, on a clock that goes a second at every look."""
    clock = iter(range(1000))
    monkeypatch.setattr("depthmup.train.log.time.perf_counter", lambda: float(next(clock)))
    waited = iter(np.arange(0, 1000, 0.25))

    def make(peak=1e6):
        options = dict(steps=40, batch_size=8, steps_per_epoch=20, devices=2, flops=2e4, peak=peak)
        return RunLog(tmp_path, **options, waited=lambda: float(next(waited)))

    return make


def window(loss, steps=10):
    return {"loss": np.full((1, steps), loss), "learning_rate": np.linspace(1, 0.1, steps)[None]}


def rows(tmp_path):
    return [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]


def test_rows(log, tmp_path, capsys):
    one = log()
    one(10, window(2.0))
    one(20, window(np.nan))
    one(20, {"validation_loss": np.array([1.5]), "validation_accuracy": np.array([0.5])})
    one.finished({"loss": 1.0, "test_loss": 1.1})
    one.close()
    first, second, evaluation, final = rows(tmp_path)
    assert first == {"step": 10, "epoch": 0.5, "loss": 2.0, "learning_rate": 0.1}
    expected = {"examples_per_second": 80.0, "examples_per_second_per_device": 40.0, "input_wait": 0.25, "mfu": 0.1}
    assert second == {"step": 20, "epoch": 1.0, "loss": None, "learning_rate": 0.1, **expected}
    assert evaluation == {"step": 20, "validation_loss": 1.5, "validation_accuracy": 0.5}
    assert final == {"step": 40, "loss": 1.0, "test_loss": 1.1}
    assert "step 20/40: loss nan, 80 examples/s" in capsys.readouterr().out


def test_rows_that_come_again(log, tmp_path):
    """A run that goes on from step 10 drops what came after, and an end that was not the end; half a line too."""
    one = log()
    for step in (10, 20, 30):
        one(step, window(2.0))
    one.finished({"loss": 1.0, "test_loss": 1.1})
    one.close()
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"step": 40, "lo')
    again = log(peak=None)
    again(20, window(3.0))
    again(30, window(3.0))
    again.finished({"loss": 1.5, "test_loss": 1.6})
    again.close()
    assert [(row["step"], row["loss"]) for row in rows(tmp_path)] == [(10, 2.0), (20, 3.0), (30, 3.0), (40, 1.5)]
    assert "mfu" not in rows(tmp_path)[-2]
    once_more = log()
    once_more.finished({"loss": 1.5, "test_loss": 1.6})
    once_more.close()
    assert [row["step"] for row in rows(tmp_path)] == [10, 20, 30, 40]


class Disk:
    """Stands in for `open`: files that take seven bytes at once, and where the disk is full no more than five."""

    full = False

    def open(self, path, mode, buffering):
        disk = self

        class File(io.FileIO):
            def write(self, content):
                if disk.full:
                    super().write(content[:5])
                    raise OSError(28, "No space left on device")
                return super().write(content[:7])

        return File(path, mode)


def test_a_row_that_cannot_be_written(log, tmp_path, monkeypatch, capsys):
    """It is said to be lost; nothing of it is in the file, and the next one is."""
    disk = Disk()
    monkeypatch.setattr("depthmup.train.log.open", disk.open, raising=False)
    one = log()
    for step, disk.full in ((10, False), (20, True), (30, False)):
        one(step, window(2.0))
    one.close()
    assert [row["step"] for row in rows(tmp_path)] == [10, 30]
    assert "the row of step 20 is lost: [Errno 28] No space left on device" in capsys.readouterr().out


def test_a_file_of_metrics(tmp_path):
    """A cut-off last line is removed; another line that is no row is an error, and stays."""
    path = tmp_path / "metrics.jsonl"
    for line in ("nonsense", '{"loss": 1}', "[1]"):
        path.write_text(f'{{"step": 1}}\n{line}\n{{"step": 2}}\n')
        with pytest.raises(WorkdirError, match="line 2 is not JSON of a step: delete that line"):
            MetricsFile(path)
        assert line in path.read_text()
    for tail in ('{"step": 2', "\0\0\0\0"):
        path.write_text('{"step": 1}\n' + tail)
        file = MetricsFile(path)
        file.append({"step": 2, "loss": float("inf")})
        file.keep(lambda row: row["step"] > 1)
        file.append({"step": 3})
        file.close()
        assert path.read_text() == '{"step": 2, "loss": null}\n{"step": 3}\n'


def test_write_atomically_leaves_the_old(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_atomically(path, "old")

    def full(self, content):
        self.touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.write_bytes", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, "new")
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("file", "old")]


def test_a_file_system_without_locks(tmp_path, monkeypatch):
    """It is named, with what to do; one that grants every lock is used, and the workdir says so."""
    both = [Workdir(tmp_path, {}, "results", shared=True) for _ in range(2)]
    assert [workdir.messages for workdir in both] == [[], []]
    for workdir in both:
        workdir.close()
    for number in (errno.ENOLCK, errno.ENOSYS):

        def refused(file, operation, number=number):
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr("fcntl.flock", refused)
        with pytest.raises(WorkdirError, match=r"^\S+ lies on a file system without locks \(.*\): give a .+$"):
            Workdir(tmp_path, {}, "results")
    monkeypatch.setattr("fcntl.flock", lambda file, operation: None)
    workdir = Workdir(tmp_path, {}, "results")
    workdir.close()
    assert ["let one process at a time use it" in message for message in workdir.messages] == [True]


def test_workdir(tmp_path):
    settings = {"model": {"width": 16, "sizes": (1, 2)}}
    first = Workdir(tmp_path, settings, "results")
    with pytest.raises(WorkdirError, match=r"in use by another process: .* need --distributed"):
        Workdir(tmp_path, settings, "results")
    first.close()
    Workdir(tmp_path, settings, "results").close()
    with pytest.raises(WorkdirError, match=r"another config: model.width was 16, now it is 32"):
        Workdir(tmp_path, {"model": {"width": 32, "sizes": (1, 2)}}, "results")
    assert first_difference({"a": 1}, {"a": 1, "b": 2}) == "b was 'nothing', now it is 2"
    assert first_difference({"a": 1, "b": 2}, {"a": 1}) == "b was 2, now it is 'nothing'"
    assert first_difference({"a": {"b": 1}}, {"a": {"b": 1}}) == ""
    old, new = "3 files, ab", "3 files, ab, contents cd"
    assert first_difference({"a": old}, {"a": new}) == ""  # names and sizes are equal: all that the old one knows
    assert first_difference({"a": new}, {"a": f"{old}, contents ce"}).startswith("a was '3 files, ab, contents cd'")
    assert first_difference({"a": old}, {"a": "4 files, ab, contents cd"}).startswith("a was '3 files, ab'")
    other = tmp_path / "other"
    (other / "results").mkdir(parents=True)
    with pytest.raises(WorkdirError, match=r"holds results but no settings.json"):
        Workdir(other, settings, "results")


def test_operations():
    """A product is 2mnk; scanned blocks count as often as they run, a gradient costs two products more."""
    x, w = jax.ShapeDtypeStruct((5, 7), np.float32), jax.ShapeDtypeStruct((7, 7), np.float32)
    product = 2 * 5 * 7 * 7
    assert flops.count_operations(jnp.dot, x, w) == product

    def stack(x, w):
        return jax.lax.scan(lambda h, _: (jnp.tanh(h @ w), None), x, length=6)[0].sum()

    assert flops.count_operations(stack, x, w) == 6 * product
    assert flops.count_operations(jax.jit(jax.grad(stack, argnums=(0, 1))), x, w) == 3 * 6 * product

    def experts(x, w):
        return jax.lax.ragged_dot(x, w, jnp.array([2, 3]))

    weights = jax.ShapeDtypeStruct((2, 7, 7), np.float32)
    assert flops.count_operations(experts, x, weights) == product
    gradient = jax.grad(lambda x, w: (experts(x, w) ** 2).sum(), argnums=(0, 1))
    assert flops.count_operations(gradient, x, weights) == 3 * product
    conv = nn.Conv(4, (3, 3), use_bias=False, feature_group_count=2)
    images = jax.ShapeDtypeStruct((2, 8, 8, 6), np.float32)
    params = jax.eval_shape(conv.init, jax.random.key(0), images)
    assert flops.count_operations(conv.apply, params, images) == 2 * (2 * 8 * 8 * 4) * (3 * 3 * 3)
    depthmup_conv = nn.Conv(4, (3, 3), use_bias=False, conv_general_dilated=conv_general_dilated)
    params = jax.eval_shape(depthmup_conv.init, jax.random.key(0), images)
    forward = 2 * (2 * 8 * 8 * 4) * (3 * 3 * 6)
    assert flops.count_operations(depthmup_conv.apply, params, images) == forward
    both = jax.grad(lambda params, images: depthmup_conv.apply(params, images).sum(), argnums=(0, 1))
    assert flops.count_operations(both, params, images) == 3 * forward
    branches = (lambda x: (x[:1] @ x.T).sum(), lambda x: (x @ x.T).sum())
    assert flops.count_operations(lambda x: jax.lax.cond(x[0, 0] > 0, *branches, x), x) == 2 * 5 * 5 * 7


def test_stop():
    """The first signal is a request, a second Ctrl-C an interruption; afterwards all is as before."""
    before = signal.getsignal(signal.SIGTERM)
    with Stop() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.requested == signal.SIGTERM
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGTERM) == before
