"""From the rows of a sweep to its verdicts, one for every optimizer, parameterization and variant along an axis."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pandas

from depthmup.fit import PowerLaw, Rule, Transfer, transfer
from depthmup.fit.curve import POINTS
from depthmup.fit.table import ACCURACY
from depthmup.fit.transfer import nearest_point
from depthmup.measure import MaximalUpdate
from depthmup.measure.slope import stages
from depthmup.settings import LEARNING_RATE, column
from depthmup.trials.plan import followed, score, sizes
from depthmup.trials.study import Study, judged_name, judged_value

GRID_LOOKS = 2  # looks for finer and wider grids, besides those for more seeds
Names = tuple[str, str, str]  # optimizer, parameterization, variant


class DepthLaws(NamedTuple):
    """How the best learning rate of a curve goes with depth, as far as its optima allow.

    power_law: of the optima. rules: what each rule predicts from the smallest depth.
    updates: {depth: maximal update at the start of training} for the depths that were calibrated.
    """

    power_law: PowerLaw | None = None
    rules: Sequence[Rule] = ()
    updates: Mapping[float, MaximalUpdate] = {}


@dataclasses.dataclass(frozen=True, eq=False)
class TransferCurve:
    """The trials of one optimizer and one parameterization along depth or width, and whether their optimum transfers.

    variant: the values of the axes in sweep.axes, in words; "" without such axes.
    axis: an axis of sizes: "depth", "width", "batch_size", "steps", "epochs", or "compute" where all of them differ.
    hyperparameter: the column whose optimum is followed.
    measure: the column that is minimized.
    trials: rows, sorted by size, value of the hyperparameter and seed.
    result: optima, drift and verdict.
    chance, chance_loss: the score and the training loss of a network that has learned nothing.
    laws: empty, unless `report.curves.judge` has found those of a learning rate along depth.
    sweep: the letter of its sweep, where the curves of several sweeps are compared.
    """

    optimizer: str
    parameterization: str
    variant: str
    axis: str
    hyperparameter: str
    measure: str
    trials: pandas.DataFrame
    result: Transfer
    chance: float
    chance_loss: float
    laws: DepthLaws = dataclasses.field(default_factory=DepthLaws)
    sweep: str = ""

    def __str__(self) -> str:
        return " ".join(filter(None, (self.title, "" if self.of_rate else self.hyperparameter, self.axis)))

    @property
    def of_rate(self) -> bool:
        """Whether it is about the learning rate."""
        return self.hyperparameter == column(LEARNING_RATE)

    @property
    def name(self) -> str:
        """The parameterization and the variant."""
        return f"{self.parameterization} {self.variant}".strip()

    @property
    def title(self) -> str:
        """The optimizer and the name."""
        return f"{self.optimizer} {self.name}"

    @property
    def axis_name(self) -> str:
        """The axis as a text shows it: "batch size"."""
        return self.axis.replace("_", " ")

    @property
    def hyperparameter_name(self) -> str:
        """The hyperparameter as a text shows it: "learning rate"."""
        return self.hyperparameter.replace("_", " ")

    @property
    def span(self) -> str:
        """The ends of the axis, after the name of a hyperparameter other than the learning rate."""
        other = "" if self.of_rate else f"{self.hyperparameter_name}, "
        return f"{other}{self.axis_name} {self.result.values[0]:g} to {self.result.values[-1]:g}"

    def at(self, size: float) -> pandas.DataFrame:
        """The trials of one size."""
        return self.trials[self.trials[self.axis] == size]

    def carried(self, size: float) -> pandas.DataFrame:
        """The trials of one size at the smallest size's best value; none if the smallest size has no optimum."""
        best = self.result.optimal_lr[0]
        if best is None:
            return self.trials[:0]
        values = self.result.learning_rates[self.result.values.index(size)]
        value = values[nearest_point(values, best)]
        return self.at(size)[self.at(size)[self.hyperparameter] == value]


def seed_stages(study: Study) -> list[int]:
    """The numbers of seeds that a learning rate may have; sweep.seeds alone unless sweep.until is "decided"."""
    sweep = study.sweep
    return stages(sweep.seeds, sweep.max_seeds if sweep.until == "decided" else sweep.seeds)


def looks(study: Study) -> int:
    """At how many times in all the sweep asks for verdicts, for which their errors are corrected."""
    return len(seed_stages(study)) + GRID_LOOKS if study.sweep.until == "decided" else 1


def verdicts(rows: pandas.DataFrame, study: Study) -> Iterator[TransferCurve]:
    """The verdict of every curve along every axis of sizes."""
    measure, margin, asked = study.sweep.judge_by, study.sweep.margin, looks(study)
    for axis, values in sizes(study):
        for key in followed(study):
            for names, trials in variants(rows, study, key):
                name, trials = _about(key, on_axis(trials, study, axis), axis, study)
                if trials[axis].nunique() < 2:
                    continue  # of a sweep that is going on, in which the base itself is not finished
                counts = trials.groupby(axis)[name].nunique().reindex(values, fill_value=0)
                if key != LEARNING_RATE and counts.min() < POINTS:
                    continue  # too few positive values, or an adaptive sweep, which has other learning rates elsewhere
                trials = trials.sort_values([axis, name, "seed"], ignore_index=True)
                columns = dict.fromkeys((axis, name, "seed", measure, "diverged", ACCURACY))
                table = trials.filter(items=list(columns)).to_dict("records")
                records = trials.to_dict("records")
                chance, chance_loss = study.chance(measure, records), study.chance("loss", records)
                cap = chance if math.isfinite(chance) else None
                result = transfer(table, axis, cap, hyperparameter=name, measure=measure, margin=margin, looks=asked)
                yield TransferCurve(*names, axis, name, measure, trials, result, chance, chance_loss)


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
    rows = rows.assign(variant=[variant_words(keys, of_row) for of_row in values])
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
    judged = judged_name(hyperparameter)
    trials = trials.assign(**{judged: judged_value(hyperparameter, trials[name])})
    return judged, trials[trials[judged] > 0]


def added(study: Study, hyperparameter: str) -> list[str]:
    """The keys of the axes whose values tell variants apart."""
    return [axis.key for axis in study.axes if axis.key not in (LEARNING_RATE, hyperparameter)]


def variant_words(keys: Sequence[str], values: Sequence[Any]) -> str:
    """The values of some config keys, in words."""
    return ", ".join(f"{column(key)} {_short(value)}" for key, value in zip(keys, values, strict=True))


def _short(value: Any) -> str:
    if value is None or value != value:  # a table has NaN where a row has None
        return "None"
    return f"{value:g}" if isinstance(value, float) else str(value)
