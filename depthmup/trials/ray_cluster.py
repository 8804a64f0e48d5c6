"""Train groups of trials on a Ray cluster: each group is one Ray task."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from depthmup.backend import prepare_cpu
from depthmup.settings import SettingsError
from depthmup.trials.group import Runner, compiled_in
from depthmup.trials.plan import Group
from depthmup.trials.store import Finished

RETRIES = 10  # how often a group is trained again after its worker was lost


class Cluster:
    """A Ray cluster that trains groups of trials.

    It is the cluster that this process is connected to; else the cluster at the environment variable RAY_ADDRESS; else
    a new cluster on this machine.

    A task is one group: a worker trains it and returns its rows, and only this process writes them. If a worker is lost
    (killed, preempted, out of memory), other workers train its groups again. Raises SettingsError if no machine has
    room for a task.
    """

    def __init__(self, cpus: float, gpus: float, cache: Path | None) -> None:
        """
        cpus, gpus: number of CPUs and GPUs of each task.
        cache: folder of compiled programs. A worker on a machine without this folder creates it there.
        """
        import ray

        self._ray, self._own = ray, not ray.is_initialized()
        if self._own:
            # Without an address Ray would join whatever cluster was last started on this machine, alive or not.
            ray.init(
                address=os.environ.get("RAY_ADDRESS") or "local",
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
        self._cpus, self._gpus = cpus, gpus
        if not self.slots():
            have = {name: amount for name, amount in ray.cluster_resources().items() if name in ("CPU", "GPU")}
            self.__exit__()
            raise SettingsError(f"no machine of the Ray cluster has {cpus:g} CPUs and {gpus:g} GPUs; it has {have}")
        task: Any = ray.remote(_train).options(num_cpus=cpus, num_gpus=gpus, max_retries=RETRIES)
        folder = str(cache.resolve()) if cache else None
        # Starts training a group, and returns its Ray task.
        self.submit = functools.partial(task.remote, devices=max(1, int(cpus)), cache=folder)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        if self._own:
            self._ray.shutdown()

    def slots(self) -> int:
        """How many tasks fit on the machines that are alive."""
        needs = {name: number for name, number in (("CPU", self._cpus), ("GPU", self._gpus)) if number}
        machines = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        return sum(
            min((int(has.get(name, 0.0) / number) for name, number in needs.items()), default=1) for has in machines
        )

    def finished(self, tasks: Sequence[Any], seconds: float) -> list[Any]:
        """Wait until a task is finished, at most `seconds`, and return all tasks that are finished then."""
        self._ray.wait(list(tasks), num_returns=1, timeout=seconds)
        return list(self._ray.wait(list(tasks), num_returns=len(tasks), timeout=0)[0])

    def outcome(self, task: Any) -> list[Finished]:
        """The finished trials that a task returned. If the task raised an error, this raises it."""
        return self._ray.get(task)

    def cancel(self, tasks: Sequence[Any]) -> None:
        for task in tasks:
            self._ray.cancel(task, force=True)


def _train(group: Group, devices: int, cache: str | None) -> list[Finished]:
    """Train a group. Runs in a worker."""
    runner = _runner(devices)
    with compiled_in(Path(cache) if cache else None):
        return runner.train(group)


@functools.cache
def _runner(devices: int) -> Runner:
    """The runner of a worker, one for all of its groups, so that consecutive groups of one program share it."""
    prepare_cpu(devices)
    return Runner()
