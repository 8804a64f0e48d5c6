"""Trials per minute of a sweep by the workers of an executor, against one process with as many devices.

    python -m benchmarks.executors        # about five minutes on two cores

The trials are those of `sweep_engine`'s residual MLP: 40 learning rates, of 44 SGD steps on the digits. They are
trained by this process on all cores, a device each, and by as many local workers, a core each; then by one worker,
which has all cores. Each way trains one seed beforehand, so that workers have begun and programs are compiled. The
engine's share of the time is 1 minus the ratio of the trials per minute.
"""

from __future__ import annotations

import tempfile
from concurrent.futures import Executor
from pathlib import Path

from benchmarks.sweep_engine import CORES, settings, timed
from depthmup.backend import prepare_cpu
from depthmup.trials.engine import train
from depthmup.trials.executors import Local

SEEDS, REPEATS, AT_ONCE = 16, 3, 20
RATES = 40


def trials_per_minute(executor: Executor | None) -> float:
    with tempfile.TemporaryDirectory() as folder:

        def run(seeds: int) -> None:
            sweep = settings("residual_mlp", seeds=seeds, at_once=AT_ONCE)
            train(sweep, Path(folder), progress=False, executor=executor)

        run(1)
        return 60 * RATES * (SEEDS - 1) / timed(lambda: run(SEEDS))


def main() -> None:
    prepare_cpu()
    for repeat in range(REPEATS):
        alone = trials_per_minute(None)
        print(f"{repeat}: one process on {CORES} cores: {alone:,.0f} trials a minute")
        for workers in dict.fromkeys((CORES, 1)):
            executor = Local(workers)
            try:
                rate = trials_per_minute(executor)
            finally:
                executor.shutdown(cancel_futures=True)
            print(
                f"{repeat}: {workers} local workers: {rate:,.0f}, {1 - rate / alone:+.1%} of the time is the engine's"
            )


if __name__ == "__main__":
    main()
