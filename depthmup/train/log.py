"""What a run says while it trains: a progress bar or lines, metrics.jsonl, TensorBoard."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from depthmup.train.workdir import Lines, Row

METRICS = "metrics.jsonl"


class RunLog:
    """The progress of one run, as `TrialLoop.run` reports it.

    On a terminal a bar, else a line per report. With a workdir each report is a row of `metrics.jsonl`, and goes to
    TensorBoard if tensorflow and tensorboard are installed. Rows of steps that are done again after a kill are dropped.
    Where the disk is full they are said to be lost, and the run goes on.

    Args:
      steps: of the whole training. batch_size: examples per step.
      devices: that share the work. flops: of a step; peak: per second of a device; None where not known.
      waited: seconds spent on waiting for input, so far.
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
        self._path = workdir / METRICS if workdir else None
        self._lines = Lines(self._path, "delete that line") if self._path else None
        self._board = _tensorboard(workdir) if workdir else None
        self._bar = tqdm(total=steps, disable=not sys.stderr.isatty(), leave=False, dynamic_ncols=True)
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
        if self._clock:  # not of the first report, which waits for the compiler
            seconds = now[0] - self._clock[0]
            row["images_per_second"] = count * self._batch_size / seconds
            row["images_per_second_per_device"] = row["images_per_second"] / self._devices
            row["input_wait"] = (now[1] - self._clock[1]) / seconds
            if self._share:
                row["mfu"] = self._share * count / seconds
        self._clock = now
        rate = f", {row['images_per_second']:,.0f} images/s" if "images_per_second" in row else ""
        self._show(step, f"loss {row['loss']:.4f}{rate}")
        self._write(row)

    def _evaluated(self, step: int, metrics: Mapping[str, np.ndarray]) -> None:
        row = {"step": step, **{name: float(values[0]) for name, values in metrics.items()}}
        self.say(f"step {step}/{self._steps}: " + ", ".join(f"{k} {v:.4f}" for k, v in row.items() if k != "step"))
        self._write(row)
        self._clock = (time.perf_counter(), self._waited())

    def finished(self, metrics: Mapping[str, Any]) -> None:
        """The metrics of the end, one number each."""
        self._drop(self._steps)
        self._write({"step": self._steps, **metrics}, "final/")

    def say(self, text: str) -> None:
        """A line above the bar."""
        if self._bar.disable:
            print(text, flush=True)
        else:
            self._bar.write(text)

    def close(self) -> None:
        self._bar.close()
        if self._lines:
            self._lines.close()
        if self._board:
            self._board.close()

    def _show(self, step: int, text: str) -> None:
        if self._bar.disable:
            print(f"step {step}/{self._steps}: {text}", flush=True)
        else:
            self._bar.set_postfix_str(text, refresh=False)
            self._bar.update(step - self._bar.n)

    def _write(self, row: Row, prefix: str = "") -> None:
        if self._lines:
            try:
                self._lines.append([row], sync=False)  # the disk need not be waited for
            except OSError as error:
                self.say(f"{self._path}: the row of step {row['step']} is lost: {error}")
        if self._board:
            self._board.write_scalars(row["step"], {prefix + k: v for k, v in row.items() if k != "step"})

    def _drop(self, step: int) -> None:
        """Rows after this step, and those of the end: they come again."""
        if self._lines:
            self._lines.keep(lambda row: row["step"] <= step and "test_loss" not in row)


def _tensorboard(workdir: Path) -> Any:
    """clu's writer; None without what it needs."""
    if not all(importlib.util.find_spec(name) for name in ("tensorflow", "tensorboard")):
        return None
    from clu import metric_writers

    return metric_writers.AsyncWriter(metric_writers.SummaryWriter(str(workdir)))
