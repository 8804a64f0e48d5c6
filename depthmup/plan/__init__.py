"""Whether a config fits a machine, by the machine's own compiler (docs/pods.md)."""

from depthmup.plan.plan import Plan, plan_on
from depthmup.plan.slices import plan_elsewhere
from depthmup.settings import Settings

__all__ = ["Plan", "plan"]


def plan(settings: Settings, topology: str | None = None, of_sweep: bool = False) -> Plan:
    """Compile what `main.py train`, or `main.py sweep`, would run, and say what it takes.

    topology: a TPU slice, such as "v5e:4x4"; the package libtpu compiles for it on any machine. None: this machine's
    devices. Data sets of TFDS need not be there. Of a sweep the program with the most operations is compiled, without
    its measurements.

    Raises ValueError for an unknown topology, and SettingsError for a batch that does not split over the devices, a
    model of which not one example or trial fits, and a missing libtpu.
    """
    return plan_elsewhere(settings, topology, of_sweep) if topology else plan_on(settings, None, None, of_sweep)
