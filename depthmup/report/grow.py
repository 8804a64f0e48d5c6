"""From what was tuned at a small shape to the settings of a wider and deeper run."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas

from depthmup import bucket
from depthmup.cli_flags import PROGRAMS, changed
from depthmup.fit.table import grouped_by
from depthmup.fit.thresholds import BOTH_SIDES
from depthmup.names import percent
from depthmup.report.curves import judge, transferring
from depthmup.report.large_run import sweep_law
from depthmup.rules import recommended
from depthmup.rules.batch_rules import RULES
from depthmup.rules.optim import family_of
from depthmup.settings import LEARNING_RATE, Settings, SettingsError, flat, put, value_of
from depthmup.train.build import config_run, optimizer_of, steps_of, task_of
from depthmup.train.workdir import SETTINGS, WorkdirError, read_settings
from depthmup.trials.config_study import ConfigStudy, config_study_from
from depthmup.trials.model_study import ModelStudy
from depthmup.trials.plan import score
from depthmup.trials.store import load
from depthmup.trials.study import Study
from depthmup.trials.verdicts import TransferCurve

NARROW = 2.0  # octaves: a predicted learning rate is taken if its 95% interval is narrower


class Grown(NamedTuple):
    """settings: of the larger run. changes: {key: its value} of all settings that differ. notes: their evidence.
    expected: the 95% interval of its loss (of sweep.judge_by) by the law of the sweep; None without a law."""

    settings: Settings
    changes: dict[str, Any]
    notes: list[str]
    expected: tuple[float, float] | None = None


def grow(
    settings: Settings,
    width: int,
    depth: int,
    workdir: str | Path | None = None,
    *,
    batch_size: int | None = None,
    epochs: float | None = None,
    batch_rule: str | None = None,
) -> Grown:
    """The settings of a wider, deeper, longer run with the hyperparameters that were tuned with `settings`.

    Hyperparameters are values at the base shape, so they stay and only the shape changes. What was tuned under "sp", at
    the shape of `settings`, goes on under the name of `recommended.take` with that shape as its base, where the two
    are the same network.

    Args:
      width, depth: of the larger run, in the unit of model.width and model.depth.
      workdir: of a finished sweep of `settings`; the learning rate is then what the law over all its sizes predicts for
        the larger run, if the 95% interval of that is narrower than two octaves, else the best one at the sweep's
        smallest size. notes say which, and what using the prediction may cost.
      batch_size, epochs: of the larger run; None: as in `settings`.
      batch_rule: of `dm.batch_rules`, how hyperparameters follow both; the base is then what `settings` have.

    Returns:
      `Grown`: the settings, and notes on each choice.

    Raises SettingsError if the larger shape is not one of the model, WorkdirError or SettingsError if the sweep has no
    best learning rate for the parameterization and the optimizer of `settings`.
    """
    changes: dict[str, Any] = {}
    notes: list[str] = []
    tuned = settings
    if workdir is not None:
        rows = load(workdir)
        curves = _curves(settings, rows, workdir)
        changes[LEARNING_RATE] = float(f"{_best(curves[0]):.4g}")
        tuned = put(settings, {f"model.{curves[0].axis}": int(curves[0].result.values[0])})
        for c in curves:
            best = "no best learning rate" if _best(c) is None else f"best learning rate {_best(c):.4g}"
            notes.append(f"{c.name}, {c.optimizer}: {best} at {c.axis} {c.result.values[0]:g}; {c.result.line}")
    if settings.parameterization.name == "sp":
        model = task_of(tuned).model
        layers = max(max(ways) for ways in model.ways)  # of a branch
        rule = recommended.take("several" if layers > 1 else "one", family_of(settings.optimizer.name)) or "depth_mup"
        changes["parameterization.name"] = rule
        changes["parameterization.base_width"], changes["parameterization.base_depth"] = model.width, tuned.model.depth
        changes["parameterization.base_head_dim"] = model.head_dim or 1
        notes.append(f"sp is {rule} at the shape where it was tuned: width {model.width}, depth {tuned.model.depth}")
    if batch_size is not None or epochs is not None:
        changes |= _run(settings, batch_size, epochs, batch_rule)
    grown = put(settings, changes | {"model.width": width, "model.depth": depth})
    task_of(grown)  # raises if the family has no such shape
    if run := config_run(grown):
        optimizer_of(grown)  # raises if the rule has no such size
        notes.append(run.words(grown.optimizer.name))
    expected = None
    if workdir is not None:
        grown, note, expected = _predicted(settings, grown, rows)
        notes.append(note)
    before, after = flat(settings), flat(grown)
    return Grown(grown, {key: value for key, value in after.items() if value != before.get(key)}, notes, expected)


def commands_to_grow(curves: Sequence[TransferCurve], study: Study, command: str) -> list[str]:
    """What makes the largest network of a sweep at what was tuned: for each optimizer the command `grow`, or the call,
    with the best parameterization whose learning rate transfers."""
    best: dict[str, TransferCurve] = {}
    for c in transferring(curves):
        if c.axis in ("depth", "width") and not c.variant:
            best[c.optimizer] = min(best.get(c.optimizer, c), c, key=lambda c: c.result.optima[-1].loss)
    width, depth = max([study.width, *study.sweep.widths]), max([study.depth, *study.sweep.depths])
    calls = []
    for optimizer, c in best.items():
        if isinstance(study, ModelStudy) and study.training and not study.training.optimizers[optimizer]:
            calls.append(study.call(width, depth, {LEARNING_RATE: c.result.tuned}, optimizer, c.parameterization))
        elif isinstance(study, ConfigStudy) and command.startswith(PROGRAMS):
            names = {"optimizer.name": optimizer, "parameterization.name": c.parameterization}
            flags = {f"config.{key}": name for key, name in names.items() if value_of(study.settings, key) != name}
            calls.append(changed(command, "sweep", "grow", {**flags, "width": width, "depth": depth}))
    return calls


def swept_settings(settings: Settings, workdir: str | Path, given: Collection[str] = ()) -> Settings:
    """The settings of the sweep of a config in a workdir, so that a user need not give them again.

    The parameterization and the optimizer are those of `settings` if the sweep has them, else the sweep's only one.

    Args:
      given: keys whose value is that of `settings`, whatever the sweep has; keys of the sweep.* group do not count.

    Raises SettingsError if the sweep has several others, WorkdirError for a workdir that is not one of such a sweep.
    Without a settings.json, where rows were copied alone, it returns `settings`.
    """
    path = bucket.folder(workdir) / SETTINGS
    if not path.exists():
        return settings
    saved = read_settings(bucket.folder(workdir))
    try:
        swept = config_study_from(saved, settings.data.data_dir).settings
    except (KeyError, TypeError, ValueError) as error:
        raise WorkdirError(f"{path} is not that of a sweep of a config: give the --workdir of main.py sweep") from error
    names = {"parameterization.name": swept.sweep.parameterizations, "optimizer.name": swept.sweep.optimizers}
    values = {key: value_of(settings, key) for key in given if not key.startswith("sweep.")}
    for key, known in names.items():
        values[key] = name = value_of(settings, key)
        if name not in known and key not in given:
            if len(known) > 1:
                raise SettingsError(f"give --config.{key}, one of {', '.join(known)}: the sweep in {workdir} has them")
            values[key] = known[0]
    return put(swept, values)


def _run(settings: Settings, batch_size: int | None, epochs: float | None, rule: str | None) -> dict[str, Any]:
    """{key: its value in the larger run} of the batch size, the length, and the base of the rule that follows them."""
    if rule is None and settings.parameterization.batch_rule is None:
        raise SettingsError(
            "batch size and epochs change the best learning rate, and no rule says how: give --batch_rule, one of "
            f"{', '.join(RULES)} (docs/batch.md says which one when)"
        )
    changes: dict[str, Any] = {
        "data.batch_size": batch_size or settings.data.batch_size, "epochs": epochs or settings.epochs
    }  # fmt: skip
    if settings.parameterization.batch_rule is None:
        changes |= {
            "parameterization.base_batch_size": settings.data.batch_size,
            "parameterization.base_steps": steps_of(settings),
        }
    if rule is not None:
        changes["parameterization.batch_rule"] = rule
    return changes


def _predicted(
    settings: Settings, grown: Settings, rows: pandas.DataFrame
) -> tuple[Settings, str, tuple[float, float] | None]:
    """The grown settings with the learning rate that the law of the rows predicts, where it is sure enough, else with
    the copied one that they have; what is known of both; and the interval of the loss at the one that is taken.

    settings: of the sweep.
    """
    copied = grown.optimizer.learning_rate
    copies = f"learning rate {copied:.3g} is copied from the smallest size"
    if settings.parameterization.name == "sp":
        return grown, f"{copies}: the law of rows under sp says nothing of {grown.parameterization.name}", None
    try:
        law = sweep_law(rows, ConfigStudy(settings), settings.optimizer.name, settings.parameterization.name).law
        sizes: dict[str, Any] = {"width": grown.model.width, "depth": grown.model.depth}
        if "steps" not in law.fixed or steps_of(grown) != steps_of(settings):
            sizes |= {"batch_size": grown.data.batch_size, "steps": steps_of(grown)}
        p = law.at(**sizes)
    except ValueError as error:
        return grown, f"{copies}: {error}", None
    run = config_run(grown)
    factor = run.factors(family_of(grown.optimizer.name))["learning_rate"] if run else 1.0
    octaves = math.log2(p.high / p.low)
    prediction = (
        f"{p.learning_rate / factor:.3g} [{p.low / factor:.3g}, {p.high / factor:.3g}] ({BOTH_SIDES}), which costs "
        f"{percent(p.cost)} on average, {p.at_worst}"
    )
    if octaves < NARROW:
        grown = put(grown, {LEARNING_RATE: float(f"{p.learning_rate / factor:.4g}")})
        note = f"the law over all sizes predicts learning rate {prediction}; {copied:.3g} would be copied"
    else:
        wide = f"its interval has {octaves:.1f} octaves, and {NARROW:g} are too many"
        note = f"{copies}: the law over all sizes predicts {prediction}, but {wide}"
    loss = law.loss([{**sizes, law.hyperparameter: grown.optimizer.learning_rate * factor}])
    mean, low, high = (float(values[0]) for values in loss)
    name = settings.sweep.judge_by.replace("_", " ")
    return grown, f"{note}; expected {name} {mean:.4g} [{low:.4g}, {high:.4g}]", (low, high)


def _curves(settings: Settings, rows: pandas.DataFrame, workdir: str | Path) -> list[TransferCurve]:
    """The sweep's learning-rate curves over depth and width for the parameterization and optimizer of `settings`.

    The first curve has a best learning rate. `grow` says what is raised.
    """
    label = f"{settings.parameterization.name} with {settings.optimizer.name}"
    rates = [c for c in judge(rows, ConfigStudy(settings)) if c.of_rate]
    names = grouped_by(rates, lambda c: f"{c.parameterization} with {c.optimizer}")
    curves = [c for c in names.get(label, []) if c.axis in ("depth", "width")]  # `batch_rule` is for the other sizes
    if variants := {c.variant for c in curves} - {""}:
        raise SettingsError(f"grow takes a sweep without sweep.axes; this one has {', '.join(sorted(variants))}")
    curves.sort(key=lambda c: _best(c) is None)
    if not curves or _best(curves[0]) is None:
        known = ", ".join(sorted(names)) or "none"
        raise SettingsError(f"{workdir} has no best learning rate of {label} at its smallest size (curves: {known})")
    return curves


def _best(curve: TransferCurve) -> float | None:
    """The best learning rate of the smallest size: the one that the verdict is about, if it has one."""
    return curve.result.tuned or curve.result.optima[0].learning_rate


def came_out(metrics: Mapping[str, Any], measure: str, low: float, high: float) -> str:
    """Whether a run came out as `grow` expected (Grown.expected), in words."""
    value, name = score(metrics, measure) if measure in metrics else math.inf, measure.replace("_", " ")
    if low <= value <= high:
        return f"{name} {value:.4g} is inside the expected [{low:.4g}, {high:.4g}]"
    side = "below" if value < low else "above"
    return (
        f"{name} {value:.4g} is {side} the expected [{low:.4g}, {high:.4g}]: the law of the sweep does not hold here, "
        "or this run differs from the sweep in more than its size"
    )
