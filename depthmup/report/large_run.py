"""The law over all sizes of a sweep's rows, and what it says of a run that is larger than they are."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas

from depthmup.fit import Prediction, Prior, ScalingLaw, scaling_law
from depthmup.fit.law_rows import AXES, CONDITIONS
from depthmup.names import unknown
from depthmup.report.law import LargeRun
from depthmup.rules.batch_rules import Run
from depthmup.rules.optim import family_of
from depthmup.settings import column
from depthmup.trials.config_study import ConfigStudy
from depthmup.trials.model_study import ModelStudy
from depthmup.trials.plan import score
from depthmup.trials.study import Study, judged_name, judged_value
from depthmup.trials.table_study import TableStudy
from depthmup.trials.verdicts import Names, TransferCurve, variants

OF_RUN = ("batch_size", "steps")
# Of Adam: {hyperparameter: its exponents, (mean, sd)}. Of decay, where the rate stays, those of Bergsma et al. (arXiv
# 2505.13738): rate x decay x steps ~ (tokens / parameters)^.527, with parameters ~ width^2 depth. Wide: one kind of
# model showed it.
PRIORS = {
    "weight_decay": {"width": (-1.05, 1.0), "depth": (-0.53, 0.6), "steps": (-0.47, 0.5), "batch_size": (0.53, 0.5)},
}


@dataclasses.dataclass(frozen=True, eq=False)
class SweepLaw:
    """The law of one optimizer, parameterization and variant of a sweep.

    law: of the values that the steps take: the factor of the sweep's batch rule is in them. columns: its trainings.
    names: (optimizer, parameterization, variant). run: at the base of the batch rule; None without a rule.
    searched: the hyperparameter that it is of, as a word of `Run.factors`.
    """

    law: ScalingLaw
    columns: Mapping[str, Sequence[Any]]
    measure: str
    names: Names
    run: Run | None
    searched: str

    def at(self, **sizes: Any) -> Prediction:
        """`ScalingLaw.at`, with a value at the base, which the sweep's batch rule multiplies."""
        p = self.law.at(**sizes)
        if self.run is None:
            return p
        batch, steps = (int(sizes.get(name, self.columns[name][0])) for name in OF_RUN)
        factor = self.factor(batch, steps)
        return p._replace(learning_rate=p.learning_rate / factor, low=p.low / factor, high=p.high / factor)

    def factor(self, batch: int, steps: int) -> float:
        """What the sweep's batch rule multiplies a value at the base by; 1 without a rule."""
        return 1.0 if self.run is None else _factor(self.run, self.names[0], batch, steps, self.searched)

    def large_run(self, target: Mapping[str, int] | None = None) -> LargeRun:
        """What the report shows: this run, by default the one with the largest of each size."""
        sizes = {axis: target[axis] if target else max(self.columns[axis]) for axis in self.law.axes}
        return LargeRun(self.law, self.columns, self.measure, sizes)


def sweep_law(
    rows: pandas.DataFrame,
    study: Study,
    optimizer: str | None = None,
    parameterization: str | None = None,
    variant: str | None = None,
) -> SweepLaw:
    """The law of the rows of these names, by default of those of `chosen`; of what the study searches for.

    Raises ValueError for names that the rows do not have, and for rows that allow no law (`fit.scaling_law`).
    """
    names, trials = chosen(rows, study, optimizer, parameterization, variant)
    run, measure, searched = _batch_rule(study, names), study.sweep.judge_by, column(study.searched)
    columns, name = _columns(trials, study), judged_name(study.searched)
    if run is not None:
        sizes = zip(columns["batch_size"], columns["steps"], columns[name], strict=True)
        columns[name] = [value * _factor(run, names[0], batch, steps, searched) for batch, steps, value in sizes]
    of_rates = searched == "learning_rate"
    exponents = {} if of_rates or family_of(names[0]) != "adam" else PRIORS.get(searched, {})
    law = scaling_law(
        columns,
        hyperparameter=name,
        measure=measure,
        prior="rules" if of_rates else Prior(exponents),
    )
    return SweepLaw(law, columns, measure, names, run, searched)


def chosen(
    rows: pandas.DataFrame, study: Study, optimizer: str | None, parameterization: str | None, variant: str | None
) -> tuple[Names, pandas.DataFrame]:
    """The names that a law is of, and their rows: as they are given; else the optimizer and the parameterization of the
    config, or the first of the sweep; of several variants the one with the lowest loss at the base."""
    groups = dict(variants(rows, study, study.searched))
    settings = study.settings if isinstance(study, ConfigStudy) else None
    configured = (settings.optimizer.name, settings.parameterization.name) if settings else (None, None)
    swept = study.sweep.optimizers, study.sweep.parameterizations
    for place, (name, value) in enumerate((("optimizer", optimizer), ("parameterization", parameterization))):
        known = list(dict.fromkeys(names[place] for names in groups))
        if value is not None and value not in known:
            raise unknown(f"{name} of the rows", value, known)
        wanted = [value] if value is not None else [configured[place], *swept[place]]
        first = next((option for option in wanted if option in known), None)
        groups = {names: trials for names, trials in groups.items() if names[place] == first}
    if not groups:
        raise ValueError("there is no row yet")
    known = [names[2] for names in groups]
    if variant is not None and variant not in known:
        raise unknown("variant of the rows", variant, known)
    losses = {names: _base_loss(trials, study) for names, trials in groups.items() if variant in (None, names[2])}
    names = min(losses, key=lambda names: losses[names])
    return names, groups[names]


def block(rows: pandas.DataFrame, study: Study, curves: Sequence[TransferCurve]) -> LargeRun | str | None:
    """The report's: a law, or why the rows allow none; None where nothing is asked for, and fewer than two sizes have a
    best value."""
    if rows.empty or not (curves or study.target):
        return None
    names, _ = chosen(rows, study, None, None, None)
    of_names = [c for c in curves if c.of_rate and (c.optimizer, c.parameterization, c.variant) == names]
    if not study.target and not any(sum(rate is not None for rate in c.result.optimal_lr) > 1 for c in of_names):
        return None
    try:
        return sweep_law(rows, study, *names).large_run(study.target)
    except ValueError as error:
        return str(error)


def _base_loss(trials: pandas.DataFrame, study: Study) -> float:
    """The lowest score at the base, a mean over seeds."""
    at_base = trials[(trials["width"] == study.width) & (trials["depth"] == study.depth)]
    scores = [score(row, study.sweep.judge_by) for row in at_base.to_dict("records")]
    means = at_base.assign(score=scores).groupby(["learning_rate"])["score"].mean()
    return float(means.min()) if len(means) else np.inf


def _columns(trials: pandas.DataFrame, study: Study) -> dict[str, list[Any]]:
    """The columns that a law takes, of the sizes that are known."""
    if isinstance(study, TableStudy) and "epochs" in trials and not {"steps", "tokens"} & set(trials):
        raise ValueError("the rows have epochs, and the law is over steps: give a column steps")
    assumed = study.assumed if isinstance(study, TableStudy) else ()
    names = (study.sweep.judge_by, "seed", "diverged", *AXES, *CONDITIONS)
    result = {name: trials[name].tolist() for name in names if name in trials and name not in assumed}
    searched = judged_value(study.searched, trials[column(study.searched)])
    result[judged_name(study.searched)] = searched.tolist()
    if isinstance(study, ModelStudy):
        result.setdefault("batch_size", [study.about["batch_size"]] * len(trials))
    return result


def _batch_rule(study: Study, names: Names) -> Run | None:
    """The batch rule that a sweep's rates follow; None without one."""
    optimizer, parameterization, _ = names
    if isinstance(study, ConfigStudy):
        return study.settings.parameterization.run(study.settings.data.batch_size, 1)
    if isinstance(study, ModelStudy) and study.training:
        run = study.training.setups[parameterization].run
        if run is not None and run.rule != "none" and study.training.optimizers[optimizer] is not None:
            raise ValueError(f"{optimizer} is a function, and what batch_rule {run.rule!r} does in it is not known")
        return run if run is not None and run.rule != "none" else None
    return None


def _factor(run: Run, optimizer: str, batch: int, steps: int, searched: str) -> float:
    return run.at(batch, steps).factors(family_of(optimizer)).get(searched, 1.0)
