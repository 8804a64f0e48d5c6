"""The figures of a paper, trained anew at the scale of a laptop.

    python -m experiments.paper_a --data=DIR [--dry_run] [FIGURE ...]
    python -m experiments.paper_b --data=DIR [--dry_run] [FIGURE ...]

trains what is missing, draws the pictures, writes docs/results.md and prints the numbers of the figures. DIR is
CIFAR-10 as a folder of images, which `python -m experiments.cifar10_folder DIR` makes; figures of other data say so.
The command may be interrupted at any time and started again: it goes on from the workdir, and from the committed rows
in docs/results/ where a workdir was lost. Without --data it draws what is finished.

It takes hours on two cores: --dry_run prints what is missing and its cost. configs/ has the sizes of the papers.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pandas
from ml_collections import config_dict

from depthmup.files import write_atomically
from depthmup.settings import Settings, from_config
from depthmup.sweep import train
from depthmup.train.build import batches_of
from depthmup.train.stop import Stopped
from depthmup.trials.config_study import ConfigStudy
from depthmup.trials.engine import checked_trials
from depthmup.trials.estimate import Estimator
from depthmup.trials.plan import grouped
from depthmup.trials.store import Store
from experiments import command_line, published
from experiments.figures import page
from experiments.figures.figure import Paper, save
from experiments.published import Sweep


def settings_of(config: config_dict.ConfigDict, data: str | None) -> Settings:
    """The settings of a config whose images are in the folder `data`."""
    if data:
        config.data.data_dir = data
    return from_config(config)


def finished(rows: Path, name: str, settings: Settings, more: Sequence[Settings] = ()) -> bool:
    """Whether all trials of a sweep, and those of `more`, are committed. Raises ValueError if the rows are those of
    other settings."""
    path = rows / f"{name}.json"
    if not path.exists():
        return False
    about = json.loads(path.read_text())
    published.check(name, about["settings"], settings, extended=True)
    if not about["complete"] or published.difference(about["settings"], settings):
        return False
    keys = {trial.key for part in more for trial in checked_trials(ConfigStudy(part))}
    return not keys or keys <= set(pandas.read_parquet(rows / f"{name}.parquet", columns=["key"])["key"])


def trained(rows: Path, name: str, settings: Settings, workdir: Path, more: Sequence[Settings] = ()) -> None:
    """Train what is missing of a sweep, then of `more`, and commit its rows, also where it is interrupted."""
    about = {"complete": False, "minutes": 0.0, "classes": batches_of(settings).dataset.classes}
    if (rows / f"{name}.json").exists():
        sweep = published.read(rows / name, settings, extended=True)
        published.restore(sweep, workdir)
        about["minutes"] = sweep.about["minutes"]
    begin = time.monotonic()
    try:
        if not finished(rows, name, settings):
            train(settings, workdir)
        about["complete"] = True
        for part in more:
            train(part, workdir)
    finally:
        about["minutes"] += round((time.monotonic() - begin) / 60, 1)
        study = ConfigStudy(settings)  # the workdir names the settings that it was last opened with: those of the sweep
        Store(workdir, study.identity | study.beyond_keys, study.beyond_keys).close()
        if any((workdir / "groups").glob("*.parquet")):
            published.write(rows / name, settings, workdir, **about)


def cost(settings: Settings) -> str:
    """The trials of a whole sweep and their operations, by arithmetic."""
    study = ConfigStudy(settings)
    plan = checked_trials(study)
    half = " (about half of that by the adaptive search)" if settings.sweep.adaptive else ""
    return f"{Estimator().total(grouped(study, plan, lambda program: len(plan)))}{half}"


def draw(*papers: Paper) -> dict[str, dict[str, Sweep]]:
    """Draw the pictures of papers' figures whose sweeps are finished, and write docs/results.md. {paper: its sweeps}"""
    sweeps = {paper.name: page.read(paper) for paper in page.PAPERS}
    for paper in papers:
        paper.images.mkdir(parents=True, exist_ok=True)
        for figure in paper.figures.values():
            complete = page.finished(figure, sweeps[paper.name])
            save(paper.images, figure.pictures(complete) if complete else {})
    write_atomically(page.PAGE, page.text(sweeps))
    print(page.PAGE)
    return sweeps


def missing_data(settings: Settings, classes: int) -> str:
    """Why a sweep cannot be trained with the folder of these settings, in words; "" if it can."""
    if not settings.data.data_dir:
        return f"--data=DIR is needed to train, a folder of {classes} classes"
    folders = Path(settings.data.data_dir).expanduser() / "train"
    count = sum(path.is_dir() for path in folders.iterdir()) if folders.is_dir() else classes
    return "" if count == classes else f"it needs a folder of {classes} classes, and {folders} has {count}"


def main(paper: Paper) -> None:
    parser = command_line.parser(f"experiments.{paper.name}", __doc__, "figure", paper.figures)
    parser.add_argument("--data", help="folder of images: train/CLASS/*.jpg, test/CLASS/*.jpg")
    parser.add_argument("--workdir", type=Path, default=Path("runs") / paper.name, help="where unfinished sweeps are")
    parser.add_argument("--dry_run", action="store_true", help="print what is missing and its cost")
    options = parser.parse_args()
    chosen = [figure for name, figure in paper.figures.items() if name in options.figures]
    sweeps = {name: (config, figure.classes) for figure in chosen for name, config in figure.sweeps.items()}
    try:
        for name, (config, classes) in sweeps.items():
            settings = settings_of(config(), options.data)
            more = [settings_of(part(), options.data) for part in paper.more.get(name, ())]
            if finished(paper.rows, name, settings, more):
                continue
            if why := missing_data(settings, classes):
                print(f"{name}: not finished, and {why}")
            elif options.dry_run:
                print("\n".join(f"{name}: {cost(part)}" for part in (settings, *more)))
            else:
                print(f"{name}: training", flush=True)
                trained(paper.rows, name, settings, options.workdir / name, more)
    except (Stopped, ValueError) as error:
        sys.exit(f"error: {error}")
    finally:
        if not options.dry_run:
            drawn = draw(paper)[paper.name]
            print("\n\n".join(page.details(figure, drawn) for figure in chosen))
