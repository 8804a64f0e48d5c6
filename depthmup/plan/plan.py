"""What a config takes on a machine, by the compiler: memory, the largest batch that fits, what devices exchange."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import jax

from depthmup.data.images import BLANK, TFDS
from depthmup.plan.program import DoesNotFit, Program, compiled
from depthmup.settings import Settings, SettingsError, put
from depthmup.train import TrialLoop
from depthmup.train.build import batches_of, hyper_of, steps_of, task_of
from depthmup.train.chips import chip_of
from depthmup.train.devices import check_sets
from depthmup.train.run import loop_of
from depthmup.train.trainable import Hyper
from depthmup.trials.config_study import ConfigPoint, ConfigStudy
from depthmup.trials.engine import checked
from depthmup.trials.estimate import AT_ONCE, Estimator, free_memory
from depthmup.trials.group import placement
from depthmup.trials.plan import grouped

Unit = Literal["examples", "trials"]
HERE = "this machine"
BEYOND = 16  # the line through two measured numbers of examples predicts memory up to so many times as many


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a step of a config takes on each device.

    what: the config in words. where: the slice, or HERE. kind: the devices' `device_kind`.
    share: number of devices that share a batch.
    unit: "examples" of a training, "trials" of a sweep. asked: how many of them a device was to have; each: how many
    it has in `program`, fewer where those do not fit. refused: the compiler's words in that case, else "". largest: how
    many fit, about; None if memory does not tell. memory: bytes of a device.
    """

    what: str
    where: str
    kind: str
    devices: int
    share: int
    unit: Unit
    asked: int
    each: int
    refused: str
    largest: int | None
    memory: float
    program: Program

    @property
    def remedy(self) -> str:
        """What to change where it does not fit."""
        fit = self.largest or self.each
        if self.unit == "trials":
            return f"set sweep.at_once={fit * self.devices // self.share}, {fit} on each of {self.devices} devices"
        return (
            f"set data.batch_size={fit * self.devices}, or take more devices; or keep the batch and compute it in "
            f"parts (accumulate={-(-self.asked // fit)}), compute the blocks twice (model.remat=True), or set "
            "model.dtype=bfloat16"
        )

    def _largest(self) -> str:
        most = BEYOND * self.each
        if self.largest is None or self.largest > most:
            return f"more than {most:,} {self.unit}"
        return f"about {self.largest:,} {self.unit}"

    def __str__(self) -> str:
        p = self.program
        sent = ", ".join(f"{number} {kind} of {size(total)}" for kind, (number, total) in p.collectives.items())
        rows = {
            "memory": f"{size(p.memory)} of {size(self.memory)}: arguments {size(p.arguments)}, of them reused for "
            f"results {size(p.donated)}, temporaries {size(p.temporaries)}, program {size(p.code)}",
            "largest": self._largest(),
            "exchanged": f"{sent}, a step" if sent else "nothing",
            "compiled in": f"{p.seconds:.1f} s",
        }
        if self.refused:
            rows["DOES NOT FIT"] = f"with {self.asked} {self.unit} a device, compiled with {self.each}. {self.refused}"
            rows["change"] = self.remedy
        shared = f", each trial on {self.share}" if self.unit == "trials" and self.share > 1 else ""
        where = f"on {self.where}: {self.devices} x {self.kind}, {self.each} {self.unit} a device{shared}; of each"
        head = [self.what, where]
        return "\n".join(head + [f"  {name:13}{text}" for name, text in rows.items()])


def size(number: float) -> str:
    """Bytes in words: "512 KiB", "1.25 GiB"."""
    for unit in ("B", "KiB", "MiB"):
        if number < 1024:
            return f"{number:.4g} {unit}"
        number /= 1024
    return f"{number:.4g} GiB"


class Case(NamedTuple):
    """What is to be compiled. share, asked: as in `Plan`. of: number of examples or trials on a device -> loop. It
    raises ValueError for a number that is impossible."""

    what: str
    unit: Unit
    devices: Sequence[jax.Device]
    share: int
    hyper: Hyper
    asked: int
    of: Callable[[int], TrialLoop]


def plan_on(settings: Settings, topology: str | None, devices: Sequence[jax.Device] | None, of_sweep: bool) -> Plan:
    """Compile for described devices, those of the slice `topology`, or for this machine's (None).

    Raises SettingsError for a batch that does not split over the devices, and if not one example or trial fits.
    """
    if settings.data.name in TFDS:  # only shapes and numbers count
        settings = put(settings, {"data.name": BLANK + settings.data.name})
    case = (_sweep if of_sweep else _run)(settings, devices)
    device, count = case.devices[0], len(case.devices)
    chip = chip_of(device.device_kind)
    sharing = count if device.platform == "cpu" else 1
    memory = chip.memory if devices and chip else free_memory(device) / sharing

    def program_of(each: int) -> Program:
        loop = case.of(each)
        return compiled(*loop.program(case.hyper))

    each, refused, program = case.asked, "", None
    while program is None:
        try:
            program = program_of(each)
        except DoesNotFit as error:
            refused = refused or str(error)
            if each == 1:
                raise SettingsError(
                    f"{case.what}: one of its {case.unit} does not fit {device.device_kind}: {error}"
                ) from error
            each //= 2
    points = {each: program.memory}
    with contextlib.suppress(DoesNotFit, ValueError):  # then `largest` has one point alone
        points[each // 2 or 2] = program_of(each // 2 or 2).memory
    return Plan(
        what=case.what,
        where=topology or HERE,
        kind=device.device_kind,
        devices=count,
        share=case.share,
        unit=case.unit,
        asked=case.asked,
        each=each,
        refused=refused,
        largest=largest(points, memory),
        memory=memory,
        program=program,
    )


def largest(points: dict[int, int], memory: float) -> int | None:
    """How many fit into memory, by the line through two measured points {number: bytes}; None if there is no slope."""
    (few, least), (many, most) = min(points.items()), max(points.items())
    if most <= least:
        return None
    return int(few + (memory - least) * (many - few) / (most - least))


def _run(settings: Settings, described: Sequence[jax.Device] | None) -> Case:
    loop = loop_of(settings, described)
    devices, model, batch, hyper = loop.placement.devices, settings.model, settings.data.batch_size, hyper_of(settings)
    return Case(
        what=f"train: {model.name}, width {model.width}, depth {model.depth}, {model.options['dtype']}, "
        f"{settings.optimizer.name}, batch {batch}, {steps_of(settings):,} steps, by {settings.parallel.wrapper}",
        unit="examples",
        devices=devices,
        share=len(devices),
        hyper=hyper,
        asked=batch // len(devices),
        of=lambda each: loop_of(put(settings, {"data.batch_size": each * len(devices)}), described),
    )


def _sweep(settings: Settings, described: Sequence[jax.Device] | None) -> Case:
    """The group of the sweep whose steps have the most operations."""
    study = ConfigStudy(settings)
    devices, trials = described or jax.local_devices(), checked(study)
    if described:  # a sweep's process has the devices of its host, and shares no array with others
        devices = [device for device in devices if device.process_index == devices[0].process_index]
    groups = grouped(study, trials, lambda program: settings.sweep.at_once or AT_ONCE)
    dear = max(groups, key=Estimator().work)
    point = dear.point
    assert isinstance(point, ConfigPoint)
    s, model = point.settings, point.settings.model
    share, task, batches = s.parallel.devices_per_trial, task_of(s), batches_of(s)
    check_sets(len(devices), share)
    sets = len(devices) // share
    asked = -(-max(len(group.trials) for group in groups if group.program == dear.program) // sets)

    def loop(each: int) -> TrialLoop:
        return TrialLoop(task, batches, placement(s.parallel, each * sets, devices, described is not None))

    return Case(
        what=f"sweep: {len(trials):,} trials; the dearest: {model.name}, width {model.width}, depth {model.depth}, "
        f"{model.options['dtype']}, {s.optimizer.name}, batch {s.data.batch_size}",
        unit="trials",
        devices=devices,
        share=share,
        hyper=hyper_of(s),
        asked=asked,
        of=loop,
    )
