"""Runs as a user starts them: killed, stopped, out of disk space, over two processes; they end as if left alone."""

import json
import random
import re
import shutil
import signal
import socket
import subprocess
import sys

import numpy as np
import pytest

from depthmup.train.checkpoint import load
from depthmup.train.run import train_network
from tests import tiny
from tests.torture import ARGUMENTS, EVERY, ROOT, finish, kill_until_done, outcome, start, wait_for

slow = pytest.mark.slow  # each starts processes


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """(outcome, output) of a run that was left alone."""
    workdir = tmp_path_factory.mktemp("alone")
    status, output = finish(start(workdir))
    assert status == 0, output
    return outcome(workdir), output


@slow
def test_kills(alone, tmp_path):
    seed = random.randrange(10**6)
    happened = kill_until_done(tmp_path, 2, random.Random(seed))
    assert outcome(tmp_path) == alone[0], f"seed {seed}: {happened}"
    assert all(kill.step - kill.went_on < 3 * EVERY for kill in happened), f"seed {seed}: {happened}"
    assert not list((tmp_path / "checkpoints").glob("*tmp*"))


@slow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_saves(alone, tmp_path, number, status):
    """At the next report: the state is saved, the way to go on is said, and that goes on."""
    process = start(tmp_path)
    wait_for(process, "step 60")
    process.send_signal(number)
    code, output = finish(process)
    assert code == status
    step = load(tmp_path)[1]["step"]
    assert f"stopped by {number.name} at step {step}: saved, the same command goes on from there" in output
    if number == signal.SIGTERM:
        code, output = finish(start(tmp_path))
        assert code == 0
        assert f"going on from step {step}" in output
        assert outcome(tmp_path) == alone[0]
    else:
        code, output = finish(start(tmp_path, "--config.parameterization.name=mup"))
        assert code == 2
        assert "error: " in output
        assert "parameterization.name was 'depth_mup', now it is 'mup'. Give another --workdir" in output


@slow
def test_a_full_disk(alone, tmp_path):
    """No file may exceed 9 KB: every checkpoint fails, and nothing is left half written. The second ends the run, or
    by a setting none does: then each is said in a line, and rows of metrics are lost from some step on. With room again
    the same command starts from what is whole."""
    limited = ("bash", "-c", 'ulimit -f 9; exec "$@"', "limited")
    code, output = finish(start(tmp_path, before=limited))
    assert code == 1, output
    assert "step 40/" not in output
    assert re.search(r"^error: 2 checkpoints in a row could not be written to .*; there is none yet", output, re.M)
    code, output = finish(start(tmp_path, "--config.checkpoint.failures=0", before=limited))
    assert code == 0, output
    assert "checkpoint 10 could not be written; there is none yet, and training goes on" in output
    assert "File too large" in output
    assert "metrics.jsonl: the row of step" in output
    assert not list((tmp_path / "checkpoints").iterdir())
    assert json.loads((tmp_path / "metrics.json").read_text())["metrics"] == alone[0][0]
    for line in (tmp_path / "metrics.jsonl").read_text().splitlines():
        json.loads(line)
    assert finish(start(tmp_path))[0] == 0
    assert outcome(tmp_path) == alone[0]


def test_a_divergence_names_the_last_good_checkpoint(tmp_path, capsys):
    for name, rate, every, message, step in (
        ("none", 1e30, "10 minutes", "there is no checkpoint; lower the learning rate", 1),
        ("one", 1e4, "1 steps", "the last good checkpoint is that of step 2; lower the learning rate", 2),
    ):
        diverging = {"optimizer__name": "sgd", "optimizer__learning_rate": rate, "log_every": 1}
        metrics = train_network(
            tiny.settings(**diverging, checkpoint__every=every, evaluate_every="never"), tmp_path / name
        )
        output = capsys.readouterr().out
        assert metrics == {"diverged": True, "diverged_at_step": step}, output
        assert f"diverged: at step {step} the loss is" in output
        assert message in output
        assert json.loads((tmp_path / name / "metrics.json").read_text())["metrics"] == metrics


def free_port():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


def run_processes(workdirs, *arguments):
    """Processes over loopback, one for each workdir, with a device for each core: what each did and said."""
    joined = [f"--coordinator=127.0.0.1:{free_port()}", "--distributed", f"--processes={len(workdirs)}"]
    return [start(workdir, *joined, f"--process={i}", *arguments) for i, workdir in enumerate(workdirs)]


def assert_alike(distributed, alone):
    """The first ten steps of another order of summing, and the end."""
    (metrics, rows), (expected, alone_rows) = distributed, alone
    assert [row["step"] for row in rows] == [row["step"] for row in alone_rows]
    for name in ("loss", "grad_norm"):
        np.testing.assert_allclose(rows[0][name], alone_rows[0][name], rtol=1e-5)
    np.testing.assert_allclose(metrics["validation_loss"], expected["validation_loss"], rtol=0.1)


@slow
def test_two_processes_are_one(alone, tmp_path):
    """Each reads its part of a batch, the first writes. A stop asked of the second stops both, and they go on."""
    processes = run_processes([tmp_path] * 2)
    wait_for(processes[0], "step 60")
    processes[1].send_signal(signal.SIGTERM)
    (first, second) = [finish(process) for process in processes]
    assert (first[0], second[0]) == (143, 143), first[1] + second[1]
    step = load(tmp_path)[1]["step"]
    assert f"at step {step}: saved" in first[1]
    assert "step 60/660" not in second[1]
    results = [finish(process) for process in run_processes([tmp_path] * 2)]
    assert [code for code, _ in results] == [0, 0], results
    assert f"going on from step {step}" in results[0][1]
    assert_alike(outcome(tmp_path), alone[0])


@slow
def test_two_processes_by_jit(alone, tmp_path):
    results = [finish(process) for process in run_processes([tmp_path] * 2, "--config.parallel.wrapper=jit")]
    assert [code for code, _ in results] == [0, 0], results
    assert_alike(outcome(tmp_path), alone[0])


# Four devices in a process, on a machine of any number of cores.
FOUR = (
    "from depthmup import backend; backend.cores = lambda: 4; "
    "import runpy; runpy.run_path('main.py', run_name='__main__')"
)


@slow
def test_two_processes_share_a_state(alone, tmp_path):
    """Each of two has a part of it, in four devices. What they save when one is stopped goes on over another mesh, and
    on one device."""

    def run_mesh(mesh):
        address = f"--coordinator=127.0.0.1:{free_port()}"
        arguments = ["--distributed", "--processes=2", "--config.parallel.wrapper=jit", address]
        job = ["-c", FOUR, *ARGUMENTS, f"--workdir={tmp_path / 'mesh'}", *arguments, f"--config.parallel.mesh={mesh}"]
        command = [sys.executable, *job]
        return [
            subprocess.Popen([*command, f"--process={i}"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            for i in range(2)
        ]

    processes = run_mesh("fsdp=8")
    wait_for(processes[0], "step 60")
    processes[1].send_signal(signal.SIGTERM)
    (first, second) = [finish(process) for process in processes]
    assert (first[0], second[0]) == (143, 143), first[1] + second[1]
    shutil.copytree(tmp_path / "mesh", tmp_path / "one")
    results = [finish(process) for process in run_mesh("data=2,fsdp=4")]
    assert [code for code, _ in results] == [0, 0], results
    assert "going on from step" in results[0][1]
    assert_alike(outcome(tmp_path / "mesh"), alone[0])
    code, output = finish(start(tmp_path / "one"))
    assert code == 0, output
    assert_alike(outcome(tmp_path / "one"), alone[0])


@slow
def test_eight_processes_are_one(tmp_path):
    """Each reads its eighth of every batch and of every split. The first alone writes: metrics and checkpoints."""
    short = ("--config.epochs=1", "--config.evaluate_every=11 steps")
    code, output = finish(start(tmp_path / "alone", *short))
    assert code == 0, output
    workdirs = [tmp_path / f"process_{i}" for i in range(8)]
    results = [finish(process) for process in run_processes(workdirs, *short)]
    assert [code for code, _ in results] == [0] * 8, results
    assert_alike(outcome(workdirs[0]), outcome(tmp_path / "alone"))
    assert load(workdirs[0])[1]["step"] == 22
    assert not [workdir for workdir in workdirs[1:] if workdir.exists()]
    assert not any("step " in output for _, output in results[1:])
