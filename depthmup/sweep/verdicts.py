"""From rows to verdicts, laws and rules, and to the tables that say them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from depthmup.fit import PowerLaw, Rule, Segment, Transfer, learning_rate_rules, power_law, segmented, transfer
from depthmup.fit.optimum import WINDOW
from depthmup.fit.transfer import nearest
from depthmup.measure import MaximalUpdate
from depthmup.settings import LEARNING_RATE, TRACED, Settings, column, flat, put
from depthmup.sweep import calibration
from depthmup.sweep.axes import parse
from depthmup.sweep.judged import cap, score
from depthmup.sweep.plan import axes, combinations
from depthmup.train.workdir import Row

COMPLEMENTS = ("optimizer.momentum", "optimizer.b1", "optimizer.b2")  # x is judged as 1 - x, a number of steps inverted
Calibrations = Mapping[str, MaximalUpdate]  # as of `calibration.calibrations`


class Curve(NamedTuple):
    """All trials of one optimizer and parameterization along one axis, and what they say.

    chance: the loss, or the error, of knowing nothing; chance_loss: the loss, whatever is minimized.
    variant: the values of the axes that the config adds, in words. hyperparameter: whose optimum it is about.
    measure: what is minimized, a column of the rows.
    law, rules, segments: of the learning rate along depth, as far as the optima allow.
    updates: {size: maximal update at the start}, of the sizes that were calibrated.
    keys: of each size and value, those of its trials, in the order of the result's learning rates and seeds.
    """

    optimizer: str
    parameterization: str
    axis: str
    result: Transfer
    chance: float
    chance_loss: float
    variant: str = ""
    hyperparameter: str = "learning_rate"
    measure: str = "loss"
    law: PowerLaw | None = None
    rules: Sequence[Rule] = ()
    segments: Sequence[Segment] = ()
    updates: Mapping[float, MaximalUpdate] = {}
    keys: Sequence[Sequence[Sequence[str]]] = ()

    @property
    def name(self) -> str:
        return f"{self.parameterization} {self.variant}".strip()

    @property
    def carried(self) -> dict[float, Sequence[str]]:
        """{size: keys of the trials with the smallest size's best value}; {} if that size has none."""
        best = self.result.optimal_lr[0]
        if best is None:
            return {}
        sizes = zip(self.result.values, self.result.learning_rates, self.keys, strict=True)
        return {size: keys[nearest(rates, best)] for size, rates, keys in sizes}


def judge(rows: Sequence[Row], settings: Settings, calibrated: Calibrations | None = None) -> list[Curve]:
    """The transfer verdict of every optimizer and parameterization along every axis; losses are capped at chance.

    Of the learning rate, and of each further axis with five positive values or more that a trained program takes as a
    number: its optimum at the learning rate that is best at the smallest size.
    """
    shapes = _curves_of(settings)
    result = []
    for axis, values in axes(settings):
        other, fixed = ("width", settings.model.width) if axis == "depth" else ("depth", settings.model.depth)
        for hyperparameter, groups in _questions(rows, settings):
            for (optimizer, name, variant), table in groups.items():
                table = [row for row in table if row[other] == fixed and row[axis] in values]
                key, table = _about(hyperparameter, table, axis, settings)
                counts = [len({row[key] for row in table if row[axis] == size}) for size in values]
                if hyperparameter != LEARNING_RATE and min(counts) < WINDOW:
                    continue  # too few positive values, or an adaptive sweep, which has other learning rates elsewhere
                measure, own = settings.sweep.judge_by, _settings_of(table[0], settings)
                found = transfer(table, axis, cap(own, measure), hyperparameter=key, measure=measure)
                caps = cap(own, measure), cap(own, "loss")
                curve = Curve(optimizer, name, axis, found, *caps, variant, key, measure)
                curve = curve._replace(keys=_keys(table, axis, key, found))
                if axis == "depth" and key == "learning_rate":
                    of_size = {size: shapes[optimizer, name, variant, size] for size in found.values}
                    curve = _with_laws(curve, of_size, calibrated or {})
                result.append(curve)
    return result


def curves_to_calibrate(settings: Settings) -> list[Settings]:
    """The curves whose learning rates a calibration predicts: those along depth."""
    return list(_curves_of(settings).values()) if any(axis == "depth" for axis, _ in axes(settings)) else []


def _curves_of(settings: Settings) -> dict[tuple[str, str, str, float], Settings]:
    """(optimizer, parameterization, variant, depth) -> settings, at model.width."""
    added = _added(settings, LEARNING_RATE)
    result = {}
    for curve, _ in combinations(settings):
        if curve.model.width == settings.model.width and curve.model.depth in settings.sweep.depths:
            leaves = flat(curve)
            variant = ", ".join(f"{column(key)} {_short(leaves[key])}" for key in added)
            result[curve.optimizer.name, curve.parameterization.name, variant, float(curve.model.depth)] = curve
    return result


def _with_laws(curve: Curve, settings: Mapping[float, Settings], calibrated: Calibrations) -> Curve:
    """settings: of each size."""
    found, law, rates = curve.result, None, dict[str, dict[float, float | None]]()
    if sum(lr is not None for lr in found.optimal_lr) > 2:
        law = power_law(found.values, found.optimal_lr, [o.stderr for o in found.optima])
    names = {size: calibration.key(own) for size, own in settings.items()}
    updates = {size: calibrated[name] for size, name in names.items() if name in calibrated}
    tuned = next((size for size, lr in zip(found.values, found.optimal_lr, strict=True) if lr is not None), None)
    if tuned in updates:
        rates = {
            "calibrated": {size: update.learning_rate for size, update in updates.items()},
            "relative": {size: update.relative.learning_rate for size, update in updates.items()},
        }
    sums = {size: calibration.path_sum(own) for size, own in settings.items()}
    return curve._replace(
        law=law,
        rules=learning_rate_rules(found, path_sums=sums, calibrated=rates),
        segments=segmented(found.values, found.optimal_lr),
        updates=updates,
    )


def _questions(rows: Sequence[Row], settings: Settings) -> Iterator[tuple[str, dict[tuple[str, str, str], list[Row]]]]:
    """(config key of a hyperparameter, its groups of rows), the learning rate first."""
    yield LEARNING_RATE, variants(rows, settings, LEARNING_RATE)
    for key, values in parse(settings).items():
        number = key in TRACED and all(isinstance(value, int | float) for value in values)
        if key != LEARNING_RATE and number and len(values) >= WINDOW:
            yield key, variants(rows, settings, key)


def variants(rows: Sequence[Row], settings: Settings, but: str) -> dict[tuple[str, str, str], list[Row]]:
    """(optimizer, parameterization, values of the axes of sweep.axes but one in words) -> its rows, in their order."""
    added = [column(key) for key in _added(settings, but)]
    result: dict[tuple[str, str, str], list[Row]] = {}
    order = sorted(rows, key=lambda row: settings.sweep.optimizers.index(row["optimizer"]))
    for row in order:
        words = ", ".join(f"{name} {_short(row[name])}" for name in added)
        result.setdefault((row["optimizer"], row["parameterization"], words), []).append(row)
    return result


def _added(settings: Settings, but: str) -> list[str]:
    return [key for key in parse(settings) if key not in (LEARNING_RATE, but)]


def _about(hyperparameter: str, table: list[Row], axis: str, settings: Settings) -> tuple[str, list[Row]]:
    """The column that has the hyperparameter, and the rows that are about it."""
    if hyperparameter == LEARNING_RATE:
        return "learning_rate", table
    table, key = _at_best_rate(table, axis, settings), column(hyperparameter)
    table = [row for row in table if row[key] is not None]  # some parameterizations do not have it
    if hyperparameter in COMPLEMENTS:
        table, key = [{**row, f"1 - {key}": 1 - row[key]} for row in table], f"1 - {key}"
    return key, [row for row in table if row[key] > 0]


def _at_best_rate(table: Sequence[Row], axis: str, settings: Settings) -> list[Row]:
    """The rows with the learning rate of the smallest size's best trial, over seeds."""
    smallest = min(row[axis] for row in table)
    keys = [column(key) for key in parse(settings)]
    scores: dict[Any, list[float]] = {}
    for row in table:
        if row[axis] == smallest:
            scores.setdefault((row["learning_rate"], *(row[k] for k in keys)), []).append(score(row, settings))
    best = min(scores, key=lambda at: (sum(scores[at]) / len(scores[at]), at[0]))
    return [row for row in table if row["learning_rate"] == best[0]]


def _keys(table: Sequence[Row], axis: str, key: str, found: Transfer) -> list[list[list[str]]]:
    of_trial: dict[tuple[Any, Any], list[str]] = {}
    for row in sorted(table, key=lambda row: row["seed"]):
        of_trial.setdefault((row[axis], row[key]), []).append(row["key"])
    pairs = zip(found.values, found.learning_rates, strict=True)
    return [[of_trial[size, rate] for rate in rates.tolist()] for size, rates in pairs]


def _settings_of(row: Row, settings: Settings) -> Settings:
    """With the loss and the data set of a row, which may be axes."""
    return put(settings, {key: row[column(key)] for key in ("loss", "data.name") if key in parse(settings)})


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
