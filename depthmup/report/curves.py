"""From the rows of a sweep to curves: verdicts on transfer, power laws, and rules for the learning rate."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import pandas

from depthmup.fit import Transfer, learning_rate_rules, power_law
from depthmup.fit.table import grouped_by
from depthmup.fit.verdict import TRANSFERS
from depthmup.measure import MaximalUpdate
from depthmup.measure.maximal_update import rates_by_rule
from depthmup.report import calibration
from depthmup.settings import LEARNING_RATE
from depthmup.trials.adaptive import Search
from depthmup.trials.plan import combinations, shapes, size_keys, sizes
from depthmup.trials.plan import grid_trials as planned
from depthmup.trials.study import Point, Row, Study, Trial
from depthmup.trials.until import decide
from depthmup.trials.verdicts import DepthLaws, Names, TransferCurve, added, variant_words, verdicts


def judge(
    rows: pandas.DataFrame, study: Study, calibrated: Mapping[str, MaximalUpdate] | None = None
) -> list[TransferCurve]:
    """The curve of every optimizer, parameterization and variant along every axis of sizes, with its verdict.

    The first curves are about the learning rate. Each axis of sweep.axes that is traced and has five positive numbers
    or more gets curves of its own: of its optimum at the learning rate that is best at the smallest size.

    Args:
      rows: as `sweep.load` returns them.
      calibrated: as `calibration.calibrations` returns them.
    """
    along_depth = curves_along_depth(study) if study.trainable else {}
    curves = list(verdicts(rows, study))
    for i, c in enumerate(curves):
        if c.axis == "depth" and c.of_rate:
            names = c.optimizer, c.parameterization, c.variant
            points = {depth: along_depth[names, depth] for depth in c.result.values if along_depth}
            curves[i] = dataclasses.replace(c, laws=_laws(study, c.result, points, calibrated or {}))
    return curves


def transferring(curves: Sequence[TransferCurve]) -> list[TransferCurve]:
    """The first curve of each optimizer, parameterization and variant whose learning rate transfers on all axes."""
    groups = grouped_by([c for c in curves if c.of_rate], lambda c: c.title).values()
    return [group[0] for group in groups if all(c.result.verdict == TRANSFERS for c in group)]


def finished(
    rows: Mapping[str, Row], study: Study, plan: Sequence[Trial] = ()
) -> tuple[pandas.DataFrame, Study] | None:
    """The rows at the sizes whose trials are all there, and the study of these sizes alone; None without any.

    Of an adaptive sweep: at the sizes where the searches of all curves have ended. Of a sweep until its verdicts are
    decided, once its plan is there: the rows that its last verdicts are about.

    Args:
      rows: {key: row} of a sweep that may be going on.
      plan: all trials of a sweep that is not adaptive; by default they are made, which takes seconds where there are
        ten thousand.
    """
    keys = size_keys(study)
    if study.sweep.adaptive:
        whole = Search(study).finished(rows)
    else:
        trials = grouped_by(plan or planned(study), lambda trial: tuple(trial.point.leaves[key] for key in keys))
        whole = {shape: of_shape for shape, of_shape in trials.items() if all(t.key in rows for t in of_shape)}
    asked = [trial for of_shape in whole.values() for trial in of_shape]
    if len(whole) == len(shapes(study)):
        if study.sweep.until == "decided":
            asked = decide(asked, rows, study).asked
        return pandas.DataFrame([rows[trial.key] for trial in asked]), study
    sizes = {
        axis: [size for size, at in of_axis.items() if tuple(at[key] for key in keys) in whole]
        for axis, of_axis in study.along.items()
    }
    if not any(sizes.values()):
        return None
    return pandas.DataFrame([rows[trial.key] for trial in asked]), study.sized(sizes)


def curves_along_depth(study: Study) -> dict[tuple[Names, float], Point]:
    """((optimizer, parameterization, variant), depth) -> the point of these trials; {} without an axis of depths."""
    result: dict[tuple[Names, float], Point] = {}
    if all(axis != "depth" for axis, _ in sizes(study)):
        return result
    keys, depths = added(study, LEARNING_RATE), study.along["depth"].values()
    for point, _ in combinations(study):
        if any(all(point.leaves[key] == value for key, value in at.items()) for at in depths):
            variant = variant_words(keys, [point.leaves[key] for key in keys])
            result[(point.optimizer, point.parameterization, variant), float(point.depth)] = point
    return result


def _laws(
    study: Study, result: Transfer, points: Mapping[float, Point], calibrated: Mapping[str, MaximalUpdate]
) -> DepthLaws:
    """The laws of a curve. points: the point of each depth; without them there is the power law alone."""
    law, rates = None, dict[str, Mapping[float, float | None]]()
    if sum(rate is not None for rate in result.optimal_lr) > 2:
        law = power_law(result.values, result.optimal_lr, [optimum.stderr for optimum in result.optima])
    if not points:
        return DepthLaws(power_law=law)
    names = {depth: calibration.calibration_key(study, point) for depth, point in points.items()}
    updates = {depth: calibrated[name] for depth, name in names.items() if name in calibrated}
    pairs = zip(result.values, result.optimal_lr, strict=True)
    tuned = next((depth for depth, rate in pairs if rate is not None), None)
    if tuned in updates:
        rates = rates_by_rule(updates)
    sums = {depth: point.path_sum for depth, point in points.items() if point.path_sum}
    return DepthLaws(
        power_law=law,
        rules=learning_rate_rules(result, path_sums=sums if len(sums) == len(points) else None, calibrated=rates),
        updates=updates,
    )
