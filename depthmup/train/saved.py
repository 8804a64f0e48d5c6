"""What a checkpoint on the disk holds, and whether it is what was written."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from depthmup.train.workdir import digest

PyTree = Any
Flat = dict[str, np.ndarray]
FOLDER = "checkpoints"
METRIC = "validation_loss"


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be read; the message says what is wrong with it."""


def load(workdir: str | Path, best: bool = False) -> tuple[Flat, dict[str, Any]]:
    """A run's newest checkpoint, or its best on the validation split: ({path: array of one trial}, meta).

    Paths are those of `TrainState`: "params/blocks/dense/kernel". meta has "step", "identity" (the settings), "specs"
    and "metrics". Raises CheckpointError if there is none, or it is not whole.
    """
    path = (Path(workdir) / FOLDER).resolve()
    if not path.is_dir():
        raise CheckpointError(f"{path} is not there: the run has no checkpoint yet, or its workdir is another")
    options = ocp.CheckpointManagerOptions(create=False)  # read_only=True warns of what it implies
    with ocp.CheckpointManager(path, item_names=("state", "meta"), options=options) as manager:
        metas = {step: read_meta(manager, step) for step in sorted(manager.all_steps())}
        if best:
            metas = {step: meta for step, meta in metas.items() if METRIC in meta["metrics"]}
        if not metas:
            raise CheckpointError(f"{path} holds no checkpoint{' with a validation loss' if best else ''}")
        step = min(metas, key=lambda s: metas[s]["metrics"][METRIC]) if best else max(metas)
        state = read_state(manager, step, metas[step])
    return {name: leaf[0] for name, leaf in state.items()}, metas[step]


def read_meta(manager: ocp.CheckpointManager, step: int) -> dict[str, Any]:
    """Raises CheckpointError if it cannot be read or is not what was written."""
    try:
        meta = manager.restore(step, args=ocp.args.Composite(meta=ocp.args.JsonRestore())).meta
        written = meta.pop("digest")
    except Exception as error:  # whatever the reader raises for bytes that are not right
        raise CheckpointError(f"its JSON cannot be read ({first_line(error)})") from error
    if written != digest(meta):
        raise CheckpointError("its JSON is not what was written")
    return meta


def read_state(manager: ocp.CheckpointManager, step: int, meta: Mapping[str, Any]) -> Flat:
    """Raises CheckpointError if an array cannot be read or is not what was written."""
    try:
        state = manager.restore(step, args=ocp.args.Composite(state=ocp.args.StandardRestore())).state
    except Exception as error:
        raise CheckpointError(f"its arrays cannot be read ({first_line(error)})") from error
    # Orbax notices what is missing or cut off, but not a changed byte in an array.
    for path, written in meta["arrays"].items():
        if path not in state or describe(state[path]) != written:
            raise CheckpointError(f"{path} is not what was written")
    return state


def flatten(tree: PyTree) -> dict[str, Any]:
    """{"params/blocks/kernel": leaf}, in tree order."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def describe(leaf: np.ndarray) -> dict[str, Any]:
    """Shape, dtype and checksum of an array, as JSON."""
    content = np.ascontiguousarray(leaf).reshape(-1).view(np.uint8)
    return {"shape": list(leaf.shape), "dtype": str(leaf.dtype), "crc32": zlib.crc32(content.data)}


def first_line(error: Exception) -> str:
    """The kind of an error and the first line of what it says."""
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"[:500]
