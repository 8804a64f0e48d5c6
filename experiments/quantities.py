"""What a prediction can be about, computed from committed rows: each function takes the words `of` of an entry."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import pandas

from configs.transfer import get_config as transfer_config
from depthmup.fit import PowerLaw, Transfer, settled, transfer
from depthmup.fit.transfer import nearest_point
from depthmup.settings import from_config
from depthmup.sweep import judge
from experiments import (
    embedding,
    hundred_million,
    jump,
    language,
    large_runs,
    layer_kinds,
    planted_targets,
    published,
    scaling,
    tune,
)
from experiments.figures import page
from experiments.figures.figure import agreement, best_losses, chance, curve
from experiments.output import UNDECIDED, Interval, combined, decided, paired, percent
from experiments.paper_a import figb1, figb3, figm1
from experiments.paper_b import at_start, averages, channels, fig2a, zero_shot
from experiments.paper_b.exponents import BOTH, along_depth, apart, best_rates, interval, of_optima
from experiments.published import RESULTS, Sweep

UNKNOWN = Interval(math.nan, math.nan, math.nan)


@functools.cache
def sweeps() -> dict[str, Sweep]:
    """Of both papers' figures."""
    return {name: sweep for paper in page.PAPERS for name, sweep in page.read(paper).items()}


@functools.cache
def results() -> dict[str, Transfer]:
    """{name of a learning-rate curve: what the rows say}"""
    named = {f"{name} {c.name} {c.axis}": c.result for name, sweep in sweeps().items() for c in sweep.curves}
    named |= {f"language {c.name} {c.optimizer} {c.axis}": c.result for c in language.published()}
    named |= {f"scaling {c.optimizer} {c.axis}": c.result for decay in (False, True) for c in scaling.curves(decay)}
    for kind, rows in layer_kinds.read()[0].astype({"loss": float}).groupby("kind"):
        judged = judge(rows.drop(columns="kind"), chance=language.CHANCE).curves
        named |= {f"kinds {kind} {c.axis}": c.result for c in judged}
    if embedding.ROWS.exists():
        named |= {f"embedding {case}, decay {decay:g}": c.result for (case, decay), c in embedding.curves().items()}
    digits = published.read(RESULTS / "digits_transfer", from_config(transfer_config("whole"))).curves
    named |= {f"digits {c.optimizer} {c.name} {c.axis}": c.result for c in digits}
    for name, sizes in jump.JUMPS.items():
        for rule in sizes.rules if sizes.path.exists() else ():
            suffix = "" if rule == "none" else f" + {rule}"
            named |= {f"jump {name} {case}{suffix}": r for case, r in jump.curves(sizes, rule).items()}
    return named


def named(of: str) -> list[Transfer]:
    return [results()[name] for name in of.split(" | ")]


def number(value: float) -> Interval:
    """A number without an interval."""
    return Interval(value, math.nan, math.nan)


def times(factor: float, ends: Iterable[float]) -> Interval:
    return Interval(*(factor * end for end in ends))


def slope(result: Transfer) -> Interval:
    return Interval(*result.drift[:3]) if result.drift else UNKNOWN


def drift(of: str) -> Interval:
    return slope(results()[of])


def moved(of: str) -> Interval:
    """Octaves from the smallest size to the largest."""
    sizes = results()[of].values
    return times(math.log2(sizes[-1] / sizes[0]), drift(of))


def drift_between(of: str) -> Interval:
    """The drift between the two sizes at the end of `of`."""
    name, low, high = of.rsplit(" ", 2)
    (c,) = (c for c in scaling.curves() if f"scaling {c.optimizer} {c.axis}" == name)
    return slope(transfer(c.trials[c.trials[c.axis].between(int(low), int(high))], c.axis, c.chance))


def bend(of: str) -> Interval:
    """The drift above the size at the end of `of`, minus the one below."""
    name, size = of.rsplit(" ", 1)
    return drift_between(f"{name} {size} 4096").minus(drift_between(f"{name} 1 {size}"))


def steeper(of: str) -> Interval:
    """The first drift minus the second, both without their signs."""
    first, second = (times(math.copysign(1, slope(result).value), slope(result)) for result in named(of))
    return first.minus(second)


def cost(of: str) -> Interval:
    """Percent at the worst size; infinite where the tuned value diverges."""
    known = results()[of].cost
    return times(100, known) if known else times(math.inf, (1, 1, 1))


def verdict(of: str) -> tuple[str, str]:
    """(in words, on the prediction that all of these curves transfer)"""
    verdicts = [result.verdict for result in named(of)]
    words = ", ".join(f"{word}: {verdicts.count(word)} of {len(verdicts)}" for word in dict.fromkeys(verdicts))
    alone = ", ".join(filter(None, (verdicts[0], str(named(of)[0].cost or ""))))
    return alone if len(verdicts) == 1 else words, combined([agreement(result) for result in named(of)])


def verdict_of_last_step(of: str) -> tuple[str, str]:
    """By the loss of the last step, of a sweep that is judged by the last tenth."""
    c = curve(sweeps(), *of.split(" "))
    result = transfer(c.trials, c.axis, chance(c, "loss"), measure="loss")
    return f"{result.verdict}, {result.cost}", agreement(result)


def checks_not_ok(of: str) -> Interval:
    """In how many kinds of layers the coordinate check is not ok."""
    return number(sum(layer_kinds.read()[1][kind]["verdict"] == "not ok" for kind in of.split(" | ")))


def untrained(of: str) -> Interval:
    """The number of sizes without an optimum."""
    return number(results()[of].optimal_lr.count(None))


def smallest_is_best(of: str) -> Interval:
    """The number of sizes at which the smallest value has the lowest loss."""
    result = results()[of]
    losses = (np.where(gone, np.inf, at) for at, gone in zip(result.losses, result.diverged, strict=True))
    return number(sum(at.mean(axis=1).argmin() == 0 for at in losses))


def ahead(of: str) -> Interval:
    """Percent by which the first one's loss at the carried rate is above the lowest one of the others."""
    ends = [(result.optima[-1].loss, result.costs[-1]) for result in named(of)]
    first, *others = (loss * (1 + tuned.share) if tuned else math.inf for loss, tuned in ends)
    return number(100 * (first / min(others) - 1))


def lower(of: str) -> Interval:
    """Percent by which the best loss of the first is above the second's, the most at a depth of 8 or more."""
    first, second = named(of)
    deep = [i for i, depth in enumerate(first.values) if depth >= 8]
    return max(percent(best_losses(first, i) / best_losses(second, i)) for i in deep)


def widening(of: str) -> Interval:
    """Percent by which a doubling of the width changes the best loss, at worst ("worst"), or the mean minus the mean of
    doublings of the depth."""
    bests = figb1.bests({name: sweeps()[name] for name in figb1.SWEEPS})
    wider = [percent(bests[2 * w, d].over(best)) for (w, d), best in bests.items() if (2 * w, d) in bests]
    deeper = [percent(bests[w, 2 * d].over(best)) for (w, d), best in bests.items() if (w, 2 * d) in bests]
    means = [float(np.mean([change.value for change in changes])) for changes in (wider, deeper)]
    return max(wider) if of == "worst" else number(means[0] - means[1])


def settling(of: str) -> Interval:
    """Percent of the training after which the optimum stays, at the worst depth."""
    c = curve(sweeps(), *of.split(" "))
    tenths = [settled(*figb3.over_time(c, size), c.chance_loss) for size in c.result.values]
    return number(100 / figb3.TIMES * max(figb3.TIMES if tenth is None else tenth + 1 for tenth in tenths))


def early_choice(of: str) -> Interval:
    """Percent that the rate which is best in the third tenth of the training costs at its end, at the worst depth."""
    c = curve(sweeps(), *of.split(" "))
    costs = [figb3.choice(c, size).cost for size in c.result.values]
    return UNKNOWN if None in costs else times(100, max(known for known in costs if known))


def growth(of: str) -> Interval:
    """Percent by which the loss grows with a doubling of the depth, "early" in the training or "late"."""
    name, when = of.split(" ")
    sweep, span = ("zero_init_early", figm1.EARLY) if when == "early" else ("zero_init", figm1.LATE)
    best, rows = results()[f"zero_init {name} depth"].optimal_lr[0], curve(sweeps(), sweep, name).trials
    rates = np.unique(rows["learning_rate"])
    at_best = rows["learning_rate"] == rates[nearest_point(rates, best or np.median(rates))]
    return times(100, figm1.growth(rows[at_best], span))


def falls_at_all_times(of: str) -> tuple[str, str]:
    """(growth in words, on the claim that the loss falls with depth early and late): rises at both times refute it."""
    early, late = (growth(f"{of} {when}") for when in ("early", "late"))
    words = f"{early.text('+.2f', '%')} early, {late.text('+.2f', '%')} late"
    return words, decided(early.high < 0 and late.high < 0, early.low > 0 and late.low > 0)


def law(of: str) -> PowerLaw | None:
    """Of the best learning rate over depth, by accuracy, or by the measure behind "by"."""
    name, _, measure = of.partition(" by ")
    return of_optima(along_depth(sweeps()[name], measure or BOTH[0]))


def exponent(of: str) -> Interval:
    known = law(of)
    return interval(known) if known else UNKNOWN


def excludes(of: str) -> tuple[str, str]:
    """(an exponent, on the prediction that its interval excludes the number at the end of `of`)"""
    name, claimed = of.rsplit(" ", 1)
    known = exponent(name)
    if math.isnan(known.value):
        return "not known", UNDECIDED
    outside = not known.low <= float(claimed) <= known.high
    return known.text(), decided(outside, not outside)


def exponents_apart(of: str) -> Interval:
    """The first exponent minus the second, over the depths that both have."""
    chosen = [sweeps()[name] for name in of.split(" | ")]
    depths = sorted(set.intersection(*(set(sweep.rows["depth"]) for sweep in chosen)))
    first, second = (of_optima(along_depth(sweep, depths=depths)) for sweep in chosen)
    return apart(second, first) or UNKNOWN


def fall(of: str) -> Interval:
    """Octaves by which the best rate falls from depth 2 to 24."""
    return channels.fall(sweeps()[of], BOTH[0]) or UNKNOWN


def at_start_law(of: str) -> Interval:
    """The exponent of Sbar = 1 at initialization."""
    known = at_start.of_update(at_start.read(of), [*at_start.read(of)])
    return interval(known) if known else UNKNOWN


def means_apart(of: str) -> Interval:
    """The largest difference between exponents of means over layers at initialization."""
    measured = at_start.read(of)
    laws = (at_start.of_update(measured, [*measured], mean) for mean in averages.MEANS)
    return number(float(np.ptp([known.exponent for known in laws if known])))


def anchor_errors(of: str) -> Interval:
    """Half of the narrowest interval of what two anchors predict, in octaves."""
    return number(min((made.off.high - made.off.low) / 2 for made in fig2a.predictions({of: sweeps()[of]})))


def rates_apart(of: str) -> Interval:
    """Octaves by which the best rates of the first are above those of the second, the mean over depths."""
    first, second = (best_rates(along_depth(sweeps()[name])) for name in of.split(" | "))
    return paired(np.array([math.log2(a / b) for a, b in zip(first, second, strict=True) if a and b]))


def rule_off(of: str) -> Interval:
    """Octaves from the best rate of the deepest ResNet to the one that a rule carries there."""
    result, rules = zero_shot.rules(sweeps(), "full_baseline")
    off = next(rule for rule in rules if rule.name == of).octaves_off[zero_shot.deepest(result)]
    return number(math.nan if off is None else off)


def accuracy_lost(of: str) -> Interval:
    """Points of accuracy that the rate of depth 2 loses in the deepest ResNet: under the first more than the second."""
    lost = []
    for name in of.split(" | "):
        result, rules = zero_shot.rules(sweeps(), name)
        judged = zero_shot.carried(sweeps(), name, result, next(rule for rule in rules if rule.name == "constant"))
        known = judged.regret_accuracy[-1] if judged else None
        lost.append(times(100, known) if known else UNKNOWN)
    return lost[0].minus(lost[1])


def decays() -> list[tuple[float, dict[float, pandas.Series]]]:
    """(steps, {weight decay: the losses at its best learning rate, by seed}) of each size; a series has its rate as
    its name."""
    rows = pandas.read_parquet(scaling.ROWS)
    rows = rows[rows["case"].map(scaling.case_of) == "adamw, decay"]
    rows = rows[~rows["diverged"]].assign(decay=rows["case"].str.split().str[-1].astype(float))
    sizes = []
    for (_, steps), of_size in rows.groupby(["batch_size", "steps"]):
        tables = {
            decay: at.pivot(index="learning_rate", columns="seed", values="loss").dropna()
            for decay, at in of_size.groupby("decay")
        }
        sizes.append((steps, {decay: at.loc[at.mean(axis=1).idxmin()] for decay, at in tables.items()}))
    return sizes


def decay_gain(of: str) -> Interval:
    """Percent that the best decay wins against none, at the size where it wins most."""
    gains = [percent((min(best.values(), key=pandas.Series.mean) / best[0.0]).to_numpy()) for _, best in decays()]
    return Interval(*(-end for end in (min(gains).value, min(gains).high, min(gains).low)))


def decay_products(of: str) -> Interval:
    """The largest rate x decay x steps at the best decay, over the smallest one."""
    best = [(steps, min(of_size, key=lambda decay: of_size[decay].mean()), of_size) for steps, of_size in decays()]
    products = [of_size[decay].name * decay * steps for steps, decay, of_size in best if decay]
    return number(max(products) / min(products))


def decay_shift(of: str) -> Interval:
    """By how much a decay changes the exponent of the rate, at most, along an axis."""
    none, *others = (drift(f"scaling adamw, decay {decay:g} {of}") for decay in scaling.DECAYS)
    return max((other.minus(none) for other in others), key=lambda change: abs(change.value))


def against_half(of: str) -> Interval:
    """Percent by which the loss of a case lies above the middle of sp's and mup's, at the decay behind the comma."""
    case, _, decay = of.rpartition(", ")
    return embedding.against_half(case, float(decay))


def tuned() -> Mapping[str, Any]:
    """{case: what `m.tune` answered, and what its target says}"""
    return dict(json.loads(tune.OUT.read_text()))


def tuned_cost(of: str) -> Interval:
    """The smallest of the 97.5% costs that were printed, in percent."""
    return number(min(100 * tuned()[case]["worst_cost"] for case in of.split(" | ")))


def tuned_off(of: str) -> Interval:
    """Octaves from the answer to the best rate of the target."""
    case = tuned()[of]
    return Interval(*(math.log2(case[end] / case["answer"]) for end in ("best", "best_low", "best_high")))


def tuned_product(of: str) -> Interval:
    """Learning rate x weight decay x steps at the target's best weight decay. Where the lowest decay is best it is of
    that, from 0 to the next one."""
    case, steps = tuned()[of], tune.CASES[of].target["steps"]
    losses = {float(decay): sum(of_seeds) for decay, of_seeds in case["losses"].items()}
    best, low, high = (case[key] for key in tune.BEST)
    if best is None and min(losses, key=losses.__getitem__) == min(losses):
        best, high, *_ = sorted(losses)
        low = 0.0
    return Interval(*(case["learning_rate"] * steps * decay for decay in (best, low, high)))


def tuned_confirmed(of: str) -> tuple[str, str]:
    """(in words, on the prediction that all of these cases are confirmed)"""
    answers = {case: tune.confirmed(tuned()[case]) for case in of.split(" | ")}
    return f"{sum(answers.values())} of {len(answers)}", decided(all(answers.values()), not all(answers.values()))


def planted() -> list[dict[str, float]]:
    """What `m.tune` answered for each planted target."""
    return list(json.loads(planted_targets.OUT.read_text()).values())


def planted_confirmed(_: str) -> Interval:
    """How many are confirmed."""
    return number(sum(map(planted_targets.is_confirmed, planted())))


def planted_cost(_: str) -> Interval:
    """The median of the measured costs, in percent."""
    return number(100 * float(np.median([result["cost"] for result in planted()])))


# {quantity: (of -> a number, or a verdict with its words; how a number is written, its unit)}
QUANTITIES: dict[str, tuple[Callable[[str], Interval | tuple[str, str]], str, str]] = {
    "drift": (drift, "+.2f", ""),
    "moved": (moved, "+.2f", ""),
    "drift between": (drift_between, "+.2f", ""),
    "bend": (bend, "+.2f", ""),
    "steeper": (steeper, "+.2f", ""),
    "cost": (cost, ".1f", "%"),
    "verdict": (verdict, "", ""),
    "verdict of the last step": (verdict_of_last_step, "", ""),
    "checks not ok": (checks_not_ok, ".0f", ""),
    "untrained": (untrained, ".0f", ""),
    "smallest is best": (smallest_is_best, ".0f", ""),
    "ahead": (ahead, "+.1f", "%"),
    "lower": (lower, "+.1f", "%"),
    "widening": (widening, "+.1f", "%"),
    "settling": (settling, ".0f", "%"),
    "early choice": (early_choice, ".1f", "%"),
    "growth": (growth, "+.2f", "%"),
    "falls at all times": (falls_at_all_times, "", ""),
    "exponent": (exponent, "+.2f", ""),
    "excludes": (excludes, "", ""),
    "exponents apart": (exponents_apart, "+.2f", ""),
    "fall": (fall, ".1f", ""),
    "at start": (at_start_law, "+.2f", ""),
    "means apart": (means_apart, ".2f", ""),
    "anchor errors": (anchor_errors, ".1f", ""),
    "rates apart": (rates_apart, "+.2f", ""),
    "rule off": (rule_off, "+.1f", ""),
    "accuracy lost": (accuracy_lost, "+.1f", ""),
    "decay gain": (decay_gain, ".1f", "%"),
    "decay products": (decay_products, ".1f", ""),
    "decay shift": (decay_shift, "+.2f", ""),
    "against half": (against_half, "+.2f", "%"),
    "tuned cost": (tuned_cost, ".1f", "%"),
    "tuned off": (tuned_off, "+.1f", ""),
    "tuned product": (tuned_product, ".2f", ""),
    "tuned confirmed": (tuned_confirmed, "", ""),
    "planted confirmed": (planted_confirmed, ".0f", ""),
    "planted cost": (planted_cost, ".2f", "%"),
    "large cost": (large_runs.cost, ".1f", "%"),
    "large moved": (large_runs.moved, "+.1f", ""),
    "large ahead": (large_runs.ahead, "+.1f", "%"),
    "hundred million": (hundred_million.quantity, "+.1f", "%"),
    "hundred million moved": (hundred_million.quantity, "+.1f", ""),
}
