"""What must be set before JAX starts its backend: the devices of a CPU, and XLA's flags for it."""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from pathlib import Path

import jax
import jaxlib

SWITCH = "DEPTHMUP_XLA_FLAGS"  # environment variable: 0 leaves XLA_FLAGS alone
OPTION = "--xla_cpu_experimental_ynn_fusion_type="
# XLA on a CPU hands products and convolutions to YNNPACK, which is slower than its own (Eigen). What each version of
# jaxlib is known to take, by the maker of the processor it was measured on (docs/performance.md has the figures). A
# jaxlib that does not know a flag ends the process, so a version that is not in this table gets none.
FLAGS = {
    ("0.10.2", "GenuineIntel"): OPTION + "-individual_dot,-individual_convolution",
    ("0.10.2", "AuthenticAMD"): OPTION + "-individual_convolution",
}


def prepare_cpu(devices: int | None = None) -> None:
    """Make JAX's CPU backend fast: `devices` devices, by default one for each core that this process may use, and
    `FLAGS` in the environment variable XLA_FLAGS.

    Call it before JAX starts its backend (before the first array); other backends are not affected. XLA_FLAGS stays
    as it is if it sets that option already, if DEPTHMUP_XLA_FLAGS is 0, or if jaxlib or processor was not measured.

    Raises RuntimeError if JAX has started with another number of devices.
    """
    jax.config.update("jax_num_cpu_devices", devices or cores())
    add_flags(os.environ, jaxlib.__version__, processor())


def add_flags(environment: MutableMapping[str, str], version: str, maker: str) -> None:
    """Add to XLA_FLAGS in `environment` what `FLAGS` has for this jaxlib and processor."""
    flags = FLAGS.get((version, maker), "")
    before = environment.get("XLA_FLAGS", "")
    if flags and environment.get(SWITCH) != "0" and OPTION.rstrip("=") not in before:
        environment["XLA_FLAGS"] = f"{before} {flags}".strip()


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processor() -> str:
    """The maker of the processor, as Linux names it: "GenuineIntel", "AuthenticAMD"; "" if it is not known."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.split(":")[1].strip() for line in lines if line.startswith("vendor_id")), "")


def described() -> dict[str, str]:
    """What decides the last digits of results on a machine besides the settings."""
    return {"jaxlib": jaxlib.__version__, "xla_flags": os.environ.get("XLA_FLAGS", "")}
