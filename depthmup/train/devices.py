"""Trials, or the parts of a batch, split over devices by `pmap` or by `jit` over a mesh.

Only this module knows about devices. A placement says which device computes what: `TrialsOverDevices` gives each
device, or each set of devices, some of the trials; `BatchOverDevices` gives each device a part of every batch, and
`StateOverDevices` a part of the state too.
`Placement.over` turns a function of one trial into a function of all trials. The arrays of this function lie on the
devices in the placement's own layout: `put` makes these arrays from NumPy arrays, and `get` reads them back.
"""

from __future__ import annotations

import abc
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args

import jax
import numpy as np
from jax.experimental import mesh_utils, multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jax.tree_util import tree_map_with_path

from depthmup.models.layers import BATCH_AXIS, FSDP_AXIS, MESH_AXES
from depthmup.models.stack import SCANNED
from depthmup.names import unknown
from depthmup.rules.specs import PyTree
from depthmup.settings import ParallelSettings, SettingsError, Wrapper

Function = Callable[..., PyTree]
Layout = Literal["map", "vmap"]  # of several trials on one device
REPLICATED = PartitionSpec()


def trial_layout(platform: str | None = None) -> Layout:
    """How several trials share one device: "map" on a CPU, "vmap" elsewhere.

    platform: that of the devices, "cpu", "gpu" or "tpu"; None: of JAX's default backend.

    "map" is `lax.map`: one trial after another. On a CPU it is faster than `vmap`, and each trial's numbers equal those
    of a lone trial bit for bit.
    """
    return "map" if (platform or jax.default_backend()) == "cpu" else "vmap"


def part_of_state(path: Sequence[Any], shape: Sequence[int], parts: int) -> PartitionSpec:
    """How an array of the state is split into so many parts over FSDP_AXIS: along its largest axis that they divide.

    path: its keys in the tree. Of scanned blocks the axis over blocks comes last, since a step takes one block after
    another. Vectors, those of each block among them, stay whole: they are small.
    """
    stacked = any(SCANNED.fullmatch(jax.tree_util.keystr((key,), simple=True)) for key in path)
    axes = [axis for axis, size in enumerate(shape) if size % parts == 0]
    if parts == 1 or not axes or len(shape) - stacked < 2:
        return REPLICATED
    axis = max(axes, key=lambda axis: (not (stacked and axis == 0), shape[axis]))
    return PartitionSpec(*[None] * axis, FSDP_AXIS)


def split_state(tree: PyTree) -> PyTree:
    """State, or gradients, with each array split as `part_of_state` says over the mesh in whose context this is traced;
    without one as it is."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.axis_names != MESH_AXES:
        return tree
    parts = mesh.shape[FSDP_AXIS]
    return tree_map_with_path(
        lambda path, leaf: jax.lax.with_sharding_constraint(leaf, part_of_state(path, leaf.shape, parts)), tree
    )


class Placement(abc.ABC):
    """What the three placements have in common.

    trials: number of trials that are trained together.
    devices: the devices of all processes. local: the devices of this process; all of them where devices are only
      described (`jax.experimental.topologies`), since then this process stands for every other one.
    parts: number of devices that share a batch.
    shard: (index of this process, number of processes), for the processes that share a batch.
    skips_frozen: whether a frozen trial costs no time. It costs none where a device computes one trial at a time.
    """

    axis: str
    skips_frozen: bool
    parts = 1
    shard = (0, 1)

    def __init__(self, trials: int, devices: Sequence[jax.Device], wrapper: Wrapper, described: bool = False) -> None:
        if wrapper not in get_args(Wrapper):
            raise unknown("wrapper", wrapper, get_args(Wrapper))
        self.trials, self.devices, self.wrapper = trials, list(devices), wrapper
        self.local = [device for device in devices if described or device.process_index == jax.process_index()]
        # Arrays of pmap lie on the devices of this process only, arrays of jit on the devices of all processes.
        mesh_devices = np.array(self.local if wrapper == "pmap" else self.devices)
        self.mesh = Mesh(mesh_devices, (self.axis,), axis_types=(AxisType.Auto,))

    def replicate(self, tree: PyTree) -> PyTree:
        """A copy of the arrays on every device, for arguments that are the same for all trials and parts."""
        return self.place(tree, PartitionSpec())

    def place(self, tree: PyTree, spec: PartitionSpec) -> PyTree:
        """Arrays of this process -> arrays on the mesh. Of a batch, this process has only its own part."""
        sharding = NamedSharding(self.mesh, spec)
        if sharding.is_fully_addressable:
            return jax.device_put(tree, sharding)
        return jax.tree.map(functools.partial(jax.make_array_from_process_local_data, sharding), tree)

    def pmap(self, function: Function, in_axes: tuple[Any, ...], out_axes: Any, donate: bool) -> Function:
        return jax.pmap(
            function,
            axis_name=self.axis,
            in_axes=in_axes,
            out_axes=out_axes,
            devices=None if self.devices == jax.devices() else self.devices,
            donate_argnums=(0,) if donate else (),
        )

    def greatest(self) -> Callable[[int], Any]:
        """A function: a number of this process -> the largest number of all processes, in an array to read later."""
        greatest = jax.pmap(lambda number: jax.lax.pmax(number, self.axis), axis_name=self.axis, out_axes=None)
        return lambda number: greatest(np.full(len(self.local), number, np.int32))

    @abc.abstractmethod
    def put(self, trees: Sequence[PyTree]) -> PyTree:
        """One tree of NumPy arrays per trial -> one tree of arrays on the devices."""

    @abc.abstractmethod
    def get(self, tree: PyTree) -> PyTree:
        """Arrays on the devices -> NumPy arrays (trials, ...)."""

    @abc.abstractmethod
    def spread(self, batch: PyTree) -> PyTree:
        """This process's part of a batch -> a batch argument for the functions that `over` returns."""

    @abc.abstractmethod
    def shapes(self, one: PyTree) -> PyTree:
        """The shapes and shardings of what `put` makes of trees like `one`, of arrays or shapes, without the arrays."""

    @abc.abstractmethod
    def spread_shapes(self, batch: PyTree) -> PyTree:
        """The shapes and shardings of what `spread` makes of a batch of arrays or shapes, without the arrays."""

    def shape(self, leaf: Any, spec: PartitionSpec = REPLICATED, axes: tuple[int, ...] = ()) -> jax.ShapeDtypeStruct:
        """An array of this leaf's shape behind further `axes`, on the mesh."""
        sharding = None if self.wrapper == "pmap" else NamedSharding(self.mesh, spec)
        return jax.ShapeDtypeStruct((*axes, *np.shape(leaf)), leaf.dtype, sharding=sharding)

    @abc.abstractmethod
    def over(self, function: Function, trial: int, batch: int = 0, shared: int = 0, donate: bool = False) -> Function:
        """Turn a function of one trial into a function of all trials.

        The first `trial` arguments have a value for each trial (made by `put`), the next `batch` arguments are batches
        (made by `spread`), and the last `shared` arguments are the same for all trials and devices.
        donate: the first result may reuse the buffers of the first argument.
        """


def check_sets(parallel: ParallelSettings, devices: int) -> int:
    """How many devices share a trial of a sweep. Raises SettingsError if so many do not split into such sets."""
    if parallel.axes:
        check_mesh(parallel, devices)
    if devices % parallel.share:
        raise SettingsError(
            f"{devices} devices cannot be split into sets of {parallel.share} that share a trial: "
            f"set parallel.devices_per_trial to a divisor of {devices}"
        )
    return parallel.share


def check_mesh(parallel: ParallelSettings, devices: int) -> None:
    """Raises SettingsError if a mesh is not one of so many devices."""
    if parallel.share != devices:
        raise SettingsError(
            f"parallel.mesh = {parallel.mesh!r} is of {parallel.share} devices, and there are {devices}: choose sizes "
            f"whose product is {devices}"
        )


class TrialsOverDevices(Placement):
    """Each device trains some of the trials and sees whole batches; or each set of `share` devices does, and a device
    sees its part of them.

    Arrays with a value for each trial are (sets, trials per set, ...). The devices of a set hold the same numbers, and
    the function runs on each part of a batch inside the axis `BATCH_AXIS`, as in `BatchOverDevices` by "pmap".

    layout: how trials share a device, "map" or "vmap"; None: `trial_layout` of the devices.
    share: number of devices of a set. `pmap` has one axis of devices: with more than one the wrapper must be "jit".
    described: as in `Placement.local`.
    """

    axis = "trials"

    def __init__(
        self,
        trials: int,
        devices: Sequence[jax.Device] | None = None,
        wrapper: Wrapper = "pmap",
        layout: Layout | None = None,
        share: int = 1,
        described: bool = False,
    ) -> None:
        available = list(devices or jax.local_devices())
        check_sets(ParallelSettings(devices_per_trial=share), len(available))
        super().__init__(trials, available[: min(trials * share, len(available))], wrapper, described)
        self.layout = layout or trial_layout(self.devices[0].platform)
        self.parts, self.sets = share, len(self.devices) // share
        self.per_set = -(-trials // self.sets)
        # Sets of several devices would leave their loops, in which they sum, at different steps: only tried on a CPU.
        self.skips_frozen = self.layout == "map" or (self.per_set == 1 and share == 1)
        self._split = REPLICATED
        if share > 1:
            if wrapper != "jit":
                raise ValueError(f"a trial on {share} devices needs the wrapper 'jit', got {wrapper!r}")
            self.mesh = Mesh(
                np.array(self.devices).reshape(self.sets, share),
                (self.axis, BATCH_AXIS),
                axis_types=(AxisType.Auto,) * 2,
            )
            self._split = PartitionSpec(BATCH_AXIS)

    def put(self, trees: Sequence[PyTree]) -> PyTree:
        # Copies of the last trial fill the places that are left over. Neighbouring trials lie on different sets:
        # they have similar learning rates, so they diverge together, and a frozen trial may cost no time.
        shape = self.per_set, self.sets
        filled = [*trees, *[trees[-1]] * (shape[0] * shape[1] - self.trials)]

        def fold(*leaves: Any) -> np.ndarray:
            return np.stack(leaves).reshape(*shape, *np.shape(leaves[0])).swapaxes(0, 1)

        return self.place(jax.tree.map(fold, *filled), PartitionSpec(self.axis))

    def get(self, tree: PyTree) -> PyTree:
        def unfold(leaf: Any) -> np.ndarray:
            return np.asarray(leaf).swapaxes(0, 1).reshape(-1, *leaf.shape[2:])[: self.trials]

        return jax.tree.map(unfold, tree)

    def spread(self, batch: PyTree) -> PyTree:
        return batch if self.parts == 1 else self.place(batch, self._split)

    def shapes(self, one: PyTree) -> PyTree:
        axes = self.sets, self.per_set
        return jax.tree.map(lambda leaf: self.shape(leaf, PartitionSpec(self.axis), axes), one)

    def spread_shapes(self, batch: PyTree) -> PyTree:
        return jax.tree.map(lambda leaf: self.shape(leaf, self._split), batch)

    def over(self, function: Function, trial: int, batch: int = 0, shared: int = 0, donate: bool = False) -> Function:
        def of_device(*arguments: PyTree) -> PyTree:
            trials, common = arguments[:trial], arguments[trial:]
            if self.per_set == 1:  # a loop would copy the arrays, vmap would make grouped convolutions
                alone = function(*jax.tree.map(lambda leaf: leaf[0], trials), *common)
                return jax.tree.map(lambda leaf: leaf[None], alone)
            if self.layout == "map":
                return jax.lax.map(lambda one: function(*one, *common), trials)
            return jax.vmap(lambda *one: function(*one, *common))(*trials)

        if self.wrapper == "pmap":
            return self.pmap(of_device, (0,) * trial + (None,) * (batch + shared), 0, donate)

        def of_shard(*arguments: PyTree) -> PyTree:
            trial_arguments = jax.tree.map(lambda leaf: leaf[0], arguments[:trial])
            return jax.tree.map(lambda leaf: leaf[None], of_device(*trial_arguments, *arguments[trial:]))

        over_trials = PartitionSpec(self.axis)
        sharded = jax.shard_map(
            of_shard,
            mesh=self.mesh,
            in_specs=(over_trials,) * trial + (self._split,) * batch + (REPLICATED,) * shared,
            out_specs=over_trials,
            check_vma=False,
        )
        return jax.jit(sharded, donate_argnums=(0,) if donate else ())


class BatchOverDevices(Placement):
    """One trial, on every device of every process; each device sees its part of each batch.

    With the wrapper "pmap" the function runs on each part inside the axis `BATCH_AXIS`: a training step averages
    gradients over this axis, and batch norm averages its statistics over it. With the wrapper "jit" XLA partitions the
    program of the whole batch. The trial's arrays have no device axis: they are the same on all devices.
    """

    axis = BATCH_AXIS
    skips_frozen = True

    def __init__(
        self, devices: Sequence[jax.Device] | None = None, wrapper: Wrapper = "pmap", described: bool = False
    ) -> None:
        super().__init__(1, devices or jax.devices(), wrapper, described)
        self.parts = len(self.devices)
        self.shard = (0, 1) if described else (jax.process_index(), jax.process_count())
        self._split = PartitionSpec(self.axis)

    def put(self, trees: Sequence[PyTree]) -> PyTree:
        (tree,) = trees
        return self.replicate(jax.tree.map(np.asarray, tree))

    def get(self, tree: PyTree) -> PyTree:
        return jax.tree.map(lambda leaf: np.asarray(leaf)[None], tree)

    def spread(self, batch: PyTree) -> PyTree:
        if self.wrapper == "jit":
            return self.place(batch, self._split)
        return jax.tree.map(lambda leaf: leaf.reshape(len(self.local), -1, *leaf.shape[1:]), batch)

    def shapes(self, one: PyTree) -> PyTree:
        return jax.tree.map(self.shape, one)

    def spread_shapes(self, batch: PyTree) -> PyTree:
        if self.wrapper == "jit":
            return jax.tree.map(lambda leaf: self.shape(leaf, self._split), batch)
        return jax.eval_shape(self.spread, batch)

    def over(self, function: Function, trial: int, batch: int = 0, shared: int = 0, donate: bool = False) -> Function:
        if self.wrapper == "jit" or not batch:  # without a batch there is nothing to split
            whole = NamedSharding(self.mesh, PartitionSpec())

            def on_mesh(*arguments: PyTree) -> PyTree:
                with jax.sharding.use_abstract_mesh(self.mesh.abstract_mesh):  # kernels have to be split over it
                    return function(*arguments)

            return jax.jit(on_mesh, out_shardings=whole, donate_argnums=(0,) if donate else ())
        return self.pmap(function, (None,) * trial + (0,) * batch + (None,) * shared, None, donate)


class StateOverDevices(BatchOverDevices):
    """One trial, whose state is split over the axis "fsdp" of a mesh (`part_of_state`), and its batches over all axes.

    XLA gathers a weight where a device needs it whole, and hands to each device its part of the gradient's sum.

    axes: size of the mesh along some of MESH_AXES; their product is the number of devices.
    """

    def __init__(
        self, axes: Mapping[str, int], devices: Sequence[jax.Device] | None = None, described: bool = False
    ) -> None:
        super().__init__(devices, "jit", described)
        shape = [axes.get(axis, 1) for axis in MESH_AXES]
        if unknown_axes := axes.keys() - set(MESH_AXES):
            raise unknown("axis of the mesh", min(unknown_axes), MESH_AXES)
        if math.prod(shape) != len(self.devices):
            raise ValueError(f"a mesh of {math.prod(shape)} devices cannot be made of {len(self.devices)}")
        arranged = mesh_utils.create_device_mesh(shape, self.devices, allow_split_physical_axes=True)
        self.mesh = Mesh(arranged, MESH_AXES, axis_types=(AxisType.Auto,) * 2)
        self._split = PartitionSpec(MESH_AXES)

    def put(self, trees: Sequence[PyTree]) -> PyTree:
        (tree,) = trees

        def placed(path: Any, leaf: Any) -> jax.Array:
            array = np.asarray(leaf)
            return jax.make_array_from_callback(array.shape, self._sharding(path, array), array.__getitem__)

        return tree_map_with_path(placed, tree)

    def get(self, tree: PyTree) -> PyTree:
        """As every placement; every process has to call it, since each has only its part of the arrays."""

        def whole(leaf: Any) -> np.ndarray:
            if not (leaf.is_fully_addressable or leaf.is_fully_replicated):
                leaf = multihost_utils.process_allgather(leaf, tiled=True)
            return np.asarray(leaf)[None]

        return jax.tree.map(whole, tree)

    def shapes(self, one: PyTree) -> PyTree:
        return tree_map_with_path(lambda path, leaf: self.shape(leaf, self._sharding(path, leaf).spec), one)

    def over(self, function: Function, trial: int, batch: int = 0, shared: int = 0, donate: bool = False) -> Function:
        def on_mesh(*arguments: PyTree) -> PyTree:
            with jax.sharding.use_abstract_mesh(self.mesh.abstract_mesh):
                return split_state(function(*arguments))

        return jax.jit(on_mesh, donate_argnums=(0,) if donate else ())

    def _sharding(self, path: Any, leaf: Any) -> NamedSharding:
        return NamedSharding(self.mesh, part_of_state(path, np.shape(leaf), self.mesh.shape[FSDP_AXIS]))
