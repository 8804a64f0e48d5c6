"""A folder of Orbax checkpoints of two items: "state", arrays by path, and "meta", JSON. Orbax is slow to import: this
module is imported where a checkpoint is read or written."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers

from depthmup import bucket

ITEMS = "state", "meta"


@dataclasses.dataclass(frozen=True)
class _Policy(checkpoint_managers.PreservationPolicy):
    staying: Callable[[Collection[int]], Collection[int]]

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
        steps = [checkpoint.step for checkpoint in checkpoints]
        staying = self.staying(steps)
        return [step in staying for step in steps]


def writer(path: Path, staying: Callable[[Collection[int]], Collection[int]]) -> ocp.CheckpointManager:
    """staying: the steps of all checkpoints -> the steps of those that stay."""
    options = ocp.CheckpointManagerOptions(
        create=False,
        cleanup_tmp_directories=True,
        preservation_policy=_Policy(staying),
        multiprocessing_options=ocp.options.MultiprocessingOptions(primary_host=0, active_processes={0}),
    )
    bucket.make(path)
    return ocp.CheckpointManager(path, item_names=ITEMS, options=options)


def reader(path: Path) -> ocp.CheckpointManager:
    options = ocp.CheckpointManagerOptions(create=False)  # read_only=True would print a warning
    return ocp.CheckpointManager(path, item_names=ITEMS, options=options)


def save(manager: ocp.CheckpointManager, step: int, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> None:
    items = ocp.args.Composite(state=ocp.args.StandardSave(arrays), meta=ocp.args.JsonSave(meta))
    manager.save(step, args=items)


def meta(manager: ocp.CheckpointManager, step: int) -> dict[str, Any]:
    return manager.restore(step, args=ocp.args.Composite(meta=ocp.args.JsonRestore())).meta


def arrays(manager: ocp.CheckpointManager, step: int) -> dict[str, np.ndarray]:
    return manager.restore(step, args=ocp.args.Composite(state=ocp.args.StandardRestore())).state
