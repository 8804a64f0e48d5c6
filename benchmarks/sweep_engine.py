"""Trials per minute of a sweep, against one process per trial and against PyTorch; compilation; the store.

    python -m benchmarks.sweep_engine        # needs pip install -e '.[bench]'; about five minutes on two cores

1. The trials are 40 learning rates from 1e-4 to 10 times 3 seeds, of 44 SGD steps of batch 64 on the digits, evaluated
   on all three splits, for a residual MLP (width 128, depth 8) and a small residual CNN (8 channels, 2 blocks) under
   depth_mup. They are run in four ways: by `main.py sweep` from the command to the report, with nothing compiled and
   with the programs in the workdir's cache; by the sweep's runner alone, once compiled; by `main.py train` in a process
   for each trial (five of them); and by PyTorch, one trial after another in one process, on the fastest of 1, 2 and all
   threads. PyTorch ends a trial whose loss is not finite.
2. Seconds until sp, mup and depth_mup of one shape have trained a step: with one program or three, compiled or from the
   cache.
3. The time for the plan, for writing the store and for reading it, with 10,000 trials of learning curves of 100 steps.
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from configs import default
from depthmup import sweep
from depthmup.backend import prepare_cpu
from depthmup.settings import Settings, from_config
from depthmup.train.build import batches_of, steps_of
from depthmup.trials.config_study import ConfigStudy
from depthmup.trials.group import Runner, compiled_in
from depthmup.trials.plan import Group, grid_trials, grouped
from depthmup.trials.store import Finished, Store

CORES = os.cpu_count() or 1
RATES, SEEDS, ALONE = "optimizer.learning_rate = log(1e-4, 10, 40)", 3, 5
MODELS: dict[str, dict[str, Any]] = {
    "residual_mlp": dict(width=128, depth=8),
    "residual_cnn": dict(width=8, depth=2, kernels=(3,)),
}


def settings(family: str, **swept: Any) -> Settings:
    """Settings of a sweep of one shape, one parameterization and one optimizer. swept: other values of config.sweep."""
    config = default.get_config(family)
    config.model.update(MODELS[family])
    config.sweep.update(
        {"axes": RATES, "seeds": SEEDS, "depths": (config.model.depth,), "widths": (), "optimizers": ("sgd",)}
    )
    config.sweep.parameterizations = ("depth_mup",)
    config.sweep.update(swept)
    return from_config(config)


def flags(family: str) -> list[str]:
    """The same settings as flags of the command line."""
    model = [f"--config.model.{key}={value}" for key, value in MODELS[family].items()]
    shape = [f"--config.sweep.depths=({MODELS[family]['depth']},)", "--config.sweep.widths=()"]
    names = ["--config.sweep.optimizers=('sgd',)", "--config.sweep.parameterizations=('depth_mup',)"]
    return [f"--config=configs/default.py:{family}", *model, *shape, *names, f"--config.sweep.seeds={SEEDS}"]


def timed(function: Callable[[], Any]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def command(verb: str, *arguments: str) -> None:
    subprocess.run([sys.executable, "main.py", verb, *arguments], check=True, capture_output=True)


def depthmup_seconds(family: str, folder: Path) -> dict[str, float]:
    """{way of running: seconds per trial} of our ways."""
    study = ConfigStudy(settings(family))
    plan = grid_trials(study)
    groups = grouped(study, plan, lambda program: len(plan))
    count, runner = len(groups[0].trials), Runner()
    result = {}
    for name, workdir in (("sweep, nothing compiled", folder / "1"), ("sweep, programs in the cache", folder / "2")):
        arguments = [*flags(family), f"--workdir={workdir}", f"--config.sweep.axes={RATES}"]
        result[name] = timed(lambda arguments=arguments: command("sweep", *arguments)) / count  # type: ignore[misc]
        (folder / "2").mkdir(exist_ok=True)
        (workdir / "compiled").rename(folder / "2" / "compiled")
    runner.train(groups[0])
    result["trials alone, once compiled"] = min(timed(lambda: runner.train(groups[0])) for _ in range(3)) / count
    rates = [trial.learning_rate for trial in groups[0].trials[:: count // ALONE]][:ALONE]
    each = [timed(lambda rate=rate: _one(family, rate)) for rate in rates]  # type: ignore[misc]
    result["a process for each"] = float(np.mean(each))
    return result


def _one(family: str, rate: float) -> None:
    quick = ["--config.evaluate_every=never", "--config.log_every=100", "--config.optimizer.name=sgd"]
    command("train", *flags(family), f"--config.optimizer.learning_rate={rate}", *quick)


def torch_trainer(family: str) -> Callable[[float, int], None]:
    """A function: (learning rate, seed) -> None, which trains and evaluates one trial in PyTorch."""
    import torch
    from torch import nn
    from torch.nn import functional

    s = settings(family)
    model, batches, steps = s.model, batches_of(s), steps_of(s)
    dataset, side = batches.dataset, batches.dataset.shape[0]
    convolution = family == "residual_cnn"

    def tensors(split: Any) -> tuple[Any, Any]:
        inputs = torch.from_numpy(np.array(batches.prepare(jnp.asarray(split.inputs))))
        inputs = inputs.permute(0, 3, 1, 2).contiguous() if convolution else inputs.flatten(1)
        return inputs, torch.from_numpy(split.labels).long()

    splits = [tensors(split) for split in dataset[:3]]
    order = torch.from_numpy(batches.indices(0, steps)).long()

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            width = model.width
            if convolution:
                layer = lambda inputs: nn.Conv2d(inputs, width, 3, padding=1, padding_mode="circular", bias=False)  # noqa: E731
            else:
                layer = lambda inputs: nn.Linear(inputs, width, bias=False)  # noqa: E731
            self.read_in = layer(1 if convolution else side * side)
            self.blocks = nn.ModuleList(layer(width) for _ in range(model.depth))
            self.readout = nn.Linear(width, dataset.classes, bias=False)

        def forward(self, x: Any) -> Any:
            h = self.read_in(x)
            for block in self.blocks:
                h = h + model.depth**-0.5 * block(torch.relu(h))
            h = torch.relu(h)
            return self.readout(h.mean((2, 3)) if convolution else h)

    def train(rate: float, seed: int) -> None:
        torch.manual_seed(seed)
        net, (inputs, labels) = Net(), splits[0]
        optimizer = torch.optim.SGD(net.parameters(), lr=rate)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, steps)
        for index in order:
            loss = functional.cross_entropy(net(inputs[index]), labels[index])
            if not torch.isfinite(loss):
                break
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        with torch.no_grad():
            for images, classes in splits:
                functional.cross_entropy(net(images), classes).item()

    return train


def torch_seconds(family: str) -> dict[str, float]:
    """{"PyTorch in turn, N thread(s)": seconds per trial} for the fastest number of threads."""
    import torch

    train, plan = torch_trainer(family), grid_trials(ConfigStudy(settings(family)))
    passes = {}
    for threads in sorted({1, min(2, CORES), CORES}):
        torch.set_num_threads(threads)
        train(0.1, 0)
        passes[threads] = timed(lambda: [train(t.learning_rate, t.seed) for t in plan]) / len(plan)
    best = min(passes, key=lambda threads: passes[threads])
    return {f"PyTorch in turn, {best} thread(s)": passes[best]}


def compiling(folder: Path) -> dict[str, float]:
    """{case: seconds until all three parameterizations of a shape have trained a step}."""
    chosen = settings("residual_mlp", parameterizations=("sp", "mup", "depth_mup"), seeds=1)
    study = ConfigStudy(dataclasses.replace(chosen, epochs=1 / 22))  # one step
    groups = grouped(study, grid_trials(study), lambda program: 40)  # one group for each parameterization
    assert len(groups) == 3

    def ready(shared: bool) -> None:
        runner = Runner()
        for group in groups:
            runner = runner if shared else Runner()
            runner.train(Group(group.trials[:1], 2, study))

    result = {
        "one program, compiled": timed(lambda: ready(True)),
        "three programs, compiled": timed(lambda: ready(False)),
    }
    with compiled_in(folder):
        ready(True)
        result["one program, from the cache"] = timed(lambda: ready(True))
        result["three programs, from the cache"] = timed(lambda: ready(False))
    return result


def storing(folder: Path) -> dict[str, str]:
    study = ConfigStudy(settings("residual_mlp", axes="optimizer.learning_rate = log(1e-4, 10, 100)", seeds=100))
    seconds = {}
    start = time.perf_counter()
    plan = grid_trials(study)
    seconds["plan, with keys"] = time.perf_counter() - start
    groups = grouped(study, plan, lambda program: 125)
    runner = Runner()
    template = runner.train(Group(groups[0].trials[:1], 1, study))[0].row
    rng = np.random.default_rng(0)
    store, step = Store(folder, study.identity), np.arange(1, 101, dtype=np.int32)
    start = time.perf_counter()
    for group in groups:
        finished = []
        for trial in group.trials:
            row = {**template, "key": trial.key, "seed": trial.seed, "learning_rate": trial.learning_rate}
            curve = {name: rng.random(100, np.float32) for name in ("loss", "grad_norm")}
            finished.append(Finished(row, {"step": step, **curve}))
        store.add(finished)
    seconds[f"add, in {len(groups)} groups"] = time.perf_counter() - start
    seconds["export to results.jsonl"] = timed(store.export)
    store.close()
    seconds["open again"] = timed(lambda: Store(folder, study.identity).close())
    seconds["sweep.load, as pandas"] = timed(lambda: sweep.load(folder))
    seconds["sweep.curves, as pandas"] = timed(lambda: sweep.curves(folder))
    assert len(sweep.load(folder)) == len(plan) == 10_000
    size = {name: sum(f.stat().st_size for f in folder.glob(name)) / 1e6 for name in ("results.jsonl", "groups/*")}
    return {name: f"{value:6.2f} s" for name, value in seconds.items()} | {n: f"{v:6.1f} MB" for n, v in size.items()}


def main() -> None:
    prepare_cpu(CORES)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for family in MODELS:
            (folder / family).mkdir()
            seconds = depthmup_seconds(family, folder / family) | torch_seconds(family)
            torch = list(seconds.values())[-1]
            print(f"\n{family}, {MODELS[family]}: 120 trials of 44 steps, {CORES} cores")
            print(f"{'':32}{'ms a trial':>12}{'trials a minute':>17}{'times PyTorch':>15}")
            for label, each in seconds.items():
                print(f"{label:32}{1e3 * each:12.1f}{60 / each:17,.0f}{torch / each:15.2f}", flush=True)
        print("\nseconds until sp, mup and depth_mup of one shape have trained a step (residual MLP)")
        for label, value in compiling(folder / "compiled").items():
            print(f"{label:32}{value:12.2f}")
        print("\n10,000 trials with learning curves of 100 steps")
        for label, text in storing(folder / "store").items():
            print(f"{label:32}{text:>12}")


if __name__ == "__main__":
    main()
