"""One law over all sizes: which value of a hyperparameter a large run wants, how sure that is, and what it may cost."""

from __future__ import annotations

import functools
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from depthmup.fit.joint_fit import FREEDOM, JointFit, mean_loss
from depthmup.fit.law_rows import (
    AXES,
    CONDITIONS,
    MODEL,
    Gathered,
    Prior,
    TrainingTable,
    checked_table,
    gathered,
    links,
    read_columns,
)
from depthmup.fit.published_rules import PUBLISHED_RULES, PublishedRule, Size
from depthmup.fit.thresholds import BOTH_SIDES, CONFIDENCE, ONE_SIDE
from depthmup.names import POSITIVE, percent, short, unknown

QUANTILES = (1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2
WIDE = 4.0  # octaves: an interval that is wider says hardly anything
SAME_LINE = 0.02  # share of the sizes' spread off a line: with less, exponents cannot be told apart
ROUNDING = 1e-6  # octaves by which a target may lie outside of the rows
FAILS = 2.0  # nats of log loss above the best: such a training has failed, and worse ones cost no more
STEP = 1e-4  # octaves, of derivatives
LEVEL = {"floor", "size", "data", "level", "best batch", "batch", "small batch", "large batch"}  # of the best loss
CHUNK = 200  # targets at a time
PRIORS = Path(__file__).with_name("generated_priors.toml")
RULED = "width", "depth", "batch_size", "steps"  # axes that the file of priors has
FAMILIES = {  # of the optimizers of rules/optim.py, which needs JAX, that have published rules
    **dict.fromkeys(("adam", "adamw", "lion"), "adam"),
    **dict.fromkeys(("sgd", "momentum"), "sgd"),
    **dict.fromkeys(("muon", "muonh"), "muon"),
}
BESIDE = 0.05  # octaves from the optimum at which the curvature is measured
RATES = ("learning_rate", "lr", "max_lr", "peak_lr", "base_lr")  # names of the hyperparameter that has rules


class LawEstimate(NamedTuple):
    """A number with the ends of its 95% interval."""

    value: float
    low: float
    high: float


class Losses(NamedTuple):
    """Predicted losses of trainings, each (rows,), with 95% intervals."""

    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


class Rates(NamedTuple):
    """Best values at sizes, each (rows,), with the ends of their 95% intervals."""

    value: np.ndarray
    low: np.ndarray
    high: np.ndarray


class RuleCheck(NamedTuple):
    """A published rule beside the law: by how many octaves the best value moves where `size` doubles, and what else the
    rule says grows with it. holds: whether the law's interval has the rule's number."""

    rule: str
    size: str
    claimed: float
    measured: LawEstimate

    @property
    def holds(self) -> bool:
        return self.measured.low <= self.claimed <= self.measured.high


class TransferQuality(NamedTuple):
    """How well a hyperparameter transfers, in the figures of Kalra and Barkeshli (arXiv 2605.21486), of one law.

    error: octaves of the optima of the rows' sizes about a plane, root mean square.
    kappa: {axis: exponent by which the cost of a fixed error of log rate grows over the size, relative to the loss that
        is still to gain there}: alpha - 2 beta + gamma of the paper, whose curvature gamma is over the rate, while the
        curvature over its logarithm has the exponent gamma - 2 beta. Above 0 an error matters more at larger sizes.
    asymptotic_loss: the best loss of an infinite model on as much data as the longest rows have; None for a law that
        has no size of a model.
    penalty: by how much that lies above the reference's at the same data, as a share of it; None without a reference.
    """

    error: LawEstimate
    kappa: dict[str, LawEstimate]
    asymptotic_loss: LawEstimate | None
    penalty: LawEstimate | None

    def __str__(self) -> str:
        lines = [f"error of the fit: {_interval(self.error)} octaves"]
        lines += [f"kappa over {axis}: {_interval(kappa)}" for axis, kappa in self.kappa.items()]
        if self.asymptotic_loss:
            lines.append(f"loss of an infinite model: {_interval(self.asymptotic_loss, 3)}")
        if self.penalty:
            percent = LawEstimate(*(100 * end for end in self.penalty))
            lines.append(f"that is above the reference's by {_interval(percent)}%")
        return "\n".join(lines)


def _interval(e: LawEstimate, digits: int = 2) -> str:
    return f"{e.value:.{digits}f} [{e.low:.{digits}f}, {e.high:.{digits}f}]"


def _estimate(draws: np.ndarray) -> LawEstimate:
    return LawEstimate(float(np.median(draws)), *map(float, np.quantile(draws, QUANTILES)))


class Prediction(NamedTuple):
    """What the law says of a target. Costs are shares of the loss: .01 is 1%.

    learning_rate: the best value of the hyperparameter, whatever it is called; low, high: its 95% interval.
    cost, worst_cost: the expected cost of using it, and the cost that it exceeds in 2.5% of the cases.
    loss, loss_low, loss_high: of one training at that value, with its 95% interval.
    outside: {axis: octaves above the largest size of the rows, or, negative, below the smallest}, of axes on which the
        target lies outside.
    shares: what the variance of log2 of the rate comes from: "prior" of the law's coefficients, "noise" of the rows,
        "scatter" of the optima about the law, with the distance from the rows.
    hyperparameter: its name. advice: what would narrow an interval that says hardly anything, else "".
    """

    learning_rate: float
    low: float
    high: float
    cost: float
    worst_cost: float
    loss: float
    loss_low: float
    loss_high: float
    outside: dict[str, float]
    shares: dict[str, float]
    hyperparameter: str = "learning_rate"
    advice: str = ""

    @property
    def at_worst(self) -> str:
        """`worst_cost` in words."""
        fails = self.worst_cost > (1 - ROUNDING) * math.expm1(FAILS)
        return f"it may fail ({ONE_SIDE})" if fails else f"at most {percent(self.worst_cost)} ({ONE_SIDE})"

    def __str__(self) -> str:
        octaves = math.log2(self.high / self.low)
        name = self.hyperparameter.replace("_", " ")
        outside = ", ".join(f"{value:+.1f} octaves in {axis}" for axis, value in self.outside.items())
        shares = ", ".join(f"{100 * share:.0f}% {name}" for name, share in self.shares.items())
        interval = f"[{self.low:.3g}, {self.high:.3g}], {BOTH_SIDES}"
        return "\n".join(
            (
                f"{name} {self.learning_rate:.3g} {interval}, {octaves:.1f} octaves wide",
                f"it costs {percent(self.cost)} of the loss on average, {self.at_worst}",
                f"loss {self.loss:.4g} [{self.loss_low:.4g}, {self.loss_high:.4g}]",
                f"outside the rows: {outside or 'no'}; its variance: {shares}"
                + (f"; {self.advice}" if self.advice else ""),
            )
        )


class ScalingLaw:
    """The law of `scaling_law`.

    axes: the sizes that it is in. together: axes whose exponents the rows cannot tell apart, since the sizes move
    together. fixed: axes that have one size: the exponent there is the prior's. conditions: what all rows share, such
    as the optimizer. notes: what a reader must know, in sentences.
    """

    def __init__(
        self, of: Gathered, law: JointFit, hyperparameter: str, table: TrainingTable, notes: Sequence[str]
    ) -> None:
        self._of, self._fit, self.hyperparameter, self.conditions = of, law, hyperparameter, dict(table.conditions)
        self._trainings = table.trainings
        self.axes = of.coordinates.axes
        self.fixed = tuple(axis for axis in self.axes if np.ptp(of.sizes[axis]) == 0)
        self.together = self._together()
        self.notes = list(notes)
        if self.fixed:
            verb = "has" if len(self.fixed) == 1 else "have"
            self.notes.append(f"{', '.join(self.fixed)} {verb} one value: the exponent is the prior's alone")
        if self.together:
            self.notes.append(f"{', '.join(self.together)} move together: their exponents cannot be told apart")

    @property
    def curves(self) -> int:
        """How many curves were fitted."""
        return self._of.curves

    def _together(self) -> tuple[str, ...]:
        varied = [axis for axis in self.axes if axis not in self.fixed]
        x = np.column_stack([self._of.sizes[axis] for axis in varied])
        x = x - x.mean(0)
        spread, directions = np.linalg.svd(x / np.sqrt((x**2).sum(0)))[1:]
        hidden = directions[np.append(spread, np.zeros(len(varied) - len(spread))) < SAME_LINE * spread[0]]
        return tuple(axis for axis, loads in zip(varied, hidden.T, strict=True) if (np.abs(loads) > 0.1).any())

    def __repr__(self) -> str:
        exponents = ", ".join(
            f"{axis} {e.value:+.2f} [{e.low:+.2f}, {e.high:+.2f}]" for axis, e in self.exponents.items()
        )
        return "; ".join([f"{self.hyperparameter} over {self._of.curves} curves: {exponents}", *self.notes])

    @functools.cached_property
    def exponents(self) -> dict[str, LawEstimate]:
        """{axis: exponent of the best value over one size, the others kept}, in the middle of the rows."""
        return {axis: self.along({axis: 1.0}) for axis in self.axes}

    def along(self, doublings: Mapping[str, float]) -> LawEstimate:
        """By how many octaves the best value moves where sizes double so often at once, in the middle of the rows.

        doublings: {axis: how often it doubles}; the other axes stay.
        """
        drawn = self._drawn(self._ends(doublings), rough=False)
        optimum = mean_loss(drawn.links, np.zeros(1), drawn.batch)[2]
        slopes = optimum[:, 1] - optimum[:, 0]
        return LawEstimate(float(slopes.mean()), *map(float, np.quantile(slopes, QUANTILES)))

    def _ends(self, doublings: Mapping[str, float]) -> dict[str, np.ndarray]:
        """{axis: (2,)}, sizes half of the doublings to either side of the middle of the rows."""
        middle = self._of.coordinates.middle
        return {axis: 2 ** (middle[axis] + np.array([-0.5, 0.5]) * doublings.get(axis, 0.0)) for axis in self.axes}

    @functools.cached_property
    def rules(self) -> tuple[RuleCheck, ...]:
        """The published rules for the rows' optimizer and parameterization, over the axes whose exponents the rows tell
        apart."""
        family, parameterization = _family(self.conditions), _parameterization(self.conditions)
        parameterization = "sp" if parameterization == "any" else parameterization
        varied, result = set(self.axes) - {*self.fixed, *self.together}, list[RuleCheck]()
        for rule in PUBLISHED_RULES if self.hyperparameter in RATES else ():
            if family not in rule.families or (rule.parameterization or "sp") != parameterization:
                continue
            for size, claimed in rule.exponents.items():
                doublings = self._doublings(rule, size)
                if doublings and doublings.keys() <= varied:
                    result.append(RuleCheck(rule.name, size, claimed, self.along(doublings)))
        return tuple(result)

    def _doublings(self, rule: PublishedRule, size: Size) -> dict[str, float]:
        """How often the law's axes double where the rule's `size` does once. Width and depth grow alike where a law in
        both is compared with one in parameters."""
        result = rule.doublings(size)
        if "parameters" in result and {"width", "depth"} <= set(self.axes):
            each = result.pop("parameters") / 3
            result |= {"width": each, "depth": each}
        if "tokens" in self.axes:
            tokens = result.pop("steps", 0.0) + result.get("batch_size", 0.0)
            result |= {"tokens": tokens} if tokens else {}
        return result

    def transfer(self, reference: ScalingLaw | None = None) -> TransferQuality:
        """How well the hyperparameter transfers over the sizes of the rows.

        reference: the law of another parameterization, whose loss at infinite size this one's is compared with. Raises
        ValueError if it is in other sizes.
        """
        kappa = dict[str, LawEstimate]()
        for axis in self.axes:
            if axis in self.fixed or axis == "batch_size":  # a larger batch is more data, too
                continue
            drawn = self._drawn(self._ends({axis: 1.0}), rough=False)
            optimum = mean_loss(drawn.links, np.zeros(1), drawn.batch)[2]
            log, excess, _ = mean_loss(drawn.links, optimum + BESIDE, drawn.batch)
            gap = drawn.links["size" if axis in MODEL else "data"]
            kappa[axis] = _estimate(np.diff(np.log2(excess) + (log - excess - gap) / math.log(2))[:, 0])
        losses = penalty = None
        if set(self.axes) & set(MODEL):
            place = self._longest
            losses = self._endless(place)
            if reference is not None:
                if reference.axes != self.axes:
                    axes, others = ", ".join(self.axes), ", ".join(reference.axes)
                    raise ValueError(f"the law is in {axes}, its reference in {others}: give both the same sizes")
                # Reversed, since draws of two laws have the same random numbers.
                penalty = _estimate(np.expm1(losses - reference._endless(place)[::-1]))
        optima, design = self._fit.discrepancies("optimum"), self._fit.features["optimum"]
        about = optima - optima @ np.linalg.pinv(design).T @ design.T  # what a plane could have is not about it
        error = np.sqrt((about**2).sum(axis=1) / max(len(design) - np.linalg.matrix_rank(design), 1))
        asymptotic = None if losses is None else _estimate(np.exp(losses))
        return TransferQuality(_estimate(error), kappa, asymptotic, penalty)

    @property
    def _longest(self) -> dict[str, np.ndarray]:
        """The sizes of the row with the most data; of equal ones, of the largest model."""
        data = np.round(self._fit.rows.design["data"], 6)
        last = max(range(self.curves), key=lambda i: (data[i], *(self._of.sizes[axis][i] for axis in self.axes)))
        return {axis: np.array([2 ** float(self._of.sizes[axis][last])]) for axis in self.axes}

    def _endless(self, place: Mapping[str, np.ndarray]) -> np.ndarray:
        """(draws,), the log of the best loss at a place without what the size of the model adds to it."""
        drawn = self._drawn(place)
        links, mode = ({name: v for name, v in of.items() if name != "size"} for of in (drawn.links, drawn.mode))
        return self._best_loss(_Drawn(links, mode, drawn.batch))[:, 0]

    def _drawn(self, sizes: Mapping[str, np.ndarray], rough: bool = True) -> _Drawn:
        design = self._of.coordinates.design(sizes)
        links = self._fit.links_at(self._of.coordinates.places(design), design, rough)
        drawn = {name: link.drawn for name, link in links.items()}
        return _Drawn(drawn, {name: link.mode for name, link in links.items()}, design["batch_size"])

    def at(self, **sizes: Any) -> Prediction:
        """What the law says of a target, one number for each of its axes; an axis with one size may be left out.

        The value is the median of what may be best there. Conditions, such as optimizer="adamw", may be named: they
        must be those of the rows. Raises ValueError for a missing or unknown size, one that is not positive, a model or
        tokens below the rows', and for other conditions than the rows'.
        """
        target = self._target(sizes)
        drawn = self._drawn(target)
        optimum = mean_loss(drawn.links, np.zeros(1), drawn.batch)[2][:, 0]
        low, rate, high = (float(q) for q in np.quantile(optimum, [QUANTILES[0], 0.5, QUANTILES[1]]))
        costs = np.expm1(np.minimum(mean_loss(drawn.links, np.array([rate]), drawn.batch)[1][:, 0], FAILS))
        loss = self._losses(target, np.array([rate]))
        outside = dict[str, float]()
        for axis in self.axes:
            x, known = math.log2(target[axis][0]), self._of.sizes[axis]
            beyond = float(max(x - known.max(), 0.0) + min(x - known.min(), 0.0))
            if abs(beyond) > ROUNDING:
                outside[axis] = beyond
        parts = self._sources(target, drawn)
        shares = {name: value / max(sum(parts), 1e-300) for name, value in parts._asdict().items()}
        return Prediction(
            learning_rate=2**rate,
            low=2**low,
            high=2**high,
            cost=float(costs.mean()),
            worst_cost=float(np.quantile(costs, QUANTILES[1])),
            loss=float(loss.mean[0]),
            loss_low=float(loss.low[0]),
            loss_high=float(loss.high[0]),
            outside=outside,
            shares=shares,
            hyperparameter=self.hyperparameter,
            advice=self._advice(high - low, outside),
        )

    def _advice(self, octaves: float, outside: Mapping[str, float]) -> str:
        if octaves <= WIDE:
            return ""
        fixed = [axis for axis in self.fixed if axis in outside] or list(outside)
        more = f"train a second {fixed[0]}" if fixed and fixed[0] in self.fixed else "train more sizes"
        return f"the interval is {octaves:.0f} octaves wide: {more}"

    def _sources(self, target: Mapping[str, np.ndarray], drawn: _Drawn) -> Any:
        """Parts of the variance of log2 of the best rate, by `JointFit.sources`."""
        design = self._of.coordinates.design(target)

        def optimum(link: str, change: float) -> float:
            links = {**drawn.mode, link: drawn.mode[link] + change}
            return float(mean_loss(links, np.zeros(1), drawn.batch)[2][0])

        names: list[str] = [name for name in ("optimum", "bend", "slope", "sharpness") if name in drawn.mode]
        slopes = {name: (optimum(name, STEP) - optimum(name, -STEP)) / (2 * STEP) for name in names}
        return self._fit.sources(self._of.coordinates.places(design), design, slopes)

    def _target(self, sizes: Mapping[str, Any]) -> dict[str, np.ndarray]:
        result = dict[str, np.ndarray]()
        for name, value in sizes.items():
            if name in CONDITIONS:
                if name not in self.conditions:
                    raise ValueError(f"the rows have no column {name!r}: whether it is {value!r} is not known")
                if str(self.conditions[name]).casefold() != str(value).casefold():
                    raise ValueError(f"the rows have {name} {self.conditions[name]!r}, the target has {value!r}")
            elif name not in self.axes:
                hint = f"; the rows have no {name}" if name in AXES else ""
                raise unknown("size", name, self.axes, hint)
            else:
                POSITIVE.check(name, value)
                result[name] = np.array([float(value)])
        for axis in self.axes:
            smallest = float(self._of.sizes[axis].min())
            below = axis in result and math.log2(result[axis][0]) < smallest - ROUNDING
            if below and axis in (*MODEL, "tokens"):
                raise ValueError(f"{axis} {result[axis][0]:g} is below the rows', which begin at {2**smallest:g}")
            if axis not in result and axis not in self.fixed:
                raise ValueError(f"the target has no {axis}")
            result.setdefault(axis, np.array([2**smallest]))
        return {axis: result[axis] for axis in self.axes}

    def loss(self, table: Any) -> Losses:
        """The losses of single trainings of any size and rate, with 95% intervals. table: columns of the law's axes
        and the hyperparameter, in any form that `scaling_law` takes; an axis with one size may be left out."""
        columns = self._columns(table, (self.hyperparameter, *self.axes))
        sizes = {axis: POSITIVE.array(axis, columns[axis]) for axis in self.axes}
        rates = np.log2(POSITIVE.array(self.hyperparameter, columns[self.hyperparameter]))
        parts = [
            self._losses({axis: size[i : i + CHUNK] for axis, size in sizes.items()}, rates[i : i + CHUNK])
            for i in range(0, len(rates), CHUNK)
        ]
        return Losses(*(np.concatenate(part) for part in zip(*parts, strict=True)))

    def rates(self, table: Any, scatter: bool = True) -> Rates:
        """The best values at many sizes. table: columns of the law's axes, as `loss` takes them. scatter: with the
        scatter about the law."""
        columns = self._columns(table, self.axes)
        sizes = {axis: POSITIVE.array(axis, columns[axis]) for axis in self.axes}
        parts = []
        for i in range(0, len(sizes[self.axes[0]]), CHUNK):
            drawn = self._drawn({axis: size[i : i + CHUNK] for axis, size in sizes.items()}, scatter)
            optimum = mean_loss(drawn.links, np.zeros(1), drawn.batch)[2]
            parts.append(2 ** np.quantile(optimum, (0.5, *QUANTILES), axis=0))
        return Rates(*np.concatenate(parts, axis=1))

    def _columns(self, table: Any, names: Sequence[str]) -> dict[str, list[Any]]:
        """Columns of a table; of an axis with one size that is left out, that size."""
        columns = read_columns(table)
        count = len(next(iter(columns.values())))
        for axis in self.fixed:
            columns.setdefault(axis, [2 ** float(self._of.sizes[axis][0])] * count)
        for name in names:
            if name not in columns:
                raise ValueError(f"the table has no column {name!r} (it has {', '.join(columns)})")
        return columns

    def _losses(self, sizes: Mapping[str, np.ndarray], rates: np.ndarray) -> Losses:
        drawn = self._drawn(sizes)
        _, excess, optimum = mean_loss(drawn.links, rates, drawn.batch)
        excess = np.minimum(excess, FAILS)
        log = self._best_loss(drawn) + excess
        spread = self._fit.spread(excess, rates > optimum)
        noise = np.random.default_rng(2).standard_t(FREEDOM, size=log.shape)
        low, high = np.exp(np.quantile(log + spread * noise, QUANTILES, axis=0))
        return Losses(np.exp(np.median(log, axis=0)), low, high)

    def _best_loss(self, drawn: _Drawn) -> np.ndarray:
        """(draws, targets), the log loss at the best rate. It is linear about the mode: the rows determine sums of
        the terms well and each term badly, so that far draws would leave the data."""

        def best(links: Mapping[str, np.ndarray]) -> np.ndarray:
            log, excess, _ = mean_loss(links, np.zeros(1), drawn.batch)
            return log - excess

        mode = best(drawn.mode)
        result = np.zeros_like(drawn.links["level"]) + mode
        for name in LEVEL & drawn.mode.keys():
            slope = (best({**drawn.mode, name: drawn.mode[name] + STEP}) - mode) / STEP
            result += slope * (drawn.links[name] - drawn.mode[name])
        return result


class _Drawn(NamedTuple):
    """Links of targets: in draws, (draws, targets), and at the mode, (targets,); the batch size in octaves."""

    links: dict[str, np.ndarray]
    mode: dict[str, np.ndarray]
    batch: np.ndarray


def scaling_law(
    table: Any,
    *,
    hyperparameter: str = "learning_rate",
    measure: str = "loss",
    prior: Literal["rules"] | Prior | None = "rules",
    sizes: Sequence[str] | None = None,
) -> ScalingLaw:
    """The law of the best value of a hyperparameter, and of the loss, over all sizes, fitted to trainings.

    Args:
      table: trainings, as a DataFrame, a dict of columns, a list of rows or the path of a CSV file. Its columns are
        some of the sizes width, depth (or parameters), steps (or tokens) and batch_size; `hyperparameter`, `measure`
        and, where known, "seed" and "diverged". A training whose loss is not finite has diverged.
      hyperparameter: the column whose best value is followed. "Rate" below means it.
      measure: the column to minimize; if its name ends in "accuracy", the error 1 - accuracy is minimized.
      prior: of the exponents. "rules": what published rules say for the rows' parameterization and optimizer (columns
        of these names; by default no parameterization, and Adam), those of Adam and SGD. None: none.
      sizes: the sizes of the law. None: all that the table has, width and depth before parameters, steps before tokens.

    Returns:
      A `ScalingLaw`; `predict` asks it for a larger size.

    `joint_fit` has the law: one fit to all curves up to their cliffs. A rate that diverges, or lies beyond a cliff,
    says that it is too high. Where the rows vary batch size and length, the optimum bends at a critical batch size that
    grows with the data: it may lie anywhere, also beyond the rows.

    Raises ValueError for a table with one size, without a column that is needed, with sizes or rates that are not
    positive, with two values of a condition such as the optimizer, without a training that converged, or with two rows
    for one training.
    """
    columns, axes = checked_table(table, hyperparameter, measure, sizes)
    of = gathered(columns, axes)
    if of.curves < 2:
        words = ", ".join(f"{axis} {2 ** of.sizes[axis][0]:g}" for axis in axes)
        raise ValueError(f"all rows have one size, {words}: a second value of {axes[0]} would show its exponent")
    exponents, notes = _prior(prior, columns.conditions, hyperparameter)
    varied = {axis for axis in axes if np.ptp(of.sizes[axis]) > 0}
    bend = "batch_size" in varied and bool(varied & {"steps", "tokens"})
    law = JointFit(of.rows, links(of, exponents, bend), of.noise).fit()
    return ScalingLaw(of, law, hyperparameter, columns, notes)


def _prior(prior: Any, conditions: Mapping[str, Any], hyperparameter: str) -> tuple[Prior, list[str]]:
    """The prior, and what a reader must know of it."""
    if prior is None:
        return Prior({}), []
    if isinstance(prior, Prior):
        return prior.check(), []
    if prior != "rules":
        raise ValueError(f'prior must be "rules", None or a Prior, got {short(prior)}')
    if hyperparameter not in RATES:
        return Prior({}), [f"there is no prior for {hyperparameter}: the exponents are of the rows alone"]
    family, parameterization, notes = _family(conditions), _parameterization(conditions), list[str]()
    result = dict[str, tuple[float, float]]()
    for axis, tables in _rules().items():
        of_families = tables.get(parameterization or "any", tables["any"])
        if family in of_families and not (parameterization is None and axis in MODEL):
            result[axis] = of_families[family]
    if family not in ("adam", "sgd"):
        notes.append(f"there is no prior for {family}: the exponents are of the rows alone")
    if parameterization is None:
        name = conditions["parameterization"]
        notes.append(
            f"there is no prior for parameterization {name!r}: exponents of the model's size are of the rows alone"
        )
    return Prior(result), notes


def _parameterization(conditions: Mapping[str, Any]) -> str | None:
    """The name of the rows' parameterization in the file of priors; "any" without one, None for one that it lacks."""
    name = conditions.get("parameterization")
    if name in (None, ""):
        return "any"
    letters = re.sub(r"[^a-z]", "", str(name).lower().replace("\u03bc", "mu").replace("\u00b5", "mu"))
    known = {name.replace("_", ""): name for table in _rules().values() for name in table} | {"standard": "sp"}
    return known.get(letters)


def _family(conditions: Mapping[str, Any]) -> str:
    """The family of the rows' optimizer, or the optimizer's name."""
    name = str(conditions.get("family") or conditions.get("optimizer") or "adam").lower()
    return FAMILIES.get(name, name)


@functools.cache
def _rules() -> dict[str, dict[str, dict[str, tuple[float, float]]]]:
    """{axis: {parameterization or "any": {family: (mean, sd)}}}."""
    tables = tomllib.loads(PRIORS.read_text())
    return {
        axis: {
            name: {family: (float(row["mean"]), float(row["sd"])) for family, row in families.items()}
            for name, families in tables[axis].items()
        }
        for axis in RULED
    }
