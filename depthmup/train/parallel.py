"""The one place that knows about devices: trials are split over them by `pmap` and mapped within each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

PyTree = Any


def trial_layout() -> str:
    """On a CPU "map", `lax.map`: one trial after another is faster there, and equals a lone trial bit for bit."""
    return "map" if jax.default_backend() == "cpu" else "vmap"


class TrialMap:
    """Maps functions of one trial over many: `pmap` over devices outermost, `lax.map` or `vmap` inside.

    Trial arrays have two leading axes, (devices, trials per device); `split` makes them and `join` undoes it.
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
        return jax.tree.map(lambda *leaves: self._fold(np.stack(leaves)), *filled)

    def join(self, tree: PyTree) -> PyTree:
        """(devices, trials per device, ...) -> (trials, ...) NumPy arrays."""
        return jax.tree.map(lambda leaf: np.asarray(leaf).reshape(-1, *leaf.shape[2:])[: self.trials], tree)

    def over(self, function: Callable[..., PyTree], mapped: int, shared: int = 0, donate: bool = False) -> Any:
        """`function` over trials: its first `mapped` arguments have one value per trial, the last `shared` one for all.

        donate: the first argument's buffers become the first result's.
        """

        def per_device(*arguments: PyTree) -> PyTree:
            trial, common = arguments[:mapped], arguments[mapped:]
            if self.layout == "map":
                return jax.lax.map(lambda t: function(*t, *common), trial)
            return jax.vmap(lambda *t: function(*t, *common))(*trial)

        axes = (0,) * mapped + (None,) * shared
        return jax.pmap(per_device, in_axes=axes, devices=self.devices, donate_argnums=(0,) if donate else ())

    def _fold(self, leaf: np.ndarray) -> np.ndarray:
        return leaf.reshape(len(self.devices), self.per_device, *leaf.shape[1:])
