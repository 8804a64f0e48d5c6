"""The cost of the training loop: its time over the bare jitted step's, a checkpoint's pause, resuming, memory, devices.

    python -m benchmarks.training_loop

Takes about four minutes on two idle cores.
"""

from __future__ import annotations

import contextlib
import io
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from depthmup.backend import prepare_cpu

if __name__ == "__main__":
    prepare_cpu(8)


from configs import default
from depthmup.settings import Settings, from_config
from depthmup.train import BatchOverDevices, Hyper, TrialLoop
from depthmup.train.build import batches_of, examples, hyper_of, task_of
from depthmup.train.checkpoint import Checkpoints
from depthmup.train.log import RunLog
from depthmup.train.run import train_loop
from depthmup.train.step import FOREVER
from depthmup.train.stop import Stop

ROUNDS = 7
TURNS = 21


class Setup(NamedTuple):
    settings: Settings
    loop: TrialLoop
    hyper: Hyper


def setup(family: str, model: dict[str, Any], devices: int = 1, **options: Any) -> Setup:
    """A lone run that has no end. model: options of the family. options: other keys of the config."""
    config = default.get_config(family)
    config.model.update(model)
    config.optimizer.name, config.optimizer.learning_rate = "adam", 2.0**-10
    config.update(options)
    settings = from_config(config)
    loop = TrialLoop(task_of(settings), batches_of(settings), BatchOverDevices(jax.devices()[:devices]))
    return Setup(settings, loop, hyper_of(settings)._replace(steps=FOREVER))


def bare(made: Setup, steps: int) -> Callable[[], float]:
    """Seconds per step of the jitted training step alone, called on one batch that lies on the device."""
    task, batches = made.loop.task, batches_of(made.settings)
    step, device = jax.jit(task.step, donate_argnums=0), jax.devices()[0]
    hyper = jax.device_put(made.hyper.arrays(), device)
    batch = jax.device_put(examples(batches, batches.batch_size), device)

    def measure() -> float:
        state = jax.jit(task.init)(hyper)
        state, _ = step(state, batch, hyper)
        jax.block_until_ready(state)
        start = time.perf_counter()
        for _ in range(steps):
            state, _ = step(state, batch, hyper)
        jax.block_until_ready(state)
        return (time.perf_counter() - start) / steps

    return measure


def looped(made: Setup, steps: int) -> Callable[[], float]:
    """Seconds per step of the loop: batches, metrics every ten steps as lines and to metrics.jsonl."""
    loop = made.loop

    def measure() -> float:
        times: list[float] = []
        with tempfile.TemporaryDirectory() as folder:
            log = RunLog(
                Path(folder),
                steps=steps,
                batch_size=loop.batches.batch_size,
                steps_per_epoch=loop.batches.steps_per_epoch,
                devices=1,
                flops=0.0,
                peak=None,
                waited=lambda: loop.waited,
            )

            def progress(step: int, metrics: Any) -> None:
                log(step, metrics)
                times.append(time.perf_counter())

            with contextlib.redirect_stdout(io.StringIO()):
                loop.run([made.hyper], steps + 20, 10, progress)
                log.close()
        return (times[-1] - times[1]) / steps

    return measure


def overhead() -> None:
    print("| step | bare, ms | in the loop, ms | overhead of the fastest | in turns: median, quartiles |")
    print("|---|---|---|---|---|")
    sizes = {
        "residual MLP, width 512, depth 8 (many steps a program)": ("residual_mlp", dict(width=512, depth=8)),
        "residual CNN, width 24, depth 3 (a step a program)": ("residual_cnn", dict(width=24, depth=3)),
    }
    for name, (family, model) in sizes.items():
        made = setup(family, model)
        ways = [bare(made, 200), looped(made, 200)]
        rounds = [[measure() for measure in ways] for _ in range(TURNS)]
        low = [1000 * min(times) for times in zip(*rounds, strict=True)]
        ratios = sorted(b / a - 1 for a, b in rounds)
        quarters = f"{statistics.median(ratios):+.1%} [{ratios[TURNS // 4]:+.1%}, {ratios[-1 - TURNS // 4]:+.1%}]"
        print(f"| {name} | {low[0]:.2f} | {low[1]:.2f} | {low[1] / low[0] - 1:+.1%} | {quarters} |", flush=True)


def checkpoint() -> None:
    print("\n| state | pause of the loop, ms | on the disk after, ms | restored in, ms |\n|---|---|---|---|")
    for name, family, model in (
        ("residual MLP, width 128, depth 8", "residual_mlp", dict(width=128, depth=8)),
        ("ViT-S, width 384, depth 12", "vit", dict(width=384, depth=12, heads=6, patch=4)),
    ):
        _, loop, hyper = setup(family, model)
        state, _ = loop.start([hyper])
        size = sum(leaf.nbytes for leaf in jax.tree.leaves(state)) / 1e6
        with tempfile.TemporaryDirectory() as folder:
            kept = Checkpoints(Path(folder), {}, say=lambda text: None)
            pauses, writes = [], []
            for step in range(ROUNDS):
                start = time.perf_counter()
                kept.save(step, loop.placement.get(state))
                pauses.append(time.perf_counter() - start)
                kept.wait()
                writes.append(time.perf_counter() - start)
            like, start = loop.state_shapes([hyper]), time.perf_counter()
            assert kept.restore(like)
            restored = time.perf_counter() - start
            kept.close()
        cells = [f"{1000 * value:.0f}" for value in (statistics.median(pauses), statistics.median(writes), restored)]
        print(f"| {name}: {size:.1f} MB | {' | '.join(cells)} |", flush=True)


def resume() -> None:
    """Time from the command to the first report, for a run that starts and for a run that resumes."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "main.py", f"--workdir={folder}", "--config=configs/digits.py"]
        command += ["--config.epochs=40", "--config.checkpoint.every=200 steps", "--config.log_every=200"]
        seconds = {}
        for case in ("start", "go on"):
            start = time.perf_counter()
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
                assert process.stdout
                for line in process.stdout:
                    if line.startswith("step "):
                        break
                seconds[case] = time.perf_counter() - start
                while not (Path(folder) / "checkpoints" / "400").exists() and process.poll() is None:
                    time.sleep(0.01)
                process.kill()
        print(f"\nfrom the command to the first report: {seconds['start']:.1f} s; going on: {seconds['go on']:.1f} s")


def memory() -> None:
    steps = 2000
    settings, loop, hyper = setup(
        "residual_mlp",
        dict(width=128, depth=4),
        epochs=steps / 22,  # steps of an epoch
        log_every=10,
        evaluate_every="100 steps",
        checkpoint={"every": "50 steps"},
    )
    megabytes: dict[int, float] = {}

    def progress(step: int, metrics: Any) -> None:
        if step in (200, 1000, steps):
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            megabytes[step] = pages * os.sysconf("SC_PAGE_SIZE") / 1e6

    with tempfile.TemporaryDirectory() as folder:
        kept = Checkpoints(Path(folder), {}, say=lambda text: None)
        train_loop(settings, loop, hyper, progress, kept, Stop())
        kept.close()
    print("\nmemory, checkpoints every 50 steps: " + ", ".join(f"{v:.0f} MB at step {k}" for k, v in megabytes.items()))


def scaling() -> None:
    print(f"\nfake devices on {os.cpu_count()} cores (a smoke figure), residual MLP, width 512, depth 8, images/s:")
    for devices in (1, 2, 4, 8):
        _, loop, hyper = setup("residual_mlp", dict(width=512, depth=8), devices)
        times: list[float] = []
        loop.run([hyper], 220, 20, lambda *_: times.append(time.perf_counter()))  # noqa: B023 - called at once
        rate = loop.batches.batch_size * 20 / np.median(np.diff(times))
        print(f"  {devices}: {rate:,.0f}", flush=True)


if __name__ == "__main__":
    overhead()
    checkpoint()
    resume()
    memory()
    scaling()
