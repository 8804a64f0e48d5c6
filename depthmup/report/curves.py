"""From the rows of a sweep to curves: verdicts on transfer, power laws, and rules for the learning rate."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pandas

from depthmup.fit import PowerLaw, Rule, Segment, Transfer, learning_rate_rules, power_law, segmented, transfer
from depthmup.fit.curve import POINTS
from depthmup.fit.table import ACCURACY
from depthmup.fit.transfer import nearest
from depthmup.measure import MaximalUpdate
from depthmup.report import calibration
from depthmup.settings import LEARNING_RATE, Settings, column, flat, put
from depthmup.sweep.adaptive import Search
from depthmup.sweep.axes import parse
from depthmup.sweep.plan import Trial, axes, cap, combinations, followed, score
from depthmup.sweep.plan import trials as planned
from depthmup.train.workdir import Row

COMPLEMENTS = ("optimizer.momentum", "optimizer.b1", "optimizer.b2")  # x is judged as 1 - x: one over a number of steps
Names = tuple[str, str, str]  # optimizer, parameterization, variant


class DepthLaws(NamedTuple):
    """How the best learning rate of a curve goes with depth, as far as its optima allow.

    power_law, segments: of the optima. rules: what each rule predicts from the smallest depth.
    updates: {depth: maximal update at the start of training} for the depths that were calibrated.
    """

    power_law: PowerLaw | None = None
    rules: Sequence[Rule] = ()
    segments: Sequence[Segment] = ()
    updates: Mapping[float, MaximalUpdate] = {}


@dataclasses.dataclass(frozen=True, eq=False)
class TransferCurve:
    """The trials of one optimizer and one parameterization along depth or width, and whether their optimum transfers.

    variant: the values of the axes in sweep.axes, in words; "" without such axes.
    axis: "depth" or "width".
    hyperparameter: the column whose optimum is followed.
    measure: the column that is minimized.
    trials: rows, sorted by size, value of the hyperparameter and seed.
    result: optima, drift and verdict.
    chance, chance_loss: the score and the training loss of a network that has learned nothing.
    laws: empty unless the curve is about the learning rate along depth.
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
    laws: DepthLaws

    @property
    def name(self) -> str:
        return f"{self.parameterization} {self.variant}".strip()

    def at(self, size: float) -> pandas.DataFrame:
        """The trials of one size."""
        return self.trials[self.trials[self.axis] == size]

    def carried(self, size: float) -> pandas.DataFrame:
        """The trials of one size at the smallest size's best value; none if the smallest size has no optimum."""
        best = self.result.optimal_lr[0]
        if best is None:
            return self.trials[:0]
        values = self.result.learning_rates[self.result.values.index(size)]
        value = values[nearest(values, best)]
        return self.trials[(self.trials[self.axis] == size) & (self.trials[self.hyperparameter] == value)]


def judge(
    rows: pandas.DataFrame,
    settings: Settings,
    calibrated: Mapping[str, MaximalUpdate] | None = None,
    classes: int | None = None,
) -> list[TransferCurve]:
    """The curve of every optimizer, parameterization and variant along every axis of sizes, with its verdict.

    The first curves are about the learning rate. Each axis of sweep.axes that is traced and has five positive numbers
    or more gets curves of its own: of its optimum at the learning rate that is best at the smallest size.

    Args:
      rows: as `sweep.load` returns them.
      calibrated: as `calibration.calibrations` returns them.
      classes: of the data set, if it is not at hand: the laws along depth are then without rules, which need a model.
    """
    measure = settings.sweep.judge_by
    along_depth = {} if classes else curves_along_depth(settings)
    result = []
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
                own = _settings_of(trials, settings)
                columns = dict.fromkeys((axis, name, "seed", measure, "diverged", ACCURACY))
                table = trials.filter(items=list(columns)).to_dict("records")
                chance = cap(own, measure, classes)
                found = transfer(table, axis, chance, hyperparameter=name, measure=measure)
                laws = DepthLaws()
                if axis == "depth" and key == LEARNING_RATE:
                    of_depth = {depth: along_depth[names, depth] for depth in found.values if along_depth}
                    laws = _laws(found, of_depth, calibrated or {})
                result.append(
                    TransferCurve(
                        *names,
                        axis=axis,
                        hyperparameter=name,
                        measure=measure,
                        trials=trials,
                        result=found,
                        chance=chance,
                        chance_loss=cap(own, "loss", classes),
                        laws=laws,
                    )
                )
    return result


def finished(
    rows: Mapping[str, Row], settings: Settings, plan: Sequence[Trial] = ()
) -> tuple[pandas.DataFrame, Settings] | None:
    """The rows at the sizes whose trials are all there, and the settings with these sizes alone; None without any.

    Of an adaptive sweep, which decides about sizes by the results of others: all rows that it asks for, once they are
    there.

    Args:
      rows: {key: row} of a sweep that may be going on.
      plan: all its trials; by default they are made, which takes seconds where there are ten thousand.
    """
    if settings.sweep.adaptive:
        search = Search(settings)
        if not rows or search.next_trials(rows):
            return None
        return pandas.DataFrame([rows[trial.key] for trial in search.evaluated(rows)]), settings
    shapes: dict[tuple[int, int], list[str]] = {}
    for trial in plan or planned(settings):
        shapes.setdefault((trial.settings.model.width, trial.settings.model.depth), []).append(trial.key)
    whole = [shape for shape, keys in shapes.items() if all(key in rows for key in keys)]
    width, depth, sweep = settings.model.width, settings.model.depth, settings.sweep
    depths = tuple(size for size in sweep.depths if (width, size) in whole)
    widths = tuple(size for size in sweep.widths if (size, depth) in whole)
    if not depths and not widths:
        return None
    found = pandas.DataFrame([rows[key] for shape in whole for key in shapes[shape]])
    return found, dataclasses.replace(settings, sweep=dataclasses.replace(sweep, depths=depths, widths=widths))


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
    keys = _added(settings, hyperparameter)
    values = rows[[column(key) for key in keys]].to_numpy(object)
    rows = rows.assign(variant=[_words(keys, of_row) for of_row in values])
    for optimizer in settings.sweep.optimizers:
        own = rows[rows["optimizer"] == optimizer]
        yield from own.groupby(["optimizer", "parameterization", "variant"], sort=False)


def curves_along_depth(settings: Settings) -> dict[tuple[Names, float], Settings]:
    """((optimizer, parameterization, variant), depth) -> the settings of these trials; {} without an axis of depths."""
    result: dict[tuple[Names, float], Settings] = {}
    if all(axis != "depth" for axis, _ in axes(settings)):
        return result
    keys = _added(settings, LEARNING_RATE)
    for curve, _ in combinations(settings):
        if curve.model.width == settings.model.width and curve.model.depth in settings.sweep.depths:
            leaves = flat(curve)
            variant = _words(keys, [leaves[key] for key in keys])
            names = curve.optimizer.name, curve.parameterization.name, variant
            result[names, float(curve.model.depth)] = curve
    return result


def _laws(found: Transfer, settings: Mapping[float, Settings], calibrated: Mapping[str, MaximalUpdate]) -> DepthLaws:
    """settings: of each depth; without them there is the power law alone."""
    law, rates = None, dict[str, dict[float, float | None]]()
    if sum(rate is not None for rate in found.optimal_lr) > 2:
        law = power_law(found.values, found.optimal_lr, [optimum.stderr for optimum in found.optima])
    if not settings:
        return DepthLaws(power_law=law)
    names = {depth: calibration.key(own) for depth, own in settings.items()}
    updates = {depth: calibrated[name] for depth, name in names.items() if name in calibrated}
    pairs = zip(found.values, found.optimal_lr, strict=True)
    tuned = next((depth for depth, rate in pairs if rate is not None), None)
    if tuned in updates:
        rates = {
            "calibrated": {depth: update.learning_rate for depth, update in updates.items()},
            "relative": {depth: update.relative.learning_rate for depth, update in updates.items()},
        }
    sums = {depth: calibration.path_sum(own) for depth, own in settings.items()}
    return DepthLaws(
        power_law=law,
        rules=learning_rate_rules(found, path_sums=sums, calibrated=rates),
        segments=segmented(found.values, found.optimal_lr),
        updates=updates,
    )


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


def _added(settings: Settings, hyperparameter: str) -> list[str]:
    return [key for key in parse(settings) if key not in (LEARNING_RATE, hyperparameter)]


def _words(keys: Sequence[str], values: Sequence[Any]) -> str:
    """The values of some config keys, in words."""
    return ", ".join(f"{column(key)} {_short(value)}" for key, value in zip(keys, values, strict=True))


def _short(value: Any) -> str:
    if value is None or value != value:  # a table has NaN where a row has None
        return "None"
    return f"{value:g}" if isinstance(value, float) else str(value)
