"""What main.py can do; each verb takes (settings, workdir, command) and returns the exit status."""

from __future__ import annotations

import dataclasses
import math
import re
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from rich.console import Console

from depthmup import fit
from depthmup import sweep as sweeps
from depthmup.cli_flags import FLAGS, changed, number, pairs
from depthmup.files import write_atomically
from depthmup.measure.maximal_update import AVERAGES, rates_by_rule
from depthmup.measure.slope import NOT_OK, OK, UNDECIDED, overall
from depthmup.names import unknown
from depthmup.plan import plan
from depthmup.reading.init_std import traced_init
from depthmup.report.grow import came_out, swept_settings
from depthmup.rules import recommended
from depthmup.rules.explain import Explanation, explain
from depthmup.rules.optim import family_of
from depthmup.schedules import schedule_multiplier
from depthmup.settings import Settings, SettingsError, defaults, flat, from_config, keys
from depthmup.train import run
from depthmup.train.build import config_run, hyper_of, optimizer_of, task_of
from depthmup.train.check import check_optimizer
from depthmup.train.divergence import DIVERGED_ABOVE
from depthmup.trials.executors import Flags, executor_of
from depthmup.tune.target import CONFIG_SIZES, TOLERANCE, tune_config

EXPECTED = "expected.txt"  # in a workdir


def run_training(
    settings: Settings, workdir: Path | None, command: str, profile: bool = False, expect: str = ""
) -> int:
    """Train one network: a sweep of one, by the same loop. Status 1 if it diverges.

    expect: "LOW,HIGH", the loss (of sweep.judge_by) that `grow` expects; the end says whether it came out inside, also
    in WORKDIR/expected.txt.
    """
    expected = _expected(expect)
    metrics = run.train_network(settings, workdir, command, profile)
    if jax.process_index() == 0:
        print(run.metrics_words(metrics))
        if expected:
            line = came_out(metrics, settings.sweep.judge_by, *expected)
            print(line)
            if workdir:
                write_atomically(workdir / EXPECTED, f"{line}\n")
        if metrics["diverged"] and "loss" in metrics:
            print(
                f"diverged: the loss ended not finite or above {DIVERGED_ABOVE:g} times the first batch's; lower the "
                "learning rate"
            )
    return int(metrics["diverged"])


def _expected(text: str) -> tuple[float, float] | None:
    """(low, high) of --expect."""
    if not text:
        return None
    ends = [part.strip() for part in text.split(",")]
    try:
        low, high = map(float, ends)
    except ValueError:
        low, high = 1.0, 0.0
    if not low <= high:
        raise SettingsError(f"--expect={text} must be LOW,HIGH of a loss, as grow prints it")
    return low, high


def run_sweep(
    settings: Settings,
    workdir: Path | None,
    command: str,
    dry_run: bool = False,
    yes: bool = False,
    shard: str = "0/1",
    tables: bool = False,
    executor: str = "",
    workers: int | None = None,
    scheduler: str = "",
    slurm: str = "",
    insecure: bool = False,
) -> int:
    """Train what is missing of the sweep, then verdicts, pictures and report; or say what it would cost."""
    numbers = re.fullmatch(r"(\d+)/(\d+)", shard)
    if not numbers:
        raise SettingsError(f"--shard={shard} must be i/n, from 0/n to n-1/n")
    part = int(numbers[1]), int(numbers[2])
    if dry_run:
        print(sweeps.cost(settings, part, yes))
        return 0
    if workdir is None:
        raise SettingsError("sweep needs --workdir=DIR, where rows and the report go")
    with executor_of(_flags(executor, workers, scheduler, slurm, insecure), workdir) as of_workers:
        result = sweeps.run(settings, workdir, command, shard=part, yes=yes, executor=of_workers)
    print(result.verdicts)
    if tables and result.tables:
        print(f"\n{result.tables}\n")
    if result.page:
        print(f"{len(result.rows)} trials in {workdir}; report: {result.page}")
    return 0


def _flags(executor: str, workers: int | None, scheduler: str, slurm: str, insecure: bool) -> Flags:
    return Flags(executor, workers, scheduler, pairs("slurm", slurm, "=") or None, insecure)


def run_tune(
    settings: Settings,
    workdir: Path | None,
    command: str,
    target: str = "",
    budget: str | None = None,
    tolerance: str | None = None,
    executor: str = "",
    workers: int | None = None,
    scheduler: str = "",
    slurm: str = "",
    insecure: bool = False,
    hyperparameter: str = "learning_rate",
    tuned: str = "",
) -> int:
    """Train what tells most of the large run, then its learning rate and the command that trains it. Status 1 if no
    training allows an answer."""
    if not target:
        raise SettingsError(f"tune needs --target={FLAGS['target'].value} of the large run: {', '.join(CONFIG_SIZES)}")
    if workdir is None:
        raise SettingsError("tune needs --workdir=DIR, where trials and the report go")
    sizes = {name: number("target", size) for name, size in pairs("target", target, "=").items()}
    within = TOLERANCE if tolerance is None else number("tolerance", tolerance, "%") / 100
    with executor_of(_flags(executor, workers, scheduler, slurm, insecure), workdir) as of_workers:
        result = tune_config(
            settings,
            sizes,
            budget=budget,
            tolerance=within,
            workdir=workdir,
            command=command,
            executor=of_workers,
            hyperparameter=hyperparameter,
            tuned=Path(tuned) if tuned else None,
        )
    print(result)
    print(f"report: {workdir / 'report.html'}")
    return 1 if result.prediction is None else 0


def check_features(settings: Settings, workdir: Path | None, command: str) -> int:
    """Coordinate check for every optimizer of `settings.check`; status 0 for ok, 1 for not ok, 3 for undecided."""
    verdicts = []
    for name in settings.check.optimizers:
        settings.parameterization.build().check_family(family_of(name))
    for name in settings.check.optimizers:
        with Console(stderr=True).status("") as status:
            result = check_optimizer(settings, name, progress=status.update)
        print(result.table())
        if workdir:
            workdir.mkdir(parents=True, exist_ok=True)
            path = workdir / f"coordinate_check_{name}.png"
            result.plot(path)
            print(f"plot: {path}")
        verdicts.append(result.verdict)
    return {OK: 0, NOT_OK: 1, UNDECIDED: 3}[overall(verdicts)]


def explain_parameters(
    settings: Settings,
    workdir: Path | None,
    command: str,
    diff: Any = None,
    json: bool = False,
    step: int | None = None,
) -> int:
    """Print what is really applied to every parameter of the config's model, or what differs from another config."""
    table = explanation(settings, step)
    if diff is not None:
        print(table.difference(explanation(from_config(diff), step)))
    else:
        print(table.to_json() if json else table)
    return 0


def explanation(settings: Settings, step: int | None) -> Explanation:
    """What is applied to every parameter of a config's model, with the learning rate of a step if one is given."""
    task, hyper, optimizer = task_of(settings), hyper_of(settings), optimizer_of(settings)
    if step is not None and not 0 <= step < hyper.steps:
        raise SettingsError(f"--step={step} must be from 0 to {int(hyper.steps) - 1}, the last step of this config")

    def schedule(step: int) -> Any:
        share = schedule_multiplier(task.recipe.schedule, jnp.asarray(step), hyper.steps, hyper.warmup)
        return optimizer["learning_rate"] * share

    table = explain(
        task.counting_blocks(settings.parameterization.build()),
        task.specs,
        settings.optimizer.name,
        optimizer["learning_rate"] if step is None else schedule,
        weight_decay=optimizer["weight_decay"],
        eps=optimizer["eps"],
        step=step,
        stds={path: std.value for path, std in traced_init(lambda: task.init(hyper.arrays()).params).stds().items()},
    )
    run, name = config_run(settings), settings.optimizer.name
    notes = [run.words(name)] if run else []
    return dataclasses.replace(table, notes=[*table.notes, *notes, recommended.line(name, family_of(name))])


def grow_network(
    settings: Settings,
    workdir: Path | None,
    command: str,
    width: int | None = None,
    depth: int | None = None,
    batch_size: int | None = None,
    epochs: float | None = None,
    batch_rule: str | None = None,
    keep: Sequence[str] = (),
) -> int:
    """Print the command that trains a wider, deeper, longer network with what was tuned.

    keep: the keys of the config that the call sets. The other keys get the values of the sweep in the workdir.
    """
    if width is None and depth is None:
        raise SettingsError("grow needs --width=N or --depth=N of the larger network; without one it is as tuned")
    for flag, key, value in (
        ("--batch_size", "data.batch_size", batch_size),
        ("--epochs", "epochs", epochs),
        ("--batch_rule", "parameterization.batch_rule", batch_rule),
    ):
        keys()[key].check(flag, value)
    base = swept_settings(settings, workdir, keep) if workdir else settings
    shape = base.model.width if width is None else width, base.model.depth if depth is None else depth
    grown = sweeps.grow(base, *shape, workdir, batch_size=batch_size, epochs=epochs, batch_rule=batch_rule)
    for note in grown.notes:
        print(note)
    print(_grown_command(command, settings, grown))
    return 0


def _grown_command(command: str, before: Settings, of: sweeps.Grown) -> str:
    """The command that trains the larger run, from the call of grow, whose settings are `before`."""
    grown, changes = of.settings, dict[str, Any]()
    family = grown.model.name
    if family != before.model.name:  # the sweep's family: its defaults are the config that the flags change
        before, changes["config"] = defaults(family), f"default:{family}"
    values = flat(before)
    changes |= {f"config.{key}": value for key, value in flat(grown).items() if value != values.get(key)}
    if of.expected:
        changes["expect"] = "{:.4g},{:.4g}".format(*of.expected)
    return changed(command, "grow", "train", changes)


def calibrate_rates(
    settings: Settings, workdir: Path | None, command: str, average: str = "arithmetic", depth: int | None = None
) -> int:
    """Print the maximal-update learning rate of the config's model, and what each rule makes of its learning rate.

    The learning rate counts as the one tuned at the base depth. depth: for which the rules predict a rate; None: the
    config's.
    """
    tuned, target = settings.parameterization.base_depth, settings.model.depth if depth is None else depth
    at_depth = {depth: sweeps.put(settings, {"model.depth": depth}) for depth in sorted({tuned, target})}
    if average not in AVERAGES:
        raise SettingsError(str(unknown("--average", average, AVERAGES)))
    try:
        task_of(at_depth[tuned])
    except SettingsError as error:
        raise SettingsError(
            f"parameterization.base_depth = {tuned}, where the learning rate was tuned, is no depth of {error}"
        ) from error
    s = settings
    print(
        f"{s.model.name}, width {s.model.width}, {s.optimizer.name}, {s.parameterization.name}; {s.sweep.seeds} seeds"
    )
    updates = {}
    for depth, resized in at_depth.items():
        with warnings.catch_warnings(record=True) as notes:
            warnings.simplefilter("always", UserWarning)
            updates[depth] = sweeps.calibrate(resized, average)
        print(f"depth {depth}: {updates[depth]}")
        for note in notes:
            print(f"  note: {note.message}")
    if tuned == target:
        print(f"depth {target} is the base depth, where the learning rate was tuned: give --depth=N of another")
        return 0
    start = s.optimizer.learning_rate
    rules = fit.predictions(
        tuned,
        start,
        target,
        path_sums={depth: sweeps.path_sum(resized) for depth, resized in at_depth.items()},
        calibrated=rates_by_rule(updates),
    )
    print(f"if {start:g} (optimizer.learning_rate) was best at depth {tuned}, then at depth {target}, by each rule:")
    for name, rate in rules.items():
        assert rate is not None
        print(f"  {name:12}{rate:12.4g}  (log2 {math.log2(rate):.2f})")
    return 0


def plan_machine(
    settings: Settings, workdir: Path | None, command: str, topology: str | None = None, sweep: bool = False
) -> int:
    """Say what train or sweep would take on a TPU slice or on this machine. Status 1 if it does not fit."""
    with Console(stderr=True).status(f"compiling two programs for {topology or 'this machine'}"):
        machine_plan = plan(settings, topology, sweep)
    print(machine_plan)
    return int(not machine_plan.fits)


def compare_sweeps(settings: Settings, workdir: Path | None, command: str, folders: Sequence[str] = ()) -> int:
    """Write a page that compares the sweeps in these folders. Of the config data.data_dir alone counts."""
    print(f"comparison: {sweeps.compare(folders, workdir, settings.data.data_dir)}")
    return 0


VERBS: dict[str, Callable[..., int]] = {
    "train": run_training,
    "sweep": run_sweep,
    "tune": run_tune,
    "check": check_features,
    "calibrate": calibrate_rates,
    "explain": explain_parameters,
    "grow": grow_network,
    "plan": plan_machine,
    "compare": compare_sweeps,
}
