"""Trainings of a coordinate check in a workdir, so that a check that was interrupted goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from depthmup.data.user_feed import digest_of
from depthmup.measure import Probe
from depthmup.measure.coordinate_check import Changes, Key
from depthmup.measure.probe import ALL
from depthmup.train.workdir import Workdir
from depthmup.trials.identity import HASHES, Hashes, difference, of_init, of_program, settings

TRAININGS = "trainings.jsonl"


class Kept(MutableMapping[Key, Changes]):
    """Trainings by their keys, each a line of a file. A line that a kill cut off is not read, and is trained again.

    Raises WorkdirError for a workdir of another model, batch or optimizer, or one that is in use.
    """

    def __init__(self, workdir: str | Path, batch: Any, hashes: Mapping[str, Hashes]) -> None:
        """hashes: `of_probe` of each shape of this check."""
        self._path = Path(workdir) / TRAININGS
        identity = {"check": {"batch": digest_of(batch)}, "jax": settings(), HASHES: dict(hashes)}
        self._workdir = Workdir(Path(workdir), identity, results=TRAININGS, shared=False, differs=difference)
        self._trainings: dict[Key, Changes] = {}
        lines = self._path.read_bytes().split(b"\n") if self._path.exists() else []
        for line in lines[:-1]:
            key, changes = json.loads(line)
            self._trainings[tuple(key)] = {name: np.asarray(table, np.float32) for name, table in changes.items()}
        if lines and lines[-1]:
            self._path.write_bytes(b"\n".join([*lines[:-1], b""]))

    def __getitem__(self, key: Key) -> Changes:
        return self._trainings[key]

    def __setitem__(self, key: Key, changes: Changes) -> None:
        tables = {name: np.asarray(table, np.float64).tolist() for name, table in changes.items()}
        with self._path.open("a") as file:
            file.write(json.dumps([key, tables]) + "\n")
        self._trainings[key] = changes

    def __delitem__(self, key: Key) -> None:
        raise TypeError("trainings are kept")

    def __iter__(self) -> Iterator[Key]:
        return iter(self._trainings)

    def __len__(self) -> int:
        return len(self._trainings)

    def close(self) -> None:
        self._workdir.close()


def of_probe(probe: Probe, fresh: Any) -> Hashes:
    """Hashes of what decides the trainings of a probe. fresh: a key -> (parameters, other arrays) of its start."""
    hyper = probe.hyper(ALL, 0)
    start = jax.eval_shape(probe.init, hyper)
    step = of_program("the training step", jax.make_jaxpr(probe.step)(start, probe.batch, hyper))
    closed, shapes = jax.make_jaxpr(fresh, return_shape=True)(jax.random.key(0))
    return {**of_init(closed, shapes[0]), **step}
