"""What main.py can do; each verb takes (settings, workdir, command) and returns the exit status."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable
from pathlib import Path

import jax
from tqdm import tqdm

from depthmup import fit
from depthmup import sweep as sweeps
from depthmup.explain import explain
from depthmup.measure.maximal_update import AVERAGES
from depthmup.measure.slope import NOT_OK, OK, UNDECIDED, overall
from depthmup.optim import family_of
from depthmup.parameterization import unknown
from depthmup.settings import Settings, SettingsError
from depthmup.train import run
from depthmup.train.build import hyper_of, task_of
from depthmup.train.check import check_optimizer


def train(settings: Settings, workdir: Path | None, command: str, profile: bool = False) -> int:
    """Train one network: a sweep of one, by the same loop. Status 1 if it diverges."""
    metrics = run.train(settings, workdir, command, profile)
    if jax.process_index() == 0:
        print(", ".join(f"{k} {v:.4f}" if isinstance(v, float) else f"{k} {v}" for k, v in metrics.items()))
        if metrics["diverged"] and "loss" in metrics:
            print("diverged: the loss ended not finite or above twice the first batch's; lower the learning rate")
    return int(metrics["diverged"])


def sweep(
    settings: Settings,
    workdir: Path | None,
    command: str,
    dry_run: bool = False,
    yes: bool = False,
    launcher: str = "local",
    shard: str = "0/1",
) -> int:
    """Train what is missing of the sweep, then verdicts, pictures and report; or say what it would cost."""
    found = re.fullmatch(r"(\d+)/(\d+)", shard)
    if not found:
        raise SettingsError(f"--shard={shard} must be i/n, from 0/n to n-1/n")
    part = int(found[1]), int(found[2])
    if dry_run:
        print(sweeps.cost(settings, launcher, part, yes))
        return 0
    if workdir is None:
        raise SettingsError("sweep needs --workdir=DIR, where rows and the report go")
    result = sweeps.run(settings, workdir, command, launcher=launcher, shard=part, yes=yes)
    print(result.verdicts)
    if result.page:
        print(f"{len(result.rows)} trials in {workdir}; report: {result.page}")
    return 0


def check(settings: Settings, workdir: Path | None, command: str) -> int:
    """Coordinate check for every optimizer of `settings.check`; status 0 for ok, 1 for not ok, 3 for undecided."""
    verdicts = []
    for name in settings.check.optimizers:
        settings.parameterization.build().check_family(family_of(name))
    for name in settings.check.optimizers:
        with tqdm(bar_format="{desc}", leave=False) as bar:
            result = check_optimizer(settings, name, progress=bar.set_description_str)
        print(result)
        if workdir:
            workdir.mkdir(parents=True, exist_ok=True)
            path = workdir / f"coordinate_check_{name}.png"
            result.plot(path)
            print(f"plot: {path}")
        verdicts.append(result.verdict)
    return {OK: 0, NOT_OK: 1, UNDECIDED: 3}[overall(verdicts)]


def explain_parameters(settings: Settings, workdir: Path | None, command: str) -> int:
    """Print what is really applied to every parameter of the model of the config."""
    task, optimizer = task_of(settings), settings.optimizer
    state = task.init(hyper_of(settings).arrays())
    print(
        explain(
            task.counting_blocks(settings.parameterization.build()),
            task.specs,
            optimizer.name,
            optimizer.learning_rate,
            weight_decay=optimizer.weight_decay,
            eps=optimizer.eps,
            params=state.params,
        )
    )
    return 0


def calibrate(settings: Settings, workdir: Path | None, command: str, average: str = "arithmetic") -> int:
    """Print the maximal-update learning rate of the config's model, and what each rule makes of its learning rate.

    That is taken as the one tuned at the base depth.
    """
    tuned, target = settings.parameterization.base_depth, settings.model.depth
    of_depth = {depth: sweeps.put(settings, {"model.depth": depth}) for depth in sorted({tuned, target})}
    if average not in AVERAGES:
        raise SettingsError(str(unknown("--average", average, AVERAGES)))
    try:
        task_of(of_depth[tuned])
    except SettingsError as error:
        raise SettingsError(
            f"parameterization.base_depth = {tuned}, where the learning rate was tuned, is no depth of {error}"
        ) from error
    s = settings
    print(
        f"{s.model.name}, width {s.model.width}, {s.optimizer.name}, {s.parameterization.name}; {s.sweep.seeds} seeds"
    )
    found = {}
    for depth, own in of_depth.items():
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always", UserWarning)
            found[depth] = sweeps.calibrate(own, average)
        print(f"depth {depth}: {found[depth]}")
        for warning in said:
            print(f"  note: {warning.message}")
    if tuned == target:
        print("the base depth is the model's: set model.depth to one that was not tuned")
        return 0
    start = s.optimizer.learning_rate
    rules = fit.predictions(
        tuned,
        start,
        target,
        path_sums={depth: sweeps.path_sum(own) for depth, own in of_depth.items()},
        calibrated={
            "calibrated": {depth: update.learning_rate for depth, update in found.items()},
            "relative": {depth: update.relative.learning_rate for depth, update in found.items()},
        },
    )
    print(f"if {start:g} (optimizer.learning_rate) was best at depth {tuned}, then at depth {target}, by each rule:")
    for name, rate in rules.items():
        assert rate is not None
        print(f"  {name:12}{rate:12.4g}  (log2 {math.log2(rate):.2f})")
    return 0


VERBS: dict[str, Callable[..., int]] = {
    "train": train,
    "sweep": sweep,
    "check": check,
    "calibrate": calibrate,
    "explain": explain_parameters,
}
