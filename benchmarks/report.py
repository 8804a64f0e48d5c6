"""The report of a sweep of 10,000 trials: seconds to write it, its size, and seconds to open it in a browser.

    python -m benchmarks.report

The rows are made up, with learning curves of 100 steps. A page is open when the plots in its window are drawn; where
there is no chromium, nothing is opened. `live` is the page while the sweep runs.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np
import pandas

from configs import default
from depthmup.backend import prepare_cpu
from depthmup.report import page
from depthmup.report.curves import finished, judge
from depthmup.settings import column, from_config, put
from depthmup.trials.config_study import ConfigStudy
from depthmup.trials.plan import trials
from depthmup.trials.store import Finished, Store
from depthmup.trials.study import SCHEMA, Row, Study
from tests import browser

STEPS = 100  # of a learning curve
OPENED = 5  # times
DRAWN = """[...document.querySelectorAll('.canvas')].every(
  (canvas) => !canvas.checkVisibility() || canvas.getBoundingClientRect().top > innerHeight
    || canvas.querySelector('.main-svg'))"""


def made_up() -> tuple[Study, list[Row]]:
    """A sweep of 10,260 trials in 12 curves."""
    config = default.get_config()
    config.sweep.update(seeds=10, depths=(2, 4, 8, 16, 32, 64))
    study = ConfigStudy(put(from_config(config), {"model.width": 128, "model.depth": 2}))
    rng, rows = np.random.default_rng(0), []
    for trial in trials(study):
        x = np.log2(trial.learning_rate) + 4
        losses = {"loss": float(np.exp(0.05 * x * x + 0.02 * rng.normal()) / 10), "diverged": False}
        columns = {column(key): value for key, value in trial.leaves.items()}
        rows.append({"key": trial.key, "schema": SCHEMA, **columns, "steps": STEPS, **losses})
    return study, rows


def written(study: Study, rows: list[Row], folder: Path) -> Path:
    store, step = Store(folder, study.identity), np.arange(1, STEPS + 1, dtype=np.int32)
    losses = np.random.default_rng(1).uniform(0.1, 1, (len(rows), STEPS)).astype(np.float32)
    histories = ({"step": step, "loss": loss, "grad_norm": loss} for loss in losses)
    store.add([Finished(row, history) for row, history in zip(rows, histories, strict=True)])
    store.close()
    start = time.perf_counter()
    table = pandas.DataFrame(rows)
    curves = judge(table, study)
    judged = time.perf_counter()
    path = page.write(curves, table, study, folder, "")
    done = time.perf_counter()
    print(f"{len(rows):,} trials, {len(curves)} curves: verdicts and laws {judged - start:.1f} s, pictures and page "
          f"{done - judged:.1f} s, {path.stat().st_size / 1e6:.2f} MB")  # fmt: skip
    return path


def live(study: Study, rows: list[Row], folder: Path) -> None:
    plan = trials(study)  # the sweep makes it once
    start = time.perf_counter()
    so_far = finished({row["key"]: row for row in rows}, study, plan)
    assert so_far
    unfinished = page.Unfinished("", 0.5, time.time())
    path = page.write(judge(*so_far), so_far[0], study, folder, "", unfinished)
    print(f"live: {time.perf_counter() - start:.1f} s, {path.stat().st_size / 1e6:.2f} MB")


def opened(path: Path, folder: Path) -> None:
    with browser.opened(folder / "profile") as window:
        for width in (1200, 400):
            seconds = []
            for _ in range(OPENED):
                window.open(Path("/dev/null"))
                start = time.perf_counter()
                window.open(path, width=width)
                window.wait(f"document.querySelector('.canvas') && {DRAWN}")
                seconds.append(time.perf_counter() - start)
            print(
                f"{width} pixels wide: open after {np.median(seconds):.1f} s ({min(seconds):.1f} to {max(seconds):.1f})"
            )


def main() -> None:
    study, rows = made_up()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = written(study, rows, folder)
        if browser.CHROMIUM:
            opened(path, folder)
        live(study, rows, folder)


if __name__ == "__main__":
    prepare_cpu(1)
    main()
