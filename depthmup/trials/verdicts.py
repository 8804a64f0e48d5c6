"""From the rows of a sweep to its verdicts, one for every optimizer, parameterization and variant along an axis."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pandas

from depthmup.fit import Transfer, transfer
from depthmup.fit.curve import POINTS
from depthmup.fit.table import ACCURACY
from depthmup.measure.slope import stages
from depthmup.settings import LEARNING_RATE, Settings, column, put
from depthmup.trials.axes import parse
from depthmup.trials.plan import axes, cap, followed, score

COMPLEMENTS = ("optimizer.momentum", "optimizer.b1", "optimizer.b2")  # x is judged as 1 - x: one over a number of steps
GRID_LOOKS = 2  # looks for finer and wider grids, besides those for more seeds
Names = tuple[str, str, str]  # optimizer, parameterization, variant


class CurveVerdict(NamedTuple):
    """The trials of one optimizer, parameterization and variant along one axis of sizes, with their verdict.

    axis: "depth" or "width". key: the config key whose optimum is followed; hyperparameter: the column that has it.
    trials: rows, sorted by size, value of the hyperparameter and seed. settings: with the loss and the data of the
    trials. chance: the score of a network that has learned nothing.
    """

    names: Names
    axis: str
    key: str
    hyperparameter: str
    trials: pandas.DataFrame
    result: Transfer
    settings: Settings
    chance: float

    def __str__(self) -> str:
        about = "" if self.key == LEARNING_RATE else self.hyperparameter
        return " ".join(filter(None, (*self.names, about, self.axis)))


def seed_stages(settings: Settings) -> list[int]:
    """The numbers of seeds that a learning rate may have; sweep.seeds alone unless sweep.until is "decided"."""
    sweep = settings.sweep
    return stages(sweep.seeds, sweep.max_seeds if sweep.until == "decided" else sweep.seeds)


def looks(settings: Settings) -> int:
    """At how many times in all the sweep asks for verdicts, for which their errors are corrected."""
    return len(seed_stages(settings)) + GRID_LOOKS if settings.sweep.until == "decided" else 1


def verdicts(rows: pandas.DataFrame, settings: Settings, classes: int | None = None) -> Iterator[CurveVerdict]:
    """The verdict of every curve along every axis of sizes; arguments are those of `report.curves.judge`."""
    measure, asked = settings.sweep.judge_by, looks(settings)
    for axis, sizes in axes(settings):
        other = "width" if axis == "depth" else "depth"
        for key in followed(settings):
            for names, trials in variants(rows, settings, key):
                on_axis = (trials[other] == getattr(settings.model, other)) & trials[axis].isin(sizes)
                name, trials = _about(key, trials[on_axis], axis, settings)
                counts = trials.groupby(axis)[name].nunique().reindex(sizes, fill_value=0)
                if key != LEARNING_RATE and counts.min() < POINTS:
                    continue  # too few positive values, or an adaptive sweep, which has other learning rates elsewhere
                trials = trials.sort_values([axis, name, "seed"], ignore_index=True)
                of_curve = _settings_of(trials, settings)
                columns = dict.fromkeys((axis, name, "seed", measure, "diverged", ACCURACY))
                table = trials.filter(items=list(columns)).to_dict("records")
                chance = cap(of_curve, measure, classes)
                result = transfer(table, axis, chance, hyperparameter=name, measure=measure, looks=asked)
                yield CurveVerdict(names, axis, key, name, trials, result, of_curve, chance)


def best(trials: pandas.DataFrame, settings: Settings, *others: str) -> tuple[float, float]:
    """The learning rate with the smallest score, and that score; of equal ones the smallest learning rate.

    Scores are means over seeds. others: columns of further settings in which the trials differ; the learning rate's
    score is then the best of them.
    """
    scores = [score(row, settings) for row in trials[[settings.sweep.judge_by, "diverged"]].to_dict("records")]
    means = trials.assign(score=scores).groupby(["learning_rate", *others], dropna=False)["score"].mean()
    of_rate = means.groupby("learning_rate").min()
    return float(of_rate.idxmin()), float(of_rate.min())


def variants(
    rows: pandas.DataFrame, settings: Settings, hyperparameter: str = LEARNING_RATE
) -> Iterator[tuple[Names, pandas.DataFrame]]:
    """The rows of every optimizer, parameterization and variant, in the order of sweep.optimizers and of the rows.

    A variant is a combination of values of the axes in sweep.axes, apart from the learning rate and `hyperparameter`.
    """
    keys = added(settings, hyperparameter)
    values = rows[[column(key) for key in keys]].to_numpy(object)
    rows = rows.assign(variant=[in_words(keys, of_row) for of_row in values])
    for optimizer in settings.sweep.optimizers:
        of_optimizer = rows[rows["optimizer"] == optimizer]
        yield from of_optimizer.groupby(["optimizer", "parameterization", "variant"], sort=False)


def _about(
    hyperparameter: str, trials: pandas.DataFrame, axis: str, settings: Settings
) -> tuple[str, pandas.DataFrame]:
    """The column that has the hyperparameter, and the trials that say where its optimum is."""
    if hyperparameter == LEARNING_RATE:
        return "learning_rate", trials
    name = column(hyperparameter)
    rate, _ = best(trials[trials[axis] == trials[axis].min()], settings, name)
    trials = trials[(trials["learning_rate"] == rate) & trials[name].notna()]  # some parameterizations do not have it
    if hyperparameter in COMPLEMENTS:
        trials = trials.assign(**{f"1 - {name}": 1 - trials[name]})
        name = f"1 - {name}"
    return name, trials[trials[name] > 0]


def _settings_of(trials: pandas.DataFrame, settings: Settings) -> Settings:
    """The settings with the loss and the data set of the trials, which may be axes and decide what chance is."""
    keys = [key for key in ("loss", "data.name") if key in parse(settings)]
    return put(settings, {key: trials[column(key)].iloc[0] for key in keys})


def added(settings: Settings, hyperparameter: str) -> list[str]:
    """The keys of the axes whose values tell variants apart."""
    return [key for key in parse(settings) if key not in (LEARNING_RATE, hyperparameter)]


def in_words(keys: Sequence[str], values: Sequence[Any]) -> str:
    """The values of some config keys, in words."""
    return ", ".join(f"{column(key)} {_short(value)}" for key, value in zip(keys, values, strict=True))


def _short(value: Any) -> str:
    if value is None or value != value:  # a table has NaN where a row has None
        return "None"
    return f"{value:g}" if isinstance(value, float) else str(value)
