"""The one place that knows about devices: trials are split over them by `pmap` and mapped within each."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

PyTree = Any


def trial_layout(convolutional: bool = False) -> str:
    """How the trials of one device share it.

    "map", `lax.map`, on a CPU: one trial after another is faster there, and equals a lone trial bit for bit.
    "turn", a Python loop over trials and steps, for convolutions on a CPU: inside a loop of the program XLA runs them
    60 times slower, and mapped ones 5 times (docs/design.md section 3). "vmap" elsewhere.
    """
    if jax.default_backend() != "cpu":
        return "vmap"
    return "turn" if convolutional else "map"


def scan_blocks(convolutional: bool = False) -> bool:
    """Scan over equal blocks (compile time flat in depth), except convolutions on a CPU, for the reason above."""
    return not convolutional or jax.default_backend() != "cpu"


class TrialMap:
    """Maps functions of one trial over many: `pmap` over devices outermost, the layout inside.

    Trial arrays have two leading axes, (devices, trials per device); in the layout "turn" they are lists, one for each
    turn, of arrays with the axis (devices,). `split` makes them and `join` undoes it.
    """

    def __init__(self, trials: int, layout: str | None = None, devices: Sequence[jax.Device] | None = None) -> None:
        available = list(devices or jax.local_devices())
        self.trials = trials
        self.devices = available[: min(trials, len(available))]
        self.per_device = -(-trials // len(self.devices))
        self.layout = layout or trial_layout()

    def split(self, trees: Sequence[PyTree]) -> PyTree:
        """One tree per trial -> a tree of arrays (devices, trials per device, ...), filled up with the last trial."""
        filled = [*trees, *[trees[-1]] * (len(self.devices) * self.per_device - self.trials)]
        trials = jax.tree.map(lambda *leaves: self._fold(np.stack(leaves)), *filled)
        if self.layout == "turn":
            return [jax.tree.map(lambda leaf, i=i: leaf[:, i], trials) for i in range(self.per_device)]
        return trials

    def join(self, tree: PyTree) -> PyTree:
        """Trial arrays -> (trials, ...) NumPy arrays."""
        if self.layout == "turn":
            tree = jax.tree.map(lambda *turns: np.stack([np.asarray(turn) for turn in turns], axis=1), *tree)
        return jax.tree.map(lambda leaf: np.asarray(leaf).reshape(-1, *leaf.shape[2:])[: self.trials], tree)

    def replicate(self, tree: PyTree) -> PyTree:
        """Arrays onto all devices at once, for what `over` shares in every call."""
        mesh = jax.sharding.Mesh(self.devices, ("trials",), axis_types=(jax.sharding.AxisType.Auto,))
        return jax.device_put(tree, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec()))

    def over(self, function: Callable[..., PyTree], mapped: int, shared: int = 0, donate: bool = False) -> Any:
        """`function` over trials: its first `mapped` arguments have one value per trial, the `shared` last one for all.

        donate: the first argument's buffers become the first result's.
        In the layout "turn" a list of results, one for each turn.
        """
        axes = (0,) * mapped + (None,) * shared
        pmap = functools.partial(jax.pmap, in_axes=axes, devices=self.devices, donate_argnums=(0,) if donate else ())
        if self.layout == "turn":
            together = pmap(function)

            def in_turn(*arguments: PyTree) -> list[PyTree]:
                turns = zip(*arguments[:mapped], strict=True)
                return [together(*turn, *arguments[mapped:]) for turn in turns]

            return in_turn

        def per_device(*arguments: PyTree) -> PyTree:
            trial, common = arguments[:mapped], arguments[mapped:]
            if self.layout == "map":
                return jax.lax.map(lambda t: function(*t, *common), trial)
            return jax.vmap(lambda *t: function(*t, *common))(*trial)

        return pmap(per_device)

    def _fold(self, leaf: np.ndarray) -> np.ndarray:
        return leaf.reshape(len(self.devices), self.per_device, *leaf.shape[1:])
