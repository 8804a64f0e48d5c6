"""What a config takes on a machine, by the compiler: memory, the largest batch that fits, what devices exchange."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import jax

from depthmup.data.tfds_images import BLANK, TFDS
from depthmup.plan.program import CompiledProgram, DoesNotFit, compiled
from depthmup.settings import Settings, SettingsError, put
from depthmup.train import TrialLoop, flops
from depthmup.train.build import batches_of, hyper_of, steps_of, task_of
from depthmup.train.chips import chip_of
from depthmup.train.devices import check_sets
from depthmup.train.run import loop_of
from depthmup.train.step import Hyper
from depthmup.trials.config_study import ConfigPoint, ConfigStudy
from depthmup.trials.engine import checked_trials
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
    state: bytes that the state of `each` takes on a device. flops: operations of a step on a device; peak: how many it
    can do in a second (`train.chips`), if that is known.
    mesh: parallel.mesh, "" for none. whole: why it does not fit without that mesh, which the config does not name; else
    "".
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
    program: CompiledProgram
    state: int
    flops: float
    peak: float | None
    mesh: str = ""
    whole: str = ""

    @property
    def remedy(self) -> str:
        """What to change where it does not fit."""
        fit = self.largest or self.each
        if self.unit == "trials":
            return f"set sweep.at_once={fit * self.devices // self.share}, {fit} on each of {self.devices} devices"
        splits = self.share > 1 and not self.mesh
        split = f", split the state (parallel.wrapper=jit parallel.mesh=fsdp={self.devices})" if splits else ""
        return (
            f"set data.batch_size={fit * self.devices}, or take more devices; or keep the batch and compute it in "
            f"parts (accumulate={-(-self.asked // fit)}), compute the blocks twice (model.remat=True){split}, or set "
            "model.dtype=bfloat16"
        )

    @property
    def fits(self) -> bool:
        """Whether it fits as it was asked for."""
        return not (self.refused or self.whole)

    def _largest(self) -> str:
        most = BEYOND * self.each
        if self.largest is None or self.largest > most:
            return f"more than {most:,} {self.unit}"
        return f"about {self.largest:,} {self.unit}"

    def __str__(self) -> str:
        p = self.program
        sent = ", ".join(f"{number} {kind} of {size_words(total)}" for kind, (number, total) in p.collectives.items())
        seconds = f", {self.flops / self.peak:.3g} s or more" if self.peak else ""
        rows = {
            "state": size_words(self.state),
            "memory": f"{size_words(p.memory)} of {size_words(self.memory)}: "
            f"arguments {size_words(p.arguments)}, of them reused for results {size_words(p.donated)}, "
            f"temporaries {size_words(p.temporaries)}, program {size_words(p.code)}",
            "largest": self._largest(),
            "exchanged": f"{sent}, a step" if sent else "nothing",
            "operations": f"{self.flops:.3g}, a step{seconds}",
            "compiled in": f"{p.seconds:.1f} s",
        }
        reasons, changes = [], []
        if self.whole:
            reasons += [f"without a mesh: {self.whole}"]
            changes += [
                f"add --config.parallel.wrapper=jit --config.parallel.mesh={self.mesh}, of which this is the plan"
            ]
        if self.refused:
            reasons += [f"with {self.asked} {self.unit} a device, compiled with {self.each}. {self.refused}"]
            changes += [self.remedy]
        if not self.fits:
            rows |= {"DOES NOT FIT": "; ".join(reasons), "change": "; ".join(changes)}
        shared = f", each trial on {self.share}" if self.unit == "trials" and self.share > 1 else ""
        where = f"on {self.where}: {self.devices} x {self.kind}, {self.each} {self.unit} a device{shared}; of each"
        head = [self.what, where]
        return "\n".join(head + [f"  {name:13}{text}" for name, text in rows.items()])


def size_words(number: float) -> str:
    """Bytes in words: "512 KiB", "1.25 GiB"."""
    for unit in ("B", "KiB", "MiB"):
        if number < 1024:
            return f"{number:.4g} {unit}"
        number /= 1024
    return f"{number:.4g} GiB"


class Case(NamedTuple):
    """What is to be compiled. share, asked, flops: as in `Plan`, flops of one example or trial. of: number of examples
    or trials on a device -> loop. It raises ValueError for a number that is impossible. state: the shapes of one state.
    """

    what: str
    unit: Unit
    devices: Sequence[jax.Device]
    share: int
    hyper: Hyper
    asked: int
    of: Callable[[int], TrialLoop]
    state: Any
    flops: float


def plan_on(settings: Settings, topology: str | None, devices: Sequence[jax.Device] | None, of_sweep: bool) -> Plan:
    """Compile for described devices, those of the slice `topology`, or for this machine's (None).

    A run whose whole state does not fit a device is compiled for the smallest mesh over which it fits.

    Raises SettingsError for a batch that does not split over the devices, and if not one example or trial fits.
    """
    if settings.data.name in TFDS:  # only shapes and numbers count
        settings = put(settings, {"data.name": BLANK + settings.data.name})
    case = (_sweep if of_sweep else _run)(settings, devices)
    device, count = case.devices[0], len(case.devices)
    chip = chip_of(device.device_kind)
    sharing = count if device.platform == "cpu" else 1
    memory = chip.memory if devices and chip else free_memory(device) / sharing
    splits = not of_sweep and not settings.parallel.axes and count > 1
    shapes = case.of(case.asked).placement.shapes
    taken, gradient = bytes_of(shapes(case.state)), bytes_of(shapes(case.state.params))
    on_mesh = functools.partial(_on_mesh, settings, topology, devices, (taken + gradient) / memory, count)
    if splits and taken + gradient > memory:
        return on_mesh(
            f"the state takes {size_words(taken)}, its gradient {size_words(gradient)}, "
            f"and a device has {size_words(memory)}"
        )

    def program_of(each: int) -> CompiledProgram:
        loop = case.of(each)
        return compiled(*loop.program(case.hyper))

    each, refused, program = case.asked, "", None
    while program is None:
        try:
            program = program_of(each)
        except DoesNotFit as error:
            refused = refused or str(error)
            if each == 1 and splits:
                return on_mesh(f"not one example fits. {error}")
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
        state=each * bytes_of(case.state)
        if of_sweep and not settings.parallel.axes
        else bytes_of(case.of(each).placement.shapes(case.state)),
        flops=each * case.flops,
        peak=chip.peak if chip else None,
        mesh=settings.parallel.mesh or "",
    )


def _on_mesh(
    settings: Settings, topology: str | None, devices: Sequence[jax.Device] | None, times: float, count: int, whole: str
) -> Plan:
    """The plan of the mesh with the smallest axis "fsdp" over which a run fits, or of the last mesh if it fits none.

    times: how many times the memory of a device is what takes room whatever the batch. whole: as in `Plan`.

    Raises SettingsError if not one example fits, even over the last mesh.
    """
    parts = [number for number in range(2, count + 1) if count % number == 0]
    few = [number for number in parts if number >= 2 * times] or parts[-1:]  # half of a device is for the examples
    for fsdp in few:
        mesh = f"data={count // fsdp},fsdp={fsdp}" if fsdp < count else f"fsdp={fsdp}"
        on_mesh = put(settings, {"parallel.wrapper": "jit", "parallel.mesh": mesh})
        try:
            result = plan_on(on_mesh, topology, devices, False)
        except SettingsError:
            if fsdp == few[-1]:
                raise
            continue
        if not result.refused:
            break
    return dataclasses.replace(result, whole=whole)


def bytes_of(shapes: Any) -> int:
    """Bytes that arrays of these shapes and shardings take on a device."""
    leaves = jax.tree.leaves(shapes)
    here = [leaf.sharding.shard_shape(leaf.shape) if leaf.sharding else leaf.shape for leaf in leaves]
    return sum(math.prod(shape) * leaf.dtype.itemsize for shape, leaf in zip(here, leaves, strict=True))


def largest(points: dict[int, int], memory: float) -> int | None:
    """How many fit into memory, by the line through two measured points {number: bytes}; None if there is no slope."""
    (few, least), (many, most) = min(points.items()), max(points.items())
    if most <= least:
        return None
    return int(few + (memory - least) * (many - few) / (most - least))


def _run(settings: Settings, described: Sequence[jax.Device] | None) -> Case:
    loop = loop_of(settings, described)
    devices, model, batch, hyper = loop.placement.devices, settings.model, settings.data.batch_size, hyper_of(settings)
    mesh = f" over {settings.parallel.mesh}" if settings.parallel.mesh else ""
    return Case(
        what=f"train: {model.name}, width {model.width}, depth {model.depth}, {model.options['dtype']}, "
        f"{settings.optimizer.name}, batch {batch}, {steps_of(settings):,} steps, by {settings.parallel.wrapper}{mesh}",
        unit="examples",
        devices=devices,
        share=len(devices),
        hyper=hyper,
        asked=batch // len(devices),
        of=lambda each: loop_of(put(settings, {"data.batch_size": each * len(devices)}), described),
        state=jax.eval_shape(loop.task.init, hyper.arrays()),
        flops=flops.of_step(loop.task, hyper, batch) / batch,
    )


def _sweep(settings: Settings, described: Sequence[jax.Device] | None) -> Case:
    """The group of the sweep whose steps have the most operations."""
    study = ConfigStudy(settings)
    devices, trials = described or jax.local_devices(), checked_trials(study)
    if described:  # a sweep's process has the devices of its host, and shares no array with others
        devices = [device for device in devices if device.process_index == devices[0].process_index]
    groups = grouped(study, trials, lambda program: 1 if settings.parallel.axes else settings.sweep.at_once or AT_ONCE)
    dear = max(groups, key=Estimator().work)
    point = dear.point
    assert isinstance(point, ConfigPoint)
    s, model = point.settings, point.settings.model
    task, batches = task_of(s), batches_of(s)
    share = check_sets(s.parallel, len(devices))
    sets, hyper = len(devices) // share, hyper_of(s)
    asked = -(-max(len(group.trials) for group in groups if group.program == dear.program) // sets)

    def loop(each: int) -> TrialLoop:
        return TrialLoop(task, batches, placement(s.parallel, each * sets, devices, described is not None))

    return Case(
        what=f"sweep: {len(trials):,} trials; the dearest: {model.name}, width {model.width}, depth {model.depth}, "
        f"{model.options['dtype']}, {s.optimizer.name}, batch {s.data.batch_size}",
        unit="trials",
        devices=devices,
        share=share,
        hyper=hyper,
        asked=asked,
        of=loop,
        state=jax.eval_shape(task.init, hyper.arrays()),
        flops=flops.of_step(task, hyper, batches.batch_size) / share,
    )
