"""From the rows of a sweep to its verdicts, one for every optimizer, parameterization and variant along an axis."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pandas

from depthmup.fit import Transfer, transfer
from depthmup.fit.curve import POINTS
from depthmup.fit.table import ACCURACY
from depthmup.measure.slope import stages
from depthmup.settings import LEARNING_RATE, column
from depthmup.trials.plan import followed, score, sizes
from depthmup.trials.study import Study

COMPLEMENTS = ("optimizer.momentum", "optimizer.b1", "optimizer.b2")  # x is judged as 1 - x: one over a number of steps
GRID_LOOKS = 2  # looks for finer and wider grids, besides those for more seeds
Names = tuple[str, str, str]  # optimizer, parameterization, variant


class CurveVerdict(NamedTuple):
    """The trials of one optimizer, parameterization and variant along one axis of sizes, with their verdict.

    axis: an axis of sizes, such as "depth" or "width". key: the config key whose optimum is followed; hyperparameter:
    the column that has it. trials: rows, sorted by size, value of the hyperparameter and seed. chance: the score of a
    network that has learned nothing; chance_loss: its training loss.
    """

    names: Names
    axis: str
    key: str
    hyperparameter: str
    trials: pandas.DataFrame
    result: Transfer
    chance: float
    chance_loss: float

    def __str__(self) -> str:
        about = "" if self.key == LEARNING_RATE else self.hyperparameter
        return " ".join(filter(None, (*self.names, about, self.axis)))


def seed_stages(study: Study) -> list[int]:
    """The numbers of seeds that a learning rate may have; sweep.seeds alone unless sweep.until is "decided"."""
    sweep = study.sweep
    return stages(sweep.seeds, sweep.max_seeds if sweep.until == "decided" else sweep.seeds)


def looks(study: Study) -> int:
    """At how many times in all the sweep asks for verdicts, for which their errors are corrected."""
    return len(seed_stages(study)) + GRID_LOOKS if study.sweep.until == "decided" else 1


def verdicts(rows: pandas.DataFrame, study: Study) -> Iterator[CurveVerdict]:
    """The verdict of every curve along every axis of sizes."""
    measure, asked = study.sweep.judge_by, looks(study)
    for axis, values in sizes(study):
        for key in followed(study):
            for names, trials in variants(rows, study, key):
                name, trials = _about(key, on_axis(trials, study, axis), axis, study)
                counts = trials.groupby(axis)[name].nunique().reindex(values, fill_value=0)
                if key != LEARNING_RATE and counts.min() < POINTS:
                    continue  # too few positive values, or an adaptive sweep, which has other learning rates elsewhere
                trials = trials.sort_values([axis, name, "seed"], ignore_index=True)
                columns = dict.fromkeys((axis, name, "seed", measure, "diverged", ACCURACY))
                table = trials.filter(items=list(columns)).to_dict("records")
                records = trials.to_dict("records")
                chance, chance_loss = study.chance(measure, records), study.chance("loss", records)
                cap = chance if math.isfinite(chance) else None
                result = transfer(table, axis, cap, hyperparameter=name, measure=measure, looks=asked)
                yield CurveVerdict(names, axis, key, name, trials, result, chance, chance_loss)


def on_axis(rows: pandas.DataFrame, study: Study, axis: str) -> pandas.DataFrame:
    """The rows along an axis of sizes, at the base of the other axes; a column of the axis' name has the size."""
    of_size = []
    for size, at in study.along[axis].items():
        here = pandas.Series(True, rows.index)
        for key, value in at.items():
            here &= rows[column(key)] == value
        of_size.append(rows[here].assign(**{axis: size}))
    return pandas.concat(of_size)


def best(trials: pandas.DataFrame, measure: str, *others: str) -> tuple[float, float]:
    """The learning rate with the smallest score, and that score; of equal ones the smallest learning rate.

    Scores are means over seeds. others: columns of further settings in which the trials differ; the learning rate's
    score is then the best of them.
    """
    scores = [score(row, measure) for row in trials[[measure, "diverged"]].to_dict("records")]
    means = trials.assign(score=scores).groupby(["learning_rate", *others], dropna=False)["score"].mean()
    of_rate = means.groupby("learning_rate").min()
    return float(of_rate.idxmin()), float(of_rate.min())


def variants(
    rows: pandas.DataFrame, study: Study, hyperparameter: str = LEARNING_RATE
) -> Iterator[tuple[Names, pandas.DataFrame]]:
    """The rows of every optimizer, parameterization and variant, in the order of sweep.optimizers and of the rows.

    A variant is a combination of values of the axes in sweep.axes, apart from the learning rate and `hyperparameter`.
    """
    keys = added(study, hyperparameter)
    values = rows[[column(key) for key in keys]].to_numpy(object)
    rows = rows.assign(variant=[in_words(keys, of_row) for of_row in values])
    for optimizer in study.sweep.optimizers:
        of_optimizer = rows[rows["optimizer"] == optimizer]
        yield from of_optimizer.groupby(["optimizer", "parameterization", "variant"], sort=False)


def _about(hyperparameter: str, trials: pandas.DataFrame, axis: str, study: Study) -> tuple[str, pandas.DataFrame]:
    """The column that has the hyperparameter, and the trials that say where its optimum is."""
    if hyperparameter == LEARNING_RATE:
        return "learning_rate", trials
    name = column(hyperparameter)
    rate, _ = best(trials[trials[axis] == trials[axis].min()], study.sweep.judge_by, name)
    trials = trials[(trials["learning_rate"] == rate) & trials[name].notna()]  # some parameterizations do not have it
    if hyperparameter in COMPLEMENTS:
        trials = trials.assign(**{f"1 - {name}": 1 - trials[name]})
        name = f"1 - {name}"
    return name, trials[trials[name] > 0]


def added(study: Study, hyperparameter: str) -> list[str]:
    """The keys of the axes whose values tell variants apart."""
    return [axis.key for axis in study.axes if axis.key not in (LEARNING_RATE, hyperparameter)]


def in_words(keys: Sequence[str], values: Sequence[Any]) -> str:
    """The values of some config keys, in words."""
    return ", ".join(f"{column(key)} {_short(value)}" for key, value in zip(keys, values, strict=True))


def _short(value: Any) -> str:
    if value is None or value != value:  # a table has NaN where a row has None
        return "None"
    return f"{value:g}" if isinstance(value, float) else str(value)
