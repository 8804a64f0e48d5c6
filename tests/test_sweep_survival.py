"""Sweeps as a user starts them: killed, two at a time, on a Ray cluster that loses a machine; rows as if left alone."""

import json
import os
import random
import subprocess
import sys

import pytest
from pyarrow import parquet

from depthmup import sweep
from tests import tiny
from tests.torture import ROOT, SWEEP, finish, kill_sweep_until_done, start, sweep_outcome

ON_RAY = """
import sys, threading, time
from pathlib import Path

import psutil
import ray
from ray.cluster_utils import Cluster

from depthmup import sweep
from tests import tiny

workdir = Path(sys.argv[1])
cluster = Cluster(initialize_head=True, head_node_args=dict(num_cpus=0, include_dashboard=False))
machines = [cluster.add_node(num_cpus=1) for _ in range(2)]
ray.init(address=cluster.address, log_to_driver=False)

def finished():
    return len(list(workdir.glob("groups/*.parquet")))

def lose_one():
    while finished() < 2:
        time.sleep(0.05)
    busy = []
    while not busy:
        busy = [p for p in psutil.process_iter(["cmdline"]) if (p.info["cmdline"] or [""])[0] == "ray::_train"]
    busy[0].kill()  # a worker in the middle of a group, and then a machine
    cluster.remove_node(machines[1], allow_graceful=False)
    print("lost a machine at", finished(), "groups", flush=True)

threading.Thread(target=lose_one, daemon=True).start()
rows = sweep.train(tiny.settings(**{settings!r}), workdir, launcher="ray")
print("ended with", len(rows), "rows", flush=True)
"""

pytestmark = pytest.mark.slow  # each starts processes


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """(outcome, output) of a sweep that was left alone."""
    workdir = tmp_path_factory.mktemp("alone")
    status, output = finish(start(workdir, job=SWEEP))
    assert status == 0, output
    return sweep_outcome(workdir), output


def test_kills(alone, tmp_path):
    seed = random.randrange(10**6)
    happened = kill_sweep_until_done(tmp_path, 2, random.Random(seed))
    assert sweep_outcome(tmp_path) == alone[0], f"seed {seed}: {happened}"
    assert not (tmp_path / "unfinished").exists()
    assert "228 trials, 2 programs, " in alone[1]
    assert "228 trials in " in alone[1]


def test_two_processes_share_the_work(alone, tmp_path):
    """None repeats what the other does, and both report on all of it."""
    processes = [start(tmp_path, job=SWEEP) for _ in range(2)]
    results = [finish(process) for process in processes]
    assert [status for status, _ in results] == [0, 0], results
    assert sweep_outcome(tmp_path) == alone[0]
    assert all("228 trials in" in output for _, output in results)
    groups = [parquet.read_metadata(path).num_rows for path in (tmp_path / "groups").iterdir()]
    assert groups == [19] * 12  # each trained once
    assert not list((tmp_path / "claims").glob("*.json"))


def test_a_ray_cluster_that_loses_a_machine(tmp_path):
    """Two machines of one worker each, one killed: nothing lost, nothing twice, bit for bit as here."""
    settings = dict(sweep__depths=(2, 4), sweep__widths=(), sweep__optimizers=("sgd",), sweep__at_once=8, epochs=20.0)
    program = ON_RAY.replace("{settings!r}", repr(settings))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"}
    command = [sys.executable, "-c", program, str(tmp_path / "ray")]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    lost = int(done.stdout.split("lost a machine at ")[1].split()[0])
    assert 2 <= lost < 10
    assert "ended with 72 rows" in done.stdout
    here = sweep.train(tiny.settings(**settings), tmp_path / "here", progress=False)
    lines = (tmp_path / "ray" / "results.jsonl").read_text().splitlines()
    assert len(lines) == 72
    there = {row["key"]: row for row in map(json.loads, lines)}
    assert there == {row["key"]: row for row in here}
