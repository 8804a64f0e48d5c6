"""The output of a run while it trains: a progress bar or lines, metrics.jsonl, TensorBoard."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from depthmup import bucket
from depthmup.files import without_nan, write_atomically
from depthmup.train.workdir import Row, WorkdirError

METRICS = "metrics.jsonl"
EVERY = 30.0  # seconds between two writes of the rows into a bucket, at least
SHARE = 0.02  # of the time of a run that they may take


class RunLog:
    """Logs one run. A report is one call with the number of steps done and the metrics of a stretch of steps, or of an
    evaluation.

    On a terminal a bar shows the progress; elsewhere each report is a line. With a workdir each report is also a row of
    `metrics.jsonl`, and goes to TensorBoard if tensorflow and tensorboard are installed. After a kill some steps are
    trained again; their old rows are dropped. If the disk is full, a message names the row that is lost, and the run
    goes on. In a bucket rows are written now and then (`MetricsObject`), and nothing goes to TensorBoard.

    Args:
      steps: number of steps of the whole training.
      batch_size: examples per step.
      devices: number of devices that share the work.
      flops: operations of a step.
      peak: operations per second that a device can do; None if it is not known.
      waited: returns the seconds that the run has waited for input so far.
    """

    def __init__(
        self,
        workdir: Path | None,
        *,
        steps: int,
        batch_size: int,
        steps_per_epoch: int,
        devices: int,
        flops: float,
        peak: float | None,
        waited: Callable[[], float],
    ) -> None:
        self._steps, self._batch_size, self._per_epoch, self._devices = steps, batch_size, steps_per_epoch, devices
        self._share = flops / peak / devices if peak else None
        self._waited = waited
        self._file = metrics_file(workdir / METRICS) if workdir else None
        self._board = _tensorboard(workdir) if workdir and not bucket.in_bucket(workdir) else None
        self._drawn = sys.stderr.isatty()
        columns = BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}")
        console, both = Console(stderr=True), sys.stdout.isatty()
        self._bar = Progress(*columns, console=console, transient=True, disable=not self._drawn, redirect_stdout=both)
        self._task = self._bar.add_task("", total=steps)
        self._bar.start()
        self._began = False
        self._clock: tuple[float, float] | None = None  # time and seconds waited for input at the last report

    def __call__(self, step: int, metrics: Mapping[str, np.ndarray]) -> None:
        if "loss" not in metrics:
            self._evaluated(step, metrics)
            return
        count = metrics["loss"].shape[1]
        if not self._began:
            self._drop(step - count)
            self._began = True
        row: Row = {"step": step, "epoch": step / self._per_epoch}
        row |= {name: float(values[0].mean()) for name, values in metrics.items()}
        row["learning_rate"] = float(metrics["learning_rate"][0, -1])
        now = (time.perf_counter(), self._waited())
        if self._clock:  # the first report has no rate: its time is mostly compilation
            seconds = now[0] - self._clock[0]
            row["examples_per_second"] = count * self._batch_size / seconds
            row["examples_per_second_per_device"] = row["examples_per_second"] / self._devices
            row["input_wait"] = (now[1] - self._clock[1]) / seconds
            if self._share:
                row["mfu"] = self._share * count / seconds
        self._clock = now
        rate = f", {row['examples_per_second']:,.0f} examples/s" if "examples_per_second" in row else ""
        text = f"loss {row['loss']:.4f}{rate}"
        if self._drawn:
            self._bar.update(self._task, completed=step, description=text)
        else:
            print(f"step {step}/{self._steps}: {text}", flush=True)
        self._write(row)

    def _evaluated(self, step: int, metrics: Mapping[str, np.ndarray]) -> None:
        row = {"step": step, **{name: float(values[0]) for name, values in metrics.items()}}
        self.say(f"step {step}/{self._steps}: " + ", ".join(f"{k} {v:.4f}" for k, v in row.items() if k != "step"))
        self._write(row)
        self._clock = (time.perf_counter(), self._waited())

    def finished(self, metrics: Mapping[str, Any]) -> None:
        """Write the metrics at the end of training, one number each."""
        self._drop(self._steps)
        self._write({"step": self._steps, **metrics}, "final/")
        if self._file:
            self._file.flush()

    def flush(self) -> None:
        """Write the rows that are not written yet: a checkpoint is worth those of the steps before it."""
        if self._file:
            try:
                self._file.flush()
            except OSError as error:
                self.say(f"rows wait to be written: {error}")

    def say(self, text: str) -> None:
        """Print a line above the bar."""
        print(text, flush=True)

    def close(self) -> None:
        self._bar.stop()
        if self._file:
            self._file.close()
        if self._board:
            self._board.close()

    def _write(self, row: Row, prefix: str = "") -> None:
        if self._file:
            try:
                self._file.append(row)
            except OSError as error:
                what = "waits" if bucket.in_bucket(self._file.path) else "is lost"
                self.say(f"{self._file.path}: the row of step {row['step']} {what}: {error}")
        if self._board:
            self._board.write_scalars(row["step"], {prefix + k: v for k, v in row.items() if k != "step"})

    def _drop(self, step: int) -> None:
        """Drop the rows after this step and the row of the end: they will be written again."""
        if self._file:
            self._file.keep(lambda row: row["step"] <= step and "test_loss" not in row)


def metrics_file(path: Path) -> MetricsFile | MetricsObject:
    return MetricsObject(path) if bucket.in_bucket(path) else MetricsFile(path)


class MetricsFile:
    """A file to which one process appends JSON objects, one per line.

    A kill or a power cut may leave half a line at the end; it is removed when the file is opened. Raises WorkdirError
    for any other line that is not JSON.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        content = path.read_bytes() if path.exists() else b""
        self._whole = content.rfind(b"\n") + 1  # bytes of whole lines
        _check(path, content[: self._whole].splitlines())
        self._open()

    def _open(self) -> None:
        self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115 - held open: one append after another
        self._file.truncate(self._whole)

    def append(self, row: Row) -> None:
        """Add a row, with null for NaN. If this raises OSError (a full disk), no part of the row stays in the file."""
        content = json.dumps(without_nan(row)).encode() + b"\n"
        try:
            left = content
            while left:
                left = left[self._file.write(left) :]
        except OSError:
            self._file.truncate(self._whole)
            raise
        self._whole += len(content)

    def keep(self, wanted: Callable[[Row], bool]) -> None:
        """Keep only the rows for which `wanted` is true. The file is replaced in one atomic step."""
        lines = self.path.read_text().splitlines(keepends=True)
        kept = [line for line in lines if wanted(json.loads(line))]
        if len(kept) < len(lines):
            content = "".join(kept).encode()
            write_atomically(self.path, content)
            self._file.close()
            self._whole = len(content)
            self._open()

    def flush(self) -> None:
        """All rows are in the file already."""

    def close(self) -> None:
        self._file.close()


class MetricsObject:
    """Like `MetricsFile`, for an object of a bucket, to which nothing can be appended: it is written anew with all rows
    every EVERY seconds, at `flush`, and at the end. Rows that cannot be written stay for the next time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with bucket.errors(path):
            self._lines = path.read_bytes().splitlines() if path.exists() else []
        _check(path, self._lines)
        self._changed, self._failed, self._next = False, False, time.monotonic() + EVERY

    def append(self, row: Row) -> None:
        self._lines.append(json.dumps(without_nan(row)).encode())
        self._changed = True
        if time.monotonic() >= self._next:
            self.flush()

    def keep(self, wanted: Callable[[Row], bool]) -> None:
        """Keep only the rows for which `wanted` is true."""
        kept = [line for line in self._lines if wanted(json.loads(line))]
        self._changed |= len(kept) < len(self._lines)
        self._lines = kept

    def flush(self) -> None:
        """Write all rows, if some are new. Raises OSError."""
        if not self._changed:
            return
        start, self._failed = time.monotonic(), True
        try:
            write_atomically(self.path, b"".join(line + b"\n" for line in self._lines))
            self._changed = self._failed = False
        finally:
            end = time.monotonic()
            self._next = end + max(EVERY, (end - start) / SHARE)

    def close(self) -> None:
        if not self._failed:  # it takes half a minute to fail
            with contextlib.suppress(OSError):
                self.flush()


def _check(path: Path, lines: Sequence[bytes]) -> None:
    for number, line in enumerate(lines, 1):
        try:
            json.loads(line)["step"]
        except (ValueError, TypeError, KeyError) as error:
            raise WorkdirError(f"{path} line {number} is not JSON of a step: delete that line") from error


def _tensorboard(workdir: Path) -> Any:
    """clu's TensorBoard writer; None if tensorflow or tensorboard is not installed."""
    if not all(importlib.util.find_spec(name) for name in ("tensorflow", "tensorboard")):
        return None
    from clu import metric_writers

    return metric_writers.AsyncWriter(metric_writers.SummaryWriter(str(workdir)))
