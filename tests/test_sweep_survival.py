"""Sweeps as a user starts them: killed, two at a time; rows as if left alone."""

import random

import pytest
from pyarrow import parquet

from tests.torture import SWEEP, finish, kill_sweep_until_done, start, sweep_outcome

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
