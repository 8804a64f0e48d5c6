"""Settings that JAX reads when its backend starts: the number of CPU devices, and XLA's flags for a CPU."""

from __future__ import annotations

import gc
import glob
import importlib.util
import os
import re
from collections.abc import MutableMapping
from importlib import metadata
from pathlib import Path

import jax
import jaxlib

PACKAGES = ("depthmup", "jax", "jaxlib", "flax", "optax", "numpy")  # whose code computes results
MOST_MAPS = 65_530  # of a process, as Linux has it unless it is told otherwise
SWITCH = "DEPTHMUP_XLA_FLAGS"  # environment variable: 0 leaves XLA_FLAGS alone
OPTION = "--xla_cpu_experimental_ynn_fusion_type="
# (version of jaxlib, maker of the processor) -> flags that were measured to be faster there (docs/performance.md): on a
# CPU, XLA hands matrix products and convolutions to YNNPACK, which is slower than XLA's own code (Eigen). A jaxlib that
# does not know a flag ends the process, so a version outside this table gets no flag.
FLAGS = {
    ("0.10.2", "GenuineIntel"): OPTION + "-individual_dot,-individual_convolution",
    ("0.10.2", "AuthenticAMD"): OPTION + "-individual_convolution",
}

# With these libtpu neither asks Google's machines which TPU this is, nor prints that it does not know.
OF_NO_TPU = {"TPU_SKIP_MDS_QUERY": "1", "TPU_ACCELERATOR_TYPE": "v5litepod-4", "TPU_WORKER_HOSTNAMES": "localhost"}


def prepare_cpu(devices: int | None = None) -> None:
    """Make JAX's CPU backend fast: set the number of CPU devices, and put `FLAGS` into the environment's XLA_FLAGS.

    Call it before JAX starts its backend, that is before the first array; it does not affect other backends. XLA_FLAGS
    stays as it is if it already sets the option in `FLAGS`, if the environment variable DEPTHMUP_XLA_FLAGS is 0, or if
    `FLAGS` has no entry for this jaxlib and processor. Where libtpu is installed and no TPU is there, it is told so.

    devices: how many CPU devices JAX shows; by default one for each core that this process may use.

    Raises RuntimeError if JAX has started with another number of devices.
    """
    jax.config.update("jax_num_cpu_devices", devices or cores())
    add_flags(os.environ, jaxlib.__version__, processor())
    if importlib.util.find_spec("libtpu") and not any(map(glob.glob, ("/dev/accel*", "/dev/vfio/*"))):
        os.environ.update(OF_NO_TPU | os.environ)


def add_flags(environment: MutableMapping[str, str], version: str, maker: str) -> None:
    """Add the flags that `FLAGS` has for this jaxlib version and processor to XLA_FLAGS in `environment`."""
    flags = FLAGS.get((version, maker), "")
    before = environment.get("XLA_FLAGS", "")
    if flags and environment.get(SWITCH) != "0" and OPTION.rstrip("=") not in before:
        environment["XLA_FLAGS"] = f"{before} {flags}".strip()


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processor() -> str:
    """The maker of the processor, as Linux names it: "GenuineIntel", "AuthenticAMD"; "" if it is not known."""
    return next((line.split(":")[1].strip() for line in proc_lines("cpuinfo") if line.startswith("vendor_id")), "")


def proc_lines(name: str) -> list[str]:
    """The lines of a file of /proc; none where the system has no such file."""
    try:
        return Path("/proc", name).read_text().splitlines()
    except OSError:
        return []


def free_programs() -> None:
    """Free compiled programs that are no longer used, once all take a quarter of the memory maps of a process.

    A program is some hundred maps, and beyond the limit compiling crashes. What `jax.jit` compiled goes with its
    function; `jax.pmap` keeps all programs until JAX's caches are cleared. Then a function that is called again is
    compiled again. Where the system shows no maps, nothing is freed.
    """
    if _many_maps():
        gc.collect()
    if _many_maps():
        jax.clear_caches()
        gc.collect()


def _many_maps() -> bool:
    limit = proc_lines("sys/vm/max_map_count") or [str(MOST_MAPS)]
    return len(proc_lines("self/maps")) > int(limit[0]) / 4


def out_of_memory(error: jax.errors.JaxRuntimeError) -> bool:
    """Whether a device has no memory for what it was asked for."""
    return bool(re.search("RESOURCE_EXHAUSTED|[Oo]ut of memory", str(error)))


def described() -> dict[str, str]:
    """Versions and XLA_FLAGS: besides the settings, they decide the last digits of results on a machine."""
    return {**{name: metadata.version(name) for name in PACKAGES}, "xla_flags": os.environ.get("XLA_FLAGS", "")}


def environment() -> str:
    """`described` and the kind of device in one line, which starts JAX's backend."""
    here = {**described(), "device": jax.devices()[0].device_kind}
    return ", ".join(f"{name} {value}" for name, value in here.items() if value)
