"""Sweeps with an executor: workers and callers killed, on Slurm, under MPI; rows as if left alone."""

import importlib.util
import os
import random
import shutil
import signal
import subprocess
import threading
import time

import pytest

from depthmup.trials.engine import train
from depthmup.trials.executors import Local
from depthmup.trials.store import load
from tests import tiny
from tests.torture import ROOT, SWEEP, finish, kill_sweep_until_done, start, sweep_outcome, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # each starts processes
KILLS = 30
LONG = dict(sweep__optimizers=("sgd",), sweep__widths=(), sweep__at_once=6, epochs=8)
needs_dask = pytest.mark.skipif(not importlib.util.find_spec("distributed"), reason="distributed is not installed")
needs_slurm = pytest.mark.skipif(
    not (shutil.which("slurmctld") and shutil.which("munged") and importlib.util.find_spec("dask_jobqueue"))
    or os.getuid() != 0,
    reason="slurm-wlm, munge or dask-jobqueue is not installed, or this is not root",
)
needs_mpi = pytest.mark.skipif(
    not (shutil.which("mpiexec") and importlib.util.find_spec("mpi4py")),
    reason="openmpi-bin or mpi4py is not installed",
)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("alone")
    assert finish(start(workdir, job=SWEEP))[0] == 0
    return sweep_outcome(workdir)


def train_while_killed(folder, executor, pids):
    """Kill a worker at random moments, KILLS times in all, over as many sweeps as that takes: the number of kills."""
    expected, rng, kills, over = train(tiny.study(**LONG), folder / "alone", progress=False), random.Random(0), 0, False

    def kill():
        nonlocal kills
        while not over and kills < KILLS:
            time.sleep(rng.uniform(0, 4))
            if running := pids():
                os.kill(rng.choice(running), signal.SIGKILL)
                kills += 1

    killer, number = threading.Thread(target=kill), 0
    killer.start()
    try:
        while kills < KILLS:
            workdir, number = folder / str(number), number + 1
            rows = train(tiny.study(**LONG), workdir, executor=executor, retries=KILLS, progress=False)
            assert rows == expected
            assert len(load(workdir)) == len(expected)
            assert not list(workdir.glob("unfinished/*"))
    finally:
        over = True
        killer.join()
    return kills


def test_local_workers_are_killed(tmp_path):
    executor = Local(3)
    try:
        pids = lambda: [p.pid for p in executor._processes.values() if p.is_alive()]  # noqa: E731
        assert train_while_killed(tmp_path, executor, pids) == KILLS
    finally:
        executor.shutdown(cancel_futures=True)


@needs_dask
def test_dask_workers_are_killed(tmp_path):
    import dask
    from distributed import Client, LocalCluster

    dask.config.set({"distributed.deploy.lost-worker-timeout": "1 hour"})  # while it is started again
    cluster = LocalCluster(n_workers=3, threads_per_worker=1, dashboard_address=None, local_directory=tmp_path / "dask")

    def pids():
        """Of workers that have begun: Dask gives up one that dies while it starts."""
        begun = {worker.nanny for worker in list(cluster.scheduler.workers.values())}
        return [nanny.pid for nanny in cluster.workers.values() if nanny.worker_address and nanny.address in begun]

    with cluster, Client(cluster) as client:
        assert train_while_killed(tmp_path, client.get_executor(), pids) == KILLS


def test_processes_that_share_a_folder_are_killed(alone, tmp_path):
    """Each that is killed is started again."""
    rng, kills, number = random.Random(0), 0, 0
    while kills < KILLS:
        workdir, number = tmp_path / str(number), number + 1
        processes = [start(workdir, job=SWEEP) for _ in range(3)]
        while kills < KILLS and any(process.poll() is None for process in processes):
            time.sleep(rng.uniform(0, 6))
            place = rng.randrange(3)
            if processes[place].poll() is None:
                processes[place].kill()
                processes[place].communicate()
                processes[place], kills = start(workdir, job=SWEEP), kills + 1
        results = [finish(process) for process in processes]
        assert [status for status, _ in results] == [0] * 3, results
        assert sweep_outcome(workdir) == alone


def test_the_caller_is_killed(alone, tmp_path):
    rng = random.Random(0)
    kill_sweep_until_done(tmp_path, 3, rng, [*SWEEP, "--executor=local", "--workers=2"])
    assert sweep_outcome(tmp_path) == alone


@needs_mpi
def test_mpi(alone, tmp_path):
    before = ("mpiexec", "--allow-run-as-root", "--oversubscribe", "-n", "3")
    status, output = finish(start(tmp_path, "--executor=mpi", before=before, job=SWEEP))
    assert status == 0, output
    assert sweep_outcome(tmp_path) == alone


@pytest.fixture
def slurm(tmp_path):
    """(call a command of a real Slurm, the folder of its daemons)"""
    folder = tmp_path / "daemons"
    environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}

    def call(*command):
        return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.split()

    subprocess.run(["bash", ROOT / "tests" / "slurm.sh", "start", folder], check=True, stdout=subprocess.DEVNULL)
    yield call, folder
    subprocess.run(["bash", ROOT / "tests" / "slurm.sh", "stop", folder], check=True, stdout=subprocess.DEVNULL)


@needs_slurm
def test_slurm(alone, slurm, tmp_path):
    """A job is cancelled, the controller is killed and started again, and each job runs out of its minute."""
    call, folder = slurm
    job = "--slurm=walltime=00:01:00,cores=1,memory=2GB,interface=lo"
    before = ("env", f"SLURM_CONF={folder / 'slurm.conf'}")
    process = start(tmp_path / "sweep", "--executor=slurm", job, "--workers=2", before=before, job=SWEEP)
    wait_for(process, "to go")
    call("scancel", call("squeue", "-h", "-t", "R", "-o", "%i")[0])
    controller = int((folder / "slurmctld.pid").read_text())
    os.kill(controller, signal.SIGKILL)
    time.sleep(5)
    call("slurmctld")
    status, output = finish(process)
    assert status == 0, output
    assert sweep_outcome(tmp_path / "sweep") == alone
    assert len(list((tmp_path / "sweep" / "jobs").glob("*.out"))) > 2
