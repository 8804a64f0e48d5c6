"""Sweeps whose groups an executor's workers train: the rows of one process, bit for bit."""

import importlib
import importlib.util
import itertools
import json
import multiprocessing
import re
import signal
import sys
import threading
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor

import jax.numpy as jnp
import numpy as np
import pytest

import depthmup as dm
from depthmup.settings import SettingsError
from depthmup.train.stop import Stopped
from depthmup.train.workdir import WorkdirError
from depthmup.trials import executors, remote, workers
from depthmup.trials.engine import train
from depthmup.trials.executors import Flags, Local, check_scheduler, executor_of
from depthmup.trials.group import OutOfMemory, Runner
from depthmup.trials.plan import grid_trials
from depthmup.trials.store import Store
from depthmup.trials.workers import WorkersLost
from tests import tiny

SMALL = dict(sweep__optimizers=("sgd",), sweep__widths=(), sweep__at_once=9)
needs_dask = pytest.mark.skipif(not importlib.util.find_spec("distributed"), reason="distributed is not installed")


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Rows of one process."""
    return train(tiny.study(**SMALL), tmp_path_factory.mktemp("alone"), progress=False)


@pytest.fixture
def threads():
    with ThreadPoolExecutor(2) as executor:
        yield executor


def run(workdir, executor, **options):
    return train(tiny.study(**SMALL), workdir, executor=executor, progress=False, **options)


def kept(workdir):
    return [json.loads(line)["key"] for line in (workdir / "results.jsonl").read_text().splitlines()]


class Losing(Executor):
    """Its workers are lost as often as `lost` says for each call."""

    def __init__(self, executor, lost):
        self.executor, self.lost, self.calls = executor, lost, []

    def submit(self, function, /, *arguments):
        self.calls.append(arguments[2:])
        if self.calls.count(arguments[2:]) > self.lost:
            return self.executor.submit(function, *arguments)
        future = Future()
        future.set_exception(ConnectionError("gone"))
        return future


def test_threads(alone, threads, tmp_path):
    assert run(tmp_path, threads) == alone
    assert sorted(kept(tmp_path)) == sorted(row["key"] for row in alone)
    assert not (tmp_path / remote.SENT).exists()
    assert run(tmp_path, None) == alone


def model():
    def forward(params, x):
        h = x @ params["first"]
        for block in params["blocks"]:
            h = h + jnp.tanh(h @ block)
        return h @ params["head"]

    def make(width, depth, key):
        normal = np.random.default_rng(0).normal
        blocks = [jnp.asarray(normal(size=(width, width)) / width**0.5, jnp.float32) for _ in range(depth)]
        ends = {"first": normal(size=(6, width)), "head": normal(size=(width, 4)) / width**0.5}
        return {"blocks": blocks, **{name: jnp.asarray(value, jnp.float32) for name, value in ends.items()}}

    inputs = jnp.zeros((2, 6))
    return dm.setup("mup", make, inputs, width=8, depth=1, base=(8, 1), call=forward, fan_in_init=False)


def test_a_model_of_ones_own_in_processes(tmp_path, monkeypatch):
    """Its functions go by value, though no worker could import them; its arrays lie in the workdir while it trains."""
    rng = np.random.default_rng(1)
    inputs, targets = rng.normal(size=(4096, 6)).astype(np.float32), rng.normal(size=(4096, 4)).astype(np.float32)
    rates = [2.0**k for k in range(-9, -4)]
    options = dict(steps=8, batch_size=64, learning_rates=rates, widths=(8, 16), depths=(1, 2), seeds=2, at_once=4)

    def loss(outputs, targets):
        return ((outputs - targets) ** 2).mean()

    def swept(name, **more):
        return model().sweep(loss, (inputs, targets), **options, workdir=tmp_path / name, progress=False, **more)

    parcels = []
    pack = remote.pack
    monkeypatch.setattr(workers, "pack", lambda *of: parcels.append(pack(*of)) or parcels[0])
    executor = Local(2)
    try:
        rows = swept("two", executor=executor).rows
    finally:
        executor.shutdown(cancel_futures=True)
    assert len(rows) == 3 * 5 * 2
    assert rows.equals(swept("one").rows)
    assert parcels[0].content.startswith(str(tmp_path / "two" / remote.SENT))
    assert not (tmp_path / "two" / remote.SENT).exists()


@needs_dask
@pytest.mark.filterwarnings("ignore")
def test_dask(alone, tmp_path):
    from distributed import Client, LocalCluster

    cluster = LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None, local_directory=tmp_path / "dask")
    with cluster, Client(cluster) as client:
        assert run(tmp_path / "sweep", client.get_executor()) == alone


def test_what_a_lost_worker_had_is_submitted_again(alone, threads, tmp_path):
    executor = Losing(threads, 2)
    assert run(tmp_path, executor) == alone
    assert len(executor.calls) == 3 * (8 + 2)  # eight groups; of two programs it is asked how many trials fit
    with pytest.raises(WorkersLost, match=r"its worker was lost \(ConnectionError: gone\), 2 times: what is finished"):
        run(tmp_path / "fewer", Losing(threads, 2), retries=1)


def test_the_others_are_trained_where_a_group_loses_its_workers(alone, threads, tmp_path):
    class OfOne(Losing):
        def submit(self, function, /, *arguments):
            self.lost = 9 * (arguments[2] is remote.train_group and arguments[3][0][1] == 2**-4)  # the lowest rate
            return super().submit(function, *arguments)

    with pytest.raises(WorkersLost):
        run(tmp_path, OfOne(threads, 0))
    assert 9 < len(kept(tmp_path)) < len(alone)
    assert run(tmp_path, threads) == alone


def test_a_stop_keeps_what_is_done_and_cancels_the_rest(alone, tmp_path, monkeypatch):
    train_group, number = Runner.train, itertools.count(1)

    def stop_and_train(*arguments):
        if next(number) == 3:
            signal.raise_signal(signal.SIGINT)
        return train_group(*arguments)

    monkeypatch.setattr(Runner, "train", stop_and_train)
    with ThreadPoolExecutor(1) as executor, pytest.raises(Stopped, match="by SIGINT while workers train; what they"):
        run(tmp_path, executor)
    assert 2 * 9 <= len(kept(tmp_path)) < len(alone)
    assert next(number) < 8
    with ThreadPoolExecutor(1) as executor:
        assert run(tmp_path, executor) == alone


class Waiting(Executor):
    """Trains groups with Adam only when one with SGD at depth 4 has come: a sweep that waits for a whole size hangs."""

    def __init__(self, executor):
        self.executor, self.free = executor, threading.Event()

    def submit(self, function, /, *arguments):
        _, _, task, *rest = arguments
        point = None if task is remote.most_at_once else rest[0][0][0]
        if point and (point.optimizer, point.depth) == ("sgd", 4):
            self.free.set()
        if not (point and point.optimizer == "adam"):
            return self.executor.submit(function, *arguments)
        return self.executor.submit(lambda: self.free.wait(60) and function(*arguments))


def test_an_adaptive_sweep_submits_as_results_come(tmp_path):
    options = dict(sweep__adaptive=True, sweep__widths=(), sweep__parameterizations=("mup",), sweep__max_seeds=4)
    study = tiny.study(**options, sweep__until="decided")
    expected = train(study, tmp_path / "alone", progress=False)
    with ThreadPoolExecutor(8) as executor:
        assert train(study, tmp_path / "workers", executor=Waiting(executor), progress=False) == expected


def test_two_callers(threads, tmp_path):
    """The second is told how to join."""
    study = tiny.study(**SMALL)
    store = Store(tmp_path, study.identity)
    with pytest.raises(WorkdirError, match=r"in use by another process: .*to join a sweep with an executor start more"):
        run(tmp_path, threads)
    store.close()
    store = Store(tmp_path, study.identity, shared=False)
    for executor in (threads, None):
        with pytest.raises(WorkdirError, match="one without an executor the same command"):
            run(tmp_path, executor)
    store.close()


def test_what_cannot_train(threads, tmp_path):
    with pytest.raises(TypeError, match=r"executor must be a concurrent.futures.Executor, such as client.get"):
        run(tmp_path, "local")
    with pytest.raises(SettingsError, match="leave the shard out"):
        run(tmp_path, threads, shard=(0, 2))
    with (
        ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as forking,
        pytest.raises(SettingsError, match="JAX does not survive a fork"),
    ):
        run(tmp_path, forking)
    threads.shutdown()
    with pytest.raises(WorkersLost, match=r"the executor takes no more work .*what is finished is kept"):
        run(tmp_path, threads)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (Flags("", workers=2), "--workers, --scheduler, --slurm and --insecure are for --executor: give that too"),
        (Flags("ray"), r"unknown --executor 'ray' \(known: dask, local, mpi, slurm\)"),
        (Flags("mpi", workers=2), "--workers is for --executor=local and slurm, not for mpi"),
        (Flags("local", scheduler="tls://a:1"), "--scheduler is for --executor=dask, not for local"),
        (Flags("local", workers=0), "--workers must be at least 1"),
        (Flags("dask"), "--executor=dask needs --scheduler=tls://HOST:PORT, or the scheduler's file"),
        (Flags("dask", scheduler="tcp://10.0.0.1:8786"), "is not encrypted"),
    ],
)
def test_wrong_flags(flags, message, tmp_path):
    with pytest.raises(ValueError, match=message), executor_of(flags, tmp_path):
        pass


def test_a_missing_package_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    monkeypatch.setattr(executors, "_client", lambda: importlib.import_module("distributed"))
    with (
        pytest.raises(SettingsError, match=r"--executor=dask needs distributed: pip install -e '\.\[dask\]'"),
        executor_of(Flags("dask", scheduler="tls://a:1"), tmp_path),
    ):
        pass


def test_a_worker_that_would_train_something_else_says_so(tmp_path):
    study = tiny.study(**SMALL)
    parcel, words = remote.pack(study, tmp_path), remote.words_of(grid_trials(study)[0])
    environment = tuple((name, "0" if name == "optax" else value) for name, value in parcel.environment)
    for changed, message in (
        (parcel._replace(environment=environment), "optax was '0', now it is .*give every worker the packages"),
        (
            parcel._replace(data=(("files", "1"),)),
            "files was '1', now it is 'nothing': give every worker the same data",
        ),
        (parcel._replace(digest="0"), "has changed: start the sweep again"),
        (parcel._replace(content=str(tmp_path / "nothing")), "give a workdir on a file system that all workers see"),
    ):
        answer = remote.work("0", changed, remote.most_at_once, words)
        assert isinstance(answer, remote.Failure)
        assert answer.kind == "input"
        assert re.search(f"^on .*{message}", answer.words)
        assert "\n" not in answer.words


def test_a_worker_times_a_group_and_says_that_it_does_not_fit(tmp_path, monkeypatch):
    study = tiny.study(**SMALL)
    parcel, words = remote.pack(study, tmp_path), remote.words_of(grid_trials(study)[0])
    assert min(remote.work("0", parcel, remote.time_group, [words], 1)) > 0
    call = workers._Call("a group", too_large, ())
    with ThreadPoolExecutor(1) as executor:
        calls = workers.Calls(study, tmp_path, executor, 0, print)
        with pytest.raises(OutOfMemory, match=r"a group on .*: too large"):
            calls.collect({}, ["a group"], lambda name: call, lambda: None)


def too_large(opened):
    raise OutOfMemory("too large")


@pytest.mark.parametrize("address", ["tcp://10.0.0.1:8786", "10.0.0.1:8786", "ws://host:1", "tcp://localhost.evil:1"])
def test_a_scheduler_without_encryption_is_refused(address):
    with pytest.raises(SettingsError, match="is not encrypted, and whoever reaches it may run code"):
        check_scheduler(address, insecure=False)
    check_scheduler(address, insecure=True)


@pytest.mark.parametrize("address", ["tls://10.0.0.1:8786", "tcp://127.0.0.1:8786", "localhost:8786", "tcp://[::1]:1"])
def test_a_scheduler_that_is_safe(address):
    check_scheduler(address, insecure=False)


def test_each_of_several_workers_has_a_device(tmp_path, monkeypatch):
    monkeypatch.setattr(remote, "GPUS", tmp_path)
    assert remote.one_device(1, {}) == {}
    for name in "abc":
        (tmp_path / name).mkdir()
    assert [remote.one_device(rank, {})[remote.VISIBLE] for rank in range(4)] == ["0", "1", "2", "0"]
    assert remote.one_device(1, {remote.VISIBLE: "4,6"}) == {remote.VISIBLE: "6"}
