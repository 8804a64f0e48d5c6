"""The one place that knows about devices: what is split over them, by `pmap` or by `jit` over a mesh, and in which
layout the trials of one device share it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from depthmup.models.layers import BATCH_AXIS
from depthmup.parameterization import unknown

PyTree = Any
WRAPPERS = ("pmap", "jit")


def trial_layout() -> str:
    """How the trials of one device share it: on a CPU "map", `lax.map`, one trial after another, which is faster there
    and equals a lone trial bit for bit; elsewhere "vmap"."""
    return "map" if jax.default_backend() == "cpu" else "vmap"


class TrialMap:
    """Maps functions of one trial over many, on many devices.

    split: "trials", each device has some of the trials and sees whole batches; or "batch", every device of every
      process has all trials and sees its part of each batch (the axis `BATCH_AXIS`, over which a training step averages
      gradients and batch norm its statistics).
    wrapper: "pmap", or "jit" over a mesh: for "trials" by `shard_map`, for "batch" XLA partitions the program of the
      whole batch.

    layout: of trials on one device; None: `trial_layout()`.

    Trial arrays are (devices, trials per device, ...) for "trials", (trials, ...) and the same on all devices for
    "batch". `split` makes them and `join` undoes it.
    """

    def __init__(
        self,
        trials: int,
        layout: str | None = None,
        devices: Sequence[jax.Device] | None = None,
        split: str = "trials",
        wrapper: str = "pmap",
    ) -> None:
        if wrapper not in WRAPPERS:
            raise unknown("wrapper", wrapper, WRAPPERS)
        self.trials, self.wrapper, self.by_batch = trials, wrapper, split == "batch"
        self.layout = layout or trial_layout()
        if self.by_batch:
            self.devices = list(devices or jax.devices())
            self.per_device = trials
        else:
            available = list(devices or jax.local_devices())
            self.devices = available[: min(trials, len(available))]
            self.per_device = -(-trials // len(self.devices))
        self.local = [d for d in self.devices if d.process_index == jax.process_index()]
        # pmap's arrays live on the devices of this process alone, those of jit on all.
        self._mesh = self._mesh_of(self.local if wrapper == "pmap" else self.devices)

    def split(self, trees: Sequence[PyTree]) -> PyTree:
        """One tree per trial -> trial arrays on the devices; filled up with the last trial if need be."""
        if self.by_batch:
            return self.replicate(jax.tree.map(lambda *leaves: np.stack(leaves), *trees))
        filled = [*trees, *[trees[-1]] * (len(self.devices) * self.per_device - self.trials)]
        return self._place(
            jax.tree.map(lambda *leaves: self._fold(np.stack(leaves)), *filled), PartitionSpec(self._axis)
        )

    def join(self, tree: PyTree) -> PyTree:
        """Trial arrays -> (trials, ...) NumPy arrays."""
        if self.by_batch:
            return jax.tree.map(np.asarray, tree)
        return jax.tree.map(
            lambda leaf: np.asarray(leaf).swapaxes(0, 1).reshape(-1, *leaf.shape[2:])[: self.trials], tree
        )

    def replicate(self, tree: PyTree) -> PyTree:
        """Arrays onto all devices at once, for what `over` shares in every call."""
        return self._place(tree, PartitionSpec())

    def spread(self, batch: PyTree) -> PyTree:
        """This process's part of a batch -> what `over` takes as a batch: leaves (examples, ...) over its devices."""
        if not self.by_batch:
            return batch
        if self.wrapper == "pmap":
            return jax.tree.map(lambda leaf: leaf.reshape(len(self.local), -1, *leaf.shape[1:]), batch)
        return self._place(batch, PartitionSpec(self._axis))

    def over(
        self, function: Callable[..., PyTree], trial: int, batch: int = 0, shared: int = 0, donate: bool = False
    ) -> Any:
        """`function` over trials. Its first `trial` arguments have one value per trial, the next `batch` are batches
        (of `spread`), and the `shared` last are the same for all.

        donate: the first argument's buffers become the first result's.
        """

        def layout(*arguments: PyTree) -> PyTree:
            trials, common = arguments[:trial], arguments[trial:]
            if self.per_device == 1:  # no copy into a loop and out of it, and no grouped convolution
                alone = function(*jax.tree.map(lambda leaf: leaf[0], trials), *common)
                return jax.tree.map(lambda leaf: leaf[None], alone)
            if self.layout == "map":
                return jax.lax.map(lambda t: function(*t, *common), trials)
            return jax.vmap(lambda *t: function(*t, *common))(*trials)

        return self._wrapped(layout, trial, batch, shared, (0,) if donate else ())

    def _wrapped(self, inside: Callable[..., PyTree], trial: int, batch: int, shared: int, donate: Any) -> Any:
        whole = NamedSharding(self._mesh, PartitionSpec())
        if self.by_batch and (self.wrapper == "jit" or not batch):  # without a batch there is nothing to split
            return jax.jit(inside, out_shardings=whole, donate_argnums=donate)
        if self.wrapper == "pmap":
            sides: tuple[Any, ...] = ((0,) * trial + (None,) * batch, 0)
            if self.by_batch:
                sides = ((None,) * trial + (0,) * batch, None)
            devices = None if self.devices == jax.devices() else self.devices
            return jax.pmap(
                inside,
                axis_name=self._axis,
                in_axes=sides[0] + (None,) * shared,
                out_axes=sides[1],
                devices=devices,
                donate_argnums=donate,
            )
        over_trials, everywhere = PartitionSpec(self._axis), PartitionSpec()

        def one_device(*arguments: PyTree) -> PyTree:
            one = jax.tree.map(lambda leaf: leaf[0], arguments[:trial])
            return jax.tree.map(lambda leaf: leaf[None], inside(*one, *arguments[trial:]))

        sharded = jax.shard_map(
            one_device,
            mesh=self._mesh,
            in_specs=(over_trials,) * trial + (everywhere,) * (batch + shared),
            out_specs=over_trials,
            check_vma=False,
        )
        return jax.jit(sharded, donate_argnums=donate)

    @property
    def _axis(self) -> str:
        return BATCH_AXIS if self.by_batch else "trials"

    def _mesh_of(self, devices: Sequence[jax.Device]) -> Mesh:
        return Mesh(np.array(devices), (self._axis,), axis_types=(AxisType.Auto,))

    def _place(self, tree: PyTree, spec: PartitionSpec) -> PyTree:
        """What every process has (or, of a batch, its part) -> arrays on the mesh."""
        sharding = NamedSharding(self._mesh, spec)
        if sharding.is_fully_addressable:
            return jax.device_put(tree, sharding)
        return jax.tree.map(functools.partial(jax.make_array_from_process_local_data, sharding), tree)

    def _fold(self, leaf: np.ndarray) -> np.ndarray:
        """Neighbours on different devices: trials of like learning rates diverge alike, and then take no time."""
        return leaf.reshape(self.per_device, len(self.devices), *leaf.shape[1:]).swapaxes(0, 1)
