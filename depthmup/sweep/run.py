"""Run what is missing of a sweep."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from tqdm import tqdm

from depthmup.settings import Settings
from depthmup.sweep.plan import Group, plan
from depthmup.sweep.store import Row, Store
from depthmup.train.assemble import check_names, hyper_of, load_data, specs_of, trainer_of
from depthmup.train.loop import TrialLoop


def run(settings: Settings, workdir: str | Path, progress: bool = True) -> list[Row]:
    """Train every trial of the sweep that `workdir` does not hold yet; all rows, in the order of the plan.

    A trial is a pure function of its settings, so the rows are the same after any number of interruptions. Groups of one
    shape and optimizer share one compiled program; rows reach the disk when a group is done.
    Raises SettingsError, StoreError or ValueError (bad data) before anything is compiled.
    """
    check_names(settings)
    groups = plan(settings)
    dataset, steps = load_data(settings)
    store = Store(Path(workdir), identity(settings))
    try:
        if store.message:
            print(store.message)
        done = store.done()
        todo = [group for group in groups if not done.issuperset(group.trials)]
        total = sum(group.cost for group in groups)
        bar_format = "{percentage:3.0f}%|{bar:25}| {elapsed} elapsed, {remaining} left | {desc}"
        with tqdm(total=total, disable=not progress, bar_format=bar_format, mininterval=0, delay=0.1) as bar:
            bar.update(total - sum(group.cost for group in todo))
            loop: TrialLoop | None = None
            compiled_for = None
            for group in todo:
                bar.set_description_str(str(group))
                features, outputs = dataset.train.inputs.shape[1], dataset.classes
                key = group.model, group.optimizer, len(group.trials)
                if loop is None or key != compiled_for:
                    loop, compiled_for = TrialLoop(
                        trainer_of(group.model, features, outputs, group.optimizer.name),
                        dataset,
                        trials=len(group.trials),
                        batch_size=settings.data.batch_size,
                        data_seed=settings.data.seed,
                    ), key
                specs = specs_of(group.model, features, outputs)
                hypers = [
                    hyper_of(
                        group.parameterization,
                        specs,
                        dataclasses.replace(group.optimizer, learning_rate=trial.learning_rate),
                        width=trial.width,
                        depth=trial.depth,
                        seed=trial.seed,
                    )
                    for trial in group.trials
                ]
                metrics = loop.run(hypers, steps)
                rows = [
                    {**trial._asdict(), **_common(settings, group, steps), **{k: v[i].item() for k, v in metrics.items()}}
                    for i, trial in enumerate(group.trials)
                ]
                store.append([row for trial, row in zip(group.trials, rows, strict=True) if trial not in done])
                bar.update(group.cost)
            bar.set_description_str("done")
        order = {trial: i for i, trial in enumerate(t for group in groups for t in group.trials)}
        return sorted(store.rows, key=lambda row: order[tuple(row[f] for f in groups[0].trials[0]._fields)])
    finally:
        store.close()


def identity(settings: Settings) -> dict[str, Any]:
    """The settings that decide a sweep's rows: all but `check` and `log_every`."""
    return {k: v for k, v in dataclasses.asdict(settings).items() if k not in ("check", "log_every")}


def _common(settings: Settings, group: Group, steps: int) -> Row:
    """The settings that all trials of a group have in common."""
    skip = {"name", "width", "depth", "learning_rate"}
    common: Row = {"steps": steps, "epochs": settings.epochs, "data": settings.data.name, "model": group.model.name}
    common |= {"batch_size": settings.data.batch_size, "data_seed": settings.data.seed}
    for part in (group.model, group.parameterization, group.optimizer):
        common |= {k: v for k, v in dataclasses.asdict(part).items() if k not in skip}
    return common
