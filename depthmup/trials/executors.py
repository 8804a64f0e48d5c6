"""The executors of the command: local processes, Dask, Slurm by Dask, MPI."""

from __future__ import annotations

import contextlib
import functools
import ipaddress
import json
import logging
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import jax

from depthmup.names import at_least_one, install, unknown
from depthmup.settings import SettingsError
from depthmup.trials.remote import LOCAL_RANK

Name = Literal["local", "dask", "slurm", "mpi"]
ENCRYPTED = ("tls", "wss", "inproc")  # what Dask's addresses may begin with anywhere
ONE_AT_A_TIME = ["--nthreads", "1"]  # of a Dask worker: JAX has the threads
LOGS = "jobs"  # folder of what Slurm's jobs print, and their keys, in the workdir
SEVERAL = ("directives", "prologue", "args", "skip")  # ends of names of dask-jobqueue that take a list


class Flags(NamedTuple):
    """The flags. workers: of local and slurm; None: 1. scheduler: of dask. slurm: of a job. insecure: allow anybody who
    reaches the scheduler's address to run code in the sweep's name."""

    name: str
    workers: int | None = None
    scheduler: str = ""
    slurm: Mapping[str, str] | None = None
    insecure: bool = False


@contextlib.contextmanager
def executor_of(flags: Flags, workdir: Path) -> Iterator[Executor | None]:
    """The executor, as long as the context is open; None without a name.

    Raises SettingsError, in one line, for flags that contradict each other and for a package that is missing, and
    SystemExit in a process that has been one of the workers until the end.
    """
    if not flags.name:
        if flags != Flags(""):
            raise SettingsError("--workers, --scheduler, --slurm and --insecure are for --executor: give that too")
        yield None
        return
    if flags.name not in get_args(Name):
        raise unknown("--executor", flags.name, get_args(Name))
    for flag, names in (("workers", ("local", "slurm")), ("scheduler", ("dask",)), ("slurm", ("slurm",))):
        if getattr(flags, flag) not in (None, "") and flags.name not in names:
            raise SettingsError(f"--{flag} is for --executor={' and '.join(names)}, not for {flags.name}")
    try:
        with _OF[flags.name](flags, workdir) as executor:  # type: ignore[index]
            jax.config.update("jax_platforms", "cpu")  # the accelerators are the workers'
            yield executor
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("dask", "distributed", "dask_jobqueue", "mpi4py"):
            raise
        raise SettingsError(f"--executor={flags.name} needs {error.name}: {install(flags.name)}") from error


class Local(Executor):
    """Processes of this machine, which share its cores and GPUs. One that is killed is replaced, and its call ends with
    a ConnectionError."""

    def __init__(self, workers: int) -> None:
        self._count, self._lock, self._mine = workers, threading.Lock(), threading.local()
        self._free = list(range(workers))
        self._processes: dict[int, SpawnProcess] = {}
        self._threads = ThreadPoolExecutor(workers)

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
        return self._threads.submit(self._call, functools.partial(function, *arguments, **options))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Kills what runs if `cancel_futures`."""
        self._threads.shutdown(wait and not cancel_futures, cancel_futures=cancel_futures)
        with self._lock:
            for process in self._processes.values():
                process.kill()
        self._threads.shutdown(wait)

    def _call(self, function: Callable[[], Any]) -> Any:
        """In a thread, which has a process of its own."""
        try:
            connection: Connection = self._mine.__dict__.get("connection") or self._start()
            connection.send(function)
            return connection.recv()
        except (EOFError, OSError) as error:
            self._mine.__dict__.pop("connection", None)
            raise ConnectionError("it was killed") from error

    def _start(self) -> Connection:
        with self._lock:
            if "number" not in self._mine.__dict__:
                self._mine.number = self._free.pop(0)
            number = self._mine.number
            caller, worker = multiprocessing.get_context("spawn").Pipe()
            process = multiprocessing.get_context("spawn").Process(target=_serve, args=(worker, number, self._count))
            process.start()
            worker.close()
            self._processes[number], self._mine.connection = process, caller
        return caller


def _serve(connection: Connection, number: int, count: int) -> None:
    """A local worker: answers calls until the caller is gone. Ctrl-C is the caller's matter."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if count > 1:
        os.environ[LOCAL_RANK] = str(number)
        if hasattr(os, "sched_setaffinity"):
            mine = sorted(os.sched_getaffinity(0))[number::count]
            if mine:
                os.sched_setaffinity(0, mine)
    with contextlib.suppress(EOFError, OSError):
        while True:
            connection.send(connection.recv()())


@contextlib.contextmanager
def _local(flags: Flags, workdir: Path) -> Iterator[Executor]:
    executor = Local(at_least_one("--workers", 1 if flags.workers is None else flags.workers))
    try:
        yield executor
    finally:
        executor.shutdown(cancel_futures=True)


@contextlib.contextmanager
def _dask(flags: Flags, workdir: Path) -> Iterator[Executor]:
    Client = _client()
    if not flags.scheduler:
        raise SettingsError("--executor=dask needs --scheduler=tls://HOST:PORT, or the scheduler's file")
    path = Path(flags.scheduler)
    address = json.loads(path.read_text())["address"] if path.is_file() else flags.scheduler
    check_scheduler(address, flags.insecure)
    with Client(address) as client:
        _say_where(client)
        yield client.get_executor()


@contextlib.contextmanager
def _slurm(flags: Flags, workdir: Path) -> Iterator[Executor]:
    from dask_jobqueue import SLURMCluster

    Client = _client()
    jobs = (workdir / LOGS).absolute()
    jobs.mkdir(parents=True, exist_ok=True)
    options: dict[str, Any] = {"processes": 1, "log_directory": str(jobs)}
    for name, value in (flags.slurm or {}).items():
        options[name] = [value] if name.endswith(SEVERAL) else int(value) if value.isdigit() else value
    options["worker_extra_args"] = [*options.get("worker_extra_args", ()), *ONE_AT_A_TIME]
    if not flags.insecure:
        options |= {"security": True, "shared_temp_directory": str(jobs)}
    count = at_least_one("--workers", 1 if flags.workers is None else flags.workers)
    try:
        cluster = SLURMCluster(**options)
    except (TypeError, ValueError) as error:
        raise SettingsError(f"--slurm: {str(error).partition('. ')[0]}") from error
    with cluster, Client(cluster) as client:
        cluster.adapt(minimum_jobs=count, maximum_jobs=count)  # a job that ends before the sweep is replaced
        _say_where(client)
        yield client.get_executor()


@contextlib.contextmanager
def _mpi(flags: Flags, workdir: Path) -> Iterator[Executor]:
    """Of the processes of mpiexec the first is the caller, the others are workers."""
    from mpi4py import MPI
    from mpi4py.futures import MPICommExecutor

    world = MPI.COMM_WORLD
    if world.size < 2:
        raise SettingsError("--executor=mpi needs the processes of mpiexec -n N: a caller and N - 1 workers")
    node = world.Split_type(MPI.COMM_TYPE_SHARED)
    callers = int(0 in node.allgather(world.rank))
    if node.size - callers > 1:
        os.environ[LOCAL_RANK] = str(node.rank - callers)
    with MPICommExecutor(world) as executor:
        if executor is not None:
            yield executor  # type: ignore[misc]
            return
    raise SystemExit(0)


_OF: Mapping[Name, Callable[[Flags, Path], contextlib.AbstractContextManager[Executor]]] = {
    "local": _local,
    "dask": _dask,
    "slurm": _slurm,
    "mpi": _mpi,
}


def check_scheduler(address: str, insecure: bool) -> None:
    """Raises SettingsError for a scheduler's address that others may reach who then run code here."""
    scheme, between, place = address.partition("://")
    host = (place if between else address).rpartition(":")[0].strip("[]")
    with contextlib.suppress(ValueError):
        if ipaddress.ip_address("127.0.0.1" if host == "localhost" else host).is_loopback:
            return
    if not insecure and not (between and scheme in ENCRYPTED):
        raise SettingsError(
            f"--scheduler={address} is not encrypted, and whoever reaches it may run code: give it TLS (tls://), or "
            "--insecure in a network that you trust"
        )


def _client() -> Any:
    """Dask's class of this name, which logs warnings alone."""
    from distributed import Client

    logging.getLogger("distributed").setLevel(logging.WARNING)
    return Client


def _say_where(client: Any) -> None:
    print(f"scheduler {client.scheduler.address}, dashboard {client.dashboard_link}", flush=True)
