"""The verdict on transfer: is the value tuned at the smallest size as good at every size as tuning there?"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

import numpy as np

from depthmup.fit.curve import POINTS, SAME, Curve, capped, checked_curve, half_width, log_losses
from depthmup.fit.drift import Drift, fitted_drift
from depthmup.fit.optimum import Optimum, curve_optimum
from depthmup.fit.posterior import posteriors
from depthmup.fit.table import LossCurve, curves_by_size
from depthmup.fit.thresholds import BOTH_SIDES, MARGIN, SELDOM, STAYS
from depthmup.fit.verdict import (
    BEYOND,
    MOST_SEEDS,
    NOT,
    NOTHING,
    TRANSFERS,
    UNLEARNED,
    Answer,
    Cost,
    Kind,
    Margin,
    Need,
    Risk,
    SizeTrials,
    Verdict,
    judged,
)
from depthmup.names import POSITIVE, at_least_one, short

if TYPE_CHECKING:
    import pandas


class Transfer(NamedTuple):
    """The result of `transfer`. Every list has one entry per size, sizes rising.

    Learning rates are values of the hyperparameter, losses are values of the minimized measure (see `transfer`).
    """

    axis: str
    hyperparameter: str
    values: list[Any]  # the sizes
    verdict: Verdict
    reason: str  # the verdict's evidence in words
    margin: float | str  # see `transfer`
    margins: list[float]  # what it allows a value to cost at each size, as a share of the loss; NaN without an optimum
    answers: list[Answer]  # "within" the margin, "beyond" it, "open", or "not learned"; of the smallest size "within"
    tuned: float | None  # the best value of the smallest size by the curves of verdicts; None if that size has none
    costs: list[Cost | None]  # of the tuned value at each size; None where it diverges or was not trained
    cost: Cost | None  # the largest: an interval for the largest of all costs; None if one is not known
    needs: list[Need]  # what would decide the open sizes
    risk: Risk | None  # trainings that failed at the values next to the tuned one, at all sizes; None without any
    valleys: dict[Any, tuple[float, float]]  # {size: the best values of two valleys with a hill between them}
    optimal_lr: list[float | None]  # None for a size without an optimum
    optima: list[Optimum]
    drift: Drift | None  # of the optimum; None if fewer than two sizes have an optimum
    edge_drift: Drift | None  # of the edge, above which training is not possible
    regret: list[float | None]  # `regret_at` with the smallest size's best value; None if that size has none
    # The best seed-mean validation accuracy minus the one at the smallest size's best value, with the interval of the
    # paired seeds. None where `regret` is None, and everywhere if a row of the table lacks "validation_accuracy".
    regret_accuracy: list[Cost | None]
    learning_rates: list[np.ndarray]  # (points,) each
    losses: list[np.ndarray]  # (points, seeds) each; NaN where a seed was not trained
    diverged: list[np.ndarray]  # (points, seeds) each, bool
    cap: float | None

    @property
    def line(self) -> str:
        """The verdict and its evidence in one line."""
        return f"{self.axis} {self.values[0]:g} to {self.values[-1]:g}: {self.verdict}: {self.reason}"

    @property
    def price(self) -> str:
        """What the tuned value costs in a few words; "" if it is not known."""
        if self.verdict == NOT and self.tuned is not None:
            return _beyond(self)
        return f"costs at most {self.cost}" if self.cost else ""

    @property
    def moved(self) -> str:
        """How the best value of the largest size differs from the tuned one: "stays", "rises 2x" or "falls 2x"; "" if
        one of them is not known."""
        best = self.optimal_lr[-1]
        if best is None or self.tuned is None:
            return ""
        octaves = math.log2(best / self.tuned)
        if abs(octaves) < STAYS:
            return "stays"
        return f"{'rises' if octaves > 0 else 'falls'} {2 ** abs(octaves):.2g}x"

    @property
    def would_decide(self) -> str:
        """The trainings that would decide the open sizes, in words; "" where none would."""
        parts, name = [], self.hyperparameter.replace("_", " ")
        for kind in get_args(Kind):
            needs = [need for need in self.needs if need.kind == kind]
            if not needs:
                continue
            where = f"at {self.axis} {', '.join(f'{need.size:g}' for need in needs)}"
            low, high = min(need.low for need in needs), max(need.high for need in needs)
            if kind == "finer":
                parts.append(f"a finer grid between {name} {low:.3g} and {high:.3g} {where}")
            elif kind == "seeds":
                most = max(need.seeds for need in needs)
                number = "hundreds of" if most >= MOST_SEEDS else f"about {most}"
                parts.append(f"{number} seeds {where} ({name} {low:.3g} to {high:.3g})")
            else:
                parts.append(f"a {name} {kind} than {high if kind == 'lower' else low:.3g} {where}")
        return " and ".join(parts)

    def __str__(self) -> str:
        """The verdict, then a row for each size: the best value, interval and loss, and what the tuned one costs."""
        form = "{:>8} {:>10}  {:23} {:>10}  {:24} {}"
        rows = [form.format(self.axis, "best", f"{BOTH_SIDES} interval", "loss", "cost of the tuned one", "answer")]
        for size, o, cost, answer in zip(self.values, self.optima, self.costs, self.answers, strict=True):
            best, loss = (f"{x:.4g}" if o.learning_rate else "none" for x in (o.learning_rate, o.loss))
            interval = f"[{o.low:.4g}, {o.high:.4g}]" if o.learning_rate and not math.isnan(o.low) else ""
            rows.append(form.format(f"{size:g}", best, interval, loss, str(cost or ""), answer).rstrip())
        return "\n".join([self.line, *rows])

    def plot(self, path: str | Path) -> None:
        """Draw the loss against the hyperparameter, a line for each size, to a PNG."""
        from depthmup.fit import picture
        from depthmup.fit.marks import loss_marks

        lines = []
        for i, (size, rates, optimum) in enumerate(zip(self.values, self.learning_rates, self.optima, strict=True)):
            marks = loss_marks(rates, self.log_losses(i), optimum)
            lines.append(picture.Line(f"{size:g}", f"{size:g}", i, "", marks))
        panel = picture.Panel({}, [], lines, picture.level_of_chance(lines, self.cap))
        name = self.hyperparameter.replace("_", " ")
        drawn = picture.loss_picture(f"{self.verdict}: {self.reason}", self.axis, name, "loss", [panel])
        Path(path).write_bytes(picture.png(picture.draw(drawn, more=1.5)))

    def log_losses(self, i: int) -> np.ndarray:
        """(points, seeds), log losses at the size with index `i`, cut to the cap; NaN where a seed was not trained."""
        trained = np.isfinite(self.losses[i]) | self.diverged[i]
        log = log_losses(np.where(self.diverged[i], np.nan, np.where(trained, self.losses[i], np.inf)), self.cap)
        return np.where(trained, log, np.nan)


def transfer(
    table: Iterable[Mapping[str, Any]] | pandas.DataFrame,
    axis: str = "depth",
    cap: float | None = None,
    *,
    hyperparameter: str = "learning_rate",
    measure: str = "loss",
    margin: float | str = MARGIN,
    looks: int = 1,
) -> Transfer:
    """The verdict, the optimum and the edge at each size, and the cost of the smallest size's best value at each size.

    Args:
      table: rows, or a DataFrame, with `axis`, `hyperparameter`, "seed", `measure` and (if known) "diverged",
        "validation_accuracy".
      axis: name of the column of sizes, such as "depth" or "width".
      cap: a training that ends at or above it has learned nothing (see `optimum`); in units of the minimized quantity.
      hyperparameter: the column whose optimum is followed; its values are positive. "Learning rate" below means it.
      measure: the column to minimize; if its name ends in "accuracy", the error 1 - accuracy is minimized.
      margin: what the value may cost: as much as one that is so many octaves (factors of 2) below the best, or a share
        of the loss such as "0.5%"; "1 octave" is 1.0 (`worth` says which share some percent of the steps are worth).
      looks: at how many times in all a verdict is asked for while seeds are added; errors are corrected for them.

    Returns:
      A `Transfer`; print it for the verdict in words.

    The question of the verdict: is the value that is printed, the one that is best at the smallest size, as good at a
    larger one as the best there? Its cost is the difference of log losses. That is compared with the margin, by
    default the cost of a learning rate an octave below the size's optimum, a tenth of a percent at least:
      "transfers"          the cost is surely below the margin at every size;
      "does not transfer"  it is surely above the margin at some size, or the learning rate diverges there for most
                           seeds, or the size's optimum is surely farther away than the grid reaches;
      "undecided"          otherwise, and with one seed always; `needs` says what would decide it;
      "nothing learned"    fewer than two sizes have a training that is surely better than chance (`Curve.learned`).
    A size where nothing learned has no answer, and a table with such a size does not transfer to it.

    Costs and errors come from draws of smooth curves that the trainings allow (`fit.posterior`), of all sizes together;
    they contain the errors of both optima. "Surely" is 97.5% to one side. For "does not transfer" that holds for all
    sizes together: half of the error belongs to the largest size, the other half to all other sizes.

    A training that diverges below the edge has done so by chance and leaves its curve. `risk` counts those next to the
    printed value; `valleys` has the sizes whose curves have two.

    Sizes may have different rates, rates different numbers of seeds: an adaptive sweep, or one whose seeds were added
    where they were needed. Raises ValueError for an empty table, fewer than two sizes, fewer than five rates, a column
    that is missing, two rows for one trial, values of `axis` or `hyperparameter` that are not positive numbers,
    accuracies outside 0 to 1, or a NaN that is not one of a diverged training.
    """
    allowed = margin_of(margin)
    at_least_one("looks", looks)
    frame: Any = table
    rows = frame.to_dict("records") if hasattr(table, "columns") else table
    curves = curves_by_size(rows, axis, hyperparameter, measure)
    checks = [_checked(size, curve, axis, hyperparameter, cap) for size, curve in curves.items()]
    drawn = posteriors([curve for curve, _ in checks])
    sizes = [
        SizeTrials(size, curve, curve_optimum(curve), seeds, posterior)
        for size, (curve, seeds), posterior in zip(curves, checks, drawn, strict=True)
    ]
    answers = judged(sizes, allowed, looks)._asdict()  # Transfer has its fields
    optima = [size.optimum for size in sizes]
    seeds, best = max(len(size.seeds) for size in sizes), optima[0].learning_rate
    result = Transfer(
        axis=axis,
        hyperparameter=hyperparameter,
        values=list(curves),
        **answers,
        reason="",
        margin=margin if allowed.octaves is None else allowed.octaves,
        optimal_lr=[o.learning_rate for o in optima],
        optima=optima,
        drift=fitted_drift(list(curves), optima, seeds),
        edge_drift=fitted_drift(list(curves), [o.edge for o in optima], seeds),
        regret=[],
        regret_accuracy=[None if best is None else _regret_accuracy(curve, best) for curve in curves.values()],
        learning_rates=[curve.rates for curve in curves.values()],
        losses=[curve.losses for curve in curves.values()],
        diverged=[curve.diverged for curve in curves.values()],
        cap=cap,
    )
    regret = [None if best is None else regret_at(result, i, best) for i in range(len(sizes))]
    return result._replace(regret=regret, reason=_words(result, seeds))


def margin_of(margin: float | str) -> Margin:
    """The margin that `transfer` takes. Raises ValueError for another one."""
    if not isinstance(margin, str):
        POSITIVE.check("margin", margin)
        return Margin(float(margin))
    words = re.fullmatch(r"\s*(\S+?)\s*(%|octaves?)\s*", margin)
    try:
        value = float(words[1]) if words else math.nan
    except ValueError:
        value = math.nan
    if not words or not 0 < value < math.inf:
        raise ValueError(
            'margin must be a number of octaves, such as 1.0 or "1 octave", or percent of the loss, such as "0.5%", '
            f"got {margin!r}"
        )
    return Margin(None, value / 100) if words[2] == "%" else Margin(value)


def worth(over_steps: Transfer, share: float) -> str:
    """The margin that is worth a share of the training: by how many percent the loss falls when the steps grow by it.

    Args:
      over_steps: a result along "steps", whose best losses say so.
      share: of the steps, such as .02.

    Returns:
      The margin as text, such as "0.5%", which `transfer` takes.

    Raises ValueError for a result along another axis, and where the loss does not fall.
    """
    POSITIVE.check("share", share)
    best = [(size, o.loss) for size, o in zip(over_steps.values, over_steps.optima, strict=True) if o.loss > 0]
    if over_steps.axis != "steps" or len(best) < 2:
        raise ValueError(f"a share of the steps needs optima at two numbers of steps, got {over_steps.line}")
    steps, losses = np.log(np.array(best, float)).T
    slope = float(np.polyfit(steps, losses, 1)[0])
    if slope >= 0:
        raise ValueError(f"more steps do not lower the loss: {over_steps.line}")
    return f"{100 * math.expm1(-slope * math.log1p(share)):.3g}%"


def _checked(
    size: Any, trials: LossCurve, axis: str, hyperparameter: str, cap: float | None
) -> tuple[Curve, list[Any]]:
    """The curve of a size, and the names of its seeds."""
    present = np.array(trials.trained.any(axis=0))
    losses, trained = trials.losses[:, present], trials.trained[:, present]
    curve = checked_curve(trials.rates, losses, cap, trials.diverged[:, present] | ~trained, trained)
    if len(curve.x) < POINTS:
        raise ValueError(
            f"{axis}={size:g} has {len(curve.x)} values of {hyperparameter}: an optimum needs {POINTS} at least"
        )
    return curve, [seed for seed, is_trained in zip(trials.seeds, present.tolist(), strict=True) if is_trained]


def _words(result: Transfer, seeds: int) -> str:
    """The verdict's evidence."""
    axis, sizes = result.axis, result.values
    name = result.hyperparameter.replace("_", " ")
    unlearned = [f"{s:g}" for s, answer in zip(sizes, result.answers, strict=True) if answer == UNLEARNED]
    trains = "trains every seed" if result.cap is None else "does surely better than chance"
    chance = f"no {name} {trains} at {axis} {', '.join(unlearned)}" if unlearned else ""
    if result.verdict == NOTHING:
        return chance
    rate = result.tuned
    if rate is None:
        return f"{axis} {sizes[0]:g} has no best {name}: {chance or result.optima[0].reason}"
    value = f"{rate:.3g} of {axis} {sizes[0]:g}"
    cost = f"{value} costs at most {result.cost}" if result.cost else ""
    missing = f"would be decided by {result.would_decide}" if result.needs else ""
    if result.verdict == TRANSFERS:
        parts = [f"{cost} at any {axis}" if cost else value]
    elif result.verdict == NOT:
        parts = [f"{value} {_beyond(result)}"]
    elif seeds == 1:
        parts = ["one seed does not decide: several are needed", chance, cost]
    else:
        parts = [missing, chance, cost]
    risk = "" if result.verdict == NOT else risk_words(result)
    return "; ".join(filter(None, [*parts, margin_words(result), risk, _valley_words(result)]))


def margin_words(result: Transfer) -> str:
    """What the margin allows, such as "margin 1.9%: an octave below the best"; "" where it is not known."""
    margins = [margin for margin in result.margins[1:] if not math.isnan(margin)]
    if not margins:
        return ""
    low, high = (f"{100 * margin:.2g}" for margin in (min(margins), max(margins)))
    percent = f"{low}%" if low == high else f"{low} to {high}%"
    if isinstance(result.margin, str):
        return f"margin {percent}"
    octaves = "an octave" if result.margin == 1 else f"{result.margin:g} octaves"
    return f"margin {percent}: {octaves} below the best"


def risk_words(result: Transfer) -> str:
    """A warning where trainings next to the printed value diverge, surely in more than SELDOM of the cases."""
    risk = result.risk
    if risk is None or risk.low <= SELDOM:
        return ""
    return f"it may diverge: {risk.failed} of {risk.trained} trainings next to it did"


def _valley_words(result: Transfer) -> str:
    valleys = [f"{axis_size:g} ({2**low:.3g} and {2**high:.3g})" for axis_size, (low, high) in result.valleys.items()]
    return f"two valleys at {result.axis} {', '.join(valleys)}" if valleys else ""


def _beyond(result: Transfer) -> str:
    """What is wrong with the tuned value."""
    axis, parts = result.axis, []
    beyond = [i for i, answer in enumerate(result.answers) if answer == BEYOND]
    without = [i for i in beyond if result.costs[i] is None]
    outside = [i for i in without if not _on_grid(result.learning_rates[i], result.tuned or 1.0)]
    no_best = [i for i in without if result.optimal_lr[i] is None and i not in outside]
    fails = [i for i in without if i not in (*outside, *no_best)]
    costly = [i for i in beyond if result.costs[i] is not None]

    def where(sizes: Sequence[int]) -> str:
        return f"{axis} {', '.join(f'{result.values[i]:g}' for i in sizes)}"

    if fails:
        parts.append(f"diverges at {where(fails)}")
    if costly:
        worst = max(costly, key=lambda i: cost.share if (cost := result.costs[i]) else 0.0)
        parts.append(f"costs {result.costs[worst]} at {where([worst])}")
    if outside:
        parts.append(f"is beyond the grid at {where(outside)}")
    if no_best:
        parts.append(f"is too far from the best at {where(no_best)}, {result.optima[no_best[0]].reason}")
    return "; ".join(parts)


def regret_at(result: Transfer, i: int, learning_rate: float) -> float | None:
    """What a learning rate costs at one size: the loss at the grid point nearest to it, minus the best loss.

    Args:
      result: what `transfer` returned.
      i: the index of the size.
      learning_rate: above 0.

    Returns:
      The difference in the units of the loss. None if a seed diverges at that point, or if the point is more than half
      a grid step away, which happens outside the grid and in gaps of an adaptive sweep's grid.

    Raises ValueError for a learning rate that is not positive, and for an index of no size.
    """
    if not isinstance(result, Transfer) or i not in range(-len(result.values), len(result.values)):
        raise ValueError(f"the size must be one of a result of `transfer`, got index {short(i)} of {short(result)}")
    POSITIVE.check("learning_rate", learning_rate)
    rates = result.learning_rates[i]
    chosen = nearest_point(rates, learning_rate)
    if not _on_grid(rates, learning_rate) or result.diverged[i][chosen].any():
        return None
    losses = capped(np.where(result.diverged[i], np.nan, result.losses[i]), result.cap)
    trained = np.isfinite(result.losses[i]) | result.diverged[i]
    mean = np.nanmean(np.where(trained, losses, np.nan), axis=1)
    return float(mean[chosen] - mean.min())


def _regret_accuracy(curve: LossCurve, learning_rate: float) -> Cost | None:
    """The best accuracy minus the accuracy at `learning_rate`; None as in `regret_at`, or if an accuracy is unknown."""
    if curve.accuracy is None:
        return None
    accuracy = np.where(curve.diverged, np.nan, curve.accuracy)
    complete = ~np.isnan(accuracy) | ~curve.trained
    mean = np.array([np.nanmean(row) if ok.all() else np.nan for row, ok in zip(accuracy, complete, strict=True)])
    chosen = nearest_point(curve.rates, learning_rate)
    if not _on_grid(curve.rates, learning_rate) or math.isnan(mean[chosen]):
        return None
    best = int(np.nanargmax(mean))
    pairs = accuracy[best] - accuracy[chosen]
    pairs = pairs[~np.isnan(pairs)]
    value, half = float(mean[best] - mean[chosen]), math.nan
    if len(pairs) > 1:
        half = half_width(len(pairs) - 1) * float(pairs.std(ddof=1)) / math.sqrt(len(pairs))
    return Cost(value, value - half, value + half)


def nearest_point(rates: np.ndarray, rate: float) -> int:
    """The index of the grid point in rates, (points,), that is nearest to `rate` in octaves."""
    return int(np.argmin(np.abs(np.log2(rates) - math.log2(rate))))


def _on_grid(rates: np.ndarray, rate: float) -> bool:
    """Whether `rate` is at most half of the grid's smallest step away from a grid point. rates: (points,), rising."""
    x = np.log2(rates)
    steps = np.diff(x)
    return bool(np.abs(x - math.log2(rate)).min() <= 0.5 * steps[steps > SAME].min() + 1e-9)
