"""Trainings of a coordinate check in a workdir, so that a check that was interrupted goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from depthmup.data.user_feed import digest_of
from depthmup.files import digest, write_atomically
from depthmup.measure import Probe
from depthmup.measure.coordinate_check import Changes, Key
from depthmup.measure.probe import ALL
from depthmup.train.workdir import Workdir, WorkdirError
from depthmup.trials.identity import HASHES, Hashes, difference, of_init, of_program, settings

TRAININGS = "trainings.jsonl"


class Kept(MutableMapping[Key, Changes]):
    """Trainings by their keys, each a line of a file with its checksum. What a kill cut off, or what is damaged, is not
    read, and is trained again.

    Raises WorkdirError for a workdir of another model, batch or optimizer, or one that is in use or cannot be read.
    """

    def __init__(self, workdir: str | Path, batch: Any, hashes: Mapping[str, Hashes]) -> None:
        """hashes: `of_probe` of each shape of this check."""
        self._path = Path(workdir) / TRAININGS
        identity = {"check": {"batch": digest_of(batch)}, "jax": settings(), HASHES: dict(hashes)}
        self._workdir = Workdir(Path(workdir), identity, results=TRAININGS, shared=False, differs=difference)
        try:
            lines = self._path.read_bytes().split(b"\n") if self._path.exists() else [b""]
        except OSError as error:
            self._workdir.close()
            raise WorkdirError(f"{self._path} cannot be read ({error.strerror}): delete it") from error
        whole = [(line, training) for line in lines[:-1] if (training := _training(line))]
        self._trainings: dict[Key, Changes] = dict(training for _, training in whole)
        if len(whole) < len(lines) - 1 or lines[-1]:
            write_atomically(self._path, b"".join(line + b"\n" for line, _ in whole))

    def __getitem__(self, key: Key) -> Changes:
        return self._trainings[key]

    def __setitem__(self, key: Key, changes: Changes) -> None:
        tables = {name: np.asarray(table, np.float64).tolist() for name, table in changes.items()}
        with self._path.open("a") as file:
            file.write(json.dumps([key, tables, digest([key, tables])]) + "\n")
        self._trainings[key] = changes

    def __delitem__(self, key: Key) -> None:
        raise TypeError("trainings are kept")

    def __iter__(self) -> Iterator[Key]:
        return iter(self._trainings)

    def __len__(self) -> int:
        return len(self._trainings)

    def close(self) -> None:
        self._workdir.close()


def _training(line: bytes) -> tuple[Key, Changes] | None:
    """(key, changes) of a whole line."""
    try:
        key, changes, checksum = json.loads(line)
        tables = {name: np.asarray(table, np.float32) for name, table in changes.items()}
        is_whole = checksum == digest([key, changes]) and {t.shape for t in tables.values()} == {tuple(key[4:])}
    except (ValueError, TypeError, AttributeError):
        return None
    return (tuple(key), tables) if is_whole else None


def of_probe(probe: Probe, fresh: Any) -> Hashes:
    """Hashes of what decides the trainings of a probe. fresh: a key -> (parameters, other arrays) of its start."""
    hyper = probe.hyper(ALL, 0)
    start = jax.eval_shape(probe.init, hyper)
    step = of_program("the training step", jax.make_jaxpr(probe.step)(start, probe.batch, hyper))
    closed, shapes = jax.make_jaxpr(fresh, return_shape=True)(jax.random.key(0))
    return {**of_init(closed, shapes[0]), **step}
