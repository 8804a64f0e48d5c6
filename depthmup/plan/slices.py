"""Programs for TPU slices, compiled on a machine without a TPU by the TPU's own compiler (the package libtpu).

libtpu reads environment variables when it starts, looks for a TPU unless they say otherwise, and speaks at every start
of JAX. So it runs in a child process: this module, which reads a pickled (settings, slice, of_sweep) and writes a
pickled plan or error.
"""

from __future__ import annotations

import importlib.util
import os
import pickle
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import jax
from jax.experimental import topologies

from depthmup.backend import OF_NO_TPU
from depthmup.names import install
from depthmup.settings import Settings, SettingsError
from depthmup.train.chips import SLICES, check_slice

if TYPE_CHECKING:
    from depthmup.plan.plan import Plan


def devices_of(name: str) -> list[jax.Device]:
    """The devices of a slice, as descriptions that programs can be compiled for."""
    kind, shape = name.split(":")
    options: dict[str, Any] = {}
    if SLICES[kind].megacore:
        options["chip_config_name"] = "megacore"
    if shape == "1x1":
        options["chips_per_host_bounds"] = (1, 1, 1)
    return list(topologies.get_topology_desc(platform="tpu", topology_name=name, **options).devices)


def plan_elsewhere(settings: Settings, name: str, of_sweep: bool) -> Plan:
    """`plan.plan` for a slice, from a child process.

    Raises ValueError for an unknown slice, SettingsError where libtpu is missing or `plan` raises one.
    """
    check_slice(name)
    if importlib.util.find_spec("libtpu") is None:
        raise SettingsError(f"--topology={name} needs the TPU's compiler: {install('tpu')}")
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("JAX_", "XLA_", "TPU_"))}
    environment = inherited | {
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path) or ".",
        "JAX_PLATFORMS": "cpu",  # no search for a TPU
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # two processes would collide on libtpu's lock file
        **OF_NO_TPU,
        "TPU_ACCELERATOR_TYPE": name.split(":")[0] + "-4",  # any of the kind: the name above says how many there are
    }
    asked = pickle.dumps((settings, name, of_sweep))
    command = [sys.executable, "-m", "depthmup.plan.slices"]
    done = subprocess.run(command, input=asked, env=environment, capture_output=True)
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or [f"status {done.returncode}"]
        raise SettingsError(f"--topology={name}: the TPU's compiler failed: {last[0]}")
    result = pickle.loads(done.stdout)
    if isinstance(result, Exception):
        raise result
    return result


def main() -> None:
    """The child process."""
    from depthmup.plan.plan import plan_on

    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libtpu prints must not get among the answer
    settings, name, of_sweep = pickle.load(sys.stdin.buffer)
    result: Plan | Exception
    try:
        result = plan_on(settings, name, devices_of(name), of_sweep)
    except ValueError as error:
        result = SettingsError(str(error))
    with answers:
        pickle.dump(result, answers)


if __name__ == "__main__":
    main()
